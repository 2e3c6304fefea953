//! [`Ways`]: what the links of the shortest paths between hosts are like.

use std::collections::BTreeMap;

use super::engine::Net;
use super::time::{LineRate, Ps};
use super::topology::Node;

/// The rate and the delay of each link of a path.
pub type Way = Vec<(LineRate, Ps)>;

/// What ways depend on: the ends of the two hosts' cables, and what these are like.
type Ends = ([Node; 2], [(LineRate, Ps); 2]);

/// Of the ways that lead to a switch so many are followed: in a network that somebody has planned,
/// most paths are alike.
const MOST: usize = 16;
/// So many pairs of ends are remembered.
const PAIRS: usize = 1 << 16;

/// The ways between the hosts of a network at rest. Hosts that differ in nothing but their number
/// share them.
#[derive(Debug)]
pub(crate) struct Ways {
    net: Net,
    known: BTreeMap<Ends, Vec<Way>>,
}

impl Ways {
    /// Those of a network.
    pub(crate) fn of(net: Net) -> Ways {
        Ways { net, known: BTreeMap::new() }
    }

    /// As [`Net::ways`].
    pub(crate) fn between(&mut self, from: u32, to: u32) -> &[Way] {
        let first = self.net.link(from);
        let last = self.net.link(self.net.link(to).back);
        let ends = ([first.to, last.from], [first, last].map(|link| (link.rate, link.delay)));
        if self.known.len() >= PAIRS && !self.known.contains_key(&ends) {
            self.known.clear();
        }
        self.known.entry(ends).or_insert_with(|| self.net.ways(from, to))
    }
}

impl Net {
    /// The rate and the delay of each link from one host to another, by a path that a packet may
    /// take. Empty if there is none.
    pub fn way(&self, from: u32, to: u32) -> Way {
        self.ways(from, to).into_iter().next().unwrap_or_default()
    }

    /// The shortest paths from one host to another that differ in their links' rates or delays: all
    /// of them, or a good many. Empty if there is none.
    pub fn ways(&self, from: u32, to: u32) -> Vec<Way> {
        let like = |link: u32| {
            let port = &self.ports[link as usize];
            (port.to, (port.rate, port.delay))
        };
        let (node, first) = like(from);
        // The nodes that are equally far from the target, each with the ways that lead there.
        let mut line = BTreeMap::from([(node, vec![vec![first]])]);
        while !line.is_empty() {
            if let Some(ways) = line.remove(&to) {
                return ways;
            }
            let mut next: BTreeMap<u32, Vec<Way>> = BTreeMap::new();
            for (node, ways) in line {
                let Some(switch) = node.checked_sub(self.hosts) else { continue };
                for (node, link) in self.routes.links(switch, to).iter().map(|link| like(*link)) {
                    let there = next.entry(node).or_default();
                    for way in &ways {
                        let way = [&way[..], &[link]].concat();
                        if there.len() < MOST && !there.contains(&way) {
                            there.push(way);
                        }
                    }
                }
            }
            line = next;
        }
        Vec::new()
    }
}
