//! The shortest round trip of late, which is that of the way as it is now.
//!
//! The least of all time would be wrong for ever once the way gets longer (a route changes): each
//! round trip would look like one that waits in a queue. So the least is one of two spans, the one
//! under way and the one before, as BBR's is one of the last ten seconds.

use crate::time::Time;

/// A span, in nanoseconds: what is known ages within one to two of them.
pub(super) const SPAN_NS: u64 = 5_000_000_000;

/// The shortest round trip of the last two spans in which there were any.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortestRoundTrip {
    /// The least of the span before, and of the one under way: the most before there is any.
    before_ns: u64,
    now_ns: u64,
    /// When the span under way ends. The next round trip ends it, so a connection that was quiet
    /// still knows what it knew.
    until: Time,
}

impl Default for ShortestRoundTrip {
    fn default() -> ShortestRoundTrip {
        ShortestRoundTrip { before_ns: u64::MAX, now_ns: u64::MAX, until: Time::ZERO }
    }
}

impl ShortestRoundTrip {
    /// Takes a round trip of so many nanoseconds; returns the shortest, with it.
    #[inline]
    pub(super) fn take(&mut self, took_ns: u64, now: Time) -> u64 {
        if now >= self.until {
            (self.before_ns, self.now_ns) = (self.now_ns, took_ns);
            self.until = now.plus_ns(SPAN_NS);
        }
        self.now_ns = self.now_ns.min(took_ns);
        self.now_ns.min(self.before_ns)
    }

    /// The shortest, in nanoseconds; zero before the first.
    #[inline]
    pub(super) fn ns(&self) -> u64 {
        let least = self.now_ns.min(self.before_ns);
        if least == u64::MAX { 0 } else { least }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_holds_for_one_span_and_the_next() {
        let mut shortest = ShortestRoundTrip::default();
        assert_eq!(shortest.ns(), 0);
        assert_eq!(shortest.take(10, Time(7)), 10);
        assert_eq!(shortest.take(90, Time(7 + SPAN_NS - 1)), 10);
        assert_eq!(shortest.take(80, Time(7 + SPAN_NS)), 10, "of the span before");
        assert_eq!(shortest.take(90, Time(7 + 2 * SPAN_NS)), 80);
        assert_eq!((shortest.take(5, Time(8 + 2 * SPAN_NS)), shortest.ns()), (5, 5), "at once");
    }

    /// After a silence of any length, one round trip alone does not say what the way takes.
    #[test]
    fn silence_ages_nothing() {
        let mut shortest = ShortestRoundTrip::default();
        shortest.take(10, Time(0));
        assert_eq!(shortest.take(90, Time(100 * SPAN_NS)), 10);
        assert_eq!(shortest.take(80, Time(101 * SPAN_NS)), 80);
        assert_eq!(shortest.take(90, Time::NEVER), 80);
    }
}
