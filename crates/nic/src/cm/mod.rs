//! The RDMA communication manager: how two queue pairs learn of each other.
//!
//! [`Cm`] exchanges messages with the peer's manager and tells its caller what to do with a queue
//! pair. It does no input or output, and knows nothing of queue pairs but their numbers. The
//! protocol is InfiniBand's communication management (volume 1, chapter 12) over RoCE v2, with the
//! address header of the RDMA connection manager (annex A11), so that `rdma_cm` programs can be its
//! peers.
//!
//! - [`mad`] and [`message`] are the bytes; [`service`] maps ports to service ids.
//! - `state` is the table of states. `receive` acts on the peer's messages, `command` on the
//!   caller's wishes, `sidr` on both for datagram services. `repeat` has the timers: a message
//!   without an answer is sent again, and at last given up. `event` is what the caller is told.
//! - The manager remembers `connection`s, `listener`s, and `resolution`s of datagram services.
//!   `scope` is the addresses that a listener covers, `order` which was accepted first.
//! - `offer`: what two cards agree on beyond the standard, in their GUIDs. `life`: signs of life of
//!   a peer's card.
//! - `config` has the settings and limits, `counters` what was refused, dropped or repeated.
//!
//! A connection, from both sides:
//!
//! ```text
//! active                                    passive
//!                                           listen
//! connect            -- REQ -->             ConnectRequest
//! Replied            <-- REP --             accept        (queue pair to RTR)
//! (queue pair to RTS)
//! establish          -- RTU -->             Established   (queue pair to RTS)
//!                        ...
//! disconnect         -- DREQ -->            Disconnected  (queue pair to ERR)
//! Disconnected       <-- DREP --            disconnect_reply
//! TimewaitExit                              TimewaitExit
//! destroy                                   destroy
//! ```

mod command;
mod config;
mod connection;
mod counters;
mod event;
mod life;
mod listener;
pub mod mad;
pub mod message;
mod offer;
mod order;
mod receive;
mod repeat;
mod resolution;
mod scope;
pub mod service;
mod sidr;
mod state;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub use command::{AcceptParams, CommandError, ConnectError, ConnectRequest, WideNumber};
pub use config::CmConfig;
pub use connection::ConnId;
pub use counters::CmCounters;
pub use event::{CmEvent, IncomingRequest, IncomingResolution, Reply, Resolution};
pub use listener::{ListenError, ListenerId};
pub use resolution::SidrId;
pub use scope::AddressScope;
pub use sidr::{ResolveError, ResolveRequest, SidrAnswer, SidrError};
pub use state::ConnState;

use crate::Time;
use crate::wire::Dialect;
use connection::{Connection, Side};
use life::Questions;
use listener::Listeners;
use mad::{CM_QPN, MAD_LEN};
use message::Message;
use order::Order;
use resolution::Resolutions;
use service::{CmaHeader, ServiceId};
use state::{Input, Next};

/// A MAD to be sent, from queue pair 1 with the queue key [`CM_QKEY`](mad::CM_QKEY).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutgoingMad {
    /// The peer's address.
    pub dst: IpAddr,
    /// The peer's queue pair.
    pub dst_qp: u32,
    /// The payload.
    pub bytes: Box<[u8; MAD_LEN]>,
}

/// A peer's card: its address, and its GUID. Two cards may have one address, one after the other.
type PeerCard = (IpAddr, u64);

/// A peer's queue pair: the address and GUID of its card around its number, so that those of one
/// number at one address are next to each other.
type OfQpn = (IpAddr, u32, u64);

fn of_qpn((address, guid): PeerCard, qpn: u32) -> OfQpn {
    (address, qpn, guid)
}

/// The owner of a timer, by its id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timed {
    Connection(u32),
    Resolution(u32),
}

/// A communication manager.
///
/// Its methods are of four kinds:
///
/// - Getters take `&self`.
/// - `handle_*` tell the manager what has happened: a message has come, or the moment of
///   [`poll_timeout`](Cm::poll_timeout) has passed.
/// - Commands are the caller's wishes. In a state where a command makes no sense it is an error and
///   changes nothing.
/// - `poll_*` return what the manager wants: messages to send, events to act on, the next wake-up.
///   After each call of the second or third kind the caller must poll all three, in any order.
///
/// The times that the caller passes must not go backwards.
///
/// A [`ConnId`] is valid until the caller destroys or rejects the connection, whatever the peer
/// does. After that the manager still ends the connection with the peer, without further events.
/// Nothing that a peer sends makes the manager remember more than its [`CmConfig`] allows.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    /// The addresses of this machine, besides those of loopback.
    neighbours: Vec<IpAddr>,
    rng: ChaCha8Rng,
    listeners: Listeners,
    /// By this side's communication id. The maps here are ordered, so that no hash seed makes two
    /// runs differ.
    connections: BTreeMap<u32, Connection>,
    /// Live connections by the peer's communication id.
    by_peer: BTreeMap<(PeerCard, u32), u32>,
    /// Live connections by the peer's queue pair.
    by_qpn: BTreeMap<OfQpn, u32>,
    /// Connections that the caller has destroyed, and that are kept for the peer's sake.
    released: Order,
    /// Of the others, how many each peer has asked for.
    asked_by: BTreeMap<IpAddr, usize>,
    resolutions: Resolutions,
    questions: Questions,
    timers: BTreeSet<(Time, Timed)>,
    outgoing: VecDeque<OutgoingMad>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
}

impl Cm {
    /// A manager without listeners or connections. Its ids come from `seed`: the same seed and the
    /// same calls give the same ids. Two processes should have different seeds.
    pub fn new(config: CmConfig, seed: u64) -> Cm {
        Cm {
            config,
            neighbours: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            listeners: Listeners::default(),
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            released: Order::default(),
            asked_by: BTreeMap::new(),
            resolutions: Resolutions::default(),
            questions: Questions::default(),
            timers: BTreeSet::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// Counts of what was refused, dropped or repeated so far.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// The state of a connection; `None` once it is destroyed.
    pub fn state(&self, conn: ConnId) -> Option<ConnState> {
        self.owned(conn).map(|connection| connection.state)
    }

    /// Connections remembered, destroyed ones in time-wait included.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The bytes that connections take, with the messages that they keep.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let kept = self.connections.values().filter(|conn| conn.last.is_some()).count();
        self.connections.len() * size_of::<(u32, Connection)>()
            + kept * MAD_LEN
            + (self.by_peer.len() + self.by_qpn.len()) * size_of::<((PeerCard, u32), u32)>()
            + self.timers.len() * size_of::<(Time, Timed)>()
    }

    /// The same manager, on a machine that has these addresses besides those of loopback.
    pub(crate) fn beside(self, neighbours: Vec<IpAddr>) -> Cm {
        Cm { neighbours, ..self }
    }

    /// Offers this to peers of this machine from now on.
    pub(crate) fn set_offers_here(&mut self, offers: Dialect) {
        self.config.offers_here = offers;
    }

    /// What this card offers to the card at `peer`.
    fn offers_to(&self, peer: IpAddr) -> Dialect {
        let here = peer.is_loopback() || self.neighbours.contains(&peer);
        if here { self.config.offers_here } else { self.config.offers }
    }

    /// What the connection of queue pair `qpn` to the peer's `remote_qpn` has agreed on; nothing if
    /// there is none. The passive side does not know its own queue pair before it accepts.
    pub(crate) fn agreed(&self, peer: IpAddr, remote_qpn: u32, qpn: u32) -> Dialect {
        let peer = peer.to_canonical();
        let those = (peer, remote_qpn, 0)..=(peer, remote_qpn, u64::MAX);
        let connections = self.by_qpn.range(those).filter_map(|(_, id)| self.connections.get(id));
        connections
            .filter(|conn| conn.local_qpn == qpn || conn.local_qpn == 0)
            .max_by_key(|conn| conn.local_qpn)
            .map_or(Dialect::STANDARD, |conn| conn.dialect)
    }

    /// Takes requests for a service from now on, at whatever address the peer asks for.
    ///
    /// # Errors
    /// If the service has a listener already, or there are too many listeners.
    pub fn listen(&mut self, service: ServiceId) -> Result<ListenerId, ListenError> {
        self.listen_at(service, AddressScope::All)
    }

    /// As [`Cm::listen`], at the addresses of a scope. A request says in its CMA header which
    /// address it asks for. One for this side's own address ([`CmConfig::local`]), or without a
    /// header, may go to any listener of the service.
    ///
    /// # Errors
    /// If the service has a listener at one of the addresses, or there are too many listeners.
    pub fn listen_at(
        &mut self,
        service: ServiceId,
        scope: AddressScope,
    ) -> Result<ListenerId, ListenError> {
        self.listeners.add(service, scope, self.config.max_listeners)
    }

    /// The listener for a service at the address that a peer asks for, if it says one.
    fn listener(&self, service: ServiceId, asked: Option<&CmaHeader>) -> Option<ListenerId> {
        let asked = asked.map(|told| told.destination.to_canonical());
        let own = asked.is_none_or(|asked| asked == self.config.local);
        let at_asked = asked.and_then(|asked| self.listeners.find(service, asked));
        at_asked.or_else(|| self.listeners.any(service).filter(|_| own))
    }

    /// Takes no more requests. Requests that the caller knows of stay. Returns whether there was
    /// such a listener.
    pub fn unlisten(&mut self, listener: ListenerId) -> bool {
        self.refuse_untold(listener);
        self.listeners.remove(listener)
    }

    /// Takes a MAD that came from queue pair `src_qp` at `src`.
    pub fn handle_mad(&mut self, now: Time, src: IpAddr, src_qp: u32, bytes: &[u8]) {
        // Messages of managers come from queue pair 1. Every other queue pair is an application's,
        // which must not speak for its manager.
        if src_qp != CM_QPN {
            self.counters.wrong_queue_pair += 1;
            return;
        }
        // A MAD in another form than chapter 13 (Management Model) prescribes, or a message that
        // chapter 12 does not know, is dropped.
        match Message::from_mad(bytes) {
            Ok((transaction_id, message)) => self.receive(now, src, transaction_id, &message),
            Err(_) => self.counters.malformed += 1,
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        // Only timers that are due at the start: those that are set anew wait for the next call.
        let due: Vec<Timed> =
            self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, timer)| *timer).collect();
        for timer in due {
            match timer {
                Timed::Connection(id) => self.on_connection_timer(now, id),
                Timed::Resolution(id) => self.on_resolution_timer(now, id),
            }
        }
    }

    /// Are there messages to send?
    pub fn has_mads(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The next message to send.
    pub fn poll_mad(&mut self) -> Option<OutgoingMad> {
        self.outgoing.pop_front()
    }

    /// When [`handle_timeout`](Cm::handle_timeout) is next due; [`Time::NEVER`] if it is not.
    pub fn poll_timeout(&self) -> Time {
        self.timers.first().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// May [`Cm::poll_event`] have something?
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event for the caller. Events of connections that were destroyed meanwhile, and
    /// questions that are forgotten, are left out.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        loop {
            let event = self.events.pop_front()?;
            let stands = match &event {
                CmEvent::SidrRequest(question) => self.resolutions.contains(question.sidr.0),
                event => event.conn().is_none_or(|conn| self.owned(conn).is_some()),
            };
            if stands {
                return Some(event);
            }
        }
    }

    /// A connection that the caller has not destroyed.
    fn owned(&self, conn: ConnId) -> Option<&Connection> {
        self.connections.get(&conn.0).filter(|connection| !connection.released)
    }

    /// A communication id or request id that is not in use: a random one, or the next free one.
    fn free_id(&mut self) -> u32 {
        let mut id = self.rng.next_u32();
        while id == 0 || self.connections.contains_key(&id) || self.resolutions.contains(id) {
            id = id.wrapping_add(1);
        }
        id
    }

    /// Moves a connection as the table says of `input`. `None` if the table refuses the input.
    fn step(&mut self, now: Time, id: u32, input: Input) -> Option<Next> {
        let next = self.connections.get(&id)?.state.on(input);
        match next {
            Next::To(state) => self.enter(now, id, state),
            Next::Resend => {}
            Next::Refuse => return None,
        }
        Some(next)
    }

    /// Puts a connection into a state, with everything that follows from the state alone.
    fn enter(&mut self, now: Time, id: u32, state: ConnState) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let before = core::mem::replace(&mut conn.state, state);
        if before == state {
            return self.drop_if_done(id);
        }
        let until = now + conn.time_wait;
        // A request that the peer takes back waits on, until the caller has seen it.
        if !state.is_pending() && (state != ConnState::Closed || conn.released) {
            self.leave_backlog(id);
        }
        match state {
            ConnState::TimeWait => self.set_deadline(id, until),
            ConnState::Closed => {
                self.forget_peer(id);
                self.set_deadline(id, Time::NEVER);
                self.drop_if_done(id);
            }
            _ if state.repeats() => {}
            _ => self.set_deadline(id, Time::NEVER),
        }
    }

    fn drop_if_done(&mut self, id: u32) {
        if self.connections.get(&id).is_some_and(|c| c.released && c.state == ConnState::Closed) {
            self.leave_backlog(id);
            self.connections.remove(&id);
            self.released.remove(id);
        }
    }

    /// A connection no longer takes a place among the requests that wait at its listener.
    fn leave_backlog(&mut self, id: u32) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if let Side::Passive(listener) = conn.side
            && core::mem::take(&mut conn.waits)
        {
            self.listeners.end(listener, conn.peer, id);
        }
    }

    /// Makes room for another connection: what is kept only for the sake of peers, who may send
    /// late messages, is forgotten. Returns whether there is room.
    fn make_room(&mut self, now: Time) -> bool {
        if self.connections.len() >= self.config.max_connections
            && let Some((_, oldest)) = self.released.first()
        {
            self.counters.forgotten_early += 1;
            self.enter(now, oldest, ConnState::Closed);
        }
        self.connections.len() < self.config.max_connections
    }

    /// May this peer have another connection? It gets half of what the others leave, so that one
    /// alone never takes all, at however many listeners it asks.
    fn has_share(&self, peer: IpAddr) -> bool {
        let all = self.connections.len() - self.released.len();
        let of_peer = self.asked_by.get(&peer).copied().unwrap_or(0);
        of_peer < self.config.max_connections.saturating_sub(all)
    }

    /// A peer no longer has a connection that it has asked for.
    fn give_share_back(&mut self, peer: IpAddr) {
        let Entry::Occupied(mut count) = self.asked_by.entry(peer) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }

    /// From now on the peer's ids may name another connection.
    fn forget_peer(&mut self, id: u32) {
        self.forget_qpn(id);
        let Some(conn) = self.connections.get(&id) else { return };
        if let Some(remote_id) = conn.remote_id {
            remove_if(&mut self.by_peer, (conn.card(), remote_id), id);
        }
    }

    /// From now on the peer's queue pair may be part of another connection: it never was connected
    /// to this side's, or no longer is.
    fn forget_qpn(&mut self, id: u32) {
        let Some(conn) = self.connections.get(&id) else { return };
        if let Some(qpn) = conn.remote_qpn {
            remove_if(&mut self.by_qpn, of_qpn(conn.card(), qpn), id);
        }
    }

    /// Sends a message of a connection once, and keeps it in case the peer has not received it.
    fn say(&mut self, id: u32, message: impl Into<Message>) {
        let message = message.into();
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let bytes = Box::new(message.to_mad(conn.transaction_id));
        conn.last = Some((message.attribute(), bytes.clone()));
        let peer = conn.peer;
        self.transmit(peer, bytes);
    }

    /// Sends a message that no connection remembers.
    fn answer(&mut self, dst: IpAddr, transaction_id: u64, message: impl Into<Message>) {
        self.transmit(dst, Box::new(message.into().to_mad(transaction_id)));
    }

    fn transmit(&mut self, dst: IpAddr, bytes: Box<[u8; MAD_LEN]>) {
        if self.outgoing.len() >= self.config.max_outgoing {
            self.counters.outgoing_full += 1;
            return;
        }
        self.outgoing.push_back(OutgoingMad { dst, dst_qp: CM_QPN, bytes });
    }

    /// Adds an event for the caller, unless the caller has destroyed the connection.
    fn tell(&mut self, id: u32, event: impl FnOnce(ConnId) -> CmEvent) {
        if self.owned(ConnId(id)).is_some() {
            self.events.push_back(event(ConnId(id)));
        }
    }

    /// Tells the end of a connection that was established.
    fn tell_end(&mut self, id: u32, private_data: Vec<u8>, timed_out: bool) {
        self.tell(id, |conn| CmEvent::Disconnected { conn, private_data, timed_out });
    }
}

/// Removes an entry if it still belongs to `id`.
fn remove_if<K: Ord>(map: &mut BTreeMap<K, u32>, key: K, id: u32) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}
