//! What goes wrong in a world, and who mends it.

use remora_store::replica::NodeId;

use super::clock::Clock;
use super::node::Node;
use super::world::{Event, US, World};

/// A machine whose memory was lost comes back under a number this much greater.
const NEXT_LIFE: u64 = 100;

impl World {
    pub(crate) fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let index = self.dice.below(self.machines.len() as u64) as usize;
        let name = self.machines[index];
        match self.dice.below(10) {
            0 | 1 => self.crash(name),
            2 => self.pause(name),
            3 => self.cut_some(name, true, false),
            4 => self.cut_some(name, false, false),
            5 => self.cut_some(name, true, true),
            6 => {
                self.net.no_service.insert(name);
            }
            7 => self.net.no_service.extend(self.machines.iter().copied()),
            8 => self.let_leave(name),
            _ => self.net.heal(),
        }
        let after = self.dice.between(500 * US..=self.plan.calm_at_ns / 6);
        self.schedule(after, Event::Fault);
    }

    /// The disk of the primary, or of any node, keeps nothing for a while.
    pub(crate) fn hang(&mut self) {
        if self.is_calm {
            return;
        }
        let index = self.dice.below(self.machines.len() as u64) as usize;
        let name = self.primary_or(self.machines[index]);
        let hangs_ns = self.dice.between(1..=8) * self.plan.lease_ns;
        self.nodes.get_mut(&name).unwrap().disk_hangs_until_ns = self.now_ns + hangs_ns;
        let after = self.dice.between(1..=10) * self.plan.lease_ns;
        self.schedule(after, Event::Hang);
    }

    /// The primary of the latest epoch, on which more depends, or this node.
    fn primary_or(&mut self, name: NodeId) -> NodeId {
        let primary = self.registry.latest().map(|latest| latest.primary);
        primary.filter(|_| self.dice.one_in(2)).unwrap_or(name)
    }

    /// The primary dies, or this node.
    fn crash(&mut self, name: NodeId) {
        let name = self.primary_or(name);
        // What only memory holds is there while a majority lives.
        let may_go = self.plan.on_disk || self.missing() == 0;
        if !self.machines.contains(&name) || !self.nodes[&name].is_up || !may_go {
            return;
        }
        let links: Vec<_> = self.nodes[&name].links.values().copied().collect();
        links.into_iter().for_each(|id| self.close(name, id));
        let torn = self.dice.below(3) as usize;
        self.nodes.get_mut(&name).unwrap().crash(torn);
        let after = self.dice.between(500..=30_000) * US;
        self.schedule(after, Event::Restart(name));
    }

    /// How many machines have no member of an established group at the moment.
    fn missing(&self) -> usize {
        let Some(latest) = self.registry.latest() else { return self.machines.len() };
        let is_there = |name: &&NodeId| {
            self.nodes[*name].is_up
                && latest.members.contains(*name)
                && latest.established.contains(*name)
        };
        let gone = latest.voters().filter(|node| !self.machines.contains(node)).count();
        let there = self.machines.iter().filter(is_there).count();
        gone.max(self.machines.len() - there)
    }

    pub(crate) fn restart(&mut self, name: NodeId) {
        let Some(machine) = self.machines.iter().position(|node| *node == name) else { return };
        if self.nodes[&name].is_up {
            return;
        }
        let name = if self.plan.on_disk {
            self.nodes.get_mut(&name).unwrap().restart();
            name
        } else {
            let next = NodeId(name.0 + NEXT_LIFE);
            let clock = Clock::new(&mut self.dice, self.plan.drift_ppm);
            self.nodes.insert(next, Node::new(next, self.plan.replica(), clock));
            next
        };
        self.machines[machine] = name;
        self.process(name, 0, Event::Tick);
    }

    /// A node cannot send to the others, or to one of them; or they to it, too.
    fn cut_some(&mut self, name: NodeId, all: bool, both_ways: bool) {
        let others: Vec<_> = self.machines.iter().copied().filter(|one| *one != name).collect();
        let chosen = self.dice.below(others.len() as u64) as usize;
        for (index, other) in others.into_iter().enumerate() {
            if all || index == chosen {
                self.net.cut.insert((name, other));
                if both_ways {
                    self.net.cut.insert((other, name));
                }
            }
        }
    }

    /// The primary is stopped, or this node. It may be alone with the clients when it goes on, so
    /// that it does not hear what has happened meanwhile.
    fn pause(&mut self, name: NodeId) {
        let (name, pause) = (self.primary_or(name), self.dice.below(3 * self.plan.lease_ns));
        self.nodes.get_mut(&name).unwrap().paused_until_ns = self.now_ns + pause;
        if self.dice.one_in(2) {
            self.cut_some(name, true, true);
            self.net.no_service.insert(name);
        }
    }

    /// An operator takes a node's vote away, and asks it back after a while.
    fn let_leave(&mut self, name: NodeId) {
        let is_primary = self.registry.latest().is_some_and(|latest| latest.primary == name);
        // Without two of three, nobody could go on.
        let may_go = self.plan.on_disk || self.plan.nodes > 3;
        if self.left.take().is_none() && !is_primary && may_go && self.missing() == 0 {
            self.left = Some(name);
        }
    }

    /// The operator's next step: members are to be the machines' nodes.
    pub(crate) fn operate(&mut self) {
        self.schedule(2000 * US, Event::Operate);
        let serving = self.machines.iter().copied().find(|name| {
            let node = &self.nodes[name];
            node.is_up && node.paused_until_ns <= self.now_ns && node.replica.is_serving()
        });
        let Some(serving) = serving else { return };
        let (machines, left) = (self.machines.clone(), self.left);
        let is_wanted = |node: &NodeId| machines.contains(node) && left != Some(*node);
        let node = self.nodes.get_mut(&serving).unwrap();
        let Some(configuration) = node.replica.configuration().cloned() else { return };
        let too_many = configuration.members.iter().find(|node| !is_wanted(node));
        let too_few =
            machines.iter().find(|node| is_wanted(node) && !configuration.members.contains(node));
        // Errors say that it is too early: the operator tries again.
        let _ = match (too_many, too_few) {
            (Some(node_id), _) if *node_id != serving => node.replica.leave(*node_id),
            (_, Some(node_id)) => node.replica.join(*node_id),
            _ => Ok(()),
        };
        self.after(serving);
    }

    /// Everything is mended, and nothing goes wrong any more.
    pub(crate) fn calm(&mut self) {
        self.is_calm = true;
        self.net.heal();
        self.left = None;
        for name in self.machines.clone() {
            let node = self.nodes.get_mut(&name).unwrap();
            (node.paused_until_ns, node.disk_hangs_until_ns) = (0, 0);
            self.restart(name);
        }
        for client in 0..self.plan.clients {
            self.schedule(0, Event::Begin(client));
        }
    }
}
