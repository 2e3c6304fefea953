//! `remora bench local`: two processes of this machine by a shared-memory ring, beside the same by
//! UDP; both ends pinned to a core each.

use anyhow::{Context, Result};
use clap::Args;

use super::report::{Options, report};
use super::row::{Case, Run, Target};
use crate::child;

/// Measures shared memory between two cards.
#[derive(Debug, Args)]
pub(super) struct Local {
    #[command(flatten)]
    pub(super) options: Options,
}

/// Bandwidth of long WRITEs: one queue pair, so that one core sends and one receives.
const STREAM: &str = "bw --size 1M --mtu 4096 --qps 1 --depth 16";

impl Local {
    pub(super) fn run(&self) -> Result<()> {
        let (runs, seconds) = if self.options.quick { (3, "0.1") } else { (9, "0.4") };
        let rows = self.options.measure(cases(seconds), runs)?;
        report(&rows, "`embedded_local_lat_8B`", &self.options)
    }
}

fn cases(seconds: &'static str) -> [Case<'static>; 3] {
    let case = |name, unit, target, test: &str, figure| Case {
        name,
        unit,
        peer: "the same by UDP",
        target,
        ours: writes("auto", test, seconds, figure),
        theirs: writes("udp", test, seconds, figure),
    };
    [
        case("embedded_local_lat_8B", "µs", Target::AtMost(0.25), "lat --size 8", "median_us"),
        case("embedded_local_bw_1MiB", "Gb/s", Target::AtLeast(2.0), STREAM, "gbps"),
        case("embedded_local_rate_64B", "Mmsg/s", Target::Any, "bw --size 64 --qps 64", "mmsgps"),
    ]
}

/// The field `figure` of the JSON that `remora perf write …` prints, on a fabric.
fn writes(fabric: &'static str, test: &str, seconds: &str, figure: &'static str) -> Run<'static> {
    let args = format!("perf write {test} --duration {seconds} --json");
    Box::new(move || {
        let args: Vec<&str> = args.split(' ').collect();
        let on = [(remora::fabric::FABRIC_VARIABLE, fabric)];
        let result: serde_json::Value = child::run_for_json_with(&on, &args)?;
        result[figure].as_f64().with_context(|| format!("`remora perf` prints no `{figure}`"))
    })
}
