//! Commands on chains: ENABLEs, loop-back, raw elements, limits, steps.

use super::{CreateError, DestroyError, Nic, PostError};
use crate::chain::{ChainBudget, ChainError, ChainLimits, ChainStep, Errand, Mode, Queue};
use crate::env::Env;
use crate::memory::Memory;
use crate::memory::key::Access;
use crate::psn::Psn;
use crate::qp::state::{Mtu, State};
use crate::qp::{Requester, Responder, enable};
use crate::queue::completion::CompletionQueue;
use crate::queue::element::TooLong;
use crate::rate::Rate;
use crate::time::Time;
use crate::transmit::Path;
use crate::wire::{Dialect, Transport};

/// The errands of turns.
impl Nic {
    /// Carries out the errands that queue pairs' turns have left for other queue pairs.
    #[inline(always)]
    pub(super) fn run_errands(&mut self, now: Time, mem: &mut dyn Memory) {
        if !self.card.chains.errands.is_empty() {
            self.run_all_errands(now, mem);
        }
    }

    #[inline(never)]
    fn run_all_errands(&mut self, now: Time, mem: &mut dyn Memory) {
        while let Some(errand) = self.card.chains.errands.pop_front() {
            self.run_errand(now, mem, errand);
        }
    }

    fn run_errand(&mut self, now: Time, mem: &mut dyn Memory, errand: Errand) {
        match errand {
            Errand::Wake(qpn) => {
                if let Some(qp) = self.qps.get_mut(qpn) {
                    qp.schedule(&mut self.card);
                }
            }
            Errand::Enable { by, at, element } => {
                let mut env = Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
                let Some(pd) = self.qps.get(by).map(|qp| qp.pd) else { return };
                let Err(error) = enable(&mut self.qps, &mut env, pd, &element) else { return };
                if let Some(qp) = self.qps.get_mut(by) {
                    qp.enable_refused(&mut env, at, error);
                }
            }
        }
    }

    /// Wakes queue pairs that a rate or the limit of a WAIT lets go on.
    pub(super) fn handle_chain_timeouts(&mut self, now: Time) {
        while let Some((at, qpn)) = self.card.chains.timers.pop(now) {
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            let timers = &mut self.card.chains.timers;
            let limits = qp.cold.limits.as_mut();
            let limited = limits.is_some_and(|own| timers.expire(&mut own.timer, qpn, at, now));
            if limited || qp.may_go_on(timers, at, now) {
                qp.schedule(&mut self.card);
            }
        }
        let qps = &self.qps;
        let is_valid = |qpn, at| qps.get(qpn).is_some_and(|qp| qp.waits_in_chains(at));
        self.card.chains.timers.sweep(is_valid);
    }
}

/// Chains: see [`crate::chain`].
impl Nic {
    /// Connects two reliable queue pairs of this card in RESET to each other, or one to itself, and
    /// takes them to RTS. `access` says what each may do to the other. Their requests never leave
    /// the card, and are carried out one after the other.
    ///
    /// # Errors
    /// [`ChainError::UnknownQp`] if there is no such queue pair; [`ChainError::NotFresh`] if one is
    /// not a reliable connection in RESET, or has a shared receive queue.
    pub fn loop_back(&mut self, a: u32, b: u32, access: Access) -> Result<(), ChainError> {
        for qpn in [a, b] {
            let qp = self.qps.get(qpn).ok_or(ChainError::UnknownQp)?;
            // A shared receive queue does not tell the sender when there is an element again.
            if qp.transport != Transport::Rc || qp.state != State::Reset || qp.srq != 0 {
                return Err(ChainError::NotFresh);
            }
        }
        let (address, window) = (self.card.config.address, self.card.config.window_packets);
        for (qpn, dest) in [(a, b), (b, a)] {
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            qp.mode.insert(Mode::LOOP_BACK);
            qp.path = Path::new(address, qpn);
            (qp.dest_qp, qp.access, qp.dialect) = (dest, access, Dialect::STANDARD);
            qp.mtu = Mtu::B4096 as u16;
            qp.tx = Requester::new(Psn::default(), window);
            qp.rx = Responder::new(Psn::default());
            qp.state = State::Rts;
            qp.schedule(&mut self.card);
        }
        Ok(())
    }

    /// Writes the bytes of an element into the next slot of a ring and, unless the queue is
    /// managed, posts it. Returns its index. Bytes of the slot behind `raw` stay unchanged.
    ///
    /// # Errors
    /// As [`Nic::post_send`] or [`Nic::post_recv`], by the queue; [`PostError::TooLong`] if `raw`
    /// is longer than a slot.
    pub fn post_element(
        &mut self,
        mem: &mut dyn Memory,
        qpn: u32,
        queue: Queue,
        raw: &[u8],
    ) -> Result<u32, PostError> {
        let copy = |slot: &mut [u8]| {
            slot.get_mut(..raw.len()).ok_or(TooLong)?.copy_from_slice(raw);
            Ok(raw.len())
        };
        let qp = self.qps.get_mut(qpn).ok_or(PostError::UnknownQueue)?;
        qp.post(&mut self.card, mem, queue, copy)
    }

    /// The index of the element that the owner writes next.
    pub fn next_index(&self, qpn: u32, queue: Queue) -> Option<u32> {
        self.qps.get(qpn).map(|qp| qp.next_index(queue))
    }

    /// Gives a send queue limits, in place of those that it has.
    ///
    /// # Errors
    /// [`ChainError::UnknownQp`] and [`ChainError::UnknownBudget`] if there is no such object,
    /// [`ChainError::Rate`] for a rate or burst of zero.
    pub fn set_chain_limits(
        &mut self,
        now: Time,
        qpn: u32,
        limits: ChainLimits,
    ) -> Result<(), ChainError> {
        let qp = self.qps.get_mut(qpn).ok_or(ChainError::UnknownQp)?;
        if limits.budget.is_some_and(|budget| self.card.chains.budgets.get(budget).is_none()) {
            return Err(ChainError::UnknownBudget);
        }
        if ![limits.rate, limits.bytes].iter().flatten().all(Rate::is_valid) {
            return Err(ChainError::Rate);
        }
        let some = limits != ChainLimits::default();
        qp.set_limits(&mut self.card, some.then_some(limits), now);
        // The old limits may have held the queue.
        qp.schedule(&mut self.card);
        Ok(())
    }

    /// Makes a budget of `elements` elements for the queue pairs of a chain
    /// ([`ChainLimits::budget`]). It is filled whenever one of them gets something from outside: a
    /// message, or a post or doorbell by the owner. A queue pair that finds it empty goes to ERROR,
    /// with [`crate::Event::ChainStopped`].
    ///
    /// # Errors
    /// [`CreateError::Full`] if the card has as many budgets as its limit.
    pub fn create_budget(&mut self, elements: u64) -> Result<u32, CreateError> {
        let limit = self.card.config.max_budgets;
        let budget = ChainBudget { full: elements, left: elements, users: 0 };
        self.card.chains.budgets.insert_with(|_| budget).ok_or(CreateError::Full { limit })
    }

    /// Fills a budget.
    ///
    /// # Errors
    /// [`ChainError::UnknownBudget`] if there is no such budget.
    pub fn refill_budget(&mut self, budget: u32) -> Result<(), ChainError> {
        let budgets = &mut self.card.chains.budgets;
        let budget = budgets.get_mut(budget).ok_or(ChainError::UnknownBudget)?;
        budget.left = budget.full;
        Ok(())
    }

    /// Destroys a budget.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such budget, [`DestroyError::Busy`] if a queue pair
    /// still uses it.
    pub fn destroy_budget(&mut self, budget: u32) -> Result<(), DestroyError> {
        let users = self.card.chains.budgets.get(budget).ok_or(DestroyError::Unknown)?.users;
        if users > 0 {
            return Err(DestroyError::Busy { users });
        }
        self.card.chains.budgets.remove(budget);
        Ok(())
    }

    /// Makes a completion queue for WAITs that need not be polled: it only counts successful
    /// completions, and keeps up to `capacity` failed ones.
    ///
    /// # Errors
    /// As [`Nic::create_cq`].
    pub fn create_counting_cq(&mut self, capacity: usize) -> Result<u32, CreateError> {
        self.insert_cq(capacity, CompletionQueue::counting)
    }

    /// How many successful completions a completion queue has had. WAITs compare with this number.
    pub fn cq_count(&self, cq: u32) -> Option<u64> {
        self.card.cqs.get(cq).map(CompletionQueue::count)
    }

    /// Keeps the last `most` steps of chains for [`Nic::poll_chain_step`]. Zero, the initial value,
    /// keeps none.
    pub fn trace_chains(&mut self, most: usize) {
        let chains = &mut self.card.chains;
        chains.steps_most = most;
        chains.steps.truncate(most);
        self.end_all_passes();
    }

    /// The next step of a chain.
    pub fn poll_chain_step(&mut self) -> Option<ChainStep> {
        self.card.chains.steps.pop_front()
    }
}
