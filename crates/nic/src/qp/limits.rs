//! The limits of a send queue: its rate, the longest duration of its WAITs, the budget of its chain
//! (RedN §3.5, isolation).

use core::time::Duration;

use super::Qp;
use super::refusal::Failure;
use crate::card::Card;
use crate::chain::{ChainLimits, Mode, Rate};
use crate::env::Env;
use crate::event::Event;
use crate::incident::Cause;
use crate::queue::Status;
use crate::time::Time;
use crate::timers::Timer;

const PS_PER_S: u64 = 1_000_000_000_000;
const PS_PER_NS: u64 = 1000;

/// A queue pair's limits, and how much of them is used.
#[derive(Debug)]
pub(crate) struct SendLimits {
    pub(crate) set: ChainLimits,
    bucket: Option<Bucket>,
    /// The index of the WAIT that holds the queue, and since when.
    waits: Option<(u32, Time)>,
    /// Runs out when the rate lets the queue go on, or when a WAIT has taken too long.
    pub(crate) timer: Timer,
}

/// A token bucket, kept as the time at which it is full again (the generic cell rate algorithm).
#[derive(Debug)]
struct Bucket {
    /// Picoseconds from element to element.
    interval: u64,
    /// How far ahead of the clock elements may run.
    tolerance: Duration,
    /// When the next element is due if none runs early; picoseconds are beside it.
    next: Time,
    beyond: u64,
}

impl Bucket {
    fn new(rate: Rate, now: Time) -> Bucket {
        let interval = PS_PER_S / u64::from(rate.per_second.max(1));
        // Whole nanoseconds and the rest are multiplied apart, so that neither product overflows.
        let (ns, ps) = (interval / PS_PER_NS, interval % PS_PER_NS);
        let ahead = u64::from(rate.burst.saturating_sub(1));
        let tolerance = Duration::from_nanos(ns * ahead + ps * ahead / PS_PER_NS);
        Bucket { interval, tolerance, next: now, beyond: 0 }
    }

    /// When the next element may run.
    fn opens_at(&self) -> Time {
        Time(self.next.0.saturating_sub(self.tolerance.as_nanos() as u64))
    }

    fn take(&mut self, now: Time) {
        if self.next < now {
            (self.next, self.beyond) = (now, 0);
        }
        let ps = self.beyond + self.interval;
        (self.next, self.beyond) =
            (self.next + Duration::from_nanos(ps / PS_PER_NS), ps % PS_PER_NS);
    }
}

/// The limit that the next element would exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OverLimit {
    /// The rate: the element may run later.
    Rate,
    /// The budget: the element may not run at all.
    Budget,
}

impl SendLimits {
    pub(crate) fn new(set: ChainLimits, now: Time) -> SendLimits {
        let bucket = set.rate.map(|rate| Bucket::new(rate, now));
        SendLimits { set, bucket, waits: None, timer: Timer::IDLE }
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
        self.mode.set(Mode::LIMITED, limits.is_some());
        self.cold.limits = limits.map(|limits| Box::new(SendLimits::new(limits, now)));
    }

    /// May the next element run? If it must wait, the queue pair's timer will wake the queue.
    #[inline(always)]
    pub(crate) fn may_run(&mut self, env: &mut Env<'_>) -> Result<(), OverLimit> {
        if self.mode.contains(Mode::LIMITED) { self.limits_let_run(env) } else { Ok(()) }
    }

    #[inline(never)]
    fn limits_let_run(&mut self, env: &mut Env<'_>) -> Result<(), OverLimit> {
        let Some(limits) = &mut self.cold.limits else { return Ok(()) };
        let chains = &mut env.card.chains;
        let budget = limits.set.budget.and_then(|budget| chains.budgets.get(budget));
        if budget.is_some_and(|budget| budget.left == 0) {
            return Err(OverLimit::Budget);
        }
        let opens_at = limits.bucket.as_ref().map_or(Time::ZERO, Bucket::opens_at);
        if opens_at > env.now {
            chains.timers.arm(&mut limits.timer, self.qpn, opens_at);
            return Err(OverLimit::Rate);
        }
        Ok(())
    }

    /// Notes that an element runs.
    #[inline(always)]
    pub(crate) fn note_run(&mut self, env: &mut Env<'_>) {
        if self.mode.contains(Mode::LIMITED) {
            self.spend_limits(env);
        }
    }

    #[inline(never)]
    fn spend_limits(&mut self, env: &mut Env<'_>) {
        if let Some(limits) = &mut self.cold.limits {
            if let Some(bucket) = &mut limits.bucket {
                bucket.take(env.now);
            }
            let budget = limits.set.budget.and_then(|at| env.card.chains.budgets.get_mut(at));
            if let Some(budget) = budget {
                budget.left = budget.left.saturating_sub(1);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_its_burst_through_and_then_its_rate() {
        let rate = Rate { per_second: 3_000_000, burst: 4 };
        let mut bucket = Bucket::new(rate, Time(1000));
        let mut now = Time(1000);
        let mut ran = Vec::new();
        while ran.len() < 10 {
            if bucket.opens_at() <= now {
                bucket.take(now);
                ran.push(now.0 - 1000);
            } else {
                now = bucket.opens_at();
            }
        }
        assert_eq!(ran[..4], [0; 4]);
        assert_eq!(ran[4..], [334, 667, 1000, 1334, 1667, 2000]);
        // A pause fills the bucket, and not more than that.
        now = Time(1_000_000);
        for _ in 0..4 {
            assert!(bucket.opens_at() <= now);
            bucket.take(now);
        }
        assert!(bucket.opens_at() > now);
    }
}
