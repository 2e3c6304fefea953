//! `remora world run`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use remora_sim::flows::RecordOptions;
use remora_sim::net::time::US;

use super::load::{self, Chosen, Files};
use super::page;
use super::progress::Progress;
use super::result::Outcome;
use super::seeds::{self, Seeds};
use crate::failure::wrong_line;

/// `remora world run`.
#[derive(Debug, Args)]
#[command(after_help = load::STATUSES)]
pub(super) struct Run {
    /// The world file
    #[arg(value_name = "WORLD.toml")]
    world: PathBuf,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    seeds: Seeds,
    #[command(flatten)]
    files: Files,
}

impl Run {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.seeds.check(&self.files).map_err(wrong_line)?;
        if let Some(number) = self.seeds.number() {
            let progress = Progress::of(number.into());
            let chosen = (self.chosen, number);
            let (runs, status) = seeds::run(&self.world, chosen, &self.files.paths(), &progress)?;
            drop(progress);
            runs.show();
            self.files.write(&runs, || bail!("a page is of one seed"))?;
            return status;
        }
        let mut experiment = load::load(&self.world, self.chosen, &self.files.paths())?;
        if self.files.page.is_some() && experiment.cluster.record.is_none() {
            // A page shows what happened over time.
            let options = RecordOptions { every: US, captures: Vec::new() };
            experiment.cluster.record = Some(options);
        }
        let report = load::simulate(&experiment)?;
        let outcome = Outcome::new(&experiment, &report);
        outcome.show();
        self.files.write(&outcome, || page::render(&experiment, &report, &outcome))?;
        Ok(load::status([(&experiment, &report)]))
    }
}
