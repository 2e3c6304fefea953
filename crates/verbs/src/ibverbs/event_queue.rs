//! A queue of events behind a descriptor that programs poll, make non-blocking, and sleep on.
//!
//! The descriptor is an `eventfd` that works as a semaphore: its count is the number of events.
//! Taking an event reads one count, so the kernel decides whether that waits: blocking is a
//! property of the descriptor, which programs change by `fcntl`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Result;

/// Events, oldest first, and the descriptor that is readable while there are any.
pub struct EventQueue<E> {
    fd: OwnedFd,
    events: Mutex<VecDeque<E>>,
}

impl<E> EventQueue<E> {
    /// An empty queue.
    ///
    /// # Errors
    /// The system's: too many open files.
    pub fn new() -> io::Result<EventQueue<E>> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
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

    /// Adds an event, and wakes a thread that waits.
    pub fn push(&self, event: E) {
        let mut events = self.lock();
        events.push_back(event);
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor is open and the buffer has 8 bytes. The counter never comes near
        // its limit, so the write does not wait.
        let wrote = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
        if wrote != 8 {
            tracing::error!("cannot wake the threads that wait for events");
        }
    }

    /// Takes the oldest event, after `note` has seen it under the lock. If there is none, waits for
    /// one if the descriptor is blocking.
    ///
    /// # Errors
    /// The system's error of reading the descriptor: `EAGAIN`, `EINTR`.
    pub fn take<R>(&self, note: impl Fn(E) -> R) -> Result<R> {
        loop {
            let mut count = [0u8; 8];
            // SAFETY: the descriptor is open and the buffer has 8 bytes.
            let read = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
            if read < 0 {
                return Err(io::Error::last_os_error().into());
            }
            let mut events = self.lock();
            if let Some(event) = events.pop_front() {
                return Ok(note(event));
            }
            // The event was withdrawn after this thread had read its count.
        }
    }

    /// Withdraws the events that `which` selects.
    pub fn withdraw(&self, which: impl Fn(&E) -> bool) {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|event| !which(event));
        for _ in events.len()..before {
            self.uncount();
        }
    }

    /// Takes one count back without waiting. If another thread has read it already, that thread
    /// finds no event: see [`EventQueue::take`]. If the kernel cannot read without waiting, the
    /// descriptor may stay readable without an event; taking then waits for the next one.
    fn uncount(&self) {
        let mut count = [0u8; 8];
        let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: the one buffer of 8 bytes lives through the call.
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
        // SAFETY: the one entry lives through the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    fn make_nonblocking<E>(queue: &EventQueue<E>) {
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events() {
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
    fn a_withdrawn_event_is_never_fetched() {
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
