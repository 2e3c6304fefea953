//! The parts of the command `remora` that other programs can use too: memory nodes, and the options
//! and output that all commands share.
//!
//! - [`node`]: memory nodes. [`device`]: options of every command that opens a device.
//! - [`output`]: tables and JSON. [`foreign`]: JSON that comes from elsewhere. [`failure`]: errors
//!   in words.
//! - [`random`]: tokens and seeds. [`size`]: sizes with units. [`thread`]: starts threads.
//!   [`stop`]: how a command that serves is ended.
#![warn(missing_debug_implementations)]

pub mod device;
pub mod failure;
pub mod foreign;
pub mod node;
pub mod output;
pub mod random;
pub mod size;
pub mod stop;
pub mod thread;
