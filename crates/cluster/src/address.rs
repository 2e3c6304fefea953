//! Where a node is reached.

use std::net::SocketAddr;

use remora_store::replica::NodeId;
use serde::{Deserialize, Serialize};

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Where the other nodes reach its card: an address, and a port of RDMA CM's TCP port space.
    pub card: SocketAddr,
    /// Where Redis' clients reach it, if they do.
    pub redis: Option<SocketAddr>,
    /// Where clients of the store reach its card, if they do.
    #[serde(default)]
    pub store: Option<SocketAddr>,
    /// Where memcached's clients reach it, if they do.
    #[serde(default)]
    pub memcached: Option<SocketAddr>,
    /// The most bytes that its store may take, if it says so.
    #[serde(default)]
    pub memory: Option<u64>,
    /// The number of the position of the last change that it brings along, where it comes with a
    /// directory.
    #[serde(default)]
    pub last: Option<u64>,
    /// Who had a vote in the epoch of that change, where its log says so.
    #[serde(default)]
    pub members: Vec<NodeId>,
}

impl Address {
    /// That of a node without clients.
    #[must_use]
    pub const fn new(card: SocketAddr) -> Address {
        let (redis, store, memcached, memory, last) = (None, None, None, None, None);
        Address { card, redis, store, memcached, memory, last, members: Vec::new() }
    }
}
