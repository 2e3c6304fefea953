//! Protection domains.

use core::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use remora::nic;

use super::context;
use super::objects::{Context, Parent, Pd};
use super::{EBUSY, ENOMEM, Result, number, or_null};
use crate::abi::*;
use crate::handles::{self, Slot};

/// Looks up a protection domain.
pub fn find(pd: *const ibv_pd) -> Result<&'static Slot<Pd>> {
    Ok(handles::get::<Pd>(pd)?)
}

/// `ibv_alloc_pd`.
pub extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    or_null(alloc(context))
}

fn alloc(handle: *mut ibv_context) -> Result<*mut ibv_pd> {
    let context = context::find(handle)?;
    let pd = context.card.lock().commands().alloc_pd()?;
    keep(handle, context, pd).inspect_err(|_| {
        context.card.lock().commands().dealloc_pd(pd).ok();
    })
}

/// Makes the handle of a domain of the card's.
pub(super) fn keep(
    handle: *mut ibv_context,
    context: &'static Slot<Context>,
    pd: nic::Pd,
) -> Result<*mut ibv_pd> {
    let c = ibv_pd { context: handle, handle: pd.number() };
    let made = handles::create(c, Pd { context, pd, parent: None, users: AtomicUsize::new(0) });
    context.enter();
    made.map(Slot::c).ok_or(ENOMEM).inspect_err(|_| context.leave())
}

/// `ibv_dealloc_pd`.
pub extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    number(dealloc(pd))
}

fn dealloc(handle: *mut ibv_pd) -> Result<()> {
    let slot = find(handle)?;
    if slot.users.load(Ordering::Acquire) > 0 {
        return Err(EBUSY);
    }
    // The card counts the objects on its own domain, including those made through a parent domain.
    if slot.parent.is_none() {
        slot.context.card.lock().commands().dealloc_pd(slot.pd)?;
    }
    let Pd { context, parent, .. } = handles::destroy::<Pd>(handle)?;
    if let Some(Parent { whole, td }) = parent {
        whole.leave();
        td.inspect(|td| td.leave());
    }
    context.leave();
    Ok(())
}
