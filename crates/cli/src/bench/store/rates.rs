//! Calls a second, by many clients at once: the rows of rates, load (Caribou's Figure 7c), mixes of
//! operations (Figure 8), and skew (Figure 9).

use anyhow::Result;
use remora_sim::percentile;
use remora_store::way::call::{Call, Operation};

use super::super::figure::{Figure, Point, Style, add_said};
use super::super::row::{Case, Run, Spread, Target};
use super::bed::{Bed, VALUE, figure, key, value};
use super::extent::Extent;
use super::papers::{CARIBOU_FLAT, CARIBOU_INSERTS};
use super::servers::Memcached;
use crate::draws::Draws;

pub(super) const ROWS: [&str; 2] = ["kernel_rate_64B", "skew_128"];
/// As many calls in flight as the clients have places for.
pub(super) const ALL: usize = usize::MAX;
/// The fewest keys of a skewed pattern.
const FEW: u64 = 128;
const SIZES: [usize; 4] = [16, 64, 256, 1024];
/// Calls in flight.
const LOADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Keys that are inserted and deleted begin here, times the size of their values.
const FIRST_INSERTED: u64 = 900_000_000;

/// What clients do with keys drawn evenly from the first so many.
#[derive(Clone, Copy, Debug)]
struct Mix {
    keys: u64,
    /// The share of gets; the others are puts.
    gets: f64,
    len: usize,
}

impl Mix {
    fn calls(self, seed: u64) -> impl FnMut(&mut Vec<u8>) -> Result<Operation> {
        let (mut draws, fresh) = (Draws::new(seed), value(1, self.len));
        move |bytes| {
            let key = key(draws.number() % self.keys);
            let operation = if draws.happens(self.gets) { Operation::Get } else { Operation::Put };
            let value: &[u8] = if operation == Operation::Put { &fresh } else { &[] };
            Call { key: &key, value, ..Call::default() }.write(bytes)?;
            Ok(operation)
        }
    }

    /// Thousands of calls a second.
    fn rate<'a>(self, bed: &'a Bed, extent: Extent) -> Run<'a> {
        let mut seed = self.keys;
        Box::new(move || {
            seed += 1;
            Ok(bed.callers.run(extent.rate, ALL, self.calls(seed))?.rate())
        })
    }
}

/// The rows.
pub(super) fn cases(bed: &Bed, extent: Extent) -> Result<Vec<Case<'_>>> {
    let gets = Mix { keys: bed.keys, gets: 1.0, len: VALUE };
    let mixed = Mix { gets: 0.9, ..gets };
    let few = Mix { keys: FEW.min(bed.keys), ..mixed };
    let [kernels, skew] = ROWS;
    let case = |name, peer, target, ours, theirs| Case {
        name,
        unit: "K/s",
        peer,
        target: Target::AtLeast(target),
        ours,
        theirs,
    };
    let uniform = mixed.rate(bed, extent);
    let skewed = case(skew, "the same on all keys", 0.95, few.rate(bed, extent), uniform);
    let ours = gets.rate(bed, extent);
    let rates = match Memcached::start_peer()? {
        Some(server) => {
            let theirs: Run<'_> =
                Box::new(move || bed.aside(|| server.load().map(|rate| rate.wall)));
            case(kernels, "memcached -t 1, memcaslap", 8.0, ours, theirs)
        }
        None => Case {
            target: Target::Any,
            ..case(kernels, super::servers::MEMCACHED_MISSING, 8.0, ours, super::fronts::nothing())
        },
    };
    Ok(vec![rates, skewed])
}

/// Figure 7c.
pub(super) fn load(bed: &Bed, extent: Extent) -> Result<Figure> {
    let mix = Mix { keys: bed.keys, gets: 0.5, len: VALUE };
    let (mut points, mut reached) = (Vec::new(), Vec::new());
    for in_flight in LOADS {
        let (mut rates, mut medians, mut tails) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..extent.runs {
            let count = (extent.rate / 64 * in_flight.min(32)).max(200);
            let mut ran = bed.callers.run(count, in_flight, mix.calls(run as u64))?;
            rates.push(ran.rate());
            ran.each_us.sort_by(f64::total_cmp);
            let at = |per_mille| percentile(&ran.each_us, per_mille).unwrap_or(f64::NAN);
            medians.push(at(500));
            tails.push(at(990));
        }
        reached.push(format!("{in_flight} ({:.0} thousand a second)", Spread::of(rates).median));
        let ways = vec![Spread::of(medians), Spread::of(tails)];
        points.push(Point { x: in_flight.to_string(), ways });
    }
    let (first, last) = (&points[0], &points[points.len() - 1]);
    let here = format!(
        "with {} calls in flight: at the last, the median is {:.1} × the first, the 99th \
         percentile {:.1} ×",
        reached.join(", "),
        last.median(0) / first.median(0),
        last.median(1) / first.median(1)
    );
    let flat = first.median(0);
    add_said(&mut points, |_| flat);
    Ok(Figure {
        origin: "Caribou’s Figure 7c",
        title: "Response times under load",
        about: "Half gets, half updates of 64 B, by 1 to 64 calls in flight of 16 clients. One \
                core serves, and one asks: with many calls in flight, each waits for others.",
        x: "calls in flight",
        style: Style::Log,
        ways: ["median", "99th percentile", "median, flat as Caribou’s"].map(str::to_owned).into(),
        paper: "both stay flat until the network is full, as the card is a pipeline",
        here,
        ..figure("fig7c", points)
    })
}

/// Thousands of inserts a second, or of the deletes that undo them.
fn unique<'a>(bed: &'a Bed, extent: Extent, len: usize, wanted: Operation) -> Run<'a> {
    let fresh = value(1, len);
    let all = move |operation: Operation| -> Result<f64> {
        let mut number = FIRST_INSERTED * len as u64;
        let value = if operation == Operation::Put { &*fresh } else { &[] };
        let ran = bed.callers.run(extent.rate / 2, ALL, |bytes| {
            number += 1;
            Call { key: &key(number), value, ..Call::default() }.write(bytes)?;
            Ok(operation)
        })?;
        Ok(ran.rate())
    };
    Box::new(move || {
        let (inserts, deletes) = (all(Operation::Put)?, all(Operation::Delete)?);
        Ok(if wanted == Operation::Put { inserts } else { deletes })
    })
}

/// Figure 8.
pub(super) fn mixes(bed: &Bed, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for len in SIZES {
        // Afterwards all keys have values of this size.
        bed.load(super::bed::Space::First, bed.keys, |n| (key(n).into(), value(n, len)))?;
        let mix = |gets| Mix { keys: bed.keys, gets, len }.rate(bed, extent);
        let mut ways = vec![
            mix(1.0),
            mix(0.9),
            mix(0.5),
            mix(0.0),
            unique(bed, extent, len, Operation::Put),
            unique(bed, extent, len, Operation::Delete),
        ];
        points.push(Point::measure(len.to_string(), extent.runs, &mut ways)?);
    }
    bed.load(super::bed::Space::First, bed.keys, |n| (key(n).into(), value(n, VALUE)))?;
    let at_64 = |way: usize| points[1].median(way) / points[1].median(0);
    let here = format!(
        "as multiples of reads, at 64 B: 90/10 {:.2}, 50/50 {:.2}, updates {:.2}, inserts {:.2}, \
         deletes {:.2}",
        at_64(1),
        at_64(2),
        at_64(3),
        at_64(4),
        at_64(5)
    );
    let said = points[0].median(0) * CARIBOU_INSERTS;
    add_said(&mut points, |_| said);
    let ways = ["reads", "90 % reads", "50 % reads", "updates", "inserts", "deletes"];
    let ways = ways.into_iter().chain(["inserts and deletes, by Caribou’s ratio"]);
    Ok(Figure {
        origin: "Caribou’s Figure 8",
        title: "Throughput by mix and size",
        about: "128 calls in flight of 16 clients, by kernel; one core asks, one serves.",
        y: "rate",
        unit: "K/s",
        ways: ways.map(str::to_owned).collect(),
        paper: "close to the network’s limit for reads and updates, of small values 90 % of it; \
                inserts and deletes 2 million a second at every size (0.18 of 11 million reads of \
                small values)",
        here,
        ..figure("fig8", points)
    })
}

/// The ways of a point as points of their own, in per cent of the first, beside Caribou's, which
/// stays what it is.
pub(super) fn beside_flat(all: &Point, names: impl Iterator<Item = String>) -> Vec<Point> {
    let percent = |value: f64| value / all.median(0) * 100.0;
    let point = |(x, Spread { min, median, max }): (String, &Spread)| {
        let ours = Spread { min: percent(*min), median: percent(*median), max: percent(*max) };
        Point { x, ways: vec![ours, Spread::of(vec![CARIBOU_FLAT])] }
    };
    names.zip(&all.ways).map(point).collect()
}

/// Figure 9.
pub(super) fn skew(bed: &Bed, extent: Extent) -> Result<Figure> {
    let shares = [bed.keys, bed.keys / 10, bed.keys / 100].into_iter().filter(|keys| *keys > FEW);
    let shares: Vec<u64> = shares.chain([FEW]).collect();
    let mix = |keys: u64| Mix { keys, gets: 0.9, len: VALUE };
    let mut rates: Vec<Run<'_>> = shares.iter().map(|keys| mix(*keys).rate(bed, extent)).collect();
    let all = Point::measure(String::new(), extent.runs, &mut rates)?;
    let uniform = all.median(0);
    let points = beside_flat(&all, shares.iter().map(u64::to_string));
    let last = &points[points.len() - 1];
    let here = format!(
        "128 keys: {:.0} % of the {uniform:.0} thousand a second of the uniform pattern",
        last.median(0)
    );
    Ok(Figure {
        origin: "Caribou’s Figure 9",
        title: "Skew",
        about: "90 % gets, 10 % updates of 64 B, on ever fewer keys, drawn evenly from them.",
        x: "keys that are asked for",
        y: "rate, of that on all keys",
        unit: "%",
        ways: ["store", "Caribou, as the paper says"].map(str::to_owned).into(),
        paper: "virtually identical: less than 1 % of variation",
        here,
        ..figure("fig9", points)
    })
}
