//! The order of what happens to stores, as numbers that the world's clock is read from.

use remora_nic::Time;

/// log2 of the events that may happen at one moment.
const AT_ONCE: u32 = 10;

/// The number of the first event at a moment.
pub(super) fn number_of(at: Time) -> u64 {
    at.0 << AT_ONCE
}

/// The same of a moment in milliseconds of the world's clock.
pub(super) fn number_of_ms(ms: u64) -> u64 {
    number_of(Time(ms * 1_000_000))
}

/// The number of an event now, where `last` was the last one's.
pub(super) fn next(last: u64, now: Time) -> u64 {
    number_of(now).max(last + 1)
}

/// The milliseconds of the clock at a number that [`number_of_ms`] has made.
pub(super) fn ms_of(number: u64) -> u64 {
    (number >> AT_ONCE) / 1_000_000
}
