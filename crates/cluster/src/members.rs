//! A group has as many members as it is to have: nodes that are there take the places of members
//! that are lost, and members that are too many go. And what a node knows of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use remora_store::front::keyspace::Health;
use remora_store::replica::{Configuration, NodeId};

use crate::address::Address;
use crate::group::{Group, GroupState};
use crate::map::Seen;

/// How long a node that is asked to become a member has, to be connected, before another one is.
const COMES: Duration = Duration::from_secs(3);

/// A change of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Join(NodeId),
    Leave(NodeId),
}

impl Group {
    /// One step towards `size` members that all hold a lease, if this node serves: where one is
    /// missing or lost, a node that is there and has no vote is brought up; once it is a member,
    /// the lost one is none any more. Where there are too many, one's vote goes, a lost one's
    /// first. A node whose store cannot have what this one has, `held_bytes`, is left out. To be
    /// called again and again, on every node.
    pub(crate) fn tend(&self, size: usize, held_bytes: u64) {
        let mut state = self.lock();
        if state.check().is_err() {
            return;
        }
        let Some(latest) = state.replica.configuration().filter(|latest| latest.is_established())
        else {
            return;
        };
        let asked: BTreeMap<_, _> = state.replica.learners().collect();
        let step = next_step(latest, &state.addresses, &asked, size, held_bytes);
        let is_wanted = matches!(step, Some(Step::Join(_)));
        // The places of those that do not come are others'.
        for (node, is_connected) in &asked {
            let may_come = is_wanted && state.addresses.contains_key(node);
            if !is_connected && !may_come {
                state.replica.give_up(*node);
            }
        }
        let is_coming = state.replica.learners().any(|(_, is_connected)| !is_connected);
        let is_soon = is_coming && state.asked.is_some_and(|at| at.elapsed() < COMES);
        let outcome = match step {
            None => Ok(()),
            Some(Step::Leave(node)) => state.replica.leave(node),
            Some(Step::Join(node)) if asked.contains_key(&node) => Ok(()),
            Some(Step::Join(_)) if is_soon => Ok(()),
            Some(Step::Join(node)) => {
                state.asked = Some(Instant::now());
                state.replica.join(node)
            }
        };
        if let Err(reason) = outcome {
            tracing::info!("the members stay as they are for now: {reason}");
        }
        state.carry_out(self);
    }

    /// The most bytes that the stores of all may take that have what this node logs, as far as they
    /// say so. `None` if this node does not serve.
    pub(crate) fn least_memory(&self) -> Option<u64> {
        let state = self.lock();
        state.check().ok()?;
        state.least_memory()
    }

    /// What this node knows of itself and, as the primary, of the others that are there: one that
    /// is there and does not follow gets what it lacks first.
    pub(crate) fn seen(&self) -> BTreeMap<NodeId, Seen> {
        let health = |is_ready| if is_ready { Health::Online } else { Health::Loading };
        let state = self.lock();
        let is_ready = state.check().is_ok() || state.follows();
        let there = state.replica.peers().filter(|(node, _)| state.addresses.contains_key(node));
        let peers = there.map(|(node, held)| (node, (health(held.is_some()), held)));
        let own = (health(is_ready), Some(state.replica.last().offset));
        peers.chain([(state.replica.me(), own)]).collect()
    }
}

impl GroupState {
    /// The least memory of this primary and of those it knows, as far as they say so.
    pub(crate) fn least_memory(&self) -> Option<u64> {
        let all = self.replica.peers().map(|(node, _)| node).chain([self.replica.me()]);
        all.filter_map(|node| self.addresses.get(&node)?.memory).min()
    }
}

/// The vote of a lost member goes only after another node has one. Nodes that were `asked` to come
/// do so if they are connected; if none is, another one is asked.
fn next_step(
    latest: &Configuration,
    there: &BTreeMap<NodeId, Address>,
    asked: &BTreeMap<NodeId, bool>,
    size: usize,
    held_bytes: u64,
) -> Option<Step> {
    let members = &latest.members;
    let others = || members.iter().filter(|node| **node != latest.primary).copied();
    let lost = others().find(|node| !there.contains_key(node));
    if members.len() > size {
        return lost.or_else(|| others().last()).map(Step::Leave);
    }
    if members.len() == size && lost.is_none() {
        return None;
    }
    let has_room = |address: &Address| address.memory.is_none_or(|bytes| bytes >= held_bytes);
    let spares = there.iter().filter(|(node, _)| !members.contains(node));
    let spares = spares.filter(|(_, address)| has_room(address)).map(|(node, _)| *node);
    // (The first of the least.)
    let order = |node: &NodeId| match asked.get(node) {
        Some(true) => 0,
        None => 1,
        Some(false) => 2,
    };
    spares.min_by_key(order).map(Step::Join)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_member_goes_after_another_node_has_come() {
        let address = Address::new(([127, 0, 0, 1], 7490).into());
        let node = |number: u64| NodeId(number);
        let step = |members: &[u64], there: &[u64]| {
            let members = members.iter().copied().map(node).collect();
            let latest = Configuration::first(node(1), members).unwrap();
            let there = there.iter().map(|number| (node(*number), address.clone())).collect();
            next_step(&latest, &there, &BTreeMap::new(), 3, 100)
        };
        assert_eq!(step(&[1, 2, 3], &[1, 2, 3, 4]), None);
        assert_eq!(step(&[1, 2, 3], &[1, 2]), None, "there is nobody to come");
        assert_eq!(step(&[1, 2, 3], &[1, 2, 4, 5]), Some(Step::Join(node(4))));
        assert_eq!(step(&[1, 2, 3, 4], &[1, 2, 4, 5]), Some(Step::Leave(node(3))));
        assert_eq!(step(&[1, 2, 3, 4], &[1, 2, 3, 4]), Some(Step::Leave(node(4))));
        assert_eq!(step(&[1, 2, 3, 4], &[1, 2, 4]), Some(Step::Leave(node(3))), "a lost one first");
        assert_eq!(step(&[1, 2], &[1, 2, 3]), Some(Step::Join(node(3))));
        assert_eq!(step(&[1, 2, 3], &[2, 3]), None, "the primary is there: it asks");
    }

    #[test]
    fn a_node_that_cannot_have_what_the_group_has_does_not_come() {
        let address = |memory| Address {
            memory: Some(memory),
            ..Address::new(([127, 0, 0, 1], 7490).into())
        };
        let latest = Configuration::first(NodeId(1), vec![NodeId(1), NodeId(2)]).unwrap();
        let there = [(1, 200), (2, 200), (3, 99), (4, 100)];
        let there = there.map(|(node, memory)| (NodeId(node), address(memory))).into();
        let step = |held_bytes| next_step(&latest, &there, &BTreeMap::new(), 3, held_bytes);
        assert_eq!(step(100), Some(Step::Join(NodeId(4))));
        assert_eq!(step(101), None);
    }

    #[test]
    fn a_node_that_does_not_come_keeps_no_other_one_out() {
        let address = Address::new(([127, 0, 0, 1], 7490).into());
        let latest = Configuration::first(NodeId(1), vec![NodeId(1), NodeId(2)]).unwrap();
        let there = [1, 2, 3, 4].map(|node| (NodeId(node), address.clone())).into();
        let step = |asked: &[(u64, bool)]| {
            let asked = asked.iter().map(|(node, is_there)| (NodeId(*node), *is_there)).collect();
            next_step(&latest, &there, &asked, 3, 100)
        };
        assert_eq!(step(&[]), Some(Step::Join(NodeId(3))));
        assert_eq!(step(&[(3, true)]), Some(Step::Join(NodeId(3))));
        assert_eq!(step(&[(3, false)]), Some(Step::Join(NodeId(4))));
        assert_eq!(step(&[(3, false), (4, true)]), Some(Step::Join(NodeId(4))));
        assert_eq!(step(&[(3, false), (4, false)]), Some(Step::Join(NodeId(3))));
    }
}
