//! A node's part in a group, as its threads share it.
//!
//! One lock guards the replica and its links. A thread that changes something under it carries
//! out what the replica wants before the lock is released ([`GroupState::carry_out`]). What takes
//! time is left to a thread: connecting to the door, copies and the log to `drive`, requests to the
//! service to `coordinator`.
//!
//! Locks are taken in this order: the shard's (see `slots`), a lock of the store, this one, the
//! card's. So nothing is done to the store under this lock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, mpsc};
use std::task::Waker;
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use remora::connection::token::Token;
use remora::memory::{AllocError, Buffer};
use remora::nic::cm::ListenError;
use remora::nic::queue::Completion;
use remora::nic::{Access, CreateError};
use remora::{Device, ProtectionDomain, RegisterError, Remote};
use remora_store::front::slots::Shard;
use remora_store::log::{Log, Position};
use remora_store::replica::{
    ChangeError, Configuration, Counters, Event, Mark, NodeId, Options, Replica, Request, Snapshot,
    Standing, region_bytes,
};
use remora_store::way::clock::boot_ns;
use remora_store::way::gate::Gate;
use remora_store::way::region::Region;
use thiserror::Error;

use crate::address::Address;
use crate::feed::{Feed, KeepError, Saves};
use crate::link::{Done, Link, LinkId, Queues};
use crate::listeners::{Listeners, Sleepers};
use crate::refusals::{Peer, Refusals};
use crate::undecided::Undecided;
use crate::wire::Frame;

/// How long the lock is left alone while the store is changed.
const REST: Duration = Duration::from_millis(1);
/// The shortest time after which a disk that keeps nothing counts as one that refuses.
const DISK_PATIENCE: Duration = Duration::from_secs(1);
/// The longest ring, in bytes: a part of it is one READ.
const RING_MAX: u64 = 1 << 30;
/// How often within a lease a backup looks whether its primary's card answers.
const PROBES: u32 = 3;

/// How a node takes part in a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// The node: a number that no other node has, and that it had in no earlier life unless its
    /// disk has all that it held then.
    pub me: NodeId,
    /// The port, in RDMA CM's TCP port space, on which the others reach it.
    pub port: u16,
    /// The ring's bytes, the same on all nodes: a multiple of 8, at most 2^30. No record is longer
    /// than a quarter of it.
    pub ring_bytes: u64,
    /// What the group's checksums begin with, the same on all nodes; clients do not know it.
    pub salt: u64,
    /// What nodes show each other, the same on all; clients do not know it.
    pub token: Token,
    /// How long nodes wait for a sign of the primary before one of them takes over, the same on
    /// all.
    pub lease: Duration,
    /// By how many millionths clocks gain or lose at most.
    pub drift_ppm: u32,
    /// How long a primary waits for a majority before it gives up, and a client for one.
    pub patience: Duration,
}

impl GroupOptions {
    /// Which group it is, of all that begin under its name: the number of its sessions with others,
    /// in which slots move.
    #[must_use]
    pub fn founding(&self) -> u32 {
        founding_of(self.salt)
    }

    /// How long a disk may keep nothing of what waits for it before it counts as one that refuses:
    /// longer than any that works takes, however short the lease is.
    pub(crate) fn disk_patience(&self) -> Duration {
        (2 * self.lease).max(DISK_PATIENCE)
    }
}

/// The number that tells a group from others that began under its name before, or will. A salt is
/// drawn when a group begins, and its nodes' directories keep it. Other groups and their clients
/// may see the number, which leaves half of the salt in the dark.
pub(crate) fn founding_of(salt: u64) -> u32 {
    let mixed = (salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    // (0 says that it is not known.)
    mixed.max(1)
}

#[cfg(test)]
impl GroupOptions {
    /// Of the node of a group that has no other.
    pub(crate) fn of_a_test(port: u16) -> GroupOptions {
        GroupOptions {
            me: NodeId(1),
            port,
            ring_bytes: 1 << 16,
            salt: 1,
            token: Token::new([3; 16]).unwrap(),
            lease: Duration::from_secs(1),
            drift_ppm: 500,
            patience: Duration::from_secs(1),
        }
    }
}

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The ring cannot be as long.
    #[error("a ring has a multiple of 8 bytes, from 1 KiB to 1 GiB, not {0}")]
    Ring(u64),
    /// There is no memory for the ring.
    #[error("there is no memory for a ring of {ring} bytes: {source}; ask for less")]
    Memory {
        /// The ring's bytes.
        ring: u64,
        /// The system's reason.
        source: AllocError,
    },
    /// The card refuses memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The card is full.
    #[error("the card has no room for a node: {0}")]
    Card(#[from] CreateError),
    /// The port is taken.
    #[error("port {port} cannot be listened on: {source}; name another one")]
    Listen {
        /// The port.
        port: u16,
        /// The card's reason.
        source: ListenError,
    },
    /// The node's directory cannot be used.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// The system has no more threads or descriptors.
    #[error("cannot start a node's threads: {0}; if there are limits, raise them")]
    System(#[from] std::io::Error),
}

/// Why a node does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotServing {
    /// Another node is the primary.
    #[error("this node is a backup: ask the primary, {node}{}", match .at {
        Some(at) => format!(" at {at}"),
        None => String::new(),
    })]
    Backup {
        /// The primary.
        node: NodeId,
        /// Where Redis' clients reach it, or its card where there is no such place, if known.
        at: Option<SocketAddr>,
    },
    /// There is no primary, or this one does not serve yet, or its lease has ended.
    #[error("the group has no primary that serves at the moment: try again")]
    Nobody,
    /// The node has ended by itself.
    #[error("this node has ended: {0}")]
    Failed(String),
}

/// Nobody knows whether a change will stay.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Doubt {
    /// Too few nodes have said in time that they hold it.
    #[error("no majority has confirmed the change within {0:?}: look whether it took effect")]
    Late(Duration),
    /// Another node became the primary meanwhile.
    #[error("another node became the primary meanwhile: look whether the change took effect")]
    Replaced,
    /// The node has ended by itself.
    #[error("this node has ended: {0}; look whether the change took effect")]
    Failed(String),
}

/// What a node knows, for people.
#[derive(Clone, Debug)]
pub struct Status {
    /// The node.
    pub me: NodeId,
    /// The latest configuration it has heard of.
    pub configuration: Option<Configuration>,
    /// What it is.
    pub standing: Standing,
    /// Whether it holds a lease.
    pub has_lease: bool,
    /// The end of its log.
    pub last: Mark,
    /// Up to where it knows the log to be committed.
    pub committed: Position,
    /// Up to where its store has carried out the log.
    pub applied: Mark,
    /// For how long it has served in this epoch, if it serves.
    pub serving: Option<Duration>,
    /// The nodes that it is connected to.
    pub links: Vec<NodeId>,
    /// Where nodes are, as the service knows.
    pub addresses: BTreeMap<NodeId, Address>,
    /// What its replica has counted.
    pub counters: Counters,
    /// Links that broke.
    pub broken: u64,
    /// Why its disk takes nothing, if it keeps the log there and that is so.
    pub disk: Option<String>,
    /// Whether it serves, and no majority has confirmed a change for the patience.
    pub is_stalled: bool,
    /// Why a node was last not let in, or not reached.
    pub last_refusal: Option<String>,
    /// Why the configuration service does not answer, or why the group does not begin there.
    pub service: Option<String>,
}

/// A node to connect to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) epoch: u32,
    /// Not before this: it was tried a moment ago.
    pub(crate) not_before: Option<Instant>,
}

/// Of a node that serves: what kernels need to know, which may not wait for the node's lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standpoint {
    /// The epoch in which it serves; 0 if it does not.
    pub(crate) epoch: u32,
    pub(crate) committed: Position,
    /// Until when its lease holds.
    pub(crate) until_ns: u64,
}

/// What a node's threads change together.
#[derive(Debug)]
pub(crate) struct GroupState {
    pub(crate) replica: Replica,
    pub(crate) links: BTreeMap<NodeId, Link>,
    pub(crate) addresses: BTreeMap<NodeId, Address>,
    pub(crate) wanted: BTreeMap<NodeId, Wanted>,
    /// When a node was last asked to become a member.
    pub(crate) asked: Option<Instant>,
    /// Wakes the door when more nodes are wanted.
    pub(crate) door: Option<Waker>,
    /// Copies of the store to be sent, and over which links.
    pub(crate) copies: BTreeMap<NodeId, LinkId>,
    /// The threads that send them.
    pub(crate) copiers: Vec<JoinHandle<()>>,
    /// One of the copies could not have a thread when it was tried last.
    pub(crate) lacks_thread: bool,
    /// The epoch in which the store has all that the log has, so that changes can be made, and
    /// since when.
    pub(crate) open: Option<(u32, Instant)>,
    /// The first of the epochs that this node has served without another primary between them.
    pub(crate) unbroken_from: u32,
    /// The last flush of each tablespace that this node has ordered: see `copy`.
    pub(crate) flushes: BTreeMap<u16, Position>,
    /// The thread whose changes are a transaction, while one is under way.
    pub(crate) transacts: Option<ThreadId>,
    /// The last change of an expiry that this node has ordered: the item's version does not tell.
    pub(crate) touched: Position,
    /// What this node has ordered and no majority holds yet.
    pub(crate) undecided: Undecided,
    /// The end of the log when what was to go to other nodes was last posted.
    pub(crate) posted_to: Mark,
    /// What goes to the disk, where the node keeps anything there.
    pub(crate) disk: Option<Feed>,
    /// Where the store was before it began to carry out what the replica says is carried out, while
    /// it is at it.
    pub(crate) applying_from: Option<Mark>,
    /// A record of the disk is made again, as it was made first.
    pub(crate) repeating: Option<Position>,
    pub(crate) requests: mpsc::Sender<Request>,
    /// Whom threads that wait were told of last: what is committed, and in which epoch.
    pub(crate) told: (Position, u32),
    /// When something was committed last.
    pub(crate) advanced: Instant,
    /// When this node last looked whether its primary's card answers.
    probed: Instant,
    pub(crate) service: Option<String>,
    /// Why the group did not begin yet, as far as the service has said.
    pub(crate) waits: Option<String>,
    broken: u64,
    pub(crate) refusals: Refusals,
    pub(crate) failure: Option<String>,
    /// Another node may write here yet, though it was to be shut out.
    pub(crate) unfenced: bool,
    /// Whether the gate is open.
    lets_in: bool,
}

/// A node's part in a group.
#[derive(Debug)]
pub struct Group {
    pub(crate) options: GroupOptions,
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    pub(crate) region: Region,
    pub(crate) queues: Queues,
    /// What the group is for each slot, where it is one of several: as of the epoch in which this
    /// node last began to serve, and of the map as it saw it last.
    pub(crate) shard: RwLock<Shard>,
    state: Mutex<GroupState>,
    /// Nothing else is locked while this is: kernels lock it while the card is.
    standpoint: Mutex<Standpoint>,
    /// Open to those who read the store's memory while this node serves.
    pub(crate) gate: Arc<Gate>,
    /// Those who sleep until something is committed, another node is the primary, or a link has
    /// room again.
    sleepers: Sleepers,
    /// Who else is told of the first two.
    pub(crate) listeners: Listeners,
    is_stopping: AtomicBool,
    /// The log and the snapshots, where the node keeps any.
    pub(crate) log: OnceLock<Log>,
    pub(crate) saver: OnceLock<Arc<dyn Saves>>,
    /// How often a copy of another node's store has come in the place of this one. A snapshot gets
    /// its name while this stays as it is.
    pub(crate) lineage: Mutex<u64>,
    requests: Mutex<Option<mpsc::Receiver<Request>>>,
}

/// A region with a ring of so many bytes.
fn ring_region(domain: &ProtectionDomain, ring: u64) -> Result<Region, StartError> {
    let buffer = Buffer::new(region_bytes(ring) as usize);
    let buffer = buffer.map_err(|source| StartError::Memory { ring, source })?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = Region::new(domain.register(buffer, access)?);
    Ok(region.expect("a region with a buffer of its own"))
}

/// Whether a ring can have so many bytes.
pub(crate) fn is_ring(bytes: u64) -> bool {
    (1 << 10..=RING_MAX).contains(&bytes) && bytes.is_multiple_of(8)
}

impl Group {
    /// A node that knows nothing yet, with a ring in the device's memory.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn new(device: &Device, options: GroupOptions) -> Result<Arc<Group>, StartError> {
        let ring = options.ring_bytes;
        if !is_ring(ring) {
            return Err(StartError::Ring(ring));
        }
        let domain = device.alloc_pd()?;
        let region = ring_region(&domain, ring)?;
        let (sender, requests) = mpsc::channel();
        let state = GroupState {
            replica: Replica::new(options.me, replica_options(&options, false)),
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            wanted: BTreeMap::new(),
            asked: None,
            door: None,
            copies: BTreeMap::new(),
            copiers: Vec::new(),
            lacks_thread: false,
            open: None,
            unbroken_from: 0,
            flushes: BTreeMap::new(),
            transacts: None,
            touched: Position::NONE,
            undecided: Undecided::default(),
            disk: None,
            applying_from: None,
            repeating: None,
            requests: sender,
            posted_to: Mark::default(),
            told: (Position::NONE, 0),
            advanced: Instant::now(),
            probed: Instant::now(),
            service: None,
            waits: None,
            broken: 0,
            refusals: Refusals::default(),
            failure: None,
            unfenced: false,
            lets_in: false,
        };
        Ok(Arc::new(Group {
            options,
            device: device.clone(),
            domain,
            region,
            queues: Queues::new(device, device.create_channel()?)?,
            shard: RwLock::new(Shard::unseen()),
            state: Mutex::new(state),
            standpoint: Mutex::default(),
            gate: Arc::new(Gate::closed()),
            sleepers: Sleepers::default(),
            listeners: Listeners::default(),
            is_stopping: AtomicBool::new(false),
            log: OnceLock::new(),
            saver: OnceLock::new(),
            lineage: Mutex::new(0),
            requests: Mutex::new(Some(requests)),
        }))
    }

    /// How the replica of a node with a disk, or without one, is made.
    pub(crate) fn replica(&self, waits_for_disk: bool) -> Options {
        replica_options(&self.options, waits_for_disk)
    }

    /// Where the others reach this node.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.device.info().address, self.options.port)
    }

    /// The region, as the others reach it.
    pub(crate) fn remote(&self) -> Remote {
        self.region.region().slice(..).remote()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, at a moment at which the store has what the replica says is carried out, and no
    /// part of a transaction.
    pub(crate) fn lock_at_rest(&self) -> MutexGuard<'_, GroupState> {
        let mut state = self.lock();
        while (state.applying_from.is_some() || state.replica.is_amid_transaction())
            && !self.is_stopping()
        {
            state = self.sleep(state, REST);
        }
        state
    }

    /// What kernels are told.
    pub(crate) fn standpoint(&self) -> Standpoint {
        *self.standpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_standpoint(&self, standpoint: Standpoint) {
        *self.standpoint.lock().unwrap_or_else(PoisonError::into_inner) = standpoint;
    }

    /// Waits until something has changed, or for a while.
    pub(crate) fn sleep<'g>(
        &self,
        state: MutexGuard<'g, GroupState>,
        at_most: Duration,
    ) -> MutexGuard<'g, GroupState> {
        self.sleepers.sleep(state, at_most)
    }

    /// Wakes those who sleep. The caller holds the node's lock.
    pub(crate) fn wake_all(&self) {
        self.sleepers.wake_all();
    }

    /// Tells all who wait for a majority that something has changed.
    pub(crate) fn tell(&self) {
        self.wake_all();
        self.listeners.tell();
    }

    pub(crate) fn take_requests(&self) -> Option<mpsc::Receiver<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.replica.resign();
        state.carry_out(self);
        state.cease(self);
        self.is_stopping.store(true, Ordering::Release);
        state.links.values().for_each(Link::fence);
        state.links.clear();
        state.door.take().into_iter().for_each(Waker::wake);
        self.tell();
    }

    /// The node ends by itself: its store is not the group's any more, or its card has gone.
    pub(crate) fn fail(&self, reason: String) {
        tracing::error!("the node {} ends: {reason}", self.options.me);
        let mut state = self.lock();
        state.failure.get_or_insert(reason);
        drop(state);
        self.stop();
    }

    /// What this node's store shows is what the group has decided: waits until all that `look` may
    /// have seen is committed, then makes sure that nobody else has begun to serve.
    ///
    /// # Errors
    /// See [`NotServing`].
    pub fn read<T>(&self, look: impl FnOnce() -> T) -> Result<T, NotServing> {
        let state = self.lock();
        state.check()?;
        let epoch = state.replica.epoch();
        drop(state);
        let seen = look();
        let last = self.lock().replica.last().position;
        self.wait(last).map_err(|_| NotServing::Nobody)?;
        let state = self.lock();
        state.check()?;
        if state.replica.epoch() == epoch { Ok(seen) } else { Err(NotServing::Nobody) }
    }

    /// Whether this node is the primary, and serves.
    ///
    /// # Errors
    /// Why not: see [`NotServing`].
    pub fn check(&self) -> Result<(), NotServing> {
        self.lock().check()
    }

    /// The same, as kernels are told it: without the node's lock, which each read would wait for.
    /// What is seen in the store before this is not what the node got as a backup, since it is no
    /// primary any more, for kernels as well, before it gets anything.
    pub(crate) fn serves(&self) -> bool {
        let Standpoint { epoch, until_ns, .. } = self.standpoint();
        epoch != 0 && boot_ns() < until_ns
    }

    /// As [`Group::check`], and no other node has served since this node's log had this end: a
    /// thread that was slow to ask may have looked at the store meanwhile.
    pub(crate) fn check_since(&self, position: Position) -> Result<(), NotServing> {
        let state = self.lock();
        if position.epoch() < state.unbroken_from {
            return Err(NotServing::Nobody);
        }
        state.check()
    }

    /// Where the primary is, if it is another node.
    pub(crate) fn primary_elsewhere(&self) -> Option<Address> {
        let state = self.lock();
        match state.check() {
            Err(NotServing::Backup { node, .. }) => state.address_of(node),
            _ => None,
        }
    }

    /// The epoch in which this node is the primary, and serves, at this moment.
    pub(crate) fn serves_in(&self) -> Option<u32> {
        let state = self.lock();
        state.check().is_ok().then(|| state.replica.epoch())
    }

    /// Whether this node is a backup that follows its primary, whose card answers its own, and has
    /// heard from the service within a lease's time that the primary's epoch is the latest one.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.lock().follows()
    }

    /// Brings a node up to become a member: it becomes one as soon as it has nearly everything.
    ///
    /// # Errors
    /// See [`ChangeError`]; a node that is coming already is no error.
    pub fn join(&self, node: NodeId) -> Result<(), ChangeError> {
        let mut state = self.lock();
        state.replica.join(node)?;
        state.carry_out(self);
        Ok(())
    }

    /// Takes a member's vote away.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn leave(&self, node: NodeId) -> Result<(), ChangeError> {
        let mut state = self.lock();
        state.replica.leave(node)?;
        state.carry_out(self);
        Ok(())
    }

    /// What the node knows.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = self.lock();
        let replica = &state.replica;
        Status {
            me: replica.me(),
            configuration: replica.configuration().cloned(),
            standing: replica.standing(),
            has_lease: state.failure.is_none() && replica.holds_lease(replica.epoch(), boot_ns()),
            last: replica.last(),
            committed: replica.committed(),
            applied: state.applying_from.unwrap_or(replica.applied()),
            serving: state.open.filter(|_| state.check().is_ok()).map(|(_, since)| since.elapsed()),
            links: state.links.keys().copied().collect(),
            addresses: state.addresses.clone(),
            counters: *replica.counters(),
            broken: state.broken,
            disk: state.refusal().map(str::to_owned),
            is_stalled: state.check().is_ok() && state.is_stalled(),
            last_refusal: state.refusals.last().map(str::to_owned),
            // (What it waited for has come once there is a configuration.)
            service: state.service.clone().or_else(|| match replica.configuration() {
                None => state.waits.clone(),
                Some(_) => None,
            }),
        }
    }
}

fn replica_options(options: &GroupOptions, waits_for_disk: bool) -> Options {
    Options {
        ring_bytes: options.ring_bytes,
        salt: options.salt,
        patience_ns: options.patience.as_nanos() as u64,
        lease_ns: options.lease.as_nanos() as u64,
        drift_ppm: options.drift_ppm,
        waits_for_disk,
        disk_patience_ns: options.disk_patience().as_nanos() as u64,
    }
}

impl GroupState {
    /// Whether this node serves.
    pub(crate) fn check(&self) -> Result<(), NotServing> {
        if let Some(reason) = &self.failure {
            return Err(NotServing::Failed(reason.clone()));
        }
        if self.is_open() && self.replica.holds_lease(self.replica.epoch(), boot_ns()) {
            return Ok(());
        }
        match self.replica.primary().filter(|node| *node != self.replica.me()) {
            Some(node) => {
                let at = self.address_of(node).map(|address| address.redis.unwrap_or(address.card));
                Err(NotServing::Backup { node, at })
            }
            None => Err(NotServing::Nobody),
        }
    }

    /// See [`Group::follows`].
    pub(crate) fn follows(&self) -> bool {
        self.replica.standing() == Standing::Backup(true)
            && self.failure.is_none()
            && self.replica.is_of_one_time()
            && self.replica.has_heard(boot_ns())
    }

    /// A backup that hears nothing has nothing to write, and so would not find out that its primary
    /// does not reach it: it looks, now and then.
    pub(crate) fn probe_primary(&mut self, group: &Group) {
        let is_due = self.probed.elapsed() >= group.options.lease / PROBES;
        if !is_due || self.replica.standing() != Standing::Backup(true) {
            return;
        }
        self.probed = Instant::now();
        let link = self.replica.primary().and_then(|primary| self.links.get_mut(&primary));
        link.into_iter().for_each(Link::probe);
    }

    fn address_of(&self, node: NodeId) -> Option<Address> {
        self.addresses.get(&node).cloned()
    }

    /// Whether changes can be made.
    pub(crate) fn is_open(&self) -> bool {
        let epoch = self.replica.epoch();
        self.open.is_some_and(|(open, _)| open == epoch) && self.replica.is_serving()
    }

    /// A node was not let in, or not reached. It tries again soon: only what is new is logged.
    pub(crate) fn note_refusal(&mut self, peer: Peer, what: &str) {
        if self.refusals.note(peer, what, Instant::now()) {
            tracing::warn!("{what}");
        }
    }

    /// The service has said something.
    pub(crate) fn hear(&mut self, group: &Group, event: Event) {
        self.replica.handle_event(&group.region, event, boot_ns());
        self.carry_out(group);
    }

    /// A request on a link is done, or has failed.
    pub(crate) fn complete(&mut self, group: &Group, completion: &Completion) -> Option<NodeId> {
        let of = |(node, link): (&NodeId, &mut Link)| {
            (link.qpn() == completion.qpn).then(|| (*node, link.complete(completion)))
        };
        let (node, done) = self.links.iter_mut().find_map(of)?;
        match done {
            Ok(Done::Nothing | Done::Written) => {}
            Ok(Done::Read) => self.replica.handle_read(&group.region, node),
            Ok(Done::Acknowledged(mark)) => {
                self.replica.handle_written(&group.region, node, mark);
            }
            Ok(Done::Frame(bytes)) => return self.take_frame(group, node, &bytes),
            Err(broken) => {
                tracing::info!("the link to {node} is broken: {broken}");
                self.lose(group, node);
            }
        }
        None
    }

    /// A node has sent a frame; returns the node whose copy is complete now.
    fn take_frame(&mut self, group: &Group, from: NodeId, bytes: &[u8]) -> Option<NodeId> {
        let link = self.links.get_mut(&from)?;
        let is_taken = match Frame::decode(bytes) {
            Some(Frame::Message(message)) => {
                self.replica.handle_message(&group.region, from, message);
                true
            }
            Some(Frame::Records(bytes)) => link.incoming.add_records(bytes),
            Some(Frame::Head(bytes)) => link.incoming.add_head(bytes),
            Some(Frame::End) => return Some(from),
            None => false,
        };
        if !is_taken {
            tracing::warn!("{from} sends what cannot be understood: is it of another version?");
            self.lose(group, from);
        }
        None
    }

    /// The link to a node is gone.
    pub(crate) fn lose(&mut self, group: &Group, node: NodeId) {
        if self.drop_link(node) {
            self.broken += 1;
            self.replica.handle_disconnected(&group.region, node);
        }
    }

    /// The link of this number to a node, if it is there still.
    pub(crate) fn link(&mut self, to: NodeId, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(&to).filter(|link| link.id == id)
    }

    /// Ends a link, without a word to the replica; whether there was one.
    pub(crate) fn drop_link(&mut self, node: NodeId) -> bool {
        self.copies.remove(&node);
        let link = self.links.remove(&node);
        link.iter().for_each(Link::fence);
        link.is_some()
    }

    /// Whether no majority has confirmed anything for the patience, though something waits for one.
    pub(crate) fn is_stalled(&self) -> bool {
        self.undecided.is_stalled(self.replica.last().position, self.replica.committed())
    }

    /// Why the disk takes nothing, if that is so.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.disk.as_ref()?.refusal()
    }

    /// What a copy of the store has to know as it is begun: what is carried out, and the flushes
    /// that may not be yet.
    pub(crate) fn begin_walk(&self) -> (Snapshot, Vec<(u16, Position)>) {
        let flushes = self.flushes.iter().map(|(space, at)| (*space, *at)).collect();
        (self.replica.snapshot(), flushes)
    }

    /// Says to kernels what they may answer.
    pub(crate) fn tell_kernels(&self, group: &Group) {
        let epoch = if self.is_open() { self.replica.epoch() } else { 0 };
        let (committed, until_ns) = (self.replica.committed(), self.replica.lease_until_ns());
        group.set_standpoint(Standpoint { epoch, committed, until_ns });
    }

    /// Lets those who read the store's memory in while this node serves, and nobody else.
    pub(crate) fn guard(&mut self, group: &Group) {
        let serves = self.check().is_ok();
        if serves && !self.lets_in {
            self.lets_in = true;
            group.gate.open();
        } else if !serves && self.lets_in {
            self.cease(group);
        }
    }

    /// From now on this node answers nobody: another one may be the primary.
    pub(crate) fn cease(&mut self, group: &Group) {
        group.set_standpoint(Standpoint::default());
        group.gate.close();
        if std::mem::take(&mut self.lets_in) {
            let epoch = self.replica.epoch();
            tracing::info!("{} does not serve any more, as of epoch {epoch}", group.options.me);
        }
    }
}
