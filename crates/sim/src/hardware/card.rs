//! Cards as hosts of a world have them: what packets take between a host's memory and its port.
//!
//! The card itself is the one that runs live ([`remora_nic::Nic`]); a [`Profile`] is only the time
//! of its hardware. A packet to be sent waits for its payload from the host's memory, and the first
//! of a message for its work-queue element where the card keeps none, and for its queue pair's
//! state where that is not on the card; one that arrives is on its way to memory before the card
//! knows of it. Each packet takes the engine's time. All values have
//! a source ([`Profile::parameters`]); [`Profile::unstated`] says what has none.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::NS;
use super::parameter::{Ground, Parameter, Unit};
use super::pcie::{Generation, Lanes, Link, MaxPayload};
use super::port::{Bus, PortTerms, SharedPort};
use crate::dice::SplitMix;

/// Bytes of a work-queue element.
const ELEMENT: u64 = 64;

/// A card's memory for the state of queue pairs, where it has not room for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cache {
    /// How many queue pairs' state it holds.
    pub queue_pairs: usize,
    /// The bytes that the card fetches of a queue pair whose state it has not, and writes back of
    /// the one that makes room. What else it keeps of a queue pair, its elements, is gone, too.
    pub context_bytes: u64,
}

/// The time of a card's hardware, by its name in world files.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// The way to the host's memory.
    pub way: PortTerms,
    /// From the card to the host's memory, for a write that nobody answers, in picoseconds.
    pub posted_ps: u64,
    /// What the engine takes for a packet, each direction, in picoseconds.
    pub packet_ps: u64,
    /// Bytes of packets that the card fetches ahead of its port.
    pub ahead_bytes: u64,
    /// Work-queue elements of a queue pair that it fetches at a time, each message waiting for its
    /// own; zero: they are there when the card needs them.
    pub elements: usize,
    /// Where not all queue pairs' state is on the card: the room for it.
    pub cache: Option<Cache>,
    /// The values, and where they come from.
    pub parameters: &'static [Parameter],
    /// What no source states, and what the model has not.
    pub unstated: &'static str,
}

const fn value(
    name: &'static str,
    value: u64,
    unit: Unit,
    ground: Ground,
    source: &'static str,
) -> Parameter {
    Parameter { name, value, unit, ground, source }
}

/// A link of 16 lanes of the third generation, with the usual sizes of packets.
const GEN3_X16: Link = Link {
    generation: Generation::Gen3,
    lanes: Lanes::X16,
    payload: MaxPayload::B256,
    read_request: 512,
};
const LANES: Parameter =
    value("lanes of PCIe Gen 3", 16, Unit::Count, Ground::Paper, "SRNIC §6: its card; §2: CX-5's");
const PAYLOAD: Parameter =
    value("maximum payload", 256, Unit::Bytes, Ground::Assumed, "usual for servers");
const READ_REQUEST: Parameter =
    value("maximum read request", 512, Unit::Bytes, Ground::Assumed, "usual for servers");
const BURST: Parameter = value(
    "fetched ahead of the port",
    16 << 10,
    Unit::Bytes,
    Ground::Paper,
    "SRNIC §4.3: burst_size is the product of PCIe's rate and delay",
);
const SRNIC_TRIP: Parameter =
    value("round trip", 1100 * NS, Unit::Time, Ground::Paper, "SRNIC §6.2: the average measured");
const SRNIC_ELEMENTS: Parameter =
    value("elements fetched at a time", 8, Unit::Count, Ground::Paper, "SRNIC §4.3: n");
const SRNIC_POSTED: Parameter =
    value("a write's way", 550 * NS, Unit::Time, Ground::Assumed, "half of the round trip");
const CX5_TRIP: Parameter =
    value("round trip", 706 * NS, Unit::Time, Ground::Measured, "pcie-bench: a read of 512 B");
const CX5_POSTED: Parameter =
    value("a write's way", 353 * NS, Unit::Time, Ground::Assumed, "half of the round trip");
const STROM_LANES: Parameter = value(
    "lanes of PCIe Gen 3",
    8,
    Unit::Count,
    Ground::Hypothesis,
    "StRoM §4.2: streams of 32 B at 250 MHz",
);
const WIDE_LANES: Parameter =
    value("lanes of PCIe Gen 3", 16, Unit::Count, Ground::Paper, "StRoM §7: its VCU118");
const STROM_TRIP: Parameter =
    value("round trip", 1500 * NS, Unit::Time, Ground::Paper, "StRoM §6.2");
const STROM_POSTED: Parameter =
    value("a write's way", 750 * NS, Unit::Time, Ground::Assumed, "half of the round trip");
/// The most read requests in flight of a card whose tags have 5 bits. The profiles have it.
pub const FEWEST_READS: Parameter = value(
    "read requests in flight",
    32,
    Unit::Count,
    Ground::Hypothesis,
    "PCIe: tags of 5 bits; as many of 512 B as the bytes that are fetched ahead",
);
/// The same of one whose tags have 8 bits; more than that, no card of the third generation has.
pub const MOST_READS: Parameter = value(
    "read requests in flight",
    256,
    Unit::Count,
    Ground::Hypothesis,
    "PCIe: tags of 8 bits, which Linux enables if the device has them (commit 60db3a4d8cc9)",
);
const SOFTWARE_PACKET: Parameter = value(
    "work on a packet",
    385 * NS,
    Unit::Time,
    Ground::Measured,
    "this card with payload and checksum: 0.77 µs for both ends of a packet, 64 cards in a thread",
);

/// What cards of ConnectX's kind have for the state of queue pairs, as far as SRNIC says.
pub const CACHE: Parameter = value(
    "memory for queue pairs",
    2 << 20,
    Unit::Bytes,
    Ground::Paper,
    "SRNIC §2.2: about 2 MB of SRAM; a ConnectX-5",
);
/// The bytes of a queue pair's context.
pub const CONTEXT: Parameter =
    value("a queue pair’s context", 375, Unit::Bytes, Ground::Paper, "SRNIC §2.2");
/// The bytes that a queue pair takes of [`CACHE`].
pub const STATE: Parameter = value(
    "a queue pair’s whole state",
    CONTEXT.value + 980 + 11_440,
    Unit::Bytes,
    Ground::Hypothesis,
    "SRNIC Table 1: elements and outstanding requests of 10,000 queue pairs, 9.8 and 114.4 MB",
);
const CX: Option<Cache> =
    Some(Cache { queue_pairs: (CACHE.value / STATE.value) as usize, context_bytes: CONTEXT.value });
const CX_UNSTATED: &str = "which queue pair’s state makes room for another’s: one drawn at random; \
                           how many it fetches at a time: as many as it has read requests; its \
                           fetching ahead: SRNIC’s";

/// All profiles. A new one is a row here.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "srnic",
        about: "SRNIC (NSDI 2023): an FPGA without a cache of work-queue elements",
        way: pcie(GEN3_X16, SRNIC_TRIP),
        posted_ps: SRNIC_POSTED.value,
        packet_ps: 0,
        ahead_bytes: BURST.value,
        elements: SRNIC_ELEMENTS.value as usize,
        cache: None,
        parameters: &[
            LANES,
            PAYLOAD,
            READ_REQUEST,
            FEWEST_READS,
            SRNIC_TRIP,
            SRNIC_POSTED,
            BURST,
            SRNIC_ELEMENTS,
        ],
        unstated: "the pipeline’s cycles a packet (300 MHz): left out",
    },
    Profile {
        name: "cx5",
        about: "ConnectX-5, as far as papers describe it",
        way: pcie(GEN3_X16, CX5_TRIP),
        posted_ps: CX5_POSTED.value,
        packet_ps: 0,
        ahead_bytes: BURST.value,
        elements: 0,
        cache: CX,
        parameters: &[
            LANES,
            PAYLOAD,
            READ_REQUEST,
            FEWEST_READS,
            CX5_TRIP,
            CX5_POSTED,
            BURST,
            CACHE,
            CONTEXT,
            STATE,
        ],
        unstated: CX_UNSTATED,
    },
    Profile {
        name: "cx6",
        about: "ConnectX-6 in SRNIC’s testbed, as far as papers describe it",
        way: pcie(GEN3_X16, SRNIC_TRIP),
        posted_ps: SRNIC_POSTED.value,
        packet_ps: 0,
        ahead_bytes: BURST.value,
        elements: 0,
        cache: CX,
        parameters: &[
            LANES,
            PAYLOAD,
            READ_REQUEST,
            FEWEST_READS,
            SRNIC_TRIP,
            SRNIC_POSTED,
            BURST,
            CACHE,
            CONTEXT,
            STATE,
        ],
        unstated: CX_UNSTATED,
    },
    Profile {
        name: "strom",
        about: "StRoM (EuroSys 2020): an FPGA behind XDMA",
        way: pcie(Link { lanes: Lanes::X8, ..GEN3_X16 }, STROM_TRIP),
        posted_ps: STROM_POSTED.value,
        packet_ps: 0,
        ahead_bytes: BURST.value,
        elements: 0,
        cache: None,
        parameters: &[
            STROM_LANES,
            PAYLOAD,
            READ_REQUEST,
            FEWEST_READS,
            STROM_TRIP,
            STROM_POSTED,
            BURST,
        ],
        unstated: "the pipeline’s cycles a packet: left out; its fetching ahead: SRNIC’s",
    },
    Profile {
        name: "strom-100g",
        about: "StRoM at 100 Gb/s (its §7), on a link of 16 lanes",
        way: pcie(GEN3_X16, STROM_TRIP),
        posted_ps: STROM_POSTED.value,
        packet_ps: 0,
        ahead_bytes: BURST.value,
        elements: 0,
        cache: None,
        parameters: &[
            WIDE_LANES,
            PAYLOAD,
            READ_REQUEST,
            FEWEST_READS,
            STROM_TRIP,
            STROM_POSTED,
            BURST,
        ],
        unstated: "its round trip: that of the slower card (§6.2); the pipeline’s cycles a packet \
                   and the rate of the processor’s stores that issue messages: left out",
    },
    Profile {
        name: "software",
        about: "this card, on a processor",
        way: PortTerms { round_trip: Duration::ZERO, bus: Bus::Bytes(0), tags: u32::MAX },
        posted_ps: 0,
        packet_ps: SOFTWARE_PACKET.value,
        ahead_bytes: BURST.value,
        elements: 0,
        cache: None,
        parameters: &[SOFTWARE_PACKET],
        unstated: "system calls and batches of packets, which share them: left out",
    },
];

const fn pcie(link: Link, round_trip: Parameter) -> PortTerms {
    let round_trip = Duration::from_nanos(round_trip.value / NS);
    PortTerms { round_trip, bus: Bus::Pcie(link), tags: FEWEST_READS.value as u32 }
}

impl Profile {
    /// The profile with this name.
    pub fn named(name: &str) -> Option<Profile> {
        PROFILES.iter().find(|profile| profile.name == name).copied()
    }

    /// The profile with so many read requests in flight, and as many bytes fetched ahead of the
    /// port as these may ask for. What has no PCIe stays as it is.
    pub fn with_reads(self, reads: u32) -> Profile {
        let Bus::Pcie(link) = self.way.bus else { return self };
        let way = PortTerms { tags: reads, ..self.way };
        Profile { way, ahead_bytes: u64::from(reads) * link.read_request, ..self }
    }
}

/// The hardware of one card, as far as it is busy.
#[derive(Debug)]
pub struct CardTime {
    profile: Profile,
    way: SharedPort,
    /// When the engine is free again: for packets to send, and for those that arrive.
    free: [u64; 2],
    /// By queue pair: when its last elements were there, as many as are fetched at a time.
    elements: BTreeMap<u32, VecDeque<u64>>,
    held: StateCache,
}

/// The queue pairs whose state a card has. While there is room, that of each is there from its
/// beginning on.
#[derive(Debug)]
struct StateCache {
    room: usize,
    all: Vec<u32>,
    /// By queue pair: its place among all.
    places: BTreeMap<u32, usize>,
    random: SplitMix,
}

impl StateCache {
    fn new(room: usize) -> StateCache {
        StateCache { room, all: Vec::new(), places: BTreeMap::new(), random: SplitMix::new(1) }
    }

    /// Is the state of this queue pair there? Otherwise it takes the place of another's.
    fn has(&mut self, qp: u32) -> bool {
        if self.places.contains_key(&qp) {
            return true;
        }
        let is_new = self.all.len() < self.room;
        let place = if is_new {
            self.all.push(qp);
            self.all.len() - 1
        } else {
            let place = (self.random.number() % self.room.max(1) as u64) as usize;
            let other = core::mem::replace(&mut self.all[place], qp);
            self.places.remove(&other);
            place
        };
        self.places.insert(qp, place);
        is_new
    }
}

impl CardTime {
    /// A card that is idle.
    pub fn new(profile: Profile) -> CardTime {
        let (way, elements) = (SharedPort::new(profile.way), BTreeMap::new());
        let held = StateCache::new(profile.cache.map_or(0, |cache| cache.queue_pairs));
        CardTime { profile, way, free: [0; 2], elements, held }
    }

    /// What it is.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Its way to the host's memory, which its kernels have, too.
    pub fn way(&self) -> SharedPort {
        self.way.clone()
    }

    /// When a packet with so many bytes of payload, which the card takes up at `now`, is at its
    /// port, in picoseconds. `begins`: a message of this queue pair begins with it.
    pub fn sends(&mut self, now: u64, begins: Option<u32>, payload: u64) -> u64 {
        let start = self.engine(0, now);
        let fetches = begins.filter(|_| self.profile.elements > 0);
        let missing = self.context(begins, start);
        let told = fetches.map_or(start, |qp| self.element(qp, start)).max(missing.unwrap_or(0));
        if payload == 0 {
            return told;
        }
        // The way is busy for as long as if the element and the state had been there.
        let element = if fetches.is_some() || missing.is_some() { ELEMENT } else { 0 };
        self.way.lock().read(start, payload + element).saturating_add(told - start)
    }

    /// When the card knows of a packet that arrives at `now` with so many bytes of payload.
    /// `begins`: a message of this queue pair begins with it.
    pub fn receives(&mut self, now: u64, begins: Option<u32>, payload: u64) -> u64 {
        let start = self.engine(1, now);
        let told = self.context(begins, start).unwrap_or(start);
        if payload == 0 {
            return told;
        }
        let there = self.way.lock().post(start, payload).saturating_add(self.profile.posted_ps);
        there.saturating_add(told - start)
    }

    /// When the context of a queue pair is there that the card has to fetch for a message.
    fn context(&mut self, begins: Option<u32>, now: u64) -> Option<u64> {
        let Cache { context_bytes, .. } = self.profile.cache?;
        if self.held.has(begins?) {
            return None;
        }
        let mut way = self.way.lock();
        way.post(now, context_bytes);
        Some(way.read(now, context_bytes))
    }

    /// When the engine has done its work on a packet.
    fn engine(&mut self, direction: usize, now: u64) -> u64 {
        let free = &mut self.free[direction];
        *free = now.max(*free).saturating_add(self.profile.packet_ps);
        *free
    }

    /// When the element of a queue pair's message is there.
    fn element(&mut self, qp: u32, now: u64) -> u64 {
        /// More queue pairs than this are looked through for those that wait for nothing.
        const MANY: usize = 4096;
        if self.elements.len() > MANY {
            self.elements.retain(|_, of| of.back().is_some_and(|there| *there > now));
        }
        let of = self.elements.entry(qp).or_default();
        let oldest = if of.len() >= self.profile.elements { of.pop_front() } else { None };
        let trip = self.profile.way.round_trip.as_nanos() as u64 * NS;
        let there = oldest.unwrap_or(now).max(now).saturating_add(trip);
        of.push_back(there);
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::US;

    #[test]
    fn every_value_has_a_source() {
        for profile in PROFILES {
            assert!(!profile.unstated.is_empty() && !profile.parameters.is_empty());
            for parameter in profile.parameters {
                assert!(!parameter.source.is_empty(), "{}: {}", profile.name, parameter.name);
            }
            assert_eq!(Profile::named(profile.name).unwrap().about, profile.about);
        }
        assert!(Profile::named("cx9").is_none());
    }

    /// SRNIC §4.3.1: at most 8 elements of a queue pair in a round trip of 1.1 µs, that is 7.2
    /// million messages a second; other queue pairs fetch theirs meanwhile.
    #[test]
    fn messages_come_as_fast_as_their_elements() {
        for qps in [1, 4] {
            let mut card = CardTime::new(Profile::named("srnic").unwrap());
            let sends = (0..8000).map(|i| card.sends(0, Some(i % qps), 0));
            let last = sends.last().unwrap();
            let millions = 8000.0 * 1e12 / last as f64 / 1e6 / f64::from(qps);
            assert!((7.0..7.3).contains(&millions), "{millions}");
        }
    }

    /// Long messages take what the link leaves: 13.18 GB/s in completions of 256 B.
    #[test]
    fn long_messages_take_what_the_link_leaves() {
        let mut card = CardTime::new(Profile::named("cx5").unwrap());
        let last = (0..10_000).map(|_| card.sends(0, None, 4096)).last().unwrap();
        let gigabytes = 10_000.0 * 4096.0 * 1e3 / last as f64;
        assert!((13.0..13.2).contains(&gigabytes), "{gigabytes}");
        let mut slow = CardTime::new(Profile::named("software").unwrap());
        let knows = [0, 0, US].map(|now| slow.receives(now, None, 1024));
        assert_eq!(knows, [385_000, 770_000, 1_385_000]);
    }

    /// As many queue pairs as fit cost nothing, whatever their order; of `n` that come in turn, a
    /// share of 1 − held / n or more misses.
    #[test]
    fn a_cache_misses_beyond_what_it_holds() {
        let Some(Cache { queue_pairs, .. }) = CX else { panic!("it has one") };
        assert_eq!(queue_pairs, 163);
        let misses = |n: u32| {
            let mut held = StateCache::new(queue_pairs);
            (0..100_000).filter(|i| !held.has(i % n)).count() as f64 / 1e5
        };
        assert_eq!(misses(163), 0.0);
        for n in [256, 1024, 16_384] {
            let least = 1.0 - 163.0 / f64::from(n);
            // The state that is needed next is, in turns, that which was not needed for longest.
            assert!((least * 0.98..1.0).contains(&misses(n)), "{n}: {} and {least}", misses(n));
        }
    }

    /// A miss takes a round trip before the message's own read, at either end.
    #[test]
    fn a_message_waits_for_the_state_that_is_not_there() {
        let profile = Profile::named("cx6").unwrap();
        let mut card = CardTime::new(profile);
        let there: Vec<u64> =
            (0..164).map(|qp| card.sends(u64::from(qp) * US, Some(qp), 64)).collect();
        let took = |qp: usize| there[qp] - qp as u64 * US;
        assert!(took(0).abs_diff(took(162)) <= 2);
        assert!((1_100_000..1_300_000).contains(&(took(163) - took(162))), "{}", took(163));
        let mut card = CardTime::new(profile);
        let knows: Vec<u64> =
            (0..164).map(|qp| card.receives(u64::from(qp) * US, Some(qp), 64)).collect();
        let took = |qp: usize| knows[qp] - qp as u64 * US;
        assert!(took(0).abs_diff(took(162)) <= 2);
        assert!((1_100_000..1_300_000).contains(&(took(163) - took(162))), "{}", took(163));
    }
}
