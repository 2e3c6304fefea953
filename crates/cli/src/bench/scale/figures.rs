//! SRNIC's Figs 9 and 10, live: between two processes of this machine, and beside TCP over its
//! loopback.

use anyhow::{Context, Result};

use super::{IN_FLIGHT, sends};
use crate::bench::figure::{Figure, Point, Style};
use crate::bench::program::cpu_of_children_s;
use crate::bench::row::{Case, Run, Target};
use crate::bench::transport::{ours, peer};

/// The numbers of queue pairs of Fig. 9: divisors of [`IN_FLIGHT`].
const QUEUE_PAIRS: [u32; 6] = [128, 500, 1000, 2000, 5000, 10_000];
/// The bytes of a message in Fig. 10a.
const SIZES: [u32; 8] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];
/// The bytes that are carried for the processor's time.
const STREAM: u32 = 65_536;

/// Rate by the number of queue pairs.
pub(super) fn by_queue_pairs(runs: usize, seconds: &str) -> Result<Figure> {
    let points = QUEUE_PAIRS.into_iter().map(|qps| {
        let mut ways = [sends(qps, IN_FLIGHT / qps, seconds), sends(qps, 8, seconds)];
        Point::measure(qps.to_string(), runs, &mut ways)
    });
    let points = points.collect::<Result<Vec<_>>>()?;
    let kept = |way: usize| {
        let ends = points.first().zip(points.last());
        ends.map_or(f64::NAN, |(few, many)| many.median(way) / few.median(way) * 100.0)
    };
    let here = format!(
        "10,000 queue pairs keep {:.0} % of the rate of 128 where as many messages are in flight \
         in all, and {:.0} % where as many are on each",
        kept(0),
        kept(1)
    );
    Ok(Figure {
        id: "fig9",
        origin: "SRNIC’s Figure 9, live",
        title: "Rate by the number of queue pairs",
        about: "SENDs of 512 B, from one process to another. What is in flight has its place in \
                rings and buffers, which a processor’s caches must hold: so 80,000 messages in \
                all, whatever the number of queue pairs, beside 8 on each.",
        x: "queue pairs",
        y: "messages a second",
        unit: "M/s",
        style: Style::Lines,
        ways: vec!["80,000 in flight".into(), "8 in flight on each".into()],
        points,
        paper: "97 Gb/s flat (SRNIC), 81 to 96 Gb/s (TCP)",
        here,
    })
}

/// Bandwidth by the length of messages.
pub(super) fn by_size(runs: usize, seconds: &str) -> Result<Figure> {
    let points = SIZES.into_iter().map(|size| {
        let test = format!("bw --size {size} --mtu 4096 --qps 1 --depth 64");
        let tcp = peer(&format!("tcp-bandwidth --write {size}"), seconds);
        let mut ways = [ours("send", &test, seconds, "gbps"), tcp];
        Point::measure(size.to_string(), runs, &mut ways)
    });
    let points = points.collect::<Result<Vec<_>>>()?;
    let best = points.iter().map(|point| point.median(0)).fold(0.0, f64::max);
    let rate = points.first().map_or(0.0, |point| point.median(0) * 1e3 / 8.0 / 64.0);
    Ok(Figure {
        id: "fig10a",
        origin: "SRNIC’s Figure 10a, live",
        title: "Bandwidth of one queue pair by the length of messages",
        about: "SENDs, path MTU 4096, 64 in flight, beside one TCP stream with writes of that \
                length.",
        x: "bytes of a message",
        y: "payload",
        unit: "Gb/s",
        style: Style::Log,
        ways: vec!["Remora".into(), "TCP, one stream".into()],
        points,
        paper: "97 Gb/s from 4 KB on, and 6.6 million messages a second (SRNIC); TCP at most 37",
        here: format!("up to {best:.1} Gb/s; {rate:.2} million messages of 64 B a second"),
    })
}

/// Fig. 10b, the latency of 64 B; Fig. 10c, what a gigabyte takes of the processor.
pub(super) fn cases(seconds: &'static str) -> Vec<Case<'static>> {
    let send = format!("bw --size {STREAM} --mtu 4096 --qps 1 --depth 64");
    let tcp = format!("tcp-bandwidth --write {STREAM}");
    vec![
        Case::latency(
            "fig10b_latency_64B",
            "TCP that polls",
            Target::Any,
            ours("send", "lat --size 64", seconds, "median_us"),
            peer("tcp-latency --write 64", seconds),
        ),
        Case {
            name: "fig10c_cpu",
            unit: "s/GB",
            peer: "TCP, one stream",
            target: Target::Any,
            ours: cpu_of(ours("send", &send, seconds, "gbps"), seconds),
            theirs: cpu_of(peer(&tcp, seconds), seconds),
        },
    ]
}

/// The processor seconds a gigabyte of a run that measures Gb/s: of all its processes, with what
/// they take to begin and to end.
fn cpu_of(mut run: Run<'static>, seconds: &'static str) -> Run<'static> {
    Box::new(move || {
        let before = cpu_of_children_s()?;
        let gbps = run()?;
        let cpu = cpu_of_children_s()? - before;
        let time: f64 = seconds.parse().context("no number of seconds")?;
        Ok(cpu / (gbps / 8.0 * time))
    })
}
