//! What runs on the card for a session.

use std::collections::BTreeMap;

use remora_nic::kernel::Bound;

use crate::kernel::ExecutorLimits;

/// The most kernels of the card.
pub(super) const ALL_KERNELS: u32 = ExecutorLimits::KERNELS as u32;

/// A session's kernels.
#[derive(Debug, Default)]
pub(crate) struct SessionKernels {
    /// What answers each op-code, or will.
    pub(super) opcodes: BTreeMap<u64, Deployed>,
    /// What is bound to streams, and the bytes of its module, by the card's numbers.
    pub(super) taps: BTreeMap<u32, (Bound, u64)>,
}

/// The kernel of an op-code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deployed {
    /// Bytes of its module; a built-in kernel has none.
    pub(super) module_bytes: u64,
    /// Another daemon has left it, and its module is not compiled yet.
    pub(super) waits: bool,
}

/// The number among the card's clients of the session at this place in the engine. (Number 0 is the
/// card's owner.)
pub(crate) fn client_of(slot: u16) -> u16 {
    slot.saturating_add(1)
}
