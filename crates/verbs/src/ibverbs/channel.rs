//! Completion channels.
//!
//! | symbol | function |
//! |---|---|
//! | `ibv_create_comp_channel@@IBVERBS_1.0` | [`create_comp_channel`] |
//! | `ibv_destroy_comp_channel@@IBVERBS_1.0` | [`destroy_comp_channel`] |
//! | `ibv_get_cq_event@@IBVERBS_1.1` | [`get_cq_event`] |
//! | `ibv_ack_cq_events@@IBVERBS_1.1` | [`ack_cq_events`] |

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr::addr_of_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use remora::raw::EventQueue;

use super::context;
use super::objects::{CompletionChannel, Cq};
use super::{EBUSY, ENOMEM, EOPNOTSUPP, Errno, Result, acknowledge, number, or_minus_one, or_null};
use crate::abi::*;
use crate::handles::{self, Slot};

/// `ibv_create_comp_channel`.
pub extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    or_null(create(context))
}

fn create(handle: *mut ibv_context) -> Result<*mut ibv_comp_channel> {
    let context = context::find(handle)?;
    if context.card.is_guest() {
        tracing::error!(
            "no completion channel: this process uses a device beside the one that has opened it, \
             which gets its events; poll, or open a device here"
        );
        return Err(EOPNOTSUPP);
    }
    let events = Arc::new(EventQueue::new()?);
    let c = ibv_comp_channel { context: handle, fd: events.as_raw_fd(), refcnt: 0 };
    let made =
        handles::create(c, CompletionChannel { context, events, users: AtomicUsize::new(0) });
    let made = made.ok_or(ENOMEM)?;
    context.enter();
    Ok(made.c())
}

/// `ibv_destroy_comp_channel`.
pub extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(destroy(channel))
}

fn destroy(handle: *mut ibv_comp_channel) -> Result<()> {
    let channel = handles::get::<CompletionChannel>(handle)?;
    if channel.users.load(Ordering::Acquire) > 0 {
        return Err(EBUSY);
    }
    handles::destroy::<CompletionChannel>(handle)?.context.leave();
    Ok(())
}

impl Slot<CompletionChannel> {
    /// A completion queue starts (1) or stops (-1) reporting entries to this channel.
    pub(crate) fn count_user(&self, by: isize) {
        let users = self.users.fetch_add(by as usize, Ordering::AcqRel).wrapping_add_signed(by);
        // SAFETY: the slot is in use; programs at most read the field.
        unsafe { (*self.c()).refcnt = users as c_int };
    }
}

/// `ibv_get_cq_event`: 0, or -1 with `errno`. A thread may be cancelled while it waits.
///
/// # Safety
/// `cq` and `cq_context` can be written.
pub unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    or_minus_one(take(channel).map(|told| {
        let told = told.c().cast::<ibv_cq>();
        // SAFETY: by promise of the caller; the queue lives until this event is acknowledged.
        unsafe {
            cq.write(told);
            cq_context.write((*told).cq_context);
        }
        0
    }))
}

fn take(channel: *mut ibv_comp_channel) -> Result<&'static Slot<Cq>> {
    let channel = handles::get::<CompletionChannel>(channel)?;
    // The descriptor stays open while a thread sleeps here, even if another destroys the channel.
    let events = channel.events.clone();
    // Counted under the queue's lock: a completion queue is destroyed only after its last event was
    // withdrawn, or fetched and acknowledged.
    let count = |cq: &'static Slot<Cq>| {
        cq.comp_got.fetch_add(1, Ordering::Relaxed);
        cq
    };
    if let Some(cq) = events.pop(count) {
        return Ok(cq);
    }
    let card = channel.context.card;
    if events.is_nonblocking()? {
        return card.device.look_for(&events, count).ok_or(Errno(libc::EAGAIN));
    }
    Ok(card.device.wait_for(&events, count)?)
}

/// `ibv_ack_cq_events`.
pub extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    if let Ok(cq) = handles::get::<Cq>(cq.cast()) {
        // SAFETY: the places are those of a live object.
        unsafe { completions(cq).add(events) };
    }
}

/// The counter of acknowledged completion events.
pub(crate) fn completions(cq: &Slot<Cq>) -> acknowledge::AckCounter {
    let c = cq.c();
    // SAFETY: the fields are within the struct of a slot in use.
    unsafe {
        acknowledge::AckCounter {
            mutex: addr_of_mut!((*c).mutex),
            cond: addr_of_mut!((*c).cond),
            completed: addr_of_mut!((*c).comp_events_completed),
        }
    }
}
