//! Fork support. Forks are safe without preparation, and a child may use its parent's objects on
//! the card of another process: see [`crate::process`]. Memory is not pinned, so no page must be
//! kept from being copied.

use core::ffi::{c_int, c_void};

use crate::abi::*;

/// `ibv_fork_init`.
pub(super) extern "C" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub(super) extern "C" fn is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range`, `ibv_dofork_range`.
pub(super) extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
