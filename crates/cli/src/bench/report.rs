//! The output of rows: a table, a page with plots, and JSON.
//!
//! The JSON of every `remora bench …` is a list of `{"name", "unit", "ours": {"min", "median",
//! "max"}, "peer": {"name", "min", "median", "max"}, "ratio", "cpu"}`. `ratio` is Remora's median
//! over the peer's; `cpu` is the level of processor that ran.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use remora::offload::cpu::{self, Level};
use serde::Serialize;

use super::figure::Figure;
use super::page::{self, levels};
use super::row::{Case, Row, measure};
use crate::failure::wrong_line;
use crate::output;

/// Options of every benchmark.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Write the rows to a file as JSON
    #[arg(long, value_name = "FILE", value_parser = output::file())]
    pub(super) json: Option<PathBuf>,
    /// Fewer and shorter runs: a test that it works, without meaningful figures
    #[arg(long)]
    pub(super) quick: bool,
    /// Only the rows and figures whose names contain this: `fig15`, `rate`
    #[arg(long, value_name = "WORD", default_value = "")]
    pub(super) only: String,
    /// Use the instructions of a lesser processor: v2, v3 (AVX2) or v4 (AVX-512)
    #[arg(long, value_name = "LEVEL", env = cpu::VARIABLE, value_parser = Level::named)]
    pub(super) cpu: Option<Level>,
}

impl Options {
    /// Is what has this name to be measured?
    pub(super) fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Measures those of the cases that are wanted, with so many runs of either side.
    pub(super) fn measure<'a>(
        &self,
        cases: impl IntoIterator<Item = Case<'a>>,
        runs: usize,
    ) -> Result<Vec<Row>> {
        self.measure_each(cases.into_iter().map(|case| (case, runs)))
    }

    /// As [`Options::measure`], of cases with numbers of runs of their own.
    pub(super) fn measure_each<'a>(
        &self,
        cases: impl IntoIterator<Item = (Case<'a>, usize)>,
    ) -> Result<Vec<Row>> {
        let wanted = cases.into_iter().filter(|(case, _)| self.wants(case.name));
        wanted.map(|(case, runs)| measure(case, runs)).collect()
    }

    /// Measures those of the figures that are wanted, by what `make` does with the second of each
    /// pair. Each is shown as soon as it is there.
    pub(super) fn figures<M>(
        &self,
        figures: impl IntoIterator<Item = (&'static str, M)>,
        make: impl Fn(M) -> Result<Figure>,
    ) -> Result<Vec<Figure>> {
        let wanted = figures.into_iter().filter(|(id, _)| self.wants(id));
        let measured = wanted.map(|(id, of)| {
            let figure = make(of).with_context(|| format!("cannot measure {id}"))?;
            figure.show();
            Ok(figure)
        });
        measured.collect()
    }
}

/// A row as it is written.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    row: &'a Row,
    cpu: &'static str,
}

/// What a benchmark has measured.
#[derive(Default)]
pub(super) struct Found {
    pub(super) rows: Vec<Row>,
    pub(super) figures: Vec<Figure>,
    /// Sections of the page behind those of the figures, and what of them are rows of JSON.
    pub(super) sections: (String, Vec<Row>),
}

/// Prints the rows, and writes them if the options ask for it. `such` are names of some of all.
pub(super) fn report(rows: &[Row], such: &str, options: &Options) -> Result<()> {
    ensure_any(!rows.is_empty(), such, options)?;
    show(rows);
    println!("{}", levels());
    write(rows, options)
}

/// An error if nothing has the name that the options ask for: what was written before stays.
fn ensure_any(is_any: bool, such: &str, options: &Options) -> Result<()> {
    if is_any {
        return Ok(());
    }
    Err(wrong_line(anyhow!(
        "nothing is called `{}`: there are names such as {such}; without --only, all of them run",
        options.only
    )))
}

/// Prints the rows, if there are any.
pub(super) fn show(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let headings = ["row", "unit", "ours", "peer", "peer's", "ratio", "target", ""];
    let mut table = output::table(headings);
    for row in rows {
        table.add_row([
            row.name.to_string(),
            row.unit.to_owned(),
            row.ours.to_string(),
            row.peer.name.to_string(),
            row.peer.spread.to_string(),
            row.ratio(),
            row.target.to_string(),
            row.verdict().to_owned(),
        ]);
    }
    output::align_right(&mut table, [2, 4, 5, 6]);
    println!("{table}\nmedian (lowest–highest) of several runs in turn; ratio = ours / peer's");
}

/// Writes the rows of all if the options ask for it, and the page.
pub(super) fn publish(
    words: page::Words,
    found: Found,
    html: &Path,
    options: &Options,
) -> Result<()> {
    let Found { mut rows, figures, sections: (sections, behind) } = found;
    let is_any = !rows.is_empty() || !figures.is_empty() || !sections.is_empty();
    ensure_any(is_any, words.such, options)?;
    let page = page::render(words, &rows, &figures, &sections)?;
    rows.extend(figures.iter().flat_map(Figure::rows).chain(behind));
    // First: what was measured is not to be lost with the page.
    write(&rows, options)?;
    std::fs::write(html, page).with_context(|| format!("cannot write {}", html.display()))?;
    println!("\n{}\nThe plots: {}", levels(), html.display());
    Ok(())
}

/// Writes the rows to the file that the options name.
fn write(rows: &[Row], options: &Options) -> Result<()> {
    match &options.json {
        Some(path) => {
            let cpu = cpu::level().name();
            let rows: Vec<_> = rows.iter().map(|row| Written { row, cpu }).collect();
            output::write_json(path, &rows)
        }
        None => Ok(()),
    }
}
