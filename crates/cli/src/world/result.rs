//! The figures of a run, as tables and as JSON.

use std::collections::BTreeMap;

use remora::printable;
use remora_sim::flows::{Deadlock, Report, SizeClass};
use remora_sim::net::Ps;
use remora_sim::net::time::US;
use remora_sim::world_file::Experiment;
use serde::{Serialize, Serializer};

use super::settings::Settings;
use super::stages::{Stage, Wait, stages, wait_table, waits};
use super::workloads::{self, Part};
use crate::output::{self, counted, grouped};

/// How many groups of sizes are told apart.
pub(super) const GROUPS: usize = 10;

/// Completion times in µs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// Flows of one range of sizes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Class {
    pub(super) least_bytes: u64,
    pub(super) most_bytes: u64,
    pub(super) flows: usize,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p95_us: f64,
    pub(super) p99_us: f64,
    pub(super) mean_slowdown: f64,
    pub(super) p50_slowdown: f64,
    pub(super) p95_slowdown: f64,
    pub(super) p99_slowdown: f64,
}

/// What packets came to.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Packets {
    pub(super) sent: u64,
    pub(super) delivered: u64,
    pub(super) in_flight: u64,
    pub(super) dropped_full: u64,
    pub(super) dropped_loss: u64,
    pub(super) dropped_down: u64,
    pub(super) dropped_no_path: u64,
    pub(super) marked: u64,
    pub(super) pauses: u64,
    pub(super) sent_again: u64,
}

/// A deadlock of flow control.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stuck {
    pub(super) found_us: f64,
    pub(super) flows_left: usize,
    /// Each link's port is paused by the next link, the last one's by the first.
    pub(super) links: Vec<String>,
}

/// All figures of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) transport: &'static str,
    /// What the transport is set to: a word for each setting.
    #[serde(serialize_with = "words")]
    pub(super) settings: Settings,
    /// The cards whose hardware takes time: how many of each kind.
    pub(super) cards: BTreeMap<&'static str, usize>,
    pub(super) hosts: u32,
    pub(super) switches: u32,
    pub(super) cables: usize,
    pub(super) seed: u64,
    pub(super) flows: usize,
    pub(super) done: usize,
    pub(super) failed: usize,
    /// When the last flow ended. (None, as the next three, if no flow has.)
    pub(super) end_us: Option<f64>,
    pub(super) times_us: Option<Times>,
    pub(super) mean_slowdown: Option<f64>,
    pub(super) p99_slowdown: Option<f64>,
    /// When the run stopped: with the last flow, at the end that the file sets, or in a deadlock.
    pub(super) stopped_us: f64,
    pub(super) deadlock: Option<Stuck>,
    /// When the first flow begins.
    pub(super) first_us: f64,
    /// The bytes that have arrived, by the time from the first flow until the run stopped, a host.
    pub(super) gigabits_per_host: f64,
    pub(super) packets: Packets,
    /// Pauses and captured packets of which there were too many to be kept.
    pub(super) not_noted: u64,
    pub(super) classes: Vec<Class>,
    pub(super) workloads: Vec<Part>,
    pub(super) stages: Vec<Stage>,
    /// What messages waited for at their senders, if that was recorded.
    pub(super) waits: Vec<Wait>,
    /// The sum of all arrivals, which names a run: the same for the same world on any machine.
    pub(super) trace: String,
    pub(super) run_seconds: f64,
}

fn words<S: Serializer>(settings: &Settings, to: S) -> Result<S::Ok, S::Error> {
    settings.all.serialize(to)
}

fn us(ps: Ps) -> f64 {
    ps as f64 / US as f64
}

impl Class {
    fn of(class: &SizeClass) -> Class {
        let [p50_us, p95_us, p99_us] = class.times.map(us);
        let [p50_slowdown, p95_slowdown, p99_slowdown] = class.slowdowns;
        Class {
            least_bytes: class.least,
            most_bytes: class.most,
            flows: class.flows,
            mean_us: class.mean / US as f64,
            p50_us,
            p95_us,
            p99_us,
            mean_slowdown: class.mean_slowdown,
            p50_slowdown,
            p95_slowdown,
            p99_slowdown,
        }
    }
}

impl Stuck {
    fn of(deadlock: &Deadlock) -> Stuck {
        let links = deadlock.links.iter().map(|(from, to)| format!("{from} to {to}"));
        Stuck { found_us: us(deadlock.at), flows_left: deadlock.left, links: links.collect() }
    }

    /// The headings and cells of the table of links.
    pub(super) fn table(&self) -> ([&'static str; 2], Vec<[String; 2]>) {
        let nexts = self.links.iter().cycle().skip(1);
        let rows = self.links.iter().zip(nexts).map(|(link, next)| [link.clone(), next.clone()]);
        (["link", "waits for"], rows.collect())
    }
}

impl Outcome {
    pub(super) fn new(experiment: &Experiment, report: &Report) -> Outcome {
        let Experiment { name, cluster, flows, .. } = experiment;
        let t = &report.tally;
        let percentile = |per_mille| report.percentile(per_mille).map(us);
        let times = |p50| Times {
            mean: report.mean() / US as f64,
            p50,
            p95: percentile(950).unwrap_or(p50),
            p99: percentile(990).unwrap_or(p50),
            max: percentile(1000).unwrap_or(p50),
        };
        let begun = report.messages().filter(|(flow, _)| flow.began.is_some());
        let bits = begun.map(|(flow, _)| flow.arrived).sum::<u64>() as f64 * 8.0;
        let seconds = report.lasted() as f64 / 1e12;
        let mut cards = BTreeMap::new();
        let hardware = cluster.hardware.iter().flatten();
        hardware.for_each(|profile| *cards.entry(profile.name).or_default() += 1);
        let ended = percentile(500).is_some();
        let (end, hosts) = (report.stopped, cluster.topology.hosts);
        Outcome {
            name: name.clone(),
            transport: cluster.transport.name,
            settings: Settings::of(cluster),
            cards,
            hosts,
            switches: cluster.topology.switches,
            cables: cluster.topology.cables.len(),
            seed: cluster.net.seed,
            flows: flows.flows.len(),
            done: report.done(),
            failed: report.failed(),
            end_us: ended.then(|| us(report.end())),
            stopped_us: us(end),
            deadlock: report.deadlock.as_ref().map(Stuck::of),
            times_us: percentile(500).map(times),
            mean_slowdown: ended.then(|| report.mean_slowdown()),
            p99_slowdown: report.classes(1).first().map(|class| class.slowdowns[2]),
            first_us: us(report.first),
            gigabits_per_host: bits / seconds / 1e9 / f64::from(hosts),
            packets: Packets {
                sent: t.sent,
                delivered: t.delivered,
                in_flight: report.in_flight,
                dropped_full: t.dropped_full,
                dropped_loss: t.dropped_loss,
                dropped_down: t.dropped_down,
                dropped_no_path: t.dropped_no_path,
                marked: t.marked,
                pauses: t.pauses,
                sent_again: report.retransmitted,
            },
            not_noted: report.record.as_ref().map_or(0, |record| record.notes.missed),
            classes: report.classes(GROUPS).iter().map(Class::of).collect(),
            workloads: workloads::parts(experiment, report),
            stages: stages(experiment, report),
            waits: waits(report),
            trace: format!("{:016x}", report.trace.hash),
            run_seconds: report.run_seconds,
        }
    }

    /// The figures with their names.
    pub(super) fn rows(&self) -> Vec<[String; 2]> {
        let mut rows = vec![
            ["world".into(), printable(&self.name)],
            ["transport".into(), self.transport.into()],
            [
                "network".into(),
                [
                    counted(self.hosts.into(), "host"),
                    counted(self.switches.into(), "switch"),
                    counted(self.cables as u64, "cable"),
                ]
                .join(", "),
            ],
            [
                "flows".into(),
                format!("{} of {} done, {} failed", self.done, self.flows, self.failed),
            ],
        ];
        if !self.settings.shown().is_empty() {
            rows.insert(2, ["tuning".into(), self.settings.shown()]);
        }
        if !self.cards.is_empty() {
            let kinds = self.cards.iter().map(|(name, number)| format!("{number} {name}"));
            rows.push(["cards".into(), kinds.collect::<Vec<_>>().join(", ")]);
        }
        if let Some(Times { mean, p50, p95, p99, max }) = self.times_us {
            rows.push(["completion".into(), format!("mean {mean:.2} µs, median {p50:.2} µs")]);
            let tail = format!("p95 {p95:.2} µs, p99 {p99:.2} µs, most {max:.2} µs");
            rows.push(["".into(), tail]);
        }
        let slowdown = match (self.mean_slowdown, self.p99_slowdown) {
            (Some(mean), Some(p99)) => format!("mean {mean:.2}, p99 {p99:.2}"),
            _ => "–".into(),
        };
        rows.push(["slowdown".into(), slowdown]);
        let (first, end) = (self.first_us, self.stopped_us);
        let goodput =
            format!("{:.2} Gb/s a host from {first:.1} to {end:.1} µs", self.gigabits_per_host);
        rows.push(["goodput".into(), goodput]);
        if let Some(Stuck { found_us, flows_left, links }) = &self.deadlock {
            let links = counted(links.len() as u64, "link");
            let what = format!("{links} wait for each other at {found_us:.1} µs");
            rows.push(["deadlock".into(), what]);
            rows.push(["".into(), format!("{} not done", counted(*flows_left as u64, "flow"))]);
        }
        let counts =
            self.counts().into_iter().filter(|(name, n)| *n > 0 || name.starts_with("packets"));
        rows.extend(counts.map(|(name, n)| [name.to_owned(), grouped(n)]));
        rows.push(["trace".into(), self.trace.clone()]);
        rows
    }

    /// What was counted, with its name.
    fn counts(&self) -> [(&'static str, u64); 11] {
        let p = &self.packets;
        [
            ("packets sent", p.sent),
            ("packets delivered", p.delivered),
            ("still in flight", p.in_flight),
            ("dropped: no room", p.dropped_full),
            ("dropped: random loss", p.dropped_loss),
            ("dropped: link down", p.dropped_down),
            ("dropped: no path", p.dropped_no_path),
            ("marked", p.marked),
            ("sent again", p.sent_again),
            ("pauses", p.pauses),
            ("not noted for want of room", self.not_noted),
        ]
    }

    /// The headings and cells of the table by size.
    pub(super) fn class_table(&self) -> ([&'static str; 8], Vec<[String; 8]>) {
        let headings =
            ["bytes, up to", "flows", "mean µs", "p50 µs", "p99 µs", "slowdown", "p50", "p99"];
        let row = |c: &Class| {
            let two = |value: f64| format!("{value:.2}");
            [
                grouped(c.most_bytes),
                c.flows.to_string(),
                two(c.mean_us),
                two(c.p50_us),
                two(c.p99_us),
                two(c.mean_slowdown),
                two(c.p50_slowdown),
                two(c.p99_slowdown),
            ]
        };
        (headings, self.classes.iter().map(row).collect())
    }

    /// The headings and cells of the table of where time was lost.
    pub(super) fn stage_table(&self) -> ([&'static str; 8], Vec<[String; 8]>) {
        let headings = [
            "links",
            "number",
            "packets",
            "mean wait, ns",
            "share of waits",
            "longest queue",
            "paused, µs",
            "dropped",
        ];
        let all: Ps = self.stages.iter().map(|stage| stage.waited_ps).sum();
        let row = |s: &Stage| {
            [
                s.name.clone(),
                s.links.to_string(),
                grouped(s.packets),
                format!("{:.1}", s.waited_ps as f64 / 1e3 / s.packets.max(1) as f64),
                format!("{:.1} %", s.waited_ps as f64 * 100.0 / all.max(1) as f64),
                output::bytes(s.longest_queue.into()),
                format!("{:.2}", us(s.paused_ps)),
                grouped(s.dropped),
            ]
        };
        (headings, self.stages.iter().map(row).collect())
    }

    /// Prints the tables.
    pub(super) fn show(&self) {
        let mut table = output::table(["figure", "value"]);
        self.rows().into_iter().for_each(|row| _ = table.add_row(row));
        println!("{table}");
        let (headings, rows) = workloads::table(&self.workloads);
        let mut table = output::table(headings);
        rows.into_iter().for_each(|row| _ = table.add_row(row));
        output::align_right(&mut table, 1..7);
        println!(
            "\nby workload (whole: from the first flow's start to the last one's end)\n{table}"
        );
        if !self.classes.is_empty() {
            let (headings, rows) = self.class_table();
            let mut table = output::table(headings);
            rows.into_iter().for_each(|row| _ = table.add_row(row));
            output::align_right(&mut table, 0..8);
            println!("\ncompletion and slowdown by size (as many flows in each row)\n{table}");
        }
        if !self.waits.is_empty() {
            let (headings, rows) = wait_table(&self.waits);
            let mut table = output::table(headings);
            rows.into_iter().for_each(|row| _ = table.add_row(row));
            output::align_right(&mut table, 1..3);
            println!("\nwhat messages waited for, from their posts to their ends\n{table}");
        }
        if !self.stages.is_empty() {
            let (headings, rows) = self.stage_table();
            let mut table = output::table(headings);
            rows.into_iter().for_each(|row| _ = table.add_row(row));
            output::align_right(&mut table, 1..8);
            println!(
                "\nwhere packets waited, once they had left cards (frames of flow control are \
                 packets, too)\n{table}"
            );
        }
        let rate = self.packets.delivered as f64 / self.run_seconds.max(1e-9) / 1e3;
        println!("\nran for {:.2} s: {rate:.0} thousand packets a second", self.run_seconds);
    }
}
