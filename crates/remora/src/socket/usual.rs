//! The segment size and the time to live that hold for a socket's datagrams unless a note beside
//! them (a control message) says otherwise.
//!
//! A note takes a longer system call: 0.12 µs a message, if each message is a packet with an
//! acknowledge behind it. But most datagrams repeat both values. So the socket's options hold the
//! usual ones, and only datagrams with other values need a note.

use std::io;
use std::os::fd::BorrowedFd;

use libc::c_int;

use super::destination::DEFAULT_HOP_LIMIT;
use super::sys;

/// Calls in a row with another value before the option is changed to it: the change costs as much
/// as this many notes.
const TIMES: u8 = 16;

/// An option's value, and the value that the last calls needed instead.
#[derive(Debug)]
pub(super) struct Usual {
    level: c_int,
    name: c_int,
    now: u16,
    other: u16,
    /// How often in a row calls needed `other`.
    times: u8,
}

impl Usual {
    /// The size of the datagrams that groups are cut into. It begins as zero: no group is cut.
    pub(super) fn segment() -> Usual {
        Usual { level: libc::SOL_UDP, name: libc::UDP_SEGMENT, now: 0, other: 0, times: 0 }
    }

    /// The time to live of datagrams to one host, as opposed to multicast.
    pub(super) fn hop_limit(v6: bool) -> Usual {
        let (level, name) = match v6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
            false => (libc::IPPROTO_IP, libc::IP_TTL),
        };
        Usual { level, name, now: DEFAULT_HOP_LIMIT.into(), other: 0, times: 0 }
    }

    /// The note that a datagram with the value `right` needs beside it.
    pub(super) fn note(&mut self, fd: BorrowedFd<'_>, right: u16) -> io::Result<Option<u16>> {
        if self.is_due(right) {
            self.set(fd, right)?;
        }
        Ok((right != self.now).then_some(right))
    }

    /// Sends one datagram, or a group that is to be cut into datagrams of `segment` bytes. `call`
    /// sends it, with the note that it is given. A single datagram needs no note if the option cuts
    /// nothing, or cuts into datagrams at least as long.
    pub(super) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        (segment, len): (usize, usize),
        call: impl Fn(Option<u16>) -> io::Result<()>,
    ) -> io::Result<()> {
        let group = len > segment;
        let right = match group {
            true => u16::try_from(segment).map_err(|_| io::ErrorKind::InvalidInput)?,
            false if len <= usize::from(self.now) => self.now,
            false => 0,
        };
        let note = self.note(fd, right)?;
        match call(note) {
            // Some routes take no group, and some kernels then refuse single datagrams as well if
            // the option is set.
            Err(error) if !group && self.now != 0 && is_refusal(&error) => {
                self.set(fd, 0)?;
                call(None)
            }
            sent => sent,
        }
    }

    /// Is the option to be changed to `right`, which the present call needs?
    fn is_due(&mut self, right: u16) -> bool {
        if right == self.now {
            self.times = 0;
            return false;
        }
        if right != self.other {
            (self.other, self.times) = (right, 0);
        }
        self.times += 1;
        self.times == TIMES
    }

    fn set(&mut self, fd: BorrowedFd<'_>, value: u16) -> io::Result<()> {
        sys::set_option(fd, self.level, self.name, value.into())?;
        (self.now, self.times) = (value, 0);
        Ok(())
    }
}

/// Is this the route's refusal of the option? (`EMSGSIZE` is not: a single datagram that is too
/// long is so without the option, and news of an earlier one is to be heard.)
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    /// The note that each call is given.
    fn notes(usual: &mut Usual, sends: &[(usize, usize)]) -> Vec<Option<u16>> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let notes = RefCell::new(Vec::new());
        let call = |note| {
            notes.borrow_mut().push(note);
            Ok(())
        };
        sends.iter().for_each(|&send| usual.send(socket.as_fd(), send, call).unwrap());
        notes.into_inner()
    }

    #[test]
    fn a_size_that_repeats_needs_no_note() {
        let mut usual = Usual::segment();
        assert_eq!(notes(&mut usual, &[(40, 40), (40, 60)]), [None, Some(40)]);
        let told = notes(&mut usual, &[(40, 60); 20]);
        assert_eq!(told[..14], [Some(40); 14]);
        assert_eq!(told[14..], [None; 6]);
        let others = [(40, 40), (41, 41), (80, 100), (40, 60)];
        assert_eq!(notes(&mut usual, &others), [None, Some(0), Some(80), None]);
        assert_eq!(notes(&mut usual, &[(100, 100); 16])[14..], [Some(0), None]);
    }

    #[test]
    fn a_time_to_live_that_repeats_needs_no_note() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(address) else { continue };
            let mut usual = Usual::hop_limit(address.starts_with('['));
            let mut note = |hops| usual.note(socket.as_fd(), hops).unwrap();
            assert_eq!((note(64), note(255)), (None, Some(255)));
            let later: Vec<_> = (0..20).map(|_| note(255)).collect();
            assert_eq!(later[14..], [None; 6]);
            assert_eq!(note(64), Some(64));
        }
    }

    #[test]
    fn sizes_that_change_are_noted() {
        let mut usual = Usual::segment();
        let sends: Vec<_> = (0..100).map(|i| (40 + i % 2, 60)).collect();
        assert!(notes(&mut usual, &sends).iter().all(Option::is_some));
    }

    /// News that an earlier datagram was too long is no refusal, and is not swallowed.
    #[test]
    fn what_a_path_does_not_take_is_heard() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut usual = Usual::segment();
        usual.set(socket.as_fd(), 100).unwrap();
        let call = |_| Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        let error = usual.send(socket.as_fd(), (40, 40), call).unwrap_err();
        assert_eq!((error.raw_os_error(), usual.now), (Some(libc::EMSGSIZE), 100));
    }

    #[test]
    fn a_refused_single_datagram_goes_without_the_option() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut usual = Usual::segment();
        usual.set(socket.as_fd(), 100).unwrap();
        let tries = RefCell::new(vec![Ok(()), Err(libc::EINVAL)]);
        let call = |note| {
            assert_eq!(note, None);
            tries.borrow_mut().pop().unwrap().map_err(io::Error::from_raw_os_error)
        };
        usual.send(socket.as_fd(), (40, 40), call).unwrap();
        assert!(tries.borrow().is_empty());
        assert_eq!(usual.now, 0);
    }
}
