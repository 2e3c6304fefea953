//! How much is measured, in full or quickly, and where in memory.

use crate::output;

/// Local memory: first a place for what is READ, then data to be sent, then as much again.
pub(super) const SCRATCH: u64 = 1 << 20;

/// The peer's memory: first structures, then partitions.
pub(super) const STRUCTURES: u64 = 16 << 20;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Runs of everything, in turn.
    pub(super) runs: usize,
    /// Calls of a run, of which the median is taken.
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

/// Bytes as an axis says them.
pub(super) fn size_label(bytes: u64) -> String {
    output::bytes(bytes)
}
