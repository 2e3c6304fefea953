//! What runs the card's kernels, and how the card calls it.

use super::call::{Call, CallStatus};
use super::io::{KernelIo, Reply};
use super::message::{Payload, WORD_TOKEN};
use super::state::KernelState;
use super::{Kernels, Passing, Taken};
use crate::buffer::Buffer;
use crate::queue::Status;
use crate::time::Time;

/// What runs the card's kernels, if the card has any. It stands beside the card, not in it, so that
/// the card can be lent to the kernels while they act.
#[derive(Debug)]
pub(crate) struct Runner {
    kernels: Option<Box<dyn Kernels>>,
    /// When they want a turn, as they said last: asked after every packet, mostly in vain.
    due: Time,
}

impl Runner {
    /// The card has no kernels.
    pub(crate) const NOBODY: Runner = Runner { kernels: None, due: Time::NEVER };

    pub(crate) fn new(kernels: Box<dyn Kernels>) -> Runner {
        let due = kernels.due();
        Runner { kernels: Some(kernels), due }
    }

    pub(crate) fn kernels(&self) -> Option<&dyn Kernels> {
        self.kernels.as_deref()
    }

    /// When kernels want a turn.
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

    /// Invokes a kernel; where there is none, the error code is on its way when this returns.
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
            let reply = Reply { status: CallStatus::NO_KERNEL, offset: 0, data: Payload::None };
            io.reply(call, reply);
        }
        taken
    }

    /// Lets a payload leave through the kernel that is bound as `tap`.
    pub(crate) fn change(&mut self, tap: u32, passing: &Passing, bytes: &mut [u8]) {
        if let Some(kernels) = &mut self.kernels {
            kernels.sending(tap, passing, bytes);
            self.due = kernels.due();
        }
    }

    /// A message is done, or was never begun.
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
        // Of a status word too: there is room for another message.
        if let Some(kernels) = &mut self.kernels {
            kernels.sent(token, status, buffer);
            self.due = kernels.due();
        }
    }

    /// A queue pair is gone or fails: so are its invocations, and what they posted.
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
