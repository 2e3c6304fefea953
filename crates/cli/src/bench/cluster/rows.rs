//! The rows of latencies and rates.

use anyhow::{Context, Result};
use remora::Device;

use super::super::row::{Case, PeerSide, Row, Spread, Target, measure};
use super::super::store::servers::is_there;
use super::Extent;
use super::bed::Bed;
use super::by_card::ByCard;
use super::etcd::Members;
use super::load::{Ask, Load, Work};

/// Connections of a client, and requests in flight on each.
const CONNECTIONS: usize = 16;
const IN_FLIGHT: usize = 8;
/// etcd's rate is taken of so many times fewer requests.
const ETCD_PART: usize = 4;
/// Bytes of a value.
const VALUE: usize = 64;

const LATENCY: &str = "put_r3_latency";
/// The rows of each rate: by the time of the process that serves, by that of all nodes, and by the
/// clock.
const RATES: [([&str; 3], Ask, Target); 2] = [
    (["put_r3_rate", "put_r3_rate_all", "put_r3_rate_wall"], Ask::Put, Target::AtLeast(0.7)),
    (["get_r3", "get_r3_all", "get_r3_wall"], Ask::Get, Target::AtLeast(0.97)),
];
/// The same, where each node has a card of its own.
const LATENCY_APART: &str = "put_r3_latency_apart";
const RATES_APART: [&str; 3] =
    ["put_r3_rate_apart", "put_r3_rate_apart_all", "put_r3_rate_apart_wall"];
/// Such a group's latency, where the client calls a kernel over the card.
const KERNEL: &str = "put_r3_kernel";
/// So much longer is a run whose processor time counts: the kernel tells that in steps of 10 ms.
const LONGER: usize = 5;
const WAIT: &str = "valkey_wait1";
const FSYNC: &str = "put_r3_fsync";

/// Measures the rows that are wanted.
pub(super) fn measure_all(is_wanted: &dyn Fn(&str) -> bool, extent: Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    sharing(is_wanted, extent, &mut rows).context("cannot measure nodes that share a card")?;
    apart(is_wanted, extent, &mut rows).context("cannot measure nodes with a card each")?;
    if is_wanted(WAIT) {
        rows.push(beside_redis(extent).context("cannot measure valkey_wait1")?);
    }
    if is_wanted(FSYNC) {
        rows.push(beside_etcd(extent).context("cannot measure put_r3_fsync")?);
    }
    Ok(rows)
}

fn work(extent: Extent) -> Work {
    Work { keys: extent.keys, value: VALUE }
}

/// A group of three that share a card beside one node.
fn sharing(is_wanted: &dyn Fn(&str) -> bool, extent: Extent, rows: &mut Vec<Row>) -> Result<()> {
    let rates = RATES.into_iter().filter(|(names, ..)| names.iter().any(|name| is_wanted(name)));
    let wanted: Vec<_> = rates.collect();
    if wanted.is_empty() && !is_wanted(LATENCY) {
        return Ok(());
    }
    let (group, one) = (Bed::group(3)?, Bed::one()?);
    for bed in [&group, &one] {
        bed.load(1)?.fill(work(extent))?;
    }
    if is_wanted(LATENCY) {
        rows.push(latency(LATENCY, Target::AtMost(2.0), extent, &group, &one)?);
    }
    for (names, ask, target) in wanted {
        rows.extend(self::rates(names, ask, target, extent, [&group, &one])?);
    }
    Ok(())
}

/// A group of three with a card each beside one node.
fn apart(is_wanted: &dyn Fn(&str) -> bool, extent: Extent, rows: &mut Vec<Row>) -> Result<()> {
    let wants_rates = RATES_APART.iter().any(|name| is_wanted(name));
    if !(wants_rates || is_wanted(LATENCY_APART) || is_wanted(KERNEL)) {
        return Ok(());
    }
    let (group, one) = (Bed::group_apart(3)?, Bed::one()?);
    for bed in [&group, &one] {
        bed.load(1)?.fill(work(extent))?;
    }
    if is_wanted(LATENCY_APART) {
        rows.push(latency(LATENCY_APART, Target::Any, extent, &group, &one)?);
    }
    if is_wanted(KERNEL) {
        let device = Device::open()?;
        let (mut ours, mut theirs) = (group.by_card(&device)?, one.by_card(&device)?);
        let run = |client: &mut ByCard| client.latency(work(extent), extent.calls);
        let target = Target::AtMost(2.0);
        let (ours, theirs) = (Box::new(|| run(&mut ours)), Box::new(|| run(&mut theirs)));
        let case = Case::latency(KERNEL, "put by kernel, one node", target, ours, theirs);
        rows.push(measure(case, extent.runs)?);
    }
    if wants_rates {
        rows.extend(rates(RATES_APART, Ask::Put, Target::Any, extent, [&group, &one])?);
    }
    Ok(())
}

/// A put's.
fn latency(
    name: &'static str,
    target: Target,
    extent: Extent,
    group: &Bed,
    one: &Bed,
) -> Result<Row> {
    let (mut ours, mut theirs) = (group.load(1)?, one.load(1)?);
    let run = |load: &mut Load| load.latency(Ask::Put, work(extent), 0, extent.calls);
    let (ours, theirs) = (Box::new(|| run(&mut ours)), Box::new(|| run(&mut theirs)));
    measure(Case::latency(name, "put, one node", target, ours, theirs), extent.runs)
}

/// A rate by the processor time of the process that serves, which is what a node of its own machine
/// can do, as the paper has it; by that of all nodes, which is what it costs; and by the clock, in
/// which a group's other nodes take part of the same machine.
fn rates(
    names: [&'static str; 3],
    ask: Ask,
    target: Target,
    extent: Extent,
    beds: [&Bed; 2],
) -> Result<Vec<Row>> {
    let requests = extent.requests * LONGER;
    // Those of the group, and of one node, for each row.
    let mut taken = [const { [const { Vec::new() }; 2] }; 3];
    for _ in 0..extent.runs {
        for (side, bed) in beds.into_iter().enumerate() {
            let mut load = bed.load(CONNECTIONS)?;
            let run = || load.rate((ask, ask, 0.0), work(extent), IN_FLIGHT, requests);
            let rates = bed.rates(requests, run);
            let rates = rates.with_context(|| format!("cannot measure {}", names[0]))?;
            taken.iter_mut().zip(rates).for_each(|(row, rate)| row[side].push(rate));
        }
    }
    let kinds = [("K/CPU s", target), ("K/CPU s", Target::Any), ("K/s", Target::Any)];
    let mut rows = Vec::new();
    for ((name, (unit, target)), [ours, theirs]) in names.into_iter().zip(kinds).zip(taken) {
        let (ours, spread) = (Spread::of(ours), Spread::of(theirs));
        let ratio = ours.median / spread.median;
        let peer = PeerSide { name: "one node".into(), spread };
        rows.push(Row { name: name.into(), unit, ours, peer, ratio, target });
    }
    Ok(rows)
}

/// A group of two beside Redis with a replica.
fn beside_redis(extent: Extent) -> Result<Row> {
    let group = Bed::group(2)?;
    let redis = if is_there("redis-server") { Some(Bed::redis()?) } else { None };
    for bed in [Some(&group), redis.as_ref()].into_iter().flatten() {
        bed.load(1)?.fill(work(extent))?;
    }
    let run = |bed: &Bed, ask| {
        let mut load = bed.load(CONNECTIONS)?;
        load.rate((ask, ask, 0.0), work(extent), IN_FLIGHT, extent.requests)
    };
    let (peer, target) = match &redis {
        Some(_) => ("redis-server, a replica and WAIT 1", Target::AtLeast(2.0)),
        None => ("not measured: install redis-server", Target::Any),
    };
    let theirs = || redis.as_ref().map_or(Ok(f64::NAN), |bed| run(bed, Ask::PutAndWait));
    let (ours, theirs) = (Box::new(|| run(&group, Ask::Put)), Box::new(theirs));
    measure(Case { name: WAIT, unit: "K/s", peer, target, ours, theirs }, extent.runs)
}

/// A group of three beside etcd's three members, both of which acknowledge what is on two disks.
fn beside_etcd(extent: Extent) -> Result<Row> {
    let (group, etcd) = (Bed::group_on_disks()?, Members::start()?);
    group.load(1)?.fill(work(extent))?;
    let run = || {
        let mut load = group.load(CONNECTIONS)?;
        load.rate((Ask::Put, Ask::Put, 0.0), work(extent), IN_FLIGHT, extent.requests)
    };
    let theirs = || etcd.rate(work(extent), CONNECTIONS, IN_FLIGHT, extent.requests / ETCD_PART);
    let (peer, target) = ("etcd, three members", Target::AtLeast(10.0));
    let (ours, theirs) = (Box::new(run), Box::new(theirs));
    measure(Case { name: FSYNC, unit: "K/s", peer, target, ours, theirs }, extent.runs)
}
