//! Queues that the card shares with their owner, which writes elements into the rings itself and
//! copies entries of completion queues to where it needs them: doorbells, the slots that are free
//! again, the completion queues with new entries.
//!
//! Any doorbell is safe. An index that the ring cannot hold, or that the queue pair's state does
//! not take, is refused, is counted, and changes nothing.

use super::{CreateError, Nic, PostError};
use crate::chain::Queue;
use crate::queue::completion::CompletionQueue;

/// Queues that are shared with their owner.
impl Nic {
    /// Reports that the owner of a send ring has written elements up to `index`, counted from the
    /// queue's creation or its last RESET.
    ///
    /// For a managed queue this is the owner's ENABLE: its elements may run up to `index`.
    ///
    /// # Errors
    /// [`PostError::UnknownQueue`] if there is no such queue pair; [`PostError::State`] in RESET,
    /// INIT and RTR, and for a managed queue wherever it may not run; [`PostError::Full`] if the
    /// ring cannot hold so many elements, or if `index` is behind that of an earlier doorbell
    /// (which a managed queue ignores).
    pub fn handle_send_doorbell(&mut self, qpn: u32, index: u32) -> Result<(), PostError> {
        self.handle_doorbell(qpn, Queue::Send, index)
    }

    /// As [`Nic::handle_send_doorbell`], for the receive ring.
    ///
    /// # Errors
    /// [`PostError::UnknownQueue`] if there is no such queue pair; [`PostError::State`] in RESET,
    /// and in ERROR if the queue is managed; [`PostError::Full`] if the ring cannot hold so many
    /// elements, or if `index` is behind that of an earlier doorbell (which a managed queue
    /// ignores).
    pub fn handle_recv_doorbell(&mut self, qpn: u32, index: u32) -> Result<(), PostError> {
        self.handle_doorbell(qpn, Queue::Recv, index)
    }

    fn handle_doorbell(&mut self, qpn: u32, queue: Queue, index: u32) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::UnknownQueue);
        let rung = qp.and_then(|qp| qp.doorbell(&mut self.card, queue, index));
        self.card.counters.doorbells_refused += u64::from(rung.is_err());
        rung
    }

    /// As [`Nic::handle_send_doorbell`], for the ring of a shared receive queue.
    ///
    /// # Errors
    /// [`PostError::UnknownQueue`] if there is no such shared receive queue; [`PostError::Full`] if
    /// the ring cannot hold so many elements, or if `index` is behind that of an earlier doorbell.
    pub fn handle_srq_doorbell(&mut self, srq: u32, index: u32) -> Result<(), PostError> {
        let queue = self.card.srqs.get_mut(srq).ok_or(PostError::UnknownQueue);
        let rung = queue.and_then(|queue| match queue.ring.doorbell(index) {
            true => Ok(()),
            false => Err(PostError::Full),
        });
        self.card.counters.doorbells_refused += u64::from(rung.is_err());
        rung
    }

    /// The index up to which the owner of a ring may write its slots again, counted as in
    /// doorbells. `None` if there is no such queue pair.
    ///
    /// Inline data is sent from its slot. So the driver may hand this index to the owner only when
    /// it has gathered the payload of the packets that it was given before.
    pub fn retired(&self, qpn: u32, queue: Queue) -> Option<u32> {
        self.qps.get(qpn).map(|qp| qp.retired(queue))
    }

    /// As [`Nic::retired`], for a shared receive queue.
    pub fn srq_retired(&self, srq: u32) -> Option<u32> {
        self.card.srqs.get(srq).map(|queue| queue.ring.retired)
    }

    /// Has [`Nic::poll_taken`] name a shared receive queue from now on.
    pub fn export_srq(&mut self, srq: u32) {
        if let Some(queue) = self.card.srqs.get_mut(srq) {
            queue.exported = true;
        }
    }

    /// The next exported shared receive queue, which may have been destroyed, of which elements
    /// were taken since it was named last: so slots of it are free.
    pub fn poll_taken(&mut self) -> Option<u32> {
        let srq = self.card.taken.pop_front()?;
        if let Some(queue) = self.card.srqs.get_mut(srq) {
            queue.listed = false;
        }
        Some(srq)
    }

    /// As [`Nic::create_cq`], for a completion queue that [`Nic::poll_completed`] names.
    ///
    /// # Errors
    /// As [`Nic::create_cq`].
    pub fn create_exported_cq(&mut self, capacity: usize) -> Result<u32, CreateError> {
        self.insert_cq(capacity, CompletionQueue::exported)
    }

    /// As [`Nic::create_counting_cq`], for a completion queue that [`Nic::poll_completed`] names
    /// when it has got an error.
    ///
    /// # Errors
    /// As [`Nic::create_counting_cq`].
    pub fn create_exported_counting_cq(&mut self, capacity: usize) -> Result<u32, CreateError> {
        self.insert_cq(capacity, |capacity| CompletionQueue::counting(capacity).export())
    }

    /// The next exported completion queue that has got entries, or has overflowed, since it was
    /// named last. The caller takes its entries with [`Nic::poll_cq`]. A queue that the caller
    /// leaves entries in is not named again for them.
    pub fn poll_completed(&mut self) -> Option<u32> {
        let cq = self.card.completed.pop_front()?;
        if let Some(queue) = self.card.cqs.get_mut(cq) {
            queue.unlist();
        }
        Some(cq)
    }
}
