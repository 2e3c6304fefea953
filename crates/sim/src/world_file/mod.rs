//! World files: a cluster and its flows, read from TOML.
//!
//! - `section`: values with their places in the text, and [`Mistake`]s. `hosts`: sets of hosts.
//! - `topology`, `switches`, `tuning`, `workload`, and here hosts and cards: the sections.
//!   docs/worlds.md says what each may have.
//!
//! ```
//! use remora_sim::world_file::{Experiment, Overrides};
//!
//! let world = r#"
//!     [topology]
//!     shape = "star"
//!     hosts = 9
//!     rate = "100Gbps"
//!     delay = "1us"
//!
//!     [[workload]]
//!     kind = "incast"
//!     sources = "1..8"
//!     target = 0
//!     bytes = "64KB"
//! "#;
//! let no_files = |name: &str| Err(format!("there is no file {name}"));
//! let experiment = Experiment::parse(world, &no_files, Overrides::default()).unwrap();
//! let report = experiment.cluster.run(&experiment.flows.flows)?;
//! assert_eq!(report.done(), 8);
//!
//! // A mistake knows its place.
//! let wrong = world.replace("100Gbps", "0Gbps");
//! let mistake = Experiment::parse(&wrong, &no_files, Overrides::default()).unwrap_err();
//! assert_eq!(&wrong[mistake.at], "\"0Gbps\"");
//! # Ok::<(), remora_sim::flows::ClusterError>(())
//! ```

mod hosts;
mod section;
mod switches;
#[cfg(test)]
mod tests;
mod topology;
mod tuning;
mod workload;

use core::cell::RefCell;
use core::ops::Range;

use remora_nic::TurnOrder;
use remora_nic::qp::Mtu;
use toml::de::DeTable;

use crate::flows::{Cluster, Content, TRANSPORTS, Transport};
use crate::format::hpcc::{HpccFlows, HpccTopology};
use crate::hardware::port::Bus;
use crate::hardware::{MOST_READS, PROFILES, Profile};

pub use section::{Files, Mistake};
use section::{Found, Section};

/// What the caller decides whatever the file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// What is drawn comes from it.
    pub seed: Option<u64>,
    /// Threads, 1 or 2.
    pub threads: Option<u8>,
}

/// A section `[[workload]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    /// Its kind, as the file has it.
    pub kind: String,
    /// Its flows among all.
    pub flows: Range<usize>,
}

/// A cluster and what it is to do.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name, for tables and pages; empty if the file gives it none.
    pub name: String,
    /// What it shows, in a sentence; may be empty.
    pub about: String,
    /// The network and its cards.
    pub cluster: Cluster,
    /// The topology's numbers in files.
    pub topology: HpccTopology,
    /// The flows, and their ports in files.
    pub flows: HpccFlows,
    /// The sections `[[workload]]`, in the order of the file.
    pub workloads: Vec<Workload>,
    /// What the writer of the file may not mean, in a sentence each.
    pub warnings: Vec<String>,
}

impl Experiment {
    /// Reads a world file.
    ///
    /// # Errors
    /// The first mistake in it, with its place.
    pub fn parse(
        text: &str,
        files: Files<'_>,
        overrides: Overrides,
    ) -> Result<Experiment, Mistake> {
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().unwrap_or(0..text.len());
            Mistake::new(at, error.message(), "a world is a file in TOML: see docs/worlds.md")
        })?;
        let mut world = Section::new("", 0..first_line(text), table.into_inner());
        let (name, about) = (world.title("name")?, world.title("about")?);
        let seed = world.number("seed", 0..=u64::MAX)?;
        let threads = world.number("threads", 1..=2)?;
        let until = world.time("until")?;
        let shape = world.section("topology")?;
        let mut topology = topology::read(shape, files)?;
        let mut cluster = Cluster::new(topology.topology.clone());
        cluster.net.seed = overrides.seed.or(seed).unwrap_or(1);
        cluster.threads = overrides.threads.or(threads).unwrap_or(1);
        if let Some((until, _)) = until {
            cluster.until = until;
        }
        switches::read(world.section("switch")?, &mut cluster)?;
        let host = world.section("host")?;
        let payload = host.place("payload");
        hosts(host, &mut cluster)?;
        for card in world.sections("card")? {
            cards(card, &mut cluster)?;
        }
        switches::losses(&topology, &mut cluster);
        let cables = switches::Cables::of(&cluster.topology);
        for change in world.sections("change")? {
            switches::change(change, &cables, &mut cluster)?;
        }
        topology.topology.cables.clone_from(&cluster.topology.cables);
        topology.losses = switches::losses_of(&cluster);
        if let Some(section) = world.section_if("record")? {
            switches::record(section, &cables, &mut cluster)?;
        }
        let (mut flows, mut places) = (HpccFlows::of(Vec::new()), Vec::new());
        let (mut workloads, warnings) = (Vec::new(), RefCell::new(Vec::new()));
        for section in world.sections("workload")?.into_iter().enumerate() {
            places.push((flows.flows.len(), section.1.at.clone()));
            let first = flows.flows.len();
            let around = (files, &warnings);
            let kind = workload::read(section, (&topology, &cluster), around, &mut flows)?;
            workloads.push(Workload { kind, flows: first..flows.flows.len() });
        }
        if flows.flows.is_empty() {
            return Err(world.mistake("nothing is to be sent", "add a section [[workload]]"));
        }
        workload::check(&flows.flows, &cluster, &places, payload)?;
        world.end()?;
        let warnings = warnings.into_inner();
        Ok(Experiment { name, about, cluster, topology, flows, workloads, warnings })
    }
}

/// The length of the first line that has something.
fn first_line(text: &str) -> usize {
    let start = text.len() - text.trim_start().len();
    start + text[start..].lines().next().map_or(0, str::len)
}

/// The hardware of cards that a section names, with the read requests in flight that it says.
fn profile(
    section: &mut Section<'_>,
    key: &'static str,
) -> Result<Option<Found<Profile>>, Mistake> {
    let Some((name, at)) = section.text(key)? else { return Ok(None) };
    let Some(profile) = Profile::named(&name) else {
        let names: Vec<String> = PROFILES.iter().map(|p| format!("`{}`", p.name)).collect();
        let help = format!("it should be {}", names.join(", "));
        return Err(Mistake::new(at, format!("there is no card \"{name}\""), help));
    };
    if !matches!(profile.way.bus, Bus::Pcie(_)) {
        return Ok(Some((profile, at)));
    }
    let reads = section.number("reads", 1..=MOST_READS.value as u32)?;
    Ok(Some((reads.map_or(profile, |reads| profile.with_reads(reads)), at)))
}

/// A mistake if the transport cannot have what the file says there.
fn has(cluster: &Cluster, at: Range<usize>) -> Result<(), Mistake> {
    cluster
        .check(&[])
        .map_err(|error| Mistake::new(at, error, "leave the line out, or take another transport"))
}

/// A section `[[card]]`: some hosts' cards.
fn cards(mut section: Section<'_>, cluster: &mut Cluster) -> Result<(), Mistake> {
    let hosts = section.hosts("hosts", cluster.topology.hosts)?;
    let found = profile(&mut section, "name")?;
    let (found, at) = section.need("name", found)?;
    cluster.hardware.resize(cluster.topology.hosts as usize, None);
    hosts.into_iter().for_each(|host| cluster.hardware[host as usize] = Some(found));
    has(cluster, at)?;
    section.end()
}

/// The section `[host]`.
fn hosts(mut section: Section<'_>, cluster: &mut Cluster) -> Result<(), Mistake> {
    if let Some((name, at)) = section.text("transport")? {
        cluster.transport = Transport::named(&name).ok_or_else(|| {
            let names: Vec<String> = TRANSPORTS.iter().map(|t| format!("`{}`", t.name)).collect();
            let help = format!("it should be {}", names.join(", "));
            Mistake::new(at, format!("there is no transport \"{name}\""), help)
        })?;
    }
    if let Some(table) = section.section_if("tuning")? {
        tuning::read(table, cluster)?;
    }
    if let Some((profile, at)) = profile(&mut section, "card")? {
        cluster.hardware = vec![Some(profile); cluster.topology.hosts as usize];
        has(cluster, at)?;
    }
    if let Some(window) = section.number("window", 1..=32_768)? {
        cluster.window_packets = window;
    }
    if let Some((bytes, at)) = section.bytes("mtu")? {
        let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        let found = all.into_iter().find(|mtu| u64::from(mtu.bytes()) == bytes);
        let wrong =
            || Mistake::new(at, format!("`mtu` is {bytes}"), "256, 512, 1024, 2048 or 4096");
        cluster.mtu = found.ok_or_else(wrong)?;
    }
    if let Some((span, _)) = section.time("timeout")? {
        /// A code of 1 is 8.192 µs, and each further one twice the time.
        const UNIT: u64 = 4_096_000;
        let code = span.div_ceil(UNIT).max(2).next_power_of_two().ilog2();
        cluster.timeout = code.min(31) as u8;
    }
    let classes = section.place("short-first");
    cluster.short_first = section.flag("short-first")?;
    if let Some(at) = classes {
        has(cluster, at)?;
    }
    if let Some((name, at)) = section.text("turns")? {
        cluster.turn_order = TurnOrder::named(&name).ok_or_else(|| {
            let names = TurnOrder::ALL.map(|order| format!("`{}`", order.name()));
            let help = format!("it should be {}", names.join(" or "));
            Mistake::new(at.clone(), format!("there is no order of turns \"{name}\""), help)
        })?;
        has(cluster, at)?;
    }
    if let Some((payload, at)) = section.text("payload")? {
        cluster.payload = match payload.as_str() {
            "hollow" => Content::Hollow,
            "real" => Content::Real,
            _ => {
                let message = format!("there is no payload \"{payload}\"");
                return Err(Mistake::new(at, message, "`hollow` (only lengths) or `real`"));
            }
        };
        has(cluster, at)?;
    }
    section.end()
}
