//! Caribou's Figures 7, 8 and 10, for one node (R1) and groups of three and five (R3, R5).

use anyhow::{Context, Result};

use super::super::figure::{Figure, Point, Style, add_said};
use super::super::row::{Run, Spread};
use super::Extent;
use super::bed::Bed;
use super::load::{Ask, Work};

/// Connections of a client, and requests in flight on each.
const CONNECTIONS: usize = 16;
const IN_FLIGHT: usize = 8;
/// Connections of Figure 7c, each with one request in flight.
const LOADS: [usize; 4] = [1, 4, 16, 64];
/// Shares of updates in Figure 8, and in the projections of Figure 10.
const MIXES: [(&str, f64); 4] =
    [("reads only", 0.0), ("10 % updates", 0.1), ("50 % updates", 0.5), ("updates only", 1.0)];
const PROJECTED: [(&str, f64); 3] =
    [("reads only", 0.0), ("10 % updates", 0.1), ("50 % updates", 0.5)];
/// Caribou §6.2: replication adds 6 µs to the 17 to 18 µs of an operation, with three nodes as with
/// five. Reads are not replicated.
const CARIBOU_UPDATE: f64 = (17.5 + 6.0) / 17.5;
/// Caribou §6.3: with replication, the master does 70 % of the rate without.
const CARIBOU_REPLICATED: f64 = 0.7;
/// The groups: how many nodes.
const NODES: [u8; 3] = [1, 3, 5];

/// The stores that the figures compare.
type Beds = [Bed; 3];
type Make = fn(&Beds, Extent) -> Result<Figure>;

const FIGURES: [(&str, Make); 4] =
    [("fig7", operations), ("fig7c", loads), ("fig8", mixes), ("fig10", projection)];

/// Measures the figures that are wanted.
pub(super) fn measure_all(is_wanted: &dyn Fn(&str) -> bool, extent: Extent) -> Result<Vec<Figure>> {
    let wanted: Vec<_> = FIGURES.into_iter().filter(|(id, _)| is_wanted(id)).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let beds = [Bed::one()?, Bed::group(3)?, Bed::group(5)?];
    for bed in &beds {
        bed.load(1)?.fill(work(extent))?;
    }
    let make = |(id, make): (&'static str, Make)| {
        make(&beds, extent).with_context(|| format!("cannot measure {id}"))
    };
    wanted.into_iter().map(make).collect()
}

fn work(extent: Extent) -> Work {
    Work { keys: extent.keys, value: 64 }
}

/// The groups, and what the paper says of one that is replicated.
fn ways(said: &str) -> Vec<String> {
    let groups = NODES.iter().map(|nodes| format!("R{nodes}"));
    groups.chain([said.to_owned()]).collect()
}

/// Measures a point for all groups in turn.
fn point(
    x: String,
    extent: Extent,
    beds: &Beds,
    run: impl Fn(&Bed) -> Result<f64>,
) -> Result<Point> {
    let run = &run;
    let mut ways: Vec<Run<'_>> =
        beds.iter().map(|bed| -> Run<'_> { Box::new(move || run(bed)) }).collect();
    Point::measure(x, extent.runs, &mut ways)
}

/// `more` of the second way, as people read it.
fn ratio(point: &Point, way: usize) -> f64 {
    point.median(way) / point.median(0)
}

fn operations(beds: &Beds, extent: Extent) -> Result<Figure> {
    let calls = extent.calls.min(extent.keys as usize);
    let work = work(extent);
    let time = |bed: &Bed, ask, first| bed.load(1)?.latency(ask, work, first, calls);
    // Keys that are put for the first time, and then deleted, are behind all others.
    let new = work.keys;
    let mut points = [
        point("read".into(), extent, beds, |bed| time(bed, Ask::Get, 0))?,
        point("update".into(), extent, beds, |bed| time(bed, Ask::Put, 0))?,
        point("insert".into(), extent, beds, |bed| {
            let taken = time(bed, Ask::Put, new)?;
            time(bed, Ask::Delete, new)?;
            Ok(taken)
        })?,
        point("delete".into(), extent, beds, |bed| {
            time(bed, Ask::Put, new)?;
            time(bed, Ask::Delete, new)
        })?,
    ];
    let update = &points[1];
    let more = update.median(1) - update.median(0);
    let here = format!(
        "an update takes {more:.0} µs more with three replicas than with one ({:.2} ×), and {:.2} \
         × with five",
        ratio(update, 1),
        ratio(update, 2)
    );
    add_said(&mut points, |point| {
        point.median(0) * if point.x == "read" { 1.0 } else { CARIBOU_UPDATE }
    });
    Ok(Figure {
        id: "fig7",
        origin: "Caribou’s Figures 7a and 7b",
        title: "Response times of operations",
        about: "One client, one request at a time, values of 64 bytes; the time at the client.",
        x: "operation",
        y: "median time",
        unit: "µs",
        style: Style::Bars,
        ways: ways("R3 and R5, by Caribou’s ratio"),
        points: points.into(),
        paper: "replication adds 6 µs to 17–18 µs; R3 and R5 do not differ",
        here,
    })
}

fn loads(beds: &Beds, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for connections in LOADS {
        let run = |bed: &Bed| {
            let mix = (Ask::Get, Ask::Put, 0.5);
            let requests = extent.requests / 4;
            let rate = bed.load(connections)?.rate(mix, work(extent), 1, requests)?;
            // So many requests are under way at any time.
            Ok(connections as f64 / rate * 1e3)
        };
        points.push(point(connections.to_string(), extent, beds, run)?);
    }
    let last = &points[LOADS.len() - 1];
    let here = format!(
        "with {} requests under way, R3 takes {:.2} × as long as R1, and R5 {:.2} ×",
        LOADS[LOADS.len() - 1],
        ratio(last, 1),
        ratio(last, 2)
    );
    let flat = points[0].median(1);
    add_said(&mut points, |_| flat);
    Ok(Figure {
        id: "fig7c",
        origin: "Caribou’s Figure 7c",
        title: "Response times under load",
        about: "Half reads, half updates; connections with one request each. The mean time, from \
                the rate: the paper’s is the median of one client beside the others.",
        x: "connections",
        y: "mean time",
        unit: "µs",
        style: Style::Log,
        ways: ways("R3, flat as Caribou’s"),
        points,
        paper: "times are stable up to the highest throughput",
        here,
    })
}

fn mixes(beds: &Beds, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for (name, updates) in MIXES {
        let run = |bed: &Bed| {
            let mix = (Ask::Get, Ask::Put, updates);
            bed.load(CONNECTIONS)?.rate(mix, work(extent), IN_FLIGHT, extent.requests)
        };
        points.push(point(name.to_owned(), extent, beds, run)?);
    }
    let updates = &points[MIXES.len() - 1];
    let here = format!(
        "with updates only, R3 does {:.2} of the rate of R1, and R5 {:.2}, all nodes on the same \
         cores",
        ratio(updates, 1),
        ratio(updates, 2)
    );
    let mut shares = MIXES.iter().map(|(_, updates)| *updates);
    add_said(&mut points, |point| {
        let updates = shares.next().unwrap_or(1.0);
        point.median(0) / (1.0 - updates + updates / CARIBOU_REPLICATED)
    });
    Ok(Figure {
        id: "fig8",
        origin: "Caribou’s Figure 8",
        title: "Throughput by the share of updates",
        about: "16 connections with 8 requests each, values of 64 bytes. The paper’s 70 % is \
                taken for the time of each update.",
        x: "mix",
        y: "requests",
        unit: "K/s",
        style: Style::Bars,
        ways: ways("R3 and R5, by Caribou’s ratio"),
        points,
        paper: "with replication, the master node does 70 % of what it does without",
        here,
    })
}

/// Caribou projects what a group does whose nodes all serve reads: an update costs its primary what
/// was measured, and reads are spread over the nodes.
fn projection(beds: &Beds, extent: Extent) -> Result<Figure> {
    let rate_of = |ask: Ask| {
        point(String::new(), extent, beds, |bed| {
            bed.load(CONNECTIONS)?.rate((ask, ask, 0.0), work(extent), IN_FLIGHT, extent.requests)
        })
    };
    let (reads, updates) = (rate_of(Ask::Get)?, rate_of(Ask::Put)?);
    let mut points = Vec::new();
    for (way, nodes) in NODES.into_iter().enumerate() {
        let total = |share: f64| {
            let read = reads.median(way) * f64::from(nodes);
            let one = 1.0 / (share / updates.median(way) + (1.0 - share) / read);
            Spread { min: one, median: one, max: one }
        };
        let ways = PROJECTED.iter().map(|(_, share)| total(*share)).collect();
        points.push(Point { x: format!("{nodes}"), ways });
    }
    let here = format!(
        "from one node to five, reads go up {:.1} ×, and half updates {:.1} ×",
        points[2].median(0) / points[0].median(0),
        points[2].median(2) / points[0].median(2)
    );
    let (alone, mut nodes) = (points[0].median(0), NODES.into_iter());
    add_said(&mut points, |_| alone * f64::from(nodes.next().unwrap_or_default()));
    let said = "reads only, in proportion to the nodes as Caribou’s";
    let names = PROJECTED.iter().map(|(name, _)| *name).chain([said]);
    Ok(Figure {
        id: "fig10",
        origin: "Caribou’s Figure 10",
        title: "Projected throughput of a group whose nodes all serve reads",
        about: "Calculated, as in the paper, from the rates of reads and updates at the primary; \
                nodes share this machine’s cores, which makes the rates of larger groups lower \
                than on machines of their own.",
        x: "nodes",
        y: "requests",
        unit: "K/s",
        style: Style::Lines,
        ways: names.map(str::to_owned).collect(),
        points,
        paper: "reads grow with the nodes; with updates only, the leader does 2.2 M/s (R3) and \
                1.1 M/s (R5)",
        here,
    })
}
