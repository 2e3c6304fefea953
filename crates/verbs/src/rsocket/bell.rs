//! Bells: how a call that takes a socket's events wakes the others that sleep until they come.
//!
//! Calls sleep on a socket's descriptors, which are silent again once any call has taken the events
//! behind them. So a call that is about to sleep hangs a bell of its own at each socket, under the
//! socket's lock, and a call that takes events there rings all the bells.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};

use libc::pollfd;
use remora::event::Event;

use crate::sleep::readable;

/// The bell of a call, for one sleep.
#[derive(Debug)]
pub(super) struct Bell(Option<Arc<Event>>);

impl Bell {
    pub(super) fn new() -> Bell {
        let event = Event::new().inspect_err(|error| {
            tracing::debug!(%error, "a call sleeps without a bell, and so looks again by itself");
        });
        Bell(event.ok().map(Arc::new))
    }

    /// The entry to sleep on, besides those of the sockets.
    pub(super) fn entry(&self) -> Option<pollfd> {
        self.0.as_ref().map(|event| readable(event.as_fd().as_raw_fd()))
    }
}

/// The bells that hang at a socket.
#[derive(Debug, Default)]
pub(super) struct Bells(Vec<Weak<Event>>);

impl Bells {
    pub(super) fn hang(&mut self, bell: &Bell) {
        self.0.retain(|bell| bell.strong_count() > 0);
        self.0.extend(bell.0.as_ref().map(Arc::downgrade));
    }

    /// Wakes the calls that sleep on the socket. A bell rings once: its call then looks for itself.
    pub(super) fn ring(&mut self) {
        for event in self.0.drain(..).filter_map(|bell| bell.upgrade()) {
            if let Err(error) = event.notify() {
                tracing::error!(%error, "cannot wake a call that sleeps on a socket");
            }
        }
    }
}
