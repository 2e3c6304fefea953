//! The way to another node for a client that knows no primaries, as memcached's do: what it sends
//! goes to the primary of its group, and the answers come back.

use std::io;
use std::net::SocketAddr;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

use crate::front::memcached::ACCEPTED;

/// Bytes of answers that are taken at once.
const TAKE_BYTES: usize = 64 * 1024;
/// How long connecting may take, in ms: the machine may be gone, and nobody would say so.
const CONNECT_MS: u32 = 2000;
/// Bytes of a refusal that are shown.
const REFUSAL_BYTES: usize = 200;

/// A connection to a primary, for one client.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) to: SocketAddr,
    socket: OwnedFd,
    /// What `epoll` has been told to say of it; it does not know the socket while that is empty.
    interest: EventFlags,
    /// The mark, as far as it is not sent.
    mark: Vec<u8>,
    /// The answer to it, as far as it has come.
    heard: Vec<u8>,
    /// The other node serves the client.
    pub(crate) is_accepted: bool,
    /// Nothing more goes there.
    is_shut: bool,
    /// It sends nothing more.
    pub(crate) is_over: bool,
}

impl Relay {
    /// Begins to connect; this goes before the client's bytes.
    pub(crate) fn begin(to: SocketAddr, mark: Vec<u8>) -> io::Result<Relay> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, CONNECT_MS)?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Relay {
            to,
            socket,
            interest: EventFlags::empty(),
            mark,
            heard: Vec::new(),
            is_accepted: false,
            is_shut: false,
            is_over: false,
        })
    }

    /// Whether something is to go before the client's bytes may.
    pub(crate) fn has_mark(&self) -> bool {
        !self.mark.is_empty()
    }

    /// Sends what a client has sent, and says how much of it went. `is_last`: nothing follows.
    pub(crate) fn pass_on(&mut self, bytes: &[u8], is_last: bool) -> io::Result<usize> {
        let marked = self.push(&self.mark)?;
        self.mark.drain(..marked);
        if !self.is_accepted {
            return Ok(0);
        }
        let passed = self.push(bytes)?;
        if is_last && passed == bytes.len() && !self.is_shut {
            rustix::net::shutdown(&self.socket, Shutdown::Write)?;
            self.is_shut = true;
        }
        Ok(passed)
    }

    fn push(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut passed = 0;
        while passed < bytes.len() {
            match rustix::net::send(&self.socket, &bytes[passed..], SendFlags::NOSIGNAL) {
                Ok(count) => passed += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(passed)
    }

    /// The other node takes nothing more. What it has answered still comes.
    pub(crate) fn shut(&mut self) {
        self.mark.clear();
        self.is_shut = true;
    }

    /// Appends what has come of answers.
    pub(crate) fn take(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        if !self.is_accepted {
            return self.hear();
        }
        output.reserve(TAKE_BYTES);
        self.is_over = read(&self.socket, output)? == Some(0);
        Ok(())
    }

    /// Waits for the answer to the mark.
    fn hear(&mut self) -> io::Result<()> {
        self.heard.reserve(REFUSAL_BYTES);
        let count = read(&self.socket, &mut self.heard)?;
        if self.heard == ACCEPTED {
            // From now on it may be as slow as it is.
            sockopt::set_tcp_user_timeout(&self.socket, 0)?;
            self.is_accepted = true;
        } else if count == Some(0) || !ACCEPTED.starts_with(&self.heard) {
            let said = String::from_utf8_lossy(&self.heard);
            let said = said.lines().next().unwrap_or("it has ended the connection");
            return Err(io::Error::other(said.trim_start_matches("SERVER_ERROR ")));
        }
        Ok(())
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

/// Reads once, if something has come: how many bytes?
fn read(socket: &OwnedFd, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
    match rustix::io::read(socket, spare_capacity(into)) {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// What a client is told of a primary that does not serve it.
pub(crate) fn unserved(error: &io::Error) -> String {
    format!("SERVER_ERROR the primary of this node’s group does not serve: {error}\r\n")
}
