//! The completer: what answers from the peer, and their absence, do to outstanding requests:
//! completions, and retransmission behind a NAK or a time-out. [`super::refusal`] has the status
//! that each NAK ends a request with, [`super::retry`] the waits and the counts of retries.
//!
//! Every answer acknowledges all requests before its PSN. An answer that passes a READ or atomic
//! without its response shows that the response was lost: an implied NAK, and the requester goes
//! back to that request.
//!
//! The rules are those of InfiniBand volume 1, chapter 9 (Transport Layer). A check that names a
//! function does what that function of soft-RoCE does (Linux, `drivers/infiniband/sw/rxe/`, here
//! `rxe_comp.c` if no other file is named). Requests are sent in [`super::requester`].

use super::refusal::status_of;
use super::requester::{READ_PIECE, Recovery};
use super::retry::rnr_delay;
use super::{Qp, State};
use crate::card::Unsettled;
use crate::env::Env;
use crate::event::Event;
use crate::incident::{Blame, Cause, LossSign, Touched};
use crate::memory::key::AccessError;
use crate::psn::Psn;
use crate::queue::element::Element;
use crate::queue::outstanding::{Origin, Outstanding};
use crate::queue::sgl::scatter;
use crate::queue::{Completion, Opcode, SendFlags, Status, WorkKind};
use crate::wire::{Nak, Op, Operation, Packet, Syndrome};

impl Qp {
    /// An acknowledge, READ response or atomic acknowledge for this queue pair.
    pub(crate) fn handle_response(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        // Answers are for a queue pair that may send (`check_type_state` in `rxe_recv.c`).
        if !matches!(self.state, State::Rts | State::Sqd) {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        let psn = packet.bth.psn;
        let sent = self.tx.high.distance_from(self.tx.una);
        let at = psn.distance_from(self.tx.una);
        // An answer must name a PSN that was sent and is not yet acknowledged: any other is a ghost
        // or a duplicate, and is dropped (StRoM §4.1).
        if at >= sent {
            // One exception: a sequence NAK names the PSN that the responder expects when the NAK
            // leaves. If the missing packet has arrived by then, this may be the next PSN to be
            // sent, and the NAK acknowledges all that was sent.
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

    /// A request that also acknowledges requests of this queue pair ([`Op::is_acknowledging`]).
    pub(super) fn handle_both(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        // The acknowledge in it is held to the rule of `handle_response`: it must name a PSN that
        // was sent and is not yet acknowledged.
        let psn = Psn::new(packet.ext.aeth.msn);
        let sent = self.tx.high.distance_from(self.tx.una);
        let acknowledges = matches!(
            Syndrome::parse(packet.ext.aeth.syndrome),
            Syndrome::Ack { .. } if psn.distance_from(self.tx.una) < sent
        );
        // Any other acknowledge is old, as when the request is a repeated one, and is ignored. The
        // request in the same packet is not affected.
        if acknowledges && matches!(self.state, State::Rts | State::Sqd) {
            let (qpn, end) = (self.qpn, psn.plus(1));
            env.card.unsettled = Some(Unsettled { qpn, end, waited: false });
        }
        self.handle_request(env, packet);
    }

    /// Acts on the acknowledge that came with the last request, if that has not been done yet.
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
        // What the syndrome says is about `psn`; every kind acknowledges all before it
        // (`check_ack`).
        match Syndrome::parse(packet.ext.aeth.syndrome) {
            // An acknowledge includes its own PSN.
            Syndrome::Ack { .. } => {
                self.acknowledged(env, psn.plus(1));
            }
            // The receiver has no element for the request yet: wait, then send from there again. A
            // READ or atomic without its response comes before that, and is repeated first.
            Syndrome::Rnr { timer } => {
                env.card.counters.rx_naks += 1;
                env.card.counters.rx_rnr_naks += 1;
                if self.acknowledged(env, psn) {
                    self.wait_for_receiver(env, psn, timer);
                }
            }
            // A NAK is acted on under the same condition.
            Syndrome::Nak(nak) => {
                env.card.counters.rx_naks += 1;
                if self.acknowledged(env, psn) {
                    self.handle_nak(env, psn, packet.op, nak);
                }
            }
            // A reserved syndrome has no meaning: the packet is dropped.
            Syndrome::Reserved => env.card.counters.drop_malformed += 1,
        }
    }

    fn handle_nak(&mut self, env: &mut Env<'_>, psn: Psn, op: &'static Op, nak: Nak) {
        // Every NAK but the sequence NAK ends the request that it names with the status of the same
        // name, and the queue pair with it (`check_ack`).
        if nak != Nak::PsnSequence {
            let packet = (Some(op), psn);
            return self.fail_front_for(env, status_of(nak), Cause::Told(nak), packet);
        }
        // A sequence NAK asks for all from its PSN on. During an RNR wait it is late: the packets
        // it asks for are sent when the wait is over.
        if self.tx.recovery != Recovery::RnrWait {
            self.retry(env, psn, LossSign::SequenceNak);
        }
    }

    fn wait_for_receiver(&mut self, env: &mut Env<'_>, psn: Psn, timer: u8) {
        if !self.rnr_retry_or_give_up(env, psn) {
            return;
        }
        // The peer's sequence NAKs for packets behind `psn` may arrive after the wait, where they
        // look like a loss.
        self.go_back(env, psn);
        self.tx.recovery = Recovery::RnrWait;
        env.card.timers.arm(&mut self.tx.timer, self.qpn, env.now + rnr_delay(timer));
    }

    /// The queue pair's timer has run out: an RNR wait is over, or an acknowledge did not come.
    pub(crate) fn handle_timeout(&mut self, env: &mut Env<'_>) {
        if self.is_lossy() {
            return self.handle_lossy_timeout(env);
        }
        let recovery = core::mem::replace(&mut self.tx.recovery, Recovery::Nothing);
        if recovery == Recovery::RnrWait {
            self.schedule(env.card);
            return;
        }
        // Nothing is outstanding, so that no answer is missing.
        if self.tx.una == self.tx.high {
            return;
        }
        // No answer within the timeout: the oldest unacknowledged packet counts as lost.
        env.card.counters.timeouts += 1;
        self.retry(env, self.tx.una, LossSign::Timeout);
    }

    /// Sends again from `psn` on (go-back-N), or gives up. The window shrinks each time; the wait
    /// grows as `arm_timer_again` says.
    fn retry(&mut self, env: &mut Env<'_>, psn: Psn, sign: LossSign) {
        // A loss is seldom repeated so often: the peer may be silent for another reason.
        if sign == LossSign::Timeout || 2 * self.tx.retries_left <= self.retry_cnt {
            env.card.silent.ask(self.path.dst);
        }
        if !self.retry_or_give_up(env, (psn, sign), env.now, |_, _| false) {
            return;
        }
        match sign {
            LossSign::Timeout => self.note_silence(env.now),
            _ => self.note_loss(env.now),
        }
        self.go_back(env, psn);
        match sign {
            LossSign::Timeout => self.arm_timer_again(env),
            _ => self.arm_timer(env),
        }
        self.schedule(env.card);
    }

    /// Sets the send position back to the packet `psn`.
    fn go_back(&mut self, env: &mut Env<'_>, psn: Psn) {
        self.tx.next = psn;
        self.tx.cursor = env.card.outstanding.find(&self.tx.outstanding, |w| w.holds(psn));
        self.tx.reads = 0;
        self.tx.debug_assert_in_order();
    }

    /// An answer has passed a READ or atomic without its response, so that the response is lost and
    /// the requester goes back to it (`check_psn`).
    fn imply_nak(&mut self, env: &mut Env<'_>) {
        // Once for each loss: answers to packets sent before the retry show the same one again.
        if self.tx.recovery != Recovery::ImpliedNak {
            self.tx.recovery = Recovery::ImpliedNak;
            env.card.counters.implied_naks += 1;
            self.retry(env, self.tx.una, LossSign::ImpliedNak);
        }
    }

    /// All before `end` is acknowledged: completes messages, up to the first READ or atomic without
    /// its response. Returns whether there was no such request.
    fn acknowledged(&mut self, env: &mut Env<'_>, end: Psn) -> bool {
        let una = self.tx.una;
        let mut done = una;
        let mut in_order = true;
        while done != end {
            let Some(work) = env.card.outstanding.front(&self.tx.outstanding) else { break };
            // Only its own response ends a READ or atomic. An acknowledge that passes it shows that
            // the response was lost.
            if work.element.opcode.wants_response() {
                in_order = false;
                break;
            }
            // A message is done when its last packet is acknowledged; one that has failed here is
            // reported by `settle_failures`.
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

    /// All before `una` is settled: the retry counts and the timer start anew, the window widens.
    fn progress(&mut self, env: &mut Env<'_>, una: Psn) {
        let packets = una.distance_from(self.tx.una);
        if packets == 0 {
            return;
        }
        let was_behind = self.tx.next.distance_from(self.tx.una) < packets;
        self.tx.una = una;
        if was_behind {
            // Packets that were to be sent again have arrived after all.
            self.tx.next = una;
            self.tx.cursor = env.card.outstanding.find(&self.tx.outstanding, |w| w.holds(una));
        }
        self.tx.debug_assert_in_order();
        self.note_acknowledged(env, packets, una);
        self.tx.retries_left = self.retry_cnt;
        self.tx.rnr_retries_left = self.rnr_retry;
        self.tx.recovery = Recovery::Nothing;
        if una == self.tx.high {
            self.tx.timer.disarm();
        } else {
            self.arm_timer(env);
        }
    }

    /// Acknowledges all before a response with data. Returns whether the response is then the next
    /// one expected, and of a kind that the oldest message waits for.
    fn is_expected(
        &mut self,
        env: &mut Env<'_>,
        psn: Psn,
        fits: impl FnOnce(Opcode) -> bool,
    ) -> bool {
        // Responses are taken in the order of PSNs only: behind a gap they are dropped, and come
        // again when the requester goes back (`check_psn`).
        if psn != self.tx.una {
            let in_order = self.acknowledged(env, psn);
            if !in_order || self.tx.una != psn {
                return false;
            }
        }
        // A READ response is for a READ, an atomic's for an atomic.
        let front = env.card.outstanding.front(&self.tx.outstanding);
        front.is_some_and(|w| w.failed.is_none() && fits(w.element.opcode))
    }

    fn handle_read_response(&mut self, env: &mut Env<'_>, psn: Psn, packet: &Packet<'_>) {
        let answers = |opcode| matches!(opcode, Opcode::Read | Opcode::AtomicWrite | Opcode::Flush);
        // A response out of order, or to something other than a READ, is dropped.
        if !self.is_expected(env, psn, answers) {
            env.card.counters.drop_ghost_response += 1;
            return;
        }
        let Some(&work) = env.card.outstanding.front(&self.tx.outstanding) else { return };
        let offset = psn.distance_from(work.psn) * u32::from(self.mtu);
        // ATOMIC WRITE and FLUSH are answered as a READ of no bytes is (annex A19).
        let reads = work.element.opcode == Opcode::Read;
        let len = if reads { work.element.len } else { 0 };
        let expected = (len - offset).min(u32::from(self.mtu));
        // The PSN says which bytes of the READ a response carries: the path MTU, or what is left.
        // Another length can be no answer to what was asked, and ends the request.
        if packet.payload.len() != expected as usize {
            env.card.counters.bad_responses += 1;
            let got = packet.payload.len() as u64;
            let cause = Cause::Length { got, expected: expected.into() };
            return self.fail_front_for(env, Status::BadResponse, cause, (Some(packet.op), psn));
        }
        // The memory was checked when the request was sent. If it is gone now, the request ends
        // with a local error; the peer has done nothing wrong.
        if let Err(error) = self.scatter(env, &work, offset, packet.payload) {
            return self.fail_scatter(env, error, packet);
        }
        env.card.counters.rx_bytes += u64::from(expected);
        // Which packet ends a piece of the READ follows from the request. The FIRST, MIDDLE and
        // LAST in the peer's op-codes are not relied on.
        let next = psn.plus(1).distance_from(work.psn);
        if next.is_multiple_of(READ_PIECE) || next == work.packets {
            self.tx.reads = self.tx.reads.saturating_sub(1);
        }
        self.answered(env, psn, work.end());
    }

    fn handle_atomic_response(&mut self, env: &mut Env<'_>, psn: Psn, packet: &Packet<'_>) {
        // A response out of order, or to something other than an atomic, is dropped.
        if !self.is_expected(env, psn, Opcode::is_atomic) {
            env.card.counters.drop_ghost_response += 1;
            return;
        }
        let Some(&work) = env.card.outstanding.front(&self.tx.outstanding) else { return };
        // In memory the word has the host's byte order, on both sides.
        let original = packet.ext.atomic_ack.to_ne_bytes();
        // As for a READ: memory that is gone is a local error.
        if let Err(error) = self.scatter(env, &work, 0, &original) {
            return self.fail_scatter(env, error, packet);
        }
        self.tx.reads = self.tx.reads.saturating_sub(1);
        self.answered(env, psn, work.end());
    }

    /// Ends the oldest request: the memory that its response was meant for is gone.
    fn fail_scatter(&mut self, env: &mut Env<'_>, error: AccessError, packet: &Packet<'_>) {
        env.card.counters.elements_protection += 1;
        let packet = (Some(packet.op), packet.bth.psn);
        self.fail_front_for(env, Status::LocalProtection, Cause::Access(error), packet);
    }

    /// Notes that the response `psn` has been taken. `end` is the end of its message.
    fn answered(&mut self, env: &mut Env<'_>, psn: Psn, end: Psn) {
        if psn.plus(1) == end {
            self.complete_front(env);
        }
        self.progress(env, psn.plus(1));
    }

    /// Writes response data to the memory that the request's entries name.
    pub(super) fn scatter(
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
    /// Removes the oldest message from the list and frees its slot in the ring.
    pub(crate) fn pop_outstanding(&mut self, env: &mut Env<'_>) -> Option<Outstanding> {
        let work = env.card.outstanding.pop(&mut self.tx.outstanding)?;
        work.more.into_iter().for_each(|slot| env.card.sgls.release(slot));
        if env.card.feed() {
            // The room may be this queue pair's: the others that wait may have had their share.
            self.schedule(env.card);
        }
        if work.origin == Origin::Ring {
            self.sq.retired = work.index.wrapping_add(1);
        }
        Some(work)
    }

    /// Completes the oldest message, and the requests behind it that needed no packet.
    pub(crate) fn complete_front(&mut self, env: &mut Env<'_>) {
        self.complete_one(env);
        self.complete_local(env);
    }

    /// Completes requests that needed no packet: all before them is done.
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

    /// Completes the oldest request, with a completion entry if the request asks for one.
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

    /// Adds the completion entry of a request that is done, if the request asks for one.
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

    /// Adds the completion entry of a request that failed.
    pub(super) fn report_failed(&self, env: &mut Env<'_>, element: &Element, status: Status) {
        let (wr_id, kind) = (element.wr_id, WorkKind::Send(element.opcode));
        let entry = Completion { wr_id, status, kind, qpn: self.qpn, ..Completion::default() };
        env.card.complete(env.now, self.send_cq, entry);
    }

    /// Reports an oldest message that cannot be carried out, now that all before it are done. The
    /// queue pair stops (RC, XRC) or stops sending (UC, UD).
    pub(crate) fn settle_failures(&mut self, env: &mut Env<'_>) {
        let front = env.card.outstanding.front(&self.tx.outstanding);
        let Some(status) = front.and_then(|w| w.failed) else { return };
        self.fail_front(env, status);
    }

    /// As [`Qp::fail_front`], and keeps an incident that says why.
    pub(crate) fn fail_front_for(
        &mut self,
        env: &mut Env<'_>,
        status: Status,
        cause: Cause,
        packet: (Option<&'static Op>, Psn),
    ) {
        if let Some(work) = env.card.outstanding.front(&self.tx.outstanding) {
            let Element { remote: addr, key, len, .. } = work.element;
            // The peer's memory is named if the peer refused a request that has a key.
            let concerned = matches!(cause, Cause::Told(_)) && key != 0;
            let memory = concerned.then_some(Touched { key, addr, len: len.into() });
            let outcome = work.fails_with(status);
            self.report(env, outcome, (packet.0, Some(packet.1)), Blame { cause, memory });
        }
        self.fail_front(env, status);
    }

    /// The oldest message ends with an error, and the queue pair goes to ERROR, or to SQE if its
    /// service is unreliable.
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
            self.stop_sending(env);
        }
    }

    /// Takes a queue pair of an unreliable service to SQE.
    pub(super) fn stop_sending(&mut self, env: &mut Env<'_>) {
        self.tx.stop();
        self.tx.next = self.tx.una;
        self.state = State::Sqe;
        // A turn flushes the requests that are left.
        self.schedule(env.card);
    }
}

fn is_sequence_nak(packet: &Packet<'_>) -> bool {
    packet.op.operation == Operation::Acknowledge
        && Syndrome::parse(packet.ext.aeth.syndrome) == Syndrome::Nak(Nak::PsnSequence)
}
