//! What time it is.

use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of Unix time, now.
pub fn now_ms() -> u64 {
    ms_of(SystemTime::now())
}

/// A moment in milliseconds of Unix time.
pub(super) fn ms_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// How long a look at several clocks may take. It is the error of [`boot_ns`].
const LOOK_NS: u64 = 10_000;

/// Nanoseconds of a clock that goes on while the machine sleeps: leases end by it.
///
/// A time daemon that corrects the clock makes `CLOCK_BOOTTIME` run up to a tenth too fast or too
/// slow (`adjtimex`). So the time that the machine was awake is the raw clock's, which nobody
/// adjusts, and of the others only their difference counts: the time that it slept.
pub fn boot_ns() -> u64 {
    loop {
        let awake = ns_of(ClockId::Monotonic);
        let (raw, boot) = (ns_of(ClockId::MonotonicRaw), ns_of(ClockId::Boottime));
        // A thread that was stopped in between would take that time for sleep.
        if ns_of(ClockId::Monotonic) - awake < LOOK_NS {
            return raw + boot.saturating_sub(awake);
        }
    }
}

fn ns_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
