//! The queue pair's side of kernels: RPCs that arrive, results that leave, kernels bound to WRITEs.
//!
//! StRoM §5.1 describes the protocol, StRoM §3.4 the kernels on a stream of data. What kernels are,
//! and the header of a call, is in [`crate::kernel`].

use super::Qp;
use super::refusal::Refusal;
use super::requester::Stop;
use super::responder::Rest;
use crate::card::Card;
use crate::chain::Mode;
use crate::env::Env;
use crate::incident::Cause;
use crate::kernel::{
    Busy, Call, CallStatus, Header, KernelState, Passing, Payload, Posted, Reply, Runner,
    STATUS_WORD_LEN, Taken, Then, Verdict, WORD_TOKEN,
};
use crate::memory::key::Access;
use crate::queue::element::Element;
use crate::queue::outstanding::{Origin, Outstanding};
use crate::queue::{Opcode, SendFlags, Sge, Status};
use crate::wire::{Packet, Reth};

/// In place of an invocation that wants the rest of the payload: there is none.
const NO_INVOCATION: u32 = u32::MAX;
/// So many windows of messages of kernels a queue pair may always have. With fewer than some two,
/// two ends that call each other might each refuse calls that the other's answers wait behind.
const ANSWER_WINDOWS: usize = 4;

impl Qp {
    /// An expected RPC, or a packet of an RPC WRITE (StRoM §5.1): its payload goes to a kernel.
    pub(super) fn execute_rpc(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let len = packet.payload.len() as u32;
        let begins = packet.op.position.begins();
        let (invocation, left, total) = if begins {
            let Reth { len, .. } = packet.ext.reth;
            Self::check_total(env, len)?;
            (NO_INVOCATION, len, len)
        } else {
            let Rest { key, left, total, .. } = self.cold.rest;
            (key, left, total)
        };
        // As for a WRITE, the payloads add up to the length that the first packet named, and the
        // last packet completes it.
        if left < len || packet.op.position.ends() != (left == len) {
            let cause = Cause::Length { got: len.into(), expected: left.into() };
            return Err(Refusal::invalid(env, cause));
        }
        let left = left - len;
        let invocation = if begins {
            self.begin_call(env, packet.ext.reth.addr, packet.payload, left)?
        } else {
            self.continue_call(env, invocation, packet.payload, left == 0)?
        };
        self.cold.rest = Rest { addr: 0, key: invocation, left, total };
        Ok(1)
    }

    /// Hands the first packet of a call to its kernel. Returns the invocation that wants the rest
    /// of the payload.
    fn begin_call(
        &self,
        env: &mut Env<'_>,
        opcode: u64,
        payload: &[u8],
        more: u32,
    ) -> Result<u32, Refusal> {
        // The payload must begin with the header of a call, and a call from a peer must not claim
        // to be local; anything else is an invalid request.
        let total = payload.len() as u64 + u64::from(more);
        let is_whole = |header: &Header| total >= header.len() as u64;
        let parsed = Header::split(payload).ok();
        let parsed = parsed.filter(|(header, _)| !header.local && is_whole(header));
        let Some((header, behind)) = parsed else {
            env.card.counters.refused_bad_call += 1;
            return Err(Refusal::invalid(env, Cause::BadCall));
        };
        // A requester that acknowledges no answers waits when they have filled the room for them.
        if !self.has_room_to_answer(env.card) {
            env.card.counters.kernel_busy += 1;
            return Err(Refusal::NotReady);
        }
        let (qpn, pd, client) = (self.qpn, self.pd, self.client);
        let call = Call { qpn, pd, client, opcode, header };
        let (kernels, mut io) = env.lend();
        let taken = match behind.split_at_checked(header.params_len.into()) {
            Some((params, data)) => kernels.call(io, &call, params, data, more),
            // Parameters that go on in further packets: no error of the transport either.
            None => {
                io.reply(&call, Reply::failure(CallStatus::BAD_PARAMS));
                Taken::Done
            }
        };
        match taken {
            // An op-code without a kernel is no error of the transport: the requester is told in
            // the call's answer (StRoM §5.1).
            Taken::Done | Taken::NoKernel => Ok(NO_INVOCATION),
            Taken::Wants(invocation) => Ok(invocation),
            // A kernel without room makes the receiver not ready: the requester waits.
            Taken::Busy => Err(Refusal::NotReady),
        }
    }

    /// May another call come, to be answered here? One queue pair gets only as many messages of
    /// kernels as are left for the others, and [`ANSWER_WINDOWS`] always. (Those that no queue pair
    /// has yet may all be its own.)
    pub(crate) fn has_room_to_answer(&self, card: &Card) -> bool {
        let own = self.cold.kernel_sends as usize + card.kernel.posted.len();
        let always = ANSWER_WINDOWS * usize::from(card.config.window_packets);
        own < card.kernel_sends_left().max(always)
    }

    /// Takes a message of a kernel, to be sent.
    pub(crate) fn take_posted(&mut self, card: &mut Card, post: Posted) {
        self.cold.posted.push_back(post);
        self.cold.kernel_sends += 1;
        self.note_posted();
        self.schedule(card);
    }

    /// Hands a further packet of an RPC WRITE to its invocation.
    fn continue_call(
        &self,
        env: &mut Env<'_>,
        invocation: u32,
        payload: &[u8],
        last: bool,
    ) -> Result<u32, Refusal> {
        // The rest of a payload that no invocation wants is acknowledged and dropped.
        if invocation == NO_INVOCATION {
            return Ok(NO_INVOCATION);
        }
        let took = env.with_kernels(|kernels, io| kernels.data(io, invocation, payload, last));
        // A kernel without room for more makes the receiver not ready: the requester waits.
        if took == Some(Err(Busy)) {
            env.card.counters.kernel_busy += 1;
            return Err(Refusal::NotReady);
        }
        env.card.counters.kernel_bytes += payload.len() as u64;
        Ok(invocation)
    }

    /// Gives the next message of a kernel its PSNs. The message is checked as an element is, but a
    /// wrong one does not end the queue pair: the kernel, or the requester of its call, is told.
    #[inline(never)]
    pub(super) fn issue_posted(&mut self, env: &mut Env<'_>) -> Option<Stop> {
        let post = self.cold.posted.pop_front()?;
        let stop = self.issue_post(env, post);
        self.note_posted();
        stop
    }

    /// Notes whether kernels have posted messages that have not begun.
    fn note_posted(&mut self) {
        self.mode.set(Mode::POSTED, !self.cold.posted.is_empty());
    }

    /// Gives one message of a kernel its PSNs, or puts it back while there is no room for it.
    fn issue_post(&mut self, env: &mut Env<'_>, mut post: Posted) -> Option<Stop> {
        if let Payload::Memory { key, addr, len } = post.data
            && let Err(error) =
                env.card.regions.check(key, self.scope(), addr, len.into(), Access::empty())
        {
            error.count(&mut env.card.counters);
            let status = post.without_data();
            if post.then == Then::Nothing {
                self.fail_end(env, post.token);
                self.cold.kernel_sends -= 1;
                env.kernels.ended(&mut env.card.kernel, post.token, status, None);
                return None;
            }
        }
        if matches!(post.then, Then::Word { .. }) && post.data.is_empty() {
            self.word_of(env, &mut post);
        }
        let (element, len) = (element_of(&post), post.data.len());
        let buffer = post.data.take_buffer().map(|buffer| env.card.kernel.buffers.keep(buffer));
        let work = Outstanding {
            element,
            more: None,
            index: 0,
            psn: self.tx.next,
            packets: len.div_ceil(u32::from(self.mtu)).max(1),
            ssn: self.ssn(),
            failed: None,
            origin: Origin::Kernel { buffer },
        };
        let Some(cursor) = env.card.outstanding.push_share(&mut self.tx.outstanding, work) else {
            if let Some(buffer) = buffer.and_then(|at| env.card.kernel.buffers.release(at)) {
                post.data = Payload::Buffer { buffer, len };
            }
            self.cold.posted.push_front(post);
            return Some(self.starve(env));
        };
        self.tx.cursor = cursor;
        self.count_ssn(element.opcode);
        self.post_word(env, post);
        None
    }

    /// A part of a call's results was dropped: the messages that tell of the call's end tell so, if
    /// they are posted. (If they are not, the kernels hear of the part first.)
    #[cold]
    fn fail_end(&mut self, env: &mut Env<'_>, part: u64) {
        let posted = self.cold.posted.iter_mut().chain(&mut env.card.kernel.posted);
        for post in posted.filter(|post| post.parts == Some(part)) {
            post.tell_failure();
        }
    }

    /// The status word that follows a message's data is a message of its own, the next.
    fn post_word(&mut self, env: &mut Env<'_>, post: Posted) {
        if let Then::Word { .. } = post.then {
            let mut word = Posted { data: Payload::None, token: WORD_TOKEN, ..post };
            self.word_of(env, &mut word);
            env.card.kernel.in_flight += 1;
            self.cold.kernel_sends += 1;
            self.cold.posted.push_front(word);
        }
    }

    /// Turns a message into the status word that was to follow it.
    fn word_of(&self, env: &mut Env<'_>, post: &mut Posted) {
        if let Then::Word { at, word } = post.then {
            let buffer = env.card.kernel.word(&word);
            post.data = Payload::Buffer { buffer, len: STATUS_WORD_LEN as u32 };
            (post.to, post.then, post.token) = (at, Then::Nothing, WORD_TOKEN);
        }
    }

    /// Tells a kernel that its message has ended.
    pub(super) fn end_posted(&mut self, env: &mut Env<'_>, work: &Outstanding, status: Status) {
        self.cold.kernel_sends -= 1;
        end_posted(env.kernels, &mut env.card.kernel, work, status);
    }

    /// Gives kernels back the messages that they have posted and that have not been started.
    pub(super) fn drop_posted(&mut self, kernels: &mut Runner, state: &mut KernelState) {
        while let Some(post) = self.cold.posted.pop_front() {
            self.cold.kernel_sends -= 1;
            kernels.ended(state, post.token, Status::Flushed, post.data.into_buffer());
        }
        self.note_posted();
    }

    /// Passes a WRITE's payload through the kernel that is bound to the queue pair or the region.
    /// Returns the bytes to write, or `None` if the kernel has taken them.
    pub(super) fn tap_write<'a>(
        &self,
        env: &mut Env<'_>,
        (addr, key): (u64, u32),
        (offset, total): (u32, u32),
        payload: &'a [u8],
        replaced: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, Refusal> {
        let tap = match self.cold.receive_tap {
            0 => env.card.regions.tap_through(key),
            tap => tap,
        };
        if tap == 0 {
            return Ok(Some(payload));
        }
        let passing =
            Passing { qpn: self.qpn, pd: self.pd, addr, key, offset, total, again: false };
        replaced.clear();
        let verdict =
            env.with_kernels(|kernels, io| kernels.receiving(io, tap, &passing, payload, replaced));
        // A bound kernel without room makes the receiver not ready: the requester waits.
        if verdict == Some(Verdict::Busy) {
            env.card.counters.kernel_busy += 1;
            return Err(Refusal::NotReady);
        }
        env.card.counters.kernel_tapped_bytes += payload.len() as u64;
        Ok(match verdict {
            Some(Verdict::Replace) => {
                replaced.truncate(payload.len());
                Some(replaced)
            }
            Some(Verdict::Take) => None,
            _ => Some(payload),
        })
    }
}

/// The element that a kernel's message would be in a ring.
fn element_of(post: &Posted) -> Element {
    let (opcode, imm) = match post.then {
        Then::Immediate { cookie, status } => (Opcode::WriteImm, status.immediate(cookie)),
        _ => (Opcode::Write, 0),
    };
    let (sge, num_sge) = match post.data {
        Payload::Memory { key, addr, len } => (Sge { addr, len, lkey: key }, 1),
        _ => (Sge::default(), 0),
    };
    Element {
        opcode,
        flags: SendFlags::empty(),
        num_sge,
        key: post.to.rkey,
        remote: post.to.addr,
        operand: imm.into(),
        compare: 0,
        srqn: 0,
        wr_id: post.token,
        sge,
        len: post.data.len(),
    }
}

/// As [`Qp::end_posted`]. A message from the ring is ignored, as no kernel has posted it.
pub(super) fn end_posted(
    kernels: &mut Runner,
    state: &mut KernelState,
    work: &Outstanding,
    status: Status,
) {
    if let Origin::Kernel { buffer } = work.origin {
        let buffer = buffer.and_then(|at| state.buffers.release(at));
        kernels.ended(state, work.element.wr_id, status, buffer);
    }
}
