//! Links between hosts: their delay and rate, and where [`faults`](crate::faults) apply.

use core::time::Duration;
use std::collections::HashMap;

use remora_nic::Time;

use crate::dice::Dice;
use crate::faults::{Fate, Faults, Rule, corrupt, flip, mark};
use crate::packet::{Seen, Wire};

/// The properties of a link without faults.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkOptions {
    /// The time from the end of sending to arrival.
    pub latency: Duration,
    /// The most that is added to the latency at random; packets keep their order.
    pub jitter: Duration,
    /// The rate in bits per second; Ethernet, IP and UDP headers count.
    pub bits_per_second: u64,
}

impl Default for LinkOptions {
    fn default() -> LinkOptions {
        LinkOptions {
            latency: Duration::from_micros(1),
            jitter: Duration::ZERO,
            bits_per_second: 100_000_000_000,
        }
    }
}

/// What the network did, in numbers of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Packets that cards have sent.
    pub sent: u64,
    /// Datagrams that arrived, copies included.
    pub delivered: u64,
    /// Packets that were lost, outages included.
    pub lost: u64,
    /// Copies that were made.
    pub duplicated: u64,
    /// Packets that were delayed and overtaken.
    pub reordered: u64,
    /// Datagrams that arrived with flipped bits.
    pub corrupted: u64,
    /// Packets that were marked for congestion.
    pub marked: u64,
}

/// The state of one direction of a link between two hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The time at which all earlier packets have been sent.
    free_at: Time,
    /// The time at which the last packet that keeps its order arrives.
    last_arrival: Time,
    out_until: Time,
}

/// All links between hosts.
#[derive(Debug)]
pub struct Network {
    /// The delay and rate of every link.
    pub options: LinkOptions,
    /// The faults of every link.
    pub faults: Faults,
    /// What has happened so far.
    pub tally: Tally,
    /// The packets sent so far, if a trace is wanted.
    pub trace: Option<Vec<Seen>>,
    rules: Vec<Rule>,
    links: HashMap<(usize, usize), Link>,
}

/// Bytes of Ethernet with preamble and gap, IPv4 and UDP for each packet.
const OUTER_BYTES: u64 = 38 + 20 + 8;

impl Network {
    /// A network without faults.
    pub fn new(options: LinkOptions) -> Network {
        Network {
            options,
            faults: Faults::default(),
            tally: Tally::default(),
            trace: None,
            rules: Vec::new(),
            links: HashMap::new(),
        }
    }

    /// Adds a rule. The first rule that matches a packet decides.
    pub fn rule(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Ends all faults.
    pub fn heal(&mut self) {
        self.faults = Faults::default();
        self.rules.clear();
        for link in self.links.values_mut() {
            link.out_until = Time::ZERO;
        }
    }

    /// Sends a packet to one host. Calls `arrive` for each datagram that will arrive, with its
    /// time.
    pub fn send(
        &mut self,
        now: Time,
        (from, to): (usize, usize),
        wire: Wire,
        dice: &mut Dice,
        mut arrive: impl FnMut(Time, Wire),
    ) {
        let seen = Seen::new(now, from, to, &wire.bytes);
        let fate = self.rules.iter_mut().find_map(|r| r.apply(&seen)).unwrap_or(Fate::Pass);
        if let Some(trace) = &mut self.trace {
            trace.push(seen);
        }
        let Some(at) = self.pass(now, (from, to), wire.bytes.len(), dice) else {
            self.tally.lost += 1;
            return;
        };
        let faults = self.faults;
        if fate == Fate::Drop || dice.chance(faults.loss) {
            self.tally.lost += 1;
            return;
        }
        let echo = match fate {
            Fate::Duplicate => Some(Duration::ZERO),
            Fate::Echo(later) => Some(later),
            _ if dice.chance(faults.duplicate) => Some(self.hold(dice)),
            _ => None,
        };
        let late = match fate {
            Fate::Delay(by) => by,
            _ if dice.chance(faults.reorder) => self.hold(dice),
            _ => Duration::ZERO,
        };
        self.tally.reordered += u64::from(late > Duration::ZERO);
        if let Some(later) = echo {
            self.tally.duplicated += 1;
            self.deliver(at + later, wire.clone(), Fate::Pass, dice, &mut arrive);
        }
        self.deliver(at + late, wire, fate, dice, &mut arrive);
    }

    fn hold(&self, dice: &mut Dice) -> Duration {
        Duration::from_nanos(dice.below(self.faults.reorder_by.as_nanos() as u64 + 1))
    }

    /// The time at which a packet sent now arrives; `None` if its link has failed.
    fn pass(
        &mut self,
        now: Time,
        ends: (usize, usize),
        len: usize,
        dice: &mut Dice,
    ) -> Option<Time> {
        let link = self.links.entry(ends).or_default();
        if dice.chance(self.faults.outage) {
            let most = self.faults.outage_for.as_nanos() as u64;
            link.out_until = now + Duration::from_nanos(dice.below(most + 1));
        }
        let bits = (len as u64 + OUTER_BYTES) * 8;
        let takes = bits * 1_000_000_000 / self.options.bits_per_second;
        link.free_at = link.free_at.max(now) + Duration::from_nanos(takes);
        let jitter = dice.below(self.options.jitter.as_nanos() as u64 + 1);
        let mut at = link.free_at + self.options.latency + Duration::from_nanos(jitter);
        if now < link.out_until {
            if !self.faults.clog {
                return None;
            }
            at = at.max(link.out_until);
        }
        link.last_arrival = link.last_arrival.max(at);
        Some(link.last_arrival)
    }

    /// Delivers one copy of a packet, perhaps with flipped bits.
    fn deliver(
        &mut self,
        at: Time,
        mut wire: Wire,
        fate: Fate,
        dice: &mut Dice,
        arrive: &mut impl FnMut(Time, Wire),
    ) {
        if fate == Fate::Mark || dice.chance(self.faults.mark) {
            self.tally.marked += u64::from(mark(&mut wire));
        }
        if let Fate::Flip(bit) = fate {
            self.tally.corrupted += 1;
            flip(&mut wire, bit);
        } else if dice.chance(self.faults.corrupt) {
            self.tally.corrupted += 1;
            corrupt(&mut wire, dice);
        } else {
            wire.shows_id = wire.src.is_ipv4() && dice.coin();
        }
        self.tally.delivered += 1;
        arrive(at, wire);
    }
}
