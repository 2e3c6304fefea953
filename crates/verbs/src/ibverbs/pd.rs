//! Protection domains.

use core::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use remora::nic;

use super::context::{self, Context};
use super::parent_domain::Td;
use super::{EBUSY, ENOMEM, Result, number, or_null};
use crate::abi::*;
use crate::handles::{self, Object, Slot};

/// A protection domain, or a parent domain, which stands for one.
#[derive(Debug)]
pub struct Pd {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// The card's number for it.
    pub pd: nic::Pd,
    /// What a parent domain is made of.
    pub parent: Option<Parent>,
    /// How many objects were made on this handle.
    pub(crate) users: AtomicUsize,
}

/// What a parent domain is made of.
#[derive(Clone, Copy, Debug)]
pub struct Parent {
    /// The domain that it stands for.
    pub whole: &'static Slot<Pd>,
    /// The threads that use it.
    pub td: Option<&'static Slot<Td>>,
}

impl Pd {
    /// An object was made on the domain.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// An object of the domain is gone.
    pub fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Object for Pd {
    type C = ibv_pd;
    const KIND: handles::Kind = handles::Kind::Pd;
}

/// The protection domain behind a handle.
pub fn find(pd: *const ibv_pd) -> Result<&'static Slot<Pd>> {
    Ok(handles::get::<Pd>(pd)?)
}

/// `ibv_alloc_pd`.
pub extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    or_null(alloc(context))
}

fn alloc(handle: *mut ibv_context) -> Result<*mut ibv_pd> {
    let context = context::find(handle)?;
    let pd = context.card.lock().nic().alloc_pd()?;
    let c = ibv_pd { context: handle, handle: 0 };
    let made = handles::create(c, Pd { context, pd, parent: None, users: AtomicUsize::new(0) });
    let Some(made) = made else {
        context.card.lock().nic().dealloc_pd(pd).ok();
        return Err(ENOMEM);
    };
    context.enter();
    Ok(made.c())
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
    // The card counts what it has itself, made on a parent domain or not.
    if slot.parent.is_none() {
        slot.context.card.lock().nic().dealloc_pd(slot.pd)?;
    }
    let Pd { context, parent, .. } = handles::destroy::<Pd>(handle)?;
    if let Some(Parent { whole, td }) = parent {
        whole.leave();
        td.inspect(|td| td.leave());
    }
    context.leave();
    Ok(())
}
