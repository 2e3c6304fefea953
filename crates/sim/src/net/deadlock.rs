//! Deadlocks of flow control: ports that wait for each other in a circle.

use super::engine::Net;
use super::pfc::CLASSES;
use super::port::NONE;
use super::topology::Node;

impl Net {
    /// Links whose ports wait for each other in a circle, each paused by the next, in this moment.
    /// If the same circle is there much later, the network is dead.
    ///
    /// A paused port waits for room in the switch at the other end of its link; there, packets that
    /// came by the link wait at other ports.
    pub fn circle_of_pauses(&self) -> Option<Vec<u32>> {
        let is_paused = |link: u32| self.queues[link as usize].paused != 0;
        // 0: not seen; 1: on the path; 2: leads to no circle.
        let mut seen = vec![0u8; self.queues.len()];
        for start in (0..self.queues.len() as u32).filter(|link| is_paused(*link)) {
            let mut path = vec![(start, self.waits_for(start))];
            if seen[start as usize] != 0 {
                continue;
            }
            seen[start as usize] = 1;
            while let Some((link, nexts)) = path.last_mut() {
                let Some(next) = nexts.pop() else {
                    seen[*link as usize] = 2;
                    path.pop();
                    continue;
                };
                match seen[next as usize] {
                    0 => {
                        seen[next as usize] = 1;
                        path.push((next, self.waits_for(next)));
                    }
                    1 => {
                        let links = path.iter().map(|(link, _)| *link);
                        return Some(links.skip_while(|link| *link != next).collect());
                    }
                    _ => {}
                }
            }
        }
        None
    }

    /// The paused ports at which packets wait that came by this link, in classes in which the link
    /// itself is paused.
    fn waits_for(&self, link: u32) -> Vec<u32> {
        let paused = self.queues[link as usize].paused;
        let to = self.ports[link as usize].to;
        let Some(switch) = to.checked_sub(self.hosts) else { return Vec::new() };
        let mut nexts = Vec::new();
        for next in &self.of_switch[switch as usize] {
            let queues = &self.queues[*next as usize];
            let waits = (0..CLASSES as u8)
                .filter(|class| paused & queues.paused & 1 << class != 0)
                .flat_map(|class| queues.of_class(class))
                .any(|packet| packet.via == link);
            if waits {
                nexts.push(*next);
            }
        }
        nexts
    }

    /// The ends of a link, for people.
    pub fn describe(&self, link: u32) -> String {
        let name = |node: Node| match node {
            Node::Host(host) => format!("host {host}"),
            Node::Switch(switch) => format!("switch {switch}"),
        };
        let from = match self.ports[link as usize].switch {
            NONE => Node::Host(link),
            switch => Node::Switch(switch),
        };
        let to = self.ports[link as usize].to;
        let to = to.checked_sub(self.hosts).map_or(Node::Host(to), Node::Switch);
        format!("{} to {}", name(from), name(to))
    }
}
