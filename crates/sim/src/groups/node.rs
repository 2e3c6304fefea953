//! A node of a world: a replica, its memory, its store, and the clients that wait for it.

use std::collections::{BTreeMap, BTreeSet};

use remora_store::log::{Fields, Operation, Position};
use remora_store::memory::{Heap, Memory};
use remora_store::replica::{
    AppendError, Fate, Mark, NoRequest, NodeId, Options, Output, Replica, RequestId, Snapshot,
    region_bytes,
};

use super::clock::Clock;
use super::disk::{Copy, Disk};
use super::kept::{Kept, Table, number};
use crate::check::linearizable::Kind;

/// The key of changes that no client waits for.
const UNASKED: u8 = 255;
/// Keys that transactions give the same value.
const PAIR: [u8; 2] = [253, 254];

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) client: usize,
    /// Which operation of the history it is, and which of the client's attempts.
    pub(crate) operation: usize,
    pub(crate) attempt: u64,
    pub(crate) id: RequestId,
    pub(crate) key: u8,
    pub(crate) kind: Kind,
}

/// What it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Done(u64),
    /// Ask another node: this one, if it is known.
    Elsewhere(Option<NodeId>),
}

/// An answer that waits until the log is committed up to a position.
struct Pending {
    ask: Ask,
    position: Position,
    answer: u64,
}

/// A read that was made, and whose lease is yet to be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    ask: Ask,
    epoch: u32,
    position: Position,
    value: u64,
}

pub(crate) struct Node {
    pub(crate) replica: Replica,
    pub(crate) region: Heap,
    pub(crate) kept: Kept,
    pub(crate) disk: Option<Disk>,
    pub(crate) disk_hangs_until_ns: u64,
    pub(crate) clock: Clock,
    pub(crate) is_up: bool,
    /// Counts its processes: nothing that was meant for an earlier one reaches a later one.
    pub(crate) life: u64,
    pub(crate) paused_until_ns: u64,
    /// The connection with each other node.
    pub(crate) links: BTreeMap<NodeId, u64>,
    pub(crate) dialing: BTreeSet<NodeId>,
    pub(crate) will_look: bool,
    /// When what the service has said so far has come.
    pub(crate) heard_until_ns: u64,
    /// When what others have sent so far is taken.
    pub(crate) inbox_until_ns: u64,
    /// The value of its transaction that is under way.
    half: Option<u64>,
    /// Copies that are to be sent, and over which connections.
    pub(crate) copies: Vec<(NodeId, u64)>,
    pending: Vec<Pending>,
    options: Options,
}

impl Node {
    pub(crate) fn new(name: NodeId, options: Options, clock: Clock) -> Node {
        let replica = Replica::new(name, options);
        let disk = options.waits_for_disk.then(|| Disk::new(&replica));
        Node {
            replica,
            region: Heap::new(region_bytes(options.ring_bytes)),
            kept: Kept::new(&Table::new()),
            disk,
            disk_hangs_until_ns: 0,
            clock,
            is_up: true,
            life: 0,
            paused_until_ns: 0,
            links: BTreeMap::new(),
            dialing: BTreeSet::new(),
            will_look: false,
            heard_until_ns: 0,
            inbox_until_ns: 0,
            half: None,
            copies: vec![],
            pending: vec![],
            options,
        }
    }

    /// The process is gone, and its memory.
    pub(crate) fn crash(&mut self, torn: usize) {
        self.is_up = false;
        self.life += 1;
        self.links.clear();
        self.dialing.clear();
        self.pending.clear();
        (self.half, self.will_look) = (None, false);
        self.copies.clear();
        if let Some(disk) = &mut self.disk {
            disk.crash(torn);
        }
    }

    /// A process begins with what the disk has.
    pub(crate) fn restart(&mut self) {
        let Some(disk) = &self.disk else { return };
        let (region, (base, records)) =
            (Heap::new(region_bytes(self.options.ring_bytes)), disk.recover());
        let me = self.replica.me();
        let mut replica = Replica::recovered(me, self.options, &base.snapshot, &region);
        let kept = Kept::new(&base.table);
        for bytes in records {
            let (position, fields, _) = Fields::decode(bytes, self.options.salt).unwrap();
            let carry_out = &mut |position, fields: &Fields<'_>| {
                kept.apply(position, fields);
                Ok(())
            };
            replica.read_back(&region, position, &fields, carry_out).unwrap();
        }
        (self.replica, self.region, self.kept, self.is_up) = (replica, region, kept, true);
        assert_eq!(self.replica.last().offset, disk.written().offset, "the disk has kept it");
    }

    /// What there is to do: the next output, once the store has carried out what it may.
    pub(crate) fn poll(&mut self) -> Option<Output> {
        while let Some((position, fields)) = self.replica.poll_apply(&self.region) {
            self.kept.apply(position, &fields);
            let goes_on = fields.goes_on;
            assert!(position <= self.replica.committed(), "only what is committed is carried out");
            if !goes_on {
                self.checkpoint();
            }
        }
        self.replica.poll_output()
    }

    /// (A store that has a part of a transaction is none to begin with.)
    fn checkpoint(&mut self) {
        let at = self.replica.applied();
        if self.replica.is_amid_transaction() {
            return;
        }
        let Some(disk) = &mut self.disk else { return };
        let (snapshot, table) = (self.replica.snapshot(), self.kept.table());
        disk.checkpoint(Copy { at, snapshot, table });
    }

    /// Another node's store comes in the place of this one.
    pub(crate) fn replace(&mut self, from: NodeId, snapshot: &Snapshot, table: &Table) {
        if !self.replica.handle_snapshot(&self.region, from, snapshot) {
            return;
        }
        self.kept = Kept::new(table);
        let at = self.replica.applied();
        if let Some(disk) = &mut self.disk {
            disk.replace(Copy { at, snapshot: snapshot.clone(), table: table.clone() });
        }
    }

    /// Writes to the disk what is not there; up to where, if anything was written.
    pub(crate) fn write_disk(&mut self) -> Option<Mark> {
        let disk = self.disk.as_mut()?;
        let before = disk.written();
        while let Some((mark, record)) = self.replica.record_after(&self.region, disk.written()) {
            disk.write(mark, record);
        }
        Some(disk.written()).filter(|written| *written != before)
    }

    /// A client asks. A read is answered later: see [`Node::finish_read`].
    pub(crate) fn ask(&mut self, ask: Ask, now_ns: u64) -> Result<Option<Looked>, Reply> {
        if !self.replica.is_serving() {
            return Err(Reply::Elsewhere(self.replica.primary()));
        }
        let value = self.kept.number(ask.key);
        let answer = match ask.kind {
            Kind::Get => {
                let (epoch, position) = (self.replica.epoch(), self.replica.last().position);
                return Ok(Some(Looked { ask, epoch, position, value }));
            }
            Kind::Put(value) => value,
            Kind::Add(more) => value + more,
        };
        self.change(ask, answer, now_ns);
        Ok(None)
    }

    fn change(&mut self, ask: Ask, answer: u64, now_ns: u64) {
        let bytes = answer.to_le_bytes();
        let fields = Fields { key: &[ask.key], value: &bytes, ..Fields::of(Operation::Put) };
        match self.replica.find_request(ask.id) {
            Ok(Some((position, kept))) => {
                let answer = number(kept);
                self.pending.push(Pending { ask, position, answer });
            }
            Ok(None) => match self.replica.append_request(&self.region, ask.id, &bytes, &fields) {
                Ok(position) => {
                    self.kept.apply(position, &fields);
                    self.checkpoint();
                    self.pending.push(Pending { ask, position, answer });
                }
                Err(AppendError::NoMajority | AppendError::Transaction { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            // An attempt that was overtaken.
            Err(NoRequest::Old(_)) => {}
            Err(error) => {
                let now_ns = self.clock.at(now_ns);
                let holds = self.replica.holds_lease(self.replica.epoch(), now_ns);
                assert!(!holds, "only one that was replaced does not know a client: {error}");
            }
        }
    }

    /// A change that nobody waits for. Where there is no room for it, it is not made.
    pub(crate) fn change_unasked(&mut self, value: &[u8]) {
        self.put(UNASKED, value);
    }

    fn put(&mut self, key: u8, value: &[u8]) -> bool {
        let fields = Fields { key: &[key], value, ..Fields::of(Operation::Put) };
        match self.replica.append(&self.region, &fields) {
            Ok(position) => {
                self.kept.apply(position, &fields);
                self.checkpoint();
                true
            }
            Err(AppendError::NoMajority | AppendError::Transaction { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins a transaction; whether there is room for it, and none is under way.
    pub(crate) fn begin_pair(&mut self, value: u64) -> bool {
        if self.half.is_some() {
            return false;
        }
        self.replica.begin_together();
        if !self.put(PAIR[0], &value.to_le_bytes()) {
            self.replica.end_together(&self.region);
            return false;
        }
        assert!(self.put(PAIR[1], &value.to_le_bytes()), "one that has begun has room");
        self.half = Some(value);
        true
    }

    /// Ends the transaction that is under way; its value.
    pub(crate) fn end_pair(&mut self) -> Option<u64> {
        let value = self.half.take()?;
        self.replica.end_together(&self.region);
        self.checkpoint();
        Some(value)
    }

    /// The store has whole transactions, and no part of one that has no end.
    pub(crate) fn check_pair(&self, halves: &BTreeSet<u64>) {
        let [one, other] = PAIR.map(|key| self.kept.number(key));
        assert_eq!(one, other, "a transaction is carried out as a whole");
        let is_whole = self.half == Some(one) || !halves.contains(&one);
        assert!(is_whole, "a transaction without an end is nowhere but at its primary");
    }

    /// The lease is looked at after the store: if it holds, the answer waits for the log only.
    pub(crate) fn finish_read(&mut self, looked: Looked, now_ns: u64, honours_lease: bool) {
        let holds = self.replica.holds_lease(looked.epoch, self.clock.at(now_ns));
        if holds || !honours_lease {
            let Looked { ask, position, value: answer, .. } = looked;
            self.pending.push(Pending { ask, position, answer });
        }
    }

    /// Answers that wait no more.
    pub(crate) fn answers(&mut self) -> Vec<(Ask, Reply)> {
        let mut answers = vec![];
        self.pending.retain(|pending| match self.replica.fate(pending.position) {
            Fate::Pending => true,
            Fate::Committed => {
                answers.push((pending.ask, Reply::Done(pending.answer)));
                false
            }
            Fate::Unknown => false,
        });
        answers
    }

    pub(crate) fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.region.read(at, &mut bytes);
        bytes
    }
}
