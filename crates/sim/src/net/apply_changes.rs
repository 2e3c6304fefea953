//! How [`Change`]s happen to the network.

use super::changes::Change;
use super::engine::Net;
use super::time::Ps;
use super::topology::Node;

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
