//! How a cluster is divided: into threads, and those into parts that are simulated one after the
//! other, a window of time each.
//!
//! Where it can be, switches without hosts are parts of their own, the *fabric*, so that between
//! two parts with hosts there are two links. What hosts send in a window reaches other hosts by way
//! of the fabric, which is simulated behind them, up to one delay of a link further: so windows are
//! twice as long, and hosts' state is brought to the processor half as often.

use core::ops::Range;

use super::cluster::{Cluster, ClusterError};
use crate::net::time::{NEVER, NS};
use crate::net::{Cable, Node, Part, Ps, Topology};

/// The most parts: each has tables of the whole network and of all flows.
const MOST: u32 = 32;
/// The most parts of the fabric.
const MOST_FABRIC: usize = 8;
/// The shortest window for which a thread divides its hosts: in less, too little happens to a part
/// to pay for bringing its state back.
const SHORTEST: Ps = 200 * NS;

/// The parts of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Division {
    /// By node: its part.
    pub(super) of: Vec<u8>,
    /// By part: its first host; and behind them the number of hosts. The fabric has none.
    firsts: Vec<u32>,
    /// The last parts, so many, are the fabric: no link leads from one of them to another, or from
    /// one of the others to another.
    fabric: usize,
    /// The least delay of a link from part to part.
    pub(super) lookahead: Ps,
    /// The threads that have the parts, as many each.
    pub(super) threads: usize,
}

impl Division {
    /// One part.
    pub(super) fn whole(topology: &Topology) -> Division {
        let of = vec![0; (topology.hosts + topology.switches) as usize];
        let firsts = vec![0, topology.hosts];
        Division { of, firsts, fabric: 0, lookahead: NEVER, threads: 1 }
    }

    /// How many parts there are.
    pub(super) fn parts(&self) -> usize {
        self.firsts.len() - 1
    }

    /// The parts of a thread that have hosts, and those of the fabric.
    pub(super) fn parts_of(&self, thread: usize) -> [Range<u8>; 2] {
        let with_hosts = self.parts() - self.fabric;
        [(0, with_hosts), (with_hosts, self.fabric)].map(|(before, parts)| {
            let first = |thread| (before + thread * parts / self.threads) as u8;
            first(thread)..first(thread + 1)
        })
    }

    /// How far the fabric is simulated beyond the others.
    pub(super) fn ahead(&self) -> Ps {
        if self.fabric > 0 { self.lookahead } else { 0 }
    }

    /// The longest window within which nothing that others send can arrive.
    pub(super) fn window(&self) -> Ps {
        self.lookahead.saturating_add(self.ahead())
    }

    /// A part, as a network knows it.
    pub(super) fn part(&self, own: u8) -> Part {
        let leaving = (0..self.parts()).map(|_| Vec::new()).collect();
        Part { of: self.of.clone(), own, leaving }
    }

    /// A part's first host, and the one behind its last.
    pub(super) fn hosts(&self, part: u8) -> (u32, u32) {
        (self.firsts[usize::from(part)], self.firsts[usize::from(part) + 1])
    }

    /// Does the part have this host?
    #[inline]
    pub(super) fn has(&self, part: u8, host: u32) -> bool {
        self.of[host as usize] == part
    }
}

impl Cluster {
    /// The most parts of the usual size that so many hosts are divided into.
    pub(crate) fn most_parts(hosts: u64) -> u64 {
        match hosts / u64::from(Cluster::LOT) {
            0 | 1 => 2,
            lots => lots.min(MOST.into()) + MOST_FABRIC as u64,
        }
    }

    /// The parts for the threads that the cluster has, each of about [`Cluster::lot`] hosts.
    ///
    /// # Errors
    /// If there is nothing to divide for two threads.
    pub(super) fn division(&self) -> Result<Division, ClusterError> {
        let threads = u32::from(self.threads.clamp(1, 2));
        let parts = (self.topology.hosts / self.lot.max(1)).clamp(threads, MOST);
        // Samples, and looks for deadlocks, are of a moment that all parts have in common.
        let is_apart = parts > threads && self.record.is_none() && self.net.pfc.is_none();
        let apart = if is_apart { self.apart(parts, threads as usize) } else { None };
        let lots = apart.or_else(|| self.divided(parts));
        let lots = lots.filter(|lots| lots.lookahead >= SHORTEST);
        let division = match lots {
            Some(lots) => Some(lots),
            None if threads == 1 => Some(Division::whole(&self.topology)),
            None => self.divided(threads),
        };
        let threads = threads as usize;
        let division = division.filter(|division| division.parts() >= threads);
        division.map(|division| Division { threads, ..division }).ok_or(ClusterError::Threads)
    }

    /// So many parts, or fewer; `None` if a link from one to another has no delay. Hosts of one
    /// switch are in one part. Switches without hosts go where most of their neighbours are; those
    /// between several parts go to each of them in turn.
    fn divided(&self, parts: u32) -> Option<Division> {
        let Topology { hosts, ref cables, .. } = self.topology;
        if parts < 2 {
            return None;
        }
        let firsts = self.firsts(parts);
        let of = self.parts_of_nodes(&firsts);
        let index = |node: Node| self.index(node);
        let crossing = cables.iter().filter(|cable| of[index(cable.a)] != of[index(cable.b)]);
        let lookahead = crossing.map(|cable| cable.delay).min().filter(|delay| *delay > 0)?;
        debug_assert_eq!(firsts.last(), Some(&hosts));
        Some(Division { of, firsts, fabric: 0, lookahead, threads: 1 })
    }

    /// So many parts with hosts, or fewer, and the fabric between them, of which each thread has a
    /// part. `None` where switches with hosts have links to each other, or the fabric is too much
    /// of one piece.
    fn apart(&self, parts: u32, threads: usize) -> Option<Division> {
        let Topology { hosts, ref cables, .. } = self.topology;
        let mut firsts = self.firsts(parts);
        let mut of = self.parts_of_nodes(&firsts);
        let pieces = self.pieces();
        let count = pieces.iter().flatten().max()? + 1;
        let fabric = count.min(MOST_FABRIC);
        for (part, piece) in of.iter_mut().zip(&pieces) {
            if let Some(piece) = piece {
                *part = (firsts.len() - 1 + piece % fabric) as u8;
            }
        }
        let mut lookahead = NEVER;
        for Cable { a, b, delay, .. } in cables {
            let [a, b] = [a, b].map(|node| self.index(*node));
            if of[a] != of[b] {
                if pieces[a].is_none() && pieces[b].is_none() {
                    return None;
                }
                lookahead = lookahead.min(*delay);
            }
        }
        firsts.extend(vec![hosts; fabric]);
        let is_enough = fabric >= threads && lookahead > 0 && lookahead < NEVER;
        is_enough.then_some(Division { of, firsts, fabric, lookahead, threads: 1 })
    }

    /// By node that is a switch without hosts: which of the pieces it belongs to, into which such
    /// switches fall without the others.
    fn pieces(&self) -> Vec<Option<usize>> {
        let Topology { hosts, switches, ref cables } = self.topology;
        let nodes = (hosts + switches) as usize;
        let mut is_inner = vec![false; nodes];
        is_inner[hosts as usize..].fill(true);
        let ends = |cable: &Cable| [self.index(cable.a), self.index(cable.b)];
        for [a, b] in cables.iter().map(ends) {
            if a.min(b) < hosts as usize {
                is_inner[a.max(b)] = false;
            }
        }
        let mut beside = vec![Vec::new(); nodes];
        for [a, b] in cables.iter().map(ends).filter(|[a, b]| is_inner[*a] && is_inner[*b]) {
            beside[a].push(b);
            beside[b].push(a);
        }
        let (mut pieces, mut count) = (vec![None; nodes], 0);
        for node in (0..nodes).filter(|node| is_inner[*node]) {
            let mut found = if pieces[node].is_none() { vec![node] } else { continue };
            while let Some(node) = found.pop() {
                if pieces[node].replace(count).is_none() {
                    found.extend(&beside[node]);
                }
            }
            count += 1;
        }
        pieces
    }

    fn index(&self, node: Node) -> usize {
        match node {
            Node::Host(host) => host as usize,
            Node::Switch(switch) => (self.topology.hosts + switch) as usize,
        }
    }

    /// The first hosts of so many parts, or fewer: where a switch's hosts begin, and as near as
    /// that to parts of one size. Behind them the number of hosts.
    fn firsts(&self, parts: u32) -> Vec<u32> {
        let hosts = self.topology.hosts;
        let mut beside = vec![None; hosts as usize];
        for Cable { a, b, .. } in &self.topology.cables {
            for (node, other) in [(a, b), (b, a)] {
                if let Node::Host(host) = node {
                    beside[*host as usize] = Some(*other);
                }
            }
        }
        let begins = |h: &u32| beside[*h as usize] != beside[*h as usize - 1];
        let edges: Vec<u32> = (1..hosts).filter(begins).collect();
        let wanted = (1..parts).map(|part| u64::from(hosts) * u64::from(part) / u64::from(parts));
        let nearest = |wanted: u64| edges.iter().min_by_key(|h| wanted.abs_diff(u64::from(**h)));
        let mut firsts: Vec<u32> = wanted.filter_map(nearest).copied().collect();
        firsts.dedup();
        firsts.insert(0, 0);
        firsts.push(hosts);
        firsts
    }

    /// By node: its part.
    fn parts_of_nodes(&self, firsts: &[u32]) -> Vec<u8> {
        const NOT_YET: u8 = u8::MAX;
        let Topology { hosts, switches, ref cables } = self.topology;
        let mut of = vec![NOT_YET; (hosts + switches) as usize];
        for (part, span) in (0u8..).zip(firsts.windows(2)) {
            of[span[0] as usize..span[1] as usize].fill(part);
        }
        let parts = firsts.len() - 1;
        // From the hosts inwards, so that a switch is decided when the switches below it are.
        loop {
            let mut votes = vec![Vec::new(); of.len()];
            for Cable { a, b, .. } in cables {
                for (node, other) in
                    [(self.index(*a), self.index(*b)), (self.index(*b), self.index(*a))]
                {
                    if of[node] == NOT_YET && of[other] != NOT_YET {
                        votes[node].resize(parts, 0u32);
                        votes[node][usize::from(of[other])] += 1;
                    }
                }
            }
            let mut turn = 0;
            let mut is_over = true;
            for (node, votes) in votes.iter().enumerate().filter(|(_, votes)| !votes.is_empty()) {
                let most = votes.iter().max();
                let first: Vec<usize> =
                    (0..parts).filter(|part| votes.get(*part) == most).collect();
                of[node] = first[turn % first.len()] as u8;
                turn += usize::from(first.len() > 1);
                is_over = false;
            }
            if is_over {
                return of;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::FatTree;
    use crate::net::time::US;

    /// A pod is a lot of the largest of SRNIC's trees, and the cores are shared out.
    #[test]
    fn pods_are_lots() {
        let mut pods = Cluster { lot: 256, ..Cluster::new(FatTree::srnic(4096).unwrap()) };
        pods.net.pfc = Some(Default::default());
        let division = pods.division().unwrap();
        assert_eq!((division.parts(), division.parts_of(0)), (16, [0..16, 16..16]));
        let (mut hosts, mut switches) = ([0; 16], [0; 16]);
        for (node, part) in division.of.iter().enumerate() {
            let of = if node < 4096 { &mut hosts } else { &mut switches };
            of[usize::from(*part)] += 1;
        }
        // 8 ToR switches, 8 aggregation switches, and 4 of 64 cores.
        assert_eq!((hosts, switches), ([256; 16], [20; 16]));
        let division = Cluster { threads: 2, ..pods }.division().unwrap();
        assert_eq!(
            [0, 1].map(|thread| division.parts_of(thread)),
            [[0..8, 16..16], [8..16, 16..16]]
        );
    }

    /// Aggregation switches and cores are planes without links to each other.
    #[test]
    fn the_fabric_is_apart() {
        let tree = Cluster { threads: 2, ..Cluster::new(FatTree::srnic(4096).unwrap()) };
        let division = tree.division().unwrap();
        let parts = [0, 1].map(|thread| division.parts_of(thread));
        assert_eq!(parts, [[0..16, 32..36], [16..32, 36..40]]);
        let switches = |part| division.of[4096..].iter().filter(|of| **of == part).count();
        // 4 ToR switches; an aggregation switch of each of 16 pods, and 8 cores.
        assert!((0..32).all(|part| switches(part) == 4 && division.hosts(part).1 > 0));
        assert!((32..40).all(|part| switches(part) == 24 && division.hosts(part) == (4096, 4096)));
        assert_eq!((division.lookahead, division.window()), (US, 2 * US));
        // Two ToR switches with a cable of their own leave one link between their hosts.
        let mut short = tree;
        let mut cable = short.topology.cables[4096];
        (cable.a, cable.b) = (Node::Switch(0), Node::Switch(127));
        short.topology.cables.push(cable);
        let division = short.division().unwrap();
        assert_eq!((division.ahead(), division.parts()), (0, 32));
    }

    #[test]
    fn what_cannot_be_divided_is_whole() {
        let star = Cluster { lot: 1, ..Cluster::new(FatTree::srnic(16).unwrap()) };
        assert_eq!(star.division().unwrap().parts(), 1);
        let mut near = Cluster { lot: 16, ..Cluster::new(FatTree::srnic(64).unwrap()) };
        assert_eq!(near.division().unwrap().parts(), 8, "four lots, and four planes");
        near.topology.cables.iter_mut().for_each(|cable| cable.delay = NS);
        assert_eq!(near.division().unwrap().parts(), 1);
        near.threads = 2;
        assert_eq!(near.division().unwrap().parts(), 2, "two threads need two");
    }
}
