//! The network: hosts' ports, links and switches, with packets of any kind on them.
//!
//! - [`time`]: picoseconds and rates. [`wheel`]: the queue of events.
//! - [`topology`]: hosts, switches and cables; [`shapes`]: the usual ones. `paths`: all
//!   shortest ones. [`routes`]: which a packet takes. [`ways`]: what they are like.
//! - [`packets`]: what is on its way. `port`: the sending end of a link. [`buffer`], [`marking`],
//!   [`pfc`]: when a switch drops, marks (ECN), pauses.
//! - [`engine`]: [`Net`], which moves packets. [`changes`], `apply_changes`: what fails.
//!   [`deadlock`]: what stands still for ever. [`notes`], `record`: what is noted.
//!
//! The network knows nothing of cards: [`World`](crate::World) joins the two. What it draws comes
//! from one stream for each link and switch, and events of a moment have an order of their own; so
//! the same packets have the same fate, whatever else happens.

mod apply_changes;
pub mod buffer;
pub mod changes;
pub mod deadlock;
pub mod engine;
pub mod marking;
pub mod notes;
pub mod packets;
mod paths;
pub mod pfc;
mod port;
mod record;
pub mod routes;
pub mod shapes;
#[cfg(test)]
mod tests;
pub mod time;
pub mod topology;
pub mod ways;
pub mod wheel;

pub use buffer::BufferOptions;
pub use changes::Change;
pub use engine::{Happening, Net, NetOptions, NetTally, Parcel, Part};
pub use marking::Marking;
pub use notes::{Notes, PacketNote, PauseNote};
pub use packets::{Cargo, Head, Packet};
pub(crate) use paths::{Atlas, Most};
pub use pfc::PfcOptions;
pub use port::Usage;
pub use routes::Routing;
pub use shapes::{Dumbbell, FatTree, LeafSpine, Star};
pub use time::{LineRate, Ps};
pub use topology::{Cable, Link, Node, Topology, TopologyError};
pub(crate) use ways::Ways;
