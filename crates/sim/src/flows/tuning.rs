//! The figures of transports that a world may set: which there are, in which bounds, and what they
//! are. Policies and recovery have them as [`remora_nic::Tuning`] and [`Waits`].

use core::ops::RangeInclusive;

use remora_nic::Tuning;
use remora_nic::qp::Congestion;

use super::transport::{How, Published, Transport};
use crate::selective::Waits;

/// What a world's transport is set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuned {
    /// How often a card asks again before a flow fails; up to 7.
    pub retries: u64,
    /// Of cards: an acknowledge is requested each time so many packets have left.
    pub ack_every: u64,
    /// Of cards of the lossy dialect: over how many paths they spread packets.
    pub paths: u64,
    /// The policies of congestion control.
    pub policies: Tuning,
    /// Of models: how long they wait for an acknowledge.
    pub waits: Waits,
    /// Of the model of SRNIC: from the card to software, or back, in nanoseconds.
    pub software_ns: u64,
}

impl Tuned {
    /// What this transport has by itself.
    pub fn of(transport: &Transport) -> Tuned {
        let mut config = remora_nic::Config::default();
        let mut software_ns = 0;
        match transport.how {
            How::Card { config: change, .. } => change(&mut config),
            How::Published(scheme) => {
                let queue = scheme.recovery().control_queue;
                software_ns = queue.map_or(0, |time| time.as_nanos() as u64);
            }
        }
        Tuned {
            retries: 7,
            ack_every: config.ack_every.into(),
            paths: config.paths.into(),
            policies: config.tuning,
            waits: Waits::default(),
            software_ns,
        }
    }
}

/// What a parameter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Something: a number.
    Number,
    /// Something of which there is a power of two.
    PowerOfTwo,
    /// A part of the whole, in parts of [`Tuning::ONE`].
    Part,
    /// Nanoseconds.
    Time,
    /// Bytes.
    Bytes,
    /// Bits per second.
    Rate,
}

/// A figure of a transport that a world may set.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in world files.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Its least and its most.
    pub bounds: RangeInclusive<u64>,
    /// Does a transport have it?
    has: fn(&Transport) -> bool,
    place: fn(&mut Tuned) -> &mut u64,
}

const fn row(
    (name, unit, bounds): (&'static str, Unit, RangeInclusive<u64>),
    has: fn(&Transport) -> bool,
    place: fn(&mut Tuned) -> &mut u64,
) -> Parameter {
    Parameter { name, unit, bounds, has, place }
}

/// A microsecond to a second.
const WAIT: RangeInclusive<u64> = 1000..=1_000_000_000;
/// A part that is more than none.
const PART: RangeInclusive<u64> = 1..=Tuning::ONE;
/// 1 Mb/s to 100 Tb/s.
const RATE: RangeInclusive<u64> = 1_000_000..=100_000_000_000_000;

/// All parameters. A new one is a row here, and has its place in docs/worlds.md.
pub const PARAMETERS: &[Parameter] = &[
    row(("retries", Unit::Number, 0..=7), |_| true, |t| &mut t.retries),
    row(("ack-every", Unit::Number, 1..=1024), |t| !t.is_model(), |t| &mut t.ack_every),
    row(
        ("paths", Unit::PowerOfTwo, 1..=64),
        |t| !t.is_model() && t.repeats_selectively(),
        |t| &mut t.paths,
    ),
    row(("notify-every", Unit::Time, WAIT), hears, |t| &mut t.policies.notify_ns),
    row(("gain", Unit::Part, PART), is_dctcp, |t| &mut t.policies.dctcp.gain),
    row(("gain", Unit::Part, PART), is_dcqcn, |t| &mut t.policies.dcqcn.gain),
    row(("decrease-every", Unit::Time, WAIT), is_dcqcn, |t| &mut t.policies.dcqcn.decrease_ns),
    row(("increase-every", Unit::Time, WAIT), is_dcqcn, |t| &mut t.policies.dcqcn.increase_ns),
    row(("increase-bytes", Unit::Bytes, 4096..=1_000_000_000_000), is_dcqcn, |t| {
        &mut t.policies.dcqcn.increase_bytes
    }),
    row(("fast-rises", Unit::Number, 0..=1000), is_dcqcn, |t| &mut t.policies.dcqcn.fast_rises),
    row(("additive", Unit::Rate, RATE), is_dcqcn, |t| &mut t.policies.dcqcn.additive_bits),
    row(("hyper", Unit::Rate, RATE), is_dcqcn, |t| &mut t.policies.dcqcn.hyper_bits),
    row(("least-rate", Unit::Rate, RATE), is_dcqcn, |t| &mut t.policies.dcqcn.least_bits),
    row(("target", Unit::Time, WAIT), is_swift, |t| &mut t.policies.swift.target_ns),
    row(("scaling", Unit::Time, 0..=1_000_000_000), is_swift, |t| &mut t.policies.swift.scaling_ns),
    row(("beta", Unit::Part, PART), is_swift, |t| &mut t.policies.swift.strength),
    row(("wait-few", Unit::Time, WAIT), Transport::is_model, |t| &mut t.waits.few_ns),
    row(("wait", Unit::Time, WAIT), Transport::is_model, |t| &mut t.waits.many_ns),
    row(("few", Unit::Number, 0..=65_535), Transport::is_model, |t| &mut t.waits.few),
    row(("software", Unit::Time, 0..=1_000_000_000), is_srnic, |t| &mut t.software_ns),
];

impl Parameter {
    /// Those that a transport has.
    pub fn of(transport: &Transport) -> impl Iterator<Item = &'static Parameter> {
        PARAMETERS.iter().filter(move |parameter| (parameter.has)(transport))
    }

    /// What it is set to.
    pub fn get(&self, tuned: &Tuned) -> u64 {
        let mut copy = *tuned;
        *(self.place)(&mut copy)
    }

    /// Sets it. The caller keeps to [`Parameter::bounds`] and [`Parameter::unit`].
    pub fn set(&self, tuned: &mut Tuned, value: u64) {
        *(self.place)(tuned) = value;
    }

    /// What it is set to, in words.
    pub fn shown(&self, tuned: &Tuned) -> String {
        self.unit.shown(self.get(tuned))
    }
}

impl Unit {
    /// A value in words, as a world file may have it.
    pub fn shown(self, value: u64) -> String {
        let scaled = |units: &[(&str, f64)]| {
            let fits = |(_, one): &&(&str, f64)| value as f64 >= *one;
            let (unit, one) =
                units.iter().find(fits).or(units.last()).copied().unwrap_or(("", 1.0));
            format!("{}{unit}", value as f64 / one)
        };
        match self {
            Unit::Number | Unit::PowerOfTwo => value.to_string(),
            Unit::Part => {
                let digits = format!("{:.6}", value as f64 / Tuning::ONE as f64);
                digits.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Unit::Time => scaled(&[("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)]),
            Unit::Bytes => scaled(&[("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0)]),
            Unit::Rate => scaled(&[("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6), ("bps", 1.0)]),
        }
    }
}

fn policy(transport: &Transport) -> Option<Congestion> {
    match transport.how {
        How::Card { congestion, .. } => Some(congestion),
        How::Published(_) => None,
    }
}

fn scheme(transport: &Transport) -> Option<Published> {
    match transport.how {
        How::Card { .. } => None,
        How::Published(scheme) => Some(scheme),
    }
}

fn is_srnic(transport: &Transport) -> bool {
    scheme(transport) == Some(Published::Srnic)
}

fn is_dctcp(transport: &Transport) -> bool {
    policy(transport) == Some(Congestion::Dctcp) || is_srnic(transport)
}

fn is_dcqcn(transport: &Transport) -> bool {
    policy(transport) == Some(Congestion::Dcqcn) || scheme(transport) == Some(Published::Irn)
}

fn is_swift(transport: &Transport) -> bool {
    policy(transport) == Some(Congestion::Swift)
}

/// Do notifications tell its senders of marks, and do these act on them?
fn hears(transport: &Transport) -> bool {
    let heeds = policy(transport).is_some_and(|policy| policy != Congestion::Fixed);
    heeds && !transport.repeats_selectively() || is_dcqcn(transport)
}
