//! Multicast groups.

use core::ffi::c_int;

use super::{EOPNOTSUPP, number};
use crate::abi::*;

/// `ibv_attach_mcast`.
pub extern "C" fn attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    number(Err(EOPNOTSUPP))
}

/// `ibv_detach_mcast`.
pub extern "C" fn detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    number(Err(EOPNOTSUPP))
}
