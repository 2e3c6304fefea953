//! A group's first configuration, and who makes it.
//!
//! A new group begins when as many nodes as it is to have are there, under the one with the lowest
//! number. A group whose configuration service has lost what it had begins again from its nodes'
//! directories, under the node with the longest history: a new primary takes the longest one of
//! itself and of as many others as make a majority. It begins in an epoch that is later than all
//! that its nodes have heard of.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use remora_store::log::Position;
use remora_store::replica::{Configuration, NoConfiguration, NodeId};

use crate::address::Address;

/// So many epochs may have begun of which no directory tells that a group begins again from.
const EPOCHS_LOST: u32 = 1000;

/// The first configuration of a group of `size`, if enough of its nodes are there. A group that is
/// restored counts those that come with a directory.
///
/// # Errors
/// The nodes' epochs have no successor, or they are more than a group takes.
pub(crate) fn first_configuration(
    nodes: &BTreeMap<NodeId, Address>,
    size: usize,
    is_restored: bool,
) -> Result<Option<Configuration>, NoConfiguration> {
    let there = || nodes.iter().filter(|(_, address)| !is_restored || address.last.is_some());
    let longest = there().min_by_key(|(node, address)| (Reverse(address.last), **node));
    let Some((primary, address)) = longest.filter(|_| there().count() >= size) else {
        return Ok(None);
    };
    let others = there().map(|(node, _)| *node).filter(|node| node != primary);
    let members = others.take(size.saturating_sub(1)).chain([*primary]).collect();
    let mut first = Configuration::first(*primary, members)?;
    if let Some(last) = address.last {
        first.epoch = Position::from_number(last).epoch().saturating_add(EPOCHS_LOST);
    }
    // (What other nodes have written there may be any number.)
    if first.epoch > Position::MAX_EPOCH { Err(NoConfiguration::Epochs) } else { Ok(Some(first)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes that come with the last change that is said here, if they have a directory.
    fn nodes(last: &[(u64, Option<Position>)]) -> BTreeMap<NodeId, Address> {
        let card = "127.0.0.1:7490".parse().unwrap();
        let address = |last: &Option<Position>| Address {
            last: last.map(Position::number),
            ..Address::new(card)
        };
        last.iter().map(|(node, last)| (NodeId(*node), address(last))).collect()
    }

    #[test]
    fn a_new_group_begins_under_the_lowest_number_once_all_are_there() {
        let few = nodes(&[(3, None), (5, None)]);
        assert_eq!(first_configuration(&few, 3, false), Ok(None));
        let all = nodes(&[(3, None), (5, None), (7, None), (9, None)]);
        let first = first_configuration(&all, 3, false).unwrap().unwrap();
        assert_eq!((first.epoch, first.primary), (1, NodeId(3)));
        assert_eq!(first.members, [3, 5, 7].map(NodeId));
    }

    #[test]
    fn a_group_begins_again_under_the_longest_history() {
        let at = |epoch, counter| Some(Position::new(epoch, counter));
        // The node that alone has what was acknowledged is the last one by its number.
        let there =
            nodes(&[(1, None), (3, at(4, 10)), (5, at(4, 9)), (7, at(3, 99)), (9, at(4, 11))]);
        let first = first_configuration(&there, 3, true).unwrap().unwrap();
        assert_eq!((first.epoch, first.primary), (4 + EPOCHS_LOST, NodeId(9)));
        assert_eq!(first.members, [3, 5, 9].map(NodeId), "and not the one without a directory");
        assert_eq!(first_configuration(&there, 5, true), Ok(None));
    }

    #[test]
    fn epochs_without_a_successor_are_refused() {
        for epoch in [Position::MAX_EPOCH, Position::MAX_EPOCH - 5] {
            let there = nodes(&[(3, Some(Position::new(epoch, 1)))]);
            assert_eq!(first_configuration(&there, 1, true), Err(NoConfiguration::Epochs));
        }
        let any = nodes(&[(3, Some(Position::from_number(u64::MAX)))]);
        assert_eq!(first_configuration(&any, 1, true), Err(NoConfiguration::Epochs));
    }
}
