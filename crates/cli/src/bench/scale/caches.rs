//! SRNIC's Fig. 2: what a card that caches its connections' state can do at most, and what its
//! misses then move.

use remora_sim::card_cache::{CONTEXTS, CachingCard, EVERYTHING, NOTHING};

use crate::bench::figure::{Figure, Point, Style};
use crate::bench::row::Spread;

/// The numbers of queue pairs.
const QUEUE_PAIRS: [u64; 8] = [128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
/// The bytes of a SEND, as in the paper.
const BYTES: u64 = 512;

/// One of the figures, by its name.
type Draw = fn() -> Figure;
/// The figures.
pub(in crate::bench) const FIGURES: [(&str, Draw); 3] =
    [("fig2", figure), ("fig2b", traffic), ("fig2b_misses", misses)];

/// The bounds by the number of queue pairs.
fn figure() -> Figure {
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

/// What misses come to: how many there are per second, and the bits that they move.
type Misses = (f64, f64);

/// By the number of queue pairs, a figure of the misses at each of the bounds of [`figure`].
fn by_bound(of: fn(Misses) -> f64) -> (Vec<String>, Vec<Point>) {
    let at = |card: CachingCard, queue_pairs: u64| {
        let rates = [card.by_bandwidth(queue_pairs, BYTES), card.by_latency(queue_pairs, BYTES)];
        rates.map(|rate| Spread::of(vec![of(card.traffic(queue_pairs, BYTES, rate))]))
    };
    let point = |queue_pairs: u64| Point {
        x: queue_pairs.to_string(),
        ways: [CONTEXTS, EVERYTHING].map(|card| at(card, queue_pairs)).concat(),
    };
    let ways = [
        "contexts cached, by bandwidth",
        "contexts cached, by latency",
        "requests cached too, by bandwidth",
        "requests cached too, by latency",
    ];
    (ways.map(str::to_owned).into(), QUEUE_PAIRS.into_iter().map(point).collect())
}

/// What the last point says of the card with requests cached, too.
fn last(points: &[Point], unit: &str) -> String {
    let (least, most) = points.last().map_or((0.0, 0.0), |last| (last.median(3), last.median(2)));
    format!(
        "with requests cached too, nothing at 128 queue pairs, and between {least:.1} and \
         {most:.1} {unit} at 16,384"
    )
}

/// Fig. 2b's extra traffic.
fn traffic() -> Figure {
    let (ways, points) = by_bound(|(_, bits)| bits / 1e9);
    let here = last(&points, "Gb/s");
    Figure {
        id: "fig2b",
        origin: "SRNIC’s Figure 2b, bounds",
        title: "What misses of the cache move over PCIe",
        about: "The cards of Figure 2 at their bounds, SENDs of 512 B: a read of a context of 375 \
                B and a write of another’s, with PCIe’s headers, both directions together. The \
                paper counts all that PCIe has beyond the network, and so elements and \
                completions, too; those are the same with any number of queue pairs, and left \
                out here. A card that waits for its misses has few; one that does not is held by \
                them. Nothing is fitted.",
        x: "queue pairs",
        y: "extra traffic of PCIe",
        unit: "Gb/s",
        style: Style::Lines,
        ways,
        points,
        paper: "extra traffic of PCIe rises after 256 queue pairs (CX-5 and CX-6, SRNIC §2.2; the \
                text has no numbers)",
        here,
    }
}

/// Fig. 2b's misses.
fn misses() -> Figure {
    let (ways, points) = by_bound(|(misses, _)| misses / 1e6);
    let here = last(&points, "million a second");
    Figure {
        id: "fig2b_misses",
        origin: "SRNIC’s Figure 2b, bounds",
        title: "Misses of a card’s cache of connections",
        about: "The same. The paper has the card’s own counter of misses, of which it does not \
                say what one is: here it is a message that finds no state of its queue pair.",
        x: "queue pairs",
        y: "misses",
        unit: "M/s",
        style: Style::Lines,
        ways,
        points,
        paper: "misses rise after 256 queue pairs (SRNIC §2.2; the text has no numbers)",
        here,
    }
}
