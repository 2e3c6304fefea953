//! Calls for the host: those whose op-code has no kernel (StRoM §5.1).
//!
//! The executor decides (`Executor::call_host`). If the host does not want such calls, the card
//! answers `NO_KERNEL` (`kernel/runner.rs` of `remora-nic`).

use std::collections::VecDeque;

/// A call that the host answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FallbackCall {
    /// The call's number, for the answer.
    pub id: u32,
    /// The queue pair that the call came by.
    pub qpn: u32,
    /// Its op-code.
    pub opcode: u64,
    /// The most bytes of results that the requester takes.
    pub max_len: u32,
    /// Its parameters.
    pub params: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Calls that wait for the host.
pub(super) struct Fallback {
    pub(super) waiting: VecDeque<FallbackCall>,
    /// Tells the host that a call waits.
    pub(super) tell: Box<dyn Fn() + Send>,
}

/// The most calls that wait for the host.
pub(super) const WAITING_MAX: usize = 64;

impl core::fmt::Debug for Fallback {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fallback").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}
