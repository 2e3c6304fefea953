//! The clients that are connected to a server, and how it notices those that have vanished.
//!
//! One-sided operations leave no trace at the server's application, and a client whose machine dies
//! does not disconnect. So the server sends each client an empty WRITE now and then, which needs no
//! key and changes nothing. If the client's card does not acknowledge it, the client is gone.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::{Connection, ConnectionEnd};
use remora_nic::qp::State;
use remora_nic::queue::{Completion, Data, RemoteAddress, SendFlags, SendOp, SendRequest, Status};

/// How often a silent client is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// One client.
#[derive(Debug)]
struct Client<T> {
    connection: Connection,
    about: T,
    probed: Instant,
    /// Its queue pair takes probes.
    probes: bool,
    /// A probe is under way, not acknowledged yet.
    awaited: bool,
}

/// How a client has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// It disconnected.
    Parted,
    /// It no longer answers.
    Vanished,
    /// It made a request that it has no right to, which ends the connection.
    Broke,
}

/// All clients, and what the server knows of each.
///
/// The queue pairs of all report to one completion queue, whose completions the server hands to
/// [`Roster::note`].
#[derive(Debug)]
pub struct Roster<T> {
    clients: BTreeMap<u64, Client<T>>,
    next: u64,
}

impl<T> Default for Roster<T> {
    fn default() -> Roster<T> {
        Roster { clients: BTreeMap::new(), next: 0 }
    }
}

/// A client that has left.
#[derive(Debug)]
pub struct Departed<T> {
    /// Its address and port.
    pub peer: SocketAddr,
    /// What the server knew of it.
    pub about: T,
    /// How it has left.
    pub how: Departure,
}

impl<T> Roster<T> {
    /// Adds a client.
    pub fn add(&mut self, connection: Connection, about: T) {
        self.insert(connection, about, true);
    }

    /// Adds a client whose queue pair belongs to a program on the card: a probe would come between
    /// the program's own requests, so none is sent. It is noticed when it disconnects. One that
    /// vanishes is noticed by another connection of the same client, with which the server ends
    /// this one ([`Roster::end`]).
    pub fn add_program(&mut self, connection: Connection, about: T) {
        self.insert(connection, about, false);
    }

    fn insert(&mut self, connection: Connection, about: T, probes: bool) {
        let probed = Instant::now();
        let client = Client { connection, about, probed, probes, awaited: false };
        self.clients.insert(self.next, client);
        self.next += 1;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// How many there are from an address.
    pub fn len_of(&self, address: IpAddr) -> usize {
        self.clients.values().filter(|client| client.connection.peer().ip() == address).count()
    }

    /// Handles the completion of a probe.
    pub fn note(&mut self, completion: &Completion) -> Option<Departed<T>> {
        let client = self.clients.get_mut(&completion.wr_id)?;
        client.awaited = false;
        let how = match completion.status {
            Status::Success => return None,
            Status::Flushed => Departure::Broke,
            _ => Departure::Vanished,
        };
        self.remove(completion.wr_id, how)
    }

    /// Removes the clients whose connection has ended, and probes those that have been silent for
    /// long.
    pub fn inspect(&mut self, now: Instant) -> Vec<Departed<T>> {
        let mut gone = Vec::new();
        for (id, client) in &mut self.clients {
            if let Some(how) = client.departure() {
                gone.push((*id, how));
            } else if client.probes
                && !client.awaited
                && now.duration_since(client.probed) >= PROBE_INTERVAL
            {
                client.probe(*id, now);
            }
        }
        gone.into_iter().filter_map(|(id, how)| self.remove(id, how)).collect()
    }

    /// Ends the connections of those clients of whom the server knows what `goes` looks for.
    pub fn end(&mut self, mut goes: impl FnMut(&T) -> bool) -> Vec<Departed<T>> {
        let all = self.clients.iter();
        let ids: Vec<u64> = all.filter(|(_, c)| goes(&c.about)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id, Departure::Parted)).collect()
    }

    fn remove(&mut self, id: u64, how: Departure) -> Option<Departed<T>> {
        let Client { connection, about, .. } = self.clients.remove(&id)?;
        let peer = connection.peer();
        tracing::debug!(%peer, ?how, "a client has left");
        Some(Departed { peer, about, how })
    }
}

impl<T> Client<T> {
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
        let op = SendOp::Write { to: RemoteAddress { addr: 0, rkey: 0 }, imm: None };
        let empty = Data::Inline(&[]);
        let probe = SendRequest { wr_id: id, op, data: empty, flags: SendFlags::SIGNALED };
        self.probed = now;
        match self.connection.queue_pair().post_send(&probe) {
            Ok(()) => self.awaited = true,
            Err(error) => tracing::debug!(%error, "cannot probe a client"),
        }
    }
}
