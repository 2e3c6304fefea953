//! The card's clock: an argument, never a call.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A moment, in nanoseconds since a start that the driver chooses.
///
/// The card only compares moments and adds durations to them, so any monotonic clock will do.
/// Addition saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Time(pub u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Time = Time(0);
    /// Later than every moment: an unarmed timer.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.ns_since(earlier))
    }

    /// As [`Time::since`], in nanoseconds. (Arithmetic of durations takes divisions, which every
    /// packet would pay.)
    #[inline]
    pub(crate) fn ns_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment so many nanoseconds later.
    #[inline]
    pub(crate) fn plus_ns(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}
