//! The card.
#![forbid(unsafe_code)]

mod card;
pub mod cm;
pub mod counters;
pub mod memory;
mod multi_queue;
pub mod nic;
pub mod psn;
pub mod qp;
pub mod queue;
mod table;
pub mod time;
pub mod transmit;
pub mod wire;

pub use counters::Counters;
pub use memory::region::{Access, AccessError, Key, MrInit, Pd, RegMrError};
pub use memory::translate::PageTable;
pub use memory::{Memory, MemoryFault};
pub use nic::{Config, CreateError, DestroyError, Event, Nic, PostError, QpInfo, QpInit};
pub use psn::Psn;
pub use time::Time;
pub use transmit::{Datagram, Ecn, Path, PayloadRef, Segment, Transmit, TransmitBatch};
