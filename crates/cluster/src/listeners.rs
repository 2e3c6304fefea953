//! Those who are told that something has changed: threads that sleep until then, and others.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Listener = Box<dyn Fn() + Send + Sync>;

/// Those who are told. They must not wait: a node's lock may be held meanwhile.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Listener>>);

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").finish_non_exhaustive()
    }
}

impl Listeners {
    pub(crate) fn add(&self, listener: Listener) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    pub(crate) fn tell(&self) {
        for listener in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            listener();
        }
    }
}

/// Threads that sleep until what a lock guards has changed. To wake nobody costs no system call.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    changed: Condvar,
    /// How many there are: changed and read under the lock.
    count: AtomicUsize,
}

impl Sleepers {
    /// Sleeps until something has changed, or for a while.
    pub(crate) fn sleep<'l, T>(
        &self,
        guard: MutexGuard<'l, T>,
        at_most: Duration,
    ) -> MutexGuard<'l, T> {
        self.count.fetch_add(1, Relaxed);
        let slept = self.changed.wait_timeout(guard, at_most);
        let (guard, _) = slept.unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_sub(1, Relaxed);
        guard
    }

    /// The lock is held.
    pub(crate) fn wake_all(&self) {
        if self.count.load(Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}
