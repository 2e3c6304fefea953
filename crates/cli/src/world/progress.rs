//! Runs flows, and shows how far the run has come.

use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use remora_sim::flows::{Cluster, Flow, Report, Watch};
use remora_sim::net::time::US;

use crate::{output, thread};

/// Runs flows with a bar of their progress, if somebody looks.
pub(crate) fn run(cluster: &Cluster, flows: &[Flow]) -> Result<Report> {
    let watch = Watch::default();
    let bar = bar(flows.len() as u64);
    let waiter = std::thread::current();
    let done = std::thread::scope(|scope| {
        let running = thread::spawn_scoped(scope, "world", || {
            let done = cluster.run_watched(flows, &watch);
            waiter.unpark();
            done
        })?;
        while !running.is_finished() {
            bar.set_position(watch.ended());
            bar.set_message(format!("{:.1} µs", watch.at() as f64 / US as f64));
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    });
    bar.finish_and_clear();
    done
}

fn bar(flows: u64) -> ProgressBar {
    if !output::has_viewer() {
        return ProgressBar::hidden();
    }
    let template = "{wide_bar} {pos} of {len} flows, {msg} simulated, {eta} left";
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(flows).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
