//! Programs that run on the card.
//!
//! [`kernel`] is StRoM's: code on the data path between the transport and memory, invoked by a
//! remote peer or by the local host in one round trip. [`chain`] is RedN's: work requests that
//! change each other. [`cpu`] says which of the processor's instructions kernels are compiled for.
#![warn(missing_debug_implementations)]

pub mod chain;
pub mod cpu;
pub mod kernel;
