//! The map of a cluster: which group has which slots, which are to move, and where the groups'
//! nodes are. It says where clients are sent, and what is to be moved. Which group owns a slot is
//! not decided here, but by the groups' logs.

use std::collections::BTreeMap;

use remora_store::front::keyspace::{Cluster, ClusterGroup, ClusterNode, Health, Transfer};
use remora_store::front::slots::{Range, Runs};
use remora_store::replica::{Configuration, NodeId};
use remora_store::way::map::{self, ClusterMap, MapGroup};
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::history::EpochChange;

/// Who has a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The group that has its keys.
    pub group: String,
    /// The group that it is to go to. The same one: no group has the slot any more, and that one
    /// is to have it, with what it has of its keys.
    pub to: Option<String>,
}

impl Owner {
    /// A group whose slot stays where it is.
    #[must_use]
    pub fn new(group: &str) -> Owner {
        Owner { group: group.to_owned(), to: None }
    }

    /// Whether a group may have the slot. (One that gets it has it before the map says so.)
    #[must_use]
    pub fn may_be(&self, group: &str) -> bool {
        self.group == group || self.to.as_deref() == Some(group)
    }
}

/// Who has which slots.
pub type SlotMap = Runs<Owner>;

/// A group, as the configuration service knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupView {
    /// Which group it is, of all that have begun under its name, as far as that is known.
    pub founding: Option<u32>,
    /// The latest configuration.
    pub configuration: Option<Configuration>,
    /// How many members it is to have.
    pub size: Option<u8>,
    /// The nodes that hold a lease, and where they are.
    pub nodes: BTreeMap<NodeId, Address>,
    /// The last changes of its epoch, the latest last, as far as the service keeps them.
    pub changes: Vec<EpochChange>,
    /// What the node that shows it knows itself: of its own group's nodes that are there.
    pub seen: BTreeMap<NodeId, Seen>,
}

/// How a node is, and the bytes of its log, if they are known.
pub type Seen = (Health, Option<u64>);

impl GroupView {
    /// The primary, and where it is if it holds a lease.
    #[must_use]
    pub fn primary(&self) -> Option<(NodeId, Option<Address>)> {
        let primary = self.configuration.as_ref()?.primary;
        Some((primary, self.nodes.get(&primary).cloned()))
    }
}

/// The whole cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Atlas {
    /// Who has which slots; none before a first group has begun.
    pub slots: Option<SlotMap>,
    /// The number of the map's last change; 0 without a map.
    pub revision: i64,
    /// The groups.
    pub groups: BTreeMap<String, GroupView>,
}

impl Atlas {
    /// As Redis' clients see it, from the node `me` of the group `mine`.
    #[must_use]
    pub fn shown(&self, mine: &str, me: NodeId) -> Cluster {
        let group = |(name, view): (&String, &GroupView)| {
            let configuration = view.configuration.as_ref()?;
            let node = |node: &NodeId| {
                let there = view.nodes.get(node);
                let unseen = if there.is_some() { Health::Online } else { Health::Lost };
                let (health, offset) = view.seen.get(node).copied().unwrap_or((unseen, None));
                ClusterNode {
                    id: node.0,
                    address: there.and_then(|address| address.redis),
                    is_me: *node == me,
                    is_primary: *node == configuration.primary,
                    health,
                    offset,
                }
            };
            let slots = self.slots.iter().flat_map(|map| map.ranges(|owner| owner.group == *name));
            Some(ClusterGroup {
                name: name.clone(),
                is_mine: name == mine,
                epoch: configuration.epoch,
                slots: joined(slots),
                nodes: configuration.members.iter().map(node).collect(),
            })
        };
        Cluster { groups: self.groups.iter().filter_map(group).collect() }
    }

    /// As clients over the card see it.
    #[must_use]
    pub fn told(&self) -> ClusterMap {
        let group = |(name, view): (&String, &GroupView)| {
            let at = |node: &NodeId| view.nodes.get(node)?.store;
            let latest = view.configuration.as_ref();
            MapGroup {
                name: name.clone(),
                epoch: latest.map_or(0, |latest| latest.epoch),
                primary: latest.and_then(|latest| at(&latest.primary)),
                nodes: latest.iter().flat_map(|all| all.members.iter().filter_map(at)).collect(),
            }
        };
        let number = |name: &String| self.groups.keys().position(|held| held == name);
        let mut slots = Runs::default();
        for (range, Owner { group, to }) in self.slots.iter().flat_map(Runs::iter) {
            let owner =
                number(group).map(|group| map::Owner { group, to: to.as_ref().and_then(number) });
            slots.set(range, owner.as_ref());
        }
        let revision = u64::try_from(self.revision).unwrap_or(0);
        ClusterMap { revision, groups: self.groups.iter().map(group).collect(), slots }
    }

    /// The slots that a group is to give to another one.
    #[must_use]
    pub fn to_give(&self, from: &str, to: &str) -> Vec<Range> {
        let is_it = |owner: &Owner| owner.group == from && owner.to.as_deref() == Some(to);
        self.slots.iter().flat_map(|map| map.ranges(is_it)).collect()
    }

    /// The slots that another group is to give to the one of this name, if what has come from it is
    /// of the group that it is now. (What one has said that has begun anew since may come late.)
    ///
    /// # Errors
    /// It is not, as far as this says, in words.
    pub fn to_come(&self, asked: &Transfer<'_>, name: &str) -> Result<Vec<Range>, String> {
        let founding = self.groups.get(asked.from).and_then(|view| view.founding);
        match founding.is_none_or(|founding| founding == asked.ticket.founding) {
            true => Ok(self.to_give(asked.from, name)),
            false => Err(format!(
                "group {} has begun anew, and this node has not heard of it yet, or that group has \
                 not: try again",
                asked.from
            )),
        }
    }
}

/// Ranges, without a border where one goes on from another.
fn joined(ranges: impl Iterator<Item = Range>) -> Vec<Range> {
    let mut runs = Runs::default();
    ranges.for_each(|range| runs.set(range, Some(&())));
    runs.ranges(|()| true)
}

/// What keeps a cluster's map.
pub trait MapService: Send {
    /// The cluster as it is.
    ///
    /// # Errors
    /// The service does not answer, in words.
    fn look(&mut self) -> Result<Atlas, String>;

    /// Puts a map in the place of the one of this revision (0: of none); whether it still was that.
    ///
    /// # Errors
    /// The service does not answer, in words. The map may have been replaced or not.
    fn replace(&mut self, revision: i64, next: &SlotMap) -> Result<bool, String>;
}

/// Why slots cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// Nobody has slots.
    #[error(
        "etcd has no map of the cluster’s slots: start the nodes of its first group; if there was \
         one, restore the key `slots` from a backup of etcd"
    )]
    NoMap,
    /// There is no such group.
    #[error("the cluster has no group {0}: start its nodes with --group {0}")]
    NoGroup(String),
    /// No group has a slot.
    #[error(
        "no group has slots {range}, by the cluster’s map: the nodes of the one that has them \
         write that there once they serve. If it is lost for good, say so with --lost: the slots \
         begin with what group {to} has of their keys"
    )]
    Nobodys {
        /// Which.
        range: Range,
        /// To where they were to go.
        to: String,
    },
    /// A group has a slot that is said to be lost.
    #[error(
        "slots {range} are with group {group}, by the cluster’s map: move them without --lost. If \
         all its nodes are lost for good, delete first what etcd has of it (etcdctl del --prefix \
         /remora/CLUSTER/{group}/)"
    )]
    Had {
        /// Which.
        range: Range,
        /// Which group.
        group: String,
    },
    /// A slot is under way already.
    #[error("slots {range} are on their way from group {from} to {to}: wait until they are there")]
    Moving {
        /// Which.
        range: Range,
        /// From where.
        from: String,
        /// To where.
        to: String,
    },
}

impl Atlas {
    /// The map in which these slots are to go to a group. Those that it has already stay.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub fn with_move(&self, ranges: &[Range], to: &str) -> Result<SlotMap, MoveError> {
        let map = self.map_for(to)?;
        if let Some(range) = map.lacking(ranges).first() {
            return Err(MoveError::Nobodys { range: *range, to: to.to_owned() });
        }
        let mut next = map.clone();
        for (run, owner) in map.iter() {
            for range in ranges.iter().filter_map(|range| common(*range, run)) {
                match &owner.to {
                    Some(other) if other == to => {}
                    Some(other) => {
                        let (from, to) = (owner.group.clone(), other.clone());
                        return Err(MoveError::Moving { range, from, to });
                    }
                    None if owner.group == to => {}
                    None => {
                        let (group, to) = (owner.group.clone(), Some(to.to_owned()));
                        next.set(range, Some(&Owner { group, to }));
                    }
                }
            }
        }
        Ok(next)
    }

    /// The map in which a group is to have these slots, which no other one has any more: none, by
    /// the map, or one of which the service knows no nodes.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub fn with_lost(&self, ranges: &[Range], to: &str) -> Result<SlotMap, MoveError> {
        let map = self.map_for(to)?;
        let owner = Owner { group: to.to_owned(), to: Some(to.to_owned()) };
        let is_others = |had: &Owner| {
            *had != Owner::new(to)
                && *had != owner
                && (had.group == to || self.has_begun(&had.group))
        };
        let mut others = map.iter().filter(|(_, had)| is_others(had));
        let had = others.find_map(|(run, had)| {
            Some((ranges.iter().find_map(|range| common(*range, run))?, &had.group))
        });
        if let Some((range, group)) = had {
            return Err(MoveError::Had { range, group: group.clone() });
        }
        let mut next = map.clone();
        ranges.iter().for_each(|range| next.set(*range, Some(&owner)));
        Ok(next)
    }

    /// The map, into which slots of a group are to be written.
    fn map_for(&self, to: &str) -> Result<&SlotMap, MoveError> {
        let map = self.slots.as_ref().ok_or(MoveError::NoMap)?;
        if self.has_begun(to) { Ok(map) } else { Err(MoveError::NoGroup(to.to_owned())) }
    }

    fn has_begun(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|view| view.configuration.is_some())
    }
}

/// What two ranges have in common.
pub(crate) fn common(a: Range, b: Range) -> Option<Range> {
    let (first, last) = (a.first.max(b.first), a.last.min(b.last));
    (first <= last).then_some(Range { first, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atlas() -> Atlas {
        let view = |number| {
            let node = NodeId(number);
            let configuration = Configuration::first(node, vec![node]).ok();
            let card = ([127, 0, 0, 1], 7).into();
            let at = Address { store: Some(card), ..Address::new(card) };
            GroupView { configuration, nodes: [(node, at)].into(), ..GroupView::default() }
        };
        let mut map = SlotMap::default();
        map.set(Range::ALL, Some(&Owner::new("a")));
        let groups = [("a".to_owned(), view(1)), ("b".to_owned(), view(2))].into();
        Atlas { slots: Some(map), revision: 5, groups }
    }

    #[test]
    fn slots_are_to_move_once_at_a_time() {
        let mut atlas = atlas();
        let range = |text: &str| text.parse::<Range>().unwrap();
        assert_eq!(atlas.with_move(&[range("0")], "c"), Err(MoveError::NoGroup("c".to_owned())));
        atlas.slots = Some(atlas.with_move(&[range("10-19"), range("15-29")], "b").unwrap());
        assert_eq!(atlas.to_give("a", "b"), [range("10-29")]);
        // To say it again changes nothing; those that stay with a group stay.
        assert_eq!(atlas.with_move(&[range("10")], "b").ok(), atlas.slots);
        assert_eq!(atlas.with_move(&[range("40-50")], "a").ok(), atlas.slots);
        let moving = atlas.with_move(&[range("25-40")], "a").unwrap_err();
        assert!(moving.to_string().starts_with("slots 25-29 are on their way from group a to b"));
        assert_eq!(Atlas::default().with_move(&[Range::ALL], "a"), Err(MoveError::NoMap));
        assert_eq!(Atlas::default().with_lost(&[Range::ALL], "a"), Err(MoveError::NoMap));
        // Clients hear of the slots' present group.
        let shown = atlas.shown("b", NodeId(2));
        assert_eq!(shown.groups[0].slots, [Range::ALL]);
        assert!(shown.groups[1].slots.is_empty() && shown.groups[1].is_mine);
        assert!(shown.groups[1].nodes[0].is_me && shown.groups[1].nodes[0].is_primary);
        // Those over the card hear of the next one, too.
        let told = atlas.told();
        assert_eq!(told.owner(10), Some(map::Owner { group: 0, to: Some(1) }));
        assert_eq!(told.owner(30), Some(map::Owner { group: 0, to: None }));
        assert_eq!(told.groups[1].primary, Some(([127, 0, 0, 1], 7).into()));
        assert_eq!(ClusterMap::parse(&told.to_text()), Some(told));
    }

    #[test]
    fn slots_that_no_group_has_are_given_to_one_if_somebody_says_so() {
        let mut atlas = atlas();
        let range = |text: &str| text.parse::<Range>().unwrap();
        let lost = [range("10-19"), range("30-39")];
        let refused = atlas.with_lost(&lost, "b");
        assert_eq!(refused, Err(MoveError::Had { range: lost[0], group: "a".to_owned() }));
        let map = atlas.slots.as_mut().unwrap();
        lost.iter().for_each(|range| map.set(*range, None));
        let refused = atlas.with_move(&[range("5-15")], "b");
        assert_eq!(refused, Err(MoveError::Nobodys { range: range("10-15"), to: "b".to_owned() }));
        assert_eq!(atlas.with_lost(&lost, "c"), Err(MoveError::NoGroup("c".to_owned())));
        atlas.slots = Some(atlas.with_lost(&lost, "b").unwrap());
        assert_eq!(atlas.to_give("b", "b"), lost);
        assert_eq!(atlas.with_lost(&lost, "b").ok(), atlas.slots, "it was said twice");
        // Those of a group whose nodes are gone, and that come from there.
        let mut gone = atlas.clone();
        gone.slots = Some(atlas.with_move(&[range("50-59")], "b").unwrap());
        assert!(matches!(gone.with_lost(&[range("50-69")], "b"), Err(MoveError::Had { .. })));
        gone.groups.get_mut("a").unwrap().configuration = None;
        gone.slots = Some(gone.with_lost(&[range("50-69")], "b").unwrap());
        assert_eq!(gone.to_give("b", "b"), [lost[0], lost[1], range("50-69")]);
        // By the map it has them, and not by its log.
        atlas.slots.as_mut().unwrap().set(lost[0], Some(&Owner::new("b")));
        assert_eq!(
            atlas.with_lost(&lost[..1], "b").map(|map| map.get(15).cloned()),
            Ok(Some(Owner { group: "b".to_owned(), to: Some("b".to_owned()) }))
        );
    }
}
