//! The simulated world: cards on simulated hosts, links with all kinds of faults, and virtual time
//! that jumps to the next event. A seed determines the whole world and all that happens in it.
//!
//! - [`run()`] draws a world from a seed, breaks its network, heals it, demands progress, and lets
//!   the checkers in [`check`] judge what happened. This is the main test of the card.
//! - [`pair`] is the smallest world, two hosts and a connection, for directed tests with
//!   [`Rule`]s that drop, delay or damage chosen packets.
//! - [`chain`] sets up programs of work requests, [`kernel`] kernels and their callers.
//! - [`groups`] draws groups of replicas of the store, and all that may go wrong with them.
//! - [`goodput`](mod@goodput) measures a connection at a given loss; [`schemes`] are ways to repair
//!   losses, beside each other, [`selective`] those of others.
//! - [`card_cache`] says what a card that caches its connections can do at most.
//! - [`flows`] runs messages on networks of any size; [`net`] is the network.
//! - [`hardware`] is what a rate, a window and a latency make of links, buses, memories and
//!   engines. [`figure`] are a paper's figures, simulated with it.
//!
//! The reading order:
//!
//! 1. [`dice`]: the source of chance. [`memory`]: a host's memory.
//! 2. [`packet`]: packets as bytes. [`net`]: the network. [`faults`], [`link_faults`]: what
//!    goes wrong.
//! 3. [`host`], [`world`]: hosts, and the clock. `stage`: cards whose hardware takes time.
//!    [`hollow`]: memory without bytes; [`shared_memory`]: memory that a program changes.
//!    [`endpoint`]: queue pairs, and connecting them.
//! 4. [`options`]: a random world's options. `traffic`: its applications. [`guests`]: those
//!    that stop at any step. `stores`: stores that crash, and their clients. `objects`: what both
//!    leave on a card. [`check`]: its judges.
//! 5. `run`: the phases of a random world, and how long a healed one may take.
//! 6. [`flows`]: workloads, the threads that run them, and reports. [`format`](mod@format): files of
//!    other simulators. [`world_file`]: all of it from a world file. `units`: numbers with units.
//!    `percentile`: percentiles of results.
#![forbid(unsafe_code)]

pub mod card_cache;
pub mod chain;
pub mod check;
pub mod dice;
pub mod endpoint;
pub mod faults;
pub mod figure;
pub mod flows;
pub mod format;
pub mod goodput;
pub mod groups;
pub mod guests;
pub mod hardware;
pub mod hollow;
pub mod host;
pub mod kernel;
pub mod link_faults;
pub mod memory;
pub mod net;
mod objects;
pub mod options;
pub mod packet;
pub mod pair;
mod percentile;
pub mod run;
pub mod schemes;
pub mod selective;
pub mod shared_memory;
mod stage;
mod stores;
mod traffic;
mod units;
pub mod world;
pub mod world_file;

/// The Rust of docs/worlds.md is run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/worlds.md")]
struct Worlds;

pub use faults::{Fate, Faults, Rule};
pub use goodput::{Goodput, goodput};
pub use link_faults::LinkOptions;
pub use options::Options;
pub use pair::{A, B, Pair, PairOptions, statuses};
pub use percentile::percentile;
pub use run::{Failure, Report, run};
pub use stores::{StoreOptions, StoreTally};
pub use world::World;
