//! Completion times and slowdowns by size, as papers show them: the flows in order of size, in
//! groups of as many each.

use super::report::Report;
use crate::net::Ps;
use crate::percentile;

/// The flows of one range of sizes that have ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SizeClass {
    /// The shortest flow in bytes.
    pub least: u64,
    /// The longest flow in bytes.
    pub most: u64,
    /// How many flows.
    pub flows: usize,
    /// Mean completion time in picoseconds.
    pub mean: f64,
    /// Completion times in picoseconds that 50, 95 and 99 % of the flows do not exceed.
    pub times: [Ps; 3],
    /// Mean slowdown.
    pub mean_slowdown: f64,
    /// Slowdowns that 50, 95 and 99 % of the flows do not exceed.
    pub slowdowns: [f64; 3],
}

/// The percentiles of [`SizeClass::times`] and [`SizeClass::slowdowns`], in thousandths.
const PARTS: [usize; 3] = [500, 950, 990];

const SOME: &str = "a class has flows";

impl Report {
    /// The flows that have ended in at most `groups` groups by size. Flows of one size are in one
    /// group.
    pub fn classes(&self, groups: usize) -> Vec<SizeClass> {
        let mut all: Vec<(u64, Ps, f64)> = self
            .messages()
            .filter_map(|(flow, (.., bytes))| Some((bytes, flow.time()?, flow.slowdown()?)))
            .collect();
        all.sort_unstable_by_key(|(bytes, time, _)| (*bytes, *time));
        let mut classes = Vec::new();
        let mut rest = all.as_slice();
        for group in 0..groups {
            let target = all.len() * (group + 1) / groups
                - (all.len() - rest.len()).min(all.len() * (group + 1) / groups);
            if rest.is_empty() || target == 0 {
                continue;
            }
            let last = rest[target - 1].0;
            let (here, behind) = rest.split_at(rest.partition_point(|flow| flow.0 <= last));
            classes.push(SizeClass::of(here));
            rest = behind;
        }
        classes
    }
}

impl SizeClass {
    fn of(flows: &[(u64, Ps, f64)]) -> SizeClass {
        let mut times: Vec<Ps> = flows.iter().map(|flow| flow.1).collect();
        let mut slowdowns: Vec<f64> = flows.iter().map(|flow| flow.2).collect();
        times.sort_unstable();
        slowdowns.sort_unstable_by(f64::total_cmp);
        let n = flows.len() as f64;
        SizeClass {
            least: flows[0].0,
            most: flows[flows.len() - 1].0,
            flows: flows.len(),
            mean: times.iter().map(|time| *time as f64).sum::<f64>() / n,
            times: PARTS.map(|part| percentile(&times, part).expect(SOME)),
            mean_slowdown: slowdowns.iter().sum::<f64>() / n,
            slowdowns: PARTS.map(|part| percentile(&slowdowns, part).expect(SOME)),
        }
    }
}
