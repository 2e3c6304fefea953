//! Completion channels: they wake a thread that waits for an entry of a completion queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_nic::queue::PollCqError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

use crate::event_queue::EventQueue;
use crate::live::Live;

/// Why waiting for a completion ended without one.
#[derive(Debug, Error)]
pub enum WaitError {
    /// None came in time.
    #[error("no completion within {0:?}")]
    Timeout(Duration),
    /// The queue overflowed.
    #[error(transparent)]
    Poll(#[from] PollCqError),
    /// The channel's descriptor failed.
    #[error("cannot wait on a completion channel: {0}")]
    System(#[from] io::Error),
}

/// A completion channel: its descriptor is readable when an armed completion queue got an entry, or
/// when packets have arrived that may bring one.
///
/// A thread can sleep on it ([`wait`](CompletionChannel::wait)), and so can any reactor: it is [`AsFd`].
///
/// ```
/// use remora::prelude::*;
/// use std::time::Duration;
/// use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let channel = device.create_channel()?;
/// let queue = device.create_cq_on(&channel, 16)?;
/// queue.arm(false)?; // and then poll: entries that came before are not announced
/// # let qp = device.alloc_pd()?.create_qp(&QueuePairOptions::rc(&queue))?;
/// # qp.loop_back(&qp, Access::all())?;
/// # let (op, data, flags) = (SendOp::NoOp, Data::Sges(&[]), SendFlags::SIGNALED);
/// # qp.post_send(&SendRequest { wr_id: 5, op, data, flags })?;
/// assert_eq!(channel.wait(Duration::from_secs(10))?, queue.handle());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    queue: Arc<EventQueue<u32>>,
    live: Arc<Live>,
}

impl CompletionChannel {
    pub(crate) fn new(live: Arc<Live>) -> io::Result<CompletionChannel> {
        Ok(CompletionChannel { queue: Arc::new(EventQueue::new()?), live })
    }

    pub(crate) fn queue(&self) -> Arc<EventQueue<u32>> {
        self.queue.clone()
    }

    /// The next notification, if there is one: the handle of a completion queue. Call this until
    /// there is none, and then sleep on the descriptor, which may be readable though no
    /// notification has come.
    ///
    /// A thread that does so is an event loop: packets wake it, and it drives the device here. If
    /// it is busy elsewhere, the background thread does so in its place, a millisecond later.
    pub fn try_next(&self) -> Option<u32> {
        self.queue.pop(|cq| cq).or_else(|| self.live.look_for(&self.queue, |cq| cq))
    }

    /// Sleeps until there is a notification.
    ///
    /// # Errors
    /// None came within `timeout`, or the system's wait failed.
    pub fn wait(&self, timeout: Duration) -> Result<u32, WaitError> {
        let end = deadline(timeout);
        loop {
            if let Some(cq) = self.try_next() {
                return Ok(cq);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::Timeout(timeout));
            }
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(WaitError::System(error.into())),
            }
        }
    }
}

/// When a time-out ends: in a year at most, so that any duration can be added.
pub fn deadline(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}
