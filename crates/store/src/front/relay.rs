//! The way to another node for a client that knows no primaries, as memcached's do: what it sends
//! goes to the primary of its group, and the answers come back.

use std::io;
use std::net::SocketAddr;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

/// Bytes of answers that are taken at once.
const TAKE_BYTES: usize = 64 * 1024;
/// How long a primary that does not answer may leave bytes unacknowledged, in ms: its machine may
/// be gone, and nobody would say so.
const SILENCE_MS: u32 = 2000;

/// A connection to a primary, for one client.
#[derive(Debug)]
pub(crate) struct Relay {
    to: SocketAddr,
    socket: OwnedFd,
    /// What `epoll` has been told to say of it; it does not know the socket while that is empty.
    interest: EventFlags,
    /// Nothing more goes there, and it has been told.
    is_shut: bool,
    has_answered: bool,
    /// It sends nothing more.
    pub(crate) is_over: bool,
}

impl Relay {
    /// Begins to connect.
    pub(crate) fn begin(to: SocketAddr) -> io::Result<Relay> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, SILENCE_MS)?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let interest = EventFlags::empty();
        Ok(Relay { to, socket, interest, is_shut: false, has_answered: false, is_over: false })
    }

    /// Sends what a client has sent, and says how much of it went. `is_last`: nothing follows.
    pub(crate) fn pass_on(&mut self, bytes: &[u8], is_last: bool) -> io::Result<usize> {
        let mut passed = 0;
        while passed < bytes.len() {
            match rustix::net::send(&self.socket, &bytes[passed..], SendFlags::NOSIGNAL) {
                Ok(count) => passed += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(passed),
                Err(errno) => return Err(errno.into()),
            }
        }
        if is_last && !self.is_shut {
            rustix::net::shutdown(&self.socket, Shutdown::Write)?;
            self.is_shut = true;
        }
        Ok(passed)
    }

    /// Appends what has come of answers.
    pub(crate) fn take(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        output.reserve(TAKE_BYTES);
        match rustix::io::read(&self.socket, spare_capacity(output)) {
            Ok(0) => self.is_over = true,
            Ok(_) => self.has_answered = true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// What a client is told when the connection fails: nothing within an answer.
    pub(crate) fn last_words(&self, error: &io::Error) -> String {
        if self.has_answered { String::new() } else { unreached(self.to, error) }
    }

    /// Hears only of what is wanted. (While nothing is, `epoll` would tell of the connection's end
    /// again and again.)
    pub(crate) fn watch(
        &mut self,
        epoll: &OwnedFd,
        name: u64,
        wanted: EventFlags,
    ) -> io::Result<()> {
        let data = EventData::new_u64(name);
        match (self.interest.is_empty(), wanted.is_empty()) {
            _ if self.interest == wanted => {}
            (true, _) => epoll::add(epoll, &self.socket, data, wanted)?,
            (false, true) => epoll::delete(epoll, &self.socket)?,
            (false, false) => epoll::modify(epoll, &self.socket, data, wanted)?,
        }
        self.interest = wanted;
        Ok(())
    }
}

/// What a client is told of a primary that is not reached.
pub(crate) fn unreached(to: SocketAddr, error: &io::Error) -> String {
    format!("SERVER_ERROR the primary of this node’s group, at {to}, is not reached: {error}\r\n")
}
