//! Routes: by which links a switch reaches a host, and which of them a packet takes.

use core::slice;
use std::sync::Arc;

use super::paths::{Atlas, Paths};
use super::time::{Ps, US};
use super::topology::{Link, Node};
use crate::dice::{SplitMix, Use, mix};

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
pub(super) struct Chooser {
    salt: u64,
    pub(super) random: SplitMix,
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
    switches: u32,
    atlas: Atlas,
    paths: Arc<Paths>,
    pub(super) choosers: Vec<Chooser>,
}

/// No path.
pub(super) const NOWHERE: u32 = u32::MAX;

impl Routes {
    /// Those over all links; other parts of the network have the same `atlas`.
    pub(super) fn new(
        links: &[Link],
        (hosts, switches): (u32, u32),
        (routing, seed): (Routing, u64),
        atlas: &Atlas,
    ) -> Routes {
        let edges = links[..hosts as usize].iter().map(|link| link.to).collect();
        let down = links[..hosts as usize].iter().map(|link| link.back).collect();
        let chooser = |switch: u32| {
            let salt = Use::Paths.seed(seed, switch.into());
            let flowlets = match routing {
                Routing::Flowlet { .. } => vec![Flowlet::default(); FLOWLETS],
                Routing::Ecmp | Routing::Spray => Vec::new(),
            };
            Chooser { salt, random: SplitMix::new(salt), flowlets }
        };
        let choosers = (0..switches).map(chooser).collect();
        let (atlas, paths) = (atlas.clone(), atlas.paths(links, (hosts, switches), Vec::new()));
        Routes { routing, edges, down, switches, atlas, paths, choosers }
    }

    /// Takes all shortest paths without the links that are down.
    pub(super) fn learn(&mut self, links: &[Link], is_down: impl Fn(u32) -> bool) {
        let down = (0..links.len() as u32).filter(|link| is_down(*link)).collect();
        // Unless another part needs the old ones, they go before the new ones are there.
        self.paths = Arc::default();
        let size = (self.edges.len() as u32, self.switches);
        self.paths = self.atlas.paths(links, size, down);
    }

    /// The link by which `switch` sends a packet of this flow to `host`; [`NOWHERE`] if there is no
    /// path.
    #[inline]
    pub(super) fn next(&mut self, now: Ps, switch: u32, host: u32, flow: u32) -> u32 {
        let Node::Switch(edge) = self.edges[host as usize] else { return NOWHERE };
        if edge == switch {
            return self.down[host as usize];
        }
        match *self.paths.between(switch, host) {
            [] => NOWHERE,
            [only] => only,
            ref several => {
                let chooser = &mut self.choosers[switch as usize];
                several[chooser.choose(self.routing, now, flow, several.len() as u64)]
            }
        }
    }

    /// All links by which `switch` may send packets to `host`.
    pub(super) fn links(&self, switch: u32, host: u32) -> &[u32] {
        match self.edges[host as usize] {
            Node::Switch(edge) if edge == switch => slice::from_ref(&self.down[host as usize]),
            Node::Switch(_) => self.paths.between(switch, host),
            Node::Host(_) => &[],
        }
    }

    /// What [`Routes::next`] will probably say.
    #[inline]
    pub(super) fn likely(&self, switch: u32, host: u32, flow: u32) -> u32 {
        let Node::Switch(edge) = self.edges[host as usize] else { return NOWHERE };
        if edge == switch {
            return self.down[host as usize];
        }
        let links = self.paths.between(switch, host);
        let hash = mix(self.choosers[switch as usize].salt ^ u64::from(flow));
        links.get(one_of(hash, links.len() as u64)).copied().unwrap_or(NOWHERE)
    }
}

impl Chooser {
    /// One of `len` paths.
    #[inline]
    fn choose(&mut self, routing: Routing, now: Ps, flow: u32, len: u64) -> usize {
        let hash = mix(self.salt ^ u64::from(flow));
        match routing {
            Routing::Ecmp => one_of(hash, len),
            Routing::Spray => one_of(self.random.number(), len),
            Routing::Flowlet { gap_ps } => {
                let flowlet = &mut self.flowlets[hash as usize % FLOWLETS];
                if now.saturating_sub(flowlet.last) > gap_ps || flowlet.last == 0 {
                    flowlet.choice = self.random.number() as u32;
                }
                flowlet.last = now;
                one_of(u64::from(flowlet.choice) << 32, len)
            }
        }
    }
}

/// One of `len`, by the upper half of a random number.
#[inline]
fn one_of(random: u64, len: u64) -> usize {
    (((random >> 32) * len) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        let mut routes = Routes::new(&links, size, (Routing::Ecmp, 1), &Atlas::default());
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
            let mut routes = Routes::new(&links, size, (routing, 2), &Atlas::default());
            let mut used = BTreeMap::new();
            for flow in 0..4000 {
                *used.entry(way(&mut routes, &links, (0, 15, flow))).or_insert(0) += 1;
            }
            assert_eq!(used.len(), 4, "two aggregation switches, two cores each");
            assert!(used.values().all(|n| (800..1200).contains(n)), "{routing:?}: {used:?}");
        }
    }

    /// Within the gap a flow keeps its path, however many packets of others come between; after a
    /// longer pause it may take another.
    #[test]
    fn a_flow_changes_its_path_only_after_a_gap() {
        let (topology, links) = (tree(), tree().links());
        let size = (topology.hosts, topology.switches);
        let gap_ps = 20 * US;
        let by = |routing| Routes::new(&links, size, (routing, 4), &Atlas::default());
        let (mut flowlets, mut ecmp) = (by(Routing::Flowlet { gap_ps }), by(Routing::Ecmp));
        let (mut now, mut taken) = (US, Vec::new());
        for _ in 0..64 {
            let path = flowlets.next(now, 0, 15, 7);
            for other in 0..20 {
                flowlets.next(now + 1, 0, 15, 100 + other);
                now += gap_ps;
                assert_eq!(flowlets.next(now, 0, 15, 7), path, "the gap is no longer");
                assert_eq!(ecmp.next(now, 0, 15, 7), ecmp.next(1, 0, 15, 7));
            }
            taken.push(path);
            now += gap_ps + 1;
        }
        let changes = taken.windows(2).filter(|two| two[0] != two[1]).count();
        assert!((16..48).contains(&changes), "one of two paths at random: {taken:?}");
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 2, "both links up");
    }

    #[test]
    fn failed_links_are_avoided() {
        let (topology, links) = (tree(), tree().links());
        let size = (topology.hosts, topology.switches);
        let mut routes = Routes::new(&links, size, (Routing::Spray, 3), &Atlas::default());
        let failed = way(&mut routes, &links, (0, 15, 0))[1];
        routes.learn(&links, |link| link == failed || link == links[failed as usize].back);
        for flow in 0..100 {
            assert!(!way(&mut routes, &links, (0, 15, flow)).contains(&failed));
        }
        routes.learn(&links, |_| true);
        assert_eq!(routes.next(1, 0, 15, 0), NOWHERE);
        assert_ne!(routes.next(1, 0, 1, 0), NOWHERE, "a host of the same switch");
    }
}
