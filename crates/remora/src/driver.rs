//! The driver: one card, its socket and its clock, moved forward a step at a time.
//!
//! Whoever holds the driver's lock drives: an application's thread that polls, or the background
//! thread. A step sends first and receives last, so that an acknowledge that a step makes due
//! leaves with the data that the application posts next, in one system call, or stays behind a
//! little longer (half of what an 8-byte ping-pong costs is system calls).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use remora_nic::cm::message::RejectReason;
use remora_nic::cm::{Cm, CmEvent, ConnId, ListenerId};
use remora_nic::qp::{QpAttr, State as QpState};
use remora_nic::{Event as CardEvent, Nic, Time, TransmitBatch};

use crate::channel::Notify;
use crate::egress::{Egress, Sent};
use crate::event::Event;
use crate::memory::HostMemory;
use crate::pcap::Capture;
use crate::socket::{RecvBatch, Socket};
use crate::wakes::Wakes;

/// Packets asked of the card at a time.
const BATCH: usize = 128;
/// Batches sent in one step, before receiving gets its turn.
const ROUNDS: usize = 2;
/// Rounds of sending before a queue pair ends: other queue pairs may have work without end.
const SETTLE_ROUNDS: usize = 16;
/// A look at a peer's full socket, and the next.
pub(crate) const PACE: Duration = Duration::from_micros(50);
/// Such looks before a queue pair ends.
const SETTLE_NAPS: usize = 1000;
/// Pieces received in one step: enough to fill a system call, few enough to stay in the cache.
const RECV_SLOTS: usize = 4;
/// Steps in a row without a look at the timers: some 5 µs.
const TIMELESS_MAX: u32 = 16;
/// Steps in a row without a packet until acknowledges that stayed behind leave: some 7 µs, twice
/// what a peer takes for its next message when the two play to and fro.
const IDLE_MAX: u32 = 20;
/// Events kept for an application that does not fetch them.
const EVENTS_MAX: usize = 65_536;

/// What is done with news of connection management. It is called by whoever drives the device,
/// under the device's lock, so it must not call the device; what there is to answer at once, it
/// tells the manager that it is given.
pub type CmSink = Box<dyn FnMut(&mut Cm, Time, CmEvent) + Send>;

/// What is done with all other events of the card, under the same rules.
pub type EventSink = Box<dyn FnMut(CardEvent) + Send>;

/// A socket for each group. They are shared with the background thread, while it sleeps on them.
pub(crate) type Groups = Arc<[Arc<Socket>]>;

/// One card at work.
pub(crate) struct Driver {
    pub(crate) nic: Nic,
    pub(crate) memory: HostMemory,
    pub(crate) socket: Socket,
    pub(crate) egress: Egress,
    pub(crate) received: RecvBatch,
    batch: TransmitBatch,
    /// The socket was full, and `batch` is not sent to its end. (It is empty else.)
    blocked: bool,
    pub(crate) clock: Clock,
    /// Steps since timers were looked at.
    timeless: u32,
    /// Steps since a packet came.
    idle: u32,
    /// Packets that the last step received.
    packets: usize,
    /// Packets that have arrived so far.
    arrived: u64,
    capture: Option<Capture<BufWriter<File>>>,
    /// Where a completion queue's notifications go.
    pub(crate) channels: HashMap<u32, Arc<dyn Notify>>,
    pub(crate) async_events: VecDeque<CardEvent>,
    pub(crate) async_ready: Arc<Event>,
    cm_events: VecDeque<CmEvent>,
    /// Takes them instead.
    pub(crate) cm_sink: Option<CmSink>,
    /// Takes all other events instead.
    pub(crate) event_sink: Option<EventSink>,
    /// Told when there are new ones.
    pub(crate) wakes: Arc<Wakes>,
    /// Queue pairs that go to the error state when their connection ends.
    pub(crate) follows: HashMap<ConnId, u32>,
    pub(crate) unsent: Unsent,
    pub(crate) groups: Groups,
}

/// The card's clock. (As `Instant`, but for the seconds and fractions of that, whose difference
/// takes longer than the look at the clock.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Nanoseconds from the start of the system to that of the card.
    start: u64,
}

impl Clock {
    fn start() -> Clock {
        Clock { start: Clock::monotonic() }
    }

    #[inline]
    pub(crate) fn now(self) -> Time {
        Time(Clock::monotonic() - self.start)
    }

    #[inline]
    fn monotonic() -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes to `now` only. It cannot fail: every Linux has this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// Work that was posted and is kept back a moment, so that more may leave with it.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// Posts kept back.
    pub(crate) posts: u32,
    /// Bytes that they move.
    pub(crate) bytes: u64,
    /// Since when.
    pub(crate) since: Time,
    /// Posts since a poll last found nothing.
    pub(crate) streak: u32,
}

impl Driver {
    pub(crate) fn new(
        nic: Nic,
        memory: HostMemory,
        socket: Socket,
        capture: Option<Capture<BufWriter<File>>>,
        async_ready: Arc<Event>,
        wakes: Arc<Wakes>,
    ) -> Driver {
        Driver {
            nic,
            memory,
            socket,
            egress: Egress::new(),
            received: RecvBatch::new(RECV_SLOTS),
            batch: TransmitBatch::new(),
            blocked: false,
            clock: Clock::start(),
            timeless: 0,
            idle: 0,
            packets: 0,
            arrived: 0,
            capture,
            channels: HashMap::new(),
            async_events: VecDeque::new(),
            async_ready,
            cm_events: VecDeque::new(),
            cm_sink: None,
            event_sink: None,
            wakes,
            follows: HashMap::new(),
            unsent: Unsent::default(),
            groups: Groups::default(),
        }
    }

    /// The card's time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// One step: time, sending, receiving, in that order. Returns whether there was anything to do,
    /// or is more.
    pub(crate) fn progress(&mut self) -> bool {
        self.nic.release_acknowledges();
        self.batch.set_serving(false);
        self.step()
    }

    /// As [`Driver::progress`], but for acknowledges that have stayed behind.
    fn step(&mut self) -> bool {
        self.timeless = 0;
        let now = self.now();
        let due = self.nic.poll_timeout() <= now;
        if due {
            self.nic.handle_timeout(now, &mut self.memory);
        }
        self.batch.set_answering(false);
        let sent = self.transmit_from(now);
        let received = self.receive() | self.receive_multicast();
        self.dispatch_events();
        due || sent || received
    }

    /// As [`Driver::progress`], for who calls it again and again. Most steps of a thread that spins
    /// find nothing; those do not look at the clock, which would cost them a quarter of their time,
    /// and what they find then waits the longer (latency: half an idle step on average).
    ///
    /// Inlined with all that it calls, as the kernel leaves the processor's stack of return
    /// addresses in disorder: behind a system call each return costs as much as 12 ns.
    #[inline(always)]
    pub(crate) fn spin(&mut self) -> bool {
        if self.timeless == TIMELESS_MAX || self.blocked || self.nic.wants_transmit() {
            self.batch.set_serving(true);
            return self.step();
        }
        self.timeless += 1;
        let received = self.receive();
        if received {
            self.dispatch_events();
        } else if self.idle >= IDLE_MAX && self.nic.has_late_acknowledges() {
            self.nic.release_acknowledges();
        }
        received
    }

    /// Sends what the card has ready, a bounded amount; returns whether there was anything, or is
    /// more: see [`Driver::has_more`].
    pub(crate) fn transmit(&mut self) -> bool {
        self.nic.release_acknowledges();
        self.transmit_answer(false)
    }

    /// Does the rest of a batch wait for room in a peer's socket? If so, somebody has to look again
    /// after [`PACE`].
    pub(crate) fn is_paced(&self) -> bool {
        self.blocked && self.egress.is_paced()
    }

    /// Sends all that is owed, for who is about to end a queue pair or the process: a peer whose
    /// last message was taken, and never acknowledged, would send it again to nobody, and fail.
    pub(crate) fn settle(&mut self) {
        let mut naps = SETTLE_NAPS;
        for _ in 0..SETTLE_ROUNDS {
            self.transmit();
            while self.is_paced() && naps > 0 {
                naps -= 1;
                std::thread::sleep(PACE);
                self.transmit();
            }
            if self.blocked || !self.nic.wants_transmit() {
                return;
            }
        }
    }

    /// As [`Driver::transmit`], for what an application has just posted. If it polls, acknowledges
    /// may stay behind: its peer waits for the answer, and they would make it late.
    pub(crate) fn transmit_answer(&mut self, polls: bool) -> bool {
        self.batch.set_answering(polls);
        self.transmit_from(self.now())
    }

    /// As [`Driver::transmit`], for who knows the time: a look at the clock costs as much as a
    /// quarter of an idle step.
    fn transmit_from(&mut self, mut now: Time) -> bool {
        (self.unsent.posts, self.unsent.bytes) = (0, 0);
        let mut any = false;
        for round in 0..ROUNDS {
            if !self.blocked {
                if round > 0 {
                    now = self.now();
                }
                let more = self.nic.poll_transmit(now, &mut self.memory, &mut self.batch, BATCH);
                if self.batch.is_empty() {
                    // Nothing to send does not mean nothing done: work may have been flushed.
                    any |= more;
                    break;
                }
            }
            any |= self.send_batch();
            if !self.has_more() || self.blocked {
                break;
            }
        }
        any
    }

    /// Hands the batch, or what is left of it, to the socket; returns whether anything went.
    fn send_batch(&mut self) -> bool {
        let capture = &mut self.capture;
        let was_blocked = self.blocked;
        let note = |group: Sent<'_>| {
            if let Some(capture) = capture {
                note_capture(capture.sent(wall_clock(), &group));
            }
        };
        let progress = self.egress.send(&self.batch, &mut self.memory, &mut self.socket, note);
        self.blocked = progress.blocked;
        if !self.egress.faults().is_empty() || self.blocked {
            self.tell_faults(was_blocked);
        }
        if !self.blocked {
            // At once, so that kernels have the buffers back that it refers to.
            self.batch.clear();
        }
        progress.sent > 0
    }

    /// Tells the card of packets whose memory cannot be read.
    fn tell_faults(&mut self, was_blocked: bool) {
        let now = self.now();
        for &packet in self.egress.faults() {
            self.nic.handle_fault(now, &mut self.memory, &self.batch.packets()[packet]);
        }
        if self.blocked && !was_blocked {
            // The application may soon have its buffers back, and so must not wait for the socket.
            for packet in self.batch.detach(self.egress.next(), &mut self.memory) {
                self.nic.handle_fault(now, &mut self.memory, &packet);
            }
        }
    }

    /// How many packets have left or arrived so far.
    #[inline(always)]
    pub(crate) fn packets_moved(&self) -> u64 {
        self.arrived + self.egress.counters().packets
    }

    /// How many packets the last step received.
    pub(crate) fn received_last(&self) -> usize {
        self.packets
    }

    /// Was a message or two all that the last step received, and nothing due in return but to
    /// acknowledge it?
    pub(crate) fn owes_acknowledge_only(&self) -> bool {
        (1..=2).contains(&self.packets) && self.nic.wants_acknowledge_only()
    }

    /// Is there something to send, more than the last step could? If so, somebody has to take
    /// another. (That the step sent all there was does not answer this: memory that could not be
    /// read, and news of connections that was answered at once, make work behind it.)
    pub(crate) fn has_more(&self) -> bool {
        self.blocked || self.nic.wants_transmit()
    }

    /// Receives; returns whether there was anything.
    #[inline(always)]
    fn receive(&mut self) -> bool {
        self.packets = 0;
        match self.socket.recv(&mut self.received) {
            Ok(0) => {
                self.idle = self.idle.saturating_add(1);
                return false;
            }
            Ok(packets) => {
                self.idle = 0;
                self.packets = packets;
                self.arrived += packets as u64;
            }
            Err(error) => {
                tracing::error!(%error, "cannot receive on the card's socket");
                return false;
            }
        }
        self.handle_received();
        true
    }

    /// As [`Driver::receive`], from the sockets of multicast groups.
    fn receive_multicast(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.groups.len() {
            match self.groups[at].recv(&mut self.received) {
                Ok(0) => {}
                Ok(_) => {
                    self.handle_received();
                    any = true;
                }
                Err(error) => tracing::error!(%error, "cannot receive on a multicast socket"),
            }
        }
        any
    }

    fn handle_received(&mut self) {
        let now = self.now();
        if let Some(capture) = &mut self.capture {
            let (at, port) = (wall_clock(), self.socket.port());
            for datagram in self.received.datagrams() {
                note_capture(capture.received(at, &datagram, port));
            }
        }
        self.nic.handle_packets(now, &mut self.memory, self.received.datagrams());
    }

    /// Hands the card's events to those who wait for them.
    #[inline]
    pub(crate) fn dispatch_events(&mut self) {
        if self.nic.has_events() {
            self.dispatch_each();
        }
    }

    #[inline(never)]
    fn dispatch_each(&mut self) {
        while let Some(incident) = self.nic.poll_incident() {
            tracing::info!(target: "remora::incident", "{incident}");
        }
        while let Some(event) = self.nic.poll_event() {
            match event {
                event if self.event_sink.is_some() && !matches!(event, CardEvent::Cm(_)) => {
                    if let Some(sink) = &mut self.event_sink {
                        sink(event);
                    }
                }
                CardEvent::CompletionQueueNotify(cq) => {
                    if let Some(channel) = self.channels.get(&cq) {
                        channel.push(cq);
                    }
                }
                CardEvent::Cm(event) => {
                    if let Some(sink) = &mut self.cm_sink {
                        let now = self.clock.now();
                        sink(self.nic.cm_mut(), now, event);
                        continue;
                    }
                    if let CmEvent::Disconnected { conn, .. } = event {
                        self.end_requests(conn);
                    }
                    if let Some(lost) = keep(&mut self.cm_events, event) {
                        self.give_up(&lost);
                    }
                    self.wakes.note_cm();
                }
                event => {
                    // Of the oldest of very many, the counters still tell.
                    keep(&mut self.async_events, event);
                    crate::event::wake(&self.async_ready);
                }
            }
        }
    }

    /// The peer has gone: what its queue pair still waits for ends with an error.
    pub(crate) fn end_requests(&mut self, conn: ConnId) {
        if let Some(qpn) = self.follows.remove(&conn) {
            let (now, error) = (self.now(), Some(QpState::Error));
            let attr = QpAttr { state: error, ..QpAttr::default() };
            if let Err(error) = self.nic.modify_qp(now, &mut self.memory, qpn, &attr) {
                tracing::debug!(%error, "a queue pair was gone before its connection");
            }
        }
    }

    /// Forgets what nobody will ask about any more.
    pub(crate) fn forget_cm_events(&mut self, conn: ConnId) {
        self.cm_events.retain(|event| event.conn() != Some(conn));
    }

    /// The oldest connection-management event that is about `conn`.
    pub(crate) fn take_cm_event(&mut self, conn: ConnId) -> Option<CmEvent> {
        let at = self.cm_events.iter().position(|e| e.conn() == Some(conn))?;
        self.cm_events.remove(at)
    }

    /// An event that nobody fetched in time: a request is refused, so that it does not stay.
    fn give_up(&mut self, event: &CmEvent) {
        tracing::warn!("more than {EVENTS_MAX} connection events wait: the oldest is dropped");
        if let CmEvent::ConnectRequest(request) = event {
            let now = self.now();
            self.refuse(now, request.conn, b"busy");
        }
    }

    /// Refuses a request; one that has ended meanwhile is forgotten.
    pub(crate) fn refuse(&mut self, now: Time, conn: ConnId, message: &[u8]) {
        let cm = self.nic.cm_mut();
        if cm.reject(now, conn, RejectReason::CONSUMER_DEFINED, message).is_err()
            && let Err(error) = cm.destroy(now, conn)
        {
            tracing::debug!(%error, "a connection request was gone before it was refused");
        }
    }

    /// The oldest request for `listener`.
    pub(crate) fn take_cm_request(&mut self, listener: ListenerId) -> Option<CmEvent> {
        let at = self.cm_events.iter().position(
            |e| matches!(e, CmEvent::ConnectRequest(request) if request.listener == listener),
        )?;
        self.cm_events.remove(at)
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

/// Adds an event; returns the oldest of too many, which nobody has fetched.
fn keep<E>(events: &mut VecDeque<E>, event: E) -> Option<E> {
    events.push_back(event);
    if events.len() > EVENTS_MAX { events.pop_front() } else { None }
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
