//! By what a socket cuts when it is not told.
//!
//! The size of a group's datagrams travels in a note beside the bytes, which takes the longer
//! system call: 0.12 µs a message where each is a packet and an acknowledge behind it. But sizes
//! repeat, and the socket itself can hold one of them (`UDP_SEGMENT` as an option); then only
//! other sizes need the note.

use std::io;
use std::os::fd::BorrowedFd;

use super::sys;

/// Calls in a row that cut by another size until the option changes: as many as its change costs.
const TIMES: u8 = 16;

/// The option as it stands, and what would have been better.
#[derive(Debug, Default)]
pub(super) struct Usual {
    /// Zero: nothing is cut.
    segment: u16,
    other: u16,
    /// How often in a row the other would have been right.
    times: u8,
}

impl Usual {
    /// Sends one datagram, or a group that is to be cut by `segment`: by `call`, which is told what
    /// to note. A socket that cuts nothing needs no note for a single one, and one that cuts by
    /// more than a single one's length needs none either.
    pub(super) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        (segment, len): (usize, usize),
        call: impl Fn(Option<u16>) -> io::Result<()>,
    ) -> io::Result<()> {
        let group = len > segment;
        let right = match group {
            true => u16::try_from(segment).map_err(|_| io::ErrorKind::InvalidInput)?,
            false if len <= usize::from(self.segment) => self.segment,
            false => 0,
        };
        if self.is_due(right) {
            self.set(fd, right)?;
        }
        let sent = call((right != self.segment).then_some(right));
        match sent {
            // Some routes take no group, and some kernels judge single datagrams by the option.
            Err(error) if !group && self.segment != 0 && is_refusal(&error) => {
                self.set(fd, 0)?;
                call(None)
            }
            sent => sent,
        }
    }

    /// Is it time to change the option, now that `right` would be right?
    fn is_due(&mut self, right: u16) -> bool {
        if right == self.segment {
            self.times = 0;
            return false;
        }
        if right != self.other {
            (self.other, self.times) = (right, 0);
        }
        self.times += 1;
        self.times == TIMES
    }

    fn set(&mut self, fd: BorrowedFd<'_>, segment: u16) -> io::Result<()> {
        sys::set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, segment.into())?;
        (self.segment, self.times) = (segment, 0);
        Ok(())
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    /// What each call is told to note.
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
        let mut usual = Usual::default();
        assert_eq!(notes(&mut usual, &[(40, 40), (40, 60)]), [None, Some(40)]);
        let told = notes(&mut usual, &[(40, 60); 20]);
        assert_eq!(told[..14], [Some(40); 14]);
        assert_eq!(told[14..], [None; 6]);
        let others = [(40, 40), (41, 41), (80, 100), (40, 60)];
        assert_eq!(notes(&mut usual, &others), [None, Some(0), Some(80), None]);
        assert_eq!(notes(&mut usual, &[(100, 100); 16])[14..], [Some(0), None]);
    }

    #[test]
    fn sizes_that_change_are_noted() {
        let mut usual = Usual::default();
        let sends: Vec<_> = (0..100).map(|i| (40 + i % 2, 60)).collect();
        assert!(notes(&mut usual, &sends).iter().all(Option::is_some));
    }

    #[test]
    fn a_refused_single_datagram_goes_without_the_option() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut usual = Usual::default();
        usual.set(socket.as_fd(), 100).unwrap();
        let tries = RefCell::new(vec![Ok(()), Err(libc::EINVAL)]);
        let call = |note| {
            assert_eq!(note, None);
            tries.borrow_mut().pop().unwrap().map_err(io::Error::from_raw_os_error)
        };
        usual.send(socket.as_fd(), (40, 40), call).unwrap();
        assert!(tries.borrow().is_empty());
        assert_eq!(usual.segment, 0);
    }
}
