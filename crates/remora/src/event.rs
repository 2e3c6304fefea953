//! A counter in the kernel that wakes a sleeping thread or a reactor.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// A counter in the kernel. Its descriptor is readable while the counter is not zero.
///
/// Any thread may notify and any may drain; neither ever blocks.
#[derive(Debug)]
pub struct Event {
    file: File,
}

impl Event {
    /// A counter of zero.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub fn new() -> io::Result<Event> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Event { file: fd.into() })
    }

    /// Adds one, and so wakes the threads that poll the descriptor.
    ///
    /// # Errors
    /// None that can be expected. A full counter is no error: it is readable already.
    pub fn notify(&self) -> io::Result<()> {
        match (&self.file).write(&1u64.to_ne_bytes()) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(()),
        }
    }

    /// Sets the counter to zero; returns how often it was notified since the last call.
    ///
    /// # Errors
    /// None that can be expected. A counter of zero is no error.
    pub fn drain(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        match (&self.file).read(&mut count) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(e),
            Ok(_) => Ok(u64::from_ne_bytes(count)),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Wakes the thread that sleeps on `event`. This only fails if the descriptor is not an event's.
pub(crate) fn wake(event: &Event) {
    if let Err(error) = event.notify() {
        tracing::error!(%error, "cannot wake a waiting thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn readable(event: &Event) -> bool {
        let mut poll =
            libc::pollfd { fd: event.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn notifications_add_up_until_drained() {
        let event = Event::new().unwrap();
        assert!(!readable(&event));
        assert_eq!(event.drain().unwrap(), 0);
        event.notify().unwrap();
        event.notify().unwrap();
        assert!(readable(&event));
        assert_eq!(event.drain().unwrap(), 2);
        assert!(!readable(&event));
    }
}
