//! `remora bench worlds`: networks of servers in the simulator, beside SRNIC's Fig. 12 (§6.3);
//! pairs of hosts beside figures of other papers; and how fast the simulator is.
//!
//! - [`hardware`]: two hosts whose cards are hardware.
//! - [`fig12`]: completion times and slowdowns by the number of servers, for all transports;
//!   [`pace`]: how long that will take.
//! - [`speed`]: packets a second, threads, memory.

mod fig12;
mod hardware;
mod pace;
mod speed;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use remora::nic::qp::Mtu;
use remora_sim::flows::{Cluster, Flow, Sizes, poisson};
use remora_sim::net::{BufferOptions, FatTree, Marking, Ps};

use super::figure::Figure;
use super::page;
use super::report::{Found, Options, publish, show};
use crate::failure::wrong_line;
use crate::output;

/// Measures transports in networks of servers, and the simulator itself.
#[derive(Debug, Args)]
pub(super) struct Worlds {
    #[command(flatten)]
    pub(super) options: Options,
    /// Figures for 1,024 and 4,096 servers, too: takes long
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Figures for at most so many servers [default: 256]
    #[arg(long, value_name = "MOST", conflicts_with_all = ["quick", "full"])]
    servers: Option<u32>,
    /// Only simulate the paper's figures; measure nothing of the simulator
    #[arg(long)]
    simulated: bool,
    /// Another build of this command, whose random worlds stand beside ours in `worlds_rate`
    #[arg(long, value_name = "PROGRAM", conflicts_with = "simulated")]
    peer: Option<PathBuf>,
    /// Write the page with the plots here
    #[arg(long, alias = "page", value_name = "FILE", default_value = "remora-worlds.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
}

const WORDS: page::Words = page::Words {
    title: "Networks of servers",
    about: "SRNIC’s Figure 12 (NSDI 2023, §6.3) with the card that runs live at every server: fat \
            trees of 16 to 4,096 servers, 100 Gb/s each and 400 Gb/s between switches, 1 µs a \
            link, not over-subscribed; flows of Facebook’s Cache_Follower at a load of 0.7. \
            Go-back-N has flow control (PFC), selective repeat has not, as in the paper. IRN and \
            SRNIC as published are models on the same networks. The \
            paper does not state these: path MTU (here 1,024 B), buffers (32 MB a switch) and the \
            thresholds of flow control (1/8 of what is free), both as in HPCC’s simulator, marks \
            (above 300 KB at 100 Gb/s, in proportion at others: DCTCP in HPCC’s run.py), and how \
            long flows arrive (here for 1 ms in an empty network, and in as many such networks as \
            have about 3,100 together). The rows say how fast the simulator is.",
    rows: "The simulator",
    ours: "Remora",
    command: "remora bench worlds",
    such: "`packets_1024`, `fct_ours`, `fig12a`",
};

/// The load of Fig. 12, as a part of the servers' rate.
const LOAD: f64 = 0.7;
/// What is drawn in these worlds comes from it.
const SEED: u64 = 1;

impl Worlds {
    pub(super) fn run(&self) -> Result<()> {
        let Worlds { options, full, servers, simulated, peer, html } = self;
        let is_wanted = |name: &str| options.wants(name);
        let mut rows = Vec::new();
        if !simulated {
            rows.extend(speed::rows(options, peer.as_deref())?);
        }
        let most = if *full { fig12::MOST } else { servers.unwrap_or(fig12::USUAL) };
        let found = fig12::run(&is_wanted, options.quick, most)?;
        rows.extend(found.rows(&is_wanted));
        let mut figures = found.figures(&is_wanted);
        figures.extend(hardware::figures(&is_wanted, options.quick)?);
        if rows.is_empty() && figures.is_empty() && options.quick {
            fig12::ensure_size(&is_wanted).map_err(wrong_line)?;
        }
        show(&rows);
        figures.iter().for_each(Figure::show);
        let sections = (found.section(), Vec::new());
        publish(WORDS, Found { rows, figures, sections }, html, options)
    }
}

/// The network of Fig. 12 with so many servers, of the paper's five numbers.
fn cluster(servers: u32) -> Result<Cluster> {
    let topology = FatTree::srnic(servers).context("the paper has no such tree")?;
    let mut cluster = Cluster::new(topology);
    cluster.mtu = Mtu::B1024;
    cluster.net.seed = SEED;
    cluster.net.buffer = BufferOptions {
        bytes: 32_000_000,
        marking: Some(Marking::step(300_000)),
        marking_bits: 100_000_000_000,
        ..BufferOptions::default()
    };
    Ok(cluster)
}

/// The flows of Fig. 12 that arrive in a span of simulated time.
fn flows(cluster: &Cluster, span: Ps, seed: u64) -> Result<Vec<Flow>> {
    let (servers, bits) = (cluster.topology.hosts, cluster.host_bits());
    Ok(poisson(servers, bits, LOAD, &Sizes::cache_follower(), span, seed)?)
}
