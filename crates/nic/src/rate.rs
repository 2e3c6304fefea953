//! Rates, and the token buckets that hold a sender to them.

use core::time::Duration;

use crate::time::Time;

const NS_PER_S: u128 = 1_000_000_000;

/// The fastest that something may go: elements, or bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rate {
    /// Elements or bytes a second; not zero.
    pub per_second: u64,
    /// Elements or bytes that may go at once after a pause; not zero.
    pub burst: u64,
}

impl Rate {
    /// Is neither number zero?
    pub(crate) fn is_valid(&self) -> bool {
        self.per_second > 0 && self.burst > 0
    }
}

/// The rates that a queue pair or a client is held to. `None`: as fast as the card gives turns.
///
/// An element counts when it begins, with all bytes of its message. It may begin as soon as one
/// byte is left, so that a message longer than a burst is possible; what it takes too much is
/// waited for behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RateLimits {
    /// The rate of elements.
    pub elements: Option<Rate>,
    /// The rate of bytes.
    pub bytes: Option<Rate>,
}

impl RateLimits {
    /// Is no number zero?
    pub fn is_valid(&self) -> bool {
        [self.elements, self.bytes].iter().flatten().all(Rate::is_valid)
    }
}

/// A token bucket, kept as the time at which it is full again (the generic cell rate algorithm).
#[derive(Debug)]
struct Bucket {
    per_second: u64,
    /// How far ahead of the clock the bucket may run.
    tolerance: Duration,
    /// When the bucket is full again: whole nanoseconds, and a rest in parts of `per_second`.
    full: Time,
    rest: u64,
}

impl Bucket {
    fn new(rate: Rate, now: Time) -> Bucket {
        let per_second = rate.per_second.max(1);
        let ahead = u128::from(rate.burst.saturating_sub(1)) * NS_PER_S / u128::from(per_second);
        let tolerance = Duration::from_nanos(u64::try_from(ahead).unwrap_or(u64::MAX));
        Bucket { per_second, tolerance, full: now, rest: 0 }
    }

    /// From when on there is a token.
    fn opens_at(&self) -> Time {
        let full = self.full.0.saturating_add(u64::from(self.rest > 0));
        Time(full.saturating_sub(self.tolerance.as_nanos() as u64))
    }

    /// Takes tokens, if need be more than there are.
    fn take(&mut self, now: Time, tokens: u64) {
        if self.full < now {
            (self.full, self.rest) = (now, 0);
        }
        let per_second = u128::from(self.per_second);
        let parts = u128::from(self.rest) + u128::from(tokens) * NS_PER_S;
        let ns = u64::try_from(parts / per_second).unwrap_or(u64::MAX);
        self.full = Time(self.full.0.saturating_add(ns));
        self.rest = (parts % per_second) as u64;
    }
}

/// The buckets of [`RateLimits`].
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    elements: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Buckets {
    pub(crate) fn new(limits: RateLimits, now: Time) -> Buckets {
        let bucket = |rate: Option<Rate>| rate.map(|rate| Bucket::new(rate, now));
        Buckets { elements: bucket(limits.elements), bytes: bucket(limits.bytes) }
    }

    /// From when on the next element may begin.
    pub(crate) fn opens_at(&self) -> Time {
        let each = [&self.elements, &self.bytes].into_iter().flatten().map(Bucket::opens_at);
        each.max().unwrap_or(Time::ZERO)
    }

    /// Notes that an element with this many bytes begins.
    pub(crate) fn take(&mut self, now: Time, bytes: u64) {
        if let Some(bucket) = &mut self.elements {
            bucket.take(now, 1);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(now, bytes);
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
                bucket.take(now, 1);
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
            bucket.take(now, 1);
        }
        assert!(bucket.opens_at() > now);
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_is_exact() {
        // 400 Gbit/s, less a byte: no whole number of picoseconds a byte.
        let rate = Rate { per_second: 49_999_999_999, burst: 1 };
        let mut bucket = Bucket::new(rate, Time(0));
        for _ in 0..1_000_000 {
            bucket.take(Time(0), 49_999_999_999 / 7);
        }
        let exact = 1_000_000 * u128::from(49_999_999_999u64 / 7) * NS_PER_S / 49_999_999_999;
        assert_eq!(u128::from(bucket.full.0), exact);
    }

    #[test]
    fn the_slower_of_two_rates_holds() {
        let limits = RateLimits {
            elements: Some(Rate { per_second: 1_000_000, burst: 1 }),
            bytes: Some(Rate { per_second: 1_000_000_000, burst: 100 }),
        };
        let mut buckets = Buckets::new(limits, Time(0));
        buckets.take(Time(0), 8);
        assert_eq!(buckets.opens_at(), Time(1000), "by elements");
        buckets.take(Time(1000), 5100);
        assert_eq!(buckets.opens_at(), Time(1000 + 5100 - 99), "by bytes");
    }

    #[test]
    fn absurd_rates_and_lengths_do_no_harm() {
        for (per_second, burst) in [(1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, 1)] {
            let mut bucket = Bucket::new(Rate { per_second, burst }, Time(5));
            for _ in 0..3 {
                bucket.take(Time(5), u64::MAX);
                assert!(bucket.opens_at() <= Time::NEVER);
            }
        }
    }
}
