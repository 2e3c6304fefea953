//! The applications of a random world: they post work, take completions, and tell the checkers
//! what they know.

mod calls;
mod complete;
mod groups;
mod post;
mod receives;
mod setup;
mod spans;
mod xrc;

use core::ops::Range;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use remora_nic::queue::Status;
use remora_nic::{Event, Key, Pd};

use crate::check::Violation;
use crate::check::atomics::History;
use crate::check::memory::{MemoryModel, Places};
use crate::check::order::{ReceiveOrder, SendOrder};
use crate::dice::Dice;
use crate::endpoint::Endpoint;
use crate::memory::Region;
use crate::options::{ConnectionOptions, Options, Verb};
use crate::world::World;
use spans::Spans;

/// Words for additions at each host; behind them as many for swaps.
const WORDS: u64 = 3;

/// All applications.
pub(crate) struct Traffic {
    pub(crate) sides: Vec<Side>,
    pub(crate) hosts: Vec<HostState>,
    pools: Vec<Pool>,
    groups: Vec<groups::Group>,
    /// By host and word.
    words: BTreeMap<(usize, u64), History>,
    options: Options,
    /// Memory that only cards and drivers write, by host.
    rings: Vec<(usize, Range<u64>)>,
    /// WRITEs that failed: at which host, and which.
    unsettled: Vec<(usize, u64)>,
    /// Status words of calls that nobody waits for any more: at which host, and which.
    unsettled_words: Vec<(usize, u64)>,
    dice: Dice,
    next_id: u64,
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
    seen: HashMap<(usize, u64), u64>,
    srq: u32,
    pd: Pd,
    /// Where XRC connections end.
    domain: Option<xrc::Domain>,
}

/// Receive buffers, of one queue pair or of a shared queue.
struct Pool {
    region: Region,
    slot: u64,
    free: Vec<u64>,
    posted: HashMap<u64, Buffer>,
    /// The order they are posted in, if that says in which they come back.
    order: Option<ReceiveOrder>,
    host: usize,
}

struct Buffer {
    slot: u64,
    places: Places,
}

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) end: Endpoint,
    pub(crate) options: ConnectionOptions,
    /// Own buffers.
    local: Area,
    /// What the peer reads and writes.
    target: Area,
    pool: usize,
    /// Where datagrams go.
    ah: u32,
    /// The multicast group that it is a member of, now and then.
    membership: Option<groups::Membership>,
    /// Requests still to be posted.
    pub(crate) left: u64,
    posted: u64,
    pub(crate) order: SendOrder,
    ops: HashMap<u64, Op>,
    calls: calls::Calls,
    /// To the peer of a reliable connection and not yet received, oldest first.
    messages: VecDeque<Message>,
    /// Requests that failed, so that nobody knows whether the peer got them.
    doubtful: HashSet<u64>,
    /// To the peer of an unreliable service, by id.
    unreliable: HashMap<u64, Message>,
    /// A key of this end that the peer may invalidate, and whether it has been asked to.
    invalidatable: Option<Key>,
    /// All keys of this end that exist.
    keys: Vec<Key>,
    /// The keys that open its target to the peer: the region's, and those of windows. On XRC, by
    /// the queue that a request names.
    opens: Vec<Key>,
    /// Its memory windows, bound or not.
    windows: Vec<Key>,
    gives_up_after: Option<u64>,
    /// How it ended, if it did before its time.
    pub(crate) failed: Option<Status>,
    closing: bool,
}

/// A region and which parts of it are in use.
struct Area {
    region: Region,
    spans: Spans,
}

/// A send request under way.
struct Op {
    verb: Verb,
    len: u64,
    content: Rc<[u8]>,
    /// Its part of the own buffers.
    local: (u64, u64),
    pieces: Vec<(u64, u64)>,
    /// Its part of the peer's target region.
    target: Option<(u64, u64)>,
    /// The key that it goes by there; the key that it binds.
    key: Key,
    /// The target is free again when this is done.
    frees_target: bool,
    word: Option<(usize, u64)>,
    compare: u64,
    operand: u64,
    /// The peer's queue that it names, on XRC.
    queue: usize,
    /// The multicast group that it is for, if it is for one.
    group: Option<usize>,
    /// Of an RPC or RPC WRITE, until it is posted.
    call: Option<calls::Call>,
}

/// What a receive completion must show.
#[derive(Clone)]
struct Message {
    id: u64,
    /// The receiver's queue that it is for, on XRC.
    queue: usize,
    verb: Verb,
    content: Rc<[u8]>,
    imm: Option<u32>,
    key: Option<Key>,
    solicited: bool,
}

impl Side {
    /// It has nothing more to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.order.is_empty() && self.calls.is_empty() && (self.left == 0 || self.failed.is_some())
    }
}

impl Traffic {
    /// Has everybody done all there was to do?
    pub(crate) fn is_done(&self) -> bool {
        self.sides.iter().all(Side::is_idle)
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// A host looks after its queues.
    pub(crate) fn tick(&mut self, world: &mut World, host: usize) -> Result<(), Violation> {
        for s in 0..self.sides.len() {
            if self.sides[s].end.host != host {
                continue;
            }
            if !self.options.event_driven {
                self.poll_side(world, s)?;
            }
            self.look_after_calls(world, s)?;
            self.post_receives(world, s);
            self.post_sends(world, s)?;
            self.move_member(world, s)?;
            self.give_up(world, s);
        }
        self.look_after_domain(world, host)
    }

    /// A card has told something.
    pub(crate) fn event(
        &mut self,
        world: &mut World,
        host: usize,
        event: &Event,
    ) -> Result<(), Violation> {
        match *event {
            Event::CompletionQueueNotify(cq) if self.options.event_driven => {
                let of =
                    |s: &&Side| s.end.host == host && (s.end.send_cq == cq || s.end.recv_cq == cq);
                let side = self.sides.iter().position(|s| of(&s));
                // Armed first, polled then: so no entry is missed between the two.
                world.hosts[host].nic.req_notify_cq(cq, false).ok();
                match (side, self.queue_at(host, cq)) {
                    (Some(side), _) => self.poll_side(world, side),
                    (_, Some(queue)) => self.poll_queue(world, host, queue),
                    _ => Ok(()),
                }
            }
            Event::LastElementReached(_) | Event::CommunicationEstablished(_) => Ok(()),
            Event::SendQueueDrained(_) | Event::SrqLimitReached(_) => Ok(()),
            ref other => Err(Violation::new("events", format!("host {host}: {other:?}"))),
        }
    }

    /// Takes the completions of all.
    pub(crate) fn poll_all(&mut self, world: &mut World) -> Result<(), Violation> {
        (0..self.sides.len()).try_for_each(|s| self.poll_side(world, s))?;
        (0..self.hosts.len()).try_for_each(|host| self.poll_domain(world, host))
    }

    /// Takes the completions of one end.
    fn poll_side(&mut self, world: &mut World, s: usize) -> Result<(), Violation> {
        let Endpoint { host, send_cq, recv_cq, .. } = self.sides[s].end;
        for entry in Endpoint::drain(world, host, recv_cq) {
            self.receive_completed(world, s, None, &entry)?;
        }
        for entry in Endpoint::drain(world, host, send_cq) {
            self.send_completed(world, s, &entry)?;
        }
        Ok(())
    }

    /// Changes whenever somebody has done something.
    pub(crate) fn activity(&self) -> u64 {
        let Stats { received, answered, congested, done, .. } = &self.stats;
        self.next_id + received + answered + congested + done.values().sum::<u64>()
    }

    /// What is not done.
    pub(crate) fn unfinished(&self, world: &World) -> String {
        let open = self.sides.iter().enumerate().filter(|(_, s)| !s.is_idle());
        open.map(|(i, s)| {
            let info = world.hosts[s.end.host].nic.query_qp(s.end.qpn);
            format!(
                "end {i}: {} to post, {} under way, {} unanswered, {info:?}\n",
                s.left,
                s.order.len(),
                s.calls.len()
            )
        })
        .collect()
    }

    /// Can datagrams to a group reach a host that has just left it?
    pub(crate) fn may_stray(&self) -> bool {
        self.options.restless > 0.0
    }

    /// All memory of all hosts.
    pub(crate) fn check_memory(&self, world: &World) -> Result<(), Violation> {
        self.hosts.iter().zip(&world.hosts).try_for_each(|(h, w)| h.model.check(&w.memory))
    }

    /// All words, when nothing is under way any more.
    pub(crate) fn check_words(&self, world: &World) -> Result<(), Violation> {
        for (&(host, word), history) in &self.words {
            let bytes = self.hosts[host].words.read(&world.hosts[host].memory, word * 8, 8);
            let last = u64::from_ne_bytes(bytes.try_into().expect("8 bytes were read"));
            history.judge(last).map_err(|v| {
                Violation::new(v.checker, format!("host {host}, word {word}: {}", v.what))
            })?;
        }
        Ok(())
    }
}
