//! Routes: by which links a switch reaches a host, and which of them a packet takes.

use std::collections::{BTreeMap, VecDeque};

use super::time::{Ps, US};
use super::topology::{Link, Node};
use crate::dice::{Mix, mix};

/// Which of several equally short paths a packet takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Routing {
    /// The path depends on the packet's addresses and source port: all packets of a queue pair take
    /// the same.
    #[default]
    Ecmp,
    /// As ECMP, but a flow that has paused for this long, in picoseconds, may take another path.
    Flowlet {
        /// The gap between two flowlets.
        gap_ps: Ps,
    },
    /// Each packet takes a random path.
    Spray,
}

impl Routing {
    /// Flowlets with a gap of 20 µs: the paths of a fabric with links of 1 µs differ by less, so
    /// that packets keep their order.
    pub const FLOWLETS: Routing = Routing::Flowlet { gap_ps: 20 * US };
}

/// How many flows of a switch are told apart for flowlets.
const FLOWLETS: usize = 1 << 10;

/// A flow's last packet and its path.
#[derive(Clone, Copy, Debug, Default)]
struct Flowlet {
    last: Ps,
    choice: u32,
}

/// What one switch needs to choose.
#[derive(Clone, Debug)]
struct Chooser {
    salt: u64,
    random: Mix,
    /// Empty unless the routing is by flowlet.
    flowlets: Vec<Flowlet>,
}

/// The links by which each switch reaches each host.
#[derive(Debug)]
pub(super) struct Routes {
    routing: Routing,
    /// By host: the switch or host at the other end of its cable.
    edges: Vec<Node>,
    /// By host: the link to it.
    down: Vec<u32>,
    /// By host: the place of its edge switch among those that have hosts.
    ranks: Vec<u32>,
    switches: usize,
    /// By an edge switch's rank and switch: a span of `members`.
    table: Vec<u32>,
    spans: Vec<(u32, u32)>,
    members: Vec<u32>,
    choosers: Vec<Chooser>,
}

/// No path.
pub(super) const NOWHERE: u32 = u32::MAX;

impl Routes {
    pub(super) fn new(
        links: &[Link],
        (hosts, switches): (u32, u32),
        routing: Routing,
        seed: u64,
    ) -> Routes {
        let edges = links[..hosts as usize].iter().map(|link| link.to).collect();
        let down = links[..hosts as usize].iter().map(|link| link.back).collect();
        let chooser = |switch: u32| {
            let salt = mix(seed ^ mix(u64::from(switch)));
            let flowlets = match routing {
                Routing::Flowlet { .. } => vec![Flowlet::default(); FLOWLETS],
                Routing::Ecmp | Routing::Spray => Vec::new(),
            };
            Chooser { salt, random: Mix::new(salt), flowlets }
        };
        let choosers = (0..switches).map(chooser).collect();
        let ranks = Vec::new();
        let mut routes = Routes {
            routing,
            edges,
            down,
            ranks,
            switches: switches as usize,
            table: Vec::new(),
            spans: Vec::new(),
            members: Vec::new(),
            choosers,
        };
        routes.learn(links, |_| true);
        routes
    }

    /// Finds all shortest paths over the links that work.
    pub(super) fn learn(&mut self, links: &[Link], works: impl Fn(u32) -> bool) {
        let mut out: Vec<Vec<(u32, u32)>> = vec![Vec::new(); self.switches];
        for (i, link) in (0u32..).zip(links) {
            if let (Node::Switch(from), Node::Switch(to)) = (link.from, link.to)
                && works(i)
            {
                out[from as usize].push((i, to));
            }
        }
        let mut into: Vec<Vec<u32>> = vec![Vec::new(); self.switches];
        for (from, links) in (0u32..).zip(&out) {
            links.iter().for_each(|(_, to)| into[*to as usize].push(from));
        }
        (self.spans, self.members) = (vec![(0, 0)], Vec::new());
        let mut known = BTreeMap::new();
        let mut edges: Vec<u32> = self.edges.iter().filter_map(Node::switch).collect();
        edges.sort_unstable();
        edges.dedup();
        let rank = |node: &Node| node.switch().map_or(0, |s| edges.partition_point(|e| *e < s));
        self.ranks = self.edges.iter().map(|node| rank(node) as u32).collect();
        self.table = vec![0; edges.len() * self.switches];
        for (rank, edge) in edges.into_iter().enumerate() {
            let far = distances(&into, edge);
            for (switch, links) in out.iter().enumerate() {
                let nearer = |to: u32| far[to as usize] + 1 == far[switch];
                let group: Vec<u32> =
                    links.iter().filter(|(_, to)| nearer(*to)).map(|(link, _)| *link).collect();
                if far[switch] == UNREACHED || group.is_empty() {
                    continue;
                }
                let span = *known.entry(group).or_insert_with_key(|group| {
                    self.spans.push((self.members.len() as u32, group.len() as u32));
                    self.members.extend(group);
                    self.spans.len() as u32 - 1
                });
                self.table[rank * self.switches + switch] = span;
            }
        }
    }

    /// The link by which `switch` sends a packet of this flow to `host`; [`NOWHERE`] if there is no
    /// path.
    #[inline]
    pub(super) fn next(&mut self, now: Ps, switch: u32, host: u32, flow: u32) -> u32 {
        let Node::Switch(edge) = self.edges[host as usize] else { return NOWHERE };
        if edge == switch {
            return self.down[host as usize];
        }
        let rank = self.ranks[host as usize] as usize;
        let span = self.table[rank * self.switches + switch as usize];
        let (start, len) = self.spans[span as usize];
        match len {
            0 => NOWHERE,
            1 => self.members[start as usize],
            _ => {
                let chosen = start + self.choose(now, switch, flow, len);
                self.members[chosen as usize]
            }
        }
    }

    /// What [`Routes::next`] will probably say.
    #[inline]
    pub(super) fn likely(&self, switch: u32, host: u32, flow: u32) -> u32 {
        let Node::Switch(edge) = self.edges[host as usize] else { return NOWHERE };
        if edge == switch {
            return self.down[host as usize];
        }
        let rank = self.ranks[host as usize] as usize;
        let (start, len) = self.spans[self.table[rank * self.switches + switch as usize] as usize];
        let hash = mix(self.choosers[switch as usize].salt ^ u64::from(flow));
        let chosen = start + (((hash >> 32) * u64::from(len)) >> 32) as u32;
        self.members.get(chosen as usize).copied().unwrap_or(NOWHERE)
    }

    /// One of `len` paths.
    #[inline]
    fn choose(&mut self, now: Ps, switch: u32, flow: u32, len: u32) -> u32 {
        let chooser = &mut self.choosers[switch as usize];
        let hash = mix(chooser.salt ^ u64::from(flow));
        let one_of = |random: u64| (((random >> 32) * u64::from(len)) >> 32) as u32;
        match self.routing {
            Routing::Ecmp => one_of(hash),
            Routing::Spray => one_of(chooser.random.number()),
            Routing::Flowlet { gap_ps } => {
                let flowlet = &mut chooser.flowlets[hash as usize % FLOWLETS];
                if now.saturating_sub(flowlet.last) > gap_ps || flowlet.last == 0 {
                    flowlet.choice = chooser.random.number() as u32;
                }
                flowlet.last = now;
                one_of(u64::from(flowlet.choice) << 32)
            }
        }
    }
}

/// The distance of a switch that cannot be reached.
const UNREACHED: u32 = u32::MAX - 1;

/// By switch: how many links it is away from `edge`.
fn distances(into: &[Vec<u32>], edge: u32) -> Vec<u32> {
    let mut far = vec![UNREACHED; into.len()];
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
    far
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::shapes::FatTree;
    use crate::net::time::LineRate;
    use crate::net::topology::Topology;

    fn tree() -> Topology {
        let rate = LineRate::gigabits(100);
        FatTree {
            pods: 4,
            tors: 2,
            aggs: 2,
            cores: 2,
            hosts_per_tor: 2,
            host_rate: rate,
            fabric_rate: rate,
            delay: US,
        }
        .topology()
    }

    /// The links of a packet's way, and whether it arrives.
    fn way(routes: &mut Routes, links: &[Link], (src, dst, flow): (u32, u32, u32)) -> Vec<u32> {
        let mut way = vec![src];
        while let Node::Switch(switch) = links[*way.last().unwrap() as usize].to {
            way.push(routes.next(1, switch, dst, flow));
            assert!(way.len() < 8, "{way:?}");
        }
        assert_eq!(links[*way.last().unwrap() as usize].to, Node::Host(dst));
        way
    }

    #[test]
    fn every_pair_is_joined_by_a_shortest_path() {
        let (topology, links) = (tree(), tree().links());
        let size = (topology.hosts, topology.switches);
        let mut routes = Routes::new(&links, size, Routing::Ecmp, 1);
        for (src, dst) in (0..16).flat_map(|a| (0..16).map(move |b| (a, b))) {
            let hops = match (src / 2 == dst / 2, src / 4 == dst / 4) {
                (true, _) => 2,
                (_, true) => 4,
                _ => 6,
            };
            let first = way(&mut routes, &links, (src, dst, 7));
            assert_eq!(first.len(), hops, "{src} to {dst}");
            assert_eq!(way(&mut routes, &links, (src, dst, 7)), first, "a flow has one path");
        }
    }

    #[test]
    fn paths_are_used_alike() {
        let (topology, links) = (tree(), tree().links());
        let size = (topology.hosts, topology.switches);
        for routing in [Routing::Ecmp, Routing::Spray, Routing::FLOWLETS] {
            let mut routes = Routes::new(&links, size, routing, 2);
            let mut used = BTreeMap::new();
            for flow in 0..4000 {
                *used.entry(way(&mut routes, &links, (0, 15, flow))).or_insert(0) += 1;
            }
            assert_eq!(used.len(), 4, "two aggregation switches, two cores each");
            assert!(used.values().all(|n| (800..1200).contains(n)), "{routing:?}: {used:?}");
        }
    }

    #[test]
    fn failed_links_are_avoided() {
        let (topology, links) = (tree(), tree().links());
        let size = (topology.hosts, topology.switches);
        let mut routes = Routes::new(&links, size, Routing::Spray, 3);
        let failed = way(&mut routes, &links, (0, 15, 0))[1];
        routes.learn(&links, |link| link != failed && link != links[failed as usize].back);
        for flow in 0..100 {
            assert!(!way(&mut routes, &links, (0, 15, flow)).contains(&failed));
        }
        routes.learn(&links, |_| false);
        assert_eq!(routes.next(1, 0, 15, 0), NOWHERE);
        assert_ne!(routes.next(1, 0, 1, 0), NOWHERE, "a host of the same switch");
    }
}
