//! How a client that sleeps is woken: a session's, or one of a DMA channel.
//!
//! The two ends of a pipe are two open files: the client has the reading one, and nothing that it
//! does to it (a change of its flags, an empty or a full pipe) lets a write of the daemon wait. An
//! event's counter would be one open file for both, and a client that fills it and makes it
//! blocking would stop the thread that drives the card.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Bytes of room: wake-ups that nobody has taken.
const ROOM: usize = 4096;

/// A pipe whose reading end wakes a client.
#[derive(Debug)]
pub struct Wake {
    /// Kept, so that a write never finds a pipe without a reader.
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Wake {
    /// An empty pipe.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub fn new() -> io::Result<Wake> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A user's pipes have so many pages in all; where the system keeps its size, so be it.
        fcntl_setpipe_size(&writer, ROOM).ok();
        Ok(Wake { reader, writer })
    }

    /// The client's end.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Wakes the client. A pipe that is full is readable already.
    pub fn wake(&self) {
        match rustix::io::write(&self.writer, &[1]) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => tracing::error!(%error, "cannot wake a client"),
        }
    }
}

/// Takes all wake-ups out of a pipe's reading end, which does not block. Returns whether anybody
/// has the writing end still.
///
/// # Errors
/// The descriptor is none of a pipe.
pub(crate) fn drain(reader: BorrowedFd<'_>) -> io::Result<bool> {
    let mut bytes = [0; 64];
    loop {
        match rustix::io::read(reader, &mut bytes) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_read_stops_nobody() {
        let wake = Wake::new().unwrap();
        let reader = wake.reader().try_clone_to_owned().unwrap();
        let mut bytes = [0; 2 * ROOM];
        assert_eq!(rustix::io::read(&reader, &mut bytes), Err(Errno::AGAIN));
        wake.wake();
        wake.wake();
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(2));
        rustix::io::ioctl_fionbio(&reader, false).unwrap();
        (0..3 * ROOM).for_each(|_| wake.wake());
        assert!(rustix::io::read(&reader, &mut bytes).unwrap() > 0);
        drop(reader);
        wake.wake();
    }

    #[test]
    fn a_client_learns_that_nobody_will_wake_it() {
        let wake = Wake::new().unwrap();
        let reader = wake.reader().try_clone_to_owned().unwrap();
        wake.wake();
        assert!(drain(reader.as_fd()).unwrap());
        drop(wake);
        assert!(!drain(reader.as_fd()).unwrap());
    }
}
