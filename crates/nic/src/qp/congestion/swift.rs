//! A window that follows the delay of round trips, in the manner of Swift (SIGCOMM 2020).
//!
//! Swift's target is a delay of the fabric. Cards of this kind serve fabrics of any length, so the
//! target here is what a round trip may take beyond the shortest one of late. Clocks of hosts and
//! of the fabric are not told apart, and the window is never below four packets.

use core::time::Duration;

use crate::congestion::SwiftTuning;
use crate::psn::Psn;
use crate::qp::shortest_round_trip::ShortestRoundTrip;
use crate::qp::window::{ONE, Window};
use crate::time::Time;

/// From a window of so many packets on flows are not scaled (htsim's `swift.cpp`: 0.1 to 100).
const SCALE_TO: u64 = 100;
/// Of the inverse roots at 0.1 and 100 packets, √10 and 0.1, the difference in thousandths.
const SCALE_ROOTS: u64 = 3062;

/// What the sender knows of delays.
#[derive(Debug, Default)]
pub(crate) struct Swift {
    /// The latest round trip was within the target: the window may grow.
    in_time: bool,
    /// The window when the decrease began that is under way.
    before: u16,
    /// The shortest round trip, where the sender measures itself.
    shortest: ShortestRoundTrip,
    /// A packet whose acknowledge is awaited, and when it left.
    timed: Option<(Psn, Time)>,
    tuning: SwiftTuning,
}

/// The delay beyond the shortest round trip that a window of so many packets is allowed.
fn target(window: u16, tuning: &SwiftTuning) -> Duration {
    /// A target is no longer, nor what is allowed besides.
    const MOST_NS: u64 = 1_000_000_000;
    // The inverse roots in thousandths.
    let root = 1_000_000 / (u64::from(window.max(1)) * 1_000_000).isqrt();
    let least = 1000 / SCALE_TO.isqrt();
    let scaling = tuning.scaling_ns.min(MOST_NS) * root.saturating_sub(least) / SCALE_ROOTS;
    Duration::from_nanos(tuning.target_ns.min(MOST_NS) + scaling)
}

impl Swift {
    /// Nothing is known yet.
    pub(super) fn new(tuning: SwiftTuning) -> Swift {
        Swift { tuning, ..Swift::default() }
    }

    /// Takes a round trip. `least` is the shortest one on its path. The window shrinks once a
    /// round trip; `high` is one past the highest PSN sent.
    pub(super) fn measured(
        &mut self,
        window: &mut Window,
        (took, least): (Duration, Duration),
        high: Psn,
    ) {
        let target = target(window.size(), &self.tuning);
        let beyond = took.saturating_sub(least);
        self.in_time = beyond < target;
        if !self.in_time {
            // More than a quarter of an hour is as good as that.
            let ns = |time: Duration| time.as_nanos().min(1 << 40) as u64;
            let cut = self.tuning.strength.min(ONE.into()) * ns(beyond - target) / ns(took).max(1);
            let cut = u32::try_from(cut).unwrap_or(ONE);
            self.shrink(window, ONE.saturating_sub(cut), high);
        }
    }

    /// Shrinks the window to this part of what it was before the decrease that is under way, if one
    /// is. A queue that grows shows first by a delay just beyond the target. If that ended the
    /// decreases of its round trip, the losses behind it would go unheeded.
    fn shrink(&mut self, window: &mut Window, part: u32, high: Psn) {
        if !window.is_shrinking() {
            self.before = window.size();
        }
        window.shrink_from(self.before, part, high);
    }

    /// Notes that a turn has sent all before `high` of what it could, and that the peer was asked
    /// to acknowledge the last packet.
    pub(super) fn sent(&mut self, una: Psn, high: Psn, now: Time) {
        if self.timed.is_none() && una != high {
            self.timed = Some((high, now));
        }
    }

    /// Packets were lost: the window halves. They are sent again, and their acknowledge does not
    /// say which copy it is for (RFC 6298 §3).
    pub(super) fn lost(&mut self, window: &mut Window, high: Psn) {
        self.timed = None;
        self.shrink(window, ONE / 2, high);
    }

    /// Nothing has been heard for a time-out: the window begins anew, whatever is under way.
    pub(super) fn silent(&mut self, window: &mut Window) {
        window.restart();
        (self.timed, self.before) = (None, window.size());
    }

    /// Notes that all before `una` is acknowledged. The window grows while round trips are within
    /// the target.
    pub(super) fn acknowledged(
        &mut self,
        window: &mut Window,
        (packets, una): (u32, Psn),
        (limit, high): (u16, Psn),
        now: Time,
    ) {
        if let Some((_, left)) = self.timed.take_if(|(end, _)| !una.is_before(*end)) {
            let took = now.since(left);
            let least = self.shortest.take(now.ns_since(left), now);
            self.measured(window, (took, Duration::from_nanos(least)), high);
        }
        if self.in_time {
            window.acknowledged(packets, una, limit);
        } else {
            window.end_decrease(una);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn small_windows_are_allowed_more_delay() {
        let target = |window| target(window, &SwiftTuning::default());
        assert_eq!((target(100), target(1000)), (US(20), US(20)));
        assert!((US(32)..US(34)).contains(&target(4)), "{:?}", target(4));
        assert!((US(20)..US(21)).contains(&target(64)), "{:?}", target(64));
        assert!(target(0) <= US(120));
    }

    #[test]
    fn it_grows_within_the_target_and_shrinks_by_the_excess() {
        let (mut swift, mut window) = (Swift::default(), Window::new(64));
        let round = |swift: &mut Swift, window: &mut Window, at: u32, took| {
            let (una, high) = (Psn::new(at), Psn::new(at + 100));
            swift.acknowledged(window, (100, una), (64, high), Time(0));
            swift.measured(window, (took, US(10)), high);
            window.size()
        };
        assert_eq!(round(&mut swift, &mut window, 100, US(20)), 64, "within the target");
        // 20.8 µs are allowed beyond 10; 39.2 of 70 µs are too much, times 0.8.
        let cut = round(&mut swift, &mut window, 200, US(70));
        assert!((34..=36).contains(&cut), "{cut}");
        let again = round(&mut swift, &mut window, 300, US(10_000));
        assert_eq!(again, cut / 2, "half at least");
        assert_eq!(round(&mut swift, &mut window, 400, US(12)), again);
        let grown = round(&mut swift, &mut window, 500, Duration::MAX);
        assert_eq!(grown, again.div_ceil(2), "it had grown by one");
        round(&mut swift, &mut window, 600, Duration::ZERO);
    }

    #[test]
    fn target_scaling_and_strength_are_what_they_are_set_to() {
        let tuning = SwiftTuning { target_ns: 50_000, scaling_ns: 0, strength: 1 << 14 };
        assert_eq!((target(1, &tuning), target(100, &tuning)), (US(50), US(50)));
        let (mut swift, mut window) = (Swift::new(tuning), Window::new(64));
        swift.measured(&mut window, (US(59), US(10)), Psn::new(100));
        assert_eq!(window.size(), 64, "within the target");
        // 40 of 100 µs are too much, times 0.25.
        swift.measured(&mut window, (US(100), US(10)), Psn::new(100));
        assert_eq!(window.size(), 57);
    }

    #[test]
    fn it_times_its_own_packets_and_none_that_are_sent_again() {
        let (mut swift, mut window) = (Swift::default(), Window::new(64));
        swift.sent(Psn::new(0), Psn::new(8), Time(0));
        swift.sent(Psn::new(0), Psn::new(16), Time(5_000));
        swift.acknowledged(&mut window, (8, Psn::new(8)), (64, Psn::new(16)), Time(10_000));
        assert_eq!(swift.shortest.ns(), 10_000);
        swift.sent(Psn::new(8), Psn::new(16), Time(11_000));
        swift.lost(&mut window, Psn::new(16));
        swift.acknowledged(&mut window, (8, Psn::new(16)), (64, Psn::new(16)), Time(500_000));
        assert_eq!((swift.shortest.ns(), window.size()), (10_000, 32));
    }

    /// The way gets 90 µs longer, and no queue makes it so: the window grows again once the
    /// shorter round trips are forgotten.
    #[test]
    fn a_longer_way_holds_the_window_down_for_ten_seconds_at_most() {
        let (mut swift, mut window) = (Swift::default(), Window::new(64));
        let mut at = 0;
        // A round trip each 100 ms.
        let mut round = |took_us: u64| {
            at += 1;
            let (left, una) = (u64::from(at) * 100_000_000, Psn::new(at * 100));
            let high = Psn::new(at * 100 + 100);
            swift.sent(Psn::new((at - 1) * 100), una, Time(left));
            swift.acknowledged(&mut window, (100, una), (64, high), Time(left + took_us * 1000));
            window.size()
        };
        (0..10).for_each(|_| assert_eq!(round(10), 64));
        assert!((0..30).map(|_| round(100)).last() < Some(8), "it looks like a queue");
        assert_eq!((0..150).map(|_| round(100)).last(), Some(64), "it is the way");
    }

    /// Of all delays and losses of a round trip, the worst counts, and it counts once.
    #[test]
    fn the_worst_of_a_round_trip_counts() {
        let cut = |signs: &[fn(&mut Swift, &mut Window)]| {
            let (mut swift, mut window) = (Swift::default(), Window::new(256));
            signs.iter().for_each(|sign| sign(&mut swift, &mut window));
            window.size()
        };
        let late: fn(&mut Swift, &mut Window) =
            |swift, window| swift.measured(window, (US(32), US(10)), Psn::new(100));
        let very_late: fn(&mut Swift, &mut Window) =
            |swift, window| swift.measured(window, (US(90), US(10)), Psn::new(100));
        let lost: fn(&mut Swift, &mut Window) = |swift, window| swift.lost(window, Psn::new(100));
        assert!((240..256).contains(&cut(&[late])));
        for signs in [[late, very_late], [very_late, late], [late, lost], [lost, very_late]] {
            assert_eq!(cut(&signs), 128);
        }
        let (mut swift, mut window) = (Swift::default(), Window::new(256));
        lost(&mut swift, &mut window);
        swift.silent(&mut window);
        lost(&mut swift, &mut window);
        assert_eq!(window.size(), 1, "a silence is a sign of its own");
    }
}
