//! Loop-back: the requests of a queue pair whose peer is on the same card, carried out in the card.
//!
//! The peer's responder takes the pieces of a message as it takes packets, so that the same checks
//! hold; only the packets are left out. Each request is done before the next begins, so that
//! nothing is outstanding except a message that is longer than a turn's bytes.

use super::refusal::{Failure, Refusal};
use super::{Qp, Qps, State};
use crate::card::Card;
use crate::chain::{EnableError, Mode, Queue, StepEnd};
use crate::env::Env;
use crate::incident::{Cause, Outcome, Touched};
use crate::memory::key::{Access, AccessError, Pd, Scope};
use crate::qp::answers::Atomic;
use crate::qp::limits::OverLimit;
use crate::qp::order::Wait;
use crate::queue::element::{AT_SGE, BadElement, Element, sge_at};
use crate::queue::outstanding::{Origin, Outstanding};
use crate::queue::sgl::{pieces, scatter};
use crate::queue::{MAX_SGE, Opcode, SendFlags, Sge, Status};
use crate::scheduler::{Round, TurnBudget};
use crate::wire::opcode::Follows;
use crate::wire::{Bth, Extensions, Op, Operation, Packet, Position, Reth, Transport};

/// How many bytes are moved at a time: the largest path MTU.
pub(crate) const PIECE: u32 = 4096;

/// The outcome of an element.
enum Progress {
    /// The element is done: the next one may run.
    Done,
    /// A message of several pieces has begun.
    Begun,
    /// Something else must happen first.
    Blocked,
}

impl Progress {
    /// The outcome of a WAIT.
    fn of(wait: Wait) -> Result<Progress, Failure> {
        match wait {
            Wait::Over => Ok(Progress::Done),
            Wait::Blocked => Ok(Progress::Blocked),
            Wait::Refused(cause) => Err(Failure::new(Status::LocalQpOperation, cause)),
        }
    }

    /// The outcome as it is traced.
    fn end(flow: &Result<Progress, Failure>) -> StepEnd {
        match flow {
            Ok(Progress::Done) => StepEnd::Done,
            Ok(Progress::Begun) => StepEnd::Issued,
            Ok(Progress::Blocked) => StepEnd::Blocked,
            Err(failure) => StepEnd::Failed(failure.status),
        }
    }
}

/// Local bytes of a request.
enum Local<'a> {
    Inline(&'a [u8]),
    Sges(&'a [Sge]),
}

/// A turn of a loop-back queue pair.
struct Turn<'t, 'e> {
    qps: &'t mut Qps,
    env: &'t mut Env<'e>,
    qpn: u32,
    /// The queue pair at the other end.
    dest: u32,
    /// The queue pair as a user of local keys.
    scope: Scope,
    /// How many bytes may still be moved.
    bytes: u32,
    /// How many elements were run.
    ran: u32,
}

/// Copies of elements, of which those from `at` to `end` have not run.
struct Fetched<'f> {
    bytes: &'f mut Vec<u8>,
    at: usize,
    end: usize,
    /// How many elements may still be fetched.
    left: u32,
}

/// Gives a loop-back queue pair its turn, and the loop-back queue pairs that come next theirs: an
/// ENABLE of a chain passes control from one to the next, and the way back through the card's poll
/// would cost as much as an element. It stops where that poll has to do something between turns.
#[inline(never)]
pub(crate) fn turns(qps: &mut Qps, env: &mut Env<'_>, first: u32, round: &mut Round) {
    // The buffers are lent out of the card, so that the card can be used meanwhile.
    let mut fetched = core::mem::take(&mut env.card.fetched);
    let mut scratch = core::mem::take(&mut env.card.chains.scratch);
    scratch.resize(PIECE as usize, 0);
    let mut next = Some(first);
    while let Some(qpn) = next {
        let (again, ran) = turn(qps, env, qpn, (&mut fetched, &mut scratch));
        round.spend_in_card(ran);
        if again && let Some(qp) = qps.get_mut(qpn) {
            qp.schedule(env.card);
        }
        next = next_in_loop_back(qps, env.card, round);
    }
    env.card.fetched = fetched;
    env.card.chains.scratch = scratch;
}

/// Takes the queue pair that has the next turn, if it is looped back and nothing comes first.
#[inline]
fn next_in_loop_back(qps: &mut Qps, card: &mut Card, round: &mut Round) -> Option<u32> {
    if !card.chains.errands.is_empty() || card.scheduler.is_shared() {
        return None;
    }
    let qp = qps.get_mut(card.scheduler.front()?)?;
    if !qp.mode.contains(Mode::LOOP_BACK) {
        return None;
    }
    let next = round.next(&mut card.scheduler)?;
    qp.queued = false;
    Some(next)
}

/// Gives a loop-back queue pair its turn, with room for elements and for bytes. Returns whether it
/// needs another, and how many elements it ran.
#[inline(always)]
fn turn(
    qps: &mut Qps,
    env: &mut Env<'_>,
    qpn: u32,
    (fetched, scratch): (&mut Vec<u8>, &mut [u8]),
) -> (bool, u32) {
    let mut budget = TurnBudget::turn(&env.card.config);
    let TurnBudget { elements, bytes } = budget;
    env.card.scheduler.left = budget;
    let Some(qp) = qps.get_mut(qpn) else { return (false, 0) };
    match qp.state {
        State::Rts | State::Sqd => {
            let (dest, scope, begun) = (qp.dest_qp, qp.scope(), !qp.tx.outstanding.is_empty());
            let mut turn = Turn { qps, env, qpn, dest, scope, bytes, ran: 0 };
            let ahead = Fetched { bytes: fetched, at: 0, end: 0, left: elements };
            let again = turn.run(begun, ahead, scratch);
            let (ran, bytes) = (turn.ran, turn.bytes);
            env.card.scheduler.left = TurnBudget { elements: elements.saturating_sub(ran), bytes };
            env.card.counters.chain_elements += u64::from(ran);
            (again, ran)
        }
        State::Error => (qp.flush(env, &mut budget), 1),
        _ => (false, 0),
    }
}

impl Qp {
    /// Ends the element that has run, and is the last that was fetched.
    #[inline]
    fn retire(&mut self, env: &mut Env<'_>, element: &Element) {
        self.note_run(env, element);
        self.sq.retired = self.sq.fetched;
        self.report_done(env, element);
    }
}

impl Fetched<'_> {
    /// Fetches more elements. If the turn is over instead, returns whether another is needed.
    #[inline]
    fn more(&mut self, qp: &mut Qp, env: &mut Env<'_>) -> Option<bool> {
        if self.left == 0 {
            return Some(qp.sq.waiting() > 0);
        }
        let count = if qp.state == State::Rts { qp.fetchable(self.left) } else { 0 };
        if count == 0 || !qp.fetch(env, count, self.bytes) {
            return Some(false);
        }
        self.left -= count;
        (self.at, self.end) = (0, count as usize * qp.sq.stride());
        None
    }

    /// The next fetched element.
    #[inline]
    fn next(&mut self, stride: usize) -> &[u8] {
        let at = self.at;
        self.at += stride;
        &self.bytes[at..self.at]
    }
}

impl Turn<'_, '_> {
    /// Runs elements until the turn is over, behind the message that has begun if one has. Returns
    /// whether another turn is needed.
    fn run(&mut self, begun: bool, mut fetched: Fetched<'_>, scratch: &mut [u8]) -> bool {
        if begun && let Some(again) = self.go_on(scratch) {
            return again;
        }
        loop {
            if let Some(again) = self.element(&mut fetched, scratch) {
                return again;
            }
        }
    }

    /// Runs the next fetched element. If the turn is over then, returns whether another is needed.
    #[inline(always)]
    fn element(&mut self, fetched: &mut Fetched<'_>, scratch: &mut [u8]) -> Option<bool> {
        let Some(qp) = self.qps.get_mut(self.qpn) else { return Some(false) };
        if fetched.at == fetched.end
            && let Some(again) = fetched.more(qp, self.env)
        {
            return Some(again);
        }
        let raw = fetched.next(qp.sq.stride());
        let index = qp.sq.fetched;
        if let Err(limit) = qp.may_run(self.env) {
            return self.over(limit, raw);
        }
        // The index moves first: the element itself may enable as much as a whole ring behind it.
        qp.sq.fetched = index.wrapping_add(1);
        // The element is read in place, since copying bytes that were just stored in smaller pieces
        // is slow.
        let parsed = Element::parse(raw);
        let element = match &parsed {
            Ok(element) => element,
            Err(bad) => return self.malformed(raw, *bad),
        };
        // An element that changes other queue pairs needs the table of queue pairs, so this queue
        // pair is looked up again after it.
        let (flow, qp) = match element.opcode {
            Opcode::NoOp => (Ok(Progress::Done), qp),
            Opcode::Wait => (Progress::of(qp.wait(self.env, element)), qp),
            _ => {
                let flow = self.carry_out(element, raw, scratch);
                let Some(qp) = self.qps.get_mut(self.qpn) else { return Some(false) };
                (flow, qp)
            }
        };
        if self.env.card.chains.traces() {
            qp.trace(self.env, (Queue::Send, index), raw, Progress::end(&flow));
        }
        match flow {
            Ok(Progress::Blocked) => {
                qp.sq.fetched = index;
                Some(false)
            }
            Ok(Progress::Begun) => {
                self.ran += 1;
                qp.note_run(self.env, element);
                self.go_on(scratch)
            }
            Ok(Progress::Done) => {
                self.ran += 1;
                qp.retire(self.env, element);
                // When the turn's bytes are spent, the driver or the next queue pair comes first.
                (self.bytes == 0).then_some(true)
            }
            Err(failure) => {
                qp.sq.retired = qp.sq.fetched;
                self.break_off(element, Some(element.opcode), failure);
                Some(false)
            }
        }
    }

    /// Fails an element that is malformed.
    #[cold]
    fn malformed(&mut self, raw: &[u8], bad: BadElement) -> Option<bool> {
        self.env.card.counters.elements_invalid += 1;
        self.refuse(raw, Failure::malformed(bad))
    }

    /// Leaves an element that the chain's rate delays, and fails one for which its budget is not
    /// enough.
    #[cold]
    fn over(&mut self, limit: OverLimit, raw: &[u8]) -> Option<bool> {
        if limit == OverLimit::Rate {
            return Some(false);
        }
        let qp = self.qps.get_mut(self.qpn)?;
        qp.sq.fetched = qp.sq.fetched.wrapping_add(1);
        let failure = qp.stop_chain(self.env.card);
        self.refuse(raw, failure)
    }

    /// Fails the element that was fetched last, without running it.
    fn refuse(&mut self, raw: &[u8], failure: Failure) -> Option<bool> {
        let qp = self.qps.get_mut(self.qpn)?;
        qp.sq.retired = qp.sq.fetched;
        let index = qp.sq.fetched.wrapping_sub(1);
        qp.trace(self.env, (Queue::Send, index), raw, StepEnd::Failed(failure.status));
        self.break_off(&Element::unreadable(raw), None, failure);
        Some(false)
    }

    /// Carries out an element that concerns more than its own queue.
    #[inline]
    fn carry_out(
        &mut self,
        element: &Element,
        raw: &[u8],
        scratch: &mut [u8],
    ) -> Result<Progress, Failure> {
        match element.opcode {
            Opcode::Enable | Opcode::EnableRecv => self.enable(element),
            Opcode::Write | Opcode::WriteImm | Opcode::Send | Opcode::SendImm | Opcode::Read => {
                self.message(element, raw, scratch)
            }
            opcode if opcode.is_atomic() => self.atomic(element),
            _ => {
                self.env.card.counters.elements_invalid += 1;
                Err(Failure::new(Status::LocalQpOperation, Cause::NotAllowed))
            }
        }
    }

    fn enable(&mut self, element: &Element) -> Result<Progress, Failure> {
        let done = enable(self.qps, self.env, self.scope.pd, element);
        done.map(|()| Progress::Done).map_err(|error| {
            self.env.card.counters.chain_bad_enable += 1;
            Failure::new(Status::LocalQpOperation, Cause::BadEnable(error))
        })
    }

    /// Carries out a calc verb or atomic, and writes its result.
    fn atomic(&mut self, element: &Element) -> Result<Progress, Failure> {
        let sge = (element.num_sge > 0).then_some(element.sge);
        if let Some(entry) = sge {
            // This check comes first: once the word is changed, nothing can be refused any more.
            self.check_local(entry, Access::LOCAL_WRITE)?;
        }
        let peer = peer(self.qps, self.qpn, self.dest)?;
        let word = (element.key, element.remote);
        let done = peer.execute_word(self.env, word, Atomic::of(element));
        let original = done.map_err(|refusal| self.refused(refusal, Operation::FetchAdd))?;
        if let Some(entry) = sge {
            // In memory the word has the host's byte order, on both sides.
            self.write_local(entry, &original.to_ne_bytes())?;
        }
        Ok(Progress::Done)
    }

    /// Carries out a message: at once if it is one piece, otherwise as outstanding work.
    #[inline]
    fn message(
        &mut self,
        element: &Element,
        raw: &[u8],
        scratch: &mut [u8],
    ) -> Result<Progress, Failure> {
        if element.num_sge > 1 || element.len > PIECE {
            return self.long_message(element, raw, scratch);
        }
        let local = match element.flags.contains(SendFlags::INLINE) {
            true => Local::Inline(&raw[AT_SGE..AT_SGE + element.len as usize]),
            false => Local::Sges(&core::slice::from_ref(&element.sge)[..element.num_sge.into()]),
        };
        self.whole(element, &local, scratch)
    }

    /// Carries out a message of several entries or pieces.
    #[inline(never)]
    fn long_message(
        &mut self,
        element: &Element,
        raw: &[u8],
        scratch: &mut [u8],
    ) -> Result<Progress, Failure> {
        let mut entries = [Sge::default(); MAX_SGE];
        let entries = &mut entries[..element.num_sge.into()];
        entries.iter_mut().enumerate().for_each(|(i, entry)| *entry = sge_at(raw, i));
        let returns_data = element.opcode.returns_data();
        let need = if returns_data { Access::LOCAL_WRITE } else { Access::empty() };
        entries.iter().try_for_each(|entry| self.check_local(*entry, need))?;
        if element.len > PIECE {
            return self.begin(element, raw);
        }
        self.whole(element, &Local::Sges(entries), scratch)
    }

    /// Carries out a message that is one piece.
    #[inline(always)]
    fn whole(
        &mut self,
        element: &Element,
        local: &Local<'_>,
        scratch: &mut [u8],
    ) -> Result<Progress, Failure> {
        let place = (0, element.len, Position::Only);
        let moved = self.piece(element, local, place, scratch)?;
        Ok(if moved { Progress::Done } else { Progress::Blocked })
    }

    /// Adds a long message to the outstanding work.
    fn begin(&mut self, element: &Element, raw: &[u8]) -> Result<Progress, Failure> {
        let pool = &mut self.env.card.sgls;
        let more = (element.num_sge > 1).then(|| pool.copy_in(raw, element.num_sge));
        let Some(qp) = self.qps.get_mut(self.qpn) else { return Ok(Progress::Blocked) };
        let work = Outstanding {
            element: *element,
            more,
            index: qp.sq.fetched.wrapping_sub(1),
            psn: qp.tx.next,
            packets: element.len.div_ceil(PIECE),
            ssn: 0,
            failed: None,
            origin: Origin::Ring,
        };
        if self.env.card.outstanding.push_share(&mut qp.tx.outstanding, work).is_some() {
            return Ok(Progress::Begun);
        }
        more.into_iter().for_each(|slot| self.env.card.sgls.release(slot));
        qp.starve(self.env);
        Ok(Progress::Blocked)
    }

    /// Continues the message that is under way, if there is one. If the turn is over then, returns
    /// whether another is needed.
    fn go_on(&mut self, scratch: &mut [u8]) -> Option<bool> {
        loop {
            let qp = self.qps.get_mut(self.qpn)?;
            let &work = self.env.card.outstanding.front(&qp.tx.outstanding)?;
            if self.bytes == 0 {
                return Some(true);
            }
            let k = qp.tx.next.distance_from(work.psn);
            let offset = k * PIECE;
            let len = (work.element.len - offset).min(PIECE);
            let mut entries = [Sge::default(); MAX_SGE];
            let sges = work.entries(&self.env.card.sgls);
            let entries = &mut entries[..sges.len()];
            entries.copy_from_slice(sges);
            let place = (offset, len, Position::new(k == 0, k + 1 == work.packets));
            let moved = self.piece(&work.element, &Local::Sges(entries), place, scratch);
            let qp = self.qps.get_mut(self.qpn)?;
            match moved {
                Ok(false) => return Some(false),
                Ok(true) => {
                    qp.tx.next = qp.tx.next.plus(1);
                    if k + 1 == work.packets {
                        qp.complete_front(self.env);
                    }
                }
                Err(failure) => {
                    qp.pop_outstanding(self.env);
                    self.break_off(&work.element, Some(work.element.opcode), failure);
                    return Some(false);
                }
            }
        }
    }

    /// Moves `len` bytes at `offset` of a message. False if the peer has no receive element for it.
    #[inline(always)]
    fn piece(
        &mut self,
        element: &Element,
        local: &Local<'_>,
        (offset, len, position): (u32, u32, Position),
        scratch: &mut [u8],
    ) -> Result<bool, Failure> {
        self.bytes = self.bytes.saturating_sub(len.max(64));
        let buffer = &mut scratch[..len as usize];
        if element.opcode == Opcode::Read {
            self.read_peer(element, offset, buffer)?;
            let Local::Sges(entries) = local else { return Ok(true) };
            return self.scatter(entries, offset, buffer).map(|()| true);
        }
        let payload = match local {
            Local::Inline(bytes) => bytes,
            // The usual case: the message is one whole entry.
            Local::Sges([entry]) if entry.len == len && len > 0 => {
                self.read_local(*entry, buffer)?;
                &*buffer
            }
            Local::Sges(entries) => {
                self.gather(entries, offset, buffer)?;
                &*buffer
            }
        };
        if element.opcode == Opcode::Write
            && position == Position::Only
            && self.env.card.kernel.taps == 0
        {
            return self.write_peer(element, payload);
        }
        self.deliver(element, payload, position)
    }

    /// Writes bytes of a message, from `offset` on, to the memory that its entries name.
    fn scatter(&mut self, entries: &[Sge], offset: u32, bytes: &[u8]) -> Result<(), Failure> {
        let (regions, mem) = (&self.env.card.regions, &mut *self.env.mem);
        let done = scatter(regions, mem, (self.scope, entries), offset, bytes);
        done.map_err(|(error, piece)| self.local_failure(error, piece))
    }

    /// Reads bytes of a message, from `offset` on, from the memory that its entries name.
    fn gather(&mut self, entries: &[Sge], offset: u32, buffer: &mut [u8]) -> Result<(), Failure> {
        let mut at = 0;
        pieces(entries, offset, buffer.len() as u32, |entry| {
            let now = &mut buffer[at..at + entry.len as usize];
            at += now.len();
            self.read_local(entry, now)
        })
    }

    /// Hands a piece of a SEND or WRITE to the peer's responder.
    #[inline(never)]
    fn deliver(
        &mut self,
        element: &Element,
        payload: &[u8],
        position: Position,
    ) -> Result<bool, Failure> {
        let (operation, with) = element.opcode.on_wire();
        let ends = position.ends() && element.opcode.tells_receiver();
        let solicited = ends && element.flags.contains(SendFlags::SOLICITED);
        let reth = Reth { addr: element.remote, rkey: element.key, len: element.len };
        let packet = Packet {
            bth: Bth { solicited, ..Bth::ours() },
            op: Op::of(Transport::Rc, operation, position, with),
            ext: Extensions { reth, imm_or_key: element.imm(), ..Extensions::default() },
            payload,
        };
        let peer = peer(self.qps, self.qpn, self.dest)?;
        let taken = match operation {
            Operation::Send => peer.execute_send(self.env, &packet),
            _ => peer.execute_write(self.env, &packet),
        };
        match taken {
            Ok(_) => Ok(true),
            Err(Refusal::NotReady) => Ok(false),
            Err(refusal) => Err(self.refused(refusal, operation)),
        }
    }

    /// Carries out a WRITE of one piece without the peer's responder, under the same checks.
    #[inline]
    fn write_peer(&mut self, element: &Element, payload: &[u8]) -> Result<bool, Failure> {
        let peer = peer(self.qps, self.qpn, self.dest)?;
        let (key, need) = ((element.key, peer.scope()), Access::REMOTE_WRITE);
        // A range of no bytes checks only whether the queue pair permits WRITEs. The key is checked
        // by the write itself.
        let allowed = peer.check_remote(self.env, element.key, element.remote, 0, need);
        let written = allowed.and_then(|_| {
            if payload.is_empty() {
                return Ok(());
            }
            let written = self.env.write_region(key, element.remote, payload, need);
            written.map_err(|error| {
                let (addr, len) = (element.remote, payload.len() as u64);
                Refusal::access(self.env, error, Touched { key: element.key, addr, len })
            })
        });
        written.map_err(|refusal| self.refused(refusal, Operation::Write)).map(|()| true)
    }

    /// Reads at the peer.
    fn read_peer(
        &mut self,
        element: &Element,
        offset: u32,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let peer = peer(self.qps, self.qpn, self.dest)?;
        let (scope, rkey, need) = (peer.scope(), element.key, Access::REMOTE_READ);
        // The whole range is checked before its first byte is read.
        let judged = if buffer.len() == element.len as usize { 0 } else { element.len.into() };
        let judged = peer.check_remote(self.env, rkey, element.remote, judged, need);
        let addr = element.remote.wrapping_add(u64::from(offset));
        let read = judged.and_then(|_| {
            if buffer.is_empty() {
                return Ok(());
            }
            let read = self.env.read_region((rkey, scope), addr, buffer, need);
            let memory = Touched { key: rkey, addr, len: buffer.len() as u64 };
            read.map_err(|error| Refusal::access(self.env, error, memory))
        });
        read.map_err(|refusal| self.refused(refusal, Operation::ReadRequest))
    }

    /// Ends a request that the peer's responder has refused. The peer keeps an incident of its own.
    #[cold]
    fn refused(&mut self, refusal: Refusal, operation: Operation) -> Failure {
        let Refusal::Nak(nak, blame) = refusal else {
            return Failure::new(Status::RnrRetryExceeded, Cause::Sequence);
        };
        if let Ok(peer) = peer(self.qps, self.qpn, self.dest) {
            let op = Op::of(Transport::Rc, operation, Position::Only, Follows::empty());
            peer.report(self.env, Outcome::Refused(nak), (Some(op), None), *blame);
        }
        Failure::told(nak)
    }

    fn check_local(&mut self, entry: Sge, need: Access) -> Result<(), Failure> {
        let Sge { addr, len, lkey } = entry;
        if len == 0 {
            return Ok(());
        }
        let opens = self.env.card.regions.check(lkey, self.scope, addr, len.into(), need);
        opens.map_err(|error| self.local_failure(error, entry))
    }

    #[inline]
    fn read_local(&mut self, entry: Sge, buffer: &mut [u8]) -> Result<(), Failure> {
        let key = (entry.lkey, self.scope);
        let read = self.env.read_region(key, entry.addr, buffer, Access::empty());
        read.map_err(|error| self.local_failure(error, entry))
    }

    fn write_local(&mut self, entry: Sge, bytes: &[u8]) -> Result<(), Failure> {
        let key = (entry.lkey, self.scope);
        let written = self.env.write_region(key, entry.addr, bytes, Access::LOCAL_WRITE);
        written.map_err(|error| self.local_failure(error, entry))
    }

    #[cold]
    fn local_failure(&mut self, error: AccessError, entry: Sge) -> Failure {
        self.env.card.counters.elements_protection += 1;
        Failure::local(error, entry)
    }

    /// Ends an element with an error, and takes the queue pair to ERROR; also the peer, if the peer
    /// has refused the request.
    #[cold]
    fn break_off(&mut self, element: &Element, opcode: Option<Opcode>, failure: Failure) {
        let Failure { status, blame, nak } = failure;
        self.env.card.counters.chain_peer_gone += u64::from(blame.cause == Cause::PeerGone);
        if let Some(qp) = self.qps.get(self.qpn) {
            let outcome = Outcome::Failed { wr_id: element.wr_id, opcode, status };
            qp.report(self.env, outcome, (None, None), blame);
            qp.report_failed(self.env, element, status);
        }
        if let Some(nak) = nak
            && let Ok(peer) = peer(self.qps, self.qpn, self.dest)
        {
            peer.break_connection(self.env, nak);
        }
        if let Some(qp) = self.qps.get_mut(self.qpn) {
            qp.fail(self.env);
        }
    }
}

/// The queue pair at the other end, if it is still there.
#[inline]
fn peer(qps: &mut Qps, qpn: u32, dest: u32) -> Result<&mut Qp, Failure> {
    let peer = qps.get_mut(dest).filter(|peer| {
        peer.mode.contains(Mode::LOOP_BACK)
            && peer.dest_qp == qpn
            && matches!(peer.state, State::Rts | State::Sqd)
    });
    peer.ok_or_else(gone)
}

#[cold]
fn gone() -> Failure {
    Failure::new(Status::RetryExceeded, Cause::PeerGone)
}

/// Carries out an ENABLE by a queue pair of protection domain `pd`.
#[inline]
pub(crate) fn enable(
    qps: &mut Qps,
    env: &mut Env<'_>,
    pd: Pd,
    element: &Element,
) -> Result<(), EnableError> {
    let target = qps.get_mut(element.key).filter(|target| target.pd == pd);
    let target = target.ok_or(EnableError::Unknown)?;
    let queue = match element.opcode {
        Opcode::EnableRecv => Queue::Recv,
        _ => Queue::Send,
    };
    target.enable(env.card, queue, element.remote as u32)
}
