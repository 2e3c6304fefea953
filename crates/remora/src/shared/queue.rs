//! The indices of a work queue (of sends, or of receives).
//!
//! The elements lie in a ring of the arena's data, as [`remora_nic::queue`] writes and reads them.
//! Here is how far the client has posted and how far the daemon has retired, each in a line of its
//! own. Indices count up without end, modulo 2^32.
//!
//! A post is atomic: the element's bytes, then `posted` (release), then the doorbell. A client that
//! ends in between has posted the element or not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::arena::{Arena, LINE, record};
use crate::memory::Buffer;

/// One work queue's line of indices, as either side reaches it.
#[derive(Clone, Debug)]
pub struct WorkQueue {
    memory: Arc<Buffer>,
    at: usize,
    number: u32,
}

/// What the daemon says of a work queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkQueueState {
    /// The record is not in use, or its queue was destroyed.
    Gone,
    /// The queue is served.
    Live,
    /// The client's index was none that the ring can hold. The queue pair is in the error state.
    Refused,
}

impl WorkQueue {
    /// The queue whose record is `number`.
    ///
    /// # Panics
    /// If there are fewer records: see [`super::arena::QUEUES_MAX`].
    pub fn new(arena: &Arena, number: u32) -> WorkQueue {
        WorkQueue { memory: arena.memory().clone(), at: record(number), number }
    }

    /// The number of the record, by which its doorbell is rung.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Daemon: a queue begins, or begins again, at index 0.
    pub fn begin(&self) {
        self.word(0).store(0, Ordering::Relaxed);
        self.word(LINE).store(0, Ordering::Relaxed);
        self.set_state(WorkQueueState::Live);
    }

    /// One past the last element that the client has posted. The daemon holds it against the ring.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.word(0).load(Ordering::Acquire)
    }

    /// Client: elements before `posted` are written.
    #[inline]
    pub fn publish(&self, posted: u32) {
        self.word(0).store(posted, Ordering::Release);
    }

    /// One past the last element whose slot the client may use again.
    #[inline]
    pub fn retired(&self) -> u32 {
        self.word(LINE).load(Ordering::Acquire)
    }

    /// Daemon: slots of elements before `retired` are free.
    #[inline]
    pub fn retire(&self, retired: u32) {
        self.word(LINE).store(retired, Ordering::Release);
    }

    /// What the daemon says of the queue.
    #[inline]
    pub fn state(&self) -> WorkQueueState {
        match self.word(LINE + 4).load(Ordering::Acquire) {
            1 => WorkQueueState::Live,
            2 => WorkQueueState::Refused,
            _ => WorkQueueState::Gone,
        }
    }

    /// Daemon: says so.
    pub fn set_state(&self, state: WorkQueueState) {
        self.word(LINE + 4).store(state as u32, Ordering::Release);
    }

    #[inline]
    fn word(&self, offset: usize) -> &std::sync::atomic::AtomicU32 {
        self.memory.word32(self.at + offset).expect("a record lies within the arena")
    }
}
