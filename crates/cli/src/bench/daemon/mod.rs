//! `remora bench daemon`: one card that processes share (`remora nic`), beside cards of their own
//! and beside other programs.
//!
//! - [`wire`]: from a client of one daemon to a client of another, by UDP;
//! - [`within`]: between two clients of one daemon, of programs and of verbs programs;
//! - [`victim`]: one client beside others that want all of the card;
//! - [`takeover`]: a session whose process is killed, and which another takes over; [`holder`] is
//!   either process;
//! - [`served`]: `remora perf` between clients of daemons.
//!
//! The DMA engine's rows are those of `remora bench memory`. Every process that is started has a
//! limit in time, and a run that was disturbed is repeated.

pub(super) mod holder;
mod served;
mod takeover;
mod victim;
mod wire;
mod within;

use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::memory::live::Live;
use super::report::{Options, report};
use super::row::{Case, Row, Run};
use crate::child;
use crate::failure::told;

/// The longest that one measurement may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a run is tried.
const TRIES: usize = 3;

/// Measures a card that processes share.
#[derive(Debug, Args)]
pub(super) struct DaemonBench {
    #[command(flatten)]
    pub(super) options: Options,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    runs: usize,
    /// Seconds of a run.
    seconds: f64,
    /// Iterations of perftest's latency, and of its message rate.
    iterations: [u32; 2],
}

impl Extent {
    fn new(quick: bool) -> Extent {
        match quick {
            true => Extent { runs: 1, seconds: 0.05, iterations: [1_000, 5_000] },
            false => Extent { runs: 7, seconds: 0.3, iterations: [20_000, 100_000] },
        }
    }
}

/// The rows that a group of cases is made of.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    options: &'a Options,
    extent: Extent,
}

impl Wanted<'_> {
    /// Is one of these rows wanted?
    fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.options.wants(name))
    }

    /// Measures those of the cases that are wanted.
    fn measure<'c>(&self, cases: impl IntoIterator<Item = Case<'c>>) -> Result<Vec<Row>> {
        self.options.measure(cases, self.extent.runs)
    }
}

impl DaemonBench {
    pub(super) fn run(&self) -> Result<()> {
        let wanted = Wanted { options: &self.options, extent: Extent::new(self.options.quick) };
        let mut rows = wire::rows(&wanted)?;
        rows.extend(within::rows(&wanted)?);
        // Its thread pins itself, and is not to stay so.
        rows.extend(child::on_core(0, || Live::default().rows(&self.options))?);
        rows.extend(victim::rows(&wanted)?);
        rows.extend(takeover::rows(&wanted)?);
        report(&rows, "`local_write_lat_8B`, `takeover_ms`", &self.options)?;
        if cores() < wire::CORES {
            println!(
                "cores: {}; a daemon needs one beside those of the two programs, and two daemons \
                 need two: here they take turns, and latencies are those of the scheduler",
                cores()
            );
        }
        Ok(())
    }
}

/// How many cores this process may use.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The core of a daemon, behind those of the programs, if there is one to spare.
fn spare_core(number: usize) -> Option<usize> {
    Some(2 + number).filter(|core| *core < cores())
}

/// A run that is tried again if it fails: something may have disturbed it.
fn again<'a>(mut run: impl FnMut() -> Result<f64> + 'a) -> Run<'a> {
    Box::new(move || {
        for _ in 1..TRIES {
            match run() {
                Ok(figure) => return Ok(figure),
                Err(error) => eprintln!("a run failed, and is repeated: {}", told(&error)),
            }
        }
        run()
    })
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_run_that_was_disturbed_is_repeated() {
        let mut tries = 0;
        let figure = again(|| {
            tries += 1;
            if tries < TRIES { bail!("disturbed") } else { Ok(7.0) }
        })();
        assert_eq!(figure.unwrap(), 7.0);
        let mut tries = 0;
        assert!(again(|| bail!("never {}", std::mem::replace(&mut tries, 1)))().is_err());
    }
}
