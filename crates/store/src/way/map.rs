//! A cluster's map, as its nodes tell clients over the card: which group has which slots, and where
//! its nodes are.
//!
//! It is text. The first line has the number of the map's last change; each other line is a group:
//!
//! ```text
//! epoch primary nodes slots name
//! 3 10.0.0.5:7480 10.0.0.5:7480,10.0.0.6:7480 0-99,100-8191>1 a
//! 1 10.0.0.8:7480 10.0.0.8:7480 - b
//! ```
//!
//! `-` stands for nothing. Slots behind which a number stands go to the group of that line, counted
//! from 0. It says where to ask; the groups decide which of them owns a slot.

use std::fmt::Write;
use std::net::SocketAddr;

use crate::front::slots::{Range, Runs};

/// The most groups that are believed.
const GROUPS_MAX: usize = 4096;

/// Who has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The group, by its place in [`ClusterMap::groups`].
    pub group: usize,
    /// The group that it goes to.
    pub to: Option<usize>,
}

/// A group of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapGroup {
    /// Its name, which has no line end.
    pub name: String,
    /// Counts its configurations.
    pub epoch: u32,
    /// Where clients reach its primary.
    pub primary: Option<SocketAddr>,
    /// Where clients reach its nodes.
    pub nodes: Vec<SocketAddr>,
}

/// A cluster's map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMap {
    /// The number of its last change.
    pub revision: u64,
    /// The groups.
    pub groups: Vec<MapGroup>,
    /// Who has which slots.
    pub slots: Runs<Owner>,
}

impl ClusterMap {
    /// The map's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.revision);
        for (number, group) in self.groups.iter().enumerate() {
            let MapGroup { name, epoch, primary, nodes } = group;
            let held = self.slots.iter().filter(|(_, owner)| owner.group == number);
            let slots = held.map(|(range, owner)| match owner.to {
                Some(to) => format!("{range}>{to}"),
                None => range.to_string(),
            });
            let (nodes, slots) = (listed(nodes.iter().map(SocketAddr::to_string)), listed(slots));
            let primary = listed(primary.iter().map(SocketAddr::to_string));
            // Writing to a string does not fail.
            let _ = writeln!(text, "{epoch} {primary} {nodes} {slots} {name}");
        }
        text
    }

    /// Reads a map; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<ClusterMap> {
        let (revision, lines) = text.split_once('\n')?;
        let revision = revision.parse().ok()?;
        let mut map = ClusterMap { revision, ..ClusterMap::default() };
        let count = lines.lines().count();
        if count > GROUPS_MAX {
            return None;
        }
        for (number, line) in lines.lines().enumerate() {
            let mut words = line.splitn(5, ' ');
            let epoch = words.next()?.parse().ok()?;
            let primary = addresses(words.next()?)?.first().copied();
            let nodes = addresses(words.next()?)?;
            for slots in items(words.next()?) {
                let (range, to) =
                    slots.split_once('>').map_or((slots, None), |(r, t)| (r, Some(t)));
                let to = to.map(|to| to.parse().ok().filter(|to| *to < count).ok_or(()));
                let to = to.transpose().ok()?;
                map.slots.set(range.parse::<Range>().ok()?, Some(&Owner { group: number, to }));
            }
            let name = words.next()?.to_owned();
            map.groups.push(MapGroup { name, epoch, primary, nodes });
        }
        Some(map)
    }

    /// The group that has a slot.
    #[must_use]
    pub fn owner(&self, slot: u16) -> Option<Owner> {
        self.slots.get(slot).copied()
    }

    /// The group of this name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&MapGroup> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Takes what another node tells, as far as that is newer.
    pub fn merge(&mut self, told: ClusterMap) {
        let known = std::mem::replace(self, told);
        for group in &mut self.groups {
            if let Some(older) = known.group(&group.name)
                && older.epoch > group.epoch
            {
                group.clone_from(older);
            }
        }
        let is_same = |(a, b): (&MapGroup, &MapGroup)| a.name == b.name;
        let are_same = known.groups.len() == self.groups.len()
            && known.groups.iter().zip(&self.groups).all(is_same);
        if known.revision > self.revision && are_same {
            (self.revision, self.slots) = (known.revision, known.slots);
        }
    }
}

/// Items of a list, in a word.
fn listed(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    if items.is_empty() { "-".to_owned() } else { items.join(",") }
}

fn items(word: &str) -> impl Iterator<Item = &str> {
    word.split(',').filter(|item| *item != "-")
}

fn addresses(word: &str) -> Option<Vec<SocketAddr>> {
    items(word).map(|item| item.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> ClusterMap {
        let group = |name: &str, epoch, host| {
            let at = SocketAddr::from(([10, 0, 0, host], 7480));
            let (name, primary) = (name.to_owned(), (host != 8).then_some(at));
            MapGroup { name, epoch, primary, nodes: vec![at] }
        };
        let mut slots = Runs::default();
        slots.set(Range { first: 0, last: 99 }, Some(&Owner { group: 0, to: None }));
        slots.set(Range { first: 100, last: 8191 }, Some(&Owner { group: 0, to: Some(1) }));
        let groups = vec![group("a", 3, 5), group("b with a space", 1, 8)];
        ClusterMap { revision: 9, groups, slots }
    }

    #[test]
    fn a_map_round_trips_and_others_are_refused() {
        let text = map().to_text();
        assert_eq!(
            text,
            "9\n3 10.0.0.5:7480 10.0.0.5:7480 0-99,100-8191>1 a\n\
                          1 - 10.0.0.8:7480 - b with a space\n"
        );
        assert_eq!(ClusterMap::parse(&text), Some(map()));
        assert_eq!(map().owner(100), Some(Owner { group: 0, to: Some(1) }));
        assert_eq!(map().owner(9000), None);
        for (from, to) in [(">1", ">2"), ("0-99", "0-99999"), ("3 ", "x "), ("9\n", "\n")] {
            assert_eq!(ClusterMap::parse(&text.replacen(from, to, 1)), None, "{from} {to}");
        }
        for len in 0..text.len() {
            // No part of it does harm.
            let _ = ClusterMap::parse(&text[..len]);
        }
    }

    #[test]
    fn what_an_older_node_tells_does_not_replace_what_is_known() {
        let (mut known, mut older) = (map(), map());
        older.groups[0].epoch = 2;
        older.groups[0].primary = None;
        older.revision = 8;
        older.slots.set(Range::ALL, Some(&Owner { group: 1, to: None }));
        older.groups[1].epoch = 7;
        let b = older.groups[1].clone();
        known.merge(older);
        assert_eq!((&known.groups[0], &known.groups[1]), (&map().groups[0], &b));
        assert_eq!((known.revision, &known.slots), (9, &map().slots));
    }
}
