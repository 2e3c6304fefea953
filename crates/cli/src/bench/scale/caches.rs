//! SRNIC's Fig. 2: what a card that caches its connections' state can do at most.

use remora_sim::card_cache::{CONTEXTS, EVERYTHING, NOTHING};

use crate::bench::figure::{Figure, Point, Style};
use crate::bench::row::Spread;

/// The numbers of queue pairs.
const QUEUE_PAIRS: [u64; 8] = [128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
/// The bytes of a SEND, as in the paper.
const BYTES: u64 = 512;

/// The bounds by the number of queue pairs.
pub(in crate::bench) fn figure() -> Figure {
    let gbps = |rate: f64| Spread::of(vec![rate / 1e9]);
    let point = |queue_pairs: u64| Point {
        x: queue_pairs.to_string(),
        ways: vec![
            gbps(NOTHING.by_latency(queue_pairs, BYTES)),
            gbps(CONTEXTS.by_bandwidth(queue_pairs, BYTES)),
            gbps(CONTEXTS.by_latency(queue_pairs, BYTES)),
            gbps(EVERYTHING.by_bandwidth(queue_pairs, BYTES)),
            gbps(EVERYTHING.by_latency(queue_pairs, BYTES)),
        ],
    };
    let ways = [
        "nothing to cache",
        "contexts cached, by bandwidth",
        "contexts cached, by latency",
        "requests cached too, by bandwidth",
        "requests cached too, by latency",
    ];
    let points: Vec<Point> = QUEUE_PAIRS.into_iter().map(point).collect();
    let last = points.last().map_or((0.0, 0.0), |last| (last.median(4), last.median(3)));
    Figure {
        id: "fig2",
        origin: "SRNIC’s Figure 2, bounds",
        title: "What a card that caches its connections can do at most",
        about: "SENDs of 512 B; a cache of 2 MB, PCIe Gen3 x16. A miss moves a context of 375 B \
                both ways and takes a round trip of 1.1 µs. Nothing is fitted.",
        x: "queue pairs",
        y: "payload",
        unit: "Gb/s",
        style: Style::Lines,
        ways: ways.map(str::to_owned).into(),
        points,
        paper: "97 Gb/s up to 128 queue pairs, a knee at 256, 52 Gb/s at 16,384 (CX-6, SRNIC §2.2)",
        here: format!(
            "with requests cached too, between {:.1} and {:.1} Gb/s at 16,384 queue pairs",
            last.0, last.1
        ),
    }
}
