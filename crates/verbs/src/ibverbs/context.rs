//! Contexts: open devices.

use core::ffi::c_int;
use core::mem::offset_of;
use std::ptr;
use std::sync::atomic::Ordering;

use super::objects::Context;
use super::{EINVAL, Result, number, routes};
use crate::abi::*;
use crate::handles::{self, BadHandle, Slot};
use crate::process;

/// Added to the number of users once the program has closed the context.
const CLOSED: usize = 1 << 62;

/// The program's handle of a context: the last part of the larger struct.
pub fn inner(slot: &Slot<Context>) -> *mut ibv_context {
    // SAFETY: the field is within the struct.
    unsafe { ptr::addr_of_mut!((*slot.c()).context) }
}

/// The larger struct around a program's handle.
fn outer(context: *const ibv_context) -> *const verbs_context {
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// Looks up a context by the program's handle.
pub fn find(context: *const ibv_context) -> Result<&'static Slot<Context>> {
    let slot = handles::get::<Context>(outer(context))?;
    if slot.users.load(Ordering::Acquire) >= CLOSED {
        return Err(EINVAL);
    }
    Ok(slot)
}

impl Slot<Context> {
    /// Counts an object that is made on the context: it keeps the context's state alive.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an object of the context as gone.
    pub fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            end(self).ok();
        }
    }
}

/// The context is closed, and nothing is left on it.
fn end(slot: &Slot<Context>) -> Result<()> {
    let Context { card, imported, .. } = handles::destroy::<Context>(slot.c())?;
    if imported.is_some() && card.is_guest() {
        card.device.hang_up();
        routes::forget(card);
        process::current().end_guest(card);
    }
    Ok(())
}

/// Looks up a context on the data path.
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

/// As `ibv_open_device(3)` says, closing does not destroy the objects that were made on the
/// context: they stay, and with them the context's state.
fn close(context: *mut ibv_context) -> Result<()> {
    let slot = find(context)?;
    match slot.users.fetch_add(CLOSED, Ordering::AcqRel) {
        0 => end(slot),
        users if users >= CLOSED => Err(EINVAL),
        _ => Ok(()),
    }
}
