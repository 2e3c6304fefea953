//! The clients that are arriving at a server: those whose connections are not complete yet.
//!
//! A client is answered at once, and then it has to complete the connection. That it may never do
//! costs no thread: one thread drives all handshakes, as futures. A client for which there is no
//! room yet waits in the listener's backlog, whose limits are the card's.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::{ConnectFailure, Connection, Handshake, IncomingConnection, Listener};

/// How long a client may take to complete its connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// As before, while a client waits for room. It is short, as a flood may come from addresses
/// without end (each user of this machine has millions), of which none has more than its share:
/// with [`HALF_OPEN_MAX`] places, ten thousand of its requests a second make room for others.
const CROWDED_PATIENCE: Duration = Duration::from_millis(50);
/// The most connections that may be incomplete at a time.
const HALF_OPEN_MAX: usize = 512;
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
    /// A client that has been taken, and for which there was no room.
    waiting: Option<IncomingConnection>,
    /// In the order in which they came.
    half_open: VecDeque<(Instant, HalfOpen<T>)>,
}

impl<'a, T> Arrivals<'a, T> {
    /// No client yet, and the listener at which they ask.
    pub fn new(listener: &'a Listener) -> Arrivals<'a, T> {
        let (next, half_open) = (listener.accept(), VecDeque::new());
        Arrivals { listener, next, waiting: None, half_open }
    }

    /// Goes on with every handshake, and hands each new client to `answer`, as long as there is
    /// room for `room` more, and says how many connections are under way before it. Never ends;
    /// the caller polls it again when it is woken, or after a [`nap`](Arrivals::nap).
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        room: usize,
        mut answer: impl FnMut(IncomingConnection, UnderWay) -> Option<HalfOpen<T>>,
        ended: &mut Vec<Ended<T>>,
    ) -> Poll<()> {
        self.go_on(context, ended);
        let now = Instant::now();
        self.drop_late(now, PATIENCE, ended);
        for _ in 0..REQUESTS_MAX {
            let incoming = match self.next_client(context) {
                Poll::Ready(Some(incoming)) => incoming,
                Poll::Ready(None) => continue,
                Poll::Pending => return Poll::Pending,
            };
            // All that are late make room at the same time, or a flood would be served one by one.
            if self.is_crowded(room) {
                self.drop_late(now, CROWDED_PATIENCE, ended);
            }
            if self.is_crowded(room) {
                self.waiting = Some(incoming);
                return Poll::Pending;
            }
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

    /// How long the caller may sleep before it polls again if nothing wakes it: for `usual`, or
    /// until a place is free for a client that waits.
    pub fn nap(&self, usual: Duration) -> Duration {
        match (&self.waiting, self.half_open.front()) {
            (Some(_), Some((since, _))) => {
                usual.min(CROWDED_PATIENCE.saturating_sub(since.elapsed()))
            }
            _ => usual,
        }
    }

    /// The next client; none if it has gone already.
    fn next_client(&mut self, context: &mut Context<'_>) -> Poll<Option<IncomingConnection>> {
        if let Some(incoming) = self.waiting.take() {
            return Poll::Ready(Some(incoming));
        }
        let incoming = ready!(Pin::new(&mut self.next).poll(context));
        self.next = self.listener.accept();
        Poll::Ready(incoming.ok())
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

    /// Gives up the clients that take longer than `patience`, the oldest first.
    fn drop_late(&mut self, now: Instant, patience: Duration, ended: &mut Vec<Ended<T>>) {
        while let Some((since, _)) = self.half_open.front() {
            if now.saturating_duration_since(*since) < patience {
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
