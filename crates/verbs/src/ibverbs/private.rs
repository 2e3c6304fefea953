//! The functions by which drivers of vendors talk to the kernel, and register themselves.
//!
//! Libraries of vendors (libmlx5, libefa…) are linked to programs that never see such a device, and
//! do not load unless each symbol is there. There is no kernel device here, so nothing else needs
//! them: what is called answers `ENOSYS`.

use core::ffi::{c_int, c_void};
use std::ptr;

use super::{EOPNOTSUPP, Errno, number, or_minus_one, set_errno};

/// What the kernel would say.
const ENOSYS: Errno = Errno(libc::ENOSYS);

/// For what returns an error number.
pub(super) extern "C" fn refused() -> c_int {
    number(Err(ENOSYS))
}

/// For what returns a pointer.
pub(super) extern "C" fn no_object() -> *mut c_void {
    set_errno(ENOSYS);
    ptr::null_mut()
}

/// For what returns nothing, and for drivers that register: no device is theirs.
pub(super) extern "C" fn ignored() {}

/// For what returns a count.
pub(super) extern "C" fn none() -> u32 {
    0
}

/// For `ibv_get_device_guid` of old: zero.
pub(super) extern "C" fn no_guid() -> u64 {
    set_errno(ENOSYS);
    0
}

/// For calls of later releases that return an error number.
pub(super) extern "C" fn unsupported() -> c_int {
    number(Err(EOPNOTSUPP))
}

/// For calls of later releases that return a pointer.
pub(super) extern "C" fn unsupported_object() -> *mut c_void {
    set_errno(EOPNOTSUPP);
    ptr::null_mut()
}

/// For calls of later releases that return a descriptor.
pub(super) extern "C" fn unsupported_descriptor() -> c_int {
    or_minus_one(Err(EOPNOTSUPP))
}
