//! The sections `[[workload]]`: flows of a kind, or of another simulator's file.

use core::cell::RefCell;
use core::ops::Range;

use super::section::{Files, Mistake, Section, in_file};
use crate::dice::Use;
use crate::flows::report::on_wire;
use crate::flows::{
    Cluster, ClusterError, Flow, Sizes, StoreLoad, all_to_all, calls, get_calls, halving_doubling,
    incast, permutation, poisson_at, ring_all_reduce,
};
use crate::format::hpcc::{self, HpccFlows, HpccTopology};
use crate::format::{goal, htsim};

/// The kinds, for an error.
const KINDS: &str = "`poisson`, `incast`, `permutation`, `all-to-all`, `ring-all-reduce`, \
                     `halving-doubling`, `calls`, `gets`, `store`, `flows`, `hpcc`, `htsim` or \
                     `goal`";

/// What sections are read with.
#[derive(Clone, Copy)]
struct Around<'a> {
    cluster: &'a Cluster,
    files: Files<'a>,
    /// What may not be meant.
    warnings: &'a RefCell<Vec<String>>,
    /// What a section draws comes from it, where the section has no seed of its own.
    seed: u64,
}

/// Reads the section with this index, and adds its flows to those of the sections before. Returns
/// its kind.
pub(super) fn read(
    (index, mut section): (usize, Section<'_>),
    (of, cluster): (&HpccTopology, &Cluster),
    (files, warnings): (Files<'_>, &RefCell<Vec<String>>),
    all: &mut HpccFlows,
) -> Result<String, Mistake> {
    let found = section.text("kind")?;
    let (kind, at) = section.need("kind", found)?;
    let start = section.time("start")?.map_or(0, |found| found.0);
    let class = section.number("class", 0..=7u8)?;
    let around = Around { cluster, files, warnings, seed: seed_of(cluster.net.seed, index) };
    let mut more = match kind.as_str() {
        "hpcc" | "htsim" | "goal" => from_file(&mut section, &kind, of, around)?,
        _ => HpccFlows::of(made(&mut section, (&kind, at.clone()), around)?),
    };
    let free = more.flows.iter_mut().filter(|flow| flow.after.is_empty());
    free.for_each(|flow| flow.start = flow.start.saturating_add(start));
    if let Some(class) = class {
        give_class(&mut more, class, kind == "hpcc");
    }
    let empty = section.mistake("no flow comes of it", "take more hosts, a higher load or a file");
    section.end()?;
    if more.flows.is_empty() {
        return Err(empty);
    }
    append(all, more, at)?;
    Ok(kind)
}

/// Gives the messages that have no class yet this one, or all of them.
fn give_class(flows: &mut HpccFlows, class: u8, all: bool) {
    for (flow, group) in flows.flows.iter_mut().zip(&mut flows.groups) {
        if !flow.is_wait() && (all || flow.class.is_none()) {
            (flow.class, *group) = (Some(class), class);
        }
    }
}

/// What the section with this index draws from: no two draw the same.
fn seed_of(world: u64, index: usize) -> u64 {
    if index == 0 { world } else { Use::Sections.seed(world, index as u64) }
}

/// The flows of a kind that needs no other simulator's file.
fn made(
    section: &mut Section<'_>,
    (kind, at): (&str, Range<usize>),
    around: Around<'_>,
) -> Result<Vec<Flow>, Mistake> {
    let hosts = around.cluster.topology.hosts;
    Ok(match kind {
        "poisson" => random(section, around)?,
        "incast" => {
            let (sources, target) =
                (section.hosts("sources", hosts)?, host(section, "target", hosts)?);
            let times = section.number("times", 1..=1_000_000u64)?.unwrap_or(1);
            room(section, sources.len() as u64 * times)?;
            let every = section.time("every")?.map_or(0, |found| found.0);
            let bytes = length(section, "bytes")?;
            let burst = |i| {
                let mut flows = incast(sources.iter().copied(), target, bytes);
                flows.iter_mut().for_each(|flow| flow.start = every.saturating_mul(i));
                flows
            };
            (0..times).flat_map(burst).collect()
        }
        "permutation" | "all-to-all" | "ring-all-reduce" | "halving-doubling" => {
            pattern(section, kind, around)?
        }
        "calls" => closed_loop(section, hosts)?,
        "gets" => fetches(section, around)?,
        "store" => store(section, around)?,
        "flows" => one_by_one(section, hosts)?,
        _ => {
            let message = format!("there is no workload \"{kind}\"");
            return Err(Mistake::new(at, message, format!("it should be {KINDS}")));
        }
    })
}

/// The hosts that a section is about: all, if it does not say.
fn some_hosts(section: &mut Section<'_>, cluster: &Cluster) -> Result<Vec<u32>, Mistake> {
    let all = cluster.topology.hosts;
    Ok(section.hosts_if("hosts", all)?.unwrap_or_else(|| (0..all).collect()))
}

/// Has flows between the first hosts be between these.
fn between(mut flows: Vec<Flow>, hosts: &[u32]) -> Vec<Flow> {
    for flow in &mut flows {
        (flow.src, flow.dst) = (hosts[flow.src as usize], hosts[flow.dst as usize]);
    }
    flows
}

/// Flows among some hosts that all do the same.
fn pattern(
    section: &mut Section<'_>,
    kind: &str,
    around: Around<'_>,
) -> Result<Vec<Flow>, Mistake> {
    let own = some_hosts(section, around.cluster)?;
    let (hosts, others) = (own.len() as u32, own.len() as u64 - 1);
    let each = match kind {
        "permutation" => 1,
        "all-to-all" => others,
        "ring-all-reduce" => 2 * others,
        _ => 2 * u64::from(hosts.ilog2()),
    };
    room(section, u64::from(hosts) * each)?;
    let bytes = length(section, "bytes")?;
    let flows = match kind {
        "permutation" => {
            let seed = section.number("seed", 0..=u64::MAX)?.unwrap_or(around.seed);
            permutation(hosts, bytes, seed)
        }
        "all-to-all" => all_to_all(hosts, bytes),
        "ring-all-reduce" => ring_all_reduce(hosts, bytes),
        _ => halving_doubling(hosts, bytes).ok_or_else(|| {
            let why = format!("{hosts} hosts are no power of two");
            let help = "halving and doubling needs 2, 4, 8, … hosts; `ring-all-reduce` does not";
            section.mistake(why, help)
        })?,
    };
    Ok(between(flows, &own))
}

/// Adds flows behind those that there are.
fn append(all: &mut HpccFlows, mut more: HpccFlows, at: Range<usize>) -> Result<(), Mistake> {
    let first = all.flows.len();
    if first + more.flows.len() > Flow::MOST {
        return Err(too_many(first as u64 + more.flows.len() as u64, at));
    }
    for flow in &mut more.flows {
        flow.after.iter_mut().for_each(|other| *other += first as u32);
    }
    all.flows.append(&mut more.flows);
    all.ports.append(&mut more.ports);
    all.groups.append(&mut more.groups);
    Ok(())
}

fn too_many(flows: u64, at: Range<usize>) -> Mistake {
    let gib = flows.saturating_mul(Flow::MEMORY as u64) >> 30;
    let message = format!("{flows} flows need about {gib} GiB of memory");
    Mistake::new(at, message, format!("the most is {} flows", Flow::MOST))
}

fn room(section: &Section<'_>, flows: u64) -> Result<(), Mistake> {
    if flows > Flow::MOST as u64 { Err(too_many(flows, section.at.clone())) } else { Ok(()) }
}

fn host(section: &mut Section<'_>, key: &'static str, hosts: u32) -> Result<u32, Mistake> {
    let found = section.number(key, 0..=hosts.saturating_sub(1))?;
    section.need(key, found)
}

/// Bytes of a flow.
fn length(section: &mut Section<'_>, key: &'static str) -> Result<u64, Mistake> {
    let found = section.bytes(key)?;
    let (bytes, at) = section.need(key, found)?;
    if bytes == 0 || bytes > Flow::LONGEST {
        let help = format!("a flow has 1 to {} bytes", Flow::LONGEST);
        return Err(Mistake::new(at, format!("`{key}` is {bytes}"), help));
    }
    Ok(bytes)
}

fn random(section: &mut Section<'_>, around: Around<'_>) -> Result<Vec<Flow>, Mistake> {
    let sizes = sizes(section, around.files)?;
    let found = section.number("load", 0.0..=1.0)?;
    let load = section.need("load", found)?;
    let found = section.time("span")?;
    let (span, _) = section.need("span", found)?;
    let seed = section.number("seed", 0..=u64::MAX)?.unwrap_or(around.seed);
    let (all, hosts) = (around.cluster.host_rates(), some_hosts(section, around.cluster)?);
    let rates: Vec<u64> = hosts.iter().map(|host| all[*host as usize]).collect();
    let flows = poisson_at(&rates, load, &sizes, span, seed)
        .map_err(|error| section.mistake(error, "take another `load`, or a shorter `span`"))?;
    let Cluster { transport, mtu, .. } = around.cluster;
    let wire = |flow: &Flow| on_wire(transport.how, mtu.bytes().into(), flow.bytes);
    let (payload, all): (u64, u64) =
        (flows.iter().map(|flow| flow.bytes).sum(), flows.iter().map(wire).sum());
    let on_links = load * all as f64 / payload.max(1) as f64;
    if on_links > 1.0 {
        around.warnings.borrow_mut().push(format!(
            "a load of {load} is {on_links:.3} of the hosts’ rates with headers and acknowledges: \
             queues grow as long as it lasts"
        ));
    }
    Ok(between(flows, &hosts))
}

fn sizes(section: &mut Section<'_>, files: Files<'_>) -> Result<Sizes, Mistake> {
    let found = section.text("sizes")?;
    let (name, at) = section.need("sizes", found)?;
    if let Some(sizes) = Sizes::named(&name) {
        return Ok(sizes);
    }
    if let Some(bytes) = crate::units::bytes(&name)
        && (1..=Flow::LONGEST).contains(&bytes)
    {
        return Ok(Sizes::fixed(bytes));
    }
    let help = format!(
        "it should be {}, a number of bytes, or a file with lines of a length and a probability",
        Sizes::NAMES.map(|name| format!("`{name}`")).join(", ")
    );
    let text = files(&name).map_err(|why| {
        let message = format!("`sizes` names no distribution, and {why}");
        Mistake::new(at.clone(), message, help.clone())
    })?;
    let wrong = |why: String| Mistake::new(at.clone(), format!("{name}: {why}"), help.clone());
    let sizes = Sizes::parse(&text).map_err(|error| wrong(error.to_string()))?;
    if sizes.longest() > Flow::LONGEST {
        return Err(wrong(format!("a flow has at most {} bytes", Flow::LONGEST)));
    }
    Ok(sizes)
}

fn closed_loop(section: &mut Section<'_>, hosts: u32) -> Result<Vec<Flow>, Mistake> {
    let clients = section.hosts("clients", hosts)?;
    let server = host(section, "server", hosts)?;
    let sizes = (length(section, "request")?, length(section, "answer")?);
    let think = section.time("think")?.map_or(0, |found| found.0);
    let count = section.number("calls", 1..=u32::MAX)?.unwrap_or(1);
    room(section, (clients.len() as u64).saturating_mul(2 * u64::from(count)))?;
    Ok(calls(clients, server, sizes, think, count))
}

fn fetches(section: &mut Section<'_>, around: Around<'_>) -> Result<Vec<Flow>, Mistake> {
    let hosts = around.cluster.topology.hosts;
    let clients = section.hosts("clients", hosts)?;
    let server = host(section, "server", hosts)?;
    let sizes = sizes(section, around.files)?;
    let think = section.time("think")?.map_or(0, |found| found.0);
    let count = section.number("calls", 1..=u32::MAX)?.unwrap_or(1);
    let seed = section.number("seed", 0..=u64::MAX)?.unwrap_or(around.seed);
    room(section, (clients.len() as u64).saturating_mul(count.into()))?;
    let mut random = Use::Values.stream(seed, 0);
    Ok(get_calls(clients, server, (count, think), || sizes.draw(&mut random)))
}

fn store(section: &mut Section<'_>, around: Around<'_>) -> Result<Vec<Flow>, Mistake> {
    let hosts = around.cluster.topology.hosts;
    let (clients, at) = (section.hosts("clients", hosts)?, section.at.clone());
    let servers = section.hosts("servers", hosts)?;
    if let Some(both) = clients.iter().find(|client| servers.contains(client)) {
        let message = format!("host {both} is a client and has a store");
        return Err(Mistake::new(at, message, "take other `clients`, or other `servers`"));
    }
    let sizes = sizes(section, around.files)?;
    if sizes.longest() > Flow::VALUE {
        let message = format!("values of {} bytes", sizes.longest());
        let help = format!("a store's values have at most {} bytes here", Flow::VALUE);
        return Err(section.mistake(message, help));
    }
    let found = section.number("operations", 1..=u32::MAX)?;
    let operations = section.need("operations", found)?;
    let seed = section.number("seed", 0..=u64::MAX)?.unwrap_or(around.seed);
    let mut load = StoreLoad::new(operations, seed);
    load.keys = section.number("keys", 1..=1_000_000)?.unwrap_or(load.keys);
    load.gets = section.number("gets", 0.0..=1.0)?.unwrap_or(load.gets);
    load.skew = section.number("skew", 0.0..=10.0)?.unwrap_or(load.skew);
    load.depth = section.number("depth", 1..=1024)?.unwrap_or(load.depth);
    load.think = section.time("think")?.map_or(0, |found| found.0);
    let connections = clients.len() as u64 * u64::from(load.depth);
    room(section, connections.saturating_mul(operations.into()))?;
    let flows = load.flows(&clients, &servers, &sizes);
    let help = "take fewer `keys`, or shorter values";
    Flow::check(&flows, hosts).map_err(|error| section.mistake(error, help))?;
    Ok(flows)
}

fn one_by_one(section: &mut Section<'_>, hosts: u32) -> Result<Vec<Flow>, Mistake> {
    let mut flows = Vec::new();
    for mut flow in section.sections("flow")? {
        let (src, dst) = (host(&mut flow, "from", hosts)?, host(&mut flow, "to", hosts)?);
        let bytes = length(&mut flow, "bytes")?;
        let start = flow.time("start")?.map_or(0, |found| found.0);
        let class = flow.number("class", 0..=7u8)?;
        let one = Flow { class, ..Flow::new(src, dst, bytes, start) };
        Flow::check(core::slice::from_ref(&one), hosts)
            .map_err(|error| flow.mistake(error, "correct the flow"))?;
        flows.push(one);
        flow.end()?;
    }
    Ok(flows)
}

fn from_file(
    section: &mut Section<'_>,
    kind: &str,
    of: &HpccTopology,
    around: Around<'_>,
) -> Result<HpccFlows, Mistake> {
    let found = section.text("file")?;
    let (name, at) = section.need("file", found)?;
    let text = (around.files)(&name).map_err(|why| Mistake::new(at.clone(), why, "name a file"))?;
    let (hosts, cluster) = (of.topology.hosts, around.cluster);
    let read = match kind {
        "hpcc" => hpcc::read_flows(&text, of).map(|mut read| {
            // Models have no classes; elsewhere lengths may decide.
            if cluster.short_first || cluster.transport.is_model() {
                read.flows.iter_mut().for_each(|flow| flow.class = None);
            }
            read
        }),
        "htsim" => htsim::read_matrix(&text, hosts).map(HpccFlows::of),
        _ => goal::read_whole(&text, hosts).map(|(flows, has_empty)| {
            if has_empty {
                let what = format!("{name}: messages of 0 bytes have 1 here");
                around.warnings.borrow_mut().push(what);
            }
            HpccFlows::of(flows)
        }),
    };
    let read = read.map_err(|error| in_file(&name, at.clone(), error))?;
    if read.flows.is_empty() {
        let wrong = Mistake::new(at, format!("{name} has no flows"), "take another file");
        return Err(wrong.of_file(&name));
    }
    Ok(read)
}

/// What is wrong with flows whose sections were right one by one. `places` has each section's first
/// flow and its place; what is wrong with all flows together is told at the last, or at
/// `payload`, the place where bytes are asked for.
pub(super) fn check(
    flows: &[Flow],
    of: &Cluster,
    places: &[(usize, Range<usize>)],
    payload: Option<Range<usize>>,
) -> Result<(), Mistake> {
    let place = |flow: usize| {
        let of_flow = places.iter().rfind(|(first, _)| *first <= flow);
        of_flow.map_or(0..0, |(_, at)| at.clone())
    };
    Flow::check(flows, of.topology.hosts).map_err(|error| {
        Mistake::new(place(error.flow().unwrap_or(usize::MAX)), error, "correct the workload")
    })?;
    let asks = |flow: &Flow| flow.is_call() || flow.class.is_some();
    let asking = flows.iter().position(asks).unwrap_or(0);
    of.check(flows).map_err(|error| match (&error, payload) {
        (ClusterError::Real { .. }, Some(at)) => {
            Mistake::new(at, error, "take fewer or shorter flows, or `hollow`")
        }
        _ => {
            let help = "take another transport, or another workload";
            Mistake::new(place(asking), error, help)
        }
    })
}
