//! Asynchronous events. (To be: this is what `context` needs of it.)

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use remora::event::Event;

/// A context's asynchronous events.
#[derive(Debug)]
pub struct Events {
    ready: Event,
}

impl Events {
    /// None yet.
    pub fn new() -> io::Result<Events> {
        Ok(Events { ready: Event::new()? })
    }

    /// Readable while there are any.
    pub fn fd(&self) -> RawFd {
        self.ready.as_fd().as_raw_fd()
    }
}
