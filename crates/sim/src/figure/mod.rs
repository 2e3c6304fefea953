//! Figures 8 to 20 of "In-Network Memory Access" (Farooqi, Hemmatpour, Larsen), simulated.
//!
//! Each is a bandwidth by the size of a transfer, for several numbers of channels or several
//! designs. The runs are those of [`xdma`] and [`bluefield`]; [`stated`] has what the paper says
//! in words, [`predictions`] what follows from the model and can be wrong.

pub mod predictions;
pub mod stated;

use std::collections::BTreeMap;

use crate::hardware::alveo::{Design, Machine};
use crate::hardware::bluefield::{self, Client, Verb};
use crate::hardware::xdma::{self, Direction, Load};
pub use stated::{At, Stated};

/// A line of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Transfers by the FPGA card's DMA engine.
    Dma {
        /// What is on the card.
        design: Design,
        /// Which way.
        direction: Direction,
        /// Channels at once.
        channels: u32,
    },
    /// RDMA by the other card.
    Rdma {
        /// The operation.
        verb: Verb,
        /// Who asks.
        client: Client,
    },
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its number.
    pub number: u32,
    /// What it shows.
    pub title: &'static str,
    /// Its lines: a name and what runs.
    pub ways: &'static [(&'static str, Way)],
    /// The largest size in bytes.
    pub largest: u64,
    /// What the paper says.
    pub words: &'static str,
}

/// A figure with its runs.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The figure.
    pub figure: Figure,
    /// The sizes, in bytes.
    pub sizes: Vec<u64>,
    /// For each way and size the bandwidth in 10⁹ bytes per second.
    pub lines: Vec<Vec<f64>>,
}

const fn dma(design: Design, direction: Direction, channels: u32) -> Way {
    Way::Dma { design, direction, channels }
}

/// One to four channels.
macro_rules! channels {
    ($design:ident, $direction:ident) => {
        &[
            ("1 channel", dma(Design::$design, Direction::$direction, 1)),
            ("2 channels", dma(Design::$design, Direction::$direction, 2)),
            ("3 channels", dma(Design::$design, Direction::$direction, 3)),
            ("4 channels", dma(Design::$design, Direction::$direction, 4)),
        ]
    };
}

/// The designs with DRAM.
macro_rules! designs {
    ($direction:ident, $channels:literal) => {
        &[
            ("DDR alone", dma(Design::Ddr, Direction::$direction, $channels)),
            ("and MicroBlaze", dma(Design::MicroBlaze, Direction::$direction, $channels)),
            ("and PetaLinux", dma(Design::PetaLinux, Direction::$direction, $channels)),
        ]
    };
}

/// Clients on both sides.
macro_rules! clients {
    ($verb:ident) => {
        &[
            ("client on the host (H2C)", Way::Rdma { verb: Verb::$verb, client: Client::Host }),
            ("client on the card (C2H)", Way::Rdma { verb: Verb::$verb, client: Client::Card }),
        ]
    };
}

const fn figure(
    number: u32,
    title: &'static str,
    ways: &'static [(&'static str, Way)],
    words: &'static str,
) -> Figure {
    let largest = if number == 8 { 1 << 20 } else { 8 << 20 };
    Figure { number, title, ways, largest, words }
}

/// The figures, in the paper's order.
pub const FIGURES: [Figure; 13] = [
    figure(
        8,
        "BRAM, one channel",
        &[
            ("H2C", dma(Design::Bram, Direction::H2C, 1)),
            ("C2H", dma(Design::Bram, Direction::C2H, 1)),
        ],
        "A consistent rise from 64 B to 1 MB, peaking at 7.54 GB/s (H2C) and 7.77 (C2H).",
    ),
    figure(
        9,
        "DDR, H2C",
        channels!(Ddr, H2C),
        "10.8 GB/s for a single channel (10.7 in §6.3), 10 aggregated; 9–10 beyond 1 MB; \
         several channels raise the middle sizes.",
    ),
    figure(
        10,
        "DDR, C2H",
        channels!(Ddr, C2H),
        "12 GB/s for a single channel (11.8–12 in §6.3), 13–14 with interleaved ones.",
    ),
    figure(
        11,
        "DDR and MicroBlaze, H2C",
        channels!(MicroBlaze, H2C),
        "Around 9.5 GB/s for a single channel; of several the text says nothing.",
    ),
    figure(
        12,
        "DDR and MicroBlaze, C2H",
        channels!(MicroBlaze, C2H),
        "9.4–9.5 GB/s for a single channel, 13–14 for aggregated ones.",
    ),
    figure(
        13,
        "DDR and PetaLinux, H2C",
        channels!(PetaLinux, H2C),
        "9.2 GB/s for a single channel; several are better at most sizes and saturate at 9.",
    ),
    figure(
        14,
        "DDR and PetaLinux, C2H",
        channels!(PetaLinux, C2H),
        "12–13 GB/s for three and four channels, 10.5–12 for two; of one the text says nothing.",
    ),
    figure(15, "Designs, H2C, one channel", designs!(H2C, 1), "Peaks of about 9–10 GB/s."),
    figure(
        16,
        "Designs, H2C, four channels",
        designs!(H2C, 4),
        "A steeper rise at middle sizes, and alike at large ones. No values.",
    ),
    figure(
        17,
        "Designs, C2H, one channel",
        designs!(C2H, 1),
        "Peaks of about 12–13 GB/s. (§6.3 has 9.4–9.5 for MicroBlaze.)",
    ),
    figure(
        18,
        "Designs, C2H, four channels",
        designs!(C2H, 4),
        "Alike for all designs, also at large sizes. No values.",
    ),
    figure(19, "BlueField-2, RDMA READ", clients!(Read), "Below the FPGA card. No values."),
    figure(20, "BlueField-2, RDMA WRITE", clients!(Write), "Below the FPGA card. No values."),
];

/// Runs figures, and keeps what several share.
#[derive(Debug, Default)]
pub struct Simulator {
    runs: BTreeMap<String, f64>,
}

impl Simulator {
    /// Runs a figure for its sizes: powers of two from 64 B, or with `quick` each sixteenth of
    /// them and the largest.
    pub fn draw(&mut self, figure: &Figure, quick: bool) -> Drawn {
        let step = if quick { 4 } else { 1 };
        let last = figure.largest.ilog2();
        let sizes: Vec<u64> = (6..=last)
            .filter(|power| (last - power).is_multiple_of(step))
            .map(|power| 1 << power)
            .collect();
        let line = |(_, way): &(&str, Way)| sizes.iter().map(|n| self.run(*way, *n)).collect();
        let lines = figure.ways.iter().map(line).collect();
        Drawn { figure: *figure, sizes, lines }
    }

    /// The bandwidth of a way with transfers of `bytes`, in 10⁹ bytes per second.
    pub fn run(&mut self, way: Way, bytes: u64) -> f64 {
        *self.runs.entry(format!("{way:?} {bytes}")).or_insert_with(|| bandwidth(way, bytes))
    }
}

fn bandwidth(way: Way, bytes: u64) -> f64 {
    match way {
        Way::Dma { design, direction, channels } => {
            let load = Load { direction, channels, bytes, calls: calls(bytes) };
            xdma::run(&Machine::new(design), load).gigabytes_per_second()
        }
        Way::Rdma { verb, client } => {
            bluefield::run(verb, client, bytes, ((4 << 20) / bytes).clamp(4, 1024))
        }
    }
}

/// The calls that count, of a channel. What comes before them brings the channels apart.
pub(crate) fn calls(bytes: u64) -> u32 {
    if bytes > 2 << 20 { 1 } else { 4 }
}
