//! The descriptor of a completion channel: a program sleeps on it, and makes it non-blocking.
//!
//! It is an `epoll` descriptor, and so readable while anything behind it is: the *bell*, a counter
//! that the card rings when there are events, and at times the card's sockets
//! ([`event_loop`](crate::event_loop) says when), so that packets wake the program directly.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;
use rustix::fs::OFlags;

use crate::event::Event;

/// A descriptor to sleep on, with a bell behind it.
#[derive(Debug)]
pub(crate) struct Alarm {
    epoll: OwnedFd,
    bell: Event,
    state: Mutex<State>,
}

/// A thread's sleep until a bell rings.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    /// The bell's descriptor, from which the thread reads.
    pub bell: RawFd,
    hushes: u64,
}

/// What is known of the bell.
#[derive(Default, Debug)]
struct State {
    counter: Counter,
    /// How often the bell was hushed.
    hushes: u64,
}

/// What is known of the bell's counter. A thread that sleeps sets it to zero, and says so only
/// afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Counter {
    #[default]
    Zero,
    /// Not zero, or a thread that sleeps has just read it, and will look at the queue.
    Rung,
    /// Any of the others.
    Unknown,
}

impl Alarm {
    /// A blocking descriptor whose bell is silent.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub(crate) fn new() -> io::Result<Alarm> {
        let alarm = Alarm {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: Event::blocking()?,
            state: Mutex::default(),
        };
        alarm.put_behind(alarm.bell.as_fd())?;
        Ok(alarm)
    }

    /// Makes the descriptor readable while `fd` is.
    ///
    /// # Errors
    /// The system is short of memory, or the user watches too many descriptors.
    pub(crate) fn put_behind(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Ends what [`Alarm::put_behind`] began. Does nothing if `fd` is not behind the alarm.
    pub(crate) fn take_away(&self, fd: BorrowedFd<'_>) {
        epoll::delete(&self.epoll, fd).ok();
    }

    /// Makes the descriptor readable until [`Alarm::hush`].
    pub(crate) fn ring(&self) {
        let mut state = self.state();
        if state.counter != Counter::Rung {
            crate::event::wake(&self.bell);
            state.counter = Counter::Rung;
        }
    }

    /// Silences the bell.
    pub(crate) fn hush(&self) {
        let mut state = self.state();
        if state.counter != Counter::Zero {
            if let Err(error) = self.bell.drain_without_waiting() {
                tracing::error!(%error, "cannot reset a completion channel's descriptor");
            }
            state.counter = Counter::Zero;
            state.hushes = state.hushes.wrapping_add(1);
        }
    }

    /// Sleeps until the bell rings, and silences it. Whatever else is behind the alarm does not
    /// wake the thread.
    ///
    /// # Errors
    /// `EINTR`, where the handler of a signal does not let reads go on.
    pub(crate) fn sleep(&self) -> io::Result<()> {
        let sleep = self.begin_sleep();
        self.bell.wait()?;
        self.end_sleep(sleep);
        Ok(())
    }

    /// As [`Alarm::sleep`], for a thread that reads the bell's counter itself.
    pub(crate) fn begin_sleep(&self) -> Sleep {
        Sleep { bell: self.bell.as_fd().as_raw_fd(), hushes: self.state().hushes }
    }

    /// The thread has read the counter. If the bell was hushed since it began to sleep, the bell
    /// may have rung again before it comes to say so.
    pub(crate) fn end_sleep(&self, sleep: Sleep) {
        let mut state = self.state();
        let is_known = state.hushes == sleep.hushes;
        state.counter = if is_known { Counter::Zero } else { Counter::Unknown };
    }

    /// Has the program made the descriptor non-blocking?
    ///
    /// # Errors
    /// The program has closed the descriptor.
    pub(crate) fn is_nonblocking(&self) -> io::Result<bool> {
        Ok(rustix::fs::fcntl_getfl(&self.epoll)?.contains(OFlags::NONBLOCK))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(alarm: &Alarm) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn an_alarm_is_readable_from_the_ring_to_the_hush() {
        let alarm = Alarm::new().unwrap();
        assert!(!is_readable(&alarm) && !alarm.is_nonblocking().unwrap());
        alarm.ring();
        alarm.ring();
        assert!(is_readable(&alarm));
        alarm.hush();
        assert!(!is_readable(&alarm));
        alarm.hush();
        alarm.ring();
        alarm.sleep().unwrap();
        assert!(!is_readable(&alarm));
        alarm.ring();
        assert!(is_readable(&alarm), "the bell rings again after a sleep");
    }

    /// What three threads may do at the same time, one step after the other.
    #[test]
    fn a_thread_that_wakes_late_does_not_undo_what_others_have_done() {
        let alarm = Alarm::new().unwrap();
        let sleep = alarm.begin_sleep();
        alarm.ring();
        alarm.bell.wait().unwrap();
        // Another thread takes the event, and the next one rings.
        alarm.hush();
        alarm.ring();
        alarm.end_sleep(sleep);
        assert!(is_readable(&alarm));
        alarm.hush();
        assert!(!is_readable(&alarm));
        // The same, but another thread has read the counter before it could say so.
        alarm.ring();
        alarm.bell.wait().unwrap();
        alarm.end_sleep(sleep);
        alarm.ring();
        assert!(is_readable(&alarm));
    }

    #[test]
    fn packets_behind_an_alarm_make_it_readable() {
        let (alarm, socket) = (Alarm::new().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        socket.send_to(&[1], socket.local_addr().unwrap()).unwrap();
        alarm.put_behind(socket.as_fd()).unwrap();
        assert!(is_readable(&alarm));
        alarm.take_away(socket.as_fd());
        alarm.take_away(socket.as_fd());
        assert!(!is_readable(&alarm));
        alarm.put_behind(socket.as_fd()).unwrap();
        socket.recv(&mut [0]).unwrap();
        assert!(!is_readable(&alarm));
    }

    #[test]
    fn a_program_makes_it_non_blocking() {
        let alarm = Alarm::new().unwrap();
        rustix::fs::fcntl_setfl(&alarm, OFlags::NONBLOCK).unwrap();
        assert!(alarm.is_nonblocking().unwrap());
    }
}
