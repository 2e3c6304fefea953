//! The time of a card: nanoseconds since it was made.

use remora_nic::Time;

/// The card's clock. (`Instant` keeps seconds and fractions apart; to subtract those takes longer
/// than to read the clock.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Nanoseconds from the start of the system to that of the card.
    start: u64,
}

impl Clock {
    /// The clock of a card that starts now.
    pub(crate) fn start() -> Clock {
        Clock::from(Clock::monotonic())
    }

    /// The clock of a card that started `start` nanoseconds after the system.
    pub(crate) fn from(start: u64) -> Clock {
        Clock { start }
    }

    /// The clock of a card whose time is `now`, in a system that may be younger than the card.
    pub(crate) fn showing(now: Time) -> Clock {
        Clock { start: Clock::monotonic().wrapping_sub(now.0) }
    }

    #[inline]
    pub(crate) fn now(self) -> Time {
        Time(Clock::monotonic().wrapping_sub(self.start))
    }

    /// Nanoseconds on the system's monotonic clock at which the card's time was zero.
    pub(crate) fn start_ns(self) -> u64 {
        self.start
    }

    #[inline]
    fn monotonic() -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes to `now` only. It cannot fail: every Linux has this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}
