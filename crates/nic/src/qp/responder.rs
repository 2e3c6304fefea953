//! The responder: a peer's requests, judged and carried out in order.
//!
//! A request ahead of the expected PSN is told once what is missing; one behind it is a duplicate,
//! acknowledged or answered again; the expected one is checked against the op-code table, the
//! message it is part of, and memory, and only then changes anything.

use super::Qp;
use super::acknowledge::{Held, Owed};
use super::receive::Receive;
use super::refusal::Refusal;
use crate::env::Env;
use crate::event::Event;
use crate::incident::{Blame, Cause, Outcome, Touched};
use crate::memory::key::{Access, AccessError};
use crate::multi_queue::List;
use crate::psn::Psn;
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
    /// READs and atomics, answered or to be answered, oldest first.
    pub(crate) answers: List,
    /// How many of them are still to be sent.
    pub(crate) pending: u16,
    /// The last request was a READ or an atomic.
    pub(crate) ends_with_answer: bool,
    /// What the next acknowledge is to say.
    pub(crate) reply: Owed,
    /// The low bits of the PSN that all before has been acknowledged of.
    pub(crate) acknowledged: u16,
    /// Is an acknowledge held back?
    pub(crate) held: Held,
    /// So many acknowledges are not to be held back.
    pub(crate) prompt: u16,
    /// How often in a row one was held back in vain.
    pub(crate) vain: u8,
    /// A NAK was sent for the expected PSN: silence until it comes.
    pub(crate) nak_sent: bool,
    /// The connection ends as soon as the answers before the NAK, and the NAK, have left.
    pub(crate) breaking: bool,
    /// A congestion notification is owed.
    pub(crate) cnp_owed: bool,
    /// The message in progress, by its operation.
    pub(crate) current: Option<Operation>,
    /// A WRITE in progress: where its next byte goes.
    write_addr: u64,
    /// Its key; of an RPC WRITE, the invocation.
    pub(super) write_rkey: u32,
    /// Bytes of it still to come.
    pub(super) write_left: u32,
    /// Bytes of it in all.
    pub(super) write_total: u32,
    /// A SEND in progress: the receive element it fills.
    pub(crate) receive: Option<Receive>,
}

/// Where a packet of a WRITE goes.
struct Target {
    addr: u64,
    rkey: u32,
    /// Where that is on the bus, if it is in one piece.
    place: Option<u64>,
    /// Bytes of the packet's payload.
    len: u32,
}

impl Responder {
    pub(crate) fn new(expected: Psn) -> Responder {
        Responder {
            expected,
            msn: 0,
            answers: List::EMPTY,
            pending: 0,
            ends_with_answer: false,
            reply: Owed::Nothing,
            acknowledged: expected.value() as u16,
            held: Held::No,
            prompt: 0,
            vain: 0,
            nak_sent: false,
            breaking: false,
            cnp_owed: false,
            current: None,
            write_addr: 0,
            write_rkey: 0,
            write_left: 0,
            write_total: 0,
            receive: None,
        }
    }
}

impl Qp {
    /// A request on a reliable connection.
    pub(crate) fn handle_request(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        if self.rx.breaking {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        if psn.is_before(self.rx.expected) {
            self.handle_duplicate(env, packet);
            self.schedule(env.card);
            return;
        }
        if psn != self.rx.expected {
            env.card.counters.rx_out_of_sequence += 1;
            if !self.rx.nak_sent {
                self.refuse(env, Syndrome::Nak(Nak::PsnSequence));
            }
            return;
        }
        match self.execute(env, packet) {
            Ok(psns) => {
                self.rx.nak_sent = false;
                self.rx.expected = psn.plus(psns);
                env.card.counters.rx_bytes += packet.payload.len() as u64;
                let now_ready = matches!(self.rx.reply, Owed::Negative(syndrome)
                    if matches!(Syndrome::parse(syndrome), Syndrome::Rnr { .. }));
                if now_ready || packet.bth.ack_req && self.rx.reply == Owed::Nothing {
                    self.rx.reply = Owed::Acknowledge;
                }
                if self.rx.reply != Owed::Nothing || self.rx.pending > 0 {
                    self.schedule(env.card);
                }
            }
            Err(Refusal::NotReady) => {
                env.card.counters.tx_rnr_naks += 1;
                self.refuse(env, Syndrome::Rnr { timer: self.cold.min_rnr_timer });
            }
            Err(Refusal::Nak(nak, blame)) => {
                self.report_packet(env, Outcome::Refused(nak), packet, *blame);
                self.break_connection(env, nak);
            }
        }
    }

    /// Keeps what a refused packet was refused for.
    pub(super) fn report_packet(
        &self,
        env: &mut Env<'_>,
        outcome: Outcome,
        packet: &Packet<'_>,
        blame: Blame,
    ) {
        self.report(env, outcome, (Some(packet.op), Some(packet.bth.psn)), blame);
    }

    /// Owes the requester a NAK for the expected PSN; then silence until it comes.
    fn refuse(&mut self, env: &mut Env<'_>, syndrome: Syndrome) {
        self.rx.nak_sent = true;
        self.rx.reply = Owed::Negative(syndrome.byte());
        self.schedule(env.card);
    }

    /// A request that cannot be carried out ends the connection: the answers to those before it, a
    /// last NAK, then ERROR.
    pub(crate) fn break_connection(&mut self, env: &mut Env<'_>, nak: Nak) {
        self.refuse(env, Syndrome::Nak(nak));
        env.card.events.push_back(match nak {
            Nak::RemoteAccess => Event::QpAccessError(self.qpn),
            _ => Event::QpRequestError(self.qpn),
        });
        if let Some(receive) = self.rx.receive.take() {
            self.end_receive(env, &receive, Status::RemoteInvalidRequest);
        }
        if self.rx.pending > 0 {
            self.rx.breaking = true;
        } else {
            self.fail(env);
        }
    }

    fn handle_duplicate(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        env.card.counters.rx_duplicates += 1;
        match packet.op.operation {
            Operation::ReadRequest => self.answer_read_again(env, packet),
            Operation::CompareSwap | Operation::FetchAdd | Operation::Calculate => {
                self.answer_atomic_again(env, packet);
            }
            Operation::AtomicWrite | Operation::Flush => self.answer_done_again(env, packet),
            _ if self.rx.reply == Owed::Nothing => self.rx.reply = Owed::Acknowledge,
            _ => {}
        }
    }

    /// Carries out the expected request; returns how many PSNs it takes.
    fn execute(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) -> Result<u32, Refusal> {
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
            // Answers are the completer's; notifications do not come this way.
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

    /// May this packet follow the last one?
    pub(crate) fn follows(&self, packet: &Packet<'_>) -> bool {
        match self.rx.current {
            None => packet.op.position.begins(),
            Some(operation) => !packet.op.position.begins() && packet.op.operation == operation,
        }
    }

    /// FIRST and MIDDLE are full, LAST is not empty, none is longer than the path MTU.
    pub(crate) fn has_legal_length(&self, packet: &Packet<'_>) -> bool {
        use crate::wire::Position::{First, Last, Middle, Only};
        let (len, mtu) = (packet.payload.len(), usize::from(self.mtu));
        match packet.op.position {
            First | Middle => len == mtu,
            Last => (1..=mtu).contains(&len),
            Only => len <= mtu,
        }
    }

    pub(crate) fn execute_send(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let mut receive = self.take_receive(env)?;
        // Kept before anything can go wrong: whatever happens, its owner is told.
        self.rx.receive = Some(receive);
        self.fill(env, &mut receive, packet.payload)?;
        self.rx.receive = Some(receive);
        if packet.op.position.ends() {
            let invalidates = packet.op.follows.contains(Follows::IETH);
            if invalidates {
                let key = packet.ext.imm_or_key;
                let ended = env.card.regions.invalidate(key, self.scope());
                ended.map_err(|error| {
                    Refusal::access(env, error, Touched { key, addr: 0, len: 0 })
                })?;
            }
            self.rx.receive = None;
            self.complete_receive(env, &receive, packet, WorkKind::Recv, receive.filled);
        }
        Ok(1)
    }

    pub(crate) fn execute_write(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let len = packet.payload.len() as u32;
        let (addr, rkey, left, total) = if packet.op.position.begins() {
            let Reth { addr, rkey, len } = packet.ext.reth;
            (addr, rkey, len, len)
        } else {
            (self.rx.write_addr, self.rx.write_rkey, self.rx.write_left, self.rx.write_total)
        };
        if left < len || packet.op.position.ends() != (left == len) {
            let cause = Cause::Length { got: len.into(), expected: left.into() };
            return Err(Refusal::invalid(env, cause));
        }
        // The whole range is judged before its first byte is written, and a receive element is
        // taken only when nothing but the driver can still refuse the data.
        let judged = if packet.op.position.begins() { total } else { len };
        let place = self.check_remote(env, rkey, addr, judged.into(), Access::REMOTE_WRITE)?;
        let imm = packet.op.follows.contains(Follows::IMM);
        let receive = if imm { Some(self.take_receive(env)?) } else { None };
        let to = Target { addr, rkey, place, len };
        let written = if env.card.kernel.taps > 0 && len > 0 {
            self.write_through_tap(env, &to, (total - left, total), packet.payload)
        } else {
            self.write_payload(env, &to, packet.payload)
        };
        if let Err(refusal) = written {
            self.rx.receive = receive;
            return Err(refusal);
        }
        if left > len {
            let (key, next) = ((rkey, self.scope()), (left - len).min(self.mtu.into()));
            env.prefetch(key, addr.wrapping_add(len.into()), next, Access::REMOTE_WRITE);
        }
        self.rx.write_addr = addr.wrapping_add(u64::from(len));
        (self.rx.write_rkey, self.rx.write_left, self.rx.write_total) = (rkey, left - len, total);
        debug_assert!(self.rx.write_left < total || total == 0);
        if let Some(receive) = receive {
            self.complete_receive(env, &receive, packet, WorkKind::RecvWriteImm, total);
        }
        Ok(1)
    }

    /// Writes what the bound kernel lets through of a WRITE's payload.
    #[inline(never)]
    fn write_through_tap(
        &mut self,
        env: &mut Env<'_>,
        to: &Target,
        place: (u32, u32),
        payload: &[u8],
    ) -> Result<(), Refusal> {
        // Lent out of the card, and back whatever comes of it: its allocation is used again.
        let mut replaced = core::mem::take(&mut env.card.kernel.replaced);
        let tapped = self.tap_write(env, (to.addr, to.rkey), place, payload, &mut replaced);
        let written =
            tapped.and_then(|passed| self.write_payload(env, to, passed.unwrap_or_default()));
        env.card.kernel.replaced = replaced;
        written
    }

    /// Writes a WRITE's payload, which has been judged, to where it is to go.
    #[inline(always)]
    fn write_payload(&self, env: &mut Env<'_>, to: &Target, payload: &[u8]) -> Result<(), Refusal> {
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

    /// Does the key open this range to the peer, on this queue pair? An empty range needs no key.
    /// If so: where on the bus the range lies, if in one piece.
    pub(crate) fn check_remote(
        &self,
        env: &mut Env<'_>,
        rkey: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Option<u64>, Refusal> {
        let memory = Touched { key: rkey, addr, len };
        if !self.access.contains(need) {
            return Err(Refusal::not_permitted(env, memory));
        }
        if len == 0 {
            return Ok(None);
        }
        let place = env.card.regions.locate(rkey, self.scope(), addr, len, need);
        place.map_err(|error| Refusal::access(env, error, memory))
    }
}
