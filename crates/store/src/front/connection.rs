//! A connection: its socket, what has come and is not dealt with, and what is to go.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use remora::memory::PageAligned;
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use crate::front::clients::Client;
use crate::front::input::{Input, READ_BYTES, SPARE_BYTES, SPARES};
use crate::front::keyspace::Awaited;
use crate::front::memcached;
use crate::front::redis;
use crate::front::relay::{Relay, unserved};
use crate::front::server_state::{Next, ServerState, Step, Turn};
use crate::stats::Way;

/// Buffers that connections have given back.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    of_input: Vec<PageAligned>,
    of_output: Vec<Vec<u8>>,
}

impl Spares {
    fn take(&mut self) -> Vec<u8> {
        self.of_output.pop().unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        let fits = (READ_BYTES..=SPARE_BYTES).contains(&buffer.capacity());
        if fits && self.of_output.len() < SPARES {
            buffer.clear();
            self.of_output.push(buffer);
        }
    }
}

#[derive(Debug)]
enum Session {
    Redis(Box<redis::session::Session>),
    Memcached(Box<memcached::session::Session>),
}

/// What becomes of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on when its socket can do this.
    Waits(EventFlags),
    /// It has more to do at once.
    Again,
    /// It has more to do when a pause has ended.
    Later,
    /// It has to look a moment later whether it has more to do.
    Soon,
    /// It is over.
    Ends,
}

/// Replies that wait until what they tell of is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub(crate) awaited: Awaited,
    /// How long they are.
    pub(crate) bytes: usize,
    /// The connections whose replies began to wait just before, and just after these.
    pub(crate) before: Option<usize>,
    pub(crate) after: Option<usize>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    pub(crate) client: Arc<Client>,
    /// What `epoll` has been told to say of it.
    pub(crate) interest: EventFlags,
    session: Session,
    /// Where the client is served instead of here, if it is.
    relay: Option<Relay>,
    input: Input,
    output: Vec<u8>,
    /// Output before this is sent.
    sent: usize,
    next: Next,
    /// What its replies wait for, if they do.
    pub(crate) parked: Option<Parked>,
    /// The peer sends nothing more.
    is_over: bool,
    /// What it has of the memory for all connections, in bytes.
    held: u64,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, client: Arc<Client>, server: &ServerState) -> Connection {
        let session = match client.way {
            Way::Memcached => {
                Session::Memcached(Box::new(memcached::session::Session::new(server)))
            }
            _ => Session::Redis(Box::new(redis::session::Session::new(server, client.clone()))),
        };
        Connection {
            socket,
            client,
            interest: EventFlags::IN,
            session,
            relay: None,
            input: Input::default(),
            output: Vec::new(),
            sent: 0,
            next: Next::Read(1),
            parked: None,
            is_over: false,
            held: 0,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what has come and carries it out; replies wait in the output.
    pub(crate) fn turn(&mut self, turn: &mut Turn, spares: &mut Spares) {
        if self.relay.is_some() {
            return self.pass(turn, spares);
        }
        if matches!(self.next, Next::Read(_)) && !self.is_over {
            match self.read(spares) {
                Ok(0) => return,
                Ok(count) => {
                    turn.counts.bytes_in.add(count as u64);
                    self.client.last_ms.store(turn.now, Relaxed);
                }
                Err(_) => {
                    self.is_over = true;
                    self.next = Next::Close;
                    return;
                }
            }
        }
        self.run(turn, spares);
    }

    /// Reads once. Ok(0) is: nothing has come yet.
    fn read(&mut self, spares: &mut Spares) -> io::Result<usize> {
        let wanted = if let Next::Read(more) = self.next { more } else { 1 };
        self.input.read(&self.socket, wanted, &mut spares.of_input)
    }

    /// Carries out what is whole.
    fn run(&mut self, turn: &mut Turn, spares: &mut Spares) {
        if self.output.capacity() == 0 {
            self.output = spares.take();
        }
        let input = self.input.bytes();
        let step = match &mut self.session {
            Session::Redis(session) => session.run(turn, input, &mut self.output),
            Session::Memcached(session) => session.run(turn, input, &mut self.output),
        };
        let Step { used, next } = step;
        self.input.use_up(used);
        self.next = next;
        if let Next::Relay(to) = next {
            return self.relay(to, turn, spares);
        }
        self.input.keep_left(&mut spares.of_input);
    }

    /// From now on another node serves the client.
    fn relay(&mut self, to: SocketAddr, turn: &mut Turn, spares: &mut Spares) {
        let mark = match &self.session {
            Session::Memcached(session) => session.mark(&turn.server),
            Session::Redis(_) => None,
        };
        let no_group = || io::Error::other("this node shows no token of its group");
        match mark.ok_or_else(no_group).and_then(|mark| Relay::begin(to, mark)) {
            Ok(relay) => self.relay = Some(relay),
            Err(error) => return self.give_up(&unserved(&error)),
        }
        turn.counts.connections_relayed.add(1);
        self.pass(turn, spares);
    }

    /// Where the client is served instead of here, if it is.
    pub(crate) fn relayed_to(&self) -> Option<SocketAddr> {
        self.relay.as_ref().map(|relay| relay.to)
    }

    /// Takes what has come from either side to the other one, if that has taken what came before.
    fn pass(&mut self, turn: &mut Turn, spares: &mut Spares) {
        if !matches!(self.next, Next::Relay(_)) {
            return;
        }
        if self.input.is_empty() && !self.is_over {
            match self.read(spares) {
                Ok(0) => {}
                Ok(count) => {
                    turn.counts.bytes_in.add(count as u64);
                    self.client.last_ms.store(turn.now, Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.is_over = true,
                Err(_) => return self.give_up(""),
            }
        }
        if let Err(error) = self.exchange(spares) {
            // Nothing is said within an answer.
            let is_told = self.relay.as_ref().is_some_and(|relay| !relay.is_accepted);
            self.give_up(&if is_told { unserved(&error) } else { String::new() });
        }
        self.input.keep_left(&mut spares.of_input);
    }

    fn exchange(&mut self, spares: &mut Spares) -> io::Result<()> {
        let Some(relay) = &mut self.relay else { return Ok(()) };
        match relay.pass_on(self.input.bytes(), self.is_over) {
            Ok(count) => self.input.use_up(count),
            Err(_) if relay.is_accepted => {
                relay.shut();
                self.input.use_up(self.input.bytes().len());
                self.is_over = true;
            }
            Err(error) => return Err(error),
        }
        if self.sent == self.output.len() {
            if self.output.capacity() == 0 {
                self.output = spares.take();
            }
            relay.take(&mut self.output)?;
        }
        if relay.is_over {
            self.next = Next::Close;
        }
        Ok(())
    }

    /// Ends the connection with these last words.
    fn give_up(&mut self, words: &str) {
        self.output.extend_from_slice(words.as_bytes());
        self.next = Next::Close;
    }

    /// What is wanted of the client's socket, and of the other node's, while this one relays.
    fn wanted(&self, is_sent: bool) -> [EventFlags; 2] {
        let is_passed = self.input.is_empty();
        let when = |is: bool, flag: EventFlags| if is { flag } else { EventFlags::empty() };
        let sends = self.relay.as_ref().is_some_and(|relay| match relay.is_accepted {
            true => !is_passed,
            false => relay.has_mark(),
        });
        [
            when(is_passed && !self.is_over, EventFlags::IN) | when(!is_sent, EventFlags::OUT),
            when(is_sent, EventFlags::IN) | when(sends, EventFlags::OUT),
        ]
    }

    /// Has `epoll` tell, under this name, of what is wanted of the other node while this one
    /// relays.
    pub(crate) fn watch_relay(&mut self, epoll: &OwnedFd, name: u64) -> io::Result<()> {
        let wanted = match self.next {
            Next::Relay(_) => self.wanted(self.sent == self.output.len())[1],
            _ => EventFlags::empty(),
        };
        self.relay.as_mut().map_or(Ok(()), |relay| relay.watch(epoll, name, wanted))
    }

    /// Forgets the replies that wait and ends the connection: what they say did not happen for
    /// sure.
    pub(crate) fn disown(&mut self, reason: &str) {
        if self.relay.is_some() {
            // The other node has waited already.
            return;
        }
        self.output.truncate(self.sent);
        let text = match self.session {
            Session::Redis(_) => format!("-MISCONF the log cannot be written: {reason}\r\n"),
            Session::Memcached(_) => {
                format!("SERVER_ERROR the log cannot be written: {reason}\r\n")
            }
        };
        self.output.extend_from_slice(text.as_bytes());
        self.next = Next::Close;
    }

    /// How many bytes wait to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Sends what waits, and says how the connection goes on.
    pub(crate) fn send(&mut self, turn: &mut Turn, spares: &mut Spares) -> Fate {
        if self.client.kill.load(Relaxed) {
            self.next = Next::Close;
        }
        while self.sent < self.output.len() {
            let rest = &self.output[self.sent..];
            match rustix::net::send(&self.socket, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => {
                    turn.counts.bytes_out.add(count as u64);
                    self.sent += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return Fate::Ends,
            }
        }
        let is_sent = self.unsent() == 0;
        if is_sent {
            self.sent = 0;
            self.output.clear();
            spares.give(std::mem::take(&mut self.output));
        }
        if !self.account(turn) {
            return Fate::Ends;
        }
        match self.next {
            Next::Relay(_) => Fate::Waits(self.wanted(is_sent)[0]),
            _ if !is_sent => Fate::Waits(EventFlags::OUT),
            Next::Close => Fate::Ends,
            Next::Send => Fate::Again,
            Next::Wait => Fate::Later,
            Next::Look => Fate::Soon,
            Next::Read(_) => Fate::Waits(EventFlags::IN),
        }
    }

    /// Takes note of the memory that the connection makes the server keep. False if all
    /// connections together would keep too much.
    fn account(&mut self, turn: &Turn) -> bool {
        let session = match &self.session {
            Session::Redis(session) => session.bytes(),
            Session::Memcached(session) => session.bytes(),
        };
        let bytes = (self.input.capacity() + self.output.capacity() + session) as u64;
        if bytes == self.held {
            return true;
        }
        if !turn.server.rebuffer(self.held, bytes) {
            turn.counts.memory_refused.add(1);
            return false;
        }
        self.held = bytes;
        self.client.bytes.store(bytes, Relaxed);
        true
    }

    /// Whether nothing has come for so long that it may go.
    pub(crate) fn is_idle(&self, now: u64, idle_s: u64) -> bool {
        idle_s > 0 && now.saturating_sub(self.client.last_ms.load(Relaxed)) >= idle_s * 1000
    }

    /// Gives back what it has of the memory for all connections.
    pub(crate) fn leave(&mut self, server: &ServerState) {
        server.rebuffer(self.held, 0);
        self.held = 0;
        server.clients.leave(self.client.id);
    }
}
