//! Asynchronous events, as programs take and acknowledge them. (The card raises them, see its
//! [`Event`](remora::nic::Event); `routes` puts them in.)
//!
//! | symbol | function |
//! |---|---|
//! | `ibv_get_async_event@@IBVERBS_1.1` | [`get_async_event`] |
//! | `ibv_ack_async_event@@IBVERBS_1.1` | [`ack_async_event`] |

use std::ffi::c_int;
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use super::objects::{Context, Cq, Qp, Srq, Subject};
use super::{EINVAL, EOPNOTSUPP, Result, acknowledge, context, or_minus_one};
use crate::abi::*;
use crate::handles::{self, Slot};

/// `ibv_get_async_event`: 0, or -1 with `errno`. A thread may be cancelled while it waits.
///
/// # Safety
/// `event` can be written.
pub unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    or_minus_one(take(context).map(|told| {
        // SAFETY: by promise of the caller.
        unsafe { event.write(told) };
        0
    }))
}

fn take(context: *mut ibv_context) -> Result<ibv_async_event> {
    let context = context::find(context)?;
    if handles::is_inherited(context) {
        // They are the parent's.
        return Err(EOPNOTSUPP);
    }
    let _until_the_end = Inside::new(context);
    // Counted under the queue's lock: an object is destroyed only after its last event was
    // withdrawn, or fetched and acknowledged.
    let got = |count: &AtomicU32| count.fetch_add(1, Ordering::Relaxed);
    let taken = context.events.take(|event| {
        let mut told = ibv_async_event::zeroed();
        told.event_type = event.event_type;
        match event.subject {
            Subject::Cq(cq) => {
                got(&cq.async_got);
                told.element.cq = cq.c().cast();
            }
            Subject::Qp(qp) => {
                got(&qp.async_got);
                told.element.qp = qp.c().cast();
            }
            Subject::Srq(srq) => {
                got(&srq.async_got);
                told.element.srq = srq.c();
            }
            Subject::Port(port) => told.element.port_num = port,
        }
        told
    });
    Ok(taken?)
}

/// A context stays alive while a thread sleeps for its events.
struct Inside(&'static Slot<Context>);

impl Inside {
    fn new(context: &'static Slot<Context>) -> Inside {
        context.enter();
        Inside(context)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// `event` was written by [`get_async_event`].
pub unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: by promise of the caller; the type says which element was written.
    unsafe { acknowledge_event(&*event) }.ok();
}

/// # Safety
/// The element is of the event's type.
unsafe fn acknowledge_event(event: &ibv_async_event) -> Result<()> {
    // SAFETY: the handles that are looked up are valid, so pointers into their structs are too; the
    // element is the one of the event's type, by promise of the caller.
    let at = unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = handles::get::<Cq>(event.element.cq.cast())?.c();
                acknowledge::AckCounter {
                    mutex: addr_of_mut!((*cq).mutex),
                    cond: addr_of_mut!((*cq).cond),
                    completed: addr_of_mut!((*cq).async_events_completed),
                }
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = handles::get::<Qp>(event.element.qp.cast())?.c().cast::<ibv_qp>();
                acknowledge::AckCounter {
                    mutex: addr_of_mut!((*qp).mutex),
                    cond: addr_of_mut!((*qp).cond),
                    completed: addr_of_mut!((*qp).events_completed),
                }
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = handles::get::<Srq>(event.element.srq)?.c();
                acknowledge::AckCounter {
                    mutex: addr_of_mut!((*srq).mutex),
                    cond: addr_of_mut!((*srq).cond),
                    completed: addr_of_mut!((*srq).events_completed),
                }
            }
            _ => return Err(EINVAL),
        }
    };
    // SAFETY: the places belong to a live object.
    unsafe { at.add(1) };
    Ok(())
}
