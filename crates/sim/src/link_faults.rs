//! Applies [`faults`](crate::faults) to packets that leave a host, counts them, and holds the usual
//! properties of hosts' links. The way between hosts is in [`net`](crate::net), as are losses of
//! single cables.

use core::time::Duration;
use std::collections::HashMap;

use remora_nic::Time;

use crate::dice::Dice;
use crate::faults::{Fate, Faults, Rule, corrupt, flip, mark};
use crate::packet::{Seen, Wire};

/// The properties of a host's link, and of the way between two hosts, without faults.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkOptions {
    /// The time from the end of sending to arrival at the other host.
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

/// What goes wrong between two hosts, in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The time at which the last packet that keeps its order leaves.
    last: Time,
    out_until: Time,
}

/// What goes wrong with packets when they leave a host, before they come to its port.
#[derive(Debug)]
pub struct Network {
    /// The delay and rate of every host's link.
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
pub(crate) const OUTER_BYTES: u64 = 38 + 20 + 8;

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

    /// Is there nothing that could go wrong, and nobody who looks? Then packets need no bytes.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        let has_faults = self.faults != Faults::default() || self.options.jitter > Duration::ZERO;
        !has_faults && self.rules.is_empty() && self.trace.is_none()
    }

    /// Ends all faults.
    pub fn heal(&mut self) {
        self.faults = Faults::default();
        self.rules.clear();
        for link in self.links.values_mut() {
            link.out_until = Time::ZERO;
        }
    }

    /// Decides what happens to a packet for one host. Calls `leave` for each datagram that will
    /// come to the host's port, with its time: for a lost one, too, since it takes the links' time.
    pub fn send(
        &mut self,
        now: Time,
        (from, to): (usize, usize),
        wire: Wire,
        dice: &mut Dice,
        mut leave: impl FnMut(Time, Wire),
    ) {
        let seen = Seen::new(now, from, to, &wire.bytes);
        let fate = self.rules.iter_mut().find_map(|r| r.apply(&seen)).unwrap_or(Fate::Pass);
        if let Some(trace) = &mut self.trace {
            trace.push(seen);
        }
        let Some(at) = self.pass(now, (from, to), dice) else {
            self.tally.lost += 1;
            return;
        };
        let faults = self.faults;
        if fate == Fate::Drop || dice.chance(faults.loss) {
            self.tally.lost += 1;
            return leave(at, Wire { lost: true, ..wire });
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
            self.let_go(at + later, wire.clone(), Fate::Pass, dice, &mut leave);
        }
        self.let_go(at + late, wire, fate, dice, &mut leave);
    }

    fn hold(&self, dice: &mut Dice) -> Duration {
        Duration::from_nanos(dice.below(self.faults.reorder_by.as_nanos() as u64 + 1))
    }

    /// The time at which a packet sent now leaves; `None` if its link has failed.
    fn pass(&mut self, now: Time, ends: (usize, usize), dice: &mut Dice) -> Option<Time> {
        let (faults, jitter) = (self.faults, self.options.jitter.as_nanos() as u64);
        if faults.outage == 0.0 && jitter == 0 && self.links.is_empty() {
            return Some(now);
        }
        let link = self.links.entry(ends).or_default();
        if dice.chance(faults.outage) {
            let most = faults.outage_for.as_nanos() as u64;
            link.out_until = now + Duration::from_nanos(dice.below(most + 1));
        }
        let mut at = now + Duration::from_nanos(dice.below(jitter + 1));
        if now < link.out_until {
            if !faults.clog {
                return None;
            }
            at = at.max(link.out_until);
        }
        link.last = link.last.max(at);
        Some(link.last)
    }

    /// Lets one copy of a packet go, perhaps with flipped bits.
    fn let_go(
        &mut self,
        at: Time,
        mut wire: Wire,
        fate: Fate,
        dice: &mut Dice,
        leave: &mut impl FnMut(Time, Wire),
    ) {
        if fate == Fate::Mark || dice.chance(self.faults.mark) {
            self.tally.marked += u64::from(mark(&mut wire));
        }
        if let Fate::Flip(bit) = fate {
            flip(&mut wire, bit);
        } else if dice.chance(self.faults.corrupt) {
            corrupt(&mut wire, dice);
        } else {
            wire.shows_id = wire.src.is_ipv4() && dice.coin();
        }
        leave(at, wire);
    }
}
