//! Tasks that are to be woken when the driver's lock is free again.
//!
//! The card's news appear under the driver's lock. A waker runs code of the application, or of its
//! executor, and that code may take the same lock. So news are noted here, and delivered by a
//! thread that holds no lock: by the thread that drives, if it says so ([`Wakes::here`]; the
//! background thread and a thread that polls a future do), and otherwise by the background thread,
//! which is woken for it. No news wait for anything but the delivering thread's next look.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use crate::event::Event;

thread_local! {
    /// The address of the [`Wakes`] whose news this thread delivers.
    static DELIVERS: Cell<usize> = const { Cell::new(0) };
}

/// A set of requests that an entry of its completion queue is news for.
pub(crate) trait Concerned: fmt::Debug + Send + Sync {
    /// Takes what has come, and wakes the tasks that wait for it. The caller holds no lock.
    fn take_news(&self);
}

/// The news of one device that are not delivered yet.
#[derive(Debug)]
pub(crate) struct Wakes {
    any: AtomicBool,
    concerned: Mutex<VecDeque<Weak<dyn Concerned>>>,
    /// Connection management has news.
    cm: AtomicBool,
    /// Tasks that wait for such.
    cm_waiting: Mutex<Vec<Waker>>,
    /// Wakes the background thread.
    background: Arc<Event>,
}

impl Wakes {
    pub(crate) fn new(background: Arc<Event>) -> Wakes {
        Wakes {
            any: AtomicBool::new(false),
            concerned: Mutex::default(),
            cm: AtomicBool::new(false),
            cm_waiting: Mutex::default(),
            background,
        }
    }

    /// There is news for `concerned`.
    pub(crate) fn note(&self, concerned: Weak<dyn Concerned>) {
        lock(&self.concerned).push_back(concerned);
        self.announce();
    }

    /// Connection management has news. Where no task waits for any, there is nothing to deliver.
    pub(crate) fn note_cm(&self) {
        if !lock(&self.cm_waiting).is_empty() {
            self.cm.store(true, Ordering::Release);
            self.announce();
        }
    }

    /// Wakes a task at the next news of connection management. The caller holds the driver's lock,
    /// and has seen that there is none for it yet.
    pub(crate) fn wait_for_cm(&self, waker: &Waker) {
        let mut waiting = lock(&self.cm_waiting);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    fn announce(&self) {
        self.any.store(true, Ordering::Release);
        if DELIVERS.get() != ptr::from_ref(self).addr() {
            crate::event::wake(&self.background);
        }
    }

    /// Is there anything to deliver?
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Delivers all there is. The caller holds no lock.
    pub(crate) fn deliver(&self) {
        if !self.any() || !self.any.swap(false, Ordering::AcqRel) {
            return;
        }
        loop {
            let Some(concerned) = lock(&self.concerned).pop_front() else { break };
            if let Some(concerned) = concerned.upgrade() {
                concerned.take_news();
            }
        }
        if self.cm.swap(false, Ordering::AcqRel) {
            let waiting = std::mem::take(&mut *lock(&self.cm_waiting));
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Until the guard is dropped, this thread delivers what it notes, and wakes no other thread
    /// for it.
    pub(crate) fn here(&self) -> Here<'_> {
        Here { wakes: self, before: DELIVERS.replace(ptr::from_ref(self).addr()) }
    }
}

/// Delivers when it is dropped, which must be without the driver's lock.
#[derive(Debug)]
pub(crate) struct Here<'a> {
    wakes: &'a Wakes,
    before: usize,
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        DELIVERS.set(self.before);
        self.wakes.deliver();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
