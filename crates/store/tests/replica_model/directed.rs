//! What a group does when told to, on the same nodes and links.

use super::*;

/// More is written than the ring holds; a node without anything is brought up by a snapshot, gets a
/// vote, and another one leaves.
#[test]
fn a_node_comes_and_another_leaves() {
    let mut state = group();
    for _ in 0..50 {
        state.write(A);
        state.settle();
    }
    let late = NodeId(4);
    state.come(late);
    state.with(A, |node| node.replica.join(late).unwrap());
    state.settle();
    let members = |state: &State| state.registry.latest().unwrap().members.clone();
    assert_eq!(members(&state), [A, B, C, late]);
    assert_eq!(state.serving(), A);
    state.with(A, |node| node.replica.leave(B).unwrap());
    state.settle();
    assert_eq!(members(&state), [A, C, late]);
    assert!(state.registry.latest().unwrap().is_established());
    state.act(&Action::Crash(B));
    state.write(A);
    state.settle();
    assert_eq!(state.acknowledged.len(), 51);
    state.assert_equal_stores();
    assert_eq!(state.stores()[0].len(), 51);
}

/// Nodes that were to come and do not are given up: their places are others'.
#[test]
fn places_of_nodes_that_never_came_are_taken_by_others() {
    let mut state = group();
    for life in 10..40 {
        let gone = NodeId(life);
        state.with(A, |node| {
            node.replica.join(gone).unwrap();
            assert_eq!(node.replica.learners().collect::<Vec<_>>(), [(gone, false)]);
            node.replica.give_up(gone);
        });
    }
    let late = NodeId(4);
    state.come(late);
    state.with(A, |node| node.replica.join(late).unwrap());
    state.settle();
    assert_eq!(state.registry.latest().unwrap().members, [A, B, C, late]);
    // A member is not given up so.
    state.with(A, |node| node.replica.give_up(late));
    state.write(A);
    state.settle();
    state.assert_equal_stores();
}

/// A node that has just left comes again, and what a primary was asked to bring up goes on in its
/// next epoch.
#[test]
fn a_node_that_left_comes_again_while_another_joins() {
    let mut state = group();
    let late = NodeId(4);
    state.come(late);
    state.with(A, |node| {
        node.replica.leave(B).unwrap();
        node.replica.join(late).unwrap();
    });
    state.settle();
    assert_eq!(state.registry.latest().unwrap().members, [A, C, late]);
    state.with(A, |node| node.replica.join(B).unwrap());
    state.settle();
    assert_eq!(state.registry.latest().unwrap().members, [A, B, C, late]);
    state.write(A);
    state.settle();
    state.assert_equal_stores();
}

/// The node whose history is to be taken over is lost before it was: the others suffice.
#[test]
fn a_history_that_does_not_come_is_done_without() {
    let mut state = State::new(Group { nodes: 5, ..GROUP });
    state.write(A);
    state.act(&Action::Arrive(A, C));
    state.act(&Action::Arrive(A, C));
    state.act(&Action::Look(C));
    state.act(&Action::Crash(A));
    state.act(&Action::Expire);
    state.holds_reads = true;
    state.settle();
    assert!(state.nodes.values().all(|node| !node.replica.is_serving()), "B waits for C's");
    state.act(&Action::Crash(C));
    state.settle();
    assert_eq!(state.serving(), B);
    state.assert_equal_stores();
}

/// A change is acknowledged though none of the backups has looked at it: the card of one has it in
/// its ring. The next primary finds it there.
#[test]
fn a_card_s_word_suffices() {
    let mut state = State::new(Group { cards_tell: true, ..GROUP });
    state.write(A);
    state.act(&Action::Arrive(A, C));
    assert_eq!(state.acknowledged.len(), 1);
    assert!(state.nodes[&C].is_dirty);
    state.act(&Action::Crash(A));
    state.act(&Action::Expire);
    state.settle();
    state.assert_equal_stores();
    assert_eq!(state.stores()[0].len(), 1);
}

/// A node that keeps the log on a disk holds what it has there, whatever its card says.
#[test]
fn a_card_s_word_is_none_of_a_disk_s() {
    let options = Options { waits_for_disk: true, ..OPTIONS };
    let mut state = State::new(Group { cards_tell: true, options, ..GROUP });
    for node in [B, C] {
        state.node(node).unwrap().disk_hangs = true;
    }
    state.write(A);
    state.settle();
    assert!(state.acknowledged.is_empty());
    state.node(B).unwrap().disk_hangs = false;
    state.with(B, |_| {});
    state.settle();
    assert_eq!(state.acknowledged.len(), 1);
}

/// The primary dies after its change was acknowledged: the client asks its successor again.
#[test]
fn a_request_that_is_repeated_takes_effect_once() {
    let id = RequestId { client: 77, sequence: 1, since: Position::NONE };
    let fields = Fields { key: &[9], ..Fields::of(Operation::Delete) };
    let mut state = group();
    state.with(A, |node| {
        let done = node.replica.append_request(&node.region, id, b"done", &fields);
        node.store.push((done.unwrap().number(), 9));
    });
    state.settle();
    state.act(&Action::Crash(A));
    state.act(&Action::Expire);
    state.settle();
    let next = state.serving();
    let found = state.nodes[&next].replica.find_request(id).unwrap();
    assert_eq!(found.map(|(_, answer)| answer), Some(&b"done"[..]));
    state.with(next, |node| {
        let again = node.replica.append_request(&node.region, id, b"done", &fields);
        assert_eq!(again, Err(AppendError::Request(NoRequest::Old(1))));
    });
    state.assert_equal_stores();
}

/// Nobody answers: changes are refused before the ring overwrites what is not committed, and a
/// majority that comes back goes on with all of it.
#[test]
fn without_a_majority_changes_are_refused() {
    let mut state = group();
    for _ in 0..100 {
        state.write(A);
    }
    let logged = state.broadcast.len();
    assert!((1..100).contains(&logged), "{logged}");
    assert!(state.acknowledged.is_empty());
    state.settle();
    assert_eq!(state.acknowledged.len(), logged);
    state.act(&Action::Crash(B));
    state.act(&Action::Crash(C));
    state.write(A);
    assert_eq!(state.broadcast.len(), logged);
    assert!(state.nodes[&A].replica.counters().full > 0);
}

/// What nobody else has is gone after a change of primary; the store that showed it is replaced.
#[test]
fn what_was_not_acknowledged_is_forgotten_everywhere() {
    let mut state = group();
    state.act(&Action::Expire);
    // The others fence first, and what is written then reaches nobody.
    while state.nodes[&B].replica.epoch() < 2 || state.nodes[&C].replica.epoch() < 2 {
        state.act(&Action::Hear(B));
        state.act(&Action::Hear(C));
    }
    state.write(A);
    assert_eq!(state.nodes[&A].store.len(), 1, "it does not know yet");
    let serves = |state: &State, name| state.nodes[&name].replica.is_serving();
    while !serves(&state, B) && !serves(&state, C) {
        for (one, other) in [(B, C), (C, B)] {
            state.act(&Action::Arrive(one, other));
            state.act(&Action::Look(one));
        }
    }
    state.settle();
    assert_ne!(state.serving(), A);
    assert!(state.stores().iter().all(|store| store.is_empty()) && state.acknowledged.is_empty());
    assert_eq!(state.pending.len(), 0, "the client that waits is told that nobody knows");
}

/// Orders and answers of the wrong node, or out of turn, change nothing.
#[test]
fn what_makes_no_sense_is_counted_and_changes_nothing() {
    let mut state = group();
    state.write(A);
    state.settle();
    let before = state.nodes[&B].replica.clone();
    let far = Mark { position: Position::new(9, 9), offset: 1 << 60 };
    let last = before.last();
    let inside = Mark { offset: last.offset - 8, ..last };
    for (from, mark) in [(C, Mark::default()), (A, Mark::default()), (A, far), (A, inside)] {
        let message = Message::Sync { epoch: 1, from: mark, slot: 255 };
        state.with(B, |node| node.replica.handle_message(&node.region, from, message));
    }
    let stray = [Message::Synced { epoch: 1, in_memory: true }, Message::Fetch { epoch: 0 }];
    for message in stray {
        state.with(B, |node| node.replica.handle_message(&node.region, C, message));
    }
    let replica = &state.nodes[&B].replica;
    assert_eq!((replica.counters().refused, replica.counters().stale), (5, 1));
    assert_eq!(*replica, before);
}
