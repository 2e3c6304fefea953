//! An ordinary thread waits for a future, up to a deadline.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::channel::deadline;

thread_local! {
    /// Wakes this thread. It is made once, so that waiting allocates nothing.
    static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Waits for any future in an ordinary thread, for at most `timeout`: for one of several steps of
/// connection management, say. Returns `None` if it is not ready in time; it may be waited for
/// again.
///
/// ```
/// use remora::prelude::*;
/// use std::{future::poll_fn, pin::Pin, time::Duration};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let (one, other) = (device.listen(7471)?, device.listen(7472)?);
/// let mut first = [one.accept(), other.accept()];
/// let either = poll_fn(|context| {
///     let mut ready = first.iter_mut().map(|step| Pin::new(step).poll(context));
///     ready.find(|step| step.is_ready()).unwrap_or(std::task::Poll::Pending)
/// });
/// assert!(remora::wait_for(either, Duration::ZERO).is_none(), "no peer has asked");
/// # Ok(())
/// # }
/// ```
pub fn wait_for<F: Future>(future: F, timeout: Duration) -> Option<F::Output> {
    until(deadline(timeout), future)
}

/// Sleeps until the future is ready; returns `None` if it is not ready by `end`.
pub(crate) fn until<F: Future>(end: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            thread::park_timeout(left);
        }
    })
}
