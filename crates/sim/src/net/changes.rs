//! What changes while the network runs: cables and switches fail and come back, slow down, lose.

use super::engine::Net;
use super::time::{LineRate, Ps};
use super::topology::{Link, Node};
use crate::dice::{Mix, mix};

/// A change of the network.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    /// The cable of this link carries nothing in either direction, or works again.
    Cable {
        /// One of its links: see [`Net::links_between`].
        link: u32,
        /// Whether it works.
        works: bool,
    },
    /// A switch fails, with all cables to it, or works again.
    Switch {
        /// The switch.
        switch: u32,
        /// Whether it works.
        works: bool,
    },
    /// A link has another rate from now on. What has begun to be sent is not affected.
    Rate {
        /// The link.
        link: u32,
        /// Its rate.
        rate: LineRate,
    },
    /// A link loses packets at random from now on.
    Loss {
        /// The link.
        link: u32,
        /// The probability that a packet is lost; zero ends it.
        probability: f64,
    },
    /// Switches learn which links work. Until then they send packets to where they cannot go on.
    Reroute,
}

/// The changes to come, and the state that only they change.
#[derive(Debug)]
pub(super) struct Changes {
    links: Vec<Link>,
    planned: Vec<Change>,
    cable_down: Vec<bool>,
    switch_down: Vec<bool>,
    /// By link, once one loses packets: the probability and the random numbers.
    losses: Vec<(f64, Mix)>,
}

impl Changes {
    pub(super) fn new(links: Vec<Link>, switches: u32) -> Changes {
        let (cable_down, switch_down) = (vec![false; links.len()], vec![false; switches as usize]);
        Changes { links, planned: Vec::new(), cable_down, switch_down, losses: Vec::new() }
    }

    /// Does this packet get lost?
    pub(super) fn loses(&mut self, link: u32) -> bool {
        let (probability, random) = &mut self.losses[link as usize];
        random.fraction() < *probability
    }

    fn set_loss(&mut self, link: u32, probability: f64) {
        if self.losses.is_empty() {
            let stream = |i: u64| (0.0, Mix::new(mix(i ^ 0x6C6F_7373)));
            self.losses = (0..self.links.len() as u64).map(stream).collect();
        }
        self.losses[link as usize].0 = probability;
    }

    fn is_down(&self, link: u32) -> bool {
        let Link { from, to, .. } = self.links[link as usize];
        let is_down = |node: Node| node.switch().is_some_and(|s| self.switch_down[s as usize]);
        self.cable_down[link as usize] || is_down(from) || is_down(to)
    }
}

impl Net {
    /// Makes a change happen at `at`. A failure that switches learn of needs a
    /// [`Change::Reroute`] later.
    pub fn plan(&mut self, at: Ps, change: Change) {
        self.changes.planned.push(change);
        self.push_change(at, self.changes.planned.len() as u32 - 1);
    }

    /// The links from one node to another.
    pub fn links_between(&self, from: Node, to: Node) -> Vec<u32> {
        let links = (0u32..).zip(&self.changes.links);
        links.filter(|(_, l)| l.from == from && l.to == to).map(|(i, _)| i).collect()
    }

    pub(super) fn change(&mut self, index: u32) {
        match self.changes.planned[index as usize] {
            Change::Cable { link, works } => {
                self.changes.cable_down[link as usize] = !works;
                self.changes.cable_down[self.back[link as usize] as usize] = !works;
                self.mark_down();
            }
            Change::Switch { switch, works } => {
                self.changes.switch_down[switch as usize] = !works;
                self.mark_down();
            }
            Change::Rate { link, rate } => self.ports[link as usize].rate = rate,
            Change::Loss { link, probability } => {
                self.changes.set_loss(link, probability);
                self.ports[link as usize].flags.lossy = probability > 0.0;
            }
            Change::Reroute => {
                let (links, changes) = (&self.changes.links, &self.changes);
                self.routes.learn(links, |link| !changes.is_down(link));
            }
        }
    }

    fn mark_down(&mut self) {
        for (i, port) in (0u32..).zip(&mut self.ports) {
            port.flags.down = self.changes.is_down(i);
        }
    }
}
