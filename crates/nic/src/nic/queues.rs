//! Commands on completion queues and shared receive queues.

use thiserror::Error;

use super::{CreateError, DestroyError, Nic};
use crate::chain::Errand;
use crate::event::Event;
use crate::memory::key::Pd;
use crate::memory::{Memory, MemoryFault};
use crate::queue::completion::{CompletionQueue, PollCqError};
use crate::queue::ring::{MAX_STRIDE, Ring, RingInit};
use crate::queue::shared_receive::SharedReceiveQueue;
use crate::queue::{Completion, Moderation, ResizeCqError};
use crate::time::Time;

/// Why a shared receive queue could not be resized. Everything is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ResizeSrqError {
    /// No such shared receive queue.
    #[error("no such shared receive queue")]
    UnknownSrq,
    /// The ring's sizes are not legal, or its stride is smaller than the old one's.
    #[error("the ring is none, or its elements are smaller than those of the old one")]
    BadRing,
    /// More elements wait than would fit into the new ring.
    #[error("{waiting} elements wait in the queue, more than would fit")]
    Waiting {
        /// How many elements wait.
        waiting: u32,
    },
    /// One of the rings cannot be reached.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// There is no memory for the new ring.
    #[error("no memory for a ring of {bytes} bytes")]
    NoMemory {
        /// The ring's bytes.
        bytes: usize,
    },
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// The present properties of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SrqInfo {
    /// Protection domain.
    pub pd: Pd,
    /// How many elements it can hold.
    pub depth: u32,
    /// Bytes of an element.
    pub stride: u32,
    /// The limit for [`Event::SrqLimitReached`]; zero if there is none, or it has been reached.
    pub limit: u32,
    /// How many elements are posted and not yet taken.
    pub waiting: u32,
}

/// Completion queues and shared receive queues.
impl Nic {
    /// Makes a completion queue of `capacity` entries.
    ///
    /// # Errors
    /// [`CreateError::Size`] if `capacity` is zero or above the card's limit, [`CreateError::Full`]
    /// if the card has as many completion queues as its limit.
    pub fn create_cq(&mut self, capacity: usize) -> Result<u32, CreateError> {
        self.insert_cq(capacity, CompletionQueue::new)
    }

    pub(super) fn insert_cq(
        &mut self,
        capacity: usize,
        make: fn(usize) -> CompletionQueue,
    ) -> Result<u32, CreateError> {
        let limit = self.card.config.max_cqe;
        if capacity == 0 || capacity > limit {
            return Err(CreateError::Size { limit });
        }
        let limit = self.card.config.max_cqs;
        let made = self.card.cqs.insert_with(|_| make(capacity));
        made.ok_or(CreateError::Full { limit })
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such completion queue, [`DestroyError::Busy`] if a
    /// queue pair or an XRC shared receive queue still reports to it.
    pub fn destroy_cq(&mut self, cq: u32) -> Result<(), DestroyError> {
        let queue = self.card.cqs.get(cq).ok_or(DestroyError::Unknown)?;
        if queue.users() > 0 {
            return Err(DestroyError::Busy { users: queue.users() });
        }
        if let Some(mut queue) = self.card.cqs.remove(cq) {
            if queue.is_listed() {
                self.card.completed.retain(|listed| *listed != cq);
            }
            // The WAITs on it run again, and fail, as they find no completion queue.
            self.card.chains.errands.extend(queue.wake().map(Errand::Wake));
        }
        Ok(())
    }

    /// Asks for one [`Event::CompletionQueueNotify`] at the next entry, or the next solicited one.
    ///
    /// # Errors
    /// Only [`PollCqError::UnknownCq`], if there is no such completion queue.
    pub fn req_notify_cq(&mut self, cq: u32, solicited_only: bool) -> Result<(), PollCqError> {
        let queue = self.card.cqs.get_mut(cq).ok_or(PollCqError::UnknownCq)?;
        queue.arm(solicited_only);
        Ok(())
    }

    /// Takes entries, oldest first. Returns how many.
    ///
    /// # Errors
    /// [`PollCqError::UnknownCq`] if there is no such completion queue; [`PollCqError::Overrun`] if
    /// it has overflowed, and the entries from before that are all taken.
    pub fn poll_cq(&mut self, cq: u32, out: &mut [Completion]) -> Result<usize, PollCqError> {
        self.card.cqs.get_mut(cq).ok_or(PollCqError::UnknownCq)?.poll(out)
    }

    /// Changes how many entries a completion queue can hold. The entries that wait in it stay.
    ///
    /// # Errors
    /// [`ResizeCqError::UnknownCq`] if there is no such completion queue, [`ResizeCqError::Size`]
    /// if `capacity` is zero or above the card's limit, [`ResizeCqError::Waiting`] if more entries
    /// wait than would fit.
    pub fn resize_cq(&mut self, cq: u32, capacity: usize) -> Result<(), ResizeCqError> {
        let limit = self.card.config.max_cqe;
        let queue = self.card.cqs.get_mut(cq).ok_or(ResizeCqError::UnknownCq)?;
        if capacity == 0 || capacity > limit {
            return Err(ResizeCqError::Size { limit });
        }
        queue.resize(capacity)
    }

    /// Changes how often the owner of a completion queue is notified of entries.
    ///
    /// # Errors
    /// Only [`PollCqError::UnknownCq`], if there is no such completion queue.
    pub fn modify_cq(&mut self, cq: u32, moderation: Moderation) -> Result<(), PollCqError> {
        self.card.cqs.get_mut(cq).ok_or(PollCqError::UnknownCq)?.moderate(moderation);
        Ok(())
    }

    /// How many entries a completion queue can hold.
    pub fn cq_capacity(&self, cq: u32) -> Option<usize> {
        self.card.cqs.get(cq).map(CompletionQueue::capacity)
    }

    /// Raises the moderated notifications that are due.
    pub(super) fn handle_cq_timeouts(&mut self, now: Time) {
        while let Some((at, cq)) = self.card.cq_timers.pop(now) {
            let Some(queue) = self.card.cqs.get_mut(cq) else { continue };
            if self.card.cq_timers.expire(&mut queue.timer, cq, at, now) && queue.period_over() {
                self.card.events.push_back(Event::CompletionQueueNotify(cq));
            }
        }
    }

    /// How many entries wait in a completion queue.
    pub fn cq_len(&self, cq: u32) -> Option<usize> {
        self.card.cqs.get(cq).map(CompletionQueue::len)
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// [`CreateError::BadRing`] if the ring's sizes are not legal, or there is no ring;
    /// [`CreateError::UnknownPd`] if there is no such domain; [`CreateError::Full`] if the card has
    /// as many shared receive queues as its limit.
    pub fn create_srq(&mut self, pd: Pd, ring: RingInit) -> Result<u32, CreateError> {
        if !ring.is_valid() || ring.is_empty() {
            return Err(CreateError::BadRing);
        }
        let domain = self.card.pds.get_mut(pd.0).ok_or(CreateError::UnknownPd)?;
        let limit = self.card.config.max_srqs;
        let srq = SharedReceiveQueue::new(pd, Ring::new(ring), None);
        let made = self.card.srqs.insert_with(|_| srq).ok_or(CreateError::Full { limit })?;
        domain.users += 1;
        Ok(made)
    }

    /// Asks for one [`Event::SrqLimitReached`] when fewer than `limit` elements are posted.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such shared receive queue.
    pub fn arm_srq(&mut self, srq: u32, limit: u32) -> Result<(), DestroyError> {
        self.card.srqs.get_mut(srq).ok_or(DestroyError::Unknown)?.limit = limit;
        Ok(())
    }

    /// Moves a shared receive queue with its elements to another ring. After that the card does not
    /// use the old ring's memory any more.
    ///
    /// # Errors
    /// [`ResizeSrqError::UnknownSrq`] if there is no such shared receive queue;
    /// [`ResizeSrqError::BadRing`] if the ring's sizes are not legal, there is no ring, or its
    /// elements are shorter than those of the old one; [`ResizeSrqError::Waiting`] if more elements
    /// wait than would fit; [`ResizeSrqError::Memory`] if one of the rings cannot be reached.
    pub fn resize_srq(
        &mut self,
        mem: &mut dyn Memory,
        srq: u32,
        ring: RingInit,
    ) -> Result<(), ResizeSrqError> {
        let queue = self.card.srqs.get_mut(srq).ok_or(ResizeSrqError::UnknownSrq)?;
        if !ring.is_valid() || ring.is_empty() || (ring.stride as usize) < queue.ring.stride() {
            return Err(ResizeSrqError::BadRing);
        }
        let waiting = queue.ring.waiting();
        if waiting > ring.depth {
            return Err(ResizeSrqError::Waiting { waiting });
        }
        let moved = queue.ring.moved(ring);
        let mut raw = [0; MAX_STRIDE];
        let raw = &mut raw[..queue.ring.stride()];
        for i in 0..waiting {
            let index = queue.ring.fetched.wrapping_add(i);
            mem.read(queue.ring.slot(index), raw)?;
            mem.write(moved.slot(index), raw)?;
        }
        queue.ring = moved;
        Ok(())
    }

    /// The present properties of a shared receive queue.
    pub fn query_srq(&self, srq: u32) -> Option<SrqInfo> {
        self.card.srqs.get(srq).map(|queue| SrqInfo {
            pd: queue.pd,
            depth: queue.ring.depth(),
            stride: queue.ring.stride() as u32,
            limit: queue.limit,
            waiting: queue.ring.waiting(),
        })
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such shared receive queue, [`DestroyError::Busy`]
    /// if a queue pair still uses it.
    pub fn destroy_srq(&mut self, srq: u32) -> Result<(), DestroyError> {
        let queue = self.card.srqs.get(srq).ok_or(DestroyError::Unknown)?;
        if queue.users > 0 {
            return Err(DestroyError::Busy { users: queue.users });
        }
        let (pd, xrc) = (queue.pd, queue.xrc);
        self.card.srqs.remove(srq);
        self.leave(pd);
        if let Some(xrc) = xrc {
            self.leave_xrc(xrc);
        }
        Ok(())
    }
}
