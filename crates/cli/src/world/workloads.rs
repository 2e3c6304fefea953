//! What each workload of a world has come to.

use remora_sim::flows::{Flow, Report};
use remora_sim::net::Ps;
use remora_sim::net::time::US;
use remora_sim::percentile;
use remora_sim::world_file::{Experiment, Workload};
use serde::Serialize;

/// What a workload has come to; times are in µs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Part {
    pub(super) kind: String,
    /// Its messages.
    pub(super) flows: usize,
    pub(super) done: usize,
    pub(super) mean_us: Option<f64>,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// From its first flow, or the calculation before it, to its last end, if all have ended: that
    /// of the whole collective.
    pub(super) whole_us: Option<f64>,
    /// What has arrived of it, by that time, or, where not all has ended, until the run stopped.
    pub(super) gigabits: f64,
}

/// By workload.
pub(super) fn parts(experiment: &Experiment, report: &Report) -> Vec<Part> {
    experiment.workloads.iter().map(|workload| part(experiment, report, workload)).collect()
}

fn part(experiment: &Experiment, report: &Report, workload: &Workload) -> Part {
    let own = workload.flows.clone();
    let all = &report.flows[own.clone()];
    let flows = &experiment.flows.flows[own];
    let is_message = flows.iter().map(|flow| !flow.is_wait());
    let messages =
        || all.iter().zip(is_message.clone()).filter(|(_, is)| *is).map(|(flow, _)| flow);
    let mut times: Vec<Ps> = messages().filter_map(|flow| flow.time()).collect();
    times.sort_unstable();
    let first = Flow::first(flows);
    let ends = all.iter().map(|flow| flow.ended).collect::<Option<Vec<Ps>>>();
    let last = ends.and_then(|ends| ends.into_iter().max());
    let us = |ps: Ps| ps as f64 / US as f64;
    let span = |end: Ps| end.saturating_sub(first);
    let arrived: u64 =
        messages().filter(|flow| flow.began.is_some()).map(|flow| flow.arrived).sum();
    let sum: f64 = times.iter().map(|time| us(*time)).sum();
    Part {
        kind: workload.kind.clone(),
        flows: messages().count(),
        done: times.len(),
        mean_us: (!times.is_empty()).then(|| sum / times.len() as f64),
        p50_us: percentile(&times, 500).map(us),
        p99_us: percentile(&times, 990).map(us),
        whole_us: last.map(span).map(us),
        // A bit in a picosecond is a thousand gigabits in a second.
        gigabits: arrived as f64 * 8e3 / span(last.unwrap_or(report.stopped)).max(1) as f64,
    }
}

/// The headings and cells of the table.
pub(super) fn table(parts: &[Part]) -> ([&'static str; 7], Vec<[String; 7]>) {
    let headings = ["workload", "done", "mean µs", "p50 µs", "p99 µs", "whole, µs", "Gb/s in all"];
    let two = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
    let row = |(i, part): (usize, &Part)| {
        [
            format!("{}. {}", i + 1, part.kind),
            format!("{} of {}", part.done, part.flows),
            two(part.mean_us),
            two(part.p50_us),
            two(part.p99_us),
            two(part.whole_us),
            format!("{:.2}", part.gigabits),
        ]
    };
    (headings, parts.iter().enumerate().map(row).collect())
}
