//! The ways into the store over the card.
//!
//! - [`call`]: the bytes of an operation and of its answer, one op-code an operation.
pub mod call;
