//! A lock that a program holds from one call to another.
//!
//! A forked child inherits gates that threads of its parent hold. Those threads are not there, so
//! that the child takes such a gate as if it were open.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::process;

/// No thread holds the gate.
const OPEN: u32 = 0;

/// Held between `ibv_wr_start` and `ibv_wr_complete`, or `ibv_start_poll` and `ibv_end_poll`.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// `OPEN`, or who has closed it: see [`of_this_process`].
    closed_by: AtomicU32,
}

/// How gates are marked that this process holds.
#[inline]
fn of_this_process() -> u32 {
    process::generation().wrapping_add(1).max(1)
}

impl Gate {
    /// Waits until the gate is free, spinning, as programs hold it only for a short time. Returns
    /// whether a thread of the process's parent has left it closed: what it guards may be half done
    /// then.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let (mine, mut tries) = (of_this_process(), 0u32);
        loop {
            let before = self.closed_by.swap(mine, Ordering::Acquire);
            if before != mine {
                return before != OPEN;
            }
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
        self.closed_by.store(OPEN, Ordering::Release);
    }

    /// Does a thread hold it?
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.closed_by.load(Ordering::Relaxed) != OPEN
    }
}
