//! The replicas of `remora_store::replica`, live: over queue pairs, with threads and a clock.
//!
//! A node is a [`Group`] (its part in the protocol, its log's ring, its links to the others), a
//! store that logs to it ([`GroupLog`]), and a [`Node`]: the threads that drive both. When a
//! primary counts as dead and who proposes itself (failover) is in `remora_store::replica`:
//! `member`, `lease`. A proposal is a compare-and-swap at a configuration service, which a
//! [`Coordinator`] reaches: etcd, or [`InProcess`] for trials.
//!
//! - `group`: what a node's threads share; `outputs`: does what its replica wants. `journal`: what
//!   its store's changes go through; `undecided`: those of them that a majority does not hold yet;
//!   `majority`: who waits until it does; `listeners`: who is told so.
//! - `link`: a queue pair to another node, and what is posted on it. `wire`: what nodes say.
//! - `door`: lets other nodes in, and calls them; `refusals`: what it says of whom it cannot.
//! - `drive`: hears them, and applies the log.
//! - `copy`: the store of one node, sent to another one; `incoming`: as it comes in.
//! - `keep`: the log and snapshots on the node's disk, if it has a directory; `feed`: what goes
//!   there.
//! - `members`: a group has as many as it is to have; nodes take the places of those that are lost.
//! - `front`: what Redis' and memcached's clients get of it; `kernels`: what clients over the card
//!   do; `ways`: how they come in.
//! - `map`: which of several groups has which slots; `slots`: what one is for each, in its log;
//!   `migration`: how they move; `mover`: the thread that moves them, in a `session` with the other
//!   group's primary.
//! - `coordinator`: the way to the configuration service; `address`: what it says of nodes;
//!   `history`: how a group came to its latest configuration. (Leases are
//!   `remora_store::replica::Lease`, as long as [`GroupOptions::lease`] says.)
//! - `etcd`: the service in etcd (feature `etcd`), and `etcd_map`: the map there; `etcd_words`: why
//!   it does not answer; `documents`: what is written there; `founding`: a group's first
//!   configuration; `epochs`: is the service behind the nodes? `in_process`: the service in this
//!   process.
//! - `hostile`: what strangers may send and write, for fuzzing.
//! - `node`: starts and ends all of it; reads and changes that the group answers for.
//!
//! Why it keeps its promises is in docs/cluster.md.
#![warn(missing_debug_implementations)]

mod address;
mod coordinator;
mod copy;
mod documents;
mod door;
mod drive;
#[cfg(feature = "etcd")]
mod epochs;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "etcd")]
mod etcd_map;
#[cfg(feature = "etcd")]
mod etcd_words;
mod feed;
#[cfg(feature = "etcd")]
mod founding;
mod front;
mod group;
mod history;
pub mod hostile;
mod in_process;
mod incoming;
mod journal;
mod keep;
mod kernels;
mod link;
mod listeners;
mod majority;
mod map;
mod members;
pub mod migration;
mod mover;
mod node;
mod outputs;
mod refusals;
mod session;
mod slots;
mod undecided;
mod ways;
mod wire;

pub use address::Address;
pub use coordinator::{Coordinator, News};
#[cfg(feature = "etcd")]
pub use etcd_map::EtcdMap;
pub use feed::KeepError;
pub use front::ShardKeeper;
pub use group::{Doubt, Group, GroupOptions, NotServing, StartError, Status};
pub use history::{Cause, EpochChange};
pub use in_process::{InProcess, InProcessMap};
pub use journal::GroupLog;
pub use keep::{Keeping, Kept};
pub use map::{Atlas, GroupView, MapService, MoveError, Owner, Seen, SlotMap};
pub use mover::Mover;
pub use node::Node;
pub use remora_store::replica::{ChangeError, Configuration, NodeId};
pub use slots::Slots;
pub use ways::{CardWays, WaysError};
