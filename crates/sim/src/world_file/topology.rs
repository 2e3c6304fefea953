//! The section `[topology]`: a usual shape, cables one by one, or another simulator's file.

use core::ops::Range;

use super::section::{Files, Mistake, Section, in_file};
use crate::flows::Cluster;
use crate::format::hpcc::{self, HpccTopology};
use crate::format::htsim;
use crate::net::{
    Cable, Dumbbell, FatTree, LeafSpine, LineRate, Most, Node, Ps, Star, Topology, TopologyError,
};

/// The most hosts of a world file.
const HOSTS: u64 = 1 << 16;
/// The most switches.
const SWITCHES: u64 = 1 << 16;
/// The most cables.
const CABLES: u64 = 1 << 21;
/// The most memory of a network without its flows, in bytes.
const MEMORY: u64 = 16 << 30;
/// What a card takes of memory, in bytes, before it has a connection.
const CARD: u64 = 14_000;
/// What a cable takes in each part that the network is simulated in.
const CABLE: u64 = 500;
/// An entry of the switches' tables: there is one for each switch and each switch with hosts.
const ROUTE: u64 = 4;
/// How many tables there may be: when switches learn of a failure, those before and behind it.
const TABLES: u64 = 2;

/// The shapes, for an error.
const SHAPES: &str = "`star`, `dumbbell`, `leaf-spine`, `fat-tree`, `srnic`, `cables`, `hpcc` or \
                      `htsim`";

/// Reads the section.
pub(super) fn read(mut section: Section<'_>, files: Files<'_>) -> Result<HpccTopology, Mistake> {
    let found = section.text("shape")?;
    let (shape, at) = section.need("shape", found)?;
    let topology = match shape.as_str() {
        "star" => star(&mut section)?,
        "dumbbell" => dumbbell(&mut section)?,
        "leaf-spine" => leaf_spine(&mut section)?,
        "fat-tree" => fat_tree(&mut section)?,
        "srnic" => {
            let servers = section.number("hosts", 1..=4096)?;
            let servers = section.need("hosts", servers)?;
            let why = "SRNIC's Figure 12 has no such tree";
            let help = "`hosts` is 16, 64, 256, 1024 or 4096";
            FatTree::srnic(servers).ok_or_else(|| section.mistake(why, help))?
        }
        "cables" => {
            let (topology, places) = cables(&mut section)?;
            check(&section, &topology.topology, &places)?;
            section.end()?;
            return Ok(topology);
        }
        "hpcc" | "htsim" => return from_file(section, &shape, files),
        _ => {
            let message = format!("there is no shape \"{shape}\"");
            return Err(Mistake::new(at, message, format!("it should be {SHAPES}")));
        }
    };
    check(&section, &topology, &[])?;
    section.end()?;
    Ok(HpccTopology::of(topology))
}

fn from_file(
    mut section: Section<'_>,
    shape: &str,
    files: Files<'_>,
) -> Result<HpccTopology, Mistake> {
    let found = section.text("file")?;
    let (name, at) = section.need("file", found)?;
    let text = files(&name).map_err(|why| Mistake::new(at.clone(), why, "name a file"))?;
    let read = match shape {
        "hpcc" => hpcc::read_topology(&text),
        _ => htsim::read_topology(&text).map(HpccTopology::of),
    };
    let read = read.map_err(|error| in_file(&name, at.clone(), error))?;
    let places = vec![at; read.topology.cables.len()];
    check(&section, &read.topology, &places).map_err(|mistake| mistake.of_file(&name))?;
    section.end()?;
    Ok(read)
}

/// Refuses what would take more memory than machines have, before it is made. `edges` are the
/// switches with hosts, as far as they are known.
fn room(
    section: &Section<'_>,
    hosts: u64,
    [edges, switches]: [u64; 2],
    cables: u64,
) -> Result<(), Mistake> {
    let table = edges.saturating_mul(switches).saturating_mul(ROUTE);
    room_with(section, [hosts, switches, cables], table)
}

/// As [`room`], where a table of routes takes so many bytes.
fn room_with(
    section: &Section<'_>,
    [hosts, switches, cables]: [u64; 3],
    table: u64,
) -> Result<(), Mistake> {
    let of_cables = cables.saturating_mul(CABLE * Cluster::most_parts(hosts));
    let of_routes = table.saturating_mul(TABLES);
    let bytes = hosts.saturating_mul(CARD).saturating_add(of_cables).saturating_add(of_routes);
    if hosts <= HOSTS && switches <= SWITCHES && cables <= CABLES && bytes <= MEMORY {
        return Ok(());
    }
    let gib = bytes as f64 / f64::from(1 << 30);
    let message = format!(
        "{hosts} hosts, {switches} switches and {cables} cables are too many: they need about \
         {gib:.1} GiB of memory"
    );
    let help = format!(
        "the most are {HOSTS} hosts, {SWITCHES} switches, {CABLES} cables and {} GiB",
        MEMORY >> 30
    );
    Err(section.mistake(message, help))
}

/// `places` are those of the cables in the file, where it has them; without, the whole section is
/// pointed at.
fn check(
    section: &Section<'_>,
    topology: &Topology,
    places: &[Range<usize>],
) -> Result<(), Mistake> {
    let Topology { hosts, switches, ref cables } = *topology;
    let count = cables.len() as u64;
    room(section, hosts.into(), [0, switches.into()], count)?;
    topology.check().map_err(|error| {
        let of_node = |node| cables.iter().rposition(|c| [c.a, c.b].contains(&node));
        let of = |host: u32| of_node(Node::Host(host));
        let (help, cable) = match error {
            TopologyError::NotConnected { host } => {
                ("add a cable from here to the others, or leave the host out", of(host))
            }
            TopologyError::OutOfReach { switch } => (
                "add a cable from the switch to the others, or leave it out",
                of_node(Node::Switch(switch)),
            ),
            TopologyError::HostCables { host, .. } => {
                ("give each host one cable, to a switch", of(host))
            }
            TopologyError::NoSuchNode { cable, .. }
            | TopologyError::ToItself { cable }
            | TopologyError::TooLong { cable } => ("correct the cable", Some(cable)),
            TopologyError::Size | TopologyError::Paths => ("take fewer of them", None),
        };
        let place = cable.and_then(|cable| places.get(cable)).unwrap_or(&section.at);
        Mistake::new(place.clone(), error, help)
    })?;
    room_with(section, [hosts.into(), switches.into(), count], Most::of(topology).bytes())
}

fn rate(section: &mut Section<'_>, key: &'static str) -> Result<LineRate, Mistake> {
    let found = section.rate(key)?;
    section.need(key, found)
}

fn delay(section: &mut Section<'_>) -> Result<Ps, Mistake> {
    let found = section.delay("delay")?;
    section.need("delay", found)
}

fn count(section: &mut Section<'_>, key: &'static str) -> Result<u32, Mistake> {
    let found = section.count(key, HOSTS)?;
    section.need(key, found)
}

fn star(section: &mut Section<'_>) -> Result<Topology, Mistake> {
    let hosts = count(section, "hosts")?;
    room(section, hosts.into(), [1, 1], hosts.into())?;
    Ok(Star { hosts, rate: rate(section, "rate")?, delay: delay(section)? }.topology())
}

fn dumbbell(section: &mut Section<'_>) -> Result<Topology, Mistake> {
    let side = count(section, "side")?;
    let hosts = 2 * u64::from(side);
    room(section, hosts, [2, 2], hosts + 1)?;
    let (host_rate, middle_rate) = (rate(section, "host-rate")?, rate(section, "middle-rate")?);
    Ok(Dumbbell { side, host_rate, middle_rate, delay: delay(section)? }.topology())
}

/// The product; saturates.
fn product(factors: &[u32]) -> u64 {
    factors.iter().fold(1u64, |product, n| product.saturating_mul((*n).into()))
}

fn leaf_spine(section: &mut Section<'_>) -> Result<Topology, Mistake> {
    let (leaves, spines) = (count(section, "leaves")?, count(section, "spines")?);
    let hosts_per_leaf = count(section, "hosts-per-leaf")?;
    let hosts = product(&[leaves, hosts_per_leaf]);
    let cables = hosts.saturating_add(product(&[leaves, spines]));
    let switches = u64::from(leaves) + u64::from(spines);
    room(section, hosts, [leaves.into(), switches], cables)?;
    let (host_rate, fabric_rate) = (rate(section, "host-rate")?, rate(section, "fabric-rate")?);
    let delay = delay(section)?;
    Ok(LeafSpine { leaves, spines, hosts_per_leaf, host_rate, fabric_rate, delay }.topology())
}

fn fat_tree(section: &mut Section<'_>) -> Result<Topology, Mistake> {
    let (pods, tors) = (count(section, "pods")?, count(section, "tors")?);
    let (aggs, hosts_per_tor) = (count(section, "aggs")?, count(section, "hosts-per-tor")?);
    let cores = section.number("cores", 0..=u32::MAX)?.unwrap_or(0);
    let hosts = product(&[pods, tors, hosts_per_tor]);
    let sum = |terms: [u64; 3]| terms.into_iter().fold(0u64, u64::saturating_add);
    let switches = sum([product(&[pods, tors]), product(&[pods, aggs]), product(&[aggs, cores])]);
    let cables = sum([hosts, product(&[pods, tors, aggs]), product(&[pods, aggs, cores])]);
    room(section, hosts, [product(&[pods, tors]), switches], cables)?;
    let (host_rate, fabric_rate) = (rate(section, "host-rate")?, rate(section, "fabric-rate")?);
    let delay = delay(section)?;
    let tree = FatTree { pods, tors, aggs, cores, hosts_per_tor, host_rate, fabric_rate, delay };
    Ok(tree.topology())
}

/// The topology with what its cables lose, and where they are in the file.
fn cables(section: &mut Section<'_>) -> Result<(HpccTopology, Vec<Range<usize>>), Mistake> {
    let hosts = count(section, "hosts")?;
    let switches = section.number("switches", 0..=u32::MAX)?.unwrap_or(0);
    let list = section.sections("cable")?;
    room(section, hosts.into(), [0, switches.into()], list.len() as u64)?;
    let mut topology = Topology { hosts, switches, cables: Vec::new() };
    let (mut places, mut losses) = (Vec::new(), Vec::new());
    for mut cable in list {
        let found = cable.cable("ends")?;
        let ([a, b], at) = cable.need("ends", found)?;
        for end in [a, b] {
            let exists = match end {
                Node::Host(host) => host < hosts,
                Node::Switch(switch) => switch < switches,
            };
            if !exists {
                let help = format!("hosts: {hosts}, switches: {switches}, each from 0 on");
                return Err(Mistake::new(at, format!("there is no {end}"), help));
            }
        }
        let (rate, delay) = (rate(&mut cable, "rate")?, delay(&mut cable)?);
        if let Some(loss) = cable.number("loss", 0.0..=1.0)? {
            losses.push((topology.cables.len(), loss));
        }
        topology.cables.push(Cable { a, b, rate, delay });
        places.push(at);
        cable.end()?;
    }
    Ok((HpccTopology { losses, ..HpccTopology::of(topology) }, places))
}
