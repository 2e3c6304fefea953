//! The completer: what answers from the peer do to outstanding requests.
//!
//! Any answer acknowledges all requests before it. One that passes an unanswered READ or atomic
//! shows that its response was lost: an implied NAK, and the requester goes back to it.

use super::refusal::status_of;
use super::requester::{READ_PIECE, Recovery};
use super::{Qp, State};
use crate::card::Unsettled;
use crate::env::Env;
use crate::event::Event;
use crate::incident::{Blame, Cause, LossSign, Touched};
use crate::memory::key::AccessError;
use crate::psn::Psn;
use crate::queue::element::Element;
use crate::queue::outstanding::Outstanding;
use crate::queue::sgl::scatter;
use crate::queue::{Completion, Opcode, SendFlags, Status, WorkKind};
use crate::timers::rnr_delay;
use crate::wire::{Nak, Op, Operation, Packet, Syndrome};

/// RNR retry count that means "for ever".
const RNR_FOR_EVER: u8 = 7;

impl Qp {
    /// An acknowledge, READ response or atomic acknowledge for this queue pair.
    pub(crate) fn handle_response(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        if !matches!(self.state, State::Rts | State::Sqd) {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        let psn = packet.bth.psn;
        let sent = self.tx.high.distance_from(self.tx.una);
        let at = psn.distance_from(self.tx.una);
        if at >= sent {
            // A NAK that the missing packet has overtaken may name one that was never sent.
            if at != sent || sent == 0 || !is_sequence_nak(packet) {
                env.card.counters.drop_ghost_response += 1;
                return;
            }
            env.card.counters.rx_naks += 1;
            self.acknowledged(env, psn);
        } else {
            match packet.op.operation {
                Operation::Acknowledge => self.handle_acknowledge(env, psn, packet),
                Operation::ReadResponse => self.handle_read_response(env, psn, packet),
                _ => self.handle_atomic_response(env, psn, packet),
            }
        }
        self.after_response(env);
    }

    /// A request that acknowledges ours, too ([`Op::is_acknowledging`]).
    pub(super) fn handle_both(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let psn = Psn::new(packet.ext.aeth.msn);
        let sent = self.tx.high.distance_from(self.tx.una);
        let acknowledges = matches!(
            Syndrome::parse(packet.ext.aeth.syndrome),
            Syndrome::Ack { .. } if psn.distance_from(self.tx.una) < sent
        );
        // What an acknowledge that is late says was said before; a request that is sent again has
        // the acknowledge of that moment.
        if acknowledges && matches!(self.state, State::Rts | State::Sqd) {
            let (qpn, end) = (self.qpn, psn.plus(1));
            env.card.unsettled = Some(Unsettled { qpn, end, waited: false });
        }
        self.handle_request(env, packet);
    }

    /// Looks at the acknowledge that came with the last request, if it has not been looked at.
    pub(crate) fn settle(&mut self, env: &mut Env<'_>) {
        if let Some(end) = env.card.take_unsettled(self.qpn) {
            self.acknowledged(env, end);
            self.after_response(env);
        }
    }

    fn after_response(&mut self, env: &mut Env<'_>) {
        if self.state != State::Error {
            self.settle_failures(env);
            self.schedule(env.card);
        }
    }

    fn handle_acknowledge(&mut self, env: &mut Env<'_>, psn: Psn, packet: &Packet<'_>) {
        match Syndrome::parse(packet.ext.aeth.syndrome) {
            Syndrome::Ack { .. } => {
                self.acknowledged(env, psn.plus(1));
            }
            Syndrome::Rnr { timer } => {
                env.card.counters.rx_naks += 1;
                env.card.counters.rx_rnr_naks += 1;
                if self.acknowledged(env, psn) {
                    self.wait_for_receiver(env, psn, timer);
                }
            }
            Syndrome::Nak(nak) => {
                env.card.counters.rx_naks += 1;
                if self.acknowledged(env, psn) {
                    self.handle_nak(env, psn, packet.op, nak);
                }
            }
            Syndrome::Reserved => env.card.counters.drop_malformed += 1,
        }
    }

    fn handle_nak(&mut self, env: &mut Env<'_>, psn: Psn, op: &'static Op, nak: Nak) {
        if nak != Nak::PsnSequence {
            let packet = (Some(op), psn);
            return self.fail_front_for(env, status_of(nak), Cause::Told(nak), packet);
        }
        // One that comes during an RNR wait is late; what it asks for is sent when that is over.
        if self.tx.recovery != Recovery::RnrWait {
            self.retry(env, psn, LossSign::SequenceNak);
        }
    }

    fn wait_for_receiver(&mut self, env: &mut Env<'_>, psn: Psn, timer: u8) {
        if self.tx.rnr_retries_left == self.cold.rnr_retry {
            self.cold.trouble_since = env.now;
        }
        if self.tx.rnr_retries_left == 0 {
            let elapsed = env.now.since(self.cold.trouble_since);
            let cause = Cause::RnrRetriesExhausted { retries: self.cold.rnr_retry, elapsed };
            return self.fail_front_for(env, Status::RnrRetryExceeded, cause, (None, psn));
        }
        if self.cold.rnr_retry != RNR_FOR_EVER {
            self.tx.rnr_retries_left -= 1;
        }
        // The peer answers: nothing is wrong with the way to it. (And its sequence NAKs for what
        // came behind `psn` may arrive when the wait is over, where they look like a loss.)
        self.tx.retries_left = self.cold.retry_cnt;
        self.go_back(env, psn);
        self.tx.recovery = Recovery::RnrWait;
        env.card.timers.arm(&mut self.tx.timer, self.qpn, env.now + rnr_delay(timer));
    }

    /// The queue pair's timer has run out: a wait is over, or an acknowledge did not come.
    pub(crate) fn handle_timeout(&mut self, env: &mut Env<'_>) {
        let recovery = core::mem::replace(&mut self.tx.recovery, Recovery::Nothing);
        if recovery == Recovery::RnrWait {
            self.schedule(env.card);
            return;
        }
        if self.tx.una == self.tx.high {
            return;
        }
        env.card.counters.timeouts += 1;
        self.retry(env, self.tx.una, LossSign::Timeout);
    }

    /// Sends again from `psn` on, or gives up.
    fn retry(&mut self, env: &mut Env<'_>, psn: Psn, sign: LossSign) {
        if self.tx.retries_left == self.cold.retry_cnt {
            self.cold.trouble_since = env.now;
        }
        if self.tx.retries_left == 0 {
            let elapsed = env.now.since(self.cold.trouble_since);
            let cause = Cause::RetriesExhausted { sign, retries: self.cold.retry_cnt, elapsed };
            return self.fail_front_for(env, Status::RetryExceeded, cause, (None, psn));
        }
        self.tx.retries_left -= 1;
        match sign {
            LossSign::Timeout => self.tx.window.shrink_again(self.tx.high),
            _ => self.tx.window.shrink(self.tx.high),
        }
        self.go_back(env, psn);
        self.arm_timer(env);
        self.schedule(env.card);
    }

    /// Puts the cursor to the packet `psn`.
    fn go_back(&mut self, env: &mut Env<'_>, psn: Psn) {
        self.tx.next = psn;
        self.tx.cursor = env.card.outstanding.find(&self.tx.outstanding, |w| w.holds(psn));
        self.tx.reads = 0;
        self.tx.debug_assert_in_order();
    }

    /// A response that does not follow the last one: one before it is missing.
    fn imply_nak(&mut self, env: &mut Env<'_>) {
        if self.tx.recovery != Recovery::ImpliedNak {
            self.tx.recovery = Recovery::ImpliedNak;
            env.card.counters.implied_naks += 1;
            self.retry(env, self.tx.una, LossSign::ImpliedNak);
        }
    }

    /// All before `end` is acknowledged: completes messages, as far as no READ or atomic without
    /// its response stands in the way. Returns whether none does.
    fn acknowledged(&mut self, env: &mut Env<'_>, end: Psn) -> bool {
        let una = self.tx.una;
        let mut done = una;
        let mut in_order = true;
        while done != end {
            let Some(work) = env.card.outstanding.front(&self.tx.outstanding) else { break };
            if work.element.opcode.wants_response() {
                in_order = false;
                break;
            }
            let message_end = work.end();
            if end.distance_from(done) < message_end.distance_from(done) || work.failed.is_some() {
                done = end;
                break;
            }
            done = message_end;
            self.complete_front(env);
        }
        self.progress(env, done);
        if !in_order {
            self.imply_nak(env);
        }
        in_order
    }

    /// All before `una` is settled: new retries, a new timer, a wider window.
    fn progress(&mut self, env: &mut Env<'_>, una: Psn) {
        let packets = una.distance_from(self.tx.una);
        if packets == 0 {
            return;
        }
        let was_behind = self.tx.next.distance_from(self.tx.una) < packets;
        self.tx.una = una;
        if was_behind {
            // What was about to be sent again has arrived after all.
            self.tx.next = una;
            self.tx.cursor = env.card.outstanding.find(&self.tx.outstanding, |w| w.holds(una));
        }
        self.tx.debug_assert_in_order();
        self.tx.window.acknowledged(packets, una, env.card.config.window_packets);
        self.tx.retries_left = self.cold.retry_cnt;
        self.tx.rnr_retries_left = self.cold.rnr_retry;
        self.tx.recovery = Recovery::Nothing;
        if una == self.tx.high {
            self.tx.timer.disarm();
        } else {
            self.arm_timer(env);
        }
    }

    /// Acknowledges all before a response with data; is it then the one expected, for the message
    /// at the front?
    fn is_expected(
        &mut self,
        env: &mut Env<'_>,
        psn: Psn,
        fits: impl FnOnce(Opcode) -> bool,
    ) -> bool {
        if psn != self.tx.una {
            let in_order = self.acknowledged(env, psn);
            if !in_order || self.tx.una != psn {
                return false;
            }
        }
        let front = env.card.outstanding.front(&self.tx.outstanding);
        front.is_some_and(|w| w.failed.is_none() && fits(w.element.opcode))
    }

    fn handle_read_response(&mut self, env: &mut Env<'_>, psn: Psn, packet: &Packet<'_>) {
        let answers = |opcode| matches!(opcode, Opcode::Read | Opcode::AtomicWrite | Opcode::Flush);
        if !self.is_expected(env, psn, answers) {
            env.card.counters.drop_ghost_response += 1;
            return;
        }
        let Some(&work) = env.card.outstanding.front(&self.tx.outstanding) else { return };
        let offset = psn.distance_from(work.psn) * u32::from(self.mtu);
        // ATOMIC WRITE and FLUSH are answered as a READ of nothing would be.
        let reads = work.element.opcode == Opcode::Read;
        let len = if reads { work.element.len } else { 0 };
        let expected = (len - offset).min(u32::from(self.mtu));
        if packet.payload.len() != expected as usize {
            env.card.counters.bad_responses += 1;
            let got = packet.payload.len() as u64;
            let cause = Cause::Length { got, expected: expected.into() };
            return self.fail_front_for(env, Status::BadResponse, cause, (Some(packet.op), psn));
        }
        if let Err(error) = self.scatter(env, &work, offset, packet.payload) {
            return self.fail_scatter(env, error, packet);
        }
        env.card.counters.rx_bytes += u64::from(expected);
        // Where a piece ends follows from what was asked, not from what the peer calls it.
        let next = psn.plus(1).distance_from(work.psn);
        if next.is_multiple_of(READ_PIECE) || next == work.packets {
            self.tx.reads = self.tx.reads.saturating_sub(1);
        }
        self.answered(env, psn, work.end());
    }

    fn handle_atomic_response(&mut self, env: &mut Env<'_>, psn: Psn, packet: &Packet<'_>) {
        if !self.is_expected(env, psn, Opcode::is_atomic) {
            env.card.counters.drop_ghost_response += 1;
            return;
        }
        let Some(&work) = env.card.outstanding.front(&self.tx.outstanding) else { return };
        // The word is in the host's byte order in memory, on both sides.
        let original = packet.ext.atomic_ack.to_ne_bytes();
        if let Err(error) = self.scatter(env, &work, 0, &original) {
            return self.fail_scatter(env, error, packet);
        }
        self.tx.reads = self.tx.reads.saturating_sub(1);
        self.answered(env, psn, work.end());
    }

    /// The memory that a response was to go to has gone away.
    fn fail_scatter(&mut self, env: &mut Env<'_>, error: AccessError, packet: &Packet<'_>) {
        env.card.counters.elements_protection += 1;
        let packet = (Some(packet.op), packet.bth.psn);
        self.fail_front_for(env, Status::LocalProtection, Cause::Access(error), packet);
    }

    /// The response `psn` is taken; `end` is the end of its message.
    fn answered(&mut self, env: &mut Env<'_>, psn: Psn, end: Psn) {
        if psn.plus(1) == end {
            self.complete_front(env);
        }
        self.progress(env, psn.plus(1));
    }

    /// Writes response data where the request's entries say.
    fn scatter(
        &self,
        env: &mut Env<'_>,
        work: &Outstanding,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), AccessError> {
        let card = &*env.card;
        let to = (self.scope(), work.entries(&card.sgls));
        scatter(&card.regions, env.mem, to, offset, bytes).map_err(|(error, _)| error)
    }
}

/// The ends of messages.
impl Qp {
    /// Takes the oldest message off the list; its slot in the ring is free again.
    pub(crate) fn pop_outstanding(&mut self, env: &mut Env<'_>) -> Option<Outstanding> {
        let work = env.card.outstanding.pop(&mut self.tx.outstanding)?;
        work.more.into_iter().for_each(|slot| env.card.sgls.release(slot));
        env.card.scheduler.feed();
        if !work.is_kernels() {
            self.sq.retired = work.index.wrapping_add(1);
        }
        Some(work)
    }

    /// The oldest message is done, and with it what was carried out behind it without a packet.
    pub(crate) fn complete_front(&mut self, env: &mut Env<'_>) {
        self.complete_one(env);
        self.complete_local(env);
    }

    /// What was carried out without a packet is done when all before it is.
    pub(super) fn complete_local(&mut self, env: &mut Env<'_>) {
        loop {
            let front = env.card.outstanding.front(&self.tx.outstanding);
            if !front.is_some_and(|w| w.element.opcode.is_local() && w.failed.is_none()) {
                return;
            }
            let first = env.card.outstanding.first(&self.tx.outstanding);
            if self.tx.cursor == first {
                self.tx.cursor = env.card.outstanding.next(first);
            }
            self.complete_one(env);
        }
    }

    /// Tells the owner of the oldest request that it is done, if that was asked for.
    fn complete_one(&mut self, env: &mut Env<'_>) {
        let Some(work) = self.pop_outstanding(env) else { return };
        let element = work.element;
        if work.is_kernels() {
            self.end_posted(env, &work, Status::Success);
        } else {
            self.report_done(env, &element);
        }
        if self.state == State::Sqd && self.tx.outstanding.is_empty() && self.cold.drain_wanted {
            self.cold.drain_wanted = false;
            env.card.events.push_back(Event::SendQueueDrained(self.qpn));
        }
    }

    /// Tells the owner of a request that it is done, if that was asked for.
    #[inline]
    pub(super) fn report_done(&self, env: &mut Env<'_>, element: &Element) {
        if self.signal_all || element.flags.contains(SendFlags::SIGNALED) {
            let kind = WorkKind::Send(element.opcode);
            let Element { wr_id, len, .. } = *element;
            let (cq, qpn) = (self.send_cq, self.qpn);
            let entry = || Completion { wr_id, kind, qpn, len, ..Completion::default() };
            env.card.complete_well(env.now, cq, entry);
        }
    }

    /// Tells the owner of a request that it failed.
    pub(super) fn report_failed(&self, env: &mut Env<'_>, element: &Element, status: Status) {
        let (wr_id, kind) = (element.wr_id, WorkKind::Send(element.opcode));
        let entry = Completion { wr_id, status, kind, qpn: self.qpn, ..Completion::default() };
        env.card.complete(env.now, self.send_cq, entry);
    }

    /// Messages at the front that cannot be carried out are reported now that all before them
    /// are done; the queue pair stops (RC) or stops sending (UC, UD).
    pub(crate) fn settle_failures(&mut self, env: &mut Env<'_>) {
        let front = env.card.outstanding.front(&self.tx.outstanding);
        let Some(status) = front.and_then(|w| w.failed) else { return };
        self.fail_front(env, status);
    }

    /// As [`Qp::fail_front`], and keeps why.
    pub(crate) fn fail_front_for(
        &mut self,
        env: &mut Env<'_>,
        status: Status,
        cause: Cause,
        packet: (Option<&'static Op>, Psn),
    ) {
        if let Some(work) = env.card.outstanding.front(&self.tx.outstanding) {
            let Element { remote: addr, key, len, .. } = work.element;
            // Where it was to happen at the peer, if the peer's memory is concerned.
            let concerned = matches!(cause, Cause::Told(_)) && key != 0;
            let memory = concerned.then_some(Touched { key, addr, len: len.into() });
            let outcome = work.fails_with(status);
            self.report(env, outcome, (packet.0, Some(packet.1)), Blame { cause, memory });
        }
        self.fail_front(env, status);
    }

    /// The oldest message ends with an error, and the queue pair with it.
    pub(crate) fn fail_front(&mut self, env: &mut Env<'_>, status: Status) {
        let work = self.pop_outstanding(env);
        if let Some(work) = work.filter(Outstanding::is_kernels) {
            self.end_posted(env, &work, status);
        } else if let Some(work) = work {
            self.report_failed(env, &work.element, status);
        }
        if self.transport.is_reliable() {
            self.fail(env);
        } else {
            self.tx.stop();
            self.tx.next = self.tx.una;
            self.state = State::Sqe;
            // What is left is to be flushed.
            self.schedule(env.card);
        }
    }
}

fn is_sequence_nak(packet: &Packet<'_>) -> bool {
    packet.op.operation == Operation::Acknowledge
        && Syndrome::parse(packet.ext.aeth.syndrome) == Syndrome::Nak(Nak::PsnSequence)
}
