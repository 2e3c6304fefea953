//! Receive elements: taken from their queue, filled with a message, and completed.
//!
//! The [responder](super::responder) and the [datagram receiver](super::datagram) use them. They
//! come from the queue pair's own receive queue or from its shared one.

use super::Qp;
use super::refusal::Refusal;
use crate::chain::{Mode, Queue, StepEnd};
use crate::env::Env;
use crate::incident::{Blame, Cause, Touched};
use crate::queue::element::{Element, MAX_MESSAGE, max_sges};
use crate::queue::ring::with_room;
use crate::queue::sgl::{SglSlot, scatter};
use crate::queue::{Completion, CompletionFlags, Sge, Status, WorkKind};
use crate::wire::opcode::Follows;
use crate::wire::{Nak, Packet};

/// A receive element in use: the card's copy of what it fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// Its entries, in the card's pool.
    pub(crate) sgl: SglSlot,
    /// Bytes received so far.
    pub(crate) filled: u32,
    pub(super) count: u8,
}

/// Where a receive element has the number of its entries.
const COUNT: usize = 11;

/// Does a receive element name no more entries than its slot holds?
#[inline]
fn is_legal(raw: &[u8]) -> bool {
    usize::from(raw[COUNT]) <= max_sges(raw.len())
}

impl Qp {
    /// Takes the next receive element, from the shared queue if the queue pair has one. An element
    /// that is taken already comes first: an abandoned message, or a refused one that is repeated,
    /// has left it unfinished.
    #[inline(always)]
    pub(crate) fn take_receive(&mut self, env: &mut Env<'_>) -> Result<Receive, Refusal> {
        if let Some(receive) = self.take_kept() {
            return Ok(receive);
        }
        let ring = env.card.srqs.get(self.srq).map_or(&self.rq, |srq| &srq.ring);
        // Without a receive element the receiver is not ready: an RNR NAK on a reliable connection
        // (`responder` owes it, with the queue pair's timer), a drop on the unreliable services
        // (soft-RoCE's `check_resource`).
        if ring.waiting() == 0 {
            return Err(Refusal::NotReady);
        }
        with_room(ring.stride(), |raw| self.take_receive_by(env, raw))
    }

    /// As [`Qp::take_receive`], which has checked that there is an element. `raw` is room for it.
    #[inline(always)]
    fn take_receive_by(&mut self, env: &mut Env<'_>, raw: &mut [u8]) -> Result<Receive, Refusal> {
        let card = &mut *env.card;
        let ring = match card.srqs.get_mut(self.srq) {
            Some(srq) => &mut srq.ring,
            None => &mut self.rq,
        };
        let index = ring.fetched;
        let read = env.mem.read(ring.slot(index), raw);
        ring.fetched = index.wrapping_add(1);
        ring.retired = ring.fetched;
        let waiting = ring.waiting();
        card.counters.elements_fetched += 1;
        card.srq_taken(self.srq, waiting);
        let count = raw[COUNT];
        let wr_id = Element::wr_id(raw);
        self.trace(env, (Queue::Recv, index), raw, StepEnd::Done);
        let card = &mut *env.card;
        // The element is in the application's memory and may hold any bytes. If it cannot be read,
        // or names more entries than its slot holds, it completes with an error, and the NAK says
        // that the operation failed at this end.
        let bad = read.is_err() || !is_legal(raw);
        let count = if bad { 0 } else { count };
        let receive = Receive { wr_id, sgl: card.sgls.copy_in(raw, count), filled: 0, count };
        if bad {
            card.counters.elements_invalid += 1;
            self.end_receive(env, &receive, Status::LocalQpOperation);
            let cause = Cause::BadReceive { wr_id };
            return Err(Refusal::nak(Nak::RemoteOperational, cause));
        }
        Ok(receive)
    }

    /// Is there a next receive element, and would [`Qp::take_receive`] take it without an error?
    pub(super) fn has_legal_receive(&self, env: &mut Env<'_>) -> bool {
        let ring = env.card.srqs.get(self.srq).map_or(&self.rq, |srq| &srq.ring);
        let slot = ring.slot(ring.fetched);
        let reads = |raw: &mut [u8]| env.mem.read(slot, raw).is_ok() && is_legal(raw);
        ring.waiting() > 0 && with_room(ring.stride(), reads)
    }

    /// Keeps a receive element that its message has not completed.
    pub(super) fn keep_receive(&mut self, receive: Receive) {
        self.mode.insert(Mode::RECEIVING);
        self.cold.receive = Some(receive);
    }

    /// Takes the receive element that is kept, if there is one.
    #[inline]
    pub(super) fn take_kept(&mut self) -> Option<Receive> {
        if !self.mode.contains(Mode::RECEIVING) {
            return None;
        }
        self.mode.remove(Mode::RECEIVING);
        self.cold.receive.take()
    }

    /// Appends a packet's payload to the receive element's memory. Where that fails, the element
    /// completes with an error.
    pub(crate) fn fill(
        &mut self,
        env: &mut Env<'_>,
        receive: &mut Receive,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let sges = env.card.sgls.entries(receive.sgl, receive.count);
        let room: u64 = sges.iter().map(|s| u64::from(s.len)).sum();
        let (wr_id, got) = (receive.wr_id, u64::from(receive.filled) + payload.len() as u64);
        // A message longer than its receive element is an invalid request: the requester made it
        // too long, and the receiver's application is told so, too.
        if got > room.min(MAX_MESSAGE.into()) {
            self.end_receive(env, receive, Status::LocalLength);
            return Err(Refusal::invalid(env, Cause::ReceiveTooShort { wr_id, got, room }));
        }
        let to = (self.scope(), sges);
        let filled = scatter(&env.card.regions, env.mem, to, receive.filled, payload);
        // Entries whose keys do not open their memory are the receiver's own mistake: the peer is
        // told that the operation failed here, not that its request was wrong.
        if let Err((error, Sge { addr, len, lkey })) = filled {
            env.card.counters.elements_protection += 1;
            let memory = Touched { key: lkey, addr, len: len.into() };
            let cause = Cause::ReceiveMemory { wr_id, error };
            self.end_receive(env, receive, Status::LocalProtection);
            return Err(Refusal::nak(Nak::RemoteOperational, Blame::at(cause, memory)));
        }
        receive.filled += payload.len() as u32;
        Ok(())
    }

    /// Completes a receive element: its message has arrived whole.
    pub(super) fn complete_receive(
        &mut self,
        env: &mut Env<'_>,
        receive: &Receive,
        packet: &Packet<'_>,
        kind: WorkKind,
        len: u32,
    ) {
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::IMM, packet.op.follows.contains(Follows::IMM));
        flags.set(CompletionFlags::INVALIDATED, packet.op.follows.contains(Follows::IETH));
        flags.set(CompletionFlags::SOLICITED, packet.bth.solicited);
        self.finish_receive(
            env,
            receive,
            Completion {
                kind,
                len,
                imm_or_key: packet.ext.imm_or_key,
                flags,
                ..Completion::default()
            },
        );
    }

    /// Completes a receive element with an error.
    pub(crate) fn end_receive(&mut self, env: &mut Env<'_>, receive: &Receive, status: Status) {
        self.finish_receive(env, receive, Completion { status, ..Completion::default() });
    }

    /// Gives a receive element back to its owner by the completion `entry`.
    pub(crate) fn finish_receive(
        &mut self,
        env: &mut Env<'_>,
        receive: &Receive,
        entry: Completion,
    ) {
        env.card.sgls.release(receive.sgl);
        if !self.mode.contains(Mode::LOOP_BACK) {
            self.refill(env.card);
        }
        let entry = Completion { wr_id: receive.wr_id, qpn: self.qpn, ..entry };
        env.card.complete(env.now, self.recv_cq, entry);
    }

    /// Flushes the receive element in progress, as the rest of the queue is.
    pub(crate) fn flush_receive(&mut self, env: &mut Env<'_>) {
        if let Some(receive) = self.take_kept() {
            env.card.counters.elements_flushed += 1;
            self.end_receive(env, &receive, Status::Flushed);
        }
    }
}
