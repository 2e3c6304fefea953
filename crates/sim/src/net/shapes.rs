//! The usual topologies: star, dumb-bell, leaf–spine, fat tree.

use super::time::{LineRate, Ps, US};
use super::topology::{Cable, Node, Topology};

/// A star: one switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Star {
    /// Hosts.
    pub hosts: u32,
    /// The rate of each cable.
    pub rate: LineRate,
    /// The delay of each cable.
    pub delay: Ps,
}

/// Two switches with a cable between them, which all traffic from left to right shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dumbbell {
    /// Hosts on each side; the left ones come first.
    pub side: u32,
    /// The rate of the hosts' cables.
    pub host_rate: LineRate,
    /// The rate of the cable in the middle.
    pub middle_rate: LineRate,
    /// The delay of each cable.
    pub delay: Ps,
}

/// Leaves with hosts, each with a cable to every spine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafSpine {
    /// Leaf switches, the first by number.
    pub leaves: u32,
    /// Spine switches.
    pub spines: u32,
    /// Hosts of a leaf.
    pub hosts_per_leaf: u32,
    /// The rate of the hosts' cables.
    pub host_rate: LineRate,
    /// The rate of the cables between switches.
    pub fabric_rate: LineRate,
    /// The delay of each cable.
    pub delay: Ps,
}

/// Three stages: pods of ToR and aggregation switches, which are all connected within a pod, and
/// core switches. The aggregation switches of one place in their pods share a group of cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FatTree {
    /// Pods.
    pub pods: u32,
    /// ToR switches of a pod.
    pub tors: u32,
    /// Aggregation switches of a pod.
    pub aggs: u32,
    /// Core switches of a group; there are as many groups as aggregation switches of a pod.
    pub cores: u32,
    /// Hosts of a ToR switch.
    pub hosts_per_tor: u32,
    /// The rate of the hosts' cables.
    pub host_rate: LineRate,
    /// The rate of the cables between switches.
    pub fabric_rate: LineRate,
    /// The delay of each cable.
    pub delay: Ps,
}

impl Star {
    /// The topology.
    pub fn topology(&self) -> Topology {
        let cable = |h| cable(Node::Host(h), Node::Switch(0), self.rate, self.delay);
        Topology { hosts: self.hosts, switches: 1, cables: (0..self.hosts).map(cable).collect() }
    }
}

impl Dumbbell {
    /// The topology.
    pub fn topology(&self) -> Topology {
        let (rate, delay) = (self.host_rate, self.delay);
        let host = |h| cable(Node::Host(h), Node::Switch(h / self.side), rate, delay);
        let mut cables: Vec<Cable> = (0..2 * self.side).map(host).collect();
        cables.push(cable(Node::Switch(0), Node::Switch(1), self.middle_rate, delay));
        Topology { hosts: 2 * self.side, switches: 2, cables }
    }
}

impl LeafSpine {
    /// The topology.
    pub fn topology(&self) -> Topology {
        let hosts = self.leaves * self.hosts_per_leaf;
        let host = |h: u32| {
            let leaf = Node::Switch(h / self.hosts_per_leaf);
            cable(Node::Host(h), leaf, self.host_rate, self.delay)
        };
        let mut cables: Vec<Cable> = (0..hosts).map(host).collect();
        for leaf in 0..self.leaves {
            for spine in 0..self.spines {
                let ends = (Node::Switch(leaf), Node::Switch(self.leaves + spine));
                cables.push(cable(ends.0, ends.1, self.fabric_rate, self.delay));
            }
        }
        Topology { hosts, switches: self.leaves + self.spines, cables }
    }
}

impl FatTree {
    /// The topology: ToR switches first, pod by pod, then aggregation, then core switches.
    pub fn topology(&self) -> Topology {
        let FatTree { pods, tors, aggs, cores, .. } = *self;
        let hosts = pods * tors * self.hosts_per_tor;
        let (first_agg, first_core) = (pods * tors, pods * tors + pods * aggs);
        let host = |h: u32| {
            let tor = Node::Switch(h / self.hosts_per_tor);
            cable(Node::Host(h), tor, self.host_rate, self.delay)
        };
        let mut cables: Vec<Cable> = (0..hosts).map(host).collect();
        let mut connect = |lower, upper| {
            let ends = (Node::Switch(lower), Node::Switch(upper));
            cables.push(cable(ends.0, ends.1, self.fabric_rate, self.delay));
        };
        for pod in 0..pods {
            for agg in 0..aggs {
                let at = first_agg + pod * aggs + agg;
                (0..tors).for_each(|tor| connect(pod * tors + tor, at));
                (0..cores).for_each(|core| connect(at, first_core + agg * cores + core));
            }
        }
        Topology { hosts, switches: first_core + aggs * cores, cables }
    }

    /// The fat trees of SRNIC §6.3 for 16 to 4096 servers: hosts of 100 Gb/s, 400 Gb/s between
    /// switches, 1 µs a link, not over-subscribed. `None` for another number of servers than 16,
    /// 64, 256, 1024, 4096.
    ///
    /// The paper gives the numbers of ToR, aggregation and core switches: (1, 0, 0), (4, 4, 0),
    /// (8, 8, 0), (64, 64, 16), (128, 128, 64). The size of pods follows from the rates: as much
    /// goes up from a switch as down.
    pub fn srnic(servers: u32) -> Option<Topology> {
        let (host_rate, fabric_rate) = (LineRate::gigabits(100), LineRate::gigabits(400));
        let tree = |pods, tors, aggs, cores, hosts_per_tor| {
            let delay = US;
            FatTree { pods, tors, aggs, cores, hosts_per_tor, host_rate, fabric_rate, delay }
                .topology()
        };
        Some(match servers {
            16 => Star { hosts: 16, rate: host_rate, delay: US }.topology(),
            64 => tree(1, 4, 4, 0, 16),
            256 => tree(1, 8, 8, 0, 32),
            1024 => tree(16, 4, 4, 4, 16),
            4096 => tree(16, 8, 8, 8, 32),
            _ => return None,
        })
    }
}

fn cable(a: Node, b: Node, rate: LineRate, delay: Ps) -> Cable {
    Cable { a, b, rate, delay }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_trees_have_its_switches_and_are_not_over_subscribed() {
        for (servers, switches) in
            [(16, 1), (64, 8), (256, 16), (1024, 64 + 64 + 16), (4096, 128 + 128 + 64)]
        {
            let topology = FatTree::srnic(servers).unwrap();
            assert_eq!((topology.hosts, topology.switches), (servers, switches));
            assert_eq!(topology.check(), Ok(()));
            // Of a ToR switch, the rate to hosts and the rate upwards are the same.
            let mut rates = [0; 2];
            for Cable { a, b, rate, .. } in &topology.cables {
                let gigabits = rate.bits().unwrap() / 1_000_000_000;
                match (a, b) {
                    (Node::Host(_), Node::Switch(0)) => rates[0] += gigabits,
                    (Node::Switch(0), _) => rates[1] += gigabits,
                    _ => {}
                }
            }
            assert!(servers == 16 || rates[0] == rates[1], "{servers}: {rates:?}");
        }
        assert_eq!(FatTree::srnic(100), None);
    }

    #[test]
    fn every_shape_is_connected() {
        let (rate, delay) = (LineRate::gigabits(25), US);
        let dumbbell = Dumbbell { side: 3, host_rate: rate, middle_rate: rate, delay }.topology();
        assert_eq!((dumbbell.check(), dumbbell.cables.len()), (Ok(()), 7));
        let (host_rate, fabric_rate) = (rate, rate);
        let shape =
            LeafSpine { leaves: 3, spines: 2, hosts_per_leaf: 4, host_rate, fabric_rate, delay };
        let topology = shape.topology();
        assert_eq!((topology.check(), topology.cables.len()), (Ok(()), 12 + 6));
    }
}
