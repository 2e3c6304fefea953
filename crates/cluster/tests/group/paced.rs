//! Memory that takes its time, so that a backup's store carries the log out as slowly as a test
//! wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use remora_store::memory::{Heap, Memory};

/// Who stands still looks so often whether it may go on.
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

/// Memory of a node with a pace of its own.
#[derive(Debug)]
pub(crate) struct Paced {
    heap: Heap,
    pace: Pace,
}

impl Paced {
    pub(crate) fn new(bytes: u64, pace: &Pace) -> Paced {
        Paced { heap: Heap::new(bytes), pace: pace.clone() }
    }
}

impl Memory for Paced {
    fn len(&self) -> u64 {
        self.heap.len()
    }

    fn load(&self, at: u64) -> u64 {
        self.heap.load(at)
    }

    fn store(&self, at: u64, value: u64) {
        self.heap.store(at, value);
    }

    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        self.heap.compare_swap(at, old, new)
    }

    fn read(&self, at: u64, dst: &mut [u8]) {
        self.heap.read(at, dst);
    }

    fn write(&self, at: u64, src: &[u8]) {
        self.pace.take();
        self.heap.write(at, src);
    }
}
