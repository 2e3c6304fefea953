//! A node that refuses a chain is not asked for one at each read.

use std::time::{Duration, Instant};

use super::error::StoreError;

/// For so long a node that refuses a chain is not asked for one again.
const REFUSED: Duration = Duration::from_secs(10);

/// When a node refused a chain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChainRefusal(Option<Instant>);

impl ChainRefusal {
    /// Takes note of why there is no chain.
    pub(super) fn note(&mut self, error: &StoreError) {
        if matches!(error, StoreError::Connect(_)) {
            self.0 = Some(Instant::now());
        }
    }

    /// Whether a kernel is to be asked instead.
    pub(super) fn holds(self) -> bool {
        self.0.is_some_and(|at| at.elapsed() < REFUSED)
    }
}
