//! A memory node: named regions of memory and files, served one-sided over RoCE v2.
//!
//! A client connects by RDMA CM with a [`Request`](protocol::Request) as private data: a region's
//! name, and a token. The node answers with a [`Reply`](protocol::Reply), which holds the region's
//! key, or refuses in words. From there on the client READs and WRITEs, and the node's
//! application sleeps.
//!
//! - [`spec`] and [`address`] parse what a person types; [`protocol`] and [`document`] parse what
//!   a peer sends: pure functions of bytes.
//! - [`serve`] is the command, [`start`] what a node is started with; [`server`] is the node,
//!   `clients` who is connected to it, `regions` what it serves.
//! - [`client`] connects to a region; [`transfer`] moves bytes, [`reader`] reads documents.
//! - [`kernels`] loads kernels into the node's card, for clients that show a [`permit`].
//!
//! Each region has a protection domain of its own, in which the queue pairs of its clients live: a
//! key that leaks opens nothing to the clients of another region. Who calls kernels lives in that
//! of `@kernels`, where the regions that kernels may be granted are registered a second time, for
//! the card alone.

pub mod address;
pub mod client;
mod clients;
pub mod document;
pub mod kernels;
pub mod permit;
pub mod protocol;
pub mod reader;
mod regions;
pub mod serve;
pub mod server;
pub mod spec;
pub mod start;
pub mod transfer;

/// The port that a node listens on if told nothing else, of RDMA CM's TCP port space: the one
/// after perftest's. (Packets go to UDP port 4791, as all RoCE v2 does.)
pub const DEFAULT_PORT: u16 = 18_516;

/// Clients that one node serves at a time. One more is refused, in words.
pub const CLIENTS_MAX: usize = 1024;

/// Regions that one node serves, beside its own.
pub const REGIONS_MAX: usize = 1024;

/// The region in which a node lists its regions.
pub const REGIONS_DOCUMENT: &str = "@regions";

/// The region in which a node lists its kernels, and to which those connect who call them.
pub const KERNELS_DOCUMENT: &str = "@kernels";

/// The region in which a node keeps its counters.
pub const STATS_DOCUMENT: &str = "@stats";
