//! Takes the packets of the lossy dialect: places their payload when they arrive, and does in order
//! what must be done in order.
//!
//! A packet is first made part of its message ([`Arrivals::join`](super::arrivals::Arrivals)), then
//! placed, then it has its effect: at once if it is the expected one, else when its turn comes.
//! What cannot be placed alone (READs, atomics, calls, what passes a kernel) waits whole.
//!
//! Only the expected packet can be refused, as its requester knows only then which request it is
//! about. Another one that would be refused is dropped and comes again. The checks of a request are
//! those of [`crate::qp::responder`].

use super::arrivals::{AHEAD, Stray};
use crate::env::Env;
use crate::incident::{Blame, Cause, Outcome, Touched};
use crate::memory::key::Access;
use crate::psn::{HALF, Psn};
use crate::qp::Qp;
use crate::qp::acknowledge::Owed;
use crate::qp::receive::Receive;
use crate::qp::refusal::Refusal;
use crate::qp::responder::Target;
use crate::queue::element::MAX_MESSAGE;
use crate::queue::{Status, WorkKind};
use crate::transmit::{Datagram, Ecn};
use crate::wire::opcode::Follows;
use crate::wire::{Leth, Nak, Operation, Packet, Reth, Syndrome};

/// The most receive elements that one packet has taken: so many messages of one packet may be
/// missing in a row before it.
const RECEIVES_AT_ONCE: usize = 1024;

/// What has become of a packet.
pub(super) enum Taken {
    /// Its payload, if any, is in its place; the length of its message so far.
    Placed(u32),
    /// It cannot be placed before its turn.
    Whole,
    /// It has had all its effect.
    Done,
}

/// The difference of two 24-bit sequence numbers.
fn distance(a: u32, b: u32) -> u32 {
    Psn::new(a).distance_from(Psn::new(b))
}

/// A packet that would have to be remembered is dropped: it does not count as arrived.
fn no_room(env: &mut Env<'_>) -> Result<bool, Refusal> {
    env.card.counters.drop_ahead_full += 1;
    Ok(false)
}

impl Qp {
    /// A packet of the lossy dialect.
    #[inline(never)]
    pub(crate) fn handle_lossy(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        outer: &Datagram<'_>,
    ) {
        let marked = Ecn::from_tos(outer.tos) == Ecn::Congested;
        env.card.counters.rx_ecn_marked += u64::from(marked);
        if packet.op.operation == Operation::Acknowledge {
            return self.handle_lossy_acknowledge(env, packet);
        }
        // Every packet but an acknowledge has a LETH (docs/lossy.md, On the wire).
        let Some(leth) = packet.ext.leth else { return };
        // After a refusal the connection carries out nothing more: all that is left to send are
        // the answers before it and the NAK, as in the standard dialect.
        if self.rx.breaking {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        self.heard(env);
        self.lossy_mut().arrivals.note(packet, leth, env.now, marked);
        self.receive_lossy(env, packet, leth);
        let lossy = self.lossy();
        let tells =
            packet.bth.ack_req || !lossy.arrivals.arrived.is_empty() || lossy.arrivals.last.copy;
        if tells && self.rx.reply == Owed::Nothing {
            self.rx.reply = Owed::Acknowledge;
        }
        if self.rx.reply != Owed::Nothing {
            self.schedule(env.card);
        }
    }

    fn receive_lossy(&mut self, env: &mut Env<'_>, packet: &Packet<'_>, leth: Leth) {
        let ahead = packet.bth.psn.distance_from(self.rx.expected);
        // A PSN behind the expected one, or one that has arrived, is a copy, and is never carried
        // out again.
        let arrivals = &mut self.lossy_mut().arrivals;
        if ahead >= HALF || arrivals.arrived.get(ahead) {
            arrivals.last.copy = true;
            env.card.counters.rx_duplicates += 1;
            return;
        }
        if ahead > 0 {
            env.card.counters.rx_out_of_sequence += 1;
        }
        // Farther ahead than is remembered: it comes again.
        if ahead >= AHEAD {
            env.card.counters.drop_far_ahead += 1;
            return;
        }
        match self.take_lossy(env, packet, leth, ahead) {
            Ok(false) => {}
            Ok(true) if ahead > 0 => {
                env.card.counters.rx_bytes += packet.payload.len() as u64;
                _ = self.lossy_mut().arrivals.arrived.set(ahead);
            }
            Ok(true) => {
                env.card.counters.rx_bytes += packet.payload.len() as u64;
                self.pass_expected(env);
            }
            // It is dropped, and refused when it comes in its turn.
            Err(_) if ahead > 0 => env.card.counters.drop_early += 1,
            Err(refusal) => self.refuse_expected(env, packet, refusal),
        }
    }

    /// Refuses the expected packet.
    fn refuse_expected(&mut self, env: &mut Env<'_>, packet: &Packet<'_>, refusal: Refusal) {
        match refusal {
            Refusal::NotReady => {
                env.card.counters.tx_rnr_naks += 1;
                self.refuse(env, Syndrome::Rnr { timer: self.cold.min_rnr_timer });
            }
            Refusal::Nak(nak, blame) => {
                self.report_packet(env, Outcome::Refused(nak), packet, *blame);
                self.break_connection(env, nak);
            }
        }
    }

    /// The expected packet has been carried out: so are those behind it that have arrived.
    fn pass_expected(&mut self, env: &mut Env<'_>) {
        loop {
            // An RNR NAK that has not left yet is out of date.
            let now_ready = matches!(self.rx.reply, Owed::Negative(syndrome)
                if matches!(Syndrome::parse(syndrome), Syndrome::Rnr { .. }));
            if now_ready {
                self.rx.reply = Owed::Acknowledge;
            }
            self.rx.nak_sent = false;
            self.rx.expected = self.rx.expected.plus(1);
            let expected = self.rx.expected;
            let arrivals = &mut self.lossy_mut().arrivals;
            if !arrivals.advance(expected) {
                return;
            }
            // What was missing has come: the requester waits to hear it.
            let Some(waiting) = arrivals.take_waiting(expected) else {
                self.owe_acknowledge();
                continue;
            };
            let packet = waiting.packet();
            if let Err(refusal) = self.effect(env, &packet, waiting.len) {
                self.lossy_mut().arrivals.arrived.clear_base();
                return self.refuse_expected(env, &packet, refusal);
            }
            self.owe_acknowledge();
        }
    }

    fn owe_acknowledge(&mut self) {
        if self.rx.reply == Owed::Nothing {
            self.rx.reply = Owed::Acknowledge;
        }
    }

    /// Takes a packet that has not come before. Returns whether it counts as arrived.
    fn take_lossy(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        leth: Leth,
        ahead: u32,
    ) -> Result<bool, Refusal> {
        // FIRST and MIDDLE carry exactly the path MTU, and so on, as in the standard dialect.
        if !self.has_legal_length(packet) {
            return Err(Refusal::invalid(env, Cause::Sequence));
        }
        let expected = self.rx.expected;
        // What a packet says of its message must agree with what others have said.
        let begins = match self.lossy_mut().arrivals.join(expected, packet, leth) {
            Ok(begins) => begins,
            Err(Stray::TooMany) => return no_room(env),
            Err(Stray::Contradicts) => {
                env.card.counters.refused_contradiction += 1;
                return Err(Refusal::invalid(env, Cause::Sequence));
            }
        };
        let taken = match packet.op.operation {
            Operation::Send => self.place_send(env, packet, leth, ahead),
            Operation::Write => self.place_write(env, packet, leth, (ahead, begins)),
            Operation::ReadResponse | Operation::AtomicAcknowledge => {
                self.take_answer(env, packet, leth)
            }
            _ => Ok(Taken::Whole),
        };
        // A packet that is dropped begins no message: the next one is judged as the first.
        if begins && taken.is_err() {
            self.lossy_mut().arrivals.forget(packet.bth.psn.minus(leth.offset));
        }
        let len = match taken? {
            Taken::Done => return Ok(true),
            Taken::Placed(len) => Some(len),
            Taken::Whole => None,
        };
        let ends = packet.op.position.ends();
        // A packet in the middle of a message has no effect but its payload's.
        if len.is_some() && !ends {
            return Ok(true);
        }
        if ahead == 0 {
            self.effect(env, packet, len.unwrap_or(0))?;
            return Ok(true);
        }
        // Nor has the end of a plain WRITE.
        let tells =
            packet.op.operation == Operation::Send || packet.op.follows.contains(Follows::IMM);
        if len.is_some() && !tells {
            return Ok(true);
        }
        let arrivals = &mut self.lossy_mut().arrivals;
        let waits = arrivals.wait(expected, packet, len.unwrap_or(0), len.is_some());
        if waits { Ok(true) } else { no_room(env) }
    }

    /// Places the payload of a SEND in the receive element that its SSN names.
    fn place_send(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        leth: Leth,
        ahead: u32,
    ) -> Result<Taken, Refusal> {
        let receive = self.receive_of(env, leth.ssn, ahead)?;
        let offset = u64::from(leth.offset) * u64::from(self.mtu);
        let got = offset + packet.payload.len() as u64;
        let sges = env.card.sgls.entries(receive.sgl, receive.count);
        let room: u64 = sges.iter().map(|s| u64::from(s.len)).sum();
        let wr_id = receive.wr_id;
        let refused = if got > room.min(MAX_MESSAGE.into()) {
            // A message longer than its receive element is an invalid request.
            (
                Status::LocalLength,
                Refusal::invalid(env, Cause::ReceiveTooShort { wr_id, got, room }),
            )
        } else {
            let to = (self.scope(), sges);
            let regions = &env.card.regions;
            let filled =
                crate::queue::sgl::scatter(regions, env.mem, to, offset as u32, packet.payload);
            let Err((error, sge)) = filled else { return Ok(Taken::Placed(got as u32)) };
            // Entries whose keys do not open their memory are the receiver's own mistake.
            env.card.counters.elements_protection += 1;
            let memory = Touched { key: sge.lkey, addr: sge.addr, len: sge.len.into() };
            let cause = Cause::ReceiveMemory { wr_id, error };
            let blame = Blame::at(cause, memory);
            (Status::LocalProtection, Refusal::nak(Nak::RemoteOperational, blame))
        };
        // The element is ended when the message is refused, which is in its turn.
        if ahead == 0 && self.lossy_mut().arrivals.receives.pop_front().is_some() {
            self.end_receive(env, &receive, refused.0);
        }
        Err(refused.1)
    }

    /// The receive element of the message with this SSN. Those of the messages before it are taken
    /// with it, since elements go to messages in order, whatever arrives first.
    ///
    /// A message that is not the next one gets no more than [`Qp::may_take_ahead`] says.
    fn receive_of(&mut self, env: &mut Env<'_>, ssn: u32, ahead: u32) -> Result<Receive, Refusal> {
        let index = distance(ssn, self.lossy().arrivals.next_ssn);
        // Each message before this one that takes an element has a packet before this one.
        if index > ahead {
            env.card.counters.refused_contradiction += 1;
            return Err(Refusal::invalid(env, Cause::Sequence));
        }
        let needed = (index as usize + 1).saturating_sub(self.lossy().arrivals.receives.len());
        if ahead > 0 && needed > 0 && !self.may_take_ahead(env, needed) {
            return Err(Refusal::NotReady);
        }
        loop {
            let receives = &self.lossy().arrivals.receives;
            if let Some(receive) = receives.get(index as usize) {
                return Ok(*receive);
            }
            // One that is none ends the connection when its message has its turn.
            if ahead > 0 && !self.has_legal_receive(env) {
                return Err(Refusal::NotReady);
            }
            let receive = self.take_receive(env)?;
            self.lossy_mut().arrivals.receives.push_back(receive);
        }
    }

    /// May messages that are not the next one have so many more receive elements? From a shared
    /// receive queue a queue pair holds no more of them than it leaves to others: they stay with it
    /// until the messages before have come, which a peer may never send.
    fn may_take_ahead(&self, env: &Env<'_>, needed: usize) -> bool {
        if needed > RECEIVES_AT_ONCE {
            return false;
        }
        let Some(srq) = env.card.srqs.get(self.srq) else { return true };
        let left = (srq.ring.waiting() as usize).checked_sub(needed);
        left.is_some_and(|left| self.lossy().arrivals.receives.len() + needed <= left)
    }

    /// Places the payload of a WRITE at the address that its header names.
    fn place_write(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        leth: Leth,
        (ahead, begins): (u32, bool),
    ) -> Result<Taken, Refusal> {
        let Reth { addr, rkey, len: total } = packet.ext.reth;
        let len = packet.payload.len() as u32;
        let offset = u64::from(leth.offset) * u64::from(self.mtu);
        let end = offset + u64::from(len);
        // The payloads add up to the length that every packet names, and the last one completes it.
        if end > total.into() || packet.op.position.ends() != (end == u64::from(total)) {
            let cause = Cause::Length { got: end, expected: total.into() };
            return Err(Refusal::invalid(env, cause));
        }
        // The key must open the whole range before the first byte is written, and each packet's
        // part later, since the owner may end the key meanwhile.
        if begins && u64::from(total) != u64::from(len) {
            Self::check_total(env, total)?;
            self.check_remote(env, rkey, addr, total.into(), Access::REMOTE_WRITE)?;
        }
        // The last packet of a WRITE waits for its turn, so that a program that watches its last
        // bytes, or a flag that is written behind other data, sees them when all before them are
        // there.
        if ahead > 0 && packet.op.position.ends() {
            return Ok(Taken::Whole);
        }
        let to = addr.wrapping_add(offset);
        let place = self.check_remote(env, rkey, to, len.into(), Access::REMOTE_WRITE)?;
        let to = Target { addr: to, rkey, place, len };
        if env.card.kernel.taps > 0 && len > 0 {
            // A bound kernel sees the stream in order.
            if ahead > 0 {
                return Ok(Taken::Whole);
            }
            // It sees each byte once, so there must be an element first, which stays the message's
            // if the kernel refuses the bytes.
            if packet.op.follows.contains(Follows::IMM) {
                self.receive_of(env, leth.ssn, 0)?;
            }
            self.write_through_tap(env, &to, (offset as u32, total), packet.payload)?;
        } else {
            self.write_in_order(env, &to, packet, leth)?;
        }
        if !packet.op.position.ends() {
            // The next packet's place can be fetched while this one is finished.
            let next = (u64::from(total) - end).min(len.into()) as u32;
            let key = (rkey, self.scope());
            env.prefetch(key, to.addr.wrapping_add(len.into()), next, Access::REMOTE_WRITE);
        }
        Ok(Taken::Placed(total))
    }

    /// Writes the payload of a WRITE, but for bytes that a later WRITE has written before it.
    #[inline]
    fn write_in_order(
        &self,
        env: &mut Env<'_>,
        to: &Target,
        packet: &Packet<'_>,
        leth: Leth,
    ) -> Result<(), Refusal> {
        let psns = (self.rx.expected, packet.bth.psn.minus(leth.offset));
        let range = to.addr..to.addr.saturating_add(to.len.into());
        let arrivals = &self.lossy().arrivals;
        let Some(parts) = arrivals.unwritten(psns, self.mtu.into(), (to.rkey, range)) else {
            return self.write_payload(env, to, packet.payload);
        };
        for part in parts {
            let (at, len) = (part.start - to.addr, (part.end - part.start) as u32);
            let place = to.place.map(|place| place + at);
            let to = Target { addr: part.start, rkey: to.rkey, place, len };
            self.write_payload(env, &to, &packet.payload[at as usize..][..len as usize])?;
        }
        Ok(())
    }

    /// Does what the expected packet asks for. `len` is the length of its message, for one whose
    /// payload is in its place.
    fn effect(&mut self, env: &mut Env<'_>, packet: &Packet<'_>, len: u32) -> Result<(), Refusal> {
        let Some(leth) = packet.ext.leth else { return Ok(()) };
        match packet.op.operation {
            Operation::Send if packet.op.position.ends() => self.finish_send(env, packet, len)?,
            Operation::Send => {}
            Operation::Write => {
                // One that has waited whole is placed now, or only judged if it has no bytes.
                if len == 0 {
                    self.place_write(env, packet, leth, (0, false))?;
                }
                if packet.op.follows.contains(Follows::IMM) {
                    let receive = self.receive_of(env, leth.ssn, 0)?;
                    self.take_element();
                    let (kind, len) = (WorkKind::RecvWriteImm, packet.ext.reth.len);
                    self.complete_receive(env, &receive, packet, kind, len);
                }
            }
            Operation::Rpc | Operation::RpcWrite => _ = self.execute_rpc(env, packet)?,
            _ => self.owe_answer(env, packet)?,
        }
        if packet.op.position.ends() {
            self.rx.msn = self.rx.msn.wrapping_add(1);
        }
        Ok(())
    }

    /// Completes the receive element of a SEND that has arrived whole, and all before it.
    fn finish_send(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        len: u32,
    ) -> Result<(), Refusal> {
        let Some(leth) = packet.ext.leth else { return Ok(()) };
        let receive = self.receive_of(env, leth.ssn, 0)?;
        if packet.op.follows.contains(Follows::IETH) {
            let key = packet.ext.imm_or_key;
            let ended = env.card.regions.invalidate(key, self.scope());
            ended.map_err(|error| Refusal::access(env, error, Touched { key, addr: 0, len: 0 }))?;
        }
        self.take_element();
        self.complete_receive(env, &receive, packet, WorkKind::Recv, len);
        Ok(())
    }

    /// The first receive element has served its message.
    fn take_element(&mut self) {
        let arrivals = &mut self.lossy_mut().arrivals;
        arrivals.receives.pop_front();
        arrivals.next_ssn = Psn::new(arrivals.next_ssn).plus(1).value();
    }
}
