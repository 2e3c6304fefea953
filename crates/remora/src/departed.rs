//! Cards of this machine that have gone with their processes, and whose peers are not told yet.
//!
//! A program whose peer ends learns of it twice: connection management says that the peer has
//! disconnected, and requests under way fail. The first comes from another thread or process. So
//! requests wait a moment for it before they fail, and the end of a process looks the same however
//! it ended and whatever was under way.

use std::net::IpAddr;
use std::time::Duration;

use remora_nic::Time;

/// How long requests to a card that has gone wait for the news that its process has ended.
const GRACE: Duration = Duration::from_millis(200);
/// The least time between two moments at which requests fail: the card looks through all its queue
/// pairs then.
const APART: Duration = Duration::from_secs(1);
/// The most cards that are remembered.
const CARDS_MAX: usize = 4096;

/// The cards that have gone a short time ago, and when requests to each fail.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    cards: Vec<(IpAddr, Time)>,
    /// No requests fail before.
    again: Time,
}

impl Departed {
    /// Notes that a card has gone, if it is not known yet. Returns whether its time runs now.
    pub(crate) fn note(&mut self, now: Time, card: IpAddr) -> bool {
        if self.cards.iter().any(|(known, _)| *known == card) {
            return true;
        }
        let has_room = self.cards.len() < CARDS_MAX;
        if has_room {
            self.cards.push((card, now + GRACE));
        }
        has_room
    }

    /// Is there any?
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        !self.cards.is_empty()
    }

    /// Takes the cards whose time is over.
    pub(crate) fn take_over(&mut self, now: Time) -> Vec<IpAddr> {
        if self.next() > now {
            return Vec::new();
        }
        self.again = now + APART;
        let over = self.cards.partition_point(|(_, until)| *until <= now);
        self.cards.drain(..over).map(|(card, _)| card).collect()
    }

    /// When the next card's time is over.
    pub(crate) fn next(&self) -> Time {
        // They are in the order of their times.
        self.cards.first().map_or(Time::NEVER, |(_, until)| (*until).max(self.again))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_its_time_once() {
        let (mut departed, start) = (Departed::default(), Time::ZERO);
        let card = |last| IpAddr::from([127, 9, 9, last]);
        assert!(!departed.is_any() && departed.next() == Time::NEVER);
        assert!(departed.note(start, card(1)));
        let later = start + GRACE / 2;
        assert!(departed.note(later, card(1)) && departed.note(later, card(2)));
        assert_eq!((departed.take_over(later), departed.next()), (vec![], start + GRACE));
        assert_eq!(departed.take_over(start + GRACE), [card(1)]);
        // The next cards are told together, some time later.
        assert!(departed.note(start + GRACE, card(4)));
        let next = start + GRACE + APART;
        assert_eq!((departed.take_over(later + 2 * GRACE), departed.next()), (vec![], next));
        assert_eq!(departed.take_over(next), [card(2), card(4)]);
        assert!(!departed.is_any());
        for n in 0..CARDS_MAX as u32 {
            assert!(departed.note(start, IpAddr::from(n.to_be_bytes())));
        }
        assert!(!departed.note(start, card(3)), "there is no room");
    }
}
