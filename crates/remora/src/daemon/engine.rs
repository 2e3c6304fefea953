//! The queues of all sessions: doorbells in, completions and events out.
//!
//! The driver calls this in each step, under its lock: [`Engine::take_doorbells`] before it sends,
//! [`Engine::publish`] behind what it has received. Each call does a bounded amount of work for
//! each session, whatever the session has written into its arena.
//!
//! # Why no wake-up is lost
//! The background thread goes to sleep by [`Engine::will_sleep`], which looks at all doorbells once
//! more; [`arena`](crate::shared::arena) says why a doorbell that this look misses wakes the
//! thread. It does so by a count in the kernel that is in this engine's set of descriptors, on
//! which the thread sleeps. Sessions come and go under the driver's lock, and the thread that adds
//! one wakes the background thread, which announces its next sleep to the new session, too.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use remora_nic::chain::Queue as Side;
use remora_nic::queue::Completion;
use remora_nic::{Event as CardEvent, Memory, Nic, PostError, Time};
use rustix::event::epoll;

use crate::event::Event;
use crate::message::{CompletionQueuePlace, RingPlace};
use crate::shared::arena::QUEUES_MAX;
use crate::shared::completions::ring_len;
use crate::shared::{
    Arena, CompletionProducer, Doorbells, EventProducer, Parts, WorkQueue, WorkQueueState,
};

/// Completions that are moved at a time.
const BATCH: usize = 16;
/// Work queues of a session whose free slots are looked at in a step, besides those that complete.
const ACTIVE: usize = 64;

/// The queues of all sessions.
#[derive(Debug)]
pub(crate) struct Engine {
    sessions: Vec<Option<Session>>,
    /// Which session a completion queue of the card belongs to, and its record there.
    cqs: HashMap<u32, (u16, u32)>,
    /// Which session a queue pair belongs to.
    qps: HashMap<u32, u16>,
    /// As `cqs`, for shared receive queues.
    srqs: HashMap<u32, (u16, u32)>,
    /// The doorbells of all sessions, to sleep on.
    doorbells: OwnedFd,
}

/// The records of a queue pair's send and receive queue.
#[derive(Clone, Copy, Debug)]
struct Sides {
    send: Option<u32>,
    recv: Option<u32>,
}

/// The shared part of a session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) arena: Arena,
    /// The arena's memory file, for clients that attach again.
    pub(crate) file: OwnedFd,
    pub(crate) parts: Parts,
    doorbells: Doorbells,
    pub(crate) events: EventProducer,
    /// Wakes the daemon.
    pub(crate) doorbell: Event,
    /// Wakes the client.
    pub(crate) wake: Event,
    queues: Vec<Option<Queue>>,
    sides: HashMap<u32, Sides>,
    /// Work queues that hold elements which are not retired, as far as the client knows.
    active: VecDeque<u32>,
    pub(crate) counters: SessionCounters,
}

/// What has happened in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SessionCounters {
    /// Elements that were posted.
    pub(crate) posted: u64,
    /// Completions that were handed over.
    pub(crate) completed: u64,
    /// Bytes of successful completions.
    pub(crate) bytes: u64,
    /// Doorbells with an index that cannot be, or for a queue that is none.
    pub(crate) refused: u64,
}

#[derive(Debug)]
enum Queue {
    Work(Work),
    Completions(Completions),
}

#[derive(Debug)]
struct Work {
    of: Of,
    shared: WorkQueue,
    ring: (usize, usize),
    /// The index that the card has been told.
    rung: u32,
    /// The index that the client has been told.
    retired: u32,
    /// It is in `Session::active`.
    active: bool,
}

/// Whose work queue it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    Send(u32),
    Recv(u32),
    Srq(u32),
}

#[derive(Debug)]
struct Completions {
    cq: u32,
    producer: CompletionProducer,
    ring: usize,
    depth: u32,
    /// Entries wait on the card for room.
    waits: bool,
}

/// A session's arena has no room left, or no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaFull;

impl Engine {
    /// # Errors
    /// The process or the system has too many open files.
    pub(crate) fn new() -> io::Result<Engine> {
        Ok(Engine {
            sessions: Vec::new(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            doorbells: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Adds a session, which gets the lowest free number.
    ///
    /// # Errors
    /// Its doorbell cannot be watched.
    pub(crate) fn attach(
        &mut self,
        arena: Arena,
        file: OwnedFd,
        (doorbell, wake): (Event, Event),
    ) -> io::Result<u16> {
        let free = self.sessions.iter().position(Option::is_none).unwrap_or(self.sessions.len());
        let number = u16::try_from(free).map_err(|_| io::Error::other("too many sessions"))?;
        // By edges, so that a wake-up is over without reading the count, which the client has too.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(number));
        epoll::add(&self.doorbells, &doorbell, data, flags)?;
        if free == self.sessions.len() {
            self.sessions.push(None);
        }
        let parts = Parts::new(arena.memory().len());
        self.sessions[free] = Some(Session {
            arena,
            file,
            parts,
            doorbells: Doorbells::default(),
            events: EventProducer::default(),
            doorbell,
            wake,
            queues: Vec::new(),
            sides: HashMap::new(),
            active: VecDeque::new(),
            counters: SessionCounters::default(),
        });
        Ok(number)
    }

    /// Removes a session, whose objects the caller has destroyed on the card.
    pub(crate) fn detach(&mut self, session: u16) {
        if let Some(gone) = self.sessions.get_mut(usize::from(session)).and_then(Option::take) {
            self.cqs.retain(|_, (of, _)| *of != session);
            self.srqs.retain(|_, (of, _)| *of != session);
            self.qps.retain(|_, of| *of != session);
            if let Err(error) = epoll::delete(&self.doorbells, &gone.doorbell) {
                tracing::error!(%error, "cannot forget a session's doorbell");
            }
        }
    }

    /// The shared part of a session.
    pub(crate) fn session(&mut self, session: u16) -> Option<&mut Session> {
        self.sessions.get_mut(usize::from(session))?.as_mut()
    }

    /// Adds a completion queue that the card has made as an exported one.
    ///
    /// # Errors
    /// The session's arena is full.
    pub(crate) fn add_cq(&mut self, session: u16, cq: u32, depth: u32) -> Result<(), ArenaFull> {
        let of = self.session(session).ok_or(ArenaFull)?;
        let number = of.free_record().ok_or(ArenaFull)?;
        let ring = of.parts.take(ring_len(depth)).ok_or(ArenaFull)?;
        let producer = CompletionProducer::begin(&of.arena, number, ring, depth);
        of.set(number, Queue::Completions(Completions { cq, producer, ring, depth, waits: false }));
        self.cqs.insert(cq, (session, number));
        Ok(())
    }

    /// Where a completion queue of the session lies.
    pub(crate) fn cq_place(&mut self, session: u16, cq: u32) -> Option<CompletionQueuePlace> {
        let (of, number) = *self.cqs.get(&cq)?;
        match self.session(session)?.queues.get(number as usize)? {
            Some(Queue::Completions(queue)) if of == session => {
                Some(CompletionQueuePlace { number, ring: queue.ring as u64, depth: queue.depth })
            }
            _ => None,
        }
    }

    /// Gives a completion queue a ring of another depth.
    ///
    /// # Errors
    /// The arena is full, or what waits does not fit.
    pub(crate) fn resize_cq(&mut self, session: u16, cq: u32, depth: u32) -> Result<(), ArenaFull> {
        let (_, number) = self.cqs.get(&cq).copied().ok_or(ArenaFull)?;
        let of = self.session(session).ok_or(ArenaFull)?;
        let ring = of.parts.take(ring_len(depth)).ok_or(ArenaFull)?;
        let Session { arena, queues, .. } = of;
        let Some(Some(Queue::Completions(queue))) = queues.get_mut(number as usize) else {
            of.release(ring, ring_len(depth));
            return Err(ArenaFull);
        };
        if !queue.producer.move_to(arena, number, ring, depth) {
            of.release(ring, ring_len(depth));
            return Err(ArenaFull);
        }
        let old = (queue.ring, ring_len(queue.depth));
        (queue.ring, queue.depth) = (ring, depth);
        of.release(old.0, old.1);
        Ok(())
    }

    /// Removes a completion queue that was destroyed on the card.
    pub(crate) fn remove_cq(&mut self, cq: u32) {
        if let Some((session, number)) = self.cqs.remove(&cq) {
            self.remove(session, number);
        }
    }

    /// Takes memory for the ring of a work queue of `bytes` bytes, and a record; returns its place
    /// in the arena, and its bus address.
    ///
    /// # Errors
    /// The session's arena is full.
    pub(crate) fn take_ring(
        &mut self,
        session: u16,
        bytes: usize,
    ) -> Result<(RingPlace, u64), ArenaFull> {
        let of = self.session(session).ok_or(ArenaFull)?;
        let number = of.free_record().ok_or(ArenaFull)?;
        let at = of.parts.take(bytes).ok_or(ArenaFull)?;
        let shared = WorkQueue::new(&of.arena, number);
        shared.begin();
        // Until its owner is known, its doorbells do nothing.
        of.set(number, Queue::Work(Work::new(Of::Srq(u32::MAX), shared, (at, bytes))));
        let address = of.arena.memory().addr() + at as u64;
        Ok((RingPlace { number, offset: at as u64 }, address))
    }

    /// Gives back a ring whose queue was not made, or was destroyed.
    pub(crate) fn give_back(&mut self, session: u16, number: u32) {
        self.remove(session, number);
    }

    /// The rings of queue pair `qpn`.
    pub(crate) fn add_qp(&mut self, session: u16, qpn: u32, send: Option<u32>, recv: Option<u32>) {
        self.set_owner(session, send, Of::Send(qpn));
        self.set_owner(session, recv, Of::Recv(qpn));
        self.qps.insert(qpn, session);
        if let Some(of) = self.session(session) {
            of.sides.insert(qpn, Sides { send, recv });
        }
    }

    /// The ring of shared receive queue `srq`, instead of another that it may have had.
    pub(crate) fn set_srq(&mut self, session: u16, srq: u32, number: u32, index: u32) {
        self.set_owner(session, Some(number), Of::Srq(srq));
        if let Some(work) = self.work(session, number) {
            (work.rung, work.retired) = (index, index);
            work.shared.publish(index);
            work.shared.retire(index);
        }
        if let Some((session, old)) = self.srqs.insert(srq, (session, number)) {
            self.remove(session, old);
        }
    }

    /// Removes a queue pair that was destroyed on the card.
    pub(crate) fn remove_qp(&mut self, qpn: u32) {
        let Some(of) = self.qps.remove(&qpn).and_then(|session| self.session(session)) else {
            return;
        };
        for number in of.records(qpn) {
            of.remove(number);
        }
        of.sides.remove(&qpn);
    }

    /// Removes a shared receive queue that was destroyed on the card.
    pub(crate) fn remove_srq(&mut self, srq: u32) {
        if let Some((session, number)) = self.srqs.remove(&srq) {
            self.remove(session, number);
        }
    }

    /// The queue pair was reset: its rings begin again.
    pub(crate) fn reset_qp(&mut self, qpn: u32) {
        let Some(of) = self.qps.get(&qpn).copied().and_then(|session| self.session(session)) else {
            return;
        };
        for number in of.records(qpn) {
            if let Some(Some(Queue::Work(work))) = of.queues.get_mut(number as usize) {
                work.shared.begin();
                (work.rung, work.retired) = (0, 0);
            }
        }
    }

    /// The queue pair may have come to a state in which it takes what was posted before.
    pub(crate) fn ring_again(
        &mut self,
        qpn: u32,
        now: Time,
        nic: &mut Nic,
        memory: &mut dyn Memory,
    ) {
        let Some(of) = self.qps.get(&qpn).copied().and_then(|session| self.session(session)) else {
            return;
        };
        for number in of.records(qpn) {
            let Session { queues, active, counters, .. } = &mut *of;
            if let Some(Some(Queue::Work(work))) = queues.get_mut(number as usize) {
                ring(work, number, (now, nic, memory), active, counters);
            }
        }
    }

    /// The session that a number of the card's belongs to: that of an event.
    pub(crate) fn session_of(&self, event: &CardEvent) -> Option<u16> {
        match *event {
            CardEvent::CompletionQueueNotify(cq) | CardEvent::CompletionQueueError(cq) => {
                self.cqs.get(&cq).map(|(session, _)| *session)
            }
            CardEvent::SrqLimitReached(srq) => self.srqs.get(&srq).map(|(session, _)| *session),
            CardEvent::QpAccessError(qpn)
            | CardEvent::QpRequestError(qpn)
            | CardEvent::QpFatal(qpn)
            | CardEvent::CommunicationEstablished(qpn)
            | CardEvent::SendQueueDrained(qpn)
            | CardEvent::LastElementReached(qpn)
            | CardEvent::ChainStopped(qpn) => self.qps.get(&qpn).copied(),
            _ => None,
        }
    }

    fn set_owner(&mut self, session: u16, number: Option<u32>, owner: Of) {
        if let Some(work) = number.and_then(|number| self.work(session, number)) {
            work.of = owner;
        }
    }

    fn work(&mut self, session: u16, number: u32) -> Option<&mut Work> {
        match self.session(session)?.queues.get_mut(number as usize)? {
            Some(Queue::Work(work)) => Some(work),
            _ => None,
        }
    }

    fn remove(&mut self, session: u16, number: u32) {
        if let Some(of) = self.session(session) {
            of.remove(number);
        }
    }
}

/// What the driver calls in each step.
impl Engine {
    /// Hands the doorbells that were rung to the card; returns whether there were any.
    pub(crate) fn take_doorbells(
        &mut self,
        now: Time,
        nic: &mut Nic,
        memory: &mut dyn Memory,
    ) -> bool {
        let mut any = false;
        for session in self.sessions.iter_mut().flatten() {
            if session.doorbells.any(&session.arena) {
                any = true;
                session.take_doorbells(now, nic, memory);
            }
        }
        any
    }

    /// Hands completions, and slots that are free again, to the sessions. The driver has sent what
    /// it was given before, so that no packet refers to such a slot.
    pub(crate) fn publish(&mut self, nic: &mut Nic) {
        while let Some(cq) = nic.poll_completed() {
            let Some((session, number)) = self.cqs.get(&cq).copied() else { continue };
            if let Some(session) = self.sessions[usize::from(session)].as_mut() {
                session.move_completions(nic, number);
            }
        }
        for session in self.sessions.iter_mut().flatten() {
            session.publish_retired(nic);
        }
    }

    /// Announces to all sessions that the background thread goes to sleep; returns false if it must
    /// not, because a doorbell was rung.
    pub(crate) fn will_sleep(&self) -> bool {
        let sessions = || self.sessions.iter().flatten();
        sessions().for_each(|session| session.arena.will_sleep());
        let rung = sessions().any(|session| session.doorbells.any(&session.arena));
        if rung {
            self.woke();
        }
        !rung
    }

    /// The background thread is awake.
    pub(crate) fn woke(&self) {
        self.sessions.iter().flatten().for_each(|session| session.arena.woke());
        let mut rung = [const { std::mem::MaybeUninit::uninit() }; 64];
        // By edges: what is not taken now makes the set readable until a later look.
        if let Err(error) = epoll::wait(&self.doorbells, &mut rung, Some(&NO_TIME)) {
            tracing::debug!(%error, "cannot look at the sessions' doorbells");
        }
    }

    /// Readable when a session has rung its doorbell for a daemon that sleeps.
    pub(crate) fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.as_fd()
    }

    /// Tells a session an event.
    pub(crate) fn tell(&mut self, session: u16, event: &[u8]) {
        if let Some(session) = self.session(session) {
            session.tell(event);
        }
    }
}

const NO_TIME: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };

impl Work {
    fn new(of: Of, shared: WorkQueue, ring: (usize, usize)) -> Work {
        Work { of, shared, ring, rung: 0, retired: 0, active: false }
    }

    /// How far the card has retired the queue.
    fn retired_on(&self, nic: &Nic) -> Option<u32> {
        match self.of {
            Of::Send(qpn) => nic.retired(qpn, Side::Send),
            Of::Recv(qpn) => nic.retired(qpn, Side::Recv),
            Of::Srq(srq) => nic.srq_retired(srq),
        }
    }

    /// Tells the client which slots are free; returns whether all of them are.
    fn publish(&mut self, nic: &Nic) -> bool {
        let Some(retired) = self.retired_on(nic) else { return true };
        if retired != self.retired {
            self.retired = retired;
            self.shared.retire(retired);
        }
        self.retired == self.rung
    }
}

impl Session {
    /// Tells the client an event, and wakes it if it sleeps.
    pub(crate) fn tell(&mut self, event: &[u8]) {
        if self.events.push(&self.arena, event) {
            crate::event::wake(&self.wake);
        }
    }

    fn free_record(&self) -> Option<u32> {
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len()) as u32;
        (free < QUEUES_MAX).then_some(free)
    }

    fn set(&mut self, number: u32, queue: Queue) {
        let at = number as usize;
        if at == self.queues.len() {
            self.queues.push(None);
        }
        self.queues[at] = Some(queue);
    }

    fn remove(&mut self, number: u32) {
        match self.queues.get_mut(number as usize).and_then(Option::take) {
            Some(Queue::Work(work)) => {
                work.shared.set_state(WorkQueueState::Gone);
                self.active.retain(|active| *active != number);
                self.release(work.ring.0, work.ring.1);
            }
            Some(Queue::Completions(queue)) => self.release(queue.ring, ring_len(queue.depth)),
            None => {}
        }
    }

    /// Gives a part of the arena back, and its pages to the system.
    pub(crate) fn release(&mut self, at: usize, len: usize) {
        let pages = self.parts.give_back(at, len);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let (from, bytes) = (pages.start as u64, pages.len() as u64);
        if let Err(error) = rustix::fs::fallocate(&self.file, flags, from, bytes) {
            tracing::error!(%error, "cannot give memory of an arena back");
        }
    }

    fn take_doorbells(&mut self, now: Time, nic: &mut Nic, memory: &mut dyn Memory) {
        let Session { arena, doorbells, queues, active, counters, .. } = self;
        let mut read = Vec::new();
        doorbells.take(arena, |number| match queues.get_mut(number as usize) {
            Some(Some(Queue::Work(work))) => {
                ring(work, number, (now, &mut *nic, &mut *memory), active, counters);
            }
            Some(Some(Queue::Completions(queue))) if queue.waits => read.push(number),
            Some(Some(Queue::Completions(_))) => {}
            // Number 0 is rung for room in the ring of events, too.
            _ => counters.refused += u64::from(number != 0),
        });
        for number in read {
            self.move_completions(nic, number);
        }
        if self.events.waits() && self.events.flush(&self.arena) {
            crate::event::wake(&self.wake);
        }
    }

    /// Moves entries from the card to the client, as far as there is room, and notifies it if it
    /// has asked for that.
    fn move_completions(&mut self, nic: &mut Nic, number: u32) {
        let Some(Some(Queue::Completions(mut queue))) =
            self.queues.get_mut(number as usize).map(Option::take)
        else {
            return;
        };
        loop {
            self.fill(nic, &mut queue);
            let waits = nic.cq_len(queue.cq).is_some_and(|left| left > 0);
            if waits != queue.waits || waits {
                queue.waits = waits;
                queue.producer.set_waits(waits);
            }
            // Behind the flag, another look: see `arena`. A client that reads on and on rings.
            if !waits || queue.producer.room() == 0 {
                break;
            }
        }
        let notify = queue.producer.takes_notice();
        let cq = queue.cq;
        self.queues[number as usize] = Some(Queue::Completions(queue));
        if notify {
            self.tell(&crate::message::encode(&CardEvent::CompletionQueueNotify(cq)));
        }
    }

    /// Moves entries while there is room.
    fn fill(&mut self, nic: &mut Nic, queue: &mut Completions) {
        let mut entries = [Completion::default(); BATCH];
        loop {
            let room = (queue.producer.room() as usize).min(BATCH);
            let moved = match nic.poll_cq(queue.cq, &mut entries[..room]) {
                Ok(moved) => moved,
                Err(_) => {
                    queue.producer.set_overrun();
                    return;
                }
            };
            for entry in &entries[..moved] {
                // A slot is free when its completion is seen.
                self.publish_of(nic, entry.qpn);
                self.counters.completed += 1;
                self.counters.bytes += u64::from(entry.len);
                queue.producer.push(entry);
            }
            if moved < BATCH {
                return;
            }
        }
    }
}

/// The work queues of a session, as its records name them.
impl Session {
    /// The records of a queue pair.
    fn records(&self, qpn: u32) -> impl Iterator<Item = u32> + use<> {
        let sides = self.sides.get(&qpn).copied();
        sides.into_iter().flat_map(|sides| [sides.send, sides.recv]).flatten()
    }

    /// Tells the client which slots of a queue pair are free.
    fn publish_of(&mut self, nic: &Nic, qpn: u32) {
        for number in self.records(qpn) {
            if let Some(Some(Queue::Work(work))) = self.queues.get_mut(number as usize) {
                work.publish(nic);
            }
        }
    }

    /// Tells the client which slots of the next few busy queues are free. (A request that is not
    /// signaled completes silently.)
    fn publish_retired(&mut self, nic: &Nic) {
        for _ in 0..self.active.len().min(ACTIVE) {
            let Some(number) = self.active.pop_front() else { return };
            let Some(Some(Queue::Work(work))) = self.queues.get_mut(number as usize) else {
                continue;
            };
            work.active = !work.publish(nic);
            if work.active {
                self.active.push_back(number);
            }
        }
    }
}

/// The card, and what its commands take.
type Card<'a> = (Time, &'a mut Nic, &'a mut dyn Memory);

/// Tells the card how far the client has posted. An index that the ring cannot hold takes the queue
/// pair to the error state.
fn ring(
    work: &mut Work,
    number: u32,
    (now, nic, memory): Card<'_>,
    active: &mut VecDeque<u32>,
    counters: &mut SessionCounters,
) {
    let posted = work.shared.posted();
    if posted == work.rung {
        return;
    }
    let taken = match work.of {
        Of::Send(qpn) => nic.handle_send_doorbell(qpn, posted),
        Of::Recv(qpn) => nic.handle_recv_doorbell(qpn, posted),
        Of::Srq(srq) => nic.handle_srq_doorbell(srq, posted),
    };
    match taken {
        Ok(()) => {
            counters.posted += u64::from(posted.wrapping_sub(work.rung));
            work.rung = posted;
            if !std::mem::replace(&mut work.active, true) {
                active.push_back(number);
            }
        }
        // It is posted once the queue pair comes to another state.
        Err(PostError::State(_)) => {}
        Err(_) => {
            counters.refused += 1;
            work.shared.set_state(WorkQueueState::Refused);
            if let Of::Send(qpn) | Of::Recv(qpn) = work.of
                && let Err(error) = nic.fail_qp(now, memory, qpn)
            {
                tracing::debug!(%error, "a doorbell of a queue pair that has gone");
            }
        }
    }
}
