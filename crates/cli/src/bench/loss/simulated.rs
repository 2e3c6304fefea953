//! Losses and paths of unequal delay, in the simulator. Its figures are exact: each is one run.

use core::time::Duration;

use remora::nic::qp::Mtu;
use remora_sim::schemes::{LOSSY, PATHS, SCHEMES, Scheme, at_loss, spread, tail_loss};
use remora_sim::{Goodput, percentile};

use crate::bench::figure::{Figure, Point, Style};
use crate::bench::row::{PeerSide, Row, Spread, Target};

/// What SRNIC says of its Fig. 11.
pub(super) const PAPER: &str = "at 1 % loss, SRNIC keeps 75 Gb/s of 97, and ConnectX-6 25 Gb/s \
                                (SRNIC §6.3: SENDs of 4 KB, path MTU 1024, no congestion control)";
/// The seed of the simulated worlds.
const SEED: u64 = 1;
/// Losses as fractions, and as the figure has them.
const LOSSES: [(f64, &str); 6] = [
    (0.0, "0 %"),
    (1e-4, "0.01 %"),
    (1e-3, "0.1 %"),
    (5e-3, "0.5 %"),
    (1e-2, "1 %"),
    (2e-2, "2 %"),
];
/// The longest WRITE of `tail_loss`, in packets.
const TAIL_MAX: usize = 64;

fn once(value: f64) -> Spread {
    Spread::of(vec![value])
}

fn gbps(goodput: &Goodput) -> f64 {
    goodput.bits_per_second / 1e9
}

fn row(
    name: String,
    unit: &'static str,
    ours: f64,
    peer: (&'static str, f64),
    target: Target,
) -> Row {
    let ratio = if peer.1 > 0.0 { ours / peer.1 } else { 0.0 };
    let peer = PeerSide { name: peer.0.into(), spread: once(peer.1) };
    Row { name: name.into(), unit, ours: once(ours), peer, ratio, target }
}

/// The rows with a target.
pub(super) fn rows(is_wanted: &dyn Fn(&str) -> bool, quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for mtu in [Mtu::B1024, Mtu::B4096] {
        let name = format!("loss_1pct_{}", mtu.bytes());
        if is_wanted(&name) {
            rows.push(one_per_cent(name, mtu));
        }
    }
    for paths in PATHS {
        let name = format!("spurious_{paths}_paths");
        if is_wanted(&name) {
            let for_nothing = for_nothing(&LOSSY, paths);
            let allowed = ("the share allowed", 0.1);
            rows.push(row(name, "%", for_nothing, allowed, Target::AtMost(1.0)));
        }
    }
    if is_wanted("tail_loss") {
        rows.push(tail(if quick { 8 } else { TAIL_MAX }));
    }
    rows
}

/// Goodput at 1 % loss, beside what could arrive of that without loss.
fn one_per_cent(name: String, mtu: Mtu) -> Row {
    let quiet = at_loss(&LOSSY, mtu, 0.0, SEED);
    let lossy = at_loss(&LOSSY, mtu, 0.01, SEED);
    let could = ("its own without loss, × 0.99", gbps(&quiet) * 0.99);
    row(name, "Gb/s", gbps(&lossy), could, Target::AtLeast(0.97))
}

/// How many of its packets a scheme sends again over so many paths, of which none loses any: per
/// cent.
fn for_nothing(scheme: &Scheme, paths: u8) -> f64 {
    let spread = spread(scheme, Mtu::B4096, paths, SEED);
    100.0 * spread.retransmitted as f64 / spread.packets as f64
}

/// The time of a WRITE whose last packet is lost, beside what it may take.
fn tail(most: usize) -> Row {
    let measured = tail_loss(&LOSSY, most, SEED);
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    // Beyond the packets before the last one: what remains is the last one's time.
    let last = |(quiet, lost): &(Duration, Duration)| {
        us((*lost + measured.round_trip).saturating_sub(*quiet))
    };
    let mut over: Vec<f64> = measured.times.iter().map(last).collect();
    over.sort_by(f64::total_cmp);
    let p99 = percentile(&over, 990).unwrap_or(f64::NAN);
    let allowed = ("3 round trips (nothing is held)", us(3 * measured.round_trip));
    row("tail_loss".into(), "µs", p99, allowed, Target::AtMost(1.0))
}

/// The figures.
pub(super) fn figures(is_wanted: &dyn Fn(&str) -> bool, quick: bool) -> Vec<Figure> {
    let mut figures = Vec::new();
    let fig11 = [("fig11_1024", Mtu::B1024), ("fig11_4096", Mtu::B4096)];
    for (id, mtu) in fig11.into_iter().filter(|(id, _)| is_wanted(id)) {
        figures.push(by_loss(id, mtu, quick));
    }
    if is_wanted("spurious_paths") {
        figures.push(by_paths());
    }
    figures
}

fn names() -> Vec<String> {
    SCHEMES.iter().map(|scheme| scheme.name.to_owned()).collect()
}

/// SRNIC's Fig. 11, of a path MTU.
pub(in crate::bench) fn by_loss(id: &'static str, mtu: Mtu, quick: bool) -> Figure {
    let losses = if quick { &LOSSES[..2] } else { &LOSSES[..] };
    let point = |(loss, x): &(f64, &str)| {
        let ways = SCHEMES.iter().map(|scheme| once(gbps(&at_loss(scheme, mtu, *loss, SEED))));
        Point { x: (*x).to_owned(), ways: ways.collect() }
    };
    let points: Vec<Point> = losses.iter().map(point).collect();
    Figure {
        id,
        origin: "SRNIC’s Figure 11, simulated",
        title: match mtu {
            Mtu::B1024 => "Goodput by loss, path MTU 1024",
            _ => "Goodput by loss, path MTU 4096",
        },
        about: "WRITEs of 1 MiB over one queue pair; every packet is lost with the same \
                probability, acknowledges included; a fixed window of 64 packets. SRNIC and IRN \
                are models of what was published, without hosts; SRNIC’s software is 1 µs away.",
        x: "loss",
        y: "goodput",
        unit: "Gb/s",
        style: Style::Lines,
        ways: names(),
        here: kept(&points, &names()),
        points,
        paper: PAPER,
    }
}

fn by_paths() -> Figure {
    let point = |paths: u8| {
        let ways = SCHEMES.iter().map(|scheme| once(for_nothing(scheme, paths)));
        Point { x: paths.to_string(), ways: ways.collect() }
    };
    let points: Vec<Point> = PATHS.into_iter().map(point).collect();
    let most = |way| points.iter().map(|point: &Point| point.median(way)).fold(0.0, f64::max);
    let parts = SCHEMES.iter().enumerate();
    let parts = parts.map(|(at, scheme)| format!("{} {:.3} %", scheme.name, most(at)));
    let here = format!("sent again at most: {}", parts.collect::<Vec<_>>().join(", "));
    Figure {
        id: "spurious_paths",
        origin: "no figure of a paper",
        title: "Sent again for nothing, over paths of unequal delay",
        about: "WRITEs of 1 MiB, packets of 4096 B, runs of 16 KiB on each path; the longest path \
                takes 8 µs more than the shortest; nothing is lost.",
        x: "paths",
        y: "packets sent again",
        unit: "%",
        style: Style::Bars,
        ways: names(),
        points,
        paper: "selective repeat that takes reordering for loss sends up to 100 % again (DCP, \
                SIGCOMM 2025, of IRN under packet spraying)",
        here,
    }
}

/// What each way keeps of its first point at its last one, in words.
pub(super) fn kept(points: &[Point], ways: &[String]) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return String::new() };
    let parts = ways.iter().enumerate().map(|(at, way)| {
        let (before, after) = (first.median(at), last.median(at));
        format!("the {way} keeps {after:.1} Gb/s of {before:.1}")
    });
    format!("at {} loss, {}", last.x, parts.collect::<Vec<_>>().join(", "))
}
