//! The receiver of the models: what it expects, and what it has of what comes behind.

use std::collections::BTreeSet;

/// An acknowledge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Reply {
    /// All before this packet has arrived.
    pub(crate) end: u64,
    /// The packet out of order that it is about: then it is a NACK.
    pub(crate) named: Option<u64>,
}

/// The receiver.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// The bitmaps are software's.
    pub(crate) has_software: bool,
    /// The next packet expected, as the card knows it.
    expected: u64,
    /// SRNIC's card is in its recovery state.
    recovers: bool,
    /// The range of the latest packets in sequence since then, last one included.
    latest: (u64, u64),
    /// What has arrived behind the packet expected next; with software, as software knows it.
    behind: BTreeSet<u64>,
    /// The next packet expected, as software knows it.
    known: u64,
}

impl Receiver {
    pub(crate) fn new(has_software: bool) -> Receiver {
        Receiver { has_software, ..Receiver::default() }
    }

    /// All before this packet has arrived, as far as the card knows.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// A packet arrives. Returns the acknowledge, and whether software must hear of it.
    pub(crate) fn arrived(&mut self, psn: u64) -> (Option<Reply>, bool) {
        if self.has_software { self.arrived_for_software(psn) } else { (self.placed(psn), false) }
    }

    /// The card has the bitmap itself.
    fn placed(&mut self, psn: u64) -> Option<Reply> {
        if psn > self.expected {
            self.behind.insert(psn);
            return Some(Reply { end: self.expected, named: Some(psn) });
        }
        if psn == self.expected {
            self.expected = in_sequence(&mut self.behind, psn + 1);
        }
        Some(Reply { end: self.expected, named: None })
    }

    /// In the recovery state all packets are software's, even those that fill the gap.
    fn arrived_for_software(&mut self, psn: u64) -> (Option<Reply>, bool) {
        if psn < self.expected {
            return (Some(Reply { end: self.expected, named: None }), false);
        }
        if !self.recovers && psn == self.expected {
            self.expected += 1;
            return (Some(Reply { end: self.expected, named: None }), false);
        }
        if !self.recovers {
            (self.recovers, self.known, self.latest) = (true, self.expected, (psn, psn));
        } else if psn == self.latest.1 + 1 {
            self.latest.1 = psn;
        } else if psn > self.latest.1 {
            self.latest = (psn, psn);
        }
        (Some(Reply { end: self.expected, named: Some(psn) }), true)
    }

    /// Software takes note of a packet. Returns what it expects next, if that has changed.
    pub(crate) fn noted(&mut self, psn: u64) -> Option<u64> {
        if psn < self.known {
            return None;
        }
        self.behind.insert(psn);
        let known = in_sequence(&mut self.behind, self.known);
        (known != core::mem::replace(&mut self.known, known)).then_some(known)
    }

    /// The card takes note of what software expects. Returns an acknowledge of that, and whether
    /// the card had to stay in its recovery state.
    pub(crate) fn updated(&mut self, known: u64) -> (Option<Reply>, bool) {
        if !self.recovers {
            return (None, false);
        }
        let (left, right) = self.latest;
        let exits = (left..=right + 1).contains(&known);
        self.expected = known.max(self.expected);
        if exits {
            // What is on its way to software is in sequence, as the range says.
            (self.recovers, self.expected) = (false, right + 1);
            self.behind.clear();
        }
        (Some(Reply { end: self.expected, named: None }), !exits)
    }
}

/// Takes what is in sequence from `next` on; returns what comes behind that.
fn in_sequence(behind: &mut BTreeSet<u64>, mut next: u64) -> u64 {
    while behind.remove(&next) {
        next += 1;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_with_bitmaps_names_what_is_out_of_order() {
        let mut receiver = Receiver::new(false);
        let told = [0, 2, 3, 1, 4].map(|psn| receiver.arrived(psn).0.unwrap());
        assert_eq!(told.map(|reply| reply.end), [1, 1, 1, 4, 5]);
        assert_eq!(told.map(|reply| reply.named), [None, Some(2), Some(3), None, None]);
    }

    /// The race of SRNIC's Fig. 8: software has filled the gap when a newer gap is already known to
    /// the card. The exit fails; the one behind the second gap succeeds, and passes what is still
    /// on its way.
    #[test]
    fn an_exit_fails_behind_a_newer_gap() {
        let mut receiver = Receiver::new(true);
        for psn in [1, 2, 0] {
            assert!(receiver.arrived(psn).1);
        }
        assert_eq!([1, 2, 0].map(|psn| receiver.noted(psn)), [None, None, Some(3)]);
        receiver.arrived(5);
        assert_eq!(receiver.updated(3), (Some(Reply { end: 3, named: None }), true));
        for psn in [3, 4, 6] {
            receiver.arrived(psn);
        }
        assert_eq!([5, 3, 4].map(|psn| receiver.noted(psn)), [None, Some(4), Some(6)]);
        assert!(receiver.updated(4).1);
        // Software has not heard of 6, which the range knows.
        assert_eq!(receiver.updated(6), (Some(Reply { end: 7, named: None }), false));
        assert_eq!(receiver.arrived(7), (Some(Reply { end: 8, named: None }), false));
    }
}
