//! A topology as a drawing: hosts below, switches above by tier, cables by how busy they were.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use remora_sim::flows::{Record, Report};
use remora_sim::net::{Cable, LineRate, Node, Ps, Topology};
use remora_sim::world_file::Experiment;

use super::stages::tiers;

const WIDTH: f64 = 1060.0;
/// The distance of two tiers.
const STEP: f64 = 130.0;
/// A switch that is so wide has its name inside.
const NAMED: f64 = 30.0;
/// The most cables that are drawn one by one: more than the 6,144 of SRNIC's 4,096 servers.
const MOST: usize = 8192;

/// The drawing, in SVG. Cables are coloured by their share of the run in use; those of a deadlock
/// are black.
pub(super) fn draw(experiment: &Experiment, report: &Report, record: &Record) -> Result<String> {
    let topology = &experiment.cluster.topology;
    if topology.cables.len() > MOST {
        let cables = topology.cables.len();
        return Ok(format!("<p>{cables} cables are too many to draw.</p>"));
    }
    let places = places(topology);
    let height = places.values().map(|place| place.1).fold(0.0, f64::max) + 44.0;
    let busy = busy(experiment, record, report.lasted());
    let stuck = report.deadlock.as_ref().map_or(&[][..], |deadlock| &deadlock.links);
    let mut svg =
        format!("<svg role=\"img\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\">");
    for (Cable { a, b, rate, .. }, busy) in topology.cables.iter().zip(&busy) {
        let way = way(&places, places[a], places[b]);
        let (width, colour) = if stuck.contains(&(*a, *b)) || stuck.contains(&(*b, *a)) {
            (4.0, "#000".to_owned())
        } else {
            (thickness(*rate) * if *busy > 0.0 { 1.0 } else { 0.6 }, colour(*busy))
        };
        write!(
            svg,
            "<path d=\"{way}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"{width:.1}\"><title>{a} – {b}: {:.0} % busy</title></path>",
            busy * 100.0
        )?;
    }
    for row in rows(topology).values() {
        let room = WIDTH / row.len() as f64;
        let every = label_every(row, room);
        for (i, node) in row.iter().enumerate() {
            node_mark(&mut svg, *node, places[node], (room, i % every == 0))?;
        }
    }
    svg.push_str("</svg>");
    Ok(svg + &legend())
}

/// A cable's line: straight, or, if other nodes stand between its ends in their row, a bow.
fn way(places: &BTreeMap<Node, (f64, f64)>, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    let is_between = |(x, y): &(f64, f64)| *y == y1 && x1.min(x2) < *x && *x < x1.max(x2);
    let (x, y) = ((x1 + x2) / 2.0, y1 + STEP * 0.6);
    match y1 == y2 && places.values().any(is_between) {
        true => format!("M{x1:.1} {y1:.1} Q{x:.1} {y:.1} {x2:.1} {y2:.1}"),
        false => format!("M{x1:.1} {y1:.1} L{x2:.1} {y2:.1}"),
    }
}

/// A node's name where there is room for it.
fn label(node: Node) -> String {
    match node {
        Node::Host(host) => host.to_string(),
        Node::Switch(switch) => format!("s{switch}"),
    }
}

/// One in how many nodes of a row has its name, so that none touches the next one: 1, 2, 5, 10 …
fn label_every(row: &[Node], room: f64) -> usize {
    /// What a letter takes, and what is left between two names.
    const LETTER: f64 = 6.5;
    const SPACE: f64 = 8.0;
    let longest = row.iter().map(|node| label(*node).len()).max().unwrap_or(0);
    let need = longest as f64 * LETTER + SPACE;
    let mut every = 1;
    while every as f64 * room < need && every < row.len() {
        let is_two = every.to_string().starts_with('2');
        every = if is_two { every / 2 * 5 } else { every * 2 };
    }
    every
}

/// A host or a switch in a row that has so much room for each, with its name, if it has one.
fn node_mark(
    svg: &mut String,
    node: Node,
    (x, y): (f64, f64),
    (room, is_named): (f64, bool),
) -> Result<()> {
    let mut below = 4.0;
    match node {
        Node::Host(_) => {
            let r = (room * 0.36).clamp(1.5, 8.0);
            below = r + 14.0;
            write!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r:.1}\" fill=\"#fff\" stroke=\"#464c54\">\
                 <title>{node}</title></circle>"
            )?;
        }
        Node::Switch(_) => {
            let w = (room * 0.8).clamp(3.0, 34.0);
            let is_wide = w >= NAMED;
            let h = if is_wide { 18.0 } else { 6.0 };
            // A name that has no room inside stands above.
            below = if is_wide { below } else { -8.0 };
            let (left, top) = (x - w / 2.0, y - h / 2.0);
            write!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{w:.1}\" height=\"{h}\" rx=\"3\" \
                 fill=\"#e9eef5\" stroke=\"#464c54\"><title>{node}</title></rect>"
            )?;
        }
    }
    if is_named {
        let colour = match node {
            Node::Host(_) => "#57606a",
            Node::Switch(_) => "#22272e",
        };
        let (name, y) = (label(node), y + below);
        write!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"11\" text-anchor=\"middle\" \
             fill=\"{colour}\">{name}</text>"
        )?;
    }
    Ok(())
}

/// The nodes of each tier, hosts first.
fn rows(topology: &Topology) -> BTreeMap<u32, Vec<Node>> {
    let mut rows: BTreeMap<u32, Vec<Node>> = BTreeMap::new();
    tiers(topology).into_iter().for_each(|(node, tier)| rows.entry(tier).or_default().push(node));
    rows
}

/// Where nodes stand: each tier in a row, hosts lowest, evenly.
fn places(topology: &Topology) -> BTreeMap<Node, (f64, f64)> {
    let rows = rows(topology);
    let top = rows.keys().last().copied().unwrap_or(0);
    let mut places = BTreeMap::new();
    for (tier, row) in rows {
        let y = 24.0 + f64::from(top - tier) * STEP;
        for (i, node) in row.iter().enumerate() {
            let x = (i as f64 + 0.5) * WIDTH / row.len() as f64;
            places.insert(*node, (x, y));
        }
    }
    places
}

/// By cable: the share of the time in which the busier of its directions was in use.
fn busy(experiment: &Experiment, record: &Record, lasted: Ps) -> Vec<f64> {
    let topology = &experiment.cluster.topology;
    let share_of = |(cable, links): (&Cable, [u32; 2])| {
        let bytes = links.map(|link| record.links[link as usize].usage.bytes);
        share(cable.rate, bytes[0].max(bytes[1]), lasted)
    };
    topology.cables.iter().zip(topology.links_of_cables()).map(share_of).collect()
}

/// The share of a time that so many bytes take. Those of a whole run may be more than
/// [`LineRate::time`] can count.
fn share(rate: LineRate, bytes: u64, lasted: Ps) -> f64 {
    const PS: f64 = 1e12;
    let time = rate.bits().map_or(0.0, |bits| bytes as f64 * 8.0 * PS / bits as f64);
    (time / lasted as f64).min(1.0)
}

/// From grey by blue to red.
fn colour(busy: f64) -> String {
    const STOPS: [(f64, [f64; 3]); 4] = [
        (0.0, [214.0, 219.0, 225.0]),
        (0.25, [86.0, 160.0, 220.0]),
        (0.6, [230.0, 159.0, 0.0]),
        (1.0, [196.0, 40.0, 20.0]),
    ];
    let upper = STOPS.iter().position(|(at, _)| busy <= *at).unwrap_or(STOPS.len() - 1).max(1);
    let ((low, a), (high, b)) = (STOPS[upper - 1], STOPS[upper]);
    let part = ((busy - low) / (high - low)).clamp(0.0, 1.0);
    let mix = |i: usize| (a[i] + (b[i] - a[i]) * part).round() as u8;
    format!("rgb({},{},{})", mix(0), mix(1), mix(2))
}

fn thickness(rate: LineRate) -> f64 {
    let gigabits = rate.bits().unwrap_or(0) as f64 / 1e9;
    (gigabits.max(1.0).log10() * 0.9).clamp(0.8, 3.0)
}

fn legend() -> String {
    let entry = |busy: f64| {
        let percent = busy * 100.0;
        format!("<span><i style=\"background:{}\"></i>{percent:.0} % busy</span>", colour(busy))
    };
    let entries: String = [0.0, 0.25, 0.6, 1.0].map(entry).concat();
    format!("<div class=\"key\">{entries}</div>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_hours_have_a_share() {
        const HOUR: Ps = 3_600_000_000_000_000;
        let slow = LineRate::bits_per_second(1_000_000).unwrap();
        let busy = share(slow, 3_000_000_000, 8 * HOUR);
        assert!((busy - 24_000.0 / 28_800.0).abs() < 1e-9, "{busy}");
        assert!(share(slow, 3_000_000_000, HOUR) >= 1.0);
        assert!(share(LineRate::gigabits(100), 0, 1) <= 0.0);
    }

    /// Names of neighbours do not touch, and a row has some, however long it is.
    #[test]
    fn names_are_thinned_out() {
        for hosts in [1, 8, 40, 50, 64, 100, 128, 1024, 4096, 65_536] {
            let row: Vec<Node> = (0..hosts).map(Node::Host).collect();
            let room = WIDTH / f64::from(hosts);
            let every = label_every(&row, room);
            let width = (hosts - 1).to_string().len() as f64 * 6.5;
            assert!(every as f64 * room > width || every >= row.len(), "{hosts}: {every}");
            assert!(hosts > 40 || every == 1, "{hosts}: {every}");
            assert!(row.len() / every >= 10 || every == 1, "{hosts}: {every}");
            let digits = every.to_string();
            assert!(digits.trim_end_matches('0').len() == 1, "a round number: {every}");
        }
    }
}
