//! How far a run has come, for a caller that waits in another thread.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::net::Ps;

/// How far a run has come. It is told once a window, so that watching costs nothing.
#[derive(Debug, Default)]
pub struct Watch {
    at: AtomicU64,
    ended: AtomicU64,
    delivered: AtomicU64,
}

impl Watch {
    /// The simulated time in picoseconds from the start of the run.
    pub fn at(&self) -> Ps {
        self.at.load(Ordering::Relaxed)
    }

    /// Flows that have ended, or failed.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Bytes that have reached hosts, with all headers, what was sent again and acknowledges.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub(super) fn tell(&self, at: Ps, ended: u64, delivered: u64) {
        self.at.fetch_max(at, Ordering::Relaxed);
        self.ended.fetch_add(ended, Ordering::Relaxed);
        self.delivered.fetch_add(delivered, Ordering::Relaxed);
    }
}
