//! The steps of a change of primary that its safety hangs on.

use super::*;

impl State {
    /// All happens that happens by itself, but for this.
    fn settle_without(&mut self, what: &[Action]) {
        loop {
            let mut actions = vec![];
            self.own_actions(&mut actions);
            let next = actions.into_iter().find(|action| !what.contains(action));
            let Some(action) = next else { return };
            self.act(&action);
        }
    }
}

/// What a replaced primary has sent comes late, to a node that follows the next one and has not
/// looked at its region: it must not lie there in the place of what the next one has written.
#[test]
fn what_a_replaced_primary_has_on_its_way_is_carried_out_nowhere() {
    let mut state = group();
    state.write(A);
    let late = [Action::Arrive(A, C), Action::Look(C)];
    state.act(&Action::Expire);
    // The next primary has its history from the other one, and only then hears from this one.
    let first = [Action::Arrive(A, B), Action::Arrive(B, A), Action::Hear(A)];
    state.settle_without(&[&late[..], &first].concat());
    state.settle_without(&late);
    assert_eq!(state.serving(), B);
    assert_eq!(state.nodes[&C].replica.epoch(), 2);
    (0..10).for_each(|_| state.act(&Action::Arrive(A, C)));
    state.settle();
    assert!(properties::agreement(&GROUP, &state), "{:?}", state.stores());
    state.write(B);
    state.settle();
    state.assert_equal_stores();
    assert_eq!(state.acknowledged, [1].into());
}

/// The next primary serves when a majority holds its epoch's first record: until then, what it has
/// taken over may yet be replaced.
#[test]
fn a_primary_serves_when_its_first_record_is_committed() {
    let mut state = group();
    state.write(A);
    state.settle();
    state.act(&Action::Crash(A));
    state.act(&Action::Expire);
    state.settle_without(&[Action::Look(C)]);
    let replica = &state.nodes[&B].replica;
    assert_eq!((replica.epoch(), replica.last().position.epoch()), (2, 2), "it has ordered it");
    assert!(!replica.is_serving() && replica.committed().epoch() == 1);
    state.settle();
    assert_eq!(state.serving(), B);
}

/// Other members are established when a majority of them holds the epoch's first record: a quorum
/// is a majority of those before, too, until then.
#[test]
fn members_are_established_when_the_first_record_is_committed() {
    let (mut state, late) = (group(), NodeId(4));
    state.come(late);
    state.with(A, |node| node.replica.join(late).unwrap());
    state.settle_without(&[Action::Look(B), Action::Look(C)]);
    let latest = |state: &State| state.registry.latest().unwrap().clone();
    assert_eq!(
        (latest(&state).members, latest(&state).established),
        (vec![A, B, C, late], vec![A, B, C])
    );
    assert_eq!(state.nodes[&A].replica.last().position.epoch(), 2, "it has ordered it");
    state.settle();
    assert!(latest(&state).is_established());
    assert_eq!(state.serving(), A);
}

/// What a replica wants done, all at once.
fn outputs(replica: &mut Replica) -> Vec<Output> {
    std::iter::from_fn(|| replica.poll_output()).collect()
}

fn next_epoch(state: &State, primary: NodeId) -> Configuration {
    state.registry.latest().unwrap().under(primary).unwrap()
}

/// A backup says nothing before it has fenced, to either primary; then it says what had come.
#[test]
fn a_backup_answers_when_it_has_fenced() {
    let mut state = group();
    state.write(A);
    let next = next_epoch(&state, C);
    let Node { mut replica, region, .. } = (*state.nodes[&B]).clone();
    let before = replica.last();
    replica.handle_message(&region, C, Message::Epoch(next));
    assert_eq!(outputs(&mut replica), [Output::Fence { epoch: 2 }]);
    // The primary of before still writes.
    for packet in &state.links[&(A, B)].packets {
        if let Packet::Write(at, bytes, _) = packet {
            region.write(*at, bytes);
        }
    }
    replica.poll_memory(&region);
    replica.handle_time(0);
    let early = Message::Sync { epoch: 2, from: before, slot: 0 };
    for order in [early, Message::Fetch { epoch: 2 }] {
        replica.handle_message(&region, C, order);
    }
    replica.handle_fenced(&region, 1);
    assert_eq!(outputs(&mut replica), [], "an earlier fence is none of this epoch");
    replica.handle_fenced(&region, 2);
    let answered = outputs(&mut replica);
    let [Output::Send { to: C, message: Message::History { epoch: 2, answer } }] = &answered[..]
    else {
        panic!("{answered:?}");
    };
    assert_eq!(answer.ends.last(), Some(&replica.last()));
    assert!(replica.last() > before, "what came before the fence counts");
}

/// Nor does the next primary ask anybody before it has fenced.
#[test]
fn a_primary_connects_when_it_has_fenced() {
    let state = group();
    let next = next_epoch(&state, B);
    let Node { mut replica, region, .. } = (*state.nodes[&B]).clone();
    let entry = Entry { configuration: next, ..state.registry.entry().unwrap().clone() };
    replica.handle_event(&region, Event::Latest(Some(entry)), 0);
    let at_once = outputs(&mut replica);
    let is_early = |output: &Output| !matches!(output, Output::Fence { .. } | Output::Request(_));
    assert!(!at_once.iter().any(is_early), "{at_once:?}");
    assert!(at_once.contains(&Output::Fence { epoch: 2 }));
    replica.handle_fenced(&region, 2);
    let asked = outputs(&mut replica);
    assert_eq!(asked, [Output::Connect { to: A }, Output::Connect { to: C }]);
}
