//! Figures of papers whose cards are hardware, in worlds of two hosts with the profiles of these
//! cards ([`PROFILES`](remora_sim::hardware::PROFILES)): SRNIC's Figs 2 and 9, StRoM's Figs 5 and
//! 12, RedN's Fig. 7. Flows are WRITEs; what else a figure has is not simulated. SRNIC's Fig. 11
//! stands beside them as `remora bench loss` has it.

use anyhow::{Context, Result, ensure};
use remora::nic::qp::Mtu;
use remora_sim::card_cache::{EVERYTHING, NOTHING};
use remora_sim::flows::{Cluster, Flow, Report, calls};
use remora_sim::hardware::{FEWEST_READS, MOST_READS, Profile};
use remora_sim::net::time::{NS, US};
use remora_sim::net::{Cable, LineRate, Node, Ps, Topology};

use crate::bench::figure::{Figure, Point, Style};
use crate::bench::loss::simulated;
use crate::bench::row::Spread;
use crate::bench::scale::caches;
use crate::output::{bytes, grouped};

/// A cable of two metres (assumed; no paper states it).
const CABLE: Ps = 10 * NS;
/// Queue pairs of SRNIC's Fig. 9, the bytes of its messages, and how many messages a run has.
const QUEUE_PAIRS: [u64; 4] = [128, 1024, 4096, 10_240];
const SEND: u64 = 512;
const MESSAGES: u64 = 20_480;
/// Queue pairs of its Fig. 2a.
const CACHED: [u64; 8] = [64, 128, 256, 512, 1024, 4096, 10_240, 16_384];
/// What its other lines are.
const BOUNDS: [&str; 3] =
    ["bound, nothing to cache", "bound, cache, by bandwidth", "bound, cache, by latency"];
/// Bytes of StRoM's ping-pong, and of its streams.
const PINGS: [u64; 5] = [64, 128, 256, 512, 1024];
const STREAMS: [u64; 8] = [64, 256, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 128 << 10, 1 << 20];

/// How many reads of PCIe the cards may have in flight: no paper says so of its own, so both bounds
/// are shown.
const READS: [u64; 2] = [FEWEST_READS.value, MOST_READS.value];

/// One of the figures, by its name.
type Draw = fn(bool) -> Result<Figure>;
const FIGURES: [(&str, Draw); 8] = [
    ("fig2_simulated", caching),
    ("fig9", |_| connections()),
    ("fig11_1024", |quick| Ok(simulated::by_loss("fig11_1024", Mtu::B1024, quick))),
    ("strom5a", |_| pings("strom5a", &TEN)),
    ("strom5b", |_| streams("strom5b", &TEN)),
    ("strom12a", |_| pings("strom12a", &HUNDRED)),
    ("strom12b", |_| streams("strom12b", &HUNDRED)),
    ("redn7", |_| verbs()),
];

/// The figures that are wanted. `quick`: with fewer points.
pub(super) fn figures(is_wanted: &dyn Fn(&str) -> bool, quick: bool) -> Result<Vec<Figure>> {
    let bounds = caches::FIGURES.into_iter().filter(|(id, _)| is_wanted(id));
    let mut figures: Vec<Figure> = bounds.map(|(_, draw)| draw()).collect();
    for (id, draw) in FIGURES.into_iter().filter(|(id, _)| is_wanted(id)) {
        figures.push(draw(quick).with_context(|| format!("cannot simulate {id}"))?);
    }
    Ok(figures)
}

/// Two hosts with cards of this name, and a cable between them.
fn two(gigabits: u64, card: &str) -> Result<Cluster> {
    let rate = LineRate::gigabits(gigabits);
    let cable = Cable { a: Node::Host(0), b: Node::Host(1), rate, delay: CABLE };
    let mut cluster = Cluster::new(Topology { hosts: 2, switches: 0, cables: vec![cable] });
    let profile = Profile::named(card).with_context(|| format!("there is no card `{card}`"))?;
    cluster.hardware = vec![Some(profile); 2];
    Ok(cluster)
}

fn run(cluster: &Cluster, flows: &[Flow]) -> Result<Report> {
    let report = cluster.run(flows)?;
    ensure!(report.done() == flows.len(), "{} of {} flows ended", report.done(), flows.len());
    Ok(report)
}

fn once(value: f64) -> Spread {
    Spread::of(vec![value])
}

/// The cluster with so many reads of PCIe in flight at each card.
fn with_reads(cluster: &Cluster, reads: u64) -> Cluster {
    let mut cluster = cluster.clone();
    cluster.hardware.iter_mut().flatten().for_each(|card| *card = card.with_reads(reads as u32));
    cluster
}

/// What the ways of [`READS`] are called.
fn reads_in_flight() -> impl Iterator<Item = String> {
    READS.into_iter().map(|reads| format!("{reads} reads in flight"))
}

/// Half of a round trip in µs: each host writes back what has been written to it.
fn half_trip(cluster: &Cluster, bytes: u64) -> Result<f64> {
    let flows = calls([1], 0, (bytes, bytes), 0, 10);
    let report = run(cluster, &flows)?;
    let began = |flow: usize| report.flows[flow].began.unwrap_or(0);
    let last = flows.len() - 1;
    Ok((began(last) - began(0)) as f64 / last as f64 / US as f64)
}

/// What a stream of messages comes to: payload in Gb/s, and millions of messages a second.
fn stream(cluster: &Cluster, flows: &[Flow]) -> Result<(f64, f64)> {
    let report = run(cluster, flows)?;
    let ps = report.end().max(1) as f64;
    let payload: u64 = flows.iter().map(|flow| flow.bytes).sum();
    Ok((payload as f64 * 8e3 / ps, flows.len() as f64 * 1e6 / ps))
}

/// Short messages over so many queue pairs, one under way on each: the payload in Gb/s with as
/// many reads in flight as each of [`READS`].
fn turns(card: &str, queue_pairs: u64) -> Result<Vec<f64>> {
    let cluster = two(100, card)?;
    let flow = |i: u64| {
        let after = i.checked_sub(queue_pairs).map(|before| before as u32);
        let connection = Some((i % queue_pairs) as u32);
        Flow { after: after.into_iter().collect(), connection, ..Flow::new(0, 1, SEND, 0) }
    };
    let flows: Vec<Flow> = (0..MESSAGES).map(flow).collect();
    let rate = |reads| Ok(stream(&with_reads(&cluster, reads), &flows)?.0);
    READS.into_iter().map(rate).collect()
}

/// SRNIC's Fig. 2a: its ConnectX-6 alone.
fn caching(quick: bool) -> Result<Figure> {
    let queue_pairs = if quick { &CACHED[..2] } else { &CACHED[..] };
    let point = |queue_pairs: &u64| -> Result<Point> {
        let ways = turns("cx6", *queue_pairs)?.into_iter().map(once).collect();
        Ok(Point { x: grouped(*queue_pairs), ways })
    };
    let points: Vec<Point> = queue_pairs.iter().map(point).collect::<Result<_>>()?;
    let last = points.len() - 1;
    let of = |way| format!("{:.1} to {:.1}", points[0].median(way), points[last].median(way));
    let here = format!(
        "from {} to {} queue pairs, the simulated card goes from {} Gb/s with {} reads in flight, \
         and from {} with {}",
        points[0].x,
        points[last].x,
        of(0),
        READS[0],
        of(1),
        READS[1]
    );
    Ok(Figure {
        id: "fig2_simulated",
        origin: "SRNIC’s Figure 2a, simulated",
        title: "A card that caches its connections",
        about: "Messages of 512 B, one under way on each queue pair, which take turns. The card \
                has 2 MB for the state of queue pairs, of which each takes 12.8 kB (SRNIC §2.2, \
                Table 1). A message whose queue pair’s state is elsewhere waits for a context of \
                375 B and an element of 64 B; another’s context goes back. Which one, is drawn. \
                How many reads are in flight is not stated. Nothing is fitted.",
        x: "queue pairs",
        y: "payload",
        unit: "Gb/s",
        style: Style::Lines,
        ways: reads_in_flight().map(|reads| format!("ConnectX-6’s profile, {reads}")).collect(),
        points,
        paper: "97 Gb/s up to 128 queue pairs, a knee at 256, 52 Gb/s at 16,384 (CX-6, SRNIC §2.2)",
        here,
    })
}

/// SRNIC's Fig. 9.
fn connections() -> Result<Figure> {
    let point = |queue_pairs: u64| -> Result<Point> {
        let mut ways = turns("srnic", queue_pairs)?;
        ways.extend(turns("cx6", queue_pairs)?);
        let bounds = [
            NOTHING.by_bandwidth(queue_pairs, SEND),
            EVERYTHING.by_bandwidth(queue_pairs, SEND),
            EVERYTHING.by_latency(queue_pairs, SEND),
        ];
        ways.extend(bounds.map(|bits| bits / 1e9));
        Ok(Point { x: grouped(queue_pairs), ways: ways.into_iter().map(once).collect() })
    };
    let points: Vec<Point> = QUEUE_PAIRS.into_iter().map(point).collect::<Result<_>>()?;
    let last = points.len() - 1;
    let of = |way| format!("{:.1} to {:.1}", points[0].median(way), points[last].median(way));
    let here = format!(
        "flat as the paper’s: from {} to {} queue pairs, the simulated card moves {} Gb/s of \
         payload with {} reads in flight and {} with {}; ConnectX-6’s profile {} and {}",
        grouped(QUEUE_PAIRS[0]),
        grouped(QUEUE_PAIRS[last]),
        of(0),
        READS[0],
        of(1),
        READS[1],
        of(2),
        of(3)
    );
    Ok(Figure {
        id: "fig9",
        origin: "SRNIC’s Figure 9, simulated",
        title: "Connection scalability",
        about: "Messages of 512 B, one under way on each queue pair. SRNIC’s card is simulated: 8 \
                elements of a queue pair in a round trip of PCIe, 1.1 µs, and no cache. A message \
                takes two reads, of at most 512 B; how many are in flight is not stated: PCIe’s \
                tags tell 32 apart or, with 8 bits, 256. The line leaves 86 Gb/s of payload, so \
                the paper’s 97 must count headers. Of ConnectX-6’s profile, see fig2_simulated.",
        x: "queue pairs",
        y: "payload",
        unit: "Gb/s",
        style: Style::Lines,
        ways: ["SRNIC’s card", "ConnectX-6’s profile"]
            .iter()
            .flat_map(|card| reads_in_flight().map(move |reads| format!("{card}, {reads}")))
            .chain(BOUNDS.map(str::to_owned))
            .collect(),
        points,
        paper: "SRNIC is almost unchanged at around 97 Gb/s from 128 to 10K queue pairs; CX-5 and \
                CX-6 drop from 256 on",
        here,
    })
}

/// One of StRoM's two cards.
struct Strom {
    gigabits: u64,
    card: &'static str,
    origin: [&'static str; 2],
    paper: [&'static str; 2],
}

const TEN: Strom = Strom {
    gigabits: 10,
    card: "strom",
    origin: ["StRoM’s Figure 5a, simulated", "StRoM’s Figure 5b, simulated"],
    paper: [
        "a curve without values in the text",
        "9.4 Gb/s for large payloads; small messages are bound by the message rate (path MTU 1500)",
    ],
};
const HUNDRED: Strom = Strom {
    gigabits: 100,
    card: "strom-100g",
    origin: ["StRoM’s Figure 12a, simulated", "StRoM’s Figure 12b, simulated"],
    paper: [
        "less than at 10 Gb/s: cycles are less than half as long, and storing a packet to check \
         it takes less",
        "the whole line from 2 KB on; below, the processor’s stores that issue messages limit the \
         rate",
    ],
};

/// StRoM's Figs 5a and 12a.
fn pings(id: &'static str, strom: &Strom) -> Result<Figure> {
    let cluster = two(strom.gigabits, strom.card)?;
    let point = |size| -> Result<Point> {
        Ok(Point { x: bytes(size), ways: vec![once(half_trip(&cluster, size)?)] })
    };
    let points: Vec<Point> = PINGS.into_iter().map(point).collect::<Result<_>>()?;
    let [first, last] = [0, points.len() - 1].map(|at| points[at].median(0));
    Ok(Figure {
        id,
        origin: strom.origin[0],
        title: "WRITE’s latency, by size",
        about: "Half of a round trip: each host writes back what was written to it. Simulated are \
                PCIe (1.5 µs, §6.2), the line and a cable of 10 ns (assumed), not the pipeline’s \
                cycles. READs are not simulated.",
        x: "payload",
        y: "latency",
        unit: "µs",
        style: Style::Lines,
        ways: vec!["WRITE".into()],
        points,
        paper: strom.paper[0],
        here: format!("{first:.2} µs for 64 B, {last:.2} µs for 1 KB"),
    })
}

/// StRoM's Figs 5b and 12b, with the message rates of 5c and 12c in words.
fn streams(id: &'static str, strom: &Strom) -> Result<Figure> {
    let cluster = two(strom.gigabits, strom.card)?;
    let mut rate = 0.0;
    let mut points = Vec::new();
    for size in STREAMS {
        let count = ((8 << 20) / size).clamp(8, 4096);
        let flows: Vec<Flow> = (0..count).map(|_| Flow::new(0, 1, size, 0)).collect();
        let mut ways = Vec::new();
        for reads in READS {
            let (gigabits, millions) = stream(&with_reads(&cluster, reads), &flows)?;
            rate = f64::max(rate, millions);
            ways.push(once(gigabits));
        }
        points.push(Point { x: bytes(size), ways });
    }
    let most = |way| points.iter().map(|point| point.median(way)).fold(0.0, f64::max);
    let here = format!(
        "{:.2} Gb/s at most with {} reads in flight, {:.2} with {}; {rate:.1} million messages a \
         second",
        most(0),
        READS[0],
        most(1),
        READS[1]
    );
    Ok(Figure {
        id,
        origin: strom.origin[1],
        title: "WRITE’s throughput, by size",
        about: "Messages that are all posted at once, each on a queue pair of its own; path MTU \
                1024. Nothing limits how fast the processor posts them. How many reads of 512 B \
                are in flight is not stated: PCIe’s tags tell 32 apart or, with 8 bits, 256; the \
                card fetches as much ahead of its port.",
        x: "payload",
        y: "payload",
        unit: "Gb/s",
        style: Style::Lines,
        ways: reads_in_flight().map(|reads| format!("WRITE, {reads}")).collect(),
        points,
        paper: strom.paper[1],
        here,
    })
}

/// RedN's Fig. 7.
fn verbs() -> Result<Figure> {
    let cluster = two(100, "cx5")?;
    let flows = [Flow::new(0, 1, 64, 0)];
    let report = run(&cluster, &flows)?;
    let us = report.flows[0].time().unwrap_or(0) as f64 / US as f64;
    Ok(Figure {
        id: "redn7",
        origin: "RedN’s Figure 7, simulated",
        title: "Latency of a WRITE of 64 B",
        about: "From the card to the last acknowledge, on idle cards with a cable. Not simulated: \
                the doorbell and the fetch of the element (the paper: a NOOP takes 1.21 µs with \
                them), the completion, READs and atomics.",
        x: "verb",
        y: "latency",
        unit: "µs",
        style: Style::Bars,
        ways: vec!["ConnectX-5’s profile".into()],
        points: vec![Point { x: "WRITE".into(), ways: vec![once(us)] }],
        paper: "WRITE 1.6 µs; READ and atomics about 1.8 µs, as they wait for a completion of \
                PCIe; the network is 0.25 µs of it",
        here: format!("{us:.2} µs without doorbell, element and completion"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_names() {
        let of = |name: &'static str| {
            let mut figures = figures(&|other| other == name, true).unwrap();
            assert_eq!(figures.len(), 1, "{name}");
            figures.remove(0)
        };
        // The rate does not depend on the number of queue pairs: 16 messages in a round trip of
        // 1.1 µs at most, as each takes two reads.
        let fig9 = of("fig9");
        let rates = |way| fig9.points.iter().map(move |point| point.median(way));
        // With as many reads as 8 bits tell apart, the line: 512 of 594 bytes are payload.
        let most = [16.0 * 4.096 / 1.1, 100.0 * 512.0 / 594.0];
        for (way, least) in [45.0, 83.0].into_iter().enumerate() {
            let first = fig9.points[0].median(way);
            assert!((least..most[way]).contains(&first), "{}", fig9.here);
            assert!(rates(way).all(|rate| (rate - first).abs() < 0.1), "{}", fig9.here);
        }
        // ConnectX-6's profile is at the line where its cache holds all queue pairs, and beyond
        // within the bounds, whichever the reads.
        let at = |point: usize, way| fig9.points[point].median(way);
        for way in [2, 3] {
            assert!((83.0..most[1]).contains(&at(0, way)), "{}", fig9.here);
            let [first, last] = [at(1, way), at(3, way)];
            assert!(last <= first && first < 0.8 * at(0, way), "{}", fig9.here);
            let (by_bandwidth, by_latency) = (at(3, 5), at(3, 6));
            assert!(by_latency < last && last <= by_bandwidth, "{}", fig9.here);
        }
        // 1024 of 1106 bytes are payload; 16 KB in a round trip of 1.5 µs are 87 Gb/s.
        let last = |figure: Figure| [0, 1].map(|way| figure.points.last().unwrap().median(way));
        let within = |rate: f64, least: f64, most: f64| assert!((least..most).contains(&rate));
        let [few, many] = last(of("strom5b"));
        within(few, 8.5, 9.27);
        within(many, 8.5, 9.27);
        let [few, many] = last(of("strom12b"));
        within(few, 70.0, 87.0);
        within(many, 88.0, 92.6);
        let (slow, fast) = (of("strom5a"), of("strom12a"));
        assert!(slow.points.iter().zip(&fast.points).all(|(s, f)| s.median(0) > f.median(0)));
        let write = of("redn7").points[0].median(0);
        assert!((0.7..1.6).contains(&write), "{write}");
        assert!(figures(&|_| false, true).unwrap().is_empty());
    }
}
