//! Segmentation offload: packets that follow each other to one peer, of one length, leave by one
//! system call (`UDP_SEGMENT`), and the kernel or the network device cuts them apart. The last of
//! such a group may be shorter.

use std::net::IpAddr;

use remora_nic::Transmit;
use remora_nic::wire::icrc::Flow;

use super::destination::Destination;

/// The most datagrams that one [`Socket::send`](super::Socket::send) carries (the kernel's `UDP_MAX_SEGMENTS`).
pub const SEGMENTS_MAX: usize = 64;
/// The most bytes that one [`Socket::send`](super::Socket::send) carries, for IPv4 and IPv6 alike.
pub const GROUP_MAX: usize = 65_000;

/// Packets that are sent by one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) to: Destination,
    pub(crate) flow: Flow,
    /// Length of every packet but the last.
    pub(crate) segment: usize,
    pub(crate) packets: usize,
    /// Where it begins in the staging buffer, and how many bytes it has there.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// The batch's packets `first..end` were staged, but for those whose memory failed.
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) stale: u32,
    /// What its unreliable packets take of the peer's socket.
    pub(crate) room: u64,
}

impl Group {
    /// A group of no packets yet: `packet`, number `first` of its batch, is to begin it, at
    /// `start` in the staging buffer. It leaves from the socket's address and port.
    #[inline]
    pub(crate) fn open(
        packet: &Transmit,
        first: usize,
        start: usize,
        from: (IpAddr, u16),
    ) -> Group {
        let to = Destination::of(packet);
        let (src, port) = from;
        let flow = Flow { src, dst: to.addr, src_port: port, dst_port: port };
        let (segment, packets, len, stale, room) = (0, 0, 0, 0, 0);
        Group { to, flow, segment, packets, start, len, first, end: first, stale, room }
    }

    /// May this packet of `len` bytes follow?
    #[inline]
    pub(crate) fn accepts(&self, packet: &Transmit, len: usize, packets_max: usize) -> bool {
        let unbroken = self.len == self.packets * self.segment;
        let follows = || unbroken && len <= self.segment && self.packets < packets_max;
        // One that was left out before it may have opened the group.
        let same_peer = self.end == self.first || Destination::of(packet) == self.to;
        same_peer && (self.packets == 0 || follows()) && self.len + len <= GROUP_MAX
    }
}

/// What is known of whether groups may leave.
#[derive(Debug)]
pub(crate) struct Segmentation {
    /// Does the network device cut groups?
    cuts: bool,
    /// Packets of the batch before this one go singly, because the route took no group of them.
    single_until: usize,
}

impl Segmentation {
    /// Nothing has been refused.
    pub(crate) fn new() -> Segmentation {
        Segmentation { cuts: true, single_until: 0 }
    }

    /// How many packets a group may have that begins with packet `first` of the batch.
    #[inline]
    pub(crate) fn packets_max(&self, first: usize, offered: bool) -> usize {
        if self.cuts && offered && first >= self.single_until { SEGMENTS_MAX } else { 1 }
    }

    /// The network device cuts no groups.
    pub(crate) fn stop(&mut self) {
        self.cuts = false;
    }

    /// The route took no group of the batch's packets before `end`.
    pub(crate) fn single_until(&mut self, end: usize) {
        self.single_until = end;
    }

    /// Another batch begins.
    #[inline]
    pub(crate) fn next_batch(&mut self) {
        self.single_until = 0;
    }
}
