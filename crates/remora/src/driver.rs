//! The driver: one card, its socket and its clock, moved forward a step at a time.
//!
//! Whoever holds the driver's lock drives: an application's thread that polls, or the background
//! thread. A step sends first and receives last, so that an acknowledge that a step makes due
//! leaves with the data that the application posts next, in one system call (half of what an 8-byte
//! ping-pong costs is system calls).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use remora_nic::cm::{CmEvent, ConnId, ListenerId};
use remora_nic::{Event as CardEvent, Nic, Time, TransmitBatch};

use crate::completion::ChannelQueue;
use crate::egress::Egress;
use crate::event::Event;
use crate::memory::HostMemory;
use crate::pcap::Capture;
use crate::socket::{RecvBatch, Socket};

/// Packets asked of the card at a time.
const BATCH: usize = 64;
/// Batches sent in one step, before receiving gets its turn.
const ROUNDS: usize = 4;
/// Pieces received in one step: enough to fill a system call, few enough to stay in the cache.
const RECV_SLOTS: usize = 4;
/// Events kept for an application that does not fetch them.
const EVENTS_MAX: usize = 65_536;

/// One card at work.
pub(crate) struct Driver {
    pub(crate) nic: Nic,
    pub(crate) memory: HostMemory,
    pub(crate) socket: Socket,
    pub(crate) egress: Egress,
    pub(crate) received: RecvBatch,
    batch: TransmitBatch,
    /// The socket was full, and `batch` is not sent to its end.
    blocked: bool,
    start: Instant,
    capture: Option<Capture<BufWriter<File>>>,
    /// Where a completion queue's notifications go.
    pub(crate) channels: HashMap<u32, Arc<ChannelQueue>>,
    pub(crate) async_events: VecDeque<CardEvent>,
    pub(crate) async_ready: Arc<Event>,
    cm_events: VecDeque<CmEvent>,
}

impl Driver {
    pub(crate) fn new(
        nic: Nic,
        memory: HostMemory,
        socket: Socket,
        capture: Option<Capture<BufWriter<File>>>,
        async_ready: Arc<Event>,
    ) -> Driver {
        Driver {
            nic,
            memory,
            socket,
            egress: Egress::new(),
            received: RecvBatch::new(RECV_SLOTS),
            batch: TransmitBatch::new(),
            blocked: false,
            start: Instant::now(),
            capture,
            channels: HashMap::new(),
            async_events: VecDeque::new(),
            async_ready,
            cm_events: VecDeque::new(),
        }
    }

    /// The card's time.
    pub(crate) fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// One step. Returns whether anything was sent or received.
    pub(crate) fn progress(&mut self) -> bool {
        let mut now = self.now();
        let sent = self.transmit_from(now);
        let received = self.receive();
        if received {
            now = self.now();
            self.handle_received(now);
        }
        if self.nic.poll_timeout() <= now {
            self.nic.handle_timeout(now, &mut self.memory);
        }
        self.dispatch_events();
        sent || received
    }

    /// Sends what the card has ready; returns whether there was anything.
    pub(crate) fn transmit(&mut self) -> bool {
        self.transmit_from(self.now())
    }

    /// As [`Driver::transmit`], for who knows the time: a look at the clock costs as much as a
    /// quarter of an idle step.
    fn transmit_from(&mut self, mut now: Time) -> bool {
        let mut any = false;
        let mut more = true;
        for round in 0..ROUNDS {
            if !self.blocked {
                if !more {
                    break;
                }
                if round > 0 {
                    now = self.now();
                }
                self.batch.clear();
                more = self.nic.poll_transmit(now, &mut self.memory, &mut self.batch, BATCH);
                if self.batch.is_empty() {
                    break;
                }
            }
            let capture = &mut self.capture;
            let progress = self.egress.send(&self.batch, &mut self.memory, &self.socket, |group| {
                if let Some(capture) = capture {
                    note_capture(capture.sent(wall_clock(), &group));
                }
            });
            any |= progress.sent > 0;
            self.blocked = progress.blocked;
            if self.blocked {
                break;
            }
        }
        any
    }

    /// Fetches what has come; returns whether there was anything.
    fn receive(&mut self) -> bool {
        self.socket.recv(&mut self.received).map_or_else(
            |error| {
                tracing::error!(%error, "cannot receive on the card's socket");
                false
            },
            |datagrams| datagrams > 0,
        )
    }

    fn handle_received(&mut self, now: Time) {
        if let Some(capture) = &mut self.capture {
            let (at, port) = (wall_clock(), self.socket.port());
            for datagram in self.received.datagrams() {
                note_capture(capture.received(at, &datagram, port));
            }
        }
        self.nic.handle_packets(now, &mut self.memory, self.received.datagrams());
    }

    /// Hands the card's events to those who wait for them.
    pub(crate) fn dispatch_events(&mut self) {
        while let Some(event) = self.nic.poll_event() {
            match event {
                CardEvent::CompletionQueueNotify(cq) => {
                    if let Some(channel) = self.channels.get(&cq) {
                        channel.push(cq);
                    }
                }
                CardEvent::Cm(event) => keep(&mut self.cm_events, event),
                event => {
                    keep(&mut self.async_events, event);
                    crate::event::wake(&self.async_ready);
                }
            }
        }
    }

    /// The oldest connection-management event that is about `conn`.
    pub(crate) fn take_cm_event(&mut self, conn: ConnId) -> Option<CmEvent> {
        let at = self.cm_events.iter().position(|e| e.conn() == Some(conn))?;
        self.cm_events.remove(at)
    }

    /// The oldest request for `listener`.
    pub(crate) fn take_cm_request(&mut self, listener: ListenerId) -> Option<CmEvent> {
        let at = self.cm_events.iter().position(
            |e| matches!(e, CmEvent::ConnectRequest(request) if request.listener == listener),
        )?;
        self.cm_events.remove(at)
    }

    /// Forgets packets that wait for a full socket: memory they refer to is about to go. To the
    /// peers that is loss, and repaired like any.
    pub(crate) fn forget_unsent(&mut self) {
        if std::mem::take(&mut self.blocked) {
            self.egress.forget();
            self.batch.clear();
        }
    }

    /// Does the socket have to become writable before the driver can go on?
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Writes what was captured to its file.
    pub(crate) fn flush_capture(&mut self) -> io::Result<()> {
        self.capture.as_mut().map_or(Ok(()), Capture::flush)
    }
}

/// Adds an event, and drops the oldest of too many: nobody fetches them.
fn keep<E>(events: &mut VecDeque<E>, event: E) {
    if events.len() == EVENTS_MAX {
        events.pop_front();
        tracing::warn!("more than {EVENTS_MAX} events wait: the oldest is dropped");
    }
    events.push_back(event);
}

/// A capture that cannot be written does not stop the card.
fn note_capture(written: io::Result<()>) {
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write to the capture file");
    }
}

/// Nanoseconds since 1970.
fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("socket", &self.socket).finish_non_exhaustive()
    }
}
