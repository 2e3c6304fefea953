//! How [`Change`]s happen to the network.

use super::changes::Change;
use super::engine::Net;
use super::pfc::CLASSES;
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
            Change::Rate { link, rate } => {
                let i = link as usize;
                self.ports[i].rate = rate;
                self.markings[i] = self.buffer.marking_at(rate.bits());
                if let (Some(pfc), Some(ingress)) = (self.pfc, self.ingress.get_mut(i)) {
                    ingress.headroom = pfc.headroom(rate, self.ports[i].delay);
                }
            }
            Change::Loss { link, probability } => {
                self.changes.set_loss(link, probability);
                self.ports[link as usize].flags.lossy = probability > 0.0;
            }
            Change::Reroute => {
                let (links, changes) = (&self.changes.links, &self.changes);
                self.routes.learn(links, |link| changes.is_down(link));
            }
        }
    }

    fn mark_down(&mut self) {
        let mut changed = Vec::new();
        for (i, port) in (0u32..).zip(&mut self.ports) {
            let down = self.changes.is_down(i);
            if core::mem::replace(&mut port.flags.down, down) != down {
                changed.push(i);
            }
        }
        changed.into_iter().for_each(|link| self.forget_pauses(link));
    }

    /// Both ends of a link that fails or is back begin anew: the port is not paused, and the switch
    /// at the other end has not asked for it. Otherwise a port would wait for ever for a frame that
    /// was lost.
    fn forget_pauses(&mut self, link: u32) {
        self.changes.epochs[link as usize] += 1;
        let Some(ingress) = self.ingress.get_mut(link as usize) else { return };
        ingress.forget_pauses();
        let paused = core::mem::take(&mut self.queues[link as usize].paused);
        for class in (0..CLASSES as u8).filter(|class| paused & 1 << class != 0) {
            self.note_pause(link, class, false);
        }
        if paused != 0 {
            self.start(link);
        }
    }
}
