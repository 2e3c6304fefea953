//! Paths: which packet takes which, how long each takes, and how far each has delivered.
//!
//! The path of a packet is a function of its PSN, so that nothing is remembered for a packet. A
//! run of packets that leave by one system call has one path.

use core::time::Duration;

use crate::psn::Psn;
use crate::time::Time;

/// Bytes that take one path before the next is chosen: a turn of the scheduler.
const RUN_BYTES: u32 = 16 << 10;

/// The paths of a queue pair, with what its requester knows of them.
#[derive(Debug)]
pub(crate) struct Paths {
    /// As many as a power of two.
    paths: Box<[Measured]>,
    /// The packets of a run.
    run: u32,
}

/// What is known of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// The smoothed round-trip time and its mean deviation (RFC 6298 §2), the shortest one, and the
    /// latest one; zero before the first.
    smoothed: Duration,
    deviation: Duration,
    least: Duration,
    pub(super) latest: Duration,
    /// When the packet was sent that was sent last of all that have been delivered on this path,
    /// and its PSN. What was sent before it on the same path and has not been delivered is lost, if
    /// the path keeps order.
    pub(super) newest: Option<(Time, Psn)>,
}

impl Paths {
    /// So many paths (cut to a power of two, 64 at most) for packets of `mtu` bytes.
    pub(super) fn new(paths: u8, mtu: u16) -> Paths {
        let count = 1 << paths.clamp(1, 64).ilog2();
        let run = (RUN_BYTES / u32::from(mtu)).max(1);
        Paths { paths: vec![Measured::default(); count].into(), run }
    }

    /// The path of a packet that has been lost `tries` times: another each time.
    pub(super) fn of(&self, psn: Psn, tries: u8) -> u8 {
        let count = self.paths.len() as u32;
        if count == 1 {
            return 0;
        }
        let (run, tries) = (psn.value() / self.run, u32::from(tries));
        // In each row of as many runs as there are paths, each path has one, in an order that
        // differs from row to row.
        let row = (run / count).wrapping_mul(0x9E37_79B1) >> 26;
        (((run ^ row).wrapping_add(tries)) % count) as u8
    }

    pub(super) fn get(&self, path: u8) -> Measured {
        self.paths.get(usize::from(path)).copied().unwrap_or_default()
    }

    /// Notes that a packet sent at `sent` on `path` has been delivered.
    pub(super) fn delivered(&mut self, path: u8, sent: Time, psn: Psn) {
        let Some(path) = self.paths.get_mut(usize::from(path)) else { return };
        let later = |(at, before): (Time, Psn)| sent > at || sent == at && psn.is_after(before);
        if path.newest.is_none_or(later) {
            path.newest = Some((sent, psn));
        }
    }

    /// Notes a round trip on `path`.
    pub(super) fn measured(&mut self, path: u8, took: Duration) {
        let Some(path) = self.paths.get_mut(usize::from(path)) else { return };
        path.latest = took;
        if path.smoothed.is_zero() {
            (path.smoothed, path.deviation, path.least) = (took, took / 2, took);
            return;
        }
        let off = took.abs_diff(path.smoothed);
        path.deviation = (path.deviation * 3 + off) / 4;
        path.smoothed = (path.smoothed * 7 + took) / 8;
        path.least = path.least.min(took);
    }

    /// The greatest smoothed round-trip time, and the greatest deviation; `None` before the first
    /// measurement.
    pub(super) fn slowest(&self) -> Option<(Duration, Duration)> {
        let smoothed = self.paths.iter().map(|path| path.smoothed).max()?;
        let deviation = self.paths.iter().map(|path| path.deviation).max()?;
        (!smoothed.is_zero()).then_some((smoothed, deviation))
    }

    /// The shortest round trip on a path.
    pub(super) fn least(&self, path: u8) -> Duration {
        self.get(path).least
    }

    /// When the packet was sent that was sent last of all that have been delivered.
    pub(super) fn newest(&self) -> Option<Time> {
        self.paths.iter().filter_map(|path| path.newest).map(|(at, _)| at).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_turn_and_another_try_takes_another() {
        for count in [1u8, 2, 8, 64] {
            let paths = Paths::new(count, 4096);
            let runs: Vec<u8> =
                (0..1024).map(|run| paths.of(Psn::new(run * paths.run), 0)).collect();
            for row in runs.chunks(count.into()) {
                let mut row = row.to_vec();
                row.sort_unstable();
                assert_eq!(row, (0..count).collect::<Vec<u8>>());
            }
            let psn = Psn::new(77);
            assert_eq!(paths.of(psn, 0), paths.of(psn.plus(1), 0), "one run, one path");
            assert!(count == 1 || paths.of(psn, 0) != paths.of(psn, 1));
        }
        assert_eq!(Paths::new(0, 256).paths.len(), 1);
        assert_eq!(Paths::new(255, 256).paths.len(), 64);
    }

    #[test]
    fn round_trips_are_smoothed() {
        let mut paths = Paths::new(1, 1024);
        assert_eq!(paths.slowest(), None);
        let us = Duration::from_micros;
        paths.measured(0, us(8));
        assert_eq!(paths.slowest(), Some((us(8), us(4))));
        paths.measured(0, us(16));
        assert_eq!(paths.slowest(), Some((us(9), us(5))));
        assert_eq!((paths.least(0), paths.get(0).latest), (us(8), us(16)));
    }
}
