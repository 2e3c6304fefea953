//! The state that all queue pairs of a card share: tables, pools, the scheduler, timers, counters.
//!
//! [`crate::env`] lends it to one queue pair at a time.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;

use crate::chain::{ChainState, Errand};
use crate::client_rates::Clients;
use crate::config::Config;
use crate::counters::Counters;
use crate::event::Event;
use crate::handles::{AddressHandle, Domain, Handles};
use crate::incident::Incidents;
use crate::kernel::KernelState;
use crate::memory::region::Regions;
use crate::multi_queue::MultiQueue;
use crate::numbered::Numbered;
use crate::psn::Psn;
use crate::queue::answer::Answer;
use crate::queue::completion::{CompletionQueue, Pushed};
use crate::queue::outstanding::Outstanding;
use crate::queue::sgl::SglPool;
use crate::queue::shared_receive::SharedReceiveQueue;
use crate::queue::{Completion, Status};
use crate::scheduler::Scheduler;
use crate::silence::Silent;
use crate::staging::Staging;
use crate::time::Time;
use crate::timers::{self, Timers};

/// The state that all queue pairs of a card share.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) config: Config,
    pub(crate) pds: Handles<Domain>,
    pub(crate) regions: Regions,
    pub(crate) cqs: Handles<CompletionQueue>,
    /// The exported completion queues that have got entries, each once.
    pub(crate) completed: VecDeque<u32>,
    pub(crate) srqs: Handles<SharedReceiveQueue>,
    /// The exported shared receive queues of which elements were taken, each once.
    pub(crate) taken: VecDeque<u32>,
    pub(crate) xrcds: Handles<Domain>,
    /// The shared receive queues that XRC requests may name, by their numbers on the wire.
    pub(crate) xrc_srqs: Numbered<u32>,
    pub(crate) ahs: Handles<AddressHandle>,
    pub(crate) outstanding: MultiQueue<Outstanding>,
    pub(crate) answers: MultiQueue<Answer>,
    pub(crate) sgls: SglPool,
    pub(crate) scheduler: Scheduler,
    /// The numbers of the queue pairs that hold an acknowledge back.
    pub(crate) late: Vec<u32>,
    /// An acknowledge that came with a request and has not been acted on yet.
    pub(crate) unsettled: Option<Unsettled>,
    pub(crate) timers: Timers,
    /// The peers that do not answer.
    pub(crate) silent: Silent,
    /// For completion queues with a moderated notification that is due later.
    pub(crate) cq_timers: Timers,
    pub(crate) counters: Counters,
    pub(crate) incidents: Incidents,
    pub(crate) events: VecDeque<Event>,
    pub(crate) rng: ChaCha8Rng,
    /// Room for the batch of elements that a turn fetches.
    pub(crate) fetched: Vec<u8>,
    pub(crate) kernel: KernelState,
    pub(crate) chains: ChainState,
    pub(crate) clients: Clients,
    /// Room for the payload of direct requests.
    pub(crate) staging: Staging,
    /// The queue pairs whose passes (`nic/passes.rs`) are over, each once.
    pub(crate) passes_ended: Vec<u32>,
}

/// An acknowledge that came with a request. The peer waits for the answer to the request, so the
/// answer leaves first, and the acknowledge is acted on behind it or before the next packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled {
    /// This card's queue pair.
    pub(crate) qpn: u32,
    /// The peer has received all requests before this PSN.
    pub(crate) end: Psn,
    /// Packets have left since the acknowledge came.
    pub(crate) waited: bool,
}

impl Card {
    /// Takes the acknowledge that came with a queue pair's last request, if it has not been acted
    /// on. Returns the PSN before which all is acknowledged.
    pub(crate) fn take_unsettled(&mut self, qpn: u32) -> Option<Psn> {
        self.unsettled.take_if(|unsettled| unsettled.qpn == qpn).map(|unsettled| unsettled.end)
    }
}

impl Card {
    /// The shortest wait for an acknowledge now, in nanoseconds.
    #[inline]
    pub(crate) fn least_wait_ns(&self) -> u64 {
        let Config { min_ack_timeout, message_time, .. } = &self.config;
        let each = timers::nanos(*message_time);
        timers::nanos(*min_ack_timeout).max(each.saturating_mul(self.outstanding.counted() as u64))
    }

    /// How many more messages of kernels may be outstanding.
    pub(crate) fn kernel_sends_left(&self) -> usize {
        self.config.max_kernel_sends.saturating_sub(self.kernel.in_flight)
    }

    /// Notes that outstanding work has ended: queue pairs that found its pool full may go on.
    /// Returns whether there were any.
    #[inline]
    pub(crate) fn feed(&mut self) -> bool {
        self.scheduler.feed(self.outstanding.counted() == 0)
    }

    /// Notes that an element of a shared receive queue was taken and `waiting` are left.
    pub(crate) fn srq_taken(&mut self, handle: u32, waiting: u32) {
        let Some(srq) = self.srqs.get_mut(handle) else { return };
        if srq.list() {
            self.taken.push_back(handle);
        }
        if srq.falls_below_limit(waiting) {
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
        if queue.list() {
            self.completed.push_back(cq);
        }
        self.tell_pushed(now, cq, pushed);
    }

    /// As [`Card::complete`], for a request that succeeded. Completion queues of chains only count
    /// it.
    #[inline]
    pub(crate) fn complete_well(&mut self, now: Time, cq: u32, entry: impl FnOnce() -> Completion) {
        let Some(queue) = self.cqs.get_mut(cq) else { return };
        if queue.count_more(1) {
            self.chains.errands.extend(queue.wake().map(Errand::Wake));
        }
        if queue.counts_only() {
            self.counters.completions += 1;
            return;
        }
        let pushed = queue.push(Completion { at: now, ..entry() });
        if queue.list() {
            self.completed.push_back(cq);
        }
        match pushed {
            Pushed::Quietly => self.counters.completions += 1,
            pushed => self.tell_pushed(now, cq, pushed),
        }
    }

    /// Counts successful completions that come without entries.
    pub(crate) fn count_completions(&mut self, cq: u32, count: u64) {
        if let Some(queue) = self.cqs.get_mut(cq)
            && queue.count_more(count)
        {
            self.chains.errands.extend(queue.wake().map(Errand::Wake));
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
