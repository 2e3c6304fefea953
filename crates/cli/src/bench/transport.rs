//! `remora bench transport`: WRITEs beside plain sockets, both ends pinned to a core each; and, in
//! simulation, the goodput of a link that loses packets.

use anyhow::{Context, Result};
use clap::Args;

use remora_sim::goodput::{LOSSES, goodput};

use super::peers::Figure;
use super::report::{Options, report};
use super::row::{Case, Run, Target};
use crate::child;

/// TCP's settings to choose from: bytes of its buffers (0: the system's choice), and bytes of a
/// write.
const TCP_BUFFERS: [usize; 2] = [0, 4 << 20];
const TCP_WRITES: [usize; 3] = [128 << 10, 256 << 10, 1 << 20];
/// The seed of the simulated worlds, whose figures are exact.
const SEED: u64 = 1;

/// The rows of [`LOSSES`].
const GOODPUT: [&str; LOSSES.len()] =
    ["goodput_loss_0", "goodput_loss_0.01%", "goodput_loss_0.1%", "goodput_loss_1%"];

/// Measures the transport.
#[derive(Debug, Args)]
pub(super) struct Transport {
    #[command(flatten)]
    pub(super) options: Options,
}

impl Transport {
    pub(super) fn run(&self) -> Result<()> {
        let (runs, seconds) = if self.options.quick { (3, "0.1") } else { (9, "0.4") };
        let mut rows = self.options.measure(cases(seconds), runs)?;
        let lossy = GOODPUT.into_iter().zip(LOSSES);
        let wanted = lossy.filter(|(name, _)| self.options.wants(name));
        rows.extend(self.options.measure(wanted.map(|(name, loss)| simulated(name, loss)), 1)?);
        report(&rows, "`write_latency_8B`, `goodput_loss_1%`", &self.options)
    }
}

fn cases(seconds: &'static str) -> [Case<'static>; 6] {
    [
        Case {
            name: "write_latency_8B",
            unit: "µs",
            peer: "UDP ping-pong, busy polling",
            target: Target::AtMost(1.25),
            ours: writes("lat --size 8", seconds, "median_us"),
            theirs: peer("udp-latency", seconds),
        },
        Case {
            name: "write_bandwidth_1MiB",
            unit: "Gb/s",
            peer: "TCP, one stream",
            target: Target::AtLeast(1.0),
            ours: writes("bw --size 1M --mtu 4096 --qps 1 --depth 16", seconds, "gbps"),
            theirs: tuned_tcp(seconds),
        },
        Case {
            name: "write_rate_64B",
            unit: "Mmsg/s",
            peer: "UDP, a packet a call",
            target: Target::AtLeast(6.0),
            ours: writes("bw --size 64 --qps 64", seconds, "mmsgps"),
            theirs: peer("udp-rate", seconds),
        },
        Case::latency(
            "oversubscribed_send_64KB",
            "TCP that polls, on one core",
            Target::AtMost(0.5),
            crowded(ours("send", "lat --size 64K", seconds, "median_us")),
            crowded(peer("tcp-latency --write 65536", seconds)),
        ),
        Case::latency(
            "oversubscribed_send_64KB_sleep",
            "TCP that sleeps, on one core",
            Target::Any,
            crowded(ours("send", "lat --size 64K", seconds, "median_us")),
            crowded(peer("tcp-sleeping --write 65536", seconds)),
        ),
        Case::latency(
            "oversubscribed_send_8B_sleep",
            "TCP that sleeps, on one core",
            Target::Any,
            crowded(ours("send", "lat --size 8", seconds, "median_us")),
            crowded(peer("tcp-sleeping --write 8", seconds)),
        ),
    ]
}

/// The run, with all its processes on one core.
fn crowded(mut run: Run<'static>) -> Run<'static> {
    Box::new(move || child::on_core(0, &mut run))
}

/// The field `figure` of the JSON that `remora perf write …` prints.
pub(super) fn writes(test: &str, seconds: &str, figure: &'static str) -> Run<'static> {
    ours("write", test, seconds, figure)
}

/// The field `figure` of the JSON that `remora perf VERB …` prints.
pub(super) fn ours(verb: &str, test: &str, seconds: &str, figure: &'static str) -> Run<'static> {
    let args = format!("perf {verb} {test} --duration {seconds} --json");
    Box::new(move || {
        let args: Vec<&str> = args.split(' ').collect();
        let result: serde_json::Value = child::run_for_json(&args)?;
        result[figure].as_f64().with_context(|| format!("`remora perf` prints no `{figure}`"))
    })
}

/// The goodput at a rate of loss, beside the rate of the link.
fn simulated(name: &'static str, loss: f64) -> Case<'static> {
    let achieved = goodput(loss, SEED);
    Case {
        name,
        unit: "Gb/s",
        peer: "the link, simulated",
        target: Target::Any,
        ours: Box::new(move || Ok(achieved.bits_per_second / 1e9)),
        theirs: Box::new(move || Ok(achieved.bits_per_second / achieved.fraction / 1e9)),
    }
}

/// The figure of a peer.
pub(super) fn peer(kind: &str, seconds: &str) -> Run<'static> {
    let args = format!("bench peer {kind} --seconds {seconds}");
    Box::new(move || {
        let args: Vec<&str> = args.split(' ').collect();
        Ok(child::run_for_json::<Figure>(&args)?.value)
    })
}

/// The figure of the TCP peer, whose fastest settings are found before its first run.
fn tuned_tcp(seconds: &'static str) -> Run<'static> {
    let mut fastest: Option<Run<'static>> = None;
    Box::new(move || match &mut fastest {
        Some(run) => run(),
        none => none.insert(peer(&fastest_tcp(seconds)?, seconds))(),
    })
}

/// The arguments with which the TCP peer is fastest on this machine.
fn fastest_tcp(seconds: &str) -> Result<String> {
    let mut best = (0.0, String::new());
    for (buffer, write) in TCP_BUFFERS.iter().flat_map(|b| TCP_WRITES.map(|w| (b, w))) {
        let args = format!("tcp-bandwidth --buffer {buffer} --write {write}");
        let mut run = peer(&args, seconds);
        let figure = run()?.max(run()?);
        if figure > best.0 {
            best = (figure, args);
        }
    }
    Ok(best.1)
}
