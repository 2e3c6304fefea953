//! The files of htsim (Broadcom/csg-htsim): topologies (`.topo`) and connection matrices (`.cm`),
//! as its `sim/datacenter/fat_tree_topology.cpp` and `connection_matrix.cpp` read them.
//!
//! - A topology is a fat tree of two or three tiers, with a rate and a delay for each.
//! - A matrix is a list of connections `src->dst`, each with a size, and a start in picoseconds or
//!   a trigger that starts it; and of triggers, which fire when connections end: `oneshot` at the
//!   first end, `barrier` at the `count`th, `multishot` at each, for one connection after the
//!   other.
//!
//! Connections of one `id` that are messages (`msg`) are messages of one connection.
//!
//! A connection that a trigger starts waits for others. One that its host receives is waited for
//! until it has arrived, one that it sends until it is acknowledged, whichever `…_done_trigger` the
//! file has. If some do neither, the host hears of all of them at once, at that end which the file
//! has. A connection may fire one trigger at both its ends, if that is a barrier of all ends.

use std::collections::{BTreeMap, BTreeSet};

use super::order::order;
use super::words::{FormatError, short};
use crate::flows::{Flow, Hears};
use crate::net::time::NS;
use crate::net::{Cable, FatTree, LineRate, Node, Ps, Topology};

/// What a tier of a topology is made of.
#[derive(Clone, Copy, Debug)]
struct Tier {
    line: usize,
    gigabits: u64,
    radix_down: u32,
    radix_up: u32,
    delay: Ps,
    switch_delay: Ps,
    bundle: u32,
}

impl Tier {
    const EMPTY: Tier = Tier {
        line: 0,
        gigabits: 0,
        radix_down: 0,
        radix_up: 0,
        delay: 0,
        switch_delay: 0,
        bundle: 1,
    };
}

/// The most of anything that a topology's file counts.
const MOST: u64 = 1 << 20;

/// Reads a `.topo`. Each switch's latency is half in the delay of each cable to it, so that a way
/// through the switch has it once.
///
/// # Errors
/// If it is none, or its numbers do not fit each other.
pub fn read_topology(text: &str) -> Result<Topology, FormatError> {
    let (mut nodes, mut tiers_said, mut pod) = (None, None, None);
    let (mut tiers, mut current) = (BTreeMap::<u64, Tier>::new(), None);
    let (mut last, mut keys) = (1, BTreeSet::new());
    for (line, words) in lines(text) {
        last = line;
        let [key, value] = *words else {
            let what = "a line has a name and a number, as in `Nodes 128`";
            return Err(FormatError::new(line, what));
        };
        let number: u64 = number(line, key, value)?;
        if number > MOST {
            return Err(FormatError::new(line, format!("{key} is more than {MOST}")));
        }
        let n = number as u32;
        let key = key.to_ascii_lowercase();
        if key == "tier" && number < 3 && !tiers.contains_key(&number) {
            tiers.insert(number, Tier { line, ..Tier::EMPTY });
            current = Some(number);
            continue;
        }
        once(line, &mut keys, (current, &key))?;
        match (key.as_str(), current.and_then(|current| tiers.get_mut(&current))) {
            ("nodes", None) => nodes = Some(n),
            ("tiers", None) => tiers_said = Some(n),
            ("podsize", None) => pod = Some(n),
            ("downlink_speed_gbps", Some(tier)) => tier.gigabits = number,
            ("radix_down", Some(tier)) => tier.radix_down = n,
            ("radix_up", Some(tier)) => tier.radix_up = n,
            ("downlink_latency_ns", Some(tier)) => tier.delay = number * NS,
            ("switch_latency_ns", Some(tier)) => tier.switch_delay = number * NS,
            ("bundle", Some(tier)) => tier.bundle = n,
            // It follows from the other numbers; queues are for [switch] to say.
            ("oversubscribed" | "queue_up" | "queue_down", Some(_)) => {}
            _ => {
                let what = format!("\"{}\" is not expected here", short(&key));
                return Err(FormatError::new(line, what));
            }
        }
    }
    let missing = |what: &str| FormatError::new(last, format!("the file does not say {what}"));
    let nodes = nodes.ok_or_else(|| missing("Nodes"))?;
    let pod = pod.unwrap_or(nodes);
    if !tiers.keys().copied().eq(0..tiers.len() as u64) {
        return Err(missing("Tier 0, or Tier 1"));
    }
    let tiers: Vec<Tier> = tiers.into_values().collect();
    if tiers_said.is_some_and(|said| said as usize != tiers.len())
        || !(2..=3).contains(&tiers.len())
    {
        return Err(FormatError::new(last, format!("there are {} tiers, not 2 or 3", tiers.len())));
    }
    build(nodes, pod, &tiers)
}

/// What these files say and a world does not take from them.
pub fn left_out(text: &str) -> Vec<&'static str> {
    let has = |key: &str| {
        let is_key = |word: &&str| word.eq_ignore_ascii_case(key);
        lines(text).any(|(_, words)| words.iter().any(is_key))
    };
    ["Queue_Up", "Queue_Down", "prio"].into_iter().filter(|key| has(key)).collect()
}

/// An error if a key is there twice.
fn once<K: Ord>(
    line: usize,
    keys: &mut BTreeSet<(K, String)>,
    (of, key): (K, &str),
) -> Result<(), FormatError> {
    if keys.insert((of, key.to_owned())) {
        return Ok(());
    }
    Err(FormatError::new(line, format!("\"{}\" is there twice", short(key))))
}

/// The whole part, if there is no rest.
fn divide(line: usize, a: u32, b: u32, what: &str) -> Result<u32, FormatError> {
    match a.checked_rem(b) {
        Some(0) if a > 0 => Ok(a / b),
        _ => Err(FormatError::new(line, format!("{what}: {a} is no multiple of {b}, or zero"))),
    }
}

fn build(nodes: u32, pod: u32, tiers: &[Tier]) -> Result<Topology, FormatError> {
    let (tor, agg) = (&tiers[0], &tiers[1]);
    let three = tiers.get(2);
    let hosts_per_tor = tor.radix_down;
    let pods = if three.is_some() { divide(tor.line, nodes, pod, "Nodes by Podsize")? } else { 1 };
    let tors = divide(tor.line, nodes / pods, hosts_per_tor, "hosts of a pod by Radix_Down")?;
    let aggs = divide(tor.line, tor.radix_up, agg.bundle, "Radix_Up by the next tier's Bundle")?;
    let cores = match three {
        Some(core) => divide(agg.line, agg.radix_up, core.bundle, "Radix_Up by Bundle")?,
        None => 0,
    };
    let says = |tier: &Tier, expected: u64| {
        if u64::from(tier.radix_down) == expected {
            return Ok(());
        }
        let what = format!("Radix_Down is {}, but {expected} cables come", tier.radix_down);
        Err(FormatError::new(tier.line, what))
    };
    says(agg, u64::from(tors) * u64::from(agg.bundle))?;
    if let Some(core) = three {
        says(core, u64::from(pods) * u64::from(core.bundle))?;
    }
    let product = |a: u32, b: u32, c: u32| {
        u64::from(a).saturating_mul(u64::from(b)).saturating_mul(u64::from(c))
    };
    let links = product(pods, tors, tor.radix_up)
        .saturating_add(product(pods, aggs, agg.radix_up))
        .saturating_add(product(aggs, cores, 1));
    if links > 4 * MOST {
        return Err(FormatError::new(tor.line, format!("{links} cables are too many")));
    }
    let mut rates = Vec::new();
    for tier in tiers {
        let rate = LineRate::bits_per_second(tier.gigabits.saturating_mul(1_000_000_000));
        let wrong = || {
            let what = format!("Downlink_speed_Gbps of {} is no rate", tier.gigabits);
            FormatError::new(tier.line, what)
        };
        rates.push(rate.ok_or_else(wrong)?);
    }
    let (host_rate, fabric_rate) = (rates[0], rates[1]);
    let tree = FatTree { pods, tors, aggs, cores, hosts_per_tor, host_rate, fabric_rate, delay: 0 };
    let plain = tree.topology();
    let (first_agg, first_core) = (pods * tors, pods * tors + pods * aggs);
    let mut topology = Topology { cables: Vec::new(), ..plain };
    for cable in plain.cables {
        // The tier above the cable.
        let upper = match cable.b {
            Node::Switch(switch) if switch >= first_core => 2,
            Node::Switch(switch) if switch >= first_agg => 1,
            _ => 0,
        };
        let below: Ps = if upper == 0 { 0 } else { tiers[upper - 1].switch_delay };
        let delay = tiers[upper].delay + (below + tiers[upper].switch_delay) / 2;
        let copies = if upper == 0 { 1 } else { tiers[upper].bundle };
        let cable = Cable { rate: rates[upper], delay, ..cable };
        topology.cables.extend((0..copies).map(|_| cable));
    }
    Ok(topology)
}

/// The lines that have words, with their numbers. A word that begins with `#` begins a comment.
fn lines(text: &str) -> impl Iterator<Item = (usize, Box<[&str]>)> {
    let lines = (1..).zip(text.lines());
    let words = lines.map(|(line, text)| {
        let words = text.split_whitespace().take_while(|word| !word.starts_with('#'));
        (line, words.collect::<Box<[_]>>())
    });
    words.filter(|(_, words)| !words.is_empty())
}

fn number<T: core::str::FromStr>(line: usize, key: &str, word: &str) -> Result<T, FormatError> {
    let what = || format!("{}: \"{}\" is not a number here", short(key), short(word));
    word.parse().map_err(|_| FormatError::new(line, what()))
}

/// When a trigger fires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fires {
    Once,
    Always,
    At(u32),
}

/// A connection of a matrix.
#[derive(Clone, Debug)]
struct Connection {
    line: usize,
    flow: Flow,
    trigger: Option<u32>,
    /// The triggers that it makes fire: when it has arrived, and when it is acknowledged.
    done: BTreeMap<Hears, u32>,
}

/// What makes a trigger fire.
#[derive(Debug, Default)]
struct Firing {
    /// The connections, in the file's order.
    connections: Vec<u32>,
    /// Which of their ends.
    ends: BTreeSet<Hears>,
    /// How many do it at both ends, and the line of the last such.
    twice: u32,
    twice_at: usize,
}

/// What a matrix's file has.
#[derive(Default)]
struct Matrix {
    connections: Vec<Connection>,
    triggers: BTreeMap<u32, (usize, Fires)>,
    /// How many nodes it says there are, and what it has said of all.
    nodes: Option<u32>,
    keys: BTreeSet<((), String)>,
    /// How many connections, and triggers, it says there are.
    said: [Option<(usize, u64)>; 2],
}

/// Reads a `.cm` for a network of so many hosts.
///
/// # Errors
/// If it is none, names other hosts, has connections without an end (`size 0`), failures, or
/// triggers of hosts that do not take part in what they wait for.
pub fn read_matrix(text: &str, hosts: u32) -> Result<Vec<Flow>, FormatError> {
    let mut matrix = Matrix::default();
    for (line, words) in lines(text) {
        if matrix.connections.len() > Flow::MOST {
            let what = format!("the most connections are {}", Flow::MOST);
            return Err(FormatError::new(line, what));
        }
        matrix.read_line(line, &words, hosts)?;
    }
    let counts = [matrix.connections.len(), matrix.triggers.len()];
    for (said, (count, what)) in
        matrix.said.iter().zip(counts.iter().zip(["Connections", "Triggers"]))
    {
        if let Some((line, said)) = *said
            && said != *count as u64
        {
            let what = format!("{what} is {said}, but the file has {count}");
            return Err(FormatError::new(line, what));
        }
    }
    let nodes = matrix.nodes.unwrap_or(hosts);
    for Connection { line, flow, .. } in &matrix.connections {
        Flow::check(core::slice::from_ref(flow), nodes)
            .map_err(|error| FormatError::new(*line, error.to_string()))?;
    }
    matrix.flows()
}

/// What a connection's line says.
#[derive(Default)]
struct ConnectionLine {
    start: Option<f64>,
    size: Option<u64>,
    trigger: Option<u32>,
    done: BTreeMap<Hears, u32>,
    id: Option<u32>,
    /// It is one of the messages of the connection `id`.
    is_message: bool,
}

impl ConnectionLine {
    fn read(line: usize, words: &[&str]) -> Result<ConnectionLine, FormatError> {
        let wrong = |what: String| FormatError::new(line, what);
        let (mut said, mut keys) = (ConnectionLine::default(), BTreeSet::new());
        let mut words = words.iter().copied();
        while let Some(key) = words.next() {
            once(line, &mut keys, ((), key))?;
            if key == "msg" {
                said.is_message = true;
                // A number may follow, which is a name.
                let mut behind = words.clone();
                if behind.next().is_some_and(|word| word.parse::<u64>().is_ok()) {
                    words = behind;
                }
                continue;
            }
            if key == "addon" {
                return Err(wrong(
                    "a trigger that adds to a connection (addon) is not read".into(),
                ));
            }
            let value = words.next();
            let value = value.ok_or_else(|| wrong(format!("\"{}\" has no value", short(key))))?;
            match key {
                "start" => said.start = Some(number(line, key, value)?),
                "size" => said.size = Some(number(line, key, value)?),
                "trigger" => said.trigger = Some(number(line, key, value)?),
                "send_done_trigger" => {
                    said.done.insert(Hears::Ends, number(line, key, value)?);
                }
                "recv_done_trigger" => {
                    said.done.insert(Hears::Arrivals, number(line, key, value)?);
                }
                "id" => said.id = Some(number(line, key, value)?),
                // There is one class of connections here.
                "prio" => _ = number::<u64>(line, key, value)?,
                _ => return Err(wrong(format!("a connection has no \"{}\"", short(key)))),
            }
        }
        // As in htsim, 0 is no trigger.
        said.done.retain(|_, trigger| *trigger > 0);
        said.trigger = said.trigger.filter(|trigger| *trigger > 0);
        Ok(said)
    }
}

impl Matrix {
    fn read_line(&mut self, line: usize, words: &[&str], hosts: u32) -> Result<(), FormatError> {
        let wrong = |what: String| Err(FormatError::new(line, what));
        if let ["Nodes" | "Connections" | "Triggers" | "Failures", ..] = *words {
            once(line, &mut self.keys, ((), words[0]))?;
        }
        match *words {
            ["Nodes", n] => {
                let nodes: u32 = number(line, "Nodes", n)?;
                if nodes == 0 {
                    return wrong("Nodes is 0: connections are between nodes".to_owned());
                }
                if nodes > hosts {
                    return wrong(format!("Nodes is {nodes}; the topology has {hosts} hosts"));
                }
                self.nodes = Some(nodes);
            }
            ["Connections", n] => self.said[0] = Some((line, number(line, "Connections", n)?)),
            ["Triggers", n] => self.said[1] = Some((line, number(line, "Triggers", n)?)),
            ["Failures", "0"] => {}
            ["Failures" | "failure", ..] => {
                return wrong("failures are for [[change]] of the world to say".into());
            }
            ["trigger", ..] => return self.read_trigger(line, &words[1..]),
            [ends, ..] if ends.contains("->") => {
                return self.read_connection(line, words);
            }
            _ => return wrong(format!("\"{}\" begins no line of a matrix", short(words[0]))),
        }
        Ok(())
    }

    fn read_trigger(&mut self, line: usize, words: &[&str]) -> Result<(), FormatError> {
        let (mut id, mut count, mut kind) = (None, None, None);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let next = words.as_slice().first().copied().unwrap_or("");
            match *word {
                "id" => id = Some(number(line, "id", next)?),
                "count" => count = Some(number(line, "count", next)?),
                "oneshot" => kind = Some(Fires::Once),
                "multishot" => kind = Some(Fires::Always),
                "barrier" => kind = Some(Fires::At(0)),
                other => {
                    let what = format!("a trigger has no \"{}\"", short(other));
                    return Err(FormatError::new(line, what));
                }
            }
            if matches!(*word, "id" | "count") {
                words.next();
            }
        }
        let fires = match (kind, count) {
            (Some(Fires::At(_)), Some(count)) if count > 0 => Fires::At(count),
            (Some(Fires::At(_)), _) => {
                return Err(FormatError::new(line, "a barrier has a count of at least 1"));
            }
            (Some(kind), _) => kind,
            (None, _) => {
                let what = "a trigger is oneshot, multishot or barrier";
                return Err(FormatError::new(line, what));
            }
        };
        let id = id.filter(|id| *id > 0);
        let id = id.ok_or_else(|| FormatError::new(line, "a trigger has an id, which is not 0"))?;
        match self.triggers.insert(id, (line, fires)) {
            None => Ok(()),
            Some(_) => Err(FormatError::new(line, format!("there are two triggers {id}"))),
        }
    }

    fn read_connection(&mut self, line: usize, words: &[&str]) -> Result<(), FormatError> {
        let wrong = |what: &str| FormatError::new(line, what);
        let (src, dst) = words[0].split_once("->").ok_or_else(|| wrong("no src->dst"))?;
        let (src, dst) = (number(line, "src", src)?, number(line, "dst", dst)?);
        let ConnectionLine { start, size, trigger, done, id, is_message } =
            ConnectionLine::read(line, &words[1..])?;
        let start = match (start, trigger) {
            (Some(start), None) if (0.0..=Flow::LATEST as f64).contains(&start) => start as Ps,
            (None, Some(_)) => 0,
            _ => return Err(wrong("a connection has either a start (in ps) or a trigger")),
        };
        let size = size.ok_or_else(|| wrong("a connection has a size in bytes"))?;
        if size == 0 {
            return Err(wrong("a size of 0 means without end: give each connection its bytes"));
        }
        if size > Flow::LONGEST {
            let what = format!("a size of {size}: a card's longest message is {}", Flow::LONGEST);
            return Err(wrong(&what));
        }
        let connection = id.filter(|_| is_message);
        let flow = Flow { connection, ..Flow::new(src, dst, size, start) };
        self.connections.push(Connection { line, flow, trigger, done });
        Ok(())
    }

    /// The flows, each behind those that it waits for.
    fn flows(mut self) -> Result<Vec<Flow>, FormatError> {
        let firing = self.firing()?;
        let none = Firing::default();
        // By trigger: how many it has started.
        let mut started: BTreeMap<u32, u32> = BTreeMap::new();
        let mut entries = 0;
        for i in 0..self.connections.len() {
            let Connection { line, trigger: Some(id), .. } = self.connections[i] else { continue };
            let wrong = |what: String| FormatError::new(line, what);
            let (_, fires) = self
                .triggers
                .get(&id)
                .ok_or_else(|| wrong(format!("there is no line for trigger {id}")))?;
            let by = firing.get(&id).unwrap_or(&none);
            let mut after = by.connections.clone();
            let before = started.entry(id).or_insert(0);
            let needs = match *fires {
                Fires::Once => 1,
                Fires::At(count) => count.saturating_sub(by.twice),
                Fires::Always => {
                    // Before it starts, only those before it have been started.
                    let all = &self.connections;
                    after.retain(|c| (*c as usize) < i || all[*c as usize].trigger != Some(id));
                    *before + 1
                }
            };
            *before += 1;
            entries += after.len();
            if entries > 4 * Flow::MOST {
                return Err(wrong("triggers join too many connections".into()));
            }
            if needs as usize > after.len() {
                let what = format!(
                    "trigger {id} starts it at end {needs}, but only {} connections fire it",
                    after.len()
                );
                return Err(wrong(what));
            }
            let hears = self.hears(i, &after, by)?;
            self.connections[i].flow.hears = hears;
            (self.connections[i].flow.after, self.connections[i].flow.needs) = (after, Some(needs));
        }
        self.in_order()
    }

    /// By trigger: what makes it fire. A connection both of whose ends do that fires a barrier
    /// twice. If the barrier needs all ends, the later of the two, the sender's, is what counts.
    fn firing(&self) -> Result<BTreeMap<u32, Firing>, FormatError> {
        let mut firing: BTreeMap<u32, Firing> = BTreeMap::new();
        for (i, Connection { line, done, .. }) in (0u32..).zip(&self.connections) {
            let wrong = |what: String| FormatError::new(*line, what);
            for (end, id) in done.iter().rev() {
                if !self.triggers.contains_key(id) {
                    return Err(wrong(format!("there is no line for trigger {id}")));
                }
                let by = firing.entry(*id).or_default();
                if by.connections.last() == Some(&i) {
                    (by.twice, by.twice_at) = (by.twice + 1, *line);
                } else {
                    by.connections.push(i);
                    by.ends.insert(*end);
                }
            }
        }
        for (id, by) in firing.iter().filter(|(_, by)| by.twice > 0) {
            let ends = by.connections.len() as u32 + by.twice;
            if self.triggers.get(id).is_none_or(|(_, fires)| *fires != Fires::At(ends)) {
                let what = format!(
                    "it fires trigger {id} at both its ends: then the trigger is a barrier that \
                     counts all ends, {ends}"
                );
                return Err(FormatError::new(by.twice_at, what));
            }
        }
        Ok(firing)
    }

    /// What a connection's host hears of those that fire its trigger: nothing that it must be told,
    /// if it takes part in all of them.
    fn hears(&self, i: usize, after: &[u32], by: &Firing) -> Result<Option<Hears>, FormatError> {
        if by.twice > 0 && by.ends.len() == 1 {
            return Ok(Some(Hears::Ends));
        }
        let Connection { line, flow: Flow { src, .. }, .. } = &self.connections[i];
        let elsewhere = after.iter().map(|other| &self.connections[*other as usize]);
        let mut elsewhere = elsewhere.filter(|c| c.flow.src != *src && c.flow.dst != *src);
        let Some(other) = elsewhere.next() else { return Ok(None) };
        let mut ends = by.ends.iter();
        let (Some(end), None) = (ends.next(), ends.next()) else {
            let what = format!(
                "it waits for the connection of line {}, which does not touch host {src}: then all \
                 that fire its trigger have a send_done_trigger, or all a recv_done_trigger",
                other.line
            );
            return Err(FormatError::new(*line, what));
        };
        Ok(Some(*end))
    }

    fn in_order(self) -> Result<Vec<Flow>, FormatError> {
        let depends: Vec<Vec<u32>> =
            self.connections.iter().map(|c| c.flow.after.clone()).collect();
        let order = order(&depends).map_err(|i| {
            FormatError::new(self.connections[i].line, "it waits for itself, by way of triggers")
        })?;
        let mut place = vec![0; order.len()];
        for (at, i) in (0u32..).zip(&order) {
            place[*i as usize] = at;
        }
        let flow = |i: &u32| {
            let mut flow = self.connections[*i as usize].flow.clone();
            flow.after.iter_mut().for_each(|other| *other = place[*other as usize]);
            flow.needs = flow.needs.filter(|_| !flow.after.is_empty());
            flow
        };
        Ok(order.iter().map(flow).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flows::Cluster;
    use crate::net::time::US;

    const TOPO: &str = "# small\nNodes 32\nTiers 2\nPodsize 32\nTier 0\nDownlink_speed_Gbps 100\n\
        Radix_Down 8\nRadix_Up 2\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 100\n\
        Oversubscribed 4\nTier 1\nDownlink_speed_Gbps 200\nRadix_Down 4\n\
        Downlink_Latency_ns 500\n";

    #[test]
    fn topologies_of_two_and_three_tiers() {
        let small = read_topology(TOPO).unwrap();
        assert_eq!((small.hosts, small.switches, small.cables.len()), (32, 6, 40));
        assert_eq!(small.check(), Ok(()));
        // Half of the switch's latency is on each side of it.
        assert_eq!((small.cables[0].delay, small.cables[32].delay), (1_050_000, 550_000));
        assert_eq!(small.cables[32].rate, LineRate::gigabits(200));
        let zrs = "Nodes 432\nTiers 3\nPodsize 36\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 6\n\
            Radix_Up 6\nDownlink_Latency_ns 1000\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 6\n\
            Radix_Up 6\nDownlink_Latency_ns 1000\nTier 2\nDownlink_speed_Gbps 100\nRadix_Down 36\n\
            Downlink_Latency_ns 600000\nBundle 3\n";
        let zrs = read_topology(zrs).unwrap();
        assert_eq!((zrs.hosts, zrs.switches), (432, 72 + 72 + 12));
        assert_eq!((zrs.cables.len(), zrs.check()), (432 + 432 + 432, Ok(())));
    }

    #[test]
    fn tiers_may_come_in_any_order_and_lines_have_comments() {
        let (head, rest) = TOPO.split_once("Tier 0").unwrap();
        let (lower, upper) = rest.split_once("Tier 1").unwrap();
        let other = format!("{head}Tier 1 # spines{upper}Tier 0{lower}");
        assert_eq!(read_topology(&other), read_topology(TOPO));
        let matrix = read_matrix("Nodes 3 # of 4\n0->1 size 5 start 0 # one\n", 4);
        assert_eq!(matrix.unwrap(), [Flow::new(0, 1, 5, 0)]);
        let gap = TOPO.replace("Tier 1", "Tier 2");
        assert!(read_topology(&gap).unwrap_err().what.contains("Tier 1"));
    }

    #[test]
    fn what_is_there_twice_or_beside_the_nodes_is_refused_at_its_line() {
        for (from, to, line) in [
            ("Tiers 2\n", "Tiers 2\nNodes 16\n", 4),
            ("Radix_Up 2\n", "Radix_Up 2\nRadix_Up 4\n", 9),
            ("Tier 1\n", "Tier 0\n", 12),
        ] {
            let error = read_topology(&TOPO.replace(from, to)).unwrap_err();
            assert_eq!(error.line, line, "{error}");
        }
        for (text, line) in [
            ("Nodes 4\n0->1 size 5 start 0\n0->7 size 5 start 0\n", 3),
            ("Nodes 0\n0->1 size 5 start 0\n", 1),
            ("0->1 size 5 start 0\n0->7 size 5 start 0\nNodes 4\n", 2),
            ("Nodes 4\nNodes 8\n0->1 size 5 start 0\n", 2),
            ("Nodes 4\n0->1 size 5 start 0 size 6\n", 2),
        ] {
            let error = read_matrix(text, 8).unwrap_err();
            assert_eq!(error.line, line, "{error}");
        }
    }

    /// Each has its own name, or none, and all take the path of the connection.
    #[test]
    fn messages_of_one_connection_have_its_number() {
        let text = "0->1 id 7 msg start 0 size 4086\n0->1 id 7 msg 2 size 5 start 9\n\
            0->1 start 0 size 3 id 7 msg\n0->1 id 7 start 0 size 1\n";
        let flows = read_matrix(text, 2).unwrap();
        let all: Vec<_> = flows.iter().map(|flow| (flow.bytes, flow.connection)).collect();
        assert_eq!(all, [(4086, Some(7)), (5, Some(7)), (3, Some(7)), (1, None)]);
        let error = read_matrix("0->1 id 1 trigger 1 addon size 5\n", 2).unwrap_err();
        assert!(error.what.contains("addon"), "{error}");
    }

    #[test]
    fn what_is_left_out_is_named() {
        assert_eq!(left_out(TOPO), Vec::<&str>::new());
        assert_eq!(left_out(&format!("{TOPO}Queue_up 90 # KB\n")), ["Queue_Up"]);
        assert_eq!(left_out("0->1 size 5 prio 3 start 0\n# Queue_Down\n"), ["prio"]);
    }

    #[test]
    fn triggers_start_connections() {
        let text = "Nodes 4\nConnections 5\nTriggers 3\n\
            2->3 id 5 trigger 2 size 1000\n\
            0->1 id 1 start 0 size 1000 recv_done_trigger 1\n\
            1->2 id 2 trigger 1 size 1000 recv_done_trigger 2\n\
            0->2 id 3 start 5e6 size 1000 send_done_trigger 2\n\
            2->0 id 4 trigger 3 size 1000\n\
            trigger id 1 oneshot\ntrigger id 2 barrier count 2\ntrigger id 3 oneshot\n";
        let text = text.replace("0->2 id 3", "3->2 id 3");
        let error = read_matrix(&text, 4).unwrap_err().to_string();
        assert!(error.starts_with("line 8: trigger 3 starts it at end 1"), "{error}");
        let text =
            text.replace("trigger 3 size", "trigger 2 size").replace("Triggers 3", "Triggers 2");
        let text = text.replace("trigger id 3 oneshot\n", "");
        let flows = read_matrix(&text, 4).unwrap();
        assert_eq!(Flow::check(&flows, 4), Ok(()));
        let star = crate::net::Star { hosts: 4, rate: LineRate::gigabits(100), delay: US };
        let report = Cluster::new(star.topology()).run(&flows).unwrap();
        assert_eq!(report.done(), 5);
        let began = |src, dst| {
            let flow = flows.iter().position(|f| (f.src, f.dst) == (src, dst)).unwrap();
            report.flows[flow].began.unwrap()
        };
        // Both start when the later of two has arrived.
        assert_eq!(began(2, 3), began(2, 0));
        assert!(began(3, 2) == 5 * US && began(2, 3) > 7 * US);
    }

    /// htsim's source and sink each make their trigger fire.
    #[test]
    fn a_connection_can_fire_a_trigger_at_both_ends() {
        let text = |count| {
            format!(
                "0->1 start 0 size 9000 send_done_trigger 1 recv_done_trigger 1\n\
                 1->2 trigger 1 size 500\ntrigger id 1 barrier count {count}\n"
            )
        };
        let flows = read_matrix(&text(2), 32).unwrap();
        assert_eq!((flows[1].after.clone(), flows[1].needs), (vec![0], Some(1)));
        let report = Cluster::new(read_topology(TOPO).unwrap()).run(&flows).unwrap();
        // The second activation is the sender's, by a way back later than the receiver's.
        assert_eq!(report.flows[1].began, report.flows[0].ended);
        for wrong in [text(1), text(3), text(2).replace("barrier", "oneshot")] {
            let error = read_matrix(&wrong, 32).unwrap_err().to_string();
            assert!(error.starts_with("line 1: it fires trigger 1 at both its ends"), "{error}");
        }
        // Two triggers are two; 0 is none.
        let two = "0->1 start 0 size 9000 send_done_trigger 1 recv_done_trigger 2\n\
            0->2 trigger 1 size 5\n1->3 trigger 2 size 5 recv_done_trigger 0\n\
            trigger id 1 oneshot\ntrigger id 2 oneshot\n";
        let report = Cluster::new(read_topology(TOPO).unwrap());
        let report = report.run(&read_matrix(two, 32).unwrap()).unwrap();
        assert_eq!(report.flows[1].began, report.flows[0].ended);
        assert!(report.flows[2].began < report.flows[1].began);
        let nowhere = "0->1 start 0 size 1 send_done_trigger 7";
        let error = read_matrix(nowhere, 32).unwrap_err().to_string();
        assert_eq!(error, "line 1: there is no line for trigger 7");
    }

    #[test]
    fn a_multishot_starts_one_after_the_other() {
        let text = "1->0 start 0 size 5000 send_done_trigger 9\n1->2 trigger 9 size 5000 \
            send_done_trigger 9\n1->3 trigger 9 size 5000 send_done_trigger 9\n\
            trigger id 9 multishot\n";
        let flows = read_matrix(text, 4).unwrap();
        assert_eq!((flows[1].after.clone(), flows[1].needs), (vec![0], Some(1)));
        assert_eq!((flows[2].after.clone(), flows[2].needs), (vec![0, 1], Some(2)));
    }

    /// The trigger of a connection between two other hosts is heard at once, by the end that it is
    /// of; two threads are then as one.
    #[test]
    fn triggers_cross_hosts() {
        for end in ["send", "recv"] {
            let text = format!(
                "0->1 start 0 size 9000 {end}_done_trigger 1\n2->3 trigger 1 size 500 \
                 {end}_done_trigger 2\n4->5 trigger 2 size 500\ntrigger id 1 oneshot\n\
                 trigger id 2 oneshot\n"
            );
            let flows = read_matrix(&text, 32).unwrap();
            assert_eq!(Flow::check(&flows, 32), Ok(()));
            let mut cluster = Cluster::new(read_topology(TOPO).unwrap());
            let one = cluster.run(&flows).unwrap();
            let [first, second, third] = one.flows[..] else { panic!("{one}") };
            if end == "send" {
                assert_eq!((second.began, third.began), (first.ended, second.ended));
            } else {
                // Arrived, and not yet acknowledged.
                let (began, ended) = (second.began.unwrap(), first.ended.unwrap());
                assert!(began > 2 * US && began < ended, "{began} {ended}");
                assert!(third.began < second.ended, "{one}");
            }
            (cluster.threads, cluster.lot) = (2, 8);
            assert!(cluster.run(&flows).unwrap() == one);
        }
    }

    #[test]
    fn an_error_names_its_line() {
        let wrong = |text: &str| read_matrix(text, 4).unwrap_err().to_string();
        assert!(wrong("Nodes 4\n0->9 start 0 size 1").starts_with("line 2: "));
        assert!(wrong("0->1 start 0 size 0").contains("without end"));
        assert!(wrong("0->1 size 1").contains("either a start"));
        assert!(wrong("0->1 start -1 size 1").contains("either a start"));
        assert!(
            wrong("Connections 2\n0->1 start 0 size 1").starts_with("line 1: Connections is 2")
        );
        assert!(wrong("failure switch_type TOR").contains("[[change]]"));
        let far = "0->1 start 0 size 1 recv_done_trigger 1\n0->2 start 0 size 1 \
            send_done_trigger 1\n2->3 trigger 1 size 1\ntrigger id 1 barrier count 2";
        assert!(wrong(far).starts_with("line 3: it waits for the connection of line 1, which"));
        let long = wrong("0->1 start 0 size 2147483648\n1->0 start 0 size 2147483649");
        assert!(long.starts_with("line 2: a size of 2147483649: a card's longest"), "{long}");
        let circle = "0->1 trigger 1 size 1 send_done_trigger 1\ntrigger id 1 oneshot";
        assert!(wrong(circle).contains("waits for itself"));
        let wrong =
            |from: &str, to: &str| read_topology(&TOPO.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            wrong("Radix_Down 4", "Radix_Down 5"),
            "line 12: Radix_Down is 5, but 4 cables come"
        );
        assert!(wrong("Gbps 200", "Gbps 0").starts_with("line 12: "));
        assert!(wrong("Radix_Up 2", "Radix_Up 0").starts_with("line 5: "));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "[0-9 \n>a-z_-]{0,120}",
            keys in prop::collection::vec((0usize..12, 0u32..70), 0..20),
        ) {
            let names = ["Nodes", "Tiers", "Podsize", "Tier", "Radix_Down", "Radix_Up", "Bundle",
                "Downlink_speed_Gbps", "Downlink_Latency_ns", "0->1 start 0 size",
                "1->2 trigger 1 size",
                "trigger oneshot id"];
            let lines: String = keys.iter().map(|(k, n)| format!("{} {n}\n", names[*k])).collect();
            for text in [&text, &lines] {
                if let Ok(flows) = read_matrix(text, 8) {
                    prop_assert_eq!(Flow::check(&flows, 8), Ok(()));
                }
                if let Ok(topology) = read_topology(text) {
                    let _ = topology.check();
                }
            }
        }
    }
}
