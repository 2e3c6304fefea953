//! Completion queues: creating, arming, changing and destroying them.
//!
//! | symbol or place | function |
//! |---|---|
//! | `ibv_create_cq@@IBVERBS_1.1` | [`create_cq`] |
//! | `ibv_destroy_cq@@IBVERBS_1.1` | [`destroy_cq`] |
//! | `ibv_resize_cq@@IBVERBS_1.1` | [`resize_cq`] |
//! | `ibv_context_ops.req_notify_cq` | [`req_notify_cq`] |
//! | `ibv_context_ops.poll_cq` | [`super::poll::poll_cq`] |
//! | `verbs_context.create_cq_ex` | [`super::cq_ex::create_cq_ex`] |
//! | `verbs_context.modify_cq` | [`modify_cq`] |

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use remora::nic::queue::Moderation;

use super::channel::completions;
use super::context;
use super::gate::Gate;
use super::objects::{CompletionChannel, Cq, Subject};
use super::routes::routes;
use super::{EINVAL, ENOMEM, EOPNOTSUPP, Errno, Result, acknowledge, number, or_null};
use crate::abi::*;
use crate::handles::{self, Slot};

/// The parameters of a new completion queue.
pub(crate) struct CqInit {
    pub(crate) context: *mut ibv_context,
    pub(crate) entries: i64,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) vector: i64,
    pub(crate) single_threaded: bool,
}

/// `ibv_create_cq`.
pub extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let init = CqInit {
        context,
        entries: cqe.into(),
        cq_context,
        channel,
        vector: comp_vector.into(),
        single_threaded: false,
    };
    or_null(create(&init, ibv_cq_ex::zeroed()).map(|cq| cq.c().cast()))
}

/// The entries that the card makes: rounded up to a power of two, as hardware does and some
/// programs rely on.
fn capacity(entries: i64) -> Result<usize> {
    if !(1..=i64::from(i32::MAX)).contains(&entries) {
        return Err(EINVAL);
    }
    Ok((entries as usize).next_power_of_two())
}

/// Makes a completion queue; `c` holds the functions of an extended one.
pub(crate) fn create(init: &CqInit, mut c: ibv_cq_ex) -> Result<&'static Slot<Cq>> {
    let context = context::find(init.context)?;
    let channel = match init.channel.is_null() {
        true => None,
        false => Some(handles::get::<CompletionChannel>(init.channel)?),
    };
    // SAFETY: the context's handle is valid.
    let vectors = unsafe { (*init.context).num_comp_vectors };
    if !(0..i64::from(vectors)).contains(&init.vector) {
        return Err(EINVAL);
    }
    let capacity = capacity(init.entries)?;
    let routes = routes(context.card);
    let number = context.card.lock().commands().create_cq(capacity)?;
    c.context = init.context;
    c.channel = init.channel;
    c.cq_context = init.cq_context;
    c.handle = number;
    c.cqe = capacity as c_int;
    let state = Cq {
        context,
        number,
        channel,
        channel_events: channel.map(|channel| channel.events.clone()),
        comp_got: AtomicU32::new(0),
        async_got: AtomicU32::new(0),
        gate: Gate::default(),
        single_threaded: init.single_threaded,
        current: UnsafeCell::default(),
    };
    let mut card = context.card.lock();
    let Some(made) = handles::create(c, state) else {
        card.commands().destroy_cq(number).ok();
        return Err(ENOMEM);
    };
    routes.lock().cqs.insert(number, made);
    drop(card);
    context.enter();
    if let Some(channel) = channel {
        channel.count_user(1);
    }
    Ok(made)
}

/// Looks up a completion queue.
pub fn find(cq: *const ibv_cq) -> Result<&'static Slot<Cq>> {
    Ok(handles::get::<Cq>(cq.cast())?)
}

/// `ibv_destroy_cq`: waits until all its events are acknowledged.
pub extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(destroy(cq))
}

fn destroy(handle: *mut ibv_cq) -> Result<()> {
    let cq = find(handle)?;
    let routes = routes(cq.context.card);
    let mut card = cq.context.card.lock();
    card.commands().destroy_cq(cq.number)?;
    routes.lock().cqs.remove(&cq.number);
    drop(card);
    let itself = |other: *mut ibv_cq_ex| other == cq.c();
    if let Some(events) = &cq.channel_events {
        events.withdraw(|event| itself(event.c()));
    }
    cq.context.events.withdraw(|e| matches!(e.subject, Subject::Cq(cq) if itself(cq.c())));
    // SAFETY: the object lives until the end of this function: no other call destroys it, since
    // this one has removed it from the card.
    unsafe {
        completions(cq).wait(cq.comp_got.load(Ordering::Relaxed));
        errors(cq).wait(cq.async_got.load(Ordering::Relaxed));
    }
    let Cq { context, channel, .. } = handles::destroy::<Cq>(handle.cast())?;
    if let Some(channel) = channel {
        channel.count_user(-1);
    }
    context.leave();
    Ok(())
}

/// The counter of acknowledged asynchronous events.
fn errors(cq: &Slot<Cq>) -> acknowledge::AckCounter {
    // SAFETY: the fields are within the struct of a slot in use.
    let completed = unsafe { addr_of_mut!((*cq.c()).async_events_completed) };
    acknowledge::AckCounter { completed, ..completions(cq) }
}

/// `ibv_resize_cq`.
pub extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    number(resize(cq, cqe))
}

fn resize(handle: *mut ibv_cq, entries: c_int) -> Result<()> {
    let cq = find(handle)?;
    let capacity = capacity(entries.into())?;
    cq.context.card.lock().commands().resize_cq(cq.number, capacity).map_err(|_| EINVAL)?;
    // SAFETY: the handle is good.
    unsafe { (*handle).cqe = capacity as c_int };
    Ok(())
}

/// `ibv_modify_cq`: sets how often an armed queue reports entries.
///
/// # Safety
/// `attr` can be read.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: by promise of the caller.
    number(find(cq).and_then(|cq| modify(cq, unsafe { *attr })))
}

fn modify(cq: &Slot<Cq>, attr: ibv_modify_cq_attr) -> Result<()> {
    if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
        return Err(EOPNOTSUPP);
    }
    if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
        let period = Duration::from_micros(attr.moderate.cq_period.into());
        let moderation = Moderation { count: attr.moderate.cq_count, period };
        let mut card = cq.context.card.lock();
        card.commands().modify_cq(cq.number, moderation).map_err(|_| EINVAL)?;
    }
    Ok(())
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// The handle was once one of a completion queue.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: by promise of the caller.
    let Ok(cq) = (unsafe { handles::get_fast::<Cq>(cq.cast()) }) else { return libc::EINVAL };
    let mut card = cq.context.card.lock();
    let armed = card.req_notify_cq(cq.number, solicited_only != 0);
    card.armed();
    number(armed.map_err(|_| Errno(libc::EINVAL)))
}
