//! What runs on the card for a session.

use std::collections::{BTreeMap, BTreeSet};

use remora_nic::kernel::Bound;

/// A session's kernels.
#[derive(Debug, Default)]
pub(crate) struct SessionKernels {
    /// The op-codes that have one.
    pub(super) opcodes: BTreeSet<u64>,
    /// What is bound to streams, by the card's numbers.
    pub(super) taps: BTreeMap<u32, Bound>,
}

/// The number among the card's clients of the session at this place in the engine. (Number 0 is the
/// card's owner.)
pub(crate) fn client_of(slot: u16) -> u16 {
    slot.saturating_add(1)
}
