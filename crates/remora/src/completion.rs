//! Completion queues, and channels that wake who waits for them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use remora_nic::CreateError;
use remora_nic::queue::{Completion, PollCqError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

use crate::device::Live;
use crate::event::Event;

/// A completion queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    live: Arc<Live>,
    handle: u32,
}

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

impl CompletionQueue {
    pub(crate) fn new(
        live: Arc<Live>,
        entries: usize,
        channel: Option<Arc<ChannelQueue>>,
    ) -> Result<CompletionQueue, CreateError> {
        let handle = live.command(|driver| {
            let handle = driver.nic.create_cq(entries)?;
            if let Some(channel) = channel {
                driver.channels.insert(handle, channel);
            }
            Ok::<_, CreateError>(handle)
        })?;
        Ok(CompletionQueue { inner: Arc::new(Inner { live, handle }) })
    }

    pub(crate) fn counting(live: Arc<Live>, errors: usize) -> Result<CompletionQueue, CreateError> {
        let handle = live.lock().nic.create_counting_cq(errors)?;
        Ok(CompletionQueue { inner: Arc::new(Inner { live, handle }) })
    }

    pub(crate) fn live(&self) -> &Live {
        &self.inner.live
    }

    /// The card's number for it, as [`Channel::wait`] tells it, and as WAITs name it.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Takes entries, oldest first; returns how many. Drives the device one step if there are
    /// none yet.
    ///
    /// # Errors
    /// The queue overflowed, and what it still held has been taken.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, PollCqError> {
        let live = &self.inner.live;
        let mut driver = live.lock();
        let found = driver.nic.poll_cq(self.inner.handle, out)?;
        if found > 0 || out.is_empty() {
            return Ok(found);
        }
        live.progress(&mut driver);
        driver.nic.poll_cq(self.inner.handle, out)
    }

    /// Polls until an entry comes.
    ///
    /// # Errors
    /// None came within `patience`, or the queue overflowed.
    pub fn spin(&self, patience: Duration) -> Result<Completion, WaitError> {
        let mut out = [Completion::default()];
        let start = Instant::now();
        loop {
            // The clock is looked at seldom: it costs as much as an empty poll.
            for _ in 0..64 {
                if self.poll(&mut out)? > 0 {
                    return Ok(out[0]);
                }
            }
            if start.elapsed() > patience {
                return Err(WaitError::Timeout(patience));
            }
        }
    }

    /// Asks the queue's channel to wake at the next entry, or the next solicited one.
    ///
    /// Entries that came before are not announced: poll once more after arming.
    ///
    /// # Errors
    /// None that can be expected while the queue lives.
    pub fn arm(&self, solicited_only: bool) -> Result<(), PollCqError> {
        let live = &self.inner.live;
        let armed = live.command(|d| d.nic.req_notify_cq(self.inner.handle, solicited_only));
        live.background.take_over();
        armed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.live.command(|driver| {
            driver.channels.remove(&self.handle);
            if let Err(error) = driver.nic.destroy_cq(self.handle) {
                tracing::error!(%error, "a completion queue was dropped while in use");
            }
        });
    }
}

/// A completion channel: a descriptor that is readable when an armed completion queue got an
/// entry.
#[derive(Clone, Debug)]
pub struct Channel {
    queue: Arc<ChannelQueue>,
}

/// Which queues have something to say.
#[derive(Debug)]
pub(crate) struct ChannelQueue {
    ready: Event,
    queues: Mutex<VecDeque<u32>>,
}

impl ChannelQueue {
    pub(crate) fn push(&self, cq: u32) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).push_back(cq);
        crate::event::wake(&self.ready);
    }
}

impl Channel {
    pub(crate) fn new() -> io::Result<Channel> {
        let queue = ChannelQueue { ready: Event::new()?, queues: Mutex::default() };
        Ok(Channel { queue: Arc::new(queue) })
    }

    pub(crate) fn queue(&self) -> Arc<ChannelQueue> {
        self.queue.clone()
    }

    /// The next notification, if there is one: the handle of a completion queue.
    pub fn try_next(&self) -> Option<u32> {
        let mut queues = self.queue.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let next = queues.pop_front();
        if queues.is_empty() && self.queue.ready.drain().is_err() {
            tracing::error!("cannot reset a completion channel's descriptor");
        }
        next
    }

    /// Sleeps until there is a notification.
    ///
    /// # Errors
    /// None came within `patience`, or the system's wait failed.
    pub fn wait(&self, patience: Duration) -> Result<u32, WaitError> {
        let end = deadline(patience);
        loop {
            if let Some(cq) = self.try_next() {
                return Ok(cq);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::Timeout(patience));
            }
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let fd = PollFd::new(&self.queue.ready, PollFlags::IN);
            match poll(&mut [fd], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(WaitError::System(error.into())),
            }
        }
    }
}

/// When patience ends; for one without end, in a year.
pub(crate) fn deadline(patience: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + patience.min(YEAR)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.ready.as_fd()
    }
}
