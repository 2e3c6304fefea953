//! READs and atomics of peers, kept to be answered, and answered again if they are repeated.

use crate::memory::key::Pd;
use crate::psn::Psn;

/// A READ or atomic of a peer, and how much of its answer has been sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) asked: Asked,
    /// The packets to send are those from `start` to `end`; those before `next` have been sent.
    pub(crate) start: u32,
    pub(crate) next: u32,
    pub(crate) end: u32,
    /// The whole answer has been sent at least once.
    pub(crate) answered: bool,
}

/// The request, as far as its answer needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    /// A READ, in protection domain `pd`. (On an XRC connection, that is the queue's.)
    Read {
        addr: u64,
        rkey: u32,
        len: u32,
        pd: Pd,
    },
    Atomic {
        original: u64,
    },
    /// An ATOMIC WRITE or FLUSH, which is done.
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
