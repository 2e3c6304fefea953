//! The clients that are arriving at a node: those whose connections are not complete yet.
//!
//! A client is answered at once, and then it has to complete the connection. That it may never do
//! costs no thread: one thread drives all handshakes, as futures. A client for which there is no
//! room yet waits in the listener's backlog, whose limits are the card's.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use remora::{ConnectFailure, Connection, Handshake, IncomingConnection, Listener};

/// How long a client may take to complete its connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// As before, while there is no room for further clients.
const CROWDED_PATIENCE: Duration = Duration::from_millis(500);
/// The most connections that may be incomplete at a time.
const HALF_OPEN_MAX: usize = 256;
/// The most requests that are taken in a row, before handshakes under way get a turn.
const REQUESTS_MAX: usize = 64;

/// A connection under way.
pub(crate) struct HalfOpen {
    pub(crate) peer: SocketAddr,
    pub(crate) region: String,
    pub(crate) step: Handshake<'static, Connection>,
}

/// How a connection under way has ended.
pub(crate) struct Ended {
    pub(crate) peer: SocketAddr,
    pub(crate) region: String,
    pub(crate) connection: Result<Connection, ConnectFailure>,
}

/// The clients that are arriving.
pub(crate) struct Arrivals<'a> {
    listener: &'a Listener,
    next: Handshake<'a, IncomingConnection>,
    /// In the order in which they came.
    half_open: VecDeque<(Instant, HalfOpen)>,
}

impl<'a> Arrivals<'a> {
    pub(crate) fn new(listener: &'a Listener) -> Arrivals<'a> {
        Arrivals { listener, next: listener.accept(), half_open: VecDeque::new() }
    }

    /// Goes on with every handshake, and hands each new client to `answer`, as long as there is
    /// room for `room` more. Never ends; the caller polls it again when it is woken, or now and
    /// then.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        room: usize,
        mut answer: impl FnMut(IncomingConnection) -> Option<HalfOpen>,
        ended: &mut Vec<Ended>,
    ) -> Poll<()> {
        self.go_on(context, ended);
        self.drop_late(Instant::now(), room, ended);
        for _ in 0..REQUESTS_MAX {
            if self.is_crowded(room) {
                return Poll::Pending;
            }
            let Poll::Ready(incoming) = std::pin::Pin::new(&mut self.next).poll(context) else {
                return Poll::Pending;
            };
            self.next = self.listener.accept();
            if let Some(mut begun) = incoming.ok().and_then(&mut answer) {
                // The first step sends the answer.
                if let Some(end) = begun.poll(context) {
                    ended.push(end);
                } else {
                    self.half_open.push_back((Instant::now(), begun));
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn is_crowded(&self, room: usize) -> bool {
        // (Where there is no room at all, the next client is told so.)
        self.half_open.len() >= room.clamp(1, HALF_OPEN_MAX)
    }

    fn go_on(&mut self, context: &mut Context<'_>, ended: &mut Vec<Ended>) {
        self.half_open.retain_mut(|(_, half_open)| {
            let end = half_open.poll(context);
            let goes_on = end.is_none();
            ended.extend(end);
            goes_on
        });
    }

    /// Gives up the clients that take too long, the oldest first.
    fn drop_late(&mut self, now: Instant, room: usize, ended: &mut Vec<Ended>) {
        while let Some((since, _)) = self.half_open.front() {
            let patience = if self.is_crowded(room) { CROWDED_PATIENCE } else { PATIENCE };
            if now.duration_since(*since) < patience {
                return;
            }
            if let Some((_, HalfOpen { peer, region, .. })) = self.half_open.pop_front() {
                let connection = Err(ConnectFailure::Timeout(patience));
                ended.push(Ended { peer, region, connection });
            }
        }
    }
}

impl HalfOpen {
    fn poll(&mut self, context: &mut Context<'_>) -> Option<Ended> {
        let Poll::Ready(connection) = std::pin::Pin::new(&mut self.step).poll(context) else {
            return None;
        };
        Some(Ended { peer: self.peer, region: std::mem::take(&mut self.region), connection })
    }
}
