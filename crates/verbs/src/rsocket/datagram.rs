//! Datagram sockets.
//!
//! As in rdma-core, these sockets find each other through the kernel's UDP, and carry datagrams
//! over queue pairs. The first datagram to an address goes by UDP, after a header that names the
//! sender's card and queue pair. The receiver answers with a header of its own, and then both sides
//! know each other. A datagram goes by UDP if no card is found for it, or if it is larger than a
//! packet of the card.
//!
//! There is no thread: the calls that receive or wait read what has come by UDP.

use core::ffi::c_int;
use core::mem::size_of;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use libc::{sockaddr, sockaddr_storage, socklen_t};
use remora::interface::route_to;

use super::options::Sizes;
use super::ud::{Endpoint, Way};
use super::wire::{self, Operation, SLOT, UdpHeader};
use crate::process;
use crate::rdmacm::{EINVAL, Errno, Result, address, c_address, directory};

/// How long a peer's queue pair number is trusted. After that a datagram goes by UDP, and the
/// answer confirms it: a program that has restarted at the same port has another queue pair.
const BELIEVE: Duration = Duration::from_secs(1);
/// The most peers whose queue pairs are remembered; limited because any host can claim to be one.
const PEERS: usize = 4096;
/// Datagrams that wait for the program if there is no queue pair.
const WAITING: usize = 64;
/// Datagrams taken from the kernel at a time.
const BATCH: usize = 16;

/// A peer whose queue pair is known.
#[derive(Debug)]
pub(super) struct Peer {
    way: Way,
    /// The address of this socket that the peer sees.
    source: SocketAddr,
    heard: Instant,
}

/// A datagram socket's state.
#[derive(Debug)]
pub(super) struct Datagram {
    /// The kernel's socket.
    fd: c_int,
    pub(super) connected: Option<SocketAddr>,
    endpoint: Option<Endpoint>,
    /// No card serves this socket, and none will.
    no_card: bool,
    pub(super) peers: HashMap<SocketAddr, Peer>,
    pub(super) arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    looks: u8,
    /// An error from the kernel, for example that no process has the port. Calls that send or sleep
    /// return it; a call that only polls for datagrams does not, so that it does not see errors
    /// instead of data.
    pub(super) error: c_int,
}

/// Reads an address that a kernel call writes.
fn name(ask: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int) -> Result<SocketAddr> {
    // SAFETY: an address of zeros is valid, of no family.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    Errno::check(ask((&raw mut storage).cast(), &mut len))?;
    // SAFETY: the kernel has written an address.
    unsafe { c_address::from_c((&raw const storage).cast()) }?.ok_or(EINVAL)
}

impl Datagram {
    pub(super) fn new(fd: c_int) -> Datagram {
        Datagram {
            fd,
            connected: None,
            endpoint: None,
            no_card: false,
            peers: HashMap::new(),
            arrived: VecDeque::new(),
            looks: 0,
            error: 0,
        }
    }

    /// The kernel has connected the socket, or disconnected it.
    pub(super) fn on_connect(&mut self) {
        // SAFETY: room for an address, of the length given.
        self.connected = name(|addr, len| unsafe { libc::getpeername(self.fd, addr, len) }).ok();
        if let Some(peer) = self.connected {
            self.arrived.retain(|(from, _)| *from == peer);
        }
    }

    /// Makes the queue pair, on the card that best reaches a peer.
    pub(super) fn start(&mut self, peer: SocketAddr, sizes: Sizes) {
        if self.endpoint.is_some() || self.no_card {
            return;
        }
        let cards = process::current().cards();
        let towards = peer.ip().to_canonical();
        let is_local = directory::is_local(towards);
        let source = if is_local { None } else { address::source_towards(peer) };
        let at = |ip: IpAddr| cards.iter().find(|card| card.address == ip);
        let like = cards.iter().find(|card| card.address.is_loopback() == is_local);
        let card = at(towards).or(source.and_then(at)).or(like).or(cards.first());
        match card.ok_or(EINVAL).and_then(|card| Endpoint::new(card, sizes)) {
            Ok(endpoint) => self.endpoint = Some(endpoint),
            Err(error) => {
                tracing::warn!(?error, "datagrams go by UDP: there is no queue pair for them");
                self.no_card = true;
            }
        }
    }

    /// The address of this socket that a peer sees: the kernel's choice.
    fn source(&self, peer: SocketAddr) -> Result<SocketAddr> {
        // SAFETY: room for an address, of the length given.
        let own = name(|addr, len| unsafe { libc::getsockname(self.fd, addr, len) })?;
        if !own.ip().is_unspecified() {
            return Ok(own);
        }
        let source = route_to(peer)?.local_addr()?;
        Ok(SocketAddr::new(source.ip(), own.port()))
    }

    /// Forgets a peer. Datagrams to it may be under way.
    fn forget(&mut self, peer: SocketAddr) {
        if let (Some(peer), Some(endpoint)) = (self.peers.remove(&peer), &mut self.endpoint) {
            endpoint.retire(peer.way);
        }
    }

    /// Learns which queue pair a peer has.
    fn learn(&mut self, from: SocketAddr, header: &UdpHeader) {
        // The peer's card may be at the address that the kernel has seen, or, as processes of one
        // machine have cards of their own, at any address of this machine.
        let ip = from.ip().to_canonical();
        let card = match directory::is_local(ip) {
            true if !directory::is_local(header.card) => return,
            true => header.card,
            false => ip,
        };
        if let Some(peer) = self.peers.get_mut(&from)
            && (peer.way.card, peer.way.qpn) == (card, header.qpn)
        {
            peer.heard = Instant::now();
            return;
        }
        self.forget(from);
        let way = self.endpoint.as_ref().and_then(|endpoint| endpoint.way(card, header.qpn));
        let (Some(way), Ok(source)) = (way, self.source(from)) else { return };
        if self.peers.len() >= PEERS {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.heard);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.forget(oldest);
            }
        }
        self.peers.insert(from, Peer { way, source, heard: Instant::now() });
    }

    /// Sends by UDP: a datagram, or only the header that names this side's queue pair.
    pub(super) fn send_udp(
        &self,
        to: SocketAddr,
        what: Operation,
        data: &[u8],
        at_once: bool,
    ) -> Result<()> {
        let endpoint = self.endpoint.as_ref();
        let header = UdpHeader {
            what,
            v6: to.is_ipv6(),
            qpn: endpoint.map_or(0, Endpoint::qpn),
            card: endpoint.map_or(IpAddr::from([0; 4]), |endpoint| endpoint.card),
        };
        let message = [&header.emit(), data].concat();
        let flags = if at_once { libc::MSG_DONTWAIT } else { 0 } | libc::MSG_NOSIGNAL;
        let (address, len) = (c_address::to_c(to), address::c_len(to));
        // SAFETY: the message and the address live through the call, and have the lengths given.
        let sent = unsafe {
            let (at, to) = (message.as_ptr().cast(), (&raw const address).cast());
            libc::sendto(self.fd, at, message.len(), flags, to, len as socklen_t)
        };
        if sent < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    /// The number of datagrams that may still wait for the program.
    fn room(&self) -> usize {
        self.endpoint.as_ref().map_or(WAITING, Endpoint::slots).saturating_sub(self.arrived.len())
    }

    /// Takes datagrams that have come, by queue pair and by UDP; returns whether any came by UDP.
    pub(super) fn progress(&mut self, sizes: Sizes) -> bool {
        let room = self.room();
        if let Some(endpoint) = &mut self.endpoint {
            let (connected, arrived) = (self.connected, &mut self.arrived);
            let taken = endpoint.progress(room, |from, data| {
                if connected.is_none_or(|peer| peer == from) {
                    arrived.push_back((from, data));
                }
            });
            // While the queue pair brings datagrams, the kernel is asked only now and then.
            self.looks = self.looks.wrapping_add(1);
            if taken > 0 && !self.looks.is_multiple_of(16) {
                return false;
            }
        }
        self.take_udp(sizes)
    }

    /// Takes datagrams that have come by UDP, or an error of the UDP socket, if there are any.
    pub(super) fn take_udp(&mut self, sizes: Sizes) -> bool {
        let mut taken = false;
        let mut buffer = [0; SLOT + UdpHeader::MAX];
        for _ in 0..self.room().min(BATCH) {
            let mut len = 0;
            let from = name(|addr, addr_len| {
                let (at, flags) = (buffer.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
                // SAFETY: room for the length given.
                let got =
                    unsafe { libc::recvfrom(self.fd, at, buffer.len(), flags, addr, addr_len) };
                len = usize::try_from(got).unwrap_or(0);
                if got < 0 { -1 } else { 0 }
            });
            match from {
                Ok(from) => self.on_udp(from, &buffer[..len], sizes),
                Err(Errno(libc::EAGAIN | libc::EINTR)) => break,
                Err(Errno(error)) => {
                    (self.error, taken) = (error, true);
                    break;
                }
            }
            taken = true;
        }
        taken
    }

    fn on_udp(&mut self, from: SocketAddr, message: &[u8], sizes: Sizes) {
        let Some((header, data)) = UdpHeader::parse(message) else {
            return tracing::debug!(%from, "a UDP datagram without the header of an rsocket");
        };
        self.start(from, sizes);
        self.learn(from, &header);
        if header.what == Operation::Data {
            // If this answer is lost, the peer's next datagram by UDP is answered again.
            if let Err(error) = self.send_udp(from, Operation::Control, &[], true) {
                tracing::debug!(?error, %from, "cannot tell a peer of this queue pair");
            }
            self.arrived.push_back((from, data.to_vec()));
        }
    }

    /// Is there a datagram for the program?
    pub(super) fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Could a datagram be sent at once?
    pub(super) fn can_send(&self) -> bool {
        self.endpoint.as_ref().is_none_or(Endpoint::can_send)
    }

    /// Arms the queue pair's completion queues, if it is there; returns whether it has taken an
    /// event of theirs.
    pub(super) fn arm(&mut self) -> bool {
        self.endpoint.as_mut().is_some_and(Endpoint::arm)
    }

    /// The descriptors to wait on.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = c_int> {
        [self.fd].into_iter().chain(self.endpoint.as_ref().map(|endpoint| endpoint.comp_fd))
    }

    pub(super) fn take_error(&mut self) -> Result<()> {
        match std::mem::take(&mut self.error) {
            0 => Ok(()),
            error => Err(Errno(error)),
        }
    }

    /// The queue pair, and the way to a peer.
    #[cfg(test)]
    pub(super) fn towards(&mut self, peer: SocketAddr) -> Option<(&mut Endpoint, &Way)> {
        Some((self.endpoint.as_mut()?, &self.peers.get(&peer)?.way))
    }

    /// Sends by queue pair, if the peer's is known and the datagram fits a packet.
    pub(super) fn send_ud(&mut self, to: SocketAddr, data: &[u8]) -> Option<Result<()>> {
        let (peer, endpoint) = (self.peers.get(&to)?, self.endpoint.as_mut()?);
        let fits = endpoint.carries(wire::datagram_header(peer.source).len() + data.len());
        (fits && peer.heard.elapsed() < BELIEVE)
            .then(|| endpoint.send(&peer.way, peer.source, data))
    }
}
