//! Messages over a Unix socket that keeps them apart (`SOCK_SEQPACKET`), with descriptors.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The most bytes of a message.
pub const MESSAGE_MAX: usize = 65_536;
/// The most descriptors that come with a message.
pub const DESCRIPTORS_MAX: usize = 16;
/// How long a daemon has to accept a client where many wait for that.
const PATIENCE: Duration = Duration::from_secs(5);

/// One end of a connection. None of its calls blocks but [`MessageSocket::wait`].
#[derive(Debug)]
pub struct MessageSocket {
    socket: OwnedFd,
}

impl MessageSocket {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// None listens there (`NotFound`, `ConnectionRefused`), or it may not be asked
    /// (`PermissionDenied`), or has had no room for another client for some seconds (`WouldBlock`).
    pub fn connect(path: &Path) -> io::Result<MessageSocket> {
        MessageSocket::connect_within(path, PATIENCE)
    }

    /// The same. Where as many clients wait to be accepted as can, this one waits for room.
    fn connect_within(path: &Path, patience: Duration) -> io::Result<MessageSocket> {
        let busy = || io::Error::new(ErrorKind::WouldBlock, "it is busy, and accepts nobody now");
        // (The system does not wait for a socket that never blocks.)
        let socket = rustix::net::socket_with(FAMILY, KIND, SocketFlags::CLOEXEC, None)?;
        let address = SocketAddrUnix::new(path)?;
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(busy());
            }
            set_socket_timeout(&socket, Timeout::Send, Some(left))?;
            match rustix::net::connect(&socket, &address) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(busy()),
                done => break done?,
            }
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(MessageSocket { socket })
    }

    /// The end of a connection that a listener has accepted.
    pub fn accepted(socket: OwnedFd) -> MessageSocket {
        MessageSocket { socket }
    }

    /// Two ends that are connected to each other.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub fn pair() -> io::Result<(MessageSocket, MessageSocket)> {
        let (one, other) = rustix::net::socketpair(FAMILY, KIND, FLAGS, None)?;
        Ok((MessageSocket { socket: one }, MessageSocket { socket: other }))
    }

    /// Sends a message, with descriptors, whole or not at all.
    ///
    /// # Errors
    /// `WouldBlock`: the other end does not read. `BrokenPipe`: it has gone. `InvalidInput`: the
    /// message is empty, or longer than [`MESSAGE_MAX`], or has too many descriptors.
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let fits = (1..=MESSAGE_MAX).contains(&message.len());
        if !fits || descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a message of this size"));
        }
        let mut room = [MaybeUninit::uninit(); CONTROL];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            debug_assert!(pushed, "there is room for the most descriptors");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let bytes = [IoSlice::new(message)];
        loop {
            match rustix::net::sendmsg(&self.socket, &bytes, &mut control, flags) {
                Err(Errno::INTR) => {}
                // It has gone, and had not read everything.
                Err(Errno::CONNRESET) => return Err(ErrorKind::BrokenPipe.into()),
                sent => return sent.map(drop).map_err(io::Error::from),
            }
        }
    }

    /// Sends a message that is answered. That the other end has gone is no error: it may have said
    /// why, which is received in the place of an answer.
    ///
    /// # Errors
    /// As for [`MessageSocket::send`], but not `BrokenPipe`.
    pub fn ask(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.send(message, descriptors) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            sent => sent,
        }
    }

    /// Receives a message into `message`, and returns the descriptors that came with it; `None` if
    /// the other end has gone.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. `InvalidData`: it was longer than [`MESSAGE_MAX`], or had more
    /// descriptors than [`DESCRIPTORS_MAX`], or than this process may open; those that came are
    /// closed.
    pub fn receive(&self, message: &mut Vec<u8>) -> io::Result<Option<Vec<OwnedFd>>> {
        let mut descriptors = Vec::new();
        let came = self.take(message, &mut descriptors, RecvFlags::empty())?;
        Ok(came.then_some(descriptors))
    }

    /// As [`MessageSocket::receive`], for a caller that must not wait until a descriptor is closed:
    /// all that come are added to `descriptors`, also with a message that is refused. That message
    /// stays in the connection, and with it what had no room. Returns whether there was a message;
    /// otherwise the other end has gone.
    ///
    /// # Errors
    /// As for [`MessageSocket::receive`].
    pub fn receive_with(
        &self,
        message: &mut Vec<u8>,
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<bool> {
        // What is taken has to have room: the system closes the rest at once, in this thread.
        let came = self.take(message, descriptors, RecvFlags::PEEK)?;
        if came {
            rustix::net::recv(&self.socket, &mut [0; 1][..], RecvFlags::DONTWAIT)?;
        }
        Ok(came)
    }

    fn take(
        &self,
        message: &mut Vec<u8>,
        descriptors: &mut Vec<OwnedFd>,
        how: RecvFlags,
    ) -> io::Result<bool> {
        message.resize(MESSAGE_MAX, 0);
        let mut room = [MaybeUninit::uninit(); CONTROL];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = how | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut was_reset = false;
        let got = loop {
            let mut bytes = [IoSliceMut::new(message)];
            match rustix::net::recvmsg(&self.socket, &mut bytes, &mut control, flags) {
                Err(Errno::INTR) => {}
                // The other end has gone, and had not read everything. The system says so once, and
                // before what that end said last.
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                Err(Errno::CONNRESET) => return Ok(false),
                got => break got?,
            }
        };
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = part {
                descriptors.extend(came);
            }
        }
        message.truncate(got.bytes);
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "too long, or too many descriptors",
            ));
        }
        Ok(got.bytes > 0)
    }

    /// Sleeps until there is a message, or the other end has gone, or `limit` is over. Returns
    /// whether it was not the last.
    ///
    /// # Errors
    /// None that can be expected.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        loop {
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], limit.as_ref()) {
                Err(Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }
}

impl From<MessageSocket> for OwnedFd {
    fn from(ended: MessageSocket) -> OwnedFd {
        ended.socket
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const FAMILY: AddressFamily = AddressFamily::UNIX;
pub(crate) const KIND: SocketType = SocketType::SEQPACKET;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Room for the descriptors of a message.
const CONTROL: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_apart_and_descriptors_come_with_them() {
        let (a, b) = MessageSocket::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        a.send(b"one", &[writer.as_fd(), writer.as_fd()]).unwrap();
        a.send(&[2; MESSAGE_MAX], &[]).unwrap();
        let mut message = Vec::new();
        assert!(b.wait(None).unwrap());
        let came = b.receive(&mut message).unwrap().unwrap();
        assert_eq!((&message[..], came.len()), (&b"one"[..], 2));
        assert_eq!(b.receive(&mut message).unwrap().unwrap().len(), 0);
        assert!(message == [2; MESSAGE_MAX]);
        assert_eq!(b.receive(&mut message).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!b.wait(Some(Duration::ZERO)).unwrap());
        drop((a, writer));
        assert!(b.receive(&mut message).unwrap().is_none());
        drop(came);
        // All copies of the pipe's end are closed.
        assert_eq!(io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_an_end_said_last_is_heard_though_it_has_not_read_everything() {
        for is_late in [false, true] {
            let (a, b) = MessageSocket::pair().unwrap();
            a.send(b"go away", &[]).unwrap();
            if !is_late {
                b.ask(b"please", &[]).unwrap();
            }
            drop(a);
            b.ask(b"please", &[]).unwrap();
            let mut message = Vec::new();
            assert!(b.receive(&mut message).unwrap().is_some());
            assert_eq!(message, b"go away");
            assert!(b.receive(&mut message).unwrap().is_none());
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_leaks_nothing() {
        let (a, b) = MessageSocket::pair().unwrap();
        assert!(a.send(&[], &[]).is_err());
        assert!(a.send(&[0; MESSAGE_MAX + 1], &[]).is_err());
        let (mut reader, writer) = io::pipe().unwrap();
        assert!(a.send(b"x", &[writer.as_fd(); DESCRIPTORS_MAX + 1]).is_err());
        // A client that does not keep to the limits.
        let mut room = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let many = [writer.as_fd(); 100];
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = [IoSlice::new(b"many")];
        rustix::net::sendmsg(&a, &bytes, &mut control, SendFlags::empty()).unwrap();
        let long = vec![0; MESSAGE_MAX + 1];
        let mut none = SendAncillaryBuffer::default();
        rustix::net::sendmsg(&a, &[IoSlice::new(&long)], &mut none, SendFlags::empty()).unwrap();
        let mut message = Vec::new();
        assert_eq!(b.receive(&mut message).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(b.receive(&mut message).unwrap_err().kind(), ErrorKind::InvalidData);
        drop(writer);
        assert_eq!(io::Read::read(&mut reader, &mut [0]).unwrap(), 0, "all copies are closed");
    }

    /// What lingers is closed with the connection, and not by the thread that receives.
    #[test]
    fn to_receive_closes_nothing() {
        let (slow, _other) = crate::closer::tests::lingering();
        let closer = crate::closer::Closer::default();
        let (a, b) = MessageSocket::pair().unwrap();
        let mut room = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let many = [slow.as_fd(); 100];
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        a.send(b"one", &[slow.as_fd()]).unwrap();
        let bytes = [IoSlice::new(b"many")];
        rustix::net::sendmsg(&a, &bytes, &mut control, SendFlags::empty()).unwrap();
        closer.close(slow);
        let (mut message, mut came) = (Vec::new(), Vec::new());
        assert!(b.receive_with(&mut message, &mut came).unwrap());
        assert_eq!((&message[..], came.len()), (&b"one"[..], 1));
        let refused = b.receive_with(&mut message, &mut came).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        let taken = came.len();
        closer.close((a, b, came));
        assert!((1 + DESCRIPTORS_MAX..100).contains(&taken), "{taken}");
    }

    #[test]
    fn a_daemon_without_room_is_waited_for_and_is_not_none() {
        let path = std::env::temp_dir().join(format!("remora-busy-{}.sock", std::process::id()));
        let listener = rustix::net::socket_with(FAMILY, KIND, FLAGS, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let first = MessageSocket::connect(&path).unwrap();
        let busy = MessageSocket::connect_within(&path, Duration::from_millis(1)).unwrap_err();
        assert!(busy.kind() == ErrorKind::WouldBlock && busy.to_string().contains("busy"));
        std::thread::scope(|scope| {
            let second = scope
                .spawn(|| MessageSocket::connect_within(&path, Duration::from_secs(600)).unwrap());
            let accepted = rustix::net::accept(&listener).unwrap();
            second.join().unwrap().send(b"x", &[]).unwrap();
            drop((first, accepted));
        });
        drop(listener);
        assert_eq!(MessageSocket::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(MessageSocket::connect(&path).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn an_end_that_does_not_read_blocks_nobody() {
        let (a, b) = MessageSocket::pair().unwrap();
        let full = (0..100_000).find_map(|_| a.send(&[0; 1000], &[a.as_fd()]).err()).unwrap();
        assert!(matches!(full.kind(), ErrorKind::WouldBlock | ErrorKind::Other), "{full}");
        drop(b);
        assert_eq!(a.send(b"x", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
