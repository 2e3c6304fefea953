//! A node's lease, as the node itself may count on it.

/// The right to be the primary of an epoch for a while.
///
/// The configuration service counts a lease from when it hears of its renewal; the node counts it
/// from when it sent that, and by a clock that may be slow while the service's is fast. So the node
/// gives it up first, whatever lies between them, as long as no clock drifts more than is stated.
///
/// A lease says nothing of other epochs: a node that was paused gets a new one although somebody
/// else has become the primary meanwhile, and may hear of the one before it hears of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    counted_ns: u64,
    epoch: u32,
    until_ns: u64,
    /// Renewals that were sent before this do not count.
    not_before_ns: u64,
}

const MILLION: u128 = 1_000_000;

impl Lease {
    /// No lease yet. The service gives it for `ttl_ns` at a time; clocks gain or lose at most
    /// `drift_ppm` millionths.
    #[must_use]
    pub fn new(ttl_ns: u64, drift_ppm: u32) -> Lease {
        let drift = u128::from(drift_ppm).min(MILLION);
        let counted = u128::from(ttl_ns) * (MILLION - drift) / (MILLION + drift);
        // At most ttl_ns.
        Lease { counted_ns: counted as u64, epoch: 0, until_ns: 0, not_before_ns: 0 }
    }

    /// The service has renewed it while `epoch` was the latest, as it was asked to at `sent_ns` of
    /// this node's clock. Answers may come in any order.
    pub fn renew(&mut self, epoch: u32, sent_ns: u64) {
        if sent_ns < self.not_before_ns || epoch < self.epoch {
            return;
        }
        if epoch > self.epoch {
            (self.epoch, self.until_ns) = (epoch, 0);
        }
        self.until_ns = self.until_ns.max(sent_ns.saturating_add(self.counted_ns));
    }

    /// Nothing can be counted on any more, nor on what was sent up to `now_ns`.
    pub fn end(&mut self, now_ns: u64) {
        self.until_ns = 0;
        self.not_before_ns = now_ns.saturating_add(1);
    }

    /// Whether the lease holds for the primary of `epoch` at `now_ns` of this node's clock.
    #[must_use]
    pub fn holds(&self, epoch: u32, now_ns: u64) -> bool {
        epoch == self.epoch && now_ns < self.until_ns
    }

    /// How long after a renewal was sent the next one should be, in ns: so that two may be lost.
    #[must_use]
    pub fn renew_every_ns(&self) -> u64 {
        (self.counted_ns / 3).max(1)
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
        assert!(!Lease::new(500, u32::MAX).holds(0, 0));
    }

    #[test]
    fn what_was_sent_before_an_end_does_not_count() {
        let mut lease = Lease::new(500, 0);
        lease.renew(1, 100);
        lease.end(200);
        assert!(!lease.holds(1, 200));
        lease.renew(1, 200);
        assert!(!lease.holds(1, 200), "the answer to what was sent before has come late");
        lease.renew(1, 201);
        assert!(lease.holds(1, 700) && !lease.holds(1, 701));
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

    proptest! {
        /// The node stops before the service may give the group to anybody else.
        #[test]
        fn the_node_gives_up_first(
            ttl_ns in 1u64..1 << 40, drift_ppm in 0u32..200_000,
            sent_ns in 0u64..1 << 40, way_ns in 0u64..1 << 30,
            slow in any::<bool>(), fast in any::<bool>(),
        ) {
            let mut lease = Lease::new(ttl_ns, drift_ppm);
            lease.renew(1, sent_ns);
            let drift = f64::from(drift_ppm) / 1e6;
            // Real time from when the renewal was sent to either end.
            let node_rate = if slow { 1.0 - drift } else { 1.0 + drift };
            let service_rate = if fast { 1.0 + drift } else { 1.0 - drift };
            let mut local = sent_ns;
            while lease.holds(1, local) {
                local += (ttl_ns / 1000).max(1);
            }
            let last_held = (local - sent_ns).saturating_sub((ttl_ns / 1000).max(1)) as f64;
            let node_end = last_held / node_rate;
            let service_end = way_ns as f64 + ttl_ns as f64 / service_rate;
            prop_assert!(node_end <= service_end + 1.0, "{node_end} {service_end}");
        }
    }
}
