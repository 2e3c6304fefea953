//! Runs flows, and shows how far the run has come.

use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use remora_sim::flows::{Cluster, Flow, Report, Watch};
use remora_sim::net::Ps;
use remora_sim::net::time::{NEVER, US};

use crate::{output, thread};

/// Runs flows with a bar of their progress, if somebody looks.
pub(crate) fn run(cluster: &Cluster, flows: &[Flow]) -> Result<Report> {
    let watch = Watch::default();
    let bar = bar();
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
            let part = part(cluster, bytes, (at, watch.delivered()));
            bar.set_position((part * STEPS as f64) as u64);
            let us = at as f64 / US as f64;
            bar.set_message(format!("{ended} of {} flows, {us:.1} µs simulated", flows.len()));
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    });
    bar.finish_and_clear();
    done
}

/// The steps of a bar.
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

fn bar() -> ProgressBar {
    if !output::has_viewer() {
        return ProgressBar::hidden();
    }
    let template = "{wide_bar} {msg}, {eta} left";
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(STEPS).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
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
