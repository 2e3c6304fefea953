//! `remora dma`: a card's memory, and the ways between it and applications' memory.
//!
//! A file for each command: `copy`, `channels`, `paths`, `files`, `mount`; `application` is a
//! process whose memory they reach, and `daemon` the card of another. `registers` are what Xilinx's
//! scripts find in `files` and `mount`.

pub(crate) mod application;
pub(crate) mod channels;
mod copy;
mod daemon;
mod files;
#[cfg(feature = "fuse")]
mod mount;
#[cfg(not(feature = "fuse"))]
#[path = "no_mount.rs"]
mod mount;
mod paths;
mod registers;

use anyhow::Result;
use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use remora::dma::Sizes;
use remora_command::size::size_in;

/// `remora dma`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora dma paths                                    ways between an application and the card
  remora dma channels                                 what channels can do, and how fast
  remora dma copy image.bin card:0x1000               a file to the card of a daemon (remora nic)
  remora dma copy card:0x1000 - --len 4K              and back, to standard output
  remora dma copy pid:4711:0x7f0012340000 page --len 4K   memory of a process to a file
  remora dma files DIR                                a card’s memory as files: DIR/xdma0_h2c_0 …
  remora dma copy image.bin card:0x1000 --card DIR    a file to that card’s memory
  remora dma mount DIR                                the same names, with the engine behind them

A card’s memory lives as long as the process that made it: a daemon, or `remora dma files`. The
commands use a daemon’s card where one runs, and else one of their own.")]
pub(crate) struct Dma {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Copy between files, memory of processes, and card memory
    Copy(copy::Copy),
    /// Show what the channels of a DMA engine can do, and measure them
    Channels(channels::Channels),
    /// Show the paths between an application’s memory and the card’s, and which one is chosen
    Paths(paths::Paths),
    /// Offer a card’s memory and channels as files, which Xilinx’s tools, dd and fio can use
    Files(files::Files),
    /// Mount a directory of files behind which is a card’s DMA engine
    Mount(mount::Mount),
    /// Memory for another process of this program to reach
    #[command(hide = true)]
    Application(application::Serve),
}

impl Dma {
    pub(crate) fn run(self) -> Result<()> {
        match self.what {
            What::Copy(command) => command.run(),
            What::Channels(command) => command.run(),
            What::Paths(command) => command.run(),
            What::Files(command) => command.run(),
            What::Mount(command) => command.run(),
            What::Application(command) => command.run(),
        }
    }
}

/// How much memory a card has.
#[derive(Clone, Copy, Debug, Args)]
struct SizeArgs {
    /// Near memory of the card, whose pages are there from the start; K, M, G are powers of 1024
    #[arg(long, default_value = "4M", value_name = "SIZE", value_parser = of_card())]
    near: u64,
    /// Far memory of the card, whose pages come when they are touched
    #[arg(long, default_value = "4G", value_name = "SIZE", value_parser = of_card())]
    far: u64,
}

/// Parses a size that a card's memory can have.
fn of_card() -> impl TypedValueParser<Value = u64> {
    size_in(Sizes::LEAST..=Sizes::MOST)
}

impl SizeArgs {
    fn sizes(self) -> Sizes {
        Sizes { near: self.near, far: self.far }
    }
}
