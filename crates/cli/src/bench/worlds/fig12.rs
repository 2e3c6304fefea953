//! SRNIC's Fig. 12: how long flows take, by the number of servers, for each transport that worlds
//! know, IRN and SRNIC as published among them. Each point is exact, the same on every machine.

use std::fmt::Write;
use std::ops::RangeInclusive;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use remora::nic::TurnOrder;
use remora_sim::flows::{Cluster, Report, TRANSPORTS, Transport};
use remora_sim::net::time::{MS, US};
use remora_sim::net::{NetTally, PfcOptions, Ps, Routing};
use remora_sim::percentile;

use super::pace::{Pace, about};
use super::{cluster, flows};
use crate::bench::figure::{Figure, Point, Style, mean};
use crate::bench::page::text;
use crate::bench::row::{Row, Spread, Target};
use crate::output::grouped;
use crate::world::progress;

/// What SRNIC says of its Fig. 12.
const PAPER: &str = "SRNIC is 1.9–2.2 × better than ConnectX-6 (PFC, DCQCN, go-back-N) in all \
                     three, stays stable as the network grows, and is similar to IRN (SRNIC §6.3; \
                     ns-3)";
/// The numbers of servers, and up to which of them by default.
const SERVERS: [u32; 5] = [16, 64, 256, 1024, MOST];
pub(super) const MOST: u32 = 4096;
pub(super) const USUAL: u32 = 256;
/// The number of servers of the rows that compare with SRNIC as published.
const COMPARED: u32 = 256;
/// These rows: names, and which of the ways each has. Without classes, what differs is in the
/// cards; with them, switches let short flows go first, too, which SRNIC has not.
const ROWS: [(&str, usize); 2] = [("fct_ours", 1), ("fct_ours_short_first", 0)];
/// Remora's own dialect, and the comparator of the row.
const OURS: &str = "selective";
const SRNIC: &str = "srnic";

/// A transport, and the network that suits it.
struct Way {
    name: String,
    transport: Transport,
    routing: Routing,
    flow_control: bool,
    /// Which message of a card goes first.
    turn_order: TurnOrder,
    /// Shorter flows are of higher classes, in switches and cards.
    short_first: bool,
}

impl Way {
    /// A transport as the paper has those of its kind: without selective repeat it needs a network
    /// that loses nothing.
    fn of(transport: &Transport) -> Way {
        let flow_control = !transport.repeats_selectively();
        let suffix = match (transport.is_model(), flow_control, transport.name) {
            (true, ..) => ", as published",
            (_, true, "dcqcn") => ", flow control: as ConnectX-6",
            (_, true, _) => ", flow control",
            _ => "",
        };
        let name = format!("{}{suffix}", transport.name);
        let (routing, turn_order) = (Routing::Ecmp, TurnOrder::default());
        Way { name, transport: *transport, routing, flow_control, turn_order, short_first: false }
    }

    /// Remora's own, with packets sprayed by switches.
    fn sprayed() -> Result<Way> {
        let transport = Transport::named(OURS).with_context(|| format!("no transport `{OURS}`"))?;
        let name = format!("{OURS}, sprayed");
        Ok(Way { name, routing: Routing::Spray, ..Way::of(&transport) })
    }

    /// The same; the card sends of the message first that has the least left.
    fn shortest() -> Result<Way> {
        let way = Way::sprayed()?;
        let name = format!("{}, shortest first", way.name);
        Ok(Way { name, turn_order: TurnOrder::ShortestFirst, ..way })
    }

    /// The same; switches have classes, too.
    fn with_classes() -> Result<Way> {
        let way = Way::shortest()?;
        let name = format!("{}, classes", way.name);
        Ok(Way { name, short_first: true, ..way })
    }

    fn cluster(&self, servers: u32, seed: u64) -> Result<Cluster> {
        let mut cluster = Cluster { transport: self.transport, ..cluster(servers)? };
        cluster.net.seed = seed;
        (cluster.net.routing, cluster.turn_order) = (self.routing, self.turn_order);
        (cluster.short_first, cluster.net.classes) = (self.short_first, self.short_first);
        cluster.net.pfc = self.flow_control.then(PfcOptions::default);
        // With one switch there is nothing to divide.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cluster.threads = if cores > 1 && cluster.topology.switches > 1 { 2 } else { 1 };
        Ok(cluster)
    }
}

/// All ways, Remora's own with spraying first.
fn ways() -> Result<Vec<Way>> {
    let own = [Way::with_classes()?, Way::shortest()?, Way::sprayed()?];
    Ok(own.into_iter().chain(TRANSPORTS.iter().map(Way::of)).collect())
}

/// For how long flows arrive, in a network that is empty before: the same with all numbers of
/// servers, since flows take longer the longer a load lasts.
fn span(quick: bool) -> Ps {
    if quick { MS / 10 } else { MS }
}

/// The seeds of the runs that a point has: so many that there are about 3,100 flows or more.
fn seeds(servers: u32, quick: bool) -> RangeInclusive<u64> {
    1..=if quick { 1 } else { u64::from(256 / servers).max(1) }
}

/// What became of all flows of one way with one number of servers.
#[derive(Default)]
struct Outcome {
    times_us: Vec<f64>,
    slowdowns: Vec<f64>,
    tally: NetTally,
    sent_again: u64,
    seconds: f64,
}

impl Outcome {
    fn add(&mut self, report: &Report) {
        let times = report.messages().filter_map(|(flow, _)| flow.time());
        self.times_us.extend(times.map(|ps| ps as f64 / US as f64));
        self.slowdowns.extend(report.messages().filter_map(|(flow, _)| flow.slowdown()));
        self.tally += report.tally;
        self.sent_again += report.retransmitted;
        self.seconds += report.run_seconds;
    }

    fn p99_us(&self) -> f64 {
        let mut times = self.times_us.clone();
        times.sort_by(f64::total_cmp);
        percentile(&times, 990).unwrap_or(f64::NAN)
    }
}

/// All ways with one number of servers.
struct Size {
    servers: u32,
    outcomes: Vec<Outcome>,
}

/// All runs.
pub(super) struct Found {
    ways: Vec<Way>,
    sizes: Vec<Size>,
}

/// Runs what is wanted, with at most so many servers.
pub(super) fn run(is_wanted: &dyn Fn(&str) -> bool, quick: bool, most: u32) -> Result<Found> {
    let ways = ways()?;
    let wants_figure = FIGURES.iter().any(|(id, ..)| is_wanted(id));
    let wants_row = ROWS.iter().any(|(name, _)| is_wanted(name));
    let is_run = |servers: &u32| match (wants_figure, quick) {
        (true, true) => *servers < COMPARED,
        (true, false) => *servers <= most,
        (false, _) => *servers == COMPARED && wants_row && !quick,
    };
    let servers: Vec<u32> = SERVERS.into_iter().filter(is_run).collect();
    let work = servers.iter().map(|servers| work(*servers, quick)).collect::<Result<_>>()?;
    let mut pace = Pace::new(work, ways.len());
    let mut sizes = Vec::new();
    for servers in servers {
        let mut outcomes = Vec::new();
        for way in &ways {
            let begin = Instant::now();
            outcomes.push(simulate(way, servers, quick)?);
            let took = begin.elapsed().as_secs_f64();
            pace.ran(took);
            let left = pace.left().map_or_else(String::new, about);
            eprintln!("{servers} servers, {}: {took:.1} s; {left} left", way.name);
        }
        sizes.push(Size { servers, outcomes });
    }
    Ok(Found { ways, sizes })
}

/// An error if a row is wanted: quick runs have not the number of servers that it is about.
pub(super) fn ensure_size(is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    let row = ROWS.iter().find(|(name, _)| is_wanted(name));
    ensure!(
        row.is_none(),
        "`{}` is of {COMPARED} servers: leave --quick out",
        row.map_or("", |(name, _)| name)
    );
    Ok(())
}

/// The work of one way with so many servers: bytes, on each link that they pass.
fn work(servers: u32, quick: bool) -> Result<f64> {
    let cluster = cluster(servers)?;
    let net = cluster.build()?;
    let mut work = 0.0;
    for seed in seeds(servers, quick) {
        for flow in flows(&cluster, span(quick), seed)? {
            work += flow.bytes as f64 * net.way(flow.src, flow.dst).len() as f64;
        }
    }
    Ok(work)
}

/// Runs one way with so many servers.
fn simulate(way: &Way, servers: u32, quick: bool) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for seed in seeds(servers, quick) {
        let cluster = way.cluster(servers, seed)?;
        let flows = flows(&cluster, span(quick), seed)?;
        let told = || format!("cannot run {servers} servers with {}", way.name);
        let report = progress::run(&cluster, &flows).with_context(told)?;
        // The mean of those that have ended would flatter one that fails.
        let ended = report.done();
        ensure!(ended == flows.len(), "{}: {ended} of {} flows ended", way.name, flows.len());
        outcome.add(&report);
    }
    Ok(outcome)
}

/// A figure of a way with a number of servers.
type Of = fn(&Outcome) -> f64;
/// The three figures: a name, a title, the y axis, its unit, and the value of a run.
const FIGURES: [(&str, &str, &str, &str, Of); 3] = [
    ("fig12a", "Mean completion time", "mean completion", "µs", |o| mean(&o.times_us)),
    ("fig12b", "Completion time, 99th percentile", "p99 completion", "µs", Outcome::p99_us),
    ("fig12c", "Mean slowdown", "mean slowdown", "×", |o| mean(&o.slowdowns)),
];

impl Found {
    /// The figures that are wanted.
    pub(super) fn figures(&self, is_wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
        let all = FIGURES.into_iter().filter(|(id, ..)| is_wanted(id) && !self.sizes.is_empty());
        all.map(|(id, title, y, unit, of)| {
            let point = |size: &Size| Point {
                x: grouped(size.servers.into()),
                ways: size.outcomes.iter().map(|found| Spread::of(vec![of(found)])).collect(),
            };
            Figure {
                id,
                origin: "SRNIC’s Figure 12, simulated",
                title,
                about: "All flows, from their start to the last acknowledge at the sender; a \
                        slowdown is a multiple of the time that the flow takes alone.",
                x: "servers",
                y,
                unit,
                style: Style::Lines,
                ways: self.ways.iter().map(|way| way.name.clone()).collect(),
                points: self.sizes.iter().map(point).collect(),
                paper: PAPER,
                here: self.best(of),
            }
        })
        .collect()
    }

    /// The best way with the most servers, and the others beside it, in words.
    fn best(&self, of: Of) -> String {
        let Some(Size { servers, outcomes }) = self.sizes.last() else { return String::new() };
        let mut all: Vec<(f64, &str)> =
            outcomes.iter().map(of).zip(self.ways.iter().map(|way| way.name.as_str())).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (least, best) = all[0];
        let rest = all[1..].iter().map(|(value, name)| format!("{name} {:.2} ×", value / least));
        let rest: Vec<String> = rest.collect();
        format!("with {servers} servers, {best} is best; beside it {}", rest.join(", "))
    }

    /// The rows; none where these runs have not the number of servers that they are about.
    pub(super) fn rows(&self, is_wanted: &dyn Fn(&str) -> bool) -> Vec<Row> {
        let size = self.sizes.iter().find(|size| size.servers == COMPARED);
        let srnic = self.ways.iter().position(|way| way.transport.name == SRNIC);
        let (Some(size), Some(srnic)) = (size, srnic) else { return Vec::new() };
        let mean_of = |way: usize| mean(&size.outcomes[way].times_us);
        let wanted = ROWS.into_iter().filter(|(name, _)| is_wanted(name));
        let row = |(name, way)| {
            let (ours, peer) =
                (Spread::of(vec![mean_of(way)]), ("SRNIC as published", mean_of(srnic)));
            Row::beside(name, "µs", ours, peer, Target::AtMost(0.9))
        };
        wanted.map(row).collect()
    }

    /// A table of what the network did in each run, for the page; empty if there were none.
    pub(super) fn section(&self) -> String {
        if self.sizes.is_empty() {
            return String::new();
        }
        let mut page = String::from(
            "<section><h2>What the networks did</h2><p class=\"about\">In numbers of packets, of \
             all flows until the last one ended.</p><div class=\"wide\"><table><tr>\
             <th class=\"words\">servers<th class=\"words\">transport<th>flows<th>sent\
             <th>sent again<th>dropped<th>marked<th>pauses<th>simulated in</tr>",
        );
        for Size { servers, outcomes } in &self.sizes {
            for (way, found) in self.ways.iter().zip(outcomes) {
                let t = &found.tally;
                let counts = [
                    found.times_us.len() as u64,
                    t.sent,
                    found.sent_again,
                    t.dropped_full,
                    t.marked,
                    t.pauses,
                ];
                let cells: String =
                    counts.iter().map(|count| format!("<td>{}", grouped(*count))).collect();
                // A String takes whatever is written.
                let _ = write!(
                    page,
                    "<tr><td class=\"words\">{}<td class=\"words\">{}{cells}<td>{:.1} s</tr>",
                    grouped((*servers).into()),
                    text(&way.name),
                    found.seconds
                );
            }
        }
        page + "</table></div></section>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each transport of worlds is a way, with flow control exactly if it cannot repeat
    /// selectively.
    #[test]
    fn every_transport_is_a_way() {
        let ways = ways().unwrap();
        assert_eq!(ways.len(), TRANSPORTS.len() + 3);
        for (way, transport) in ways[3..].iter().zip(TRANSPORTS) {
            assert!(way.name.starts_with(transport.name));
            let pfc = way.cluster(16, 1).unwrap().net.pfc;
            assert_eq!(pfc.is_none(), transport.repeats_selectively(), "{}", way.name);
        }
        assert!(ways.iter().any(|way| way.transport.name == SRNIC));
        let has_classes = ROWS.map(|(name, way)| (name, ways[way].short_first));
        assert_eq!(has_classes, [("fct_ours", false), ("fct_ours_short_first", true)]);
        let orders = [TurnOrder::ShortestFirst, TurnOrder::ShortestFirst, TurnOrder::InTurn];
        for ((way, order), short_first) in ways[..3].iter().zip(orders).zip([true, false, false]) {
            let cluster = way.cluster(16, 1).unwrap();
            assert_eq!((cluster.net.routing, cluster.turn_order), (Routing::Spray, order));
            assert_eq!((cluster.short_first, cluster.net.classes), (short_first, short_first));
        }
    }

    /// What is asked for is what runs, and each number of servers has about as many flows.
    #[test]
    fn the_runs_are_those_that_are_wanted() {
        let none = run(&|name| name == "packets_16", true, USUAL).unwrap();
        assert!(none.sizes.is_empty() && none.section().is_empty());
        assert!(none.figures(&|_| true).is_empty() && none.rows(&|_| true).is_empty());
        for servers in SERVERS.into_iter().filter(|servers| *servers <= USUAL) {
            let cluster = cluster(servers).unwrap();
            let of = |seed| flows(&cluster, span(false), seed).unwrap().len();
            let flows: usize = seeds(servers, false).map(of).sum();
            assert!((2900..3400).contains(&flows), "{servers}: {flows}");
        }
    }
}
