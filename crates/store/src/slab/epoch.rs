//! Who may still look at a block that its item has left.
//!
//! A reader that keeps a block's address while it sends the block pins the present epoch. An epoch
//! ends when no reader has the one before pinned any more. So a block that was retired in one epoch
//! is seen by no such reader two epochs later. Readers by READ and by chain pin nothing: for them a
//! block rests `Options::quarantine_ms` before it is used again, unless memory is short
//! (`store/reclaim.rs`).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

const KEPT: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    now: AtomicU64,
    pins: [AtomicU64; KEPT],
}

impl Epochs {
    fn pins_of(&self, epoch: u64) -> &AtomicU64 {
        &self.pins[(epoch % KEPT as u64) as usize]
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(SeqCst)
    }

    /// Pins the present epoch: blocks that are in use now stay as they are until the pin is
    /// dropped.
    pub(crate) fn pin(&self) -> Pin<'_> {
        loop {
            let epoch = self.now();
            let pins = self.pins_of(epoch);
            pins.fetch_add(1, SeqCst);
            if self.now() == epoch {
                return Pin { pins };
            }
            pins.fetch_sub(1, SeqCst);
        }
    }

    /// Ends the present epoch if that can be, and says whether nobody sees any more what was
    /// retired in `epoch`.
    pub(crate) fn is_past(&self, epoch: u64) -> bool {
        for _ in 0..2 {
            let now = self.now();
            if now >= epoch + 2 {
                return true;
            }
            // Slot now + 2 is that of the epoch before, and, once this one ends, of the next.
            if self.pins_of(now + 2).load(SeqCst) > 0 {
                return false;
            }
            // A thread that comes later finds that another has ended the epoch.
            let _ = self.now.compare_exchange(now, now + 1, SeqCst, SeqCst);
        }
        self.now() >= epoch + 2
    }
}

/// While it lives, blocks that were in use when it was made stay as they are.
#[derive(Debug)]
pub struct Pin<'a> {
    pins: &'a AtomicU64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pins.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_retired_under_a_pin_waits_for_it() {
        let epochs = Epochs::default();
        assert!(epochs.is_past(epochs.now()));
        let pin = epochs.pin();
        let retired = epochs.now();
        assert!(!epochs.is_past(retired));
        let later = epochs.pin();
        drop(pin);
        assert!(epochs.is_past(retired), "the later pin is of a later epoch");
        assert!(!epochs.is_past(epochs.now()));
        drop(later);
        assert!(epochs.is_past(epochs.now()));
    }
}
