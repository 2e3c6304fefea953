//! Those who are told that something has changed, and do not sleep on it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

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
