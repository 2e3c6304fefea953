//! Positions in the log.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many bits of a position are the counter.
const COUNTER_BITS: u32 = 40;
const COUNTER_MASK: u64 = (1 << COUNTER_BITS) - 1;

/// The place of a record in the log, and so the version of what it wrote: whose it is (the epoch,
/// 24 bits) and which one it is (the counter, 40 bits).
///
/// The counter is 1 for the first record and goes up by one with each, across epochs too, so that a
/// record that is missing shows. The epoch never goes down. Positions are ordered as their numbers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Position(u64);

impl Position {
    /// Before the first record.
    pub const NONE: Position = Position(0);
    /// The greatest epoch.
    pub const MAX_EPOCH: u32 = (1 << (64 - COUNTER_BITS)) - 1;
    /// The greatest counter.
    pub const MAX_COUNTER: u64 = COUNTER_MASK;

    /// The position with this number, as an item's version has it.
    #[must_use]
    pub fn from_number(number: u64) -> Position {
        Position(number)
    }

    /// The position of an epoch and a counter, of which it takes the lower 24 and 40 bits.
    #[must_use]
    pub fn new(epoch: u32, counter: u64) -> Position {
        Position(u64::from(epoch & Self::MAX_EPOCH) << COUNTER_BITS | counter & COUNTER_MASK)
    }

    /// The position as a number, as an item's version has it.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// In whose time the record was written.
    #[must_use]
    pub fn epoch(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }

    /// How many records there are up to this one.
    #[must_use]
    pub fn counter(self) -> u64 {
        self.0 & COUNTER_MASK
    }

    /// The next position in `epoch`, or in this one's where that is later; none where the counter
    /// has come to its end.
    #[must_use]
    pub fn next(self, epoch: u32) -> Option<Position> {
        let counter = self.counter() + 1;
        (counter <= COUNTER_MASK).then(|| Position::new(epoch.max(self.epoch()), counter))
    }

    /// Whether a record here may come just after one at `before`.
    #[must_use]
    pub fn follows(self, before: Position) -> bool {
        self.counter() == before.counter() + 1 && self.epoch() >= before.epoch()
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch(), self.counter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_and_counter_come_back() {
        let position = Position::new(Position::MAX_EPOCH, Position::MAX_COUNTER);
        assert_eq!(position.number(), u64::MAX);
        assert_eq!(position.epoch(), Position::MAX_EPOCH);
        assert_eq!(position.counter(), Position::MAX_COUNTER);
        assert_eq!(Position::new(3, 7).to_string(), "3.7");
    }

    #[test]
    fn the_counter_goes_on_across_epochs_and_ends() {
        let last = Position::new(1, 9);
        assert_eq!(last.next(1), Some(Position::new(1, 10)));
        assert_eq!(last.next(5), Some(Position::new(5, 10)));
        assert_eq!(last.next(0), Some(Position::new(1, 10)));
        assert!(Position::new(5, 10).follows(last));
        assert!(!Position::new(0, 10).follows(last));
        assert!(!Position::new(1, 11).follows(last));
        assert!(Position::new(2, 1) > Position::new(1, 9));
        assert_eq!(Position::new(0, Position::MAX_COUNTER).next(0), None);
    }
}
