//! Time in picoseconds, and the rate of a line.
//!
//! A minimum frame at 400 Gb/s takes 1.68 ns, so nanoseconds would not do. Cards see nanoseconds:
//! the last that has begun.

use core::time::Duration;

use remora_nic::Time;

/// A moment since the start of the clock, or a span, in picoseconds.
pub type Ps = u64;

/// Picoseconds of a nanosecond.
pub const NS: Ps = 1_000;
/// Picoseconds of a microsecond.
pub const US: Ps = 1_000_000;
/// Picoseconds of a millisecond.
pub const MS: Ps = 1_000_000_000;
/// Later than every moment.
pub const NEVER: Ps = Ps::MAX;

/// The moment that a card calls `time`; saturates.
#[inline]
pub fn from_card(time: Time) -> Ps {
    time.0.saturating_mul(NS)
}

/// What a card calls the moment `at`.
#[inline]
pub fn to_card(at: Ps) -> Time {
    if at == NEVER { Time::NEVER } else { Time(at / NS) }
}

/// A span in picoseconds; saturates.
pub fn span(duration: Duration) -> Ps {
    Ps::try_from(duration.as_nanos()).unwrap_or(Ps::MAX).saturating_mul(NS)
}

/// The rate of a line, kept as femtoseconds a byte, to which it is rounded. All usual rates of
/// Ethernet are exact: 400 Gb/s are 20,000 fs a byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LineRate {
    fs_per_byte: u64,
}

/// Femtoseconds that eight bits take at one bit per second.
const BYTE_FS: u64 = 8_000_000_000_000_000;

impl LineRate {
    /// A line on which a packet takes no time.
    pub const UNLIMITED: LineRate = LineRate { fs_per_byte: 0 };
    /// The lowest rate, in bits per second.
    pub const LOWEST: u64 = 1_000_000;
    /// The highest rate, in bits per second.
    pub const HIGHEST: u64 = 100_000_000_000_000;

    /// A rate in bits per second, from [`LineRate::LOWEST`] to [`LineRate::HIGHEST`]; `None`
    /// otherwise.
    pub const fn bits_per_second(bits: u64) -> Option<LineRate> {
        if bits < LineRate::LOWEST || bits > LineRate::HIGHEST {
            return None;
        }
        Some(LineRate { fs_per_byte: (BYTE_FS + bits / 2) / bits })
    }

    /// A rate of so many times 10⁹ bits per second.
    ///
    /// # Panics
    /// If it is zero or above [`LineRate::HIGHEST`].
    pub const fn gigabits(number: u64) -> LineRate {
        match LineRate::bits_per_second(number.saturating_mul(1_000_000_000)) {
            Some(rate) => rate,
            None => panic!("a line's rate is between 1 Mb/s and 100 Tb/s"),
        }
    }

    /// The rate in bits per second; `None` without a limit.
    pub fn bits(self) -> Option<u64> {
        (self.fs_per_byte > 0).then(|| (BYTE_FS + self.fs_per_byte / 2) / self.fs_per_byte)
    }

    /// How long so many bytes take, rounded down to a picosecond.
    #[inline]
    pub fn time(self, bytes: u64) -> Ps {
        bytes * self.fs_per_byte / 1_000
    }

    /// How many bytes pass in a span, rounded up; zero without a limit.
    #[inline]
    pub fn bytes_in(self, span: Ps) -> u64 {
        if span == 0 || self.fs_per_byte == 0 {
            return 0;
        }
        // A line's backlog is bounded by a buffer, so the product is far from 64 bits.
        (span.saturating_mul(1_000)).div_ceil(self.fs_per_byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_rates_are_exact() {
        for (gigabits, ps) in [(1, 8_000), (10, 800), (25, 320), (100, 80), (400, 20), (800, 10)] {
            let rate = LineRate::gigabits(gigabits);
            assert_eq!(rate.time(1), ps);
            assert_eq!(rate.bytes_in(ps * 1090), 1090);
            assert_eq!(rate.bits(), Some(gigabits * 1_000_000_000));
        }
        assert_eq!(LineRate::gigabits(400).time(84), 1_680, "a minimum frame with its gap");
    }

    #[test]
    fn rates_out_of_bounds_are_refused() {
        for bits in [0, 1, LineRate::LOWEST - 1, LineRate::HIGHEST + 1, u64::MAX] {
            assert_eq!(LineRate::bits_per_second(bits), None);
        }
        assert_eq!(LineRate::UNLIMITED.time(1 << 40), 0);
        assert_eq!(LineRate::UNLIMITED.bits(), None);
    }

    #[test]
    fn cards_see_the_nanosecond_that_has_begun() {
        assert_eq!(to_card(1_999), Time(1));
        assert_eq!(from_card(Time(2)), 2_000);
        assert_eq!(to_card(from_card(Time::NEVER)), Time::NEVER);
    }
}
