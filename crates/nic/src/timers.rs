//! Timers of queue pairs, and the transport's two codings of durations: the local ACK timeout and
//! the RNR timer.
//!
//! What a queue pair does when its timer has run out is in `qp/completer.rs`.

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

    pub(crate) fn disarm(&mut self) {
        self.deadline = Time::NEVER;
    }
}

/// The heap of all timers.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Timers {
    /// Sets `timer` of queue pair `qpn` to run out at `deadline`.
    pub(crate) fn arm(&mut self, timer: &mut Timer, qpn: u32, deadline: Time) {
        timer.deadline = deadline;
        if deadline < timer.queued {
            // The old entry stays in the heap and is void: at most one for each wait that was cut
            // short.
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

    /// Has `timer` run out, given that its entry for `at` has come up?
    pub(crate) fn expire(&mut self, timer: &mut Timer, qpn: u32, at: Time, now: Time) -> bool {
        if timer.queued != at {
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

/// The local ACK timeout in nanoseconds: 4.096 µs · 2^`code`; code 0 means that there is none.
#[inline]
pub(crate) fn ack_timeout_ns(code: u8) -> Option<u64> {
    (code != 0).then(|| 4096 << code.min(31))
}

/// The wait for an acknowledge after `vain` retries in a row without an answer, if one without such
/// retries is `wait_ns`: in nanoseconds. A requester may
/// wait for one to four times the local ACK timeout (InfiniBand volume 1, chapter 9, Transport
/// Layer). After two retries, which a loss may take, more and more of that is used, so that a busy
/// peer is not given up early. Waits of a second are long enough as they are.
#[inline]
pub(crate) fn wait_again_ns(wait_ns: u64, vain: u8) -> u64 {
    const LONG_NS: u64 = 1_000_000_000;
    wait_ns.saturating_mul(1 << vain.saturating_sub(2).min(2)).min(wait_ns.max(LONG_NS))
}

/// As [`wait_again_ns`], for queue pair `qpn`: between once and one and a half times that, or half
/// and once where it is the longest wait. Queue pairs that have lost their packets at one moment,
/// in a queue that all have filled, would fill it again and again if they waited equally long.
#[inline]
pub(crate) fn wait_apart_ns(wait_ns: u64, vain: u8, qpn: u32) -> u64 {
    let whole = wait_again_ns(wait_ns, vain);
    if vain == 0 {
        return whole;
    }
    // A number of 8 bits that differs from queue pair to queue pair, and from time to time.
    let drawn = (qpn ^ u32::from(vain) << 24).wrapping_mul(0x9E37_79B1) >> 24;
    let apart = (whole >> 9).saturating_mul(drawn.into());
    let later = whole.saturating_add(apart);
    if later <= wait_ns.saturating_mul(4) { later } else { whole - apart }
}

/// The RNR retry count that means "without limit" (InfiniBand volume 1, chapter 9, Transport
/// Layer).
pub(crate) const RNR_FOR_EVER: u8 = 7;

/// The wait that an RNR NAK's 5-bit timer code asks for (InfiniBand volume 1, chapter 9, Transport
/// Layer; soft-RoCE's `rnrnak_usec`).
pub fn rnr_delay(code: u8) -> Duration {
    const HUNDREDTHS_OF_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(HUNDREDTHS_OF_MS[usize::from(code & 31)]) * 10)
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

    #[test]
    fn durations_are_those_of_the_specification() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        let ms = |ms: u64| ms * 1_000_000;
        let waits = |wait| [2, 3, 4, 7].map(|vain| wait_again_ns(ms(wait), vain));
        assert_eq!(waits(67), [67, 134, 268, 268].map(ms));
        assert_eq!(waits(400), [400, 800, 1000, 1000].map(ms));
        assert_eq!(waits(4300), [4300; 4].map(ms));
        for (vain, least, most) in [(0, 64, 64), (1, 64, 96), (3, 128, 192), (4, 128, 256)] {
            let waits: Vec<u64> = (0..100).map(|qpn| wait_apart_ns(ms(64), vain, qpn)).collect();
            assert!(waits.iter().all(|wait| (ms(least)..=ms(most)).contains(wait)), "{waits:?}");
            let differ: std::collections::BTreeSet<_> = waits.iter().collect();
            assert!(differ.len() > 50 || vain == 0, "{waits:?}");
        }
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
    }
}
