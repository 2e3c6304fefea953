//! How much is measured, in full or with `--quick`, and where in memory.

use crate::output;

/// The size of the first part of local memory, for the results of READs. Data to be sent follows,
/// then as much again.
pub(super) const SCRATCH: u64 = 1 << 20;

/// The size of the first part of the peer's memory, for structures. Partitions follow.
pub(super) const STRUCTURES: u64 = 16 << 20;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Runs of each measurement, in turn with those that it is compared with.
    pub(super) runs: usize,
    /// Calls of a run whose median is taken.
    pub(super) calls: usize,
    /// Bytes of the longest input.
    pub(super) input: u64,
    /// Bytes of a stream.
    pub(super) stream: u64,
    /// Kernels that are loaded as WebAssembly.
    pub(super) loaded: u64,
}

pub(super) const FULL: Extent =
    Extent { runs: 9, calls: 400, input: 64 << 20, stream: 32 << 20, loaded: 1000 };

pub(super) const QUICK: Extent =
    Extent { runs: 3, calls: 20, input: 1 << 20, stream: 2 << 20, loaded: 8 };

/// A number of bytes as the label of an axis.
pub(super) fn size_label(bytes: u64) -> String {
    output::bytes(bytes)
}
