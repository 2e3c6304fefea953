//! Runs flows, and shows how far the runs have come.

use std::cell::Cell;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use remora_sim::flows::{Cluster, Flow, Report, Watch};
use remora_sim::net::Ps;
use remora_sim::net::time::{NEVER, US};

use crate::{output, thread};

/// Runs flows with a bar of their progress, if somebody looks.
pub(crate) fn run(cluster: &Cluster, flows: &[Flow]) -> Result<Report> {
    Progress::of(1).run(cluster, flows)
}

/// A bar of several runs.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// How many runs there are to be, how many were begun, and whether one has got anywhere.
    all: u64,
    begun: Cell<u64>,
    runs: Cell<bool>,
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Progress {
    /// A bar of so many runs.
    pub(crate) fn of(all: u64) -> Progress {
        let bar = bar("{wide_bar} {msg}", all.max(1));
        Progress { bar, all: all.max(1), begun: Cell::new(0), runs: Cell::new(false) }
    }

    /// Does something that may print, with the bar out of the way.
    pub(crate) fn aside<T>(&self, what: impl FnOnce() -> T) -> T {
        self.bar.suspend(what)
    }

    /// Runs flows, as the next of the runs.
    pub(crate) fn run(&self, cluster: &Cluster, flows: &[Flow]) -> Result<Report> {
        let before = self.begun.replace(self.begun.get() + 1);
        let place = match self.all {
            1 => String::new(),
            all => format!("run {} of {all}: ", before + 1),
        };
        let watch = Watch::default();
        self.bar.set_message(format!("{place}setting up"));
        let bytes = flows.iter().map(|flow| flow.bytes).sum();
        let waiter = std::thread::current();
        let done = std::thread::scope(|scope| {
            let running = thread::spawn_scoped(scope, "world", || {
                let done = cluster.run_watched(flows, &watch);
                waiter.unpark();
                done
            })?;
            while !running.is_finished() {
                let (at, ended) = (watch.at(), watch.ended());
                if self.runs.get() {
                    let part = part(cluster, bytes, (at, watch.delivered()));
                    self.bar.set_position(((before as f64 + part) * STEPS as f64) as u64);
                    let us = at as f64 / US as f64;
                    let ended = format!("{place}{ended} of {} flows", flows.len());
                    self.bar.set_message(format!("{ended}, {us:.1} µs simulated"));
                } else if at > 0 || ended > 0 || watch.delivered() > 0 {
                    // The time to set up says nothing of how fast a run is.
                    self.runs.set(true);
                    self.bar.set_style(style("{wide_bar} {msg}, {eta} left"));
                    self.bar.reset();
                    continue;
                }
                std::thread::park_timeout(Duration::from_millis(100));
            }
            Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
        });
        self.bar.set_position((before + 1) * STEPS);
        done
    }
}

/// The steps of a run.
const STEPS: u64 = 10_000;
/// What a packet has around its payload, in bytes, about.
const HEADERS: u64 = 100;

/// How much of a run is done, about, once so many bytes of `bytes` were delivered up to `at`: by
/// the bytes, since one long flow may be all there is, or by the time that the run ends at.
fn part(cluster: &Cluster, bytes: u64, (at, delivered): (Ps, u64)) -> f64 {
    let mtu = u64::from(cluster.mtu.bytes());
    let all = bytes as f64 * (mtu + HEADERS) as f64 / mtu as f64;
    let by_bytes = (delivered as f64 / all.max(1.0)).min(1.0);
    match cluster.until {
        NEVER => by_bytes,
        until => by_bytes.max((at as f64 / until.max(1) as f64).min(1.0)),
    }
}

fn bar(template: &str, runs: u64) -> ProgressBar {
    if !output::has_viewer() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(runs * STEPS).with_style(style(template))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use remora_sim::net::{LineRate, Star};

    use super::*;

    #[test]
    fn one_long_flow_makes_progress() {
        let star = Star { hosts: 2, rate: LineRate::gigabits(100), delay: US };
        let mut cluster = Cluster::new(star.topology());
        let part = |cluster: &Cluster, at, delivered| part(cluster, 1_000_000, (at, delivered));
        assert_eq!(part(&cluster, US, 0), 0.0);
        assert!((0.4..0.5).contains(&part(&cluster, US, 500_000)));
        assert_eq!(part(&cluster, US, 9_000_000), 1.0, "what is sent again counts, too");
        cluster.until = 4 * US;
        assert_eq!(part(&cluster, US, 0), 0.25);
        assert_eq!(part(&cluster, US, 9_000_000), 1.0);
    }
}
