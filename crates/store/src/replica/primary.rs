//! The primary's part: it gathers what its predecessors left, brings the others up, and orders
//! changes.

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

use super::backup::{forget_answers, heard};
use super::configuration::{Configuration, NoConfiguration, NodeId, value_of};
use super::history::Mark;
use super::member::Replica;
use super::message::{Message, Output};
use super::region::{COMMITTED_AT, SLOTS, pieces};
use super::requests::{ANSWER_MAX, NoRequest, record};
use super::role::{Peer, Primary, Progress, Role, Stage};
use super::service::Request;
use crate::log::{Fields, Operation, Position};
use crate::memory::Memory;
use crate::request::RequestId;

/// Why a change is not logged. It has not happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// Another node may be serving, or will be.
    #[error("this node is not the group's primary: ask {}", match .0 {
        Some(node) => node.to_string(),
        None => "again later".to_owned(),
    })]
    NotPrimary(Option<NodeId>),
    /// Too few backups hold what was logged before, or none of them is there.
    #[error("no majority of the group takes changes at the moment: try again")]
    NoMajority,
    /// The change is too long.
    #[error(
        "a change of {bytes} bytes is too long: this group takes at most {most}, a quarter of its \
         ring; send it in parts, or give the group a larger ring"
    )]
    TooLong {
        /// The bytes of its records.
        bytes: u64,
        /// As many as the group takes.
        most: u64,
    },
    /// The transaction is too long. What it has changed before stays.
    #[error(
        "a transaction changes at most {most} bytes here, a quarter of the group's ring: make it \
         shorter, or give the group a larger ring"
    )]
    Transaction {
        /// As many as the group takes.
        most: u64,
    },
    /// There are no more positions.
    #[error("the log has come to its end: there are no more positions")]
    Exhausted,
    /// The request is not to be carried out.
    #[error(transparent)]
    Request(#[from] NoRequest),
}

impl Replica {
    /// Begins as the primary of a new epoch: asks everybody who may hold what was acknowledged.
    pub(super) fn begin_recovery<M: Memory>(&mut self, memory: &M) {
        let Some(configuration) = &self.configuration else { return };
        (0..SLOTS).for_each(|slot| forget_answers(memory, slot));
        self.joining.retain(|node| !configuration.members.contains(node));
        let voters = configuration.voters().filter(|node| *node != self.me);
        let learners =
            self.joining.iter().filter(|node| !configuration.voters().any(|v| v == **node));
        let others = voters.map(|node| (node, false)).chain(learners.map(|node| (*node, true)));
        let peers: BTreeMap<_, _> = others
            .zip(0..SLOTS)
            .map(|((node, is_learner), slot)| (node, Peer::new(slot, is_learner)))
            .collect();
        self.outputs.extend(peers.keys().map(|node| Output::Connect { to: *node }));
        self.role = Role::Primary(Primary {
            stage: Stage::Gathering,
            opened: Position::NONE,
            peers,
            alone_since_ns: None,
            proposed: None,
            ask_again_ns: None,
            spans: VecDeque::new(),
        });
        self.gather(memory);
    }

    /// Another node has answered.
    pub(super) fn handle_answer<M: Memory>(&mut self, memory: &M, from: NodeId, message: Message) {
        let first_offset = self.first_offset();
        let Role::Primary(primary) = &mut self.role else {
            self.aside.counters.refused += 1;
            return;
        };
        let Some(peer) = primary.peers.get_mut(&from) else {
            self.aside.counters.refused += 1;
            return;
        };
        match (message, peer.progress) {
            (Message::History { answer, .. }, Progress::Asked | Progress::Copying)
                if answer.is_possible(self.options.ring_bytes, self.epoch) =>
            {
                peer.answer = Some(answer);
                peer.progress = Progress::Answered;
                if primary.is_open() {
                    self.sync(memory, from);
                } else if primary.stage == Stage::Gathering {
                    self.gather(memory);
                }
            }
            // Changes went on meanwhile, and what it lacks is not in the ring any more.
            (Message::Synced { .. }, Progress::Syncing(mark)) if mark.offset < first_offset => {
                peer.progress = Progress::Away;
                self.aside.counters.overrun += 1;
                self.outputs.push_back(Output::Disconnect { from });
                self.outputs.push_back(Output::Connect { to: from });
            }
            (Message::Synced { in_memory, .. }, Progress::Syncing(mark)) => {
                peer.begin(mark, in_memory);
                self.hear_backups(memory);
            }
            _ => self.aside.counters.refused += 1,
        }
    }

    /// Takes over the highest history once a quorum has answered.
    pub(super) fn gather<M: Memory>(&mut self, memory: &M) {
        let free_until = self.free_until();
        let (Role::Primary(primary), Some(configuration)) = (&mut self.role, &self.configuration)
        else {
            return;
        };
        if primary.stage != Stage::Gathering {
            return;
        }
        let peers = &primary.peers;
        let has = |node| peers.get(&node).is_some_and(|peer| peer.answer.is_some());
        if !configuration.is_quorum(|node| node == self.me || has(node)) {
            return;
        }
        let answers = peers.iter().filter(|(_, peer)| !peer.is_learner);
        let answers = answers.filter_map(|(node, peer)| Some((*node, peer.answer.as_ref()?)));
        let best = answers.max_by_key(|(_, answer)| answer.last());
        let Some((from, best)) = best.filter(|(_, best)| best.last() > self.history.last()) else {
            return self.open(memory);
        };
        let (common, last) = (self.history.common(&best.ends), best.last());
        // What is read must not come over what is not carried out yet.
        let ring = self.options.ring_bytes;
        let is_apart = common.position < self.applied.position
            || common.offset < best.first_offset
            || free_until.saturating_add(ring) < last.offset;
        if is_apart {
            primary.stage = Stage::Fetching(from);
            self.aside.counters.snapshots += 1;
            let message = Message::Fetch { epoch: self.epoch };
            return self.outputs.push_back(Output::Send { to: from, message });
        }
        primary.stage = Stage::Reading(from, last);
        let Some(len) = last.offset.checked_sub(common.offset) else {
            return self.distrust(memory, from);
        };
        let pieces = pieces(ring, common.offset, len).collect();
        self.truncate(memory, common);
        self.history.expect(last.offset);
        self.outputs.push_back(Output::Read { from, pieces });
    }

    /// A copy of the store has come: looks again what is missing.
    pub(super) fn go_on<M: Memory>(&mut self, memory: &M) {
        self.set_stage(Stage::Gathering);
        self.gather(memory);
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Role::Primary(primary) = &mut self.role {
            primary.stage = stage;
        }
    }

    /// What was to be read of another node's region lies in the own one.
    pub fn handle_read<M: Memory>(&mut self, memory: &M, from: NodeId) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Stage::Reading(node, last) = primary.stage else { return };
        if node != from {
            return;
        }
        self.history.scan(memory, self.epoch, last.offset, &mut self.aside.scratch);
        if self.history.last() == last {
            return self.open(memory);
        }
        self.distrust(memory, from);
    }

    /// A node does not have what it has said: it is to say it again, over another connection.
    fn distrust<M: Memory>(&mut self, memory: &M, node: NodeId) {
        let Role::Primary(primary) = &mut self.role else { return };
        self.aside.counters.refused += 1;
        primary.lose(node);
        self.outputs.push_back(Output::Disconnect { from: node });
        self.outputs.push_back(Output::Connect { to: node });
        self.gather(memory);
    }

    /// Everything that was acknowledged is here: begins the epoch's own part of the log. A
    /// transaction without an end goes: nobody can go on with it, and nobody was told of it.
    fn open<M: Memory>(&mut self, memory: &M) {
        self.learn_committed(memory);
        let unfinished = self.history.unfinished().filter(|before| *before >= self.applied);
        let last = unfinished.unwrap_or(self.history.last());
        let Some(position) = last.position.next(self.epoch) else { return };
        let latest = self.configuration.as_ref();
        let members = latest.map(|latest| value_of(&latest.members)).unwrap_or_default();
        let fields = Fields { value: &members, ..Fields::of(Operation::Epoch) };
        let end = last.offset + fields.length() as u64;
        if end > self.free_until().min(last.offset) + self.options.ring_bytes {
            // What is committed is not carried out yet, or the disk is behind; or, since a primary
            // leaves a quarter of the ring for such records, that many epochs have come to nothing.
            // What lies in the ring stays as it is: the disk would begin anew with each cut.
            return self.set_stage(Stage::Gathering);
        }
        if unfinished.is_some() {
            self.truncate(memory, last);
        }
        let sum = self.history.sum(&fields);
        self.history.append(memory, position, (&fields, sum), &mut self.aside.scratch);
        let Role::Primary(primary) = &mut self.role else { return };
        (primary.opened, primary.stage) = (position, Stage::Replicating);
        let answered = primary.peers.iter().filter(|(_, peer)| peer.answer.is_some());
        let answered: Vec<_> = answered.map(|(node, _)| *node).collect();
        answered.into_iter().for_each(|node| self.sync(memory, node));
        self.advance(memory);
    }

    /// What others know to be committed is so here, too, now that all of it is here: it is carried
    /// out, for room, before the epoch's first record is committed.
    fn learn_committed<M: Memory>(&mut self, memory: &M) {
        let Role::Primary(primary) = &self.role else { return };
        let answers = primary.peers.values().filter_map(|peer| peer.answer.as_ref());
        let known = answers.map(|answer| answer.committed).max().unwrap_or_default();
        self.committed = self.committed.max(known);
        memory.store(COMMITTED_AT, self.committed.number());
    }

    /// Leads a peer that has answered to the own history.
    fn sync<M: Memory>(&mut self, memory: &M, to: NodeId) {
        let first_offset = self.first_offset();
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(&to) else { return };
        let Some(answer) = peer.answer.take() else { return };
        let common = self.history.common(&answer.ends);
        if common.position < answer.applied.position || common.offset < first_offset {
            peer.progress = Progress::Copying;
            self.aside.counters.snapshots += 1;
            return self.outputs.push_back(Output::Snapshot { to });
        }
        peer.progress = Progress::Syncing(common);
        peer.free_until = answer.free_until;
        // What lies there is of an earlier connection, and nothing of this one's has come yet.
        forget_answers(memory, peer.slot);
        let message = Message::Sync { epoch: self.epoch, from: common, slot: peer.slot };
        self.outputs.push_back(Output::Send { to, message });
    }

    /// Whether changes can be logged, and whether the store shows all that was acknowledged, as
    /// long as the node's lease holds. What is read in it may be answered once the log as it ended
    /// then is committed ([`Replica::fate`]), if the lease held after the store was looked at.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        matches!(&self.role, Role::Primary(primary)
            if primary.stage == Stage::Serving && self.applied.position >= primary.opened)
    }

    /// Logs a change, which the store carries out when this returns. It may be
    /// acknowledged once [`Replica::fate`] says that the position that comes back is committed.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append<M: Memory>(
        &mut self,
        memory: &M,
        fields: &Fields<'_>,
    ) -> Result<Position, AppendError> {
        self.append_summed(memory, fields, self.history.sum(fields))
    }

    /// As [`Replica::append`], where the checksum of the contents, begun at the group's salt
    /// ([`Fields::checksum_contents`]), is there already.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append_summed<M: Memory>(
        &mut self,
        memory: &M,
        fields: &Fields<'_>,
        sum: u64,
    ) -> Result<Position, AppendError> {
        let position = self.add(memory, &[(fields, sum)])?;
        self.advance(memory);
        Ok(position)
    }

    /// Logs a change that a client may ask for again, with what it will be answered then.
    ///
    /// # Errors
    /// See [`AppendError`]. A request that was carried out before is none:
    /// [`Replica::find_request`] comes first.
    pub fn append_request<M: Memory>(
        &mut self,
        memory: &M,
        id: RequestId,
        answer: &[u8],
        fields: &Fields<'_>,
    ) -> Result<Position, AppendError> {
        if answer.len() > ANSWER_MAX {
            return Err(NoRequest::Answer(answer.len()).into());
        }
        if self.find_request(id)?.is_some() {
            return Err(NoRequest::Old(id.sequence).into());
        }
        let mut key = [0; 16];
        let asker = record(id, answer, &mut key);
        let sums = (self.history.sum(&asker), self.history.sum(fields));
        let position = self.add(memory, &[(&asker, sums.0), (fields, sums.1)])?;
        self.advance(memory);
        Ok(position)
    }

    /// Appends records one after the other, all or none.
    fn add<M: Memory>(
        &mut self,
        memory: &M,
        records: &[(&Fields<'_>, u64)],
    ) -> Result<Position, AppendError> {
        if !self.is_serving() {
            let primary = self.primary().filter(|node| *node != self.me);
            return Err(AppendError::NotPrimary(primary));
        }
        let len = records.iter().map(|(fields, _)| fields.length() as u64).sum();
        if len > self.history.window() || !records.iter().all(|(fields, _)| fields.fits()) {
            return Err(AppendError::TooLong { bytes: len, most: self.history.window() });
        }
        let goes_on = self.is_of_transaction() || self.is_amid_transaction();
        let positions = records.len() as u64 + u64::from(goes_on);
        if self.history.last().position.counter() + positions > Position::MAX_COUNTER {
            return Err(AppendError::Exhausted);
        }
        self.reserve(len)?;
        let mut position = self.history.last().position;
        for (fields, sum) in records {
            position = position.next(self.epoch).ok_or(AppendError::Exhausted)?;
            let (fields, scratch) = (Fields { goes_on, ..**fields }, &mut self.aside.scratch);
            self.applied = self.history.append(memory, position, (&fields, *sum), scratch);
            self.requests.note(position, &fields);
        }
        Ok(position)
    }

    /// Whether `len` bytes more overwrite nothing that a majority still needs: what comes more than
    /// three quarters of a ring before their end. The last quarter is left to the first records of
    /// later epochs. (What comes behind the beginning of a transaction is not carried out before
    /// all of it is committed.)
    pub(super) fn look_for_room(&mut self, len: u64) -> Result<(), AppendError> {
        let end = self.history.last().offset + len;
        let most = self.options.ring_bytes - self.history.window();
        let (Role::Primary(primary), Some(configuration)) = (&self.role, &self.configuration)
        else {
            return Err(AppendError::NotPrimary(None));
        };
        let keeps_up = |peer: &Peer| peer.is_live() && peer.held_offset + most >= end;
        let has = |node| node == self.me || primary.peers.get(&node).is_some_and(keeps_up);
        let on_disk = !self.options.waits_for_disk || self.kept.offset + most >= end;
        let begins = primary.spans.front().map_or(end, |span| span.before.offset);
        if !configuration.is_quorum(has) || !on_disk || begins + most < end {
            self.aside.counters.full += 1;
            return Err(AppendError::NoMajority);
        }
        Ok(())
    }

    /// `len` bytes more are logged: cuts off the backups that still need what they overwrite. A
    /// majority does not, as [`Replica::look_for_room`] has found.
    pub(super) fn leave_behind(&mut self, len: u64) {
        let end = self.history.last().offset + len;
        let most = self.options.ring_bytes - self.history.window();
        let Role::Primary(primary) = &mut self.role else { return };
        for (node, peer) in &mut primary.peers {
            if peer.is_live() && peer.held_offset + most < end {
                peer.progress = Progress::Away;
                self.aside.counters.overrun += 1;
                self.outputs.push_back(Output::Disconnect { from: *node });
                self.outputs.push_back(Output::Connect { to: *node });
            }
        }
    }

    /// The card of a backup has acknowledged all that was written to it up to `mark`, over the
    /// connection that there is. A backup without a disk holds that, though it may not have looked:
    /// it looks before it answers another primary.
    pub fn handle_written<M: Memory>(&mut self, memory: &M, to: NodeId, mark: Mark) {
        let Role::Primary(primary) = &mut self.role else { return };
        let peer = primary.peers.get_mut(&to);
        if let Some(peer) = peer.filter(|peer| peer.is_live() && peer.in_memory) {
            peer.hold(mark);
            self.advance(memory);
        }
    }

    /// Reads the backups' answers.
    pub(super) fn hear_backups<M: Memory>(&mut self, memory: &M) {
        let Role::Primary(primary) = &mut self.role else { return };
        let last = self.history.last();
        for peer in primary.peers.values_mut().filter(|peer| peer.is_live()) {
            let (held, offset, free_until) = heard(memory, peer.slot);
            // Nobody holds more than there is.
            if held <= last.position && offset <= last.offset && free_until <= last.offset {
                peer.hold(Mark { position: held, offset });
                peer.free_until = peer.free_until.max(free_until);
            } else {
                self.aside.counters.refused += 1;
            }
        }
        self.gather(memory);
        self.advance(memory);
    }

    /// Commits what a majority holds, writes to the backups what they lack, and goes on to the
    /// next stage.
    pub(super) fn advance<M: Memory>(&mut self, memory: &M) {
        let Role::Primary(primary) = &self.role else { return };
        if !primary.is_open() {
            return;
        }
        self.commit(memory);
        self.write_log();
        let (Role::Primary(primary), Some(configuration)) = (&mut self.role, &self.configuration)
        else {
            return;
        };
        if primary.stage == Stage::Replicating && self.committed >= primary.opened {
            primary.stage = Stage::Establishing;
            if !configuration.is_established() {
                let request = Request::Establish { epoch: self.epoch };
                self.outputs.push_back(Output::Request(request));
            }
        }
        if primary.stage == Stage::Establishing && configuration.is_established() {
            primary.stage = Stage::Serving;
            self.aside.counters.served += 1;
            self.let_go();
        }
        self.promote();
    }

    /// Ends the connections with those who have left: the epoch is established without them.
    fn let_go(&mut self) {
        let (Role::Primary(primary), Some(configuration)) = (&mut self.role, &self.configuration)
        else {
            return;
        };
        primary.peers.retain(|node, peer| {
            let stays = peer.is_learner || configuration.members.contains(node);
            if !stays {
                self.outputs.push_back(Output::Disconnect { from: *node });
            }
            stays
        });
    }

    /// The highest position that a majority holds and that is not amid a transaction is committed,
    /// with all before it, if it is of this epoch: one of an earlier epoch may yet be replaced by
    /// another primary.
    fn commit<M: Memory>(&mut self, memory: &M) {
        let held = self.held().position;
        let (Role::Primary(primary), Some(configuration)) = (&self.role, &self.configuration)
        else {
            return;
        };
        let holds = |node: NodeId| match primary.peers.get(&node) {
            _ if node == self.me => held,
            Some(peer) => peer.held,
            None => Position::NONE,
        };
        let candidates = configuration.members.iter().map(|node| holds(*node));
        let majority = |position: &Position| {
            let count = configuration.members.iter().filter(|node| holds(**node) >= *position);
            count.count() * 2 > configuration.members.len()
        };
        let best = candidates.filter(majority).max().unwrap_or_default();
        let best = primary.whole_until(best);
        if best > self.committed && best.epoch() == self.epoch {
            self.committed = best;
            memory.store(COMMITTED_AT, best.number());
            if let Role::Primary(primary) = &mut self.role {
                primary.forget_spans(best);
            }
        }
    }

    /// Writes to the backups what they lack: the log, then what is committed of it. A primary that
    /// serves leaves a quarter of their rings to the first records of later epochs, which come
    /// before what lies there can be committed. A backup that holds what its card has acknowledged
    /// need not wake up for it, but to make room in its ring.
    fn write_log(&mut self) {
        let (last, window) = (self.history.last(), self.history.window());
        let ring = self.options.ring_bytes;
        let Role::Primary(primary) = &mut self.role else { return };
        let most = if primary.stage == Stage::Serving { ring - window } else { ring };
        for (node, peer) in &mut primary.peers {
            let Progress::Live(mut sent) = peer.progress else { continue };
            let room = (peer.held_offset + window).min(peer.free_until + most);
            let until = last.offset.min(room).max(sent);
            // What a card acknowledges is known as a mark only where it is all that there is.
            let mark = (peer.in_memory && until == last.offset).then_some(last);
            let wakes = mark.is_none() || until >= peer.woken + window / 2;
            if wakes {
                peer.woken = until;
            }
            let mut write = |at, len, until| {
                self.outputs.push_back(Output::Write { to: *node, at, len, until, wakes });
            };
            for (at, len) in pieces(ring, sent, until - sent) {
                sent += len;
                write(at, len, mark.filter(|_| sent == until));
            }
            peer.progress = Progress::Live(until);
            if self.committed > peer.told {
                peer.told = self.committed;
                write(COMMITTED_AT, 8, None);
            }
        }
    }

    /// Without a majority for too long, somebody else may have one.
    pub(super) fn look_for_majority(&mut self, now_ns: u64) {
        let (Role::Primary(primary), Some(configuration)) = (&mut self.role, &self.configuration)
        else {
            return;
        };
        let peers = &primary.peers;
        let has = |node| peers.get(&node).is_some_and(|peer| peer.progress != Progress::Away);
        if configuration.is_quorum(|node| node == self.me || has(node)) {
            primary.alone_since_ns = None;
            return;
        }
        let since = *primary.alone_since_ns.get_or_insert(now_ns);
        if now_ns >= since + self.options.patience_ns {
            primary.alone_since_ns = None;
            self.quiet_until_ns = now_ns + 4 * self.options.patience_ns;
            self.aside.counters.resigned += 1;
            self.resign();
        }
    }

    /// The disk takes nothing at `now_ns`: this node is not to become the primary for now. If it is
    /// that, and others commit without it, it gives its lease up for one of them. While nobody
    /// commits, it stays: the others' disks are no better.
    pub fn handle_refusing_disk(&mut self, now_ns: u64) {
        self.quiet_until_ns = self.quiet_until_ns.max(now_ns + 4 * self.options.patience_ns);
        if self.committed > self.kept.position && !self.lease.has_ended(self.epoch) {
            self.resign();
        }
    }

    /// Gives the lease up, if this node is the primary: others may take over at once. It answers
    /// no more in this epoch.
    pub fn resign(&mut self) {
        if matches!(self.role, Role::Primary(_)) {
            self.lease.end(self.epoch);
            self.outputs.push_back(Output::Request(Request::Resign { epoch: self.epoch }));
        }
    }

    /// What a primary knows of the other nodes of its epoch: the bytes of the log that each holds,
    /// if it follows. Empty at others.
    pub fn peers(&self) -> impl Iterator<Item = (NodeId, Option<u64>)> {
        let peers = match &self.role {
            Role::Primary(primary) => Some(&primary.peers),
            Role::Idle | Role::Fencing(_) | Role::Backup(_) => None,
        };
        let held = |peer: &Peer| peer.is_live().then_some(peer.held_offset);
        peers.into_iter().flatten().map(move |(node, peer)| (*node, held(peer)))
    }

    /// How many other members hold the log up to a position, as far as this primary has heard; of
    /// no position, how many follow. At others, 0.
    #[must_use]
    pub fn holders(&self, position: Position) -> usize {
        let Role::Primary(primary) = &self.role else { return 0 };
        let holds = |peer: &&Peer| {
            let holds = peer.held >= position && position > Position::NONE;
            !peer.is_learner && (holds || position == Position::NONE && peer.is_live())
        };
        primary.peers.values().filter(holds).count()
    }

    /// Brings a node up to become a member; it becomes one as soon as it holds nearly everything.
    ///
    /// # Errors
    /// See [`AppendError::NotPrimary`] and [`NoConfiguration`]; a node that is coming already is
    /// no error.
    pub fn join(&mut self, node: NodeId) -> Result<(), ChangeError> {
        let is_serving = self.is_serving();
        let (Role::Primary(primary), Some(configuration), true) =
            (&mut self.role, &self.configuration, is_serving)
        else {
            return Err(ChangeError::NotPrimary);
        };
        configuration.with(node)?;
        if primary.peers.contains_key(&node) {
            return Ok(());
        }
        let full = NoConfiguration::Members(primary.peers.len() + 2);
        let slot = primary.free_slot().ok_or(full)?;
        primary.peers.insert(node, Peer::new(slot, true));
        self.joining.insert(node);
        self.outputs.push_back(Output::Connect { to: node });
        Ok(())
    }

    /// The nodes that this primary brings up, and whether each is connected. None at others.
    pub fn learners(&self) -> impl Iterator<Item = (NodeId, bool)> {
        let peers = match &self.role {
            Role::Primary(primary) => Some(&primary.peers),
            Role::Idle | Role::Fencing(_) | Role::Backup(_) => None,
        };
        let learners = peers.into_iter().flatten().filter(|(_, peer)| peer.is_learner);
        learners.map(|(node, peer)| (*node, peer.progress != Progress::Away))
    }

    /// Brings a node up no more, if it is one that has no vote.
    pub fn give_up(&mut self, node: NodeId) {
        let Role::Primary(primary) = &mut self.role else { return };
        if primary.peers.get(&node).is_some_and(|peer| peer.is_learner) {
            primary.peers.remove(&node);
            self.joining.remove(&node);
            self.outputs.push_back(Output::Disconnect { from: node });
        }
    }

    /// Takes a member's vote away.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn leave(&mut self, node: NodeId) -> Result<(), ChangeError> {
        let configuration = self.configuration.as_ref().filter(|_| self.is_serving());
        let next = configuration.ok_or(ChangeError::NotPrimary)?.without(node)?;
        self.propose(next);
        Ok(())
    }

    /// Proposes other members, until the service has taken or refused them.
    fn propose(&mut self, next: Configuration) {
        let Role::Primary(primary) = &mut self.role else { return };
        primary.proposed = Some(next.clone());
        self.outputs.push_back(Output::Request(Request::Propose { next, over: 0 }));
    }

    /// A learner that has caught up becomes a member.
    fn promote(&mut self) {
        let (committed, window) = (self.committed, self.history.window());
        let last = self.history.last();
        let is_serving = self.is_serving();
        let (Role::Primary(primary), Some(configuration), true) =
            (&mut self.role, &self.configuration, is_serving)
        else {
            return;
        };
        let is_close = |peer: &Peer| {
            peer.is_learner
                && peer.is_live()
                && peer.held_offset + window >= last.offset
                && peer.held.epoch() == committed.epoch()
        };
        let learner = primary.peers.iter().find(|(_, peer)| is_close(peer)).map(|(node, _)| *node);
        let Some(node) = learner.filter(|_| primary.proposed.is_none()) else { return };
        if let Ok(next) = configuration.with(node) {
            self.propose(next);
        }
    }

    /// A proposal was refused: another one came first, or the primary is there after all. The
    /// service says next how things are.
    pub(super) fn unpropose(&mut self) {
        self.is_free = false;
        if let Role::Primary(primary) = &mut self.role {
            primary.proposed = None;
        }
    }

    /// Asks the service again for what it has not answered within the patience: requests and their
    /// answers may be lost.
    pub(super) fn ask_again(&mut self, now_ns: u64) {
        let Role::Primary(primary) = &mut self.role else { return };
        let request = match (primary.stage, &primary.proposed) {
            (Stage::Establishing, _) => Request::Establish { epoch: self.epoch },
            (Stage::Serving, Some(next)) => Request::Propose { next: next.clone(), over: 0 },
            _ => {
                primary.ask_again_ns = None;
                return;
            }
        };
        let after = now_ns.saturating_add(self.options.patience_ns);
        if now_ns >= *primary.ask_again_ns.get_or_insert(after) {
            primary.ask_again_ns = Some(after);
            self.outputs.push_back(Output::Request(request));
        }
    }
}

/// Why the members stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// Only a primary that serves can change them.
    #[error("this node is not the group's primary, or does not serve yet: ask the primary")]
    NotPrimary,
    /// They cannot be as asked.
    #[error(transparent)]
    Configuration(#[from] NoConfiguration),
}
