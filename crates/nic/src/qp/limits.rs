//! The limits of a send queue: its rates and its client's, the longest duration of its WAITs, the
//! budget of its chain (RedN §3.5, isolation).

use super::Qp;
use super::refusal::Failure;
use crate::card::Card;
use crate::chain::{ChainLimits, Mode};
use crate::env::Env;
use crate::event::Event;
use crate::incident::Cause;
use crate::queue::Status;
use crate::queue::element::Element;
use crate::rate::{Buckets, RateLimits};
use crate::time::Time;
use crate::timers::Timer;

/// A queue pair's limits, and how much of them is used.
#[derive(Debug)]
pub(crate) struct SendLimits {
    pub(crate) set: ChainLimits,
    buckets: Buckets,
    /// The index of the WAIT that holds the queue, and since when.
    waits: Option<(u32, Time)>,
    /// Runs out when the rate lets the queue go on, or when a WAIT has taken too long.
    pub(crate) timer: Timer,
}

/// The limit that the next element would exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OverLimit {
    /// The rate: the element may run later.
    Rate,
    /// The budget: the element may not run at all.
    TurnBudget,
}

impl SendLimits {
    pub(crate) fn new(set: ChainLimits, now: Time) -> SendLimits {
        let rates = RateLimits { elements: set.rate, bytes: set.bytes };
        SendLimits { set, buckets: Buckets::new(rates, now), waits: None, timer: Timer::IDLE }
    }
}

impl Qp {
    /// Gives the send queue limits, or none.
    pub(crate) fn set_limits(&mut self, card: &mut Card, limits: Option<ChainLimits>, now: Time) {
        let budget = |limits: &ChainLimits| limits.budget;
        let old = self.cold.limits.take().and_then(|old| budget(&old.set));
        if let Some(old) = old.and_then(|old| card.chains.budgets.get_mut(old)) {
            old.users -= 1;
        }
        let new = limits.as_ref().and_then(budget);
        if let Some(new) = new.and_then(|new| card.chains.budgets.get_mut(new)) {
            new.users += 1;
        }
        self.cold.limits = limits.map(|limits| Box::new(SendLimits::new(limits, now)));
        self.note_limits(card);
        self.end_passes(card);
    }

    /// Notes whether the queue pair or its client has limits.
    pub(crate) fn note_limits(&mut self, card: &Card) {
        let limited = self.cold.limits.is_some() || card.clients.is_limited(self.client);
        self.mode.set(Mode::LIMITED, limited);
    }

    /// May the next element run? If it must wait, the queue pair's timer will wake the queue.
    #[inline(always)]
    pub(crate) fn may_run(&mut self, env: &mut Env<'_>) -> Result<(), OverLimit> {
        if self.mode.contains(Mode::LIMITED) { self.limits_let_run(env) } else { Ok(()) }
    }

    #[inline(never)]
    fn limits_let_run(&mut self, env: &mut Env<'_>) -> Result<(), OverLimit> {
        let card = &mut *env.card;
        if let Some(limits) = &mut self.cold.limits {
            let chains = &mut card.chains;
            let budget = limits.set.budget.and_then(|budget| chains.budgets.get(budget));
            if budget.is_some_and(|budget| budget.left == 0) {
                return Err(OverLimit::TurnBudget);
            }
            let opens_at = limits.buckets.opens_at();
            if opens_at > env.now {
                chains.timers.arm(&mut limits.timer, self.qpn, opens_at);
                return Err(OverLimit::Rate);
            }
        }
        let waits = &mut self.cold.waits_for_client;
        match card.clients.may_run(env.now, self.client, self.qpn, waits) {
            true => Ok(()),
            false => Err(OverLimit::Rate),
        }
    }

    /// Notes that an element runs.
    #[inline(always)]
    pub(crate) fn note_run(&mut self, env: &mut Env<'_>, element: &Element) {
        if self.mode.contains(Mode::LIMITED) {
            self.spend_limits(env, element.len.into());
        }
    }

    #[inline(never)]
    fn spend_limits(&mut self, env: &mut Env<'_>, bytes: u64) {
        if let Some(limits) = &mut self.cold.limits {
            limits.buckets.take(env.now, bytes);
            let budget = limits.set.budget.and_then(|at| env.card.chains.budgets.get_mut(at));
            if let Some(budget) = budget {
                budget.left = budget.left.saturating_sub(1);
            }
        }
        env.card.clients.spend(env.now, self.client, bytes);
    }

    /// The rates of the client let the queue go on.
    pub(crate) fn go_on(&mut self, card: &mut Card) {
        self.cold.waits_for_client = false;
        self.schedule(card);
    }

    /// Fills the budget, as something has come from outside.
    pub(crate) fn refill(&self, card: &mut Card) {
        if self.mode.contains(Mode::LIMITED)
            && let Some(limits) = &self.cold.limits
            && let Some(budget) = limits.set.budget.and_then(|at| card.chains.budgets.get_mut(at))
        {
            budget.left = budget.full;
        }
    }

    /// Fails the next element, as the chain has used up its budget.
    #[cold]
    pub(super) fn stop_chain(&self, card: &mut Card) -> Failure {
        card.counters.chain_budget += 1;
        card.events.push_back(Event::ChainStopped(self.qpn));
        Failure::new(Status::LocalQpOperation, Cause::ChainBudget)
    }

    /// Notes that a WAIT holds the queue. Returns whether it has done so for too long.
    pub(super) fn waits_too_long(&mut self, env: &mut Env<'_>) -> bool {
        let Some(limits) = &mut self.cold.limits else { return false };
        let Some(patience) = limits.set.max_wait else { return false };
        let index = self.sq.fetched;
        let since = limits.waits.filter(|(at, _)| *at == index).map_or(env.now, |(_, at)| at);
        limits.waits = Some((index, since));
        if env.now >= since + patience {
            return true;
        }
        env.card.chains.timers.arm(&mut limits.timer, self.qpn, since + patience);
        false
    }

    /// Notes that no WAIT holds the queue any more.
    pub(super) fn waits_no_more(&mut self) {
        if self.mode.contains(Mode::LIMITED)
            && let Some(limits) = &mut self.cold.limits
        {
            limits.waits = None;
        }
    }
}
