//! How two cards of one machine meet: where a card is asked, who may ask, and what they say.
//!
//! A card listens on a Unix socket whose name is its address and port, in the abstract namespace:
//! such names belong to a network namespace, as addresses do. So a card is found by its name just
//! where its packets can reach it, and the name goes with the process.
//!
//! The card that asks makes the memory of both rings, and passes it along. The other answers
//! whether it takes it. From then on, a byte on the same connection wakes the other side, and the
//! connection's end says that the other card has gone.
//!
//! `links/settle.rs` says when a card asks, and `links.rs` which way a packet takes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, send, sendmsg, socket_with,
};
use thiserror::Error;

/// Cards that may wait until a card looks.
const BACKLOG: i32 = 16;
/// Bytes of a message.
const MESSAGE: usize = 32;
/// The most descriptors that the system passes beside a message (`SCM_MAX_FD`).
const FILES_MAX: usize = 253;
/// What each message begins with, its version included: cards that speak another one do not meet.
const MAGIC: &[u8; 8] = b"remora-2";
/// The user that the kernel names for users who do not exist in a user namespace.
const OVERFLOW_USER: u32 = 65_534;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Neighbour {
    /// The process, if it is in this process namespace.
    pub(super) pid: Option<u32>,
    pub(super) user: u32,
}

/// Why two cards do not share memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(super) enum Stranger {
    #[error("it belongs to user {theirs}, and this one to user {ours}")]
    User { ours: u32, theirs: u32 },
    #[error("its user does not exist in this user namespace")]
    Unmapped,
}

/// May a card of user `ours` share memory with `neighbour`? Only with cards of the same user, who
/// could read each other's memory anyway. Users that are unknown here all look alike, so they share
/// with nobody.
pub(super) fn may_share(ours: u32, neighbour: Neighbour) -> Result<(), Stranger> {
    match neighbour.user {
        OVERFLOW_USER => Err(Stranger::Unmapped),
        user if user != ours => Err(Stranger::User { ours, theirs: user }),
        _ => Ok(()),
    }
}

/// A card introduces itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// Its address and port.
    pub(super) addr: IpAddr,
    pub(super) port: u16,
    /// Bytes of a ring's data; 0 in an answer that declines.
    pub(super) data: u32,
    /// The card captures packets, which then need their ICRC.
    pub(super) sums: bool,
}

impl Hello {
    fn encode(&self) -> [u8; MESSAGE] {
        let mut out = [0; MESSAGE];
        out[..8].copy_from_slice(MAGIC);
        let addr = match self.addr {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        out[8..24].copy_from_slice(&addr.octets());
        out[24..26].copy_from_slice(&self.port.to_le_bytes());
        out[26] = self.sums.into();
        out[28..].copy_from_slice(&self.data.to_le_bytes());
        out
    }

    fn parse(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; MESSAGE] = bytes.try_into().ok()?;
        if &bytes[..8] != MAGIC || bytes[26] > 1 {
            return None;
        }
        let addr = Ipv6Addr::from(*bytes[8..].first_chunk()?);
        Some(Hello {
            addr: IpAddr::V6(addr).to_canonical(),
            port: u16::from_le_bytes([bytes[24], bytes[25]]),
            data: u32::from_le_bytes(*bytes[28..].first_chunk()?),
            sums: bytes[26] == 1,
        })
    }
}

/// The name of the socket at which a card is asked.
fn name(addr: IpAddr, port: u16) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("remora-fabric/{addr}/{port}").as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The socket at which the card with this address is asked.
pub(super) fn listener(addr: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &name(addr, port)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next card that asks, if one does.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(connection) => Ok(Some(connection)),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects to the card with this address, if there is one that can be asked.
pub(super) fn call(addr: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let socket = socket()?;
    connect(&socket, &name(addr, port)?)?;
    Ok(socket)
}

/// Who is at the other end: of a connection that was accepted, who called; of one that was made,
/// who listened first.
pub(super) fn neighbour(connection: BorrowedFd<'_>) -> io::Result<Neighbour> {
    let mut who = libc::ucred { pid: 0, uid: OVERFLOW_USER, gid: OVERFLOW_USER };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `who`; both live through
    // the call.
    let rc = unsafe {
        let value = (&raw mut who).cast();
        let fd = connection.as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &mut len)
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Neighbour { pid: u32::try_from(who.pid).ok().filter(|pid| *pid != 0), user: who.uid })
}

/// The process at the other end of a connection, as a pidfd: the one that has connected, also if
/// another one has the connection now, and another one its number.
///
/// # Errors
/// It has ended, or the system is older than Linux 6.5 (`ENOPROTOOPT`).
pub(crate) fn process_of(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `pidfd`; both live
    // through the call.
    let rc = unsafe {
        let value = (&raw mut pidfd).cast();
        let fd = connection.as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERPIDFD, value, &mut len)
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// Sends a message, with a file beside it.
pub(super) fn tell(
    connection: BorrowedFd<'_>,
    hello: Hello,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = hello.encode();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&files));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(connection, &[IoSlice::new(&bytes)], &mut beside, flags)?;
    if sent == MESSAGE { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// What a connection has brought.
#[derive(Debug)]
pub(super) enum Heard {
    Nothing,
    Hello(Hello),
    /// It is at its end.
    Gone,
    /// Something that no card says.
    Nonsense,
}

/// Receives a message, and what comes beside it, which is for the caller to close.
pub(super) fn hear(connection: BorrowedFd<'_>, files: &mut Vec<OwnedFd>) -> io::Result<Heard> {
    let mut bytes = [0; MESSAGE];
    let len = match receive(connection, &mut bytes, files) {
        Ok(len) => len,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Heard::Nothing),
        Err(Errno::CONNRESET) => return Ok(Heard::Gone),
        Err(error) => return Err(error.into()),
    };
    Ok(match (len, Hello::parse(&bytes[..len])) {
        (0, _) => Heard::Gone,
        (_, Some(hello)) => Heard::Hello(hello),
        (_, None) => Heard::Nonsense,
    })
}

/// Receives bytes, and all descriptors that come with them: what has no room the system closes in
/// this thread.
fn receive(
    connection: BorrowedFd<'_>,
    bytes: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(connection, &mut [IoSliceMut::new(bytes)], &mut beside, flags)?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            files.extend(came);
        }
    }
    Ok(got.bytes)
}

/// Wakes the card at the other end. (If the connection is full of such calls, or at its end, there
/// is nothing to do.)
pub(super) fn wake(connection: BorrowedFd<'_>) {
    let _ = send(connection, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Reads the bytes that have woken this card; returns whether the connection is at its end. What
/// comes beside them, though no card sends any, is for the caller to close.
pub(super) fn is_over(connection: BorrowedFd<'_>, files: &mut Vec<OwnedFd>) -> bool {
    match receive(connection, &mut [0; 512], files) {
        Ok(0) => true,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}

/// A descriptor that is readable when the process has ended: a forked child may keep the
/// connection of a process that has gone. `None` if the system has none, or the process is gone.
pub(super) fn end_of(pid: u32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn hello(addr: &str) -> Hello {
        Hello { addr: addr.parse().unwrap(), port: 4791, data: 1 << 20, sums: true }
    }

    #[test]
    fn users_share_with_themselves_only() {
        let of = |user| Neighbour { pid: Some(7), user };
        assert_eq!(may_share(1000, of(1000)), Ok(()));
        assert_eq!(may_share(1000, of(1001)), Err(Stranger::User { ours: 1000, theirs: 1001 }));
        // The administrator is no exception, either way.
        assert!(may_share(1000, of(0)).is_err() && may_share(0, of(1000)).is_err());
        assert_eq!(may_share(0, of(0)), Ok(()));
        // Any user from outside of a container looks like this one.
        assert_eq!(may_share(1000, of(OVERFLOW_USER)), Err(Stranger::Unmapped));
        assert_eq!(may_share(OVERFLOW_USER, of(OVERFLOW_USER)), Err(Stranger::Unmapped));
    }

    #[test]
    fn messages_are_parsed_as_they_were_built() {
        for addr in ["127.0.0.5", "192.0.2.255", "::1", "fe80::1"] {
            let hello = hello(addr);
            assert_eq!(Hello::parse(&hello.encode()), Some(hello));
        }
        let bytes = [
            b"remora-2".as_slice(),
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 5],
            &[0xb7, 0x12, 1, 0, 0, 0, 16, 0],
        ]
        .concat();
        assert_eq!(hello("127.0.0.5").encode(), *bytes);
        for len in 0..MESSAGE {
            assert_eq!(Hello::parse(&bytes[..len]), None);
        }
        for (at, byte) in [(0, b'x'), (7, b'1'), (26, 2)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert_eq!(Hello::parse(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn a_card_is_asked_by_its_address() {
        // No card has these: the documentation's addresses are nobody's.
        let (addr, port) = ("192.0.2.77".parse().unwrap(), std::process::id() as u16);
        assert_eq!(call(addr, port).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = listener(addr, port).unwrap();
        assert!(accept(listener.as_fd()).unwrap().is_none());
        let mine = call(addr, port).unwrap();
        let theirs = accept(listener.as_fd()).unwrap().unwrap();
        for end in [&mine, &theirs] {
            let expected = (Some(std::process::id()), rustix::process::geteuid().as_raw());
            let neighbour = neighbour(end.as_fd()).unwrap();
            assert_eq!((neighbour.pid, neighbour.user), expected);
        }
        let mut files = Vec::new();
        assert!(matches!(hear(theirs.as_fd(), &mut files).unwrap(), Heard::Nothing));
        let file = std::fs::File::open("/dev/null").unwrap();
        tell(mine.as_fd(), hello("127.0.0.5"), Some(file.as_fd())).unwrap();
        wake(mine.as_fd());
        let heard = hear(theirs.as_fd(), &mut files).unwrap();
        let Heard::Hello(got) = heard else { panic!("{heard:?}") };
        assert_eq!((got, files.len()), (hello("127.0.0.5"), 1));
        assert!(!is_over(theirs.as_fd(), &mut files), "the byte that wakes is read");
        wake(mine.as_fd());
        assert!(matches!(hear(theirs.as_fd(), &mut files).unwrap(), Heard::Nonsense));
        drop(mine);
        assert!(matches!(hear(theirs.as_fd(), &mut files).unwrap(), Heard::Gone));
        assert!(is_over(theirs.as_fd(), &mut files));
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let has_ended = |end: &OwnedFd| {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&at_once)) == Ok(1)
        };
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let end = end_of(child.id());
        let ended_early = end.as_ref().is_some_and(has_ended);
        child.kill().unwrap();
        child.wait().unwrap();
        let Some(end) = end else {
            return crate::skips::lacks("this system has no descriptors of processes");
        };
        assert!(!ended_early && has_ended(&end) && end_of(child.id()).is_none());
    }
}
