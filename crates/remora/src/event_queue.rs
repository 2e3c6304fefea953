//! A queue of events behind a descriptor that programs poll, make non-blocking, and sleep on.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::alarm::Alarm;
pub use crate::alarm::Sleep;

/// Events, oldest first, and the descriptor that is readable while there are any.
pub struct EventQueue<E> {
    alarm: Arc<Alarm>,
    inner: Mutex<Inner<E>>,
}

struct Inner<E> {
    events: VecDeque<E>,
    /// Threads that will look at the queue in any case: none has to be woken.
    lookers: u32,
}

/// Learns of the next entry of an armed completion queue, under the driver's lock.
pub(crate) trait Notify: fmt::Debug + Send + Sync {
    /// Completion queue `cq` has an entry.
    fn push(&self, cq: u32);
}

impl Notify for EventQueue<u32> {
    fn push(&self, cq: u32) {
        EventQueue::push(self, cq);
    }
}

impl<E> EventQueue<E> {
    /// An empty queue, with a blocking descriptor.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub fn new() -> io::Result<EventQueue<E>> {
        let inner = Inner { events: VecDeque::new(), lookers: 0 };
        Ok(EventQueue { alarm: Arc::new(Alarm::new()?), inner: Mutex::new(inner) })
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Is there nothing to fetch?
    pub fn is_empty(&self) -> bool {
        self.lock().events.is_empty()
    }

    /// Adds an event, and wakes a thread that sleeps on the descriptor.
    pub fn push(&self, event: E) {
        let mut inner = self.lock();
        inner.events.push_back(event);
        self.settle(&inner);
    }

    /// Takes the oldest event, if there is one, after `note` has seen it under the queue's lock.
    pub fn pop<R>(&self, note: impl FnOnce(E) -> R) -> Option<R> {
        let mut inner = self.lock();
        let taken = inner.events.pop_front().map(note);
        self.settle(&inner);
        taken
    }

    /// Has the program made the descriptor non-blocking?
    ///
    /// # Errors
    /// The program has closed the descriptor.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        self.alarm.is_nonblocking()
    }

    /// As [`EventQueue::pop`]; waits for an event if there is none.
    ///
    /// # Errors
    /// The system's error of reading a descriptor: a signal came.
    pub fn wait<R>(&self, note: impl Fn(E) -> R) -> io::Result<R> {
        loop {
            if let Some(taken) = self.pop(&note) {
                return Ok(taken);
            }
            self.alarm.sleep()?;
        }
    }

    /// Begins a sleep until there may be an event: the caller has looked with [`EventQueue::pop`],
    /// and reads 8 bytes from the descriptor of what this returns, however that ends. Then it calls
    /// [`EventQueue::end_sleep`], and looks again: another thread may take the event first.
    pub fn begin_sleep(&self) -> Sleep {
        self.alarm.begin_sleep()
    }

    /// Ends a sleep whose read has succeeded.
    pub fn end_sleep(&self, sleep: Sleep) {
        self.alarm.end_sleep(sleep);
    }

    /// As [`EventQueue::pop`]; if there is no event, waits for one if the descriptor is blocking.
    ///
    /// # Errors
    /// `EAGAIN`, if the descriptor is not blocking; else those of
    /// [`EventQueue::wait`].
    pub fn take<R>(&self, note: impl Fn(E) -> R) -> io::Result<R> {
        match self.pop(&note) {
            Some(taken) => Ok(taken),
            None if self.is_nonblocking()? => Err(Errno::AGAIN.into()),
            None => self.wait(note),
        }
    }

    /// Withdraws the events that `which` selects, and returns them, oldest first.
    pub fn withdraw(&self, which: impl Fn(&E) -> bool) -> Vec<E> {
        let mut inner = self.lock();
        let all = mem::take(&mut inner.events);
        let (taken, left): (Vec<E>, Vec<E>) = all.into_iter().partition(which);
        inner.events = left.into();
        self.settle(&inner);
        taken
    }

    /// Until the guard is dropped, events that are added need not wake a thread: the caller looks
    /// at the queue before that.
    pub(crate) fn looking(&self) -> Looking<'_, E> {
        self.lock().lookers += 1;
        Looking { queue: self }
    }

    /// Makes the descriptor readable if there are events, else unreadable.
    fn settle(&self, inner: &Inner<E>) {
        match inner.events.is_empty() {
            true => self.alarm.hush(),
            false if inner.lookers == 0 => self.alarm.ring(),
            false => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<E>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that looks at a queue.
#[derive(Debug)]
pub(crate) struct Looking<'a, E> {
    queue: &'a EventQueue<E>,
}

impl<E> Drop for Looking<'_, E> {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        inner.lookers -= 1;
        if !inner.events.is_empty() {
            self.queue.settle(&inner);
        }
    }
}

impl<E> AsRawFd for EventQueue<E> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<E> AsFd for EventQueue<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}

impl<E> fmt::Debug for EventQueue<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue").field("alarm", &self.alarm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    fn would_block(queue: &EventQueue<u32>) -> bool {
        queue.take(|e| e).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn non_blocking() -> EventQueue<u32> {
        let queue = EventQueue::new().unwrap();
        fcntl_setfl(&queue, OFlags::NONBLOCK).unwrap();
        queue
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events() {
        let queue = non_blocking();
        assert!(would_block(&queue));
        queue.push(1);
        queue.push(2);
        assert!(is_readable(&queue));
        assert_eq!(queue.take(|e| e).unwrap(), 1);
        assert!(is_readable(&queue));
        assert_eq!(queue.take(|e| e).unwrap(), 2);
        assert!(!is_readable(&queue));
    }

    #[test]
    fn a_withdrawn_event_is_never_fetched() {
        let queue = non_blocking();
        [1, 2, 1].into_iter().for_each(|event| queue.push(event));
        assert_eq!(queue.withdraw(|&e| e == 1), [1, 1]);
        assert_eq!(queue.take(|e| e).unwrap(), 2);
        assert!(!is_readable(&queue) && would_block(&queue));
        queue.push(1);
        queue.withdraw(|&e| e == 1);
        assert!(!is_readable(&queue));
    }

    #[test]
    fn events_for_a_thread_that_looks_wake_none_unless_it_leaves_them() {
        let queue = non_blocking();
        let looking = queue.looking();
        queue.push(1);
        assert!(!is_readable(&queue));
        assert_eq!(queue.pop(|e| e), Some(1));
        queue.push(2);
        drop(looking);
        assert!(is_readable(&queue));
        assert_eq!(queue.pop(|e| e), Some(2));
        drop(queue.looking());
        assert!(!is_readable(&queue));
    }

    #[test]
    fn taking_waits_for_an_event() {
        let queue = EventQueue::new().unwrap();
        std::thread::scope(|scope| {
            let takers = [(); 3].map(|()| scope.spawn(|| queue.take(|e: u32| e).unwrap()));
            [1, 2, 4].into_iter().for_each(|event| queue.push(event));
            assert_eq!(takers.map(|taker| taker.join().unwrap()).iter().sum::<u32>(), 7);
        });
    }
}
