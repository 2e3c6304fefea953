//! The gate of a store's memory: a client that reads it without asking can be stopped at once.
//!
//! A READ and a chain look at the memory without a kernel, so nothing else can refuse them. A store
//! whose right to answer may end (the primary of a group) closes its gate before it gives that
//! right up: the queue pairs that reached the memory are in the error state when [`Gate::close`]
//! returns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remora::QueuePair;
use remora::nic::qp::{QpAttr, State};

/// Who is inside, and whether others may come in.
#[derive(Default)]
pub struct Gate(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    is_closed: bool,
    /// By number.
    queue_pairs: BTreeMap<u32, QueuePair>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("is_closed", &self.lock().is_closed).finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate that is closed; [`Gate::default`] is open.
    #[must_use]
    pub fn closed() -> Gate {
        Gate(Mutex::new(Inside { is_closed: true, ..Inside::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connections that were made while it was closed. Those that come from now on reach
    /// the memory.
    pub fn open(&self) {
        self.lock().set(false);
    }

    /// Ends the connections that reach the memory. Those that come from now on reach kernels only.
    pub fn close(&self) {
        self.lock().set(true);
    }

    /// Lets a client in whose queue pair `make` makes, given whether it may reach the memory.
    pub(super) fn enter<E>(
        &self,
        make: impl FnOnce(bool) -> Result<QueuePair, E>,
    ) -> Result<QueuePair, E> {
        // Under the lock, so that no queue pair gets ready behind one that is closing.
        let mut inside = self.lock();
        let queue_pair = make(!inside.is_closed)?;
        inside.queue_pairs.insert(queue_pair.qpn(), queue_pair.clone());
        Ok(queue_pair)
    }

    /// A client is gone.
    pub(super) fn leave(&self, qpn: u32) {
        self.lock().queue_pairs.remove(&qpn);
    }
}

impl Inside {
    fn set(&mut self, is_closed: bool) {
        if std::mem::replace(&mut self.is_closed, is_closed) == is_closed {
            return;
        }
        let error = QpAttr { state: Some(State::Error), ..QpAttr::default() };
        for queue_pair in std::mem::take(&mut self.queue_pairs).into_values() {
            if let Err(error) = queue_pair.modify(&error) {
                // Every state of a queue pair leads to the error state.
                panic!("a queue pair does not go to the error state: {error}");
            }
        }
    }
}
