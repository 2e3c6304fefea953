//! `remora bench chains`: RedN's experiments (§5), run live, each beside its baselines, and the
//! rows of chains; as tables, as JSON, and as a page with plots.
//!
//! The card's own rates ([`rates`], of [`programs`]) are measured within this process. For the
//! rest, this process asks, pinned to a core, and another process ([`crate::ways::server`]) serves
//! on a second core: by its card, with a chain for each connection, and by its CPU, for the
//! two-sided way.
//!
//! [`gets`]: from a hash table. [`lists`]: in a linked list. [`load`]: gets beside busy writers.
//! [`extent`]: how much is measured.

mod extent;
mod gets;
mod lists;
mod load;
pub(super) mod programs;
mod rates;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::figure::Figure;
use super::page;
use super::report::{Found, Options, publish, show};
use crate::output;
use crate::ways::client::Setup;
use crate::ways::{Client, Image};
use extent::{Extent, FULL, QUICK};

/// Bytes of the peer's memory, for all structures.
const MEMORY: u64 = 32 << 20;
/// Bytes of local memory, for the results of READs and for the WRITEs that fill the peer's memory.
const LOCAL: u64 = 1 << 20;

/// Measures chains.
#[derive(Debug, Args)]
pub(super) struct ChainBench {
    #[command(flatten)]
    pub(super) options: Options,
    /// Write the page with the plots here
    #[arg(long, value_name = "FILE", default_value = "remora-chains.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
    /// Let the system choose the cores of both processes
    #[arg(long)]
    no_pin: bool,
}

const WORDS: page::Words = page::Words {
    title: "Chains on the card",
    about: "The experiments of RedN (NSDI 2022) on Remora’s software card: programs of work \
            requests, posted in advance, that change each other. Two processes on this machine, a \
            core each, over loopback. Points are medians, whiskers the lowest and highest of \
            several runs in turn. The paper’s card is a ConnectX-5 behind PCIe, Remora’s a core \
            of this machine: compare shapes and ratios, not microseconds.",
    rows: "What a chain costs",
    ours: "chain",
    command: "remora bench chains",
    such: "`fig10`, `fig15`",
};

/// The connections and tables on which figures are measured.
struct Bed<'a> {
    client: &'a Client,
    tables: &'a gets::Tables,
    lists: &'a lists::Lists,
    rates: &'a rates::Bench,
}

/// Measures a figure.
type Make = fn(&Bed<'_>, Extent) -> Result<Figure>;

/// The figures of the paper, and its tables, in the paper's order.
const FIGURES: [(&str, Make); 7] = [
    ("fig8", |bed, extent| bed.rates.orders(extent)),
    ("table3", |bed, extent| bed.rates.verbs(extent)),
    ("fig10", |bed, extent| gets::sizes(bed.client, bed.tables, extent)),
    ("fig11", |bed, extent| gets::collisions(bed.client, bed.tables, extent)),
    ("table4", |bed, extent| gets::throughput(bed.client, bed.tables, extent)),
    ("fig13", |bed, extent| bed.lists.traversals(bed.client, extent)),
    ("fig15", |bed, extent| load::writers(bed.client, bed.tables, extent)),
];

impl ChainBench {
    pub(super) fn run(&self) -> Result<()> {
        let extent = if self.options.quick { QUICK } else { FULL };
        let client = Client::start(Setup {
            memory: MEMORY,
            local: LOCAL,
            stream: 64 << 10,
            loaded: 0,
            store: 0,
            chains: true,
            pin: !self.no_pin,
        })?;
        let mut image = Image::new(client.ready.memory.addr, MEMORY as usize);
        let tables = gets::Tables::put(&mut image)?;
        let lists = lists::Lists::put(&mut image)?;
        client.load(&image)?;
        tables.verify(&client)?;
        lists.verify(&client)?;
        let bench = rates::Bench::new()?;
        let cases = bench.cases(extent).into_iter();
        let cases = cases.chain(gets::cases(&client, &tables, extent)?);
        let cases = cases.chain(load::cases(&client, &tables, extent)?);
        let rows = self.options.measure(cases, extent.runs)?;
        show(&rows);
        let bed = Bed { client: &client, tables: &tables, lists: &lists, rates: &bench };
        let figures = self.options.figures(FIGURES, |make| make(&bed, extent))?;
        let found = Found { rows, figures, ..Found::default() };
        publish(WORDS, found, &self.html, &self.options)
    }
}
