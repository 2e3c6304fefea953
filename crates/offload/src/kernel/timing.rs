//! How long a kernel's memory accesses take where time is simulated.

use core::time::Duration;

/// How long memory takes, in a simulated card (PCIe, StRoM §6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// A round trip.
    pub round_trip: Duration,
    /// Picoseconds a byte takes.
    pub byte_ps: u64,
}

impl Timing {
    /// An access to so many bytes.
    pub(super) fn of(&self, len: usize) -> Duration {
        let bytes = (len as u64).saturating_mul(self.byte_ps) / 1000;
        self.round_trip + Duration::from_nanos(bytes)
    }
}
