//! Runs flows, and shows how far the run has come.

use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use remora_sim::flows::{Cluster, ClusterError, Flow, Report, Watch};
use remora_sim::net::time::US;

use crate::output;

/// Runs flows with a bar of their progress, if somebody looks.
pub(crate) fn run(cluster: &Cluster, flows: &[Flow]) -> Result<Report, ClusterError> {
    let watch = Watch::default();
    let bar = bar(flows.len() as u64);
    let waiter = thread::current();
    let done = thread::scope(|scope| {
        let running = scope.spawn(|| {
            let done = cluster.run_watched(flows, &watch);
            waiter.unpark();
            done
        });
        while !running.is_finished() {
            bar.set_position(watch.ended());
            bar.set_message(format!("{:.1} µs", watch.at() as f64 / US as f64));
            thread::park_timeout(Duration::from_millis(100));
        }
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
