//! How much is measured: in full, or with `--quick`.

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Runs of each measurement, in turn with those that it is compared with.
    pub(super) runs: usize,
    /// Calls of a run whose median is taken.
    pub(super) calls: usize,
    /// Calls of a run whose 99th percentile is taken.
    pub(super) tail: usize,
    /// Such a run ends after this time, because a server that waits for a busy processor is slow.
    pub(super) patience: Duration,
    /// Constructs, or verbs, of a run.
    pub(super) rate: usize,
}

pub(super) const FULL: Extent =
    Extent { runs: 9, calls: 400, tail: 2000, patience: Duration::from_secs(1), rate: 1 << 16 };

pub(super) const QUICK: Extent =
    Extent { runs: 2, calls: 20, tail: 50, patience: Duration::from_millis(50), rate: 1 << 9 };
