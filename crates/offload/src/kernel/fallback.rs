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

/// The host as one that answers calls, if it does, and the calls that wait for it.
#[derive(Debug, Default)]
pub(super) struct Host {
    fallback: Option<Fallback>,
    /// The number of the last fallback.
    last: u32,
}

struct Fallback {
    number: u32,
    waiting: VecDeque<FallbackCall>,
    /// Tells the host that a call waits.
    tell: Box<dyn Fn() + Send>,
}

/// The most calls that wait for the host.
const WAITING_MAX: usize = 64;

impl Host {
    /// Another fallback takes over what waits; returns its number.
    pub(super) fn serve(&mut self, tell: Box<dyn Fn() + Send>) -> u32 {
        let waiting = self.fallback.take().map(|before| before.waiting).unwrap_or_default();
        self.last += 1;
        self.fallback = Some(Fallback { number: self.last, waiting, tell });
        self.last
    }

    /// Ends a fallback; returns whether the host answers no calls from now on, because no other one
    /// has its place.
    pub(super) fn end(&mut self, number: u32) -> bool {
        self.fallback.take_if(|now| now.number == number).is_some()
    }

    /// Takes a fallback's next call.
    pub(super) fn next(&mut self, number: u32) -> Option<FallbackCall> {
        self.fallback.as_mut().filter(|now| now.number == number)?.waiting.pop_front()
    }

    /// Does the host answer calls?
    pub(super) fn answers(&self) -> bool {
        self.fallback.is_some()
    }

    /// Does the host answer calls, and may another one wait?
    pub(super) fn has_room(&self) -> bool {
        self.fallback.as_ref().is_some_and(|now| now.waiting.len() < WAITING_MAX)
    }

    /// Tells the host of a call.
    pub(super) fn tell(&mut self, call: FallbackCall) {
        if let Some(now) = &mut self.fallback {
            now.waiting.push_back(call);
            (now.tell)();
        }
    }

    /// Forgets the calls of a queue pair.
    pub(super) fn forget(&mut self, qpn: u32) {
        self.fallback.iter_mut().for_each(|now| now.waiting.retain(|call| call.qpn != qpn));
    }
}

impl core::fmt::Debug for Fallback {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fallback").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}
