//! A node's part in a group: what primary and backups have in common, and when a backup whose
//! primary is silent proposes itself (failover).

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use super::configuration::{Configuration, NodeId, are_members, members_of};
use super::disk::DiskWatch;
use super::history::{History, Mark, are_in_order};
use super::lease::{Lease, Silence};
use super::message::{Answer, Message, Output, Snapshot};
use super::region::COMMITTED_AT;
use super::requests::{NoRequest, Requests};
use super::role::{Backup, Postponed, Role};
use super::service::{Entry, Event, Request};
use crate::journal::{Journal, Record};
use crate::log::{self, Fields, Operation, Position, with_record};
use crate::memory::Memory;
use crate::request::RequestId;
use crate::store::Store;

/// How a replica is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// The ring's bytes: a multiple of 8, the same on all nodes. No record is longer than a
    /// quarter of it.
    pub ring_bytes: u64,
    /// What the group's checksums begin with, the same on all nodes; clients do not know it.
    pub salt: u64,
    /// How long a primary waits for a majority before it gives up, and a node before it proposes
    /// itself again, in ns.
    pub patience_ns: u64,
    /// For how long others wait for a renewal before they take over, in ns: the same on all nodes.
    pub lease_ns: u64,
    /// How much any node's clock gains or loses at most, in millionths.
    pub drift_ppm: u32,
    /// A record counts as held once [`Replica::handle_kept`] said so.
    pub waits_for_disk: bool,
    /// How long a disk may keep nothing of what waits for it before it counts as one that refuses,
    /// in ns.
    pub disk_patience_ns: u64,
}

/// What a replica has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Epochs in which earlier primaries were fenced off.
    pub fenced: u64,
    /// Messages of an epoch that is over.
    pub stale: u64,
    /// Messages and answers that make no sense here: another version of this code, or an error in
    /// it.
    pub refused: u64,
    /// Epochs that this node began to serve.
    pub served: u64,
    /// Backups that fell behind by three quarters of a ring and were cut off, to get a snapshot.
    pub overrun: u64,
    /// Snapshots asked for by or for this node.
    pub snapshots: u64,
    /// Times records were forgotten that had not been committed.
    pub truncated: u64,
    /// Times it gave up being primary for want of a majority.
    pub resigned: u64,
    /// Changes refused for want of a majority or of room.
    pub full: u64,
}

/// What does not tell two replicas apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Aside {
    pub(super) counters: Counters,
    pub(super) scratch: Vec<u8>,
}

impl PartialEq for Aside {
    fn eq(&self, _: &Aside) -> bool {
        true
    }
}

impl Eq for Aside {}

impl Hash for Aside {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// What a node is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has heard of no configuration.
    Idle,
    /// It waits until earlier primaries are fenced off.
    Fencing,
    /// It follows a primary; whether the log comes in.
    Backup(bool),
    /// It is the primary, and gathers histories.
    Recovering,
    /// It is the primary, and serves while it holds its lease.
    Serving,
}

/// What has become of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Too few nodes are known to hold it.
    Pending,
    /// It is committed, with all before it: the client that asked for it may be told.
    Committed,
    /// Another primary's changes are in its place, or it was too many epochs ago to know.
    Unknown,
}

/// One node's part in a group.
///
/// `memory` is the node's region, of [`super::region_bytes`] bytes, zeros at first. After every
/// call the caller carries out [`Replica::poll_output`] until there is nothing left, and
/// [`Replica::poll_apply`] likewise. Calls are cheap but for those that take up or send records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    pub(super) me: NodeId,
    pub(super) options: Options,
    /// The latest epoch it has heard of: it takes nothing of earlier ones.
    pub(super) epoch: u32,
    pub(super) configuration: Option<Configuration>,
    /// The service has told it the latest configuration, after which no promise of an earlier life
    /// can be broken.
    is_informed: bool,
    /// It has had an earlier life, and has heard of no configuration in this one.
    pub(super) comes_back: bool,
    /// In an earlier life it was the primary of this epoch. It cannot go on as that: it has
    /// forgotten what it ordered last, and would order something else at the same positions.
    is_spent: bool,
    /// What a primary has said before the service did.
    early: Option<(NodeId, Configuration)>,
    pub(super) history: History,
    pub(super) committed: Position,
    pub(super) applied: Mark,
    /// Who had a vote in the epoch of what was carried out last, where the log says so.
    pub(super) members: Vec<NodeId>,
    /// Up to where the log is on the disk, and how often it was cut since.
    pub(super) kept: Mark,
    pub(super) generation: u32,
    pub(super) disk: DiskWatch,
    pub(super) requests: Requests,
    pub(super) role: Role,
    /// The primary of this epoch has given its lease up.
    pub(super) is_free: bool,
    /// For how long another primary has not renewed its lease.
    silence: Silence,
    /// It proposes nothing before this.
    pub(super) quiet_until_ns: u64,
    pub(super) lease: Lease,
    /// When it asks the service again: for its lease, or how things are.
    pub(super) ask_at_ns: u64,
    /// Nodes that were asked to join while this one was the primary, and are no members yet.
    pub(super) joining: BTreeSet<NodeId>,
    /// How many transactions are under way on this node.
    pub(super) together: u32,
    /// What is logged next is of none of them.
    pub(super) is_apart: bool,
    pub(super) postponed: Postponed,
    /// A copy of another node's store may have parts of what comes up to here.
    pub(super) copied_until: Position,
    pub(super) outputs: VecDeque<Output>,
    pub(super) aside: Aside,
}

impl Replica {
    /// A node that has nothing yet.
    ///
    /// # Panics
    /// If the ring's length is no multiple of 8, or 0.
    #[must_use]
    pub fn new(me: NodeId, options: Options) -> Replica {
        assert!(options.ring_bytes > 0 && options.ring_bytes.is_multiple_of(8));
        Replica {
            me,
            options,
            epoch: 0,
            configuration: None,
            is_informed: false,
            comes_back: false,
            is_spent: false,
            early: None,
            history: History::new(options.ring_bytes, options.salt),
            committed: Position::NONE,
            applied: Mark::default(),
            members: Vec::new(),
            kept: Mark::default(),
            generation: 0,
            disk: DiskWatch::default(),
            requests: Requests::default(),
            role: Role::Idle,
            is_free: false,
            silence: Silence::new(options.lease_ns),
            quiet_until_ns: 0,
            lease: Lease::new(options.lease_ns, options.drift_ppm),
            ask_at_ns: 0,
            joining: BTreeSet::new(),
            together: 0,
            is_apart: false,
            postponed: Postponed::default(),
            copied_until: Position::NONE,
            outputs: VecDeque::new(),
            aside: Aside::default(),
        }
    }

    /// What it wants done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next record that is committed and was not yet carried out: to be carried out now, with
    /// [`apply`].
    pub fn poll_apply<M: Memory>(&mut self, memory: &M) -> Option<(Position, Fields<'_>)> {
        // (That a transaction is committed may be known before all of it is here.)
        let end = self.history.unfinished().unwrap_or(self.history.last());
        if self.applied.position >= self.committed || self.applied >= end {
            self.use_room(memory);
            return None;
        }
        let next = self.history.after(memory, self.applied, &mut self.aside.scratch);
        let (mark, fields) = next?;
        // What lies in the ring and was not taken up is no part of the history.
        if mark.position > self.committed || mark.offset > end.offset {
            return None;
        }
        self.applied = mark;
        self.requests.note(mark.position, &fields);
        if fields.operation == Operation::Epoch {
            self.members = members_of(fields.value);
        }
        Some((mark.position, fields))
    }

    /// Some of the ring may have come free: a primary that was told so can write there, and one
    /// that could not begin its epoch's part of the log can.
    fn use_room<M: Memory>(&mut self, memory: &M) {
        match &self.role {
            Role::Backup(_) => self.tell(memory),
            Role::Primary(_) => self.gather(memory),
            Role::Idle | Role::Fencing(_) => {}
        }
    }

    /// The next record after a mark, as bytes for the disk.
    pub fn record_after<M: Memory>(&mut self, memory: &M, mark: Mark) -> Option<(Mark, &[u8])> {
        let last = self.history.last().offset;
        let (next, _) = self.history.after(memory, mark, &mut self.aside.scratch)?;
        let length = (next.offset - mark.offset) as usize;
        (next.offset <= last).then(|| (next, &self.aside.scratch[..length]))
    }

    /// The log is on the disk up to `mark`. `generation` is [`Replica::generation`] as it was when
    /// the records were read: what was forgotten meanwhile does not count.
    pub fn handle_kept<M: Memory>(&mut self, memory: &M, mark: Mark, generation: u32) {
        if generation == self.generation && mark.offset <= self.history.last().offset {
            self.kept = self.kept.max(mark);
        }
        self.poll_memory(memory);
    }

    /// How often records were forgotten.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The configuration service said something, at `now_ns`.
    pub fn handle_event<M: Memory>(&mut self, memory: &M, event: Event, now_ns: u64) {
        match event {
            Event::Lease { epoch, sent_ns } => self.lease.renew(epoch, sent_ns),
            Event::Refused { .. } => self.unpropose(),
            Event::Latest(latest) => {
                self.is_informed = true;
                latest.into_iter().for_each(|entry| self.learn(memory, entry, now_ns));
                if let Some((from, configuration)) = self.early.take() {
                    self.handle_message(memory, from, Message::Epoch(configuration));
                }
            }
        }
        self.handle_time(now_ns);
    }

    /// How things are, as the service has them.
    pub(super) fn learn<M: Memory>(&mut self, memory: &M, entry: Entry, now_ns: u64) {
        let epoch = entry.configuration.epoch;
        if self.is_amid_transaction() && epoch > self.epoch {
            self.postponed.entry = Some((entry, now_ns));
            return;
        }
        self.silence.see(epoch, entry.revision, now_ns);
        self.hear(memory, entry.configuration);
        if epoch == self.epoch {
            self.is_free = entry.is_free;
        }
        if self.silence.ends_ns() > now_ns {
            self.ask_at_ns = self.ask_at_ns.min(self.silence.ends_ns());
        }
    }

    /// A configuration, from wherever.
    pub(super) fn hear<M: Memory>(&mut self, memory: &M, latest: Configuration) {
        if latest.epoch > self.epoch {
            self.epoch = latest.epoch;
            self.configuration = Some(latest);
            self.is_free = false;
            self.quiet_until_ns = 0;
            let is_mine = self.primary() == Some(self.me);
            self.is_spent = is_mine && self.comes_back;
            self.comes_back = false;
            if is_mine {
                // It serves as soon as the service has renewed its lease in this epoch.
                self.ask_at_ns = 0;
            }
            self.role = Role::Fencing(false);
            self.outputs.push_back(Output::Fence { epoch: self.epoch });
        } else if latest.epoch == self.epoch && !self.is_rival(&latest) {
            // Established meanwhile; that is not taken back.
            if latest.is_established() {
                self.configuration = Some(latest);
            }
            self.advance(memory);
        } else {
            self.aside.counters.stale += 1;
        }
    }

    /// Is this another configuration of the same epoch? A service that has lost its data may give
    /// an epoch twice; the majorities of the two need not meet, so the first one holds.
    fn is_rival(&self, latest: &Configuration) -> bool {
        let own = self.configuration.as_ref().filter(|own| own.epoch == latest.epoch);
        own.is_some_and(|own| (own.primary, &own.members) != (latest.primary, &latest.members))
    }

    /// Time has passed: due at least four times within [`Options::patience_ns`], and eight times
    /// within [`Options::lease_ns`].
    pub fn handle_time(&mut self, now_ns: u64) {
        self.look_at_disk(now_ns);
        self.look_for_majority(now_ns);
        self.ask_again(now_ns);
        self.ask(now_ns);
        let Some(configuration) = &self.configuration else { return };
        let is_member = configuration.members.contains(&self.me);
        if !(self.may_propose(now_ns) && is_member && now_ns >= self.quiet_until_ns) {
            return;
        }
        if let Ok(next) = configuration.under(self.me) {
            self.quiet_until_ns = now_ns + self.options.patience_ns;
            let over = self.silence.revision();
            self.outputs.push_back(Output::Request(Request::Propose { next, over }));
        }
    }

    /// A disk that is silent counts as one that refuses.
    fn look_at_disk(&mut self, now_ns: u64) {
        if !self.options.waits_for_disk {
            return;
        }
        let waits = self.kept.offset < self.history.last().offset;
        self.disk.look(self.kept, waits, self.options.disk_patience_ns, now_ns);
        if self.disk.is_silent {
            self.handle_refusing_disk(now_ns);
        }
    }

    /// Whether the disk has kept nothing of what waits for it, for the patience
    /// ([`Options::disk_patience_ns`]).
    #[must_use]
    pub fn is_disk_silent(&self) -> bool {
        self.disk.is_silent
    }

    /// Asks the service for the lease, or how things are, when it is time to.
    fn ask(&mut self, now_ns: u64) {
        if now_ns < self.ask_at_ns {
            return;
        }
        self.ask_at_ns = now_ns.saturating_add(self.lease.renew_every_ns());
        let epoch = self.epoch;
        let request = match self.is_primary() {
            true if self.lease.has_ended(epoch) => Request::Resign { epoch },
            true => Request::Renew { epoch, sent_ns: now_ns },
            false => Request::Look,
        };
        self.outputs.push_back(Output::Request(request));
    }

    /// Whether the latest epoch's primary is this node, in this life.
    fn is_primary(&self) -> bool {
        self.primary() == Some(self.me) && !self.is_spent
    }

    /// Whether another epoch may begin.
    fn may_propose(&self, now_ns: u64) -> bool {
        let is_over = || !self.is_primary() && self.silence.is_over(self.epoch, now_ns);
        self.is_free || self.is_spent || is_over()
    }

    /// Nobody can write here any more over a connection of an epoch before this one.
    pub fn handle_fenced<M: Memory>(&mut self, memory: &M, epoch: u32) {
        let Role::Fencing(is_asked) = self.role else { return };
        let Some(configuration) = self.configuration.as_ref().filter(|_| epoch == self.epoch)
        else {
            return;
        };
        self.aside.counters.fenced += 1;
        let primary = configuration.primary;
        self.take_up(memory);
        // A primary has written a window ahead of what this node holds, and nothing that is not
        // free.
        let ahead = self.history.last().offset + self.history.window();
        let room = self.free_until() + self.options.ring_bytes;
        self.history.clear_ahead(memory, ahead.min(room));
        if self.is_spent {
            self.role = Role::Idle;
        } else if primary == self.me {
            self.begin_recovery(memory);
        } else {
            self.joining.clear();
            self.role = Role::Backup(Backup::default());
            if is_asked {
                self.answer(primary);
            }
        }
    }

    /// Takes up what earlier primaries have written.
    pub(super) fn take_up<M: Memory>(&mut self, memory: &M) {
        self.history.scan(memory, self.epoch, u64::MAX, &mut self.aside.scratch);
        let committed = Position::from_number(memory.load(COMMITTED_AT));
        self.committed = self.committed.max(committed);
    }

    /// Tells the primary what is here.
    pub(super) fn answer(&mut self, primary: NodeId) {
        let answer = Answer {
            ends: self.history.ends().collect(),
            first_offset: self.first_offset(),
            applied: self.applied,
            committed: self.committed,
            free_until: self.free_until(),
        };
        let message = Message::History { epoch: self.epoch, answer };
        self.outputs.push_back(Output::Send { to: primary, message });
    }

    /// Up to which offset the ring may be overwritten: the rest is not carried out yet, or not on
    /// the disk.
    pub(super) fn free_until(&self) -> u64 {
        self.applied.offset.min(self.held().offset)
    }

    /// The offset of the first byte that lies in the ring for sure. A primary overwrites nothing
    /// that is not free, whatever was under way.
    pub(super) fn first_offset(&self) -> u64 {
        self.history.first_offset().min(self.free_until())
    }

    /// A node that this one wanted to be connected to is.
    pub fn handle_connected(&mut self, node: NodeId) {
        let Some(configuration) = &self.configuration else { return };
        let hello = Message::Epoch(configuration.clone());
        if let Role::Primary(primary) = &mut self.role
            && primary.greet(node)
        {
            self.outputs.push_back(Output::Send { to: node, message: hello });
        }
    }

    /// The connection with a node has ended, or cannot be had.
    pub fn handle_disconnected<M: Memory>(&mut self, memory: &M, node: NodeId) {
        let is_primary = self.primary() == Some(node);
        self.postponed.hello.take_if(|(from, _)| *from == node);
        match &mut self.role {
            Role::Backup(backup) if is_primary => backup.lose(),
            // It asks again over the next connection.
            Role::Fencing(is_asked) if is_primary => *is_asked = false,
            Role::Primary(primary) => {
                if primary.lose(node) {
                    self.outputs.push_back(Output::Connect { to: node });
                    self.gather(memory);
                }
            }
            Role::Idle | Role::Fencing(_) | Role::Backup(_) => {}
        }
    }

    /// A node has sent a message.
    pub fn handle_message<M: Memory>(&mut self, memory: &M, from: NodeId, message: Message) {
        match message {
            Message::Epoch(configuration) => self.handle_epoch(memory, from, configuration),
            Message::Stale { .. } => self.aside.counters.stale += 1,
            Message::Sync { epoch, .. } | Message::Fetch { epoch } if epoch == self.epoch => {
                self.handle_order(memory, from, &message);
            }
            Message::History { epoch, .. } | Message::Synced { epoch, .. }
                if epoch == self.epoch =>
            {
                self.handle_answer(memory, from, message);
            }
            _ => self.aside.counters.stale += 1,
        }
    }

    fn handle_epoch<M: Memory>(&mut self, memory: &M, from: NodeId, configuration: Configuration) {
        if !configuration.is_sound() {
            self.aside.counters.refused += 1;
            return;
        }
        if !self.is_informed {
            // Of several primaries, the latest is the one that has to be answered.
            let had = self.early.as_ref().map_or(0, |(_, early)| early.epoch);
            if configuration.epoch >= had {
                self.early = Some((from, configuration));
            }
            return;
        }
        if configuration.epoch < self.epoch || configuration.primary != from {
            self.aside.counters.stale += 1;
            let message = Message::Stale { epoch: self.epoch };
            return self.outputs.push_back(Output::Send { to: from, message });
        }
        if self.is_amid_transaction() && configuration.epoch > self.epoch {
            // As above.
            let had = self.postponed.hello.as_ref().map_or(0, |(_, had)| had.epoch);
            if configuration.epoch >= had {
                self.postponed.hello = Some((from, configuration));
            }
            return;
        }
        self.hear(memory, configuration);
        match &mut self.role {
            Role::Fencing(is_asked) => *is_asked = true,
            Role::Backup(backup) => {
                // Over a new connection: the one before has ended, so nothing is under way.
                backup.lose();
                self.take_up(memory);
                self.answer(from);
            }
            Role::Idle | Role::Primary(_) => self.aside.counters.refused += 1,
        }
    }

    /// What goes with a copy of the store as it is at this moment; see [`Output::Snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            epoch: self.epoch,
            ends: self.history.ends_until(self.applied),
            committed: self.committed,
            requests: self.requests.clone(),
            members: self.members.clone(),
        }
    }

    /// Whether a copy of another node's store was asked for in this epoch.
    #[must_use]
    pub fn wants_snapshot(&self, from: NodeId, epoch: u32) -> bool {
        let is_wanted = match &self.role {
            Role::Backup(backup) => !backup.is_live() && self.primary() == Some(from),
            Role::Primary(primary) => primary.is_fetching(from),
            Role::Idle | Role::Fencing(_) => false,
        };
        is_wanted && epoch == self.epoch
    }

    /// A copy of the store has come, and stands in the place of the one that was here, and of all
    /// that is on the disk. False if it is none that was asked for: then the store must stay as it
    /// is.
    pub fn handle_snapshot<M: Memory>(
        &mut self,
        memory: &M,
        from: NodeId,
        snapshot: &Snapshot,
    ) -> bool {
        if !self.wants_snapshot(from, snapshot.epoch) {
            self.aside.counters.stale += 1;
            return false;
        }
        let members = &snapshot.members;
        if !are_in_order(&snapshot.ends) || !(members.is_empty() || are_members(members)) {
            self.aside.counters.refused += 1;
            return false;
        }
        self.history.restart(memory, &snapshot.ends);
        self.applied = self.history.last();
        self.committed = self.committed.max(snapshot.committed);
        self.copied_until = snapshot.committed;
        self.requests = snapshot.requests.clone();
        self.members = snapshot.members.clone();
        self.generation = self.generation.wrapping_add(1);
        // The copy was made of what is on the sender's disk or will be; here it is kept whole.
        self.kept = self.applied;
        match &mut self.role {
            Role::Primary(_) => self.go_on(memory),
            _ => self.answer(from),
        }
        true
    }

    /// Forgets the records after a mark.
    pub(super) fn truncate<M: Memory>(&mut self, memory: &M, mark: Mark) {
        let had = self.history.last();
        let (from, scratch) = (self.applied.min(mark), &mut self.aside.scratch);
        let whole = self.history.whole_until(memory, from, mark, scratch);
        self.history.truncate(memory, mark, whole);
        if had == mark {
            return;
        }
        self.aside.counters.truncated += 1;
        self.kept = self.kept.min(mark);
        self.generation = self.generation.wrapping_add(1);
        self.outputs.push_back(Output::Truncated { to: mark });
    }

    /// What of the log this node holds for sure.
    pub(super) fn held(&self) -> Mark {
        if self.options.waits_for_disk { self.kept } else { self.history.last() }
    }

    /// Others may have written here: takes up what came.
    pub fn poll_memory<M: Memory>(&mut self, memory: &M) {
        match &self.role {
            Role::Backup(_) => self.follow(memory),
            Role::Primary(_) => self.hear_backups(memory),
            Role::Idle | Role::Fencing(_) => {}
        }
    }

    /// Which node it is.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// The latest epoch it has heard of.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The primary of that epoch.
    #[must_use]
    pub fn primary(&self) -> Option<NodeId> {
        self.configuration.as_ref().map(|configuration| configuration.primary)
    }

    /// The latest configuration it has heard of.
    #[must_use]
    pub fn configuration(&self) -> Option<&Configuration> {
        self.configuration.as_ref()
    }

    /// Whether this node's lease for `epoch` holds at `now_ns` of its clock. If the node serves
    /// in that epoch, nobody else does as long as it holds: so a reader of the store
    /// remembers the epoch first, and asks this afterwards.
    #[must_use]
    pub fn holds_lease(&self, epoch: u32, now_ns: u64) -> bool {
        epoch == self.epoch && self.lease.holds(epoch, now_ns)
    }

    /// Until when this node's lease for its epoch holds, in ns of its clock; 0 if it has none.
    #[must_use]
    pub fn lease_until_ns(&self) -> u64 {
        self.lease.until_ns(self.epoch)
    }

    /// Whether this node has heard from the service, within a term before `now_ns` of its clock,
    /// that its epoch is the latest one: what it has is not of a former primary.
    #[must_use]
    pub fn has_heard(&self, now_ns: u64) -> bool {
        self.silence.has_heard(self.epoch, now_ns)
    }

    /// What it is at the moment.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match &self.role {
            Role::Idle => Standing::Idle,
            Role::Fencing(_) => Standing::Fencing,
            Role::Backup(backup) => Standing::Backup(backup.is_live()),
            Role::Primary(_) if self.is_serving() => Standing::Serving,
            Role::Primary(_) => Standing::Recovering,
        }
    }

    /// The end of its last record.
    #[must_use]
    pub fn last(&self) -> Mark {
        self.history.last()
    }

    /// Up to where it knows the log to be committed.
    #[must_use]
    pub fn committed(&self) -> Position {
        self.committed
    }

    /// What has become of the change at a position that this node has logged. To be committed
    /// itself, and not only something after it, it must be in the history still.
    #[must_use]
    pub fn fate(&self, position: Position) -> Fate {
        match (self.history.has(position), position <= self.committed) {
            (true, true) => Fate::Committed,
            (true, false) => Fate::Pending,
            (false, _) => Fate::Unknown,
        }
    }

    /// Up to where its store has carried out the log.
    #[must_use]
    pub fn applied(&self) -> Mark {
        self.applied
    }

    /// What became of a request. What it was answered may be told once [`Replica::fate`] says that
    /// its position is committed; an error, like what was read, if the lease held afterwards: a
    /// primary that was replaced does not know its successor's requests.
    ///
    /// # Errors
    /// See [`NoRequest`].
    pub fn find_request(&self, id: RequestId) -> Result<Option<(Position, &[u8])>, NoRequest> {
        self.requests.find(id)
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.aside.counters
    }
}

/// Carries out a record of the log in a store.
///
/// # Errors
/// Why it cannot be, in words: the node must stop, as its store is not the group's any more.
pub fn apply<M: Memory, J: Journal>(
    store: &Store<M, J>,
    position: Position,
    fields: &Fields<'_>,
) -> Result<(), String> {
    match fields.operation {
        Operation::Epoch | Operation::Request | Operation::Done => Ok(()),
        _ => with_record(fields, |record| {
            store.replay(position.number(), record).map_err(|error| error.to_string())
        }),
    }
}

/// Gives `then` a change of a store as the log has it: what [`Replica::append`] takes.
pub fn with_fields<T>(change: &Record<'_>, then: impl FnOnce(&Fields<'_>) -> T) -> T {
    log::with_fields(change, then)
}
