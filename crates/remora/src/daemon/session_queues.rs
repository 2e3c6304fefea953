//! The queues of one session: what its doorbells do, and how its completions get there.
//!
//! Each call does a bounded amount of work, whatever the session has written into its arena.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora_nic::chain::Queue as Side;
use remora_nic::queue::{Completion, Moderation};
use remora_nic::wire::Dialect;
use remora_nic::{Event as CardEvent, Key, Nic, Time};
use rustix::fs::fstat;

use super::lent::Lent;
use super::objects::Usage;
use super::record::{Entry, Record};
use super::running::SessionKernels;
use crate::by_number::ByNumber;
use crate::clock::Clock;
use crate::closer::Closer;
use crate::commands::Place;
use crate::dma::{self, CardMemory};
use crate::event::Event;
use crate::memory::{Buffer, memfd};
use crate::message::{Loan, Object, Quotas, encode};
use crate::rarely::Rarely;
use crate::shared::arena::QUEUES_MAX;
use crate::shared::completions::ring_len;
use crate::shared::{
    Arena, CompletionProducer, Doorbells, EventProducer, Notice, Parts, WorkQueue, WorkQueueState,
};
use crate::wake_socket::Wake;

/// Completions that are moved at a time.
const BATCH: usize = 16;
/// Bytes of an arena that may take memory though nobody has asked for them.
const UNASKED: usize = 1 << 20;
/// Work queues of a session whose free slots are looked at in a step, besides those that complete.
const ACTIVE: usize = 64;

/// The records of a queue pair's send and receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    pub(super) send: Option<u32>,
    pub(super) recv: Option<u32>,
    /// The queues run only as far as other queues let them.
    pub(super) managed: bool,
}

/// A region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) entry: Entry,
    /// How the memory that it is in was lent; `None`: it is the arena.
    pub(crate) way: Option<Loan>,
}

/// A piece of card memory.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) len: u64,
    /// Where it is the user's card memory; `None`: a part of the arena.
    pub(crate) of_card: Option<dma::Piece>,
    /// Regions that are in it.
    pub(crate) users: u32,
}

impl Piece {
    /// What is written down of the piece at `at`. The arena's memory does not outlive the daemon.
    pub(super) fn entry(&self, at: u64) -> Option<Entry> {
        self.of_card.as_ref().map(|_| Entry::Dm { at, len: self.len })
    }
}

/// The shared part of a session.
#[derive(Debug)]
pub(crate) struct SessionQueues {
    pub(crate) arena: Arena,
    /// The arena's memory file, for clients that attach again.
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) parts: Parts,
    pub(super) doorbells: Doorbells,
    pub(crate) events: EventProducer,
    /// Wakes the daemon.
    pub(crate) doorbell: Event,
    /// Wakes the client.
    pub(crate) wake: Wake,
    pub(super) queues: Vec<Option<Queue>>,
    pub(super) sides: ByNumber<Sides>,
    /// Work queues that hold elements which are not retired, as far as the client knows.
    pub(super) active: VecDeque<u32>,
    pub(crate) counters: SessionCounters,
    pub(crate) quotas: Quotas,
    pub(crate) user: User,
    pub(crate) usage: Usage,
    /// Completion queues that hold notifications back, by when they are to be told.
    pub(super) held: BTreeSet<(Time, u32)>,
    /// How many of its connections speak the lossy dialect, when somebody asked.
    pub(super) lossy: Rarely<u32>,
    /// Memory that the client lends, by its numbers.
    pub(crate) lent: BTreeMap<u32, Lent>,
    /// The card memory of the user, of which pieces are given out. A virtual machine has parts of
    /// its arena instead: it reaches no other memory.
    pub(crate) card: Option<Arc<CardMemory>>,
    /// The next piece, zeroed by another thread; none if there was no memory.
    pub(super) ready: Arc<Mutex<Ready>>,
    /// Pieces of card memory, by where they begin.
    pub(crate) dm: BTreeMap<u64, Piece>,
    /// The multicast groups that its queue pairs are attached to.
    pub(crate) groups: BTreeSet<(u32, IpAddr)>,
    /// What its regions are, by their keys.
    pub(crate) regions: BTreeMap<Key, Region>,
    /// How many of them are reached by each way.
    pub(crate) ways: BTreeMap<Option<Loan>, u32>,
    /// What runs on the card for it.
    pub(crate) kernels: SessionKernels,
    /// What outlives the daemon, if anything does.
    pub(crate) record: Option<Record>,
    /// Parts of the arena that are on their way back.
    pub(super) frees: Frees,
    /// The session is being ended: its pages stay as they are, for a client that looks what became
    /// of its requests, and go with the arena.
    pub(crate) ends: bool,
}

/// A piece of card memory for a command that asks for so many bytes.
pub(super) type Ready = Option<(u64, Option<dma::Piece>)>;

/// Gives pages of an arena back to the system.
#[derive(Debug, Default)]
pub(super) struct Frees {
    by: Closer,
    /// Where the parts begin of which it has done so, and the bytes that they took.
    done: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl Frees {
    fn done(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose a session is, and what all sessions of that user have together at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) loans: u32,
    pub(crate) groups: u32,
    pub(crate) kernels: u32,
    /// The most steps of an invocation of one of these.
    pub(crate) kernel_steps: u64,
    /// `None`: without limit.
    pub(crate) memory_bytes: Option<u64>,
    /// Bytes that the user's programs have granted to the user's DMA engine, which count, too.
    pub(crate) granted_bytes: u64,
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
pub(super) enum Queue {
    Work(Work),
    Completions(Completions),
}

#[derive(Debug)]
pub(super) struct Work {
    pub(super) of: Of,
    pub(super) shared: WorkQueue,
    pub(super) ring: (usize, usize),
    /// The index that the card has been told.
    pub(super) rung: u32,
    /// The index that the client has been told.
    pub(super) retired: u32,
    /// It is in `SessionQueues::active`.
    pub(super) active: bool,
}

/// Whose work queue it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    Send(u32),
    Recv(u32),
    Srq(u32),
}

#[derive(Debug)]
pub(super) struct Completions {
    pub(super) cq: u32,
    pub(super) producer: CompletionProducer,
    pub(super) ring: usize,
    pub(super) depth: u32,
    /// Entries wait on the card for room.
    pub(super) waits: bool,
    /// How many entries the client is notified of together.
    pub(super) moderation: Moderation,
    /// When it is notified of those that have gathered.
    pub(super) held: Option<Time>,
}

impl Work {
    pub(super) fn new(of: Of, shared: WorkQueue, ring: (usize, usize)) -> Work {
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

impl SessionQueues {
    /// Tells the client an event, and wakes it if it sleeps.
    pub(crate) fn tell(&mut self, event: &[u8]) {
        if self.events.push(&self.arena, event) {
            self.wake.wake();
        }
    }

    /// How many connections of the session speak the lossy dialect.
    pub(super) fn lossy_connections(&mut self, nic: &Nic, clock: Clock) -> u32 {
        let now = clock.now();
        self.lossy.get(now).unwrap_or_else(|| {
            let is_lossy = |what: Dialect| what.contains(Dialect::LOSSY);
            let found = self.sides.keys().filter(|qpn| nic.speaks(**qpn).is_some_and(is_lossy));
            self.lossy.put(found.count() as u32, self.sides.len(), now)
        })
    }

    pub(super) fn free_record(&self) -> Option<u32> {
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len()) as u32;
        (free < QUEUES_MAX).then_some(free)
    }

    pub(super) fn set(&mut self, number: u32, queue: Queue) {
        let at = number as usize;
        if at == self.queues.len() {
            self.queues.push(None);
        }
        self.queues[at] = Some(queue);
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.doorbells.set_receive(number, false);
        match self.queues.get_mut(number as usize).and_then(Option::take) {
            Some(Queue::Work(work)) => {
                work.shared.set_state(WorkQueueState::Gone);
                self.active.retain(|active| *active != number);
                self.release(work.ring.0, work.ring.1);
            }
            Some(Queue::Completions(queue)) => {
                if let Some(until) = queue.held {
                    self.held.remove(&(until, number));
                }
                self.release(queue.ring, ring_len(queue.depth));
            }
            None => {}
        }
    }

    /// Where in card memory bytes are, if they can be there.
    fn in_card_memory(&self, place: Place) -> Option<u64> {
        match place {
            Place::Device(at) => Some(at),
            Place::Arena(at) if self.card.is_none() => Some(at),
            _ => None,
        }
    }

    /// The piece of card memory that bytes are in, and where it begins.
    pub(super) fn piece_at(&self, place: Place) -> Option<(u64, &Piece)> {
        let at = self.in_card_memory(place)?;
        let (start, piece) = self.dm.range(..=at).next_back()?;
        (at < start + piece.len).then_some((*start, piece))
    }

    fn piece_of(&mut self, region: &Entry) -> Option<&mut Piece> {
        let Entry::Region { bytes, .. } = region else { return None };
        let (start, _) = self.piece_at(bytes.place)?;
        self.dm.get_mut(&start)
    }

    /// The memory that addresses of card memory are offsets in.
    pub(crate) fn card_bytes(&self) -> &Buffer {
        self.card.as_ref().map_or(self.arena.memory(), |card| card.bytes())
    }

    /// Forgets what a region was, if the object is one.
    pub(super) fn forget_region(&mut self, object: Object) {
        let Object::Mr(key) = object else { return };
        let Some(Region { entry, way }) = self.regions.remove(&key) else { return };
        if let Some(count) = self.ways.get_mut(&way) {
            *count = count.saturating_sub(1);
        }
        if let Some(piece) = self.piece_of(&entry) {
            piece.users = piece.users.saturating_sub(1);
        }
    }

    /// Notes what a region is.
    pub(super) fn note_region(&mut self, key: Key, entry: Entry) {
        let Entry::Region { bytes, .. } = entry else { return };
        let way = match bytes.place {
            Place::Lent { number, .. } => self.lent.get(&number).map(|lent| lent.loan),
            _ => None,
        };
        self.regions.insert(key, Region { entry, way });
        *self.ways.entry(way).or_default() += 1;
        if let Some(piece) = self.piece_of(&entry) {
            piece.users += 1;
        }
    }

    /// Gives a part of the arena back, and its pages to the system: by another thread, since the
    /// client has the file, too, and by a long call of its own lets others wait. Until then the
    /// part stays taken.
    pub(crate) fn release(&mut self, at: usize, len: usize) {
        if self.ends {
            self.parts.give_back(at, len);
            return;
        }
        let (file, done) = (Arc::clone(&self.file), Arc::clone(&self.frees.done));
        let bytes = Parts::taken_by(len);
        self.frees.by.run(move || {
            if let Err(error) = memfd::punch(file.as_fd(), at as u64, bytes as u64) {
                tracing::error!(%error, "cannot give memory of an arena back");
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, bytes));
        });
    }

    /// The place of the piece that is ready.
    pub(super) fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part of the arena.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        self.note_freed();
        self.parts.take(len)
    }

    /// Bytes of the arena that are in use.
    pub(super) fn arena_bytes(&self) -> u64 {
        let freed: usize = self.frees.done().iter().map(|(_, bytes)| bytes).sum();
        (self.parts.used() - freed) as u64
    }

    /// Notes the parts that are free by now.
    fn note_freed(&mut self) {
        let freed = mem::take(&mut *self.frees.done());
        for (at, bytes) in freed {
            self.parts.give_back(at, bytes);
        }
    }

    /// Has the client written to parts of the arena that it was not given, so that they take
    /// memory? `page` is the least that the system gives it at a time.
    pub(super) fn is_overgrown(&self, page: usize) -> bool {
        let blocks =
            fstat(&self.file).map_or(0, |about| u64::try_from(about.st_blocks).unwrap_or(0));
        blocks.saturating_mul(512) > (self.parts.reach(page) + UNASKED) as u64
    }

    /// Moves entries from the card to the client, as far as there is room.
    /// [`SessionQueues::notify`] is to follow.
    pub(super) fn move_completions(&mut self, nic: &mut Nic, number: u32) {
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
        self.queues[number as usize] = Some(Queue::Completions(queue));
    }

    /// Notifies the client of the entries that were moved to a completion queue, if it has asked
    /// for that.
    pub(super) fn notify(&mut self, number: u32, now: Time) {
        let Some(Some(Queue::Completions(queue))) = self.queues.get_mut(number as usize) else {
            return;
        };
        let (cq, Moderation { count, period }) = (queue.cq, queue.moderation);
        match queue.producer.takes_notice(count.into()) {
            Notice::Now => {
                if let Some(until) = queue.held.take() {
                    self.held.remove(&(until, number));
                }
                self.tell(&encode(&CardEvent::CompletionQueueNotify(cq)));
            }
            Notice::Later if queue.held.is_none() && !period.is_zero() => {
                let until = now + period;
                queue.held = Some(until);
                self.held.insert((until, number));
            }
            Notice::Later | Notice::No => {}
        }
    }

    /// Notifies the client of what has gathered for long enough.
    pub(super) fn tell_held(&mut self, now: Time) {
        while self.held.first().is_some_and(|(until, _)| *until <= now) {
            let Some((until, number)) = self.held.pop_first() else { return };
            let queue = self.queues.get_mut(number as usize).and_then(Option::as_mut);
            if let Some(Queue::Completions(queue)) = queue
                && queue.held == Some(until)
            {
                queue.held = None;
                let cq = queue.cq;
                if queue.producer.period_over() {
                    self.tell(&encode(&CardEvent::CompletionQueueNotify(cq)));
                }
            }
        }
    }

    /// Moves entries while there is room.
    fn fill(&mut self, nic: &mut Nic, queue: &mut Completions) {
        let mut entries = [Completion::default(); BATCH];
        let mut last = None;
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
                // A slot is free when its completion is seen. The card retires nothing meanwhile:
                // once does for all completions of a queue pair in a row.
                if last.replace(entry.qpn) != Some(entry.qpn) {
                    self.publish_of(nic, entry.qpn);
                }
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
impl SessionQueues {
    /// The records of a queue pair.
    pub(super) fn records(&self, qpn: u32) -> impl Iterator<Item = u32> + use<> {
        let sides = self.sides.get(&qpn).copied();
        sides.into_iter().flat_map(|sides| [sides.send, sides.recv]).flatten()
    }

    /// Tells the client which slots of a queue pair are free.
    fn publish_of(&mut self, nic: &Nic, qpn: u32) {
        for number in self.records(qpn) {
            self.publish_number(nic, number);
        }
    }

    pub(super) fn publish_number(&mut self, nic: &Nic, number: u32) {
        if let Some(Some(Queue::Work(work))) = self.queues.get_mut(number as usize) {
            work.publish(nic);
        }
    }

    /// Tells the client which slots of the next few busy queues are free. (A request that is not
    /// signaled completes silently.)
    pub(super) fn publish_retired(&mut self, nic: &Nic) {
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
