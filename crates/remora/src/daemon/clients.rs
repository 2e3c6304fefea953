//! The connections to clients. `server` answers and drops them; `sessions` says what is kept when a
//! client has gone, and `ending` destroys the rest.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::fabric::rendezvous::process_of;
use crate::memory::process::lives;
use crate::message::{Answer, MESSAGE_MAX, MessageSocket, encode};
use crate::shared::MailboxServer;

/// What to do with a client behind an answer.
pub(super) enum Then {
    Stay,
    /// It broke the rules: it is told why, and dropped.
    Drop(String),
}

/// What leads to a client.
#[derive(Debug)]
pub(crate) enum Line {
    Socket(MessageSocket),
    /// A virtual machine's.
    Mailbox {
        mailbox: MailboxServer,
        /// The number of the client's greeting.
        greeting: u32,
        /// The number of the request that has no answer yet.
        request: Option<u32>,
    },
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) line: Line,
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    /// The process that has connected, if the system tells.
    pub(super) process: Option<OwnedFd>,
    /// When its greeting must have come; `None`: it has.
    pub(crate) greet_by: Option<Instant>,
    /// When it leaves, although a child of its process, which has ended, has the connection.
    pub(crate) leaves_at: Option<Instant>,
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
        let line = Line::Socket(socket);
        let greet_by = Some(by);
        Client { line, uid, pid, process, greet_by, leaves_at: None, session: None, waits: false }
    }

    /// A client that has greeted by the request of this number in a virtual machine's mailbox.
    pub(crate) fn in_machine(
        mailbox: MailboxServer,
        greeting: u32,
        (uid, pid): (u32, i32),
    ) -> Client {
        let line = Line::Mailbox { mailbox, greeting, request: Some(greeting) };
        Client {
            line,
            uid,
            pid,
            process: None,
            greet_by: None,
            leaves_at: None,
            session: None,
            waits: false,
        }
    }

    /// Is it in a virtual machine?
    pub(crate) fn is_in_machine(&self) -> bool {
        matches!(self.line, Line::Mailbox { .. })
    }

    /// What is watched of it, if it has a descriptor of its own.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.line {
            Line::Socket(socket) => Some(socket.as_fd()),
            Line::Mailbox { .. } => None,
        }
    }

    /// What says that the process that has connected has ended.
    pub(crate) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }

    /// Sends an answer. Descriptors do not pass a mailbox.
    ///
    /// # Errors
    /// Those of [`MessageSocket::send`].
    pub(crate) fn send(
        &mut self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        match &mut self.line {
            Line::Socket(socket) => socket.send(message, descriptors),
            Line::Mailbox { .. } if message.len() > MESSAGE_MAX => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "a message of this size"))
            }
            Line::Mailbox { mailbox, request, .. } => {
                request.take().into_iter().for_each(|number| mailbox.answer(number, message));
                Ok(())
            }
        }
    }

    /// Tells the client why its session is over, as far as it can be told.
    pub(crate) fn dismiss(&self, reason: &str) {
        let farewell = encode(&Answer::Farewell(reason));
        match &self.line {
            Line::Socket(socket) => drop(socket.send(&farewell, &[])),
            Line::Mailbox { mailbox, greeting, request } => {
                mailbox.dismiss(*greeting, reason);
                request.iter().for_each(|number| mailbox.answer(*number, &farewell));
            }
        }
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

    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Client> + use<> {
        std::mem::take(&mut self.clients).into_values()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }

    /// The clients of a session, the oldest connection first.
    pub(crate) fn of_session(&self, session: u32) -> Vec<u32> {
        self.those(|client| client.session == Some(session))
    }

    /// Connections of a user that have greeted, and have no session.
    pub(crate) fn observers(&self, uid: u32) -> usize {
        let asks = |client: &&Client| client.greet_by.is_none() && client.session.is_none();
        self.clients.values().filter(asks).filter(|client| client.uid == uid).count()
    }

    /// Connections of a user that have not greeted yet.
    pub(crate) fn ungreeted(&self, uid: u32) -> usize {
        let is_new = |client: &&Client| client.greet_by.is_some() && client.uid == uid;
        self.clients.values().filter(is_new).count()
    }

    /// Clients whose greeting has not come in time.
    pub(crate) fn late(&self, now: Instant) -> Vec<u32> {
        self.those(|client| client.greet_by.is_some_and(|by| by <= now))
    }

    /// Clients whose process has ended some time ago.
    pub(crate) fn without_process(&self, now: Instant) -> Vec<u32> {
        self.those(|client| client.leaves_at.is_some_and(|at| at <= now))
    }

    fn those(&self, which: impl Fn(&Client) -> bool) -> Vec<u32> {
        let those = self.clients.iter().filter(|(_, client)| which(client));
        those.map(|(number, _)| *number).collect()
    }
}
