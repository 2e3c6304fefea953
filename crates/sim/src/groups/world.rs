//! A world's events, in order of time: nodes, what travels between them, and the configuration
//! service. What goes wrong, and what is mended, is in `faults`; what clients do, in `clients`.

use std::collections::{BTreeMap, BTreeSet};

use remora_store::memory::Memory;
use remora_store::replica::{
    Configuration, ConfigurationService, Event as Said, Mark, NodeId, Output, Registry, Request,
};

use super::client::Client;
use super::clock::Clock;
use super::network::{Network, Packet, parts};
use super::node::{Ask, Looked, Node, Reply};
use super::plan::Plan;
use crate::check::linearizable::Operation;
use crate::dice::Dice;

/// Packets in front of one that may overtake them.
const AHEAD: u64 = 8;

pub(crate) const US: u64 = 1000;

/// What happens.
pub(crate) enum Event {
    Tick,
    /// Something was written into the node's region.
    Look,
    Receive(u64, Packet),
    /// A connection has ended.
    Ended(u64),
    Dial(NodeId, u32),
    Fenced(u32),
    Hear(Said),
    Kept(Mark, u32),
    Asked(Ask),
    Finish(Looked),
    /// The head of a connection's lane moves.
    Move(u64, NodeId),
    Request(NodeId, Request),
    Operate,
    Burst,
    /// A node's transaction ends.
    Whole,
    Fault,
    /// A disk begins to hang.
    Hang,
    Restart(NodeId),
    Calm,
    Begin(usize),
    Answered(Ask, Reply),
    TimedOut(usize, u64),
}

/// An event, and for which process of which node.
type Entry = (Option<(NodeId, u64)>, Event);

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) dice: Dice,
    pub(crate) now_ns: u64,
    queue: BTreeMap<(u64, u64), Entry>,
    scheduled: u64,
    /// Events that have happened.
    pub(crate) steps: u64,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) net: Network,
    pub(crate) registry: Registry,
    pub(crate) clients: Vec<Client>,
    pub(crate) history: Vec<Operation>,
    /// The node of each machine that is to be a member.
    pub(crate) machines: Vec<NodeId>,
    /// A node that is to be no member for a while.
    pub(crate) left: Option<NodeId>,
    pub(crate) is_calm: bool,
    /// Copies of stores that were begun, and that have come whole.
    pub(crate) copies_begun: u64,
    pub(crate) copies_come: u64,
    /// Times that a disk kept nothing for so long that it counted as one that refuses.
    pub(crate) silences: u64,
    /// The values of transactions that have no end: nobody else may have one.
    pub(crate) halves: BTreeSet<u64>,
}

impl World {
    pub(crate) fn new(plan: Plan, mut dice: Dice) -> World {
        let machines: Vec<_> = (1..=plan.nodes).map(NodeId).collect();
        let first = Configuration::first(machines[0], machines.clone()).unwrap();
        let mut nodes = BTreeMap::new();
        for name in &machines {
            let clock = Clock::new(&mut dice, plan.drift_ppm);
            nodes.insert(*name, Node::new(*name, plan.replica(), clock));
        }
        let mut world = World {
            registry: Registry::new(Some(first)),
            clients: (0..plan.clients).map(Client::new).collect(),
            plan,
            dice,
            now_ns: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            steps: 0,
            nodes,
            net: Network::default(),
            history: vec![],
            machines: machines.clone(),
            left: None,
            is_calm: false,
            copies_begun: 0,
            copies_come: 0,
            silences: 0,
            halves: BTreeSet::new(),
        };
        machines.iter().for_each(|name| world.process(*name, 0, Event::Tick));
        world.schedule(0, Event::Operate);
        world.schedule(0, Event::Burst);
        world.schedule(world.plan.lease_ns, Event::Fault);
        world.schedule(world.plan.calm_at_ns, Event::Calm);
        if world.plan.on_disk && world.plan.disks_hang {
            world.schedule(world.plan.lease_ns, Event::Hang);
        }
        (0..world.plan.clients).for_each(|client| world.schedule(0, Event::Begin(client)));
        world
    }

    /// The next event; false when there is none before `until_ns`.
    pub(crate) fn step(&mut self, until_ns: u64) -> bool {
        let Some(((at, _), (process, event))) = self.queue.pop_first() else { return false };
        (self.now_ns, self.steps) = (at, self.steps + 1);
        if at > until_ns {
            return false;
        }
        match process {
            None => self.happen(event),
            Some((name, life)) => {
                let node = &self.nodes[&name];
                if !node.is_up || node.life != life {
                    return true;
                }
                if node.paused_until_ns > at {
                    let after = node.paused_until_ns - at;
                    self.process(name, after, event);
                    return true;
                }
                self.act(name, event);
                self.after(name);
            }
        }
        true
    }

    pub(crate) fn schedule(&mut self, after_ns: u64, event: Event) {
        self.put(after_ns, (None, event));
    }

    /// Something for the process that a node is now.
    pub(crate) fn process(&mut self, name: NodeId, after_ns: u64, event: Event) {
        let life = self.nodes[&name].life;
        self.put(after_ns, (Some((name, life)), event));
    }

    fn put(&mut self, after_ns: u64, entry: Entry) {
        self.scheduled += 1;
        self.queue.insert((self.now_ns + after_ns, self.scheduled), entry);
    }

    /// Something that has no process.
    fn happen(&mut self, event: Event) {
        match event {
            Event::Move(id, from) => self.move_packet(id, from),
            Event::Request(from, request) => {
                self.registry.submit(from, request);
                self.hand_out_events();
            }
            Event::Operate => self.operate(),
            Event::Burst => self.burst(),
            Event::Fault => self.fault(),
            Event::Hang => self.hang(),
            Event::Restart(name) => self.restart(name),
            Event::Calm => self.calm(),
            Event::Begin(client) => self.begin(client),
            Event::Answered(ask, reply) => self.answered(ask, reply),
            Event::TimedOut(client, attempt) => self.timed_out(client, attempt),
            _ => unreachable!("an event of a process without one"),
        }
    }

    fn hand_out_events(&mut self) {
        while let Some((name, event)) = self.registry.poll() {
            let is_lost = !self.is_calm && self.dice.one_in(20);
            if is_lost || self.net.no_service.contains(&name) || !self.nodes[&name].is_up {
                continue;
            }
            let at = self.now_ns + self.dice.between(20..=400) * US;
            let node = self.nodes.get_mut(&name).unwrap();
            node.heard_until_ns = node.heard_until_ns.max(at);
            let after = node.heard_until_ns - self.now_ns;
            self.process(name, after, Event::Hear(event));
        }
    }

    /// A process does something.
    fn act(&mut self, name: NodeId, event: Event) {
        let node = self.nodes.get_mut(&name).unwrap();
        let local_ns = node.clock.at(self.now_ns);
        match event {
            Event::Tick => {
                let was_silent = node.replica.is_disk_silent();
                node.replica.poll_memory(&node.region);
                node.replica.handle_time(local_ns);
                self.silences += u64::from(!was_silent && node.replica.is_disk_silent());
                self.process(name, self.plan.tick_ns(), Event::Tick);
            }
            Event::Look => {
                node.will_look = false;
                node.replica.poll_memory(&node.region);
            }
            Event::Receive(id, packet) => self.receive(name, id, packet),
            Event::Ended(id) => self.end(name, id),
            Event::Dial(to, epoch) => self.dial(name, to, epoch),
            Event::Fenced(epoch) => node.replica.handle_fenced(&node.region, epoch),
            Event::Hear(event) => node.replica.handle_event(&node.region, event, local_ns),
            Event::Kept(mark, generation) => self.kept(name, mark, generation),
            Event::Asked(ask) => match node.ask(ask, self.now_ns) {
                Ok(Some(looked)) => {
                    // A node may be stopped between its look at the store and at the lease.
                    let wait = if self.dice.one_in(4) { self.plan.lease_ns } else { 10 * US };
                    let after = self.dice.below(wait);
                    self.process(name, after, Event::Finish(looked));
                }
                Ok(None) => {}
                Err(reply) => self.schedule(20 * US, Event::Answered(ask, reply)),
            },
            Event::Whole => self.end_transaction(name),
            Event::Finish(looked) => {
                node.finish_read(looked, self.now_ns, self.plan.honours_lease);
            }
            _ => unreachable!("an event of the world for a process"),
        }
    }

    /// Carries out what a node wants.
    pub(crate) fn after(&mut self, name: NodeId) {
        while let Some(output) = self.nodes.get_mut(&name).unwrap().poll() {
            self.carry_out(name, output);
        }
        let node = self.nodes.get_mut(&name).unwrap();
        node.check_pair(&self.halves);
        let generation = node.replica.generation();
        let answers = node.answers();
        if let Some(mark) = node.write_disk() {
            let after = self.dice.between(5 * US..=self.plan.disk_ns);
            self.process(name, after, Event::Kept(mark, generation));
        }
        for (ask, reply) in answers {
            let after = self.dice.between(2..=30) * US;
            self.schedule(after, Event::Answered(ask, reply));
        }
    }

    fn carry_out(&mut self, name: NodeId, output: Output) {
        let node = self.nodes.get_mut(&name).unwrap();
        match output {
            Output::Request(request) => {
                let is_lost = !self.is_calm && self.dice.one_in(20);
                if !is_lost && !self.net.no_service.contains(&name) {
                    let after = self.dice.between(20..=400) * US;
                    self.schedule(after, Event::Request(name, request));
                }
            }
            Output::Fence { epoch } => {
                node.dialing.clear();
                let links: Vec<_> = node.links.values().copied().collect();
                for id in links {
                    if self.net.connections[&id].epoch < epoch {
                        self.close(name, id);
                    }
                }
                let after = self.dice.below(100) * US;
                self.process(name, after, Event::Fenced(epoch));
            }
            Output::Connect { to } => {
                node.dialing.insert(to);
                let epoch = node.replica.epoch();
                self.process(name, 20 * US, Event::Dial(to, epoch));
            }
            Output::Disconnect { from } => {
                node.dialing.remove(&from);
                if let Some(id) = node.links.get(&from).copied() {
                    self.close(name, id);
                }
            }
            Output::Send { to, message } => self.post(name, to, Packet::Message(message)),
            Output::Write { to, at, len, until, wakes } => {
                self.post_write(name, to, (at, len), wakes);
                if let Some(mark) = until {
                    self.post(name, to, Packet::Acknowledge(mark));
                }
            }
            Output::Read { from, pieces } => self.post(name, from, Packet::Read(pieces)),
            Output::Snapshot { to } if node.replica.is_amid_transaction() => {
                node.copies.extend(node.links.get(&to).map(|link| (to, *link)));
            }
            Output::Snapshot { to } => {
                let store = Box::new((node.replica.snapshot(), node.kept.table()));
                let pieces = self.plan.pieces;
                self.copies_begun += 1;
                self.post(name, to, Packet::Store { store, pieces });
            }
            Output::Truncated { to } => {
                if let Some(disk) = &mut node.disk {
                    disk.truncate(to);
                }
            }
        }
    }

    fn post_write(&mut self, name: NodeId, to: NodeId, (at, len): (u64, u64), wakes: bool) {
        for (part, bytes) in parts(at, len) {
            let is_last = part + bytes == at + len;
            let read = (!self.plan.reads_late).then(|| self.nodes[&name].bytes(part, bytes));
            let packet = Packet::Write { at: part, len: bytes, bytes: read, is_last, wakes };
            self.post(name, to, packet);
        }
    }

    /// Copies wait until their senders' stores have no part of a transaction.
    fn end_transaction(&mut self, name: NodeId) {
        let node = self.nodes.get_mut(&name).unwrap();
        if let Some(value) = node.end_pair() {
            self.halves.remove(&value);
        }
        for (to, link) in std::mem::take(&mut node.copies) {
            if self.nodes[&name].links.get(&to) == Some(&link) {
                self.carry_out(name, Output::Snapshot { to });
            }
        }
    }

    fn kept(&mut self, name: NodeId, mark: Mark, generation: u32) {
        let node = self.nodes.get_mut(&name).unwrap();
        let Some(disk) = &mut node.disk else { return };
        if node.disk_hangs_until_ns > self.now_ns {
            return self.process(name, self.plan.tick_ns(), Event::Kept(mark, generation));
        }
        if generation == node.replica.generation() {
            disk.sync(mark);
            node.replica.handle_kept(&node.region, mark, generation);
        } else {
            // Some of what was under way was cut off: what is left is written again.
            let (mark, generation) = (disk.written(), node.replica.generation());
            let after = self.dice.between(5 * US..=self.plan.disk_ns);
            self.process(name, after, Event::Kept(mark, generation));
        }
    }

    /// A node's end of a connection is closed; the other one finds that out.
    pub(crate) fn close(&mut self, name: NodeId, id: u64) {
        let Some(connection) = self.net.connections.get(&id) else { return };
        let peer = connection.other(name);
        self.nodes.get_mut(&name).unwrap().links.remove(&peer);
        let other = &self.nodes[&peer];
        if other.links.get(&name) == Some(&id) {
            let after = self.dice.between(0..=3 * self.plan.retry_ns);
            self.process(peer, after, Event::Ended(id));
        } else {
            self.net.connections.remove(&id);
        }
    }

    /// A node is told that a connection has ended.
    fn end(&mut self, name: NodeId, id: u64) {
        let Some(connection) = self.net.connections.get(&id) else { return };
        let peer = connection.other(name);
        if self.nodes[&name].links.get(&peer) != Some(&id) {
            return;
        }
        self.close(name, id);
        let node = self.nodes.get_mut(&name).unwrap();
        node.replica.handle_disconnected(&node.region, peer);
    }

    fn dial(&mut self, name: NodeId, to: NodeId, epoch: u32) {
        let node = &self.nodes[&name];
        if node.replica.epoch() != epoch || !node.dialing.contains(&to) {
            return;
        }
        let can = self.nodes.get(&to).is_some_and(|other| {
            let is_there = other.is_up && other.paused_until_ns <= self.now_ns;
            is_there
                && other.replica.epoch() <= epoch
                && !other.replica.is_disk_silent()
                && !self.net.is_cut_either_way(name, to)
        });
        if !can {
            let after = self.dice.between(self.plan.retry_ns / 4..=self.plan.retry_ns);
            return self.process(name, after, Event::Dial(to, epoch));
        }
        for (one, other) in [(to, name), (name, to)] {
            if let Some(id) = self.nodes[&one].links.get(&other).copied() {
                self.end(one, id);
            }
        }
        let id = self.net.connect(epoch, [name, to]);
        for (one, other) in [(to, name), (name, to)] {
            self.nodes.get_mut(&one).unwrap().links.insert(other, id);
        }
        let node = self.nodes.get_mut(&name).unwrap();
        node.dialing.remove(&to);
        node.replica.handle_connected(to);
        self.after(to);
    }

    fn post(&mut self, name: NodeId, to: NodeId, packet: Packet) {
        let Some(id) = self.nodes[&name].links.get(&to).copied() else { return };
        let Some(connection) = self.net.connections.get_mut(&id) else { return };
        let lane = connection.lane(name);
        lane.packets.push_back(packet);
        if !std::mem::replace(&mut lane.is_moving, true) {
            let after = self.dice.between(1..=20) * US;
            self.schedule(after, Event::Move(id, name));
        }
    }

    /// The head of a lane arrives, if it can.
    fn move_packet(&mut self, id: u64, from: NodeId) {
        let Some(connection) = self.net.connections.get_mut(&id) else { return };
        let to = connection.other(from);
        let (sender, receiver) = (&self.nodes[&from], &self.nodes[&to]);
        let lane = connection.lane(from);
        if sender.links.get(&to) != Some(&id) {
            lane.packets.clear();
            lane.is_moving = false;
            return;
        }
        let is_stopped = |node: &Node| node.paused_until_ns > self.now_ns && !self.plan.card_lives;
        let cannot_come = self.net.cut.contains(&(from, to))
            || receiver.links.get(&from) != Some(&id)
            || is_stopped(receiver)
            || is_stopped(sender);
        let is_unheard = cannot_come || self.net.cut.contains(&(to, from));
        if !is_unheard {
            lane.stuck_since_ns = None;
        } else if self.now_ns > *lane.stuck_since_ns.get_or_insert(self.now_ns) + self.plan.retry_ns
        {
            lane.packets.clear();
            lane.is_moving = false;
            return self.process(from, 0, Event::Ended(id));
        }
        // An acknowledgement needs the way back.
        let front = lane.packets.front();
        let waits = is_unheard && matches!(front, Some(Packet::Acknowledge(_)));
        let packet = match cannot_come || waits {
            true => None,
            false if self.plan.overtakes && self.dice.one_in(2) => {
                lane.overtake(1 + self.dice.below(AHEAD) as usize)
            }
            false => lane.pop(),
        };
        lane.is_moving = is_unheard || !lane.packets.is_empty();
        if lane.is_moving {
            let long = if is_unheard { self.plan.retry_ns / 4 } else { 5 * US };
            let after = self.dice.between(US..=long);
            self.schedule(after, Event::Move(id, from));
        }
        if let Some(packet) = packet {
            self.deliver(id, from, to, packet);
        }
    }

    fn deliver(&mut self, id: u64, from: NodeId, to: NodeId, packet: Packet) {
        match packet {
            Packet::Write { at, len, bytes, wakes, .. } => {
                let bytes = bytes.unwrap_or_else(|| self.nodes[&from].bytes(at, len));
                let node = self.nodes.get_mut(&to).unwrap();
                node.region.write(at, &bytes);
                if wakes && !std::mem::replace(&mut node.will_look, true) {
                    let after = self.dice.below(50) * US;
                    self.process(to, after, Event::Look);
                }
            }
            Packet::Acknowledge(_) => self.put_into_inbox(from, id, packet),
            Packet::Read(pieces) => {
                let all: Vec<_> = pieces.into_iter().flat_map(|(at, len)| parts(at, len)).collect();
                for (index, (at, len)) in all.iter().copied().enumerate() {
                    let is_last = index + 1 == all.len();
                    self.post(to, from, Packet::Answer { at, len, is_last });
                }
            }
            Packet::Answer { at, len, is_last } => {
                let bytes = self.nodes[&from].bytes(at, len);
                self.nodes[&to].region.write(at, &bytes);
                if is_last {
                    let packet = Packet::Answer { at, len, is_last };
                    self.put_into_inbox(to, id, packet);
                }
            }
            Packet::Message(_) | Packet::Store { .. } => self.put_into_inbox(to, id, packet),
        }
    }

    /// A process takes what was sent to it one after the other, some time later.
    fn put_into_inbox(&mut self, to: NodeId, id: u64, packet: Packet) {
        let at = self.now_ns + self.dice.below(60) * US;
        let node = self.nodes.get_mut(&to).unwrap();
        node.inbox_until_ns = node.inbox_until_ns.max(at);
        let after = node.inbox_until_ns - self.now_ns;
        self.process(to, after, Event::Receive(id, packet));
    }

    fn receive(&mut self, name: NodeId, id: u64, packet: Packet) {
        let Some(connection) = self.net.connections.get(&id) else { return };
        let from = connection.other(name);
        let node = self.nodes.get_mut(&name).unwrap();
        if node.links.get(&from) != Some(&id) {
            return;
        }
        match packet {
            Packet::Message(message) => {
                node.replica.handle_message(&node.region, from, message);
            }
            Packet::Store { store, .. } => {
                self.copies_come += 1;
                node.replace(from, &store.0, &store.1);
            }
            Packet::Answer { .. } => node.replica.handle_read(&node.region, from),
            Packet::Acknowledge(mark) => node.replica.handle_written(&node.region, from, mark),
            Packet::Write { .. } | Packet::Read(_) => unreachable!("the card has done it"),
        }
    }
}
