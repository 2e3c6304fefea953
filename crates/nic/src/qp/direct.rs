//! Direct requests: SENDs and WRITEs to a peer on the same card, carried out at once and whole
//! while nothing else is under way between the two.
//!
//! They leave both queue pairs as packets would that have arrived and been acknowledged: the PSNs
//! go on. So the next request may take the other way, that of packets which the card hands over
//! (`nic/local.rs`). All that needs a packet, a timer or a second try does: a peer that is not
//! ready or has no receive element, an element that is wrong, requests that wait for an answer.

use super::acknowledge::{HeldAck, Owed};
use super::refusal::{Failure, Refusal};
use super::requester::Recovery;
use super::{Qp, Qps, State};
use crate::chain::Mode;
use crate::env::Env;
use crate::incident::Outcome;
use crate::memory::key::Access;
use crate::queue::element::{AT_SGE, Element, sge_at};
use crate::queue::sgl::pieces;
use crate::queue::{MAX_SGE, Opcode, SendFlags, Sge};
use crate::scheduler::Budget;
use crate::staging::Staging;
use crate::wire::{Bth, Extensions, Op, Operation, Packet, Position, Reth, Transport};

/// The longest message that is carried out whole: longer ones are packets, so that a turn takes
/// some ten microseconds at most.
const LONGEST: u32 = 256 << 10;

/// What came of an element.
enum Way {
    /// It is done.
    Done,
    /// It has failed, and so have both queue pairs.
    Failed,
    /// It needs packets.
    Packets,
}

/// Carries out direct requests of a queue pair until the turn's budget is spent or packets are
/// needed. Returns how many were carried out; the scheduler knows what is left of the budget.
pub(crate) fn turn(qps: &mut Qps, env: &mut Env<'_>, qpn: u32) -> u32 {
    let mut budget = Budget::turn(&env.card.config);
    let most = budget.elements;
    env.card.scheduler.beyond = 0;
    let Some(qp) = qps.get_mut(qpn).filter(|qp| qp.may_be_direct(env)) else { return 0 };
    let (dest, stride) = (qp.dest_qp, qp.sq.stride());
    if !qps.get(dest).is_some_and(|peer| qps.get(qpn).is_some_and(|qp| qp.is_in_step(peer))) {
        return 0;
    }
    // The buffers are lent out of the card, so that the card can be used meanwhile.
    let mut fetched = core::mem::take(&mut env.card.fetched);
    let mut staging = core::mem::take(&mut env.card.staging);
    let Some(qp) = qps.get_mut(qpn) else { return 0 };
    let count = qp.fetchable(budget.elements);
    if count > 0 && qp.fetch(env, count, &mut fetched) {
        for raw in fetched[..count as usize * stride].chunks_exact(stride) {
            match element(qps, env, (qpn, dest), raw, &mut staging, &mut budget) {
                Way::Done if !budget.is_spent() => {}
                _ => break,
            }
        }
    }
    env.card.fetched = fetched;
    env.card.staging = staging;
    env.card.scheduler.left = budget;
    most - budget.elements
}

/// Carries out one element.
fn element(
    qps: &mut Qps,
    env: &mut Env<'_>,
    (qpn, dest): (u32, u32),
    raw: &[u8],
    staging: &mut Staging,
    budget: &mut Budget,
) -> Way {
    use Opcode::{Send, SendImm, SendInvalidate, Write, WriteImm};
    let Ok(element) = Element::parse(raw) else { return Way::Packets };
    let is_direct = matches!(element.opcode, Send | SendImm | SendInvalidate | Write | WriteImm);
    if !is_direct || element.len > LONGEST {
        return Way::Packets;
    }
    let Some(qp) = qps.get(qpn) else { return Way::Packets };
    let Some(payload) = qp.gather_whole(env, &element, raw, staging) else {
        return Way::Packets;
    };
    let (operation, with) = element.opcode.on_wire();
    let solicited = element.opcode.tells_receiver() && element.flags.contains(SendFlags::SOLICITED);
    let reth = Reth { addr: element.remote, rkey: element.key, len: element.len };
    let packet = Packet {
        bth: Bth { solicited, psn: qp.tx.next, ..Bth::ours() },
        op: Op::of(Transport::Rc, operation, Position::Only, with),
        ext: Extensions { reth, imm_or_key: element.imm(), ..Extensions::default() },
        payload,
    };
    let psns = element.len.div_ceil(u32::from(qp.mtu)).max(1);
    let Some(peer) = qps.get_mut(dest) else { return Way::Packets };
    let done = match operation {
        Operation::Send => peer.execute_send(env, &packet),
        _ => peer.execute_write(env, &packet),
    };
    let nak = match done {
        Ok(_) => None,
        // The packets that follow find that out, too, and wait as long as the peer asks.
        Err(Refusal::NotReady) => return Way::Packets,
        Err(Refusal::Nak(nak, blame)) => {
            peer.report_packet(env, Outcome::Refused(nak), &packet, *blame);
            peer.break_connection(env, nak);
            Some(nak)
        }
    };
    if nak.is_none() {
        peer.took_direct(psns);
    }
    budget.elements -= 1;
    env.card.scheduler.beyond = element.len.saturating_sub(budget.bytes);
    budget.spend(element.len);
    match (qps.get_mut(qpn), nak) {
        (Some(qp), None) => qp.complete_direct(env, &element, psns),
        (Some(qp), Some(nak)) => qp.fail_direct(env, &element, Failure::told(nak)),
        (None, _) => {}
    }
    if nak.is_none() { Way::Done } else { Way::Failed }
}

impl Qp {
    /// Has the queue pair requests, and nothing under way that they would have to wait for?
    fn may_be_direct(&self, env: &Env<'_>) -> bool {
        let apart = Mode::LOOP_BACK | Mode::LIMITED | Mode::MANAGED_SEND;
        self.sq.waiting() > 0
            && self.transport == Transport::Rc
            && self.state == State::Rts
            && !self.is_lossy()
            && self.mode.contains(Mode::LOCAL)
            && !self.mode.intersects(apart)
            && self.tx.outstanding.is_empty()
            && self.tx.next == self.tx.high
            && self.tx.una == self.tx.high
            && self.tx.recovery == Recovery::Nothing
            && !self.has_posted()
            && env.card.kernel.taps == 0
            && !env.card.chains.traces()
    }

    /// Is `peer` the other end of the connection, ready, and with nothing to send that packets of
    /// this queue pair would have to wait for or would change?
    fn is_in_step(&self, peer: &Qp) -> bool {
        let connected = peer.dest_qp == self.qpn
            && peer.qpn != self.qpn
            && peer.transport == Transport::Rc
            && peer.mode.contains(Mode::LOCAL)
            && !peer.mode.contains(Mode::LOOP_BACK)
            && peer.dialect == self.dialect
            && peer.mtu == self.mtu
            && peer.cold.xrcd.is_none();
        let rx = &peer.rx;
        connected
            && matches!(peer.state, State::Rts | State::Sqd)
            && rx.expected == self.tx.next
            && rx.current.is_none()
            && rx.pending == 0
            && rx.reply == Owed::Nothing
            && rx.held == HeldAck::No
            && !rx.nak_sent
            && !rx.breaking
    }

    /// The payload of an element; `None` if it cannot be read.
    fn gather_whole<'s>(
        &self,
        env: &mut Env<'_>,
        element: &Element,
        raw: &'s [u8],
        staging: &'s mut Staging,
    ) -> Option<&'s [u8]> {
        let len = element.len as usize;
        if element.flags.contains(SendFlags::INLINE) {
            return raw.get(AT_SGE..AT_SGE + len);
        }
        let mut entries = [Sge::default(); MAX_SGE];
        let entries = &mut entries[..element.num_sge.into()];
        entries.iter_mut().enumerate().for_each(|(i, entry)| *entry = sge_at(raw, i));
        let room = staging.room(0, len);
        let (mut at, scope) = (0, self.scope());
        let gathered = pieces(entries, 0, element.len, |Sge { addr, len, lkey }| {
            let now = &mut room[at..at + len as usize];
            at += now.len();
            env.read_region((lkey, scope), addr, now, Access::empty())
        });
        gathered.ok().map(|()| &*room)
    }

    /// Notes that a message of so many PSNs has arrived, and that its requester knows.
    fn took_direct(&mut self, psns: u32) {
        self.rx.expected = self.rx.expected.plus(psns);
        self.rx.msn = self.rx.msn.wrapping_add(1);
        self.rx.ends_with_answer = false;
        self.rx.acknowledged = self.rx.expected.value() as u16;
    }

    /// Ends an element that the peer has carried out.
    fn complete_direct(&mut self, env: &mut Env<'_>, element: &Element, psns: u32) {
        self.sq.fetched = self.sq.fetched.wrapping_add(1);
        self.sq.retired = self.sq.fetched;
        let next = self.tx.next.plus(psns);
        (self.tx.una, self.tx.next, self.tx.high) = (next, next, next);
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
            || self.rx.pending > 0
            || self.rx.reply != Owed::Nothing
            || self.rx.cnp_owed
            || self.state != State::Rts
            || self.has_posted()
    }
}
