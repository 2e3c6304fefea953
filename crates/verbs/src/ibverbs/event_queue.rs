//! A queue of events behind a descriptor that programs poll, make non-blocking, and sleep on.
//!
//! The descriptor is a counting one (`eventfd` as a semaphore): one count an event. Taking an event
//! reads a count, so whether that waits is for the kernel to know: it is a property of the
//! descriptor, which programs change by `fcntl`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Result;

/// Events, oldest first, and the descriptor that tells of them.
pub struct EventQueue<E> {
    fd: OwnedFd,
    events: Mutex<VecDeque<E>>,
}

impl<E> EventQueue<E> {
    /// An empty queue.
    ///
    /// # Errors
    /// Too many open files.
    pub fn new() -> io::Result<EventQueue<E>> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventQueue { fd, events: Mutex::default() })
    }

    /// The descriptor: readable while there are events.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Is there nothing to fetch?
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Adds an event, and wakes one who waits.
    pub fn push(&self, event: E) {
        let mut events = self.lock();
        events.push_back(event);
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor is ours and open, and the buffer has 8 bytes. The counter never
        // comes near its limit, so that the write does not wait.
        let wrote = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
        if wrote != 8 {
            tracing::error!("cannot wake who waits for events");
        }
    }

    /// Takes the oldest event, when `note` has seen it under the lock; waits for one, if
    /// the descriptor is a blocking one.
    ///
    /// # Errors
    /// What the system says of the descriptor: `EAGAIN`, `EINTR`.
    pub fn take<R>(&self, note: impl Fn(E) -> R) -> Result<R> {
        loop {
            let mut count = [0u8; 8];
            // SAFETY: the descriptor is ours and open, and the buffer has 8 bytes.
            let read = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
            if read < 0 {
                return Err(io::Error::last_os_error().into());
            }
            let mut events = self.lock();
            if let Some(event) = events.pop_front() {
                return Ok(note(event));
            }
            // The event was withdrawn after its count was read.
        }
    }

    /// Withdraws events.
    pub fn withdraw(&self, which: impl Fn(&E) -> bool) {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|event| !which(event));
        for _ in events.len()..before {
            self.uncount();
        }
    }

    /// Takes back a count without waiting. Somebody else may have read it and find no event: see
    /// [`EventQueue::take`]. Where the kernel cannot do that, the descriptor may tell of an event
    /// that is none; taking then waits for the next.
    fn uncount(&self) {
        let mut count = [0u8; 8];
        let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: one buffer of 8 bytes, which lives through the call.
        unsafe { libc::preadv2(self.fd(), &into, 1, -1, libc::RWF_NOWAIT) };
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<E>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E> std::fmt::Debug for EventQueue<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").field("fd", &self.fd).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Errno;
    use super::*;

    fn is_readable<E>(queue: &EventQueue<E>) -> bool {
        let mut poll = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    fn make_nonblocking<E>(queue: &EventQueue<E>) {
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    }

    #[test]
    fn the_descriptor_tells_of_each_event() {
        let queue = EventQueue::new().unwrap();
        make_nonblocking(&queue);
        assert_eq!(queue.take(|e: u32| e), Err(Errno(libc::EAGAIN)));
        queue.push(1);
        queue.push(2);
        assert!(is_readable(&queue));
        assert_eq!(queue.take(|e| e), Ok(1));
        assert!(is_readable(&queue));
        assert_eq!(queue.take(|e| e), Ok(2));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn what_is_withdrawn_is_not_told() {
        let queue = EventQueue::new().unwrap();
        make_nonblocking(&queue);
        for event in [1, 2, 1] {
            queue.push(event);
        }
        queue.withdraw(|&e| e == 1);
        assert_eq!(queue.take(|e| e), Ok(2));
        assert!(!is_readable(&queue));
        assert_eq!(queue.take(|e| e), Err(Errno(libc::EAGAIN)));
    }

    #[test]
    fn taking_waits_for_an_event() {
        let queue = EventQueue::new().unwrap();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| queue.take(|e: u32| e));
            queue.push(7);
            assert_eq!(taker.join().unwrap(), Ok(7));
        });
    }
}
