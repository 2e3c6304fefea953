//! Time limits of futures, for any executor: a thread that wakes them.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use remora::channel::deadline;
use remora::threads::without_signals;

/// A thread that wakes tasks. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Timer(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Due {
    /// By when, and a number.
    wakers: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    is_over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut due = self.lock();
        while !due.is_over {
            let now = Instant::now();
            let first = due.wakers.first_key_value().map(|((at, _), _)| *at);
            due = match first {
                Some(at) if at <= now => {
                    let waker = due.wakers.pop_first();
                    drop(due);
                    waker.into_iter().for_each(|(_, waker)| waker.wake());
                    self.lock()
                }
                Some(at) => {
                    let slept = self.changed.wait_timeout(due, at - now);
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(due).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Timer {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the system says if it has no thread to give.
    pub(super) fn start() -> io::Result<Timer> {
        let shared = Arc::new(Shared::default());
        let (named, of_thread) = (thread::Builder::new().name("store timer".to_owned()), &shared);
        let of_thread = of_thread.clone();
        without_signals(|| named.spawn(move || of_thread.run()))?;
        Ok(Timer(shared))
    }

    /// Ready after so long.
    pub(super) fn sleep(&self, time: Duration) -> Sleep {
        Sleep { shared: self.0.clone(), at: deadline(time), number: None }
    }

    /// What a future comes to, if that is within this time.
    pub(super) async fn within<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let (mut sleep, mut future) = (self.sleep(time), pin!(future));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Pin::new(&mut sleep).poll(context).map(|()| None),
        })
        .await
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

/// A time limit.
#[derive(Debug)]
pub(super) struct Sleep {
    shared: Arc<Shared>,
    at: Instant,
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        let shared = self.shared.clone();
        let mut due = shared.lock();
        let number = self.number.unwrap_or(due.next);
        if self.number.is_none() {
            self.number = Some(number);
            due.next += 1;
        }
        due.wakers.insert((self.at, number), context.waker().clone());
        let is_first = due.wakers.first_key_value().is_some_and(|((_, n), _)| *n == number);
        drop(due);
        if is_first {
            shared.changed.notify_all();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.shared.lock().wakers.remove(&(self.at, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_takes_too_long_is_given_up_and_nothing_else() {
        let timer = Timer::start().unwrap();
        let wait = |future| remora::wait_for(future, LONG).unwrap();
        assert_eq!(wait(timer.within(LONG, ready(Some(7)))), Some(Some(7)));
        assert_eq!(wait(timer.within(Duration::MAX, ready(Some(7)))), Some(Some(7)));
        let soon = Duration::from_millis(1);
        let never = timer.within(soon, pending::<Option<u32>>());
        assert_eq!(remora::wait_for(never, LONG).unwrap(), None);
        // The one that ends first was asked for last.
        let both = async {
            let (mut late, mut early) = (timer.sleep(LONG), timer.sleep(soon));
            poll_fn(|context| {
                assert!(Pin::new(&mut late).poll(context).is_pending());
                Pin::new(&mut early).poll(context)
            })
            .await;
        };
        remora::wait_for(both, LONG).unwrap();
        assert!(timer.0.lock().wakers.is_empty(), "what is dropped is forgotten");
    }
}
