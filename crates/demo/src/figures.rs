//! The measurements of the demo.

use std::time::Duration;

use remora_command::percentile::percentile;
use serde::Serialize;

/// How often all bytes are moved.
pub(super) const ROUNDS: usize = 5;
/// Operations of 8 bytes: before the measurement, measured, and the longest time for all of them.
pub(super) const WARM_UP: usize = 500;
pub(super) const SAMPLES: usize = 20_000;
pub(super) const SAMPLING_TIME: Duration = Duration::from_secs(3);

/// The time that one operation takes, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
    pub(super) samples: usize,
}

impl Latency {
    pub(super) fn of(mut samples: Vec<Duration>) -> Latency {
        samples.sort_unstable();
        let us = |d: Duration| d.as_nanos() as f64 / 1000.0;
        let at = |per_mille| percentile(&samples, per_mille).map_or(f64::NAN, us);
        Latency { median_us: at(500), p99_us: at(990), samples: samples.len() }
    }
}

/// The rate at which many bytes move: the median of a few rounds, in GB/s (10⁹ bytes).
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Bandwidth {
    pub(super) median_gb_s: f64,
    pub(super) rounds: usize,
}

impl Bandwidth {
    pub(super) fn of(bytes: u64, mut rounds: Vec<Duration>) -> Bandwidth {
        rounds.sort_unstable();
        let median = percentile(&rounds, 500).map_or(f64::NAN, |d| d.as_secs_f64());
        Bandwidth { median_gb_s: bytes as f64 / median / 1e9, rounds: rounds.len() }
    }
}

/// The measurements of one way to move bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) read_8b: Latency,
    pub(super) write_8b: Latency,
    pub(super) read: Bandwidth,
    pub(super) write: Bandwidth,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let samples = (1..=101).rev().map(Duration::from_micros).collect();
        let latency = Latency::of(samples);
        assert_eq!((latency.median_us, latency.p99_us, latency.samples), (51.0, 100.0, 101));
        let rounds = [4, 1, 2].map(Duration::from_secs).to_vec();
        assert_eq!(Bandwidth::of(4_000_000_000, rounds).median_gb_s, 2.0);
        assert!(Latency::of(Vec::new()).median_us.is_nan());
    }
}
