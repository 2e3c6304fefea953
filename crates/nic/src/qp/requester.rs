//! The requester: turns send elements into request packets.
//!
//! READs and atomics wait here while as many are outstanding as the peer takes (`max_rd_atomic`).
//!
//! Once issued, an element is not read again. Its copy is in the card's Multi-Queue until it is
//! acknowledged, and packets are always made from that copy, both the first time and again. Going
//! back N (InfiniBand volume 1, chapter 9, Transport Layer) means to set the cursor back. Answers,
//! NAKs, time-outs and retries are in [`super::completer`], which sets it back.

use super::limits::OverLimit;
use super::refusal::Failure;
use super::retry;
use super::window::Window;
use super::{Qp, State};
use crate::card::{Card, Unsettled};
use crate::chain::{Mode, Queue, StepEnd};
use crate::env::Env;
use crate::incident::{Cause, Outcome};
use crate::kernel::Passing;
use crate::memory::Calc;
use crate::memory::key::{Access, AccessError};
use crate::multi_queue::{Cursor, List};
use crate::psn::{self, Psn};
use crate::queue::element::{AT_SGE, Element};
use crate::queue::outstanding::{Origin, Outstanding};
use crate::queue::sgl::pieces;
use crate::queue::{Opcode, SendFlags, Sge, Status};
use crate::scheduler::TurnBudget;
use crate::timers::Timer;
use crate::transmit::{Ecn, Path, Segment, TransmitBatch};
use crate::wire::opcode::Follows;
use crate::wire::{
    AtomicEth, Bth, Deth, Dialect, Extensions, MAX_HEADER, Op, Operation, Packet, Position, Reth,
    Transport, Xrceth,
};

/// A READ is requested in pieces of this many response packets, so that the window limits how much
/// a peer sends at once. The pieces begin at fixed offsets in the message, so that a repeated
/// request is always the tail of one that the responder has received.
pub(super) const READ_PIECE: u32 = 32;

/// The requester's hot state.
#[derive(Debug)]
pub(crate) struct Requester {
    /// The messages that are issued and not yet acknowledged.
    pub(crate) outstanding: List,
    /// The message that `next` belongs to; none if all issued messages are sent.
    pub(crate) cursor: Cursor,
    /// The oldest PSN that is not acknowledged.
    pub(crate) una: Psn,
    /// The next PSN to send.
    pub(crate) next: Psn,
    /// One past the highest PSN ever sent.
    pub(crate) high: Psn,
    pub(crate) window: Window,
    pub(crate) timer: Timer,
    pub(crate) retries_left: u8,
    pub(crate) rnr_retries_left: u8,
    /// How many READ pieces and atomics are requested and not answered.
    pub(crate) reads: u8,
    pub(crate) recovery: Recovery,
}

/// Which recovery of a requester is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recovery {
    Nothing,
    /// The requester waits as long as an RNR NAK asked.
    RnrWait,
    /// A response showed a loss, and the retry is under way.
    ImpliedNak,
}

impl Requester {
    pub(crate) fn new(psn: Psn, window: u16) -> Requester {
        Requester {
            outstanding: List::EMPTY,
            cursor: Cursor::NONE,
            una: psn,
            next: psn,
            high: psn,
            window: Window::new(window),
            timer: Timer::IDLE,
            retries_left: 0,
            rnr_retries_left: 0,
            reads: 0,
            recovery: Recovery::Nothing,
        }
    }

    /// Checks what holds for every reliable requester, for any answer of its peer: `next` is not
    /// before `una` and not behind `high`, and there are fewer PSNs between those two than half the
    /// circle, so that of two PSNs it is always clear which is later.
    #[inline]
    pub(super) fn debug_assert_in_order(&self) {
        let sent = self.high.distance_from(self.una);
        debug_assert!(self.next.distance_from(self.una) <= sent, "{self:?}");
        debug_assert!(sent < psn::HALF, "{self:?}");
    }

    /// Stops sending and waiting.
    pub(crate) fn stop(&mut self) {
        self.cursor = Cursor::NONE;
        self.timer.disarm();
        self.recovery = Recovery::Nothing;
    }
}

/// Why a requester stopped sending.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// The turn is over.
    Spent,
    /// An acknowledge, a timer or a doorbell must come first.
    Blocked,
}

/// The part of a message that one packet carries.
pub(super) struct Part {
    /// The index of the packet in the message.
    pub(super) k: u32,
    /// Bytes of the message before the part.
    pub(super) offset: u32,
    /// Bytes of the part.
    pub(super) len: u32,
    pub(super) position: Position,
    /// The packet has been sent before.
    pub(super) again: bool,
}

impl Part {
    /// How many bytes of pad fill the last word.
    #[inline]
    pub(super) fn pad(&self) -> u8 {
        (self.len.wrapping_neg() & 3) as u8
    }
}

impl Qp {
    /// Sends as much as the turn allows. Returns whether more could be sent.
    pub(crate) fn send_requests(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) -> bool {
        if self.mode.contains(Mode::CONTROLLED) {
            return self.send_controlled(env, batch, budget);
        }
        self.send_uncontrolled(env, batch, budget)
    }

    /// As [`Qp::send_requests`], whatever the congestion policy says of the turn.
    pub(super) fn send_uncontrolled(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) -> bool {
        // The room for elements is lent out of the card, so that the card can be used meanwhile.
        let mut fetched = core::mem::take(&mut env.card.fetched);
        let stop = self.send_until_stopped(env, batch, budget, &mut fetched);
        env.card.fetched = fetched;
        stop == Stop::Spent
    }

    fn send_until_stopped(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        fetched: &mut Vec<u8>,
    ) -> Stop {
        let (mut at, mut left) = (0, 0);
        loop {
            if let Some(stop) = self.send_issued(env, batch, budget) {
                return stop;
            }
            if self.state != State::Rts || self.sq.waiting() == 0 && !self.has_posted() {
                return Stop::Blocked;
            }
            if budget.elements == 0 || budget.is_spent() {
                return Stop::Spent;
            }
            // Kernels and the host take turns, so that neither waits for the other's burst.
            if self.has_posted() && (self.sq.waiting() == 0 || budget.elements.is_multiple_of(2)) {
                budget.elements -= 1;
                // Elements that were fetched before stay fetched.
                match self.issue_posted(env) {
                    Some(stop) => return stop,
                    None => continue,
                }
            }
            if left == 0 {
                (at, left) = (0, self.fetchable(budget.elements));
                if left == 0 || !self.fetch(env, left, fetched) {
                    return Stop::Blocked;
                }
            }
            let stride = self.sq.stride();
            if let Some(stop) = self.issue(env, &fetched[at * stride..(at + 1) * stride]) {
                return stop;
            }
            at += 1;
            left -= 1;
            budget.elements -= 1;
        }
    }

    /// How many elements may be fetched at once. In a managed queue each element is fetched just
    /// before it runs, and is not fetched again before it is done.
    #[inline]
    pub(super) fn fetchable(&self, most: u32) -> u32 {
        if !self.mode.contains(Mode::MANAGED_SEND) {
            return self.sq.contiguous(most);
        }
        u32::from(self.sq.waiting() > 0 && !self.sq.is_under_way()).min(most)
    }

    /// Copies the next `count` elements to the front of `fetched`. Elements that the turn does not
    /// use are dropped, and fetched again later (SRNIC §4.3.1).
    #[inline(always)]
    pub(super) fn fetch(&mut self, env: &mut Env<'_>, count: u32, fetched: &mut Vec<u8>) -> bool {
        let len = count as usize * self.sq.stride();
        if fetched.len() < len {
            fetched.resize(len, 0);
        }
        env.card.counters.elements_fetched += u64::from(count);
        let read = env.mem.read(self.sq.slot(self.sq.fetched), &mut fetched[..len]);
        if read.is_err() {
            self.lose_ring(env);
        }
        read.is_ok()
    }

    /// Takes the queue pair to ERROR, as its ring cannot be read.
    #[cold]
    fn lose_ring(&mut self, env: &mut Env<'_>) {
        env.card.counters.elements_invalid += 1;
        self.fail(env);
    }

    /// Checks one element and gives it its PSNs.
    pub(super) fn issue(&mut self, env: &mut Env<'_>, raw: &[u8]) -> Option<Stop> {
        let index = self.sq.fetched;
        let over = self.may_run(env).err();
        if over == Some(OverLimit::Rate) {
            return Some(Stop::Blocked);
        }
        let (element, malformed) = match Element::parse(raw) {
            Ok(element) => (element, None),
            Err(bad) => {
                env.card.counters.elements_invalid += 1;
                (Element::unreadable(raw), Some(Failure::malformed(bad)))
            }
        };
        let failure = match malformed {
            None => match self.judge_next(env, &element, over, raw) {
                Ok(failure) => failure,
                Err(stop) => return Some(stop),
            },
            Some(_) if over.is_some() => Some(self.stop_chain(env.card)),
            malformed => malformed,
        };
        let failed = failure.as_ref().map(|failure| failure.status);
        let Some(cursor) = self.push_outstanding(env, &element, raw, failed) else {
            return Some(self.starve(env));
        };
        if let Some(failure) = failure {
            self.report_unissued(env, raw, failure);
        }
        self.sq.fetched = index.wrapping_add(1);
        self.tx.cursor = cursor;
        self.note_run(env, &element);
        if env.card.chains.traces() {
            let end = failed.map_or(StepEnd::Issued, StepEnd::Failed);
            self.trace(env, (Queue::Send, index), raw, end);
        }
        if failed.is_none() && element.opcode.is_local() {
            return self.carry_out(env, cursor, &element);
        }
        None
    }

    /// Checks an element as read from its slot. Returns its error, if it has one, or that the queue
    /// must wait first.
    #[inline(always)]
    fn judge_next(
        &mut self,
        env: &mut Env<'_>,
        element: &Element,
        over: Option<OverLimit>,
        raw: &[u8],
    ) -> Result<Option<Failure>, Stop> {
        if element.flags.contains(SendFlags::FENCE) && self.waits_for_response(env) {
            return Err(Stop::Blocked);
        }
        let failure = self.judge(env, element, raw).err();
        if over.is_some() {
            return Ok(Some(self.stop_chain(env.card)));
        }
        if element.opcode == Opcode::Wait && failure.is_none() {
            return self.wait_in_connection(env, element, raw);
        }
        Ok(failure)
    }

    /// Adds an element to the outstanding work. `None` if the pool is full. A failed element takes
    /// no PSNs.
    #[inline(always)]
    fn push_outstanding(
        &mut self,
        env: &mut Env<'_>,
        element: &Element,
        raw: &[u8],
        failed: Option<Status>,
    ) -> Option<Cursor> {
        let packets = match element.opcode {
            _ if failed.is_some() => 0,
            opcode if opcode.is_local() => 0,
            opcode if opcode.is_atomic() || opcode == Opcode::Flush => 1,
            // In the lossy dialect the answer has PSNs of its own.
            Opcode::Read if self.is_lossy() => 1,
            _ => element.len.div_ceil(u32::from(self.mtu)).max(1),
        };
        let work = Outstanding {
            element: *element,
            more: (failed.is_none() && element.num_sge > 1)
                .then(|| env.card.sgls.copy_in(raw, element.num_sge)),
            index: self.sq.fetched,
            // All issued messages are sent, so the next PSN to send is the next free one.
            psn: self.tx.next,
            packets,
            ssn: self.ssn(),
            failed,
            origin: Origin::Ring,
        };
        let cursor = env.card.outstanding.push_share(&mut self.tx.outstanding, work);
        if cursor.is_some() {
            if failed.is_none() {
                self.count_ssn(element.opcode);
            }
        } else {
            work.more.into_iter().for_each(|slot| env.card.sgls.release(slot));
        }
        cursor
    }

    /// Keeps an incident that says why an element was not issued.
    #[cold]
    fn report_unissued(&self, env: &mut Env<'_>, raw: &[u8], failure: Failure) {
        let opcode = Element::parse(raw).ok().map(|element| element.opcode);
        let outcome =
            Outcome::Failed { wr_id: Element::wr_id(raw), opcode, status: failure.status };
        self.report(env, outcome, (None, None), failure.blame);
    }

    /// Waits for room in the pool of outstanding work, which has no more for this queue pair.
    #[inline(never)]
    pub(super) fn starve(&mut self, env: &mut Env<'_>) -> Stop {
        env.card.counters.pool_full += 1;
        let of = self.of(env.card);
        env.card.scheduler.starve(self.qpn, of, &mut self.cold.starved);
        Stop::Blocked
    }

    /// Sends packets of issued messages from the cursor on. `None` if all are sent.
    fn send_issued(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) -> Option<Stop> {
        if self.is_lossy() {
            return self.send_lossy_issued(env, batch, budget);
        }
        if self.tx.recovery == Recovery::RnrWait {
            return Some(Stop::Blocked);
        }
        while let Some(&work) = env.card.outstanding.get(self.tx.cursor) {
            if work.failed.is_some() {
                self.settle_failures(env);
                return Some(Stop::Blocked);
            }
            if work.element.opcode.is_local() {
                self.tx.cursor = env.card.outstanding.next(self.tx.cursor);
                self.complete_local(env);
                continue;
            }
            if budget.is_spent() {
                return Some(Stop::Spent);
            }
            let in_flight = self.tx.next.distance_from(self.tx.una);
            if self.transport.is_reliable() && !self.tx.window.has_room(in_flight) {
                return Some(Stop::Blocked);
            }
            let wants_response = work.element.opcode.wants_response();
            if wants_response && self.tx.reads >= self.cold.max_rd_atomic {
                return Some(Stop::Blocked);
            }
            match self.send_packet(env, batch, budget, &work) {
                Ok(psns) => self.sent(env, &work, psns),
                Err(error) => {
                    env.card.counters.elements_protection += 1;
                    let status = Status::LocalProtection;
                    if let Some(work) = env.card.outstanding.get_mut(self.tx.cursor) {
                        work.failed = Some(status);
                    }
                    let packet = (None, Some(self.tx.next));
                    self.report(env, work.fails_with(status), packet, Cause::Access(error));
                }
            }
        }
        None
    }

    /// Notes that `psns` more PSNs of `work` have been sent.
    fn sent(&mut self, env: &mut Env<'_>, work: &Outstanding, psns: u32) {
        if self.tx.next.is_before(self.tx.high) {
            env.card.counters.tx_retransmitted += 1;
        }
        self.tx.next = self.tx.next.plus(psns);
        if self.tx.next.is_after(self.tx.high) {
            self.tx.high = self.tx.next;
        }
        if work.element.opcode.wants_response() {
            self.tx.reads += 1;
        }
        if self.tx.next == work.end() {
            self.tx.cursor = env.card.outstanding.next(self.tx.cursor);
        }
        if self.transport.is_reliable() {
            self.tx.debug_assert_in_order();
            if !self.tx.timer.is_armed() {
                self.arm_timer(env);
            }
        } else if self.tx.next == work.end() {
            // On an unreliable service, a message that has been sent is done.
            self.tx.una = self.tx.next;
            self.complete_front(env);
        }
    }

    /// Starts the timeout for an acknowledge anew.
    pub(crate) fn arm_timer(&mut self, env: &mut Env<'_>) {
        let Some(wait) = retry::ack_timeout_ns(self.timeout) else {
            return self.tx.timer.disarm();
        };
        // Each message that is sent comes here, and arithmetic of durations takes divisions.
        let wait = wait.max(env.card.least_wait_ns());
        env.card.timers.arm(&mut self.tx.timer, self.qpn, env.now.plus_ns(wait));
    }

    /// As [`Qp::arm_timer`], after one wait or more was in vain: see [`retry::wait_apart_ns`].
    pub(crate) fn arm_timer_again(&mut self, env: &mut Env<'_>) {
        let vain = self.retry_cnt.saturating_sub(self.tx.retries_left);
        if let Some(wait) = retry::ack_timeout_ns(self.timeout) {
            let wait = retry::wait_apart_ns(wait.max(env.card.least_wait_ns()), vain, self.qpn);
            env.card.timers.arm(&mut self.tx.timer, self.qpn, env.now.plus_ns(wait));
        }
    }

    /// Makes the packet at `next`. Returns how many PSNs it takes.
    fn send_packet(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        work: &Outstanding,
    ) -> Result<u32, AccessError> {
        let element = &work.element;
        match element.opcode {
            Opcode::Read => Ok(self.send_read(env, batch, budget, work)),
            Opcode::Flush => {
                let Element { remote: addr, key: rkey, len, .. } = *element;
                let (reth, feth) = (Reth { addr, rkey, len }, element.feth());
                let ext = Extensions { reth, feth, ..self.extensions(element) };
                self.push_bare(env, batch, budget, Operation::Flush, &ext);
                Ok(1)
            }
            opcode if opcode.is_atomic() => {
                let (operation, compare) = match (opcode, opcode.calc()) {
                    (Opcode::CompareSwap, _) => (Operation::CompareSwap, element.compare),
                    (_, None | Some(Calc::Add)) => (Operation::FetchAdd, 0),
                    (_, Some(calc)) => (Operation::Calculate, calc as u64),
                };
                let (addr, rkey, swap_add) = (element.remote, element.key, element.operand);
                let atomic = AtomicEth { addr, rkey, swap_add, compare };
                let ext = Extensions { atomic, ..self.extensions(element) };
                self.push_bare(env, batch, budget, operation, &ext);
                Ok(1)
            }
            _ => self.send_data(env, batch, budget, work),
        }
    }

    /// Makes a packet of a SEND or WRITE.
    fn send_data(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        work: &Outstanding,
    ) -> Result<u32, AccessError> {
        let element = &work.element;
        let part = self.part(work, self.tx.next, self.tx.next.is_before(self.tx.high));
        let (path, dest_qp, deth) = match self.transport {
            Transport::Ud => {
                let (path, dest_qp) = self.destination(env, element)?;
                (path, dest_qp, self.deth(element))
            }
            _ => (self.path, self.dest_qp, Deth::default()),
        };
        let mark = batch.mark();
        if let Err(refused) = self.gather(env, batch, work, part.offset, part.len) {
            batch.rewind(mark);
            return Err(refused);
        }
        let (operation, with) = element.opcode.on_wire();
        let rides = Op::can_acknowledge(operation, part.position) && self.speaks_alone(env.card);
        let aeth = if rides { self.take_acknowledge(env.card) } else { None };
        let with = if aeth.is_some() { with | Follows::AETH } else { with };
        let op = Op::of(self.transport, operation, part.position, with);
        let ext = Extensions {
            aeth: aeth.unwrap_or_default(),
            reth: Reth { addr: element.remote, rkey: element.key, len: element.len },
            imm_or_key: element.imm(),
            deth,
            ..self.extensions(element)
        };
        let bth = Bth { dest_qp, ..self.data_bth(env.card, element, &part) };
        let header = |out: &mut _| Packet::emit_headers(&bth, op, &ext, out);
        let to = (path, env.card.config.ecn);
        self.push_data(env, batch, (to, mark), work, &part, header)?;
        self.count_sent(env, budget, part.len);
        Ok(1)
    }

    /// The part of a message that the packet `psn` carries.
    #[inline]
    pub(super) fn part(&self, work: &Outstanding, psn: Psn, again: bool) -> Part {
        let k = psn.distance_from(work.psn);
        let offset = k * u32::from(self.mtu);
        let len = (work.element.len - offset).min(u32::from(self.mtu));
        Part { k, offset, len, position: Position::new(k == 0, k + 1 == work.packets), again }
    }

    /// The base header of a packet of a SEND or WRITE, without its destination.
    #[inline]
    fn data_bth(&self, card: &Card, element: &Element, part: &Part) -> Bth {
        let window_ends = !self.tx.window.has_room(self.tx.next.distance_from(self.tx.una) + 1);
        let every = self.tx.window.ask_every(card.config.ack_every);
        let asks = part.position.ends() || window_ends || (part.k + 1).is_multiple_of(every);
        let tells = part.position.ends() && element.opcode.tells_receiver();
        Bth {
            solicited: tells && element.flags.contains(SendFlags::SOLICITED),
            pad: part.pad(),
            ack_req: self.transport.is_reliable() && asks,
            psn: self.tx.next,
            ..Bth::ours()
        }
    }

    /// Adds a packet of a SEND or WRITE. Its payload is a kernel's buffer, or passes a kernel, or
    /// is copied because a part of it is a null region's, or else consists of the gathered
    /// segments.
    #[inline]
    pub(super) fn push_data(
        &self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        (to, mark): ((Path, Ecn), u32),
        work: &Outstanding,
        part: &Part,
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) -> Result<(), AccessError> {
        let pad = part.pad();
        if let Origin::Kernel { buffer: Some(at) } = work.origin {
            if let Some(buffer) = env.card.kernel.buffers.get(at) {
                batch.push_shared(to, buffer, (part.offset, part.len), pad, header);
            }
            return Ok(());
        }
        if env.card.kernel.taps > 0
            && let Some(passing) = self.passes_kernel(work, part)
        {
            let (tap, kernels) = (self.cold.send_tap, &mut *env.kernels);
            let change = |bytes: &mut [u8]| kernels.change(tap, &passing, bytes);
            let pushed = batch.push_changed(to, mark, pad, env.mem, header, change);
            pushed.map_err(|_| AccessError::Memory)?;
            env.card.counters.kernel_tapped_bytes += u64::from(part.len);
            return Ok(());
        }
        if batch.has_gaps(mark) {
            let copied = batch.push_copied(to, mark, pad, env.mem, header);
            return copied.map_err(|_| AccessError::Memory);
        }
        let (path, ecn) = to;
        batch.push(path, ecn, mark, pad, header);
        Ok(())
    }

    /// How the payload of a WRITE passes the kernel that is bound to sent WRITEs, if there is one.
    #[inline(never)]
    fn passes_kernel(&self, work: &Outstanding, part: &Part) -> Option<Passing> {
        let element = &work.element;
        let is_write = element.opcode.on_wire().0 == Operation::Write;
        let is_write = is_write && work.origin == Origin::Ring;
        (self.cold.send_tap != 0 && part.len > 0 && is_write).then(|| Passing {
            qpn: self.qpn,
            pd: self.pd,
            addr: element.remote.wrapping_add(u64::from(part.offset)),
            key: element.key,
            offset: part.offset,
            total: element.len,
            again: part.again,
        })
    }

    /// May the packet at `next` take an acknowledge along? The peer must know StRoM's dialect, and
    /// the packet must be the only one that is outstanding or will soon be. (Several packets of one
    /// length leave by one system call, and an acknowledge behind them costs little. A packet that
    /// takes it along has another length.)
    fn speaks_alone(&self, card: &Card) -> bool {
        let una = match card.unsettled {
            Some(Unsettled { qpn, end, .. }) if qpn == self.qpn => end,
            _ => self.tx.una,
        };
        self.dialect == Dialect::KERNELS
            && self.tx.next == una
            && self.sq.waiting() == 0
            && !self.has_posted()
    }

    /// Gathers the segments of memory that a packet's bytes are in.
    #[inline(always)]
    pub(super) fn gather(
        &self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        work: &Outstanding,
        offset: u32,
        len: u32,
    ) -> Result<(), AccessError> {
        let segments = batch.segments_mut();
        let element = &work.element;
        if let Origin::Kernel { buffer: Some(_) } = work.origin {
            return Ok(());
        }
        if element.flags.contains(SendFlags::INLINE) {
            let addr = self.sq.slot(work.index) + AT_SGE as u64 + u64::from(offset);
            segments.extend((len > 0).then_some(Segment { addr, len }));
            return Ok(());
        }
        let card = &*env.card;
        pieces(work.entries(&card.sgls), offset, len, |Sge { addr, len, lkey }| {
            let read = Access::empty();
            card.regions.translate(lkey, self.scope(), addr, len, read, |s| segments.push(s))
        })
    }

    /// Requests the piece of a READ that begins at `next`.
    #[inline(never)]
    fn send_read(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        work: &Outstanding,
    ) -> u32 {
        let mtu = u32::from(self.mtu);
        let k = self.tx.next.distance_from(work.psn);
        let end = ((k / READ_PIECE + 1) * READ_PIECE).min(work.packets);
        let offset = k * mtu;
        let len = (work.element.len - offset).min((end - k) * mtu);
        let addr = work.element.remote.wrapping_add(u64::from(offset));
        let reth = Reth { addr, rkey: work.element.key, len };
        let ext = Extensions { reth, ..self.extensions(&work.element) };
        self.push_bare(env, batch, budget, Operation::ReadRequest, &ext);
        end - k
    }

    /// The header fields that all packets of a request have.
    fn extensions(&self, element: &Element) -> Extensions {
        Extensions { xrceth: Xrceth { srqn: element.srqn }, ..Extensions::default() }
    }

    /// Adds a reliable request without payload.
    #[inline(never)]
    fn push_bare(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
        operation: Operation,
        ext: &Extensions,
    ) {
        let op = Op::of(self.transport, operation, Position::Only, Follows::empty());
        let bth = Bth { dest_qp: self.dest_qp, ack_req: true, psn: self.tx.next, ..Bth::ours() };
        let (ecn, mark) = (env.card.config.ecn, batch.mark());
        batch.push(self.path, ecn, mark, 0, |out| Packet::emit_headers(&bth, op, ext, out));
        self.count_sent(env, budget, 0);
    }

    pub(super) fn count_sent(&self, env: &mut Env<'_>, budget: &mut TurnBudget, payload: u32) {
        budget.spend(payload);
        env.card.counters.tx_packets += 1;
        env.card.counters.tx_bytes += u64::from(payload);
    }

    /// The path of a datagram, and the queue pair at its end.
    fn destination(&self, env: &Env<'_>, element: &Element) -> Result<(Path, u32), AccessError> {
        let (ah, qpn) = element.ud();
        // The handle existed when the element was checked, but that may be a turn ago.
        let ah = env.card.ahs.get(ah).ok_or(AccessError::Key)?;
        Ok((ah.path, qpn))
    }

    /// The datagram header. A Q_Key with its top bit set means the queue pair's own.
    fn deth(&self, element: &Element) -> Deth {
        let qkey = if element.key >> 31 == 1 { self.cold.qkey } else { element.key };
        Deth { qkey, src_qp: self.qpn }
    }
}
