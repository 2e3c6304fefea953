//! READs, atomics, ATOMIC WRITEs and FLUSHes in the lossy dialect, on both sides.
//!
//! A request takes one PSN. Its answer is a message of the stream back, which names the request by
//! its PSN; it is acknowledged and sent again like any other message. So a request is carried out
//! once, and no answer is kept for duplicates.

use super::receiver::Taken;
use super::{Ask, Owing};
use crate::env::Env;
use crate::incident::{Cause, Outcome};
use crate::memory::Calc;
use crate::memory::key::AccessError;
use crate::psn::Psn;
use crate::qp::answers::Atomic;
use crate::qp::refusal::Refusal;
use crate::qp::{Qp, State};
use crate::queue::element::Element;
use crate::queue::outstanding::{Answering, Origin, Outstanding};
use crate::queue::{Opcode, SendFlags, Sge, Status};
use crate::wire::{AtomicEth, Leth, Nak, Operation, Packet, Reth};

/// The responder's side.
impl Qp {
    /// Carries out the expected request, whose answer is then owed.
    pub(super) fn owe_answer(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        // More requests at once than agreed are an invalid request. Answers that have been begun do
        // not count: the requester may have them already.
        let agreed = self.cold.max_dest_rd_atomic;
        if self.lossy().owed.len() >= usize::from(agreed) {
            env.card.counters.refused_too_many_reads += 1;
            return Err(Refusal::nak(Nak::InvalidRequest, Cause::TooManyReads { agreed }));
        }
        // An answer takes PSNs of the stream back, which has not begun.
        if self.state == State::Rtr {
            return Err(Refusal::NotReady);
        }
        let psn = packet.bth.psn;
        let done = Owing { psn, what: Answering::Done, addr: 0, rkey: 0, len: 0, original: 0 };
        let owing = match packet.op.operation {
            Operation::ReadRequest => {
                let Reth { addr, rkey, len } = packet.ext.reth;
                self.judge_read(env, &packet.ext.reth)?;
                Owing { what: Answering::Read, addr, rkey, len, ..done }
            }
            Operation::AtomicWrite => {
                self.store_word(env, packet)?;
                done
            }
            Operation::Flush => {
                self.judge_flush(env, packet)?;
                done
            }
            Operation::CompareSwap | Operation::FetchAdd | Operation::Calculate => {
                let AtomicEth { addr, rkey, .. } = packet.ext.atomic;
                let atomic = Atomic::asked(env, packet)?;
                let original = self.execute_word(env, (rkey, addr), atomic)?;
                Owing { what: Answering::Atomic, original, ..done }
            }
            // An op-code that is no request is an invalid request, as in the standard dialect.
            _ => return Err(Refusal::invalid(env, Cause::Sequence)),
        };
        self.lossy_mut().owed.push_back(owing);
        self.schedule(env.card);
        Ok(())
    }

    /// Begins the next answer that is owed, if there is one: a message in the place of the next
    /// request, none of whose packets has left. Returns whether it was begun.
    pub(super) fn begin_answer(&mut self, env: &mut Env<'_>) -> bool {
        let next = env.card.outstanding.get(self.tx.cursor);
        if next.is_some_and(|work| work.psn != self.tx.next) {
            return false;
        }
        if !self.lossy().may_begin_answer(self.cold.max_dest_rd_atomic) {
            return false;
        }
        let Some(owing) = self.lossy_mut().owed.pop_front() else { return false };
        let Owing { psn, what, addr, rkey, len, original } = owing;
        let work = Outstanding {
            element: Element {
                opcode: Opcode::Write,
                flags: SendFlags::empty(),
                num_sge: 0,
                key: rkey,
                remote: addr,
                operand: original,
                compare: psn.value().into(),
                srqn: 0,
                wr_id: 0,
                sge: Sge::default(),
                len,
            },
            more: None,
            index: 0,
            psn: self.tx.next,
            packets: len.div_ceil(u32::from(self.mtu)).max(1),
            ssn: psn.value(),
            failed: None,
            origin: Origin::Answer(what),
        };
        // The pool's limit does not count answers. They stay until a peer acknowledges them, which
        // may have gone for ever, and may itself wait for room.
        let cursor = self.tx.cursor;
        let lossy = self.lossy_mut();
        lossy.answer = env.card.outstanding.push_beyond(&mut lossy.answers, work);
        if let Some(next) = env.card.outstanding.get_mut(cursor) {
            next.psn = work.end();
        }
        true
    }

    /// The memory of an answer's packet has gone. If the packet has left before, the peer may have
    /// had it, and may have ended the key itself: it is asked, and the connection ends only if it
    /// has not. Answers before this one are sent, as the NAK is about the oldest request that has
    /// none.
    pub(crate) fn fail_lossy_answer(&mut self, env: &mut Env<'_>, psn: Psn, error: AccessError) {
        let una = self.tx.una;
        let lossy = self.lossy_mut();
        if lossy.departures.ask_for(una, psn) {
            lossy.question = true;
            return self.schedule(env.card);
        }
        error.count(&mut env.card.counters);
        let (nak, packet) = (Nak::RemoteAccess, (None, Some(psn)));
        self.report(env, Outcome::Refused(nak), packet, Cause::Access(error));
        self.lossy_mut().drop_answers_from(env.card, psn);
        self.break_connection(env, nak);
    }
}

/// The requester's side.
impl Qp {
    /// Notes that a request leaves whose answer is a message of its own.
    pub(super) fn ask(&mut self, work: &Outstanding) {
        let (psn, cursor) = (work.psn, self.tx.cursor);
        let left = match work.element.opcode {
            Opcode::Read => work.element.len.div_ceil(u32::from(self.mtu)).max(1),
            _ => 1,
        };
        self.tx.reads += 1;
        self.lossy_mut().asks.push_back(Ask { psn, cursor, left, first: None });
    }

    /// Is the answer to the request with this PSN still missing?
    pub(super) fn awaits(&self, work: &Outstanding) -> bool {
        self.lossy().asks.iter().any(|ask| ask.psn == work.psn)
    }

    /// Takes a packet of an answer, in whatever order it comes.
    pub(super) fn take_answer(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        leth: Leth,
    ) -> Result<Taken, Refusal> {
        let first = packet.bth.psn.minus(leth.offset);
        let asks = &mut self.lossy_mut().asks;
        let found = asks.iter().position(|ask| ask.psn.value() == leth.ssn);
        let ask = found.and_then(|at| Some((at, asks.get_mut(at)?)));
        // An answer names a request that waits for one, and there is one answer to each.
        let Some((at, ask)) = ask.filter(|(_, ask)| ask.first.is_none_or(|f| f == first)) else {
            env.card.counters.drop_ghost_response += 1;
            return Err(Refusal::invalid(env, Cause::Sequence));
        };
        ask.first = Some(first);
        ask.left = ask.left.saturating_sub(1);
        let (left, cursor) = (ask.left, ask.cursor);
        let Some(&work) = env.card.outstanding.get(cursor) else { return Ok(Taken::Done) };
        if work.failed.is_none() {
            self.place_answer(env, packet, leth, (cursor, &work));
        }
        if left == 0 {
            self.lossy_mut().asks.remove(at);
            self.tx.reads = self.tx.reads.saturating_sub(1);
            self.complete_lossy(env);
            self.schedule(env.card);
        }
        // This request, or a later one whose answer has come before.
        self.settle_failures(env);
        Ok(Taken::Done)
    }

    /// Writes an answer's bytes to the memory that the request's entries name. If they do not fit
    /// the request, or their memory has gone, the request fails in its turn.
    fn place_answer(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        leth: Leth,
        (cursor, work): (crate::multi_queue::Cursor, &Outstanding),
    ) {
        let opcode = work.element.opcode;
        let atomic = packet.op.operation == Operation::AtomicAcknowledge;
        let reads = opcode == Opcode::Read;
        let len = if reads { work.element.len } else { 0 };
        let offset = u64::from(leth.offset) * u64::from(self.mtu);
        let end = offset + packet.payload.len() as u64;
        let ends = packet.op.position.ends() == (end == u64::from(len));
        let fits = if atomic { opcode.is_atomic() } else { !opcode.is_atomic() && ends };
        // An atomic acknowledge answers an atomic, and READ responses anything else. Their payloads
        // add up to the length of the READ (to nothing for an ATOMIC WRITE or FLUSH, annex A19),
        // and the last one completes it. Another answer is none to what was asked, and ends the
        // request.
        let failure = if !fits || end > len.into() {
            env.card.counters.bad_responses += 1;
            let (got, expected) = (end, len.into());
            Some((Status::BadResponse, Cause::Length { got, expected }))
        } else {
            // In memory the word has the host's byte order, on both sides.
            let word = packet.ext.atomic_ack.to_ne_bytes();
            let bytes = if atomic { &word } else { packet.payload };
            let placed = self.scatter(env, work, offset as u32, bytes);
            placed.err().map(|error| (Status::LocalProtection, Cause::Access(error)))
        };
        if let Some((status, cause)) = failure {
            if let Some(work) = env.card.outstanding.get_mut(cursor) {
                work.failed = Some(status);
            }
            let about = (Some(packet.op), Some(packet.bth.psn));
            self.report(env, work.fails_with(status), about, cause);
        }
    }
}

impl Atomic {
    /// What a request asks for.
    fn asked(env: &mut Env<'_>, packet: &Packet<'_>) -> Result<Atomic, Refusal> {
        let AtomicEth { swap_add, compare, .. } = packet.ext.atomic;
        match packet.op.operation {
            Operation::CompareSwap => Ok(Atomic::CompareSwap { compare, swap: swap_add }),
            Operation::FetchAdd => Ok(Atomic::Calculate(Calc::Add, swap_add)),
            _ => match Calc::numbered(compare) {
                Some(calc) => Ok(Atomic::Calculate(calc, swap_add)),
                // A calc verb without that number is an invalid request.
                None => Err(Refusal::invalid(env, Cause::UnknownOpcode(packet.op.code))),
            },
        }
    }
}
