//! `remora world run`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use remora_sim::flows::RecordOptions;
use remora_sim::net::time::US;

use super::load::{self, Chosen};
use super::page;
use super::result::Outcome;
use crate::output;

/// `remora world run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The world file
    #[arg(value_name = "WORLD.toml")]
    world: PathBuf,
    #[command(flatten)]
    chosen: Chosen,
    /// Write all figures to a file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page: the topology, queues and rates over time, completion times by size
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

impl Run {
    pub(super) fn run(self) -> Result<()> {
        let mut experiment = load::load(&self.world, self.chosen)?;
        if self.page.is_some() && experiment.cluster.record.is_none() {
            // A page shows what happened over time.
            let options = RecordOptions { every: US, captures: Vec::new() };
            experiment.cluster.record = Some(options);
        }
        let report = load::simulate(&experiment)?;
        let outcome = Outcome::new(&experiment, &report);
        outcome.show();
        if let Some(path) = &self.page {
            load::write(path, page::render(&experiment, &report, &outcome)?)?;
            println!("The page: {}", path.display());
        }
        match &self.json {
            Some(path) => output::write_json(path, &outcome),
            None => Ok(()),
        }
    }
}
