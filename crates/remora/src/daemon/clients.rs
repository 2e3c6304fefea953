//! The connections to clients. `server` answers and drops them; `sessions` says what a client that
//! has gone leaves behind.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::fabric::rendezvous::process_of;
use crate::memory::process::lives;
use crate::message::MessageSocket;

/// What to do with a client behind an answer.
pub(super) enum Then {
    Stay,
    /// It broke the rules: it is told why, and dropped.
    Drop(String),
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: MessageSocket,
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    /// The process that has connected, if the system tells.
    process: Option<OwnedFd>,
    /// When its greeting must have come; `None`: it has.
    pub(crate) greet_by: Option<Instant>,
    /// The session that it has; observers have none.
    pub(crate) session: Option<u32>,
    /// It waits for an answer, and is not looked at.
    pub(crate) waits: bool,
}

impl Client {
    pub(crate) fn new(socket: MessageSocket, (uid, pid): (u32, i32), by: Instant) -> Client {
        let process = process_of(socket.as_fd()).or_else(|error| {
            let number = Pid::from_raw(pid).filter(|_| is_unknown(&error)).ok_or(error)?;
            Ok::<_, io::Error>(pidfd_open(number, PidfdFlags::empty())?)
        });
        let process = process.inspect_err(|error| tracing::debug!(%error, pid, "has ended")).ok();
        Client { socket, uid, pid, process, greet_by: Some(by), session: None, waits: false }
    }

    /// The number of the process that has connected, as long as that lives. (A child may have the
    /// connection, and another process the number, when it has ended.)
    pub(crate) fn living(&self) -> Option<i32> {
        let lives = self.process.as_ref().is_some_and(|process| lives(process.as_fd()));
        lives.then_some(self.pid)
    }
}

/// Does the system not know the request? It is an older one.
fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error())
}

/// All connections, by numbers that are not used again soon.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: BTreeMap<u32, Client>,
    first: u32,
    next: u32,
}

impl Clients {
    /// None; numbers begin at `first`.
    pub(crate) fn new(first: u32) -> Clients {
        Clients { clients: BTreeMap::new(), first, next: first }
    }

    /// A number that no client has.
    pub(crate) fn free_number(&mut self) -> u32 {
        loop {
            let number = self.next;
            self.next = self.next.checked_add(1).unwrap_or(self.first);
            if !self.clients.contains_key(&number) {
                return number;
            }
        }
    }

    pub(crate) fn add(&mut self, number: u32, client: Client) {
        self.clients.insert(number, client);
    }

    pub(crate) fn get(&mut self, number: u32) -> Option<&mut Client> {
        self.clients.get_mut(&number)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Client> {
        self.clients.remove(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }

    /// The clients of a session, the oldest connection first.
    pub(crate) fn of_session(&self, session: u32) -> Vec<u32> {
        let of = self.clients.iter().filter(|(_, client)| client.session == Some(session));
        of.map(|(number, _)| *number).collect()
    }

    /// Clients whose greeting has not come in time.
    pub(crate) fn late(&self, now: Instant) -> Vec<u32> {
        let late = |client: &Client| client.greet_by.is_some_and(|by| by <= now);
        self.clients.iter().filter(|(_, client)| late(client)).map(|(number, _)| *number).collect()
    }
}
