//! Kinds of faults, by chance or by a rule for chosen packets, and what they do to one packet.
//! [`link_faults`](crate::link_faults) applies them on the way between hosts.

use core::fmt;
use core::time::Duration;

use remora_nic::wire::headers::Bth;

use crate::dice::Dice;
use crate::packet::{Seen, Wire};

/// The faults of packets and links, each with its probability.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// The packet is lost.
    pub loss: f64,
    /// The packet arrives twice.
    pub duplicate: f64,
    /// The packet is delayed, and later packets overtake it.
    pub reorder: f64,
    /// The longest such delay.
    pub reorder_by: Duration,
    /// Some bits of the packet flip.
    pub corrupt: f64,
    /// The packet is marked for congestion, if its sender supports ECN.
    pub mark: f64,
    /// The link between two hosts fails; drawn for each packet that it carries.
    pub outage: f64,
    /// The longest time that a link fails.
    pub outage_for: Duration,
    /// Packets on a failed link wait until it works again, instead of being lost.
    pub clog: bool,
}

/// What happens to a packet that a [`Rule`] matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The packet arrives normally.
    Pass,
    /// The packet is lost.
    Drop,
    /// The packet arrives twice.
    Duplicate,
    /// The packet arrives later by this time, and others overtake it.
    Delay(Duration),
    /// The packet arrives, and a copy arrives later by this time.
    Echo(Duration),
    /// This bit of the datagram flips.
    Flip(usize),
    /// The packet is marked for congestion.
    Mark,
}

type Matches = Box<dyn FnMut(&Seen) -> bool>;

/// What happens to which packets, for directed tests.
pub struct Rule {
    matches: Matches,
    skip: usize,
    count: usize,
    fate: Fate,
}

impl Rule {
    /// A rule for all packets that match.
    pub fn all(fate: Fate, matches: impl FnMut(&Seen) -> bool + 'static) -> Rule {
        Rule { matches: Box::new(matches), skip: 0, count: usize::MAX, fate }
    }

    /// A rule for the `n`th packet that matches, counted from 1.
    pub fn nth(n: usize, fate: Fate, matches: impl FnMut(&Seen) -> bool + 'static) -> Rule {
        Rule { skip: n - 1, count: 1, ..Rule::all(fate, matches) }
    }

    /// A rule for the first `n` packets that match.
    pub fn first(n: usize, fate: Fate, matches: impl FnMut(&Seen) -> bool + 'static) -> Rule {
        Rule { count: n, ..Rule::all(fate, matches) }
    }

    pub(crate) fn apply(&mut self, seen: &Seen) -> Option<Fate> {
        if self.count == 0 || !(self.matches)(seen) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.count -= 1;
        Some(self.fate)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({:?}, skip {}, count {})", self.fate, self.skip, self.count)
    }
}

/// Sets the congestion mark if the sender supports ECN. Returns whether it does.
pub(crate) fn mark(wire: &mut Wire) -> bool {
    let takes_part = wire.tos & 3 != 0;
    if takes_part {
        wire.tos |= 3;
    }
    takes_part
}

/// Flips up to three bits. The ICRC detects all such changes (its Hamming distance is 4 up to 11
/// KB), provided that the receiver sees the IPv4 identification. It does not cover the congestion
/// bits, which switches may change.
pub(crate) fn corrupt(wire: &mut Wire, dice: &mut Dice) {
    const CONGESTION: u64 = 4;
    let mut bits = Vec::new();
    for _ in 0..dice.between(1..=3) {
        let byte = dice.below(wire.bytes.len() as u64 - 1);
        let byte = if byte >= CONGESTION { byte + 1 } else { byte };
        let bit = (byte * 8 + dice.below(8)) as usize;
        if !bits.contains(&bit) {
            bits.push(bit);
            flip(wire, bit);
        }
    }
}

pub(crate) fn flip(wire: &mut Wire, bit: usize) {
    debug_assert!(Bth::LEN <= wire.bytes.len());
    (wire.shows_id, wire.damaged) = (wire.src.is_ipv4(), true);
    let at = bit / 8 % wire.bytes.len();
    wire.bytes[at] ^= 1 << (bit % 8);
}
