//! [`Cluster`]: a network, the cards of its hosts, and how they run flows.

use core::net::{IpAddr, Ipv4Addr};

use remora_nic::qp::Mtu;
use remora_nic::{Config, TurnOrder};
use thiserror::Error;

use super::flow::{Flow, FlowError};
use super::record::RecordOptions;
use super::transport::{How, Transport};
use super::tuning::Tuned;
use crate::hardware::Profile;
use crate::net::time::{NEVER, NS, Ps};
use crate::net::{Atlas, Cable, Change, Net, NetOptions, Node, Topology, TopologyError};

/// Whether the bytes of messages exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Content {
    /// They do not. What cards write is noted, and each flow must have arrived whole when it ends.
    #[default]
    Hollow,
    /// They do: they are sent with their checksums, and compared when all flows have ended.
    Real,
}

/// A network with a card at each host.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Hosts, switches and cables.
    pub topology: Topology,
    /// Switches: buffers, marking, routing, flow control.
    pub net: NetOptions,
    /// How cards carry messages.
    pub transport: Transport,
    /// What the transport's figures are set to; `None`: its own.
    pub tuned: Option<Tuned>,
    /// Packets that a queue pair may have unacknowledged, at most.
    pub window_packets: u16,
    /// By host: the time of its card's hardware; `None`, and what is missing: it takes none. The
    /// card then fetches and delivers at once.
    pub hardware: Vec<Option<Profile>>,
    /// Changes the configuration of each card.
    pub config: fn(&mut Config),
    /// The most bytes of payload in a packet.
    pub mtu: Mtu,
    /// The time to wait for an acknowledge, as a code of the specification: 4.096 µs · 2^code.
    pub timeout: u8,
    /// Shorter flows have higher classes ([`Flow::classes`](super::Flow::classes)), and larger
    /// shares of their cards; but those that say their class have that. Switches heed classes if
    /// [`NetOptions::classes`] says so.
    pub short_first: bool,
    /// Which of a card's queue pairs has the next turn.
    pub turn_order: TurnOrder,
    /// Whether payload exists.
    pub payload: Content,
    /// What fails, slows down or comes back, and when, in picoseconds from the start of the run.
    pub changes: Vec<(Ps, Change)>,
    /// What is recorded besides the flows' completion.
    pub record: Option<RecordOptions>,
    /// Threads, 1 or 2. The result does not depend on it.
    pub threads: u8,
    /// About how many hosts a thread simulates together, each lot for as long as nothing that
    /// others send can reach it, so that their state stays in the processor's caches meanwhile.
    /// The result does not depend on it.
    pub lot: u32,
    /// The machine's time until so much simulated time, in picoseconds, is no part of
    /// [`Report::steady`](super::Report::steady). The result does not depend on it.
    pub warm_up: Ps,
    /// Ends the run after so much simulated time, in picoseconds, even if flows are under way.
    pub until: Ps,
}

/// Why flows could not be run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ClusterError {
    /// The topology cannot be built.
    #[error("the topology cannot be built: {0}")]
    Topology(#[from] TopologyError),
    /// The list of flows is wrong.
    #[error("{0}")]
    Flow(#[from] FlowError),
    /// Two threads need hosts on both sides and a delay between them.
    #[error(
        "two threads need at least two switches with hosts, and cables between them with a \
        delay; use one thread"
    )]
    Threads,
    /// The system starts no more threads.
    #[error(
        "cannot start a thread: {0}; if there is a limit on processes (ulimit -u, or the \
        container's), raise it, or take one thread"
    )]
    Thread(String),
    /// A flow has ended, but its bytes are not where they belong.
    #[error("flow {flow} is complete at its sender, but {missing} of its bytes have not arrived")]
    Missing {
        /// The flow, by its index.
        flow: usize,
        /// How many bytes.
        missing: u64,
    },
    /// A flow has ended before its bytes were where they belong.
    #[error("flow {flow} was complete at its sender {late} ps before its last byte had arrived")]
    Early {
        /// The flow, by its index.
        flow: usize,
        /// How much later its last byte arrived, in picoseconds.
        late: Ps,
    },
    /// Packets are nowhere, or more than once.
    #[error(
        "of what hosts have sent, {} packets with {} bytes were neither delivered nor dropped, and \
        {} with {} are on their way", outstanding.0, outstanding.1, found.0, found.1
    )]
    Unaccounted {
        /// Packets, and their bytes, that were neither delivered nor dropped.
        outstanding: (u64, u64),
        /// Those that are on their way.
        found: (u64, u64),
    },
    /// The bytes of messages exist, and would take too much memory.
    #[error(
        "the flows' bytes take {} GiB of memory, at their sources and at their targets; the most \
         is {} GiB",
        bytes.div_ceil(1 << 30), Cluster::REAL >> 30
    )]
    Real {
        /// The bytes at both ends of all flows.
        bytes: u64,
    },
    /// The transport is a model, which has no cards and no payload.
    #[error(
        "`{0}` is a model of a transport, whose hosts have no payload, cards, orders of turns, \
         classes or kernels"
    )]
    Model(&'static str),
    /// A card has no room for what the flows need.
    #[error("host {host}: its card has no room for the flows: {what}")]
    Full {
        /// The host.
        host: u32,
        /// What the card said.
        what: String,
    },
}

impl Cluster {
    /// The usual [`Cluster::lot`]: the state of so many hosts, some 16 KB each, fits a core's share
    /// of a processor's last cache.
    pub const LOT: u32 = 128;

    /// The most bytes of memory of all flows where their bytes exist.
    pub const REAL: u64 = 4 << 30;

    /// A cluster with the default switches and cards, an MTU of 1024, one thread, no payload.
    pub fn new(topology: Topology) -> Cluster {
        Cluster {
            topology,
            net: NetOptions::default(),
            transport: Transport::default(),
            tuned: None,
            window_packets: 256,
            hardware: Vec::new(),
            config: |_| {},
            mtu: Mtu::B1024,
            timeout: 7,
            short_first: false,
            turn_order: TurnOrder::default(),
            payload: Content::Hollow,
            changes: Vec::new(),
            record: None,
            threads: 1,
            lot: Cluster::LOT,
            warm_up: 0,
            until: NEVER,
        }
    }

    /// What the transport's figures are set to.
    pub fn tuned(&self) -> Tuned {
        self.tuned.unwrap_or_else(|| Tuned::of(&self.transport))
    }

    /// By host: the rate of its cable, in bits per second; zero if it has no limit.
    pub fn host_rates(&self) -> Vec<u64> {
        let mut rates = vec![0; self.topology.hosts as usize];
        for Cable { a, b, rate, .. } in &self.topology.cables {
            for end in [a, b] {
                if let Node::Host(host) = end
                    && let Some(bits) = rates.get_mut(*host as usize)
                {
                    *bits = rate.bits().unwrap_or(0);
                }
            }
        }
        rates
    }

    /// The least of [`Cluster::host_rates`]; zero if none has a limit.
    pub fn host_bits(&self) -> u64 {
        self.host_rates().into_iter().filter(|bits| *bits > 0).min().unwrap_or(0)
    }

    /// Can the transport have what the cluster and these flows ask for, and the machine?
    pub(crate) fn check(&self, flows: &[Flow]) -> Result<(), ClusterError> {
        let has_cards = self.hardware.iter().any(Option::is_some);
        let has_kernels = flows.iter().any(Flow::is_call);
        let has_classes = self.short_first || flows.iter().any(|flow| flow.class.is_some());
        let is_real = self.payload == Content::Real;
        let has_order = self.turn_order != TurnOrder::default();
        let asks = has_cards || has_kernels || has_classes || has_order || is_real;
        if asks && self.transport.is_model() {
            return Err(ClusterError::Model(self.transport.name));
        }
        let bytes = flows.iter().fold(0u64, |sum, flow| sum.saturating_add(2 * flow.bytes));
        if is_real && bytes > Cluster::REAL {
            return Err(ClusterError::Real { bytes });
        }
        Ok(())
    }

    /// The address of a host's card: 10.0.0.1 and on.
    pub fn address(host: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0A00_0000 + host + 1))
    }

    /// How long a model's flow hears nothing before it fails: as long as a card's that waits the
    /// same time each time.
    pub(super) fn patience(&self) -> Ps {
        /// 4.096 µs, the specification's unit.
        const UNIT: Ps = 4096 * NS;
        (UNIT << self.timeout).saturating_mul(self.tuned().retries + 1)
    }

    /// The configuration of a host's card, whose cable carries so many bits per second.
    pub(super) fn card(&self, host: u32, bits: u64) -> Config {
        let mut config = Config::new(Cluster::address(host));
        config.window_packets = self.window_packets;
        config.turn_order = self.turn_order;
        config.translation_entries = 1 << 24;
        if bits > 0 {
            config.link_bits_per_second = bits;
        }
        if let How::Card { config: change, .. } = self.transport.how {
            change(&mut config);
        }
        if let Some(tuned) = &self.tuned {
            config.ack_every = tuned.ack_every as u32;
            config.paths = tuned.paths as u8;
            config.tuning = tuned.policies;
        }
        (self.config)(&mut config);
        config
    }

    /// A network at rest, as the cluster's begins.
    ///
    /// # Errors
    /// If the topology cannot be built.
    pub fn build(&self) -> Result<Net, TopologyError> {
        Net::new(&self.topology, &self.net)
    }

    /// As [`Cluster::build`]; all that have this atlas find paths once.
    pub(super) fn build_part(&self, atlas: &Atlas) -> Result<Net, TopologyError> {
        Net::with_atlas(&self.topology, &self.net, atlas)
    }
}
