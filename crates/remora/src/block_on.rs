//! An ordinary thread waits for a future, up to a deadline.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

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
