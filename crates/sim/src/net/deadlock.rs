//! Deadlocks of flow control: ports that wait for each other in a circle.

use std::collections::BTreeMap;

use super::engine::Net;
use super::pfc::CLASSES;

/// By link: those whose ports it waits for.
pub type Waits = BTreeMap<u32, Vec<u32>>;

/// Links that wait for each other in a circle, if there are any.
pub fn circle(waits: &Waits) -> Option<Vec<u32>> {
    // A link is on the path, or leads to no circle.
    let mut on_path: BTreeMap<u32, bool> = BTreeMap::new();
    for start in waits.keys() {
        if on_path.contains_key(start) {
            continue;
        }
        let nexts = |link: &u32| waits.get(link).cloned().unwrap_or_default();
        let mut path = vec![(*start, nexts(start))];
        on_path.insert(*start, true);
        while let Some((link, left)) = path.last_mut() {
            let Some(next) = left.pop() else {
                on_path.insert(*link, false);
                path.pop();
                continue;
            };
            match on_path.get(&next) {
                None => {
                    on_path.insert(next, true);
                    path.push((next, nexts(&next)));
                }
                Some(true) => {
                    let links = path.iter().map(|(link, _)| *link);
                    return Some(links.skip_while(|link| *link != next).collect());
                }
                Some(false) => {}
            }
        }
    }
    None
}

impl Net {
    /// Links whose ports wait for each other in a circle, each paused by the next, in this moment.
    /// If the same circle is there much later, the network is dead.
    pub fn circle_of_pauses(&self) -> Option<Vec<u32>> {
        circle(&self.waits_of(&self.paused()))
    }

    /// The links whose ports are paused here, with a bit for each class.
    pub fn paused(&self) -> Vec<(u32, u8)> {
        let queues = (0u32..).zip(&self.queues);
        queues.filter(|(_, q)| q.paused != 0).map(|(link, q)| (link, q.paused)).collect()
    }

    /// What these paused links wait for, of those that lead to switches of this part.
    ///
    /// A paused port waits for room in the switch at the other end of its link; there, packets that
    /// came by the link wait at other ports.
    pub fn waits_of(&self, paused: &[(u32, u8)]) -> Waits {
        let waits = paused.iter().map(|(link, classes)| (*link, self.waits_for(*link, *classes)));
        waits.filter(|(_, nexts)| !nexts.is_empty()).collect()
    }

    /// The paused ports at which packets wait that came by this link, in these classes.
    fn waits_for(&self, link: u32, classes: u8) -> Vec<u32> {
        let to = self.ports[link as usize].to;
        let Some(switch) = to.checked_sub(self.hosts) else { return Vec::new() };
        let mut nexts = Vec::new();
        for next in &self.of_switch[switch as usize] {
            let queues = &self.queues[*next as usize];
            let waits = (0..CLASSES as u8)
                .filter(|class| classes & queues.paused & 1 << class != 0)
                .flat_map(|class| queues.of_class(class))
                .any(|packet| packet.via == link);
            if waits {
                nexts.push(*next);
            }
        }
        nexts
    }
}
