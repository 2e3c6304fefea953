//! All shortest paths of a network, and the [`Atlas`] that its parts share them by.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::topology::{Cable, Link, Node, Topology};

/// The links by which each switch reaches each switch that has hosts. Hosts of one switch share
/// them.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// By host: the place of its switch among those that have hosts.
    ranks: Vec<u32>,
    switches: usize,
    /// By such a switch's place, and by switch: which of `spans`.
    table: Vec<u32>,
    /// Of `members`: the first, and how many.
    spans: Vec<(u32, u32)>,
    members: Vec<u32>,
}

impl Paths {
    /// Those over the links that work. The first `hosts` links are the hosts' own.
    fn over(links: &[Link], (hosts, switches): (u32, u32), works: impl Fn(u32) -> bool) -> Paths {
        let switches = switches as usize;
        let mut out: Vec<Vec<(u32, u32)>> = vec![Vec::new(); switches];
        let mut into: Vec<Vec<u32>> = vec![Vec::new(); switches];
        for (i, link) in (0u32..).zip(links) {
            if let (Node::Switch(from), Node::Switch(to)) = (link.from, link.to)
                && works(i)
            {
                out[from as usize].push((i, to));
                into[to as usize].push(from);
            }
        }
        let of_hosts = links[..hosts as usize].iter().map(|link| link.to.switch());
        let mut edges: Vec<u32> = of_hosts.clone().flatten().collect();
        edges.sort_unstable();
        edges.dedup();
        let rank = |edge: u32| edges.partition_point(|other| *other < edge) as u32;
        let mut paths = Paths {
            ranks: of_hosts.map(|edge| edge.map_or(0, rank)).collect(),
            switches,
            table: vec![0; edges.len() * switches],
            spans: vec![(0, 0)],
            members: Vec::new(),
        };
        let (mut known, mut far) = (BTreeMap::new(), Vec::new());
        for (edge, row) in edges.iter().zip(0..) {
            distances(&into, *edge, &mut far);
            paths.fill(row, &out, &far, &mut known);
        }
        paths
    }

    /// Fills the row of the table of a switch that is `far` from the others.
    fn fill(
        &mut self,
        row: usize,
        out: &[Vec<(u32, u32)>],
        far: &[u32],
        known: &mut BTreeMap<Vec<u32>, u32>,
    ) {
        let mut group = Vec::new();
        for (switch, links) in out.iter().enumerate().filter(|(s, _)| far[*s] != UNREACHED) {
            let nearer = links.iter().filter(|(_, to)| far[*to as usize] + 1 == far[switch]);
            group.clear();
            group.extend(nearer.map(|(link, _)| *link));
            if group.is_empty() {
                continue;
            }
            let span = known.get(&group).copied().unwrap_or_else(|| {
                self.spans.push((self.members.len() as u32, group.len() as u32));
                self.members.extend(&group);
                let span = self.spans.len() as u32 - 1;
                known.insert(group.clone(), span);
                span
            });
            self.table[row * self.switches + switch] = span;
        }
    }

    /// The links by which a switch reaches the switch of `host`, which is another one.
    #[inline]
    pub(super) fn between(&self, switch: u32, host: u32) -> &[u32] {
        let row = self.ranks[host as usize] as usize;
        let span = self.table[row * self.switches + switch as usize];
        let (start, len) = self.spans[span as usize];
        &self.members[start as usize..(start + len) as usize]
    }
}

/// How large [`Paths`] may become. Each switch has at most one set of links for each switch with
/// hosts, and no more sets than its cables to other switches make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    entries: u64,
    sets: u64,
    members: u64,
}

impl Most {
    /// That of a topology whose cables end at its nodes.
    pub(crate) fn of(topology: &Topology) -> Most {
        let Topology { switches, ref cables, .. } = *topology;
        let (mut degrees, mut has_hosts) = (vec![0u64; switches as usize], BTreeSet::new());
        for Cable { a, b, .. } in cables {
            match (a.switch(), b.switch()) {
                (Some(a), Some(b)) => {
                    degrees[a as usize] += 1;
                    degrees[b as usize] += 1;
                }
                (a, b) => has_hosts.extend(a.or(b)),
            }
        }
        let edges = has_hosts.len() as u64;
        let mut most = Most { entries: edges.saturating_mul(switches.into()), sets: 1, members: 0 };
        for degree in degrees {
            let subsets = 1u64.checked_shl(degree as u32).map_or(u64::MAX, |all| all - 1);
            let sets = edges.min(subsets);
            most.sets = most.sets.saturating_add(sets);
            most.members = most.members.saturating_add(sets.saturating_mul(degree));
        }
        most
    }

    /// Can all be numbered?
    pub(super) fn fits(&self) -> bool {
        self.sets.max(self.members) <= u32::MAX.into()
    }

    /// Bytes of the paths while they are found.
    pub(crate) fn bytes(&self) -> u64 {
        // Sets and their links are twice there: among those that are known they have a key each.
        let parts = [(self.entries, 4), (self.sets, 64), (self.members, 8)];
        parts.iter().fold(0, |sum, (count, bytes)| sum.saturating_add(count.saturating_mul(*bytes)))
    }
}

/// The distance of a switch that cannot be reached.
const UNREACHED: u32 = u32::MAX - 1;

/// By switch: how many links it is away from `edge`.
fn distances(into: &[Vec<u32>], edge: u32, far: &mut Vec<u32>) {
    far.clear();
    far.resize(into.len(), UNREACHED);
    far[edge as usize] = 0;
    let mut line = VecDeque::from([edge]);
    while let Some(at) = line.pop_front() {
        for from in &into[at as usize] {
            if far[*from as usize] == UNREACHED {
                far[*from as usize] = far[at as usize] + 1;
                line.push_back(*from);
            }
        }
    }
}

/// The paths of one topology, by the links that do not work. The parts of a network have one, so
/// that the first that needs some paths finds them for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Atlas(Arc<Mutex<BTreeMap<Vec<u32>, Arc<Paths>>>>);

impl Atlas {
    /// The paths over the links of `topology` without those that are `down`, in ascending order.
    pub(super) fn paths(&self, links: &[Link], size: (u32, u32), down: Vec<u32>) -> Arc<Paths> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that all parts have left behind are nobody's any more: parts that learn of a
        // failure have two, those before it and those behind it.
        all.retain(|old, paths| *old == down || Arc::strong_count(paths) > 1);
        let find = |down: &Vec<u32>| Paths::over(links, size, |i| down.binary_search(&i).is_err());
        all.entry(down).or_insert_with_key(|down| Arc::new(find(down))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::FatTree;

    #[test]
    fn parts_share_paths_until_none_needs_them() {
        let tree = FatTree::srnic(64).unwrap();
        let (links, size) = (tree.links(), (tree.hosts, tree.switches));
        let atlas = Atlas::default();
        let of = |down: &[u32]| atlas.paths(&links, size, down.to_vec());
        let (one, other) = (of(&[]), of(&[]));
        assert!(Arc::ptr_eq(&one, &other));
        let failed = of(&[70]);
        assert!(!Arc::ptr_eq(&one, &failed));
        assert!(Arc::ptr_eq(&failed, &of(&[70])));
        drop(failed);
        of(&[71]);
        assert_eq!(atlas.0.lock().unwrap().len(), 2, "those of 70 are nobody's");
        assert!(Arc::ptr_eq(&one, &of(&[])));
        drop((one, other));
        of(&[71]);
        assert_eq!(atlas.0.lock().unwrap().len(), 1, "nobody has those of the whole network");
    }

    /// The bound is not below what is there, and links that could not be numbered are found out
    /// before paths are.
    #[test]
    fn paths_have_a_bound() {
        let tree = FatTree::srnic(256).unwrap();
        let paths = Atlas::default().paths(&tree.links(), (tree.hosts, tree.switches), Vec::new());
        let most = Most::of(&tree);
        assert_eq!(most.entries, paths.table.len() as u64);
        assert!(most.fits() && most.sets >= paths.spans.len() as u64);
        assert!(most.members >= paths.members.len() as u64);
        // A switch with 70,000 cables to as many switches with hosts may have a set for each.
        let count = 70_000;
        let cable = |a, b| Cable { a, b, ..tree.cables[0] };
        let star = (1..=count).map(|switch| cable(Node::Switch(0), Node::Switch(switch)));
        let hosts = (0..count).map(|host| cable(Node::Host(host), Node::Switch(host + 1)));
        let cables = star.chain(hosts).collect();
        let wide = Topology { hosts: count, switches: count + 1, cables };
        assert_eq!(wide.check(), Ok(()));
        assert!(!Most::of(&wide).fits());
    }
}
