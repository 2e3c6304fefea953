//! A client of a group: what it has done, and what it waits for.

use remora_store::log::Position;
use remora_store::replica::{NodeId, RequestId};

pub(crate) struct Client {
    pub(super) index: usize,
    /// The number under which it asks: another one after it has given up.
    pub(super) number: u64,
    pub(super) sequence: u64,
    pub(super) target: NodeId,
    pub(super) attempt: u64,
    pub(super) tries: u64,
    /// Which operation of the history is under way.
    pub(super) current: Option<usize>,
    /// How many it has begun.
    pub(super) begun: u64,
}

impl Client {
    pub(crate) fn new(index: usize) -> Client {
        Client {
            index,
            number: index as u64,
            sequence: 0,
            target: NodeId(1),
            attempt: 0,
            tries: 0,
            current: None,
            begun: 0,
        }
    }

    pub(super) fn id(&self) -> RequestId {
        RequestId { client: self.number, sequence: self.sequence, since: Position::NONE }
    }
}
