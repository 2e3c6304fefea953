//! Messages on their way: issued, and not yet acknowledged.

use super::Status;
use super::element::{Element, Sge};
use super::sgl::{SglPool, SglSlot};
use crate::incident::Outcome;
use crate::psn::Psn;

/// A message that was issued: the judged copy of its element, and its place in the sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) element: Element,
    /// Further entries, in the card's pool.
    pub(crate) more: Option<SglSlot>,
    /// Which element of the ring.
    pub(crate) index: u32,
    pub(crate) psn: Psn,
    /// PSNs it takes; none if it failed before it could begin.
    pub(crate) packets: u32,
    /// It cannot be carried out: reported when all before it are done.
    pub(crate) failed: Option<Status>,
    pub(crate) origin: Origin,
}

/// Where a message came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The host's ring.
    Ring,
    /// A kernel; its data may lie in a buffer on the card.
    Kernel { buffer: Option<u32> },
}

impl Outstanding {
    /// Is `psn` one of this message's?
    pub(crate) fn holds(&self, psn: Psn) -> bool {
        psn.distance_from(self.psn) < self.packets
    }

    /// Is it a kernel's, and not the host's?
    pub(crate) fn is_kernels(&self) -> bool {
        self.origin != Origin::Ring
    }

    /// Its scatter/gather entries.
    pub(crate) fn entries<'a>(&'a self, pool: &'a SglPool) -> &'a [Sge] {
        match self.more {
            Some(slot) => pool.entries(slot, self.element.num_sge),
            None => &core::slice::from_ref(&self.element.sge)[..self.element.num_sge.into()],
        }
    }

    /// What is reported when it ends with `status`.
    pub(crate) fn fails_with(&self, status: Status) -> Outcome {
        let Element { wr_id, opcode, .. } = self.element;
        Outcome::Failed { wr_id, opcode: Some(opcode), status }
    }

    /// One past the last PSN.
    pub(crate) fn end(&self) -> Psn {
        self.psn.plus(self.packets)
    }
}
