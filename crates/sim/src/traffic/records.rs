//! The applications' records of hosts, ends, requests, messages, calls and groups.

use core::ops::Range;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use remora_nic::queue::Status;
use remora_nic::{Key, Pd, Time, Xrcd};

use super::spans::Spans;
use crate::check::atomics::History;
use crate::check::memory::{MemoryModel, Places};
use crate::check::order::{ReceiveOrder, SendOrder};
use crate::dice::Dice;
use crate::endpoint::Endpoint;
use crate::memory::Region;
use crate::options::{ConnectionOptions, Options, Verb};

/// The words for additions at each host. The same number of words for swaps follows them.
pub(super) const WORDS: u64 = 3;
/// The bytes of the GRH, which precede a datagram in its buffer.
pub(super) const GRH: u64 = 40;

/// All applications of a world.
pub(crate) struct Traffic {
    pub(crate) sides: Vec<Side>,
    pub(crate) hosts: Vec<HostState>,
    pub(super) pools: Vec<Pool>,
    pub(super) groups: Vec<Group>,
    /// By host and word: the word's history.
    pub(super) words: BTreeMap<(usize, u64), History>,
    pub(super) options: Options,
    /// By host: memory that only cards and drivers write.
    pub(super) rings: Vec<(usize, Range<u64>)>,
    /// WRITEs that failed: their host, and their id.
    pub(super) unsettled: Vec<(usize, u64)>,
    /// Status words of abandoned calls: their host, and their id.
    pub(super) unsettled_words: Vec<(usize, u64)>,
    pub(super) dice: Dice,
    pub(super) next_id: u64,
    /// The network is healed, and receivers post elements at once.
    pub(crate) healed: bool,
    pub(crate) stats: Stats,
}

/// What the applications have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) done: BTreeMap<Verb, u64>,
    pub(crate) bytes: u64,
    pub(crate) received: u64,
    /// Datagrams to a group, counted for each member that received them.
    pub(crate) heard: u64,
    /// Calls whose results have arrived.
    pub(crate) answered: u64,
    /// Calls that ended because their results could not be sent in time.
    pub(crate) congested: u64,
    pub(crate) failed: BTreeMap<String, u64>,
}

/// The objects of a host besides its queue pairs.
pub(crate) struct HostState {
    pub(crate) model: MemoryModel,
    pub(crate) words: Region,
    /// By host and word: the value that this host's applications saw last.
    pub(super) seen: HashMap<(usize, u64), u64>,
    pub(super) srq: u32,
    pub(super) pd: Pd,
    /// The XRC domain whose queues XRC connections use.
    pub(super) domain: Option<Domain>,
}

/// Receive buffers of a queue pair or of a shared receive queue.
pub(super) struct Pool {
    pub(super) region: Region,
    pub(super) slot: u64,
    pub(super) free: Vec<u64>,
    pub(super) posted: HashMap<u64, Buffer>,
    /// The posted elements, if they must come back in the order of posting.
    pub(super) order: Option<ReceiveOrder>,
    pub(super) host: usize,
}

pub(super) struct Buffer {
    pub(super) slot: u64,
    pub(super) places: Places,
}

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) end: Endpoint,
    pub(crate) options: ConnectionOptions,
    /// Buffers of this end.
    pub(super) local: Area,
    /// Memory that the peer reads and writes.
    pub(super) target: Area,
    pub(super) pool: usize,
    /// The address handle for datagrams.
    pub(super) ah: u32,
    /// Its part in a multicast group, if it has one.
    pub(super) membership: Option<Membership>,
    /// Requests that it has not posted yet.
    pub(crate) left: u64,
    pub(super) posted: u64,
    pub(crate) order: SendOrder,
    pub(super) ops: HashMap<u64, Op>,
    pub(super) calls: Calls,
    /// Messages to the peer of a reliable connection that it has not received yet, oldest first.
    pub(super) messages: VecDeque<Message>,
    /// Failed requests that the peer may have received.
    pub(super) doubtful: HashSet<u64>,
    /// Messages to the peer of an unreliable service, by id.
    pub(super) unreliable: HashMap<u64, Message>,
    /// A key of this end that the peer may invalidate.
    pub(super) invalidatable: Option<Key>,
    /// All keys of this end.
    pub(super) keys: Vec<Key>,
    /// The keys that open its target to the peer: the region's, and those of windows. On XRC they
    /// are listed by the queue that a request names.
    pub(super) opens: Vec<Key>,
    /// Its memory windows, bound or not.
    pub(super) windows: Vec<Key>,
    pub(super) gives_up_after: Option<u64>,
    /// How it ended, if it failed or gave up.
    pub(crate) failed: Option<Status>,
    pub(super) closing: bool,
}

/// A region, and the parts of it that are in use.
pub(super) struct Area {
    pub(super) region: Region,
    pub(super) spans: Spans,
}

/// A send request under way.
pub(super) struct Op {
    pub(super) verb: Verb,
    pub(super) len: u64,
    pub(super) content: Rc<[u8]>,
    /// Its part of the end's own buffers.
    pub(super) local: (u64, u64),
    pub(super) pieces: Vec<(u64, u64)>,
    /// Its part of the peer's target region.
    pub(super) target: Option<(u64, u64)>,
    /// The key that it uses there, or the key that it binds.
    pub(super) key: Key,
    /// The target becomes free when the request is done.
    pub(super) frees_target: bool,
    pub(super) word: Option<(usize, u64)>,
    pub(super) compare: u64,
    pub(super) operand: u64,
    /// On XRC: the peer's shared queue that it names.
    pub(super) queue: usize,
    /// The multicast group that it is sent to, if any.
    pub(super) group: Option<usize>,
    /// For an RPC or RPC WRITE that is not posted yet: the call.
    pub(super) call: Option<Call>,
}

/// What the completion of a receive must show.
#[derive(Clone)]
pub(super) struct Message {
    pub(super) id: u64,
    /// On XRC: the receiver's shared queue that it is sent to.
    pub(super) queue: usize,
    pub(super) verb: Verb,
    pub(super) content: Rc<[u8]>,
    pub(super) imm: Option<u32>,
    pub(super) key: Option<Key>,
    pub(super) solicited: bool,
}

/// A call whose results have not all arrived.
pub(super) struct Call {
    /// Its parts of the end's own buffers.
    pub(super) results: (u64, u64),
    pub(super) word: u64,
    /// The id of the status word as an operation of the memory oracle.
    pub(super) word_id: u64,
    pub(super) cookie: u64,
    pub(super) content: Rc<[u8]>,
    /// What the call reads of the peer's target region.
    pub(super) target: (u64, u64),
}

/// A multicast group.
pub(super) struct Group {
    pub(super) address: IpAddr,
    /// The longest datagram that all members accept, in bytes.
    pub(super) longest: u64,
    pub(super) sent: HashMap<u64, SentToGroup>,
    /// Which datagram has reached which end.
    pub(super) heard: HashSet<(u64, usize)>,
}

/// A datagram that was sent to a group.
pub(super) struct SentToGroup {
    pub(super) message: Message,
    pub(super) from: usize,
    pub(super) at: Time,
}

/// An end's membership in a group.
pub(super) struct Membership {
    pub(super) group: usize,
    pub(super) ah: u32,
    pub(super) joined: bool,
    /// When it left the group last.
    pub(super) left: Option<Time>,
}

/// A host's XRC domain.
pub(super) struct Domain {
    pub(super) xrcd: Xrcd,
    pub(super) queues: Vec<XrcQueue>,
    /// The probability that a free receive element is posted when the host looks after its queues.
    pub(super) speed: f64,
}

/// A shared receive queue of a domain.
pub(super) struct XrcQueue {
    pub(super) handle: u32,
    pub(super) srqn: u32,
    pub(super) cq: u32,
    pub(super) pd: Pd,
    pub(super) pool: usize,
    /// The key that opens the host's words for atomics.
    pub(super) words: Key,
}

/// Calls under way, by the id of their request.
pub(super) type Calls = BTreeMap<u64, Call>;

impl Side {
    /// Whether the end has nothing more to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.order.is_empty() && self.calls.is_empty() && (self.left == 0 || self.failed.is_some())
    }
}

impl Group {
    pub(super) fn new(options: &Options, number: usize) -> Group {
        let v4 = Ipv4Addr::new(239, 1, 0, number as u8 + 1);
        let v6 = Ipv6Addr::new(0xFF0E, 0, 0, 0, 0, 0, 1, number as u16 + 1);
        let address = if options.ipv6 { IpAddr::V6(v6) } else { IpAddr::V4(v4) };
        let ends = options.connections.iter().filter(|c| c.groups.contains(&Some(number)));
        let longest = ends.map(|c| c.message_max).min().unwrap_or(0);
        Group { address, longest, sent: HashMap::new(), heard: HashSet::new() }
    }
}
