//! Memory that takes its time, so that a backup's store carries the log out as slowly as a test
//! wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use remora_store::memory::{Watch, Watched};

/// How often a write that stands still looks whether it may go on.
const LOOK: Duration = Duration::from_millis(1);
const STILL: u64 = u64::MAX;

/// How long a node's memory takes to write the bytes of an item: no time at all, at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(Arc<AtomicU64>);

impl Pace {
    pub(crate) fn set(&self, each: Duration) {
        self.0.store(each.as_micros() as u64, Relaxed);
    }

    pub(crate) fn stand_still(&self) {
        self.0.store(STILL, Relaxed);
    }

    fn take(&self) {
        while self.0.load(Relaxed) == STILL {
            std::thread::sleep(LOOK);
        }
        match self.0.load(Relaxed) {
            0 | STILL => {}
            micros => std::thread::sleep(Duration::from_micros(micros)),
        }
    }
}

impl Watch for Pace {
    fn before_write(&self, _: u64, _: usize) {
        self.take();
    }
}

/// Memory of a node with a pace of its own.
pub(crate) type Paced = Watched<Pace>;
