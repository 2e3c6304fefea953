//! The number of a client's request, by which a retry is known.

use core::cell::RefCell;

use serde::{Deserialize, Serialize};

use crate::log::Position;

/// Which request of which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// The client: a random number.
    pub client: u64,
    /// How many requests it has made, this one included.
    pub sequence: u64,
    /// Up to where the log was committed when the client began, as a node of the group told it. So
    /// a client that nobody knows is known to be new, if only older ones were forgotten.
    pub since: Position,
}

/// A request that takes effect once, however often it is made.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Which one.
    pub id: RequestId,
    /// What the client is answered beside the change's version, once the change is decided on.
    pub answer: &'a RefCell<Vec<u8>>,
}
