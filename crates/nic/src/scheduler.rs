//! The scheduler: which queue pair has the next turn, and what it may spend in it (SRNIC §4.3).
//!
//! A queue pair that has something to do is *ready*, and stands once in the schedule queue. Each
//! poll of the card gives turns to the ready ones, in order; a turn has a [`Budget`], and a queue
//! pair that could go on when it is spent is ready again, behind the others. One that found the
//! pool of outstanding work full is *starved*: it is ready as soon as there is room.

use std::collections::VecDeque;

use crate::config::Config;

/// Elements that loop-back queue pairs run in one [`crate::Nic::poll_transmit`]: some 6 µs of a
/// processor, after which the driver of the card gets to receive.
const ELEMENTS_IN_CARD: u32 = 256;

/// The queue pairs that are ready, and those that are starved.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// SRNIC's schedule queue: the queue pairs that are ready, by number.
    ready: VecDeque<u32>,
    /// Queue pairs that found the pool of outstanding work full, by number.
    starved: Vec<u32>,
    /// Counts how often the starved were woken, so that none stands among them twice.
    feedings: u32,
}

impl Scheduler {
    /// A scheduling event: the queue pair has something to do (SRNIC's event mux). `queued` is the
    /// queue pair's own mark that it stands in the schedule queue.
    #[inline]
    pub(crate) fn schedule(&mut self, qpn: u32, queued: &mut bool) {
        if !*queued {
            *queued = true;
            self.ready.push_back(qpn);
        }
    }

    /// The queue pair found the pool of outstanding work full. `starved` is its own mark of when it
    /// last did.
    pub(crate) fn starve(&mut self, qpn: u32, starved: &mut u32) {
        // One more than the feedings, so that zero stands for never.
        let now = self.feedings.wrapping_add(1);
        if *starved != now {
            *starved = now;
            self.starved.push(qpn);
        }
    }

    /// The pool of outstanding work has room again: those that waited for it are ready.
    #[inline]
    pub(crate) fn feed(&mut self) {
        if !self.starved.is_empty() {
            self.feedings = self.feedings.wrapping_add(1);
            self.ready.extend(self.starved.drain(..));
        }
    }

    /// The queue pairs that are ready, the next one first.
    #[inline]
    pub(crate) fn ready(&self) -> impl ExactSizeIterator<Item = u32> {
        self.ready.iter().copied()
    }

    /// Is no queue pair ready?
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// A round of turns, for a batch of at most `limit` packets.
    #[inline]
    pub(crate) fn round(&self, limit: usize) -> Round {
        // A turn may send nothing, so turns are bounded too: the caller gets to receive again.
        Round { turns: self.ready.len().max(limit), in_card: ELEMENTS_IN_CARD }
    }
}

/// The turns of one poll of the card.
#[derive(Debug)]
pub(crate) struct Round {
    /// How many turns may still be given.
    turns: usize,
    /// Elements that loop-back queue pairs may still run.
    in_card: u32,
}

impl Round {
    /// The queue pair that has the next turn, which is no longer ready; `None`: the round is over.
    #[inline]
    pub(crate) fn next(&mut self, scheduler: &mut Scheduler) -> Option<u32> {
        if self.in_card == 0 {
            return None;
        }
        self.turns = self.turns.checked_sub(1)?;
        scheduler.ready.pop_front()
    }

    /// The last turn ran so many elements in the card.
    #[inline]
    pub(crate) fn spend_in_card(&mut self, elements: u32) {
        self.in_card = self.in_card.saturating_sub(elements);
    }
}

/// What a turn, or a part of it, may still spend (SRNIC §4.3.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) elements: u32,
    pub(crate) bytes: u32,
}

impl Budget {
    /// A whole turn.
    #[inline]
    pub(crate) fn turn(config: &Config) -> Budget {
        Budget { elements: config.fetch_elements, bytes: config.burst_bytes }
    }

    /// Cuts a turn in two: what answers to the peer may spend, and what is kept for requests
    /// besides. A long READ by the peer must not keep our own requests waiting.
    #[inline]
    pub(crate) fn share(self, has_requests: bool) -> (Budget, Budget) {
        let Budget { elements, bytes } = self;
        let half = (bytes / 2).max(1);
        match has_requests {
            true => (Budget { elements, bytes: half }, Budget { elements, bytes: half }),
            false => (self, Budget { elements, bytes: 0 }),
        }
    }

    /// Takes over what is left of another part.
    #[inline]
    pub(crate) fn with_rest_of(self, other: Budget) -> Budget {
        Budget { bytes: self.bytes + other.bytes, ..self }
    }

    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0
    }

    /// A packet counts its payload, and at least its headers.
    #[inline]
    pub(crate) fn spend(&mut self, payload: u32) {
        self.bytes = self.bytes.saturating_sub(payload.max(64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_take_turns_and_stand_in_line_once() {
        let mut scheduler = Scheduler::default();
        let mut queued = [false; 3];
        for qpn in [2, 0, 1, 0, 2] {
            scheduler.schedule(qpn, &mut queued[qpn as usize]);
        }
        let mut round = scheduler.round(1);
        assert_eq!(round.next(&mut scheduler), Some(2));
        queued[2] = false;
        scheduler.schedule(2, &mut queued[2]);
        assert_eq!(round.next(&mut scheduler), Some(0));
        assert_eq!(round.next(&mut scheduler), Some(1));
        assert_eq!(round.next(&mut scheduler), None, "a turn each, and then others act");
        assert_eq!(scheduler.ready().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn the_starved_are_ready_once_there_is_room() {
        let mut scheduler = Scheduler::default();
        let mut starved = [0; 2];
        for qpn in [1, 0, 1] {
            scheduler.starve(qpn, &mut starved[qpn as usize]);
        }
        assert!(scheduler.is_idle());
        scheduler.feed();
        assert_eq!(scheduler.ready().collect::<Vec<_>>(), [1, 0]);
        scheduler.starve(1, &mut starved[1]);
        scheduler.feed();
        assert_eq!(scheduler.ready().collect::<Vec<_>>(), [1, 0, 1]);
    }

    #[test]
    fn work_in_the_card_ends_a_round() {
        let mut scheduler = Scheduler::default();
        let mut queued = [false; 2];
        scheduler.schedule(0, &mut queued[0]);
        scheduler.schedule(1, &mut queued[1]);
        let mut round = scheduler.round(8);
        assert_eq!(round.next(&mut scheduler), Some(0));
        round.spend_in_card(ELEMENTS_IN_CARD);
        assert_eq!(round.next(&mut scheduler), None);
    }

    #[test]
    fn answers_and_requests_share_a_turn() {
        let turn = Budget { elements: 8, bytes: 1000 };
        let (mut answers, requests) = turn.share(true);
        answers.spend(400);
        assert_eq!(requests.with_rest_of(answers).bytes, 600);
        let (answers, requests) = turn.share(false);
        assert_eq!((answers.bytes, requests.bytes), (1000, 0));
    }
}
