//! The built-in kernels: those of StRoM with the parameters of the paper, and others that the
//! paper only names.
//!
//! - Look-ups: [`get`]: in a hash table; [`traversal`]: in linked structures; [`consistency`]: of
//!   an object with a checksum.
//! - Streams: [`shuffle`] and [`shuffle_send`]: partitioning, on arrival and before sending;
//!   [`hyperloglog`]: distinct values; [`filter`]: rows that match; [`aggregate`]: sums of columns.
//! - Shared: [`column`](mod@column): rows and their columns; `reader`: parsing of parameters.
//!
//! A new kernel has a module and an op-code here. Its name, its budget and how the command deploys
//! it are in the list `Kind` of the crate `remora` (`kernel/builtin.rs`).
//!
//! Parameters come from peers. So each parser takes any bytes, and refuses invalid ones with
//! [`CallStatus::BAD_PARAMS`](super::CallStatus::BAD_PARAMS). All fields are little-endian.

pub mod aggregate;
pub mod column;
pub mod consistency;
pub mod filter;
pub mod get;
pub mod hyperloglog;
mod reader;
pub mod shuffle;
pub mod shuffle_send;
pub mod traversal;

/// The op-codes that built-in kernels are usually deployed under.
pub mod opcode {
    /// [`super::get`].
    pub const GET: u64 = 0x01;
    /// [`super::traversal`].
    pub const TRAVERSAL: u64 = 0x02;
    /// [`super::consistency`].
    pub const CONSISTENCY: u64 = 0x03;
    /// [`super::shuffle`].
    pub const SHUFFLE: u64 = 0x04;
    /// [`super::shuffle_send`].
    pub const SHUFFLE_SEND: u64 = 0x05;
    /// [`super::hyperloglog`].
    pub const HYPERLOGLOG: u64 = 0x06;
    /// [`super::filter`].
    pub const FILTER: u64 = 0x07;
    /// [`super::aggregate`].
    pub const AGGREGATE: u64 = 0x08;
}
