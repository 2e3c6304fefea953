//! A counter in the kernel that wakes a sleeping thread or a reactor.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

unsafe extern "C-unwind" {
    /// As `libc::read`, which is declared so that a thread cannot be unwound from there.
    fn read(fd: libc::c_int, into: *mut libc::c_void, len: usize) -> isize;
}

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
        Event::with(libc::EFD_NONBLOCK)
    }

    /// As [`Event::new`], for threads that [wait](Event::wait).
    pub(crate) fn blocking() -> io::Result<Event> {
        Event::with(0)
    }

    fn with(flags: libc::c_int) -> io::Result<Event> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
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

    /// As [`Event::drain`], for an event that [blocks](Event::blocking), and whose counter another
    /// thread may read meanwhile.
    pub(crate) fn drain_without_waiting(&self) -> io::Result<()> {
        let mut count = [0; 8];
        let mut into = [IoSliceMut::new(&mut count)];
        match preadv2(&self.file, &mut into, u64::MAX, ReadWriteFlags::NOWAIT) {
            // Linux before 5.8 cannot say for such descriptors that a read would wait.
            Err(Errno::OPNOTSUPP) => self.drain().map(drop),
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Sleeps until the counter of an event that [blocks](Event::blocking) is not zero, and sets it
    /// to zero. A thread may be cancelled here, as in `read`.
    ///
    /// # Errors
    /// `EINTR`, where the handler of a signal does not let reads go on.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut count = [0u8; 8];
        let (fd, into) = (self.file.as_raw_fd(), count.as_mut_ptr().cast());
        // SAFETY: the descriptor is open, and the buffer lives through the call and has 8 bytes.
        let read = unsafe { read(fd, into, count.len()) };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl From<OwnedFd> for Event {
    /// The event of a descriptor that another process has made.
    fn from(descriptor: OwnedFd) -> Event {
        Event { file: descriptor.into() }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A descriptor that is never readable, in the place of one that would wake.
///
/// # Errors
/// The process or the system has too many open files.
pub(crate) fn never() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Wakes the thread that sleeps on `event`. This only fails if the descriptor is not an event's.
pub(crate) fn wake(event: &Event) {
    if let Err(error) = event.notify() {
        tracing::error!(%error, "cannot wake a waiting thread");
    }
}

/// Takes descriptors that came to this process when its program was started: those of these
/// numbers. From then on they close as all others do, and are passed on to no other program.
///
/// # Errors
/// `EBADF`: there is none of such a number, or this program has made it, or it was taken.
pub(crate) fn take_inherited(numbers: Range<RawFd>) -> io::Result<Vec<OwnedFd>> {
    // Of two threads, the second one finds the marks of the first.
    static TAKING: Mutex<()> = Mutex::new(());
    let _taking = TAKING.lock();
    let take = |number| {
        // SAFETY: no pointers are passed.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            return Err(Errno::BADF.into());
        }
        // SAFETY: no pointers are passed.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: what this program makes is closed on `exec`. This one was not marked so: it came
        // by `exec`, and so has no other owner; it is marked now, and so will have none.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    };
    numbers.map(take).collect()
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

    /// Others of this process have owners.
    #[test]
    fn only_what_was_inherited_is_taken() {
        let event = Event::new().unwrap();
        let number = event.as_fd().as_raw_fd();
        for number in [number, i32::MAX - 1] {
            let refused = take_inherited(number..number + 1).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
        }
        // SAFETY: no pointers are passed, and nobody else knows the copy.
        let copy = unsafe { libc::dup(number) };
        let taken = take_inherited(copy..copy + 1).unwrap();
        assert!(take_inherited(copy..copy + 1).is_err(), "once");
        assert_eq!(taken[0].as_raw_fd(), copy);
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
