//! Shared receive queues, and the shape of the rings of all queues.

use std::sync::Arc;

use remora_nic::queue::{RecvRequest, RingInit};
use remora_nic::{CreateError, DestroyError, PostError};
use thiserror::Error;

use crate::commands::Commands;
use crate::live::Live;
use crate::region::ProtectionDomain;

/// Why a queue was not made.
#[derive(Debug, Error)]
pub enum CreateQpError {
    /// The card refuses.
    #[error(transparent)]
    Card(#[from] CreateError),
    /// Receive requests of a shared receive queue cannot be futures.
    #[error("a queue pair with a shared receive queue needs a completion queue: set recv_cq")]
    NoCompletionQueue,
    /// A queue that was given belongs to another device.
    #[error(
        "the completion queue or shared receive queue is another device’s: make one on the device \
         of the protection domain"
    )]
    OtherDevice,
}

/// A ring of at least `depth` slots, which has no memory yet.
pub(crate) fn ring(depth: u32, sges: usize, inline: usize) -> RingInit {
    if depth == 0 {
        return RingInit::default();
    }
    let depth = depth.min(1 << 20).next_power_of_two();
    RingInit { addr: 0, depth, stride: RingInit::stride_for(sges, inline) }
}

impl ProtectionDomain {
    /// Makes a shared receive queue for `depth` requests (rounded up to a power of two) of at most
    /// `max_sge` entries.
    ///
    /// # Errors
    /// The card refuses, or memory for its ring is short.
    pub fn create_srq(
        &self,
        depth: u32,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, CreateQpError> {
        SharedReceiveQueue::new(self.clone(), depth, max_sge)
    }
}

/// A receive queue from which several queue pairs take their receive requests.
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::queue::RecvRequest;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let domain = device.alloc_pd()?;
/// let queue = device.create_cq(64)?;
/// let shared = domain.create_srq(32, 1)?;
/// let options = QueuePairOptions::rc(&queue).srq(&shared);
/// let (first, second) = (domain.create_qp(&options)?, domain.create_qp(&options)?);
/// let room = domain.alloc(4096, Access::LOCAL_WRITE)?;
/// shared.post_recv(&RecvRequest { wr_id: 1, sges: &[room.sge(0, 4096)] })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    pd: ProtectionDomain,
    handle: u32,
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        pd: ProtectionDomain,
        depth: u32,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, CreateQpError> {
        let made = pd.live().lock().create_srq(pd.pd(), ring(depth, max_sge, 0))?;
        Ok(SharedReceiveQueue { inner: Arc::new(SrqInner { pd, handle: made.srq }) })
    }

    /// A queue that another process has made in the same session.
    pub(crate) fn adopt(pd: ProtectionDomain, handle: u32) -> SharedReceiveQueue {
        SharedReceiveQueue { inner: Arc::new(SrqInner { pd, handle }) }
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.handle
    }

    pub(crate) fn live(&self) -> &Live {
        self.inner.pd.live()
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let mut driver = self.inner.pd.live().lock();
        driver.post_srq_recv(self.inner.handle, request)
    }

    /// Asks for one asynchronous event when fewer than `limit` receive requests are left. (See
    /// [`Device::events`](crate::Device::events).)
    ///
    /// # Errors
    /// [`DestroyError::Gone`] if the card is another process's, and that process has ended.
    pub fn arm(&self, limit: u32) -> Result<(), DestroyError> {
        self.inner.pd.live().lock().arm_srq(self.inner.handle, limit)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let Err(error) = self.pd.live().lock().destroy_srq(self.handle) {
            tracing::error!(%error, "a shared receive queue was dropped while in use");
        }
    }
}
