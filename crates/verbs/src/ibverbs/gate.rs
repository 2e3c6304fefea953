//! A lock that a program holds from one call to another.

use std::sync::atomic::{AtomicBool, Ordering};

/// Held between `ibv_wr_start` and `ibv_wr_complete`, or `ibv_start_poll` and `ibv_end_poll`.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
}

impl Gate {
    /// Waits until the gate is free, spinning, as programs hold it only for a short time.
    #[inline]
    pub(crate) fn enter(&self) {
        let mut tries = 0u32;
        while self.closed.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries < 64 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Opens the gate.
    #[inline]
    pub(crate) fn leave(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Does a thread hold it?
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
