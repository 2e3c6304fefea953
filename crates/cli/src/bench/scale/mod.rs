//! `remora bench scale`: many queue pairs beside few, storms of connections, and what each
//! structure takes of memory, beside SRNIC's figures (Fig. 2, Fig. 9, Table 1).

pub(super) mod caches;
mod storm;

use anyhow::Result;
use clap::Args;
use remora::nic::nic::StructureUse;
use remora::nic::qp::HOT_BYTES;

use super::report::{Options, show, write};
use super::row::{Case, PeerSide, Row, Run, Spread, Target, measure};
use super::transport::ours;
use crate::output;

/// Measures how the card scales with its queue pairs.
#[derive(Debug, Args)]
pub(super) struct Scale {
    #[command(flatten)]
    pub(super) options: Options,
}

/// SENDs of 512 B, as in the paper's Fig. 9.
const SENDS: &str = "bw --size 512 --depth 8";
/// The set-ups of a storm, and the seconds that they may take.
const STORM: usize = 5000;
const STORM_SECONDS: f64 = 3.0;
/// The hot bytes of a queue pair of SRNIC, and the target.
const SRNIC_HOT_BYTES: f64 = 210.0;
const HOT_BYTES_TARGET: f64 = 208.0;
/// The connections whose memory is shown: those of the paper's Table 1.
const CONNECTIONS: usize = 10_000;

impl Scale {
    pub(super) fn run(&self) -> Result<()> {
        let quick = self.options.quick;
        let (runs, seconds) = if quick { (1, "0.2") } else { (7, "1") };
        let mut rows = Vec::new();
        for (case, runs) in cases(seconds, runs) {
            if case.name.contains(&self.options.only) {
                rows.push(measure(case, runs)?);
            }
        }
        show(&rows);
        if "fig2".contains(&self.options.only) {
            let figure = caches::figure();
            figure.show();
            rows.extend(figure.rows());
        }
        if "memory".contains(&self.options.only) {
            let count = if quick { CONNECTIONS / 10 } else { CONNECTIONS };
            let memory = storm::run(count)?.memory;
            show_memory(&memory, count);
            rows.extend(memory.iter().map(|part| memory_row(part, count)));
        }
        write(&rows, &self.options)
    }
}

/// The cases, each with its number of runs.
fn cases(seconds: &'static str, runs: usize) -> [(Case<'static>, usize); 4] {
    let many = |name, qps: u32, target| Case {
        name,
        unit: "Mmsg/s",
        peer: "128 queue pairs",
        target,
        ours: sends(qps, seconds),
        theirs: sends(128, seconds),
    };
    [
        (many("qps_10000", 10_000, Target::AtLeast(0.95)), runs),
        (many("qps_100000", 100_000, Target::AtLeast(0.9)), runs.div_ceil(2)),
        (
            Case {
                name: "storm_5000",
                unit: "s",
                peer: "the time allowed",
                target: Target::AtMost(1.0),
                ours: Box::new(|| Ok(storm::run(STORM)?.seconds)),
                theirs: Box::new(|| Ok(STORM_SECONDS)),
            },
            runs,
        ),
        (
            Case {
                name: "hot_bytes",
                unit: "B",
                peer: "SRNIC (its paper)",
                target: Target::AtMost(HOT_BYTES_TARGET / SRNIC_HOT_BYTES),
                ours: Box::new(|| Ok(HOT_BYTES as f64)),
                theirs: Box::new(|| Ok(SRNIC_HOT_BYTES)),
            },
            1,
        ),
    ]
}

fn sends(qps: u32, seconds: &str) -> Run<'static> {
    ours("send", &format!("{SENDS} --qps {qps}"), seconds, "mmsgps")
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

/// A structure as a row: its megabytes, beside those of the usual design.
fn memory_row(part: &StructureUse, connections: usize) -> Row {
    let once = |value| Spread::of(vec![value]);
    let megabytes = part.bytes as f64 / 1e6;
    let usual = paper(&part.name).map_or(0.0, |(usual, _)| usual);
    Row {
        name: format!("memory_{connections}_{}", part.name).into(),
        unit: "MB",
        ours: once(megabytes),
        peer: PeerSide { name: "the usual design (SRNIC, Table 1)".into(), spread: once(usual) },
        ratio: if usual > 0.0 { megabytes / usual } else { 0.0 },
        target: Target::Any,
    }
}
