//! [`Runner`]: holds what runs the card's kernels, and calls it. It answers a call for which there
//! is no kernel.

use super::call::{Call, CallStatus};
use super::io::{KernelIo, Reply};
use super::message::WORD_TOKEN;
use super::state::KernelState;
use super::{Kernels, Passing, Taken};
use crate::buffer::Buffer;
use crate::queue::Status;
use crate::time::Time;

/// The implementation of the card's kernels, if the card has any. It is kept beside the card's
/// state, so that this can be lent to the kernels while they act.
#[derive(Debug)]
pub(crate) struct Runner {
    kernels: Option<Box<dyn Kernels>>,
    /// When the kernels want a turn, by their last answer. It is kept because it is needed after
    /// every packet.
    due: Time,
}

impl Runner {
    /// The runner of a card without kernels.
    pub(crate) const NONE: Runner = Runner { kernels: None, due: Time::NEVER };

    pub(crate) fn new(kernels: Box<dyn Kernels>) -> Runner {
        let due = kernels.due();
        Runner { kernels: Some(kernels), due }
    }

    pub(crate) fn kernels(&self) -> Option<&dyn Kernels> {
        self.kernels.as_deref()
    }

    /// When the kernels want a turn.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// Lets the kernels act on a card; `None` if there are none.
    #[inline]
    pub(crate) fn act<R>(
        &mut self,
        mut io: KernelIo<'_>,
        act: impl FnOnce(&mut dyn Kernels, &mut KernelIo<'_>) -> R,
    ) -> Option<R> {
        let kernels = self.kernels.as_deref_mut()?;
        let result = act(kernels, &mut io);
        self.due = kernels.due();
        Some(result)
    }

    /// Invokes a kernel. If there is none for the op-code, this sends the error code back.
    pub(crate) fn call(
        &mut self,
        mut io: KernelIo<'_>,
        call: &Call,
        params: &[u8],
        data: &[u8],
        more: u32,
    ) -> Taken {
        let taken = self.kernels.as_deref_mut().map_or(Taken::NoKernel, |kernels| {
            let taken = kernels.call(&mut io, call, params, data, more);
            self.due = kernels.due();
            taken
        });
        let counters = io.counters();
        if taken == Taken::Busy {
            counters.kernel_busy += 1;
            return taken;
        }
        counters.kernel_calls += 1;
        counters.kernel_bytes += data.len() as u64;
        if taken == Taken::NoKernel {
            io.reply(call, Reply::failure(CallStatus::NO_KERNEL));
        }
        taken
    }

    /// Passes a payload that leaves to the kernel that is bound as `tap`.
    pub(crate) fn change(&mut self, tap: u32, passing: &Passing, bytes: &mut [u8]) {
        if let Some(kernels) = &mut self.kernels {
            kernels.sending(tap, passing, bytes);
            self.due = kernels.due();
        }
    }

    /// Reports that a message has ended, or will not begin.
    pub(crate) fn ended(
        &mut self,
        state: &mut KernelState,
        token: u64,
        status: Status,
        buffer: Option<Buffer>,
    ) {
        state.in_flight = state.in_flight.saturating_sub(1);
        let mut buffer = buffer;
        if token == WORD_TOKEN {
            state.words.extend(buffer.take());
        }
        // Also after a status word, as there is room for another message now.
        if let Some(kernels) = &mut self.kernels {
            kernels.sent(token, status, buffer);
            self.due = kernels.due();
        }
    }

    /// Reports that a queue pair is gone or has failed: its invocations and their messages end.
    pub(crate) fn closed(&mut self, state: &mut KernelState, qpn: u32) {
        if let Some(kernels) = &mut self.kernels {
            kernels.closed(qpn);
            self.due = kernels.due();
        }
        let mut i = 0;
        while i < state.posted.len() {
            if state.posted[i].qpn != qpn {
                i += 1;
            } else if let Some(post) = state.posted.remove(i) {
                self.ended(state, post.token, Status::Flushed, post.data.into_buffer());
            }
        }
    }
}
