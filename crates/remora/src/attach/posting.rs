//! A work queue of an attached client: elements are written into shared memory, and published.

use std::sync::Arc;

use remora_nic::queue::element::TooLong;
use remora_nic::queue::{RingInit, with_room};
use remora_nic::{MemoryFault, PostError};

use crate::memory::Buffer;
use crate::message::RingPlace;
use crate::shared::{Arena, WorkQueue};

/// Where an element has its request's number.
const AT_WR_ID: usize = 32;

/// One work queue.
#[derive(Debug)]
pub(super) struct Posting {
    memory: Arc<Buffer>,
    shared: WorkQueue,
    ring: usize,
    depth: u32,
    stride: u32,
    /// The request number of the element in each slot, for those that the card's end leaves.
    wr_ids: Box<[u64]>,
    /// Whether the success of the element in each slot is reported.
    reported: Box<[bool]>,
    /// The index behind the last element whose completion has come. The card's process may end
    /// between a completion and what it says of the queue.
    seen: u32,
    /// The index of the element that is written next.
    written: u32,
    /// Nothing is published before an ENABLE.
    managed: bool,
}

impl Posting {
    /// The queue whose ring the daemon has described; `None` if the ring is empty.
    pub(super) fn new(arena: &Arena, ring: RingInit, managed: bool) -> Option<Posting> {
        if ring.is_empty() {
            return None;
        }
        let place = RingPlace::of_addr(ring.addr);
        let shared = WorkQueue::new(arena, place.number);
        let written = shared.posted();
        let RingInit { depth, stride, .. } = ring;
        let (memory, ring) = (arena.memory().clone(), place.offset as usize);
        let wr_ids = vec![0; depth as usize].into();
        let (reported, seen) = (vec![true; depth as usize].into(), written);
        Some(Posting {
            memory,
            shared,
            ring,
            depth,
            stride,
            wr_ids,
            reported,
            seen,
            written,
            managed,
        })
    }

    /// As [`Posting::new`], behind another process, whose requests the ring may hold.
    pub(super) fn adopted(arena: &Arena, ring: RingInit) -> Option<Posting> {
        let mut posting = Posting::new(arena, ring, false)?;
        let retired = posting.shared.retired();
        posting.seen = retired;
        let count = posting.written.wrapping_sub(retired).min(posting.depth);
        for index in (0..count).map(|i| retired.wrapping_add(i)) {
            let mut wr_id = [0; 8];
            let at = posting.slot(index) + AT_WR_ID;
            if posting.memory.read_at(at, &mut wr_id).is_ok() {
                posting.wr_ids[(index & (posting.depth - 1)) as usize] = u64::from_le_bytes(wr_id);
            }
        }
        Some(posting)
    }

    /// The ring, by its address in this process.
    pub(super) fn local(&self) -> RingInit {
        let addr = self.memory.addr() + self.ring as u64;
        RingInit { addr, depth: self.depth, stride: self.stride }
    }

    /// The number by which the queue's doorbell is rung.
    pub(super) fn number(&self) -> u32 {
        self.shared.number()
    }

    /// Does the queue run nothing before it is told to?
    pub(super) fn is_managed(&self) -> bool {
        self.managed
    }

    /// The index of the element that is written next.
    pub(super) fn next_index(&self) -> u32 {
        self.written
    }

    /// Are all elements done that were written? (Their completions may not have come yet.)
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.written == self.shared.retired()
    }

    /// Writes an element into the next slot; returns its index, and whether it is published, so
    /// that the doorbell is to be rung.
    #[inline]
    pub(super) fn post(
        &mut self,
        reported: bool,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, TooLong>,
    ) -> Result<(u32, bool), PostError> {
        let index = self.written;
        let in_use = index.wrapping_sub(self.shared.retired());
        if !self.managed && in_use >= self.depth {
            return Err(PostError::Full);
        }
        let at = self.slot(index);
        let wr_id = with_room(self.stride as usize, |raw| {
            let used = encode(raw)?;
            let written = self.memory.write_at(at, &raw[..used]);
            written.map_err(|_| PostError::Memory(MemoryFault { addr: at as u64 }))?;
            let wr_id = raw[AT_WR_ID..].first_chunk();
            Ok::<_, PostError>(wr_id.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
        })?;
        let place = (index & (self.depth - 1)) as usize;
        (self.wr_ids[place], self.reported[place]) = (wr_id, reported);
        self.written = index.wrapping_add(1);
        if !self.managed {
            self.shared.publish(self.written);
        }
        Ok((index, !self.managed))
    }

    /// Lets the queue run up to `index`.
    pub(super) fn doorbell(&mut self, index: u32) -> Result<(), PostError> {
        if index.wrapping_sub(self.shared.retired()) > self.depth {
            return Err(PostError::Full);
        }
        self.shared.publish(index);
        if !self.managed {
            self.written = index;
        }
        Ok(())
    }

    /// The queue begins again.
    pub(super) fn reset(&mut self) {
        (self.written, self.seen) = (0, 0);
    }

    /// A completion of the queue has come: of the first element that is reported, and those before
    /// it are done as well.
    #[inline]
    pub(super) fn note_completion(&mut self) {
        while self.seen != self.written {
            let place = (self.seen & (self.depth - 1)) as usize;
            self.seen = self.seen.wrapping_add(1);
            if self.reported[place] {
                break;
            }
        }
    }

    /// The numbers of the requests that are not done, as far as the card has said.
    pub(super) fn left(&self) -> impl Iterator<Item = u64> {
        let (retired, posted) = (self.shared.retired(), self.shared.posted());
        let count = posted.wrapping_sub(retired).min(self.depth);
        let seen = Some(self.seen.wrapping_sub(retired)).filter(|seen| *seen <= count);
        let of = move |i| self.wr_ids[(retired.wrapping_add(i) & (self.depth - 1)) as usize];
        (seen.unwrap_or(0)..count).map(of)
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        self.ring + (index & (self.depth - 1)) as usize * self.stride as usize
    }
}
