//! What must hold in every state, by the names that Zab's paper gives it; and what is to be seen in
//! some.

use super::*;

pub(super) fn all() -> Vec<Property<Group>> {
    vec![
        Property::always("no acknowledged write lost", |_, state: &State| {
            state.answering().all(|node| {
                let has = |write| node.store.iter().any(|(_, stored)| *stored == write);
                state.acknowledged.iter().all(|write| has(*write))
            })
        }),
        Property::always("integrity: delivered once, and only if broadcast", integrity),
        Property::always("total order: one delivers the beginning of another", total_order),
        Property::always("primary order: within and across epochs", |_, state: &State| {
            state.nodes.values().all(|node| {
                let delivered: Vec<_> = State::delivered(node).collect();
                delivered.windows(2).all(|pair| {
                    let epoch = |write: u8| state.broadcast[usize::from(write)];
                    let (before, after) = (pair[0].1, pair[1].1);
                    pair[0].0 < pair[1].0
                        && (epoch(before) < epoch(after)
                            || epoch(before) == epoch(after) && before < after)
                })
            })
        }),
        Property::always("agreement: who answers has what any has delivered", agreement),
        Property::always("transactions are delivered as a whole", transactions::whole),
        Property::always("one node answers reads", |_, state: &State| {
            state.answering().count() <= 1
        }),
        Property::sometimes("a write of a second epoch is acknowledged", |_, state: &State| {
            let epochs: BTreeSet<_> = state
                .acknowledged
                .iter()
                .map(|write| state.broadcast[usize::from(*write)])
                .collect();
            epochs.len() > 1 || epochs.first().is_some_and(|epoch| *epoch > 1)
        }),
        Property::sometimes("what was not acknowledged is lost", |_, state: &State| {
            let serving = state.nodes.values().filter(|node| node.replica.is_serving());
            let latest = serving.max_by_key(|node| node.replica.epoch());
            latest.is_some_and(|node| {
                (0..state.broadcast.len() as u8).any(|write| {
                    state.broadcast[usize::from(write)] < node.replica.epoch()
                        && node.store.iter().all(|(_, stored)| *stored != write)
                })
            })
        }),
    ]
}

pub(super) fn agreement(_: &Group, state: &State) -> bool {
    let delivered: BTreeSet<_> =
        state.nodes.values().flat_map(|node| State::delivered(node)).collect();
    state.answering().all(|node| delivered.iter().all(|one| node.store.contains(one)))
}

fn integrity(_: &Group, state: &State) -> bool {
    state.nodes.values().all(|node| {
        let mut seen = BTreeSet::new();
        State::delivered(node)
            .all(|(_, write)| seen.insert(write) && usize::from(write) < state.broadcast.len())
    })
}

fn total_order(_: &Group, state: &State) -> bool {
    state.pairs().all(|(one, other)| {
        State::delivered(one).zip(State::delivered(other)).all(|(one, two)| one == two)
    })
}
