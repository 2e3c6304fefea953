//! Where time was lost: what messages waited for at their senders' cards, and how long packets
//! waited, by the stage of the network.

use std::collections::{BTreeMap, VecDeque};

use remora_sim::flows::{MessageWaits, Report};
use remora_sim::net::time::US;
use remora_sim::net::{Cable, Node, Ps, Topology, Usage};
use remora_sim::world_file::Experiment;
use serde::Serialize;

/// The links from one tier of the network to another.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Stage {
    /// Where they lead: `hosts to tier 1`.
    pub(super) name: String,
    pub(super) links: usize,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    /// How long all packets together have waited for their ports, in picoseconds.
    pub(super) waited_ps: Ps,
    /// How long all ports together were paused, in picoseconds.
    pub(super) paused_ps: Ps,
    /// The longest queue of a port that a sample has found, in bytes.
    pub(super) longest_queue: u32,
}

/// What messages waited for at their senders' cards, from their posts to their ends.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Wait {
    pub(super) what: &'static str,
    /// In µs, of all messages that have begun.
    pub(super) mean_us: f64,
    /// The part of all time of all messages.
    pub(super) share: f64,
}

/// All waits of messages; none if nothing was recorded.
pub(super) fn waits(report: &Report) -> Vec<Wait> {
    let Some(record) = &report.record else { return Vec::new() };
    let MessageWaits { turn, leave, peer } = record.waits;
    let begun = report.messages().filter(|(flow, _)| flow.began.is_some()).count();
    let all = (turn + leave + peer).max(1) as f64;
    let wait = |what, samples: u64| Wait {
        what,
        mean_us: samples as f64 * record.every as f64 / US as f64 / begun.max(1) as f64,
        share: samples as f64 / all,
    };
    vec![
        wait("sends, or waits for its turn", turn),
        wait("is held by its window or rate", leave),
        wait("has left, waits for its peer", peer),
    ]
}

/// The headings and cells of the table of what messages waited for.
pub(super) fn wait_table(waits: &[Wait]) -> ([&'static str; 3], Vec<[String; 3]>) {
    let row = |wait: &Wait| {
        let share = format!("{:.1} %", wait.share * 100.0);
        [wait.what.to_owned(), format!("{:.2}", wait.mean_us), share]
    };
    (["a message", "mean µs", "share of its time"], waits.iter().map(row).collect())
}

/// By node: 0 of hosts, of a switch the number of links to the next host.
pub(super) fn tiers(topology: &Topology) -> BTreeMap<Node, u32> {
    let mut beside: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
    for Cable { a, b, .. } in &topology.cables {
        beside.entry(*a).or_default().push(*b);
        beside.entry(*b).or_default().push(*a);
    }
    let mut tiers: BTreeMap<Node, u32> =
        (0..topology.hosts).map(|host| (Node::Host(host), 0)).collect();
    let mut line: VecDeque<Node> = tiers.keys().copied().collect();
    while let Some(node) = line.pop_front() {
        let tier = tiers[&node] + 1;
        for next in beside.get(&node).into_iter().flatten() {
            if !tiers.contains_key(next) {
                tiers.insert(*next, tier);
                line.push_back(*next);
            }
        }
    }
    tiers
}

/// All stages, from hosts inwards and out again; none if nothing was recorded.
pub(super) fn stages(experiment: &Experiment, report: &Report) -> Vec<Stage> {
    let Some(record) = &report.record else { return Vec::new() };
    let topology = &experiment.cluster.topology;
    let tiers = tiers(topology);
    let paused = record.paused(report.stopped);
    let mut stages: BTreeMap<(u32, u32, u32), Stage> = BTreeMap::new();
    for (i, link) in topology.links().iter().enumerate() {
        let tier = |node: &Node| tiers.get(node).copied().unwrap_or(0);
        let (from, to) = (tier(&link.from), tier(&link.to));
        // Upwards first, in order; then down.
        let key = if from <= to { (0, from, to) } else { (1, u32::MAX - from, to) };
        let stage = stages.entry(key).or_default();
        stage.name = format!("{} to {}", name(from), name(to));
        stage.links += 1;
        let Usage { bytes, packets, waited, dropped } = record.links[i].usage;
        stage.packets += packets;
        stage.bytes += bytes;
        stage.dropped += dropped;
        stage.waited_ps += waited;
        stage.paused_ps += paused[i];
        let longest = record.links[i].queue.iter().copied().max().unwrap_or(0);
        stage.longest_queue = stage.longest_queue.max(longest);
    }
    stages.into_values().collect()
}

fn name(tier: u32) -> String {
    if tier == 0 { "hosts".into() } else { format!("tier {tier}") }
}
