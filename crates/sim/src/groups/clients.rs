//! Clients: each does one thing after the other, asks again where it hears nothing, and at last
//! gives up not knowing.

use super::node::{Ask, Reply};
use super::world::{Event, US, World};
use crate::check::linearizable::{Kind, Operation};

/// How often a client asks the same before it gives up.
const TRIES: u64 = 40;

impl World {
    /// A client begins what it does next; when all is calm, it reads every key.
    pub(crate) fn begin(&mut self, index: usize) {
        let (keys, operations) = (self.plan.keys, self.plan.operations);
        let client = &mut self.clients[index];
        if client.current.is_some() || client.begun == operations + keys {
            return;
        }
        let is_last = client.begun >= operations;
        if is_last && !self.is_calm {
            return;
        }
        client.begun += 1;
        client.tries = 0;
        client.current = Some(self.history.len());
        let key = if is_last { client.begun - operations - 1 } else { self.dice.below(keys) };
        let kind = match self.dice.below(4) {
            _ if is_last => Kind::Get,
            0 | 1 => Kind::Get,
            2 => Kind::Put(1 + self.dice.below(1 << 40)),
            _ => Kind::Add(1 + self.dice.below(1000)),
        };
        // Changes are numbered, reads are not.
        self.clients[index].sequence += u64::from(kind != Kind::Get);
        self.history.push(Operation {
            key: key as u8,
            kind,
            invoked_ns: self.now_ns,
            answered_ns: None,
            answer: 0,
        });
        self.attempt(index);
    }

    /// Somebody who does not care for answers changes a lot, wherever he is let.
    pub(crate) fn burst(&mut self) {
        for name in self.machines.clone() {
            let node = self.nodes.get_mut(&name).unwrap();
            if !node.is_up || node.paused_until_ns > self.now_ns || !node.replica.is_serving() {
                continue;
            }
            for _ in 0..self.dice.below(self.plan.burst) {
                let value = vec![self.dice.below(256) as u8; self.dice.between(8..=120) as usize];
                node.change_unasked(&value);
            }
            if self.plan.transacts && self.dice.one_in(2) {
                let value = 1 + self.dice.below(1 << 40);
                if node.begin_pair(value) {
                    self.halves.insert(value);
                    let after = self.dice.below(self.plan.lease_ns);
                    self.process(name, after, Event::Whole);
                }
            }
            self.after(name);
        }
        if !self.is_calm {
            let after = self.dice.below(self.plan.calm_at_ns / 50);
            self.schedule(after, Event::Burst);
        }
    }

    /// Whether all clients have done what they had to do.
    pub(crate) fn is_done(&self) -> bool {
        let all = self.plan.operations + self.plan.keys;
        self.clients.iter().all(|client| client.begun == all && client.current.is_none())
    }

    fn attempt(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(current) = client.current else { return };
        client.attempt += 1;
        let Operation { key, kind, .. } = self.history[current];
        let (attempt, target) = (client.attempt, client.target);
        let (operation, id) = (current, client.id());
        let ask = Ask { client: index, operation, attempt, id, key, kind };
        // Some are on their way for so long that the client has asked again meanwhile.
        let way_ns = if self.dice.one_in(10) { 5000 * US } else { 30 * US };
        let after = self.dice.below(way_ns);
        if self.nodes.contains_key(&target) {
            self.process(target, after, Event::Asked(ask));
        }
        let after = self.dice.between(500..=3000) * US;
        self.schedule(after, Event::TimedOut(index, attempt));
    }

    pub(crate) fn answered(&mut self, ask: Ask, reply: Reply) {
        let client = &mut self.clients[ask.client];
        let Some(current) = client.current.filter(|current| *current == ask.operation) else {
            return;
        };
        match reply {
            Reply::Done(answer) => {
                let operation = &mut self.history[current];
                (operation.answered_ns, operation.answer) = (Some(self.now_ns), answer);
                client.current = None;
                self.think(ask.client);
            }
            // A change that was sent to one node may have come there under a second attempt.
            Reply::Elsewhere(primary) if client.attempt == ask.attempt => {
                client.target = primary.unwrap_or(client.target);
            }
            Reply::Elsewhere(_) => {}
        }
    }

    pub(crate) fn timed_out(&mut self, index: usize, attempt: u64) {
        let client = &mut self.clients[index];
        if client.current.is_none() || client.attempt != attempt {
            return;
        }
        client.tries += 1;
        if client.tries > TRIES {
            client.current = None;
            client.number += 1000;
            client.sequence = 0;
            return self.think(index);
        }
        if self.dice.one_in(2) {
            let machine = self.dice.below(self.machines.len() as u64) as usize;
            self.clients[index].target = self.machines[machine];
        }
        self.attempt(index);
    }

    fn think(&mut self, index: usize) {
        let each = self.plan.calm_at_ns / self.plan.operations;
        let after = if self.is_calm { 10 * US } else { self.dice.below(2 * each) };
        let client = self.clients[index].index;
        self.schedule(after, Event::Begin(client));
    }
}
