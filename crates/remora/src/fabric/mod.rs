//! What carries a card's packets: UDP, or within a machine shared memory.
//!
//! [`Fabric`] is the seam: the driver hands packets to it and takes packets from it, and does not
//! know which of the two ways they go. It knows one thing besides: what to sleep on.
//!
//! - *UDP* ([`socket`](crate::socket)) reaches every peer. It alone carries multicast, and all that
//!   leaves the machine.
//! - *Rings* ([`ring`]) carry packets between two cards of one machine and one user, a hundred
//!   times faster than a system call. Cards find each other by themselves (`rendezvous.rs`);
//!   `link.rs` is a ring each way; `links.rs` keeps those of a card, and says what becomes of
//!   packets when one comes or goes. [`FABRIC_VARIABLE`] turns rings off.
//!
//! In a ring are the same packets as in a datagram. Where neither card captures them, their ICRC is
//! left out, since bytes in memory are not damaged on their way.
//!
//! A packet is copied twice, as often as without a network: from registered memory into the ring,
//! and out of it. The card that receives copies it to memory of its own first, which stays in its
//! cache, and judges it there: the peer may change what is in the ring at any time.

pub(crate) mod link;
pub(crate) mod links;
pub(crate) mod rendezvous;
pub mod ring;
mod silence;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use remora_nic::transmit::PATH_PORTS;
use remora_nic::{Datagram, Silence, Time, Transmit};
use thiserror::Error;

use crate::environment;
use crate::socket::{Destination, RecvBatch, Refusal, Socket};
use link::Put;
use links::{Links, Looker};
use silence::Silences;

/// The environment variable that chooses what carries packets: `udp` for UDP alone, `auto` (or
/// nothing) for shared memory where two cards of one user and one machine meet.
pub const FABRIC_VARIABLE: &str = "REMORA_FABRIC";

/// Looks into the rings for each look at the socket, which takes a system call, while packets come
/// by rings.
const RING_LOOKS: u32 = 32;
/// Looks that find the socket not empty before a new ring is looked into all the same.
const FRESH_LOOKS: u32 = 64;
/// The fewest packets that the card is asked for at a time.
const PACKETS_MIN: usize = 4;

/// What may carry a card's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FabricChoice {
    /// Shared memory to cards of this machine and user, UDP to all others.
    #[default]
    Auto,
    /// UDP only.
    Udp,
}

/// A name of no fabric.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{FABRIC_VARIABLE} is `{0}`: `udp` sends all packets by UDP, and `auto`, as without the \
     variable, uses shared memory between cards of this machine and user"
)]
pub struct UnknownFabric(pub String);

impl FabricChoice {
    /// What [`FABRIC_VARIABLE`] says.
    ///
    /// # Errors
    /// It names no fabric.
    pub fn from_environment() -> Result<FabricChoice, UnknownFabric> {
        FabricChoice::parse(&environment::text(FABRIC_VARIABLE))
    }

    fn parse(name: &str) -> Result<FabricChoice, UnknownFabric> {
        match name {
            "" | "auto" => Ok(FabricChoice::Auto),
            "udp" => Ok(FabricChoice::Udp),
            other => Err(UnknownFabric(other.to_owned())),
        }
    }
}

/// What rings have carried. All count from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FabricCounters {
    /// Packets that were sent by rings.
    pub tx_packets: u64,
    /// Packets that have come by rings.
    pub rx_packets: u64,
    /// How often a ring had no room. Nothing is lost: the rest of the batch waits.
    pub tx_full: u64,
    /// Packets that were dropped since their ring had been full for too long: the peer's process is
    /// stopped, or has no processor.
    pub tx_dropped: u64,
    /// Rings that were opened.
    pub opened: u64,
    /// Rings that were given up because the peer had broken them.
    pub broken: u64,
}

/// What a thread that sleeps on the links and the driver tell each other.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    /// Set under the driver's lock.
    asleep: AtomicBool,
    /// The thread has slept since the last look at the links.
    woken: AtomicBool,
}

/// Packets that have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrived {
    Nothing,
    /// So many packets are in the batch.
    Udp(usize),
    /// So many packets are in [`Fabric::datagrams`]. `sums` says that they have an ICRC.
    Ring {
        packets: usize,
        sums: bool,
    },
}

/// Which way a group went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Went {
    Udp,
    Ring,
    /// Nowhere: the ring was full for too long.
    Dropped,
}

/// What carries a card's packets.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) udp: Socket,
    /// Send-only sockets on the ports of further paths, in their order, as far as they are free.
    paths: Vec<Option<Socket>>,
    links: Option<Box<Links>>,
    /// Looks into the rings before the next look at the socket.
    ring_looks: u32,
    /// The last packets came by a ring.
    by_ring: bool,
    fresh_looks: u32,
    /// A ring had no room at the last call that sent.
    full: bool,
    silent: Silences,
    /// What other machines have refused, as calls that send have learnt.
    refusals: Vec<Refusal>,
}

impl Fabric {
    /// UDP alone.
    pub(crate) fn udp(udp: Socket) -> Fabric {
        let (silent, full, paths) = (Silences::default(), false, Vec::new());
        Fabric {
            udp,
            paths,
            links: None,
            ring_looks: 0,
            by_ring: false,
            fresh_looks: 0,
            full,
            silent,
            refusals: Vec::new(),
        }
    }

    /// UDP, and rings to other cards of this machine, whose addresses are `own`. `sums` says that
    /// the card captures packets. If the system is short of descriptors, UDP alone.
    pub(crate) fn with_rings(udp: Socket, own: Vec<IpAddr>, sums: bool) -> Fabric {
        let links = Links::new(udp.addr(), udp.port(), own, sums);
        let links = links
            .inspect_err(|error| tracing::warn!(%error, "packets go by UDP, not shared memory"));
        Fabric { links: links.ok().map(Box::new), ..Fabric::udp(udp) }
    }

    /// Makes sockets for so many paths, in all. Packets of a path whose port is taken leave from
    /// the card's own port.
    pub(crate) fn spread(&mut self, paths: u8) {
        // The card spreads over a power of two.
        let paths = 1 << paths.max(1).ilog2();
        let ports = PATH_PORTS.take(paths - 1);
        let bind = |port| {
            let bound = self.udp.beside(port);
            bound.inspect_err(|error| tracing::warn!(%error, "a path fewer")).ok()
        };
        self.paths = ports.map(bind).collect();
    }

    /// The port from which a packet leaves, if it goes by UDP.
    #[inline]
    pub(crate) fn port_from(&self, packet: &Transmit) -> u16 {
        let path = packet.path.src_port.checked_sub(PATH_PORTS.start);
        match path.and_then(|path| self.paths.get(usize::from(path))) {
            Some(Some(socket)) => socket.port(),
            _ => self.udp.port(),
        }
    }

    /// What rings have carried.
    pub(crate) fn counters(&self) -> FabricCounters {
        self.links.as_ref().map(|links| links.counters).unwrap_or_default()
    }

    /// How many rings there are to other cards; `None` if packets go by UDP only.
    pub(crate) fn rings(&self) -> Option<usize> {
        self.links.as_ref().map(|links| links.len())
    }

    // Sending.

    /// The links, and the one by which packets without an ICRC go to `to`; `None` if they go by
    /// [`Fabric::send`].
    #[inline]
    pub(crate) fn link_to(&mut self, to: IpAddr) -> Option<(&mut Links, usize)> {
        let links = self.links.as_mut()?;
        let link = links.way_to(to)?;
        if links.sums(link) { None } else { Some((links, link)) }
    }

    /// Do packets to `to` go by a ring?
    pub(crate) fn has_ring(&mut self, to: IpAddr) -> bool {
        self.links.as_mut().is_some_and(|links| links.way_to(to).is_some())
    }

    /// Sends whole packets as [`Socket::send`] does; by a ring, if there is one to the peer.
    pub(crate) fn send(
        &mut self,
        to: Destination,
        segment: usize,
        bytes: &[u8],
    ) -> io::Result<Went> {
        if let Some(links) = &mut self.links
            && let Some(link) = links.way_to(to.addr)
        {
            match links.put_group(link, to.tos, segment, bytes) {
                Put::Sent => return Ok(Went::Ring),
                Put::Dropped => return Ok(Went::Dropped),
                Put::Full => {
                    self.full = true;
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Put::Fault | Put::Broken => {}
            }
        }
        let path = to.from_port.checked_sub(PATH_PORTS.start);
        let socket = match path.and_then(|path| self.paths.get_mut(usize::from(path))) {
            Some(Some(socket)) => socket,
            _ => &mut self.udp,
        };
        let Err(error) = socket.send(to, segment, bytes) else { return Ok(Went::Udp) };
        // An error that came by ICMP is about an earlier packet.
        let is_full = error.kind() == io::ErrorKind::WouldBlock;
        let stale = !is_full && socket.take_refusals(&mut self.refusals);
        Err(if stale { io::Error::from_raw_os_error(libc::ECONNREFUSED) } else { error })
    }

    /// A ring has no room.
    pub(crate) fn note_full(&mut self) {
        self.full = true;
    }

    /// Ends a call that sends: wakes peers that sleep. Returns whether a ring had no room.
    #[inline]
    pub(crate) fn flush(&mut self) -> bool {
        if let Some(links) = &mut self.links {
            links.flush();
        }
        std::mem::take(&mut self.full)
    }

    /// How many packets to ask the card for, at most `most`. What does not fit into a ring would be
    /// copied twice.
    #[inline]
    pub(crate) fn packets_wanted(&mut self, most: usize) -> usize {
        match &mut self.links {
            Some(links) if !links.is_empty() => {
                links.last_room().map_or(most, |room| room.clamp(PACKETS_MIN, most))
            }
            _ => most,
        }
    }

    /// The addresses of this machine, besides those of loopback, are `own`.
    pub(crate) fn beside(mut self, own: Vec<IpAddr>) -> Fabric {
        self.silent.own = own;
        self
    }

    /// Why does the card at `peer` not answer?
    pub(crate) fn silence_of(&mut self, peer: IpAddr) -> Silence {
        let links = self.links.as_mut();
        let (unread, over) = links
            .map_or((false, false), |links| (links.is_unread(peer), links.over.contains(&peer)));
        match self.silent.of(peer, &mut self.udp) {
            _ if unread => Silence::Held,
            // The process of its card has ended, though a child of it still has the socket open.
            Silence::Held if over => Silence::Unexplained,
            silence => silence,
        }
    }

    /// Is `peer` an address of this machine?
    pub(crate) fn is_here(&self, peer: IpAddr) -> bool {
        self.silent.is_here(peer)
    }

    /// Has the machine at `peer` say that it lives. What it says comes as a refusal of a port other
    /// than the card's.
    pub(crate) fn probe(&mut self, peer: IpAddr) {
        const TRIES: usize = 4;
        for _ in 0..TRIES {
            if self.udp.probe(peer).is_ok() {
                break;
            }
            self.udp.take_refusals(&mut self.refusals);
        }
    }

    /// Takes the news of packets that were sent, as a call that sends does where it fails.
    #[cold]
    pub(crate) fn hear_refusals(&mut self) {
        self.udp.take_refusals(&mut self.refusals);
    }

    /// Have calls that send learnt of refusals?
    #[inline]
    pub(crate) fn has_refusals(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// What other machines have refused.
    pub(crate) fn take_refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Has the process of a card at the other end of a ring ended?
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.links.as_ref().is_some_and(|links| !links.ended.is_empty())
    }

    /// The addresses of cards whose processes have ended.
    pub(crate) fn take_ended(&mut self) -> Vec<IpAddr> {
        self.links.as_mut().map(|links| std::mem::take(&mut links.ended)).unwrap_or_default()
    }

    // Receiving.

    /// Takes packets from the socket, into `batch`, or from a ring.
    #[inline(always)]
    pub(crate) fn receive(&mut self, batch: &mut RecvBatch) -> io::Result<Arrived> {
        match &self.links {
            Some(links) if !links.is_empty() => self.receive_both(batch),
            _ => Ok(match self.udp.recv(batch)? {
                0 => Arrived::Nothing,
                packets => Arrived::Udp(packets),
            }),
        }
    }

    #[inline]
    fn receive_both(&mut self, batch: &mut RecvBatch) -> io::Result<Arrived> {
        if self.ring_looks > 0 {
            self.ring_looks -= 1;
            let arrived = self.receive_by_ring();
            if arrived != Arrived::Nothing || self.by_ring {
                return Ok(arrived);
            }
        }
        let packets = self.udp.recv(batch)?;
        let links = self.links.as_mut().expect("there are rings");
        if links.any_fresh() {
            self.fresh_looks += 1;
            if packets == 0 || self.fresh_looks > FRESH_LOOKS {
                links.socket_is_empty();
                self.fresh_looks = 0;
            }
        }
        if packets > 0 {
            (self.by_ring, self.ring_looks) = (false, 1);
            return Ok(Arrived::Udp(packets));
        }
        let arrived = self.receive_by_ring();
        self.ring_looks = if self.by_ring { RING_LOOKS } else { 0 };
        Ok(arrived)
    }

    #[inline]
    fn receive_by_ring(&mut self) -> Arrived {
        let links = self.links.as_mut().expect("there are rings");
        match links.receive() {
            Some((packets, sums)) => {
                self.by_ring = true;
                Arrived::Ring { packets, sums }
            }
            None => Arrived::Nothing,
        }
    }

    /// The next look is at the socket, too.
    pub(crate) fn look_at_all(&mut self) {
        self.ring_looks = 0;
    }

    /// The packets that have come by a ring.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> + Clone {
        self.links.iter().flat_map(|links| links.datagrams())
    }

    // Sleeping, and what happens besides packets.

    /// Opens and closes rings, if it is time. `watched` says that an event loop sleeps on them.
    #[inline]
    pub(crate) fn tend(&mut self, now: Time, watched: bool) {
        if let Some(links) = &mut self.links
            && links.is_due(now)
        {
            links.look(now, if watched { Looker::BesideLoop } else { Looker::Thread });
        }
    }

    /// As [`Fabric::tend`], at once, for the event loop that sleeps on the rings, and then calls
    /// [`Fabric::arm`].
    pub(crate) fn tend_for_loop(&mut self, now: Time) {
        if let Some(links) = &mut self.links {
            links.look(now, Looker::Loop);
        }
    }

    /// Has peers wake this card for packets in rings. Returns whether it may sleep: there are none.
    pub(crate) fn arm(&mut self) -> bool {
        self.links.as_mut().is_none_or(|links| links.arm())
    }

    /// As [`Fabric::arm`], for a thread that sleeps on [`Fabric::links_fd`], and then calls
    /// [`Sleep::ends`].
    pub(crate) fn sleeps(&mut self) -> bool {
        let Some(links) = &mut self.links else { return true };
        links.sleep.asleep.store(true, std::sync::atomic::Ordering::Relaxed);
        let may_sleep = links.arm();
        if !may_sleep {
            links.sleep.ends();
        }
        may_sleep
    }

    /// For the thread of [`Fabric::sleeps`].
    pub(crate) fn sleep(&self) -> Arc<Sleep> {
        self.links.as_ref().map(|links| links.sleep.clone()).unwrap_or_default()
    }

    /// Readable when packets have come by a ring for a card that [sleeps](Fabric::arm), or when
    /// there is something to [tend](Fabric::tend).
    pub(crate) fn links_fd(&self) -> Option<BorrowedFd<'_>> {
        self.links.as_ref().map(|links| links.fd())
    }

    /// The descriptors to sleep on.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
        std::iter::once(self.udp.as_fd()).chain(self.links_fd())
    }

    /// A descriptor of its own for [`Fabric::links_fd`].
    ///
    /// # Errors
    /// Too many open files.
    pub(crate) fn share_links_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.links_fd().map(|fd| fd.try_clone_to_owned()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_fabric() {
        assert_eq!(FabricChoice::parse(""), Ok(FabricChoice::Auto));
        assert_eq!(FabricChoice::parse("auto"), Ok(FabricChoice::Auto));
        assert_eq!(FabricChoice::parse("udp"), Ok(FabricChoice::Udp));
        let error = FabricChoice::parse("tcp").unwrap_err();
        assert!(error.to_string().contains("`udp` sends all packets by UDP"));
    }
}
