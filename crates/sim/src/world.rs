//! The world: hosts, the network between them, and a clock that jumps to the next event.

use core::cmp::Reverse;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::BinaryHeap;

use remora_nic::{Config, Event, Nic, Time, TransmitBatch};

use crate::dice::Dice;
use crate::memory::SimMemory;
use crate::network::{LinkOptions, Network};
use crate::packet::{Wire, seal};

/// A machine with a card and memory.
#[derive(Debug)]
pub struct Host {
    /// Its address.
    pub address: IpAddr,
    /// The card.
    pub nic: Nic,
    /// The memory.
    pub memory: SimMemory,
    /// Events of the card that the application has not taken.
    pub events: Vec<Event>,
    /// Datagrams that have arrived and that the card has not got yet.
    inbox: Vec<Wire>,
}

/// How a host's driver behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverOptions {
    /// The time for which arrivals are collected before the card gets them as one batch.
    pub receive_delay: Duration,
    /// The number of packets that the driver asks the card for at a time.
    pub transmit_batch: usize,
}

impl Default for DriverOptions {
    fn default() -> DriverOptions {
        DriverOptions { receive_delay: Duration::ZERO, transmit_batch: 32 }
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum What {
    Arrive(usize, Wire),
    Drain(usize),
    Alarm(u64),
}

/// What happened in a step of the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A card got packets, or one of its timers expired.
    Card(usize),
    /// A datagram arrived in its host's inbox.
    Arrival,
    /// An alarm of the application expired: see [`World::alarm`].
    Alarm(u64),
}

/// Hosts and the network between them.
#[derive(Debug)]
pub struct World {
    /// The simulated time.
    pub now: Time,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The network.
    pub network: Network,
    /// How the hosts' drivers behave.
    pub driver: DriverOptions,
    /// The number of steps so far.
    pub steps: u64,
    dice: Dice,
    /// Events by time, then by the order of creation, so that a run can be repeated exactly.
    queue: BinaryHeap<Reverse<(Time, u64, What)>>,
    created: u64,
    batch: TransmitBatch,
}

impl World {
    /// A world without hosts.
    pub fn new(seed: u64, link: LinkOptions) -> World {
        World {
            // Not zero: a card must not give the start of its clock a special meaning.
            now: Time(1_000_000),
            hosts: Vec::new(),
            network: Network::new(link),
            driver: DriverOptions::default(),
            steps: 0,
            dice: Dice::new(seed),
            queue: BinaryHeap::new(),
            created: 0,
            batch: TransmitBatch::new(),
        }
    }

    /// Adds a host whose card has this configuration; returns its index.
    pub fn add_host(&mut self, config: Config) -> usize {
        let address = config.address;
        let nic = Nic::new(config, self.dice.seed());
        let memory = SimMemory::new();
        self.hosts.push(Host { address, nic, memory, events: Vec::new(), inbox: Vec::new() });
        self.hosts.len() - 1
    }

    /// The world's stream of random choices.
    pub fn dice(&mut self) -> &mut Dice {
        &mut self.dice
    }

    /// Makes [`Step::Alarm`] with this token happen after `delay`.
    pub fn alarm(&mut self, delay: Duration, token: u64) {
        self.push(self.now + delay, What::Alarm(token));
    }

    /// Sends a datagram that the test made to the host with its destination address.
    pub fn inject(&mut self, wire: Wire) {
        if let Some(to) = self.host_at(wire.dst) {
            self.push(self.now, What::Arrive(to, wire));
        }
    }

    /// Takes the next step; `None` if no event is left.
    pub fn step(&mut self) -> Option<Step> {
        self.settle();
        self.steps += 1;
        let timer = self.next_timer();
        let next = self.queue.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at);
        if timer.0 <= next {
            let (at, host) = timer;
            if at == Time::NEVER {
                return None;
            }
            self.now = self.now.max(at);
            let Host { nic, memory, .. } = &mut self.hosts[host];
            nic.handle_timeout(self.now, memory);
            return Some(Step::Card(host));
        }
        let Reverse((at, _, what)) = self.queue.pop()?;
        self.now = self.now.max(at);
        Some(match what {
            What::Alarm(token) => Step::Alarm(token),
            What::Arrive(host, wire) => {
                let inbox = &mut self.hosts[host].inbox;
                inbox.push(wire);
                if inbox.len() == 1 {
                    self.push(self.now + self.driver.receive_delay, What::Drain(host));
                }
                Step::Arrival
            }
            What::Drain(host) => {
                let Host { nic, memory, inbox, .. } = &mut self.hosts[host];
                nic.handle_packets(self.now, memory, inbox.iter().map(Wire::datagram));
                inbox.clear();
                Step::Card(host)
            }
        })
    }

    /// Takes steps until no event is left or `for_at_most` has passed. Returns whether no event is
    /// left. Not for worlds with alarms.
    pub fn run(&mut self, for_at_most: Duration) -> bool {
        let end = self.now + for_at_most;
        loop {
            self.settle();
            let next = self.queue.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at);
            let next = next.min(self.next_timer().0);
            if next == Time::NEVER {
                return true;
            }
            if next > end {
                self.now = end;
                return false;
            }
            self.step();
        }
    }

    /// Takes the events of a host's card since the last call.
    pub fn take_events(&mut self, host: usize) -> Vec<Event> {
        self.settle();
        core::mem::take(&mut self.hosts[host].events)
    }

    /// Sends all that cards have to send, and collects their events.
    fn settle(&mut self) {
        for host in 0..self.hosts.len() {
            self.transmit(host);
            let Host { nic, events, .. } = &mut self.hosts[host];
            events.extend(core::iter::from_fn(|| nic.poll_event()));
        }
    }

    fn transmit(&mut self, from: usize) {
        // A card that always has something to send at the same moment would loop for ever.
        const ROUNDS: usize = 1_000_000;
        let mut batch = core::mem::take(&mut self.batch);
        let (mut rounds, mut more) = (0, true);
        while more {
            rounds += 1;
            assert!(rounds < ROUNDS, "the card of host {from} sends without end");
            batch.clear();
            let Host { nic, memory, .. } = &mut self.hosts[from];
            more = nic.poll_transmit(self.now, memory, &mut batch, self.driver.transmit_batch);
            for packet in batch.packets() {
                let id = self.dice.number() as u16;
                let Host { memory, address, .. } = &mut self.hosts[from];
                if let Some(wire) = seal(packet, &batch, memory, *address, id) {
                    self.send(from, wire);
                }
            }
        }
        self.batch = batch;
    }

    fn send(&mut self, from: usize, wire: Wire) {
        self.network.tally.sent += 1;
        if wire.dst.is_multicast() {
            // The datagram goes to all members of the group, the sender included.
            let joined = |host: &Host| host.nic.mcast_groups().any(|group| group == wire.dst);
            for to in 0..self.hosts.len() {
                if joined(&self.hosts[to]) {
                    self.send_to(from, to, wire.clone());
                }
            }
        } else if let Some(to) = self.host_at(wire.dst) {
            self.send_to(from, to, wire);
        }
    }

    fn send_to(&mut self, from: usize, to: usize, wire: Wire) {
        let World { now, network, dice, queue, created, .. } = self;
        network.send(*now, (from, to), wire, dice, |at, wire| {
            *created += 1;
            queue.push(Reverse((at, *created, What::Arrive(to, wire))));
        });
    }

    fn push(&mut self, at: Time, what: What) {
        self.created += 1;
        self.queue.push(Reverse((at, self.created, what)));
    }

    fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.hosts.iter().position(|h| h.address == address)
    }

    /// The time of the earliest timer, and the index of its host.
    fn next_timer(&self) -> (Time, usize) {
        let timers = self.hosts.iter().map(|h| h.nic.poll_timeout()).zip(0..);
        timers.min().unwrap_or((Time::NEVER, 0))
    }
}
