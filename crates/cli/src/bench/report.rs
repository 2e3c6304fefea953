//! The output of rows: a table, a page with plots, and JSON.
//!
//! The JSON of every `remora bench …` is a list of `{"name", "unit", "ours": {"min", "median",
//! "max"}, "peer": {"name", "min", "median", "max"}, "ratio", "cpu"}`. `ratio` is Remora's median
//! over the peer's; `cpu` is the level of processor that ran.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use remora::offload::cpu::{self, Level};
use serde::Serialize;

use super::figure::Figure;
use super::page;
use super::row::Row;
use crate::output;

/// Options of every benchmark.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Write the rows to a file as JSON
    #[arg(long, value_name = "FILE")]
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

/// A row as it is written.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    row: &'a Row,
    cpu: &'static str,
}

/// Prints the rows, and writes them if the options ask for it.
pub(super) fn report(rows: &[Row], options: &Options) -> Result<()> {
    show(rows);
    write(rows, options)
}

/// Prints the rows.
pub(super) fn show(rows: &[Row]) {
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
    println!("processor: {}", levels());
}

/// The level of processor that runs, and the highest, if that is another.
pub(super) fn levels() -> String {
    match (cpu::level(), Level::highest()) {
        (level, highest) if level == highest => level.to_string(),
        (level, highest) => format!("{level} (this one has {highest})"),
    }
}

/// Writes the page of rows and figures, and the rows of both if the options ask for it.
pub(super) fn publish(
    words: page::Words,
    mut rows: Vec<Row>,
    figures: &[Figure],
    html: &Path,
    options: &Options,
) -> Result<()> {
    let page = page::render(words, &rows, figures, "")?;
    std::fs::write(html, page).with_context(|| format!("cannot write {}", html.display()))?;
    println!("\nThe plots: {}", html.display());
    rows.extend(figures.iter().flat_map(Figure::rows));
    write(&rows, options)
}

/// Writes the rows to the file that the options name.
pub(super) fn write(rows: &[Row], options: &Options) -> Result<()> {
    match &options.json {
        Some(path) => {
            let cpu = cpu::level().name();
            let rows: Vec<_> = rows.iter().map(|row| Written { row, cpu }).collect();
            output::write_json(path, &rows)
        }
        None => Ok(()),
    }
}
