//! The responder: checks a peer's requests and carries them out in order.
//!
//! The PSN decides first. A request ahead of the expected PSN shows that a packet is missing, and
//! is answered by one NAK; a request behind it is a duplicate, and is acknowledged or answered
//! again. The expected request is checked against the message that it is part of, its length, and
//! memory, in this order, and changes nothing before it has passed.
//!
//! The rules are those of InfiniBand volume 1, chapter 9 (Transport Layer). A check that names a
//! function does what that function of soft-RoCE does (Linux, `drivers/infiniband/sw/rxe/`, here
//! `rxe_resp.c`). StRoM §4.1 describes the same checks in hardware. READs, atomics and FLUSHes are
//! in [`super::answers`], receive elements in [`super::receive`], acknowledges in
//! [`super::acknowledge`]. Requests of the lossy dialect come in by
//! [`super::lossy`], which carries them out with the same functions.

use super::Qp;
use super::acknowledge::{HeldAck, Owed};
use super::refusal::Refusal;
use crate::env::Env;
use crate::event::Event;
use crate::incident::{Blame, Cause, Outcome, Touched};
use crate::memory::key::{Access, AccessError};
use crate::psn::Psn;
use crate::queue::element::MAX_MESSAGE;
use crate::queue::{Status, WorkKind};
use crate::wire::opcode::Follows;
use crate::wire::{Nak, Operation, Packet, Reth, Syndrome};

/// The responder's hot state.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN expected next.
    pub(crate) expected: Psn,
    /// Messages completed, 24 bits.
    pub(crate) msn: u32,
    /// How many of the READs and atomics that are kept have packets still to be sent.
    pub(crate) pending: u16,
    /// The last request was a READ or an atomic.
    pub(crate) ends_with_answer: bool,
    /// What the next acknowledge says.
    pub(crate) reply: Owed,
    /// The low bits of a PSN: every request before it has been acknowledged.
    pub(crate) acknowledged: u16,
    /// Is an acknowledge held back?
    pub(crate) held: HeldAck,
    /// How many of the next acknowledges must not be held back.
    pub(crate) prompt: u16,
    /// How many times in a row holding an acknowledge back saved no packet.
    pub(crate) vain: u8,
    /// A NAK was sent for the expected PSN; no other follows until the expected request comes.
    pub(crate) nak_sent: bool,
    /// The connection ends as soon as the answers before the NAK, and the NAK, have left.
    pub(crate) breaking: bool,
    /// A congestion notification must be sent.
    pub(crate) cnp_owed: bool,
    /// The operation of the message in progress.
    pub(crate) current: Option<Operation>,
}

/// What is still to come of a WRITE or RPC WRITE in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    /// Of a WRITE: where its next byte goes.
    pub(super) addr: u64,
    /// Of a WRITE: its key. Of an RPC WRITE: the invocation.
    pub(super) key: u32,
    /// The bytes still to come.
    pub(super) left: u32,
    /// The bytes of the whole message.
    pub(super) total: u32,
}

/// Where the payload of a WRITE's packet goes.
pub(super) struct Target {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    /// The bus address of the range, if it is in one piece.
    pub(super) place: Option<u64>,
    /// Bytes of the packet's payload.
    pub(super) len: u32,
}

impl Responder {
    pub(crate) fn new(expected: Psn) -> Responder {
        Responder {
            expected,
            msn: 0,
            pending: 0,
            ends_with_answer: false,
            reply: Owed::Nothing,
            acknowledged: expected.value() as u16,
            held: HeldAck::No,
            prompt: 0,
            vain: 0,
            nak_sent: false,
            breaking: false,
            cnp_owed: false,
            current: None,
        }
    }
}

impl Qp {
    /// A request on a reliable connection.
    pub(crate) fn handle_request(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        // After a refusal the connection carries out nothing more: all that is left to send are
        // the answers before it and the NAK.
        if self.rx.breaking {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        // A PSN behind the expected one is a duplicate, and is never executed as a new request
        // (`check_psn`; StRoM §4.1).
        if psn.is_before(self.rx.expected) {
            self.handle_duplicate(env, packet);
            self.schedule(env.card);
            return;
        }
        // A PSN ahead of the expected one shows a loss: one NAK names the expected PSN, and all
        // further packets are dropped in silence until that one comes (`check_psn`).
        if psn != self.rx.expected {
            env.card.counters.rx_out_of_sequence += 1;
            if !self.rx.nak_sent {
                self.refuse(env, Syndrome::Nak(Nak::PsnSequence));
            }
            return;
        }
        // A SEND that ends a key comes again when the answers before it have left: what READs asked
        // for is looked up by their keys until then. The NAK waits for the answers.
        if self.rx.pending > 0 && packet.op.follows.contains(Follows::IETH) {
            return self.refuse(env, Syndrome::Nak(Nak::PsnSequence));
        }
        match self.execute(env, packet) {
            Ok(psns) => {
                self.rx.nak_sent = false;
                self.rx.expected = psn.plus(psns);
                env.card.counters.rx_bytes += packet.payload.len() as u64;
                // An RNR NAK that has not left yet is out of date: its request has been done.
                let now_ready = matches!(self.rx.reply, Owed::Negative(syndrome)
                    if matches!(Syndrome::parse(syndrome), Syndrome::Rnr { .. }));
                if now_ready || packet.bth.ack_req && self.rx.reply == Owed::Nothing {
                    self.rx.reply = Owed::Acknowledge;
                }
                if self.rx.reply != Owed::Nothing || self.rx.pending > 0 {
                    self.schedule(env.card);
                }
            }
            // A receiver that is not ready says how long the requester waits; the connection
            // stays, and the request is repeated with the same PSN.
            Err(Refusal::NotReady) => {
                env.card.counters.tx_rnr_naks += 1;
                self.refuse(env, Syndrome::Rnr { timer: self.cold.min_rnr_timer });
            }
            // Any other refusal ends the connection: the requester is told why by a NAK, and both
            // queue pairs go to ERROR.
            Err(Refusal::Nak(nak, blame)) => {
                self.report_packet(env, Outcome::Refused(nak), packet, *blame);
                self.break_connection(env, nak);
            }
        }
    }

    /// Keeps an incident that says why a packet was refused.
    pub(super) fn report_packet(
        &self,
        env: &mut Env<'_>,
        outcome: Outcome,
        packet: &Packet<'_>,
        blame: Blame,
    ) {
        self.report(env, outcome, (Some(packet.op), Some(packet.bth.psn)), blame);
    }

    /// Owes the requester a NAK for the expected PSN. No other NAK follows until that request
    /// comes.
    pub(super) fn refuse(&mut self, env: &mut Env<'_>, syndrome: Syndrome) {
        self.rx.nak_sent = true;
        self.rx.reply = Owed::Negative(syndrome.byte());
        self.schedule(env.card);
    }

    /// A request that cannot be carried out ends the connection: the answers to the requests before
    /// it leave, then a last NAK, and the queue pair goes to ERROR.
    pub(crate) fn break_connection(&mut self, env: &mut Env<'_>, nak: Nak) {
        self.end_passes(env.card);
        self.refuse(env, Syndrome::Nak(nak));
        env.card.events.push_back(match nak {
            Nak::RemoteAccess => Event::QpAccessError(self.qpn),
            _ => Event::QpRequestError(self.qpn),
        });
        // A receive element that the refused message has taken completes with an error, so that
        // the application gets its buffer back.
        if let Some(receive) = self.take_kept() {
            self.end_receive(env, &receive, Status::RemoteInvalidRequest);
        }
        if self.rx.pending > 0 || self.owes_lossy_answers() {
            self.rx.breaking = true;
        } else {
            self.fail(env);
        }
    }

    /// A duplicate shows that its answer was lost or is late. SEND and WRITE are acknowledged again
    /// and not carried out again, a READ is carried out again, an atomic is answered from its saved
    /// result (`duplicate_request`).
    fn handle_duplicate(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        env.card.counters.rx_duplicates += 1;
        match packet.op.operation {
            Operation::ReadRequest => self.answer_read_again(env, packet),
            Operation::CompareSwap | Operation::FetchAdd | Operation::Calculate => {
                self.answer_atomic_again(env, packet);
            }
            Operation::AtomicWrite | Operation::Flush => self.answer_done_again(env, packet),
            _ if self.rx.reply == Owed::Nothing => self.rx.reply = Owed::Acknowledge,
            // What is owed already says at least as much.
            _ => {}
        }
    }

    /// Carries out the expected request; returns how many PSNs it takes.
    fn execute(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) -> Result<u32, Refusal> {
        // A packet that cannot follow the last one, or whose length its position forbids, is an
        // invalid request (`check_op_seq`, `check_length`).
        if !self.follows(packet) || !self.has_legal_length(packet) {
            return Err(Refusal::invalid(env, Cause::Sequence));
        }
        let psns = match packet.op.operation {
            Operation::Send => self.execute_send(env, packet)?,
            Operation::Write => self.execute_write(env, packet)?,
            Operation::ReadRequest => return self.execute_read(env, packet),
            Operation::CompareSwap | Operation::FetchAdd | Operation::Calculate => {
                return self.execute_atomic(env, packet);
            }
            Operation::AtomicWrite => return self.execute_atomic_write(env, packet),
            Operation::Flush => return self.execute_flush(env, packet),
            Operation::Rpc | Operation::RpcWrite => self.execute_rpc(env, packet)?,
            // An op-code that is no request is an invalid request. None arrives here: answers go to
            // the completer, and congestion notifications are taken before.
            _ => return Err(Refusal::invalid(env, Cause::Sequence)),
        };
        self.rx.ends_with_answer = false;
        if packet.op.position.ends() {
            self.rx.current = None;
            self.rx.msn = self.rx.msn.wrapping_add(1);
        } else {
            self.rx.current = Some(packet.op.operation);
        }
        Ok(psns)
    }

    /// May this packet follow the last one? Between messages only a FIRST or ONLY may come; within
    /// a message only a MIDDLE or LAST of the same operation (`check_op_seq`).
    pub(crate) fn follows(&self, packet: &Packet<'_>) -> bool {
        match self.rx.current {
            None => packet.op.position.begins(),
            Some(operation) => !packet.op.position.begins() && packet.op.operation == operation,
        }
    }

    /// FIRST and MIDDLE carry exactly the path MTU, LAST at least one byte, and no packet carries
    /// more than the path MTU (`check_length`).
    pub(crate) fn has_legal_length(&self, packet: &Packet<'_>) -> bool {
        use crate::wire::Position::{First, Last, Middle, Only};
        let (len, mtu) = (packet.payload.len(), usize::from(self.mtu));
        match packet.op.position {
            First | Middle => len == mtu,
            Last => (1..=mtu).contains(&len),
            Only => len <= mtu,
        }
    }

    /// No message is longer than 2^31 bytes (`check_length`).
    #[inline]
    pub(super) fn check_total(env: &mut Env<'_>, len: u32) -> Result<(), Refusal> {
        if len > MAX_MESSAGE {
            let cause = Cause::Length { got: len.into(), expected: u64::from(MAX_MESSAGE) };
            return Err(Refusal::invalid(env, cause));
        }
        Ok(())
    }

    pub(crate) fn execute_send(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        // A SEND needs a receive element; without one the receiver is not ready (`check_resource`).
        let mut receive = self.take_receive(env)?;
        self.fill(env, &mut receive, packet.payload)?;
        if !packet.op.position.ends() {
            self.keep_receive(receive);
            return Ok(1);
        }
        // SEND WITH INVALIDATE ends the use of a key that the peer was given. A key that it may not
        // end is an access error, and the receive completes with an error when the connection ends.
        if packet.op.follows.contains(Follows::IETH) {
            let key = packet.ext.imm_or_key;
            if let Err(error) = env.card.regions.invalidate(key, self.scope()) {
                self.keep_receive(receive);
                return Err(Refusal::access(env, error, Touched { key, addr: 0, len: 0 }));
            }
        }
        self.complete_receive(env, &receive, packet, WorkKind::Recv, receive.filled);
        Ok(1)
    }

    pub(crate) fn execute_write(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let len = packet.payload.len() as u32;
        // Only the first packet names a place; the others continue where the last one ended
        // (StRoM §4.1, MSN table).
        let (addr, rkey, left, total) = if packet.op.position.begins() {
            let Reth { addr, rkey, len } = packet.ext.reth;
            Self::check_total(env, len)?;
            (addr, rkey, len, len)
        } else {
            let Rest { addr, key, left, total } = self.cold.rest;
            (addr, key, left, total)
        };
        // The payloads of a WRITE add up to the length that its first packet named, and the last
        // packet completes it: neither more bytes nor fewer (`check_rkey`).
        if left < len || packet.op.position.ends() != (left == len) {
            let cause = Cause::Length { got: len.into(), expected: left.into() };
            return Err(Refusal::invalid(env, cause));
        }
        // The key must open the whole range before the first byte is written (`check_rkey`). Each
        // later packet's part is checked again, since the owner may end the key meanwhile.
        let judged = if packet.op.position.begins() { total } else { len };
        let place = self.check_remote(env, rkey, addr, judged.into(), Access::REMOTE_WRITE)?;
        // WRITE WITH IMMEDIATE takes a receive element (`check_resource`), and takes it last: from
        // here on only memory or a bound kernel can refuse the data.
        let imm = packet.op.follows.contains(Follows::IMM);
        let receive = if imm { Some(self.take_receive(env)?) } else { None };
        let to = Target { addr, rkey, place, len };
        let written = if env.card.kernel.taps > 0 && len > 0 {
            self.write_through_tap(env, &to, (total - left, total), packet.payload)
        } else {
            self.write_payload(env, &to, packet.payload)
        };
        // A refused WRITE keeps its receive element: it completes with the connection's error, or
        // serves the request when it is repeated.
        if let Err(refusal) = written {
            receive.into_iter().for_each(|receive| self.keep_receive(receive));
            return Err(refusal);
        }
        if left > len {
            let (addr, left) = (addr.wrapping_add(len.into()), left - len);
            debug_assert!(left < total);
            let (key, next) = ((rkey, self.scope()), left.min(self.mtu.into()));
            env.prefetch(key, addr, next, Access::REMOTE_WRITE);
            self.cold.rest = Rest { addr, key: rkey, left, total };
        }
        if let Some(receive) = receive {
            self.complete_receive(env, &receive, packet, WorkKind::RecvWriteImm, total);
        }
        Ok(1)
    }

    /// Writes the part of a WRITE's payload that the bound kernel lets through.
    #[inline(never)]
    pub(super) fn write_through_tap(
        &mut self,
        env: &mut Env<'_>,
        to: &Target,
        place: (u32, u32),
        payload: &[u8],
    ) -> Result<(), Refusal> {
        // The buffer is lent out of the card and given back in every case, so that its allocation
        // is used again.
        let mut replaced = core::mem::take(&mut env.card.kernel.replaced);
        let tapped = self.tap_write(env, (to.addr, to.rkey), place, payload, &mut replaced);
        let written =
            tapped.and_then(|passed| self.write_payload(env, to, passed.unwrap_or_default()));
        env.card.kernel.replaced = replaced;
        written
    }

    /// Writes a WRITE's payload, which has passed all checks. Memory that has gone away meanwhile
    /// refuses the request.
    #[inline(always)]
    pub(super) fn write_payload(
        &self,
        env: &mut Env<'_>,
        to: &Target,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let Target { addr, rkey, place, len } = *to;
        if payload.is_empty() {
            return Ok(());
        }
        let written = match place {
            Some(at) => env.mem.write(at, payload).map_err(|_| AccessError::Memory),
            None => env.write_region((rkey, self.scope()), addr, payload, Access::REMOTE_WRITE),
        };
        written.map_err(|error| {
            Refusal::access(env, error, Touched { key: rkey, addr, len: len.into() })
        })
    }

    /// Does the key open this range to the peer, on this queue pair? If so: the bus address of the
    /// range, if it is in one piece.
    pub(crate) fn check_remote(
        &self,
        env: &mut Env<'_>,
        rkey: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Option<u64>, Refusal> {
        let memory = Touched { key: rkey, addr, len };
        // The queue pair must permit the operation to its peer, whatever the key permits.
        if !self.access.contains(need) {
            return Err(Refusal::not_permitted(env, memory));
        }
        // A request for no bytes needs no key (`check_rkey`).
        if len == 0 {
            return Ok(None);
        }
        // The key must exist, be of this protection domain, permit the operation, and hold the
        // whole range (`check_rkey`); otherwise the NAK is "remote access error".
        let place = env.card.regions.locate(rkey, self.scope(), addr, len, need);
        place.map_err(|error| Refusal::access(env, error, memory))
    }
}
