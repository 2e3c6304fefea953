//! The sections `[switch]`, `[[change]]` and `[record]`. [`BufferOptions`] has what holds of a
//! switch where a file is silent.

use std::collections::BTreeMap;

use super::section::{Mistake, Section};
use crate::flows::{Cluster, RecordOptions};
use crate::format::hpcc::HpccTopology;
use crate::net::time::US;
use crate::net::{BufferOptions, Change, Marking, Node, PfcOptions, Ps, Routing, Topology};

/// Reads the section `[switch]`.
pub(super) fn read(mut section: Section<'_>, cluster: &mut Cluster) -> Result<(), Mistake> {
    let of_queues = ["alpha", "queue"].map(|key| section.place(key));
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
        buffer.marking_bits = rate.bits().unwrap_or(0);
    }
    cluster.net.buffer = buffer;
    cluster.net.routing = routing(&mut section)?;
    cluster.net.classes = section.flag("classes")?;
    if section.flag("pfc")? {
        if let Some(at) = of_queues.into_iter().flatten().next() {
            let message = "with flow control, no queue is limited: links are paused";
            let help = "leave it out; `pfc-alpha` says how much a link may hold";
            return Err(Mistake::new(at, message, help));
        }
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
    let links = of.topology.links_of_cables();
    for (cable, probability) in &of.losses {
        let loss = |link| (0, Change::Loss { link, probability: *probability });
        cluster.changes.extend(links[*cable].map(loss));
    }
}

/// Cables by their names. It is made once for all sections that name some.
pub(super) struct Cables {
    /// By the ends of a cable, the lesser first: the two links of each cable between them.
    between: BTreeMap<[Node; 2], Vec<[u32; 2]>>,
    /// By link: its cable.
    of: Vec<usize>,
}

/// The cables that lose packets from the start on, by index, with the probability.
pub(super) fn losses_of(cluster: &Cluster) -> Vec<(usize, f64)> {
    let of_link = |(at, change): &(Ps, Change)| match *change {
        Change::Loss { link, probability } if *at == 0 => Some((link, probability)),
        _ => None,
    };
    let losses: BTreeMap<u32, f64> = cluster.changes.iter().filter_map(of_link).collect();
    let links = cluster.topology.links_of_cables();
    let of_cable = |(i, [link, _]): (usize, &[u32; 2])| Some((i, *losses.get(link)?));
    links.iter().enumerate().filter_map(of_cable).filter(|(_, loss)| *loss > 0.0).collect()
}

impl Cables {
    pub(super) fn of(topology: &Topology) -> Cables {
        let links = topology.links_of_cables();
        let mut between: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut of = vec![0; 2 * links.len()];
        for (i, (cable, links)) in topology.cables.iter().zip(links).enumerate() {
            between.entry([cable.a.min(cable.b), cable.a.max(cable.b)]).or_default().push(links);
            links.into_iter().for_each(|link| of[link as usize] = i);
        }
        Cables { between, of }
    }

    /// The cables between the nodes that a section names; none if it names none.
    fn named(&self, section: &mut Section<'_>, key: &'static str) -> Result<&[[u32; 2]], Mistake> {
        let Some(([a, b], at)) = section.cable(key)? else { return Ok(&[]) };
        self.between.get(&[a.min(b), a.max(b)]).map(Vec::as_slice).ok_or_else(|| {
            let message = format!("there is no cable between {a} and {b}");
            Mistake::new(at, message, "name the ends of a cable of the topology")
        })
    }
}

/// Reads a section `[[change]]`.
pub(super) fn change(
    mut section: Section<'_>,
    cables: &Cables,
    cluster: &mut Cluster,
) -> Result<(), Mistake> {
    let found = section.time("at")?;
    let (at, _) = section.need("at", found)?;
    let named = cables.named(&mut section, "cable")?;
    let switch = switch(&mut section, cluster.topology.switches)?;
    let (mut changes, mut is_slow) = (Vec::new(), false);
    if !named.is_empty() {
        let links = || named.as_flattened().iter().copied();
        if let Some(rate) = section.rate("rate")? {
            is_slow = true;
            if at == 0 {
                // It is so from the start on, for all that asks for a cable's rate.
                links().for_each(|link| {
                    cluster.topology.cables[cables.of[link as usize]].rate = rate;
                });
            } else {
                changes.extend(links().map(|link| (at, Change::Rate { link, rate })));
            }
        }
        if let Some(probability) = section.number("loss", 0.0..=1.0)? {
            changes.extend(links().map(|link| (at, Change::Loss { link, probability })));
        }
    }
    // A cable with another rate or with losses does not fail.
    let failing = if changes.is_empty() && !is_slow { named } else { &[] };
    if !failing.is_empty() || switch.is_some() {
        let works = section.flag("works")?;
        let later = section.time("learnt-after")?.map_or(10 * US, |found| found.0);
        let learnt = at.saturating_add(later);
        // A change of one link is one of both directions.
        for link in failing.iter().map(|[link, _]| *link) {
            let learns = Change::LearnCable { link };
            changes.extend([(at, Change::Cable { link, works }), (learnt, learns)]);
        }
        if let Some(switch) = switch {
            let learns = Change::LearnSwitch { switch };
            changes.extend([(at, Change::Switch { switch, works }), (learnt, learns)]);
        }
    }
    if changes.is_empty() && !is_slow {
        let help = "name a `cable` or a `switch`";
        return Err(section.mistake("[change] says nothing of what changes", help));
    }
    cluster.changes.append(&mut changes);
    section.end()
}

/// The switch that a section names, if it names one.
fn switch(section: &mut Section<'_>, switches: u32) -> Result<Option<u32>, Mistake> {
    match section.node("switch")? {
        None => Ok(None),
        Some((Node::Switch(switch), _)) if switch < switches => Ok(Some(switch)),
        Some((node, place)) => {
            let help = match switches.checked_sub(1) {
                Some(last) => format!("it should be one from \"switch 0\" to \"switch {last}\""),
                None => "leave the line out: there is none".to_owned(),
            };
            Err(Mistake::new(place, format!("{node} is no switch here"), help))
        }
    }
}

/// Reads the section `[record]`.
pub(super) fn record(
    mut section: Section<'_>,
    cables: &Cables,
    cluster: &mut Cluster,
) -> Result<(), Mistake> {
    let mut every = US;
    if let Some((span, at)) = section.time("every")? {
        if span < RecordOptions::SHORTEST {
            return Err(Mistake::new(at, "samples come too often", "take at least 10ns"));
        }
        every = span;
    }
    let captures = cables.named(&mut section, "capture")?.as_flattened().to_vec();
    cluster.record = Some(RecordOptions { every, captures });
    section.end()
}
