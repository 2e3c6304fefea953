//! Bad networks on purpose: a card that loses, delays, reorders, repeats and damages packets as a
//! bad network would, so that users can test their programs. `docs/bad-networks.md` is for them.
//!
//! Here: what can be asked for. [`parse`](mod@parse) reads it from text. `engine` decides what
//! becomes of each packet, as a function of a seed and the time; `hold` keeps packets until they
//! are due; `source` is where the wish comes from. The receiving side is in `arriving`, the sending
//! side in `egress/leaving.rs`; `card` joins both to a card.

pub(crate) mod arriving;
mod card;
mod engine;
mod hold;
pub mod parse;
pub(crate) mod source;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use engine::{Delayed, Fate, Impairer};
pub(crate) use hold::Hold;
pub use parse::BadImpairment;

/// The environment variable that says what a card does to packets, or `@FILE` for a file that says
/// so and may change.
pub const IMPAIR_VARIABLE: &str = "REMORA_IMPAIR";

/// Bytes that wait at a limited rate, if a rule does not say.
const QUEUE: u64 = 1 << 20;

/// What a card does to packets: rules, of which the first that fits a packet applies to it.
///
/// ```
/// use remora::impair::Impairments;
///
/// let bad: Impairments = "loss=1%,delay=20us+-5us,seed=7; in,peer=192.0.2.0/24,loss=5%".parse()?;
/// assert_eq!(bad.rules.len(), 2);
/// # Ok::<(), remora::impair::BadImpairment>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Impairments {
    /// The rules, in their order. None: nothing happens to packets.
    pub rules: Vec<Rule>,
    /// Which packets are concerned; without it, others each time.
    pub seed: Option<u64>,
}

/// What happens to the packets of one direction, or of some peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The direction of the packets; `None` for both.
    pub direction: Option<Direction>,
    /// The card at the other end; `None` for any.
    pub peer: Option<Peers>,
    /// So many are lost.
    pub loss: Share,
    /// They arrive so much later.
    pub delay: Duration,
    /// Their delay is this much more or less, at most. Their order stays.
    pub jitter: Duration,
    /// So many are held back by as long again (by [`REORDER_MIN`] at least), so that later ones
    /// overtake them.
    pub reorder: Share,
    /// So many arrive twice.
    pub duplicate: Share,
    /// One bit of so many is another when they arrive.
    pub corrupt: Share,
    /// Bits a second that pass; `None` for no limit.
    pub rate: Option<u64>,
    /// Bytes that wait for their turn at this rate; what comes when so many wait is lost.
    pub queue: u64,
}

/// The shortest time by which a packet is held back so that others overtake it.
pub const REORDER_MIN: Duration = Duration::from_micros(50);

impl Default for Rule {
    fn default() -> Rule {
        Rule {
            direction: None,
            peer: None,
            loss: Share::NONE,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: Share::NONE,
            duplicate: Share::NONE,
            corrupt: Share::NONE,
            rate: None,
            queue: QUEUE,
        }
    }
}

/// Which way packets go, as this card sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From a peer to this card.
    In,
    /// From this card to a peer.
    Out,
}

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peers {
    /// An address of them.
    pub address: IpAddr,
    /// The bits that they share.
    pub prefix: u8,
}

impl Peers {
    /// Is this one of the addresses?
    pub fn contains(&self, address: IpAddr) -> bool {
        let differ = match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
            (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= u32::from(self.prefix).min(128)
    }
}

/// A part of packets, in parts of 2³².
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Share(u64);

impl Share {
    /// No packet.
    pub const NONE: Share = Share(0);
    /// Every packet.
    pub const ALL: Share = Share(1 << 32);

    /// So many in a hundred; `None` if that is not 0 to 100.
    pub fn percent(percent: f64) -> Option<Share> {
        let part = percent / 100.0 * (1u64 << 32) as f64;
        (0.0..=100.0).contains(&percent).then_some(Share(part.round() as u64))
    }

    /// Does a number of 32 bits, drawn at random, fall into this part?
    fn has(self, drawn: u64) -> bool {
        drawn < self.0
    }
}

impl Impairments {
    /// Does nothing happen to packets?
    pub fn is_off(&self) -> bool {
        self.rules.is_empty()
    }
}

impl Rule {
    /// Does this rule apply to the packets of `peer` that go this way?
    fn fits(&self, direction: Direction, peer: IpAddr) -> bool {
        self.direction.is_none_or(|own| own == direction)
            && self.peer.is_none_or(|peers| peers.contains(peer))
    }
}

/// Declares the counters of one direction, and their names.
macro_rules! counters {
    ($($(#[$doc:meta])+ $field:ident: $in:literal, $out:literal;)+) => {
        /// What was done to packets on purpose, in one direction.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct ImpairCounters {
            $($(#[$doc])+ pub $field: u64,)+
        }

        impl ImpairCounters {
            /// The names of the counters of a direction, and their values.
            pub fn named(
                &self,
                direction: Direction,
            ) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let inwards = direction == Direction::In;
                [$((if inwards { $in } else { $out }, self.$field),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Packets that were lost.
    lost: "impair_in_lost", "impair_out_lost";
    /// Packets that were held for a delay, a rate, or behind others.
    delayed: "impair_in_delayed", "impair_out_delayed";
    /// Packets that later ones could overtake.
    reordered: "impair_in_reordered", "impair_out_reordered";
    /// Packets that arrived twice.
    duplicated: "impair_in_duplicated", "impair_out_duplicated";
    /// Packets with a bit that was changed.
    corrupted: "impair_in_corrupted", "impair_out_corrupted";
    /// Packets lost because too many waited: for the rate of a rule, or for their time.
    queue_full: "impair_in_queue_full", "impair_out_queue_full";
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::In => "in",
            Direction::Out => "out",
        })
    }
}
