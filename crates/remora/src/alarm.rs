//! The descriptor of a completion channel: a program sleeps on it, and makes it non-blocking.
//!
//! It is an `epoll` descriptor, and so readable while anything behind it is: the *bell*, a counter
//! that the card rings when there are events, and at times the card's sockets
//! ([`event_loop`](crate::event_loop) says when), so that packets wake the program directly.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;
use rustix::fs::OFlags;

use crate::event::Event;

/// A descriptor to sleep on, with a bell behind it.
#[derive(Debug)]
pub(crate) struct Alarm {
    epoll: OwnedFd,
    bell: Event,
    /// The bell's counter is not zero, or a thread that sleeps has just read it.
    rung: Mutex<bool>,
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
            rung: Mutex::new(false),
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
        let mut rung = self.rung();
        if !*rung {
            crate::event::wake(&self.bell);
            *rung = true;
        }
    }

    /// Silences the bell.
    pub(crate) fn hush(&self) {
        let mut rung = self.rung();
        if *rung {
            if let Err(error) = self.bell.drain_without_waiting() {
                tracing::error!(%error, "cannot reset a completion channel's descriptor");
            }
            *rung = false;
        }
    }

    /// Sleeps until the bell rings, and silences it. Whatever else is behind the alarm does not
    /// wake the thread.
    ///
    /// # Errors
    /// `EINTR`, where the handler of a signal does not let reads go on.
    pub(crate) fn sleep(&self) -> io::Result<()> {
        self.bell.wait()?;
        *self.rung() = false;
        Ok(())
    }

    /// Has the program made the descriptor non-blocking?
    ///
    /// # Errors
    /// The program has closed the descriptor.
    pub(crate) fn is_nonblocking(&self) -> io::Result<bool> {
        Ok(rustix::fs::fcntl_getfl(&self.epoll)?.contains(OFlags::NONBLOCK))
    }

    fn rung(&self) -> MutexGuard<'_, bool> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
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
