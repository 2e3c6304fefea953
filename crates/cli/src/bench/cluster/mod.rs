//! `remora bench cluster`: groups of three and five nodes beside one node, Redis with a replica,
//! and Caribou's figures (§6) on replication.
//!
//! - [`bed`]: groups on loopback, and what they are compared with. [`load`]: their clients;
//!   [`by_card`]: a client over the card.
//! - [`etcd`]: puts to etcd itself, by as many clients.
//! - [`rows`], [`failover`]: the rows. [`figures`]: the figures.
//!
//! Clients come by Redis' protocol over TCP, as those of its peers do; in one row over the card.
#![cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "only the options are there"))]

#[cfg(feature = "cluster")]
mod bed;
#[cfg(feature = "cluster")]
mod by_card;
#[cfg(feature = "cluster")]
mod etcd;
#[cfg(feature = "cluster")]
mod failover;
#[cfg(feature = "cluster")]
mod figures;
#[cfg(feature = "cluster")]
mod load;
#[cfg(feature = "cluster")]
mod rows;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::report::Options;
use crate::output;

/// Measures groups.
#[derive(Debug, Args)]
pub(super) struct ClusterBench {
    #[command(flatten)]
    pub(super) options: Options,
    /// Write the page with the plots here
    #[arg(long, value_name = "FILE", default_value = "remora-cluster.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Runs of each measurement, in turn with those that it is compared with.
    runs: usize,
    /// Requests of a run whose median time is taken.
    calls: usize,
    /// Requests of a run whose rate is taken.
    requests: usize,
    /// Primaries that are killed.
    kills: usize,
    /// Keys of the stores.
    keys: u64,
}

const FULL: Extent = Extent { runs: 5, calls: 2000, requests: 100_000, kills: 20, keys: 20_000 };
const QUICK: Extent = Extent { runs: 1, calls: 50, requests: 2000, kills: 1, keys: 500 };

#[cfg(feature = "cluster")]
const WORDS: super::page::Words = super::page::Words {
    title: "The store on several nodes",
    about: "Groups of Remora’s store on this machine, their clients by Redis’ protocol over TCP, \
            and the experiments of Caribou (VLDB 2017) on replication. All nodes of a group, etcd \
            and the client share the machine’s cores; Caribou’s nodes are FPGAs of their own on a \
            network of 10 Gb/s. Compare ratios, not microseconds.",
    rows: "A group beside one node and its peers",
    ours: "group",
    command: "remora bench cluster",
    such: "`put_r3_rate`, `fig8`",
};

impl ClusterBench {
    #[cfg(not(feature = "cluster"))]
    pub(super) fn run(&self) -> Result<()> {
        anyhow::bail!(crate::store::cluster::MISSING)
    }

    #[cfg(feature = "cluster")]
    pub(super) fn run(&self) -> Result<()> {
        use anyhow::Context;

        use super::report::{Found, publish, show};

        let extent = if self.options.quick { QUICK } else { FULL };
        let is_wanted = |name: &str| self.options.wants(name);
        let mut rows = rows::measure_all(&is_wanted, extent)?;
        if failover::ROWS.iter().any(|name| is_wanted(name)) {
            rows.extend(failover::rows(extent).context("cannot measure failover_ms")?);
        }
        rows.retain(|row| is_wanted(&row.name));
        // (Rows are shown before the figures, which take long, too.)
        show(&rows);
        let figures = figures::measure_all(&is_wanted, extent)?;
        figures.iter().for_each(super::figure::Figure::show);
        let found = Found { rows, figures, ..Found::default() };
        publish(WORDS, found, &self.html, &self.options)
    }
}
