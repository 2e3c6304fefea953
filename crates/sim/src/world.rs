//! The world: hosts, the network between them, and a clock that jumps to the next event.
//!
//! [`net`](crate::net) carries packets; here they are taken from cards and handed to cards. Only
//! hosts to which something has happened are looked at, so a step costs the same in a world of two
//! hosts and in one of thousands.
//!
//! What a seed draws is in [`options`](crate::options); [`run`](mod@crate::run) runs it.

use core::cmp::Reverse;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_nic::wire::ROCE_PORT;
use remora_nic::{Config, Datagram, Event, Nic, PayloadRef, Time, Transmit, TransmitBatch};

use crate::dice::{Dice, Use, mix};
use crate::hardware::Profile;
use crate::hollow::HOLLOW;
use crate::host::Addresses;
use crate::link_faults::{LinkOptions, Network, OUTER_BYTES};
use crate::net::time::{NEVER, US, from_card, span, to_card};
use crate::net::{
    BufferOptions, Cargo, Happening, Head, LineRate, Net, NetOptions, Packet, Part, Ps, Star,
};
use crate::packet::{Wire, seal};
use crate::stage::Stage;

pub use crate::host::{DriverOptions, Host, Hosts};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum What {
    /// A datagram comes to its host's port.
    Leave(usize, usize, Box<Wire>),
    /// A datagram is there.
    Arrive(usize, Box<Wire>),
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
    /// The same, for code that asks for the time by itself.
    pub(crate) clock: Arc<AtomicU64>,
    /// The hosts.
    pub hosts: Hosts,
    /// What goes wrong when packets leave hosts.
    pub network: Network,
    /// How the hosts' drivers behave.
    pub driver: DriverOptions,
    /// In a world that was not given a network: the links to hosts have the rate of those that
    /// leave them, and the switch has a buffer of so many bytes. `None`: packets do not meet there.
    /// To be set before the first step.
    pub star: Option<u64>,
    /// The number of steps so far.
    pub steps: u64,
    /// The switches and links; `None` until the first packet, in a world that was not given any.
    net: Option<Net>,
    addresses: Addresses,
    dice: Dice,
    seed: u64,
    /// Events that are not the network's, by time, then by the order of creation.
    queue: BinaryHeap<Reverse<(Ps, u64, What)>>,
    created: u64,
    batch: TransmitBatch,
    touched: Vec<u32>,
    /// Where a datagram without a payload is put together.
    scratch: Vec<u8>,
    trace: Trace,
    /// Some card's hardware takes time. Other worlds do not look at each host for it.
    has_hardware: bool,
}

/// A sum of all that has arrived: where, when and which headers. It does not depend on the order in
/// which hosts take their turns, so that the parts of a world can add up theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// Packets that have arrived.
    pub packets: u64,
    /// The sum of a hash of each.
    pub hash: u64,
}

impl World {
    /// A world without hosts. Each host that is added has a link to one switch that is always fast
    /// enough: packets only share the link that leaves their host.
    pub fn new(seed: u64, link: LinkOptions) -> World {
        World::with(seed, link, None)
    }

    /// A world on a network, whose hosts are still to be added, as many as it has.
    pub fn on(net: Net, seed: u64, driver: DriverOptions) -> World {
        let link = LinkOptions { jitter: Duration::ZERO, ..LinkOptions::default() };
        World { driver, ..World::with(seed, link, Some(net)) }
    }

    fn with(seed: u64, link: LinkOptions, mut net: Option<Net>) -> World {
        // Not zero: a card must not give the start of its clock a special meaning.
        let now = Time(1_000_000);
        if let Some(net) = &mut net {
            net.advance(from_card(now));
        }
        World {
            now,
            clock: Arc::new(now.0.into()),
            hosts: Hosts::default(),
            network: Network::new(link),
            driver: DriverOptions::default(),
            star: None,
            steps: 0,
            net,
            addresses: Addresses::default(),
            dice: Dice::new(seed),
            seed,
            queue: BinaryHeap::new(),
            created: 0,
            batch: TransmitBatch::new(),
            touched: Vec::new(),
            scratch: Vec::new(),
            trace: Trace::default(),
            has_hardware: false,
        }
    }

    /// Makes this one part of a world that several threads run: it has the hosts from `first` on.
    pub(crate) fn set_part(&mut self, first: usize, part: Part) {
        self.hosts = Hosts::from(first);
        if let Some(net) = &mut self.net {
            net.set_part(part);
        }
    }

    /// Adds a host whose card has this configuration; returns its index.
    ///
    /// # Panics
    /// If packets are on their way already.
    pub fn add_host(&mut self, config: Config) -> usize {
        let address = config.address;
        let nic = Nic::new(config, self.dice.seed());
        self.forget_net();
        self.addresses.push(address);
        self.hosts.push(Host::new(address, nic))
    }

    /// Notes the next host's address in a world on a given network, whose hardware takes the time
    /// that `profile` says.
    pub(crate) fn note_host(&mut self, address: IpAddr, profile: Option<Profile>) {
        self.addresses.push(address);
        self.has_hardware |= profile.is_some();
    }

    /// Makes the host with this index, which is noted. Its card's seed depends on nothing but the
    /// world's and its index.
    pub(crate) fn place_host(&mut self, index: u64, config: Config, profile: Option<Profile>) {
        let seed = Dice::new(Use::Cards.seed(self.seed, index)).seed();
        let mut host = Host::new(config.address, Nic::new(config, seed));
        host.hardware = profile.map(|profile| Box::new(Stage::new(profile)));
        self.hosts.push(host);
    }

    /// Has the network of a world without a given one be made anew, for one more host.
    fn forget_net(&mut self) {
        let is_own = self.net.as_ref().is_none_or(|net| net.hosts() as usize == self.hosts.len());
        if is_own && let Some(net) = self.net.take() {
            assert_eq!(net.in_flight(), 0, "a host was added while packets are on their way");
        }
    }

    /// The world's stream of random choices.
    pub fn dice(&mut self) -> &mut Dice {
        &mut self.dice
    }

    /// The switches and links. A world that was not given any makes them now.
    pub fn net(&mut self) -> &mut Net {
        let World { hosts, network, now, star, net, .. } = self;
        let link = &network.options;
        net.get_or_insert_with(|| one_switch(hosts.len() as u32, link, *star, from_card(*now)))
    }

    /// What has arrived so far at cards in hardware.
    pub fn trace(&self) -> Trace {
        self.trace
    }

    /// Ends all faults, and gives switches so much buffer that they drop nothing.
    pub fn heal(&mut self) {
        self.network.heal();
        self.net().widen_buffers();
    }

    /// Makes [`Step::Alarm`] with this token happen after `delay`.
    pub fn alarm(&mut self, delay: Duration, token: u64) {
        self.push(self.now + delay, What::Alarm(token));
    }

    /// As [`World::alarm`], at a moment of the world's clock in picoseconds.
    pub(crate) fn alarm_at(&mut self, at: Ps, token: u64) {
        self.created += 1;
        self.queue.push(Reverse((at, self.created, What::Alarm(token))));
    }

    /// Sends a datagram that the test made to the host with its destination address.
    pub fn inject(&mut self, wire: Wire) {
        if let Some(to) = self.addresses.find(wire.dst) {
            self.push(self.now, What::Arrive(to as usize, Box::new(wire)));
        }
    }

    /// Takes the next step; `None` if no event is left.
    pub fn step(&mut self) -> Option<Step> {
        self.step_until(NEVER)
    }

    /// Takes the next step, if it is not after `until`.
    pub(crate) fn step_until(&mut self, until: Ps) -> Option<Step> {
        self.steps += 1;
        loop {
            self.settle();
            let own = self.queue.peek().map_or(NEVER, |Reverse((at, ..))| *at);
            if let Some(happening) = self.net().step(own.min(until)) {
                let now = to_card(self.net().now());
                self.set_now(now);
                match self.happens(happening) {
                    Some(step) => return Some(step),
                    None => continue,
                }
            }
            if own > until {
                return None;
            }
            let Reverse((at, _, what)) = self.queue.pop()?;
            self.net().advance(at);
            self.set_now(to_card(at));
            match what {
                What::Alarm(token) => return Some(Step::Alarm(token)),
                What::Leave(from, to, wire) => self.leave(from, to, wire),
                What::Arrive(host, wire) => return Some(self.arrive(host, *wire)),
                What::Drain(host) => {
                    let Host { nic, memory, inbox, .. } = &mut self.hosts[host];
                    nic.handle_packets(self.now, memory, inbox.iter().map(Wire::datagram));
                    inbox.clear();
                    return Some(Step::Card(host));
                }
            }
        }
    }

    /// Takes steps until no event is left or `for_at_most` has passed. Returns whether no event is
    /// left. Not for worlds with alarms.
    pub fn run(&mut self, for_at_most: Duration) -> bool {
        let end = from_card(self.now).saturating_add(span(for_at_most));
        while self.step_until(end).is_some() {}
        let is_quiet = self.next_at() == NEVER;
        if !is_quiet {
            self.set_now(to_card(end));
        }
        is_quiet
    }

    fn set_now(&mut self, at: Time) {
        self.now = self.now.max(at);
        self.clock.store(self.now.0, Ordering::Relaxed);
    }

    /// The moment of the next event; [`NEVER`] if there is none.
    pub(crate) fn next_at(&mut self) -> Ps {
        let own = self.queue.peek().map_or(NEVER, |Reverse((at, ..))| *at);
        own.min(self.net().next_at())
    }

    /// Takes the events of a host's card since the last call.
    pub fn take_events(&mut self, host: usize) -> Vec<Event> {
        self.settle();
        core::mem::take(&mut self.hosts.quietly(host).events)
    }

    fn push(&mut self, at: Time, what: What) {
        self.created += 1;
        self.queue.push(Reverse((from_card(at), self.created, what)));
    }
}

/// Arrivals and timers.
impl World {
    #[inline]
    fn happens(&mut self, happening: Happening) -> Option<Step> {
        match happening {
            Happening::Arrival { host, packet } => {
                if self.stage(host as usize).is_none() {
                    return Some(self.packet_arrives(host, &packet));
                }
                self.packet_waits(host, packet);
                None
            }
            Happening::PortFree { host } => {
                self.hosts.touch(host as usize);
                None
            }
            Happening::Timer { host } => {
                let now = self.now;
                let is_new = self.run_hardware(host);
                let Host { nic, memory, timer, .. } = &mut self.hosts[host as usize];
                if now >= *timer {
                    *timer = Time::NEVER;
                }
                let is_due = nic.poll_timeout() <= now;
                if is_due {
                    nic.handle_timeout(now, memory);
                }
                (is_due || is_new).then_some(Step::Card(host as usize))
            }
        }
    }

    /// A packet has arrived at a card whose hardware takes time.
    fn packet_waits(&mut self, host: u32, packet: Packet) {
        let World { net: Some(net), hosts, .. } = self else { return };
        let Some(stage) = &mut hosts.quietly(host as usize).hardware else { return };
        let at = stage.arrive(net.now(), packet, net.packets.start(packet.cargo()));
        net.set_timer(host, at);
    }

    /// Hands on what a card's hardware has done by now. Returns whether the card has got a packet.
    fn run_hardware(&mut self, host: u32) -> bool {
        let at = host as usize;
        if self.stage(at).is_none() {
            return false;
        }
        let now = self.net().now();
        let mut is_new = false;
        while let Some(packet) = self.stage(at).and_then(|stage| stage.arrived(now)) {
            self.packet_arrives(host, &packet);
            is_new = true;
        }
        while let Some((packet, cargo)) = self.stage(at).and_then(|stage| stage.sent(now)) {
            self.net().send(host, packet, cargo);
        }
        is_new
    }

    /// The hardware of a host's card, if it takes time.
    #[inline]
    fn stage(&mut self, host: usize) -> Option<&mut Stage> {
        if !self.has_hardware {
            return None;
        }
        self.hosts.quietly(host).hardware.as_deref_mut()
    }

    #[inline]
    fn packet_arrives(&mut self, host: u32, packet: &Packet) -> Step {
        self.network.tally.delivered += 1;
        if self.net().packets.is_whole(packet.cargo()) {
            if let Cargo::Wire(wire) = self.net().take(packet) {
                if wire.lost {
                    self.network.tally.delivered -= 1;
                    return Step::Card(host as usize);
                }
                return self.wire_arrives(host as usize, packet, *wire);
            }
        } else {
            self.head_arrives(host as usize, packet);
        }
        Step::Card(host as usize)
    }

    fn wire_arrives(&mut self, host: usize, packet: &Packet, mut wire: Wire) -> Step {
        self.network.tally.corrupted += u64::from(wire.damaged);
        if packet.marked {
            self.network.tally.marked += u64::from(wire.tos & 3 != 3);
            wire.tos |= 3;
        }
        if !self.driver.hardware {
            return self.arrive(host, wire);
        }
        let at = self.net().now();
        self.trace.note(at, host, &wire.bytes, wire.bytes.len());
        let Host { nic, memory, .. } = &mut self.hosts[host];
        memory.hollow.now = at;
        nic.handle_packets(self.now, memory, [wire.datagram()]);
        Step::Card(host)
    }

    /// A packet whose payload does not exist is handed to the card.
    #[inline]
    fn head_arrives(&mut self, host: usize, packet: &Packet) {
        let World { net, hosts, addresses, scratch, trace, now, .. } = self;
        let Some(net) = net else { return };
        let head = *net.packets.head(packet.cargo());
        net.packets.remove(packet.cargo());
        let (header, len) = (head.header(), head.datagram_len as usize);
        if scratch.len() < len {
            scratch.resize(len.next_power_of_two(), 0);
        }
        scratch[..header.len()].copy_from_slice(header);
        trace.note(net.now(), host, scratch, len);
        let Host { nic, memory, address, .. } = &mut hosts[host];
        memory.hollow.now = net.now();
        let datagram = Datagram {
            src: addresses.of(head.src),
            src_port: head.src_port,
            dst: *address,
            ip_id: None,
            tos: head.tos | if packet.marked { 3 } else { 0 },
            bytes: &scratch[..len],
        };
        nic.handle_packets_from_memory(*now, memory, [datagram]);
        scratch[..header.len()].fill(0);
    }

    /// A datagram is in its host's inbox.
    fn arrive(&mut self, host: usize, wire: Wire) -> Step {
        let inbox = &mut self.hosts.quietly(host).inbox;
        inbox.push(wire);
        if inbox.len() == 1 {
            self.push(self.now + self.driver.receive_delay, What::Drain(host));
        }
        Step::Arrival
    }
}

/// What cards send.
impl World {
    /// Looks after the hosts that were touched: sends what their cards have, collects their events,
    /// sets their timers.
    #[inline]
    fn settle(&mut self) {
        while self.hosts.has_touched() {
            let mut touched = core::mem::take(&mut self.touched);
            self.hosts.take_touched(&mut touched);
            for host in touched.iter().map(|host| *host as usize) {
                if self.driver.hardware {
                    self.serve_port(host);
                } else {
                    self.transmit(host);
                }
                let Host { nic, events, timer, .. } = self.hosts.quietly(host);
                if nic.has_events() {
                    events.extend(core::iter::from_fn(|| nic.poll_event()));
                }
                let due = nic.poll_timeout();
                if due < *timer {
                    *timer = due;
                    self.net().set_timer(host as u32, from_card(due));
                }
            }
            self.touched = touched;
        }
    }

    /// Lets a port take packets from its card, if it is free, and has it come again.
    #[inline]
    fn serve_port(&mut self, from: usize) {
        if !self.hosts.quietly(from).nic.wants_transmit() {
            return;
        }
        let mut rounds = 0;
        while self.may_take(from) {
            // A turn may give nothing. More than a few of those in a row take time.
            const ROUNDS: usize = 64;
            rounds += 1;
            if !self.poll_card(from, 1) {
                return;
            }
            if rounds == ROUNDS {
                let at = from_card(self.now).saturating_add(US);
                return self.net().set_timer(from as u32, at);
            }
        }
        // A free port waits for the card's hardware, which has a timer.
        if !self.net().is_port_free(from as u32) {
            self.net().want_port(from as u32);
        }
    }

    /// May a port take a packet from its card? Where hardware takes time, it works ahead.
    #[inline]
    fn may_take(&mut self, from: usize) -> bool {
        if self.stage(from).is_none() {
            return self.net().is_port_free(from as u32);
        }
        let at_port = self.net().backlog(from as u32);
        self.stage(from).is_some_and(|stage| stage.has_room(at_port))
    }

    fn transmit(&mut self, from: usize) {
        // A card that always has something to send at the same moment would loop for ever.
        const ROUNDS: usize = 1_000_000;
        let (mut rounds, mut more) = (0, true);
        while more {
            rounds += 1;
            assert!(rounds < ROUNDS, "the card of host {from} sends without end");
            more = self.poll_card(from, self.driver.transmit_batch);
        }
    }

    /// Asks a card for packets, and sends them. Returns whether it has more.
    #[inline]
    fn poll_card(&mut self, from: usize, limit: usize) -> bool {
        let mut batch = core::mem::take(&mut self.batch);
        batch.clear();
        let Host { nic, memory, .. } = self.hosts.quietly(from);
        let more = nic.poll_transmit(self.now, memory, &mut batch, limit);
        let no_bytes = self.driver.hardware && self.network.is_calm();
        for packet in batch.packets() {
            if no_bytes && is_hollow(packet, &batch) {
                self.send_head(from, packet);
                continue;
            }
            let id = self.dice.number() as u16;
            let Host { memory, address, .. } = self.hosts.quietly(from);
            if let Some(wire) = seal(packet, &batch, memory, *address, id) {
                self.send(from, wire);
            }
        }
        self.batch = batch;
        more
    }

    /// Sends a packet whose payload does not exist.
    #[inline]
    fn send_head(&mut self, from: usize, packet: &Transmit) {
        self.network.tally.sent += 1;
        let Some(to) = self.addresses.find(packet.path.dst) else { return };
        let tos = packet.path.traffic_class & !3 | packet.ecn as u8;
        let (src_port, len) = (packet.path.src_port, packet.datagram_len() as u32);
        let head = Head::new(packet.header(), (tos, src_port), from as u32, len);
        let packet = outer((from as u32, to), src_port, tos, len);
        self.hand_out(from as u32, packet, Cargo::Head(head));
    }

    /// A card has given a packet: it goes to the port, if need be through the card's hardware.
    #[inline]
    fn hand_out(&mut self, from: u32, packet: Packet, cargo: Cargo) {
        let now = self.net().now();
        let Some(stage) = self.stage(from as usize) else {
            return self.net().send(from, packet, cargo);
        };
        let start = cargo.start();
        let at = stage.send(now, packet, cargo, start);
        self.net().set_timer(from, at);
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
        } else if let Some(to) = self.addresses.find(wire.dst) {
            self.send_to(from, to as usize, wire);
        }
    }

    fn send_to(&mut self, from: usize, to: usize, wire: Wire) {
        let (now, mut at_once) = (self.now, Vec::new());
        let World { network, dice, queue, created, .. } = self;
        network.send(now, (from, to), wire, dice, |at, wire| {
            let wire = Box::new(wire);
            if at <= now {
                return at_once.push(wire);
            }
            *created += 1;
            queue.push(Reverse((from_card(at), *created, What::Leave(from, to, wire))));
        });
        at_once.into_iter().for_each(|wire| self.leave(from, to, wire));
    }

    /// A datagram comes to its host's port.
    fn leave(&mut self, from: usize, to: usize, wire: Box<Wire>) {
        let len = wire.bytes.len() as u32;
        let packet = outer((from as u32, to as u32), wire.src_port, wire.tos, len);
        self.hand_out(from as u32, packet, Cargo::Wire(wire));
    }
}

impl Trace {
    /// Notes a packet that has arrived: its base header and its length.
    #[inline]
    pub(crate) fn note(&mut self, at: Ps, host: usize, bytes: &[u8], len: usize) {
        let word = |i: usize| match bytes.get(i..i + 8).and_then(|b| b.try_into().ok()) {
            Some(bytes) => u64::from_le_bytes(bytes),
            None => 0,
        };
        let what = mix(word(0)) ^ word(4).rotate_left(17) ^ (len as u64) << 20;
        self.packets += 1;
        self.hash = self.hash.wrapping_add(mix(mix(at) ^ what ^ (host as u64) << 40));
    }
}

/// Is all payload of a packet memory without bytes?
#[inline]
fn is_hollow(packet: &Transmit, batch: &TransmitBatch) -> bool {
    match batch.payload(packet) {
        PayloadRef::Segments(segments) => segments.iter().all(|segment| segment.addr >= HOLLOW),
        PayloadRef::Bytes(_) => false,
    }
}

/// What routers see of a packet with a UDP payload of `len` bytes.
#[inline]
pub(crate) fn outer((from, to): (u32, u32), src_port: u16, tos: u8, len: u32) -> Packet {
    let ports = u64::from(src_port) << 16 | u64::from(ROCE_PORT);
    let flow = mix(mix(u64::from(from) << 32 | u64::from(to)) ^ ports) as u32;
    let (bytes, class, heeds_marks) = (len + OUTER_BYTES as u32, tos >> 5, tos & 3 != 0);
    Packet::new(to, bytes).flow(flow).class(class, heeds_marks)
}

/// One switch. Without a buffer, only the links that leave hosts have a rate and a delay.
fn one_switch(hosts: u32, link: &LinkOptions, buffer: Option<u64>, now: Ps) -> Net {
    let rate = LineRate::bits_per_second(link.bits_per_second);
    let rate = rate.expect("a link's rate is between 1 Mb/s and 100 Tb/s");
    let cables = if buffer.is_some() { 2 } else { 1 };
    let delay = span(link.latency) / cables;
    let topology = Star { hosts: hosts.max(1), rate, delay }.topology();
    let buffer_options = match buffer {
        Some(bytes) if bytes < u64::MAX => BufferOptions { bytes, ..BufferOptions::default() },
        _ => BufferOptions::ENDLESS,
    };
    let options = NetOptions { buffer: buffer_options, ..NetOptions::default() };
    let mut net = Net::new(&topology, &options).expect("a star of moderate delay");
    if buffer.is_none() {
        net.free_hosts_inputs();
    }
    net.advance(now);
    net
}
