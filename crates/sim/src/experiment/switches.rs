//! The sections `[switch]`, `[[change]]` and `[record]`.

use super::section::{Mistake, Section};
use crate::flows::{Cluster, RecordOptions};
use crate::format::hpcc::HpccTopology;
use crate::net::time::US;
use crate::net::{BufferOptions, Change, Marking, Net, Node, PfcOptions, Ps, Routing};

/// Reads the section `[switch]`.
pub(super) fn read(mut section: Section<'_>, cluster: &mut Cluster) -> Result<(), Mistake> {
    let mut buffer = BufferOptions::default();
    if let Some((bytes, _)) = section.bytes("buffer")? {
        buffer.bytes = bytes;
    }
    if let Some(alpha) = section.number("alpha", 0.001..=1e6)? {
        buffer.alpha = alpha;
    }
    if let Some((bytes, _)) = section.bytes("queue")? {
        buffer.queue_bytes = bytes;
    }
    buffer.marking = marking(&mut section)?;
    if buffer.marking.is_some()
        && let Some(rate) = section.rate("mark-at")?
    {
        buffer.marking_gigabits = rate.bits().unwrap_or(0) / 1_000_000_000;
    }
    cluster.net.buffer = buffer;
    cluster.net.routing = routing(&mut section)?;
    cluster.net.classes = section.flag("classes")?;
    if section.flag("pfc")? {
        let usual = PfcOptions::default();
        cluster.net.pfc = Some(PfcOptions {
            alpha: section.number("pfc-alpha", 0.001..=1e6)?.unwrap_or(usual.alpha),
            reserve_bytes: section.bytes("pfc-reserve")?.map_or(usual.reserve_bytes, |b| b.0),
            resume_bytes: section.bytes("pfc-resume")?.map_or(usual.resume_bytes, |b| b.0),
            headroom_bytes: section.bytes("pfc-headroom")?.map(|b| b.0),
        });
    }
    section.end()
}

/// `mark` for a step; `mark-from`, `mark-to` and `mark-most` for RED's way.
fn marking(section: &mut Section<'_>) -> Result<Option<Marking>, Mistake> {
    if let Some((bytes, _)) = section.bytes("mark")? {
        return Ok(Some(Marking::step(bytes)));
    }
    let Some((from_bytes, _)) = section.bytes("mark-from")? else { return Ok(None) };
    let found = section.bytes("mark-to")?;
    let (to_bytes, at) = section.need("mark-to", found)?;
    if to_bytes < from_bytes {
        return Err(Mistake::new(at, "`mark-to` is less than `mark-from`", "exchange the two"));
    }
    let most = section.number("mark-most", 0.0..=1.0)?.unwrap_or(1.0);
    Ok(Some(Marking { from_bytes, to_bytes, most }))
}

fn routing(section: &mut Section<'_>) -> Result<Routing, Mistake> {
    let Some((name, at)) = section.text("routing")? else { return Ok(Routing::Ecmp) };
    match name.as_str() {
        "ecmp" => Ok(Routing::Ecmp),
        "spray" => Ok(Routing::Spray),
        "flowlet" => match section.time("flowlet-gap")? {
            Some((gap_ps, _)) => Ok(Routing::Flowlet { gap_ps }),
            None => Ok(Routing::FLOWLETS),
        },
        _ => {
            let message = format!("there is no routing \"{name}\"");
            Err(Mistake::new(at, message, "it should be `ecmp`, `flowlet` or `spray`"))
        }
    }
}

/// The losses of a topology's file, from the start on.
pub(super) fn losses(of: &HpccTopology, cluster: &mut Cluster) {
    if of.losses.is_empty() {
        return;
    }
    let Ok(net) = cluster.build() else { return };
    for (cable, probability) in &of.losses {
        let cable = &of.topology.cables[*cable];
        for link in between(&net, [cable.a, cable.b]) {
            cluster.changes.push((0, Change::Loss { link, probability: *probability }));
        }
    }
}

/// The links between two nodes, of both directions.
fn between(net: &Net, [a, b]: [Node; 2]) -> Vec<u32> {
    let mut links = net.links_between(a, b);
    links.extend(net.links_between(b, a));
    links
}

/// The links of a cable that a section names.
fn links(section: &mut Section<'_>, key: &'static str, net: &Net) -> Result<Vec<u32>, Mistake> {
    let Some((ends, at)) = section.cable(key)? else { return Ok(Vec::new()) };
    let links = between(net, ends);
    if links.is_empty() {
        let message = format!("there is no cable between {} and {}", ends[0], ends[1]);
        return Err(Mistake::new(at, message, "name the ends of a cable of the topology"));
    }
    Ok(links)
}

/// Reads a section `[[change]]`.
pub(super) fn change(mut section: Section<'_>, cluster: &mut Cluster) -> Result<(), Mistake> {
    let found = section.time("at")?;
    let (at, _) = section.need("at", found)?;
    let net = cluster.build().map_err(|error| section.mistake(error, "correct the topology"))?;
    let links = links(&mut section, "cable", &net)?;
    let mut changes: Vec<(Ps, Change)> = Vec::new();
    if let Some(first) = links.first().copied() {
        if let Some(rate) = section.rate("rate")? {
            changes.extend(links.iter().map(|link| (at, Change::Rate { link: *link, rate })));
        } else if let Some(probability) = section.number("loss", 0.0..=1.0)? {
            let loss = |link: &u32| (at, Change::Loss { link: *link, probability });
            changes.extend(links.iter().map(loss));
        } else {
            let works = section.flag("works")?;
            // A change of one link is one of both directions; cables beside it change, too.
            let forth = links.iter().filter(|link| net.link(**link).from == net.link(first).from);
            changes.extend(forth.map(|link| (at, Change::Cable { link: *link, works })));
        }
    }
    if let Some((node, place)) = section.node("switch")? {
        let of = cluster.topology.switches;
        let help = format!("it should be one of the {of} switches, as in \"switch 0\"");
        match node {
            Node::Switch(switch) if switch < of => {
                changes.push((at, Change::Switch { switch, works: section.flag("works")? }));
            }
            _ => return Err(Mistake::new(place, format!("{node} is no switch here"), help)),
        }
    }
    if changes.is_empty() {
        let help = "name a `cable` or a `switch`";
        return Err(section.mistake("[change] says nothing of what changes", help));
    }
    let fails = |change: &Change| matches!(change, Change::Cable { .. } | Change::Switch { .. });
    if changes.iter().any(|(_, change)| fails(change)) {
        let later = section.time("learnt-after")?.map_or(10 * US, |found| found.0);
        changes.push((at.saturating_add(later), Change::Reroute));
    }
    cluster.changes.append(&mut changes);
    section.end()
}

/// Reads the section `[record]`.
pub(super) fn record(mut section: Section<'_>, cluster: &mut Cluster) -> Result<(), Mistake> {
    let mut every = US;
    if let Some((span, at)) = section.time("every")? {
        if span < RecordOptions::SHORTEST {
            return Err(Mistake::new(at, "samples come too often", "take at least 10ns"));
        }
        every = span;
    }
    let net = cluster.build().map_err(|error| section.mistake(error, "correct the topology"))?;
    let captures = links(&mut section, "capture", &net)?;
    cluster.record = Some(RecordOptions { every, captures });
    section.end()
}
