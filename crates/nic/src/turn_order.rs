//! The order in which the ready queue pairs of a client and service level have turns: one after the
//! other, as SRNIC's have (§4.3), or the one first that has the least left to send.
//!
//! With the shortest first, a message need not wait for longer ones that others have posted, and
//! the mean time that messages take is the least that an order can make it. The longest would wait
//! as long as shorter ones come, so one turn in [`EACH`] is that of the queue pair that has waited
//! longest: of n that are ready, each has a turn within `EACH` · n turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Who of the queue pairs that are ready has the next turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TurnOrder {
    /// The one that has waited longest.
    #[default]
    InTurn,
    /// The one with the least left of the message that it sends, and one in eight times the one
    /// that has waited longest. Of a message that was not begun the length is not known before its
    /// first turn, which it has at once.
    ShortestFirst,
}

impl TurnOrder {
    /// All orders.
    pub const ALL: [TurnOrder; 2] = [TurnOrder::InTurn, TurnOrder::ShortestFirst];

    /// The order's name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            TurnOrder::InTurn => "in-turn",
            TurnOrder::ShortestFirst => "shortest-first",
        }
    }

    /// The order with this name.
    pub fn named(name: &str) -> Option<TurnOrder> {
        TurnOrder::ALL.into_iter().find(|order| order.name() == name)
    }
}

/// One turn in so many is that of the queue pair that has waited longest.
const EACH: u32 = 8;

/// Whose a queue pair is, and what it has left to send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Of {
    /// The number of its client.
    pub(crate) client: u16,
    /// Its service level.
    pub(crate) level: u8,
    /// The bytes that are left of the message that it sends, where [`TurnOrder::ShortestFirst`]
    /// asks for them.
    pub(crate) left: u32,
}

/// Ready queue pairs, by number.
#[derive(Clone, Debug)]
pub(crate) enum Turns {
    InTurn(VecDeque<u32>),
    ShortestFirst(Box<ByLength>),
}

/// Ready queue pairs by what they have left, and by when they became ready.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByLength {
    /// What each has left, and its place in `waiting`.
    by_left: BTreeSet<(u32, u64)>,
    /// In the order in which they became ready: number, and what is left.
    waiting: BTreeMap<u64, (u32, u32)>,
    /// How many became ready so far.
    came: u64,
    /// Turns since the last of the one that had waited longest.
    turns: u32,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::InTurn(VecDeque::new())
    }
}

impl Turns {
    /// None are ready.
    pub(crate) fn new(order: TurnOrder) -> Turns {
        match order {
            TurnOrder::InTurn => Turns::default(),
            TurnOrder::ShortestFirst => Turns::ShortestFirst(Box::default()),
        }
    }

    /// Notes that a queue pair is ready.
    pub(crate) fn push(&mut self, left: u32, qpn: u32) {
        match self {
            Turns::InTurn(ready) => ready.push_back(qpn),
            Turns::ShortestFirst(ready) => ready.push(left, qpn),
        }
    }

    /// Takes the queue pair that has the next turn.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        match self {
            Turns::InTurn(ready) => ready.pop_front(),
            Turns::ShortestFirst(ready) => ready.pop(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Turns::InTurn(ready) => ready.is_empty(),
            Turns::ShortestFirst(ready) => ready.waiting.is_empty(),
        }
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let (in_turn, by_length) = match self {
            Turns::InTurn(ready) => (Some(ready), None),
            Turns::ShortestFirst(ready) => (None, Some(&ready.waiting)),
        };
        let by_length = by_length.into_iter().flat_map(BTreeMap::values);
        in_turn.into_iter().flatten().copied().chain(by_length.map(|(qpn, _)| *qpn))
    }
}

impl ByLength {
    fn push(&mut self, left: u32, qpn: u32) {
        self.by_left.insert((left, self.came));
        self.waiting.insert(self.came, (qpn, left));
        self.came += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        let (longest, _) = self.waiting.first_key_value()?;
        let place = match self.by_left.first() {
            Some((_, place)) if self.turns + 1 < EACH => *place,
            _ => *longest,
        };
        self.turns = (self.turns + 1) % EACH;
        let (qpn, left) = self.waiting.remove(&place)?;
        self.by_left.remove(&(left, place));
        Some(qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_has_a_name_of_its_own() {
        for order in TurnOrder::ALL {
            assert_eq!(TurnOrder::named(order.name()), Some(order));
        }
        assert_eq!(TurnOrder::named("shortest"), None);
    }

    #[test]
    fn in_turn_what_is_left_does_not_count() {
        let mut turns = Turns::new(TurnOrder::InTurn);
        [(9, 1), (0, 2), (5, 3)].iter().for_each(|(left, qpn)| turns.push(*left, *qpn));
        assert_eq!(core::iter::from_fn(|| turns.pop()).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn who_has_least_left_is_first_and_of_two_alike_the_one_that_came_first() {
        let mut turns = Turns::new(TurnOrder::ShortestFirst);
        let ready = [(9, 1), (0, 2), (5, 3), (0, 4), (u32::MAX, 5)];
        ready.iter().for_each(|(left, qpn)| turns.push(*left, *qpn));
        assert_eq!(turns.iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(core::iter::from_fn(|| turns.pop()).collect::<Vec<_>>(), [2, 4, 3, 1, 5]);
        assert!(turns.is_empty() && turns.pop().is_none());
    }

    /// Shorter ones come without end, and the long ones have their turns all the same.
    #[test]
    fn nobody_waits_for_ever() {
        let mut turns = Turns::new(TurnOrder::ShortestFirst);
        let long = [100, 101, 102];
        long.iter().for_each(|qpn| turns.push(1 << 20, *qpn));
        let mut had = Vec::new();
        for short in 0..3 * EACH {
            turns.push(1, short);
            had.extend(turns.pop());
        }
        let of_long: Vec<u32> = had.iter().copied().filter(|qpn| *qpn >= 100).collect();
        assert_eq!((of_long, had.len()), (vec![100, 101, 102], 3 * EACH as usize));
    }
}
