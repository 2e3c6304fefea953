//! Deadlocks of flow control: ports that wait for each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::Net;
use super::pfc::CLASSES;
use super::time::Ps;

/// A class of a link.
pub type Line = (u32, u8);
/// By paused line: the lines at whose ports its packets wait, all of them paused.
pub type Waits = BTreeMap<Line, Vec<Line>>;
/// By paused line: the packet that waits first at its port, by the moment at which it came there
/// and the number of its cargo.
pub type Paused = BTreeMap<Line, Option<(Ps, u32)>>;

/// Leaves out what is not stuck: a line goes on if one of those that it waits for may.
pub fn stuck(mut waits: Waits) -> Waits {
    loop {
        let lines: BTreeSet<Line> = waits.keys().copied().collect();
        waits.retain(|_, nexts| nexts.iter().all(|next| lines.contains(next)));
        if waits.len() == lines.len() {
            return waits;
        }
    }
}

/// Lines that wait for each other in a circle, if there are any, from the least one on.
pub fn circle(waits: &Waits) -> Option<Vec<Line>> {
    // A line is on the path, or leads to no circle.
    let mut on_path: BTreeMap<Line, bool> = BTreeMap::new();
    for start in waits.keys() {
        if on_path.contains_key(start) {
            continue;
        }
        let nexts = |line: &Line| waits.get(line).cloned().unwrap_or_default();
        let mut path = vec![(*start, nexts(start))];
        on_path.insert(*start, true);
        while let Some((line, left)) = path.last_mut() {
            let Some(next) = left.pop() else {
                on_path.insert(*line, false);
                path.pop();
                continue;
            };
            match on_path.get(&next) {
                None => {
                    on_path.insert(next, true);
                    path.push((next, nexts(&next)));
                }
                Some(true) => {
                    let lines = path.iter().map(|(line, _)| *line);
                    let mut circle: Vec<Line> = lines.skip_while(|line| *line != next).collect();
                    let least = (0..circle.len()).min_by_key(|i| circle[*i]).unwrap_or(0);
                    circle.rotate_left(least);
                    return Some(circle);
                }
                Some(false) => {}
            }
        }
    }
    None
}

impl Net {
    /// Links whose ports wait for each other in a circle, each paused by the next, in this moment.
    /// If none of them has sent anything much later, the network is dead.
    pub fn circle_of_pauses(&self) -> Option<Vec<u32>> {
        let circle = circle(&stuck(self.waits_of(&self.paused())))?;
        Some(circle.into_iter().map(|(link, _)| link).collect())
    }

    /// The lines whose ports are paused here.
    pub fn paused(&self) -> Paused {
        let lines = (0u32..).zip(&self.queues).flat_map(|(link, queues)| {
            let classes = (0..CLASSES as u8).filter(|class| queues.paused & 1 << class != 0);
            classes.map(move |class| {
                let first = queues.of_class(class).next();
                ((link, class), first.map(|packet| (packet.at, packet.cargo)))
            })
        });
        lines.collect()
    }

    /// What these paused lines wait for, of those that lead to switches of this part. Those that
    /// will go on are left out.
    pub fn waits_of(&self, paused: &Paused) -> Waits {
        paused.keys().filter_map(|line| Some((*line, self.waits_for(*line)?))).collect()
    }

    /// The paused lines at whose ports packets wait that came by this one; `None` if it may soon go
    /// on.
    ///
    /// A paused port waits for room in the switch at the other end of its link, which is there when
    /// packets that came by the link have left. So it goes on if one of them is being sent, or
    /// waits at a port that is not paused, or if the switch has told it to.
    fn waits_for(&self, (link, class): Line) -> Option<Vec<Line>> {
        let switch = self.ports[link as usize].to.checked_sub(self.hosts)?;
        if !self.ingress[link as usize].has_paused(class) {
            return None;
        }
        let mut nexts = Vec::new();
        for next in &self.of_switch[switch as usize] {
            let queues = &self.queues[*next as usize];
            let leaves = queues.leaving.is_some_and(|l| (l.via, l.class) == (link, class));
            let waits = queues.of_class(class).any(|packet| packet.via == link);
            if leaves || waits && queues.paused & 1 << class == 0 {
                return None;
            }
            if waits {
                nexts.push((*next, class));
            }
        }
        (!nexts.is_empty()).then_some(nexts)
    }
}
