//! READs and atomics of peers: what they ask, kept to be answered, once or again.

use crate::memory::key::Pd;
use crate::psn::Psn;

/// A READ or atomic: what is asked, and how far the answer is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) asked: Asked,
    /// Packets of it to send: those from `next` to `end`, begun at `start`.
    pub(crate) start: u32,
    pub(crate) next: u32,
    pub(crate) end: u32,
    /// It has been answered in full at least once.
    pub(crate) answered: bool,
}

/// What is asked, as far as the answer needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    /// Of this protection domain (which an XRC connection has as many of as it has queues).
    Read {
        addr: u64,
        rkey: u32,
        len: u32,
        pd: Pd,
    },
    Atomic {
        original: u64,
    },
    /// An ATOMIC WRITE or FLUSH: that it is done.
    Done,
}

impl Answer {
    pub(crate) fn is_pending(&self) -> bool {
        self.next < self.end
    }

    pub(crate) fn holds(&self, psn: Psn) -> bool {
        psn.distance_from(self.psn) < self.packets
    }
}
