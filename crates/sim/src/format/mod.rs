//! Files of other simulators, in and out.
//!
//! - [`hpcc`]: the topologies, flows and completion times of HPCC's simulator, and of those that
//!   are built on it.
//!
//! Whatever a file has, reading it ends with a result or with an error that names the line.

pub mod hpcc;
mod words;

pub use words::FormatError;
