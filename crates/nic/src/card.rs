//! What all queue pairs of a card share: tables, pools, the scheduler, timers, counters.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;

use crate::chain::{ChainState, Errand};
use crate::config::Config;
use crate::counters::Counters;
use crate::event::Event;
use crate::handles::{AddressHandle, Domain, Handles};
use crate::incident::Incidents;
use crate::kernel::KernelState;
use crate::memory::region::Regions;
use crate::multi_queue::MultiQueue;
use crate::psn::Psn;
use crate::queue::answer::Answer;
use crate::queue::completion::{CompletionQueue, Pushed};
use crate::queue::outstanding::Outstanding;
use crate::queue::sgl::SglPool;
use crate::queue::shared_receive::SharedReceiveQueue;
use crate::queue::{Completion, Status};
use crate::scheduler::Scheduler;
use crate::table::Table;
use crate::time::Time;
use crate::timers::Timers;

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
    pub(crate) scheduler: Scheduler,
    /// Queue pairs whose data left without the acknowledge that is due, by number.
    pub(crate) late: Vec<u32>,
    /// An acknowledge that came with a request and is not looked at yet.
    pub(crate) unsettled: Option<Unsettled>,
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

/// An acknowledge that came with a request. The peer waits for an answer to that: so the answer
/// leaves first, and what has been acknowledged is looked at behind it, or before the next packet.
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

impl Card {
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
