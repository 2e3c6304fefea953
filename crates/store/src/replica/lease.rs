//! Leases that need no clock but the nodes' own: what the primary may count on, and what the others
//! have seen of it.
//!
//! The configuration service keeps no time. The primary rewrites the group's entry there, by
//! compare-and-swap, and each time the entry gets another revision. Another node takes over, by
//! compare-and-swap on the revision that it saw last, once it has seen the same one for a whole
//! term. The primary counts its term from when it sent a renewal, the others from when they saw it
//! done, so theirs end later.
//!
//! How long a term is, the caller says (`--lease` of `remora store serve --cluster`).

/// The right to be the primary of an epoch for a while, as the primary may count on it.
///
/// A term is counted by a clock that may be slow while another node's is fast, so the primary's
/// is shorter: it gives the lease up first, whatever lies between them, as long as no clock drifts
/// more than is stated.
///
/// A lease says nothing of other epochs: a node that was paused hears of a renewal although
/// somebody else has become the primary meanwhile, and may hear of the one before it hears of the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    counted_ns: u64,
    epoch: u32,
    until_ns: u64,
    /// The last epoch that it was given up in: it does not come back in that.
    ended: u32,
}

const MILLION: u128 = 1_000_000;

impl Lease {
    /// No lease yet. Others wait for `term_ns` before they take over; clocks gain or lose at most
    /// `drift_ppm` millionths.
    #[must_use]
    pub fn new(term_ns: u64, drift_ppm: u32) -> Lease {
        let drift = u128::from(drift_ppm).min(MILLION);
        let counted = u128::from(term_ns) * (MILLION - drift) / (MILLION + drift);
        // At most term_ns.
        Lease { counted_ns: counted as u64, epoch: 0, until_ns: 0, ended: 0 }
    }

    /// The service has renewed it for the primary of `epoch`, as it was asked to at `sent_ns` of
    /// this node's clock. Answers may come in any order.
    pub fn renew(&mut self, epoch: u32, sent_ns: u64) {
        if epoch < self.epoch || self.has_ended(epoch) {
            return;
        }
        if epoch > self.epoch {
            (self.epoch, self.until_ns) = (epoch, 0);
        }
        self.until_ns = self.until_ns.max(sent_ns.saturating_add(self.counted_ns));
    }

    /// It is given up, and does not come back in `epoch`.
    pub fn end(&mut self, epoch: u32) {
        self.until_ns = 0;
        self.ended = self.ended.max(epoch);
    }

    /// Whether it was given up in `epoch`, or in a later one.
    #[must_use]
    pub fn has_ended(&self, epoch: u32) -> bool {
        epoch <= self.ended
    }

    /// Whether the lease holds for the primary of `epoch` at `now_ns` of this node's clock.
    #[must_use]
    pub fn holds(&self, epoch: u32, now_ns: u64) -> bool {
        epoch == self.epoch && now_ns < self.until_ns
    }

    /// Until when it holds for the primary of `epoch`, in ns of this node's clock; 0 if it does
    /// not.
    #[must_use]
    pub fn until_ns(&self, epoch: u32) -> u64 {
        if epoch == self.epoch { self.until_ns } else { 0 }
    }

    /// How long after a renewal was sent the next one should be, in ns: so that two may be lost.
    #[must_use]
    pub fn renew_every_ns(&self) -> u64 {
        (self.counted_ns / 3).max(1)
    }
}

/// For how long this node has seen no renewal of another node's lease.
///
/// What it saw once it saw in time: the service showed the same revision at the beginning and at
/// the end of a whole term, and was there in between. A node that heard nothing of the service for
/// a term begins anew, as the primary may have been cut off like itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Silence {
    term_ns: u64,
    /// The epoch and the revision that it has seen last.
    seen: (u32, u64),
    since_ns: u64,
    heard_ns: u64,
}

impl Silence {
    /// Nothing seen yet. A lease that is not renewed for `term_ns` of this node's clock is over.
    #[must_use]
    pub fn new(term_ns: u64) -> Silence {
        Silence { term_ns, seen: (0, 0), since_ns: 0, heard_ns: 0 }
    }

    /// The service shows the entry of `epoch`, in this revision, at `now_ns` or a little earlier.
    pub fn see(&mut self, epoch: u32, revision: u64, now_ns: u64) {
        let was_there = now_ns.saturating_sub(self.heard_ns) <= self.term_ns;
        if self.seen != (epoch, revision) || !was_there {
            (self.seen, self.since_ns) = ((epoch, revision), now_ns);
        }
        self.heard_ns = now_ns;
    }

    /// Whether the primary of `epoch` has let its lease end, as far as this node has seen.
    #[must_use]
    pub fn is_over(&self, epoch: u32, now_ns: u64) -> bool {
        let is_silent = self.heard_ns.saturating_sub(self.since_ns) >= self.term_ns;
        let is_fresh = now_ns.saturating_sub(self.heard_ns) <= self.term_ns;
        self.seen.0 == epoch && is_silent && is_fresh
    }

    /// Whether it was seen within a term that `epoch` is the latest one.
    #[must_use]
    pub fn has_heard(&self, epoch: u32, now_ns: u64) -> bool {
        self.seen.0 == epoch && now_ns.saturating_sub(self.heard_ns) <= self.term_ns
    }

    /// The revision that it has seen last: a node that takes over does so from that one.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.seen.1
    }

    /// When to look whether it is over, in ns of this node's clock.
    #[must_use]
    pub fn ends_ns(&self) -> u64 {
        self.since_ns.saturating_add(self.term_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lease_ends_and_old_answers_do_not_shorten_it() {
        let mut lease = Lease::new(500, 0);
        assert!(!lease.holds(0, 0));
        lease.renew(1, 100);
        lease.renew(1, 50);
        assert!(lease.holds(1, 599) && !lease.holds(1, 600));
        let mut useless = Lease::new(500, u32::MAX);
        useless.renew(1, 0);
        assert!(!useless.holds(1, 0), "clocks that may stand still keep no time");
    }

    #[test]
    fn what_was_given_up_does_not_come_back_in_its_epoch() {
        let mut lease = Lease::new(500, 0);
        lease.renew(3, 100);
        lease.end(3);
        assert!(!lease.holds(3, 101) && lease.has_ended(3) && !lease.has_ended(4));
        lease.renew(3, 200);
        assert!(!lease.holds(3, 200), "others may have heard that it was given up");
        lease.renew(4, 150);
        assert!(lease.holds(4, 649) && !lease.holds(4, 650));
    }

    #[test]
    fn a_lease_is_for_one_epoch() {
        let mut lease = Lease::new(500, 0);
        lease.renew(1, 100);
        lease.renew(2, 50);
        assert!(!lease.holds(1, 100), "somebody else may be the primary now");
        assert!(
            lease.holds(2, 549) && !lease.holds(2, 550),
            "the first one's end is not the second's"
        );
        lease.renew(1, 400);
        assert!(!lease.holds(1, 400) && !lease.holds(2, 600), "an old answer changes nothing");
    }

    #[test]
    fn silence_is_the_same_revision_for_a_term() {
        let mut silence = Silence::new(500);
        silence.see(1, 7, 1000);
        silence.see(1, 7, 1499);
        assert!(!silence.is_over(1, 1499) && silence.ends_ns() == 1500);
        assert!(!silence.is_over(1, 1600), "nothing was seen at the term's end");
        silence.see(1, 7, 1600);
        assert!(silence.is_over(1, 1600) && silence.revision() == 7);
        assert!(!silence.is_over(2, 1600), "it is another primary's");
        silence.see(1, 8, 1601);
        assert!(!silence.is_over(1, 1601));
    }

    /// The service was away, or this node was: the primary could renew nothing either.
    #[test]
    fn a_service_that_was_away_is_no_silence() {
        let mut silence = Silence::new(500);
        silence.see(1, 7, 1000);
        silence.see(1, 7, 1501);
        assert!(!silence.is_over(1, 1501));
        silence.see(1, 7, 2001);
        assert!(silence.is_over(1, 2001) && silence.is_over(1, 2501));
        assert!(!silence.is_over(1, 2502), "what was seen is old");
        assert!(silence.has_heard(1, 2501) && !silence.has_heard(1, 2502));
        assert!(!silence.has_heard(2, 2001), "that is another epoch");
    }

    proptest! {
        /// The primary stops before another node takes over, whatever the clocks do within their
        /// bounds, and however long a renewal takes to come about and to be seen.
        #[test]
        fn the_primary_gives_up_first(
            term_ns in 1u64..1 << 40, drift_ppm in 0u32..200_000,
            sent_ns in 0u64..1 << 40, way_ns in 0u64..1 << 30,
            slow in any::<bool>(), fast in any::<bool>(),
        ) {
            let mut lease = Lease::new(term_ns, drift_ppm);
            lease.renew(1, sent_ns);
            let drift = f64::from(drift_ppm) / 1e6;
            // Real time from when the renewal was sent to either end.
            let primary_rate = if slow { 1.0 - drift } else { 1.0 + drift };
            let other_rate = if fast { 1.0 + drift } else { 1.0 - drift };
            let (mut low, mut high) = (0, term_ns);
            while low < high {
                let middle = (low + high).div_ceil(2);
                if lease.holds(1, sent_ns + middle) { low = middle } else { high = middle - 1 }
            }
            let mut silence = Silence::new(term_ns);
            silence.see(1, 1, 0);
            let primary_end = low as f64 / primary_rate;
            let other_end = way_ns as f64 + silence.ends_ns() as f64 / other_rate;
            prop_assert!(primary_end <= other_end + 1.0, "{primary_end} {other_end}");
        }
    }
}
