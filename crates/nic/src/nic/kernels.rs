//! Commands on kernels: the implementation that runs them, bindings, and calls by the host itself.

use core::any::Any;

use thiserror::Error;

use super::Nic;
use crate::kernel::{BadHeader, Bound, Call, Header, KernelIo, Kernels, Runner, Taken};
use crate::memory::Memory;
use crate::qp::State;
use crate::queue::Status;
use crate::time::Time;
use crate::wire::Transport;

/// Why a call by the host itself could not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CallError {
    /// No such queue pair.
    #[error("no such queue pair")]
    UnknownQp,
    /// The queue pair cannot carry the results.
    #[error("a queue pair in {0:?} can carry no results")]
    State(State),
    /// Only reliable connections to other queue pairs carry results.
    #[error("only a reliable connection that leaves the card can carry results")]
    Service,
    /// The bytes are not a legal call.
    #[error(transparent)]
    Header(#[from] BadHeader),
    /// There is no room for another invocation, or for its answer: the caller may try again later.
    #[error("no room for another invocation or its answer")]
    Busy,
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Why a kernel could not be bound.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BindError {
    /// No such queue pair or region.
    #[error("no such queue pair or region")]
    Unknown,
    /// Another kernel is bound there.
    #[error("another kernel is bound there")]
    Taken,
    /// Kernels do not see datagrams.
    #[error("kernels are bound to connected queue pairs")]
    Datagrams,
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
    /// The card is another process's, and kernels run there.
    #[error(
        "the card is another process’s: only built-in kernels and loaded modules can be bound there"
    )]
    Elsewhere,
    /// The card, or the process that has it, refuses in these words.
    #[error("{0}")]
    Refused(String),
}

/// Kernels: see [`crate::kernel`].
impl Nic {
    /// Gives the card the implementation of its kernels. The one before is dropped, with all its
    /// invocations.
    pub fn set_kernels(&mut self, kernels: Box<dyn Kernels>) {
        self.kernels = Runner::new(kernels);
    }

    /// The implementation of the card's kernels, if it is a `T`.
    pub fn kernels<T: Kernels>(&self) -> Option<&T> {
        let kernels: &dyn Any = self.kernels.kernels()?;
        kernels.downcast_ref()
    }

    /// Lends the implementation of the card's kernels to the host, if it is a `T`.
    pub fn with_kernels<T: Kernels, R>(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        act: impl FnOnce(&mut T, &mut KernelIo<'_>) -> R,
    ) -> Option<R> {
        self.kernels.act(KernelIo { now, mem, card: &mut self.card }, |kernels, io| {
            let kernels: &mut dyn Any = kernels;
            kernels.downcast_mut().map(|kernels| act(kernels, io))
        })?
    }

    /// Invokes a kernel of this card by the host itself (StRoM §5.2). The results are sent on queue
    /// pair `qpn`. `payload` has the bytes that an RPC WRITE would carry.
    ///
    /// # Errors
    /// [`CallError::UnknownQp`] if there is no such queue pair, [`CallError::Header`] if `payload`
    /// does not begin with a legal header and its parameters, and, if the results are to be sent,
    /// [`CallError::Service`] if the queue pair is no reliable connection that leaves the card, and
    /// [`CallError::State`] if it is not connected; [`CallError::Busy`] if there is no room for
    /// another invocation, or the peer has not acknowledged many answers. An op-code without a
    /// kernel is no error here: the answer to the call says so.
    pub fn call_kernel(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        qpn: u32,
        opcode: u64,
        payload: &[u8],
    ) -> Result<(), CallError> {
        let qp = self.qps.get(qpn).ok_or(CallError::UnknownQp)?;
        let (header, params, data) = Header::parse(payload)?;
        if !header.local && !qp.is_for_kernels() {
            return Err(CallError::Service);
        }
        if !header.local && !qp.sends_for_kernels() {
            return Err(CallError::State(qp.state));
        }
        if !header.local && !qp.has_room_to_answer(&self.card) {
            return Err(CallError::Busy);
        }
        let call = Call { qpn, pd: qp.pd, client: qp.client, opcode, header };
        let io = KernelIo { now, mem, card: &mut self.card };
        match self.kernels.call(io, &call, params, data, 0) {
            Taken::Busy => Err(CallError::Busy),
            _ => Ok(()),
        }
    }

    /// Binds a kernel to a stream of WRITEs (StRoM §3.4). [`Kernels`] gives the number `tap`, which
    /// is not zero, its meaning. If a queue pair and a region both have a kernel, WRITEs pass the
    /// queue pair's only.
    ///
    /// # Errors
    /// [`BindError::Unknown`] if there is no such queue pair or region, [`BindError::Datagrams`]
    /// for a queue pair of datagrams, [`BindError::Taken`] if another kernel is bound there or
    /// `tap` is zero.
    pub fn bind_kernel(&mut self, to: Bound, tap: u32) -> Result<(), BindError> {
        let place = self.tap_of(to)?;
        if *place != 0 || tap == 0 {
            return Err(BindError::Taken);
        }
        *place = tap;
        self.card.kernel.taps += 1;
        self.end_all_passes();
        Ok(())
    }

    /// Ends a binding. Returns the kernel's number. (A binding also ends with its queue pair or
    /// region.)
    ///
    /// # Errors
    /// [`BindError::Unknown`] if there is no such queue pair or region, or no kernel is bound
    /// there; [`BindError::Datagrams`] for a queue pair of datagrams.
    pub fn unbind_kernel(&mut self, from: Bound) -> Result<u32, BindError> {
        let tap = core::mem::take(self.tap_of(from)?);
        if tap == 0 {
            return Err(BindError::Unknown);
        }
        self.card.kernel.taps -= 1;
        Ok(tap)
    }

    /// The number of the kernel that is bound to a stream.
    pub fn bound_kernel(&self, to: Bound) -> Option<u32> {
        let tap = match to {
            Bound::Receive(qpn) => self.qps.get(qpn)?.cold.receive_tap,
            Bound::Send(qpn) => self.qps.get(qpn)?.cold.send_tap,
            Bound::Region(key) => self.card.regions.tap(key),
        };
        (tap != 0).then_some(tap)
    }

    fn tap_of(&mut self, bound: Bound) -> Result<&mut u32, BindError> {
        match bound {
            Bound::Receive(qpn) | Bound::Send(qpn) => {
                let qp = self.qps.get_mut(qpn).ok_or(BindError::Unknown)?;
                if qp.transport == Transport::Ud {
                    return Err(BindError::Datagrams);
                }
                let receive = matches!(bound, Bound::Receive(_));
                let cold = &mut *qp.cold;
                Ok(if receive { &mut cold.receive_tap } else { &mut cold.send_tap })
            }
            Bound::Region(key) => self.card.regions.tap_mut(key).ok_or(BindError::Unknown),
        }
    }

    /// When kernels want a turn: those that wait for the turns of queue pairs have it behind some.
    #[inline]
    pub(super) fn kernels_due(&self) -> Time {
        let is_held = self.card.kernel.held && !self.card.scheduler.is_idle();
        if is_held { Time::NEVER } else { self.kernels.due() }
    }

    /// Lets kernels continue that have more to do, and hands the messages that they post to the
    /// queue pairs.
    #[inline(always)]
    pub(super) fn turn_kernels(&mut self, now: Time, mem: &mut dyn Memory) {
        if self.kernels.due() <= now || !self.card.kernel.posted.is_empty() {
            self.turn_kernels_now(now, mem);
        }
    }

    #[inline(never)]
    fn turn_kernels_now(&mut self, now: Time, mem: &mut dyn Memory) {
        if self.kernels.due() <= now {
            self.card.kernel.held = false;
            let io = KernelIo { now, mem, card: &mut self.card };
            self.kernels.act(io, |kernels, io| kernels.turn(io));
        }
        while let Some(post) = self.card.kernel.posted.pop_front() {
            let qp = self.qps.get_mut(post.qpn);
            match qp.filter(|qp| qp.pd == post.pd && qp.sends_for_kernels()) {
                Some(qp) => qp.take_posted(&mut self.card, post),
                None => {
                    self.card.counters.kernel_dropped += 1;
                    let buffer = post.data.into_buffer();
                    let state = &mut self.card.kernel;
                    self.kernels.ended(state, post.token, Status::Flushed, buffer);
                }
            }
        }
    }
}
