//! The memory file of a session: its layout, its doorbells, and who wakes whom.
//!
//! ```text
//! byte    0  magic u64, version u32, data u32      written once, by the daemon
//!        64  need_wake u32, epoch u32              the daemon sleeps: write to the doorbell
//!       128  events consumed u32, client sleeps u32 (its epoch, or 0)   written by the client
//!       192  events wait u32                                 written by the daemon
//!       512  summary u64, then the bits of queues 0 to 447   one line: set by the client,
//!      2048  the bits of queues 448 and up                   taken by the daemon
//!      4096  a record of 128 bytes for each queue: the client's line, then the daemon's
//!            the event ring
//!            data: rings of elements, of completions, card memory
//! ```
//!
//! A *queue* here is a work queue or a completion queue. Its number is the place of its record.
//!
//! # Why no wake-up is lost
//! Each side publishes its news first, and then looks whether the other one sleeps; each says that
//! it goes to sleep first, and then looks for news once more. A sequentially consistent fence
//! stands between the two steps on either side. So of the four steps one comes last, and it sees
//! what the other side did: news in sight of the side that wanted to sleep, or a sleeper in sight
//! of the side that has news. The wake-up itself is a count in the kernel, which stays until the
//! sleeper has read it.
//!
//! News of the client are doorbell bits ([`Arena::ring`] against [`Arena::will_sleep`]); news of
//! the daemon are events ([`EventProducer`](super::EventProducer) against
//! [`EventConsumer::will_sleep`](super::EventConsumer::will_sleep)). The same pattern arms
//! completion queues, and tells the daemon of room for what waits on the card.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use thiserror::Error;

use crate::memory::Buffer;
use crate::memory::memfd::{self, MapError};

/// Bytes of a page: the unit in which an arena is given out.
pub const PAGE: usize = 4096;
/// The most queues of a session.
pub const QUEUES_MAX: u32 = NEAR + FAR_GROUPS * GROUP;
/// Entries of the event ring.
pub const EVENTS: u32 = 4096;
/// Where the parts begin that the daemon gives out.
pub const DATA: usize =
    (AT_RECORDS + QUEUES_MAX as usize * RECORD + EVENTS as usize * EVENT).next_multiple_of(PAGE);

/// Bytes of an entry of the event ring.
pub(super) const EVENT: usize = 64;
/// Bytes of a queue's record, and of the client's line at its beginning.
pub(super) const RECORD: usize = 128;
pub(super) const LINE: usize = 64;
pub(super) const AT_EVENTS_CONSUMED: usize = 128;
pub(super) const AT_CLIENT_SLEEPS: usize = 132;
pub(super) const AT_EVENTS_WAIT: usize = 192;
pub(super) const AT_EVENTS: usize = AT_RECORDS + QUEUES_MAX as usize * RECORD;
const AT_NEED_WAKE: usize = 64;
const AT_EPOCH: usize = 68;
const AT_SUMMARY: usize = 512;
const AT_NEAR: usize = AT_SUMMARY + 8;
const AT_FAR: usize = 2048;
const AT_RECORDS: usize = 4096;

/// Queues whose bits are in the line of the summary.
pub(crate) const NEAR: u32 = 7 * 64;
/// Queues for each bit of the summary, and how many such groups there are.
pub(crate) const GROUP: u32 = 4 * 64;
const FAR_GROUPS: u32 = 64;
/// So many doorbells of queues without news are taken before a send. (An honest client has one when
/// its news were seen before it rang.)
const IDLE_MAX: u32 = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"remora\0a");
/// Raised when the layout changes.
const VERSION: u32 = 1;

/// A session's memory file, mapped.
#[derive(Clone, Debug)]
pub struct Arena {
    memory: Arc<Buffer>,
}

/// Why a memory file is no arena, or none can be made.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The system cannot make it.
    #[error("cannot make memory to share with a client: {0}")]
    System(#[from] io::Error),
    /// It cannot be mapped, or could shrink while it is.
    #[error("cannot share memory with the other process: {0}")]
    Map(#[from] MapError),
    /// It has another layout.
    #[error(
        "the card’s process shares memory in another layout: end it, and start the one of the \
         same version as this program"
    )]
    Layout,
}

impl Arena {
    /// Makes an arena of `len` bytes, rounded up to a page, and at least what its rings take. The
    /// pages cost memory only once they are used.
    ///
    /// # Errors
    /// See [`ArenaError`].
    pub fn create(len: usize) -> Result<(Arena, OwnedFd), ArenaError> {
        let len = len.max(DATA + PAGE).next_multiple_of(PAGE);
        let file = memfd::sealed("remora-arena", len as u64)?;
        let arena = Arena { memory: Arc::new(Buffer::map(file.as_fd(), 0, len)?) };
        arena.begin();
        Ok((arena, file))
    }

    /// Makes an arena of the first `len` bytes of a memory file, whatever is there. Sessions that
    /// had it before have ended.
    ///
    /// # Errors
    /// See [`ArenaError`].
    pub fn renew(file: BorrowedFd<'_>, len: usize) -> Result<Arena, ArenaError> {
        if len < DATA + PAGE || !len.is_multiple_of(PAGE) {
            return Err(ArenaError::Layout);
        }
        let arena = Arena { memory: Arc::new(Buffer::map(file, 0, len)?) };
        memfd::punch(file, 0, len as u64)?;
        arena.begin();
        Ok(arena)
    }

    fn begin(&self) {
        self.word32(8).store(VERSION, Ordering::Relaxed);
        self.word32(12).store(DATA as u32, Ordering::Relaxed);
        self.word(0).store(MAGIC, Ordering::Release);
    }

    /// Maps the arena that the daemon made.
    ///
    /// # Errors
    /// See [`ArenaError`].
    pub fn open(file: BorrowedFd<'_>) -> Result<Arena, ArenaError> {
        let len = memfd::len_of(file)? as usize;
        Arena::of(Buffer::map(file, 0, len)?)
    }

    /// The arena that the daemon made in this memory.
    ///
    /// # Errors
    /// See [`ArenaError`].
    pub fn of(memory: Buffer) -> Result<Arena, ArenaError> {
        if memory.len() < DATA + PAGE {
            return Err(ArenaError::Layout);
        }
        let arena = Arena { memory: Arc::new(memory) };
        let head = (arena.word(0), arena.word32(8), arena.word32(12));
        let head = (
            head.0.load(Ordering::Acquire),
            head.1.load(Ordering::Relaxed),
            head.2.load(Ordering::Relaxed),
        );
        if head == (MAGIC, VERSION, DATA as u32) { Ok(arena) } else { Err(ArenaError::Layout) }
    }

    /// The mapped memory.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// Client: rings the doorbell of `queue`, whose news are published already. Returns whether the
    /// daemon sleeps: then the caller writes to the doorbell's descriptor.
    ///
    /// # Panics
    /// If `queue` is not below [`QUEUES_MAX`].
    #[inline]
    pub fn ring(&self, queue: u32) -> bool {
        if queue < NEAR {
            let word = self.word(AT_NEAR + (queue / 64) as usize * 8);
            word.fetch_or(1 << (queue % 64), Ordering::Release);
        } else {
            let (far, group) = (queue - NEAR, (queue - NEAR) / GROUP);
            assert!(group < FAR_GROUPS, "an arena has records for {QUEUES_MAX} queues");
            let word = self.word(AT_FAR + (far / 64) as usize * 8);
            word.fetch_or(1 << (far % 64), Ordering::Release);
            self.word(AT_SUMMARY).fetch_or(1 << group, Ordering::Release);
        }
        self.needs_wake()
    }

    /// Client: does the daemon sleep? What was published before this call it sees otherwise.
    #[inline]
    pub fn needs_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word32(AT_NEED_WAKE).load(Ordering::Relaxed) != 0
    }

    /// Daemon: announces that it goes to sleep. It has to look at all doorbells behind this.
    pub fn will_sleep(&self) {
        self.word32(AT_NEED_WAKE).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Daemon: it is awake.
    pub fn woke(&self) {
        self.word32(AT_NEED_WAKE).store(0, Ordering::Relaxed);
    }

    /// How many clients the session has had. One that was told of fewer has lost it to another, and
    /// must not post any more.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.word32(AT_EPOCH).load(Ordering::Acquire)
    }

    /// Daemon: another client has the session now.
    pub fn set_epoch(&self, epoch: u32) {
        self.word32(AT_EPOCH).store(epoch, Ordering::Release);
    }

    /// The 32-bit word at `at`, one of the layout's.
    #[inline]
    pub(super) fn word32(&self, at: usize) -> &AtomicU32 {
        self.memory.word32(at).expect("the layout is aligned, and the arena holds it")
    }

    /// The 64-bit word at `at`, one of the layout's.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.word(at).expect("the layout is aligned, and the arena holds it")
    }
}

/// Where the record of `queue` begins.
///
/// # Panics
/// If `queue` is not below [`QUEUES_MAX`].
pub(super) fn record(queue: u32) -> usize {
    assert!(queue < QUEUES_MAX, "an arena has records for {QUEUES_MAX} queues");
    AT_RECORDS + queue as usize * RECORD
}

/// The daemon's view of a session's doorbells.
#[derive(Debug, Default)]
pub struct Doorbells {
    /// Groups of far queues that the summary announced and that are not looked at yet.
    groups: u64,
    /// The receive queues, a bit for each.
    receives: Vec<u64>,
}

impl Doorbells {
    /// Has any doorbell been rung that was not taken?
    #[inline]
    pub fn any(&self, arena: &Arena) -> bool {
        self.groups != 0
            || (0..8).any(|i| arena.word(AT_SUMMARY + i * 8).load(Ordering::Relaxed) != 0)
    }

    /// Takes the doorbells that were rung: all near ones, and those of one far group. Calls `each`
    /// with the number of each queue, which need not exist. Returns whether there may be more.
    ///
    /// What the client published before it rang is seen behind this.
    #[inline]
    pub fn take(&mut self, arena: &Arena, mut each: impl FnMut(u32)) -> bool {
        for i in 0..7 {
            take_bits(arena.word(AT_NEAR + i * 8), u64::MAX, i as u32 * 64, &mut each);
        }
        if arena.word(AT_SUMMARY).load(Ordering::Relaxed) != 0 {
            self.groups |= arena.word(AT_SUMMARY).swap(0, Ordering::Acquire);
        }
        if self.groups != 0 {
            let group = self.groups.trailing_zeros();
            self.groups &= self.groups - 1;
            for i in group * 4..group * 4 + 4 {
                let word = arena.word(AT_FAR + i as usize * 8);
                take_bits(word, u64::MAX, NEAR + i * 64, &mut each);
            }
        }
        self.groups != 0
    }

    /// Notes whether a queue is a receive queue.
    pub fn set_receive(&mut self, queue: u32, is_one: bool) {
        let (word, bit) = (queue as usize / 64, 1 << (queue % 64));
        if word >= self.receives.len() {
            self.receives.resize(word + 1, 0);
        }
        let bits = &mut self.receives[word];
        *bits = if is_one { *bits | bit } else { *bits & !bit };
    }

    /// As [`Doorbells::take`], but takes the doorbells of receive queues only, and all of them:
    /// `each` returns whether its queue had news. When many had none, some are left.
    #[inline]
    pub fn take_receives(&self, arena: &Arena, mut each: impl FnMut(u32) -> bool) {
        let receives = |word: usize| self.receives.get(word).copied().unwrap_or(0);
        let mut idle = 0;
        let mut take = |word: &AtomicU64, at: usize, first: u32| {
            take_bits(word, receives(at), first, &mut |queue| idle += u32::from(!each(queue)));
            idle < IDLE_MAX
        };
        if !(0..7).all(|i| take(arena.word(AT_NEAR + i * 8), i, i as u32 * 64)) {
            return;
        }
        let mut groups = self.groups | arena.word(AT_SUMMARY).load(Ordering::Acquire);
        while groups != 0 {
            let group = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            let far = |i: usize| (arena.word(AT_FAR + i * 8), 7 + i, NEAR + i as u32 * 64);
            let mut words = (group * 4..group * 4 + 4).map(far);
            if !words.all(|(word, at, first)| take(word, at, first)) {
                return;
            }
        }
    }
}

/// Takes these bits of a word of doorbells, whose lowest is that of queue `first`.
#[inline]
fn take_bits(word: &AtomicU64, which: u64, first: u32, each: &mut impl FnMut(u32)) {
    if word.load(Ordering::Relaxed) & which != 0 {
        each_bit(word.fetch_and(!which, Ordering::Acquire) & which, first, each);
    }
}

/// Calls `each` with the number of each bit, of which the lowest has number `first`.
#[inline]
fn each_bit(mut bits: u64, first: u32, mut each: impl FnMut(u32)) {
    while bits != 0 {
        each(first + bits.trailing_zeros());
        bits &= bits - 1;
    }
}
