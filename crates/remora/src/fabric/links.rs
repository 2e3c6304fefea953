//! The cards of this machine that a card shares rings with. (`links/settle.rs` has how it finds
//! them, and how links end.)
//!
//! The first packet to an address of this machine has the card ask there, and meanwhile packets go
//! by UDP. Where no card answers, it asks again after a second, since one may come. If two cards
//! ask each other at once, the question of the lower address counts.
//!
//! # Order
//! What a card has sent by UDP is in the peer's socket when the call returns. So a reader empties
//! its socket once before it takes the first packet from a new ring. When a ring ends, what is in
//! it is taken first. What is lost with a ring that a peer has broken is sent again, as after any
//! loss.
//!
//! # Who wakes whom
//! A thread that is about to sleep says so in all rings, and looks into them once more. All that
//! concerns the links, wake-ups included, makes one descriptor readable ([`Links::fd`]).
//!
//! A peer calls once for each sleep. So the call is read only by the thread that it is meant for,
//! which says anew when it sleeps again: another one that read it would leave that thread asleep,
//! and no peer would call any more. [`Looker`] says who looks.

mod settle;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use remora_nic::{Datagram, Segment, Time, Transmit, TransmitBatch};
use rustix::event::epoll;

use super::link::{Batch, Events, Link, Put, Watched};
use super::rendezvous;
use super::{FabricCounters, Sleep};
use crate::closer::Closer;
use crate::memory::{Gather, SharedMemory};

/// The most peers of which it is remembered that there is no ring.
const PEERS_MAX: usize = 4096;
/// The token of the listening socket; links have their number instead.
const LISTENER: u64 = 0;
/// In a token: it is of the process at the other end of a link, and not of the connection.
const PROCESS: u64 = 1 << 63;

/// A link that is not settled yet.
struct Pending {
    id: u64,
    connection: Watched,
    until: Time,
    stage: Stage,
}

enum Stage {
    /// This card has asked.
    Asked { peer: IpAddr, out: SharedMemory, into: SharedMemory },
    /// Another card is about to say who it is.
    Called,
}

/// How a peer of this machine is reached.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// By the link with this index.
    Ring(usize),
    /// By UDP; it is asked for a ring after this time, once a packet was sent to it since the last
    /// look.
    Udp { ask_at: Time, wanted: bool },
}

/// Who looks at the links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looker {
    /// A thread, while no event loop has the card.
    Thread,
    /// The event loop that sleeps on them, in its turn. It [arms](Links::arm) them afterwards.
    Loop,
    /// Another thread, in the place of the loop that sleeps on them.
    BesideLoop,
}

/// A card's links.
pub(crate) struct Links {
    addr: IpAddr,
    port: u16,
    user: u32,
    /// Addresses of this machine, besides those of loopback.
    own: Vec<IpAddr>,
    sums: bool,
    /// The peers whose ends of links have closed, since somebody asked.
    pub(super) ended: Vec<IpAddr>,
    /// The peers that have had a ring and closed their end of it, and have no other since.
    pub(super) over: HashSet<IpAddr>,
    events: Arc<Events>,
    listener: Option<Watched>,
    /// Nobody is accepted until the connections of others are closed.
    is_deaf: bool,
    links: Vec<Link>,
    pending: Vec<Pending>,
    peers: HashMap<IpAddr, Way>,
    /// The last destination that was looked up, and the index of its link.
    last: Option<(IpAddr, Option<usize>)>,
    next_id: u64,
    next_look: Time,
    /// The link that is looked into next.
    turn: usize,
    /// Links may have been written to since the last flush.
    unflushed: bool,
    /// Some link is fresh.
    any_fresh: bool,
    batch: Batch,
    pub(super) sleep: Arc<Sleep>,
    pub(super) counters: FabricCounters,
}

impl Links {
    /// The links of the card at `addr` and `port`, on a machine with the addresses `own`. `sums`
    /// says that the card captures packets.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(super) fn new(addr: IpAddr, port: u16, own: Vec<IpAddr>, sums: bool) -> io::Result<Links> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events = Arc::new(Events { poll, closer: Closer::default() });
        let listener = match rendezvous::listener(addr, port) {
            Ok(listener) => Some(Watched::new(&events, listener, LISTENER)?),
            Err(error) => {
                tracing::debug!(%error, "other cards cannot ask this one for a ring");
                None
            }
        };
        Ok(Links {
            addr,
            port,
            user: rustix::process::geteuid().as_raw(),
            own,
            sums,
            ended: Vec::new(),
            over: HashSet::new(),
            events,
            listener,
            is_deaf: false,
            links: Vec::new(),
            pending: Vec::new(),
            peers: HashMap::new(),
            last: None,
            next_id: LISTENER + 1,
            next_look: Time::ZERO,
            turn: 0,
            unflushed: false,
            any_fresh: false,
            batch: Batch::new(addr),
            sleep: Arc::default(),
            counters: FabricCounters::default(),
        })
    }

    /// Readable when something happens to the links.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.poll.as_fd()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    // Sending.

    /// The link by which packets go to `to`.
    #[inline]
    pub(crate) fn way_to(&mut self, to: IpAddr) -> Option<usize> {
        match self.last {
            Some((last, way)) if last == to => way,
            _ => self.find_way(to),
        }
    }

    #[inline(never)]
    fn find_way(&mut self, to: IpAddr) -> Option<usize> {
        let peer = to.to_canonical();
        let here = peer != self.addr && (peer.is_loopback() || self.own.contains(&peer));
        let way = if here { self.way_to_neighbour(peer) } else { None };
        self.last = Some((to, way));
        way
    }

    fn way_to_neighbour(&mut self, peer: IpAddr) -> Option<usize> {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            self.peers.retain(|_, way| matches!(way, Way::Ring(_)));
        }
        let unknown = Way::Udp { ask_at: Time::ZERO, wanted: false };
        match self.peers.entry(peer).or_insert(unknown) {
            Way::Ring(index) => Some(*index),
            Way::Udp { ask_at, wanted } => {
                *wanted = true;
                // A peer that was never asked is asked in the next step.
                if *ask_at == Time::ZERO {
                    self.next_look = Time::ZERO;
                }
                None
            }
        }
    }

    /// Has the card at `peer` not taken all that is in its ring?
    pub(super) fn is_unread(&mut self, peer: IpAddr) -> bool {
        self.links.iter_mut().any(|link| link.peer == peer && !link.over && link.out.is_unread())
    }

    /// Do packets on a link have an ICRC?
    #[inline]
    pub(crate) fn sums(&self, link: usize) -> bool {
        self.links[link].sums
    }

    /// How many packets the link that was used last has room for.
    pub(super) fn last_room(&mut self) -> Option<usize> {
        let (_, link) = self.last?;
        // That of a broken ring is seen when a packet is put there.
        link.map(|link| self.links[link].room().unwrap_or(0))
    }

    /// Copies a packet of `batch` to a link. `ahead` may have bytes of its payload.
    #[inline]
    pub(crate) fn put<'a>(
        &mut self,
        link: usize,
        packet: &'a Transmit,
        batch: &'a TransmitBatch,
        memory: &mut impl Gather,
        ahead: impl Fn(&Segment) -> Option<&'a [u8]>,
    ) -> Put {
        let put = self.links[link].put(packet, batch, memory, ahead);
        self.note(link, put, 1);
        put
    }

    /// Copies whole packets of `segment` bytes, the last of which may be shorter, to a link: all of
    /// them or none.
    pub(super) fn put_group(&mut self, link: usize, tos: u8, segment: usize, bytes: &[u8]) -> Put {
        let put = self.links[link].put_group(tos, segment, bytes);
        self.note(link, put, bytes.len().div_ceil(segment) as u64);
        put
    }

    /// Counts what became of packets for a link. If its peer has broken it, packets go by UDP, and
    /// the link is closed at the next look.
    #[inline]
    fn note(&mut self, link: usize, put: Put, packets: u64) {
        match put {
            Put::Sent => {
                self.unflushed = true;
                self.counters.tx_packets += packets;
            }
            Put::Full => self.counters.tx_full += 1,
            Put::Dropped => self.counters.tx_dropped += packets,
            Put::Fault => {}
            Put::Broken => self.leave(link),
        }
    }

    /// Packets to the peer of a link go by UDP from now on.
    fn leave(&mut self, index: usize) {
        let peer = self.links[index].peer;
        if matches!(self.peers.get(&peer), Some(Way::Ring(at)) if *at == index) {
            self.peers.insert(peer, Way::Udp { ask_at: Time::ZERO, wanted: false });
        }
        (self.last, self.next_look) = (None, Time::ZERO);
    }

    /// Wakes the peers that sleep, if something was sent to them.
    #[inline]
    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) {
            for link in &mut self.links {
                if link.out.must_wake() {
                    rendezvous::wake(link.connection.as_fd());
                }
            }
        }
    }

    // Receiving.

    /// Takes packets of one link; returns how many, and whether they have an ICRC.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<(usize, bool)> {
        let count = self.links.len();
        for _ in 0..count {
            let at = if self.turn < count { self.turn } else { 0 };
            self.turn = at + 1;
            let link = &mut self.links[at];
            if link.fresh || link.into.is_empty() {
                continue;
            }
            let packets = link.take(&mut self.batch);
            if link.broken.is_some() {
                self.leave(at);
            }
            if packets > 0 {
                self.counters.rx_packets += packets as u64;
                return Some((packets, self.links[at].sums));
            }
        }
        None
    }

    /// The packets that were taken.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> + Clone {
        let Batch { bytes, packets, from } = &self.batch;
        packets.iter().map(|&(start, len, tos)| Datagram {
            src: *from,
            src_port: self.port,
            dst: self.addr,
            ip_id: None,
            tos,
            bytes: &bytes[start..][..len],
        })
    }

    /// Is there a new link, before whose packets the socket must be emptied?
    #[inline]
    pub(super) fn any_fresh(&self) -> bool {
        self.any_fresh
    }

    /// The socket is empty: packets of new links may be taken.
    pub(super) fn socket_is_empty(&mut self) {
        if std::mem::take(&mut self.any_fresh) {
            self.links.iter_mut().for_each(|link| link.fresh = false);
        }
    }

    // Sleeping.

    /// Has the peers wake this card. Returns whether it may sleep: nothing is there to be taken.
    pub(super) fn arm(&mut self) -> bool {
        self.links.iter().for_each(|link| link.into.set_asleep(true));
        self.links.iter().all(|link| link.into.is_empty())
    }

    /// Peers need not wake this card any more.
    fn disarm(&mut self) {
        self.links.iter().for_each(|link| link.into.set_asleep(false));
    }
}

impl Drop for Links {
    /// Who waits to be accepted is not closed with the listener, for which the caller would wait.
    fn drop(&mut self) {
        while let Some(listener) = &self.listener
            && let Ok(Some(connection)) = rendezvous::accept(listener.as_fd())
        {
            self.events.closer.close_connection(connection);
        }
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers = self.links.iter().map(|link| link.peer);
        f.debug_list().entries(peers).finish()
    }
}

impl Sleep {
    /// The thread, which has slept, is awake.
    pub(crate) fn ends(&self) {
        self.woken.store(true, Ordering::Relaxed);
        self.asleep.store(false, Ordering::Relaxed);
    }
}
