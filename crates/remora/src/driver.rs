//! The driver of the card that this process has: one card, its fabric and its clock, moved forward
//! a step at a time.
//!
//! The thread that holds the driver's lock drives: an application's thread that polls, or the
//! background thread, whose loop is in [`background`](crate::background) (it says which of them drives,
//! and when).
//!
//! A step sends first and receives last. So an acknowledge that a received packet makes due can
//! leave with the data that the application posts next, in one system call. That matters: half of
//! the cost of an 8-byte ping-pong is system calls.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use remora_nic::cm::message::SidrStatus;
use remora_nic::cm::{CmEvent, SidrAnswer};
use remora_nic::{Event as CardEvent, Nic, Time, TransmitBatch};

use crate::alarm::Alarm;
pub(crate) use crate::clock::Clock;
use crate::commands::Commands;
use crate::daemon::engine::Engine;
use crate::departed::Departed;
use crate::dialect::DialectChoice;
use crate::distant::Distant;
use crate::egress::{Egress, Sent};
use crate::event_loop::{EventLoop, Look};
use crate::fabric::{Arrived, Fabric};
use crate::impair::arriving::Arriving;
use crate::memory::HostMemory;
use crate::news::{Concerned, News};
use crate::pcap::Recorder;
use crate::rings::Rings;
use crate::socket::{RecvBatch, Socket};

/// Packets asked of the card at a time.
const BATCH: usize = 128;
/// System calls that receive in a turn of an event loop.
const RECEIVES: usize = 16;
/// A timer that is handled so much too late shows that the process had no processor.
const LATE: Duration = Duration::from_millis(5);
/// Batches sent in one step, before receiving gets its turn.
const ROUNDS: usize = 2;
/// Rounds of sending before a queue pair ends: other queue pairs may have work without end.
const SETTLE_ROUNDS: usize = 16;
/// The time between two looks at a peer's full socket.
pub(crate) const PACE: Duration = Duration::from_micros(50);
/// Looks at a peer's full socket before a queue pair ends.
const SETTLE_NAPS: usize = 1000;
/// Pieces received in one step: enough to fill a system call, few enough to stay in the cache.
const RECV_SLOTS: usize = 4;
/// Steps in a row without a look at the timers: some 5 µs.
const TIMELESS_MAX: u32 = 16;
/// Steps in a row without a packet until acknowledges that stayed behind leave: some 7 µs, twice
/// the time that a peer needs for its next message in a ping-pong.
const IDLE_MAX: u32 = 20;
/// Looks at the doorbells of other processes for each look at the socket.
const LOOKS: usize = 16;

/// A socket for each multicast group. The background thread shares them, to sleep on them.
pub(crate) type Groups = Arc<[Arc<Socket>]>;

/// One card at work.
pub(crate) struct Own {
    pub(crate) nic: Nic,
    pub(crate) memory: HostMemory,
    pub(crate) rings: Rings,
    /// The sessions of other processes, if this card serves any.
    pub(crate) engine: Option<Box<Engine>>,
    pub(crate) fabric: Fabric,
    /// What the card is to offer to its peers.
    pub(crate) dialect: DialectChoice,
    /// Cards that have gone, and whose peers are told soon.
    pub(crate) departed: Departed,
    /// What is known of cards on other machines that do not answer.
    pub(crate) distant: Distant,
    pub(crate) egress: Egress,
    pub(crate) received: RecvBatch,
    /// What is done to packets on purpose, once something has been.
    pub(crate) arriving: Option<Box<Arriving>>,
    batch: TransmitBatch,
    /// The socket was full, and the rest of `batch` is not sent yet. (Otherwise it is empty.)
    blocked: bool,
    /// The card has work left which makes no packets.
    in_card: bool,
    pub(crate) clock: Clock,
    /// Steps since timers were looked at.
    timeless: u32,
    /// Steps since a packet came.
    idle: u32,
    /// Packets that the last step received.
    packets: usize,
    /// Packets that have arrived so far.
    arrived: u64,
    pub(crate) recorder: Recorder,
    pub(crate) news: News,
    pub(crate) unsent: Unsent,
    pub(crate) groups: Groups,
    /// The groups have changed, and the background thread, which may sleep on their sockets, was
    /// not told.
    pub(crate) regrouped: bool,
    pub(crate) event_loop: EventLoop,
}

/// Posted work that is kept back for a moment, so that later posts leave with it.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// Posts kept back.
    pub(crate) posts: u32,
    /// Bytes that these posts move.
    pub(crate) bytes: u64,
    /// When the first of them was posted.
    pub(crate) since: Time,
    /// Posts since a poll last found nothing.
    pub(crate) streak: u32,
}

impl Own {
    pub(crate) fn new(
        nic: Nic,
        memory: HostMemory,
        fabric: Fabric,
        recorder: Recorder,
        news: News,
    ) -> Own {
        Own {
            nic,
            memory,
            rings: Rings::default(),
            engine: None,
            fabric,
            dialect: DialectChoice::default(),
            departed: Departed::default(),
            distant: Distant::default(),
            egress: Egress::new(),
            received: RecvBatch::new(RECV_SLOTS),
            arriving: None,
            batch: TransmitBatch::new(),
            blocked: false,
            in_card: false,
            clock: Clock::start(),
            timeless: 0,
            idle: 0,
            packets: 0,
            arrived: 0,
            recorder,
            news,
            unsent: Unsent::default(),
            groups: Groups::default(),
            regrouped: false,
            event_loop: EventLoop::default(),
        }
    }

    /// The card's time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Takes one step: timers, sending, receiving, in that order. Returns whether there was, or
    /// still is, anything to do.
    pub(crate) fn progress(&mut self) -> bool {
        self.nic.release_acknowledges();
        self.batch.set_serving(false);
        self.fabric.look_at_all();
        self.step()
    }

    /// As [`Own::progress`], except that acknowledges that stayed behind may stay there.
    fn step(&mut self) -> bool {
        self.timeless = 0;
        let now = self.now();
        self.fabric.tend(now, self.event_loop.drives());
        let due = self.nic.poll_timeout() <= now;
        if due {
            if now.since(self.nic.poll_timeout()) > LATE {
                self.catch_up();
            }
            self.nic.handle_timeout(now, &mut self.memory);
        }
        let moved = self.arriving.is_some() && self.tend_impaired(now);
        self.batch.set_answering(false);
        let rung = self.take_doorbells(now);
        let sent = self.transmit_from(now);
        let received = self.receive() | self.receive_multicast();
        self.look_at_silent();
        self.publish();
        self.dispatch_events();
        due || moved || rung || sent || received
    }

    /// Looks for posts of other processes, some times in a row, since a look takes a fraction of a
    /// step; returns whether there were any, or others are still being carried out in the card, and
    /// moves what is due.
    pub(crate) fn serve(&mut self) -> bool {
        let Some(engine) = &self.engine else { return false };
        if !self.in_card && !(0..LOOKS).any(|_| engine.is_rung()) {
            return false;
        }
        let now = self.now();
        self.take_doorbells(now);
        self.batch.set_answering(false);
        self.transmit_from(now);
        if let Some(engine) = &mut self.engine {
            engine.publish_completions(&mut self.nic, self.clock);
        }
        self.dispatch_events();
        true
    }

    /// Serves sessions of other processes from now on. What they send each other stays within the
    /// card, unless somebody wants to see it as packets, or wants a bad network.
    pub(crate) fn serve_sessions(&mut self, engine: Engine) {
        self.engine = Some(Box::new(engine));
        self.choose_shortcut();
    }

    /// Takes what has arrived while this process had no processor. Answers that wait in the socket
    /// must not count as missing.
    #[cold]
    fn catch_up(&mut self) {
        for _ in 0..RECEIVES {
            if !self.receive() {
                break;
            }
        }
    }

    /// Decides whether packets of the card to itself stay within it.
    pub(crate) fn choose_shortcut(&mut self) {
        let has_rings = self.engine.is_some() && self.fabric.rings().is_some();
        let shortcut = has_rings && !self.recorder.is_on() && !self.is_impaired();
        self.nic.set_local_shortcut(shortcut);
    }

    /// Takes what other processes have posted; returns whether there was anything.
    #[inline]
    fn take_doorbells(&mut self, now: Time) -> bool {
        match &mut self.engine {
            Some(engine) => engine.take_doorbells(now, &mut self.nic, &mut self.memory),
            None => false,
        }
    }

    /// Takes what another process has posted to its queue pair, whether or not its doorbell was
    /// seen: the queue pair may have come to a state in which it takes that.
    pub(crate) fn take_posted(&mut self, qpn: u32) {
        let now = self.now();
        if let Some(engine) = &mut self.engine {
            engine.take_posted(qpn, now, &mut self.nic, &mut self.memory);
        }
    }

    /// As [`Own::take_posted`], of a shared receive queue.
    pub(crate) fn take_posted_srq(&mut self, session: u16, srq: u32) {
        let now = self.now();
        if let Some(engine) = &mut self.engine {
            engine.take_posted_srq(session, srq, (now, &mut self.nic, &mut self.memory));
        }
    }

    /// Hands other processes their completions.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.publish(&mut self.nic, self.clock);
        }
    }

    /// Hands an event to the process whose object it is about; returns it if it is this process's.
    fn tell_session(&mut self, event: CardEvent) -> Option<CardEvent> {
        let Some(engine) = &mut self.engine else { return Some(event) };
        let Some(session) = engine.session_of(&event) else { return Some(event) };
        if engine.note(session, &event) {
            engine.tell(session, &crate::message::encode(&event));
            return None;
        }
        // The session has as much as its quotas admit.
        match event {
            CardEvent::Cm(CmEvent::ConnectRequest(request)) => self.refuse(request.conn, b"busy"),
            CardEvent::Cm(CmEvent::SidrRequest(question)) => {
                let status = SidrStatus::NoQp;
                let no = SidrAnswer { status, qpn: 0, qkey: 0, private_data: &[] };
                self.sidr_reply(question.sidr, no).ok();
            }
            _ => {}
        }
        None
    }

    /// A turn of an event loop: timers, what the loop has posted, and all that has arrived. If that
    /// announces events, acknowledges wait for what the loop posts in return. Returns whether there
    /// is still anything to do.
    pub(crate) fn turn(&mut self) -> bool {
        let now = self.now();
        self.fabric.tend_for_loop(now);
        self.fabric.look_at_all();
        let due = self.nic.poll_timeout() <= now;
        if due {
            self.nic.handle_timeout(now, &mut self.memory);
        }
        if self.arriving.is_some() {
            self.tend_impaired(now);
        }
        self.batch.set_serving(true);
        self.batch.set_answering(true);
        self.transmit_from(now);
        let more = (0..RECEIVES).all(|_| self.receive() | self.receive_multicast());
        self.look_at_silent();
        self.dispatch_events();
        if !self.event_loop.expects_more() {
            self.nic.release_acknowledges();
            self.batch.set_answering(false);
            self.transmit_from(self.now());
            self.dispatch_events();
        }
        // The loop may sleep after this, whatever is left.
        let more = !self.fabric.arm() || more;
        more || self.has_more() && !self.event_loop.expects_more()
    }

    /// As [`Own::progress`], for a thread that spins. Most of its steps find nothing, and an
    /// arriving packet waits for half an empty step on average. So these steps do not read the
    /// clock, which would take a quarter of their time.
    ///
    /// Inlined with all that it calls: a system call spoils the processor's prediction of return
    /// addresses, and each return behind one then costs up to 12 ns.
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

    /// Sends a bounded amount of what the card has ready; returns whether there was anything.
    /// [`Own::has_more`] says whether there is more.
    pub(crate) fn transmit(&mut self) -> bool {
        self.nic.release_acknowledges();
        self.transmit_answer(false)
    }

    /// Does the rest of a batch wait for room in a peer's socket? If so, the thread that drives
    /// looks again after [`PACE`].
    pub(crate) fn is_paced(&self) -> bool {
        self.blocked && self.egress.is_paced()
    }

    /// Sends all that is owed and posted, before a queue pair, an address handle or the process
    /// ends. Otherwise a peer whose last message was received but not acknowledged would send it
    /// again, get no answer, and fail; and datagrams that nobody waits for would be lost.
    pub(crate) fn settle(&mut self) {
        // Other processes do not wait for one that ends a queue pair.
        let mut naps = if self.engine.is_some() { 0 } else { SETTLE_NAPS };
        for _ in 0..SETTLE_ROUNDS {
            let rung = self.take_doorbells(self.now());
            self.transmit();
            while self.is_paced() && naps > 0 {
                naps -= 1;
                std::thread::sleep(PACE);
                self.transmit();
            }
            if self.blocked || !rung && !self.nic.wants_transmit() {
                return;
            }
        }
    }

    /// As [`Own::transmit`], for what an application has just posted. If the application polls,
    /// acknowledges may stay behind: they would delay the answer that its peer waits for.
    pub(crate) fn transmit_answer(&mut self, polls: bool) -> bool {
        self.batch.set_answering(polls);
        self.transmit_from(self.now())
    }

    /// As [`Own::transmit`], for a caller that knows the time: to read the clock costs as much
    /// as a quarter of an idle step.
    fn transmit_from(&mut self, mut now: Time) -> bool {
        if self.arriving.is_some() {
            self.release_leaving(now);
        }
        (self.unsent.posts, self.unsent.bytes) = (0, 0);
        let mut any = false;
        for round in 0..ROUNDS {
            if !self.blocked {
                if round > 0 {
                    now = self.now();
                }
                let most = self.fabric.packets_wanted(BATCH);
                let more = self.nic.poll_transmit(now, &mut self.memory, &mut self.batch, most);
                self.in_card = more && self.batch.is_empty();
                if self.batch.is_empty() {
                    // The card may have done work without a packet: it may have flushed requests.
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

    /// Hands the batch, or what is left of it, to the fabric; returns whether any packet left.
    fn send_batch(&mut self) -> bool {
        let recorder = &mut self.recorder;
        let was_blocked = self.blocked;
        let note = |group: Sent<'_>| recorder.sent(&group);
        let progress = self.egress.send(&self.batch, &mut self.memory, &mut self.fabric, note);
        self.blocked = progress.blocked;
        if !self.egress.faults().is_empty() || self.blocked {
            self.tell_faults(was_blocked);
        }
        if !self.blocked {
            // Now, so that kernels get back the buffers that the batch refers to.
            self.batch.clear();
        }
        progress.sent > 0
    }

    /// Tells the card which packets were dropped because their memory cannot be read.
    fn tell_faults(&mut self, was_blocked: bool) {
        let now = self.now();
        for &packet in self.egress.faults() {
            self.nic.handle_fault(now, &mut self.memory, &self.batch.packets()[packet]);
        }
        if self.blocked && !was_blocked {
            // Copied now, since the application may get its buffers back before the socket has
            // room.
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

    /// How many steps have found no packet since one came.
    #[inline(always)]
    pub(crate) fn idle(&self) -> u32 {
        self.idle
    }

    /// How many packets the last step received.
    pub(crate) fn received_last(&self) -> usize {
        self.packets
    }

    /// Did the last step receive one or two packets only, and is nothing due in return but their
    /// acknowledge?
    pub(crate) fn owes_acknowledge_only(&self) -> bool {
        (1..=2).contains(&self.packets) && self.nic.wants_acknowledge_only()
    }

    /// Is there more to send than the last step has sent? If so, another step is due. (A step that
    /// sent all there was may still leave work: memory that could not be read, and connection
    /// events that a sink answered at once, make new work after the sending.)
    pub(crate) fn has_more(&self) -> bool {
        self.blocked || self.nic.wants_transmit()
    }

    /// Receives; returns whether there was anything.
    #[inline(always)]
    fn receive(&mut self) -> bool {
        self.packets = 0;
        let packets = match self.fabric.receive(&mut self.received) {
            Ok(Arrived::Nothing) => {
                self.idle = self.idle.saturating_add(1);
                return false;
            }
            Ok(Arrived::Udp(packets)) => {
                self.handle_received();
                packets
            }
            Ok(Arrived::Ring { packets, sums }) => {
                self.handle_from_ring(sums);
                packets
            }
            Err(error) => {
                tracing::error!(%error, "cannot receive on the card's socket");
                return false;
            }
        };
        (self.idle, self.packets) = (0, packets);
        self.arrived += packets as u64;
        true
    }

    /// As [`Own::receive`], from the sockets of multicast groups.
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

    /// Handles the packets that have come from a socket. What programs posted before their peers
    /// sent these is there for them.
    fn handle_received(&mut self) {
        let now = self.now();
        self.take_doorbells(now);
        if self.arriving.is_some() {
            return self.impair_received(now);
        }
        self.recorder.received(self.received.datagrams(), self.fabric.udp.port());
        self.nic.handle_packets(now, &mut self.memory, self.received.datagrams());
    }

    /// As [`Own::handle_received`], from a ring; `sums` says that they have an ICRC.
    fn handle_from_ring(&mut self, sums: bool) {
        let now = self.now();
        self.take_doorbells(now);
        if self.arriving.is_some() {
            return self.impair_from_ring(now, sums);
        }
        let packets = self.fabric.datagrams();
        if sums {
            self.recorder.received(self.fabric.datagrams(), self.fabric.udp.port());
            self.nic.handle_packets(now, &mut self.memory, packets);
        } else {
            self.nic.handle_packets_from_memory(now, &mut self.memory, packets);
        }
    }

    /// Hands the card's events to the tasks, threads and sinks that wait for them.
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
            if let CardEvent::CompletionQueueNotify(_) = event {
                self.event_loop.announced();
            }
            if let Some(event) = self.tell_session(event) {
                self.pass_on(event);
            }
        }
    }

    /// The calling thread looks for events behind `alarm`: see [`EventLoop::look`].
    pub(crate) fn look(&mut self, alarm: &Arc<Alarm>) -> Look {
        let Own { fabric, groups, event_loop, .. } = self;
        event_loop.look(alarm, sockets(fabric, groups))
    }

    /// The calling thread sleeps until an event comes: see [`EventLoop::sleeps`].
    pub(crate) fn sleeps(&mut self) {
        let Own { fabric, groups, event_loop, .. } = self;
        event_loop.sleeps(sockets(fabric, groups));
    }

    /// Takes the card from the event loop that drives it, if one does.
    pub(crate) fn end_loop(&mut self) {
        let Own { fabric, groups, event_loop, .. } = self;
        event_loop.end(sockets(fabric, groups));
    }

    /// Does the socket have to become writable before the driver can go on?
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// For the end of the device or of the process: packets that are ready leave (a last
    /// acknowledge, a disconnect), and the capture file is completed.
    pub(crate) fn finish(&mut self) {
        self.settle();
        self.recorder.flush();
    }
}

/// The descriptors that are readable when the card has something to receive.
fn sockets<'a>(
    fabric: &'a Fabric,
    groups: &'a Groups,
) -> impl Iterator<Item = BorrowedFd<'a>> + Clone {
    fabric.fds().chain(groups.iter().map(|socket| socket.as_fd()))
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("fabric", &self.fabric).finish_non_exhaustive()
    }
}
