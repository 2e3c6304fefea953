//! Hardware in simulated time: what has a rate, room for so many at once, and a latency.
//!
//! - [`rate`]: exact rates. [`resource`]: what several share, by a rate, a window and a latency.
//!   [`circuit`]: resources, and transactions that pass them one after the other.
//! - [`pcie`]: links with the overheads of their packets. [`port`]: a card's way to its host's
//!   memory, which [kernels](crate::kernel) of simulated cards use.
//! - [`parameter`]: a value with its unit and its source. [`alveo`]: the machine of the paper
//!   "In-Network Memory Access" with its FPGA card. [`xdma`]: that card's DMA engine and its
//!   driver. [`bluefield`]: the paper's other card. [`card`]: cards of a world's hosts.
//!
//! Times are in picoseconds and integers, so that each run gives the same figures on each machine.

pub mod alveo;
pub mod bluefield;
pub mod card;
pub mod circuit;
pub mod parameter;
pub mod pcie;
pub mod port;
pub mod rate;
pub mod resource;
pub mod xdma;

pub use card::{
    CACHE, CONTEXT, Cache, CardTime, FEWEST_READS, MOST_READS, PROFILES, Profile, STATE,
};
pub use circuit::{Circuit, Step};
pub use pcie::Link;
pub use port::{HostPort, PortTerms, SharedPort};
pub use rate::Rate;
pub use resource::{Order, Resource, Terms};

/// Picoseconds of a nanosecond.
pub const NS: u64 = 1_000;
/// Picoseconds of a microsecond.
pub const US: u64 = 1_000_000;
