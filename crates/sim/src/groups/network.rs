//! Connections between the nodes of a world, as reliable queue pairs are: what arrives is a prefix
//! of what was sent, but for packets of WRITEs, which may overtake others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use remora_store::replica::{Mark, Message, NodeId, Snapshot};

use super::kept::Table;

/// The most bytes of a WRITE or of a READ's answer that arrive at once.
pub(crate) const PACKET: u64 = 64;

/// What travels.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    Message(Message),
    /// Bytes of the sender's region; where it is read as late as it can be, none are here yet.
    Write {
        at: u64,
        len: u64,
        bytes: Option<Vec<u8>>,
        /// Whether it ends its WRITE: then it comes in its turn.
        is_last: bool,
        /// The receiver is to look at once.
        wakes: bool,
    },
    /// The receiver's card acknowledges what came before: its ring has the log up to there.
    Acknowledge(Mark),
    Read(Vec<(u64, u64)>),
    /// A part of what was to be read; whether it is the last.
    Answer {
        at: u64,
        len: u64,
        is_last: bool,
    },
    /// A copy of the sender's store, of which so many pieces are yet to come. Only a whole one is
    /// taken.
    Store {
        store: Box<(Snapshot, Table)>,
        pieces: u64,
    },
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) packets: VecDeque<Packet>,
    pub(crate) is_moving: bool,
    /// Since when nothing has come through, or no acknowledgement back.
    pub(crate) stuck_since_ns: Option<u64>,
}

/// A connection, which belongs to an epoch.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) epoch: u32,
    pub(crate) ends: [NodeId; 2],
    pub(crate) lanes: [Lane; 2],
}

impl Lane {
    /// Takes a packet of a WRITE that arrives before those in front of it, if there is one at this
    /// place.
    pub(crate) fn overtake(&mut self, place: usize) -> Option<Packet> {
        match self.packets.get(place)? {
            Packet::Write { is_last: false, .. } => self.packets.remove(place),
            _ => None,
        }
    }

    /// Takes what arrives next: nothing, where a copy has come by a piece.
    pub(crate) fn pop(&mut self) -> Option<Packet> {
        match self.packets.front_mut() {
            Some(Packet::Store { pieces, .. }) if *pieces > 0 => {
                *pieces -= 1;
                None
            }
            _ => self.packets.pop_front(),
        }
    }
}

impl Connection {
    pub(crate) fn other(&self, node: NodeId) -> NodeId {
        if self.ends[0] == node { self.ends[1] } else { self.ends[0] }
    }

    pub(crate) fn lane(&mut self, from: NodeId) -> &mut Lane {
        &mut self.lanes[usize::from(self.ends[1] == from)]
    }
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) connections: BTreeMap<u64, Connection>,
    made: u64,
    /// Who cannot send to whom.
    pub(crate) cut: BTreeSet<(NodeId, NodeId)>,
    /// Who does not reach the configuration service.
    pub(crate) no_service: BTreeSet<NodeId>,
}

impl Network {
    pub(crate) fn connect(&mut self, epoch: u32, ends: [NodeId; 2]) -> u64 {
        self.made += 1;
        let connection = Connection { epoch, ends, lanes: Default::default() };
        self.connections.insert(self.made, connection);
        self.made
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
        self.no_service.clear();
    }

    pub(crate) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(crate) fn is_cut_either_way(&self, one: NodeId, other: NodeId) -> bool {
        self.is_cut(one, other) || self.is_cut(other, one)
    }
}

/// A place of a region in parts of at most [`PACKET`] bytes.
pub(crate) fn parts(at: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len).step_by(PACKET as usize).map(move |from| (at + from, PACKET.min(len - from)))
}
