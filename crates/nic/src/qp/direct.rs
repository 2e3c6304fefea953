//! Direct requests: SENDs and WRITEs to a peer on the same card, carried out at once while nothing
//! else is under way between the two.
//!
//! They leave both queue pairs as packets would that have arrived and been acknowledged: the PSNs
//! go on. So the next request may take the other way, that of packets which the card hands over
//! (`nic/local.rs`). All that needs a packet, a timer or a second try does: a peer that is not
//! ready or has no receive element, an element that is wrong, requests that wait for an answer.
//!
//! A message that is longer than its turn is carried out in pieces, so that others have turns in
//! between. It is outstanding meanwhile, as one is that packets have begun; and packets may end
//! what pieces have begun, and the other way about.

use super::acknowledge::{HeldAck, Owed};
use super::refusal::{Failure, Refusal};
use super::requester::Recovery;
use super::{Qp, Qps, State};
use crate::chain::Mode;
use crate::env::Env;
use crate::incident::{Cause, Outcome};
use crate::memory::key::Access;
use crate::queue::element::{AT_SGE, Element, sge_at};
use crate::queue::outstanding::{Origin, Outstanding};
use crate::queue::sgl::pieces;
use crate::queue::{MAX_SGE, Opcode, SendFlags, Sge};
use crate::scheduler::TurnBudget;
use crate::staging::Staging;
use crate::wire::{Bth, Extensions, Nak, Op, Operation, Packet, Position, Reth, Transport};

/// The bytes of a piece while no other queue pair is ready: they take some microseconds, and then
/// the driver looks for packets and doorbells.
const ALONE: u32 = 64 << 10;

/// What came of an element.
enum Way {
    /// It is done.
    Done,
    /// A piece of it is done.
    Begun,
    /// It has failed, and so have both queue pairs.
    Failed,
    /// It needs packets.
    Packets,
}

/// Why the peer has not taken a message, or a piece of it.
enum NotTaken {
    /// Packets find that out, too, and wait as long as the peer asks.
    NotReady,
    /// The peer refuses it, and its end of the connection is broken.
    Refused(Nak),
}

/// What a turn has carried out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ran {
    /// Messages and pieces.
    pub(crate) messages: u32,
    pub(crate) bytes: u32,
}

/// Carries out direct requests of a queue pair until the turn's budget is spent or packets are
/// needed. The scheduler knows what is left of the budget.
pub(crate) fn turn(qps: &mut Qps, env: &mut Env<'_>, qpn: u32) -> Ran {
    let mut budget = TurnBudget::turn(&env.card.config);
    let most = budget;
    env.card.scheduler.beyond = 0;
    let Some(qp) = qps.get_mut(qpn).filter(|qp| qp.may_be_direct(env)) else {
        return Ran::default();
    };
    let (dest, stride) = (qp.dest_qp, qp.sq.stride());
    let qp = qps.get(qpn);
    if !qps.get(dest).is_some_and(|peer| qp.is_some_and(|qp| qp.is_in_step(env, peer))) {
        return Ran::default();
    }
    // The buffers are lent out of the card, so that the card can be used meanwhile.
    let mut fetched = core::mem::take(&mut env.card.fetched);
    let mut staging = core::mem::take(&mut env.card.staging);
    let begun = qps.get(qpn).is_some_and(|qp| !qp.tx.outstanding.is_empty());
    let way = match begun {
        true => piece(qps, env, (qpn, dest), &mut staging, &mut budget),
        false => Way::Done,
    };
    if let (Way::Done, false, Some(qp)) = (way, budget.is_spent(), qps.get_mut(qpn)) {
        let count = qp.fetchable(budget.elements);
        if count > 0 && qp.fetch(env, count, &mut fetched) {
            for raw in fetched[..count as usize * stride].chunks_exact(stride) {
                match element(qps, env, (qpn, dest), raw, &mut staging, &mut budget) {
                    Way::Done if !budget.is_spent() => {}
                    _ => break,
                }
            }
        }
    }
    env.card.fetched = fetched;
    env.card.staging = staging;
    env.card.scheduler.left = budget;
    Ran {
        messages: most.elements - budget.elements,
        bytes: most.bytes - budget.bytes + env.card.scheduler.beyond,
    }
}

/// Carries out one element, or the first piece of it.
fn element(
    qps: &mut Qps,
    env: &mut Env<'_>,
    (qpn, dest): (u32, u32),
    raw: &[u8],
    staging: &mut Staging,
    budget: &mut TurnBudget,
) -> Way {
    let Ok(element) = Element::parse(raw) else { return Way::Packets };
    let Some(qp) = qps.get_mut(qpn) else { return Way::Packets };
    if !is_direct(element.opcode) {
        return Way::Packets;
    }
    if element.len > qp.piece_room(env, *budget) {
        // From here on its checked copy is what counts.
        let stopped = qp.issue(env, raw).is_some();
        return match stopped || !qp.has_begun(env) {
            true => Way::Packets,
            false => piece(qps, env, (qpn, dest), staging, budget),
        };
    }
    let Some(payload) = qp.gather_whole(env, &element, raw, staging) else {
        return Way::Packets;
    };
    let taken = deliver(qps, env, (qpn, dest), &element, (Position::Only, payload));
    if let Err(NotTaken::NotReady) = taken {
        return Way::Packets;
    }
    spend(env, budget, element.len);
    match (qps.get_mut(qpn), taken) {
        (Some(qp), Ok(psns)) => qp.complete_direct(env, &element, psns),
        (Some(qp), Err(NotTaken::Refused(nak))) => {
            qp.fail_direct(env, &element, Failure::told(nak));
            return Way::Failed;
        }
        _ => return Way::Packets,
    }
    Way::Done
}

/// Carries out the next piece of a message that is outstanding.
fn piece(
    qps: &mut Qps,
    env: &mut Env<'_>,
    (qpn, dest): (u32, u32),
    staging: &mut Staging,
    budget: &mut TurnBudget,
) -> Way {
    let Some(qp) = qps.get(qpn) else { return Way::Packets };
    let Some(&work) = env.card.outstanding.get(qp.tx.cursor) else { return Way::Packets };
    let part = qp.part(&work, qp.tx.next, false);
    let left = work.element.len - part.offset;
    let len = left.min(qp.piece_room(env, *budget));
    let Some(payload) = qp.gather_piece(env, &work, (part.offset, len), staging) else {
        return Way::Packets;
    };
    let position = Position::new(part.k == 0, len == left);
    let taken = deliver(qps, env, (qpn, dest), &work.element, (position, payload));
    if let Err(NotTaken::NotReady) = taken {
        return Way::Packets;
    }
    spend(env, budget, len);
    match (qps.get_mut(qpn), taken) {
        (Some(qp), Ok(psns)) => qp.went_direct(env, &work, psns),
        (Some(qp), Err(NotTaken::Refused(nak))) => {
            let status = Failure::told(nak).status;
            qp.fail_front_for(env, status, Cause::Told(nak), (None, qp.tx.next));
            Way::Failed
        }
        _ => Way::Packets,
    }
}

/// The requests that may be direct.
fn is_direct(opcode: Opcode) -> bool {
    use Opcode::{Send, SendImm, SendInvalidate, Write, WriteImm};
    matches!(opcode, Send | SendImm | SendInvalidate | Write | WriteImm)
}

/// Spends a message, or a piece of one.
fn spend(env: &mut Env<'_>, budget: &mut TurnBudget, len: u32) {
    budget.elements -= 1;
    env.card.scheduler.beyond = len.saturating_sub(budget.bytes);
    budget.spend(len);
}

/// Gives the peer a message, or a piece of it, as one packet. Returns how many PSNs it has.
fn deliver(
    qps: &mut Qps,
    env: &mut Env<'_>,
    (qpn, dest): (u32, u32),
    element: &Element,
    (position, payload): (Position, &[u8]),
) -> Result<u32, NotTaken> {
    let Some(qp) = qps.get(qpn) else { return Err(NotTaken::NotReady) };
    let (operation, with) = element.opcode.on_wire();
    let tells = position.ends() && element.opcode.tells_receiver();
    let solicited = tells && element.flags.contains(SendFlags::SOLICITED);
    let reth = Reth { addr: element.remote, rkey: element.key, len: element.len };
    let packet = Packet {
        bth: Bth { solicited, psn: qp.tx.next, ..Bth::ours() },
        op: Op::of(Transport::Rc, operation, position, with),
        ext: Extensions { reth, imm_or_key: element.imm(), ..Extensions::default() },
        payload,
    };
    let psns = (payload.len() as u32).div_ceil(u32::from(qp.mtu)).max(1);
    let Some(peer) = qps.get_mut(dest) else { return Err(NotTaken::NotReady) };
    let done = match operation {
        Operation::Send => peer.execute_send(env, &packet),
        _ => peer.execute_write(env, &packet),
    };
    match done {
        Ok(_) => {
            peer.took_direct(psns, (!position.ends()).then_some(operation));
            Ok(psns)
        }
        Err(Refusal::NotReady) => Err(NotTaken::NotReady),
        Err(Refusal::Nak(nak, blame)) => {
            peer.report_packet(env, Outcome::Refused(nak), &packet, *blame);
            peer.break_connection(env, nak);
            Err(NotTaken::Refused(nak))
        }
    }
}

impl Qp {
    /// Has the queue pair requests, and nothing under way that they would have to wait for?
    fn may_be_direct(&self, env: &Env<'_>) -> bool {
        let apart = Mode::LOOP_BACK | Mode::LIMITED | Mode::MANAGED_SEND;
        let has_one = match self.tx.outstanding.is_empty() {
            true => self.sq.waiting() > 0,
            false => self.has_begun(env),
        };
        has_one
            && self.transport == Transport::Rc
            && self.state == State::Rts
            && !self.is_lossy()
            && self.mode.contains(Mode::LOCAL)
            && !self.mode.intersects(apart)
            && self.tx.next == self.tx.high
            && self.tx.una == self.tx.high
            && self.tx.recovery == Recovery::Nothing
            && !self.has_posted()
            && env.card.kernel.taps == 0
            && !env.card.chains.traces()
    }

    /// Is one message outstanding, and one that may be direct? Its next packet is not sent yet.
    fn has_begun(&self, env: &Env<'_>) -> bool {
        self.tx.outstanding.len() == 1
            && env.card.outstanding.get(self.tx.cursor).is_some_and(|work| {
                let is_whole = work.failed.is_none() && work.origin == Origin::Ring;
                let in_line = work.element.flags.contains(SendFlags::INLINE);
                is_whole && is_direct(work.element.opcode) && !in_line && work.packets > 0
            })
    }

    /// How many bytes may be carried out at once: whole packets, and at least one. While others
    /// wait, what the turn has left; a queue pair that is alone need not give way so soon.
    fn piece_room(&self, env: &Env<'_>, budget: TurnBudget) -> u32 {
        let mtu = u32::from(self.mtu);
        let bytes = if env.card.scheduler.is_idle() { ALONE } else { budget.bytes };
        (bytes / mtu * mtu).max(mtu)
    }

    /// Is `peer` the other end of the connection, ready, as far in the message as this end, and
    /// with nothing to send that packets of this queue pair would have to wait for or would change?
    fn is_in_step(&self, env: &Env<'_>, peer: &Qp) -> bool {
        let work = env.card.outstanding.get(self.tx.cursor);
        let within = work.filter(|work| work.psn != self.tx.next);
        let rx = &peer.rx;
        self.is_connected_to(peer)
            && rx.expected == self.tx.next
            && rx.current == within.map(|work| work.element.opcode.on_wire().0)
            && rx.pending == 0
            && rx.reply == Owed::Nothing
            && rx.held == HeldAck::No
            && !rx.nak_sent
            && !rx.breaking
    }

    /// Is `peer` the other end of the connection, on this card, and does it take requests?
    fn is_connected_to(&self, peer: &Qp) -> bool {
        peer.dest_qp == self.qpn
            && peer.qpn != self.qpn
            && peer.transport == Transport::Rc
            && peer.mode.contains(Mode::LOCAL)
            && !peer.mode.contains(Mode::LOOP_BACK)
            && peer.dialect == self.dialect
            && peer.mtu == self.mtu
            && peer.cold.xrcd.is_none()
            && matches!(peer.state, State::Rts | State::Sqd)
    }

    /// May the owner of this end, as soon as nothing of it is under way, carry out WRITEs and READs
    /// in the memory of `peer` itself? Both ends must agree on what has been sent, as far as it has
    /// come.
    pub(crate) fn may_pass_to(&self, peer: &Qp) -> bool {
        let apart = Mode::LOOP_BACK | Mode::LIMITED | Mode::MANAGED_SEND;
        let sent = self.tx.high.distance_from(self.tx.una);
        self.is_connected_to(peer)
            && self.transport == Transport::Rc
            && self.state == State::Rts
            && !self.is_lossy()
            && self.mode.contains(Mode::LOCAL)
            && !self.mode.intersects(apart)
            && peer.rx.expected.distance_from(self.tx.una) <= sent
            && !peer.rx.breaking
    }

    /// The payload of an element; `None` if it cannot be read.
    fn gather_whole<'s>(
        &self,
        env: &mut Env<'_>,
        element: &Element,
        raw: &'s [u8],
        staging: &'s mut Staging,
    ) -> Option<&'s [u8]> {
        if element.flags.contains(SendFlags::INLINE) {
            return raw.get(AT_SGE..AT_SGE + element.len as usize);
        }
        let mut entries = [Sge::default(); MAX_SGE];
        let entries = &mut entries[..element.num_sge.into()];
        entries.iter_mut().enumerate().for_each(|(i, entry)| *entry = sge_at(raw, i));
        self.gather_from(env, entries, (0, element.len), staging)
    }

    /// The payload of a piece; `None` if it cannot be read.
    fn gather_piece<'s>(
        &self,
        env: &mut Env<'_>,
        work: &Outstanding,
        piece: (u32, u32),
        staging: &'s mut Staging,
    ) -> Option<&'s [u8]> {
        let mut entries = [Sge::default(); MAX_SGE];
        let given = work.entries(&env.card.sgls);
        entries[..given.len()].copy_from_slice(given);
        let count = given.len();
        self.gather_from(env, &entries[..count], piece, staging)
    }

    /// `len` bytes from `offset` on of the message whose entries these are.
    fn gather_from<'s>(
        &self,
        env: &mut Env<'_>,
        entries: &[Sge],
        (offset, len): (u32, u32),
        staging: &'s mut Staging,
    ) -> Option<&'s [u8]> {
        let room = staging.room(0, len as usize);
        let (mut at, scope) = (0, self.scope());
        let gathered = pieces(entries, offset, len, |Sge { addr, len, lkey }| {
            let now = &mut room[at..at + len as usize];
            at += now.len();
            env.read_region((lkey, scope), addr, now, Access::empty())
        });
        gathered.ok().map(|()| &*room)
    }

    /// Notes that a message of so many PSNs has arrived, and that its requester knows; or a piece
    /// of one, with its operation, of which there is more.
    fn took_direct(&mut self, psns: u32, more: Option<Operation>) {
        self.rx.expected = self.rx.expected.plus(psns);
        self.rx.msn = self.rx.msn.wrapping_add(u32::from(more.is_none()));
        self.rx.current = more;
        self.rx.ends_with_answer = false;
        self.rx.acknowledged = self.rx.expected.value() as u16;
    }

    /// Notes that the peer has taken so many PSNs of the message that is outstanding.
    fn went_direct(&mut self, env: &mut Env<'_>, work: &Outstanding, psns: u32) -> Way {
        self.skip_psns(psns);
        // Packets may have gone before, for which the peer's acknowledges have come.
        self.tx.timer.disarm();
        if self.tx.next != work.end() {
            return Way::Begun;
        }
        self.tx.cursor = env.card.outstanding.next(self.tx.cursor);
        env.card.counters.local_messages += 1;
        self.complete_front(env);
        Way::Done
    }

    /// So many more PSNs are sent and acknowledged.
    fn skip_psns(&mut self, psns: u32) {
        let next = self.tx.next.plus(psns);
        (self.tx.una, self.tx.next, self.tx.high) = (next, next, next);
    }

    /// Ends an element that the peer has carried out.
    fn complete_direct(&mut self, env: &mut Env<'_>, element: &Element, psns: u32) {
        self.sq.fetched = self.sq.fetched.wrapping_add(1);
        self.sq.retired = self.sq.fetched;
        self.skip_psns(psns);
        env.card.counters.local_messages += 1;
        self.report_done(env, element);
    }

    /// Ends an element that the peer has refused, and the queue pair with it.
    #[cold]
    fn fail_direct(&mut self, env: &mut Env<'_>, element: &Element, failure: Failure) {
        self.sq.fetched = self.sq.fetched.wrapping_add(1);
        self.sq.retired = self.sq.fetched;
        let Failure { status, blame, .. } = failure;
        let Element { wr_id, opcode, .. } = *element;
        let outcome = Outcome::Failed { wr_id, opcode: Some(opcode), status };
        self.report(env, outcome, (None, Some(self.tx.next)), blame);
        self.report_failed(env, element, status);
        self.fail(env);
    }

    /// Has the queue pair something to do in another turn?
    pub(crate) fn has_more(&self) -> bool {
        self.sq.waiting() > 0
            || !self.tx.cursor.is_none()
            || self.rx.pending > 0
            || self.rx.reply != Owed::Nothing
            || self.rx.cnp_owed
            || self.state != State::Rts
            || self.has_posted()
    }
}
