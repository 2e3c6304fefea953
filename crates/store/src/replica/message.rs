//! What nodes tell each other, and what a replica wants done.

use serde::{Deserialize, Serialize};

use super::configuration::{Configuration, NodeId};
use super::history::{Mark, are_in_order};
use super::requests::Requests;
use super::service::Request;
use crate::log::Position;

/// What a node has, as it tells a new primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answer {
    /// Where the last record of each epoch ends.
    pub ends: Vec<Mark>,
    /// The first byte of the log that lies in its ring.
    pub first_offset: u64,
    /// Up to where its store has carried out the log.
    pub applied: Mark,
    /// Up to where it knows the log to be committed.
    pub committed: Position,
    /// Up to which offset its ring may be overwritten: the rest is not carried out yet, or not on
    /// the disk.
    pub free_until: u64,
}

impl Answer {
    /// The end of its last record.
    #[must_use]
    pub fn last(&self) -> Mark {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Whether a node with a ring of so many bytes can have this, in this epoch.
    pub(super) fn is_possible(&self, ring_bytes: u64, epoch: u32) -> bool {
        let last = self.last();
        are_in_order(&self.ends)
            && last.position.epoch() <= epoch
            && self.committed.epoch() <= epoch
            && self.applied <= last
            && self.applied.offset <= last.offset
            && self.free_until <= self.applied.offset
            && self.first_offset <= last.offset
            && last.offset - self.first_offset <= ring_bytes
    }
}

/// What nodes send each other besides the log, over the same ordered connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A primary to each node: this is the configuration; fence all that came before, and say what
    /// you have. The first message of every connection.
    Epoch(Configuration),
    /// The answer, once everybody else is fenced off.
    History {
        /// In which epoch.
        epoch: u32,
        /// What the node has.
        answer: Answer,
    },
    /// The answer of a node that has heard of a later epoch.
    Stale {
        /// That one.
        epoch: u32,
    },
    /// A primary to a backup: forget what you have after `from`; then the log comes.
    Sync {
        /// In which epoch.
        epoch: u32,
        /// The end of the last record that both have.
        from: Mark,
        /// Where the backup's answers go.
        slot: u8,
    },
    /// It is forgotten.
    Synced {
        /// In which epoch.
        epoch: u32,
        /// The node has no disk: what lies in its ring, it holds. Others say what they hold.
        in_memory: bool,
    },
    /// A new primary to the node with the highest history: send me your store, for the log alone
    /// does not lead there from what I have.
    Fetch {
        /// In which epoch.
        epoch: u32,
    },
}

/// What belongs to a copy of the store that is sent to another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Snapshot {
    /// In which epoch it is sent.
    pub epoch: u32,
    /// Where the last record of each epoch ends, up to the last one that the copy has.
    pub ends: Vec<Mark>,
    /// Up to where the log is known to be committed.
    pub committed: Position,
    /// What clients have asked for up to there.
    pub requests: Requests,
    /// Who had a vote in the epoch in which `ends` end; nobody, where that is not known.
    pub members: Vec<NodeId>,
}

/// What a replica wants done, in this order.
///
/// Connections are reliable and ordered, as a reliable queue pair is: what arrives is a prefix of
/// what was sent; but parts of WRITEs may lie in memory before what was sent ahead of them, and so
/// without it if the connection ends (as in the lossy dialect of cards). A node has at most one
/// with each other node. A new one ends the one before on both sides before anything comes over it,
/// and belongs to the epoch in which its primary asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Ask the configuration service. Before [`Request::Resign`] the node's lease ends.
    Request(Request),
    /// Let nobody write here, or read, over a connection of an earlier epoch than this one. Once
    /// that is certain, [`super::Replica::handle_fenced`] is due.
    Fence {
        /// The epoch.
        epoch: u32,
    },
    /// Connect to a node, in the current epoch, and go on trying.
    Connect {
        /// The node.
        to: NodeId,
    },
    /// End the connection with a node: nothing more is read or sent of the memory here. The
    /// replica takes it as disconnected already.
    Disconnect {
        /// The node.
        from: NodeId,
    },
    /// Send a message.
    Send {
        /// To whom.
        to: NodeId,
        /// Which.
        message: Message,
    },
    /// Write bytes of the own region to the same place of another node's.
    Write {
        /// Whose.
        to: NodeId,
        /// Where in both regions, in bytes.
        at: u64,
        /// How many bytes.
        len: u64,
        /// Up to where the node's ring has the log once all that was written so far has come: if
        /// this is said, [`super::Replica::handle_written`] is due when its card has acknowledged
        /// that.
        until: Option<Mark>,
        /// Whether the node is to look at once. If not, it looks soon, as time passes.
        wakes: bool,
    },
    /// Read bytes of another node's region to the same places of the own, all pieces. Then
    /// [`super::Replica::handle_read`] is due.
    Read {
        /// Whose.
        from: NodeId,
        /// Where in both regions, and how many bytes.
        pieces: Vec<(u64, u64)>,
    },
    /// Send a copy of the store with [`super::Replica::snapshot`], both as of one moment.
    Snapshot {
        /// To whom.
        to: NodeId,
    },
    /// Records after this mark are no more: those on the disk are to be cut off, too.
    Truncated {
        /// The end of the last record that stays.
        to: Mark,
    },
}
