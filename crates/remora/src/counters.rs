//! Everything that a device counts, by name.

use remora_nic::Counters;
use remora_nic::cm::CmCounters;

use crate::egress::EgressCounters;
use crate::fabric::FabricCounters;
use crate::impair::{Direction, ImpairCounters};
use crate::socket::RecvCounters;

/// Everything a device has counted.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCounters {
    /// The card's counters.
    pub card: Counters,
    /// Those of its connection management.
    pub management: CmCounters,
    /// Counters of the sending side of the socket.
    pub egress: EgressCounters,
    /// Counters of the receiving side of the socket.
    pub ingress: RecvCounters,
    /// Counters of shared-memory rings.
    pub fabric: FabricCounters,
    /// What was done to packets on purpose: to those that arrived, and to those that left.
    pub impaired: [(Direction, ImpairCounters); 2],
    /// Packets that are missing from the capture, because its file could not be written.
    pub capture_missed: u64,
}

impl DeviceCounters {
    /// Names and values of all counters, the card's first.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let socket = [
            ("socket_tx_packets", self.egress.packets - self.egress.by_ring),
            ("socket_tx_calls", self.egress.groups),
            ("socket_tx_full", self.egress.socket_full),
            ("peer_socket_full", self.egress.paced),
            ("socket_tx_memory_faults", self.egress.memory_faults),
            ("socket_tx_too_long", self.egress.too_long),
            ("socket_tx_unreachable", self.egress.unreachable),
            ("socket_rx_overflowed", self.ingress.overflowed),
            ("socket_rx_truncated", self.ingress.truncated),
            ("socket_icmp_errors", self.egress.icmp_errors + self.ingress.icmp_errors),
            ("ring_tx_packets", self.fabric.tx_packets),
            ("ring_rx_packets", self.fabric.rx_packets),
            ("ring_tx_full", self.fabric.tx_full),
            ("ring_tx_dropped", self.fabric.tx_dropped),
            ("rings_opened", self.fabric.opened),
            ("rings_broken", self.fabric.broken),
            ("capture_missed", self.capture_missed),
        ];
        let card = self.card.iter().map(|(name, value, _)| (name, value));
        let impaired = self.impaired.into_iter().flat_map(|(way, counts)| counts.named(way));
        card.chain(self.management.named()).chain(socket).chain(impaired)
    }
}
