//! Functions by which vendors' drivers talk to the kernel and register themselves.
//!
//! Libraries of vendors (libmlx5, libefa, …) are linked to programs that never see such a device,
//! and do not load unless each symbol exists. This library has no kernel device, so nothing else
//! needs these functions: they answer `ENOSYS`.

use core::ffi::{c_int, c_void};
use std::ptr;

use super::{EOPNOTSUPP, Errno, number, or_minus_one, set_errno};

/// The kernel's answer to an unknown call.
const ENOSYS: Errno = Errno(libc::ENOSYS);

/// Refuses a call that returns an error number.
pub(super) extern "C" fn refused() -> c_int {
    number(Err(ENOSYS))
}

/// Refuses a call that returns a pointer.
pub(super) extern "C" fn no_object() -> *mut c_void {
    set_errno(ENOSYS);
    ptr::null_mut()
}

/// Ignores a call that returns nothing, and the registration of a driver, which has no device here.
pub(super) extern "C" fn ignored() {}

/// Answers zero to a call that returns a count.
pub(super) extern "C" fn none() -> u32 {
    0
}

/// Answers zero to the old version of `ibv_get_device_guid`.
pub(super) extern "C" fn no_guid() -> u64 {
    set_errno(ENOSYS);
    0
}

/// Refuses a call of a later release that returns an error number.
pub(super) extern "C" fn unsupported() -> c_int {
    number(Err(EOPNOTSUPP))
}

/// Refuses a call of a later release that returns a pointer.
pub(super) extern "C" fn unsupported_object() -> *mut c_void {
    set_errno(EOPNOTSUPP);
    ptr::null_mut()
}

/// Refuses a call of a later release that returns a descriptor.
pub(super) extern "C" fn unsupported_descriptor() -> c_int {
    or_minus_one(Err(EOPNOTSUPP))
}
