//! When a thread that polls gives its core away. When one stops polling and sleeps is in
//! `background.rs` (the card's own thread) and in `Request::wait` (`request/mod.rs`).
//!
//! Where there are fewer cores than threads that poll, an empty poll keeps the core from the peer
//! whose message it waits for, to the end of the scheduler's turn: milliseconds. So after a run of
//! empty polls a thread yields. On a core of its own that would only cost time. So it is measured
//! whether the core was given away and a packet has come meanwhile. If so, the thread yields often;
//! if not, half as often each time.
//!
//! The core may be given to the process whose card the program uses. What that moves in the
//! meantime is for the peer as often as for the program, so the core given away is enough.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Empty polls from one yield to the next, where it pays, at first, and where it does not. (A run
/// of 64 takes some 20 µs, longer than a peer on a core of its own needs for its answer.)
const OFTEN: u32 = 4;
const FIRST: u32 = 64;
const SELDOM: u32 = 1024;
/// A yield that took as long gave the core away.
const GAVE: Duration = Duration::from_micros(2);
/// A yield that took as long gave it to a thread that computes, and not to a peer that answers.
const TURN: Duration = Duration::from_millis(1);

/// What is known of the threads that poll a device. Only an estimate, if there are several.
#[derive(Debug)]
pub(crate) struct Yielding {
    /// Empty polls since a packet came.
    empty: AtomicU32,
    /// A yield is due after each run of so many.
    every: AtomicU32,
    /// `empty` at the last yield, if the core was given away and it is not known yet whether a
    /// packet has come; else 0.
    judged: AtomicU32,
    /// The card is another process's.
    attached: bool,
}

impl Yielding {
    /// Nothing is known yet. `attached` says that the card is another process's.
    pub(crate) fn new(attached: bool) -> Yielding {
        let (empty, judged) = (AtomicU32::new(0), AtomicU32::new(0));
        Yielding { empty, every: AtomicU32::new(FIRST), judged, attached }
    }

    /// Is the card another process's?
    pub(crate) fn is_attached(&self) -> bool {
        self.attached
    }

    /// Notes how many polls in a row have found no packet.
    #[inline(always)]
    pub(crate) fn note(&self, empty: u32) {
        self.empty.store(empty, Ordering::Relaxed);
    }

    /// Polls that have found nothing since one found something.
    #[cfg(test)]
    pub(crate) fn empty(&self) -> u32 {
        self.empty.load(Ordering::Relaxed)
    }

    /// A poll has found nothing. The caller holds no lock; `pause` yields, and returns how long
    /// that took.
    #[inline]
    pub(crate) fn found_nothing(&self, pause: impl FnOnce() -> Duration) {
        let empty = self.empty.load(Ordering::Relaxed);
        let judged = self.judged.load(Ordering::Relaxed);
        if judged != 0 {
            self.judge(empty <= judged);
        }
        let every = self.every.load(Ordering::Relaxed);
        if empty == 0 || !empty.is_multiple_of(every) {
            return;
        }
        let took = pause();
        match took >= GAVE && took < TURN {
            true if self.attached => self.judge(true),
            true => self.judged.store(empty, Ordering::Relaxed),
            false => self.judge(false),
        }
    }

    #[cold]
    fn judge(&self, pays: bool) {
        self.judged.store(0, Ordering::Relaxed);
        let every = self.every.load(Ordering::Relaxed);
        let next = if pays { OFTEN } else { (every * 2).min(SELDOM) };
        self.every.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls that find nothing: how many of them yield.
    fn yields(yielding: &Yielding, polls: std::ops::RangeInclusive<u32>, took: Duration) -> u32 {
        let mut yields = 0;
        for empty in polls {
            yielding.note(empty);
            yielding.found_nothing(|| {
                yields += 1;
                took
            });
        }
        yields
    }

    #[test]
    fn a_thread_alone_on_its_core_soon_yields_seldom() {
        let yielding = Yielding::new(false);
        assert_eq!(yields(&yielding, 1..=FIRST - 1, Duration::ZERO), 0, "the answer may come yet");
        assert!(yields(&yielding, FIRST..=100 * SELDOM, Duration::ZERO) < 110);
    }

    #[test]
    fn a_thread_yields_often_where_the_peer_has_the_core_then() {
        let yielding = Yielding::new(false);
        assert_eq!(yields(&yielding, 1..=FIRST, GAVE), 1);
        for _ in 0..100 {
            // A packet has come, and then none for a while.
            assert_eq!(yields(&yielding, 0..=OFTEN, GAVE), 1);
        }
        // Nobody wants the core any more.
        assert!(yields(&yielding, OFTEN + 1..=100 * SELDOM, Duration::ZERO) < 120);
        assert_eq!(yields(&yielding, 1..=SELDOM - 1, Duration::ZERO), 0);
    }

    #[test]
    fn a_core_given_to_a_thread_that_computes_does_not_pay() {
        let yielding = Yielding::new(false);
        for _ in 0..10 {
            yields(&yielding, 0..=SELDOM, TURN);
        }
        assert!(yields(&yielding, 0..=SELDOM, TURN) <= 1);
    }

    #[test]
    fn the_core_is_given_often_to_a_process_with_the_card() {
        let yielding = Yielding::new(true);
        assert_eq!(yields(&yielding, 1..=FIRST, GAVE), 1);
        assert_eq!(yields(&yielding, FIRST + 1..=FIRST + 100, GAVE), 100 / OFTEN);
        // That process has a core of its own again.
        assert!(yields(&yielding, 1..=100 * SELDOM, Duration::ZERO) < 120);
    }

    #[test]
    fn a_core_given_away_without_a_packet_does_not_pay() {
        let yielding = Yielding::new(false);
        assert!(yields(&yielding, 1..=10 * SELDOM, GAVE) < 20);
    }
}
