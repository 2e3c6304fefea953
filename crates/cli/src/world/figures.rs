//! The figures by which worlds are compared, and what they are over several seeds.

use serde::Serialize;

use super::result::Outcome;

/// A figure of a run.
pub(super) struct Figure {
    /// Its name in tables.
    pub(super) name: &'static str,
    /// Its name in JSON.
    pub(super) key: &'static str,
    /// It counts something, and is no measure of how good a run was.
    pub(super) counts: bool,
    /// `None` if no flow has ended.
    of: fn(&Outcome) -> Option<f64>,
}

const fn measure(name: &'static str, key: &'static str, of: fn(&Outcome) -> Option<f64>) -> Figure {
    Figure { name, key, counts: false, of }
}

const fn count(name: &'static str, key: &'static str, of: fn(&Outcome) -> Option<f64>) -> Figure {
    Figure { name, key, counts: true, of }
}

/// All of them. Times are in µs.
pub(super) const FIGURES: [Figure; 13] = [
    measure("mean completion", "mean_us", |o| Some(o.times_us?.mean)),
    measure("p50 completion", "p50_us", |o| Some(o.times_us?.p50)),
    measure("p99 completion", "p99_us", |o| Some(o.times_us?.p99)),
    measure("mean slowdown", "mean_slowdown", |o| o.mean_slowdown),
    measure("p99 slowdown", "p99_slowdown", |o| o.p99_slowdown),
    measure("goodput, Gb/s a host", "gigabits_per_host", |o| Some(o.gigabits_per_host)),
    measure("end", "end_us", |o| o.end_us),
    count("flows failed", "failed", |o| Some(o.failed as f64)),
    count("packets sent", "packets_sent", |o| Some(o.packets.sent as f64)),
    count("dropped", "packets_dropped", |o| {
        let p = o.packets;
        Some((p.dropped_full + p.dropped_loss + p.dropped_down + p.dropped_no_path) as f64)
    }),
    count("sent again", "packets_sent_again", |o| Some(o.packets.sent_again as f64)),
    count("marked", "packets_marked", |o| Some(o.packets.marked as f64)),
    count("pauses", "pauses", |o| Some(o.packets.pauses as f64)),
];

/// A figure over several runs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Spread {
    /// The mean of the runs' figures.
    pub(super) mean: f64,
    /// The lowest of them.
    pub(super) lowest: f64,
    /// The highest of them.
    pub(super) highest: f64,
    /// How many runs have it: those in which a flow has ended.
    pub(super) runs: usize,
}

impl Figure {
    /// The figure over these runs; `None` if none has it.
    pub(super) fn over(&self, runs: &[Outcome]) -> Option<Spread> {
        let values: Vec<f64> = runs.iter().filter_map(self.of).collect();
        let lowest = values.iter().copied().reduce(f64::min)?;
        let highest = values.iter().copied().reduce(f64::max)?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        // A sum of the same numbers is rounded.
        let mean = mean.clamp(lowest, highest);
        Some(Spread { mean, lowest, highest, runs: values.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_name_of_its_own() {
        for (i, figure) in FIGURES.iter().enumerate() {
            let others = &FIGURES[..i];
            assert!(others.iter().all(|o| o.name != figure.name && o.key != figure.key));
            assert_eq!(figure.over(&[]), None);
        }
    }
}
