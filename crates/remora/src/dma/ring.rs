//! A channel's ring: shared memory between an application and the engine that serves it.
//!
//! The two may be different processes. The engine trusts nothing that it reads here: it keeps its
//! own indices, reads each word once, and takes a descriptor as bytes. The application trusts the
//! engine, as it trusts the card.
//!
//! | byte | written by | what |
//! |---|---|---|
//! | 0 | application | descriptors posted, a count that only grows |
//! | 64 | application | the count of completions at which to interrupt; 0 for never |
//! | 128 | engine | descriptors complete |
//! | 192 | engine | not zero: the engine sleeps, ring the doorbell |
//! | 256 | engine | not zero: the engine serves this ring no more ([`Halt`]) |
//! | 320 | engine | the count of descriptors up to the last that failed; 0 if none did |
//! | 512 | application | the descriptors, 32 bytes each |
//! | behind them | engine | their outcomes, 8 bytes each |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use thiserror::Error;

use super::descriptor::{BYTES, Outcome};
use crate::memory::memfd::{self, MapError};
use crate::memory::{Buffer, BufferError};

const POSTED: usize = 0;
const ARMED: usize = 64;
const COMPLETED: usize = 128;
const ASLEEP: usize = 192;
const HALTED: usize = 256;
const FAILED: usize = 320;
const DESCRIPTORS: usize = 512;

/// The most descriptors of a ring.
pub const DEPTH_MAX: u32 = 1 << 15;
/// The fewest.
pub const DEPTH_MIN: u32 = 2;

/// Why an engine serves a ring no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[repr(u64)]
pub enum Halt {
    /// More descriptors were posted than the ring has.
    #[error("more descriptors were posted than the ring holds: its index was overwritten")]
    BadIndex = 1,
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped = 2,
}

/// Why there is no such ring.
#[derive(Debug, Error)]
pub enum RingError {
    /// The depth is out of range, or no power of two.
    #[error("a ring has {DEPTH_MIN} to {DEPTH_MAX} descriptors, a power of two, and not {0}")]
    Depth(u32),
    /// The memory cannot be mapped.
    #[error("cannot map a ring: {0}")]
    Map(#[from] MapError),
    /// The memory cannot be made.
    #[error("cannot make a ring: {0}")]
    Make(#[source] std::io::Error),
}

/// One side's view of a ring.
#[derive(Debug)]
pub struct Ring {
    bytes: Buffer,
    file: Arc<OwnedFd>,
    depth: u32,
}

impl Ring {
    /// A new ring for `depth` descriptors, a power of two.
    ///
    /// # Errors
    /// The depth is out of range, or the system has no memory.
    pub fn new(depth: u32) -> Result<Ring, RingError> {
        let len = Ring::len(depth)?;
        let file = memfd::sealed("remora-ring", len as u64).map_err(RingError::Make)?;
        Ring::map(Arc::new(file), depth)
    }

    /// The ring that another process has made in `file`.
    ///
    /// # Errors
    /// The file is too short for this depth, or not memory of sealed length.
    pub fn map(file: Arc<OwnedFd>, depth: u32) -> Result<Ring, RingError> {
        let bytes = Buffer::map_only(file.as_fd(), 0, Ring::len(depth)?)?;
        Ok(Ring { bytes, file, depth })
    }

    /// A second view of the same ring, for the other side.
    ///
    /// # Errors
    /// The system has no more mappings.
    pub fn other_side(&self) -> Result<Ring, RingError> {
        Ring::map(self.file.clone(), self.depth)
    }

    /// Bytes of a ring of this depth.
    fn len(depth: u32) -> Result<usize, RingError> {
        let fits = (DEPTH_MIN..=DEPTH_MAX).contains(&depth) && depth.is_power_of_two();
        if !fits {
            return Err(RingError::Depth(depth));
        }
        Ok(DESCRIPTORS + depth as usize * (BYTES + 8))
    }

    /// How many descriptors it holds.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Its bytes, to which a hostile application writes what it likes.
    pub fn bytes(&self) -> &Buffer {
        &self.bytes
    }

    #[inline]
    fn slot(&self, index: u64) -> usize {
        (index & u64::from(self.depth - 1)) as usize
    }

    #[inline]
    fn load(&self, at: usize) -> u64 {
        whole(self.bytes.load_u64(at))
    }

    #[inline]
    fn store(&self, at: usize, value: u64) {
        whole(self.bytes.store_u64(at, value));
    }

    // --- the application's side ---------------------------------------------------------------

    #[inline]
    pub(super) fn put(&self, index: u64, descriptor: &[u8; BYTES]) {
        let at = DESCRIPTORS + self.slot(index) * BYTES;
        whole(self.bytes.write_at(at, descriptor));
    }

    #[inline]
    pub(super) fn set_posted(&self, count: u64) {
        self.store(POSTED, count);
    }

    #[inline]
    pub(super) fn completed(&self) -> u64 {
        self.load(COMPLETED)
    }

    #[inline]
    pub(super) fn outcome(&self, index: u64) -> Option<Outcome> {
        Outcome::from_word(self.load(self.outcome_at(index)))
    }

    /// Of the descriptors from this count on, none of those that are complete has failed. So their
    /// outcomes need not be read, which would take their lines from the engine's core.
    #[inline]
    pub(super) fn failed(&self) -> u64 {
        self.load(FAILED)
    }

    pub(super) fn arm(&self, count: u64) {
        self.store(ARMED, count);
    }

    #[inline]
    pub(super) fn engine_sleeps(&self) -> bool {
        self.load(ASLEEP) != 0
    }

    pub(super) fn halt(&self) -> Option<Halt> {
        match self.load(HALTED) {
            0 => None,
            1 => Some(Halt::BadIndex),
            _ => Some(Halt::Stopped),
        }
    }

    // --- the engine's side --------------------------------------------------------------------

    #[inline]
    pub(super) fn posted(&self) -> u64 {
        self.load(POSTED)
    }

    #[inline]
    pub(super) fn descriptor(&self, index: u64) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        whole(self.bytes.read_at(DESCRIPTORS + self.slot(index) * BYTES, &mut bytes));
        bytes
    }

    /// Has a descriptor brought into this core's cache, from that of the application.
    #[inline]
    pub(super) fn prefetch(&self, index: u64) {
        whole(self.bytes.prefetch(DESCRIPTORS + self.slot(index) * BYTES));
    }

    #[inline]
    pub(super) fn set_outcome(&self, index: u64, outcome: Outcome) {
        self.store(self.outcome_at(index), outcome.to_word());
    }

    pub(super) fn set_failed(&self, count: u64) {
        self.store(FAILED, count);
    }

    #[inline]
    pub(super) fn set_completed(&self, count: u64) {
        self.store(COMPLETED, count);
    }

    #[inline]
    pub(super) fn armed(&self) -> u64 {
        self.load(ARMED)
    }

    pub(super) fn set_asleep(&self, asleep: bool) {
        self.store(ASLEEP, u64::from(asleep));
    }

    pub(super) fn set_halt(&self, halt: Halt) {
        self.store(HALTED, halt as u64);
    }

    #[inline]
    fn outcome_at(&self, index: u64) -> usize {
        DESCRIPTORS + self.depth as usize * BYTES + self.slot(index) * 8
    }
}

impl AsFd for Ring {
    /// The ring's memory, for the process on the other side to map.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What is within the ring by construction is within its memory.
#[inline]
fn whole<T>(access: Result<T, BufferError>) -> T {
    access.expect("slots and words of a ring lie within its memory")
}

#[cfg(test)]
mod tests {
    use super::super::descriptor::Status;
    use super::*;

    #[test]
    fn two_sides_of_a_ring() {
        let ours = Ring::new(4).unwrap();
        let theirs = ours.other_side().unwrap();
        for index in [0, 3, 4, u64::MAX] {
            ours.put(index, &[index as u8 | 1; BYTES]);
            assert_eq!(theirs.descriptor(index), [index as u8 | 1; BYTES]);
            let outcome = Outcome { status: Status::Done, bytes: 9, end_of_packet: false };
            theirs.set_outcome(index, outcome);
            assert_eq!(ours.outcome(index), Some(outcome));
        }
        ours.set_posted(7);
        assert_eq!(theirs.posted(), 7);
        theirs.set_halt(Halt::BadIndex);
        assert_eq!(ours.halt(), Some(Halt::BadIndex));
    }

    #[test]
    fn rings_that_cannot_be() {
        for depth in [0, 1, 3, 1 << 16, u32::MAX] {
            assert!(matches!(Ring::new(depth), Err(RingError::Depth(_))), "{depth}");
        }
        let small = Ring::new(4).unwrap();
        assert!(matches!(Ring::map(small.file.clone(), 8), Err(RingError::Map(_))));
    }
}
