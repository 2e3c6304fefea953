//! `remora world compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use remora::printable;

use super::load::{self, Chosen, Files};
use super::page;
use super::result::Outcome;
use crate::output::{self, grouped};

/// `remora world compare`.
#[derive(Debug, Args)]
#[command(after_help = load::STATUSES)]
pub(super) struct Compare {
    /// The world files; the first is what the others are compared with
    #[arg(value_name = "WORLD.toml", required = true)]
    worlds: Vec<PathBuf>,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    files: Files,
}

impl Compare {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.worlds.len() < 2 {
            bail!("name two worlds or more; for one, there is `remora world run`");
        }
        let (mut outcomes, mut ran) = (Vec::new(), Vec::new());
        for path in &self.worlds {
            let done = load::load(path, self.chosen, &self.files.paths())
                .and_then(|experiment| Ok((load::simulate(&experiment)?, experiment)));
            match done {
                Ok((report, experiment)) => {
                    outcomes.push(Outcome::new(&experiment, &report));
                    ran.push((experiment, report));
                }
                Err(error) => {
                    // What the worlds before it have come to is not lost.
                    tell_apart(&mut outcomes, &self.worlds);
                    show(&outcomes);
                    return Err(error);
                }
            }
        }
        tell_apart(&mut outcomes, &self.worlds);
        show(&outcomes);
        let (headings, rows) = table(&outcomes);
        self.files.write(&outcomes, || page::comparison(&outcomes, &headings, &rows))?;
        Ok(load::status(ran.iter().map(|(experiment, report)| (experiment, report))))
    }
}

/// Worlds of one name have their files' behind it.
fn tell_apart(outcomes: &mut [Outcome], paths: &[PathBuf]) {
    let names: Vec<String> = outcomes.iter().map(|outcome| outcome.name.clone()).collect();
    for (outcome, path) in outcomes.iter_mut().zip(paths) {
        if names.iter().filter(|name| **name == outcome.name).count() > 1 {
            outcome.name = format!("{} ({})", outcome.name, path.display());
        }
    }
}

/// Prints the table of worlds that have run, if there are any.
fn show(outcomes: &[Outcome]) {
    if outcomes.is_empty() {
        return;
    }
    let (headings, rows) = table(outcomes);
    let columns = headings.len();
    let mut shown = output::table(headings);
    rows.into_iter().for_each(|row| _ = shown.add_row(row));
    output::align_right(&mut shown, 1..columns);
    println!("{shown}\n(times in µs; in brackets: a multiple of the first world's)");
}

/// A figure of a world; `None` if no flow has ended.
type Figure = fn(&Outcome) -> Option<f64>;
/// A number of packets of a world.
type Count = fn(&Outcome) -> u64;

/// A row for each figure, a column for each world.
fn table(outcomes: &[Outcome]) -> (Vec<String>, Vec<Vec<String>>) {
    let names = outcomes.iter().map(|outcome| printable(&outcome.name));
    let headings = core::iter::once("figure".to_owned()).chain(names).collect();
    let figures: [(&str, Figure); 7] = [
        ("mean completion", |o| Some(o.times_us?.mean)),
        ("p50 completion", |o| Some(o.times_us?.p50)),
        ("p99 completion", |o| Some(o.times_us?.p99)),
        ("mean slowdown", |o| o.times_us.map(|_| o.mean_slowdown)),
        ("p99 slowdown", |o| o.times_us.map(|_| o.p99_slowdown)),
        ("goodput, Gb/s a host", |o| o.times_us.map(|_| o.gigabits_per_host)),
        ("end", |o| o.times_us.map(|_| o.end_us)),
    ];
    let mut rows = vec![row("transport", outcomes, |o| o.transport.to_owned())];
    rows.push(row("flows done", outcomes, |o| format!("{} of {}", o.done, o.flows)));
    if outcomes.iter().any(|outcome| outcome.deadlock.is_some()) {
        rows.push(row("deadlock at", outcomes, |o| {
            o.deadlock.as_ref().map_or("–".into(), |stuck| format!("{:.2}", stuck.found_us))
        }));
    }
    for (name, figure) in &figures {
        let first = figure(&outcomes[0]);
        rows.push(row(name, outcomes, |outcome| match (figure(outcome), first) {
            (Some(value), Some(first)) if first > 0.0 => {
                format!("{value:.2} ({:.2})", value / first)
            }
            (Some(value), _) => format!("{value:.2}"),
            (None, _) => "–".to_owned(),
        }));
    }
    let counts: [(&str, Count); 5] = [
        ("packets sent", |o| o.packets.sent),
        ("dropped", |o| {
            let p = o.packets;
            p.dropped_full + p.dropped_loss + p.dropped_down + p.dropped_no_path
        }),
        ("sent again", |o| o.packets.sent_again),
        ("marked", |o| o.packets.marked),
        ("pauses", |o| o.packets.pauses),
    ];
    rows.extend(counts.iter().map(|(name, count)| row(name, outcomes, |o| grouped(count(o)))));
    (headings, rows)
}

fn row(name: &str, outcomes: &[Outcome], cell: impl Fn(&Outcome) -> String) -> Vec<String> {
    core::iter::once(name.to_owned()).chain(outcomes.iter().map(cell)).collect()
}
