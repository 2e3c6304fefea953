//! `remora bench store`: the key-value store in all its ways, beside READs and WRITEs, Redis,
//! memcached and DuckDB; and the figures of Caribou (§6) and RedN (§5.4) on it.
//!
//! - [`bed`]: a process with a store on its card, on the second core, and its clients on the first.
//!   [`callers`]: many of them at once. [`latencies`] and [`rates`]: the rows and figures.
//! - [`servers`]: processes that serve Redis' and memcached's clients; [`fronts`]: their rows.
//! - [`scans`]: selection next to the data, on the rows of [`tpch`]; [`duckdb`]: its peer.
//! - [`functions`]: gets that do something with the value.
//! - [`extent`]: how much is measured. [`papers`]: what the papers say, to stand beside it.
//!
//! A new row of a card's client is a name in `ROWS` and a `Case` in `cases`, of [`latencies`] or of
//! [`rates`].

mod bed;
mod callers;
mod duckdb;
mod extent;
mod fronts;
mod functions;
mod latencies;
mod papers;
mod rates;
mod scans;
pub(super) mod servers;
mod tpch;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use super::figure::Figure;
use super::page;
use super::report::{Found, Options, publish, show};
use crate::output;
use bed::Bed;
use extent::{Extent, FULL, QUICK, SHORTER};

/// Measures the store.
#[derive(Debug, Args)]
pub(super) struct StoreBench {
    #[command(flatten)]
    pub(super) options: Options,
    /// Write the page with the plots here
    #[arg(long, value_name = "FILE", default_value = "remora-store.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
}

const WORDS: page::Words = page::Words {
    title: "The store",
    about: "Remora’s near-data key-value store, in all the ways in which it is reached, and the \
            experiments of Caribou (VLDB 2017) and RedN (NSDI 2022) on it: two processes on this \
            machine, a core each, over loopback. Points are medians, whiskers the lowest and \
            highest of several runs in turn. Caribou is an FPGA on a network of 10 Gb/s, RedN’s \
            card a ConnectX-5: compare shapes and ratios, not microseconds.",
    rows: "The store beside its peers",
    ours: "store",
    command: "remora bench store",
    such: "`redis_get_p1`, `fig9`",
};

/// Measures a figure.
type Make = fn(&Bed, Extent) -> Result<Figure>;

/// The figures that a store on a card is measured for, in the papers' order.
const FIGURES: [(&str, Make); 9] = [
    ("fig7", latencies::operations),
    ("fig7c", rates::load),
    ("fig8", rates::mixes),
    ("fig9", rates::skew),
    ("fig11", functions::conditional),
    ("fig12", scans::selectivity),
    ("fig13", functions::added),
    ("fig14", latencies::sizes),
    ("table5", latencies::beside_cards),
];

impl StoreBench {
    pub(super) fn run(&self) -> Result<()> {
        let extent = if self.options.quick { QUICK } else { FULL };
        let is_wanted = |name: &str| self.options.wants(name);
        let mut rows = Vec::new();
        // What is served over TCP comes first: on the core of its servers, nothing else runs yet.
        fronts::rows(&is_wanted, extent, &mut rows).context("cannot measure what TCP reaches")?;
        scans::rows(&is_wanted, extent, &mut rows).context("cannot measure scans")?;
        let mut figures = Vec::new();
        let names = latencies::ROWS.iter().chain(&rates::ROWS).chain(&scans::REMOTE_ROWS);
        if names.chain(FIGURES.iter().map(|(id, _)| id)).any(|name| is_wanted(name)) {
            let bed = Bed::start(extent)?;
            let of_calls = latencies::cases(&bed, extent)?;
            rows.extend(self.options.measure(of_calls, extent.runs * SHORTER)?);
            rows.extend(self.options.measure(rates::cases(&bed, extent)?, extent.runs)?);
            rows.extend(self.options.measure(scans::remote(&bed, extent)?, extent.runs)?);
            figures = self.options.figures(FIGURES, |make| make(&bed, extent))?;
        }
        show(&rows);
        let found = Found { rows, figures, ..Found::default() };
        publish(WORDS, found, &self.html, &self.options)
    }
}
