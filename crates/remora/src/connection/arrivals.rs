//! The clients that are arriving at a server: those whose connections are not complete yet.
//!
//! A client is answered at once, and then it has to complete the connection. That it may never do
//! costs no thread: one thread drives all handshakes, as futures. A client for which there is no
//! room yet waits in the listener's backlog, whose limits are the card's.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::{ConnectFailure, Connection, Handshake, IncomingConnection, Listener};

/// How long a client may take to complete its connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// As before, while there is no room for further clients.
const CROWDED_PATIENCE: Duration = Duration::from_millis(500);
/// The most connections that may be incomplete at a time.
const HALF_OPEN_MAX: usize = 256;
/// The most requests that are taken in a row, before handshakes under way get a turn.
const REQUESTS_MAX: usize = 64;

/// A connection under way, and what the server knows of the client.
#[derive(Debug)]
pub struct HalfOpen<T> {
    /// The client's address and port.
    pub peer: SocketAddr,
    /// What the server knows of the client.
    pub about: T,
    /// The handshake that is under way.
    pub step: Handshake<'static, Connection>,
}

/// How many connections were under way when a client asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// Those of all clients.
    pub all: usize,
    /// Those of the address that asks.
    pub of_address: usize,
}

/// How a connection under way has ended.
#[derive(Debug)]
pub struct Ended<T> {
    /// The client's address and port.
    pub peer: SocketAddr,
    /// What the server knows of the client.
    pub about: T,
    /// The connection, or why there is none.
    pub connection: Result<Connection, ConnectFailure>,
}

/// The clients that are arriving.
#[derive(Debug)]
pub struct Arrivals<'a, T> {
    listener: &'a Listener,
    next: Handshake<'a, IncomingConnection>,
    /// In the order in which they came.
    half_open: VecDeque<(Instant, HalfOpen<T>)>,
}

impl<'a, T> Arrivals<'a, T> {
    /// No client yet, and the listener at which they ask.
    pub fn new(listener: &'a Listener) -> Arrivals<'a, T> {
        Arrivals { listener, next: listener.accept(), half_open: VecDeque::new() }
    }

    /// Goes on with every handshake, and hands each new client to `answer`, as long as there is
    /// room for `room` more, and says how many connections are under way before it. Never ends;
    /// the caller polls it again when it is woken, or now and then.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        room: usize,
        mut answer: impl FnMut(IncomingConnection, UnderWay) -> Option<HalfOpen<T>>,
        ended: &mut Vec<Ended<T>>,
    ) -> Poll<()> {
        self.go_on(context, ended);
        self.drop_late(Instant::now(), room, ended);
        for _ in 0..REQUESTS_MAX {
            if self.is_crowded(room) {
                return Poll::Pending;
            }
            let Poll::Ready(incoming) = Pin::new(&mut self.next).poll(context) else {
                return Poll::Pending;
            };
            self.next = self.listener.accept();
            let Ok(incoming) = incoming else { continue };
            let under_way = self.under_way(incoming.peer().ip());
            if let Some(mut begun) = answer(incoming, under_way) {
                // The first step sends the answer.
                if let Poll::Ready(connection) = begun.poll(context) {
                    ended.push(begun.end(connection));
                } else {
                    self.half_open.push_back((Instant::now(), begun));
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn under_way(&self, address: IpAddr) -> UnderWay {
        let is_theirs = |(_, client): &&(Instant, HalfOpen<T>)| client.peer.ip() == address;
        let of_address = self.half_open.iter().filter(is_theirs).count();
        UnderWay { all: self.half_open.len(), of_address }
    }

    fn is_crowded(&self, room: usize) -> bool {
        // (Where there is no room at all, the next client is told so.)
        self.half_open.len() >= room.clamp(1, HALF_OPEN_MAX)
    }

    fn go_on(&mut self, context: &mut Context<'_>, ended: &mut Vec<Ended<T>>) {
        let mut at = 0;
        while let Some((_, client)) = self.half_open.get_mut(at) {
            let Poll::Ready(connection) = client.poll(context) else {
                at += 1;
                continue;
            };
            ended.extend(self.half_open.remove(at).map(|(_, client)| client.end(connection)));
        }
    }

    /// Gives up the clients that take too long, the oldest first.
    fn drop_late(&mut self, now: Instant, room: usize, ended: &mut Vec<Ended<T>>) {
        // Decided once: where it is crowded, all that are late make room at the same time, or a
        // flood would be served one by one.
        let patience = if self.is_crowded(room) { CROWDED_PATIENCE } else { PATIENCE };
        while let Some((since, _)) = self.half_open.front() {
            if now.duration_since(*since) < patience {
                return;
            }
            let late = self.half_open.pop_front();
            let end = Err(ConnectFailure::Timeout(patience));
            ended.extend(late.map(|(_, client)| client.end(end)));
        }
    }
}

impl<T> HalfOpen<T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Connection, ConnectFailure>> {
        Pin::new(&mut self.step).poll(context)
    }

    fn end(self, connection: Result<Connection, ConnectFailure>) -> Ended<T> {
        Ended { peer: self.peer, about: self.about, connection }
    }
}
