//! Recoveries, and those that were for nothing: packets were taken for lost that were only late.
//! When a packet is found lost is in `completer`, by what `departures` remembers.
//!
//! A packet that was found lost had not been lost if its acknowledge comes before it was sent
//! again, or sooner behind that than any round trip, or if the peer reports the copy. If that is so
//! of all packets that a recovery found lost, the window is again what it was before (the idea is
//! that of the Eifel algorithm, RFC 3522 and RFC 4015), and later packets may be as late as this
//! one was.

use crate::psn::Psn;
use crate::qp::window::Window;
use crate::time::Time;

/// The most quarters of a round trip that a packet may be late: it grows by one after each packet
/// that was sent again for nothing, or to what a late one would have needed (RFC 8985 adapts its
/// reordering window so, up to a round trip).
const QUARTERS_MAX: u64 = 16;
/// After so many recoveries without such a packet it is one quarter again (as RFC 8985 has it).
const GENEROUS: u8 = 16;

/// What is known of recoveries.
#[derive(Debug)]
pub(super) struct Recoveries {
    /// Where the present one ends.
    until: Option<Psn>,
    /// How late a packet may be before it counts as lost, in quarters of a round trip.
    pub(super) quarters: u64,
    /// Recoveries left until that goes back.
    generous: u8,
    /// What the present one, or the last one, is for.
    doubts: Option<Doubts>,
}

/// What a recovery is for, so far.
#[derive(Clone, Copy, Debug)]
struct Doubts {
    /// The window before the recovery.
    before: Window,
    began: Time,
    /// Packets that were found lost, and that may have been.
    packets: u32,
    /// Packets that were sent again and are known to have arrived before: the peer will report
    /// their copies.
    copies: u32,
}

/// A packet that has arrived, and had been found lost or been sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) psn: Psn,
    /// How many times it was found lost, or which probe it was.
    pub(super) tries: u8,
    /// When it left the first time, and when it was sent again.
    pub(super) left: Time,
    pub(super) again: Option<Time>,
    /// When later packets have shown it to be lost; `None` for one that was sent again as a probe
    /// alone.
    pub(super) found: Option<Time>,
}

impl Default for Recoveries {
    fn default() -> Recoveries {
        Recoveries { until: None, quarters: 1, generous: 0, doubts: None }
    }
}

impl Recoveries {
    /// So many packets of those before `high` were found lost. If a recovery begins, the window was
    /// `window`.
    pub(super) fn begin(&mut self, now: Time, packets: u32, high: Psn, window: Window) {
        if self.until.is_none() {
            self.until = Some(high);
            self.doubts = Some(Doubts { before: window, began: now, packets, copies: 0 });
        } else if let Some(doubts) = &mut self.doubts {
            doubts.packets += packets;
        }
    }

    /// All before `una` has arrived.
    pub(super) fn advance(&mut self, una: Psn) {
        if self.until.take_if(|until| !una.is_before(*until)).is_some() {
            self.generous = self.generous.saturating_sub(1);
            if self.generous == 0 {
                self.quarters = 1;
            }
        }
    }

    /// A packet has arrived that had been found lost, on a path whose shortest round trip is
    /// `least_ns`. If it was only late, later ones may be as late. Returns the window before the
    /// recovery if that was for nothing.
    pub(super) fn settle(&mut self, now: Time, packet: Settled, least_ns: u64) -> Option<Window> {
        let was_late = packet.again.is_none_or(|again| now.ns_since(again) < least_ns);
        let found = packet.found?;
        // Which of several copies has come is not known.
        if !was_late || packet.tries != 1 {
            return None;
        }
        let late_ns = now.ns_since(packet.left).saturating_sub(least_ns);
        self.widen(late_ns.saturating_mul(4) / least_ns.max(1) + 1);
        let doubts = self.doubts.as_mut().filter(|doubts| found >= doubts.began)?;
        doubts.copies += u32::from(packet.again.is_some());
        doubts.settle_one()
    }

    /// The peer reports a copy of what was sent at `sent`. Returns as [`Recoveries::settle`].
    pub(super) fn settle_copy(&mut self, sent: Time) -> Option<Window> {
        let doubts = self.doubts.as_mut().filter(|doubts| sent >= doubts.began);
        if let Some(doubts) = doubts
            && doubts.copies > 0
        {
            doubts.copies -= 1;
            return None;
        }
        self.widen(self.quarters + 1);
        self.doubts.as_mut().filter(|doubts| sent >= doubts.began)?.settle_one()
    }

    /// The window shrinks for another reason than losses.
    pub(super) fn stop_doubting(&mut self) {
        self.doubts = None;
    }

    /// Packets may be late by so many quarters of a round trip, at least.
    fn widen(&mut self, quarters: u64) {
        self.quarters = self.quarters.max(quarters).min(QUARTERS_MAX);
        self.generous = GENEROUS;
    }
}

impl Doubts {
    /// One packet less may have been lost. Returns the window before the recovery with the last.
    fn settle_one(&mut self) -> Option<Window> {
        self.packets = self.packets.checked_sub(1)?;
        (self.packets == 0).then_some(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u16 = 64;

    fn begun(packets: u32) -> Recoveries {
        let mut recoveries = Recoveries::default();
        recoveries.begin(Time(1000), packets, Psn::new(100), Window::new(WINDOW));
        recoveries
    }

    fn found(again: Option<u64>) -> Settled {
        let (left, found) = (Time(0), Some(Time(1000)));
        Settled { psn: Psn::new(7), tries: 1, left, again: again.map(Time), found }
    }

    fn is_undone(window: Option<Window>) -> bool {
        window.map(|window| assert_eq!(window.size(), WINDOW)).is_some()
    }

    #[test]
    fn a_recovery_is_undone_if_all_were_only_late() {
        let mut recoveries = begun(2);
        recoveries.begin(Time(1100), 1, Psn::new(120), Window::new(8));
        // Before it was sent again, sooner behind that than a round trip, and by its copy.
        assert!(!is_undone(recoveries.settle(Time(1200), found(None), 500)));
        assert!(!is_undone(recoveries.settle(Time(1200), found(Some(1100)), 500)));
        assert!(!is_undone(recoveries.settle_copy(Time(1100))), "that one was expected");
        assert!(is_undone(recoveries.settle_copy(Time(1150))));
        assert!(!is_undone(recoveries.settle_copy(Time(1150))), "once");
    }

    #[test]
    fn a_recovery_with_a_loss_stays() {
        let mut recoveries = begun(2);
        assert!(!is_undone(recoveries.settle(Time(1700), found(Some(1100)), 500)));
        assert!(!is_undone(recoveries.settle(Time(1200), found(None), 500)));
        // A copy from before the recovery says nothing about it.
        assert!(!is_undone(recoveries.settle_copy(Time(900))));
        let again = Settled { tries: 2, ..found(None) };
        assert!(!is_undone(recoveries.settle(Time(1200), again, 500)));
        recoveries.stop_doubting();
        assert!(!is_undone(recoveries.settle(Time(1200), found(None), 500)));
    }

    #[test]
    fn packets_may_be_as_late_as_one_was_for_a_while() {
        let mut recoveries = begun(1);
        // It came 1,200 ns after it had left, 700 later than the shortest round trip: six quarters.
        recoveries.settle(Time(1200), found(None), 500);
        assert_eq!(recoveries.quarters, 6);
        recoveries.settle_copy(Time(1200));
        assert_eq!(recoveries.quarters, 7);
        recoveries.settle(Time(100_000), found(None), 500);
        assert_eq!(recoveries.quarters, QUARTERS_MAX);
        for round in 1..=GENEROUS {
            assert_eq!(recoveries.quarters, QUARTERS_MAX, "{round}");
            recoveries.begin(Time(2000), 1, Psn::new(100), Window::new(WINDOW));
            recoveries.advance(Psn::new(100));
        }
        assert_eq!(recoveries.quarters, 1);
    }
}
