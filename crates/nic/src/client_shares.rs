//! The shares of clients: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
//!
//! Each client has a clock, which goes on by what its turns cost. Of the clients with ready queue
//! pairs, the one whose clock would be furthest behind after a turn that costs as much as its last
//! one has the next turn; its queue pairs take turns among themselves. So each has the same share
//! of the card while it wants it, whatever the number of its queue pairs and the size of its
//! messages. A client that comes back sets its clock to the present, if it is behind: nothing is
//! saved up. And one that asks for less than its share has its turn as soon as the present one is
//! over, however many others want more. (By the clocks alone it would have one small turn for each
//! long turn that *all* others have, and wait for those of all.)
//!
//! The clock of a client of weight n goes n times as slowly, and so it has n times the share of
//! others.
//!
//! What a client is given beside the turns of its queue pairs, as the steps of its kernels are, its
//! clock counts, too. Kernels ask whether others come first, and wait if so.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::turn_order::{Of, Turns};

/// What a clock goes on by for a cost of one at weight one: weights divide it.
const TICKS: u128 = 1 << 16;

/// The ready queue pairs of one client, by number.
pub(crate) trait Line: Clone {
    /// Notes that a queue pair is ready.
    fn push(&mut self, of: Of, qpn: u32);
    /// Takes the queue pair that has the next turn.
    fn pop(&mut self) -> Option<u32>;
    /// Notes what the turn of the queue pair that was taken last has cost.
    fn charge(&mut self, cost: u32);
    fn is_empty(&self) -> bool;
    /// All of them, in no order.
    fn iter(&self) -> impl Iterator<Item = u32>;
}

/// They have turns in their order, of whatever level they are.
impl Line for Turns {
    fn push(&mut self, of: Of, qpn: u32) {
        Turns::push(self, of.left, qpn);
    }

    fn pop(&mut self) -> Option<u32> {
        Turns::pop(self)
    }

    fn charge(&mut self, _: u32) {}

    fn is_empty(&self) -> bool {
        Turns::is_empty(self)
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        Turns::iter(self)
    }
}

/// The ready queue pairs, by client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares<L> {
    /// By the number of the client. The driver counts its clients, so that there are few.
    clients: Vec<Client<L>>,
    /// The clients with ready queue pairs, except the one that has its turn.
    line: BinaryHeap<Reverse<Place>>,
    /// The client that has its turn.
    current: Option<u16>,
    /// The clock of the client that had the last turn, as it was then.
    now: u128,
    /// How many places were taken so far.
    taken: u64,
    ready: usize,
    /// Of a new client.
    empty: L,
}

/// A client's place in the line. The least one is first: by what its clock will be, then those that
/// come back before those that go on, then the one that has come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    /// The client's clock when it has had its turn, if that costs as much as its last one.
    end: u128,
    goes_on: bool,
    number: u64,
    client: u16,
}

#[derive(Clone, Debug)]
struct Client<L> {
    /// Its ready queue pairs.
    ready: L,
    clock: u128,
    /// What its last turn has cost, as its clock counts.
    last: u128,
    in_line: bool,
    /// How many shares it has more than one.
    more: u16,
}

impl<L: Line> Shares<L> {
    /// No queue pairs are ready. `empty` is what a client has at first.
    pub(crate) fn new(empty: L) -> Shares<L> {
        let (clients, line) = (Vec::new(), BinaryHeap::new());
        Shares { clients, line, current: None, now: 0, taken: 0, ready: 0, empty }
    }

    /// Notes that a queue pair is ready.
    #[inline(never)]
    pub(crate) fn push(&mut self, of: Of, qpn: u32) {
        let client = of.client;
        let own = self.of(client);
        own.ready.push(of, qpn);
        let comes = !own.in_line;
        self.ready += 1;
        if comes && self.current != Some(client) {
            self.line_up(client, false);
        }
    }

    /// Takes the queue pair that has the next turn.
    #[inline(never)]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.charge(0);
        let Reverse(Place { client, .. }) = self.line.pop()?;
        self.current = Some(client);
        let of = self.of(client);
        of.in_line = false;
        let (now, qpn) = (of.clock, of.ready.pop()?);
        self.now = now;
        self.ready -= 1;
        self.correct();
        Some(qpn)
    }

    /// Does the client go on that has the next turn, rather than come back?
    pub(crate) fn goes_on(&self) -> bool {
        self.line.peek().is_some_and(|Reverse(place)| place.goes_on)
    }

    /// Notes what the turn of the queue pair that was taken last has cost its client.
    pub(crate) fn charge(&mut self, cost: u32) {
        let Some(client) = self.current.take() else { return };
        let of = self.of(client);
        of.ready.charge(cost);
        of.last = u128::from(cost) * TICKS / (u128::from(of.more) + 1);
        of.clock += of.last;
        if !of.ready.is_empty() {
            self.line_up(client, true);
        }
    }

    /// The clock of a client, which is not in the past if it comes back now. (One that stands in
    /// line may be behind, by as much as its turns cost more than others'.)
    pub(crate) fn clock(&self, client: u16) -> u128 {
        match self.clients.get(usize::from(client)) {
            Some(of) if of.in_line || self.current == Some(client) => of.clock,
            of => of.map_or(0, |of| of.clock).max(self.now),
        }
    }

    /// Do turns of others come before what a client is to be given beside its turns?
    pub(crate) fn comes_later(&self, client: u16) -> bool {
        let clock = self.clock(client);
        let has_turn = self.current.filter(|current| *current != client);
        let first = self.line.peek().filter(|Reverse(first)| first.client != client);
        has_turn.is_some_and(|current| self.clock(current) < clock)
            || first.is_some_and(|Reverse(first)| first.end < clock)
    }

    /// Notes what a client was given beside the turns of its queue pairs.
    pub(crate) fn charge_beside(&mut self, client: u16, cost: u32) {
        let clock = self.clock(client);
        // Nobody owes anything for what nobody else has wanted.
        if !self.comes_later(client) {
            self.now = self.now.max(clock);
        }
        let of = self.of(client);
        of.clock = clock + u128::from(cost) * TICKS / (u128::from(of.more) + 1);
        self.correct();
    }

    /// Puts those to their place in the line that were given something meanwhile, as far as they
    /// stand in front.
    fn correct(&mut self) {
        while let Some(&Reverse(first)) = self.line.peek() {
            let of = &self.clients[usize::from(first.client)];
            let end = of.clock + of.last;
            if end <= first.end {
                return;
            }
            self.line.pop();
            self.line.push(Reverse(Place { end, ..first }));
        }
    }

    fn line_up(&mut self, client: u16, goes_on: bool) {
        let (now, number) = (self.now, self.taken);
        self.taken += 1;
        let of = self.of(client);
        of.in_line = true;
        of.clock = of.clock.max(now);
        let end = of.clock + of.last;
        self.line.push(Reverse(Place { end, goes_on, number, client }));
    }

    /// Gives a client `weight` times the share of others; 0 counts as 1.
    pub(crate) fn set_weight(&mut self, client: u16, weight: u16) {
        self.of(client).more = weight.max(1) - 1;
    }

    fn of(&mut self, client: u16) -> &mut Client<L> {
        let at = usize::from(client);
        if at >= self.clients.len() {
            let ready = self.empty.clone();
            let none = Client { ready, clock: 0, last: 0, in_line: false, more: 0 };
            self.clients.resize(at + 1, none);
        }
        &mut self.clients[at]
    }

    /// How many queue pairs are ready.
    pub(crate) fn len(&self) -> usize {
        self.ready
    }

    /// The queue pairs that are ready, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.clients.iter().flat_map(|client| client.ready.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: u32 = 1000;

    fn none() -> Shares<Turns> {
        Shares::default()
    }

    fn of(client: u16) -> Of {
        Of { client, ..Of::default() }
    }

    /// Gives `turns` turns to queue pairs that are always ready. A queue pair's number is its
    /// client's times 100, and more; `cost` says what its turn costs. Returns what each client has
    /// spent.
    fn spent(qps: &[u32], turns: usize, cost: impl Fn(u32) -> u32) -> Vec<u32> {
        let client = |qpn: u32| (qpn / 100) as u16;
        let mut shares = none();
        qps.iter().for_each(|&qpn| shares.push(of(client(qpn)), qpn));
        let mut spent = vec![0; 4];
        for _ in 0..turns {
            let qpn = shares.pop().unwrap();
            shares.push(of(client(qpn)), qpn);
            shares.charge(cost(qpn));
            spent[usize::from(client(qpn))] += cost(qpn);
        }
        spent
    }

    #[test]
    fn many_queue_pairs_do_not_make_a_share_larger() {
        let qps: Vec<u32> = (100..200).chain([200]).collect();
        let spent = spent(&qps, 1000, |_| COST);
        assert_eq!(spent[1..3], [500 * COST; 2]);
    }

    #[test]
    fn weights_make_shares_larger() {
        let mut shares = none();
        shares.set_weight(2, 3);
        shares.set_weight(3, 0);
        for qpn in [100, 200, 300] {
            shares.push(of((qpn / 100) as u16), qpn);
        }
        let mut turns = [0; 4];
        for _ in 0..5000 {
            let qpn = shares.pop().unwrap();
            shares.push(of((qpn / 100) as u16), qpn);
            shares.charge(COST);
            turns[(qpn / 100) as usize] += 1;
        }
        for (got, share) in turns.iter().zip([0, 1000, 3000, 1000_i32]) {
            assert!((got - share).abs() <= 2, "{turns:?}");
        }
        shares.set_weight(2, 1);
        let before = turns[2];
        for _ in 0..3000 {
            let qpn = shares.pop().unwrap();
            shares.push(of((qpn / 100) as u16), qpn);
            shares.charge(COST);
            turns[(qpn / 100) as usize] += 1;
        }
        assert!((998..=1004).contains(&(turns[2] - before)), "{}", turns[2] - before);
    }

    #[test]
    fn small_turns_are_more_turns() {
        let spent = spent(&[100, 200], 10_000, |qpn| if qpn == 100 { 1700 } else { 64 });
        let (large, small) = (f64::from(spent[1]), f64::from(spent[2]));
        assert!((large / small - 1.0).abs() < 0.01, "{large} {small}");
    }

    #[test]
    fn nothing_is_saved_up_while_idle() {
        let mut shares = none();
        shares.push(of(1), 100);
        for _ in 0..1000 {
            assert_eq!(shares.pop(), Some(100));
            shares.push(of(1), 100);
            shares.charge(COST);
        }
        // Client 2 was away for a thousand turns, and has one for each of the other's from now on.
        shares.push(of(2), 200);
        let mut turns = [0; 3];
        for _ in 0..100 {
            let qpn = shares.pop().unwrap();
            shares.push(of((qpn / 100) as u16), qpn);
            shares.charge(COST);
            turns[(qpn / 100) as usize] += 1;
        }
        assert!((49..=51).contains(&turns[2]), "{turns:?}");
    }

    #[test]
    fn who_asks_for_little_is_next() {
        let mut shares = none();
        (1..=16).for_each(|client| shares.push(of(client), u32::from(client)));
        for round in 0..1000 {
            // Each of the others has a turn before it asks again, at least.
            for _ in 0..round % 23 + 16 {
                let qpn = shares.pop().unwrap();
                assert_ne!(qpn, 99, "once for each time that it asks");
                shares.push(of(qpn as u16), qpn);
                // It becomes ready while another has its turn.
                if round % 2 == 0 {
                    shares.charge(COST);
                } else {
                    shares.charge(COST - 300 + qpn * 7);
                }
            }
            shares.push(of(99), 99);
            assert_eq!(shares.pop(), Some(99), "{round}");
            shares.charge(64);
        }
    }

    #[test]
    fn who_asks_for_little_is_next_however_soon_it_asks_again() {
        let mut shares = none();
        (1..=16).for_each(|client| shares.push(of(client), u32::from(client)));
        let mut firsts = [true; 100];
        let mut turn = |asks: bool| {
            if asks {
                shares.push(of(99), 99);
            }
            let qpn = shares.pop().unwrap();
            if qpn != 99 {
                shares.push(of(qpn as u16), qpn);
            }
            let cost = if qpn == 99 { COST / 16 } else { COST };
            // The first turns put the clocks of the others at different times.
            let first = core::mem::replace(&mut firsts[qpn as usize], false);
            shares.charge(if first { cost * qpn / 16 } else { cost });
            qpn
        };
        // Until their costs are known, all are alike.
        (0..40).for_each(|_| _ = turn(false));
        for round in 0..1000 {
            assert_eq!(turn(true), 99, "{round}");
            (0..round % 3 + 1).for_each(|_| assert_ne!(turn(false), 99));
        }
    }

    #[test]
    fn who_asks_for_little_without_end_has_its_share_only() {
        let cost = |qpn| if qpn == 300 { COST / 8 } else { COST };
        let spent = spent(&[100, 200, 300], 10_000, cost);
        assert!((spent[3].abs_diff(spent[1])) <= 2 * COST, "{spent:?}");
    }

    /// What the clients 1 and 2 have spent, whose queue pairs are always ready, where the first is
    /// given so much beside its turns whenever it does not come later.
    fn spent_beside(given: u32, weight: u16) -> [u64; 2] {
        let mut shares = none();
        shares.set_weight(1, weight);
        (1..=2).for_each(|client| shares.push(of(client), u32::from(client)));
        let mut spent = [0; 2];
        for _ in 0..10_000 {
            if !shares.comes_later(1) {
                shares.charge_beside(1, given);
                spent[0] += u64::from(given);
            }
            let qpn = shares.pop().unwrap();
            shares.push(of(qpn as u16), qpn);
            shares.charge(COST);
            spent[qpn as usize - 1] += u64::from(COST);
        }
        spent
    }

    #[test]
    fn what_is_given_beside_turns_counts_for_the_share() {
        for given in [COST / 10, COST, 100 * COST] {
            for weight in [1, 3] {
                let [one, other] = spent_beside(given, weight);
                let most = u64::from(2 * given + 4 * COST);
                assert!(one.abs_diff(other * u64::from(weight)) <= most, "{one} {other}");
            }
        }
    }

    /// A client with long turns waits until the clock of one with short turns is ahead of its own
    /// by the difference: what its kernels are given meanwhile does not put it to the end again.
    #[test]
    fn who_is_given_little_while_it_waits_has_its_turn() {
        for (long, short, between) in [(16 << 10, 1 << 10, 16), (16 << 10, 8 << 10, 1)] {
            let mut shares = none();
            (1..=2).for_each(|client| shares.push(of(client), u32::from(client)));
            let (mut spent, mut turns) = ([0_u64; 2], 0);
            for _ in 0..10_000 {
                let qpn = shares.pop().unwrap();
                let cost = if qpn == 1 { long } else { short };
                shares.push(of(qpn as u16), qpn);
                shares.charge(cost);
                spent[qpn as usize - 1] += u64::from(cost);
                turns += u32::from(qpn == 2);
                if qpn == 2 && turns % between == 0 && !shares.comes_later(1) {
                    shares.charge_beside(1, 512);
                    spent[0] += 512;
                }
            }
            assert!(spent[0].abs_diff(spent[1]) <= u64::from(2 * long), "{spent:?}");
        }
    }

    #[test]
    fn what_nobody_else_wanted_is_not_owed() {
        let mut shares = none();
        for _ in 0..1000 {
            assert!(!shares.comes_later(1));
            shares.charge_beside(1, 100 * COST);
        }
        (1..=2).for_each(|client| shares.push(of(client), u32::from(client)));
        let mut turns = [0; 3];
        for _ in 0..1000 {
            let qpn = shares.pop().unwrap();
            shares.push(of(qpn as u16), qpn);
            shares.charge(COST);
            turns[qpn as usize] += 1;
        }
        assert!((400..=500).contains(&turns[1]), "{turns:?}");
    }

    #[test]
    fn who_asks_for_little_does_not_wait_for_what_others_are_given() {
        let mut shares = none();
        for round in 0..1000 {
            shares.charge_beside(1, 100 * COST);
            shares.push(of(1), 1);
            shares.push(of(2), 2);
            assert!(shares.comes_later(1), "{round}");
            assert_eq!(shares.pop(), Some(2), "{round}");
            shares.charge(64);
            assert!(!shares.comes_later(1), "the queue pair that waits is its own");
            assert_eq!(shares.pop(), Some(1));
            shares.charge(64);
        }
    }

    #[test]
    fn all_that_are_ready_have_their_turn() {
        let mut shares = none();
        let qps = [(3, 30), (0, 1), (3, 31), (65_535, 9), (0, 2)];
        qps.iter().for_each(|&(client, qpn)| shares.push(of(client), qpn));
        assert_eq!((shares.len(), shares.iter().count()), (5, 5));
        let mut taken: Vec<u32> = core::iter::from_fn(|| shares.pop()).collect();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 9, 30, 31]);
        assert_eq!((shares.len(), shares.pop()), (0, None));
        shares.charge(5);
    }
}
