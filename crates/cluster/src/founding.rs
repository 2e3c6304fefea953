//! A group's first configuration, and who makes it.
//!
//! A new group begins when as many nodes as it is to have are there, under the one with the lowest
//! number.
//!
//! A group whose configuration service has lost what it had begins again from its nodes'
//! directories, with the members of the latest epoch that these tell of, once most of those members
//! are there: the one with the longest history is the primary. Then nothing is missing that was
//! acknowledged. A later epoch of which none of these directories tells had the same members, or
//! one more or less, since members change by one at a time; so each majority of the later ones
//! has a node of any majority of these, and that node's log would tell. And what was acknowledged
//! in the latest epoch, or before, is with a majority of its members. That the group goes on with
//! the same members, also those that are not there, keeps it so when the service loses its data
//! once more. (The members that are lost are replaced as ever.)
//!
//! It begins in an epoch that is later than all that its nodes have heard of.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use remora_store::log::Position;
use remora_store::replica::{Configuration, NoConfiguration, NodeId, is_majority};

use crate::address::Address;

/// So many epochs may have begun of which no directory tells that a group begins again from.
const EPOCHS_LOST: u32 = 1000;

/// The first configuration of a new group of `size`, if enough of its nodes are there.
///
/// # Errors
/// They are more than a group takes.
pub(crate) fn first_configuration(
    nodes: &BTreeMap<NodeId, Address>,
    size: usize,
) -> Result<Option<Configuration>, NoConfiguration> {
    let Some(primary) = nodes.keys().next().filter(|_| nodes.len() >= size) else {
        return Ok(None);
    };
    Configuration::first(*primary, nodes.keys().take(size).copied().collect()).map(Some)
}

/// A node that comes with a directory.
#[derive(Clone, Copy, Debug)]
struct Brought<'a> {
    node: NodeId,
    last: Position,
    members: &'a [NodeId],
}

/// The configuration with which a group begins again from its nodes' directories. `enough` nodes
/// are enough, if somebody has said so, whichever they are.
///
/// # Errors
/// Why it does not begin yet, and what to do, in words.
pub(crate) fn next_configuration(
    nodes: &BTreeMap<NodeId, Address>,
    enough: Option<usize>,
) -> Result<Configuration, String> {
    let brought = nodes.iter().filter_map(|(node, address)| {
        let last = Position::from_number(address.last?);
        Some(Brought { node: *node, last, members: &address.members })
    });
    let mut there: Vec<_> = brought.collect();
    there.sort_by_key(|it| (Reverse(it.last), it.node));
    let Some(longest) = there.first() else {
        return Err("no node that has a directory of the group is there: start those".to_owned());
    };
    let epoch = longest.last.epoch();
    let is_there = |node| there.iter().any(|it| it.node == node);
    // (All nodes of an epoch say the same, but other programs may write there, too.)
    let mut latest = there.iter().take_while(|it| it.last.epoch() == epoch);
    let doubt = latest.find(|it| !is_majority(it.members, is_there));
    let members = match (doubt, enough) {
        (None, _) => longest.members.to_vec(),
        (Some(doubt), None) => return Err(missing(doubt.members, epoch, is_there)),
        (Some(_), Some(enough)) if there.len() < enough => {
            let count = there.len();
            return Err(format!(
                "{count} of {enough} nodes with directories are there: start more of them, or \
                 those that are there with fewer --nodes"
            ));
        }
        (Some(_), Some(enough)) => there.iter().take(enough).map(|it| it.node).collect(),
    };
    // (One that has no vote may have more than the members, and nothing of that is acknowledged.)
    let primary = there.iter().find(|it| members.contains(&it.node)).unwrap_or(longest).node;
    let invalid = |error: NoConfiguration| format!("the group cannot begin again: {error}");
    let mut first = Configuration::first(primary, members).map_err(invalid)?;
    first.epoch = epoch.saturating_add(EPOCHS_LOST);
    // (What other programs have written there may be any number.)
    if first.epoch > Position::MAX_EPOCH {
        Err(invalid(NoConfiguration::Epochs))
    } else {
        Ok(first)
    }
}

/// Which of the latest epoch's members have to come, in words.
fn missing(members: &[NodeId], epoch: u32, is_there: impl Fn(NodeId) -> bool) -> String {
    let anyway = "start those that are there with --restore=anyway: what none of them has is lost";
    if members.is_empty() {
        return format!(
            "the directories that are there do not say who the group’s members were, as those of \
             earlier releases: nobody can tell whether most of them are there. If they are, \
             {anyway}"
        );
    }
    let listed = |nodes: &[NodeId]| {
        let names: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
        names.join(", ")
    };
    let (here, away): (Vec<_>, Vec<_>) = members.iter().partition(|node| is_there(**node));
    let needed = members.len() / 2 + 1 - here.len();
    format!(
        "of the group’s members in epoch {epoch}, the latest that the directories tell of, {} of \
         {} are there: start {needed} more of {} with --dir and --restore. If they are lost for \
         good, {anyway}",
        here.len(),
        members.len(),
        listed(&away),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(nodes: &[u64]) -> Vec<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    /// A node, its last change, if it has a directory, and the members of that epoch.
    type Kept<'a> = (u64, Option<(u32, u64)>, &'a [u64]);

    fn nodes(kept: &[Kept<'_>]) -> BTreeMap<NodeId, Address> {
        let card = "127.0.0.1:7490".parse().unwrap();
        let address = |last: &Option<(u32, u64)>, members| Address {
            last: last.map(|(epoch, counter)| Position::new(epoch, counter).number()),
            members: numbers(members),
            ..Address::new(card)
        };
        kept.iter().map(|(node, last, members)| (NodeId(*node), address(last, members))).collect()
    }

    /// The epoch in which it begins again, the primary and the members.
    fn begins(nodes: &BTreeMap<NodeId, Address>, enough: Option<usize>) -> (u32, u64, Vec<NodeId>) {
        let first = next_configuration(nodes, enough).unwrap();
        assert!(first.is_sound() && first.is_established());
        (first.epoch - EPOCHS_LOST, first.primary.0, first.members)
    }

    #[test]
    fn a_new_group_begins_under_the_lowest_number_once_all_are_there() {
        let few = nodes(&[(3, None, &[]), (5, None, &[])]);
        assert_eq!(first_configuration(&few, 3), Ok(None));
        let all = nodes(&[(3, None, &[]), (5, None, &[]), (7, None, &[]), (9, None, &[])]);
        let first = first_configuration(&all, 3).unwrap().unwrap();
        assert_eq!((first.epoch, first.primary), (1, NodeId(3)));
        assert_eq!(first.members, numbers(&[3, 5, 7]));
    }

    #[test]
    fn a_group_begins_again_under_the_longest_history_of_most_of_its_last_members() {
        let all: &[u64] = &[3, 5, 9];
        // The node that alone has what was acknowledged is the last one by its number.
        let there = nodes(&[
            (1, None, &[]),
            (3, Some((4, 10)), all),
            (7, Some((3, 99)), &[3, 5, 7]),
            (9, Some((4, 11)), all),
        ]);
        assert_eq!(begins(&there, None), (4, 9, numbers(all)), "also one that is not there");
        assert_eq!(begins(&there, Some(3)), (4, 9, numbers(all)), "also where fewer are enough");
        // One that was brought up, and had no vote yet.
        let mut there = there;
        there.append(&mut nodes(&[(11, Some((4, 20)), all)]));
        assert_eq!(begins(&there, None), (4, 9, numbers(all)));
    }

    /// All members were replaced, one after the other. Those that come back are as many as ever.
    #[test]
    fn nodes_that_were_replaced_do_not_begin_the_group_again() {
        let old = nodes(&[
            (1, Some((2, 10)), &[1, 2, 3]),
            (2, Some((4, 20)), &[2, 3, 4]),
            (3, Some((6, 30)), &[3, 4, 5]),
        ]);
        let words = next_configuration(&old, None).unwrap_err();
        assert!(words.contains("epoch 6") && words.contains("1 of 3 are there"), "{words}");
        assert!(words.contains("1 more of n4, n5") && words.contains("=anyway"), "{words}");
        assert_eq!(begins(&old, Some(3)), (6, 3, numbers(&[1, 2, 3])), "if somebody says so");
        assert_eq!(begins(&old, Some(2)), (6, 3, numbers(&[2, 3])), "those with the longest");
        let words = next_configuration(&old, Some(4)).unwrap_err();
        assert!(words.starts_with("3 of 4 nodes"), "{words}");
        let mut more = old.clone();
        more.append(&mut nodes(&[(5, Some((6, 29)), &[3, 4, 5])]));
        assert_eq!(begins(&more, None), (6, 3, numbers(&[3, 4, 5])));
        // A later epoch is heard of, and there are too few of its members.
        more.append(&mut nodes(&[(6, Some((8, 31)), &[4, 5, 6])]));
        assert_eq!(begins(&more, None), (8, 6, numbers(&[4, 5, 6])));
        more.remove(&NodeId(5));
        assert!(next_configuration(&more, None).unwrap_err().contains("1 more of n4, n5"));
    }

    #[test]
    fn of_members_that_nobody_has_noted_nobody_knows_whether_most_are_there() {
        let old = nodes(&[(1, Some((2, 10)), &[]), (2, Some((2, 11)), &[]), (3, None, &[])]);
        assert!(next_configuration(&old, None).unwrap_err().contains("earlier releases"));
        assert_eq!(begins(&old, Some(2)), (2, 2, numbers(&[1, 2])));
        let none = nodes(&[(3, None, &[])]);
        assert!(next_configuration(&none, Some(1)).unwrap_err().contains("no node"));
        // One of the epoch has noted them, and another one says that it has not.
        let all: &[u64] = &[1, 2];
        let mixed = nodes(&[(1, Some((2, 10)), &[]), (2, Some((2, 11)), all)]);
        assert!(next_configuration(&mixed, None).is_err());
    }

    #[test]
    fn epochs_without_a_successor_are_refused() {
        for last in [(Position::MAX_EPOCH, 1), (Position::MAX_EPOCH - 5, 1)] {
            let there = nodes(&[(3, Some(last), &[3])]);
            assert!(next_configuration(&there, None).unwrap_err().contains("no more epochs"));
        }
        let mut any = nodes(&[(3, Some((1, 1)), &[3])]);
        any.get_mut(&NodeId(3)).unwrap().last = Some(u64::MAX);
        assert!(next_configuration(&any, None).unwrap_err().contains("no more epochs"));
    }
}
