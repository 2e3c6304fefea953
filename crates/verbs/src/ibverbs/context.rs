//! Contexts: open devices.

use core::ffi::c_int;
use core::mem::offset_of;
use std::ptr;
use std::sync::atomic::Ordering;

use super::objects::Context;
use super::{EINVAL, Result, number};
use crate::abi::*;
use crate::handles::{self, BadHandle, Slot};

/// Added to the number of users when the program has closed the context.
const CLOSED: usize = 1 << 62;

/// The handle that a program has of a context: the last part of the larger struct.
pub fn inner(slot: &Slot<Context>) -> *mut ibv_context {
    // SAFETY: in bounds.
    unsafe { ptr::addr_of_mut!((*slot.c()).context) }
}

/// The larger struct of a program's handle.
fn outer(context: *const ibv_context) -> *const verbs_context {
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// The context behind a program's handle.
pub fn find(context: *const ibv_context) -> Result<&'static Slot<Context>> {
    let slot = handles::get::<Context>(outer(context))?;
    if slot.users.load(Ordering::Acquire) >= CLOSED {
        return Err(EINVAL);
    }
    Ok(slot)
}

impl Slot<Context> {
    /// An object was made on the context: it keeps the context's state alive.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// An object of the context is gone.
    pub fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            handles::destroy::<Context>(self.c()).ok();
        }
    }
}

/// The context behind a handle, on the data path.
///
/// # Safety
/// The handle is that of a context, open or closed.
pub unsafe fn find_fast(
    context: *const ibv_context,
) -> core::result::Result<&'static Slot<Context>, BadHandle> {
    // SAFETY: by promise of the caller.
    unsafe { handles::get_fast::<Context>(outer(context)) }
}

/// `ibv_close_device`.
pub extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    number(close(context))
}

/// As the manual says, this does not end what was made on the context: such objects live on, and
/// the context with them, unreachable.
fn close(context: *mut ibv_context) -> Result<()> {
    let slot = find(context)?;
    match slot.users.fetch_add(CLOSED, Ordering::AcqRel) {
        0 => {
            handles::destroy::<Context>(slot.c())?;
            Ok(())
        }
        users if users >= CLOSED => Err(EINVAL),
        _ => Ok(()),
    }
}
