//! Whether a queue pair can carry an element out; and what needs no packet, carried out.

use super::Qp;
use super::requester::Stop;
use crate::env::Env;
use crate::incident::{Cause, Touched};
use crate::memory::Calc;
use crate::memory::key::Access;
use crate::multi_queue::Cursor;
use crate::queue::element::Element;
use crate::queue::{Opcode, Sge, Status};
use crate::wire::{Dialect, Transport};

impl Qp {
    /// Carries out a request that needs no packet, in the order of the queue.
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
            self.report(env, outcome, (None, None), (Cause::Access(error), Some(memory)));
        }
        None
    }

    pub(super) fn waits_for_response(&self, env: &Env<'_>) -> bool {
        let pool = &env.card.outstanding;
        !pool.find(&self.tx.outstanding, |w| w.element.opcode.wants_response()).is_none()
    }

    /// Can this queue pair carry the element out? Only the copy in `raw` is looked at.
    pub(super) fn judge(
        &self,
        env: &mut Env<'_>,
        element: &Element,
        raw: &[u8],
    ) -> Result<(), Status> {
        let opcode = element.opcode;
        if opcode.is_order() {
            return Ok(());
        }
        let allowed = match self.transport {
            // StRoM's op-codes mean something else to a card that did not agree to them.
            Transport::Rc if opcode.is_rpc() => self.dialect == Dialect::Strom,
            // Every peer knows how to add; the rest, only one that agreed to it.
            _ if !matches!(opcode.calc(), None | Some(Calc::Add)) => {
                self.dialect == Dialect::Strom && self.cold.max_rd_atomic > 0
            }
            Transport::Rc => {
                // In StRoM's dialect, FLUSH's op-code is another's.
                let understood = opcode != Opcode::Flush || self.dialect == Dialect::Standard;
                understood && (!opcode.wants_response() || self.cold.max_rd_atomic > 0)
            }
            Transport::Xrc => match opcode {
                Opcode::AtomicWrite | Opcode::Flush | Opcode::Rpc | Opcode::RpcWrite => false,
                _ => !opcode.wants_response() || self.cold.max_rd_atomic > 0,
            },
            Transport::Uc => {
                matches!(opcode, Opcode::Send | Opcode::SendImm | Opcode::Write | Opcode::WriteImm)
                    || opcode.is_local()
            }
            Transport::Ud => matches!(opcode, Opcode::Send | Opcode::SendImm),
        };
        let card = &mut *env.card;
        let mut invalid = |status, cause| {
            card.counters.elements_invalid += 1;
            card.incidents.blame(cause, None);
            Err(status)
        };
        if !allowed {
            return invalid(Status::LocalQpOperation, Cause::NotAllowed);
        }
        if opcode == Opcode::Rpc && element.len > u32::from(self.mtu) {
            let cause = Cause::TooLong { len: element.len, mtu: self.mtu };
            return invalid(Status::LocalLength, cause);
        }
        if self.transport == Transport::Ud {
            if element.len > u32::from(self.mtu) {
                let cause = Cause::TooLong { len: element.len, mtu: self.mtu };
                return invalid(Status::LocalLength, cause);
            }
            if card.ahs.get(element.ud().0).is_none_or(|ah| ah.pd != self.pd) {
                return invalid(Status::LocalQpOperation, Cause::UnknownAddressHandle);
            }
        }
        let need = if opcode.returns_data() { Access::LOCAL_WRITE } else { Access::empty() };
        for i in 0..usize::from(element.num_sge) {
            let Sge { addr, len, lkey } = crate::queue::element::sge_at(raw, i);
            let opens = env.card.regions.check(lkey, self.scope(), addr, u64::from(len), need);
            let Err(error) = opens else { continue };
            if len > 0 {
                env.card.counters.elements_protection += 1;
                let memory = Touched { key: lkey, addr, len: len.into() };
                env.card.incidents.blame(Cause::Access(error), Some(memory));
                return Err(Status::LocalProtection);
            }
        }
        Ok(())
    }
}
