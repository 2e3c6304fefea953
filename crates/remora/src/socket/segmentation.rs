//! Segmentation offload: successive packets of one length to one peer leave as a group, by one
//! system call (`UDP_SEGMENT`), and the kernel or the network device cuts them apart. The last
//! packet of a group may be shorter.
//!
//! Which of the system's errors means that a group was refused is in `failure.rs`; the egress then
//! sends its packets one by one.

use std::net::IpAddr;

use remora_nic::Transmit;
use remora_nic::wire::icrc::Flow;

use super::destination::Destination;

/// The most datagrams that one [`Socket::send`](super::Socket::send) carries (the kernel's
/// `UDP_MAX_SEGMENTS`).
pub const SEGMENTS_MAX: usize = 64;
/// The most bytes that one [`Socket::send`](super::Socket::send) carries, for IPv4 and IPv6 alike.
pub const GROUP_MAX: usize = 65_000;

/// Packets that one system call sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) to: Destination,
    pub(crate) flow: Flow,
    /// Length of every packet but the last.
    pub(crate) segment: usize,
    pub(crate) packets: usize,
    /// Where the group begins in the staging buffer, and how many bytes it has there.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// The batch's packets `first..end` are staged, except those whose memory could not be read.
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) stale: u32,
    /// Bytes that its unreliable packets take in the peer's socket.
    pub(crate) room: u64,
}

impl Group {
    /// A group without packets yet. `packet`, number `first` of its batch, is to begin it, at
    /// `start` in the staging buffer. It will leave from the address and port `from`, to the port
    /// `dst_port`.
    #[inline]
    pub(crate) fn open(
        packet: &Transmit,
        first: usize,
        start: usize,
        from: (IpAddr, u16),
        dst_port: u16,
    ) -> Group {
        let to = Destination::of(packet);
        let (src, src_port) = from;
        let flow = Flow { src, dst: to.addr, src_port, dst_port };
        let (segment, packets, len, stale, room) = (0, 0, 0, 0, 0);
        Group { to, flow, segment, packets, start, len, first, end: first, stale, room }
    }

    /// May this packet of `len` bytes be the next of the group?
    #[inline]
    pub(crate) fn accepts(&self, packet: &Transmit, len: usize, packets_max: usize) -> bool {
        let unbroken = self.len == self.packets * self.segment;
        let follows = || unbroken && len <= self.segment && self.packets < packets_max;
        // The packet that opened the group may have been left out; its peer still counts.
        let same_peer = self.end == self.first || Destination::of(packet) == self.to;
        same_peer && (self.packets == 0 || follows()) && self.len + len <= GROUP_MAX
    }
}

/// Whether packets may leave as groups.
#[derive(Debug)]
pub(crate) struct Segmentation {
    /// Does the network device cut groups?
    cuts: bool,
    /// Packets of the batch before this one leave one by one, since their route took no group.
    single_until: usize,
}

impl Segmentation {
    /// No group has been refused yet.
    pub(crate) fn new() -> Segmentation {
        Segmentation { cuts: true, single_until: 0 }
    }

    /// How many packets a group may have that begins with packet `first` of the batch. `offered`
    /// says that the kernel offers segmentation.
    #[inline]
    pub(crate) fn packets_max(&self, first: usize, offered: bool) -> usize {
        if self.cuts && offered && first >= self.single_until { SEGMENTS_MAX } else { 1 }
    }

    /// Notes that the network device cuts no groups.
    pub(crate) fn stop(&mut self) {
        self.cuts = false;
    }

    /// Notes that the route took no group of the batch's packets before `end`.
    pub(crate) fn single_until(&mut self, end: usize) {
        self.single_until = end;
    }

    /// Notes that another batch begins.
    #[inline]
    pub(crate) fn next_batch(&mut self) {
        self.single_until = 0;
    }
}
