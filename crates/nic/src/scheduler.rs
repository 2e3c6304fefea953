//! The scheduler: which queue pair has the next turn, and what it may spend in it (SRNIC §4.3).
//! Where clients share the card, service levels differ, or the shortest message goes first,
//! [`Shares`] decides which queue pair is next.
//!
//! A queue pair that has something to do is *ready*, and is in the schedule queue once. Each poll
//! of the card gives turns to the ready queue pairs, in order. A turn has a [`TurnBudget`]; a queue
//! pair that could go on when the budget is spent is ready again, behind the others. A queue pair
//! for which the pool of outstanding work has no room is *starved*, and ready when there is some.

use std::collections::VecDeque;

use crate::client_shares::Shares;
use crate::config::Config;
use crate::service_level::{self, Ready};
use crate::turn_order::{Of, TurnOrder};

/// How many elements loop-back queue pairs run in one [`crate::Nic::poll_transmit`]. They take
/// about 6 µs; then the driver can receive again.
const ELEMENTS_IN_CARD: u32 = 256;
/// The least cost of a turn where turns are paid for, in bytes: that of a packet of headers.
const LEAST_COST: u32 = 64;
/// What an element costs there at least, in bytes: to carry out a short message within the card
/// takes as long as to move so many.
const ELEMENT_COST: u32 = 1024;
/// What a step of a kernel costs there, in bytes: an access to memory, or 64 instructions, take
/// half as long as an element.
const STEP_COST: u32 = ELEMENT_COST / 2;

/// How many starved queue pairs are woken for each message that ends: some may have nothing to send
/// any more.
const FED_AT_ONCE: usize = 4;

/// The queue pairs that are ready, and those that are starved.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// SRNIC's schedule queue: the queue pairs that are ready, by number.
    ready: VecDeque<u32>,
    /// What stands in the place of `ready` once clients share the card, where service levels
    /// differ, and where the order is another.
    shares: Option<Box<Shares<Ready>>>,
    /// The budget of a whole turn.
    turn: TurnBudget,
    /// What the last turn has left of its budget.
    pub(crate) left: TurnBudget,
    /// The bytes that it has spent beyond its budget, with a message that was carried out whole.
    pub(crate) beyond: u32,
    /// Queue pairs that found the pool of outstanding work full, by number and whose they are.
    starved: VecDeque<(u32, Of)>,
    /// How many queue pairs were listed there so far, and how many of them were woken, so that none
    /// is listed twice.
    listed: u64,
    fed: u64,
}

impl Scheduler {
    pub(crate) fn new(config: &Config) -> Scheduler {
        let (levels, order) = (&config.service_levels, config.turn_order);
        let is_plain = service_level::are_alike(levels) && order == TurnOrder::InTurn;
        let shares = (!is_plain).then(|| Box::new(Shares::new(Ready::new(levels, order))));
        Scheduler { turn: TurnBudget::turn(config), shares, ..Scheduler::default() }
    }

    /// From now on clients share the card.
    pub(crate) fn share(&mut self) {
        if self.shares.is_none() {
            self.beyond = 0;
            let mut shares = Shares::<Ready>::default();
            self.ready.drain(..).for_each(|qpn| shares.push(Of::default(), qpn));
            self.shares = Some(Box::new(shares));
        }
    }

    /// Gives a client `weight` times the share of others.
    pub(crate) fn set_weight(&mut self, client: u16, weight: u16) {
        self.share();
        if let Some(shares) = &mut self.shares {
            shares.set_weight(client, weight);
        }
    }

    /// A scheduling event: the queue pair has something to do (the event mux of SRNIC §4.3.1).
    /// `queued` is the queue pair's own mark that it is in the schedule queue.
    #[inline]
    pub(crate) fn schedule(&mut self, qpn: u32, of: Of, queued: &mut bool) {
        if !*queued {
            *queued = true;
            match &mut self.shares {
                None => self.ready.push_back(qpn),
                Some(shares) => shares.push(of, qpn),
            }
        }
    }

    /// Notes that the pool of outstanding work has no more for the queue pair. `starved` is its own
    /// mark of when that was so last.
    pub(crate) fn starve(&mut self, qpn: u32, of: Of, starved: &mut u64) {
        // The mark is the number of the listing, counted from one, so that zero means "never".
        if *starved <= self.fed {
            self.listed += 1;
            *starved = self.listed;
            self.starved.push_back((qpn, of));
        }
    }

    /// Notes that the pool of outstanding work has room again: some starved queue pairs are ready,
    /// the first of them in front. `is_empty` says that no work is outstanding; then all are.
    /// Returns whether any were starved.
    ///
    /// Each message that ends makes room for one, so that a few are enough: to wake all each time
    /// would cost as many turns as there are queue pairs. While work is outstanding, more room is
    /// still to come for the others.
    #[inline]
    pub(crate) fn feed(&mut self, is_empty: bool) -> bool {
        let any = !self.starved.is_empty();
        if any {
            self.feed_some(if is_empty { self.starved.len() } else { FED_AT_ONCE });
        }
        any
    }

    #[inline(never)]
    fn feed_some(&mut self, most: usize) {
        for _ in 0..most {
            let Some((qpn, of)) = self.starved.pop_front() else { break };
            self.fed += 1;
            match &mut self.shares {
                None => self.ready.push_back(qpn),
                Some(shares) => shares.push(of, qpn),
            }
        }
    }

    /// How many queue pairs are ready.
    #[inline]
    pub(crate) fn ready_len(&self) -> usize {
        match &self.shares {
            None => self.ready.len(),
            Some(shares) => shares.len(),
        }
    }

    /// The bytes that are allocated for the queue pairs that are ready or starved, where no clients
    /// share the card.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.ready.capacity() * size_of::<u32>() + self.starved.capacity() * size_of::<(u32, Of)>()
    }

    /// The queue pairs that are ready.
    pub(crate) fn ready(&self) -> impl Iterator<Item = u32> {
        let shared = self.shares.iter().flat_map(|shares| shares.iter());
        self.ready.iter().copied().chain(shared)
    }

    /// Is no queue pair ready?
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.ready_len() == 0
    }

    /// The queue pair that has the next turn, where turns are not paid for.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        self.ready.front().copied()
    }

    /// The queue pair that has a turn behind `turns` others, where turns are not paid for.
    #[inline]
    pub(crate) fn ready_at(&self, turns: usize) -> Option<u32> {
        self.ready.get(turns).copied()
    }

    /// Takes the queue pair that has the next turn; it is no longer ready.
    #[inline]
    fn take(&mut self) -> Option<u32> {
        match &mut self.shares {
            None => self.ready.pop_front(),
            Some(shares) => shares.pop(),
        }
    }

    /// Are turns paid for: do clients share the card, do service levels differ, or is the order
    /// another?
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shares.is_some()
    }

    /// Has the client and the service level pay for the turn that has just ended, where turns are
    /// paid for.
    #[inline(never)]
    pub(crate) fn end_turn(&mut self) {
        let Some(shares) = &mut self.shares else { return };
        let (TurnBudget { elements, bytes }, left) = (self.turn, self.left);
        let by_elements = elements.saturating_sub(left.elements).saturating_mul(ELEMENT_COST);
        // Every turn costs something, since acknowledges do, too.
        let by_bytes = bytes.saturating_sub(left.bytes).max(LEAST_COST);
        let beyond = core::mem::take(&mut self.beyond);
        shares.charge(by_bytes.saturating_add(beyond).max(by_elements));
    }

    /// Has a client pay for so many steps of its kernels, where turns are paid for.
    #[inline]
    pub(crate) fn charge_steps(&mut self, client: u16, steps: u64) {
        if let Some(shares) = &mut self.shares {
            let steps = u32::try_from(steps).unwrap_or(u32::MAX);
            shares.charge_beside(client, steps.saturating_mul(STEP_COST));
        }
    }

    /// How much a client has had, where turns are paid for: who has had least is the first.
    pub(crate) fn clock(&self, client: u16) -> u128 {
        self.shares.as_ref().map_or(0, |shares| shares.clock(client))
    }

    /// Do turns of others come before those of a client's kernels?
    #[inline]
    pub(crate) fn comes_later(&self, client: u16) -> bool {
        self.shares.as_ref().is_some_and(|shares| shares.comes_later(client))
    }

    /// A round of turns, for a batch of at most `limit` packets.
    #[inline]
    pub(crate) fn round(&self, limit: usize) -> Round {
        // A turn may send nothing, so the turns are limited, too: the caller can receive again.
        let turns = self.ready_len().max(limit);
        Round { turns, in_card: ELEMENTS_IN_CARD, comes: false, serves: false }
    }

    /// Has the next turn a client that goes on, while others come back?
    #[inline]
    fn goes_on(&self) -> bool {
        self.shares.as_ref().is_some_and(|shares| shares.goes_on())
    }
}

/// The turns of one poll of the card.
#[derive(Debug)]
pub(crate) struct Round {
    /// How many turns may still be given.
    turns: usize,
    /// Elements that loop-back queue pairs may still run.
    in_card: u32,
    /// The present turn is that of a client that has come back.
    comes: bool,
    /// Something was run in the card for such a client, which is to hear of it before the long
    /// turns of those that go on.
    serves: bool,
}

impl Round {
    /// Takes the queue pair that has the next turn; it is no longer ready. `None` if the round is
    /// over.
    #[inline]
    pub(crate) fn next(&mut self, scheduler: &mut Scheduler) -> Option<u32> {
        let goes_on = scheduler.goes_on();
        if self.in_card == 0 || self.serves && goes_on {
            return None;
        }
        self.turns = self.turns.checked_sub(1)?;
        self.comes = !goes_on;
        scheduler.take()
    }

    /// Notes how many elements the last turn has run in the card.
    #[inline]
    pub(crate) fn spend_in_card(&mut self, elements: u32) {
        self.in_card = self.in_card.saturating_sub(elements);
        self.serves |= self.comes;
    }
}

/// What a turn, or a part of it, may still spend (SRNIC §4.3.1).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnBudget {
    pub(crate) elements: u32,
    pub(crate) bytes: u32,
}

impl TurnBudget {
    /// The budget of a whole turn.
    #[inline]
    pub(crate) fn turn(config: &Config) -> TurnBudget {
        TurnBudget { elements: config.fetch_elements, bytes: config.burst_bytes }
    }

    /// Divides a turn's budget: a part for answers to the peer, and a part for requests. A long
    /// READ by the peer must not hold up this queue pair's own requests.
    #[inline]
    pub(crate) fn share(self, has_requests: bool) -> (TurnBudget, TurnBudget) {
        let TurnBudget { elements, bytes } = self;
        let half = (bytes / 2).max(1);
        match has_requests {
            true => (TurnBudget { elements, bytes: half }, TurnBudget { elements, bytes: half }),
            false => (self, TurnBudget { elements, bytes: 0 }),
        }
    }

    /// Adds what is left of another part.
    #[inline]
    pub(crate) fn with_rest_of(self, other: TurnBudget) -> TurnBudget {
        TurnBudget { bytes: self.bytes + other.bytes, ..self }
    }

    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0
    }

    /// Spends a packet: its payload, and at least the size of its headers.
    #[inline]
    pub(crate) fn spend(&mut self, payload: u32) {
        self.bytes = self.bytes.saturating_sub(payload.max(LEAST_COST));
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
            scheduler.schedule(qpn, Of::default(), &mut queued[qpn as usize]);
        }
        let mut round = scheduler.round(1);
        assert_eq!(round.next(&mut scheduler), Some(2));
        queued[2] = false;
        scheduler.schedule(2, Of::default(), &mut queued[2]);
        assert_eq!(round.next(&mut scheduler), Some(0));
        assert_eq!(round.next(&mut scheduler), Some(1));
        assert_eq!(round.next(&mut scheduler), None, "each has had its turn");
        assert_eq!(scheduler.ready().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn the_starved_are_ready_once_there_is_room() {
        let mut scheduler = Scheduler::default();
        let mut starved = [0; 2];
        for qpn in [1, 0, 1] {
            scheduler.starve(qpn, Of::default(), &mut starved[qpn as usize]);
        }
        assert!(scheduler.is_idle());
        scheduler.feed(false);
        assert_eq!(scheduler.ready().collect::<Vec<_>>(), [1, 0]);
        scheduler.starve(1, Of::default(), &mut starved[1]);
        scheduler.feed(false);
        assert_eq!(scheduler.ready().collect::<Vec<_>>(), [1, 0, 1]);
    }

    #[test]
    fn of_many_starved_a_few_are_woken_at_a_time_and_all_in_the_end() {
        let mut scheduler = Scheduler::default();
        let mut starved = [0; 100];
        for qpn in 0..100 {
            scheduler.starve(qpn, Of::default(), &mut starved[qpn as usize]);
        }
        scheduler.feed(false);
        assert_eq!(scheduler.ready().collect::<Vec<_>>(), [0, 1, 2, 3]);
        scheduler.starve(99, Of::default(), &mut starved[99]);
        scheduler.starve(0, Of::default(), &mut starved[0]);
        scheduler.feed(true);
        assert_eq!(scheduler.ready_len(), 101, "each once, and the first again");
    }

    #[test]
    fn work_in_the_card_ends_a_round() {
        let mut scheduler = Scheduler::default();
        let mut queued = [false; 2];
        scheduler.schedule(0, Of::default(), &mut queued[0]);
        scheduler.schedule(1, Of::default(), &mut queued[1]);
        let mut round = scheduler.round(8);
        assert_eq!(round.next(&mut scheduler), Some(0));
        round.spend_in_card(ELEMENTS_IN_CARD);
        assert_eq!(round.next(&mut scheduler), None);
    }

    #[test]
    fn answers_and_requests_share_a_turn() {
        let turn = TurnBudget { elements: 8, bytes: 1000 };
        let (mut answers, requests) = turn.share(true);
        answers.spend(400);
        assert_eq!(requests.with_rest_of(answers).bytes, 600);
        let (answers, requests) = turn.share(false);
        assert_eq!((answers.bytes, requests.bytes), (1000, 0));
    }
}
