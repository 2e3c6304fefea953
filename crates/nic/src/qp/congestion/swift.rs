//! A window that follows the delay of round trips, in the manner of Swift (SIGCOMM 2020).
//!
//! Swift's target is a delay of the fabric. Cards of this kind serve fabrics of any length, so the
//! target here is what a round trip may take beyond the shortest one seen. Clocks of hosts and of
//! the fabric are not told apart, and the window is never below four packets.

use core::time::Duration;

use crate::psn::Psn;
use crate::qp::window::{ONE, Window};
use crate::time::Time;

/// The delay beyond the shortest round trip that is always allowed (htsim's `swift.cpp`: the base
/// target).
const BASE: Duration = Duration::from_micros(20);
/// What small windows are allowed besides, so that many flows on one link get on (flow scaling):
/// nothing at a window of `SCALE_TO` packets, and with smaller ones as much more as the inverse
/// root of the window, up to `SCALE_MOST` at a tenth of a packet (htsim: 0.1 to 100, 5 × base).
const SCALE_MOST: Duration = Duration::from_micros(100);
const SCALE_TO: u64 = 100;
/// Of the inverse roots at 0.1 and 100 packets, √10 and 0.1, the difference in thousandths.
const SCALE_ROOTS: u64 = 3062;
/// By how much a delay beyond the target shrinks the window: β, in parts of [`ONE`] (htsim: 0.8).
const STRENGTH: u64 = ONE as u64 * 4 / 5;

/// What the sender knows of delays.
#[derive(Debug, Default)]
pub(crate) struct Swift {
    /// The latest round trip was within the target: the window may grow.
    in_time: bool,
    /// The window when the decrease began that is under way.
    before: u16,
    /// The shortest round trip, where the sender measures itself.
    least: Option<Duration>,
    /// A packet whose acknowledge is awaited, and when it left.
    timed: Option<(Psn, Time)>,
}

/// The delay beyond the shortest round trip that a window of so many packets is allowed.
fn target(window: u16) -> Duration {
    // The inverse roots in thousandths.
    let root = 1_000_000 / (u64::from(window.max(1)) * 1_000_000).isqrt();
    let least = 1000 / SCALE_TO.isqrt();
    BASE + SCALE_MOST * (root.saturating_sub(least) as u32) / SCALE_ROOTS as u32
}

impl Swift {
    /// Takes a round trip. `least` is the shortest one on its path. The window shrinks once a
    /// round trip; `high` is one past the highest PSN sent.
    pub(super) fn measured(
        &mut self,
        window: &mut Window,
        (took, least): (Duration, Duration),
        high: Psn,
    ) {
        let (beyond, target) = (took.saturating_sub(least), target(window.size()));
        self.in_time = beyond < target;
        if !self.in_time {
            // More than a quarter of an hour is as good as that.
            let ns = |time: Duration| time.as_nanos().min(1 << 40) as u64;
            let cut = STRENGTH * ns(beyond - target) / ns(took).max(1);
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
            let least = self.least.map_or(took, |least| least.min(took));
            self.least = Some(least);
            self.measured(window, (took, least), high);
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
        assert_eq!((target(100), target(1000)), (BASE, BASE));
        assert!((US(32)..US(34)).contains(&target(4)), "{:?}", target(4));
        assert!((US(20)..US(21)).contains(&target(64)), "{:?}", target(64));
        assert!(target(0) <= BASE + SCALE_MOST);
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
    fn it_times_its_own_packets_and_none_that_are_sent_again() {
        let (mut swift, mut window) = (Swift::default(), Window::new(64));
        swift.sent(Psn::new(0), Psn::new(8), Time(0));
        swift.sent(Psn::new(0), Psn::new(16), Time(5_000));
        swift.acknowledged(&mut window, (8, Psn::new(8)), (64, Psn::new(16)), Time(10_000));
        assert_eq!(swift.least, Some(US(10)));
        swift.sent(Psn::new(8), Psn::new(16), Time(11_000));
        swift.lost(&mut window, Psn::new(16));
        swift.acknowledged(&mut window, (8, Psn::new(16)), (64, Psn::new(16)), Time(500_000));
        assert_eq!((swift.least, window.size()), (Some(US(10)), 32));
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
