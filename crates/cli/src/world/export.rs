//! `remora world export`: files that other simulators, their tools and Wireshark read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use remora::nic::wire::ROCE_PORT;
use remora::pcap::Capture;
use remora_sim::flows::{Record, RecordOptions, Report};
use remora_sim::format::{hpcc, hpcc_out};
use remora_sim::net::time::{NS, US};
use remora_sim::net::{Change, Link, Node, Ps};
use remora_sim::world_file::Experiment;

use super::load::{self, Chosen};
use crate::failure::wrong_line;
use crate::output::{counted, grouped};

/// `remora world export`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora world export world.toml --topology topology.txt --flows flow.txt     without a run
  remora world export world.toml --fct fct_fat_remora.txt --pfc pfc.txt --qlen qlen.txt
  remora world export world.toml --pcapng port.pcapng --cable 'switch 0' 'host 3'

The exit status is that of `remora world run`.")]
pub(super) struct Export {
    /// The world file
    #[arg(value_name = "WORLD.toml")]
    world: PathBuf,
    #[command(flatten)]
    chosen: Chosen,
    /// HPCC's topology.txt
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// HPCC's flow.txt: the flows that wait for no others
    #[arg(long, value_name = "FILE")]
    flows: Option<PathBuf>,
    /// HPCC's fct.txt: completion times, for its fct_analysis.py
    #[arg(long, value_name = "FILE")]
    fct: Option<PathBuf>,
    /// HPCC's pfc.txt: each pause and resume
    #[arg(long, value_name = "FILE")]
    pfc: Option<PathBuf>,
    /// HPCC's qlen.txt: how often each queue was how long
    #[arg(long, value_name = "FILE")]
    qlen: Option<PathBuf>,
    /// Queues and rates of all links over time, as CSV: a line for each link and interval
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// The packets that passed a cable, as pcapng; payload that does not exist is zeros
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
    /// The ends of that cable [default: those that the world's section record captures]
    #[arg(long, value_names = ["NODE", "NODE"], num_args = 2, value_parser = node)]
    cable: Vec<Node>,
}

fn node(name: &str) -> Result<Node, String> {
    Node::named(name).ok_or_else(|| "it is no node: write it as in `switch 0` or `host 3`".into())
}

impl Export {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.check().map_err(wrong_line)?;
        let needs_run = [&self.fct, &self.pfc, &self.qlen, &self.series, &self.pcapng];
        let outputs = [&self.topology, &self.flows].into_iter().chain(needs_run);
        let outputs: Vec<&Path> = outputs.flatten().map(PathBuf::as_path).collect();
        let mut experiment = load::load(&self.world, self.chosen, &outputs)?;
        if let Some(path) = &self.topology {
            load::write(path, experiment.topology.write())?;
            let is_told =
                |(at, change): &(Ps, Change)| *at == 0 && matches!(change, Change::Loss { .. });
            if !experiment.cluster.changes.iter().all(is_told) {
                eprintln!("the format cannot say what fails or changes: it is left out");
            }
        }
        if let Some(path) = &self.flows {
            let (text, left) = experiment.flows.write(&experiment.topology);
            load::write(path, text)?;
            if left > 0 {
                let left = counted(left as u64, "flow");
                eprintln!("the format cannot say which flows wait for others (here: {left})");
            }
        }
        if needs_run.iter().all(|path| path.is_none()) {
            return Ok(ExitCode::SUCCESS);
        }
        self.prepare(&mut experiment)?;
        let report = load::simulate(&experiment)?;
        print!("{report}");
        self.write(&experiment, &report)?;
        Ok(load::status([(&experiment, &report)]))
    }

    /// An error if the options name nothing to write, or do not go together.
    fn check(&self) -> Result<()> {
        let Export { topology, flows, fct, pfc, qlen, series, pcapng, .. } = self;
        let all = [topology, flows, fct, pfc, qlen, series, pcapng];
        ensure!(
            self.cable.is_empty() || pcapng.is_some(),
            "--cable says whose packets --pcapng writes: give --pcapng FILE, too"
        );
        ensure!(
            all.iter().any(|path| path.is_some()),
            "say what to write: --fct, --pfc, --qlen, --series, --pcapng, --topology or --flows"
        );
        Ok(())
    }

    /// Writes what the run has come to.
    fn write(&self, experiment: &Experiment, report: &Report) -> Result<()> {
        if let Some(path) = &self.fct {
            let text = hpcc::write_fct(report, &experiment.flows, &experiment.topology);
            load::write(path, text)?;
        }
        let Some(record) = &report.record else { return Ok(()) };
        if let Some(path) = &self.pfc {
            load::write(path, hpcc_out::write_pfc(record, &experiment.topology))?;
        }
        if let Some(path) = &self.qlen {
            load::write(path, hpcc_out::write_qlen(record, &experiment.topology))?;
            let most = record.most_kilobytes();
            if record.links.iter().any(|link| link.histogram.len() > most) {
                let most = grouped(most as u64);
                eprintln!("{}: queues of more than {most} KB count as such", path.display());
            }
        }
        if let Some(path) = &self.series {
            let told = || format!("cannot write {}", path.display());
            let file = BufWriter::new(File::create(path).with_context(told)?);
            series(file, record, &experiment.cluster.topology.links()).with_context(told)?;
        }
        if let Some(path) = &self.pcapng {
            let links = experiment.cluster.topology.links();
            write_packets(path, record, &links)?;
        }
        if record.notes.missed > 0 {
            eprintln!("{} entries found no room", grouped(record.notes.missed));
        }
        Ok(())
    }

    /// Has all be recorded that is to be written.
    fn prepare(&self, experiment: &mut Experiment) -> Result<()> {
        let Experiment { cluster, .. } = experiment;
        let usual = RecordOptions { every: US, captures: Vec::new() };
        let all = cluster.topology.links();
        let options = cluster.record.get_or_insert(usual);
        if let [a, b] = *self.cable.as_slice() {
            let is_between =
                |(_, link): &(u32, &Link)| [(a, b), (b, a)].contains(&(link.from, link.to));
            let between = (0u32..).zip(&all).filter(is_between).map(|(link, _)| link);
            options.captures = between.collect();
            if options.captures.is_empty() {
                bail!("there is no cable between {a} and {b}");
            }
        }
        if self.pcapng.is_some() && options.captures.is_empty() {
            bail!("name the cable: --cable 'switch 0' 'host 3'");
        }
        Ok(())
    }
}

/// Writes what was sampled: the end of each interval, a link's ends, the longest queue, the rate.
fn series(mut out: impl Write, record: &Record, links: &[Link]) -> std::io::Result<()> {
    writeln!(out, "time_us,from,to,queue_bytes,gigabits_per_second")?;
    for (i, (Link { from, to, .. }, link)) in links.iter().zip(&record.links).enumerate() {
        for ((end, queue), rate) in record.ends().zip(&link.queue).zip(record.rates(i)) {
            let at = end as f64 / US as f64;
            writeln!(out, "{at},{from},{to},{queue},{:.3}", rate / 1e9)?;
        }
    }
    out.flush()
}

fn write_packets(path: &Path, record: &Record, links: &[Link]) -> Result<()> {
    let told = || format!("cannot write {}", path.display());
    let file = BufWriter::new(File::create(path).with_context(told)?);
    capture(file, record, links).with_context(told)
}

/// Each link that has packets is an interface.
fn capture(out: impl Write, record: &Record, links: &[Link]) -> std::io::Result<()> {
    let captured: BTreeSet<u32> = record.notes.packets.iter().map(|note| note.link).collect();
    let name =
        |link: &u32| format!("{} to {}", links[*link as usize].from, links[*link as usize].to);
    let names: Vec<String> = captured.iter().map(name).collect();
    let mut capture = Capture::of(out, names.iter().map(String::as_str))?;
    let interfaces: BTreeMap<u32, u32> = captured.into_iter().zip(0..).collect();
    for note in &record.notes.packets {
        let wire = note.wire();
        capture.on(interfaces[&note.link]);
        capture.received(note.at / NS, &wire.datagram(), ROCE_PORT)?;
    }
    capture.flush()
}
