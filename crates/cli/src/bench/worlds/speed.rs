//! How fast the simulator is: packets a second from card to card, by the number of servers and of
//! threads, its memory, and random worlds a second.
//!
//! Packets count when they are delivered, acknowledges included; a run's set-up (cards, queue
//! pairs) counts in `hosts_4096` only.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use remora::nic::qp::Mtu;
use remora_sim::flows::Steady;
use remora_sim::net::Ps;
use remora_sim::net::time::{MS, US};

use super::{SEED, cluster, flows};
use crate::bench::report::Options;
use crate::bench::row::{Case, Row, Run, Spread, Target, measure};
use crate::world::progress;

/// The seeds of the tests' random worlds, from 1 on.
const WORLDS: u64 = 50;

/// A run of the load of Fig. 12 until its span ends.
#[derive(Clone, Copy)]
struct Load {
    servers: u32,
    /// What is before is not measured.
    warm_up: Ps,
    span: Ps,
    threads: u8,
    mtu: Mtu,
}

/// What it took.
struct Took {
    /// Without what is before the measurement.
    steady: Steady,
    /// Seconds, with it and the set-up.
    seconds: f64,
}

impl Load {
    fn run(self) -> Result<Took> {
        self.run_with(SEED)
    }

    fn run_with(self, seed: u64) -> Result<Took> {
        let mut cluster = cluster(self.servers)?;
        (cluster.mtu, cluster.threads, cluster.until) = (self.mtu, self.threads, self.span);
        (cluster.net.seed, cluster.warm_up) = (seed, self.warm_up);
        let flows = flows(&cluster, self.span, seed)?;
        let start = Instant::now();
        let report = progress::run(&cluster, &flows)?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(report.failed() == 0, "{} flows failed", report.failed());
        Ok(Took { steady: report.steady, seconds })
    }

    /// Thousands of packets a second.
    fn thousands(self) -> Run<'static> {
        Box::new(move || {
            let Steady { packets, seconds } = self.run()?.steady;
            Ok(packets as f64 / seconds / 1e3)
        })
    }

    /// Nanoseconds a packet, in so many networks of their own, one after the other.
    fn nanoseconds(self, networks: u64) -> Run<'static> {
        Box::new(move || {
            let mut all = Steady::default();
            for network in 0..networks {
                let Steady { packets, seconds } = self.run_with(SEED + network)?.steady;
                all.packets += packets;
                all.seconds += seconds;
            }
            Ok(all.seconds * 1e9 / all.packets as f64)
        })
    }
}

/// The rows that are wanted; `peer` is another build of this command.
pub(super) fn rows(options: &Options, peer: Option<&Path>) -> Result<Vec<Row>> {
    let quick = options.quick;
    let shorter = if quick { 50 } else { 1 };
    let mut rows = Vec::new();
    // First, so that it is not told what others have left in memory.
    if LARGEST.iter().any(|name| options.wants(name)) {
        rows.extend(largest(MS / shorter)?.into_iter().filter(|row| options.wants(&row.name)));
    }
    let runs = if quick { 1 } else { 3 };
    rows.extend(options.measure(cases(shorter), runs)?);
    if options.wants("worlds_rate") {
        rows.push(worlds_rate(WORLDS / shorter, runs, peer)?);
    }
    Ok(rows)
}

fn cases(shorter: u64) -> [Case<'static>; 4] {
    let load = |servers, span: Ps| {
        let span = span / shorter;
        Load { servers, warm_up: 0, span, threads: 1, mtu: Mtu::B1024 }
    };
    let asked = |name, servers, span, peer, thousands| Case {
        name,
        unit: "K/s",
        peer,
        target: Target::AtLeast(1.0),
        ours: load(servers, span).thousands(),
        theirs: Box::new(move || Ok(thousands)),
    };
    // As many servers, for the same span, behind the same span in which the load comes up.
    let steady = |servers| Load { warm_up: 200 * US / shorter, ..load(servers, 300 * US) };
    let many = load(1024, 200 * US);
    let htsim = "what is asked for (htsim: 46–64, ns-3: 0.8)";
    let ns3 = "what is asked for (ns-3: 21.6 at 64)";
    [
        asked("packets_16", 16, 8 * MS, ns3, 1000.0),
        asked("packets_1024", 1024, 200 * US, htsim, 400.0),
        Case {
            name: "threads_2",
            unit: "K/s",
            peer: "one thread",
            target: Target::AtLeast(1.6),
            ours: Load { threads: 2, ..many }.thousands(),
            theirs: many.thousands(),
        },
        Case {
            name: "growth",
            unit: "ns a packet",
            peer: "64 networks of 64 servers",
            target: Target::AtMost(3.0),
            ours: steady(4096).nanoseconds(1),
            theirs: steady(64).nanoseconds(64),
        },
    ]
}

/// The names of the rows of [`largest`].
const LARGEST: [&str; 2] = ["hosts_4096", "hosts_4096_memory"];

/// 4,096 servers for a span, on two threads: the seconds, and the memory.
fn largest(span: Ps) -> Result<[Row; 2]> {
    let told = "cannot reset the process's highest memory: /proc/self/clear_refs";
    fs::write("/proc/self/clear_refs", "5").context(told)?;
    let took = Load { servers: 4096, warm_up: 0, span, threads: 2, mtu: Mtu::B4096 }.run()?;
    let gib = highest_memory()? as f64 / f64::from(1 << 30);
    let row = |name, unit, ours, asked| {
        let asked_for = ("what is asked for", asked);
        Row::beside(name, unit, Spread::of(vec![ours]), asked_for, Target::AtMost(1.0))
    };
    let [time, memory] = LARGEST;
    Ok([row(time, "s", took.seconds, 45.0), row(memory, "GiB", gib, 4.0)])
}

/// The most memory that this process has had since the last reset, in bytes.
fn highest_memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read own memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.context("/proc/self/status says nothing of VmHWM")? << 10)
}

/// Random worlds a second. The same seed is another world in another build, as soon as worlds have
/// something more: so what is compared is what the tests of each build take.
fn worlds_rate(count: u64, runs: usize, peer: Option<&Path>) -> Result<Row> {
    let Some(peer) = peer else {
        let rates = (0..runs).map(|_| random_worlds(count));
        let ours = Spread::of(rates.collect::<Result<_>>()?);
        let nobody = ("another build of this command (--peer)", f64::NAN);
        return Ok(Row::beside("worlds_rate", "1/s", ours, nobody, Target::AtLeast(1.0)));
    };
    let own = env::current_exe().context("cannot find this command's own file")?;
    let case = Case {
        name: "worlds_rate",
        unit: "1/s",
        peer: "the other build",
        target: Target::AtLeast(1.0),
        ours: Box::new(|| worlds_of(&own, count)),
        theirs: Box::new(|| worlds_of(peer, count)),
    };
    measure(case, runs)
}

/// Random worlds a second.
fn random_worlds(count: u64) -> Result<f64> {
    let start = Instant::now();
    for seed in 1..=count.max(1) {
        remora_sim::run(seed).with_context(|| format!("the world of seed {seed} is wrong"))?;
    }
    Ok(count.max(1) as f64 / start.elapsed().as_secs_f64())
}

/// The same by a build of this command, in a process of its own.
fn worlds_of(program: &Path, count: u64) -> Result<f64> {
    let count = count.max(1);
    let start = Instant::now();
    let run = Command::new(program)
        .args(["sim", "1", "--count", &count.to_string()])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let seconds = start.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{} sim 1 --count {count}: {said}", program.display());
    Ok(count as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_names() {
        let row = |name: &str| {
            rows(&Options { quick: true, only: name.to_owned(), json: None, cpu: None }, None)
                .unwrap()
        };
        let [small] = &row("packets_16")[..] else { panic!("one row") };
        assert!(small.ours.median > 0.0 && small.peer.spread.median == 1000.0);
        let [worlds] = &row("worlds_rate")[..] else { panic!("one row") };
        assert_eq!((worlds.ratio(), worlds.verdict()), ("–".into(), ""));
        assert!(highest_memory().unwrap() > 1 << 20);
    }
}
