//! The card: a RoCE v2 network card as a sans-IO engine.
//!
//! [`Nic`] is the card. It has no clock, socket, thread, file or random source. Its doc comment
//! says how to drive it. Read the modules in this order:
//!
//! 1. [`wire`]: the bytes of a packet, and the table of op-codes. [`psn`]: packet sequence numbers.
//! 2. [`memory`]: keys, regions, windows, page tables, the check of each access, and the trait by
//!    which the card reaches bytes.
//! 3. [`queue`]: work-queue elements in rings in memory, completions in queues on the card.
//! 4. `card` and `env`: what all queue pairs share, and how it is lent to one of them; `scheduler`:
//!    which of them has the next turn; [`service_level`]: which go before others; `turn_order`: in
//!    which order the rest have turns; `client_shares`, `client_rates` and `rate`: how several
//!    programs share the card, and what they are held to;
//!    `timers`: the queue pairs' timers; `multi_queue`: their outstanding messages; `staging`: room
//!    for payload. `table` and `handles`: the card's objects, and what names them; `numbered`:
//!    those that peers know by a number.
//! 5. [`qp`]: the queue pair, which is the transport: requester, completer, responder, and
//!    `qp/retry.rs` with the time-outs. `congestion`: the names of the policies of congestion
//!    control. `prefetch`: hints to the processor.
//! 6. [`nic`]: the card as its driver sees it: commands, events, and the loop of turns.
//!    [`transmit`]: what it hands to the driver to send.
//! 7. [`kernel`]: code on the data path, how it is invoked, and what it may do; `buffer`: bytes on
//!    the card, which kernels send.
//! 8. [`chain`]: programs of work requests, with managed queues, WAIT, ENABLE and loop-back.
//! 9. [`cm`]: communication management, by which queue pairs find each other; `management`: queue
//!    pair 1, which carries it.
//! 10. What its driver sets and learns: [`config`], [`time`], [`event`], [`counters`] and
//!     [`incident`], which says why a request was refused or failed; `silence`: what it finds out
//!     of peers that do not answer. [`split_mix`]: numbers for worlds and tests.
//!
//! How the transport behaves is tested in simulated worlds: `crates/sim/tests/`.
//!
//! No source files import each other in a circle, and no file below the queue pair names a queue
//! pair or [`Nic`].
#![forbid(unsafe_code)]

mod buffer;
mod card;
pub mod chain;
mod client_rates;
mod client_shares;
pub mod cm;
pub mod config;
mod congestion;
pub mod counters;
mod env;
pub mod event;
mod handles;
pub mod incident;
pub mod kernel;
mod management;
pub mod memory;
mod multi_queue;
pub mod nic;
mod numbered;
mod prefetch;
pub mod psn;
pub mod qp;
pub mod queue;
mod rate;
mod scheduler;
pub mod service_level;
mod silence;
pub mod split_mix;
mod staging;
mod table;
pub mod time;
mod timers;
pub mod transmit;
mod turn_order;
pub mod wire;

pub use chain::{ChainError, ChainLimits, ChainStep, EnableError, QpFlags, Queue, StepEnd};
pub use config::Config;
pub use congestion::{DcqcnTuning, DctcpTuning, SwiftTuning, Tuning};
pub use counters::Counters;
pub use event::Event;
pub use handles::Xrcd;
pub use incident::Incident;
pub use memory::key::{Access, AccessError, Key, Pd};
pub use memory::page_table::PageTable;
pub use memory::region::{MrChange, MrInit, RegMrError, Translation};
pub use memory::window::{MwBinding, MwType};
pub use memory::{Calc, Memory, MemoryFault};
pub use nic::{CreateError, DestroyError, Nic, PostError};
pub use psn::Psn;
pub use qp::{QpInfo, QpInit, SendProgress};
pub use rate::{Rate, RateLimits};
pub use silence::Silence;
pub use time::Time;
pub use transmit::{Datagram, Ecn, Path, PayloadRef, Segment, Transmit, TransmitBatch};
pub use turn_order::TurnOrder;
