//! `remora bench scale`: many queue pairs beside few, storms of connections, and what each
//! structure takes of memory, beside SRNIC's figures (Figs 2, 9 and 10, Table 1) and StRoM's
//! (Table 3).

pub(super) mod caches;
mod crowd;
mod figures;
mod hostile;
mod storm;
mod verbs_storm;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use remora::DialectChoice;
use remora::nic::nic::StructureUse;
use remora::nic::qp::{HOT_BYTES, LOSSY_HOT_BYTES};

use super::figure::Figure;
use super::page;
use super::report::{Found, Options, publish, show};
use super::row::{Case, Row, Run, Spread, Target};
use super::transport::ours;
use crate::output;
use verbs_storm::VerbsStorm;

/// Measures how the card scales with its queue pairs.
#[derive(Debug, Args)]
pub(super) struct Scale {
    #[command(flatten)]
    pub(super) options: Options,
    /// Write the page with the plots here
    #[arg(long, alias = "page", value_name = "FILE", default_value = "remora-scale.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
}

const WORDS: page::Words = page::Words {
    title: "Many queue pairs",
    about: "SENDs of 512 B over few and many queue pairs, storms of connections, and what the \
            card’s structures take of memory, beside what SRNIC (NSDI 2023) and StRoM (EuroSys \
            2020) report. Live figures are of two processes of this machine, a core each.",
    rows: "Many queue pairs beside few",
    ours: "Remora",
    command: "remora bench scale",
    such: "`qps_10000`, `memory_10000`, `fig9`",
};

/// The messages in flight on all queue pairs together, where their numbers are compared: as many on
/// few as on many, since what is in flight takes rings and buffers, and so caches.
const IN_FLIGHT: u32 = 80_000;
/// The same for a hundred thousand queue pairs.
const MORE_IN_FLIGHT: u32 = 800_000;
/// The messages in flight on each queue pair, where that is the same instead.
const DEPTH: u32 = 8;
/// The set-ups of a storm, and the seconds that they may take.
const STORM: usize = 5000;
const STORM_SECONDS: f64 = 3.0;
/// The clients that come at once to a node, and the seconds until all are served.
const CLIENTS: usize = 200;
const CLIENTS_SECONDS: f64 = 1.0;
/// The requests that a node refuses, and the seconds that an honest client behind them may take.
const REFUSED: u32 = 70_000;
const BEHIND_SECONDS: f64 = 0.1;
/// The hot bytes of a queue pair of SRNIC, and the target.
const SRNIC_HOT_BYTES: f64 = 210.0;
const HOT_BYTES_TARGET: f64 = 208.0;
/// The connections whose memory is shown: those of the paper's Table 1.
const CONNECTIONS: usize = 10_000;
/// StRoM's Table 3: its queue pairs, and the megabytes of its memory on the card of 10 and of 100
/// Gb/s (181 and 402 blocks of 36 Kb).
const STROM_CONNECTIONS: usize = 500;
const STROM_MEMORY: &str = "memory_500_all";
const STROM_MEGABYTES: [(&str, f64); 2] = [("StRoM, 10 Gb/s", 0.834), ("StRoM, 100 Gb/s", 1.853)];

impl Scale {
    pub(super) fn run(&self) -> Result<()> {
        let quick = self.options.quick;
        let (runs, seconds) = if quick { (1, "0.2") } else { (7, "1") };
        let is_wanted = |name: &str| self.options.wants(name);
        let mut all = cases(seconds, runs);
        all.extend(figures::cases(seconds).into_iter().map(|case| (case, runs)));
        if is_wanted(STORM_OF_VERBS) {
            let program = VerbsStorm::compile()?;
            let (count, limit) = if quick { (STORM / 10, 0.3) } else { (STORM, STORM_SECONDS) };
            all.push((storm_case(STORM_OF_VERBS, limit, move || program.run(count)), runs));
        }
        let mut rows = self.options.measure_each(all)?;
        show(&rows);
        let of_caches = caches::FIGURES.into_iter().filter(|(id, _)| is_wanted(id));
        let mut figures: Vec<_> = of_caches.map(|(_, draw)| draw()).collect();
        if is_wanted("fig9") {
            figures.push(figures::by_queue_pairs(runs.div_ceil(2), seconds)?);
        }
        if is_wanted("fig10a") {
            figures.push(figures::by_size(runs.div_ceil(2), seconds)?);
        }
        figures.iter().for_each(Figure::show);
        if memory_names()?.iter().any(|name| is_wanted(name)) {
            let all = memory(if quick { CONNECTIONS / 10 } else { CONNECTIONS })?;
            rows.extend(all.into_iter().filter(|row| is_wanted(&row.name)));
        }
        let found = Found { rows, figures, ..Found::default() };
        publish(WORDS, found, &self.html, &self.options)
    }
}

const STORM_OF_VERBS: &str = "storm_5000_verbs";

/// The cases, each with its number of runs.
fn cases(seconds: &'static str, runs: usize) -> Vec<(Case<'static>, usize)> {
    let many = |name, qps: u32, depth: u32, of_few: u32, target| Case {
        name,
        unit: "Mmsg/s",
        peer: "128 queue pairs",
        target,
        ours: sends(qps, depth, seconds),
        theirs: sends(128, of_few, seconds),
    };
    let (few, more) = (IN_FLIGHT / 128, MORE_IN_FLIGHT / 128);
    let fewer_runs = runs.div_ceil(2);
    vec![
        (many("qps_10000", 10_000, DEPTH, few, Target::AtLeast(0.95)), runs),
        (many("qps_100000", 100_000, DEPTH, more, Target::AtLeast(0.9)), fewer_runs),
        (many("qps_10000_depth_8", 10_000, DEPTH, DEPTH, Target::Any), runs),
        (many("qps_100000_depth_8", 100_000, DEPTH, DEPTH, Target::Any), fewer_runs),
        (many("qps_10000_depth_1", 10_000, 1, 10_000 / 128, Target::Any), runs),
        (
            storm_case("storm_5000", STORM_SECONDS, || {
                Ok(storm::run(STORM, DialectChoice::Auto)?.seconds)
            }),
            runs,
        ),
        (storm_case("clients_200", CLIENTS_SECONDS, || crowd::at_once(CLIENTS)), runs),
        (
            Case {
                name: "behind_70000_refused",
                unit: "s",
                peer: "before them",
                target: Target::Within(BEHIND_SECONDS),
                ours: Box::new(|| crowd::behind(REFUSED)),
                theirs: Box::new(|| crowd::behind(0)),
            },
            1,
        ),
        (hot_case("hot_bytes", HOT_BYTES, Target::AtMost(HOT_BYTES_TARGET / SRNIC_HOT_BYTES)), 1),
        (hot_case("hot_bytes_lossy", LOSSY_HOT_BYTES, Target::Any), 1),
    ]
}

/// The bytes of a queue pair that every packet needs, beside SRNIC's.
fn hot_case(name: &'static str, bytes: usize, target: Target) -> Case<'static> {
    Case {
        name,
        unit: "B",
        peer: "SRNIC (its paper)",
        target,
        ours: Box::new(move || Ok(bytes as f64)),
        theirs: Box::new(|| Ok(SRNIC_HOT_BYTES)),
    }
}

/// A storm beside the time that it may take.
fn storm_case(
    name: &'static str,
    limit: f64,
    storm: impl FnMut() -> Result<f64> + 'static,
) -> Case<'static> {
    Case {
        name,
        unit: "s",
        peer: "the time allowed",
        target: Target::AtMost(1.0),
        ours: Box::new(storm),
        theirs: Box::new(move || Ok(limit)),
    }
}

/// SENDs of 512 B, as in the paper's Fig. 9.
fn sends(qps: u32, depth: u32, seconds: &str) -> Run<'static> {
    let test = format!("bw --size 512 --depth {depth} --qps {qps}");
    ours("send", &test, seconds, "mmsgps")
}

/// The names of [`memory`]'s rows: those of a card with one connection.
fn memory_names() -> Result<Vec<String>> {
    let parts = storm::run(1, DialectChoice::Lossy)?.memory;
    let names = parts.iter().map(|part| memory_name(&part.name));
    Ok(names.chain([STROM_MEMORY.to_owned()]).collect())
}

fn memory_name(part: &str) -> String {
    format!("memory_{CONNECTIONS}_{part}")
}

/// What structures take with so many connections, and all together with StRoM's.
fn memory(connections: usize) -> Result<Vec<Row>> {
    let memory = storm::run(connections, DialectChoice::Lossy)?.memory;
    show_memory(&memory, connections);
    let mut rows: Vec<Row> = memory.iter().map(|part| memory_row(part, connections)).collect();
    let memory = storm::run(STROM_CONNECTIONS, DialectChoice::Standard)?.memory;
    show_memory(&memory, STROM_CONNECTIONS);
    let megabytes = memory.iter().map(|part| part.bytes).sum::<u64>() as f64 / 1e6;
    for beside in STROM_MEGABYTES {
        println!(
            "StRoM, Table 3: {:.2} MB on the card ({}); here {megabytes:.2} MB",
            beside.1, beside.0
        );
        let ours = Spread::of(vec![megabytes]);
        rows.push(Row::beside(STROM_MEMORY, "MB", ours, beside, Target::Any));
    }
    Ok(rows)
}

/// What the paper's Table 1 says of a structure at 10,000 connections, in MB: of the usual design,
/// and of SRNIC.
fn paper(name: &str) -> Option<(f64, f64)> {
    Some(match name {
        "receive_buffer" => (0.6, 0.6),
        "queue_pairs_hot" => (2.0, 2.0),
        "translation_table" => (8.0, 1.2),
        "fetched_elements" => (9.8, 0.0),
        "bitmaps" => (3.0, 0.0),
        "reordering_buffer" => (4900.0, 0.0),
        "outstanding_requests" => (114.4, 0.0),
        _ => return None,
    })
}

fn show_memory(memory: &[StructureUse], connections: usize) {
    println!("\nMemory of one card with {connections} connections, right after a storm:");
    let heading = ["structure", "parts", "bytes", "each", "usual (paper), MB", "SRNIC, MB"];
    let mut table = output::table(heading);
    for part in memory {
        let (usual, srnic) = paper(&part.name).map_or_else(Default::default, |(usual, srnic)| {
            (format!("{usual:.1}"), format!("{srnic:.1}"))
        });
        table.add_row([
            part.name.to_string(),
            output::grouped(part.count),
            output::grouped(part.bytes),
            part.bytes.checked_div(part.count).map(output::grouped).unwrap_or_default(),
            usual,
            srnic,
        ]);
    }
    output::align_right(&mut table, [1, 2, 3, 4, 5]);
    println!("{table}\nthe paper's columns are for 10,000 connections (SRNIC, Table 1)");
}

/// A structure as a row: its megabytes, beside those of the usual design where the paper has it,
/// with as many connections.
fn memory_row(part: &StructureUse, connections: usize) -> Row {
    let ours = Spread::of(vec![part.bytes as f64 / 1e6]);
    let listed = paper(&part.name).filter(|_| connections == CONNECTIONS);
    let usual = listed.map_or(f64::NAN, |(usual, _)| usual);
    let beside = ("the usual design (SRNIC, Table 1)", usual);
    Row::beside(memory_name(&part.name), "MB", ours, beside, Target::Any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_beside_the_paper_only_where_the_paper_has_it() {
        let part =
            |name: &'static str| StructureUse { name: name.into(), count: 1, bytes: 16 << 20 };
        let row = memory_row(&part("translation_table"), CONNECTIONS);
        assert_eq!((&*row.name, row.peer.spread.median), ("memory_10000_translation_table", 8.0));
        for (name, connections) in [("translation_table", 1000), ("lossy_state", CONNECTIONS)] {
            let row = memory_row(&part(name), connections);
            assert_eq!(row.name, format!("memory_10000_{name}"));
            assert!(row.peer.spread.median.is_nan() && row.ratio.is_nan(), "{name}");
        }
    }
}
