//! Outstanding messages: issued, and not yet acknowledged.

use super::Status;
use super::element::{Element, Sge};
use super::sgl::{SglPool, SglSlot};
use crate::incident::Outcome;
use crate::psn::Psn;

/// A message that was issued: the checked copy of its element, and its PSNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) element: Element,
    /// Further entries, in the card's pool.
    pub(crate) more: Option<SglSlot>,
    /// The index of its element in the ring.
    pub(crate) index: u32,
    pub(crate) psn: Psn,
    /// How many PSNs it takes: zero if it failed before it could begin.
    pub(crate) packets: u32,
    /// In the lossy dialect, how many messages before it take a receive element; of an answer, the
    /// PSN of its request.
    pub(crate) ssn: u32,
    /// It cannot be carried out, which is reported when all before it are done.
    pub(crate) failed: Option<Status>,
    pub(crate) origin: Origin,
}

/// Where a message came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// An element in the host's ring.
    Ring,
    /// A kernel. The data may be in a buffer on the card.
    Kernel { buffer: Option<u32> },
    /// The peer: the message answers a request of the peer's, in the lossy dialect. Its element
    /// names the peer's key and address.
    Answer(Answering),
}

/// What kind of request a message answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answering {
    Read,
    /// An atomic, whose original value is the element's operand.
    Atomic,
    /// An ATOMIC WRITE or FLUSH.
    Done,
}

impl Outstanding {
    /// Is `psn` one of this message's PSNs?
    pub(crate) fn holds(&self, psn: Psn) -> bool {
        psn.distance_from(self.psn) < self.packets
    }

    /// Is it a kernel's message, and not the host's?
    pub(crate) fn is_kernels(&self) -> bool {
        matches!(self.origin, Origin::Kernel { .. })
    }

    /// Does it answer a request of the peer's?
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.origin, Origin::Answer(_))
    }

    /// Its scatter/gather entries.
    pub(crate) fn entries<'a>(&'a self, pool: &'a SglPool) -> &'a [Sge] {
        match self.more {
            Some(slot) => pool.entries(slot, self.element.num_sge),
            None => &core::slice::from_ref(&self.element.sge)[..self.element.num_sge.into()],
        }
    }

    /// The outcome to report when it ends with `status`.
    pub(crate) fn fails_with(&self, status: Status) -> Outcome {
        let Element { wr_id, opcode, .. } = self.element;
        Outcome::Failed { wr_id, opcode: Some(opcode), status }
    }

    /// One past the last PSN.
    pub(crate) fn end(&self) -> Psn {
        self.psn.plus(self.packets)
    }
}
