//! What other threads wake a serving thread by.

use std::io;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// The thread looks what there is, and has not been rung for since it began to.
const LOOKS: u8 = 0;
/// It sleeps, or is about to.
const SLEEPS: u8 = 1;
/// It was rung for.
const RUNG: u8 = 2;

/// A bell for one thread. To ring it costs a system call only while the thread sleeps: a thread
/// that rings for itself, or for one that is at work, makes it look once more before it sleeps.
#[derive(Debug)]
pub(crate) struct Bell {
    state: AtomicU8,
    descriptor: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { state: AtomicU8::new(LOOKS), descriptor })
    }

    /// Has the thread look: what was done before this is seen then.
    pub(crate) fn ring(&self) {
        if self.state.swap(RUNG, AcqRel) == SLEEPS {
            // If it cannot be woken, it sees by itself within a tick.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    /// The thread begins to look: it need not look again for what has rung so far.
    pub(crate) fn hear(&self) {
        self.state.swap(LOOKS, AcqRel);
    }

    /// Whether the thread may sleep. If so, the descriptor tells of each ring from now on; if not,
    /// it was rung for since it began to look.
    pub(crate) fn may_sleep(&self) -> bool {
        self.state.compare_exchange(LOOKS, SLEEPS, AcqRel, Relaxed).is_ok()
    }

    /// Forgets that the descriptor has told of anything.
    pub(crate) fn clear(&self) {
        // How often it was written does not matter.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn tells(bell: &Bell) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn a_thread_that_looks_is_told_before_it_sleeps() {
        let bell = Bell::new().unwrap();
        bell.ring();
        assert!(!bell.may_sleep() && !tells(&bell));
        bell.hear();
        assert!(bell.may_sleep());
        bell.ring();
        assert!(tells(&bell), "it sleeps");
        bell.clear();
        bell.ring();
        assert!(!tells(&bell), "it was told, and has not looked");
        bell.hear();
        assert!(bell.may_sleep());
    }
}
