//! The card.
#![forbid(unsafe_code)]

pub mod cm;
pub mod memory;
pub mod psn;
pub mod time;
pub mod transmit;
pub mod wire;

pub use memory::{Memory, MemoryFault};
pub use psn::Psn;
pub use time::Time;
pub use transmit::{Datagram, Ecn, Path, PayloadRef, Segment, Transmit, TransmitBatch};
