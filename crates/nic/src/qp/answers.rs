//! READs, atomics, ATOMIC WRITEs and FLUSHes of the peer: carried out, answered, answered again.
//!
//! The last requests of these kinds are kept, as many as the peer may have outstanding, so that a
//! repeated READ is carried out again and a repeated atomic is answered from its saved result.
//!
//! The rules are those of InfiniBand volume 1, chapter 9 (Transport Layer), and for ATOMIC WRITE
//! and FLUSH those of annex A19. Functions named without a path are those of soft-RoCE's
//! `rxe_resp.c`. [`super::responder`] has checked the PSN, the sequence and the length before.

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
use crate::queue::element::Element;
use crate::scheduler::TurnBudget;
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
    /// The operation of an element whose op-code is an atomic or a calc verb.
    pub(super) fn of(element: &Element) -> Atomic {
        match element.opcode {
            Opcode::CompareSwap => {
                Atomic::CompareSwap { compare: element.compare, swap: element.operand }
            }
            opcode => Atomic::Calculate(opcode.calc().unwrap_or(Calc::Add), element.operand),
        }
    }

    /// Carries the operation out on a word; returns the word's former value.
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
    /// An expected READ request; returns how many PSNs its responses take.
    pub(crate) fn execute_read(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.ext.reth;
        self.judge_read(env, &reth)?;
        // One PSN for each response, and one if there is nothing to read.
        let packets = reth.len.div_ceil(u32::from(self.mtu)).max(1);
        let Reth { addr, rkey, len } = reth;
        let asked = Asked::Read { addr, rkey, len, pd: self.pd };
        self.add_answer(env, packet.bth.psn, packets, asked)?;
        Ok(packets)
    }

    /// May the peer read this range?
    pub(super) fn judge_read(&self, env: &mut Env<'_>, reth: &Reth) -> Result<(), Refusal> {
        Self::check_total(env, reth.len)?;
        // The key must open the whole range for reading before the first response leaves
        // (`check_rkey`).
        self.check_remote(env, reth.rkey, reth.addr, reth.len.into(), Access::REMOTE_READ)?;
        Ok(())
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
            // A calc verb without that number is an invalid request.
            Operation::Calculate => match Calc::numbered(compare) {
                Some(calc) => Atomic::Calculate(calc, swap_add),
                None => return Err(Refusal::invalid(env, Cause::UnknownOpcode(packet.op.code))),
            },
            _ => Atomic::Calculate(Calc::Add, swap_add),
        };
        // All checks come first: a saved answer that is forgotten to make room cannot be restored.
        let word = self.atomic_word(env, (rkey, addr))?;
        self.make_room(env)?;
        let original = atomic.apply(env, word, (rkey, addr))?;
        self.add_answer(env, packet.bth.psn, 1, Asked::Atomic { original })?;
        Ok(1)
    }

    /// Carries out an atomic whose answer need not be kept; returns the word's former value.
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
        // An atomic's address is a multiple of 8; another is an invalid request (`atomic_reply`).
        if !addr.is_multiple_of(8) {
            return Err(Refusal::invalid(env, Cause::Alignment));
        }
        // The queue pair must permit atomics to its peer. (A range of no bytes checks only that.)
        self.check_remote(env, rkey, addr, 0, need)?;
        // The key must open the eight bytes for atomics (`check_rkey`). They must be one aligned
        // word on the bus, too, or the operation would not be atomic.
        let word = match env.card.regions.locate(rkey, self.scope(), addr, 8, need) {
            Ok(Some(at)) => Some(at).filter(|at| at.is_multiple_of(8)),
            // The region lies in pieces.
            Ok(None) => self.word(env, (rkey, addr), need),
            Err(error) => {
                return Err(Refusal::access(env, error, Touched { key: rkey, addr, len: 8 }));
            }
        };
        word.ok_or_else(|| Refusal::invalid(env, Cause::Alignment))
    }

    /// An expected ATOMIC WRITE: executed at once.
    pub(crate) fn execute_atomic_write(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        self.judge_word(env, packet)?;
        self.make_room(env)?;
        self.store_word(env, packet)?;
        self.add_answer(env, packet.bth.psn, 1, Asked::Done)?;
        Ok(1)
    }

    /// May the peer write this word at once? If so: its bus address and its value.
    fn judge_word(&self, env: &mut Env<'_>, packet: &Packet<'_>) -> Result<(u64, u64), Refusal> {
        let Reth { addr, rkey, len } = packet.ext.reth;
        let bytes: Result<[u8; 8], _> = packet.payload.try_into();
        // An ATOMIC WRITE carries exactly eight bytes, and its header has this length.
        let (Ok(bytes), 8) = (bytes, len) else {
            let cause = Cause::Length { got: packet.payload.len() as u64, expected: 8 };
            return Err(Refusal::invalid(env, cause));
        };
        // The key must open them for writing (`check_rkey`).
        self.check_remote(env, rkey, addr, 8, Access::REMOTE_WRITE)?;
        // As for an atomic, they must be one aligned word.
        let Some(word) = self.word(env, (rkey, addr), Access::REMOTE_WRITE) else {
            return Err(Refusal::invalid(env, Cause::Alignment));
        };
        // On the wire the word has the writer's byte order, as a WRITE's payload has.
        Ok((word, u64::from_ne_bytes(bytes)))
    }

    /// Carries out an ATOMIC WRITE.
    pub(super) fn store_word(&self, env: &mut Env<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
        let (word, value) = self.judge_word(env, packet)?;
        env.mem.store(word, value).map_err(|_| {
            let Reth { addr, rkey: key, .. } = packet.ext.reth;
            Refusal::access(env, AccessError::Memory, Touched { key, addr, len: 8 })
        })
    }

    /// An expected FLUSH. The card writes memory at once, so that all earlier writes are visible
    /// already, and persistent where a region has [`Access::FLUSH_PERSISTENT`]. So only the
    /// permission is checked, and a range of any length costs nothing.
    pub(crate) fn execute_flush(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        self.judge_flush(env, packet)?;
        self.make_room(env)?;
        self.add_answer(env, packet.bth.psn, 1, Asked::Done)?;
        Ok(1)
    }

    /// May the peer ask for this FLUSH?
    pub(super) fn judge_flush(
        &self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let (Reth { addr, rkey, len }, feth) = (packet.ext.reth, packet.ext.feth);
        let known = Feth::GLOBAL | Feth::PERSISTENT;
        // A FLUSH asks for at least one kind of placement, and for none that is not known here; its
        // bytes are a range or a whole region. Anything else is an invalid request.
        if feth.placement == 0 || feth.placement & !known != 0 || feth.selectivity > Feth::REGION {
            return Err(Refusal::invalid(env, Cause::Sequence));
        }
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, feth.placement & Feth::GLOBAL != 0);
        need.set(Access::FLUSH_PERSISTENT, feth.placement & Feth::PERSISTENT != 0);
        let whole = feth.selectivity == Feth::REGION;
        let (addr, len) = match env.card.regions.extent(rkey, self.scope()) {
            Some(extent) if whole => extent,
            // A key that names no region is refused, which a range of no bytes would not be.
            None if whole => (addr, 1),
            _ => (addr, u64::from(len)),
        };
        // The key must open the range for the kinds of placement asked for.
        self.check_remote(env, rkey, addr, len, need)?;
        Ok(())
    }

    /// The bus address of a 64-bit word. `None` if the address is not a multiple of 8, if the word
    /// is not in one piece on the bus, or if the key does not open it.
    fn word(&self, env: &Env<'_>, (rkey, addr): (u32, u64), need: Access) -> Option<u64> {
        let mut place = None;
        let regions = &env.card.regions;
        let found = regions.translate(rkey, self.scope(), addr, 8, need, |s| place = Some(s));
        let word = place.filter(|s| found.is_ok() && s.len == 8 && s.addr.is_multiple_of(8));
        word.filter(|_| addr.is_multiple_of(8)).map(|s| s.addr)
    }

    /// Forgets the oldest answer if as many are kept as the peer may have outstanding
    /// (`max_dest_rd_atomic`).
    fn make_room(&mut self, env: &mut Env<'_>) -> Result<(), Refusal> {
        if self.cold.answers.len() < usize::from(self.cold.max_dest_rd_atomic) {
            return Ok(());
        }
        let oldest = env.card.answers.front(&self.cold.answers);
        // More requests at once than agreed are an invalid request. An answer that has left once
        // may go, even while it is repeated: a requester within the limit has received it, or it
        // would not ask for another.
        if oldest.is_none_or(|a| !a.answered) {
            env.card.counters.refused_too_many_reads += 1;
            let agreed = self.cold.max_dest_rd_atomic;
            return Err(Refusal::nak(Nak::InvalidRequest, Cause::TooManyReads { agreed }));
        }
        if env.card.answers.pop(&mut self.cold.answers).is_some_and(|a| a.is_pending()) {
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
        // The pool of all queue pairs' answers may be full for a while: the requester waits.
        if env.card.answers.push(&mut self.cold.answers, answer).is_none() {
            env.card.counters.pool_full += 1;
            return Err(Refusal::NotReady);
        }
        self.rx.pending += 1;
        debug_assert!(usize::from(self.rx.pending) <= self.cold.answers.len());
        self.rx.ends_with_answer = true;
        self.rx.msn = self.rx.msn.wrapping_add(1);
        Ok(())
    }

    /// A repeated READ is carried out again.
    pub(crate) fn answer_read_again(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let reth = packet.ext.reth;
        let mtu = u32::from(self.mtu);
        // It must be a READ that is kept, or a part of one: with the same key, at the address and
        // within the length that follow from its PSN, and ending on a boundary of the path MTU.
        // Anything else is dropped (`duplicate_request`).
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

    /// A repeated atomic is not carried out again: its saved result is sent again. If that is no
    /// longer kept, the duplicate is dropped (`duplicate_request`).
    pub(crate) fn answer_atomic_again(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let at = self.find_answer(env, packet.bth.psn);
        match env.card.answers.get(at).map(|kept| kept.asked) {
            Some(Asked::Atomic { .. }) => self.send_again(env, at, 0, 1),
            _ => env.card.counters.drop_stale_duplicate += 1,
        }
    }

    /// A repeated ATOMIC WRITE or FLUSH is not carried out again: its answer is sent again. If that
    /// is no longer kept, the duplicate is dropped (`duplicate_request`).
    pub(crate) fn answer_done_again(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let at = self.find_answer(env, packet.bth.psn);
        match env.card.answers.get(at).map(|kept| kept.asked) {
            Some(Asked::Done) => self.send_again(env, at, 0, 1),
            _ => env.card.counters.drop_stale_duplicate += 1,
        }
    }

    fn find_answer(&self, env: &Env<'_>, psn: Psn) -> Cursor {
        env.card.answers.find_last(&self.cold.answers, |a| a.holds(psn))
    }

    fn send_again(&mut self, env: &mut Env<'_>, at: Cursor, start: u32, end: u32) {
        let Some(answer) = env.card.answers.get_mut(at) else { return };
        if !answer.is_pending() {
            self.rx.pending += 1;
        }
        (answer.start, answer.next, answer.end) = (start, start, end);
    }

    /// Sends the answers to READs and atomics, oldest first, as far as the turn allows.
    #[inline(never)]
    pub(crate) fn send_answers(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) {
        while self.rx.pending > 0 && !budget.is_spent() {
            let at = env.card.answers.find(&self.cold.answers, Answer::is_pending);
            let Some(&answer) = env.card.answers.get(at) else { return };
            if let Err(error) = self.send_answer(env, batch, budget, &answer) {
                self.report_unreadable(env, &answer, error);
                let psn = answer.psn.plus(answer.next);
                if !answer.answered {
                    return self.break_answer(env, psn, Nak::RemoteAccess);
                }
                self.refuse_copy(env, batch, (at, psn));
                budget.spend(0);
                continue;
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

    /// Keeps an incident of an answer whose memory has gone since it was asked for.
    #[cold]
    fn report_unreadable(&self, env: &mut Env<'_>, answer: &Answer, error: AccessError) {
        error.count(&mut env.card.counters);
        let memory = match answer.asked {
            Asked::Read { addr, rkey, len, .. } => {
                Some(Touched { key: rkey, addr, len: len.into() })
            }
            Asked::Atomic { .. } | Asked::Done => None,
        };
        let outcome = Outcome::Refused(Nak::RemoteAccess);
        let blame = Blame { cause: Cause::Access(error), memory };
        let psn = answer.psn.plus(answer.next);
        self.report(env, outcome, (None, Some(psn)), blame);
    }

    /// Refuses the copy of a request that was answered before, from the response `psn` on. A peer
    /// that has its answer drops the NAK, as it would the response, and the key may have ended by
    /// then: so the connection goes on. A peer that has not fails.
    #[cold]
    fn refuse_copy(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        (at, psn): (Cursor, Psn),
    ) {
        self.push_acknowledge(env, batch, psn, Syndrome::Nak(Nak::RemoteAccess).byte());
        if let Some(answer) = env.card.answers.get_mut(at) {
            answer.next = answer.end;
            self.rx.pending -= 1;
        }
    }

    /// Sends one packet of an answer.
    fn send_answer(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
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
                    let regions = &env.card.regions;
                    let found =
                        regions.translate(rkey, scope, from, part, need, |s| segments.push(s));
                    found.inspect_err(|_| batch.rewind(mark))?;
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

    /// The response `psn` cannot be made: a NAK with its PSN is sent in its place, and no later
    /// response.
    pub(crate) fn break_answer(&mut self, env: &mut Env<'_>, psn: Psn, nak: Nak) {
        self.drop_answers(env);
        self.rx.breaking = false;
        self.rx.expected = psn;
        self.break_connection(env, nak);
    }

    /// Sends no more answers. An acknowledge that is owed still leaves, unless it would pass a
    /// READ or atomic that will not be answered.
    pub(crate) fn drop_answers(&mut self, env: &mut Env<'_>) {
        while env.card.answers.pop(&mut self.cold.answers).is_some() {}
        let unanswered = core::mem::take(&mut self.rx.pending) > 0;
        if unanswered && self.rx.reply == Owed::Acknowledge {
            self.rx.reply = Owed::Nothing;
        }
    }
}
