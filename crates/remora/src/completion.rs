//! Completion queues.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use remora_nic::CreateError;
use remora_nic::queue::{Completion, PollCqError};

use crate::channel::WaitError;
use crate::commands::Commands;
use crate::event_queue::Notify;
use crate::live::Live;
use crate::news::Concerned;

/// A completion queue.
///
/// It is for programs that post work requests and poll. Requests that are futures
/// ([`crate::request`]) have a completion queue that the program does not see.
///
/// ```
/// use remora::prelude::*;
/// use std::time::Duration;
/// use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let queue = device.create_cq(16)?;
/// let domain = device.alloc_pd()?;
/// let qp = domain.create_qp(&QueuePairOptions::rc(&queue))?;
/// qp.loop_back(&qp, Access::all())?; // connected to itself
/// let memory = domain.alloc(16, Access::all())?;
/// memory.write_at(0, b"there")?;
/// let to = memory.remote(8);
/// let data = Data::Sges(&[memory.sge(0, 5)]);
/// let op = SendOp::Write { to, imm: None };
/// qp.post_send(&SendRequest { wr_id: 7, op, data, flags: SendFlags::SIGNALED })?;
/// let done = queue.spin(Duration::from_secs(10))?.ok()?;
/// assert_eq!((done.wr_id, memory.slice(8..13).to_vec()?), (7, b"there".to_vec()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    live: Arc<Live>,
    handle: u32,
}

/// A handle that does not keep its completion queue.
#[derive(Debug)]
pub(crate) struct WeakQueue(Weak<Inner>);

impl WeakQueue {
    /// The queue, if it is still there.
    pub(crate) fn upgrade(&self) -> Option<CompletionQueue> {
        self.0.upgrade().map(|inner| CompletionQueue { inner })
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        live: Arc<Live>,
        entries: usize,
        notify: Option<Arc<dyn Notify>>,
    ) -> Result<CompletionQueue, CreateError> {
        let handle = live.command(|driver| {
            let handle = driver.create_cq(entries)?;
            if let Some(notify) = notify {
                driver.news().channels.insert(handle, notify);
            }
            Ok::<_, CreateError>(handle)
        })?;
        Ok(CompletionQueue { inner: Arc::new(Inner { live, handle }) })
    }

    /// A queue that another process has made in the same session, and which the device goes on
    /// with.
    pub(crate) fn adopt(live: Arc<Live>, handle: u32) -> CompletionQueue {
        CompletionQueue { inner: Arc::new(Inner { live, handle }) }
    }

    /// A handle that does not keep the queue.
    pub(crate) fn downgrade(&self) -> WeakQueue {
        WeakQueue(Arc::downgrade(&self.inner))
    }

    /// A queue that only counts: see
    /// [`Device::create_counting_cq`](crate::Device::create_counting_cq).
    pub(crate) fn counting(live: Arc<Live>, errors: usize) -> Result<CompletionQueue, CreateError> {
        let handle = live.lock().create_counting_cq(errors)?;
        Ok(CompletionQueue { inner: Arc::new(Inner { live, handle }) })
    }

    /// How many completions without an error the queue has had. A chain's WAIT compares with it.
    ///
    /// # Errors
    /// [`PollCqError::Gone`] if the card is another process's, and that process has ended.
    pub fn count(&self) -> Result<u64, PollCqError> {
        self.inner.live.lock().cq_count(self.inner.handle).ok_or(PollCqError::Gone)
    }

    /// The card's number for the queue, which [`CompletionChannel::wait`](crate::CompletionChannel::wait) returns.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Takes entries, oldest first; returns how many. Drives the device one step if there are
    /// none yet.
    ///
    /// # Errors
    /// The queue overflowed, and the entries that it still held have been taken.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, PollCqError> {
        let live = &self.inner.live;
        let mut driver = live.lock();
        let found = driver.poll_cq(self.inner.handle, out)?;
        if found > 0 || out.is_empty() {
            live.found(&mut driver, self.inner.handle);
            return Ok(found);
        }
        live.progress_for_poll(&mut driver);
        let found = driver.poll_cq(self.inner.handle, out)?;
        drop(driver);
        if found == 0 {
            live.found_nothing();
        }
        Ok(found)
    }

    /// Takes entries, as [`CompletionQueue::poll`] does. With `drive`, drives the device if there
    /// are none yet. With `arm`, arms the queue if there are none even then; no entry can come in
    /// between.
    pub(crate) fn take(
        &self,
        out: &mut [Completion],
        drive: bool,
        arm: bool,
    ) -> Result<usize, PollCqError> {
        let live = &self.inner.live;
        let mut driver = live.lock();
        let mut found = driver.poll_cq(self.inner.handle, out)?;
        if found == 0 && drive {
            live.progress(&mut driver);
            found = driver.poll_cq(self.inner.handle, out)?;
        }
        if found == 0 && arm {
            driver.req_notify_cq(self.inner.handle, false)?;
            if driver.as_own().is_none() {
                // The card of another process may have added an entry in between.
                found = driver.poll_cq(self.inner.handle, out)?;
            }
        }
        Ok(found)
    }

    /// Sets what learns of the next entry when the queue is armed.
    pub(crate) fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.inner.live.lock().news().channels.insert(self.inner.handle, notify);
    }

    pub(crate) fn live(&self) -> &Live {
        &self.inner.live
    }

    /// Polls until an entry comes.
    ///
    /// # Errors
    /// None came within `timeout`, or the queue overflowed.
    pub fn spin(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let mut out = [Completion::default()];
        let start = Instant::now();
        loop {
            // The clock is read seldom, since that takes as long as an empty poll.
            for _ in 0..64 {
                if self.poll(&mut out)? > 0 {
                    return Ok(out[0]);
                }
            }
            if start.elapsed() > timeout {
                return Err(WaitError::Timeout(timeout));
            }
        }
    }

    /// Has the next entry, or the next solicited one, announced on the queue's channel.
    ///
    /// Entries that came before are not announced: poll once more after arming.
    ///
    /// # Errors
    /// None that can be expected while the queue lives.
    pub fn arm(&self, solicited_only: bool) -> Result<(), PollCqError> {
        let live = &self.inner.live;
        let mut driver = live.lock();
        let armed = driver.req_notify_cq(self.inner.handle, solicited_only);
        live.armed(&mut driver);
        armed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.live.command(|driver| {
            driver.news().channels.remove(&self.handle);
            if let Err(error) = driver.destroy_cq(self.handle) {
                tracing::error!(%error, "a completion queue was dropped while in use");
            }
        });
    }
}
