//! The network: hosts' ports, links and switches, with packets of any kind on them.
//!
//! - [`time`]: picoseconds and rates. [`wheel`]: the queue of events.
//! - [`topology`]: hosts, switches and cables; [`shapes`]: the usual ones. [`routes`]: the paths.
//! - [`packets`]: what is on its way. [`buffer`], [`pfc`]: when a switch drops, marks, pauses.
//! - [`engine`]: [`Net`], which moves packets. [`changes`], `failures`: what fails.
//!   [`deadlock`]: what stands still for ever.
//!
//! The network knows nothing of cards: [`World`](crate::World) joins the two. What it draws comes
//! from one stream for each link and switch, and events of a moment have an order of their own; so
//! the same packets have the same fate, whatever else happens.

pub mod buffer;
pub mod changes;
pub mod deadlock;
pub mod engine;
mod failures;
pub mod packets;
pub mod pfc;
mod port;
pub mod routes;
pub mod shapes;
#[cfg(test)]
mod tests;
pub mod time;
pub mod topology;
pub mod wheel;

pub use buffer::{BufferOptions, Marking};
pub use changes::Change;
pub use engine::{Happening, Net, NetOptions, NetTally, Parcel, Part};
pub use packets::{Cargo, Head, Packet};
pub use pfc::PfcOptions;
pub use routes::Routing;
pub use shapes::{Dumbbell, FatTree, LeafSpine, Star};
pub use time::{LineRate, Ps};
pub use topology::{Cable, Node, Topology, TopologyError};
