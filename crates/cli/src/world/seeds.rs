//! A world run with several seeds: each figure's mean, and its spread.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use remora::printable;
use serde::Serialize;

use super::figures::{FIGURES, Figure, Spread};
use super::load::{self, Chosen, Files, Source};
use super::progress::Progress;
use super::result::Outcome;
use crate::failure::wrong_line;
use crate::output::{self, grouped};

/// How many seeds a world is run with.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Seeds {
    /// Run each world with so many seeds, the file's (or --seed) and those after it, and show the
    /// mean, the lowest and the highest of each figure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: Option<u32>,
}

/// What a world has come to with all its seeds.
#[derive(Debug, Serialize)]
pub(super) struct Runs {
    pub(super) name: String,
    pub(super) transport: &'static str,
    seeds: Vec<u64>,
    figures: BTreeMap<&'static str, Option<Spread>>,
    pub(super) runs: Vec<Outcome>,
}

impl Seeds {
    /// How many, if it is said.
    pub(super) fn number(self) -> Option<u32> {
        self.seeds
    }

    /// An error if a page is asked for: it shows what happened in one run.
    pub(super) fn check(self, files: &Files) -> Result<()> {
        if self.seeds.is_some() && files.page.is_some() {
            bail!("a page is of one seed: leave --page or --seeds out");
        }
        Ok(())
    }
}

/// Runs a world with so many seeds. Says of each run whose flows did not all end, and returns the
/// status that they all have: an error if a seed cannot be run, behind those that could.
///
/// # Errors
/// The first seed cannot be run.
pub(super) fn run(
    path: &Path,
    (chosen, number): (Chosen, u32),
    outputs: &[&Path],
    progress: &Progress,
) -> Result<(Runs, Result<ExitCode>)> {
    let source = Source::read(path, outputs)?;
    let mut experiment = progress.aside(|| source.load(chosen))?;
    let (name, first) = (experiment.name.clone(), experiment.cluster.net.seed);
    let Some(last) = first.checked_add(u64::from(number) - 1) else {
        let why = anyhow!("there are no {number} seeds from {first} on: take a lower --seed");
        return Err(wrong_line(why));
    };
    let transport = experiment.cluster.transport.name;
    let (mut runs, mut status) = (Vec::new(), Ok(ExitCode::SUCCESS));
    for seed in first..=last {
        let mut one = || -> Result<ExitCode> {
            if seed > first {
                let chosen = Chosen { seed: Some(seed), ..chosen };
                experiment = progress.aside(|| source.load_again(chosen))?;
            }
            let report = load::simulate_of(&experiment, progress)?;
            runs.push(Outcome::new(&experiment, &report));
            if number > 1 {
                experiment.name = format!("{name}, seed {seed}");
            }
            Ok(progress.aside(|| load::status([(&experiment, &report)])))
        };
        match one() {
            Ok(ExitCode::SUCCESS) => {}
            Err(error) if seed > first => {
                status = Err(error.context(format!("cannot run seed {seed}")));
                break;
            }
            own => status = Ok(own?),
        }
    }
    let figures = FIGURES.iter().map(|figure| (figure.key, figure.over(&runs))).collect();
    let seeds = runs.iter().map(|run| run.seed).collect();
    Ok((Runs { name, transport, seeds, figures, runs }, status))
}

impl Runs {
    /// Prints the table.
    pub(super) fn show(&self) {
        let mut table = output::table(["figure", "mean", "lowest", "highest"]);
        for figure in &FIGURES {
            let cells = match figure.over(&self.runs) {
                Some(Spread { mean, lowest, highest, .. }) => {
                    [mean, lowest, highest].map(|value| shown(figure, value))
                }
                None => core::array::from_fn(|_| "–".to_owned()),
            };
            let [mean, lowest, highest] = cells;
            table.add_row([figure.name.to_owned(), mean, lowest, highest]);
        }
        output::align_right(&mut table, 1..4);
        let (first, last) = (self.seeds.first(), self.seeds.last());
        let (first, last) = (first.copied().unwrap_or(0), last.copied().unwrap_or(0));
        println!("{}, {}, seeds {first} to {last}", printable(&self.name), self.transport);
        println!("{table}\n(times in µs)");
    }
}

/// A figure's value in a table.
pub(super) fn shown(figure: &Figure, value: f64) -> String {
    match figure.counts && value.fract() == 0.0 {
        true => grouped(value as u64),
        false => format!("{value:.2}"),
    }
}
