//! How an event of the card finds its object: a notification its completion channel, an
//! asynchronous event its context.
//!
//! The card names objects by number. A process may have several contexts of one card: an event goes
//! to the context on which the object was made. The queue that takes it makes the descriptor
//! readable, on which the program sleeps ([`EventQueue`](remora::raw::EventQueue)).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::nic::Event;

use super::objects::{AsyncEvent, Context, Cq, Qp, Srq, Subject};
use crate::abi::*;
use crate::card::ListedCard;
use crate::handles::{self, Slot};
use crate::process;

/// The objects of all cards of this process, by the numbers that the cards give them.
#[derive(Default)]
pub(crate) struct Routes {
    cards: Mutex<HashMap<usize, Arc<CardRoutes>>>,
}

/// The objects of one card. The card's lock is held to add or remove one, and by the event sink.
#[derive(Default)]
pub(crate) struct CardRoutes {
    /// The card's index.
    card: usize,
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
pub(crate) fn routes(card: &ListedCard) -> Arc<CardRoutes> {
    let routes = process::current().shared::<Routes>();
    let mut cards = routes.cards.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = cards.get(&card.index) {
        return known.clone();
    }
    let made = Arc::new(CardRoutes { card: card.index, ..CardRoutes::default() });
    cards.insert(card.index, made.clone());
    let of_sink = made.clone();
    card.device.set_event_sink(Box::new(move |event| of_sink.dispatch(&event)));
    made
}

/// Forgets the routes of a card, on which nothing is left.
pub(super) fn forget(card: &ListedCard) {
    let routes = process::current().shared::<Routes>();
    routes.cards.lock().unwrap_or_else(PoisonError::into_inner).remove(&card.index);
}

impl CardRoutes {
    /// The card is gone: tells each context of it.
    fn tell_contexts(&self) {
        handles::for_each::<Context>(|context| {
            if context.card.index == self.card {
                let event_type = IBV_EVENT_DEVICE_FATAL;
                context.events.push(AsyncEvent { event_type, subject: Subject::Port(0) });
            }
        });
    }

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
            Event::QpFatal(number) => of_qp(number, IBV_EVENT_QP_FATAL),
            Event::DeviceFatal => self.tell_contexts(),
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
