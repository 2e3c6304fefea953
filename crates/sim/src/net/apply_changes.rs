//! How [`Change`]s happen to the network.

use super::changes::{Change, Changes};
use super::engine::Net;
use super::pfc::CLASSES;
use super::time::Ps;
use super::topology::Node;

impl Net {
    /// Makes a change happen at `at`. A failure that switches learn of needs a
    /// [`Change::LearnCable`] or a [`Change::LearnSwitch`] later. Where a rate changes later, it is
    /// best planned before packets wait: those that do have the old rate.
    pub fn plan(&mut self, at: Ps, change: Change) {
        if matches!(change, Change::Rate { .. }) && at > self.now {
            // When a packet that waits then leaves is not known before.
            self.make_queues();
        }
        self.changes.planned.push(change);
        self.push_change(at, self.changes.planned.len() as u32 - 1);
    }

    /// The links from one node to another.
    pub fn links_between(&self, from: Node, to: Node) -> Vec<u32> {
        let links = (0u32..).zip(&self.changes.links);
        links.filter(|(_, l)| l.from == from && l.to == to).map(|(i, _)| i).collect()
    }

    pub(super) fn change(&mut self, index: u32) {
        let changes = &mut self.changes;
        match changes.planned[index as usize] {
            Change::Cable { link, works } => {
                changes.down.note_cable(&changes.links, link, works);
                self.mark_down();
            }
            Change::Switch { switch, works } => {
                changes.down.switches[switch as usize] = !works;
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
            Change::LearnCable { link } => {
                let works = !changes.down.cables[link as usize];
                changes.known.note_cable(&changes.links, link, works);
                self.learn();
            }
            Change::LearnSwitch { switch } => {
                let switch = switch as usize;
                changes.known.switches[switch] = changes.down.switches[switch];
                self.learn();
            }
        }
    }

    /// Has switches take the paths that are left of those that they know to work.
    fn learn(&mut self) {
        let Changes { links, known, .. } = &self.changes;
        self.routes.learn(links, |link| known.has(links, link));
    }

    fn mark_down(&mut self) {
        let mut changed = Vec::new();
        let Changes { links, down, .. } = &self.changes;
        for (i, port) in (0u32..).zip(&mut self.ports) {
            let down = down.has(links, i);
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
