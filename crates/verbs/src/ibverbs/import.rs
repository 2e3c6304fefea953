//! Sharing objects between processes by a device's descriptor: refused, as it needs a kernel
//! device.

use core::ffi::{c_int, c_void};
use std::ptr;

use super::{EOPNOTSUPP, or_null, set_errno};
use crate::abi::*;

/// `ibv_import_device`.
pub(super) extern "C" fn import_device(_fd: c_int) -> *mut ibv_context {
    or_null(Err(EOPNOTSUPP))
}

/// `ibv_import_pd`, `ibv_import_mr`, `ibv_import_dm`.
pub(super) extern "C" fn import(_from: *mut c_void, _handle: u32) -> *mut c_void {
    set_errno(EOPNOTSUPP);
    ptr::null_mut()
}

/// `ibv_unimport_pd`, `ibv_unimport_mr`, `ibv_unimport_dm`: do nothing, as no object was imported.
pub(super) extern "C" fn unimport(_object: *mut c_void) {}
