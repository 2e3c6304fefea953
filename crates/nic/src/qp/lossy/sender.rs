//! Makes the packets of the lossy dialect: lost ones again, then answers and requests. What is
//! under way, and which of it is lost, stands in `departures`; `completer` asks it.

use super::arrivals::AHEAD;
use crate::env::Env;
use crate::incident::Cause;
use crate::memory::Calc;
use crate::memory::key::{Access, AccessError, Scope};
use crate::multi_queue::Cursor;
use crate::psn::Psn;
use crate::qp::requester::{Part, Recovery, Stop};
use crate::qp::{Qp, State};
use crate::queue::outstanding::{Answering, Origin, Outstanding};
use crate::queue::{Opcode, SendFlags, Status};
use crate::scheduler::TurnBudget;
use crate::transmit::{PATH_PORTS, Path, TransmitBatch};
use crate::wire::opcode::Follows;
use crate::wire::{
    AtomicEth, Bth, Extensions, Leth, Op, Operation, Packet, Position, Reth, Transport,
};

/// How many PSNs may lie between the oldest message that is not completed and the next one to send:
/// far fewer than half the circle.
const SPAN_MAX: u32 = 1 << 22;

impl Qp {
    /// The SSN of the next message; 0 in the standard dialect.
    #[inline]
    pub(crate) fn ssn(&self) -> u32 {
        if self.is_lossy() { self.lossy().next_ssn } else { 0 }
    }

    /// Counts a message that is issued, if it takes a receive element.
    #[inline]
    pub(crate) fn count_ssn(&mut self, opcode: Opcode) {
        if self.is_lossy() && opcode.tells_receiver() {
            let lossy = self.lossy_mut();
            lossy.next_ssn = Psn::new(lossy.next_ssn).plus(1).value();
        }
    }

    /// Sends lost packets again, and packets of issued messages from the cursor on. `None` if
    /// another message may be issued.
    pub(in crate::qp) fn send_lossy_issued(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) -> Option<Stop> {
        // Unlike answers, requests must find out whether the peer is there.
        if self.lossy().dormant && self.has_requests() {
            self.wake(env);
            self.arm_lossy(env);
        }
        let agreed = self.cold.max_dest_rd_atomic;
        loop {
            if budget.is_spent() {
                return Some(Stop::Spent);
            }
            let waits = self.tx.recovery == Recovery::RnrWait;
            let left = match self.lossy() {
                lossy if lossy.has_lost() => self.send_lost(env, batch, budget, waits),
                _ => None,
            };
            let left = match self.lossy() {
                lossy if left.is_none() && lossy.has_answers_to_send(agreed) => {
                    self.send_lossy_answer(env, batch, budget, waits)
                }
                _ => left,
            };
            match left {
                Some(true) => continue,
                Some(false) => return Some(Stop::Blocked),
                None => {}
            }
            let Some(&work) = env.card.outstanding.get(self.tx.cursor) else {
                // If no request can be issued after all, the next turn is an answer's.
                if self.lossy().may_begin_answer(agreed) {
                    self.schedule(env.card);
                }
                return (waits || self.is_far_ahead(env)).then_some(Stop::Blocked);
            };
            if work.failed.is_some() {
                self.settle_failures(env);
                return Some(Stop::Blocked);
            }
            if work.element.opcode.is_local() {
                self.tx.cursor = env.card.outstanding.next(self.tx.cursor);
                self.complete_lossy(env);
                continue;
            }
            // A message of which a part has left goes on if answers wait behind it.
            let begun = work.psn != self.tx.next && !self.lossy().owed.is_empty();
            let full =
                work.element.opcode.wants_response() && self.tx.reads >= self.cold.max_rd_atomic;
            // Behind a refusal the stream may end in the middle of an answer.
            if (waits || self.rx.breaking) && !begun || full || !self.has_lossy_room() {
                return Some(Stop::Blocked);
            }
            self.send_first(env, batch, budget, (self.tx.cursor, &work));
        }
    }

    /// Are there requests to send, or under way?
    #[cold]
    fn has_requests(&self) -> bool {
        self.sq.waiting() > 0 || self.has_posted() || self.waits_for_peer()
    }

    /// Sends a packet of an answer, or begins one. Returns whether something was done, or had to
    /// wait; `None` if the turn is a request's.
    #[inline(never)]
    fn send_lossy_answer(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        waits: bool,
    ) -> Option<bool> {
        // Nobody's turn passes while there is no room. (Answers leave while the peer is not ready
        // for a SEND.)
        if !self.has_lossy_room() {
            return Some(false);
        }
        let answer = self.lossy().answer;
        let Some(&work) = env.card.outstanding.get(answer) else {
            let begun = !self.is_turn_of_request(env, waits) && self.begin_answer(env);
            return begun.then_some(true);
        };
        self.send_first(env, batch, budget, (answer, &work));
        Some(true)
    }

    /// Requests and answers take turns. Is it a request's, and can one leave?
    fn is_turn_of_request(&mut self, env: &Env<'_>, waits: bool) -> bool {
        // Behind a refusal only answers are left to send.
        if waits || self.rx.breaking || !core::mem::take(&mut self.lossy_mut().answered) {
            return false;
        }
        match env.card.outstanding.get(self.tx.cursor) {
            Some(work) => {
                !work.element.opcode.wants_response() || self.tx.reads < self.cold.max_rd_atomic
            }
            None => (self.sq.waiting() > 0 || self.has_posted()) && self.state == State::Rts,
        }
    }

    /// The packet to send again, of the `sent` that are under way, and how often it has left: a
    /// lost one; or as a probe, if one is due, the last one. Without packets under way that is a
    /// request whose answer is missing: the peer shows that it is there. While the peer is not
    /// ready for a SEND (`waits`), only answers leave.
    fn next_again(&self, env: &Env<'_>, sent: u32, waits: bool) -> Option<(Psn, u8)> {
        let lossy = self.lossy();
        let may_leave = |psn| !waits || lossy.is_answer(env.card, psn);
        let lost = lossy.departures.next_lost(may_leave).map(|lost| (lost.psn, lost.tries));
        if waits {
            return lost;
        }
        // Each probe takes another path.
        let last = || lossy.departures.last_missing((self.tx.una, sent), |_| true);
        let asked = || lossy.asks.front().map(|ask| ask.psn);
        let probed = || last().or_else(asked).filter(|_| lossy.probe);
        lost.or_else(|| probed().map(|psn| (psn, lossy.probes)))
    }

    /// Asks the peer whether it is there: by a copy, without payload, of the packet before the
    /// oldest one that is not acknowledged. The peer has had that one, so it does nothing with the
    /// copy but acknowledge it. So small a packet finds room in a queue that is full for others.
    fn send_question(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) {
        let (psn, now) = (self.tx.una.minus(1), env.now);
        let lossy = self.lossy_mut();
        (lossy.question, lossy.probed_at) = (false, now);
        let path = lossy.paths.of(psn, lossy.probes);
        let leth = Leth { flags: Leth::AGAIN, path, sent: now.0 as u32, ..Leth::default() };
        let ext = Extensions { leth: Some(leth), ..Extensions::default() };
        let op = Op::of(Transport::Rc, Operation::Write, Position::Only, Follows::LETH);
        let bth = Bth { dest_qp: self.dest_qp, ack_req: true, psn, ..Bth::ours() };
        let (path, ecn) = (self.path_numbered(path), env.card.config.ecn);
        batch.push(path, ecn, batch.mark(), 0, |out| Packet::emit_headers(&bth, op, &ext, out));
        self.count_sent(env, budget, 0);
    }

    /// Sends one lost packet again, or a probe. Returns whether it left, or had to stay; `None` if
    /// there is none.
    #[inline(never)]
    fn send_lost(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        waits: bool,
    ) -> Option<bool> {
        if self.lossy().question && !waits {
            self.send_question(env, batch, budget);
            return Some(true);
        }
        let una = self.tx.una;
        let sent = self.tx.high.distance_from(una);
        let probe = self.lossy().probe && !waits;
        let Some((psn, tries)) = self.next_again(env, sent, waits) else {
            if probe {
                self.lossy_mut().probe = false;
            }
            return None;
        };
        let lossy = self.lossy();
        let in_flight = lossy.departures.in_flight(sent);
        if !probe && in_flight > 0 && !self.tx.window.has_room(in_flight) {
            return Some(false);
        }
        let pool = &env.card.outstanding;
        let at = match pool.find(&lossy.answers, |work| work.holds(psn)) {
            none if none.is_none() => pool.find(&self.tx.outstanding, |work| work.holds(psn)),
            answer => answer,
        };
        let Some(&work) = env.card.outstanding.get(at) else {
            // The peer takes back that an answer has arrived. That is over.
            let lossy = self.lossy_mut();
            lossy.probe = false;
            _ = lossy.departures.arrived(una, psn);
            return Some(true);
        };
        let left = self.send_lossy_packet(env, batch, budget, (&work, psn, tries));
        // One that cannot be made counts as sent again, too: others have the next turn.
        let lossy = self.lossy_mut();
        lossy.probe = false;
        // The acknowledge of a copy that left at this time is one of a probe.
        if probe && lossy.departures.to_send == 0 {
            lossy.probed_at = env.now;
        }
        if psn.distance_from(una) < sent {
            lossy.departures.left_again(una, (psn, tries), env.now);
        }
        match left {
            Ok(()) => env.card.counters.tx_retransmitted += 1,
            Err(error) => self.fail_lossy(env, (at, &work), psn, error),
        }
        if self.state == State::Error {
            return Some(false);
        }
        if !self.tx.timer.is_armed() {
            self.arm_lossy(env);
        }
        Some(true)
    }

    /// May another packet leave?
    fn has_lossy_room(&self) -> bool {
        let sent = self.tx.high.distance_from(self.tx.una);
        let in_flight = self.lossy().departures.in_flight(sent);
        sent < AHEAD / 2 && self.tx.window.has_room(in_flight)
    }

    /// Has so much been acknowledged behind a request that is not answered that PSNs could be
    /// confused?
    fn is_far_ahead(&self, env: &Env<'_>) -> bool {
        let front = env.card.outstanding.front(&self.tx.outstanding);
        front.is_some_and(|work| self.tx.next.distance_from(work.psn) > SPAN_MAX)
    }

    /// A packet cannot be made, as its memory has gone: its message fails in its turn.
    fn fail_lossy(
        &mut self,
        env: &mut Env<'_>,
        (at, work): (Cursor, &Outstanding),
        psn: Psn,
        error: AccessError,
    ) {
        if work.is_answer() {
            return self.fail_lossy_answer(env, psn, error);
        }
        // A packet of one that has failed before was lost, too.
        if work.failed.is_some() {
            return;
        }
        env.card.counters.elements_protection += 1;
        let status = Status::LocalProtection;
        if let Some(work) = env.card.outstanding.get_mut(at) {
            work.failed = Some(status);
        }
        self.report(env, work.fails_with(status), (None, Some(psn)), Cause::Access(error));
        self.settle_failures(env);
    }

    /// Sends the packet at `next`, of a request or an answer.
    fn send_first(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        (at, work): (Cursor, &Outstanding),
    ) {
        let (psn, now) = (self.tx.next, env.now);
        if let Err(error) = self.send_lossy_packet(env, batch, budget, (work, psn, 0)) {
            return self.fail_lossy(env, (at, work), psn, error);
        }
        let quiet = self.tx.una == self.tx.high;
        let lossy = self.lossy_mut();
        if quiet && lossy.asks.is_empty() {
            (lossy.quiet_since, lossy.probes) = (now, 0);
        }
        lossy.departures.left(psn, now);
        lossy.answered = work.is_answer();
        self.tx.next = psn.plus(1);
        self.tx.high = self.tx.next;
        let next = env.card.outstanding.next(at);
        let ends = self.tx.next == work.end();
        if work.is_answer() {
            if ends {
                self.lossy_mut().answer = next;
            }
        } else {
            if work.element.opcode.wants_response() {
                self.ask(work);
            }
            if ends {
                self.tx.cursor = next;
            }
        }
        self.tx.debug_assert_in_order();
        if !self.tx.timer.is_armed() {
            self.arm_lossy(env);
        }
    }

    /// Makes the packet `psn` of a message, which was lost so many times before.
    fn send_lossy_packet(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        (work, psn, tries): (&Outstanding, Psn, u8),
    ) -> Result<(), AccessError> {
        let again = psn.is_before(self.tx.high);
        let path = self.lossy().paths.of(psn, tries);
        let leth = Leth {
            flags: if again { Leth::AGAIN } else { 0 },
            ssn: work.ssn,
            path,
            offset: psn.distance_from(work.psn),
            sent: env.now.0 as u32,
        };
        let mut ext = Extensions { leth: Some(leth), ..Extensions::default() };
        let (operation, with, part) = match bare_request(work, &mut ext) {
            Some(operation) => {
                let part = Part { k: 0, offset: 0, len: 0, position: Position::Only, again };
                (operation, Follows::empty(), part)
            }
            None => {
                let part = self.part(work, psn, again);
                let element = &work.element;
                let (operation, with) = match work.origin {
                    Origin::Answer(_) => (Operation::ReadResponse, Follows::empty()),
                    _ => element.opcode.on_wire(),
                };
                ext.reth = Reth { addr: element.remote, rkey: element.key, len: element.len };
                ext.imm_or_key = element.imm();
                (operation, with, part)
            }
        };
        let mark = batch.mark();
        if let Err(refused) = self.gather_lossy(env, batch, work, &part) {
            batch.rewind(mark);
            return Err(refused);
        }
        let op = Op::of(Transport::Rc, operation, part.position, with | Follows::LETH);
        let bth = self.lossy_bth(env, work, &part, psn);
        let header = |out: &mut _| Packet::emit_headers(&bth, op, &ext, out);
        let to = (self.path_numbered(path), env.card.config.ecn);
        self.push_data(env, batch, (to, mark), work, &part, header)?;
        self.count_sent(env, budget, part.len);
        Ok(())
    }

    /// The base header of a packet.
    fn lossy_bth(&self, env: &Env<'_>, work: &Outstanding, part: &Part, psn: Psn) -> Bth {
        let element = &work.element;
        let sent = self.tx.high.distance_from(self.tx.una);
        let in_flight = self.lossy().departures.in_flight(sent);
        let window_ends = !self.tx.window.has_room(in_flight + 1);
        let every = self.tx.window.ask_every(env.card.config.ack_every);
        let ends = part.position.ends();
        let asks = ends || part.again || window_ends || (part.k + 1).is_multiple_of(every);
        let tells = ends && !work.is_answer() && element.opcode.tells_receiver();
        Bth {
            solicited: tells && element.flags.contains(SendFlags::SOLICITED),
            pad: part.pad(),
            dest_qp: self.dest_qp,
            ack_req: asks,
            psn,
            ..Bth::ours()
        }
    }

    /// Gathers the segments of memory that a packet's bytes are in: the application's own, or for
    /// an answer those that the peer may read.
    fn gather_lossy(
        &self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        work: &Outstanding,
        part: &Part,
    ) -> Result<(), AccessError> {
        if part.len == 0 {
            return Ok(());
        }
        if !work.is_answer() {
            return self.gather(env, batch, work, part.offset, part.len);
        }
        let segments = batch.segments_mut();
        let from = work.element.remote.wrapping_add(part.offset.into());
        let (key, scope) = (work.element.key, Scope { pd: self.pd, qpn: self.qpn });
        let need = Access::REMOTE_READ;
        env.card.regions.translate(key, scope, from, part.len, need, |s| segments.push(s))
    }

    /// The outer headers of packets on this path: paths differ by their source port.
    pub(super) fn path_numbered(&self, path: u8) -> Path {
        match path {
            0 => self.path,
            path => Path { src_port: PATH_PORTS.start - 1 + u16::from(path), ..self.path },
        }
    }
}

/// The operation of a message that is one packet without payload from memory, and its headers;
/// `None` for another message.
fn bare_request(work: &Outstanding, ext: &mut Extensions) -> Option<Operation> {
    let element = &work.element;
    let (addr, rkey, len) = (element.remote, element.key, element.len);
    let reth = Reth { addr, rkey, len };
    Some(match (work.origin, element.opcode) {
        (Origin::Answer(Answering::Read), _) => return None,
        (Origin::Answer(Answering::Done), _) => Operation::ReadResponse,
        (Origin::Answer(Answering::Atomic), _) => {
            ext.atomic_ack = element.operand;
            Operation::AtomicAcknowledge
        }
        (_, Opcode::Read) => {
            ext.reth = reth;
            Operation::ReadRequest
        }
        (_, Opcode::Flush) => {
            (ext.reth, ext.feth) = (reth, element.feth());
            Operation::Flush
        }
        (_, opcode) if opcode.is_atomic() => {
            let (operation, compare) = match (opcode, opcode.calc()) {
                (Opcode::CompareSwap, _) => (Operation::CompareSwap, element.compare),
                (_, None | Some(Calc::Add)) => (Operation::FetchAdd, 0),
                (_, Some(calc)) => (Operation::Calculate, calc as u64),
            };
            ext.atomic = AtomicEth { addr, rkey, swap_add: element.operand, compare };
            operation
        }
        _ => return None,
    })
}
