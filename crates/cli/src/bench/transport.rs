//! `remora bench transport`: WRITEs beside plain sockets, both ends pinned to a core each.

use anyhow::{Context, Result};
use clap::Args;

use super::peers::Figure;
use super::{Case, Options, Target, measure, report};
use crate::child;

/// TCP's buffers to choose from: the system's own choice, and fixed sizes.
const TCP_BUFFERS: [&str; 3] = ["0", "1048576", "4194304"];

/// Measures the transport.
#[derive(Debug, Args)]
pub(super) struct Transport {
    #[command(flatten)]
    options: Options,
}

impl Transport {
    pub(super) fn run(&self) -> Result<()> {
        let (runs, seconds) = if self.options.quick { (3, "0.1") } else { (9, "0.4") };
        let buffer = faster_tcp(seconds)?;
        let mut rows = Vec::new();
        for case in cases(seconds, buffer) {
            rows.push(measure(case, runs)?);
        }
        report(&rows, &self.options)
    }
}

fn cases(seconds: &str, buffer: &str) -> [Case<'static>; 3] {
    [
        Case {
            name: "write_latency_8B",
            unit: "µs",
            peer: "UDP ping-pong, busy polling",
            target: Target::AtMost(1.3),
            ours: ours("lat --size 8", seconds, "median_us"),
            theirs: peer("udp-latency", seconds, "0"),
        },
        Case {
            name: "write_bandwidth_1MiB",
            unit: "Gb/s",
            peer: "TCP, one stream",
            target: Target::AtLeast(1.0),
            ours: ours("bw --size 1M --mtu 4096 --qps 1 --depth 16", seconds, "gbps"),
            theirs: peer("tcp-bandwidth", seconds, buffer),
        },
        Case {
            name: "write_rate_64B",
            unit: "Mmsg/s",
            peer: "UDP, a packet a call",
            target: Target::AtLeast(6.0),
            ours: ours("bw --size 64 --qps 64", seconds, "mmsgps"),
            theirs: peer("udp-rate", seconds, "0"),
        },
    ]
}

/// The field `figure` of what `remora perf write …` prints.
fn ours(
    test: &'static str,
    seconds: &str,
    figure: &'static str,
) -> Box<dyn FnMut() -> Result<f64>> {
    let args = format!("perf write {test} --duration {seconds} --json");
    Box::new(move || {
        let args: Vec<&str> = args.split(' ').collect();
        let result: serde_json::Value = child::run_for_json(&args)?;
        result[figure].as_f64().with_context(|| format!("`remora perf` prints no `{figure}`"))
    })
}

/// The figure of a peer.
fn peer(kind: &'static str, seconds: &str, buffer: &str) -> Box<dyn FnMut() -> Result<f64>> {
    let args = format!("bench peer {kind} --seconds {seconds} --buffer {buffer}");
    Box::new(move || {
        let args: Vec<&str> = args.split(' ').collect();
        Ok(child::run_for_json::<Figure>(&args)?.value)
    })
}

/// TCP is to be tuned: the buffers with which it is fastest here.
fn faster_tcp(seconds: &str) -> Result<&'static str> {
    let mut best = (0.0, TCP_BUFFERS[0]);
    for buffer in TCP_BUFFERS {
        let mut run = peer("tcp-bandwidth", seconds, buffer);
        let figure = run()?.max(run()?);
        if figure > best.0 {
            best = (figure, buffer);
        }
    }
    Ok(best.1)
}
