//! `remora sim`: simulated networks ("worlds"), each drawn from one seed.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};

use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use remora_cli::random;
use remora_sim::Options;
use remora_sim::run::run_world;
use serde_json::json;

use crate::output;

/// Failures that are printed in full; more are only counted.
const TOLD: usize = 5;

/// `remora sim`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora sim                          one world, from a new seed
  remora sim 7                        the world of seed 7, the same each time
  remora sim 1 --count 1000           the worlds of seeds 1 to 1000

The exit status is 1 if a checker objects to a world; the output names its seed.")]
pub(crate) struct Sim {
    /// The seed of the world, or of the first one [default: a new one]
    seed: Option<u64>,
    /// How many worlds to run, with consecutive seeds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Print a line of JSON for each world
    #[arg(long)]
    json: bool,
}

impl Sim {
    pub(crate) fn run(self) -> Result<()> {
        let first = match self.seed {
            Some(seed) => seed,
            None => new_seed()?,
        };
        let progress = self.progress();
        let mut failed = Vec::new();
        for seed in (0..self.count).map(|i| first.wrapping_add(i)) {
            if let Err(why) = self.world(seed)? {
                if failed.len() < TOLD && !self.json {
                    progress.suspend(|| eprintln!("{why}"));
                }
                failed.push(seed);
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        match failed.as_slice() {
            [] if self.count > 1 && !self.json => println!("{} worlds passed", self.count),
            [] => {}
            [seed] => {
                bail!("a checker objects to the world of seed {seed}; again: remora sim {seed}")
            }
            [seed, ..] => bail!(
                "checkers object to {} of {} worlds; the first again: remora sim {seed}",
                failed.len(),
                self.count
            ),
        }
        Ok(())
    }

    /// Runs one world; the inner error is the objection of a checker, or the card's panic.
    fn world(&self, seed: u64) -> Result<Result<(), String>> {
        let options = Options::draw(seed);
        let drawn = options.to_string();
        let alone = self.count == 1 && !self.json;
        if alone {
            // Printed before the run, so that the options are visible even if it does not end.
            print!("{drawn}");
        }
        let judged = panic::catch_unwind(AssertUnwindSafe(|| run_world(options)));
        let judged = match judged {
            Ok(Ok(report)) => Ok(report.to_string()),
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(panic) => Err(format!("seed {seed}: panic: {}", words(&*panic))),
        };
        if self.json {
            let (passed, text) = match &judged {
                Ok(report) => (true, report),
                Err(failure) => (false, failure),
            };
            output::json_line(
                &json!({ "seed": seed, "passed": passed, "options": drawn, "result": text }),
            )?;
        }
        Ok(match judged {
            Ok(report) => {
                if alone {
                    // The report begins with the options, which are printed already.
                    println!("{}passed", report.strip_prefix(&drawn).unwrap_or(&report));
                }
                Ok(())
            }
            Err(why) if alone => Err(why),
            Err(why) => Err(format!("{drawn}\n{why}")),
        })
    }

    fn progress(&self) -> ProgressBar {
        if self.count == 1 || self.json || !output::has_viewer() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} worlds, {eta} left");
        ProgressBar::new(self.count)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }
}

/// The message of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words")
}

fn new_seed() -> Result<u64> {
    // Short enough to be typed.
    Ok(u64::from(u32::from_le_bytes(random::bytes()?)))
}
