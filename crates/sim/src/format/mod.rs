//! Files of other simulators, in and out.
//!
//! - [`hpcc`]: the topologies, flows and completion times of HPCC's simulator, and of those that
//!   are built on it. [`hpcc_out`]: what its analyses read.
//! - [`htsim`]: fat trees, and connections with triggers. [`goal`]: schedules of ranks.
//! - `words`: words with their lines. `order`: what comes first. `pairs`: which receive takes which
//!   send.
//!
//! Whatever a file has, reading it ends with a result or with an error that names the line.

pub mod goal;
pub mod hpcc;
pub mod hpcc_out;
pub mod htsim;
mod order;
mod pairs;
mod words;

pub use words::FormatError;
