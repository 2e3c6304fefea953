//! DCTCP: the share of marked packets says by how much the window shrinks (RFC 8257).

use crate::congestion::{DctcpTuning, Tuning};
use crate::psn::Psn;
use crate::qp::window::{ONE, Window};

/// What the sender knows of marks. Shares count in parts of [`ONE`].
#[derive(Debug)]
pub struct Dctcp {
    /// The estimated share of marked packets, first all of them (RFC 8257 §4.2).
    share: u32,
    /// In this round trip: packets that have arrived, and those of them that were marked.
    received: u32,
    marked: u32,
    /// The round trip ends when this PSN is acknowledged.
    ends: Psn,
    tuning: DctcpTuning,
}

impl Dctcp {
    /// Nothing is known yet; `next` is the next PSN to send.
    pub fn new(next: Psn, tuning: DctcpTuning) -> Dctcp {
        Dctcp { share: ONE, received: 0, marked: 0, ends: next, tuning }
    }

    /// Notes that so many more packets have arrived, and how many of them were marked. The window
    /// shrinks once a round trip; `high` is one past the highest PSN sent.
    pub fn received(&mut self, window: &mut Window, (received, marked): (u32, u32), high: Psn) {
        self.received = self.received.saturating_add(received);
        self.marked = self.marked.saturating_add(marked);
        if marked > 0 {
            window.shrink_to(ONE - self.share / 2, high);
        }
    }

    /// Notes that a packet of this round trip was marked, where it is not known how many were: it
    /// counts as all.
    pub(super) fn notified(&mut self, window: &mut Window, high: Psn) {
        self.marked = u32::MAX;
        window.shrink_to(ONE - self.share / 2, high);
    }

    /// Notes that all before `una` is acknowledged. At the end of a round trip the estimate
    /// changes; the next one ends with `high`.
    pub fn acknowledged(&mut self, una: Psn, high: Psn) {
        if una.is_before(self.ends) {
            return;
        }
        let marked = u64::from(self.marked.min(self.received));
        let share = marked * u64::from(ONE) / u64::from(self.received.max(1));
        let weighed = |share: u64| (share * self.tuning.gain.min(Tuning::ONE) / Tuning::ONE) as u32;
        self.share = self.share - weighed(self.share.into()) + weighed(share);
        (self.received, self.marked, self.ends) = (0, 0, high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Dctcp {
        Dctcp::new(Psn::new(0), DctcpTuning::default())
    }

    #[test]
    fn a_gain_is_the_weight_of_the_latest_round_trip() {
        for (gain, left) in [(Tuning::ONE, 0), (Tuning::ONE / 4, ONE * 3 / 4)] {
            let mut dctcp = Dctcp::new(Psn::new(0), DctcpTuning { gain });
            rounds(&mut dctcp, &mut Window::new(1000), 1, 0);
            assert_eq!(dctcp.share, left);
        }
    }

    /// Rounds of ten packets, so many of which are marked. Returns the window.
    fn rounds(dctcp: &mut Dctcp, window: &mut Window, count: u32, marked: u32) -> u16 {
        for round in 1..=count {
            let (una, high) = (dctcp.ends, dctcp.ends.plus(10));
            dctcp.received(window, (10, marked), high);
            dctcp.acknowledged(una, high);
            window.acknowledged(10, una, 1000);
            assert_eq!(dctcp.ends, high, "round {round}");
        }
        window.size()
    }

    #[test]
    fn the_estimate_follows_the_share_of_marks() {
        let (mut dctcp, mut window) = (new(), Window::new(1000));
        rounds(&mut dctcp, &mut window, 200, 2);
        assert!(dctcp.share.abs_diff(ONE / 5) < ONE / 100, "{}", dctcp.share);
        rounds(&mut dctcp, &mut window, 200, 0);
        assert!(dctcp.share < ONE / 1000, "{}", dctcp.share);
    }

    #[test]
    fn few_marks_cost_little_and_all_marked_halves() {
        let (mut dctcp, mut window) = (new(), Window::new(1000));
        assert_eq!(rounds(&mut dctcp, &mut window, 1, 10), 500, "it begins with the worst");
        let mut window = Window::new(1000);
        rounds(&mut dctcp, &mut window, 200, 0);
        let before = window.size();
        dctcp.received(&mut window, (10, 1), Psn::new(1 << 20));
        let (left, all) = (u32::from(window.size()), u32::from(before));
        assert!(left * 100 >= all * 99, "{left} of {all}");
        // A notification does not say how many: the round trip counts whole.
        let share = dctcp.share;
        dctcp.notified(&mut window, Psn::new(1 << 20));
        dctcp.received(&mut window, (10, 0), Psn::new(1 << 20));
        dctcp.acknowledged(dctcp.ends, dctcp.ends.plus(10));
        assert!(dctcp.share >= share + ONE / 16 - ONE / 100, "{}", dctcp.share);
    }
}
