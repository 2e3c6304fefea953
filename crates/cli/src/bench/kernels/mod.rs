//! `remora bench kernels`: StRoM's experiments (§6, §7.2), run live, each beside its baselines, and
//! the rows of kernels; as tables, as JSON, and as a page with plots.
//!
//! This process asks, pinned to a core; another one ([`crate::ways::server`]) has the memory, the
//! card with its kernels, and an application, on a second core.
//!
//! [`lookups`]: in lists and tables. [`checks`]: consistent reading. [`streams`]: values as they
//! arrive. [`loaded`]: kernels as WebAssembly. [`extent`]: how much is measured.

mod checks;
mod extent;
mod loaded;
mod lookups;
mod streams;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::figure::{Figure, median_us};
use super::page;
use super::report::{Found, Options, publish, show};
use super::row::{Case, Run, Target};
use crate::output;
use crate::ways::Client;
use crate::ways::client::Setup;
use crate::ways::lookup::Way;
use extent::{Extent, FULL, QUICK, SCRATCH, STRUCTURES};

/// Measures kernels.
#[derive(Debug, Args)]
pub(super) struct KernelBench {
    #[command(flatten)]
    pub(super) options: Options,
    /// Write the page with the plots here
    #[arg(long, value_name = "FILE", default_value = "remora-kernels.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
    /// Let the system choose the cores of both processes
    #[arg(long)]
    no_pin: bool,
}

const WORDS: page::Words = page::Words {
    title: "Kernels on the card",
    about: "The experiments of StRoM (EuroSys 2020) on Remora’s software card: two processes on \
            this machine, a core each, over loopback. Points are medians; whiskers are the 1st and \
            99th percentile of latencies, and the lowest and highest of several runs of \
            bandwidths. Calls come at random moments. The paper’s card is an FPGA on another \
            network: compare shapes and ratios, not microseconds.",
    rows: "What a kernel costs",
    ours: "kernel",
    command: "remora bench kernels",
    such: "`traversal_8`, `fig7`",
};

/// Measures a figure.
type Make = fn(&Client, &lookups::Structures, &streams::Input, Extent) -> Result<Figure>;

/// The figures of the paper, in the paper's order.
const FIGURES: [(&str, Make); 7] = [
    ("fig7", |client, structures, _, extent| lookups::lists(client, structures, extent)),
    ("fig8", |client, structures, _, extent| lookups::tables(client, structures, extent)),
    ("fig9", |client, structures, _, extent| checks::sizes(client, structures, extent)),
    ("fig10", |client, structures, _, extent| checks::failures(client, structures, extent)),
    ("fig11", |client, _, input, extent| streams::shuffles(client, input, extent)),
    ("fig13a", |client, _, input, extent| streams::threads(client, input, extent)),
    ("fig13", |client, _, input, extent| streams::sketches(client, input, extent)),
];

impl KernelBench {
    pub(super) fn run(&self) -> Result<()> {
        let extent = if self.options.quick { QUICK } else { FULL };
        let client = Client::start(Setup {
            memory: STRUCTURES + extent.input,
            local: SCRATCH + 2 * extent.input.max(extent.stream),
            stream: extent.stream,
            loaded: extent.loaded,
            store: 0,
            chains: false,
            pin: !self.no_pin,
        })?;
        let structures = lookups::Structures::load(&client)?;
        let input = streams::Input::prepare(&client, extent)?;
        let cases = cases(&client, &structures, &input, extent)?;
        let rows = self.options.measure_each(cases)?;
        show(&rows);
        let figures =
            self.options.figures(FIGURES, |make| make(&client, &structures, &input, extent))?;
        let found = Found { rows, figures, ..Found::default() };
        publish(WORDS, found, &self.html, &self.options)
    }
}

/// The rows that have a target, and how many runs each side of them gets.
fn cases<'a>(
    client: &'a Client,
    structures: &'a lookups::Structures,
    input: &'a streams::Input,
    extent: Extent,
) -> Result<Vec<(Case<'a>, usize)>> {
    let with = |runs: usize| move |case| (case, runs);
    let latencies = latencies(client, structures, extent).map(with(extent.runs * SHORTER));
    let streams = streams::cases(client, input, extent).map(with(extent.runs));
    let loaded = loaded::cases(client, structures, extent)?.map(with(extent.runs));
    Ok(latencies.into_iter().chain(streams).chain(loaded).collect())
}

/// Latencies are measured in this many times more runs, which are shorter by the same factor: some
/// ms. If the host's speed changes during them, as many of Remora's runs as of the peer's come
/// before the change.
const SHORTER: usize = 6;

fn latencies<'a>(
    client: &'a Client,
    structures: &'a lookups::Structures,
    extent: Extent,
) -> [Case<'a>; 4] {
    let calls = extent.calls * 3 / SHORTER;
    let read = move |len: u32| -> Run<'a> {
        let from = client.ready.memory.addr;
        Box::new(move || median_us(calls, |_| client.read(from, len)))
    };
    [
        Case::latency(
            "traversal_8",
            "one READ, 64 B",
            Target::AtMost(1.3),
            lookups::last_of_eight(client, structures, Way::Kernel, calls),
            read(64),
        ),
        Case::latency(
            "traversal_8_reads",
            "8 dependent READs, and the value's",
            Target::Any,
            lookups::last_of_eight(client, structures, Way::Kernel, calls),
            lookups::last_of_eight(client, structures, Way::Reads, calls),
        ),
        Case::latency(
            "get_64B",
            "one READ, 64 B",
            Target::AtMost(1.2),
            lookups::median_of(lookups::table_of(client, structures, 64, Way::Kernel, calls)),
            read(64),
        ),
        Case::latency(
            "consistency_4KiB",
            "one READ, 4 KiB",
            Target::AtMost(1.05),
            lookups::median_of(checks::checked(client, structures, 4096, calls)),
            read(4096),
        ),
    ]
}
