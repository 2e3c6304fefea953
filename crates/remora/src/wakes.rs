//! How a waiting task is woken: without the driver's lock.
//!
//! *News* is a completion, or an event of connection management, that a task may wait for. News
//! comes up under the driver's lock. A waker runs code of the application or of its executor, and
//! that code may take the same lock. So the thread that drives only notes the news here, and a
//! thread that holds no lock delivers it:
//!
//! - the thread that drives, if it has announced that it will ([`Wakes::here`]): the background
//!   thread, and a thread that polls a future;
//! - otherwise the background thread, which is woken to do so.
//!
//! [`request::queue`](crate::request) takes the news of requests, and `connection/handshake.rs`
//! that of connections.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use crate::connection::inbox::Topic;
use crate::event::Event;

thread_local! {
    /// The address of the [`Wakes`] whose news this thread delivers.
    static DELIVERS: Cell<usize> = const { Cell::new(0) };
}

/// The requests of a queue pair: an entry of their completion queue is news for them.
pub(crate) trait Concerned: fmt::Debug + Send + Sync {
    /// Takes the entries that have come, and wakes the tasks that wait for them. The caller holds
    /// no lock.
    fn take_news(&self);
}

/// The news of one device that is not delivered yet.
#[derive(Debug)]
pub(crate) struct Wakes {
    any: AtomicBool,
    concerned: Mutex<VecDeque<Weak<dyn Concerned>>>,
    cm: Mutex<Cm>,
    /// Wakes the background thread.
    background: Arc<Event>,
}

/// News of connection management.
#[derive(Debug, Default)]
struct Cm {
    /// The futures that wait, by what they wait for, each with its number.
    waiting: HashMap<Topic, Vec<(u64, Waker)>>,
    /// How many futures have waited.
    futures: u64,
    /// The tasks whose news has come.
    due: Vec<Waker>,
}

impl Wakes {
    pub(crate) fn new(background: Arc<Event>) -> Wakes {
        Wakes {
            any: AtomicBool::new(false),
            concerned: Mutex::default(),
            cm: Mutex::default(),
            background,
        }
    }

    /// Notes that there is news for `concerned`.
    pub(crate) fn note(&self, concerned: Weak<dyn Concerned>) {
        lock(&self.concerned).push_back(concerned);
        self.announce();
    }

    /// Notes news of connection management. Where no task waits for it, nothing is to be delivered.
    pub(crate) fn note_cm(&self, topic: Topic) {
        let mut cm = lock(&self.cm);
        if let Some(waiting) = cm.waiting.remove(&topic) {
            cm.due.extend(waiting.into_iter().map(|(_, waker)| waker));
            drop(cm);
            self.announce();
        }
    }

    /// As [`Wakes::note_cm`], for all that tasks wait for.
    pub(crate) fn note_all_cm(&self) {
        let mut cm = lock(&self.cm);
        let waiting = std::mem::take(&mut cm.waiting);
        cm.due.extend(waiting.into_values().flatten().map(|(_, waker)| waker));
        drop(cm);
        self.announce();
    }

    /// A number for a future that may wait for news of connection management.
    pub(crate) fn new_future(&self) -> u64 {
        let mut cm = lock(&self.cm);
        cm.futures += 1;
        cm.futures
    }

    /// Wakes a future's task at the next news about `topic`. The caller holds the driver's lock,
    /// and has found no news for the future under it; so none is missed. Returns the waker that the
    /// future had before, if it is another one. The caller drops that once it holds no lock: the
    /// last one of a task drops the task, and what is in it.
    #[must_use]
    pub(crate) fn wait_for_cm(&self, topic: Topic, future: u64, waker: &Waker) -> Option<Waker> {
        let mut cm = lock(&self.cm);
        let waiting = cm.waiting.entry(topic).or_default();
        match waiting.iter_mut().find(|(number, _)| *number == future) {
            Some((_, before)) if before.will_wake(waker) => None,
            Some((_, before)) => Some(std::mem::replace(before, waker.clone())),
            None => {
                waiting.push((future, waker.clone()));
                None
            }
        }
    }

    /// A future waits for news about `topic` no more. Its waker is to be dropped as in
    /// [`Wakes::wait_for_cm`].
    #[must_use]
    pub(crate) fn leave_cm(&self, topic: Topic, future: u64) -> Option<Waker> {
        let mut cm = lock(&self.cm);
        let waiting = cm.waiting.get_mut(&topic)?;
        let at = waiting.iter().position(|(number, _)| *number == future)?;
        let (_, waker) = waiting.swap_remove(at);
        if waiting.is_empty() {
            cm.waiting.remove(&topic);
        }
        Some(waker)
    }

    /// Nobody waits for news about `topic` any more. The wakers are to be dropped as in
    /// [`Wakes::wait_for_cm`].
    #[must_use]
    pub(crate) fn forget_cm(&self, topic: Topic) -> Vec<(u64, Waker)> {
        lock(&self.cm).waiting.remove(&topic).unwrap_or_default()
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

    /// Delivers all news. The caller holds no lock.
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
        let due = std::mem::take(&mut lock(&self.cm).due);
        due.into_iter().for_each(Waker::wake);
    }

    /// Until the guard is dropped, this thread delivers the news that it notes, and wakes no other
    /// thread for that.
    pub(crate) fn here(&self) -> Here<'_> {
        Here { wakes: self, before: DELIVERS.replace(ptr::from_ref(self).addr()) }
    }
}

/// Delivers all news when it is dropped. The thread must not hold the driver's lock then.
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
