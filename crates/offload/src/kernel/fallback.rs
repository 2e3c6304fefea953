//! Calls for the host: what no kernel is deployed for (StRoM §5.1).

use std::collections::VecDeque;

/// A call that the host is to answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FallbackCall {
    /// Names it in the answer.
    pub id: u32,
    /// The queue pair it came by.
    pub qpn: u32,
    /// Its op-code.
    pub opcode: u64,
    /// Bytes that fit the requester's buffer.
    pub max_len: u32,
    /// Its parameters.
    pub params: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Calls that wait for the host.
pub(super) struct Fallback {
    pub(super) waiting: VecDeque<FallbackCall>,
    /// Tells the host that there is one more.
    pub(super) tell: Box<dyn Fn() + Send>,
}

/// Calls that may wait for the host.
pub(super) const WAITING_MAX: usize = 64;

impl core::fmt::Debug for Fallback {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fallback").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}
