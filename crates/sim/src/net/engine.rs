//! [`Net`]: packets on their way from host to host.
//!
//! A packet that has arrived at a switch is routed at once, and waits at the port that it leaves
//! by. There are two ways to wait:
//!
//! - Where no port can be paused and there is one class, a packet's departure is known when it
//!   comes: behind all that the port was given. So there is one event for each link of its way. The
//!   queue that a packet meets is what the port has not sent yet.
//! - With classes or flow control ([`NetOptions::classes`], [`NetOptions::pfc`]), or where a rate
//!   is to change, ports have queues, and there is a second event when a packet has left.
//!
//! A switch stores a packet before it forwards it. Events are numbered: link by link arrivals, then
//! ports that are free, hosts' timers, changes; [`Wheel`] orders those of a moment by that number.

use std::collections::VecDeque;

use super::buffer::{Buffer, BufferOptions, Verdict};
use super::changes::Changes;
use super::marking::{Marking, marks};
use super::notes::Notes;
use super::packets::{Cargo, Kind, Packet, Packets};
use super::paths::{Atlas, Most};
use super::pfc::{Entry, Ingress, PAUSE_BYTES, PfcOptions};
use super::port::{Flags, Leaving, NONE, Port, Queues, Usage};
use super::routes::{NOWHERE, Routes, Routing};
use super::time::{LineRate, Ps};
use super::topology::{Link, Node, Topology, TopologyError};
use super::wheel::Wheel;
use crate::dice::{SplitMix, Use};

/// The properties of all switches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NetOptions {
    /// The buffer of each switch.
    pub buffer: BufferOptions,
    /// How switches choose among paths.
    pub routing: Routing,
    /// Packets of a higher class overtake those of a lower one.
    pub classes: bool,
    /// Priority flow control; `None`: switches drop what they have no room for.
    pub pfc: Option<PfcOptions>,
    /// What the network draws comes from it.
    pub seed: u64,
}

impl Default for NetOptions {
    fn default() -> NetOptions {
        let (buffer, routing) = (BufferOptions::default(), Routing::default());
        NetOptions { buffer, routing, classes: false, pfc: None, seed: 1 }
    }
}

/// What the network did, in numbers of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetTally {
    /// Packets that hosts have sent.
    pub sent: u64,
    /// Their bytes on the wire.
    pub sent_bytes: u64,
    /// Packets that have reached their hosts.
    pub delivered: u64,
    /// Their bytes on the wire.
    pub delivered_bytes: u64,
    /// Packets that a switch had no room for.
    pub dropped_full: u64,
    /// Packets that a link lost at random.
    pub dropped_loss: u64,
    /// Packets on a link that has failed.
    pub dropped_down: u64,
    /// Packets to hosts to which there was no path.
    pub dropped_no_path: u64,
    /// The bytes of all that were dropped.
    pub dropped_bytes: u64,
    /// Packets that were marked for congestion.
    pub marked: u64,
    /// Pauses that switches have sent.
    pub pauses: u64,
    /// Packets that have gone from link to link: hops.
    pub hops: u64,
}

impl NetTally {
    /// The packets, and their bytes, that hosts have sent and that were neither delivered nor
    /// dropped.
    pub fn outstanding(&self) -> (u64, u64) {
        let dropped =
            self.dropped_full + self.dropped_loss + self.dropped_down + self.dropped_no_path;
        let packets = self.sent.wrapping_sub(self.delivered + dropped);
        (packets, self.sent_bytes.wrapping_sub(self.delivered_bytes + self.dropped_bytes))
    }
}

impl core::ops::AddAssign for NetTally {
    fn add_assign(&mut self, other: NetTally) {
        let pairs = [
            (&mut self.sent, other.sent),
            (&mut self.sent_bytes, other.sent_bytes),
            (&mut self.delivered, other.delivered),
            (&mut self.delivered_bytes, other.delivered_bytes),
            (&mut self.dropped_full, other.dropped_full),
            (&mut self.dropped_loss, other.dropped_loss),
            (&mut self.dropped_down, other.dropped_down),
            (&mut self.dropped_no_path, other.dropped_no_path),
            (&mut self.dropped_bytes, other.dropped_bytes),
            (&mut self.marked, other.marked),
            (&mut self.pauses, other.pauses),
            (&mut self.hops, other.hops),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum += more);
    }
}

/// Something that concerns a host.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    /// A packet has arrived. The host takes it with [`Net::take`].
    Arrival {
        /// The host.
        host: u32,
        /// The packet. What it carries is in [`Net::packets`].
        packet: Packet,
    },
    /// The host's port is free, as [`Net::want_port`] has asked.
    PortFree {
        /// The host.
        host: u32,
    },
    /// A timer that [`Net::set_timer`] has set.
    Timer {
        /// The host.
        host: u32,
    },
}

/// A packet that leaves a part of the network for another.
#[derive(Clone, Debug)]
pub struct Parcel {
    link: u32,
    packet: Packet,
    /// Frames of flow control carry nothing.
    cargo: Option<Cargo>,
}

/// Which nodes this part of the network has, where it has not all of them.
#[derive(Clone, Debug)]
pub struct Part {
    /// By node (hosts, then switches): its part.
    pub of: Vec<u8>,
    /// This part.
    pub own: u8,
    /// By part: what has left for it.
    pub leaving: Vec<Vec<Parcel>>,
}

/// Switches, links and the packets in them.
#[derive(Debug)]
pub struct Net {
    /// The packets.
    pub packets: Packets,
    /// What has happened so far.
    pub tally: NetTally,
    pub(super) now: Ps,
    wheel: Wheel,
    pub(super) hosts: u32,
    pub(super) ports: Vec<Port>,
    /// Packets of hosts that are on their way.
    live: u64,
    /// By link: the one in the other direction.
    pub(super) back: Vec<u32>,
    pub(super) buffer: BufferOptions,
    /// By link, if packets are marked: the thresholds.
    pub(super) markings: Vec<Option<Marking>>,
    pub(super) randoms: Vec<SplitMix>,
    /// By link, with classes or flow control, or where a rate is to change.
    pub(super) queues: Vec<Queues>,
    /// By link, with classes or flow control.
    pub(super) ingress: Vec<Ingress>,
    buffers: Vec<Buffer>,
    /// By switch: its ports.
    pub(super) of_switch: Vec<Vec<u32>>,
    pub(super) routes: Routes,
    pub(super) changes: Changes,
    pub(super) pfc: Option<PfcOptions>,
    /// Otherwise all packets are of one class.
    heeds_classes: bool,
    part: Option<Box<Part>>,
    pub(super) notes: Notes,
}

impl Net {
    /// A network at rest.
    ///
    /// # Errors
    /// If the topology cannot be built.
    pub fn new(topology: &Topology, options: &NetOptions) -> Result<Net, TopologyError> {
        Net::with_atlas(topology, options, &Atlas::default())
    }

    /// As [`Net::new`]. Networks of one topology that have an atlas in common find paths once.
    pub(crate) fn with_atlas(
        topology: &Topology,
        options: &NetOptions,
        atlas: &Atlas,
    ) -> Result<Net, TopologyError> {
        topology.check()?;
        if !Most::of(topology).fits() {
            return Err(TopologyError::Paths);
        }
        let links = topology.links();
        let (hosts, switches) = (topology.hosts, topology.switches);
        let has_queues = options.classes || options.pfc.is_some();
        let mut of_switch = vec![Vec::new(); switches as usize];
        for (i, link) in (0u32..).zip(&links) {
            if let Some(switch) = link.from.switch() {
                of_switch[switch as usize].push(i);
            }
        }
        let of_hosts = links[..hosts as usize].iter().filter_map(|link| link.rate.bits()).max();
        let ingress = |link: &Link| {
            let pfc = options.pfc.unwrap_or_default();
            let alpha = pfc.alpha_at(link.rate.bits(), of_hosts.unwrap_or(u64::MAX));
            Ingress::new(pfc.headroom(link.rate, link.delay), alpha)
        };
        let none = if has_queues { links.len() } else { 0 };
        Ok(Net {
            packets: Packets::default(),
            tally: NetTally::default(),
            now: 0,
            wheel: Wheel::default(),
            hosts,
            ports: links.iter().map(|link| port(link, hosts)).collect(),
            live: 0,
            back: links.iter().map(|link| link.back).collect(),
            buffer: options.buffer,
            markings: links.iter().map(|l| options.buffer.marking_at(l.rate.bits())).collect(),
            randoms: (0..links.len() as u64).map(|i| Use::Marks.stream(options.seed, i)).collect(),
            queues: vec![Queues::default(); none],
            ingress: links[..none].iter().map(ingress).collect(),
            buffers: vec![Buffer::new(options.buffer); switches as usize],
            of_switch,
            routes: Routes::new(&links, (hosts, switches), (options.routing, options.seed), atlas),
            changes: Changes::new(links, switches, options.seed),
            pfc: options.pfc,
            heeds_classes: options.classes,
            part: None,
            notes: Notes::default(),
        })
    }

    /// Has packets that come from now on wait in queues, if they do not anyway.
    pub(super) fn make_queues(&mut self) {
        if self.queues.is_empty() {
            self.queues = vec![Queues::default(); self.ports.len()];
            // What ports were given before is in their backlogs.
            self.buffers.iter_mut().for_each(|buffer| buffer.used = 0);
        }
    }

    /// Makes this one part of a network that several have: it handles only what happens at its own
    /// nodes.
    pub fn set_part(&mut self, part: Part) {
        self.part = Some(Box::new(part));
    }

    /// By part: what has left for it since the caller last took it out, for [`Net::receive`] there.
    pub fn leaving(&mut self) -> &mut [Vec<Parcel>] {
        match &mut self.part {
            Some(part) => &mut part.leaving,
            None => &mut [],
        }
    }

    /// Takes a packet that another part has sent.
    pub fn receive(&mut self, parcel: Parcel) {
        let Parcel { link, mut packet, cargo } = parcel;
        if let Some(cargo) = cargo {
            packet.cargo = self.packets.add(cargo);
            self.live += 1;
        }
        self.join_flight(link, packet);
    }

    /// Makes the links to hosts so fast that packets do not meet there.
    pub(crate) fn free_hosts_inputs(&mut self) {
        for host in 0..self.hosts {
            let port = &mut self.ports[self.back[host as usize] as usize];
            (port.rate, port.delay) = (LineRate::UNLIMITED, 0);
        }
    }

    /// Gives all switches buffers without an end.
    pub(crate) fn widen_buffers(&mut self) {
        self.buffers.iter_mut().for_each(Buffer::widen);
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The moment of the last event.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// The moment of the next event; [`NEVER`](super::time::NEVER) if there is none.
    #[inline]
    pub fn next_at(&mut self) -> Ps {
        self.wheel.next_at()
    }

    /// Moves the clock on, to a moment that is not after the next event.
    #[inline]
    pub fn advance(&mut self, to: Ps) {
        self.now = self.now.max(to);
    }

    /// Handles events until `until`, or until one concerns a host.
    pub fn step(&mut self, until: Ps) -> Option<Happening> {
        let links = self.ports.len() as u32;
        loop {
            if self.wheel.is_used_up() {
                self.wheel.next_at();
                self.warm_up();
            }
            let (at, number) = self.wheel.pop(until)?;
            self.now = at;
            let happening = if number < links {
                self.arrive(number)
            } else if number < 2 * links {
                self.port_free(number - links)
            } else if number - 2 * links < self.hosts {
                Some(Happening::Timer { host: number - 2 * links })
            } else {
                self.change(number - 2 * links - self.hosts);
                None
            };
            if happening.is_some() {
                return happening;
            }
        }
    }

    /// Reads what the events of the next slot will need, so that the processor fetches it for all
    /// of them at once: in a large network, waiting for memory is most of an event's time.
    fn warm_up(&self) {
        let slot = self.wheel.slot();
        if slot.len() < 4 {
            return;
        }
        let mut sum = 0;
        for (_, link) in slot {
            let packet = self.ports.get(*link as usize).and_then(|port| port.flight.front());
            sum ^= packet.map_or(0, |packet| packet.dst);
        }
        for (_, link) in slot {
            let Some(port) = self.ports.get(*link as usize) else { continue };
            if let (Some(packet), Some(switch)) =
                (port.flight.front(), port.to.checked_sub(self.hosts))
            {
                let next = self.routes.likely(switch, packet.dst, packet.flow);
                let next = self.ports.get(next as usize).map_or(0, |port| port.free_at);
                sum ^= next as u32;
            }
        }
        core::hint::black_box(sum);
    }

    /// Has a host send a packet.
    #[inline]
    pub fn send(&mut self, host: u32, packet: Packet, cargo: Cargo) {
        self.tally.sent += 1;
        self.tally.sent_bytes += u64::from(packet.bytes);
        self.live += 1;
        let cargo = self.packets.add(cargo);
        self.leave_by(host, Packet { cargo, via: NONE, ..packet });
    }

    /// Takes what a packet that has arrived carries.
    pub fn take(&mut self, packet: &Packet) -> Cargo {
        self.packets.take(packet.cargo)
    }

    /// May the host's port begin to send at once?
    #[inline]
    pub fn is_port_free(&self, host: u32) -> bool {
        let is_empty = self.queues.get(host as usize).is_none_or(Queues::is_empty);
        is_empty && self.ports[host as usize].free_at <= self.now
    }

    /// Makes [`Happening::PortFree`] happen when the host's port, which is not free, is free.
    #[inline]
    pub fn want_port(&mut self, host: u32) {
        self.ports[host as usize].flags.wanted = true;
        if self.queues.is_empty() {
            self.wake(host);
        }
    }

    /// Makes [`Happening::Timer`] happen at `at`. Several may be set; those of one moment are one
    /// or more events.
    #[inline]
    pub fn set_timer(&mut self, host: u32, at: Ps) {
        self.wheel.push(at.max(self.now), 2 * self.ports.len() as u32 + host);
    }

    /// The bytes that wait at a link's port, what is being sent included.
    pub fn backlog(&self, link: u32) -> u64 {
        let waiting = self.queues.get(link as usize).map_or(0, Queues::bytes);
        self.ports[link as usize].backlog(self.now) + waiting
    }

    /// The bytes of a class that wait at a port with queues, what is being sent included if it is
    /// of this class.
    fn backlog_of(&self, link: u32, class: u8) -> u64 {
        let queues = &self.queues[link as usize];
        let is_other = queues.leaving.is_some_and(|leaving| leaving.class != class);
        let sending = if is_other { 0 } else { self.ports[link as usize].backlog(self.now) };
        sending + queues.bytes_of(class)
    }

    /// The packets in the network.
    pub fn in_flight(&self) -> u64 {
        self.live
    }

    /// The packets of hosts that wait at ports or are on links, and their bytes. It looks at each
    /// of them: the account of a run's end.
    pub fn on_their_way(&self) -> (u64, u64) {
        let flights = self.ports.iter().flat_map(|port| &port.flight);
        let all = flights.chain(self.queues.iter().flat_map(Queues::packets));
        let of_hosts = all.filter(|packet| packet.kind == Kind::Data);
        of_hosts.fold((0, 0), |(n, bytes), packet| (n + 1, bytes + u64::from(packet.bytes)))
    }

    /// The number of the event of a change.
    pub(super) fn push_change(&mut self, at: Ps, index: u32) {
        self.wheel.push(at.max(self.now), 2 * self.ports.len() as u32 + self.hosts + index);
    }

    /// Drops a packet at the port of a link, or on it.
    #[cold]
    fn drop_packet(&mut self, link: u32, packet: Packet, why: fn(&mut NetTally) -> &mut u64) {
        if packet.kind == Kind::Data {
            self.ports[link as usize].usage.dropped += 1;
            self.live -= 1;
            self.packets.remove(packet.cargo);
            *why(&mut self.tally) += 1;
            self.tally.dropped_bytes += u64::from(packet.bytes);
        }
    }

    /// The first packet on a link arrives at its end.
    #[inline]
    fn arrive(&mut self, link: u32) -> Option<Happening> {
        let port = &mut self.ports[link as usize];
        let mut packet = port.flight.pop_front()?;
        if let Some(next) = port.flight.front() {
            self.wheel.push(next.at, link);
        }
        self.tally.hops += 1;
        let (to, flags) = (port.to, port.flags);
        if flags.down {
            self.drop_packet(link, packet, |tally| &mut tally.dropped_down);
            return None;
        }
        // Frames of flow control are spared: others repeat theirs, here each is sent once.
        if flags.lossy && packet.kind == Kind::Data && self.changes.loses(link) {
            self.drop_packet(link, packet, |tally| &mut tally.dropped_loss);
            return None;
        }
        if flags.captured {
            self.note_packet(link, &packet);
        }
        if packet.kind != Kind::Data {
            return self.pause(link, packet);
        }
        if to < self.hosts {
            self.live -= 1;
            self.tally.delivered += 1;
            self.tally.delivered_bytes += u64::from(packet.bytes);
            return Some(Happening::Arrival { host: to, packet });
        }
        packet.via = link;
        match self.routes.next(self.now, to - self.hosts, packet.dst, packet.flow) {
            NOWHERE => self.drop_packet(link, packet, |tally| &mut tally.dropped_no_path),
            next => self.leave_by(next, packet),
        }
        None
    }

    /// Sends a packet by a link, or lets it wait there.
    #[inline]
    fn leave_by(&mut self, link: u32, mut packet: Packet) {
        let now = self.now;
        let port = &mut self.ports[link as usize];
        if port.flags.down {
            return self.drop_packet(link, packet, |tally| &mut tally.dropped_down);
        }
        if !self.queues.is_empty() {
            return self.enqueue(link, packet);
        }
        if port.switch != NONE {
            let backlog = port.backlog(now);
            if !self.buffers[port.switch as usize].is_endless()
                && !self.has_room(link, backlog, u64::from(packet.bytes))
            {
                return self.drop_packet(link, packet, |tally| &mut tally.dropped_full);
            }
            self.mark(link, &mut packet, backlog);
        }
        packet.at = self.ports[link as usize].send(now, packet.bytes);
        self.fly(link, packet);
    }

    /// Counts a packet of `bytes` in at a port with this backlog, if there is room.
    fn has_room(&mut self, link: u32, backlog: u64, bytes: u64) -> bool {
        let port = &mut self.ports[link as usize];
        let buffer = &mut self.buffers[port.switch as usize];
        // What other ports have sent meanwhile is still counted: `used` is an upper bound.
        buffer.used = buffer.used + backlog - port.counted;
        port.counted = backlog;
        let mut verdict = buffer.judge(backlog, bytes, false);
        if verdict == Verdict::Recount {
            buffer.used = 0;
            for other in &self.of_switch[port.switch as usize] {
                let other = &mut self.ports[*other as usize];
                other.counted = other.backlog(self.now);
                buffer.used += other.counted;
            }
            verdict = buffer.judge(backlog, bytes, true);
        }
        if verdict == Verdict::Accept {
            buffer.used += bytes;
            self.ports[link as usize].counted += bytes;
        }
        verdict == Verdict::Accept
    }

    /// Marks a packet that meets a queue of `backlog` bytes, if its switch does that.
    #[inline]
    fn mark(&mut self, link: u32, packet: &mut Packet, backlog: u64) {
        let i = link as usize;
        if backlog > 0
            && marks(&self.markings[i], backlog, &mut self.randoms[i])
            && packet.heeds_marks
            && !packet.marked
        {
            packet.marked = true;
            self.tally.marked += 1;
        }
    }

    /// Puts a packet on a link, at whose end it arrives at its time.
    #[inline]
    fn fly(&mut self, link: u32, packet: Packet) {
        if let Some(part) = &mut self.part
            && let to = part.of[self.ports[link as usize].to as usize]
            && to != part.own
        {
            let is_data = packet.kind == Kind::Data;
            self.live -= u64::from(is_data);
            let cargo = is_data.then(|| self.packets.take(packet.cargo));
            part.leaving[usize::from(to)].push(Parcel { link, packet, cargo });
            return;
        }
        self.join_flight(link, packet);
    }

    #[inline]
    fn join_flight(&mut self, link: u32, packet: Packet) {
        let flight = &mut self.ports[link as usize].flight;
        if flight.is_empty() {
            self.wheel.push(packet.at, link);
        }
        flight.push_back(packet);
    }

    /// Makes an event happen when the port of this link is free.
    fn wake(&mut self, link: u32) {
        let port = &mut self.ports[link as usize];
        if !core::mem::replace(&mut port.flags.waking, true) {
            self.wheel.push(port.free_at.max(self.now), self.ports.len() as u32 + link);
        }
    }

    /// A port has sent all that it had begun to send.
    fn port_free(&mut self, link: u32) -> Option<Happening> {
        self.ports[link as usize].flags.waking = false;
        if !self.queues.is_empty() {
            self.has_left(link);
            self.start(link);
        }
        if link >= self.hosts || !self.ports[link as usize].flags.wanted {
            return None;
        }
        if !self.is_port_free(link) {
            // More was sent since the event was made.
            if self.queues.is_empty() {
                self.wake(link);
            }
            return None;
        }
        self.ports[link as usize].flags.wanted = false;
        Some(Happening::PortFree { host: link })
    }
}

/// Ports with queues.
impl Net {
    /// Puts a packet in its class's queue: what of other classes waits is no reason to drop it, nor
    /// to mark it.
    fn enqueue(&mut self, link: u32, mut packet: Packet) {
        if !self.heeds_classes {
            packet.class = 0;
        }
        let Packet { via, class, bytes, .. } = packet;
        let switch = self.ports[link as usize].switch;
        let backlog = self.backlog_of(link, class);
        if switch != NONE {
            if !self.enters(switch, (via, class), backlog, u64::from(bytes)) {
                return self.drop_packet(link, packet, |tally| &mut tally.dropped_full);
            }
            self.mark(link, &mut packet, backlog);
        }
        packet.at = self.now;
        self.queues[link as usize].push(packet);
        self.start(link);
    }

    /// Counts a packet in at a switch, and pauses the link that it came by if need be. Returns
    /// whether there is room.
    fn enters(&mut self, switch: u32, (via, class): (u32, u8), queue: u64, bytes: u64) -> bool {
        let buffer = &mut self.buffers[switch as usize];
        let Some(pfc) = self.pfc else {
            let fits = buffer.is_endless() || buffer.judge(queue, bytes, true) == Verdict::Accept;
            buffer.used += if fits { bytes } else { 0 };
            return fits;
        };
        let ingress = &mut self.ingress[via as usize];
        let entry = ingress.enter(&pfc, class, bytes, buffer.free());
        if entry == Entry::Shared {
            buffer.used += bytes;
        }
        if ingress.pauses(&pfc, class, buffer.free()) {
            self.tally.pauses += 1;
            self.tell(via, Kind::Pause, class);
        }
        entry != Entry::Full
    }

    /// Counts out the packet that a port was sending.
    fn has_left(&mut self, link: u32) {
        let Some(leaving) = self.queues[link as usize].leaving.take() else { return };
        let Leaving { via, class, bytes } = leaving;
        let switch = self.ports[link as usize].switch;
        if switch == NONE {
            return;
        }
        let buffer = &mut self.buffers[switch as usize];
        let Some(pfc) = self.pfc else {
            buffer.used -= u64::from(bytes);
            return;
        };
        let ingress = &mut self.ingress[via as usize];
        buffer.used -= ingress.leave(class, u64::from(bytes));
        if ingress.resumes(&pfc, class, buffer.free()) {
            self.tell(via, Kind::Resume, class);
        }
    }

    /// Begins to send the next packet, if the port is free and has one that may go.
    pub(super) fn start(&mut self, link: u32) {
        let port = &mut self.ports[link as usize];
        let queues = &mut self.queues[link as usize];
        if queues.leaving.is_some() || port.free_at > self.now {
            return self.wake(link);
        }
        let Some(mut packet) = queues.pop() else { return };
        let Packet { via, class, bytes, .. } = packet;
        queues.leaving = Some(Leaving { via, class, bytes });
        port.usage.waited += self.now - packet.at;
        packet.at = port.send(self.now, bytes);
        self.wake(link);
        self.fly(link, packet);
    }

    /// Tells the node from which `via` comes to pause a class, or to go on. The frame leaves before
    /// all packets that wait.
    fn tell(&mut self, via: u32, kind: Kind, class: u8) {
        let link = self.back[via as usize];
        let at = self.ports[link as usize].send(self.now, PAUSE_BYTES);
        // Should the link fail and come back meanwhile, nobody knows of the frame any more.
        let flow = self.changes.epochs[link as usize];
        self.fly(link, Packet { at, class, kind, flow, ..Packet::default() });
    }

    /// A frame of flow control has come by `link`: it is about the port in the other direction.
    fn pause(&mut self, link: u32, packet: Packet) -> Option<Happening> {
        let Packet { kind, class, flow, .. } = packet;
        if flow != self.changes.epochs[link as usize] {
            return None;
        }
        let own = self.back[link as usize];
        self.note_pause(own, class, kind == Kind::Pause);
        let queues = self.queues.get_mut(own as usize)?;
        if kind == Kind::Pause {
            queues.paused |= 1 << class;
        } else {
            queues.paused &= !(1 << class);
            self.start(own);
        }
        None
    }
}

fn port(link: &Link, hosts: u32) -> Port {
    let to = match link.to {
        Node::Host(host) => host,
        Node::Switch(switch) => hosts + switch,
    };
    Port {
        free_at: 0,
        rate: link.rate,
        delay: link.delay,
        counted: 0,
        to,
        switch: link.from.switch().unwrap_or(NONE),
        flags: Flags::default(),
        flight: VecDeque::new(),
        usage: Usage::default(),
    }
}

impl Parcel {
    /// When it arrives.
    pub fn at(&self) -> Ps {
        self.packet.at
    }
}
