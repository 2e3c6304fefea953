//! Posting: writing elements into the rings of a queue pair, and ringing the doorbell.

use thiserror::Error;

use super::{Qp, State};
use crate::card::Card;
use crate::chain::{EnableError, Mode, Queue};
use crate::memory::{Memory, MemoryFault};
use crate::queue::element::TooLong;
use crate::queue::ring::{Ring, with_room};

/// Why a work request could not be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PostError {
    /// No such queue pair or shared receive queue.
    #[error("no such queue")]
    UnknownQueue,
    /// The queue pair's state takes no such work.
    #[error("a queue pair in {0:?} takes no such work request")]
    State(State),
    /// The ring is full.
    #[error("the queue is full: poll completions first")]
    Full,
    /// More entries or inline bytes than the queue was created for.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The queue's memory cannot be written.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

impl Qp {
    /// Writes an element into the next slot of a queue and, unless the queue is managed, rings its
    /// doorbell. Returns the element's index. (A managed queue runs when an ENABLE lets it.)
    #[inline]
    pub(crate) fn post(
        &mut self,
        card: &mut Card,
        mem: &mut dyn Memory,
        queue: Queue,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, TooLong>,
    ) -> Result<u32, PostError> {
        let index = self.next_index(queue);
        if self.mode.contains(managed(queue)) {
            self.write(mem, queue, encode)?;
            return Ok(index);
        }
        if !self.state.takes(queue) {
            return Err(PostError::State(self.state));
        }
        post(mem, self.ring_mut(queue), encode)?;
        self.rung(card, queue);
        Ok(index)
    }

    /// A doorbell: the owner has written elements up to `index`. For a managed queue this is the
    /// owner's ENABLE.
    pub(crate) fn doorbell(
        &mut self,
        card: &mut Card,
        queue: Queue,
        index: u32,
    ) -> Result<(), PostError> {
        if self.mode.contains(managed(queue)) {
            return self.enable_by_owner(card, queue, index);
        }
        if !self.state.takes(queue) {
            return Err(PostError::State(self.state));
        }
        if !self.ring_mut(queue).doorbell(index) {
            return Err(PostError::Full);
        }
        self.rung(card, queue);
        Ok(())
    }

    /// One past the last element of a queue whose slot its owner may use again.
    pub(crate) fn retired(&self, queue: Queue) -> u32 {
        self.ring(queue).retired
    }

    /// Notes that a queue has more elements.
    #[inline]
    fn rung(&mut self, card: &mut Card, queue: Queue) {
        match queue {
            Queue::Send => {
                self.refill(card);
                self.schedule(card);
            }
            Queue::Recv => {
                self.receives_again(card);
                if self.state == State::Error {
                    self.schedule(card);
                }
            }
        }
    }

    /// The index of the element that the owner writes next.
    #[inline]
    pub(crate) fn next_index(&self, queue: Queue) -> u32 {
        match self.mode.contains(managed(queue)) {
            true => self.cold.written[queue as usize],
            false => self.ring(queue).posted,
        }
    }

    #[inline]
    fn ring(&self, queue: Queue) -> &Ring {
        match queue {
            Queue::Send => &self.sq,
            Queue::Recv => &self.rq,
        }
    }

    #[inline]
    fn ring_mut(&mut self, queue: Queue) -> &mut Ring {
        match queue {
            Queue::Send => &mut self.sq,
            Queue::Recv => &mut self.rq,
        }
    }

    /// Writes an element into the next slot of a managed ring.
    fn write(
        &mut self,
        mem: &mut dyn Memory,
        queue: Queue,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, TooLong>,
    ) -> Result<(), PostError> {
        if self.ring(queue).depth() == 0 {
            return Err(PostError::Full);
        }
        let index = self.cold.written[queue as usize];
        write_element(mem, self.ring(queue), index, encode)?;
        self.cold.written[queue as usize] = index.wrapping_add(1);
        Ok(())
    }

    fn enable_by_owner(
        &mut self,
        card: &mut Card,
        queue: Queue,
        index: u32,
    ) -> Result<(), PostError> {
        self.enable(card, queue, index).map_err(|refused| match refused {
            EnableError::State => PostError::State(self.state),
            _ => PostError::Full,
        })?;
        self.refill(card);
        Ok(())
    }
}

const fn managed(queue: Queue) -> Mode {
    match queue {
        Queue::Send => Mode::MANAGED_SEND,
        Queue::Recv => Mode::MANAGED_RECV,
    }
}

/// Writes one element into `ring` and counts it as posted.
#[inline]
pub(crate) fn post(
    mem: &mut dyn Memory,
    ring: &mut Ring,
    encode: impl FnOnce(&mut [u8]) -> Result<usize, TooLong>,
) -> Result<(), PostError> {
    if ring.is_full() {
        return Err(PostError::Full);
    }
    write_element(mem, ring, ring.posted, encode)?;
    ring.posted = ring.posted.wrapping_add(1);
    Ok(())
}

/// Writes an element into a slot of `ring`.
#[inline]
fn write_element(
    mem: &mut dyn Memory,
    ring: &Ring,
    index: u32,
    encode: impl FnOnce(&mut [u8]) -> Result<usize, TooLong>,
) -> Result<(), PostError> {
    with_room(ring.stride(), |raw| {
        let used = encode(raw)?;
        Ok(mem.write(ring.slot(index), &raw[..used])?)
    })
}
