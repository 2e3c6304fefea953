//! READs, atomics and FLUSHes of the peer: carried out, answered, and answered again.
//!
//! The last few READs and atomics are kept, as many as the peer may have outstanding, so that a
//! repeated READ is executed again and a repeated atomic is told its saved result.

use super::Qp;
use super::acknowledge::Owed;
use super::refusal::Refusal;
use crate::env::Env;
use crate::incident::{Blame, Cause, Outcome, Touched};
use crate::memory::Calc;
use crate::memory::key::{Access, AccessError, Scope};
use crate::multi_queue::Cursor;
use crate::psn::Psn;
use crate::queue::Opcode;
use crate::queue::answer::{Answer, Asked};
use crate::queue::element::{Element, MAX_MESSAGE};
use crate::scheduler::Budget;
use crate::transmit::TransmitBatch;
use crate::wire::opcode::Follows;
use crate::wire::{
    Aeth, AtomicEth, Bth, Extensions, Feth, Nak, Op, Operation, Packet, Position, Reth, Syndrome,
};

/// What an atomic or a calc verb does to a 64-bit word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    Calculate(Calc, u64),
}

impl Atomic {
    /// Of an element that is one.
    pub(super) fn of(element: &Element) -> Atomic {
        match element.opcode {
            Opcode::CompareSwap => {
                Atomic::CompareSwap { compare: element.compare, swap: element.operand }
            }
            opcode => Atomic::Calculate(opcode.calc().unwrap_or(Calc::Add), element.operand),
        }
    }

    /// Carries it out on a word; returns the value before.
    #[inline]
    fn apply(self, env: &mut Env<'_>, word: u64, (key, addr): (u32, u64)) -> Result<u64, Refusal> {
        let original = match self {
            Atomic::CompareSwap { compare, swap } => env.mem.compare_swap(word, compare, swap),
            Atomic::Calculate(Calc::Add, operand) => env.mem.fetch_add(word, operand),
            Atomic::Calculate(calc, operand) => env.mem.calculate(word, calc, operand),
        };
        original
            .map_err(|_| Refusal::access(env, AccessError::Memory, Touched { key, addr, len: 8 }))
    }
}

impl Qp {
    /// An expected READ request; returns the PSNs its responses take.
    pub(crate) fn execute_read(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.ext.reth;
        if reth.len > MAX_MESSAGE {
            let cause = Cause::Length { got: reth.len.into(), expected: u64::from(MAX_MESSAGE) };
            return Err(Refusal::invalid(env, cause));
        }
        self.check_remote(env, reth.rkey, reth.addr, reth.len.into(), Access::REMOTE_READ)?;
        let packets = reth.len.div_ceil(u32::from(self.mtu)).max(1);
        let Reth { addr, rkey, len } = reth;
        let asked = Asked::Read { addr, rkey, len, pd: self.pd };
        self.add_answer(env, packet.bth.psn, packets, asked)?;
        Ok(packets)
    }

    /// An expected atomic: executed at once, its result saved.
    pub(crate) fn execute_atomic(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let AtomicEth { addr, rkey, swap_add, compare } = packet.ext.atomic;
        let atomic = match packet.op.operation {
            Operation::CompareSwap => Atomic::CompareSwap { compare, swap: swap_add },
            Operation::Calculate => match Calc::numbered(compare) {
                Some(calc) => Atomic::Calculate(calc, swap_add),
                None => return Err(Refusal::invalid(env, Cause::UnknownOpcode(packet.op.code))),
            },
            _ => Atomic::Calculate(Calc::Add, swap_add),
        };
        // Judged first, as forgetting an answer cannot be taken back.
        let word = self.atomic_word(env, (rkey, addr))?;
        self.make_room(env)?;
        let original = atomic.apply(env, word, (rkey, addr))?;
        self.add_answer(env, packet.bth.psn, 1, Asked::Atomic { original })?;
        Ok(1)
    }

    /// An atomic that needs no answer kept; returns the word before.
    #[inline]
    pub(super) fn execute_word(
        &self,
        env: &mut Env<'_>,
        at: (u32, u64),
        atomic: Atomic,
    ) -> Result<u64, Refusal> {
        let word = self.atomic_word(env, at)?;
        atomic.apply(env, word, at)
    }

    /// The bus address of the word that an atomic is for.
    fn atomic_word(&self, env: &mut Env<'_>, (rkey, addr): (u32, u64)) -> Result<u64, Refusal> {
        let need = Access::REMOTE_ATOMIC;
        if !addr.is_multiple_of(8) {
            return Err(Refusal::invalid(env, Cause::Alignment));
        }
        // No bytes: only whether the queue pair permits it.
        self.check_remote(env, rkey, addr, 0, need)?;
        let (mut place, regions) = (None, &env.card.regions);
        let found = regions.translate(rkey, self.scope(), addr, 8, need, |s| place = Some(s));
        if let Err(error) = found {
            return Err(Refusal::access(env, error, Touched { key: rkey, addr, len: 8 }));
        }
        let word = place.filter(|s| s.len == 8 && s.addr.is_multiple_of(8));
        word.map(|s| s.addr).ok_or_else(|| Refusal::invalid(env, Cause::Alignment))
    }

    /// An expected ATOMIC WRITE: executed at once.
    pub(crate) fn execute_atomic_write(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let Reth { addr, rkey, len } = packet.ext.reth;
        let bytes: Result<[u8; 8], _> = packet.payload.try_into();
        let (Ok(bytes), 8) = (bytes, len) else {
            let cause = Cause::Length { got: packet.payload.len() as u64, expected: 8 };
            return Err(Refusal::invalid(env, cause));
        };
        self.check_remote(env, rkey, addr, 8, Access::REMOTE_WRITE)?;
        self.make_room(env)?;
        let Some(word) = self.word(env, (rkey, addr), Access::REMOTE_WRITE) else {
            return Err(Refusal::invalid(env, Cause::Alignment));
        };
        // The word is in the writer's byte order, on the wire too.
        if env.mem.store(word, u64::from_ne_bytes(bytes)).is_err() {
            let memory = Touched { key: rkey, addr, len: 8 };
            return Err(Refusal::access(env, AccessError::Memory, memory));
        }
        self.add_answer(env, packet.bth.psn, 1, Asked::Done)?;
        Ok(1)
    }

    /// An expected FLUSH. Memory is written at once, so that all before it is visible already, and
    /// persistent where [`Access::FLUSH_PERSISTENT`] says that it is: a range of any length costs
    /// nothing.
    pub(crate) fn execute_flush(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let (Reth { addr, rkey, len }, feth) = (packet.ext.reth, packet.ext.feth);
        let known = Feth::GLOBAL | Feth::PERSISTENT;
        if feth.placement == 0 || feth.placement & !known != 0 || feth.selectivity > Feth::REGION {
            return Err(Refusal::invalid(env, Cause::Sequence));
        }
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, feth.placement & Feth::GLOBAL != 0);
        need.set(Access::FLUSH_PERSISTENT, feth.placement & Feth::PERSISTENT != 0);
        let whole = feth.selectivity == Feth::REGION;
        let (addr, len) = match env.card.regions.extent(rkey, self.scope()) {
            Some(extent) if whole => extent,
            // A key that opens nothing is refused even for no bytes.
            None if whole => (addr, 1),
            _ => (addr, u64::from(len)),
        };
        self.check_remote(env, rkey, addr, len, need)?;
        self.make_room(env)?;
        self.add_answer(env, packet.bth.psn, 1, Asked::Done)?;
        Ok(1)
    }

    /// The bus address of a 64-bit word. One whose halves lie on different pages, or off its
    /// alignment, is no word.
    fn word(&self, env: &Env<'_>, (rkey, addr): (u32, u64), need: Access) -> Option<u64> {
        let mut place = None;
        let regions = &env.card.regions;
        let found = regions.translate(rkey, self.scope(), addr, 8, need, |s| place = Some(s));
        let word = place.filter(|s| found.is_ok() && s.len == 8 && s.addr.is_multiple_of(8));
        word.filter(|_| addr.is_multiple_of(8)).map(|s| s.addr)
    }

    /// Forgets the oldest answer if as many are kept as the peer may have outstanding. More than
    /// that at once, the peer must not ask.
    fn make_room(&mut self, env: &mut Env<'_>) -> Result<(), Refusal> {
        if self.rx.answers.len() < usize::from(self.cold.max_dest_rd_atomic) {
            return Ok(());
        }
        let oldest = env.card.answers.front(&self.rx.answers);
        // An answer being repeated may go: that the peer asks for more shows it has the first.
        if oldest.is_none_or(|a| !a.answered) {
            env.card.counters.refused_too_many_reads += 1;
            let agreed = self.cold.max_dest_rd_atomic;
            return Err(Refusal::nak(Nak::InvalidRequest, Cause::TooManyReads { agreed }));
        }
        if env.card.answers.pop(&mut self.rx.answers).is_some_and(|a| a.is_pending()) {
            self.rx.pending -= 1;
        }
        Ok(())
    }

    fn add_answer(
        &mut self,
        env: &mut Env<'_>,
        psn: Psn,
        packets: u32,
        asked: Asked,
    ) -> Result<(), Refusal> {
        self.make_room(env)?;
        let answer =
            Answer { psn, packets, asked, start: 0, next: 0, end: packets, answered: false };
        if env.card.answers.push(&mut self.rx.answers, answer).is_none() {
            env.card.counters.pool_full += 1;
            return Err(Refusal::NotReady);
        }
        self.rx.pending += 1;
        debug_assert!(usize::from(self.rx.pending) <= self.rx.answers.len());
        self.rx.ends_with_answer = true;
        self.rx.msn = self.rx.msn.wrapping_add(1);
        Ok(())
    }

    /// A repeated READ is executed again, if it is (the tail of) one that is kept.
    pub(crate) fn answer_read_again(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let reth = packet.ext.reth;
        let mtu = u32::from(self.mtu);
        let at = self.find_answer(env, packet.bth.psn);
        let wanted = env.card.answers.get(at).and_then(|kept| {
            let Asked::Read { addr, rkey, len, .. } = kept.asked else { return None };
            let skip = packet.bth.psn.distance_from(kept.psn);
            let offset = u64::from(skip) * u64::from(mtu);
            let end = skip + reth.len.div_ceil(mtu).max(1);
            let fits = reth.rkey == rkey
                && reth.addr == addr.wrapping_add(offset)
                && offset + u64::from(reth.len) <= u64::from(len)
                && (end == kept.packets) == (offset + u64::from(reth.len) == u64::from(len));
            fits.then_some((skip, end))
        });
        match wanted {
            Some((start, end)) => self.send_again(env, at, start, end),
            None => env.card.counters.drop_stale_duplicate += 1,
        }
    }

    /// A repeated atomic is not executed again: its result is.
    pub(crate) fn answer_atomic_again(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let at = self.find_answer(env, packet.bth.psn);
        match env.card.answers.get(at).map(|kept| kept.asked) {
            Some(Asked::Atomic { .. }) => self.send_again(env, at, 0, 1),
            _ => env.card.counters.drop_stale_duplicate += 1,
        }
    }

    /// A repeated ATOMIC WRITE or FLUSH is not executed again: that it is done is said again.
    pub(crate) fn answer_done_again(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let at = self.find_answer(env, packet.bth.psn);
        match env.card.answers.get(at).map(|kept| kept.asked) {
            Some(Asked::Done) => self.send_again(env, at, 0, 1),
            _ => env.card.counters.drop_stale_duplicate += 1,
        }
    }

    fn find_answer(&self, env: &Env<'_>, psn: Psn) -> Cursor {
        env.card.answers.find_last(&self.rx.answers, |a| a.holds(psn))
    }

    fn send_again(&mut self, env: &mut Env<'_>, at: Cursor, start: u32, end: u32) {
        let Some(answer) = env.card.answers.get_mut(at) else { return };
        if !answer.is_pending() {
            self.rx.pending += 1;
        }
        (answer.start, answer.next, answer.end) = (start, start, end);
    }

    /// Sends what READs and atomics ask, oldest first, as far as the turn allows.
    #[inline(never)]
    pub(crate) fn send_answers(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut Budget,
    ) {
        while self.rx.pending > 0 && !budget.is_spent() {
            let at = env.card.answers.find(&self.rx.answers, Answer::is_pending);
            let Some(&answer) = env.card.answers.get(at) else { return };
            if let Err(error) = self.send_answer(env, batch, budget, &answer) {
                // The memory went away between the request and its answer.
                error.count(&mut env.card.counters);
                let psn = answer.psn.plus(answer.next);
                let memory = match answer.asked {
                    Asked::Read { addr, rkey, len, .. } => {
                        Some(Touched { key: rkey, addr, len: len.into() })
                    }
                    Asked::Atomic { .. } | Asked::Done => None,
                };
                let outcome = Outcome::Refused(Nak::RemoteAccess);
                let blame = Blame { cause: Cause::Access(error), memory };
                self.report(env, outcome, (None, Some(psn)), blame);
                return self.break_answer(env, psn, Nak::RemoteAccess);
            }
            if let Some(answer) = env.card.answers.get_mut(at) {
                answer.next += 1;
                if answer.next == answer.end {
                    answer.answered = true;
                    self.rx.pending -= 1;
                    // The newest answer acknowledges all before it, and itself.
                    let newest = answer.psn.plus(answer.packets) == self.rx.expected;
                    if newest && self.rx.reply == Owed::Acknowledge {
                        self.rx.reply = Owed::Nothing;
                    }
                }
            }
        }
    }

    /// Sends one packet of an answer.
    fn send_answer(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut Budget,
        answer: &Answer,
    ) -> Result<(), AccessError> {
        let mark = batch.mark();
        let mut ext =
            Extensions { aeth: self.aeth(Syndrome::Ack { credits: 31 }), ..Extensions::default() };
        let k = answer.next;
        let (operation, position, len) = match answer.asked {
            Asked::Atomic { original } => {
                ext.atomic_ack = original;
                (Operation::AtomicAcknowledge, Position::Only, 0)
            }
            Asked::Done => (Operation::ReadResponse, Position::Only, 0),
            Asked::Read { addr, rkey, len, pd } => {
                let mtu = u32::from(self.mtu);
                let offset = k * mtu;
                let part = (len - offset).min(mtu);
                if part > 0 {
                    let segments = batch.segments_mut();
                    let from = addr.wrapping_add(u64::from(offset));
                    let need = Access::REMOTE_READ;
                    let scope = Scope { pd, ..self.scope() };
                    env.card
                        .regions
                        .translate(rkey, scope, from, part, need, |s| segments.push(s))?;
                }
                let position = Position::new(k == answer.start, k + 1 == answer.end);
                (Operation::ReadResponse, position, part)
            }
        };
        let pad = (len.wrapping_neg() & 3) as u8;
        let op = Op::of(self.transport, operation, position, Follows::empty());
        let psn = answer.psn.plus(k);
        let bth = Bth { pad, dest_qp: self.dest_qp, psn, ..Bth::ours() };
        let ecn = env.card.config.ecn;
        batch.push(self.path, ecn, mark, pad, |out| Packet::emit_headers(&bth, op, &ext, out));
        budget.spend(len);
        env.card.counters.tx_packets += 1;
        env.card.counters.tx_bytes += u64::from(len);
        if answer.answered {
            env.card.counters.tx_retransmitted += 1;
        }
        Ok(())
    }

    fn aeth(&self, syndrome: Syndrome) -> Aeth {
        Aeth { syndrome: syndrome.byte(), msn: self.rx.msn }
    }

    /// The response `psn` cannot be made: neither it nor any later one is sent, and the requester
    /// is told in its place.
    pub(crate) fn break_answer(&mut self, env: &mut Env<'_>, psn: Psn, nak: Nak) {
        self.drop_answers(env);
        self.rx.breaking = false;
        self.rx.expected = psn;
        self.break_connection(env, nak);
    }

    /// Sends no more answers. An acknowledge that is owed still leaves, unless it would pass a
    /// READ or atomic that will not be answered.
    pub(crate) fn drop_answers(&mut self, env: &mut Env<'_>) {
        while env.card.answers.pop(&mut self.rx.answers).is_some() {}
        let unanswered = core::mem::take(&mut self.rx.pending) > 0;
        if unanswered && self.rx.reply == Owed::Acknowledge {
            self.rx.reply = Owed::Nothing;
        }
    }
}
