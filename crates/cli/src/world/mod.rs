//! `remora world`: networks of any size and their flows, from a file.
//!
//! - [`run`], [`compare`], [`import`], [`export`]: its commands. [`load`]: reads world files, and
//!   shows their mistakes.
//! - [`result`]: a run's figures, as a table and as JSON. [`stages`]: where time was lost.
//!   [`workloads`]: figures by workload. [`settings`]: those of its transport.
//! - [`figures`]: those by which worlds are compared. [`seeds`]: a world with several seeds.
//! - [`page`], [`drawing`], [`plots`]: the page of a run. [`progress`]: a run's bar.

mod compare;
mod drawing;
mod export;
mod figures;
mod import;
mod load;
mod page;
mod plots;
pub(crate) mod progress;
mod result;
mod run;
mod seeds;
mod settings;
mod stages;
mod workloads;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// `remora world`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora world run examples/worlds/incast.toml --page incast.html
  remora world run examples/worlds/fat-tree.toml --seeds 10 --json spread.json
  remora world compare examples/worlds/fat-tree.toml spray.toml
  remora world import hpcc topology.txt flow.txt --to world.toml
  remora world export world.toml --fct fct.txt --pfc pfc.txt --qlen qlen.txt

docs/worlds.md says what a world file may have.")]
pub(crate) struct World {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Run a world, and print how long its flows took and what the network did
    Run(run::Run),
    /// Run several worlds, and print their figures side by side
    Compare(compare::Compare),
    /// Make a world file of another simulator's files
    Import(import::Import),
    /// Run a world, and write files that other simulators' tools read
    Export(export::Export),
}

impl World {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.what {
            What::Run(run) => run.run(),
            What::Compare(compare) => compare.run(),
            What::Import(import) => import.run().map(|()| ExitCode::SUCCESS),
            What::Export(export) => export.run(),
        }
    }
}
