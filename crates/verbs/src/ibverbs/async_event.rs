//! Asynchronous events, and how an event of the card finds its object.
//!
//! | symbol | function |
//! |---|---|
//! | `ibv_get_async_event@@IBVERBS_1.1` | [`get_async_event`] |
//! | `ibv_ack_async_event@@IBVERBS_1.1` | [`ack_async_event`] |
//!
//! The card names objects by number. A process may have several contexts of one card: an event goes
//! to the context on which the object was made.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::nic::Event;

use super::objects::{AsyncEvent, Cq, Qp, Srq, Subject};
use super::{EINVAL, Result, acknowledge, context, or_minus_one};
use crate::abi::*;
use crate::card::Card;
use crate::handles::{self, Slot};
use crate::process;

/// The objects of all cards of this process, by the numbers that the cards give them.
#[derive(Default)]
pub struct Routes {
    cards: Mutex<HashMap<usize, Arc<CardRoutes>>>,
}

/// The objects of one card. The card's lock is held to add or remove one, and by the event sink.
#[derive(Default)]
pub(crate) struct CardRoutes {
    objects: Mutex<Objects>,
}

#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) cqs: HashMap<u32, &'static Slot<Cq>>,
    pub(crate) qps: HashMap<u32, &'static Slot<Qp>>,
    pub(crate) srqs: HashMap<u32, &'static Slot<Srq>>,
}

impl CardRoutes {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The routes of a card. The first call connects the card's events to them. The caller must not
/// hold the card's lock.
pub(crate) fn routes(card: &Card) -> Arc<CardRoutes> {
    let routes = process::current().shared::<Routes>();
    let mut cards = routes.cards.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = cards.get(&card.index) {
        return known.clone();
    }
    let made = Arc::<CardRoutes>::default();
    cards.insert(card.index, made.clone());
    let of_sink = made.clone();
    card.device.set_event_sink(Box::new(move |event| of_sink.dispatch(&event)));
    made
}

impl CardRoutes {
    /// Passes an event on. Called with the card locked.
    fn dispatch(&self, event: &Event) {
        let objects = self.lock();
        let of_qp = |number: &u32, event_type| {
            let Some(qp) = objects.qps.get(number) else { return };
            qp.context.events.push(AsyncEvent { event_type, subject: Subject::Qp(qp) });
        };
        match event {
            Event::CompletionQueueNotify(number) => {
                if let Some(cq) = objects.cqs.get(number)
                    && let Some(events) = &cq.channel_events
                {
                    events.push(*cq);
                }
            }
            Event::CompletionQueueError(number) => {
                let Some(cq) = objects.cqs.get(number) else { return };
                let event_type = IBV_EVENT_CQ_ERR;
                cq.context.events.push(AsyncEvent { event_type, subject: Subject::Cq(cq) });
            }
            Event::SrqLimitReached(number) => {
                let Some(srq) = objects.srqs.get(number) else { return };
                let event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
                srq.context.events.push(AsyncEvent { event_type, subject: Subject::Srq(srq) });
            }
            Event::QpAccessError(number) => of_qp(number, IBV_EVENT_QP_ACCESS_ERR),
            Event::QpRequestError(number) => of_qp(number, IBV_EVENT_QP_REQ_ERR),
            Event::CommunicationEstablished(number) => of_qp(number, IBV_EVENT_COMM_EST),
            Event::SendQueueDrained(number)
                if objects.qps.get(number).is_some_and(|qp| qp.tells_drained()) =>
            {
                of_qp(number, IBV_EVENT_SQ_DRAINED);
            }
            Event::LastElementReached(number) => of_qp(number, IBV_EVENT_QP_LAST_WQE_REACHED),
            _ => {}
        }
    }
}

/// `ibv_get_async_event`: 0, or -1 with `errno`.
///
/// # Safety
/// `event` can be written.
pub unsafe extern "C" fn get_async_event(
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
    // The context stays alive while a thread sleeps here.
    context.enter();
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
    context.leave();
    Ok(taken?)
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
                acknowledge::Place {
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
                acknowledge::Place {
                    mutex: addr_of_mut!((*qp).mutex),
                    cond: addr_of_mut!((*qp).cond),
                    completed: addr_of_mut!((*qp).events_completed),
                }
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = handles::get::<Srq>(event.element.srq)?.c();
                acknowledge::Place {
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
