//! The shares of clients: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).
//!
//! Clients with ready queue pairs stand in line. The first one's queue pairs have turns, one after
//! the other, until the client has spent its credit; then the next client follows, and the first
//! gets new credit at the end of the line. So each has the same share of the card while it wants
//! it, whatever the number of its queue pairs and the size of its messages.
//!
//! A client of weight n gets n times the credit of others, and so n times their share.
//!
//! What a turn costs is known only behind it. So a client may overdraw its credit by a part of one
//! turn, which its next credit pays for.

use std::collections::VecDeque;

/// The ready queue pairs, by client.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// By the number of the client. The driver counts its clients, so that there are few.
    clients: Vec<Client>,
    /// The clients with ready queue pairs, and the one that has just had a turn.
    line: VecDeque<u16>,
    ready: usize,
}

#[derive(Debug, Default)]
struct Client {
    /// Its ready queue pairs, by number.
    ready: VecDeque<u32>,
    /// What it may still spend; below zero, what it has spent too much.
    credit: i64,
    in_line: bool,
    /// How many shares it has more than one.
    more: u16,
}

impl Client {
    /// What the client gets in a round in which others get `credit`.
    fn credit(&self, credit: u32) -> i64 {
        i64::from(credit.max(1)) * (i64::from(self.more) + 1)
    }
}

impl Shares {
    /// Notes that a queue pair of `client` is ready. A client that comes into line gets `credit`.
    #[inline(never)]
    pub(crate) fn push(&mut self, client: u16, qpn: u32, credit: u32) {
        let of = self.of(client);
        of.ready.push_back(qpn);
        if !of.in_line {
            of.in_line = true;
            of.credit += of.credit(credit);
            self.line.push_back(client);
        }
        self.ready += 1;
    }

    /// Takes the queue pair that has the next turn. `credit` is what a client gets each round; it
    /// is not zero.
    #[inline(never)]
    pub(crate) fn pop(&mut self, credit: u32) -> Option<u32> {
        loop {
            let &client = self.line.front()?;
            let of = &mut self.clients[usize::from(client)];
            if of.ready.is_empty() {
                // Credit is for those who wait: none is saved up for later, and debts stay.
                of.in_line = false;
                of.credit = of.credit.min(0);
                self.line.pop_front();
            } else if of.credit <= 0 {
                // A turn costs a few credits, or some dozens where they are small: this ends soon.
                of.credit += of.credit(credit);
                self.line.rotate_left(1);
            } else {
                self.ready -= 1;
                return of.ready.pop_front();
            }
        }
    }

    /// Notes what the turn of the queue pair that was taken last has cost its client.
    pub(crate) fn charge(&mut self, cost: u32) {
        // Between a turn and its end nothing else is taken, so that its client is still the first.
        let client = self.line.front().and_then(|&c| self.clients.get_mut(usize::from(c)));
        if let Some(client) = client {
            client.credit -= i64::from(cost);
        }
    }

    /// Gives a client `weight` times the share of others; 0 counts as 1.
    pub(crate) fn set_weight(&mut self, client: u16, weight: u16) {
        self.of(client).more = weight.max(1) - 1;
    }

    fn of(&mut self, client: u16) -> &mut Client {
        let at = usize::from(client);
        if at >= self.clients.len() {
            self.clients.resize_with(at + 1, Client::default);
        }
        &mut self.clients[at]
    }

    /// How many queue pairs are ready.
    pub(crate) fn len(&self) -> usize {
        self.ready
    }

    /// The queue pairs that are ready, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.clients.iter().flat_map(|client| client.ready.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDIT: u32 = 1000;

    /// Gives `turns` turns to queue pairs that are always ready. A queue pair's number is its
    /// client's times 100, and more; `cost` says what its turn costs. Returns what each client has
    /// spent.
    fn spent(qps: &[u32], turns: usize, cost: impl Fn(u32) -> u32) -> Vec<u32> {
        let client = |qpn: u32| (qpn / 100) as u16;
        let mut shares = Shares::default();
        qps.iter().for_each(|&qpn| shares.push(client(qpn), qpn, CREDIT));
        let mut spent = vec![0; 4];
        for _ in 0..turns {
            let qpn = shares.pop(CREDIT).unwrap();
            shares.push(client(qpn), qpn, CREDIT);
            shares.charge(cost(qpn));
            spent[usize::from(client(qpn))] += cost(qpn);
        }
        spent
    }

    #[test]
    fn many_queue_pairs_do_not_make_a_share_larger() {
        let qps: Vec<u32> = (100..200).chain([200]).collect();
        let spent = spent(&qps, 1000, |_| CREDIT);
        assert_eq!(spent[1..3], [500 * CREDIT; 2]);
    }

    #[test]
    fn weights_make_shares_larger() {
        let mut shares = Shares::default();
        shares.set_weight(2, 3);
        shares.set_weight(3, 0);
        for qpn in [100, 200, 300] {
            shares.push((qpn / 100) as u16, qpn, CREDIT);
        }
        let mut turns = [0; 4];
        for _ in 0..5000 {
            let qpn = shares.pop(CREDIT).unwrap();
            shares.push((qpn / 100) as u16, qpn, CREDIT);
            shares.charge(CREDIT);
            turns[(qpn / 100) as usize] += 1;
        }
        assert_eq!(turns, [0, 1000, 3000, 1000]);
        shares.set_weight(2, 1);
        let before = turns[2];
        for _ in 0..3000 {
            let qpn = shares.pop(CREDIT).unwrap();
            shares.push((qpn / 100) as u16, qpn, CREDIT);
            shares.charge(CREDIT);
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
        let mut shares = Shares::default();
        for round in 0..1000 {
            shares.push(1, 100, CREDIT);
            assert_eq!(shares.pop(CREDIT), Some(100), "{round}");
            shares.charge(1);
        }
        // Expect: client 1 has one round's credit, and not a thousand's.
        shares.push(1, 100, CREDIT);
        shares.push(2, 200, CREDIT);
        let mut first = 0;
        while shares.pop(CREDIT) == Some(100) {
            shares.push(1, 100, CREDIT);
            shares.charge(100);
            first += 100;
        }
        assert!(first <= 2 * CREDIT, "{first}");
    }

    #[test]
    fn all_that_are_ready_have_their_turn() {
        let mut shares = Shares::default();
        let qps = [(3, 30), (0, 1), (3, 31), (65_535, 9), (0, 2)];
        qps.iter().for_each(|&(client, qpn)| shares.push(client, qpn, CREDIT));
        assert_eq!((shares.len(), shares.iter().count()), (5, 5));
        let mut taken: Vec<u32> = core::iter::from_fn(|| shares.pop(CREDIT)).collect();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 9, 30, 31]);
        assert_eq!((shares.len(), shares.pop(CREDIT)), (0, None));
        shares.charge(5);
    }
}
