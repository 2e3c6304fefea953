//! Memory of the card, and the ways between it and the memory of applications.
//!
//! A card has memory of its own, of two kinds ([`card_memory`]). An [`Engine`] moves bytes between
//! it and applications' memory as *descriptors* ask, which applications write into the ring of a
//! [`Channel`]: host to card (`h2c`) or card to host (`c2h`), memory-mapped or streaming, polled or
//! with interrupts. The names are those of cards in hardware (XDMA), the calls those of DPDK's
//! dmadev.
//!
//! The engine is a plain value, to be driven by its owner: the application itself, a thread
//! ([`Service`]), or another process, which maps the rings and the memory that it is granted. It
//! trusts nothing that it reads in a ring.
//!
//! - What is shared: [`ring`]; what stands in it: [`descriptor`].
//! - The two sides: [`channel`] for applications, [`engine`] for the card, and `service`, its
//!   thread; `stream` is what streaming channels put bytes into, and `counters` what an engine
//!   counts.
//! - [`path`] has the ways by which a card's process reaches an application's memory, and
//!   [`choose`] measures them and says which is best here.
//!
//! `docs/memory.md` has the figures.

pub mod card_memory;
pub mod channel;
pub mod choose;
mod counters;
pub mod descriptor;
pub mod engine;
pub mod path;
pub mod ring;
mod service;
mod stream;

pub use card_memory::{CardMemory, CardMemoryError, MemoryKind, NoRoom, Piece, Sizes};
pub use channel::{
    Capabilities, Channel, ChannelOptions, Completed, Direction, EnqueueError, Index, Interface,
    InterruptError, Mode, Segment,
};
pub use descriptor::{Address, Flags, Outcome, RegionId, Status};
pub use engine::{Engine, EngineError, Owner, TakenBack};
pub use ring::{Halt, Ring};
pub use service::Service;

pub use crate::wake_socket::Wake;
