//! What the applications remember: of hosts, ends, requests, messages, calls and groups.

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

/// Words for additions at each host; behind them as many for swaps.
pub(super) const WORDS: u64 = 3;
/// The bytes of a buffer before a datagram: its GRH.
pub(super) const GRH: u64 = 40;

/// All applications.
pub(crate) struct Traffic {
    pub(crate) sides: Vec<Side>,
    pub(crate) hosts: Vec<HostState>,
    pub(super) pools: Vec<Pool>,
    pub(super) groups: Vec<Group>,
    /// By host and word.
    pub(super) words: BTreeMap<(usize, u64), History>,
    pub(super) options: Options,
    /// Memory that only cards and drivers write, by host.
    pub(super) rings: Vec<(usize, Range<u64>)>,
    /// WRITEs that failed: at which host, and which.
    pub(super) unsettled: Vec<(usize, u64)>,
    /// Status words of calls that nobody waits for any more: at which host, and which.
    pub(super) unsettled_words: Vec<(usize, u64)>,
    pub(super) dice: Dice,
    pub(super) next_id: u64,
    /// The network has been healed: receivers are quick.
    pub(crate) healed: bool,
    pub(crate) stats: Stats,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) done: BTreeMap<Verb, u64>,
    pub(crate) bytes: u64,
    pub(crate) received: u64,
    /// Datagrams to a group, by each member that got them.
    pub(crate) heard: u64,
    /// Calls whose results have come.
    pub(crate) answered: u64,
    /// Calls that ended as their results did not get away.
    pub(crate) congested: u64,
    pub(crate) failed: BTreeMap<String, u64>,
}

/// What a host has beside its queue pairs.
pub(crate) struct HostState {
    pub(crate) model: MemoryModel,
    pub(crate) words: Region,
    /// What its own applications last saw in a word of some host.
    pub(super) seen: HashMap<(usize, u64), u64>,
    pub(super) srq: u32,
    pub(super) pd: Pd,
    /// Where XRC connections end.
    pub(super) domain: Option<Domain>,
}

/// Receive buffers, of one queue pair or of a shared queue.
pub(super) struct Pool {
    pub(super) region: Region,
    pub(super) slot: u64,
    pub(super) free: Vec<u64>,
    pub(super) posted: HashMap<u64, Buffer>,
    /// The order they are posted in, if that says in which they come back.
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
    /// Own buffers.
    pub(super) local: Area,
    /// What the peer reads and writes.
    pub(super) target: Area,
    pub(super) pool: usize,
    /// Where datagrams go.
    pub(super) ah: u32,
    /// The multicast group that it is a member of, now and then.
    pub(super) membership: Option<Membership>,
    /// Requests still to be posted.
    pub(crate) left: u64,
    pub(super) posted: u64,
    pub(crate) order: SendOrder,
    pub(super) ops: HashMap<u64, Op>,
    pub(super) calls: Calls,
    /// To the peer of a reliable connection and not yet received, oldest first.
    pub(super) messages: VecDeque<Message>,
    /// Requests that failed, so that nobody knows whether the peer got them.
    pub(super) doubtful: HashSet<u64>,
    /// To the peer of an unreliable service, by id.
    pub(super) unreliable: HashMap<u64, Message>,
    /// A key of this end that the peer may invalidate, and whether it has been asked to.
    pub(super) invalidatable: Option<Key>,
    /// All keys of this end that exist.
    pub(super) keys: Vec<Key>,
    /// The keys that open its target to the peer: the region's, and those of windows. On XRC, by
    /// the queue that a request names.
    pub(super) opens: Vec<Key>,
    /// Its memory windows, bound or not.
    pub(super) windows: Vec<Key>,
    pub(super) gives_up_after: Option<u64>,
    /// How it ended, if it did before its time.
    pub(crate) failed: Option<Status>,
    pub(super) closing: bool,
}

/// A region and which parts of it are in use.
pub(super) struct Area {
    pub(super) region: Region,
    pub(super) spans: Spans,
}

/// A send request under way.
pub(super) struct Op {
    pub(super) verb: Verb,
    pub(super) len: u64,
    pub(super) content: Rc<[u8]>,
    /// Its part of the own buffers.
    pub(super) local: (u64, u64),
    pub(super) pieces: Vec<(u64, u64)>,
    /// Its part of the peer's target region.
    pub(super) target: Option<(u64, u64)>,
    /// The key that it goes by there; the key that it binds.
    pub(super) key: Key,
    /// The target is free again when this is done.
    pub(super) frees_target: bool,
    pub(super) word: Option<(usize, u64)>,
    pub(super) compare: u64,
    pub(super) operand: u64,
    /// The peer's queue that it names, on XRC.
    pub(super) queue: usize,
    /// The multicast group that it is for, if it is for one.
    pub(super) group: Option<usize>,
    /// Of an RPC or RPC WRITE, until it is posted.
    pub(super) call: Option<Call>,
}

/// What a receive completion must show.
#[derive(Clone)]
pub(super) struct Message {
    pub(super) id: u64,
    /// The receiver's queue that it is for, on XRC.
    pub(super) queue: usize,
    pub(super) verb: Verb,
    pub(super) content: Rc<[u8]>,
    pub(super) imm: Option<u32>,
    pub(super) key: Option<Key>,
    pub(super) solicited: bool,
}

/// A call whose results are not all there yet.
pub(super) struct Call {
    /// Its parts of the own buffers.
    pub(super) results: (u64, u64),
    pub(super) word: u64,
    /// The status word as an operation of the memory oracle.
    pub(super) word_id: u64,
    pub(super) cookie: u64,
    pub(super) content: Rc<[u8]>,
    /// What it reads of the peer's target region.
    pub(super) target: (u64, u64),
}

/// A group.
pub(super) struct Group {
    pub(super) address: IpAddr,
    /// The longest datagram that all members take.
    pub(super) longest: u64,
    pub(super) sent: HashMap<u64, SentToGroup>,
    /// Which datagram reached which end.
    pub(super) heard: HashSet<(u64, usize)>,
}

/// A datagram to a group.
pub(super) struct SentToGroup {
    pub(super) message: Message,
    pub(super) from: usize,
    pub(super) at: Time,
}

/// An end's part in a group.
pub(super) struct Membership {
    pub(super) group: usize,
    pub(super) ah: u32,
    pub(super) joined: bool,
    /// When it last left.
    pub(super) left: Option<Time>,
}

/// A host's XRC domain.
pub(super) struct Domain {
    pub(super) xrcd: Xrcd,
    pub(super) queues: Vec<XrcQueue>,
    /// How likely a receive element is posted again at a time.
    pub(super) speed: f64,
}

/// One of its shared receive queues.
pub(super) struct XrcQueue {
    pub(super) handle: u32,
    pub(super) srqn: u32,
    pub(super) cq: u32,
    pub(super) pd: Pd,
    pub(super) pool: usize,
    /// Opens the host's words.
    pub(super) words: Key,
}

/// Calls under way, by request.
pub(super) type Calls = BTreeMap<u64, Call>;

impl Side {
    /// It has nothing more to do.
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
