//! What a node is in its group, and what it remembers as that.

use std::collections::{BTreeMap, VecDeque};

use super::configuration::{Configuration, NodeId};
use super::history::Mark;
use super::message::Answer;
use super::region::SLOTS;
use super::service::Entry;
use crate::log::Position;

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Idle,
    /// Whether the primary has asked for the history.
    Fencing(bool),
    Backup(Backup),
    Primary(Primary),
}

/// What a backup remembers of its primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Backup {
    /// Where its answers go, once the primary writes the log here.
    pub(super) slot: Option<u8>,
    /// What it has answered.
    pub(super) told: (Mark, u64),
}

impl Backup {
    pub(super) fn is_live(&self) -> bool {
        self.slot.is_some()
    }

    /// The connection is gone.
    pub(super) fn lose(&mut self) {
        *self = Backup::default();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It waits for the histories of a quorum.
    Gathering,
    /// It waits for a copy of this node's store.
    Fetching(NodeId),
    /// It waits for the records up to a mark, out of this node's ring.
    Reading(NodeId, Mark),
    /// It waits until a majority holds the epoch's first record.
    Replicating,
    /// It waits until the service knows that the epoch's members hold everything.
    Establishing,
    /// It orders changes.
    Serving,
}

/// How far a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Progress {
    /// Not connected.
    Away,
    /// It was asked for its history.
    Asked,
    /// It has answered, and waits.
    Answered,
    /// It is sent a copy of the store, and will answer again.
    Copying,
    /// It was told to forget what comes after this mark.
    Syncing(Mark),
    /// It is written to; up to this offset.
    Live(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) slot: u8,
    /// It has no vote: it is brought up before it gets one.
    pub(super) is_learner: bool,
    pub(super) progress: Progress,
    pub(super) answer: Option<Answer>,
    /// What it holds, as a position and an offset; up to which offset it may be overwritten.
    pub(super) held: Position,
    pub(super) held_offset: u64,
    pub(super) free_until: u64,
    /// What it was told to be committed.
    pub(super) told: Position,
    /// It holds what lies in its ring.
    pub(super) in_memory: bool,
    /// Up to which offset it was written to when it was last woken.
    pub(super) woken: u64,
}

impl Peer {
    pub(super) fn new(slot: u8, is_learner: bool) -> Peer {
        Peer {
            slot,
            is_learner,
            progress: Progress::Away,
            answer: None,
            held: Position::NONE,
            held_offset: 0,
            free_until: 0,
            told: Position::NONE,
            in_memory: false,
            woken: 0,
        }
    }

    /// It is written to, from a mark on.
    pub(super) fn begin(&mut self, mark: Mark, in_memory: bool) {
        self.progress = Progress::Live(mark.offset);
        (self.held_offset, self.woken) = (mark.offset, mark.offset);
        self.told = Position::NONE;
        self.in_memory = in_memory;
    }

    /// It holds the log up to a mark at least.
    pub(super) fn hold(&mut self, mark: Mark) {
        self.held = self.held.max(mark.position);
        self.held_offset = self.held_offset.max(mark.offset);
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.progress, Progress::Live(_))
    }
}

/// A transaction that the primary has begun in its epoch, and that is not committed yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Span {
    /// The end of the record before its first one.
    pub(super) before: Mark,
    /// It may go on up to this offset.
    pub(super) until: u64,
    /// Its last record, once that is there.
    pub(super) done: Option<Position>,
}

/// What a primary has heard of later epochs amid a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Postponed {
    /// From the service, and when.
    pub(super) entry: Option<(Entry, u64)>,
    /// From another primary.
    pub(super) hello: Option<(NodeId, Configuration)>,
}

/// What a primary knows of its epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Primary {
    pub(super) stage: Stage,
    /// The epoch's first record.
    pub(super) opened: Position,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    /// Since when it has been without a majority.
    pub(super) alone_since_ns: Option<u64>,
    /// Other members, which it has proposed.
    pub(super) proposed: Option<Configuration>,
    /// When it asks the service again for what it has not answered.
    pub(super) ask_again_ns: Option<u64>,
    /// Its transactions that are not committed yet, in their order. The last one may go on.
    pub(super) spans: VecDeque<Span>,
}

impl Primary {
    /// A peer is connected; whether it is to be greeted.
    pub(super) fn greet(&mut self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get_mut(&node) else { return false };
        peer.progress = Progress::Asked;
        peer.answer = None;
        true
    }

    /// A peer is not connected any more; whether it is one that is needed. What was to come from
    /// it is to be looked for again.
    pub(super) fn lose(&mut self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get_mut(&node) else { return false };
        peer.progress = Progress::Away;
        peer.answer = None;
        if matches!(self.stage, Stage::Fetching(from) | Stage::Reading(from, _) if from == node) {
            self.stage = Stage::Gathering;
        }
        true
    }

    pub(super) fn is_fetching(&self, from: NodeId) -> bool {
        self.stage == Stage::Fetching(from)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Replicating | Stage::Establishing | Stage::Serving)
    }

    pub(super) fn free_slot(&self) -> Option<u8> {
        (0..SLOTS).find(|slot| self.peers.values().all(|peer| peer.slot != *slot))
    }

    /// The transaction that goes on.
    pub(super) fn open_span(&mut self) -> Option<&mut Span> {
        self.spans.back_mut().filter(|span| span.done.is_none())
    }

    /// The last position up to this one that is not amid a transaction.
    pub(super) fn whole_until(&self, held: Position) -> Position {
        let begun = self.spans.partition_point(|span| span.before.position < held);
        let last = begun.checked_sub(1).map(|index| &self.spans[index]);
        let amid = last.filter(|span| span.done.is_none_or(|done| held < done));
        amid.map_or(held, |span| span.before.position)
    }

    /// All up to a position is committed.
    pub(super) fn forget_spans(&mut self, committed: Position) {
        while self.spans.front().and_then(|span| span.done).is_some_and(|done| done <= committed) {
            self.spans.pop_front();
        }
    }
}
