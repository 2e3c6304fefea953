//! Permits: so many tasks may go on, others wait. For any executor.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Permits, of which there are so many.
#[derive(Debug)]
pub(super) struct Permits(Mutex<FreePermits>);

#[derive(Debug)]
struct FreePermits {
    free: usize,
    waiting: Vec<Waker>,
}

/// A permit, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit<'a>(&'a Permits);

impl Permits {
    /// So many permits, at least one.
    pub(super) fn new(count: usize) -> Permits {
        Permits(Mutex::new(FreePermits { free: count.max(1), waiting: Vec::new() }))
    }

    fn state(&self) -> MutexGuard<'_, FreePermits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit, as soon as there is one.
    pub(super) async fn take(&self) -> Permit<'_> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Permit<'_>> {
        let mut state = self.state();
        if let Some(left) = state.free.checked_sub(1) {
            state.free = left;
            return Poll::Ready(Permit(self));
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.state();
            state.free += 1;
            std::mem::take(&mut state.waiting)
        };
        // All of them: one alone may have been dropped meanwhile, and then nobody would go on.
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_goes_on_although_another_who_waited_is_gone() {
        let (permits, woken) = (Permits::new(2), Arc::new(Woken::default()));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut take = || match permits.poll(&mut context) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        };
        let (first, second) = (take().unwrap(), take().unwrap());
        assert!(take().is_none());
        let mut gone = Context::from_waker(Waker::noop());
        assert!(pin!(permits.take()).poll(&mut gone).is_pending());
        drop(first);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let third = permits.poll(&mut gone);
        assert!(third.is_ready());
        drop((second, third));
        assert_eq!(permits.state().free, 2);
    }
}
