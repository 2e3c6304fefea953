//! What changes while the network runs: cables and switches fail and come back, slow down, lose.

use super::time::LineRate;
use super::topology::{Link, Node};
use crate::dice::{SplitMix, Use};

/// A change of the network.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    /// The cable of this link carries nothing in either direction, or works again.
    Cable {
        /// One of its links: see `Net::links_between`.
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
    /// Switches learn whether a cable works: news that comes late is of how it is by then. Until
    /// they learn of a failure they send packets to where they cannot go on.
    LearnCable {
        /// One of its links.
        link: u32,
    },
    /// Switches learn whether one of them works.
    LearnSwitch {
        /// The switch.
        switch: u32,
    },
}

/// What does not work.
#[derive(Debug)]
pub(super) struct Down {
    /// By link: has its cable failed?
    pub(super) cables: Vec<bool>,
    pub(super) switches: Vec<bool>,
}

impl Down {
    /// Does a link carry nothing?
    pub(super) fn has(&self, links: &[Link], link: u32) -> bool {
        let Link { from, to, .. } = links[link as usize];
        let is_down = |node: Node| node.switch().is_some_and(|s| self.switches[s as usize]);
        self.cables[link as usize] || is_down(from) || is_down(to)
    }

    /// Notes of a cable, by one of its links, whether it works.
    pub(super) fn note_cable(&mut self, links: &[Link], link: u32, works: bool) {
        for link in [link, links[link as usize].back] {
            self.cables[link as usize] = !works;
        }
    }
}

/// The changes to come, and the state that only they change.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) links: Vec<Link>,
    pub(super) planned: Vec<Change>,
    pub(super) down: Down,
    /// What switches have learnt of it.
    pub(super) known: Down,
    /// By link: how often it has failed or come back.
    pub(super) epochs: Vec<u32>,
    /// By link, once one loses packets: the probability and the random numbers.
    pub(super) losses: Vec<(f64, SplitMix)>,
    seed: u64,
}

impl Changes {
    pub(super) fn new(links: Vec<Link>, switches: u32, seed: u64) -> Changes {
        let (cables, switches) = (links.len(), switches as usize);
        let none = || Down { cables: vec![false; cables], switches: vec![false; switches] };
        let (planned, epochs, losses) = (Vec::new(), vec![0; cables], Vec::new());
        Changes { links, planned, down: none(), known: none(), epochs, losses, seed }
    }

    /// Does this packet get lost?
    pub(super) fn loses(&mut self, link: u32) -> bool {
        let (probability, random) = &mut self.losses[link as usize];
        random.fraction() < *probability
    }

    pub(super) fn set_loss(&mut self, link: u32, probability: f64) {
        if self.losses.is_empty() {
            let stream = |i: u64| (0.0, Use::Losses.stream(self.seed, i));
            self.losses = (0..self.links.len() as u64).map(stream).collect();
        }
        self.losses[link as usize].0 = probability;
    }
}
