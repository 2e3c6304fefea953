//! The ring by which the daemon tells a client what has happened: completion queues that were
//! armed, connections, errors.
//!
//! An event is bytes; what they mean is the business of those who use the ring. It takes one or
//! more entries in a row:
//!
//! ```text
//! byte  0  up to 56 bytes of the event
//!      56  bytes of the event that are in this entry and later ones u32
//!      60  the entry's index plus one u32, written last
//! ```
//!
//! Events that find no room wait with the daemon, which the client's reading tells of room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::arena::{
    AT_CLIENT_SLEEPS, AT_EVENTS, AT_EVENTS_CONSUMED, AT_EVENTS_WAIT, Arena, EVENT, EVENTS,
};

/// The most bytes of an event.
pub const EVENT_MAX: usize = 1024;
/// The most events that wait for a client that does not read, and the most bytes of them: 64 for
/// each, which is more than all but those have that carry private data of connections.
pub const WAITING_MAX: usize = 65_536;
/// See [`WAITING_MAX`].
pub const WAITING_BYTES_MAX: usize = WAITING_MAX * 64;
const BYTES: usize = 56;
const AT_LEFT: usize = 56;
const AT_SEQUENCE: usize = 60;

/// The daemon's end.
#[derive(Debug, Default)]
pub struct EventProducer {
    produced: u32,
    /// The last index of the client's that could be.
    consumed: u32,
    waiting: VecDeque<Box<[u8]>>,
    waiting_bytes: usize,
    lost: u64,
}

impl EventProducer {
    /// Tells an event. Returns whether the client sleeps: then the caller writes to its event's
    /// descriptor. An event of more than [`EVENT_MAX`] bytes is dropped, and so is one that would
    /// wait behind [`WAITING_MAX`] others, or with more than [`WAITING_BYTES_MAX`] bytes in all;
    /// [`EventProducer::lost`] counts them.
    pub fn push(&mut self, arena: &Arena, event: &[u8]) -> bool {
        let many = self.waiting.len() >= WAITING_MAX
            || self.waiting_bytes + event.len() > WAITING_BYTES_MAX;
        if event.len() > EVENT_MAX || many {
            self.lost += 1;
            return false;
        }
        let told = self.waiting.is_empty() && self.write(arena, event);
        if !told {
            self.waiting.push_back(event.into());
            self.waiting_bytes += event.len();
            // The flag, and then another look: see the module's neighbour, `arena`.
            arena.word32(AT_EVENTS_WAIT).store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            return self.flush(arena);
        }
        sleeps(arena)
    }

    /// Writes events that waited, as far as there is room; returns whether any was written and the
    /// client sleeps. Call it when doorbells are rung.
    pub fn flush(&mut self, arena: &Arena) -> bool {
        let before = self.waiting.len();
        while let Some(event) = self.waiting.pop_front() {
            if !self.write(arena, &event) {
                self.waiting.push_front(event);
                break;
            }
            self.waiting_bytes -= event.len();
        }
        if self.waiting.is_empty() && before > 0 {
            arena.word32(AT_EVENTS_WAIT).store(0, Ordering::Relaxed);
        }
        self.waiting.len() < before && sleeps(arena)
    }

    /// Do events wait for room?
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Events that the client has not got and never will.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes an event if there is room for all of it.
    fn write(&mut self, arena: &Arena, event: &[u8]) -> bool {
        let entries = event.len().div_ceil(BYTES).max(1) as u32;
        let consumed = arena.word32(AT_EVENTS_CONSUMED).load(Ordering::Acquire);
        if self.produced.wrapping_sub(consumed) <= self.produced.wrapping_sub(self.consumed) {
            self.consumed = consumed;
        }
        if self.produced.wrapping_sub(self.consumed) + entries > EVENTS {
            return false;
        }
        let mut left = event;
        for _ in 0..entries {
            let (now, rest) = left.split_at(left.len().min(BYTES));
            let at = slot(self.produced);
            arena.memory().write_at(at, now).expect("the event ring lies within the arena");
            arena.word32(at + AT_LEFT).store(left.len() as u32, Ordering::Relaxed);
            self.produced = self.produced.wrapping_add(1);
            arena.word32(at + AT_SEQUENCE).store(self.produced, Ordering::Release);
            left = rest;
        }
        true
    }
}

fn sleeps(arena: &Arena) -> bool {
    fence(Ordering::SeqCst);
    arena.word32(AT_CLIENT_SLEEPS).load(Ordering::Relaxed) != 0
}

fn slot(index: u32) -> usize {
    AT_EVENTS + (index % EVENTS) as usize * EVENT
}

/// The client's end.
#[derive(Debug)]
pub struct EventConsumer {
    consumed: u32,
}

impl EventConsumer {
    /// Goes on where the last reader of this arena ended.
    pub fn new(arena: &Arena) -> EventConsumer {
        EventConsumer { consumed: arena.word32(AT_EVENTS_CONSUMED).load(Ordering::Acquire) }
    }

    /// Is there an event? (It need not be complete yet.)
    #[inline]
    pub fn any(&self, arena: &Arena) -> bool {
        self.sequence(arena, self.consumed).load(Ordering::Acquire) == self.consumed.wrapping_add(1)
    }

    /// Takes the oldest event into `event`. Returns `None` if there is none, and otherwise whether
    /// the daemon has to be told of the room: then the caller rings any doorbell
    /// ([`Arena::ring`], queue 0).
    pub fn next(&mut self, arena: &Arena, event: &mut Vec<u8>) -> Option<bool> {
        let mut index = self.consumed;
        event.clear();
        loop {
            let at = slot(index);
            if self.sequence(arena, index).load(Ordering::Acquire) != index.wrapping_add(1) {
                return None;
            }
            let left = arena.word32(at + AT_LEFT).load(Ordering::Relaxed) as usize;
            let now = left.min(BYTES);
            let from = event.len();
            event.resize(from + now, 0);
            let read = arena.memory().read_at(at, &mut event[from..]);
            read.expect("the event ring lies within the arena");
            index = index.wrapping_add(1);
            if left <= BYTES || event.len() >= EVENT_MAX {
                break;
            }
        }
        self.consumed = index;
        arena.word32(AT_EVENTS_CONSUMED).store(index, Ordering::Release);
        fence(Ordering::SeqCst);
        Some(arena.word32(AT_EVENTS_WAIT).load(Ordering::Relaxed) != 0)
    }

    /// Announces that the client goes to sleep on the event's descriptor. It has to look for events
    /// behind this. (A client whose descriptor a reactor watches may leave it so.)
    ///
    /// `epoch` is the client's ([`Arena::epoch`]): who has lost the session to a later client does
    /// not take that one's wake-ups away.
    pub fn will_sleep(&self, arena: &Arena, epoch: u32) {
        arena.word32(AT_CLIENT_SLEEPS).fetch_max(epoch, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The client of this epoch is awake, and wants no wake-ups.
    pub fn woke(&self, arena: &Arena, epoch: u32) {
        let word = arena.word32(AT_CLIENT_SLEEPS);
        // Otherwise another client sleeps.
        let _ = word.compare_exchange(epoch, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn sequence<'a>(&self, arena: &'a Arena, index: u32) -> &'a AtomicU32 {
        arena.word32(slot(index) + AT_SEQUENCE)
    }
}
