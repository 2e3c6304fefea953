//! Thread domains and parent domains.
//!
//! By these, a program promises which threads use an object, so that a device can do without locks.
//! That saves nothing here, as the card has one lock that is held briefly. So both are accepted and
//! change nothing: a parent domain stands for the protection domain that it was made of. Its
//! allocators are never called, because this library keeps no queues in memory that a program
//! allocates. Its leave to use memory that is not protected, where a machine protects memory from
//! its devices, is not needed.

use core::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::context;
use super::objects::{Parent, Pd, Td};
use super::pd;
use super::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Result, number, or_null};
use crate::abi::newer::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
use crate::abi::*;
use crate::handles::{self};

/// `verbs_context.alloc_td`.
///
/// # Safety
/// `attr` is null or points to the struct.
pub unsafe extern "C" fn alloc_td(
    handle: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    or_null((|| {
        let context = context::find(handle)?;
        // SAFETY: by promise of the caller.
        if unsafe { attr.as_ref() }.ok_or(EINVAL)?.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        let td = Td { context, users: AtomicUsize::new(0) };
        let slot = handles::create(ibv_td { context: handle }, td).ok_or(ENOMEM)?;
        context.enter();
        Ok(slot.c())
    })())
}

/// `verbs_context.dealloc_td`.
pub extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    number((|| {
        if handles::get::<Td>(td)?.users.load(Ordering::Acquire) > 0 {
            return Err(EBUSY);
        }
        handles::destroy::<Td>(td)?.context.leave();
        Ok(())
    })())
}

/// `verbs_context.alloc_parent_domain`.
///
/// # Safety
/// `attr` is null or points to the struct.
pub unsafe extern "C" fn alloc_parent_domain(
    handle: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: by promise of the caller.
    or_null(unsafe { attr.as_ref() }.ok_or(EINVAL).and_then(|attr| alloc(handle, attr)))
}

fn alloc(handle: *mut ibv_context, attr: &ibv_parent_domain_init_attr) -> Result<*mut ibv_pd> {
    let context = context::find(handle)?;
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    if attr.comp_mask & !known != 0 {
        return Err(EINVAL);
    }
    let whole = pd::find(attr.pd)?;
    // A parent domain cannot be made of a parent domain.
    if !ptr::eq(whole.context, context) || whole.parent.is_some() {
        return Err(EINVAL);
    }
    let td = match attr.td.is_null() {
        true => None,
        false => Some(handles::get::<Td>(attr.td)?),
    };
    let parent = Parent { whole, td };
    let made = handles::create(
        ibv_pd { context: handle, handle: 0 },
        Pd { context, pd: whole.pd, parent: Some(parent), users: AtomicUsize::new(0) },
    );
    let slot = made.ok_or(ENOMEM)?;
    whole.enter();
    context.enter();
    if let Some(td) = td {
        td.users.fetch_add(1, Ordering::AcqRel);
    }
    Ok(slot.c())
}
