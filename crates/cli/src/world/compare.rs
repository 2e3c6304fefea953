//! `remora world compare`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::load::{self, Chosen};
use super::page;
use super::result::Outcome;
use crate::output::{self, grouped};

/// `remora world compare`.
#[derive(Debug, Args)]
pub(super) struct Compare {
    /// The world files; the first is what the others are compared with
    #[arg(value_name = "WORLD.toml", required = true)]
    worlds: Vec<PathBuf>,
    #[command(flatten)]
    chosen: Chosen,
    /// Write all figures to a file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with the figures, and with slowdowns by size
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

impl Compare {
    pub(super) fn run(self) -> Result<()> {
        if self.worlds.len() < 2 {
            bail!("name two worlds or more; for one, there is `remora world run`");
        }
        let mut outcomes = Vec::new();
        for path in &self.worlds {
            let experiment = load::load(path, self.chosen)?;
            let report = load::simulate(&experiment)?;
            outcomes.push(Outcome::new(&experiment, &report));
        }
        let (headings, rows) = table(&outcomes);
        let mut shown = output::table(headings.clone());
        rows.iter().for_each(|row| _ = shown.add_row(row.clone()));
        output::align_right(&mut shown, 1..headings.len());
        println!("{shown}\n(times in µs; in brackets: a multiple of the first world's)");
        if let Some(path) = &self.page {
            load::write(path, page::comparison(&outcomes, &headings, &rows)?)?;
            println!("The page: {}", path.display());
        }
        match &self.json {
            Some(path) => output::write_json(path, &outcomes),
            None => Ok(()),
        }
    }
}

/// A figure of a world.
type Figure = Box<dyn Fn(&Outcome) -> f64>;
/// A number of packets of a world.
type Count = fn(&Outcome) -> u64;

/// A row for each figure, a column for each world.
fn table(outcomes: &[Outcome]) -> (Vec<String>, Vec<Vec<String>>) {
    let names = outcomes.iter().map(|outcome| outcome.name.clone());
    let headings = core::iter::once("figure".to_owned()).chain(names).collect();
    let time = |of: fn(&super::result::Times) -> f64| {
        move |outcome: &Outcome| outcome.times_us.as_ref().map_or(0.0, of)
    };
    let figures: [(&str, Figure); 7] = [
        ("mean completion", Box::new(time(|t| t.mean))),
        ("p50 completion", Box::new(time(|t| t.p50))),
        ("p99 completion", Box::new(time(|t| t.p99))),
        ("mean slowdown", Box::new(|o| o.mean_slowdown)),
        ("p99 slowdown", Box::new(|o| o.p99_slowdown)),
        ("goodput, Gb/s a host", Box::new(|o| o.gigabits_per_host)),
        ("end", Box::new(|o| o.end_us)),
    ];
    let mut rows = vec![row("transport", outcomes, |o| o.transport.to_owned())];
    rows.push(row("flows done", outcomes, |o| format!("{} of {}", o.done, o.flows)));
    for (name, figure) in &figures {
        let first = figure(&outcomes[0]);
        rows.push(row(name, outcomes, |outcome| {
            let value = figure(outcome);
            let ratio = if first > 0.0 { value / first } else { 1.0 };
            format!("{value:.2} ({ratio:.2})")
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
