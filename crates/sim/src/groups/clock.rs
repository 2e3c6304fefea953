//! Clocks that drift.

use crate::dice::Dice;

/// A clock that begins anywhere and gains or loses a part of the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    begin_ns: u64,
    gain_ppm: i64,
}

impl Clock {
    /// A clock that gains or loses at most `drift_ppm`.
    pub(crate) fn new(dice: &mut Dice, drift_ppm: u32) -> Clock {
        let drift = i64::from(drift_ppm);
        let gain_ppm = match dice.below(3) {
            0 => drift,
            1 => -drift,
            _ => dice.below(2 * u64::from(drift_ppm) + 1) as i64 - drift,
        };
        Clock { begin_ns: dice.below(1 << 40), gain_ppm }
    }

    /// What it shows at `now_ns` of real time.
    pub(crate) fn at(&self, now_ns: u64) -> u64 {
        self.begin_ns + (now_ns as i64 * (1_000_000 + self.gain_ppm) / 1_000_000) as u64
    }
}
