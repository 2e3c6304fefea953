//! Requests that this process carries out itself: WRITEs and READs to memory of another session of
//! the same card, of which it has a *pass* and so a mapping.
//!
//! A request goes so only while its queue has nothing under way on the card, and nothing that the
//! program has not polled: then it may be done now, and complete at once. All else goes by the
//! card: what needs a receive element, an atomic, several entries or an event; keys of which there
//! is no pass; and whatever is wrong, so that it is refused as ever. A request that finds its gate
//! shut half-way goes by the card, too, which judges it anew and writes the same bytes again.
//!
//! A pass is asked for when requests have gone by the card for a while. A program that always has
//! requests under way would never come to use it: so a post waits for those, once in a while, for
//! some milliseconds at most.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use remora_nic::qp::State;
use remora_nic::queue::{
    Completion, Data, Opcode, RemoteAddress, SendFlags, SendOp, SendRequest, WorkKind,
};
use remora_nic::{Access, Key, Pd};

use super::posting::Posting;
use super::{Attached, QueuePair};
use crate::by_number::ByNumber;
use crate::commands::{Bytes, Place};
use crate::memory::{Buffer, memfd};
use crate::message::Pass;
use crate::shared::Gates;
use crate::shared::gates::{GATES, SENDERS};

/// Entries that this process has for itself, of a completion queue, at most.
pub(super) const HERE: usize = 256;
/// Bytes that are copied before the gate is looked at again: some microseconds.
const PIECE: usize = 64 << 10;
/// Passes of a queue pair, at most.
const PASSES: usize = 16;
/// Requests that go by the card before this process asks for a pass, or waits for those under way,
/// at first and at most: each attempt doubles the number.
const ATTEMPT_MIN: u32 = 16;
const ATTEMPT_MAX: u32 = 1 << 16;
/// How long a post waits for what is under way.
const CATCH_UP: Duration = Duration::from_millis(5);

/// What this process knows of requests that it may carry out itself.
#[derive(Debug)]
pub(super) struct Passes {
    /// Every request goes by the card, for good.
    off: bool,
    /// Some queue pair has a pass.
    any: bool,
    /// Regions of memory of this process, by their keys.
    regions: ByNumber<Own>,
}

/// A region of memory of this process.
#[derive(Clone, Copy, Debug)]
struct Own {
    pd: Pd,
    iova: u64,
    addr: u64,
    len: u64,
    access: Access,
}

/// The passes of a queue pair.
#[derive(Debug, Default)]
pub(super) struct OfQueuePair {
    held: Vec<OpenPass>,
    asks: Attempts,
    waits: Attempts,
}

/// A pass, and what it opens.
#[derive(Debug)]
struct OpenPass {
    key: Key,
    pass: Pass,
    gates: Gates,
    memory: Buffer,
}

/// When something is tried again.
#[derive(Debug)]
struct Attempts {
    /// Requests since the last attempt.
    since: u32,
    /// How many of them the next attempt waits for.
    every: u32,
}

/// What a request moves.
struct Move<'a> {
    remote: RemoteAddress,
    /// It reads the peer's memory, and does not write it.
    reads: bool,
    local: Local<'a>,
    len: usize,
}

/// The bytes of this process.
enum Local<'a> {
    Inline(&'a [u8]),
    Memory(Buffer),
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts { since: 0, every: ATTEMPT_MIN }
    }
}

impl Attempts {
    /// One more request goes by the card. Is it time for an attempt?
    fn is_due(&mut self) -> bool {
        self.since += 1;
        let due = self.since >= self.every;
        if due {
            (self.since, self.every) = (0, (self.every * 2).min(ATTEMPT_MAX));
        }
        due
    }
}

impl Passes {
    /// None yet, and never any if they are `off`.
    pub(super) fn new(off: bool) -> Passes {
        Passes { off, any: false, regions: ByNumber::default() }
    }

    /// Notes a region that was made.
    pub(super) fn note_region(&mut self, key: Key, pd: Pd, bytes: Bytes, access: Access) {
        if let Place::Process(addr) = bytes.place {
            let (iova, len) = (bytes.iova, bytes.len);
            self.regions.insert(key, Own { pd, iova, addr, len, access });
        }
    }

    /// Forgets a region that has gone or has changed, or whose key a peer has ended.
    pub(super) fn forget_region(&mut self, key: Key) {
        self.regions.remove(&key);
    }

    /// The bytes that a request names, if this process can reach them and the key permits it.
    fn find<'a>(&self, pd: Pd, data: Data<'a>, reads: bool) -> Option<(Local<'a>, usize)> {
        let entry = match data {
            Data::Inline(bytes) if !reads => return Some((Local::Inline(bytes), bytes.len())),
            Data::Sges([entry]) => entry,
            _ => return None,
        };
        let own = self.regions.get(&entry.lkey).filter(|own| own.pd == pd)?;
        let from = entry.addr.checked_sub(own.iova)?;
        let is_within = from.checked_add(entry.len.into())? <= own.len;
        if !is_within || reads && !own.access.contains(Access::LOCAL_WRITE) {
            return None;
        }
        let len = entry.len as usize;
        // SAFETY: the range is within a region of memory of this process. The caller that has
        // registered it has promised that it stays mapped until it is deregistered, and that it is
        // reached by raw pointers and atomics only.
        let memory = unsafe { Buffer::view(own.addr + from, len) }?;
        Some((Local::Memory(memory), len))
    }
}

impl OfQueuePair {
    /// Gives up passes that are over, and with them the mappings.
    pub(super) fn sweep(&mut self) {
        self.held.retain(OpenPass::is_open);
    }

    /// Gives up all passes.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    fn held(&self, key: Key) -> Option<&OpenPass> {
        self.held.iter().find(|held| held.key == key)
    }

    /// Is there a pass for a key that is not over?
    #[inline]
    fn is_held(&mut self, key: Key) -> bool {
        let is_open = self.held(key).map(OpenPass::is_open);
        if is_open == Some(false) {
            self.sweep();
        }
        is_open == Some(true)
    }

    fn keep(&mut self, held: OpenPass) {
        self.held.retain(|old| old.key != held.key && old.is_open());
        if self.held.len() == PASSES {
            self.held.remove(0);
        }
        self.held.push(held);
        self.asks = Attempts::default();
    }
}

impl OpenPass {
    /// Maps what a pass opens; `None` if the system refuses, or the daemon has said something else
    /// than is there.
    fn map(key: Key, pass: Pass, files: [impl AsFd; 2]) -> Option<OpenPass> {
        let [gates, memory] = files;
        let len = usize::try_from(memfd::len_of(memory.as_fd()).ok()?).ok()?;
        let is_within = pass.offset.checked_add(pass.len)? <= len as u64;
        if !is_within || pass.gate >= GATES || pass.sender >= SENDERS {
            return None;
        }
        let memory = Buffer::map_only(memory.as_fd(), 0, len).ok()?;
        Some(OpenPass { key, pass, gates: Gates::open(gates.as_fd()).ok()?, memory })
    }

    fn is_open(&self) -> bool {
        self.gates.is_open(self.pass.gate, self.pass.mark)
    }

    /// Where in the memory a request begins, if it is one that the pass permits.
    fn place(&self, request: &Move<'_>) -> Option<usize> {
        let need = if request.reads { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let from = request.remote.addr.checked_sub(self.pass.iova)?;
        let is_within = from.checked_add(request.len as u64)? <= self.pass.len;
        let permits = self.pass.access.contains(need) && request.len > 0;
        (is_within && permits).then_some((self.pass.offset + from) as usize)
    }

    /// Carries a request out, a piece at a time. Returns whether the gate was open to the end.
    #[inline]
    fn carry_out(&self, place: usize, request: &Move<'_>) -> bool {
        let Pass { gate, sender, mark, .. } = self.pass;
        let mut done = 0;
        while done < request.len {
            let (at, len) = (place + done, (request.len - done).min(PIECE));
            if !self.gates.enter(sender, gate, mark) {
                return false;
            }
            let moved = match &request.local {
                Local::Inline(bytes) => self.memory.write_at(at, &bytes[done..done + len]),
                Local::Memory(own) if request.reads => own.copy_at(done, &self.memory, at, len),
                Local::Memory(own) => self.memory.copy_at(at, own, done, len),
            };
            self.gates.leave(sender);
            if moved.is_err() {
                return false;
            }
            done += len;
        }
        true
    }
}

impl Attached {
    /// Carries out a request of this process, if there is a pass for it and nothing stands before
    /// it. Returns whether it is done, and has completed; otherwise it goes to the card.
    #[inline]
    pub(super) fn carries_out(&mut self, qpn: u32, request: &SendRequest<'_>) -> bool {
        let (remote, reads) = match request.op {
            SendOp::Write { to, imm: None } => (to, false),
            SendOp::Read { from } => (from, true),
            SendOp::Wait { .. } | SendOp::Enable { .. } | SendOp::EnableRecv { .. } => {
                self.use_chains();
                return false;
            }
            _ => return false,
        };
        if self.passes.off || self.lost {
            return false;
        }
        let Some(qp) = self.queue_pairs.get_mut(&qpn) else { return false };
        let Some(passes) = qp.passes.as_deref_mut().filter(|_| qp.state == State::Rts) else {
            return false;
        };
        if !passes.is_held(remote.rkey) {
            if passes.asks.is_due() {
                self.ask_for_pass(qpn, remote.rkey);
            }
            return false;
        }
        let reported = qp.reports(request.flags).then_some(qp.cqs[0]);
        if !qp.is_quiet() && !self.catch_up(qpn) {
            return false;
        }
        if reported.is_some_and(|cq| !self.takes_here(cq)) {
            return false;
        }
        self.carry_out(qpn, (remote, reads), request, reported)
    }

    /// May a completion be added to those that are here? What the card has written before comes
    /// here first: so the program sees both in their order, and a program that never finds this
    /// list empty sees the card's, too.
    #[inline]
    fn takes_here(&mut self, cq: u32) -> bool {
        let Some(queue) = self.completion_queues.get(&cq) else { return false };
        // A completion that somebody sleeps for is the daemon's to announce.
        if queue.consumer.is_armed() {
            return false;
        }
        if queue.consumer.has_entry() {
            return self.take_over(cq, HERE);
        }
        queue.here.len() < HERE
    }

    /// Carries out a request on a queue pair that has nothing under way, and on whose completion
    /// queue it is `reported`, if so.
    #[inline]
    fn carry_out(
        &mut self,
        qpn: u32,
        (remote, reads): (RemoteAddress, bool),
        request: &SendRequest<'_>,
        reported: Option<u32>,
    ) -> bool {
        let Attached { queue_pairs, completion_queues, passes, clock, .. } = self;
        let Some(qp) = queue_pairs.get_mut(&qpn) else { return false };
        let Some(held) = qp.passes.as_ref().and_then(|passes| passes.held(remote.rkey)) else {
            return false;
        };
        if matches!(request.data, Data::Inline(bytes) if bytes.len() > qp.inline_room()) {
            return false;
        }
        let Some((local, len)) = passes.find(qp.pd, request.data, reads) else { return false };
        let wanted = Move { remote, reads, local, len };
        let Some(place) = held.place(&wanted) else { return false };
        if !held.carry_out(place, &wanted) {
            return false;
        }
        if let Some(queue) = reported.and_then(|cq| completion_queues.get_mut(&cq)) {
            let kind = WorkKind::Send(if reads { Opcode::Read } else { Opcode::Write });
            let (wr_id, len, at) = (request.wr_id, len as u32, clock.now());
            let entry = Completion { wr_id, kind, qpn, len, at, ..Completion::default() };
            queue.counted += 1;
            queue.here.push_back(entry);
        }
        self.idle = 0;
        true
    }

    /// Once in a while, waits until what is under way on a queue pair has completed, and takes the
    /// completions here. Returns whether it has.
    #[cold]
    fn catch_up(&mut self, qpn: u32) -> bool {
        let Some(qp) = self.queue_pairs.get_mut(&qpn) else { return false };
        let cq = qp.cqs[0];
        if !qp.passes.as_mut().is_some_and(|passes| passes.waits.is_due()) {
            return false;
        }
        self.kick();
        let until = Instant::now() + CATCH_UP;
        loop {
            let has_room = self.take_over(cq, HERE);
            if self.queue_pairs.get(&qpn).is_some_and(QueuePair::is_quiet) {
                return true;
            }
            if !has_room || Instant::now() >= until {
                return false;
            }
            std::thread::yield_now();
        }
    }

    #[cold]
    fn ask_for_pass(&mut self, qpn: u32, key: Key) {
        let Some((pass, files)) = self.session.pass(qpn, key) else { return };
        let Some(held) = OpenPass::map(key, pass, files) else { return };
        let Some(qp) = self.queue_pairs.get_mut(&qpn) else { return };
        if let Some(queue) = self.completion_queues.get_mut(&qp.cqs[0]) {
            queue.here.reserve(HERE.saturating_sub(queue.here.len()));
        }
        if let Some(passes) = &mut qp.passes {
            passes.keep(held);
            self.passes.any = true;
        }
    }

    /// Gives up the mappings of passes that are over.
    pub(super) fn sweep_passes(&mut self) {
        if self.passes.any {
            let queue_pairs = self.queue_pairs.values_mut();
            queue_pairs.filter_map(|qp| qp.passes.as_mut()).for_each(|passes| passes.sweep());
        }
    }

    /// Every request goes by the card from here on.
    pub(super) fn end_passes(&mut self) {
        self.passes.off = true;
        self.queue_pairs.values_mut().for_each(|qp| qp.passes = None);
    }

    /// The session has chains, which count completions: so the card has to know of all.
    pub(super) fn use_chains(&mut self) {
        if self.passes.off {
            return;
        }
        self.end_passes();
        for (cq, queue) in &mut self.completion_queues {
            let count = std::mem::take(&mut queue.counted);
            if count > 0 {
                self.session.counted(*cq, count);
            }
        }
    }
}

impl QueuePair {
    /// Is nothing under way on the card, of which the program does not know that it is done?
    #[inline]
    fn is_quiet(&self) -> bool {
        self.owed == 0 && self.send.as_ref().is_some_and(Posting::is_done)
    }

    /// Is the success of such a request reported?
    #[inline]
    pub(super) fn reports(&self, flags: SendFlags) -> bool {
        self.signal_all || flags.contains(SendFlags::SIGNALED)
    }

    fn inline_room(&self) -> usize {
        self.send.as_ref().map_or(0, |posting| posting.local().inline_room())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    /// A file of memory that others may cut, unless it is sealed.
    fn memory(seals: SealFlags) -> OwnedFd {
        let file = memfd_create("memory", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 8192).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn memory_that_could_be_cut_is_not_mapped() {
        let (_, gates) = Gates::create().unwrap();
        let (offset, iova, len) = (4096, 0, 4096);
        let pass = Pass { gate: 0, sender: 0, mark: 1, offset, iova, len, access: Access::all() };
        let map = |pass, file: &OwnedFd| OpenPass::map(7, pass, [gates.as_fd(), file.as_fd()]);
        let sealed = memory(SealFlags::SHRINK);
        assert!(map(pass, &sealed).is_some());
        assert!(map(Pass { offset: 4097, ..pass }, &sealed).is_none(), "beyond its end");
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK | SealFlags::WRITE] {
            assert!(map(pass, &memory(seals)).is_none(), "{seals:?}");
        }
    }
}
