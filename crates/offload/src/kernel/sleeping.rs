//! When invocations that wait are to be looked at.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use remora_nic::Time;

/// An invocation waits for at most so many times at once.
const EACH: usize = 4;
/// So many times may be left of invocations that have ended, and as many as there are others.
const LEFT: usize = 64;

/// Times, and the numbers of the invocations that wait for them. The times of an invocation stay
/// when it ends.
#[derive(Debug, Default)]
pub(super) struct Sleeping(BinaryHeap<Reverse<(Time, u32)>>);

impl Sleeping {
    /// Adds a time of an invocation. `running` is how many there are.
    pub(super) fn add(&mut self, at: Time, id: u32, running: usize, is_live: impl Fn(u32) -> bool) {
        if self.0.len() >= 2 * EACH * running + LEFT {
            self.0.retain(|Reverse((_, id))| is_live(*id));
        }
        self.0.push(Reverse((at, id)));
    }

    /// The first time.
    #[inline]
    pub(super) fn first(&self) -> Time {
        self.0.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }

    /// Takes the first time out if it has come.
    pub(super) fn take(&mut self, now: Time) -> Option<(Time, u32)> {
        let has_come = self.first() <= now && !self.0.is_empty();
        has_come.then(|| self.0.pop().map(|Reverse(first)| first))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_invocations_that_have_ended_do_not_pile_up() {
        let (live, mut sleeping) = (100_000, Sleeping::default());
        for id in [7, live] {
            sleeping.add(Time(u64::from(id)), live, 1, |id| id == live);
        }
        for id in 0..live {
            sleeping.add(Time(10), id, 1, |id| id == live);
            assert!(sleeping.0.len() <= LEFT + 2 * EACH);
        }
        let times = core::iter::from_fn(|| sleeping.take(Time(200_000)));
        let times: Vec<_> = times.filter(|(_, id)| *id == live).collect();
        let expected = [7, live].map(|at| (Time(u64::from(at)), live));
        assert_eq!(times, expected);
        assert_eq!(sleeping.first(), Time::NEVER);
    }
}
