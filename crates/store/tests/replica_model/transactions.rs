//! Transactions, on the same nodes and links: whole at every node, or at none.

use super::*;

impl State {
    fn begin(&mut self, name: NodeId) {
        self.with(name, |node| node.replica.begin_together());
    }

    fn end(&mut self, name: NodeId) {
        self.with(name, |node| node.replica.end_together(&node.region));
    }

    /// The first or the second write of a transaction.
    pub(super) fn write_half(&mut self, name: NodeId) {
        let write = self.broadcast.len() as u8;
        let begun = self.amid.take();
        if begun.is_none() {
            self.with(name, |node| node.replica.begin_together());
        }
        self.write(name);
        let is_logged = self.broadcast.len() > usize::from(write);
        match begun {
            None if is_logged => self.amid = Some((name, write)),
            begun => {
                self.pairs.extend(begun.filter(|_| is_logged).map(|(_, first)| (first, write)));
                self.with(name, |node| node.replica.end_together(&node.region));
            }
        }
    }

    /// The node is lost: the first write of its transaction may never be delivered either. (None
    /// has the other number.)
    pub(super) fn lose_half(&mut self, name: NodeId) {
        let begun = self.amid.take_if(|(node, _)| *node == name);
        self.pairs.extend(begun.map(|(_, first)| (first, u8::MAX)));
    }

    /// Two nodes hear all that they have sent each other; nobody else hears anything.
    fn settle_between(&mut self, one: NodeId, other: NodeId) {
        let waits = |state: &State, from, to| !state.links[&(from, to)].packets.is_empty();
        while waits(self, one, other) || waits(self, other, one) {
            for (from, to) in [(one, other), (other, one)] {
                self.act(&Action::Arrive(from, to));
                self.act(&Action::Look(to));
            }
        }
    }

    /// The writes that a node has carried out.
    fn writes(&self, name: NodeId) -> Vec<u8> {
        self.nodes[&name].store.iter().map(|(_, write)| *write).collect()
    }
}

/// The invariant: a node has delivered both writes of a transaction, or none.
pub(super) fn whole(_: &Group, state: &State) -> bool {
    state.nodes.values().all(|node| {
        let delivered: BTreeSet<_> = State::delivered(node).map(|(_, write)| write).collect();
        let of_pairs = |one, other| delivered.contains(one) == delivered.contains(other);
        state.pairs.iter().all(|(one, other)| of_pairs(one, other))
            && state.amid.is_none_or(|(_, first)| !delivered.contains(&first))
    })
}

#[test]
fn a_transaction_is_committed_when_its_end_is() {
    let mut state = group();
    state.write(A);
    state.begin(A);
    state.write(A);
    state.settle();
    state.write(A);
    state.settle();
    assert_eq!(state.acknowledged, [0].into(), "all others hold what is there of it");
    assert_eq!(state.writes(B), [0]);
    state.end(A);
    state.settle();
    assert_eq!(state.acknowledged.len(), 3);
    state.assert_equal_stores();
    state.begin(A);
    state.end(A);
    assert_eq!(state.nodes[&A].replica.last().position.counter(), 5, "one without changes is none");
}

#[test]
fn a_transaction_whose_primary_dies_is_gone_everywhere() {
    let mut state = group();
    state.write(A);
    state.begin(A);
    state.write(A);
    state.write(A);
    state.settle();
    state.act(&Action::Crash(A));
    state.act(&Action::Expire);
    state.settle();
    let next = state.serving();
    assert_eq!(state.writes(next), [0]);
    state.write(next);
    state.settle();
    assert_eq!(state.acknowledged, [0, 3].into());
    state.assert_equal_stores();
}

/// The end of one came to one of the others: it is whole there, and so everywhere.
#[test]
fn a_transaction_that_another_node_has_whole_stays() {
    let mut state = group();
    state.begin(A);
    state.write(A);
    state.write(A);
    state.settle();
    state.end(A);
    for _ in 0..10 {
        state.act(&Action::Arrive(A, B));
        state.act(&Action::Look(B));
    }
    state.act(&Action::Crash(A));
    state.act(&Action::Expire);
    state.settle();
    assert_eq!(state.writes(state.serving()), [0, 1]);
    state.assert_equal_stores();
}

/// A node is told to forget a part of one: what is left is not taken for all of it.
#[test]
fn a_transaction_that_was_cut_is_gone() {
    let mut state = group();
    state.write(A);
    state.settle();
    state.begin(A);
    state.write(A);
    let part = state.nodes[&A].replica.last();
    state.write(A);
    state.end(A);
    for _ in 0..10 {
        state.act(&Action::Arrive(A, B));
        state.act(&Action::Look(B));
    }
    assert!(state.nodes[&B].replica.last() > part);
    state.with(B, |node| {
        let cut = Message::Sync { epoch: 1, from: part, slot: 0 };
        node.replica.handle_message(&node.region, A, cut);
    });
    assert_eq!(state.nodes[&B].replica.last(), part);
    state.act(&Action::Crash(A));
    state.act(&Action::Expire);
    state.settle();
    assert_eq!(state.serving(), B);
    assert_eq!(state.writes(B), [0]);
    state.assert_equal_stores();
}

/// The next primary begins while its predecessor is amid a transaction: that one ends first, or its
/// store would have a part that no log has.
#[test]
fn a_primary_amid_a_transaction_hears_of_no_other() {
    let mut state = group();
    state.write(A);
    state.settle();
    state.begin(A);
    state.write(A);
    state.act(&Action::Expire);
    state.settle();
    assert_eq!(state.nodes[&A].replica.epoch(), 1);
    assert!(state.nodes[&B].replica.epoch().max(state.nodes[&C].replica.epoch()) > 1);
    state.write(A);
    assert_eq!(state.writes(A), [0, 1, 2]);
    state.end(A);
    assert!(state.nodes[&A].replica.epoch() > 1);
    state.settle();
    assert_ne!(state.serving(), A);
    assert!(state.stores().iter().all(|store| store.len() == 1));
    assert_eq!(state.acknowledged, [0].into());
}

/// The same node goes on in a later epoch: what it has ordered before is whole.
#[test]
fn members_change_when_a_transaction_has_ended() {
    let mut state = group();
    let late = NodeId(4);
    state.come(late);
    state.with(A, |node| node.replica.join(late).unwrap());
    state.begin(A);
    state.write(A);
    state.settle();
    assert_eq!(state.nodes[&A].replica.epoch(), 1);
    state.write(A);
    state.end(A);
    state.settle();
    assert_eq!(state.registry.latest().unwrap().members, [A, B, C, late]);
    assert_eq!(state.acknowledged.len(), 2);
    state.assert_equal_stores();
}

#[test]
fn a_transaction_has_an_end_in_a_quarter_of_the_ring() {
    let mut state = group();
    for _ in 0..30 {
        state.begin(A);
        state.write(A);
        state.write(A);
        let fields = Fields { key: &[9], ..Fields::of(Operation::Delete) };
        state.with(A, |node| {
            let more = node.replica.append(&node.region, &fields);
            assert_eq!(more, Err(AppendError::Transaction { most: RING / 4 }));
        });
        state.end(A);
        state.settle();
    }
    assert_eq!(state.acknowledged.len(), 60);
    state.assert_equal_stores();
}

/// Backups that are slow refuse it as a whole.
#[test]
fn a_transaction_that_has_begun_has_room() {
    let mut state = group();
    let begins = |state: &mut State| {
        state.begin(A);
        let before = state.broadcast.len();
        state.write(A);
        state.write(A);
        state.end(A);
        state.broadcast.len() - before
    };
    let begun: Vec<_> = (0..10).map(|_| begins(&mut state)).collect();
    assert!(begun.contains(&2) && begun.contains(&0) && !begun.contains(&1), "{begun:?}");
    let logged = state.broadcast.len();
    state.settle();
    assert_eq!(state.acknowledged.len(), logged);
    assert_eq!(begins(&mut state), 2);
}

/// A slow backup is cut off by the record that takes its room, and not for what a transaction may
/// take yet.
#[test]
fn a_transaction_cuts_off_nobody_before_it_takes_the_room() {
    let mut state = group();
    let overrun = |state: &State| state.nodes[&A].replica.counters().overrun;
    let write = |state: &mut State| {
        state.write(A);
        state.settle_between(A, B);
    };
    // Of 640 bytes a backup may be behind by 480. Records have 48, and a transaction may have 160.
    (0..7).for_each(|_| write(&mut state));
    state.begin(A);
    (0..2).for_each(|_| write(&mut state));
    state.end(A);
    state.settle_between(A, B);
    assert_eq!((overrun(&state), state.acknowledged.len()), (0, 9));
    state.begin(A);
    assert_eq!(overrun(&state), 0);
    write(&mut state);
    assert_eq!(overrun(&state), 1, "there is no more room");
    state.end(A);
    state.settle();
    assert_eq!(state.acknowledged.len(), 10);
    state.assert_equal_stores();
}

/// The same for the record that ends one.
#[test]
fn the_end_of_a_transaction_cuts_off_who_still_needs_its_room() {
    let mut state = group();
    let write = |state: &mut State| {
        state.write(A);
        state.settle_between(A, B);
    };
    (0..8).for_each(|_| write(&mut state));
    state.begin(A);
    (0..2).for_each(|_| write(&mut state));
    let overrun = |state: &State| state.nodes[&A].replica.counters().overrun;
    assert_eq!(overrun(&state), 0);
    state.end(A);
    assert_eq!(overrun(&state), 1);
    state.settle();
    assert_eq!(state.acknowledged.len(), 10);
    state.assert_equal_stores();
}

/// All orders in which a primary with a transaction under way is lost.
#[test]
fn what_a_lost_primary_has_begun_is_whole_or_gone() {
    let group = Group { writes: 2, crashes: 1, expiries: 1, transacts: true, ..GROUP };
    assert!(check(group) > 100);
}

pub(super) const REPLACED: Group = Group { transacts: true, ..TWO_WRITES };

/// All orders in which one is replaced.
#[test]
fn what_a_replaced_primary_has_begun_is_whole_or_gone() {
    assert!(check(REPLACED) > 1000);
}
