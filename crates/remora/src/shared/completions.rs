//! A completion queue in shared memory: entries that the daemon writes and the client reads.
//!
//! ```text
//! byte  0  wr_id u64
//!       8  queue pair u32, bytes moved u32
//!      16  immediate data or key u32, source queue pair u32
//!      24  time u64: nanoseconds by the card's clock
//!      32  status u8, kind u8, flags u8, 0, op-code u16
//!      60  the entry's index plus one u32, written last
//! ```
//!
//! The index in the last word is the phase: an entry is new if it has the index that the client
//! expects next, and the daemon need not say how far it is. The queue's record has, in the client's
//! line, how far it has read and whether the queue is armed; in the daemon's line, whether entries
//! wait on the card for room, and whether any were lost.
//!
//! Entries wait on the card where the ring is full, whose capacity is the client's, so that an
//! overflow is the card's as ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use remora_nic::Time;
use remora_nic::queue::{Completion, CompletionFlags, Opcode, PollCqError, Status, WorkKind};

use super::arena::{Arena, LINE, record};
use crate::memory::Buffer;

/// Bytes of an entry.
pub const ENTRY: usize = 64;
/// The most entries of a ring.
pub const DEPTH_MAX: u32 = 1 << 22;
const AT_SEQUENCE: usize = 60;

const AT_CONSUMED: usize = 0;
const AT_ARMED: usize = 4;
const AT_WAITS: usize = LINE;
const AT_OVERRUN: usize = LINE + 4;

const ARMED_NEXT: u32 = 1;
const ARMED_SOLICITED: u32 = 2;

/// The code of an entry that its reader passes over: its queue pair was destroyed.
const VOID: u8 = u8::MAX;

/// Where a completion queue lies: its record, and its ring of entries.
#[derive(Clone, Debug)]
struct QueueMemory {
    memory: Arc<Buffer>,
    record: usize,
    ring: usize,
    depth: u32,
}

impl QueueMemory {
    fn new(arena: &Arena, number: u32, ring: usize, depth: u32) -> QueueMemory {
        assert!(depth.is_power_of_two() && depth <= DEPTH_MAX, "a ring of {depth} entries");
        let memory = arena.memory().clone();
        assert!(ring.is_multiple_of(ENTRY), "entries are aligned");
        let end = ring.checked_add(ring_len(depth));
        assert!(end.is_some_and(|end| end <= memory.len()), "the ring lies within the arena");
        QueueMemory { memory, record: record(number), ring, depth }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory.word32(self.record + offset).expect("a record lies within the arena")
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        self.ring + (index & (self.depth - 1)) as usize * ENTRY
    }

    #[inline]
    fn sequence(&self, index: u32) -> &AtomicU32 {
        self.memory.word32(self.slot(index) + AT_SEQUENCE).expect(IN_RING)
    }
}

const IN_RING: &str = "the ring was found to lie within the arena";

/// Bytes of a ring of `depth` entries.
pub const fn ring_len(depth: u32) -> usize {
    depth as usize * ENTRY
}

/// The depth of the ring for a queue of `capacity` entries; `None` if that is zero or too many.
pub fn depth_for(capacity: usize) -> Option<u32> {
    let depth = u32::try_from(capacity.checked_next_power_of_two()?).ok()?;
    (capacity > 0 && depth <= DEPTH_MAX).then_some(depth)
}

/// The daemon's end.
#[derive(Debug)]
pub struct CompletionProducer {
    place: QueueMemory,
    produced: u32,
    /// The last index of the client's that could be.
    consumed: u32,
    /// What was written since it was last asked whether the client is to be notified.
    news: News,
    /// How many entries the client waits for have come since it was last notified.
    untold: u32,
}

/// Entries that were written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct News {
    all: u32,
    /// Those that a client arms for as *solicited*: errors, too.
    solicited: u32,
    /// One of them is an error.
    failed: bool,
}

/// Is a client to be notified?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// No: nothing has come that it has armed for.
    No,
    /// Not before more has come, or its time is over.
    Later,
    /// Now.
    Now,
}

impl CompletionProducer {
    /// A queue that begins empty: its record is `number`, and `depth` entries, which are zero, lie
    /// at `ring` in the arena's data.
    ///
    /// # Panics
    /// If there is no such record, `depth` is not a power of two up to [`DEPTH_MAX`], or the ring
    /// is not aligned and within the arena.
    pub fn begin(arena: &Arena, number: u32, ring: usize, depth: u32) -> CompletionProducer {
        let place = QueueMemory::new(arena, number, ring, depth);
        for at in [AT_CONSUMED, AT_ARMED, AT_WAITS, AT_OVERRUN] {
            place.word(at).store(0, Ordering::Relaxed);
        }
        CompletionProducer { place, produced: 0, consumed: 0, news: News::default(), untold: 0 }
    }

    /// How many entries the client has room for. An index of the client's that cannot be counts as
    /// the last one that could.
    #[inline]
    pub fn room(&mut self) -> u32 {
        let consumed = self.place.word(AT_CONSUMED).load(Ordering::Acquire);
        if self.produced.wrapping_sub(consumed) <= self.produced.wrapping_sub(self.consumed) {
            self.consumed = consumed;
        }
        self.place.depth - self.waiting()
    }

    /// How many entries the client has not read, as far as it has said.
    pub fn waiting(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed)
    }

    /// Writes an entry; the caller has found that there is [room](CompletionProducer::room).
    #[inline]
    pub fn push(&mut self, entry: &Completion) {
        debug_assert!(self.waiting() < self.place.depth, "no room");
        let bytes = encode(entry);
        let at = self.place.slot(self.produced);
        self.place.memory.write_at(at, &bytes).expect(IN_RING);
        let sequence = self.place.sequence(self.produced);
        self.produced = self.produced.wrapping_add(1);
        sequence.store(self.produced, Ordering::Release);
        self.news.all += 1;
        self.news.solicited += u32::from(entry.is_solicited());
        self.news.failed |= entry.status != Status::Success;
    }

    /// Is the client to be notified of the entries that were written? Call it behind the last one.
    /// (A client that arms looks for entries behind that, so an entry is seen or notified.) It is
    /// notified of `least` entries together, or of an error at once.
    pub fn takes_notice(&mut self, least: u32) -> Notice {
        let news = std::mem::take(&mut self.news);
        if news.all == 0 {
            return Notice::No;
        }
        fence(Ordering::SeqCst);
        let wanted = match self.place.word(AT_ARMED).load(Ordering::Relaxed) {
            ARMED_NEXT => news.all,
            ARMED_SOLICITED => news.solicited,
            _ => {
                self.untold = 0;
                0
            }
        };
        if wanted == 0 {
            return Notice::No;
        }
        self.untold = self.untold.saturating_add(wanted);
        if self.untold < least && !news.failed {
            return Notice::Later;
        }
        self.disarm();
        Notice::Now
    }

    /// The time is over for which the client has let entries gather. Is it to be notified?
    pub fn period_over(&mut self) -> bool {
        let waited = self.untold > 0;
        if waited {
            self.disarm();
        }
        waited
    }

    fn disarm(&mut self) {
        self.untold = 0;
        self.place.word(AT_ARMED).store(0, Ordering::Relaxed);
    }

    /// Says whether entries wait on the card for room. Behind `true` the caller looks once more for
    /// [room](CompletionProducer::room): a client that reads meanwhile may have missed it.
    pub fn set_waits(&self, waits: bool) {
        self.place.word(AT_WAITS).store(u32::from(waits), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The card has lost entries: the client learns it behind those that it has.
    pub fn set_overrun(&self) {
        self.place.word(AT_OVERRUN).store(1, Ordering::Release);
    }

    /// Moves the queue to another ring of `depth` entries, which are zero, at `ring`. The client
    /// must not read it meanwhile, or else loses entries. Returns whether what waits fits;
    /// otherwise nothing changes.
    ///
    /// # Panics
    /// As [`CompletionProducer::begin`].
    pub fn move_to(&mut self, arena: &Arena, number: u32, ring: usize, depth: u32) -> bool {
        self.room();
        if self.waiting() > depth {
            return false;
        }
        let to = QueueMemory::new(arena, number, ring, depth);
        let mut index = self.consumed;
        while index != self.produced {
            let mut bytes = [0; ENTRY];
            self.place.memory.read_at(self.place.slot(index), &mut bytes).expect(IN_RING);
            to.memory.write_at(to.slot(index), &bytes).expect(IN_RING);
            index = index.wrapping_add(1);
        }
        fence(Ordering::Release);
        self.place = to;
        true
    }
}

/// The client's end.
#[derive(Debug)]
pub struct CompletionConsumer {
    place: QueueMemory,
    number: u32,
    consumed: u32,
}

impl CompletionConsumer {
    /// A queue as the daemon described it: it goes on where its last reader ended.
    ///
    /// # Panics
    /// As [`CompletionProducer::begin`].
    pub fn new(arena: &Arena, number: u32, ring: usize, depth: u32) -> CompletionConsumer {
        let place = QueueMemory::new(arena, number, ring, depth);
        let consumed = place.word(AT_CONSUMED).load(Ordering::Acquire);
        CompletionConsumer { place, number, consumed }
    }

    /// Takes entries, the oldest first, and returns how many. If the second value is true, entries
    /// wait on the card for the room: then the caller rings the doorbell of this queue.
    ///
    /// # Errors
    /// Entries were lost, and there are no others: the queue must be replaced.
    #[inline]
    pub fn poll(&mut self, out: &mut [Completion]) -> Result<(usize, bool), PollCqError> {
        let (mut taken, first) = (0, self.consumed);
        while taken < out.len() && self.has_entry() {
            let mut bytes = [0; ENTRY];
            self.place.memory.read_at(self.place.slot(self.consumed), &mut bytes).expect(IN_RING);
            self.consumed = self.consumed.wrapping_add(1);
            if let Some(entry) = decode(&bytes) {
                out[taken] = entry;
                taken += 1;
            }
        }
        if self.consumed == first {
            let lost = self.place.word(AT_OVERRUN).load(Ordering::Acquire) != 0;
            return if lost && !self.has_entry() {
                Err(PollCqError::Overrun)
            } else {
                Ok((0, false))
            };
        }
        self.place.word(AT_CONSUMED).store(self.consumed, Ordering::Release);
        fence(Ordering::SeqCst);
        Ok((taken, self.place.word(AT_WAITS).load(Ordering::Relaxed) != 0))
    }

    /// Is there an entry?
    #[inline]
    pub fn has_entry(&self) -> bool {
        let next = self.consumed.wrapping_add(1);
        self.place.sequence(self.consumed).load(Ordering::Acquire) == next
    }

    /// The number of the queue's record, by which its doorbell is rung.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Asks for one notification at the next entry, or the next solicited one. The caller has to
    /// poll once more before it sleeps.
    pub fn arm(&self, solicited_only: bool) {
        let armed = self.place.word(AT_ARMED);
        let wanted = if solicited_only { ARMED_SOLICITED } else { ARMED_NEXT };
        // A queue that is armed for any entry stays so.
        if armed.load(Ordering::Relaxed) != ARMED_NEXT {
            armed.store(wanted, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Does somebody wait to be notified of an entry?
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.place.word(AT_ARMED).load(Ordering::Relaxed) != 0
    }

    /// Passes over all entries of queue pair `qpn`, which was destroyed.
    pub fn forget(&mut self, qpn: u32) {
        for at in self.slots() {
            let mut of = [0; 4];
            self.place.memory.read_at(at + 8, &mut of).expect(IN_RING);
            if u32::from_le_bytes(of) == qpn {
                self.place.memory.write_at(at + 33, &[VOID]).expect(IN_RING);
            }
        }
    }

    /// The entries that are there, the oldest first. They stay.
    pub fn unread(&self) -> impl Iterator<Item = Completion> {
        self.slots().filter_map(|at| {
            let mut bytes = [0; ENTRY];
            self.place.memory.read_at(at, &mut bytes).expect(IN_RING);
            decode(&bytes)
        })
    }

    /// The slots of the entries that are there.
    fn slots(&self) -> impl Iterator<Item = usize> {
        let indices = (0..self.place.depth).map(|ahead| self.consumed.wrapping_add(ahead));
        let is_there = |index: &u32| {
            self.place.sequence(*index).load(Ordering::Acquire) == index.wrapping_add(1)
        };
        indices.take_while(is_there).map(|index| self.place.slot(index))
    }

    /// Goes on in another ring, to which the daemon has moved the queue.
    ///
    /// # Panics
    /// As [`CompletionProducer::begin`].
    pub fn move_to(&mut self, arena: &Arena, ring: usize, depth: u32) {
        self.place = QueueMemory::new(arena, self.number, ring, depth);
    }
}

/// An entry's bytes, but for its last word.
fn encode(entry: &Completion) -> [u8; AT_SEQUENCE] {
    let (kind, opcode) = match entry.kind {
        WorkKind::Send(opcode) => (0, opcode as u16),
        WorkKind::Recv => (1, 0),
        WorkKind::RecvWriteImm => (2, 0),
        WorkKind::Unread => (3, 0),
    };
    let status = STATUSES.iter().position(|status| *status == entry.status).unwrap_or(usize::MAX);
    let mut bytes = [0; AT_SEQUENCE];
    bytes[..8].copy_from_slice(&entry.wr_id.to_le_bytes());
    bytes[8..12].copy_from_slice(&entry.qpn.to_le_bytes());
    bytes[12..16].copy_from_slice(&entry.len.to_le_bytes());
    bytes[16..20].copy_from_slice(&entry.imm_or_key.to_le_bytes());
    bytes[20..24].copy_from_slice(&entry.src_qp.to_le_bytes());
    bytes[24..32].copy_from_slice(&entry.at.0.to_le_bytes());
    (bytes[32], bytes[33], bytes[34]) = (status as u8, kind, entry.flags.bits());
    bytes[36..38].copy_from_slice(&opcode.to_le_bytes());
    bytes
}

/// The entry of these bytes; `None` for one that is passed over.
fn decode(bytes: &[u8; ENTRY]) -> Option<Completion> {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let kind = match bytes[33] {
        0 => Opcode::parse(word(36) as u16).map_or(WorkKind::Unread, WorkKind::Send),
        1 => WorkKind::Recv,
        2 => WorkKind::RecvWriteImm,
        3 => WorkKind::Unread,
        _ => return None,
    };
    Some(Completion {
        wr_id: long(0),
        status: STATUSES.get(usize::from(bytes[32])).copied().unwrap_or(Status::LocalQpOperation),
        kind,
        qpn: word(8),
        len: word(12),
        imm_or_key: word(16),
        src_qp: word(20),
        flags: CompletionFlags::from_bits_truncate(bytes[34]),
        at: Time(long(24)),
    })
}

/// All statuses; an entry has the place of one here.
const STATUSES: [Status; 12] = [
    Status::Success,
    Status::LocalLength,
    Status::LocalQpOperation,
    Status::LocalProtection,
    Status::Flushed,
    Status::BadResponse,
    Status::RemoteInvalidRequest,
    Status::RemoteAccess,
    Status::RemoteOperation,
    Status::RetryExceeded,
    Status::RnrRetryExceeded,
    Status::MwBind,
];
