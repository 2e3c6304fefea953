//! The clients that are connected to a node, and how it notices those that have vanished.
//!
//! One-sided operations leave no trace at the node's application, and a client whose machine dies
//! does not disconnect. So the node sends each client an empty WRITE now and then, which needs no
//! key and changes nothing. If the client's card does not acknowledge it, the client is gone.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use remora::nic::qp::State;
use remora::nic::queue::{Completion, Data, Remote, SendFlags, SendOp, SendRequest, Status};
use remora::{Connection, ConnectionEnd};

/// How often a silent client is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// One client, connected to one region.
#[derive(Debug)]
struct Client {
    connection: Connection,
    region: String,
    probed: Instant,
    /// A probe is under way, not acknowledged yet.
    awaited: bool,
}

/// How a client has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Departure {
    /// It disconnected.
    Parted,
    /// It no longer answers.
    Vanished,
    /// It made a request that it has no right to, which ends the connection.
    Broke,
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    clients: BTreeMap<u64, Client>,
    next: u64,
}

impl Roster {
    /// Adds a client.
    pub(crate) fn add(&mut self, connection: Connection, region: &str) {
        let probed = Instant::now();
        let client = Client { connection, region: region.to_owned(), probed, awaited: false };
        self.clients.insert(self.next, client);
        self.next += 1;
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// How many there are from an address.
    pub(crate) fn len_of(&self, address: IpAddr) -> usize {
        self.clients.values().filter(|client| client.connection.peer().ip() == address).count()
    }

    /// Handles the completion of a probe.
    pub(crate) fn note(&mut self, completion: &Completion) -> Option<(SocketAddr, Departure)> {
        let client = self.clients.get_mut(&completion.wr_id)?;
        client.awaited = false;
        let departure = match completion.status {
            Status::Success => return None,
            Status::Flushed => Departure::Broke,
            _ => Departure::Vanished,
        };
        let gone = self.clients.remove(&completion.wr_id)?;
        Some((gone.connection.peer(), departure))
    }

    /// Removes the clients whose connection has ended, and probes those that have been silent for
    /// long.
    pub(crate) fn inspect(&mut self, now: Instant) -> Vec<(SocketAddr, Departure)> {
        let mut departed = Vec::new();
        self.clients.retain(|id, client| {
            let departure = client.departure();
            if let Some(how) = departure {
                let peer = client.connection.peer();
                tracing::debug!(%peer, region = client.region, ?how, "a client has left");
                departed.push((peer, how));
            } else if !client.awaited && now.duration_since(client.probed) >= PROBE_INTERVAL {
                client.probe(*id, now);
            }
            departure.is_none()
        });
        departed
    }
}

impl Client {
    fn departure(&self) -> Option<Departure> {
        // Takes the event too, so that it does not stay in the queue.
        if self.connection.wait_for_end(Duration::ZERO) == ConnectionEnd::Disconnected {
            return Some(Departure::Parted);
        }
        let broken = self.connection.queue_pair().query().state == State::Error;
        // If a probe failed, its completion says so; without a probe under way, the client broke
        // it.
        (broken && !self.awaited).then_some(Departure::Broke)
    }

    fn probe(&mut self, id: u64, now: Instant) {
        let op = SendOp::Write { to: Remote { addr: 0, rkey: 0 }, imm: None };
        let empty = Data::Inline(&[]);
        let probe = SendRequest { wr_id: id, op, data: empty, flags: SendFlags::SIGNALED };
        self.probed = now;
        match self.connection.queue_pair().post_send(&probe) {
            Ok(()) => self.awaited = true,
            Err(error) => tracing::debug!(%error, "cannot probe a client"),
        }
    }
}
