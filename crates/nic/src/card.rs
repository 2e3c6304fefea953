//! What all queue pairs of a card share: tables, pools, the scheduler's ring, timers, counters.

use core::num::NonZeroU32;
use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;

use crate::chain::{ChainState, Errand};
use crate::config::Config;
use crate::counters::Counters;
use crate::incident::Incidents;
use crate::kernel::{KernelIo, KernelState, Kernels};
use crate::memory::region::{Access, AccessError, Pd, Regions, Scope};
use crate::memory::{Memory, MemoryFault};
use crate::multi_queue::MultiQueue;
use crate::nic::Event;
use crate::psn::Psn;
use crate::qp::timers::Timers;
use crate::qp::{Answer, Outstanding, Qp};
use crate::queue::completion::{CompletionQueue, Pushed};
use crate::queue::element::{MAX_SGE, sge_at};
use crate::queue::ring::Ring;
use crate::queue::{Completion, Sge, Status};
use crate::table::Table;
use crate::time::Time;
use crate::transmit::{Path, Segment};

/// The handles of everything but queue pairs: 20 bits of index, 12 of generation.
pub(crate) type Handles<T> = Table<T, 20, 32>;

/// The state that is not one queue pair's own.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) config: Config,
    pub(crate) pds: Handles<Domain>,
    pub(crate) regions: Regions,
    pub(crate) cqs: Handles<CompletionQueue>,
    pub(crate) srqs: Handles<SharedReceiveQueue>,
    pub(crate) xrcds: Handles<Domain>,
    /// The shared receive queues that XRC requests may name, by their numbers on the wire.
    pub(crate) xrc_srqs: Table<u32, 16, 24>,
    pub(crate) ahs: Handles<AddressHandle>,
    pub(crate) outstanding: MultiQueue<Outstanding>,
    pub(crate) answers: MultiQueue<Answer>,
    pub(crate) sgls: SglPool,
    /// SRNIC's schedule queue: the queue pairs that are ready, by number.
    pub(crate) ready: VecDeque<u32>,
    /// Queue pairs whose data left without the acknowledge that is due, by number.
    pub(crate) late: Vec<u32>,
    /// An acknowledge that came with a request and is not looked at yet.
    pub(crate) unsettled: Option<Unsettled>,
    /// Queue pairs that found the pool of outstanding work full, by number.
    pub(crate) starved: Vec<u32>,
    /// Counts how often the starved were woken, so that none stands among them twice.
    pub(crate) feedings: u32,
    pub(crate) timers: Timers,
    /// Completion queues whose owners wait for a moderated notification.
    pub(crate) cq_timers: Timers,
    pub(crate) counters: Counters,
    pub(crate) incidents: Incidents,
    pub(crate) events: VecDeque<Event>,
    pub(crate) rng: ChaCha8Rng,
    /// Where a batch of elements is copied to at the fetch.
    pub(crate) fetched: Vec<u8>,
    pub(crate) kernel: KernelState,
    pub(crate) chains: ChainState,
}

/// An acknowledge that came with a request. Who sent that waits for an answer: so the answer leaves
/// first, and what has been acknowledged is looked at behind it, or before the next packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled {
    /// The queue pair of ours.
    pub(crate) qpn: u32,
    /// All before this has arrived.
    pub(crate) end: Psn,
    /// Packets have left since it came.
    pub(crate) waited: bool,
}

impl Card {
    /// Takes the end of what a queue pair's peer has acknowledged with its last request, if that
    /// has not been looked at.
    pub(crate) fn take_unsettled(&mut self, qpn: u32) -> Option<Psn> {
        self.unsettled.take_if(|unsettled| unsettled.qpn == qpn).map(|unsettled| unsettled.end)
    }
}

/// A card at a moment, with its memory: what a queue pair needs to do anything.
pub(crate) struct Env<'a> {
    pub(crate) now: Time,
    pub(crate) mem: &'a mut dyn Memory,
    pub(crate) card: &'a mut Card,
}

/// An XRC domain's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Xrcd(pub(crate) u32);

/// What an XRC shared receive queue has besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) xrcd: Xrcd,
    /// Where its completions go, whichever queue pair takes an element.
    pub(crate) cq: u32,
    /// Its number on the wire.
    pub(crate) srqn: u32,
}

/// A protection domain, or an XRC domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Objects that belong to it.
    pub(crate) users: u32,
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) pd: Pd,
    pub(crate) path: Path,
}

/// A receive queue that several queue pairs take from.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) pd: Pd,
    pub(crate) ring: Ring,
    /// Raise an event when fewer than this many are posted; zero: do not.
    pub(crate) limit: u32,
    pub(crate) users: u32,
    pub(crate) xrc: Option<XrcSrq>,
}

impl Card {
    /// A scheduling event: `qp` has something to do (SRNIC's event mux).
    #[inline]
    pub(crate) fn schedule(&mut self, qp: &mut Qp) {
        if !qp.queued {
            qp.queued = true;
            self.ready.push_back(qp.qpn);
        }
    }

    /// The pool of outstanding work has room again: those that waited for it are ready.
    #[inline]
    pub(crate) fn wake_starved(&mut self) {
        if !self.starved.is_empty() {
            self.feedings = self.feedings.wrapping_add(1);
            self.ready.extend(self.starved.drain(..));
        }
    }

    /// An element of a shared receive queue was taken; `waiting` are left.
    pub(crate) fn srq_taken(&mut self, handle: u32, waiting: u32) {
        let Some(srq) = self.srqs.get_mut(handle) else { return };
        if waiting < srq.limit {
            srq.limit = 0;
            self.events.push_back(Event::SrqLimitReached(handle));
        }
    }

    /// Adds a completion, and the events it causes.
    pub(crate) fn complete(&mut self, now: Time, cq: u32, entry: Completion) {
        if entry.status == Status::Success {
            return self.complete_well(now, cq, || entry);
        }
        let Some(queue) = self.cqs.get_mut(cq) else { return };
        let pushed = queue.push(Completion { at: now, ..entry });
        self.tell_pushed(now, cq, pushed);
    }

    /// As [`Card::complete`], for what ended well. Queues of chains only count it.
    #[inline]
    pub(crate) fn complete_well(&mut self, now: Time, cq: u32, entry: impl FnOnce() -> Completion) {
        let Some(queue) = self.cqs.get_mut(cq) else { return };
        if queue.count_one() {
            self.chains.errands.extend(queue.wake().map(Errand::Wake));
        }
        let pushed = match queue.counts_only() {
            true => Pushed::Quietly,
            false => queue.push(Completion { at: now, ..entry() }),
        };
        match pushed {
            Pushed::Quietly => self.counters.completions += 1,
            pushed => self.tell_pushed(now, cq, pushed),
        }
    }

    /// Counts a completion, and raises the events it causes.
    fn tell_pushed(&mut self, now: Time, cq: u32, pushed: Pushed) {
        match pushed {
            Pushed::Quietly | Pushed::Lost => {}
            Pushed::NotifyLater(period) => {
                if let Some(queue) = self.cqs.get_mut(cq) {
                    self.cq_timers.arm(&mut queue.timer, cq, now + period);
                }
            }
            Pushed::Notify => self.events.push_back(Event::CompletionQueueNotify(cq)),
            Pushed::Overflow => self.events.push_back(Event::CompletionQueueError(cq)),
        }
        match pushed {
            Pushed::Overflow | Pushed::Lost => self.counters.cq_overflows += 1,
            _ => self.counters.completions += 1,
        }
    }
}

impl Env<'_> {
    /// Lets the card's kernels act; `None` if it has none.
    #[inline]
    pub(crate) fn with_kernels<R>(
        &mut self,
        act: impl FnOnce(&mut dyn Kernels, &mut KernelIo<'_>) -> R,
    ) -> Option<R> {
        // Lent out of the card, so that the card can be used meanwhile.
        let mut kernels = self.card.kernel.kernels.take()?;
        let mut io = KernelIo { now: self.now, mem: &mut *self.mem, card: &mut *self.card };
        let result = act(&mut *kernels, &mut io);
        self.card.kernel.kernels = Some(kernels);
        self.card.kernel.ask_due();
        Some(result)
    }

    /// Writes `bytes` through a key, pieces in rising order.
    #[inline]
    pub(crate) fn write_region(
        &mut self,
        (key, scope): (u32, Scope),
        addr: u64,
        bytes: &[u8],
        need: Access,
    ) -> Result<(), AccessError> {
        write_region(&self.card.regions, self.mem, (key, scope), addr, bytes, need)
    }

    /// Bytes will soon be written through a key: their memory may be fetched meanwhile.
    #[inline]
    pub(crate) fn prefetch(
        &mut self,
        (key, scope): (u32, Scope),
        addr: u64,
        len: u32,
        need: Access,
    ) {
        let mem = &mut *self.mem;
        let fetch = |piece: Segment| {
            if piece.addr != Segment::NOWHERE {
                mem.prefetch(piece.addr, piece.len as usize);
            }
        };
        // What may not be written is refused when it comes.
        let _ = self.card.regions.translate(key, scope, addr, len, need, fetch);
    }

    /// Reads through a key into `bytes`.
    #[inline]
    pub(crate) fn read_region(
        &mut self,
        (key, scope): (u32, Scope),
        addr: u64,
        bytes: &mut [u8],
        need: Access,
    ) -> Result<(), AccessError> {
        let (mem, regions) = (&mut *self.mem, &self.card.regions);
        let (len, mut at, mut result) = (bytes.len() as u32, 0, Ok(()));
        regions.translate(key, scope, addr, len, need, |piece: Segment| {
            let now = &mut bytes[at..at + piece.len as usize];
            at += now.len();
            if piece.addr == Segment::NOWHERE {
                now.fill(0);
            } else if result.is_ok() {
                result = mem.read(piece.addr, now);
            }
        })?;
        result.map_err(|MemoryFault { .. }| AccessError::Memory)
    }
}

/// Writes `bytes` through a key, pieces in rising order.
#[inline]
pub(crate) fn write_region(
    regions: &Regions,
    mem: &mut dyn Memory,
    (key, scope): (u32, Scope),
    addr: u64,
    bytes: &[u8],
    need: Access,
) -> Result<(), AccessError> {
    let (mut rest, mut result) = (bytes, Ok(()));
    regions.translate(key, scope, addr, bytes.len() as u32, need, |piece: Segment| {
        let (now, later) = rest.split_at(piece.len as usize);
        rest = later;
        if result.is_ok() && piece.addr != Segment::NOWHERE {
            result = mem.write(piece.addr, now);
        }
    })?;
    result.map_err(|MemoryFault { .. }| AccessError::Memory)
}

/// A slot of an [`SglPool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SglSlot(NonZeroU32);

impl SglSlot {
    /// Of a list without entries, there is no copy.
    const EMPTY: SglSlot = SglSlot(NonZeroU32::MAX);
}

/// Copies of scatter/gather lists, for work in flight.
#[derive(Debug, Default)]
pub(crate) struct SglPool {
    slots: Vec<[Sge; MAX_SGE]>,
    free: Vec<SglSlot>,
}

impl SglPool {
    /// Copies the `count` entries of a fetched element.
    #[inline(always)]
    pub(crate) fn copy_in(&mut self, raw: &[u8], count: u8) -> SglSlot {
        if count == 0 {
            return SglSlot::EMPTY;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push([Sge::default(); MAX_SGE]);
            // One more than the index, so that it is never zero.
            SglSlot(NonZeroU32::MIN.saturating_add(self.slots.len() as u32 - 1))
        });
        let entries = &mut self.slots[Self::index(slot)];
        for (i, sge) in entries.iter_mut().take(usize::from(count)).enumerate() {
            *sge = sge_at(raw, i);
        }
        slot
    }

    pub(crate) fn entries(&self, slot: SglSlot, count: u8) -> &[Sge] {
        let slot = self.slots.get(Self::index(slot));
        slot.map_or(&[], |entries| &entries[..usize::from(count).min(MAX_SGE)])
    }

    pub(crate) fn release(&mut self, slot: SglSlot) {
        if slot != SglSlot::EMPTY {
            self.free.push(slot);
        }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn index(slot: SglSlot) -> usize {
        slot.0.get() as usize - 1
    }
}

/// Calls `each` with the pieces of `sges` that hold bytes `offset..offset + len` of the message.
#[inline]
pub(crate) fn pieces<E>(
    sges: &[Sge],
    offset: u32,
    len: u32,
    mut each: impl FnMut(Sge) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut left) = (offset, len);
    for sge in sges {
        if left == 0 {
            break;
        }
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let len = left.min(sge.len - skip);
        each(Sge { addr: sge.addr.wrapping_add(u64::from(skip)), len, lkey: sge.lkey })?;
        left -= len;
        skip = 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_along_its_entries() {
        let sge = |addr, len| Sge { addr, len, lkey: 1 };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 10)];
        let cut = |offset, len| {
            let mut out = Vec::new();
            pieces(&sges, offset, len, |s| {
                out.push((s.addr, s.len));
                Ok::<_, ()>(())
            })
            .unwrap();
            out
        };
        assert_eq!(cut(0, 20), [(100, 10), (300, 10)]);
        assert_eq!(cut(8, 4), [(108, 2), (300, 2)]);
        assert_eq!(cut(15, 5), [(305, 5)]);
        assert_eq!(cut(3, 0), []);
    }
}
