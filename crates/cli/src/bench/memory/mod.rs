//! `remora bench memory`: paths between a host's memory and a card's.
//!
//! [`live`]: the paths of this machine, measured beside each other and beside a peer's.
//! [`simulated`]: the figures of a paper in the simulator; [`multiples`]: those on the page.

pub(super) mod live;
mod multiples;
mod simulated;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::page;
use super::report::{Found, Options, publish, show};
use crate::output;
use simulated::{Simulated, show_parameters};

/// Measures paths between memories.
#[derive(Debug, Args)]
pub(super) struct MemoryBench {
    #[command(flatten)]
    pub(super) options: Options,
    #[command(flatten)]
    live: live::Live,
    /// Only print the parameters of the simulated machines, and where each is from
    #[arg(long, conflicts_with_all = ["simulated", "html", "json", "only"])]
    parameters: bool,
    /// Only simulate the paper's figures; measure nothing
    #[arg(long)]
    simulated: bool,
    /// Write the page with the plots here
    #[arg(long, alias = "page", value_name = "FILE", default_value = "remora-memory.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
}

const WORDS: page::Words = page::Words {
    title: "Between a host’s memory and a card’s",
    about: "The paths between an application’s memory and its card’s on this machine, beside \
            those of UCX; and the figures of “In-Network Memory Access” (Farooqi, Hemmatpour, \
            Larsen), whose cards are an FPGA and a BlueField-2 behind PCIe, in the simulator.",
    rows: "What a path costs",
    ours: "path",
    command: "remora bench memory",
    such: "`fig9`, `fig20`, `predictions`",
};

impl MemoryBench {
    pub(super) fn run(&self) -> Result<()> {
        if self.parameters {
            show_parameters();
            return Ok(());
        }
        let (rows, figures) = if self.simulated {
            (Vec::new(), Vec::new())
        } else {
            (self.live.rows(&self.options)?, self.live.figures(&self.options)?)
        };
        show(&rows);
        for figure in &figures {
            figure.show();
        }
        let simulated = Simulated::run(&self.options.only, self.options.quick);
        simulated.show();
        let sections = (multiples::sections(&simulated)?, simulated.rows().collect());
        publish(WORDS, Found { rows, figures, sections }, &self.html, &self.options)
    }
}
