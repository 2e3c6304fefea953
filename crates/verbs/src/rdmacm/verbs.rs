//! The verbs that this library calls, with Rust results.

use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::{EINVAL, ENODEV, Errno, Result};
use crate::abi::*;
use crate::ibverbs::{channel, cq, device, mcast, open, pd, qp, srq, xrc};
use crate::process;

/// The index in the GID table of the card's RoCE v2 GID.
pub(super) const GID_INDEX: u8 = 0;

/// Objects that are made once for each card and serve all ids.
#[derive(Debug, Default)]
struct Opened {
    cards: Mutex<HashMap<usize, One>>,
}

/// Addresses of handles; zero if there is none yet.
#[derive(Clone, Copy, Debug, Default)]
struct One {
    context: usize,
    pd: usize,
    xrcd: usize,
}

fn with<R>(card: usize, act: impl FnOnce(&mut One) -> Result<R>) -> Result<R> {
    let opened = process::current().shared::<Opened>();
    let mut cards = opened.cards.lock().unwrap_or_else(PoisonError::into_inner);
    act(cards.entry(card).or_default())
}

/// Checks the result of a verb that returns a pointer.
fn made<T>(pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() { Err(Errno::last()) } else { Ok(pointer) }
}

/// The context of the ids on a card.
pub(super) fn context(card: usize) -> Result<*mut ibv_context> {
    with(card, |one| {
        if one.context == 0 {
            let device = *device::devices().get(card).ok_or(ENODEV)?;
            one.context = made(open::open_device(device.c())).map_err(|_| ENODEV)? as usize;
        }
        Ok(one.context as *mut ibv_context)
    })
}

/// The protection domain of ids whose program gives none.
pub(super) fn default_pd(card: usize) -> Result<*mut ibv_pd> {
    let context = context(card)?;
    with(card, |one| {
        if one.pd == 0 {
            one.pd = made(pd::alloc_pd(context))? as usize;
        }
        Ok(one.pd as *mut ibv_pd)
    })
}

/// The XRC domain of ids whose program gives none.
pub(super) fn default_xrcd(card: usize) -> Result<*mut ibv_xrcd> {
    /// `comp_mask`: both fields are set.
    const FD_AND_FLAGS: u32 = 3;
    let context = context(card)?;
    with(card, |one| {
        if one.xrcd == 0 {
            let mut init =
                ibv_xrcd_init_attr { comp_mask: FD_AND_FLAGS, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: the attributes live through the call.
            one.xrcd = made(unsafe { xrc::open_xrcd(context, &mut init) })? as usize;
        }
        Ok(one.xrcd as *mut ibv_xrcd)
    })
}

/// A completion queue with a channel of its own.
pub(super) fn make_cq(
    context: *mut ibv_context,
    entries: u32,
    of: *mut c_void,
) -> Result<(*mut ibv_cq, *mut ibv_comp_channel)> {
    let entries = c_int::try_from(entries).map_err(|_| EINVAL)?;
    let on = made(channel::create_comp_channel(context))?;
    match made(cq::create_cq(context, entries, of, on, 0)) {
        Ok(cq) => Ok((cq, on)),
        Err(error) => {
            channel::destroy_comp_channel(on);
            Err(error)
        }
    }
}

/// Destroys what [`make_cq`] has made.
pub(super) fn drop_cq(queue: *mut ibv_cq, on: *mut ibv_comp_channel) {
    if !queue.is_null() {
        note("completion queue", cq::destroy_cq(queue));
    }
    if !on.is_null() {
        note("completion channel", channel::destroy_comp_channel(on));
    }
}

fn note(what: &str, returned: c_int) {
    if returned != 0 {
        tracing::debug!(errno = returned, "cannot destroy a {what} of an id");
    }
}

pub(super) fn create_qp_ex(
    context: *mut ibv_context,
    init: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    // SAFETY: the attributes live through the call.
    made(unsafe { qp::create_qp_ex(context, init) })
}

pub(super) fn modify_qp(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> Result<()> {
    // SAFETY: the attributes live through the call.
    Errno::check(unsafe { qp::modify_qp(qp, attr, mask) })
}

pub(super) fn destroy_qp(queue_pair: *mut ibv_qp) {
    note("queue pair", qp::destroy_qp(queue_pair));
}

pub(super) fn create_srq_ex(
    context: *mut ibv_context,
    init: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq> {
    // SAFETY: the attributes live through the call.
    made(unsafe { srq::create_srq_ex(context, init) })
}

pub(super) fn destroy_srq(queue: *mut ibv_srq) {
    note("shared receive queue", srq::destroy_srq(queue));
}

pub(super) fn attach_mcast(qp: *mut ibv_qp, gid: [u8; 16]) -> Result<()> {
    // SAFETY: the GID lives through the call.
    Errno::check(unsafe { mcast::attach_mcast(qp, &ibv_gid { raw: gid }, 0) })
}

pub(super) fn detach_mcast(qp: *mut ibv_qp, gid: [u8; 16]) -> Result<()> {
    // SAFETY: the GID lives through the call.
    Errno::check(unsafe { mcast::detach_mcast(qp, &ibv_gid { raw: gid }, 0) })
}
