//! Predictions of the model that the paper's values can refute.

use crate::hardware::alveo::{Design, Machine};
use crate::hardware::xdma::{self, Direction, Load, Outcome};

use super::calls;

/// 1 MiB.
const MIB: u64 = 1 << 20;
/// A size at which the driver's work for each call no longer counts.
const LARGE: u64 = 8 << 20;

/// The first prediction: BRAM's 7.54 GB/s at 1 MiB is the driver's work, spread over a small
/// transfer. So DDR at 1 MiB should be as fast.
#[derive(Clone, PartialEq, Debug)]
pub struct Amortisation {
    /// Which way.
    pub direction: Direction,
    /// A call of 1 MiB with BRAM, in µs.
    pub call_us: f64,
    /// The part of it in which the engine works, in µs.
    pub engine_us: f64,
    /// BRAM and DDR at 1 MiB in 10⁹ bytes per second.
    pub bandwidth: [f64; 2],
    /// BRAM at 1 MiB, if the driver's work took no time.
    pub without_driver: f64,
}

/// Tests the first prediction.
pub fn amortisation(direction: Direction) -> Amortisation {
    let bram = Machine::new(Design::Bram);
    let runs = [bram, Machine::new(Design::Ddr)].map(|machine| at(&machine, direction, 1, MIB));
    let free = at(&Machine { driver: false, ..bram }, direction, 1, MIB);
    Amortisation {
        direction,
        call_us: runs[0].call_ps as f64 / 1e6,
        engine_us: runs[0].engine_ps as f64 / 1e6,
        bandwidth: [0, 1].map(|i| runs[i].gigabytes_per_second()),
        without_driver: free.gigabytes_per_second(),
    }
}

/// The second prediction: MicroBlaze is one added latency of the interconnect, which channels
/// hide. A row has large transfers with such a latency.
#[derive(Clone, PartialEq, Debug)]
pub struct Added {
    /// The latency in ns.
    pub ns: u64,
    /// H2C with one and with four channels, C2H with one and with four, in 10⁹ bytes per second.
    pub bandwidth: [f64; 4],
}

/// The latencies that are tried, in ns: none, a crossbar's four cycles (PG059), and more.
pub const ADDED_NS: [u64; 7] = [0, 16, 100, 226, 350, 500, 700];

/// Tests the second prediction with one latency.
pub fn added(ns: u64) -> Added {
    let mut machine = Machine::new(Design::Ddr);
    machine.interconnect_ps += ns * 1000;
    Added { ns, bandwidth: both_ways(&machine) }
}

/// H2C with one and with four channels, C2H with one and with four.
fn both_ways(machine: &Machine) -> [f64; 4] {
    let ways = [(Direction::H2C, 1), (Direction::H2C, 4), (Direction::C2H, 1), (Direction::C2H, 4)];
    ways.map(|(direction, channels)| at(machine, direction, channels, LARGE).gigabytes_per_second())
}

/// An alternative to a hypothesis of the model, with large transfers as in [`Added`], of DDR alone
/// and with MicroBlaze.
#[derive(Clone, PartialEq, Debug)]
pub struct Alternative {
    /// What is different.
    pub name: &'static str,
    /// DDR alone.
    pub alone: [f64; 4],
    /// With MicroBlaze.
    pub microblaze: [f64; 4],
}

/// The model as it is, and with each of its hypotheses replaced.
pub fn alternatives() -> Vec<Alternative> {
    type Change = fn(&mut Machine);
    let changes: [(&'static str, Change); 5] = [
        ("as it is", |_| {}),
        ("tags of each channel's own", |machine| machine.tags_shared = false),
        ("tags free when data has arrived", |machine| machine.tag_until_written = false),
        ("round trip of 706 ns (pcie-bench)", |machine| machine.round_trip_ps = 706_000),
        ("8 reads of card memory in flight", |machine| machine.write_ids = 8),
    ];
    let alternative = |(name, change): (&'static str, Change)| {
        let run = |design| {
            let mut machine = Machine::new(design);
            change(&mut machine);
            both_ways(&machine)
        };
        Alternative { name, alone: run(Design::Ddr), microblaze: run(Design::MicroBlaze) }
    };
    changes.into_iter().map(alternative).collect()
}

fn at(machine: &Machine, direction: Direction, channels: u32, bytes: u64) -> Outcome {
    xdma::run(machine, Load { direction, channels, bytes, calls: calls(bytes) })
}
