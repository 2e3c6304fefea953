//! `remora world compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use remora::printable;

use super::figures::{FIGURES, Spread};
use super::load::{self, Chosen, Files};
use super::page;
use super::progress::Progress;
use super::result::Outcome;
use super::seeds::{self, Runs, Seeds, shown};
use super::settings::Settings;
use crate::failure::wrong_line;
use crate::output;

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
    seeds: Seeds,
    #[command(flatten)]
    files: Files,
}

impl Compare {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.worlds.len() < 2 {
            let why = anyhow!("name two worlds or more; for one, there is `remora world run`");
            return Err(wrong_line(why));
        }
        self.seeds.check(&self.files).map_err(wrong_line)?;
        let number = self.seeds.number().unwrap_or(1);
        let progress = Progress::of(u64::from(number) * self.worlds.len() as u64);
        let (mut worlds, mut status) = (Vec::new(), ExitCode::SUCCESS);
        for path in &self.worlds {
            let outputs = self.files.paths();
            let ran = seeds::run(path, (self.chosen, number), &outputs, &progress);
            let own = ran.and_then(|(runs, own)| {
                worlds.push(runs);
                own
            });
            match own {
                Ok(ExitCode::SUCCESS) => {}
                Ok(own) => status = own,
                Err(error) => {
                    drop(progress);
                    // What has run before is not lost.
                    tell_apart(&mut worlds, &self.worlds);
                    show(&worlds);
                    return Err(error);
                }
            }
        }
        drop(progress);
        tell_apart(&mut worlds, &self.worlds);
        show(&worlds);
        if self.seeds.number().is_some() {
            self.files.write(&worlds, || bail!("a page is of one seed"))?;
            return Ok(status);
        }
        let (headings, rows) = table(&worlds);
        let outcomes: Vec<Outcome> = worlds.into_iter().flat_map(|world| world.runs).collect();
        self.files.write(&outcomes, || page::comparison(&outcomes, &headings, &rows))?;
        Ok(status)
    }
}

/// Worlds of one name have their files' behind it.
fn tell_apart(worlds: &mut [Runs], paths: &[PathBuf]) {
    let names: Vec<String> = worlds.iter().map(|world| world.name.clone()).collect();
    for (world, path) in worlds.iter_mut().zip(paths) {
        if names.iter().filter(|name| **name == world.name).count() > 1 {
            world.name = format!("{} ({})", world.name, path.display());
            world.runs.iter_mut().for_each(|run| run.name.clone_from(&world.name));
        }
    }
}

/// Prints the table of worlds that have run, if there are any.
fn show(worlds: &[Runs]) {
    if worlds.is_empty() {
        return;
    }
    let (headings, rows) = table(worlds);
    let columns = headings.len();
    let mut shown = output::table(headings);
    rows.into_iter().for_each(|row| _ = shown.add_row(row));
    output::align_right(&mut shown, 1..columns);
    let means = if worlds.iter().any(|world| world.runs.len() > 1) {
        "means of all seeds, and behind them the lowest and the highest; "
    } else {
        ""
    };
    println!("{shown}\n(times in µs; {means}in brackets: a multiple of the first world's)");
}

/// A row for each figure, a column for each world.
fn table(worlds: &[Runs]) -> (Vec<String>, Vec<Vec<String>>) {
    let names = worlds.iter().map(|world| printable(&world.name));
    let headings = core::iter::once("figure".to_owned()).chain(names).collect();
    // All runs of a world have its settings.
    let first = |world: &Runs| world.runs.first().map(|run| run.settings.clone());
    let settings: Vec<Settings> = worlds.iter().filter_map(first).collect();
    let mut rows = vec![row("transport", worlds, |world| world.transport.to_owned())];
    for name in Settings::apart(&settings) {
        let cells = settings.iter().map(|own| own.all.get(name).map_or("–".into(), String::clone));
        rows.push(core::iter::once(name.to_owned()).chain(cells).collect());
    }
    rows.push(row("flows done", worlds, |world| {
        let sum = |of: fn(&Outcome) -> usize| world.runs.iter().map(of).sum::<usize>();
        format!("{} of {}", sum(|run| run.done), sum(|run| run.flows))
    }));
    let stuck = |world: &Runs| -> Vec<f64> {
        world.runs.iter().filter_map(|run| Some(run.deadlock.as_ref()?.found_us)).collect()
    };
    if worlds.iter().any(|world| !stuck(world).is_empty()) {
        rows.push(row("deadlock at", worlds, |world| match *stuck(world) {
            [] => "–".into(),
            [at] => format!("{at:.2}"),
            ref all => format!("in {} runs", all.len()),
        }));
    }
    for figure in FIGURES.iter().filter(|figure| figure.key != "failed") {
        let first = worlds.first().and_then(|world| figure.over(&world.runs));
        rows.push(row(figure.name, worlds, |world| {
            let Some(Spread { mean, lowest, highest, .. }) = figure.over(&world.runs) else {
                return "–".to_owned();
            };
            let mut cell = shown(figure, mean);
            if let Some(first) = first.filter(|first| first.mean > 0.0 && !figure.counts) {
                cell += &format!(" ({:.2})", mean / first.mean);
            }
            if world.runs.len() > 1 {
                cell += &format!(" {}–{}", shown(figure, lowest), shown(figure, highest));
            }
            cell
        }));
    }
    (headings, rows)
}

fn row(name: &str, worlds: &[Runs], cell: impl Fn(&Runs) -> String) -> Vec<String> {
    core::iter::once(name.to_owned()).chain(worlds.iter().map(cell)).collect()
}
