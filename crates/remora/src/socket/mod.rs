//! One unprivileged UDP socket that carries RoCE v2.
//!
//! The socket is never connected and never lets IP fragment. Then, and only then, the IPv4
//! identification of a packet, which the invariant CRC covers, is known before Linux sends it: 0
//! for a single datagram, and *i* for the *i*-th datagram of one call with `UDP_SEGMENT`. Both
//! directions move many datagrams in one call, if the kernel can.
//!
//! - `sys.rs`: the system calls; `control.rs`: the control messages beside a datagram.
//! - `bind.rs`: takes an address; `destination.rs`: where datagrams go; `usual.rs`: what holds for
//!   datagrams without a control message.
//! - `segmentation.rs`: the groups that leave together; `batch.rs`: what arrives together.
//! - `failure.rs`: what errors mean; `refusal.rs`: what other machines refuse; `queue.rs`: how full
//!   another process's socket is.

mod batch;
mod bind;
mod control;
mod destination;
mod failure;
mod queue;
mod refusal;
pub(crate) mod segmentation;
mod sys;
mod usual;

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU32;

use libc::c_int;
use remora_nic::wire::ROCE_PORT;

pub use batch::{RecvBatch, RecvCounters};
pub use bind::{BindError, Holder};
use control::Control;
use destination::DEFAULT_HOP_LIMIT;
pub use destination::Destination;
pub use failure::SendFailure;
use queue::Diagnosis;
pub(crate) use queue::ReceiveQueue;
pub(crate) use refusal::Refusal;
pub use segmentation::{GROUP_MAX, SEGMENTS_MAX};
use usual::Usual;

/// A port that nobody has: traceroute(8) begins with it for that reason.
const NOBODYS_PORT: u16 = 33_434;

/// How to open a [`Socket`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// UDP port, here and at every peer. Real cards listen only on 4791.
    pub port: u16,
    /// Bytes of room to ask the system for, each for datagrams that wait to be sent and to be
    /// received.
    pub buffer: usize,
    /// Traffic class of most packets, ECN bits included. A packet with another class needs a
    /// control message to the kernel beside its bytes.
    pub tos: u8,
    /// Whether the kernel tells the traffic class of each packet that arrives, congestion marks
    /// included; otherwise it reads as zero. It costs 0.1 µs a call.
    pub marks: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { port: ROCE_PORT, buffer: 16 << 20, tos: 0, marks: true }
    }
}

/// A UDP socket bound to the one address that a card answers to.
///
/// No call blocks. To sleep until something arrives or leaves, poll the descriptor ([`AsFd`]).
#[derive(Debug)]
pub struct Socket {
    udp: UdpSocket,
    addr: IpAddr,
    /// Which interface a link-local address belongs to; 0 for all others.
    scope_id: u32,
    port: u16,
    peer_port: u16,
    tos: u8,
    segmentation: bool,
    coalescing: bool,
    segment: Usual,
    hop_limit: Usual,
    diagnosis: Diagnosis,
    /// What the kernel has last told of datagrams that it dropped here.
    overflow_told: AtomicU32,
}

impl Socket {
    /// Binds to `addr`, which must be an address of this machine, not the unspecified one: a peer
    /// checks that packets come from the address that it has connected to.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(addr: IpAddr, config: Config) -> Result<Socket, BindError> {
        Socket::bind_scoped(addr, 0, config)
    }

    /// As [`Socket::bind`], for a link-local IPv6 address of interface `scope_id`.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_scoped(addr: IpAddr, scope_id: u32, config: Config) -> Result<Socket, BindError> {
        let addr = addr.to_canonical();
        if addr.is_unspecified() {
            return Err(BindError::Unspecified { addr });
        }
        let to = socket_addr(addr, scope_id, config.port);
        let udp = bind::open(to)?;
        Socket::prepare(udp, addr, scope_id, config)
    }

    /// Binds to the first free address of 127.0.0.1, 127.0.0.2, … so that each process of a machine
    /// can have a card of its own.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_loopback(config: Config) -> Result<Socket, BindError> {
        let (udp, addr) = bind::first_free_loopback(config.port)?;
        Socket::prepare(udp, addr, 0, config)
    }

    fn prepare(
        udp: UdpSocket,
        addr: IpAddr,
        scope_id: u32,
        config: Config,
    ) -> Result<Socket, BindError> {
        let (segmentation, coalescing) = set_options(&udp, addr.is_ipv6(), &config)
            .map_err(|source| BindError::Options { addr, source })?;
        if let IpAddr::V4(own) = addr {
            // Multicast leaves by the interface that has the address, and not by a default route.
            let own = c_int::from_ne_bytes(own.octets());
            sys::set_option(udp.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, own)
                .map_err(|source| BindError::Options { addr, source })?;
        }
        let Config { port, tos, .. } = config;
        let (segment, hop_limit) = (Usual::segment(), Usual::hop_limit(addr.is_ipv6()));
        let diagnosis = Diagnosis::default();
        Ok(Socket {
            udp,
            addr,
            scope_id,
            port,
            peer_port: port,
            tos,
            segmentation,
            coalescing,
            segment,
            hop_limit,
            diagnosis,
            overflow_told: AtomicU32::new(0),
        })
    }

    /// A socket that receives the datagrams to a multicast group, on the interface of this socket.
    ///
    /// # Errors
    /// The address is not a group's, or the system allows no (further) membership.
    pub fn join(&self, group: IpAddr) -> io::Result<Socket> {
        let udp = bind::open_shared(socket_addr(group, self.scope_id, self.port))?;
        match (group, self.addr) {
            (IpAddr::V4(group), IpAddr::V4(own)) => udp.join_multicast_v4(&group, &own)?,
            (IpAddr::V6(group), IpAddr::V6(_)) => udp.join_multicast_v6(&group, self.scope_id)?,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        let config = Config { port: self.port, tos: self.tos, ..Config::default() };
        let (segmentation, coalescing) = set_options(&udp, group.is_ipv6(), &config)?;
        Ok(Socket {
            udp,
            addr: group,
            segmentation,
            coalescing,
            segment: Usual::segment(),
            hop_limit: Usual::hop_limit(group.is_ipv6()),
            diagnosis: Diagnosis::default(),
            overflow_told: AtomicU32::new(0),
            ..*self
        })
    }

    /// A socket that only sends, to where this one does, from another port of its address.
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn beside(&self, port: u16) -> Result<Socket, BindError> {
        let config = Config { port, tos: self.tos, marks: false, ..Config::default() };
        let socket = Socket::bind_scoped(self.addr, self.scope_id, config)?;
        // Nobody reads what comes there.
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0)
            .map_err(|source| BindError::Options { addr: self.addr, source })?;
        Ok(Socket { peer_port: self.port, ..socket })
    }

    /// The address that the socket is bound to.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// The UDP port of this end; that of every peer is the same, if this socket receives.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Can one call send many datagrams (`UDP_SEGMENT`, Linux 4.18)?
    pub fn segmentation(&self) -> bool {
        self.segmentation
    }

    /// Do datagrams of one sender arrive many at a time (`UDP_GRO`, Linux 5.0)?
    pub fn coalescing(&self) -> bool {
        self.coalescing
    }

    /// How many bytes may wait to be received, as granted by the kernel. It counts its own
    /// bookkeeping too, so small datagrams fill the buffer sooner.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn recv_buffer(&self) -> io::Result<usize> {
        granted_buffer(self.as_fd(), libc::SO_RCVBUF)
    }

    /// How many bytes may wait to be sent, as granted by the kernel.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn send_buffer(&self) -> io::Result<usize> {
        granted_buffer(self.as_fd(), libc::SO_SNDBUF)
    }

    /// The bytes that wait in the socket of a peer, if that is on this machine.
    pub(crate) fn queue_of(&mut self, peer: IpAddr) -> Option<ReceiveQueue> {
        let from = socket_addr(self.addr, self.scope_id, self.port);
        let to = socket_addr(peer.to_canonical(), self.scope_id, self.port);
        self.diagnosis.receive_queue(from, to)
    }

    /// How full this socket is, which gets datagrams of `peer`, an address of this machine.
    pub(crate) fn own_queue(&mut self, peer: IpAddr) -> Option<ReceiveQueue> {
        let from = socket_addr(peer.to_canonical(), self.scope_id, self.port);
        let to = socket_addr(self.addr, self.scope_id, self.port);
        self.diagnosis.receive_queue(from, to)
    }

    /// Is there no socket of a card at `peer`, an address of this machine?
    pub(crate) fn has_no_card(&mut self, peer: IpAddr) -> bool {
        let from = socket_addr(self.addr, self.scope_id, self.port);
        let to = socket_addr(peer.to_canonical(), self.scope_id, self.port);
        self.diagnosis.has_none(from, to)
    }

    /// Replaces the datagrams in `batch` by those that wait, and returns how many there are: 0 if
    /// none wait, or if none could be kept whole.
    ///
    /// # Errors
    /// The socket itself is unusable.
    #[inline(always)]
    pub fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.fill(self.as_fd(), self.addr, &self.overflow_told)
    }

    /// Sends `bytes` as datagrams of `segment` bytes, the last of which may be shorter; at most
    /// [`SEGMENTS_MAX`] of them and [`GROUP_MAX`] bytes. More than one datagram needs
    /// [`Socket::segmentation`].
    ///
    /// # Errors
    /// Those of `sendmsg`. After [`io::ErrorKind::WouldBlock`] there is no room: try again when the
    /// descriptor is writable. [`SendFailure`] sorts the others.
    pub fn send(&mut self, to: Destination, segment: usize, bytes: &[u8]) -> io::Result<()> {
        let v6 = self.addr.is_ipv6();
        let tos = (to.tos != self.tos).then_some(to.tos);
        let fd = self.udp.as_fd();
        let hops = if to.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { to.hop_limit };
        let hop_limit = match to.addr.is_multicast() {
            // The option of `self.hop_limit` does not apply to multicast.
            true => (hops != DEFAULT_HOP_LIMIT).then_some(hops.into()),
            false => self.hop_limit.note(fd, hops.into())?,
        };
        let to = socket_addr(to.addr.to_canonical(), self.scope_id, self.peer_port);
        self.segment.send(fd, (segment, bytes.len()), |segment| {
            let mut control = Control::new();
            tos.into_iter().for_each(|tos| control.push_tos(v6, tos));
            hop_limit.into_iter().for_each(|hops| control.push_hop_limit(v6, hops as u8));
            segment.into_iter().for_each(|segment| control.push_segment(segment));
            sys::send(fd, to, &control, bytes)
        })
    }
}

/// What refused packets say.
impl Socket {
    /// Sends a datagram that a machine refuses if it lives.
    pub(crate) fn probe(&self, machine: IpAddr) -> io::Result<()> {
        let to = socket_addr(machine.to_canonical(), self.scope_id, NOBODYS_PORT);
        sys::send(self.as_fd(), to, &Control::new(), b"Is this machine up?")
    }

    /// Adds what other machines have refused. Returns whether there was any news by ICMP: then an
    /// error of the last call was about an earlier packet.
    pub(crate) fn take_refusals(&self, refusals: &mut Vec<Refusal>) -> bool {
        refusal::take(self.as_fd(), refusals)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }
}

/// A socket address; `scope_id` is used for link-local and multicast IPv6 addresses only.
fn socket_addr(addr: IpAddr, scope_id: u32, port: u16) -> SocketAddr {
    match addr {
        IpAddr::V4(_) => SocketAddr::new(addr, port),
        IpAddr::V6(v6) => {
            let scoped = v6.is_unicast_link_local() || v6.is_multicast();
            let scope_id = if scoped { scope_id } else { 0 };
            SocketAddrV6::new(v6, port, 0, scope_id).into()
        }
    }
}

/// Sets the options that correct packets need; returns whether the kernel offers segmentation and
/// coalescing.
fn set_options(udp: &UdpSocket, v6: bool, config: &Config) -> io::Result<(bool, bool)> {
    udp.set_nonblocking(true)?;
    let fd = udp.as_fd();
    if v6 {
        let discover = libc::IPV6_PMTUDISC_DO;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, discover)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, config.marks.into())?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, config.tos.into())?;
        // Peers leave the UDP checksum out, since the ICRC covers the packet (IBTA annex A17).
        sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    } else {
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, config.marks.into())?;
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, config.tos.into())?;
    }
    let (level, name) = match v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        false => (libc::IPPROTO_IP, libc::IP_RECVERR),
    };
    sys::set_option(fd, level, name, 1)?;
    // A kernel without this option only does not count overflows.
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.buffer)?;
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.buffer)?;
    let segmentation = sys::option(fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
    let coalescing = sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
    Ok((segmentation, coalescing))
}

/// Asks for `bytes` of buffer: beyond the system's limit if this process may, else up to the limit.
fn set_buffer(fd: BorrowedFd, force: c_int, usual: c_int, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
    sys::set_option(fd, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| sys::set_option(fd, libc::SOL_SOCKET, usual, bytes))
}

/// The size of a buffer. The kernel doubles the size that it was asked for, for its bookkeeping.
fn granted_buffer(fd: BorrowedFd, name: c_int) -> io::Result<usize> {
    sys::option(fd, libc::SOL_SOCKET, name).map(|doubled| usize::try_from(doubled / 2).unwrap_or(0))
}

#[cfg(test)]
mod tests;
