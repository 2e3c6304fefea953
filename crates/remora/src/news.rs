//! What becomes of the card's events: who waits for them, and what a device does by itself.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use remora_nic::Event as CardEvent;
use remora_nic::cm::message::RejectReason;
use remora_nic::cm::{CmEvent, ConnId};
use remora_nic::qp::{QpAttr, State as QpState};

use crate::commands::Commands;
use crate::connection::inbox::Inbox;
use crate::event::Event;
use crate::event_queue::Notify;
use crate::wakes::Wakes;

/// Events kept for an application that does not fetch them.
const EVENTS_MAX: usize = 65_536;

/// Takes events of connection management. The thread that drives the device calls it, under the
/// device's lock, so it must not call the device. Where an answer is due at once, the sink gives it
/// to the card in its first argument.
pub type CmSink = Box<dyn FnMut(&mut dyn Commands, CmEvent) + Send>;

/// Takes all other events of the card, under the same rules as [`CmSink`].
pub type EventSink = Box<dyn FnMut(CardEvent) + Send>;

/// The events of a card that nobody has taken yet, and who wants to know of them.
pub(crate) struct News {
    /// Where a completion queue's notifications go.
    pub(crate) channels: HashMap<u32, Arc<dyn Notify>>,
    pub(crate) async_events: VecDeque<CardEvent>,
    pub(crate) async_ready: Arc<Event>,
    pub(crate) cm_inbox: Inbox,
    /// Takes events of connection management in the place of `cm_inbox`.
    pub(crate) cm_sink: Option<CmSink>,
    /// Takes all other events in the place of `channels` and `async_events`.
    pub(crate) event_sink: Option<EventSink>,
    /// Learns of completions and of events of connection management that tasks may wait for.
    pub(crate) wakes: Arc<Wakes>,
    /// Queue pairs that go to the error state when their connection ends.
    pub(crate) follows: HashMap<ConnId, u32>,
}

impl News {
    pub(crate) fn new(async_ready: Arc<Event>, wakes: Arc<Wakes>) -> News {
        News {
            channels: HashMap::new(),
            async_events: VecDeque::new(),
            async_ready,
            cm_inbox: Inbox::default(),
            cm_sink: None,
            event_sink: None,
            wakes,
            follows: HashMap::new(),
        }
    }
}

/// A card whose events somebody waits for.
pub(crate) trait Concerned: Commands + Sized {
    /// The card's news.
    fn news(&mut self) -> &mut News;

    /// Hands an event to the task, thread or sink that waits for it.
    fn pass_on(&mut self, event: CardEvent) {
        let news = self.news();
        match event {
            CardEvent::Cm(event) => self.pass_on_cm(event),
            event if news.event_sink.is_some() => {
                if let Some(sink) = &mut news.event_sink {
                    sink(event);
                }
            }
            CardEvent::CompletionQueueNotify(cq) => {
                if let Some(channel) = news.channels.get(&cq) {
                    channel.push(cq);
                }
            }
            event => {
                // Where the oldest of too many is dropped, the counters have counted it.
                keep(&mut news.async_events, event);
                crate::event::wake(&news.async_ready);
            }
        }
    }

    /// As [`Concerned::pass_on`], for an event of connection management.
    fn pass_on_cm(&mut self, event: CmEvent) {
        if let Some(mut sink) = self.news().cm_sink.take() {
            sink(self, event);
            self.news().cm_sink = Some(sink);
            return;
        }
        // (Before it is established, a connection has no requests that follow it.)
        if let CmEvent::Disconnected { conn, .. }
        | CmEvent::Rejected { conn, .. }
        | CmEvent::Unreachable { conn } = event
        {
            self.end_requests(conn);
        }
        match self.news().cm_inbox.keep(event) {
            Ok(None) => {}
            Ok(Some(topic)) => self.news().wakes.note_cm(topic),
            Err(request) => self.give_up(&request),
        }
    }

    /// The peer has gone: the requests that the connection's queue pair has in flight end with an
    /// error.
    fn end_requests(&mut self, conn: ConnId) {
        if let Some(qpn) = self.news().follows.remove(&conn) {
            let attr = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
            if let Err(error) = self.modify_qp(qpn, attr) {
                tracing::debug!(%error, "a queue pair was gone before its connection");
            }
        }
    }

    /// Drops a connection request for which there is no room. It is refused, so that the peer does
    /// not wait.
    fn give_up(&mut self, event: &CmEvent) {
        tracing::warn!("too many connection requests wait for the program: one is refused");
        if let CmEvent::ConnectRequest(request) = event {
            self.refuse(request.conn, b"busy");
        }
    }

    /// Refuses a connection request, or forgets one that has ended meanwhile.
    fn refuse(&mut self, conn: ConnId, message: &[u8]) {
        self.news().cm_inbox.forget(conn);
        if self.reject(conn, RejectReason::CONSUMER_DEFINED, message).is_err()
            && let Err(error) = self.destroy_connection(conn)
        {
            tracing::debug!(%error, "a connection request was gone before it was refused");
        }
    }
}

/// Adds an event. If there are too many, drops the oldest and returns it.
fn keep<E>(events: &mut VecDeque<E>, event: E) -> Option<E> {
    events.push_back(event);
    if events.len() > EVENTS_MAX { events.pop_front() } else { None }
}
