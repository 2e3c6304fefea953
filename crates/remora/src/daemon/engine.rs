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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use remora_nic::cm::CmEvent;
use remora_nic::nic::StructureUse;
use remora_nic::queue::{Moderation, ResizeCqError};
use remora_nic::{Event as CardEvent, Key, Nic, Time};
use rustix::event::epoll;

use super::lent::Lent;
use super::named::Named;
use super::objects::{Ask, Objects, Pools, Usage};
use super::open_passes::Passes;
use super::record::Entry;
use super::running::SessionKernels;
use super::session_queues::{
    Completions, Frees, Of, Piece, Queue, SessionCounters, SessionQueues, Sides, User, Work,
};
use crate::by_number::ByNumber;
use crate::clock::Clock;
use crate::dma::{self, CardMemory, MemoryKind};
use crate::event::Event;
use crate::memory::memfd;
use crate::message::{CompletionQueuePlace, Object, Quotas, RingPlace};
use crate::rarely::Rarely;
use crate::shared::arena::DATA;
use crate::shared::completions::ring_len;
use crate::shared::{Arena, CompletionProducer, Doorbells, EventProducer, Parts, WorkQueue};
use crate::wake_socket::Wake;

/// The queues of all sessions.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) sessions: Vec<Option<SessionQueues>>,
    pub(crate) objects: Objects,
    /// What the card has for all users.
    pub(super) pools: Pools,
    /// XRC domains that files name.
    pub(crate) named: Named,
    pub(crate) passes: Passes,
    /// The last number that was given to lent memory.
    last_lent: u32,
    /// Send queues whose doorbells are being taken, by session and record, and how far they were
    /// posted.
    pub(super) sends: Vec<(u16, u32, u32)>,
    pub(super) looks: Looks,
    /// Which session a completion queue of the card belongs to, and its record there.
    cqs: ByNumber<(u16, u32)>,
    /// Which session a queue pair belongs to.
    pub(super) qps: ByNumber<u16>,
    /// As `cqs`, for shared receive queues.
    srqs: ByNumber<(u16, u32)>,
    /// The doorbells of all sessions, to sleep on.
    doorbells: OwnedFd,
    /// The completion queues that got entries in this step, by session and record.
    moved: Vec<(u16, u32)>,
    /// What the card's structures took of memory when a client asked.
    pub(super) memory_use: Rarely<Vec<StructureUse>>,
}

/// In which order sessions are looked at: see `doorbells`.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// All sessions: those first that had rung at the last look.
    pub(super) order: Vec<u16>,
    /// So many of them were looked at up to the last that had rung for a send queue.
    pub(super) again: usize,
    /// Those that have doorbells left which were not looked at.
    pub(super) more: Vec<u16>,
}

/// Longer pieces of card memory are far: to zero near memory takes time, in which the card stands.
const NEAR_MAX: u64 = 256 << 10;

/// A session's arena has no room left, or no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaFull;

impl Engine {
    /// # Errors
    /// The process or the system has too many open files.
    pub(crate) fn new() -> io::Result<Engine> {
        Ok(Engine {
            sessions: Vec::new(),
            objects: Objects::default(),
            pools: Pools::default(),
            named: Named::default(),
            passes: Passes::default(),
            last_lent: 0,
            sends: Vec::new(),
            looks: Looks::default(),
            cqs: ByNumber::default(),
            qps: ByNumber::default(),
            srqs: ByNumber::default(),
            doorbells: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            moved: Vec::new(),
            memory_use: Rarely::default(),
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
        (doorbell, wake): (Event, Wake),
        quotas: Quotas,
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
        self.looks.order.push(number);
        // The thread that drives the card may sleep, and does not know of this session yet.
        arena.will_sleep();
        let parts = Parts::new(arena.memory().len());
        self.sessions[free] = Some(SessionQueues {
            arena,
            file: Arc::new(file),
            parts,
            doorbells: Doorbells::default(),
            events: EventProducer::default(),
            doorbell,
            wake,
            queues: Vec::new(),
            sides: ByNumber::default(),
            active: VecDeque::new(),
            counters: SessionCounters::default(),
            quotas,
            user: User::default(),
            usage: Usage::default(),
            held: BTreeSet::new(),
            lossy: Rarely::default(),
            lent: BTreeMap::new(),
            card: None,
            ready: Arc::default(),
            groups: BTreeSet::new(),
            dm: BTreeMap::new(),
            regions: BTreeMap::new(),
            ways: BTreeMap::new(),
            kernels: SessionKernels::default(),
            record: None,
            frees: Frees::default(),
            ends: false,
        });
        Ok(number)
    }

    /// Removes a session, whose objects the caller has destroyed on the card. Returns what it had
    /// mapped, to be dropped when the card is free for others.
    pub(crate) fn detach(&mut self, session: u16) -> Option<SessionQueues> {
        let gone = self.sessions.get_mut(usize::from(session))?.take()?;
        self.looks.order.retain(|slot| *slot != session);
        self.passes.forget(session);
        self.forget_numbers(session, &gone);
        if let Err(error) = epoll::delete(&self.doorbells, &gone.doorbell) {
            tracing::error!(%error, "cannot forget a session's doorbell");
        }
        Some(gone)
    }

    /// Forgets numbers of the card's that belong to a session which has gone. (To look through all
    /// would take time, in which the card stands.)
    fn forget_numbers(&mut self, session: u16, gone: &SessionQueues) {
        for queue in gone.queues.iter().flatten() {
            let (numbers, number) = match queue {
                Queue::Completions(queue) => (&mut self.cqs, queue.cq),
                Queue::Work(Work { of: Of::Srq(srq), .. }) => (&mut self.srqs, *srq),
                Queue::Work(_) => continue,
            };
            if numbers.get(&number).is_some_and(|(of, _)| *of == session) {
                numbers.remove(&number);
            }
        }
        for qpn in gone.sides.keys() {
            if self.qps.get(qpn) == Some(&session) {
                self.qps.remove(qpn);
            }
        }
    }

    /// The shared part of a session.
    pub(crate) fn session(&mut self, session: u16) -> Option<&mut SessionQueues> {
        self.sessions.get_mut(usize::from(session))?.as_mut()
    }

    /// Adds a completion queue that the card has made as an exported one.
    ///
    /// # Errors
    /// The session's arena is full.
    pub(crate) fn add_cq(&mut self, session: u16, cq: u32, depth: u32) -> Result<(), ArenaFull> {
        let of = self.session(session).ok_or(ArenaFull)?;
        let number = of.free_record().ok_or(ArenaFull)?;
        let ring = self.take_bytes(session, ring_len(depth)).ok_or(ArenaFull)?;
        let of = self.session(session).ok_or(ArenaFull)?;
        let producer = CompletionProducer::begin(&of.arena, number, ring, depth);
        let (waits, moderation, held) = (false, Moderation::default(), None);
        let queue = Completions { cq, producer, ring, depth, waits, moderation, held };
        of.set(number, Queue::Completions(queue));
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
    pub(crate) fn resize_cq(
        &mut self,
        session: u16,
        cq: u32,
        depth: u32,
    ) -> Result<(), ResizeCqError> {
        let (_, number) = self.cqs.get(&cq).copied().ok_or(ResizeCqError::UnknownCq)?;
        let of = self.session(session).ok_or(ResizeCqError::UnknownCq)?;
        let limit = of.parts.capacity() / ring_len(1);
        let taken = self.take_bytes(session, ring_len(depth));
        let ring = taken.ok_or(ResizeCqError::Size { limit })?;
        let of = self.session(session).ok_or(ResizeCqError::UnknownCq)?;
        let SessionQueues { arena, queues, .. } = of;
        let Some(Some(Queue::Completions(queue))) = queues.get_mut(number as usize) else {
            of.release(ring, ring_len(depth));
            return Err(ResizeCqError::UnknownCq);
        };
        if !queue.producer.move_to(arena, number, ring, depth) {
            let waiting = queue.producer.waiting() as usize;
            of.release(ring, ring_len(depth));
            return Err(ResizeCqError::Waiting { waiting });
        }
        let old = (queue.ring, ring_len(queue.depth));
        (queue.ring, queue.depth) = (ring, depth);
        of.release(old.0, old.1);
        Ok(())
    }

    /// Changes how many entries the client is notified of together.
    pub(crate) fn moderate_cq(&mut self, cq: u32, moderation: Moderation) {
        let place = self.cqs.get(&cq).copied();
        let queue = place.and_then(|(session, number)| {
            self.session(session)?.queues.get_mut(number as usize)?.as_mut()
        });
        if let Some(Queue::Completions(queue)) = queue {
            queue.moderation = moderation;
        }
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
        let at = self.take_bytes(session, bytes).ok_or(ArenaFull)?;
        let of = self.session(session).ok_or(ArenaFull)?;
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
            of.sides.insert(qpn, Sides { send, recv, managed: false });
        }
    }

    /// The queues of the queue pair run only as far as other queues let them.
    pub(crate) fn set_managed(&mut self, session: u16, qpn: u32) {
        let sides = self.session(session).and_then(|of| of.sides.get_mut(&qpn));
        sides.into_iter().for_each(|sides| sides.managed = true);
    }

    /// The ring of shared receive queue `srq`, instead of another that it may have had.
    /// Its elements up to the first of `indices` are posted, those up to the second retired.
    pub(crate) fn set_srq(&mut self, session: u16, srq: u32, number: u32, indices: (u32, u32)) {
        self.set_owner(session, Some(number), Of::Srq(srq));
        if let Some(work) = self.work(session, number) {
            (work.rung, work.retired) = indices;
            work.shared.publish(indices.0);
            work.shared.retire(indices.1);
        }
        if let Some((session, old)) = self.srqs.insert(srq, (session, number)) {
            self.remove(session, old);
        }
    }

    /// The record of a session's shared receive queue.
    pub(super) fn srq_record(&self, session: u16, srq: u32) -> Option<u32> {
        self.srqs.get(&srq).filter(|(of, _)| *of == session).map(|(_, number)| *number)
    }

    /// How far a shared receive queue is posted and retired, as its session knows.
    pub(crate) fn srq_indices(&mut self, srq: u32) -> (u32, u32) {
        let place = self.srqs.get(&srq).copied();
        let work = place.and_then(|(session, number)| self.work(session, number));
        work.map_or((0, 0), |work| (work.rung, work.retired))
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
        of.groups.retain(|(member, _)| *member != qpn);
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
            CardEvent::Cm(ref event) => self.objects.owner(subject(event)),
            _ => None,
        }
    }

    /// Notes what an event brings to a session: a connection, or a resolution. Returns whether the
    /// session's quotas admit it.
    pub(crate) fn note(&mut self, session: u16, event: &CardEvent) -> bool {
        let object = match event {
            CardEvent::Cm(CmEvent::ConnectRequest(request)) => Object::Connection(request.conn),
            CardEvent::Cm(CmEvent::SidrRequest(request)) => Object::Sidr(request.sidr),
            // This was the resolution's last event.
            CardEvent::Cm(event @ (CmEvent::SidrReply(_) | CmEvent::SidrUnreachable { .. })) => {
                self.disown(subject(event));
                return true;
            }
            _ => return true,
        };
        let admitted = self.admits(session, Ask::for_one(object)).is_ok();
        if admitted {
            self.own(session, object, (0, None));
        }
        admitted
    }

    fn set_owner(&mut self, session: u16, number: Option<u32>, owner: Of) {
        let Some(number) = number else { return };
        if let Some(work) = self.work(session, number) {
            work.of = owner;
        }
        if let Some(of) = self.session(session) {
            of.doorbells.set_receive(number, !matches!(owner, Of::Send(_)));
        }
    }

    pub(super) fn work(&mut self, session: u16, number: u32) -> Option<&mut Work> {
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

/// Objects and parts of arenas.
impl Engine {
    /// May a session make what is asked for? Otherwise returns the limit.
    pub(crate) fn admits(&mut self, session: u16, ask: Ask) -> Result<(), usize> {
        let of = self.session(session).ok_or(0usize)?;
        of.usage.admits(ask, &of.quotas)?;
        ask.kind().map_or(Ok(()), |kind| self.room_for_user(session, kind))
    }

    /// Notes an object that a session has made: see [`Objects::add`].
    pub(crate) fn own(&mut self, session: u16, object: Object, details: (u64, Option<u32>)) {
        if let Some(of) = self.sessions.get_mut(usize::from(session)).and_then(Option::as_mut) {
            self.objects.add(session, &mut of.usage, object, details);
            if let Some(lent) = details.1.and_then(|number| of.lent.get_mut(&number)) {
                lent.users += 1;
            }
            let entry = match object {
                Object::Pd(pd) => Some(Entry::Pd(pd)),
                Object::Dm(at) => of.dm.get(&at).and_then(|piece| piece.entry(at)),
                Object::Lent(number) => of.lent.get(&number).and_then(|lent| lent.entry(number)),
                _ => None,
            };
            if let (Some(record), Some(entry)) = (&mut of.record, entry) {
                record.add(&entry);
            }
        }
    }

    /// What was noted of a region.
    pub(crate) fn region(&mut self, session: u16, key: Key) -> Option<Entry> {
        self.session(session)?.regions.get(&key).map(|region| region.entry)
    }

    /// Forgets what was noted of a region, which has changed.
    pub(crate) fn forget_region(&mut self, session: u16, key: Key) {
        self.session(session).into_iter().for_each(|of| of.forget_region(Object::Mr(key)));
    }

    /// Notes what has to be known of a region, so that another process can take it over, and that
    /// it outlives the daemon.
    pub(crate) fn record_region(&mut self, session: u16, region: &Entry) {
        let (Object::Mr(key), Some(of)) = (region.object(), self.session(session)) else { return };
        of.note_region(key, *region);
        if let Some(record) = &mut of.record {
            record.add(region);
        }
    }

    /// Notes that an object was destroyed.
    pub(crate) fn disown(&mut self, object: Object) {
        if let Object::Xrcd(xrcd) = object {
            self.named.forget(xrcd);
        }
        if let Some(session) = self.objects.owner(object) {
            self.remove_object(session, object);
        }
    }

    /// As [`Engine::disown`], for an object of this session's, which may be card memory.
    pub(crate) fn disown_of(&mut self, session: u16, object: Object) {
        match object {
            Object::Dm(_) => self.remove_object(session, object),
            _ => self.disown(object),
        }
    }

    fn remove_object(&mut self, session: u16, object: Object) {
        let of = self.sessions.get_mut(usize::from(session));
        if let Some(of) = of.and_then(Option::as_mut) {
            let lent = self.objects.remove(session, &mut of.usage, object);
            if let Some(record) = &mut of.record {
                record.remove(object);
            }
            of.forget_region(object);
            if let Some(lent) = lent.and_then(|number| of.lent.get_mut(&number)) {
                lent.users -= 1;
            }
        }
    }

    /// Makes a session a holder of another one's object.
    pub(crate) fn share(&mut self, session: u16, object: Object) {
        if let Some(of) = self.sessions.get_mut(usize::from(session)).and_then(Option::as_mut) {
            self.objects.share(session, &mut of.usage, object);
        }
    }

    /// The session holds the object no more; returns whose it is now, if others hold it, so that
    /// it stays.
    pub(crate) fn leave(&mut self, session: u16, object: Object) -> Option<u16> {
        let of = self.sessions.get_mut(usize::from(session)).and_then(Option::as_mut)?;
        let owner = self.objects.leave(session, &mut of.usage, object)?;
        if let Object::Qp(qpn) = object {
            // A target, which has no queues. Its events go to the new owner.
            of.sides.remove(&qpn);
            self.add_qp(owner, qpn, None, None);
        }
        Some(owner)
    }

    /// Adds memory that a session lends; returns its number, which no other session's has.
    pub(crate) fn add_lent(&mut self, session: u16, lent: Lent) -> u32 {
        let amount = lent.quota_bytes();
        loop {
            self.last_lent = self.last_lent.wrapping_add(1);
            if self.objects.owner(Object::Lent(self.last_lent)).is_none() {
                break;
            }
        }
        let number = self.last_lent;
        if let Some(of) = self.session(session) {
            of.lent.insert(number, lent);
        }
        self.own(session, Object::Lent(number), (amount, None));
        number
    }

    /// As [`Engine::add_lent`], under the number that the memory had with another daemon; returns
    /// whether that is free.
    pub(crate) fn restore_lent(&mut self, session: u16, number: u32, lent: Lent) -> bool {
        if self.objects.owner(Object::Lent(number)).is_some() {
            return false;
        }
        self.last_lent = self.last_lent.max(number);
        let amount = lent.quota_bytes();
        if let Some(of) = self.session(session) {
            of.lent.insert(number, lent);
        }
        self.own(session, Object::Lent(number), (amount, None));
        true
    }

    /// Takes what was a piece of the user's card memory with another daemon; returns whether that
    /// memory is there again, and the piece free.
    pub(crate) fn restore_part(&mut self, session: u16, at: u64, len: u64) -> bool {
        let Some(of) = self.session(session) else { return false };
        let piece = of.card.as_ref().and_then(|card| card.alloc_at(at, len));
        let taken = piece.is_some();
        if taken {
            of.dm.insert(at, Piece { len, users: 0, of_card: piece });
        }
        taken
    }

    /// The bus address of `len` bytes at `offset` in a session's arena, if they are data there.
    pub(crate) fn arena_bus(&mut self, session: u16, offset: u64, len: u64) -> Option<u64> {
        let memory = self.session(session)?.arena.memory();
        let within = offset >= DATA as u64 && offset.checked_add(len)? <= memory.len() as u64;
        within.then(|| memory.addr() + offset)
    }

    /// Are `len` bytes at `addr` within a piece of card memory of the session's?
    pub(crate) fn is_dm(&mut self, session: u16, addr: u64, len: u64) -> bool {
        let piece = self.dm_piece(session, addr);
        piece.is_some_and(|(at, size)| addr.checked_add(len).is_some_and(|to| to <= at + size))
    }

    /// Where the piece of card memory of the session's begins that holds this address, and its
    /// length.
    pub(crate) fn dm_piece(&mut self, session: u16, addr: u64) -> Option<(u64, u64)> {
        let (at, piece) = self.session(session)?.dm.range(..=addr).next_back()?;
        (addr < at + piece.len).then_some((*at, piece.len))
    }

    /// The bus address of `len` bytes at `at` in a piece of card memory of the session's.
    pub(crate) fn dm_bus(&mut self, session: u16, at: u64, len: u64) -> Option<u64> {
        let covers = self.is_dm(session, at, len);
        covers.then(|| self.session(session).map(|of| of.card_bytes().addr() + at))?
    }

    /// How much card memory a session could have, as far as is known.
    pub(crate) fn dm_room(&mut self, session: u16) -> usize {
        self.session(session).map_or(0, |of| match &of.card {
            Some(card) => card.sizes().far as usize,
            None => of.parts.capacity() - of.parts.used(),
        })
    }

    /// Takes a part of a session's arena, if it has one and its user may have so much.
    fn take_bytes(&mut self, session: u16, len: usize) -> Option<usize> {
        self.room_for_bytes(session, Parts::taken_by(len) as u64).ok()?;
        self.session(session)?.take(len)
    }

    /// Takes zeroed card memory: of the user's, the piece that is ready.
    pub(crate) fn take_part(&mut self, session: u16, bytes: usize) -> Option<u64> {
        let of = self.session(session)?;
        let len = bytes as u64;
        let (at, of_card) = match &of.card {
            Some(_) => {
                let (_, piece) = of.ready().take().filter(|(of_len, _)| *of_len == len)?;
                (piece.as_ref()?.address(), piece)
            }
            None => (self.take_bytes(session, bytes)? as u64, None),
        };
        let of = self.session(session)?;
        of.dm.insert(at, Piece { len, users: 0, of_card });
        Some(at)
    }

    /// Gives back what [`Engine::take_part`] gave out.
    pub(crate) fn release_part(&mut self, session: u16, at: u64) {
        let Some(of) = self.session(session) else { return };
        if let Some(piece) = of.dm.remove(&at).filter(|piece| piece.of_card.is_none()) {
            of.release(at as usize, piece.len as usize);
        }
    }
}

/// Zeroed card memory: short pieces are near, as long as there is room. The caller does not hold
/// the card's lock.
pub(super) fn zeroed(card: &Arc<CardMemory>, len: u64) -> Option<dma::Piece> {
    if len == 0 {
        return None;
    }
    let near = (len <= NEAR_MAX).then(|| card.alloc(MemoryKind::Near, len).ok()).flatten();
    let piece = near.or_else(|| card.alloc(MemoryKind::Far, len).ok())?;
    clear(&piece);
    Some(piece)
}

/// Other programs of the user may have had the piece before.
fn clear(piece: &dma::Piece) {
    const ZEROES: [u8; 4096] = [0; 4096];
    if piece.kind() == MemoryKind::Far {
        let punched = memfd::punch(piece.card().as_fd(), piece.address(), piece.len());
        if punched.is_ok() {
            return;
        }
    }
    for at in (0..piece.len()).step_by(ZEROES.len()) {
        piece.write_at(at, &ZEROES).expect("a piece is of whole pages");
    }
}

/// What an event of connection management is about, as somebody owns it.
fn subject(event: &CmEvent) -> Object {
    match event {
        CmEvent::ConnectRequest(request) => Object::Listener(request.listener),
        CmEvent::SidrRequest(request) => Object::Listener(request.listener),
        CmEvent::SidrReply(reply) => Object::Sidr(reply.sidr),
        CmEvent::SidrUnreachable { sidr } => Object::Sidr(*sidr),
        CmEvent::Replied(reply) => Object::Connection(reply.conn),
        CmEvent::Established { conn, .. }
        | CmEvent::Rejected { conn, .. }
        | CmEvent::Unreachable { conn }
        | CmEvent::Disconnected { conn, .. }
        | CmEvent::TimewaitExit { conn } => Object::Connection(*conn),
    }
}

/// What the driver calls in each step.
impl Engine {
    /// Hands completions, and slots that are free again, to the sessions. The driver has sent what
    /// it was given before, so that no packet refers to such a slot.
    pub(crate) fn publish(&mut self, nic: &mut Nic, clock: Clock) {
        self.publish_completions(nic, clock);
        for session in self.sessions.iter_mut().flatten() {
            session.publish_retired(nic);
            if !session.held.is_empty() {
                session.tell_held(clock.now());
            }
        }
    }

    /// As [`Engine::publish`], but without the slots of requests that complete silently, and
    /// without notices that were held back: these may wait for a few steps.
    pub(crate) fn publish_completions(&mut self, nic: &mut Nic, clock: Clock) {
        self.end_passes(nic);
        self.publish_taken(nic);
        while let Some(cq) = nic.poll_completed() {
            let Some((session_of, number)) = self.cqs.get(&cq).copied() else { continue };
            if let Some(session) = self.sessions[usize::from(session_of)].as_mut() {
                session.move_completions(nic, number);
                self.moved.push((session_of, number));
            }
        }
        let now = if self.moved.is_empty() { Time::ZERO } else { clock.now() };
        // Behind all of them: a client that is told of one queue finds what came with it in others.
        for at in 0..self.moved.len() {
            let (session, number) = self.moved[at];
            if let Some(session) = self.sessions[usize::from(session)].as_mut() {
                session.notify(number, now);
            }
        }
        self.moved.clear();
    }

    /// Tells the clients which slots of shared receive queues are free. A slot is free when its
    /// completion is seen, which does not say which queue it was of: so this comes before those.
    #[inline]
    pub(super) fn publish_taken(&mut self, nic: &mut Nic) {
        while let Some(srq) = nic.poll_taken() {
            let Some((session, number)) = self.srqs.get(&srq).copied() else { continue };
            if let Some(of) = self.session(session) {
                of.publish_number(nic, number);
            }
        }
    }

    /// Shuts the gates of passes that are over, before anybody learns what has ended them.
    #[inline]
    pub(super) fn end_passes(&mut self, nic: &mut Nic) {
        while let Some(end) = nic.poll_pass_end() {
            self.passes.end(end);
        }
    }

    /// When the next client is to be notified of what has gathered.
    pub(crate) fn next_notice(&self) -> Time {
        let held = self.sessions.iter().flatten().filter_map(|session| session.held.first());
        held.map(|(until, _)| *until).min().unwrap_or(Time::NEVER)
    }

    /// Announces to all sessions that the background thread goes to sleep; returns false if it must
    /// not, because a doorbell was rung.
    pub(crate) fn will_sleep(&self) -> bool {
        self.sessions.iter().flatten().for_each(|session| session.arena.will_sleep());
        let rung = self.is_rung();
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
