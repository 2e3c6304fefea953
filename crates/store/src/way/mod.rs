//! The ways into the store over the card.
//!
//! - [`call`]: the bytes of an operation and of its answer, one op-code an operation.
//! - [`execute`]: what an operation does to a store; [`kernel`]: the same on the card.
//! - [`row`]: rows of an answer; [`info`]: what a store says of itself.
//! - [`long`]: calls that take long; [`payload`]: memory for their bytes.
//! - [`index`]: what a reader of buckets has to know; [`clock`]: what time it is.
//! - [`one_sided`]: READs of cached locations.
//! - [`chain`]: gets by work requests.
//! - `patience`: how long a thread polls.
//! - [`region`]: the store's memory, where the card reaches it.
//! - [`connect`]: how a client connects; [`hello`]: what client and store say then;
//!   [`door`]: who is let in; [`gate`]: who reaches the memory; [`map`]: a cluster's nodes.

pub mod call;
pub mod chain;
pub mod clock;
pub mod connect;
pub mod door;
pub mod execute;
pub mod gate;
pub mod hello;
pub mod index;
pub mod info;
pub mod kernel;
pub mod long;
pub mod map;
pub mod one_sided;
pub(crate) mod patience;
pub mod payload;
pub mod region;
pub mod row;
