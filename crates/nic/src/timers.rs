//! Timers of queue pairs.
//!
//! How long a queue pair waits is in `qp/retry.rs`, and what it does when its timer has run out in
//! `qp/completer.rs`.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use crate::time::Time;

/// A queue pair's timer. Its deadline moves often, at every acknowledge, and it runs out seldom.
///
/// So the heap has one entry for a queue pair, which may be earlier than the deadline. When the
/// entry comes up early, it is put back; moving the deadline further away costs nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    deadline: Time,
    /// The time of this timer's valid heap entry.
    queued: Time,
}

impl Timer {
    pub(crate) const IDLE: Timer = Timer { deadline: Time::NEVER, queued: Time::NEVER };

    pub(crate) fn is_armed(&self) -> bool {
        self.deadline != Time::NEVER
    }

    /// Is this the time of the timer's valid entry?
    pub(crate) fn is_queued(&self, at: Time) -> bool {
        self.queued == at
    }

    pub(crate) fn disarm(&mut self) {
        self.deadline = Time::NEVER;
    }
}

/// The heap of all timers.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    /// How many entries are void because their timers were set to run out earlier, at least.
    void: usize,
}

/// So many void entries are left in the heap.
const VOID_MAX: usize = 1024;

impl Timers {
    /// Sets `timer` of queue pair `qpn` to run out at `deadline`.
    pub(crate) fn arm(&mut self, timer: &mut Timer, qpn: u32, deadline: Time) {
        timer.deadline = deadline;
        if deadline < timer.queued {
            // The old entry stays in the heap and is void, until it comes up or is swept out.
            self.void += usize::from(timer.queued != Time::NEVER);
            timer.queued = deadline;
            self.heap.push(Reverse((deadline, qpn)));
        }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.heap.capacity() * size_of::<Reverse<(Time, u32)>>()
    }

    /// When the next timer may run out: [`Time::NEVER`] if none is armed. The time may be early.
    pub(crate) fn next(&self) -> Time {
        self.heap.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }

    /// Takes an entry that is due. The caller must pass it to [`Timers::expire`].
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, u32)> {
        if self.next() > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Removes the void entries, if they are many and most of all. `is_valid` says whether a queue
    /// pair has a timer whose valid entry is for this time.
    #[inline]
    pub(crate) fn sweep(&mut self, is_valid: impl Fn(u32, Time) -> bool) {
        if self.void > VOID_MAX && self.void > self.heap.len() / 2 {
            self.heap.retain(|Reverse((at, qpn))| is_valid(*qpn, *at));
            self.void = 0;
        }
    }

    /// Has `timer` run out, given that its entry for `at` has come up?
    pub(crate) fn expire(&mut self, timer: &mut Timer, qpn: u32, at: Time, now: Time) -> bool {
        if !timer.is_queued(at) {
            self.void = self.void.saturating_sub(1);
            return false;
        }
        timer.queued = Time::NEVER;
        if timer.deadline <= now {
            timer.deadline = Time::NEVER;
            return true;
        }
        if timer.is_armed() {
            let deadline = timer.deadline;
            self.arm(timer, qpn, deadline);
        }
        false
    }
}

/// A duration in nanoseconds, at most 2^64 - 1.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(duration.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_deadline_runs_out_once_and_not_early() {
        let mut timers = Timers::default();
        let mut timer = Timer::IDLE;
        timers.arm(&mut timer, 7, Time(100));
        timers.arm(&mut timer, 7, Time(300));
        assert_eq!(timers.pop(Time(99)), None);
        let (at, qpn) = timers.pop(Time(150)).unwrap();
        assert!(!timers.expire(&mut timer, qpn, at, Time(150)));
        assert_eq!(timers.next(), Time(300));
        let (at, qpn) = timers.pop(Time(300)).unwrap();
        assert!(timers.expire(&mut timer, qpn, at, Time(300)));
        assert_eq!(timers.next(), Time::NEVER);
    }

    /// A short wait, as for a receive element, cuts a long one short again and again.
    #[test]
    fn void_entries_are_swept_out() {
        let mut timers = Timers::default();
        let mut timer = Timer::IDLE;
        for now in (0..100_000).map(|round| round * 10) {
            timers.arm(&mut timer, 7, Time(now + 1_000_000));
            timers.arm(&mut timer, 7, Time(now + 10));
            while let Some((at, qpn)) = timers.pop(Time(now + 10)) {
                timers.expire(&mut timer, qpn, at, Time(now + 10));
            }
            timers.sweep(|qpn, at| qpn == 7 && timer.is_queued(at));
            assert!(timers.len() <= VOID_MAX + 2);
        }
        timers.arm(&mut timer, 7, Time(2_000_000));
        timers.arm(&mut timer, 7, Time(1_500_000));
        timers.void = timers.len() + VOID_MAX;
        timers.sweep(|qpn, at| qpn == 7 && timer.is_queued(at));
        assert_eq!((timers.len(), timers.next()), (1, Time(1_500_000)));
    }

    #[test]
    fn an_earlier_deadline_takes_over() {
        let mut timers = Timers::default();
        let mut timer = Timer::IDLE;
        timers.arm(&mut timer, 7, Time(1000));
        timers.arm(&mut timer, 7, Time(10));
        let (at, qpn) = timers.pop(Time(10)).unwrap();
        assert!(timers.expire(&mut timer, qpn, at, Time(10)));
        let (at, qpn) = timers.pop(Time(1000)).unwrap();
        assert!(!timers.expire(&mut timer, qpn, at, Time(1000)), "the old entry is void");
    }
}
