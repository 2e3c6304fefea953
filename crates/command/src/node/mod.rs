//! A memory node: serves named regions of memory and files one-sided over RoCE v2.
//!
//! A client connects by RDMA CM with a [`Request`](protocol::Request) as private data: a region's
//! name, and a token. The node answers with a [`Reply`](protocol::Reply), which holds the region's
//! key, or refuses in words. After that the client READs and WRITEs while the node's application
//! sleeps.
//!
//! - [`spec`] and [`address`] parse what a person types; [`protocol`] and [`document`] parse what a
//!   peer sends: pure functions of bytes.
//! - [`serve`] is the command, [`start`] its options and errors; [`server`] is the node, and admits
//!   clients; `regions` are the regions that it serves.
//! - [`client`] connects to a region; [`transfer`] moves bytes, [`reader`] reads documents.
//! - [`kernels`] loads kernels into the node's card, for clients that show a permit
//!   ([`kernel_permit`]); `beside` does what takes long on a thread of its own.
//!
//! The queue pairs of a region's clients live in a protection domain of that region's own, so a key
//! that leaks opens nothing to the clients of another region. Clients that call kernels live in the
//! protection domain of `@kernels`. In it the regions that kernels may be granted are registered a
//! second time, for the card alone.

pub mod address;
mod beside;
pub mod client;
pub mod document;
pub mod kernel_permit;
pub mod kernels;
pub mod protocol;
pub mod reader;
mod regions;
pub mod serve;
pub mod server;
pub mod spec;
pub mod start;
pub mod transfer;

/// The port, in RDMA CM's TCP port space, on which a node listens by default: the one after
/// perftest's. (Packets go to UDP port 4791, as in all of RoCE v2.)
pub const DEFAULT_PORT: u16 = 18_516;

/// The most clients that a node serves at a time, and those of one address at most half of what
/// others leave. One more is refused with a reason.
pub const CLIENTS_MAX: usize = 1024;

/// The most regions that a node serves, besides its own.
pub const REGIONS_MAX: usize = 1024;

/// The region in which a node lists its regions.
pub const REGIONS_DOCUMENT: &str = "@regions";

/// The region in which a node lists its kernels, and to which clients connect to call them.
pub const KERNELS_DOCUMENT: &str = "@kernels";

/// The region in which a node keeps its counters.
pub const STATS_DOCUMENT: &str = "@stats";
