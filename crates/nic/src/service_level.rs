//! Service levels: which queue pairs go before others, and which have more of the card (SRNIC §4.3
//! names both beside turns for all).
//!
//! A queue pair has a service level, as part of the [path](crate::Path) to its peer; it is what
//! verbs call `sl`. The card's configuration says what the levels mean. Of the levels with ready
//! queue pairs, those of the highest priority have all turns; among them, each has a share by its
//! weight, as clients have. The queue pairs of a level take turns.

use crate::client_shares::{Line, Shares};
use crate::turn_order::{Of, TurnOrder, Turns};

/// How many service levels there are: InfiniBand's, which have four bits.
pub const SERVICE_LEVELS: usize = 16;

/// What a service level means to a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServiceLevel {
    /// Levels of a higher priority go before it, and it goes before those of a lower one, which
    /// have nothing while it wants all.
    pub priority: u8,
    /// Its share beside levels of the same priority; 0 counts as 1.
    pub weight: u16,
}

impl Default for ServiceLevel {
    fn default() -> ServiceLevel {
        ServiceLevel { priority: 0, weight: 1 }
    }
}

/// What each service level means.
pub type ServiceLevels = [ServiceLevel; SERVICE_LEVELS];

/// Do all levels mean the same?
pub(crate) fn are_alike(levels: &ServiceLevels) -> bool {
    levels.iter().all(|level| *level == levels[0])
}

/// The index of a service level, of which only four bits count.
fn index(level: u8) -> usize {
    usize::from(level) % SERVICE_LEVELS
}

/// The ready queue pairs of a client.
#[derive(Clone, Debug)]
pub(crate) enum Ready {
    /// All levels are alike.
    Turns(Turns),
    /// Service levels differ.
    Levels(Box<Levels>),
}

impl Ready {
    /// None are ready.
    pub(crate) fn new(levels: &ServiceLevels, order: TurnOrder) -> Ready {
        match are_alike(levels) {
            true => Ready::Turns(Turns::new(order)),
            false => Ready::Levels(Box::new(Levels::new(levels, order))),
        }
    }
}

impl Default for Ready {
    fn default() -> Ready {
        Ready::Turns(Turns::default())
    }
}

impl Line for Ready {
    fn push(&mut self, of: Of, qpn: u32) {
        match self {
            Ready::Turns(ready) => Line::push(ready, of, qpn),
            Ready::Levels(levels) => levels.push(of, qpn),
        }
    }

    fn pop(&mut self) -> Option<u32> {
        match self {
            Ready::Turns(ready) => Line::pop(ready),
            Ready::Levels(levels) => levels.pop(),
        }
    }

    fn charge(&mut self, cost: u32) {
        if let Ready::Levels(levels) = self {
            levels.charge(cost);
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Ready::Turns(ready) => ready.is_empty(),
            Ready::Levels(levels) => levels.priorities.iter().all(|one| one.shares.len() == 0),
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        let (turns, levels) = match self {
            Ready::Turns(ready) => (Some(ready), None),
            Ready::Levels(levels) => (None, Some(levels)),
        };
        let of_levels = levels.into_iter().flat_map(|levels| &levels.priorities);
        let turns = turns.into_iter().flat_map(Turns::iter);
        turns.chain(of_levels.flat_map(|one| one.shares.iter()))
    }
}

/// The ready queue pairs by service level.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    /// The highest first.
    priorities: Vec<Priority>,
    /// The index of each level's priority.
    of: [u8; SERVICE_LEVELS],
    /// That of the queue pair that was taken last.
    current: usize,
}

/// The levels of one priority, which share by weight.
#[derive(Clone, Debug)]
struct Priority {
    priority: u8,
    /// By the number of the level, in the place of a client.
    shares: Shares<Turns>,
}

impl Levels {
    fn new(levels: &ServiceLevels, order: TurnOrder) -> Levels {
        let mut priorities: Vec<u8> = levels.iter().map(|level| level.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        priorities.dedup();
        let none = |priority| Priority { priority, shares: Shares::new(Turns::new(order)) };
        let mut priorities: Vec<Priority> = priorities.into_iter().map(none).collect();
        let mut of = [0; SERVICE_LEVELS];
        for (number, level) in levels.iter().enumerate() {
            let at = priorities.iter().position(|one| one.priority == level.priority);
            let at = at.expect("each level's priority is among all");
            of[number] = at as u8;
            priorities[at].shares.set_weight(number as u16, level.weight);
        }
        Levels { priorities, of, current: 0 }
    }

    fn push(&mut self, of: Of, qpn: u32) {
        let level = index(of.level);
        let one = &mut self.priorities[usize::from(self.of[level])];
        one.shares.push(Of { client: level as u16, ..of }, qpn);
    }

    fn pop(&mut self) -> Option<u32> {
        let at = self.priorities.iter().position(|one| one.shares.len() > 0)?;
        if at != self.current {
            // The queue pair that had a turn at the other priority may have become ready again.
            self.charge(0);
            self.current = at;
        }
        self.priorities[at].shares.pop()
    }

    fn charge(&mut self, cost: u32) {
        self.priorities[self.current].shares.charge(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Levels 0 and 1 of the lowest priority, of which 1 has three shares; 2 and 3 above them; 7
    /// above all.
    fn levels() -> ServiceLevels {
        let mut levels = ServiceLevels::default();
        levels[1].weight = 3;
        levels[2].priority = 1;
        levels[3] = ServiceLevel { priority: 1, weight: 0 };
        levels[7].priority = 200;
        levels
    }

    fn none() -> Ready {
        Ready::new(&levels(), TurnOrder::InTurn)
    }

    fn of(level: u8) -> Of {
        Of { level, ..Of::default() }
    }

    /// Gives a turn, of `cost`, to a queue pair that wants another one. Numbers are levels times
    /// 100, and more.
    fn turn(ready: &mut Ready, cost: u32) -> u32 {
        let qpn = ready.pop().unwrap();
        ready.push(of((qpn / 100) as u8), qpn);
        ready.charge(cost);
        qpn
    }

    #[test]
    fn weights_share_and_queue_pairs_of_a_level_take_turns() {
        let mut ready = none();
        for qpn in [0, 1, 2, 100, 101] {
            ready.push(of((qpn / 100) as u8), qpn);
        }
        let mut turns = [0_i32; 102];
        for _ in 0..6000 {
            turns[turn(&mut ready, 1000) as usize] += 1;
        }
        for (qpn, share) in [(0, 500), (1, 500), (2, 500), (100, 2250), (101, 2250)] {
            assert!((turns[qpn] - share).abs() <= 2, "{qpn}: {}", turns[qpn]);
        }
    }

    #[test]
    fn weights_count_what_turns_cost() {
        let mut ready = none();
        ready.push(of(0), 0);
        ready.push(of(1), 100);
        let mut spent = [0.0, 0.0];
        for _ in 0..10_000 {
            let qpn = ready.pop().unwrap();
            let cost = if qpn == 0 { 1700 } else { 300 };
            ready.push(of((qpn / 100) as u8), qpn);
            ready.charge(cost);
            spent[(qpn / 100) as usize] += f64::from(cost);
        }
        assert!((spent[1] / spent[0] - 3.0).abs() < 0.01, "{spent:?}");
    }

    #[test]
    fn a_higher_priority_has_all_turns_while_it_wants_them() {
        let mut ready = none();
        for qpn in [0, 100, 200, 300, 700] {
            ready.push(of((qpn / 100) as u8), qpn);
        }
        for _ in 0..100 {
            assert_eq!(turn(&mut ready, 1000), 700);
        }
        assert_eq!(ready.pop(), Some(700), "and is not ready again");
        ready.charge(1000);
        let turns: Vec<u32> = (0..4).map(|_| turn(&mut ready, 1000)).collect();
        assert_eq!(turns, [200, 300, 200, 300]);
        ready.push(of(7), 700);
        assert_eq!(ready.pop(), Some(700), "before those that go on");
        ready.charge(1000);
        for _ in 0..2 {
            assert!([200, 300].contains(&ready.pop().unwrap()));
            ready.charge(1000);
        }
        assert!([0, 100].contains(&ready.pop().unwrap()));
        ready.charge(1000);
        assert!(!ready.is_empty());
        assert_eq!(ready.iter().count(), 1);
    }

    /// The order is that within a level, whatever is left at others.
    #[test]
    fn the_shortest_of_a_level_is_first() {
        let mut ready = Ready::new(&levels(), TurnOrder::ShortestFirst);
        for (level, left, qpn) in [(0, 1, 1), (7, 9, 2), (7, 8, 3), (0, 0, 4)] {
            ready.push(Of { level, left, ..Of::default() }, qpn);
        }
        let all = core::iter::from_fn(|| ready.pop()).collect::<Vec<_>>();
        assert_eq!(all, [3, 2, 4, 1]);
    }

    #[test]
    fn who_is_pre_empted_is_not_forgotten() {
        let mut ready = none();
        ready.push(of(0), 0);
        // It is ready again before its turn ends, and so is one that goes before it.
        assert_eq!(ready.pop(), Some(0));
        ready.push(of(0), 0);
        ready.push(of(7), 700);
        // Nobody has said what the turn has cost.
        assert_eq!(ready.pop(), Some(700));
        ready.charge(1000);
        assert_eq!(ready.pop(), Some(0));
        assert_eq!(ready.pop(), None);
    }

    #[test]
    fn a_level_has_four_bits() {
        let mut ready = none();
        ready.push(of(0), 0);
        ready.push(of(0xF7), 1);
        assert_eq!(ready.pop(), Some(1));
    }
}
