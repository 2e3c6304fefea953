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

/// Nanoseconds of a clock that goes on while the machine sleeps: leases end by it.
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
