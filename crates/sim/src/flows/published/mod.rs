//! Flows by models of transports that others have published, on the same network as cards.
//!
//! - Here: hosts, with their ports and what happens to them.
//! - `sending`: a flow at its source. `wire`: packets.
//!
//! A host's port takes acknowledges first, then packets of its flows in turn: one each (IRN), or
//! 16 KB (SRNIC §4.3). Each packet is acknowledged, and the acknowledge says whether it was marked.

mod sending;
#[cfg(test)]
mod tests;
mod wire;

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use remora_nic::SendProgress;
use remora_nic::queue::Status;

use super::carrier::{Carrier, News, Turn};
use super::cluster::ClusterError;
use super::flow::Flow;
use super::report::Outcome;
use super::shared::Shared;
use super::transport::{How, Published};
use super::tuning::Tuned;
use crate::link_faults::OUTER_BYTES;
use crate::net::time::{NEVER, NS, US};
use crate::net::{Cargo, Happening, LineRate, Net, Packet, Ps, Ways};
use crate::selective::receiver::{Receiver, Reply};
use crate::selective::{ACKNOWLEDGE, IRN};
use crate::world::Trace;
use sending::{Limits, Next, Sending};
use wire::{Lengths, Letter, Says};

/// The bytes that a flow of SRNIC's sends in a turn (§4.3.1: `burst_size`).
const BURST: u64 = 16 << 10;
/// The clock's start. Not zero: the rates' clock must not give it a special meaning.
const START: Ps = 1000 * US;

/// Something that happens at a host at a time, in a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// The rate lets it send again.
    Opens,
    /// Its timer may have run out.
    Timer,
    /// Software has an acknowledge.
    Taken(Reply),
    /// Software takes note of a packet out of order.
    Noted(u64),
    /// The card takes note of what software expects next.
    Expected(u64),
}

/// A flow at its target.
#[derive(Debug)]
struct Receiving {
    receiver: Receiver,
    /// Before this moment its source is not notified again.
    next_notification: Ps,
    is_told: bool,
}

/// A host: its port, and what will happen.
#[derive(Debug, Default)]
struct Host {
    replies: VecDeque<(Packet, Cargo)>,
    /// The flows that may have something to send. The first has the turn.
    line: VecDeque<u32>,
    /// The bytes that are left of the turn.
    turn: u64,
    /// By time, then by the order of creation.
    events: BinaryHeap<Reverse<(Ps, u64, u32, Event)>>,
    made: u64,
}

/// The hosts of one part.
pub(super) struct Models<'a> {
    shared: &'a Shared<'a>,
    scheme: Published,
    limits: Limits,
    /// What the transport is set to.
    tuned: Tuned,
    /// By host: what its cable carries, in bits per second.
    rates: Vec<u64>,
    /// From the card to software, and from software to the card.
    software: Option<Ps>,
    net: Net,
    /// This part's first host.
    first: u32,
    hosts: Vec<Host>,
    /// By flow, where it has begun here, or ends here and has begun.
    sending: Vec<Option<Box<Sending>>>,
    receiving: Vec<Option<Box<Receiving>>>,
    alarms: BinaryHeap<Reverse<Ps>>,
    news: Vec<News>,
    trace: Trace,
}

impl<'a> Carrier<'a> for Models<'a> {
    fn new(shared: &'a Shared<'a>, own: u8) -> Result<Models<'a>, ClusterError> {
        let Shared { cluster, flows, division, .. } = *shared;
        let How::Published(scheme) = cluster.transport.how else {
            unreachable!("the caller has looked what carries the flows")
        };
        let mut net = cluster.build_part(&shared.atlas)?;
        net.advance(START);
        if division.parts() > 1 {
            net.set_part(division.part(own));
        }
        let tuned = cluster.tuned();
        let has_software = scheme.recovery().control_queue.is_some();
        let software = has_software.then_some(tuned.software_ns * NS);
        let (first, last) = division.hosts(own);
        let none = || (0..flows.len()).map(|_| None);
        Ok(Models {
            shared,
            scheme,
            limits: limits(shared, scheme)?,
            tuned,
            rates: cluster.host_rates(),
            software,
            net,
            first,
            hosts: (first..last).map(|_| Host::default()).collect(),
            sending: none().collect(),
            receiving: (0..flows.len()).map(|_| None).collect(),
            alarms: BinaryHeap::new(),
            news: Vec::new(),
            trace: Trace::default(),
        })
    }

    fn connect(&mut self) {}

    fn net(&mut self) -> &mut Net {
        &mut self.net
    }

    fn next_at(&mut self) -> Ps {
        let alarm = self.alarms.peek().map_or(NEVER, |Reverse(at)| *at);
        alarm.min(self.net.next_at())
    }

    fn alarm_at(&mut self, at: Ps) {
        self.alarms.push(Reverse(at));
    }

    fn begin(&mut self, flow: usize) {
        let Flow { src, bytes, .. } = self.shared.flows[flow];
        let packets = bytes.div_ceil(self.limits.mtu.into());
        let bits = self.rates[src as usize];
        let sending = Sending::new((self.scheme, &self.tuned), packets, self.limits, bits);
        self.sending[flow] = Some(Box::new(sending));
        self.line_up(src, flow as u32);
        self.serve(src);
    }

    fn progress(&mut self, flow: usize) -> SendProgress {
        let sending = self.sending[flow].as_ref();
        sending.map_or(SendProgress::Peer, |sending| match sending.sender.has_more() {
            _ if sending.in_line => SendProgress::Turn,
            true => SendProgress::Leave,
            false => SendProgress::Peer,
        })
    }

    fn step_until(&mut self, end: Ps) -> Option<Turn> {
        loop {
            let alarm = self.alarms.peek().map_or(NEVER, |Reverse(at)| *at);
            let Some(happening) = self.net.step(alarm.min(end)) else {
                if alarm > end || alarm == NEVER {
                    return None;
                }
                self.alarms.pop();
                self.net.advance(alarm);
                return Some(Turn::Alarm);
            };
            let host = match happening {
                Happening::Arrival { host, packet } => {
                    self.arrives(host, packet);
                    host
                }
                Happening::Timer { host } => {
                    self.run_events(host);
                    host
                }
                Happening::PortFree { host } => host,
            };
            self.serve(host);
            if !self.news.is_empty() {
                return Some(Turn::News);
            }
        }
    }

    fn news(&mut self) -> &mut Vec<News> {
        &mut self.news
    }

    fn finish(&mut self, outcome: &mut Outcome) {
        for (i, flow) in self.receiving.iter().enumerate() {
            let Some(flow) = flow else { continue };
            let bytes = flow.receiver.expected() * u64::from(self.limits.mtu);
            outcome.arrived.push((i as u32, bytes.min(self.shared.flows[i].bytes)));
        }
        outcome.trace = self.trace;
        let senders = self.sending.iter().flatten();
        outcome.retransmitted = senders.map(|flow| flow.sender.retransmitted).sum();
    }
}

/// The limits of all flows. IRN has no more packets outstanding than the longest way of a flow
/// holds (its §3.2: BDP-FC).
fn limits(shared: &Shared<'_>, scheme: Published) -> Result<Limits, ClusterError> {
    let Shared { cluster, flows, .. } = *shared;
    let mtu = cluster.mtu.bytes();
    let mut packets = cluster.window_packets;
    if scheme == Published::Irn {
        let mut ways = Ways::of(cluster.build_part(&shared.atlas)?);
        let longest = flows.iter().map(|flow| product(&mut ways, flow, mtu.into())).max();
        packets = packets.min(longest.unwrap_or(1).try_into().unwrap_or(u16::MAX)).max(1);
    }
    Ok(Limits { packets, mtu, patience: cluster.patience(), retries: cluster.tuned().retries })
}

/// The packets that leave a flow's source in the time of a round trip.
fn product(ways: &mut Ways, flow: &Flow, mtu: u64) -> u64 {
    let packet = mtu + IRN.headers() + OUTER_BYTES;
    let mut trip = |from, to, bytes| -> (Ps, Ps) {
        let time = |(rate, delay): &(LineRate, Ps)| rate.time(bytes) + delay;
        let ways = ways.between(from, to);
        let longest = ways.iter().map(|way| way.iter().map(time).sum()).max();
        let first = ways.first().and_then(|way| way.first());
        (longest.unwrap_or(0), first.map_or(0, |(rate, _)| rate.time(bytes)))
    };
    let (there, each) = trip(flow.src, flow.dst, packet);
    let (back, _) = trip(flow.dst, flow.src, ACKNOWLEDGE + OUTER_BYTES);
    (there + back).div_ceil(each.max(1))
}

/// What happens to hosts.
impl Models<'_> {
    fn host(&mut self, host: u32) -> &mut Host {
        &mut self.hosts[(host - self.first) as usize]
    }

    /// Makes an event happen at a host.
    fn push(&mut self, host: u32, at: Ps, flow: u32, event: Event) {
        let own = self.host(host);
        own.made += 1;
        own.events.push(Reverse((at, own.made, flow, event)));
        self.net.set_timer(host, at);
    }

    fn push_timer(&mut self, host: u32, flow: u32, at: Option<Ps>) {
        if let Some(at) = at {
            self.push(host, at, flow, Event::Timer);
        }
    }

    /// Carries out a host's events up to now.
    fn run_events(&mut self, host: u32) {
        let now = self.net.now();
        while let Some(Reverse((at, ..))) = self.host(host).events.peek()
            && *at <= now
        {
            let Some(Reverse((at, _, flow, event))) = self.host(host).events.pop() else { return };
            match event {
                Event::Opens => self.line_up(host, flow),
                Event::Timer => self.expired(host, flow, at),
                Event::Taken(reply) => self.take(host, flow, reply),
                Event::Noted(psn) => {
                    let Some(receiving) = &mut self.receiving[flow as usize] else { continue };
                    if let Some(expected) = receiving.receiver.noted(psn) {
                        let queue = self.software.unwrap_or(0);
                        self.push(host, at + queue, flow, Event::Expected(expected));
                    }
                }
                Event::Expected(psn) => {
                    let Some(receiving) = &mut self.receiving[flow as usize] else { continue };
                    let (reply, _) = receiving.receiver.updated(psn);
                    self.answer(host, flow, reply, false);
                }
            }
        }
    }

    /// A flow's timer may have run out: it sends again, or fails.
    fn expired(&mut self, host: u32, flow: u32, at: Ps) {
        let Some(sending) = &mut self.sending[flow as usize] else { return };
        if sending.has_ended {
            return;
        }
        let again = sending.expires(at);
        if sending.gives_up(at) {
            sending.has_ended = true;
            return self.news.push(News::Failed { flow, status: Status::RetryExceeded });
        }
        self.push_timer(host, flow, again);
        self.line_up(host, flow);
    }

    fn arrives(&mut self, host: u32, packet: Packet) {
        let head = *self.net.packets.head(packet.cargo());
        self.net.packets.remove(packet.cargo());
        let (now, len) = (self.net.now(), head.datagram_len as usize);
        self.trace.note(now, host as usize, head.header(), len);
        let Some(letter) = Letter::read(&head, host) else { return };
        match letter.says {
            Says::Data { psn } => self.data_arrives(&letter, psn, packet.marked),
            Says::Acknowledge { reply, marked } => self.replied(host, letter.flow, reply, marked),
            Says::Notification => {
                if let Some(sending) = &mut self.sending[letter.flow as usize] {
                    sending.notified(now);
                }
            }
        }
    }

    fn data_arrives(&mut self, letter: &Letter, psn: u64, marked: bool) {
        let Letter { from, to, flow, .. } = *letter;
        let now = self.net.now();
        let has_software = self.software.is_some();
        let receiving = self.receiving[flow as usize].get_or_insert_with(|| {
            let receiver = Receiver::new(has_software);
            Box::new(Receiving { receiver, next_notification: 0, is_told: false })
        });
        let (reply, metadata) = receiving.receiver.arrived(psn);
        if marked && self.scheme == Published::Irn && now >= receiving.next_notification {
            receiving.next_notification = now + self.tuned.policies.notify_ns * NS;
            let notification = Letter { from: to, to: from, flow, says: Says::Notification };
            let sealed = notification.seal(Lengths::default());
            self.host(to).replies.push_back(sealed);
        }
        self.answer(to, flow, reply, marked);
        if let (true, Some(queue)) = (metadata, self.software) {
            self.push(to, now + queue, flow, Event::Noted(psn));
        }
    }

    /// Acknowledges what has come, and tells if all of it has.
    fn answer(&mut self, host: u32, flow: u32, reply: Option<Reply>, marked: bool) {
        let Some(reply) = reply else { return };
        let Flow { src, bytes, .. } = self.shared.flows[flow as usize];
        let says = Says::Acknowledge { reply, marked };
        let sealed = Letter { from: host, to: src, flow, says }.seal(Lengths::default());
        self.host(host).replies.push_back(sealed);
        let packets = bytes.div_ceil(self.limits.mtu.into());
        let Some(receiving) = &mut self.receiving[flow as usize] else { return };
        let is_whole = receiving.receiver.expected() >= packets && !receiving.is_told;
        if is_whole && self.shared.awaited[flow as usize] {
            receiving.is_told = true;
            self.news.push(News::Arrived { host, flow });
        }
    }

    /// An acknowledge has come. What is in sequence the card takes itself.
    fn replied(&mut self, host: u32, flow: u32, reply: Reply, marked: bool) {
        let now = self.net.now();
        let Some(sending) = &mut self.sending[flow as usize] else { return };
        sending.note_mark(marked);
        match self.software {
            Some(queue) if reply.named.is_some() || sending.sender.is_recovering() => {
                self.push(host, now + 2 * queue, flow, Event::Taken(reply));
            }
            _ => self.take(host, flow, reply),
        }
    }

    fn take(&mut self, host: u32, flow: u32, reply: Reply) {
        let now = self.net.now();
        let Some(sending) = &mut self.sending[flow as usize] else { return };
        if sending.has_ended {
            return;
        }
        let timer = sending.take(now, reply);
        if sending.sender.is_done() {
            sending.has_ended = true;
            self.news.push(News::Ended { host, flow });
        }
        self.push_timer(host, flow, timer);
        self.line_up(host, flow);
    }
}

/// Ports.
impl Models<'_> {
    /// Puts a flow in the line for its host's port.
    fn line_up(&mut self, host: u32, flow: u32) {
        let Some(sending) = &mut self.sending[flow as usize] else { return };
        if !sending.has_ended && !core::mem::replace(&mut sending.in_line, true) {
            self.host(host).line.push_back(flow);
        }
    }

    /// Lets a port take what its host has, if it is free, and has it come again.
    fn serve(&mut self, host: u32) {
        while self.net.is_port_free(host) {
            let own = self.host(host);
            if let Some((packet, cargo)) = own.replies.pop_front() {
                self.net.send(host, packet, cargo);
            } else if let Some(flow) = own.line.front().copied() {
                self.send_of(host, flow);
            } else {
                return;
            }
        }
        let own = self.host(host);
        if !own.replies.is_empty() || !own.line.is_empty() {
            self.net.want_port(host);
        }
    }

    /// Sends a packet of the flow that has the turn, or takes it out of the line.
    fn send_of(&mut self, host: u32, flow: u32) {
        let now = self.net.now();
        let Some(sending) = &mut self.sending[flow as usize] else { return };
        let waits = sending.sender.is_waiting();
        match sending.next(now) {
            Next::Packet(psn) => {
                let lengths = self.lengths(flow, psn);
                let Some(sending) = &mut self.sending[flow as usize] else { return };
                sending.sent(now, lengths.payload);
                let timer = if waits { None } else { sending.wait(now) };
                self.push_timer(host, flow, timer);
                let to = self.shared.flows[flow as usize].dst;
                let letter = Letter { from: host, to, flow, says: Says::Data { psn } };
                let (packet, cargo) = letter.seal(lengths);
                self.net.send(host, packet, cargo);
                self.end_turn(host, lengths.payload);
            }
            Next::Later(at) => {
                self.leave_line(host, flow);
                self.push(host, at, flow, Event::Opens);
            }
            Next::Nothing => self.leave_line(host, flow),
        }
    }

    /// The flow at the head of the line has sent so much: the next one has its turn, if need be.
    fn end_turn(&mut self, host: u32, payload: u64) {
        let burst = if self.scheme == Published::Srnic { BURST } else { 0 };
        let own = self.host(host);
        own.turn += payload;
        if own.turn >= burst {
            own.turn = 0;
            own.line.rotate_left(1);
        }
    }

    fn leave_line(&mut self, host: u32, flow: u32) {
        let own = self.host(host);
        own.line.pop_front();
        own.turn = 0;
        if let Some(sending) = &mut self.sending[flow as usize] {
            sending.in_line = false;
        }
    }

    fn lengths(&self, flow: u32, psn: u64) -> Lengths {
        let (bytes, mtu) = (self.shared.flows[flow as usize].bytes, u64::from(self.limits.mtu));
        let last = bytes.div_ceil(mtu) - 1;
        let payload = if psn == last { bytes - last * mtu } else { mtu };
        Lengths { headers: self.scheme.recovery().headers(), payload }
    }
}
