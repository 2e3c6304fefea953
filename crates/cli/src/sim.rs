//! `remora sim`: simulated networks ("worlds"), each drawn from one seed.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use remora_command::random;
use remora_sim::{Options, groups};
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
  remora sim 1 --count 1000 --of groups
                                      replicated stores, whose nodes and links fail

The exit status is 1 if a checker objects to a world; the output names its seed.")]
pub(crate) struct Sim {
    /// The seed of the world, or of the first one [default: a new one]
    seed: Option<u64>,
    /// How many worlds to run, with consecutive seeds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// What the worlds are of
    #[arg(long, value_enum, default_value_t = Of::Cards)]
    of: Of,
    /// Print a line of JSON for each world
    #[arg(long)]
    json: bool,
}

/// What there are worlds of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    /// Cards, their programs, kernels and stores, on networks that lose, repeat and delay
    Cards,
    /// Replicas of a store: deaths, pauses, cut links, slow disks, clocks that drift
    Groups,
}

impl Of {
    /// What the world of a seed is like, in words, and how to run it.
    fn draw(self, seed: u64) -> (String, Box<dyn FnOnce() -> Result<String, String>>) {
        match self {
            Of::Cards => {
                let options = Options::draw(seed);
                let drawn = options.to_string();
                (drawn, Box::new(|| told(remora_sim::run::run_world(options))))
            }
            Of::Groups => {
                let plan = groups::Plan::draw(seed);
                let drawn = plan.to_string();
                (drawn, Box::new(|| told(groups::run_world(plan))))
            }
        }
    }
}

fn told(judged: Result<impl fmt::Display, impl fmt::Display>) -> Result<String, String> {
    judged.map(|report| report.to_string()).map_err(|failure| failure.to_string())
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
                bail!("a checker objects to the world of seed {seed}; again: {}", self.again(*seed))
            }
            [seed, ..] => bail!(
                "checkers object to {} of {} worlds; the first again: {}",
                failed.len(),
                self.count,
                self.again(*seed)
            ),
        }
        Ok(())
    }

    /// The command that runs one world again.
    fn again(&self, seed: u64) -> String {
        match self.of {
            Of::Cards => format!("remora sim {seed}"),
            Of::Groups => format!("remora sim {seed} --of groups"),
        }
    }

    /// Runs one world; the inner error is the objection of a checker, or the card's panic.
    fn world(&self, seed: u64) -> Result<Result<(), String>> {
        let (drawn, run) = self.of.draw(seed);
        let alone = self.count == 1 && !self.json;
        if alone {
            // Printed before the run, so that the options are visible even if it does not end.
            print!("{drawn}");
        }
        let judged = panic::catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(format!("seed {seed}: panic: {}", words(&*panic))));
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
