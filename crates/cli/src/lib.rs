//! The parts of the command `remora` that other programs can use too: memory nodes, and the options
//! and output that all commands share.
#![warn(missing_debug_implementations)]

pub mod device;
pub mod failure;
pub mod foreign;
pub mod node;
pub mod output;
pub mod stop;
pub mod thread;
