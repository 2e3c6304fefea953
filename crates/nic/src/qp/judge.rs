//! Checks of an element before it is sent, and the requests that need no packet. (A peer's requests
//! are judged in [`super::responder`].)
//!
//! The element is the application's, not the peer's: what is wrong with it completes with an error
//! and is never sent. [`super::requester`] sends what passes.

use super::Qp;
use super::refusal::Failure;
use super::requester::Stop;
use crate::env::Env;
use crate::incident::{Blame, Cause, Touched};
use crate::memory::Calc;
use crate::memory::key::Access;
use crate::multi_queue::Cursor;
use crate::queue::element::{Element, sge_at};
use crate::queue::{Opcode, Sge, Status};
use crate::wire::{Dialect, Transport};

impl Qp {
    /// Carries out a request that needs no packet, in its place in the queue.
    #[inline(never)]
    pub(super) fn carry_out(
        &mut self,
        env: &mut Env<'_>,
        at: Cursor,
        element: &Element,
    ) -> Option<Stop> {
        if element.opcode.is_order() {
            return self.take_order(env, at, element);
        }
        let (scope, regions) = (self.scope(), &mut env.card.regions);
        let (done, memory) = if element.opcode == Opcode::BindMw {
            let to = element.binding();
            let memory = Touched { key: element.key, addr: to.addr, len: to.len };
            (regions.bind(element.key, scope, to), memory)
        } else {
            let key = element.imm();
            (regions.unbind(key, scope), Touched { key, addr: 0, len: 0 })
        };
        let error = done.err()?;
        env.card.counters.elements_protection += 1;
        let status = Status::MwBind;
        if let Some(work) = env.card.outstanding.get_mut(at) {
            work.failed = Some(status);
            let outcome = work.fails_with(status);
            self.report(env, outcome, (None, None), Blame::at(Cause::Access(error), memory));
        }
        None
    }

    pub(super) fn waits_for_response(&self, env: &Env<'_>) -> bool {
        let pool = &env.card.outstanding;
        !pool.find(&self.tx.outstanding, |w| w.element.opcode.wants_response()).is_none()
    }

    /// Can this queue pair carry the element out? Only the copy in `raw` is read, as the ring may
    /// change meanwhile.
    #[inline]
    pub(super) fn judge(
        &self,
        env: &mut Env<'_>,
        element: &Element,
        raw: &[u8],
    ) -> Result<(), Failure> {
        if element.opcode.is_order() {
            return Ok(());
        }
        if let Err(failure) = self.judge_operation(env, element) {
            env.card.counters.elements_invalid += 1;
            return Err(failure);
        }
        self.judge_entries(env, element, raw)
    }

    /// Does the queue pair's service have this operation, and can it carry this message?
    #[inline]
    fn judge_operation(&self, env: &Env<'_>, element: &Element) -> Result<(), Failure> {
        if !self.allows(element.opcode) {
            return Err(Failure::new(Status::LocalQpOperation, Cause::NotAllowed));
        }
        let is_datagram = self.transport == Transport::Ud;
        if (is_datagram || element.opcode == Opcode::Rpc) && element.len > u32::from(self.mtu) {
            let cause = Cause::TooLong { len: element.len, mtu: self.mtu };
            return Err(Failure::new(Status::LocalLength, cause));
        }
        if is_datagram && env.card.ahs.get(element.ud().0).is_none_or(|ah| ah.pd != self.pd) {
            return Err(Failure::new(Status::LocalQpOperation, Cause::UnknownAddressHandle));
        }
        Ok(())
    }

    /// Does the queue pair's service have this operation, and has the peer agreed to it?
    #[inline]
    fn allows(&self, opcode: Opcode) -> bool {
        let asks_little = !opcode.wants_response() || self.cold.max_rd_atomic > 0;
        match self.transport {
            // StRoM's op-codes mean something else to a peer that has not agreed to them.
            Transport::Rc if opcode.is_rpc() => self.dialect.contains(Dialect::KERNELS),
            // Every peer can add (fetch-and-add); for the other calc verbs it must have agreed.
            _ if !matches!(opcode.calc(), None | Some(Calc::Add)) => {
                self.dialect.contains(Dialect::KERNELS) && self.cold.max_rd_atomic > 0
            }
            // Among StRoM's op-codes, FLUSH's means an RPC; the lossy dialect has both.
            Transport::Rc if opcode == Opcode::Flush => {
                self.dialect != Dialect::KERNELS && asks_little
            }
            Transport::Rc => asks_little,
            Transport::Xrc => match opcode {
                Opcode::AtomicWrite | Opcode::Flush | Opcode::Rpc | Opcode::RpcWrite => false,
                _ => asks_little,
            },
            Transport::Uc => {
                matches!(opcode, Opcode::Send | Opcode::SendImm | Opcode::Write | Opcode::WriteImm)
                    || opcode.is_local()
            }
            Transport::Ud => matches!(opcode, Opcode::Send | Opcode::SendImm),
        }
    }

    /// Do the element's keys open the memory that its entries name?
    #[inline]
    fn judge_entries(
        &self,
        env: &mut Env<'_>,
        element: &Element,
        raw: &[u8],
    ) -> Result<(), Failure> {
        let need =
            if element.opcode.returns_data() { Access::LOCAL_WRITE } else { Access::empty() };
        for i in 0..usize::from(element.num_sge) {
            let entry = sge_at(raw, i);
            let Sge { addr, len, lkey } = entry;
            let opens = env.card.regions.check(lkey, self.scope(), addr, u64::from(len), need);
            // An entry of no bytes needs no key.
            if let Err(error) = opens
                && len > 0
            {
                env.card.counters.elements_protection += 1;
                return Err(Failure::local(error, entry));
            }
        }
        Ok(())
    }
}
