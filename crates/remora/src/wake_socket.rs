//! How a client that sleeps is woken: a session's, or one of a DMA channel.
//!
//! The two ends of a pair of sockets are two open files: the client has the one, and nothing that
//! it does to it (a change of its flags, no reading, or a read that does not end) lets a wake-up by
//! the other wait, or brings anything to the daemon. An event's counter would be one open file for
//! both, and a client that fills it and makes it blocking would stop the thread that drives the
//! card. So would a pipe's: a writer waits for a reader that is in the middle of its read, and that
//! one may wait for a page, or for another file into which it splices.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};

/// Bytes of the system's memory for wake-ups that nobody has taken. (It gives the least it can.)
const ROOM: usize = 4096;

/// A pair of sockets, one of which wakes a client.
#[derive(Debug)]
pub struct Wake {
    /// Kept, to be passed on.
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Wake {
    /// A pair by which nothing has come.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub fn new() -> io::Result<Wake> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (reader, writer) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        set_socket_send_buffer_size(&writer, ROOM)?;
        // What a client sent would be closed with this end, descriptors included.
        shutdown(&writer, Shutdown::Read)?;
        Ok(Wake { reader, writer })
    }

    /// The client's end.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Wakes the client. A socket that is full is readable already.
    pub fn wake(&self) {
        match send(&self.writer, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            // One that has shut its end wants to hear no more.
            Ok(_) | Err(Errno::AGAIN | Errno::PIPE) => {}
            Err(error) => tracing::error!(%error, "cannot wake a client"),
        }
    }
}

/// Takes all wake-ups out of a client's end, which does not block. Returns whether anybody has the
/// other end still.
///
/// # Errors
/// The descriptor is none of a client's end.
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
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use rustix::pipe::{SpliceFlags, splice};

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

    /// It takes the wake-ups by a call that does not end: into a socket that is full.
    #[test]
    fn a_client_in_the_middle_of_a_read_stops_nobody() {
        let wake = Wake::new().unwrap();
        wake.wake();
        let reader = wake.reader().try_clone_to_owned().unwrap();
        let (mut full, other) = UnixStream::pair().unwrap();
        full.set_nonblocking(true).unwrap();
        while full.write(&[0; 1 << 16]).is_ok() {}
        while full.write(&[0]).is_ok() {}
        full.set_nonblocking(false).unwrap();
        let (tells, told) = std::sync::mpsc::channel();
        let taking = std::thread::spawn(move || {
            tells.send(rustix::thread::gettid()).unwrap();
            splice(reader, None, full, None, 64, SpliceFlags::empty()).ok();
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap().as_raw_nonzero());
        let waits = || {
            let state = std::fs::read_to_string(&stat).unwrap_or_default();
            state.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
        };
        while !taking.is_finished() && !waits() {
            std::thread::yield_now();
        }
        wake.wake();
        drop(other);
        taking.join().unwrap();
    }

    #[test]
    fn a_client_sends_nothing_and_may_hear_no_more() {
        let wake = Wake::new().unwrap();
        let reader = wake.reader().try_clone_to_owned().unwrap();
        assert_eq!(send(&reader, &[1], SendFlags::NOSIGNAL), Err(Errno::PIPE));
        shutdown(&reader, Shutdown::Both).unwrap();
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
