//! How long a kernel's memory accesses take in a simulation.

use core::time::Duration;

/// The time that memory accesses take in a simulated card (PCIe, StRoM §6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// The time of a round trip, for any length.
    pub round_trip: Duration,
    /// Further time for each byte, in picoseconds.
    pub byte_ps: u64,
}

impl Timing {
    /// The time of an access to `len` bytes.
    pub(super) fn of(&self, len: usize) -> Duration {
        let bytes = (len as u64).saturating_mul(self.byte_ps) / 1000;
        self.round_trip + Duration::from_nanos(bytes)
    }
}
