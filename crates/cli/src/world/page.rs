//! The page of a run: figures, topology, queues and rates over time, completion by size.

use std::fmt::Write;

use anyhow::Result;
use remora_sim::flows::{Record, Report};
use remora_sim::net::Ps;
use remora_sim::net::time::US;
use remora_sim::world_file::Experiment;

use super::drawing;
use super::plots::{Line, Plot};
use super::result::{Class, Outcome};
use super::stages::wait_table;
use super::workloads;
use crate::bench::page::{STYLE, processor, text};

/// The points of a plot of pauses, of which there may be millions.
const INTERVALS: usize = 500;
/// How many ports are drawn over time.
const PORTS: usize = 6;

/// The page of one run.
pub(super) fn render(
    experiment: &Experiment,
    report: &Report,
    outcome: &Outcome,
) -> Result<String> {
    let mut page = head(&outcome.name, &experiment.about)?;
    table_section(&mut page, "Figures", "", &["figure", "value"], &outcome.rows())?;
    let (headings, rows) = workloads::table(&outcome.workloads);
    let about = "Whole: from the first flow’s start to the last one’s end, as of a collective.";
    table_section(&mut page, "By workload", about, &headings, &rows)?;
    if let Some(stuck) = &outcome.deadlock {
        let about = "Packets that came by each of these links wait at a port that is paused, and \
                     the room they take is what the port before waits for. In the topology below \
                     these cables are black.";
        let (headings, rows) = stuck.table();
        table_section(&mut page, "Deadlock of flow control", about, &headings, &rows)?;
    }
    if let Some(record) = &report.record {
        let about = "Hosts below, switches above. A cable’s colour says what share of the run \
                     its busier direction was in use; its width, the rate.";
        section(&mut page, "Topology", about, &drawing::draw(experiment, report, record)?)?;
        over_time(&mut page, experiment, record, (report.first, report.stopped))?;
    }
    by_size(&mut page, outcome)?;
    if !outcome.classes.is_empty() {
        let about =
            "Slowdown: the completion time as a multiple of what the flow would take alone.";
        let cdf = slowdowns(report);
        let plot = plot("slowdown", "share of flows, %", [true, false], false, vec![cdf]);
        section(&mut page, "Slowdowns of all flows", about, &plot.draw()?)?;
    }
    if !outcome.waits.is_empty() {
        let (headings, rows) = wait_table(&outcome.waits);
        let about = "What messages waited for at their senders’ cards, from their posts to their \
                     ends, by samples: the port, to send by it or in line behind others; the \
                     window or the rate of congestion control; or, once all had left, the last \
                     acknowledge or the answer.";
        table_section(&mut page, "Where messages waited", about, &headings, &rows)?;
    }
    if !outcome.stages.is_empty() {
        let (headings, rows) = outcome.stage_table();
        let about = "How long packets waited for ports, by where in the network: waits of all \
                     packets, retransmitted ones, acknowledges and frames of flow control \
                     included. Tiers count from the hosts. What messages waited in their \
                     senders’ cards before is above.";
        table_section(&mut page, "Where packets waited", about, &headings, &rows)?;
    }
    foot(&mut page)?;
    Ok(page)
}

/// A figure of the flows of one range of sizes.
type Of = fn(&Class) -> f64;

/// The page of several runs.
pub(super) fn comparison(
    outcomes: &[Outcome],
    headings: &[String],
    rows: &[Vec<String>],
) -> Result<String> {
    let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name.as_str()).collect();
    let mut page = head(&names.join(" and "), "Several worlds side by side.")?;
    let about = "Times in µs; in brackets, a multiple of the first world’s.";
    table_section(&mut page, "Figures", about, headings, rows)?;
    let plots: [(&str, Of); 3] = [
        ("99th percentile of slowdown by size", |c| c.p99_slowdown),
        ("Mean slowdown by size", |c| c.mean_slowdown),
        ("Mean completion by size, µs", |c| c.mean_us),
    ];
    for (title, of) in plots {
        let line = |o: &Outcome| (o.name.clone(), sized(&o.classes, of));
        let lines = outcomes.iter().map(line).collect();
        let plot = plot("bytes, at most", "", [true, true], true, lines);
        section(&mut page, title, "", &plot.draw()?)?;
    }
    foot(&mut page)?;
    Ok(page)
}

fn head(title: &str, about: &str) -> Result<String> {
    let mut page = String::new();
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Remora: {0}</title><style>{STYLE}td:first-child,th:first-child{{text-align:left}}\
         </style></head><body><main><h1>{0}</h1><p class=\"about\">{1}</p>",
        text(title),
        text(about)
    )?;
    Ok(page)
}

fn foot(page: &mut String) -> Result<()> {
    let (version, processor) = (env!("CARGO_PKG_VERSION"), text(&processor()));
    writeln!(
        page,
        "<footer>Simulated: the same on every machine. Made by <code>remora world</code> {version} \
         · {processor}</footer></main></body></html>"
    )?;
    Ok(())
}

fn section(page: &mut String, title: &str, about: &str, content: &str) -> Result<()> {
    let (title, about) = (text(title), text(about));
    let about = if about.is_empty() { about } else { format!("<p class=\"about\">{about}</p>") };
    write!(page, "<section><h2>{title}</h2>{about}{content}</section>")?;
    Ok(())
}

fn table_section<H: AsRef<str>, R: AsRef<[String]>>(
    page: &mut String,
    title: &str,
    about: &str,
    headings: &[H],
    rows: &[R],
) -> Result<()> {
    let mut table = String::from("<div class=\"wide\"><table><tr>");
    headings.iter().for_each(|heading| table += &format!("<th>{}", text(heading.as_ref())));
    table.push_str("</tr>");
    for row in rows {
        table.push_str("<tr>");
        row.as_ref().iter().for_each(|cell| table += &format!("<td>{}", text(cell)));
        table.push_str("</tr>");
    }
    table.push_str("</table></div>");
    section(page, title, about, &table)
}

fn plot(
    x: &'static str,
    y: &'static str,
    [log_x, log_y]: [bool; 2],
    marks: bool,
    lines: Vec<Line>,
) -> Plot {
    Plot { x, y, log_x, log_y, marks, lines }
}

/// Queues, rates and pauses.
fn over_time(
    page: &mut String,
    experiment: &Experiment,
    record: &Record,
    run: (Ps, Ps),
) -> Result<()> {
    let links = experiment.cluster.topology.links();
    let name = |link: usize| format!("{} to {}", links[link].from, links[link].to);
    let interval = record.interval() as f64 / US as f64;
    let over = |values: Vec<f64>| -> Vec<(f64, f64)> {
        record.ends().map(|end| end as f64 / US as f64).zip(values).collect()
    };
    let longest = |link: &usize| record.links[*link].queue.iter().copied().max().unwrap_or(0);
    let switches = experiment.cluster.topology.hosts as usize..links.len();
    // Ports beside which the others are busy would be lines at zero.
    let least = switches.clone().map(|link| longest(&link)).max().unwrap_or(0) / 100;
    let mut ports: Vec<usize> = switches.filter(|link| longest(link) > least).collect();
    ports.sort_by_key(|link| (core::cmp::Reverse(longest(link)), *link));
    ports.truncate(PORTS);
    let queue = |link: &usize| {
        let bytes = record.links[*link].queue.iter().map(|b| f64::from(*b) / 1e3).collect();
        (name(*link), over(bytes))
    };
    let about = format!(
        "The longest queues of switches, each point the longest of {interval:.2} µs; {} samples.",
        record.samples
    );
    let lines = ports.iter().map(queue).collect();
    let drawn = plot("time, µs", "queue, KB", [false; 2], false, lines).draw()?;
    section(page, "Queues over time", &about, &drawn)?;
    let rate = |link: &usize| {
        let gigabits = record.rates(*link).into_iter().map(|bits| bits / 1e9).collect();
        (name(*link), over(gigabits))
    };
    let lines = ports.iter().map(rate).collect();
    let drawn = plot("time, µs", "sent, Gb/s", [false; 2], false, lines).draw()?;
    section(page, "Rates over time", "What the same ports have sent.", &drawn)?;
    pauses(page, record, (&name, run))
}

/// How many ports were paused, over time.
fn pauses(
    page: &mut String,
    record: &Record,
    (name, (first, end)): (&impl Fn(usize) -> String, (Ps, Ps)),
) -> Result<()> {
    if record.notes.pauses.is_empty() {
        return Ok(());
    }
    let notes = record.notes.pauses.iter().map(|note| (note.at, note.paused));
    let lines = vec![("paused ports and classes".to_owned(), most_paused(notes, (first, end)))];
    let drawn = plot("time, µs", "paused", [false; 2], false, lines).draw()?;
    let paused = record.paused(end);
    let mut most: Vec<usize> = (0..paused.len()).filter(|link| paused[*link] > 0).collect();
    most.sort_by_key(|link| (core::cmp::Reverse(paused[*link]), *link));
    let row = |link: &usize| {
        let us = paused[*link] as f64 / US as f64;
        let share = paused[*link] as f64 * 100.0 / end.saturating_sub(first).max(1) as f64;
        vec![name(*link), format!("{us:.2}"), format!("{share:.1} %")]
    };
    let rows: Vec<Vec<String>> = most.iter().take(PORTS).map(row).collect();
    section(page, "Pauses", "How many ports flow control held at a time.", &drawn)?;
    let headings = ["port", "paused, µs", "of the run"];
    table_section(page, "Ports that were paused longest", "", &headings, &rows)
}

/// By interval, of which there are [`INTERVALS`] from `first` to `end`: its end in µs, and how many
/// ports and classes were paused at a time, at most.
fn most_paused(notes: impl Iterator<Item = (Ps, bool)>, (first, end): (Ps, Ps)) -> Vec<(f64, f64)> {
    let interval = (end.saturating_sub(first) / INTERVALS as Ps).max(1);
    let (mut most, mut last, mut count) = (vec![0i64; INTERVALS], 0, 0i64);
    for (at, paused) in notes {
        let here = ((at.saturating_sub(first) / interval) as usize).min(INTERVALS - 1);
        most[last..=here].iter_mut().for_each(|most| *most = (*most).max(count));
        count += if paused { 1 } else { -1 };
        most[here] = most[here].max(count);
        last = here;
    }
    most[last..].iter_mut().for_each(|most| *most = (*most).max(count));
    let ends = (1..=INTERVALS).map(|i| (first + interval * i as Ps) as f64 / US as f64);
    ends.zip(most.into_iter().map(|most| most as f64)).collect()
}

fn sized(classes: &[Class], of: impl Fn(&Class) -> f64) -> Vec<(f64, f64)> {
    classes.iter().map(|class| (class.most_bytes as f64, of(class))).collect()
}

fn by_size(page: &mut String, outcome: &Outcome) -> Result<()> {
    let classes = &outcome.classes;
    if classes.is_empty() {
        return Ok(());
    }
    let line = |name: &str, of: fn(&Class) -> f64| (name.to_owned(), sized(classes, of));
    let times = vec![
        line("median", |c| c.p50_us),
        line("mean", |c| c.mean_us),
        line("p95", |c| c.p95_us),
        line("p99", |c| c.p99_us),
    ];
    let slowdowns = vec![
        line("median", |c| c.p50_slowdown),
        line("mean", |c| c.mean_slowdown),
        line("p95", |c| c.p95_slowdown),
        line("p99", |c| c.p99_slowdown),
    ];
    let about = "Flows in order of size, in groups of as many each.";
    let x = "bytes, at most";
    let drawn = plot(x, "completion, µs", [true; 2], true, times).draw()?;
    section(page, "Completion times by size", about, &drawn)?;
    let drawn = plot(x, "slowdown", [true; 2], true, slowdowns).draw()?;
    section(page, "Slowdown by size", about, &drawn)?;
    let (headings, rows) = outcome.class_table();
    table_section(page, "Numbers by size", "", &headings, &rows)
}

/// The distribution of slowdowns, in at most a few hundred points.
fn slowdowns(report: &Report) -> Line {
    let mut all: Vec<f64> = report.messages().filter_map(|(flow, _)| flow.slowdown()).collect();
    all.sort_unstable_by(f64::total_cmp);
    let step = (all.len() / 400).max(1);
    let point = |(i, value): (usize, &f64)| (*value, (i + 1) as f64 * 100.0 / all.len() as f64);
    let last = all.len().saturating_sub(1);
    let chosen = all.iter().enumerate().filter(|(i, _)| i % step == 0 || *i == last);
    ("all flows".into(), chosen.map(point).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_seen_until_it_ends_however_many_there_are() {
        let end = 1000 * INTERVALS as Ps;
        // One that lasts over an interval's end, and many short ones in another.
        let long = [(500, true), (2500, false)].into_iter();
        let short = (0..1_000_000).map(|i| (7000 + i / 2000, i % 2 == 0));
        let most: Vec<f64> =
            most_paused(long.chain(short), (0, end)).into_iter().map(|point| point.1).collect();
        assert_eq!(
            (most.len(), &most[..9]),
            (INTERVALS, &[1., 1., 1., 0., 0., 0., 0., 1., 0.][..])
        );
        let never_ends = most_paused([(end / 2, true)].into_iter(), (0, end));
        assert_eq!((never_ends[0].1, never_ends[INTERVALS - 1].1), (0.0, 1.0));
        let late = most_paused([(end / 2, true)].into_iter(), (end / 2, end));
        assert!(late.iter().all(|point| point.1 == 1.0) && late[0].0 > end as f64 / 2e6);
        let before_the_first_flow = most_paused([].into_iter(), (end, end / 2));
        assert!(before_the_first_flow.iter().all(|point| point.1 == 0.0));
    }
}
