//! How long a thread polls for what is to come.

use std::time::{Duration, Instant};

use remora::channel::deadline;

/// Polls between two looks at the clock, which takes as long as an empty poll.
const POLLS: u32 = 64;

/// The patience of a thread that polls.
#[derive(Debug)]
pub(crate) struct Patience {
    timeout: Duration,
    polls: u32,
    end: Option<Instant>,
}

impl Patience {
    /// Patience for so long from about now on. Without any, one poll is enough.
    #[inline]
    pub(crate) fn new(timeout: Duration) -> Patience {
        Patience { timeout, polls: 0, end: None }
    }

    /// Is it over? Asked after each poll that found nothing.
    #[inline]
    pub(crate) fn is_over(&mut self) -> bool {
        self.polls += 1;
        if !self.polls.is_multiple_of(POLLS) {
            return self.timeout.is_zero();
        }
        let end = self.end.get_or_insert_with(|| deadline(self.timeout));
        Instant::now() > *end || self.timeout.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_patience_has_no_end() {
        let mut patience = Patience::new(Duration::MAX);
        assert!((0..2 * POLLS).all(|_| !patience.is_over()));
    }
}
