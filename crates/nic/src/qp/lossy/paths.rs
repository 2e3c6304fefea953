//! Paths: which packet takes which, how long each takes, and how far each has delivered.
//!
//! The path of a packet is a function of its PSN, so that nothing is remembered for a packet. A
//! run of packets that leave by one system call has one path.
//!
//! A path that loses much more than the others is retired: packets from the next one on take the
//! others. After a rest it is tried again, and rests for twice as long if it still loses. At least
//! half of the paths stay, so losses that all paths have retire none for long.

use std::collections::VecDeque;

use crate::psn::Psn;
use crate::qp::shortest_round_trip::ShortestRoundTrip;
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
    /// Which paths take packets, oldest first: the last entry holds for packets to come, the others
    /// for packets under way. Empty if there is one path.
    eras: VecDeque<Era>,
    /// Packets acknowledged since losses were last halved.
    acknowledged: u32,
}

/// Which paths take packets, from one packet on.
#[derive(Clone, Copy, Debug)]
struct Era {
    from: Psn,
    /// A bit for each path.
    takes: u64,
}

/// The most changes of paths while packets from before them are under way.
const ERAS_MAX: usize = 8;
/// A path is retired if it has lost at least so many packets, and so many times as many as the
/// others on average, of which each counts one more than it has lost.
const LOST_LEAST: u32 = 3;
const LOST_TIMES: u32 = 4;
const LOST_MOST: u32 = 1 << 16;
/// Losses count half after so many acknowledged packets for each path.
const HALVED_AFTER: u32 = 256;
/// The first rest of a path, at least, and how often it is doubled at most.
const REST_NS: u64 = 1_000_000;
const REST_ROUND_TRIPS: u64 = 32;
const REST_DOUBLED: u8 = 10;

/// What is known of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// The smoothed round-trip time and its mean deviation (RFC 6298 §2), the shortest one of late,
    /// and the latest one; zero before the first. In nanoseconds, since each acknowledge counts
    /// with them.
    smoothed_ns: u64,
    deviation_ns: u64,
    shortest: ShortestRoundTrip,
    pub(super) latest_ns: u64,
    /// When the packet was sent that was sent last of all that have been delivered on this path,
    /// and its PSN if it is known. What was sent before it on the same path and has not been
    /// delivered is lost, if the path keeps order.
    pub(super) newest: Option<(Time, Option<Psn>)>,
    /// Packets found lost on it lately.
    lost: u32,
    /// How often it was retired in a row.
    rests: u8,
    /// When it is tried again, if it is retired.
    until: Option<Time>,
}

/// The greatest of all paths' round-trip times: smoothed, their deviation, and the shortest ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Slowest {
    pub(super) smoothed_ns: u64,
    pub(super) deviation_ns: u64,
    pub(super) least_ns: u64,
}

impl Paths {
    /// What is allocated for a path.
    pub(super) const BYTES_OF_ONE: usize = size_of::<Measured>();

    /// How many paths there are, and the bytes that are allocated for them and their eras.
    pub(super) fn allocated(&self) -> (usize, usize) {
        let eras = self.eras.capacity() * size_of::<Era>();
        (self.paths.len(), size_of_val(&*self.paths) + eras)
    }

    /// So many paths (cut to a power of two, 64 at most) for packets of `mtu` bytes.
    pub(super) fn new(paths: u8, mtu: u16) -> Paths {
        let count = 1 << paths.clamp(1, 64).ilog2();
        let run = (RUN_BYTES / u32::from(mtu)).max(1);
        let all = Era { from: Psn::new(0), takes: u64::MAX >> (64 - count) };
        let eras = if count > 1 { VecDeque::from([all]) } else { VecDeque::new() };
        Paths { paths: vec![Measured::default(); count].into(), run, eras, acknowledged: 0 }
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
        let path = (run ^ row).wrapping_add(tries) % count;
        let takes = self.takes(psn);
        if takes >> path & 1 == 1 {
            return path as u8;
        }
        // The runs of a retired path go round among the others.
        let nth = (run / count + path) % takes.count_ones();
        let rest = (0..nth).fold(takes, |bits, _| bits & (bits - 1));
        rest.trailing_zeros() as u8
    }

    /// The path on which to answer a packet of the peer's `path`: the peer may have more of them.
    pub(super) fn back(&self, path: u8) -> u8 {
        path % self.paths.len() as u8
    }

    /// The paths that `psn` may take, a bit for each.
    fn takes(&self, psn: Psn) -> u64 {
        let later = self.eras.iter().skip(1).rev();
        let of_later = later.filter(|era| !psn.is_before(era.from)).map(|era| era.takes).next();
        of_later.or(self.eras.front().map(|era| era.takes)).unwrap_or(1)
    }

    /// Notes that a packet on `path` was lost.
    pub(super) fn lost(&mut self, path: u8) {
        if let Some(path) = self.paths.get_mut(usize::from(path)) {
            path.lost = (path.lost + 1).min(LOST_MOST);
        }
    }

    /// Notes that `packets` more are acknowledged, and so all before `una`.
    pub(super) fn advance(&mut self, una: Psn, packets: u32) {
        if self.eras.is_empty() {
            return;
        }
        while self.eras.get(1).is_some_and(|era| !era.from.is_after(una)) {
            self.eras.pop_front();
        }
        self.acknowledged += packets;
        if self.acknowledged >= HALVED_AFTER * self.paths.len() as u32 {
            self.acknowledged = 0;
            for path in &mut self.paths {
                path.lost /= 2;
                if path.lost == 0 && path.until.is_none() {
                    path.rests = 0;
                }
            }
        }
    }

    /// Retires a path that has lost much more than the others, if there is one. `next` is the next
    /// packet to send. Returns whether a path was retired.
    pub(super) fn retire(&mut self, next: Psn, now: Time) -> bool {
        let Some(&Era { takes, .. }) = self.eras.back() else { return false };
        let (count, taking) = (self.paths.len() as u32, takes.count_ones());
        if self.eras.len() >= ERAS_MAX || taking <= count.div_ceil(2) {
            return false;
        }
        let active = |path: &usize| takes >> path & 1 == 1;
        let all: u32 = (0..self.paths.len()).filter(active).map(|at| self.paths[at].lost).sum();
        let worst = (0..self.paths.len()).filter(active).max_by_key(|at| self.paths[*at].lost);
        let Some(worst) = worst else { return false };
        let (lost, others) = (self.paths[worst].lost, taking - 1);
        if lost < LOST_LEAST || lost * others < LOST_TIMES * (all - lost + others) {
            return false;
        }
        let round_trip_ns = self.slowest().map_or(0, |slowest| slowest.smoothed_ns);
        let path = &mut self.paths[worst];
        let rest_ns = REST_NS.max(round_trip_ns * REST_ROUND_TRIPS);
        let rest_ns = rest_ns << path.rests.min(REST_DOUBLED);
        path.rests = path.rests.saturating_add(1);
        path.until = Some(now.plus_ns(rest_ns));
        self.begin(next, takes & !(1 << worst));
        true
    }

    /// Tries retired paths again whose rest is over, from the packet `next` on. Each is on
    /// probation: few losses retire it again.
    pub(super) fn revive(&mut self, next: Psn, now: Time) {
        let Some(&Era { mut takes, .. }) = self.eras.back() else { return };
        if takes.count_ones() as usize == self.paths.len() || self.eras.len() >= ERAS_MAX {
            return;
        }
        let before = takes;
        for (at, path) in self.paths.iter_mut().enumerate() {
            if path.until.take_if(|until| *until <= now).is_some() {
                path.lost = LOST_LEAST;
                takes |= 1 << at;
            }
        }
        if takes != before {
            self.begin(next, takes);
        }
    }

    /// Packets from `next` on take these paths.
    fn begin(&mut self, next: Psn, takes: u64) {
        match self.eras.back_mut().filter(|era| era.from == next) {
            Some(era) => era.takes = takes,
            None => self.eras.push_back(Era { from: next, takes }),
        }
    }

    pub(super) fn get(&self, path: u8) -> Measured {
        self.paths.get(usize::from(path)).copied().unwrap_or_default()
    }

    /// Notes that a packet sent at `sent` on `path` has been delivered: which one may be unknown.
    pub(super) fn delivered(&mut self, path: u8, sent: Time, psn: Option<Psn>) {
        let Some(path) = self.paths.get_mut(usize::from(path)) else { return };
        let is_after = |before: Option<Psn>| match (psn, before) {
            (Some(psn), Some(before)) => psn.is_after(before),
            (psn, _) => psn.is_some(),
        };
        let later = |(at, before): (Time, Option<Psn>)| sent > at || sent == at && is_after(before);
        if path.newest.is_none_or(later) {
            path.newest = Some((sent, psn));
        }
    }

    /// Notes a round trip on `path`, in nanoseconds.
    pub(super) fn measured(&mut self, path: u8, took_ns: u64, now: Time) {
        let Some(path) = self.paths.get_mut(usize::from(path)) else { return };
        path.latest_ns = took_ns;
        path.shortest.take(took_ns, now);
        if path.smoothed_ns == 0 {
            (path.smoothed_ns, path.deviation_ns) = (took_ns, took_ns / 2);
            return;
        }
        let off = took_ns.abs_diff(path.smoothed_ns);
        path.deviation_ns = (path.deviation_ns * 3 + off) / 4;
        path.smoothed_ns = (path.smoothed_ns * 7 + took_ns) / 8;
    }

    /// The greatest round-trip times of all paths; `None` before the first measurement.
    pub(super) fn slowest(&self) -> Option<Slowest> {
        let slower = |slowest: Slowest, path: &Measured| Slowest {
            smoothed_ns: slowest.smoothed_ns.max(path.smoothed_ns),
            deviation_ns: slowest.deviation_ns.max(path.deviation_ns),
            least_ns: slowest.least_ns.max(path.shortest.ns()),
        };
        let slowest = self.paths.iter().fold(Slowest::default(), slower);
        (slowest.smoothed_ns > 0).then_some(slowest)
    }

    /// The shortest round trip of late on a path, in nanoseconds.
    pub(super) fn least_ns(&self, path: u8) -> u64 {
        self.paths.get(usize::from(path)).map_or(0, |path| path.shortest.ns())
    }

    /// When the packet was sent that was sent last of all that have been delivered.
    pub(super) fn newest(&self) -> Option<Time> {
        self.paths.iter().filter_map(|path| path.newest).map(|(at, _)| at).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::shortest_round_trip::SPAN_NS;

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

    /// One path of eight loses all: it takes no more packets, and is tried again after a rest.
    #[test]
    fn a_path_that_loses_rests_and_is_tried_again() {
        let mut paths = Paths::new(8, 4096);
        let uses = |paths: &Paths, from: u32| {
            let runs = (0..64).map(|run| paths.of(Psn::new(from + run * paths.run), 0));
            runs.fold([0; 8], |mut uses, path| {
                uses[usize::from(path)] += 1;
                uses
            })
        };
        let before = uses(&paths, 0);
        assert_eq!(before, [8; 8]);
        (0..3).for_each(|_| paths.lost(5));
        assert!(!paths.retire(Psn::new(1024), Time(1)), "few losses happen");
        paths.lost(5);
        assert!(paths.retire(Psn::new(1024), Time(1)));
        assert_eq!(uses(&paths, 0), before, "packets under way took the paths they took");
        let after = uses(&paths, 1024);
        assert!(after[5] == 0 && after.iter().sum::<u32>() == 64, "{after:?}");
        assert!(after.iter().enumerate().all(|(at, count)| at == 5 || *count >= 8), "{after:?}");
        paths.revive(Psn::new(2048), Time(1 + REST_NS / 2));
        assert_eq!(uses(&paths, 2048)[5], 0, "it rests");
        paths.revive(Psn::new(2048), Time(1 + REST_NS));
        assert_eq!(uses(&paths, 2048), uses(&paths, 0), "it is tried again");
        // One more loss is enough, and the rest is twice as long.
        paths.lost(5);
        assert!(paths.retire(Psn::new(3072), Time(2 + REST_NS)));
        paths.revive(Psn::new(4096), Time(2 + REST_NS * 2));
        assert_eq!(uses(&paths, 4096)[5], 0);
        paths.revive(Psn::new(4096), Time(2 + REST_NS * 3));
        assert!(uses(&paths, 4096)[5] > 0);
        paths.advance(Psn::new(4096), 4096);
        assert_eq!(paths.eras.len(), 1);
    }

    /// Losses that all paths have are no reason to leave one, and half of the paths always stay.
    #[test]
    fn half_of_the_paths_stay() {
        let mut paths = Paths::new(8, 1024);
        for path in 0..8 {
            (0..10).for_each(|_| paths.lost(path));
        }
        assert!(!paths.retire(Psn::new(10), Time(1)));
        for path in 0..8 {
            (0..100 << path).for_each(|_| paths.lost(path));
        }
        let mut retired = 0;
        while paths.retire(Psn::new(10 + retired), Time(1)) {
            retired += 1;
            assert!(retired <= 4, "half of the paths stay");
        }
        let mut one = Paths::new(1, 1024);
        (0..100).for_each(|_| one.lost(0));
        assert!(!one.retire(Psn::new(10), Time(1)));
        assert_eq!(one.of(Psn::new(7), 3), 0);
    }

    #[test]
    fn round_trips_are_smoothed() {
        let mut paths = Paths::new(1, 1024);
        assert_eq!(paths.slowest(), None);
        let us = |us: u64| us * 1000;
        paths.measured(0, us(8), Time(0));
        let slowest = |smoothed, deviation| {
            let (smoothed_ns, deviation_ns) = (us(smoothed), us(deviation));
            Some(Slowest { smoothed_ns, deviation_ns, least_ns: us(8) })
        };
        assert_eq!(paths.slowest(), slowest(8, 4));
        paths.measured(0, us(16), Time(1));
        assert_eq!(paths.slowest(), slowest(9, 5));
        assert_eq!((paths.least_ns(0), paths.get(0).latest_ns), (us(8), us(16)));
        // The path gets longer, and what it took before is forgotten.
        (1..4).for_each(|span| paths.measured(0, us(24), Time(span * SPAN_NS)));
        assert_eq!(paths.least_ns(0), us(24));
    }
}
