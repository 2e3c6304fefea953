//! The settings and limits of a card.

use core::net::{IpAddr, Ipv4Addr};
use core::ops::Range;
use core::time::Duration;

use crate::cm::CmConfig;
use crate::congestion::{Congestion, Tuning};
use crate::service_level::ServiceLevels;
use crate::transmit::Ecn;
use crate::turn_order::TurnOrder;
use crate::wire::ip::gid;

/// The settings and limits of a card. Limits are exact: a command that would exceed one is refused.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Config {
    /// The card's own address, from which its GID follows.
    pub address: IpAddr,
    /// The addresses, besides those of loopback, that the machine of this card has itself. The
    /// holder of the RoCE port of such an address is the card there; every process of the machine
    /// can send from other ports of it, so packets from those are dropped.
    pub neighbours: Vec<IpAddr>,
    /// Queue pairs, at most 2,097,152: an eighth of their numbers.
    pub max_qps: usize,
    /// Bits of queue pair numbers, which are random: 24. With fewer (at least 10) there is room for
    /// fewer queue pairs, an eighth of the numbers, and the numbers soon come again: for tests.
    pub qpn_bits: u32,
    /// Completion queues.
    pub max_cqs: usize,
    /// Entries of one completion queue.
    pub max_cqe: usize,
    /// Shared receive queues.
    pub max_srqs: usize,
    /// Protection domains.
    pub max_pds: usize,
    /// XRC domains.
    pub max_xrcds: usize,
    /// Multicast groups, and members of each group.
    pub max_mcast: usize,
    /// Address handles.
    pub max_ahs: usize,
    /// Memory regions.
    pub max_mrs: usize,
    /// Memory windows.
    pub max_mws: usize,
    /// Budgets of chains.
    pub max_budgets: usize,
    /// log2 of the page size that contiguous regions are divided by: 2 MB (StRoM §4.3).
    pub page_shift: u32,
    /// Page-table entries of all regions together: 16,384 (StRoM §4.3).
    pub translation_entries: usize,
    /// Bus addresses of the memory that lives on the card.
    pub device_memory: Range<u64>,
    /// Messages outstanding on all queue pairs together. One has at most as many as are left.
    pub max_outstanding: usize,
    /// Messages of kernels outstanding on all queue pairs together. A call is taken while its queue
    /// pair has fewer of them than are left, or than four times `window_packets`. What the
    /// invocations that run then send at their ends may come on top.
    pub max_kernel_sends: usize,
    /// Elements fetched in one turn: 8 (SRNIC §4.3).
    pub fetch_elements: u32,
    /// Bytes sent in one turn: 16 KB (SRNIC §4.3).
    pub burst_bytes: u32,
    /// What the service levels of queue pairs mean ([`Path::service_level`]). While they all mean
    /// the same, as they do by default, queue pairs of all levels take turns.
    ///
    /// [`Path::service_level`]: crate::Path::service_level
    pub service_levels: ServiceLevels,
    /// Who of a client's queue pairs of a service level has the next turn.
    pub turn_order: TurnOrder,
    /// Packets that a requester may have unacknowledged, at most.
    pub window_packets: u16,
    /// What decides how many packets queue pairs have outstanding that choose nothing else
    /// by their attribute `congestion`.
    pub congestion: Congestion,
    /// The parameters of the policies.
    pub tuning: Tuning,
    /// The rate of the link in bits per second, at which [`Congestion::Dcqcn`] begins.
    pub link_bits_per_second: u64,
    /// An acknowledge is requested at the end of each message, and each time this many packets have
    /// left without a request.
    pub ack_every: u32,
    /// The shortest wait for an acknowledge, even if a queue pair asks for a shorter one. Hardware
    /// has such a minimum, too.
    pub min_ack_timeout: Duration,
    /// Over how many paths queue pairs of the lossy dialect spread their packets: a power of two,
    /// at most 64. Paths differ in the source port of their packets. To cards of this machine there
    /// is one path.
    pub paths: u8,
    /// The shortest wait for news of the peer before a queue pair of the lossy dialect sends its
    /// last packet again.
    pub probe_floor: Duration,
    /// For each message that is outstanding on any queue pair, so much is added to the wait for an
    /// acknowledge: their packets and acknowledges pass one after the other. Zero where that takes
    /// no time to speak of.
    pub message_time: Duration,
    /// ECN bits of data packets.
    pub ecn: Ecn,
    /// The card hands packets to its own address over to its queue pairs itself. Without it they
    /// leave like all others, so that the network can capture, delay or lose them.
    /// [`crate::Nic::set_local_shortcut`] changes it.
    pub local_shortcut: bool,
    /// The communication manager's settings.
    pub cm: CmConfig,
}

impl Config {
    /// The defaults, for a card at `address`.
    pub fn new(address: IpAddr) -> Config {
        Config {
            address,
            neighbours: Vec::new(),
            max_qps: 1 << 18,
            qpn_bits: crate::numbered::BITS,
            max_cqs: 1 << 18,
            max_cqe: 1 << 20,
            max_srqs: 1 << 16,
            max_pds: 1 << 16,
            max_xrcds: 1 << 16,
            max_mcast: 1 << 10,
            max_ahs: 1 << 16,
            max_mrs: 1 << 20,
            max_mws: 1 << 20,
            max_budgets: 1 << 16,
            page_shift: 21,
            translation_entries: 16_384,
            device_memory: 0..0,
            max_outstanding: 1 << 20,
            max_kernel_sends: 4096,
            fetch_elements: 8,
            burst_bytes: 16 << 10,
            service_levels: ServiceLevels::default(),
            turn_order: TurnOrder::default(),
            window_packets: 64,
            congestion: Congestion::default(),
            tuning: Tuning::default(),
            link_bits_per_second: 100_000_000_000,
            ack_every: 16,
            min_ack_timeout: Duration::ZERO,
            paths: 1,
            probe_floor: Duration::ZERO,
            message_time: Duration::ZERO,
            ecn: Ecn::Capable0,
            local_shortcut: false,
            cm: CmConfig::new(address, guid(address)),
        }
    }

    /// Is `address` one of this card's own machine?
    pub fn is_here(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.neighbours.contains(&address)
    }

    /// Gives the card a GUID of its own, from random bits. By its GUID a peer tells a card from the
    /// one that had its address before, whose connections the peer may still remember.
    pub fn set_guid(&mut self, random: u64) {
        self.cm.set_guid(random & !GROUP | LOCAL);
    }
}

/// The bits of a GUID's first byte that say "of a group" and "locally administered".
const GROUP: u64 = 0x01 << 56;
const LOCAL: u64 = 0x02 << 56;

/// A GUID that is never zero, and different for different addresses.
fn guid(address: IpAddr) -> u64 {
    let bits = gid(address).to_bits();
    (bits as u64 ^ (bits >> 64) as u64) | LOCAL
}

impl Default for Config {
    fn default() -> Config {
        Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}
