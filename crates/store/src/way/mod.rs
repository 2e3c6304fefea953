//! The ways into the store over the card.
//!
//! - [`call`]: the bytes of an operation and of its answer, one op-code an operation.
//! - [`hello`]: what a client and a store say as they connect; [`door`]: who is let in.

pub mod call;
pub mod door;
pub mod hello;
