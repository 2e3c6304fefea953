//! What goes wrong on a link: by chance, or by a rule, for chosen packets.

use core::fmt;
use core::time::Duration;

use remora_nic::wire::headers::Bth;

use crate::dice::Dice;
use crate::packet::{Seen, Wire};

/// What goes wrong with a packet, each with its probability.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// It is lost.
    pub loss: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// It is held up, so that later ones overtake it.
    pub reorder: f64,
    /// For at most so long.
    pub reorder_by: Duration,
    /// Some bits of it flip.
    pub corrupt: f64,
    /// It is marked as having met congestion, if its sender takes part in that.
    pub mark: f64,
    /// A link of two hosts goes out, each time it carries a packet.
    pub outage: f64,
    /// For at most so long.
    pub outage_for: Duration,
    /// Packets on a link that is out wait instead of being lost.
    pub clog: bool,
}

/// What becomes of a packet that a [`Rule`] matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing special.
    Pass,
    /// Lost.
    Drop,
    /// Arrives twice.
    Duplicate,
    /// Arrives so much later; others overtake it.
    Delay(Duration),
    /// Arrives, and once more so much later.
    Echo(Duration),
    /// This bit of the datagram flips.
    Flip(usize),
    /// Marked as having met congestion.
    Mark,
}

type Matches = Box<dyn FnMut(&Seen) -> bool>;

/// For directed tests: what is to happen to which packets.
pub struct Rule {
    matches: Matches,
    skip: usize,
    count: usize,
    fate: Fate,
}

impl Rule {
    /// All packets that match.
    pub fn all(fate: Fate, matches: impl FnMut(&Seen) -> bool + 'static) -> Rule {
        Rule { matches: Box::new(matches), skip: 0, count: usize::MAX, fate }
    }

    /// The `n`th packet that matches, counted from 1.
    pub fn nth(n: usize, fate: Fate, matches: impl FnMut(&Seen) -> bool + 'static) -> Rule {
        Rule { skip: n - 1, count: 1, ..Rule::all(fate, matches) }
    }

    /// The first `n` packets that match.
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

/// Sets the congestion mark, if the sender takes part; returns whether it does.
pub(crate) fn mark(wire: &mut Wire) -> bool {
    let takes_part = wire.tos & 3 != 0;
    if takes_part {
        wire.tos |= 3;
    }
    takes_part
}

/// Flips up to three bits: so few that the checksum is certain to catch them (its Hamming distance
/// is 4 up to 11 KB), given that the receiver sees the identification. It need not catch changes
/// to the congestion bits, which switches may make.
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
    wire.shows_id = wire.src.is_ipv4();
    let at = bit / 8 % wire.bytes.len();
    wire.bytes[at] ^= 1 << (bit % 8);
}
