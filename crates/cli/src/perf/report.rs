//! The figures of a measurement (median, p99, rates), as a table or as JSON.

use anyhow::Result;
use remora_sim::percentile;
use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::latency::Latency;
use super::plan::Plan;
use crate::output;

/// A measurement and its outcome.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) plan: Plan,
    pub(super) mtu: u32,
    /// The queue pairs spoke the lossy dialect.
    pub(super) lossy: bool,
    pub(super) measured: Measured,
}

/// The outcome, by the kind of test.
#[derive(Debug)]
pub(super) enum Measured {
    Latency(Latency),
    Bandwidth(Bandwidth),
}

impl Measured {
    /// Operations in all, warm-up included.
    pub(super) fn messages(&self) -> u64 {
        match self {
            Measured::Latency(latency) => latency.messages,
            Measured::Bandwidth(bandwidth) => bandwidth.messages,
        }
    }
}

/// The result, in its JSON form.
#[derive(Debug, Serialize)]
struct Row {
    test: String,
    bytes: u32,
    qps: u32,
    depth: u32,
    mtu: u32,
    dialect: &'static str,
    iterations: u64,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    Latency { min_us: f64, median_us: f64, avg_us: f64, p99_us: f64, p999_us: f64, max_us: f64 },
    Bandwidth { seconds: f64, gbps: f64, mmsgps: f64 },
}

/// Prints the outcome on standard output.
pub(super) fn print(outcome: &Outcome, json: bool) -> Result<()> {
    let row = row(outcome);
    if json {
        return output::json_line(&row);
    }
    let plan = &outcome.plan;
    let (name, qps, mtu) = (plan.name(), plan.qps, outcome.mtu);
    println!("{name}, {qps} queue pair(s), MTU {mtu}, {} dialect, verified", row.dialect);
    let (names, values): (Vec<&str>, Vec<f64>) = match row.figures {
        Figures::Latency { min_us, median_us, avg_us, p99_us, p999_us, max_us } => [
            ("min µs", min_us),
            ("median µs", median_us),
            ("avg µs", avg_us),
            ("p99 µs", p99_us),
            ("p99.9 µs", p999_us),
            ("max µs", max_us),
        ]
        .into_iter()
        .unzip(),
        Figures::Bandwidth { seconds, gbps, mmsgps } => {
            [("seconds", seconds), ("Gb/s", gbps), ("Mmsg/s", mmsgps)].into_iter().unzip()
        }
    };
    let mut table = output::table(["bytes", "iterations"].into_iter().chain(names));
    let values = values.into_iter().map(|v| format!("{v:.3}"));
    let cells = [row.bytes.to_string(), row.iterations.to_string()];
    table.add_row(cells.into_iter().chain(values));
    let columns = table.column_count();
    output::align_right(&mut table, 0..columns);
    println!("{table}");
    Ok(())
}

fn row(outcome: &Outcome) -> Row {
    let plan = &outcome.plan;
    let (iterations, figures) = match &outcome.measured {
        Measured::Latency(latency) => (latency.counted, latency_figures(&latency.samples)),
        Measured::Bandwidth(b) => {
            let seconds = b.time.as_secs_f64();
            let messages = b.messages as f64;
            let gbps = messages * f64::from(plan.size) * 8.0 / seconds / 1e9;
            (b.messages, Figures::Bandwidth { seconds, gbps, mmsgps: messages / seconds / 1e6 })
        }
    };
    let Plan { size, qps, depth, .. } = *plan;
    let (test, mtu) = (plan.name(), outcome.mtu);
    let dialect = if outcome.lossy { "lossy" } else { "standard" };
    Row { test, bytes: size, qps, depth, mtu, dialect, iterations, figures }
}

/// The figures of `sorted`, which is not empty: every measurement has at least one operation.
fn latency_figures(sorted: &[u64]) -> Figures {
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |per_mille| percentile(sorted, per_mille).map_or(f64::NAN, us);
    let sum: u64 = sorted.iter().sum();
    Figures::Latency {
        min_us: at(0),
        median_us: at(500),
        avg_us: us(sum) / sorted.len() as f64,
        p99_us: at(990),
        p999_us: at(999),
        max_us: at(1000),
    }
}
