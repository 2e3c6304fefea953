//! Topologies: which hosts and switches there are, and the cables between them.
//!
//! [`Topology`] is a plain list, so that any shape can be made by hand or read from a file; the
//! usual shapes have functions in [`shapes`](super::shapes).

use core::fmt;

use thiserror::Error;

use super::time::{LineRate, NEVER, Ps};

/// The end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A host, by its index.
    Host(u32),
    /// A switch, by its index.
    Switch(u32),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Host(host) => write!(f, "host {host}"),
            Node::Switch(switch) => write!(f, "switch {switch}"),
        }
    }
}

impl Node {
    /// The node that is called so: `host 3`, `switch 0`.
    pub fn named(name: &str) -> Option<Node> {
        let (kind, number) = name.trim().split_once(' ')?;
        let number = number.trim().parse().ok()?;
        match kind {
            "host" => Some(Node::Host(number)),
            "switch" => Some(Node::Switch(number)),
            _ => None,
        }
    }

    /// The switch, if it is one.
    pub fn switch(&self) -> Option<u32> {
        match self {
            Node::Switch(switch) => Some(*switch),
            Node::Host(_) => None,
        }
    }
}

/// A cable: a link in each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cable {
    /// One end.
    pub a: Node,
    /// The other end.
    pub b: Node,
    /// The rate of each direction.
    pub rate: LineRate,
    /// The time from the end of sending to arrival.
    pub delay: Ps,
}

/// Hosts, switches and cables.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    /// How many hosts there are.
    pub hosts: u32,
    /// How many switches there are.
    pub switches: u32,
    /// The cables.
    pub cables: Vec<Cable>,
}

/// The most nodes of a topology, and the most cables: a link's number must fit an event's.
pub const MOST: u32 = 1 << 24;
/// The longest delay of a cable: a second.
pub const LONGEST: Ps = 1_000_000_000_000;

/// Why a topology cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TopologyError {
    /// There are no hosts, or too many nodes or cables.
    #[error("a topology has 1 to {MOST} hosts, and at most {MOST} switches and cables")]
    Size,
    /// A cable ends at a node that does not exist.
    #[error("cable {cable} ends at {node}, which does not exist")]
    NoSuchNode {
        /// The cable, by its index.
        cable: usize,
        /// Its end.
        node: Node,
    },
    /// Both ends of a cable are the same node.
    #[error("cable {cable} leads from a node to itself")]
    ToItself {
        /// The cable, by its index.
        cable: usize,
    },
    /// A cable is too long.
    #[error("cable {cable} delays packets for more than a second")]
    TooLong {
        /// The cable, by its index.
        cable: usize,
    },
    /// A host has another number of cables than one.
    #[error("host {host} has {cables} cables; a host has one")]
    HostCables {
        /// The host.
        host: u32,
        /// Its cables.
        cables: u32,
    },
    /// A host cannot be reached.
    #[error("there is no path from host 0 to host {host}")]
    NotConnected {
        /// The host.
        host: u32,
    },
    /// Shortest paths may be more than can be numbered.
    #[error(
        "its switches may have more than 2^32 links in their sets of shortest paths: it has too \
         many switches with hosts for so many cables"
    )]
    Paths,
    /// A switch cannot be reached.
    #[error("no host has a path to switch {switch}")]
    OutOfReach {
        /// The switch.
        switch: u32,
    },
}

impl Topology {
    /// Checks that every host has one cable, and a path to every other host and to every switch.
    pub fn check(&self) -> Result<(), TopologyError> {
        let cables = u32::try_from(self.cables.len()).unwrap_or(u32::MAX);
        if self.hosts == 0 || self.hosts.max(self.switches).max(cables) > MOST {
            return Err(TopologyError::Size);
        }
        let mut degree = vec![0; self.hosts as usize];
        for (cable, Cable { a, b, delay, .. }) in self.cables.iter().enumerate() {
            for node in [*a, *b] {
                let exists = match node {
                    Node::Host(host) => host < self.hosts,
                    Node::Switch(switch) => switch < self.switches,
                };
                if !exists {
                    return Err(TopologyError::NoSuchNode { cable, node });
                }
                if let Node::Host(host) = node {
                    degree[host as usize] += 1;
                }
            }
            if a == b {
                return Err(TopologyError::ToItself { cable });
            }
            if *delay > LONGEST {
                return Err(TopologyError::TooLong { cable });
            }
        }
        if let Some(host) = degree.iter().position(|cables| *cables != 1) {
            let cables = degree[host];
            return Err(TopologyError::HostCables { host: host as u32, cables });
        }
        self.check_connected()
    }

    fn check_connected(&self) -> Result<(), TopologyError> {
        let index = |node| match node {
            Node::Host(host) => host as usize,
            Node::Switch(switch) => self.hosts as usize + switch as usize,
        };
        // Each node points at another of its part of the network; the root points at itself.
        let mut parts: Vec<usize> = (0..(self.hosts as usize + self.switches as usize)).collect();
        fn root(parts: &mut [usize], mut node: usize) -> usize {
            while parts[node] != node {
                parts[node] = parts[parts[node]];
                node = parts[node];
            }
            node
        }
        for Cable { a, b, .. } in &self.cables {
            let (a, b) = (root(&mut parts, index(*a)), root(&mut parts, index(*b)));
            parts[a] = b;
        }
        let first = root(&mut parts, 0);
        let mut is_apart = |node| root(&mut parts, index(node)) != first;
        if let Some(host) = (0..self.hosts).find(|host| is_apart(Node::Host(*host))) {
            return Err(TopologyError::NotConnected { host });
        }
        match (0..self.switches).find(|switch| is_apart(Node::Switch(*switch))) {
            Some(switch) => Err(TopologyError::OutOfReach { switch }),
            None => Ok(()),
        }
    }

    /// By cable: the number of the link that leaves its end `a`, and of that which leaves `b`.
    /// Link `h` is the one that leaves host `h`; those of switches follow in the cables' order.
    pub fn links_of_cables(&self) -> Vec<[u32; 2]> {
        let mut next = self.hosts;
        let mut number = |from: Node| match from {
            Node::Host(host) => host,
            Node::Switch(_) => {
                next += 1;
                next - 1
            }
        };
        self.cables.iter().map(|cable| [number(cable.a), number(cable.b)]).collect()
    }

    /// The directed links, as [`Topology::links_of_cables`] numbers them.
    pub fn links(&self) -> Vec<Link> {
        let none = Link {
            from: Node::Host(0),
            to: Node::Host(0),
            rate: LineRate::UNLIMITED,
            delay: NEVER,
            back: 0,
        };
        let ends = self.cables.iter().flat_map(|cable| [cable.a, cable.b]);
        let of_switches = ends.filter(|end| end.switch().is_some()).count();
        let mut links = vec![none; self.hosts as usize + of_switches];
        for (cable, [there, back]) in self.cables.iter().zip(self.links_of_cables()) {
            let Cable { a, b, rate, delay } = *cable;
            links[there as usize] = Link { from: a, to: b, rate, delay, back };
            links[back as usize] = Link { from: b, to: a, rate, delay, back: there };
        }
        links
    }
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The node that sends.
    pub from: Node,
    /// The node at the other end.
    pub to: Node,
    /// Its rate, when the network began.
    pub rate: LineRate,
    /// The time from the end of sending to arrival.
    pub delay: Ps,
    /// The link in the other direction.
    pub back: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::time::US;

    fn cable(a: Node, b: Node) -> Cable {
        Cable { a, b, rate: LineRate::gigabits(100), delay: US }
    }

    #[test]
    fn what_cannot_be_built_is_refused_by_name() {
        use Node::{Host, Switch};
        let two = |cables: &[(Node, Node)]| Topology {
            hosts: 2,
            switches: 2,
            cables: cables.iter().map(|(a, b)| cable(*a, *b)).collect(),
        };
        let star = [(Host(0), Switch(0)), (Host(1), Switch(0))];
        assert_eq!(two(&[star[0], star[1], (Switch(0), Switch(1))]).check(), Ok(()));
        let pair = Topology { switches: 0, ..two(&[(Host(0), Host(1))]) };
        assert_eq!(pair.check(), Ok(()));
        let out_of_reach = |switch| Err(TopologyError::OutOfReach { switch });
        assert_eq!(two(&star).check(), out_of_reach(1), "a switch without a cable");
        let island = [star[0], star[1], (Switch(1), Switch(2))];
        assert_eq!(Topology { switches: 3, ..two(&island) }.check(), out_of_reach(1));
        let apart = [(Host(0), Switch(0)), (Host(1), Switch(1))];
        assert_eq!(two(&apart).check(), Err(TopologyError::NotConnected { host: 1 }));
        let alone = two(&star[..1]).check();
        assert_eq!(alone, Err(TopologyError::HostCables { host: 1, cables: 0 }));
        let twice = two(&[star[0], star[0], star[1]]).check();
        assert_eq!(twice, Err(TopologyError::HostCables { host: 0, cables: 2 }));
        let nowhere = two(&[(Host(0), Switch(2))]).check();
        assert_eq!(nowhere, Err(TopologyError::NoSuchNode { cable: 0, node: Switch(2) }));
        let itself = two(&[(Switch(1), Switch(1))]).check();
        assert_eq!(itself, Err(TopologyError::ToItself { cable: 0 }));
        let mut long = two(&star);
        long.cables[1].delay = LONGEST + 1;
        assert_eq!(long.check(), Err(TopologyError::TooLong { cable: 1 }));
        assert_eq!(Topology::default().check(), Err(TopologyError::Size));
    }

    #[test]
    fn a_hosts_link_has_its_number() {
        let cables = [(2, 0), (0, 0), (1, 0)].map(|(h, s)| cable(Node::Host(h), Node::Switch(s)));
        let topology = Topology { hosts: 3, switches: 1, cables: cables.into() };
        let links = topology.links();
        assert_eq!(links.len(), 6);
        for (i, link) in links.iter().enumerate() {
            assert_eq!(links[link.back as usize].to, link.from);
            assert_eq!(link.from == Node::Host(i as u32), i < 3);
        }
    }
}
