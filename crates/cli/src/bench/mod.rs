//! `remora bench`: our figures beside a peer's, measured in one run.
//!
//! A benchmark is a list of [`Case`]s. [`measure`] runs ours and the peer's in turn, several times,
//! so that what disturbs the machine disturbs both, and makes a [`Row`] of each; [`report`] prints
//! the rows as a table and writes them as JSON. Every `remora bench …` uses this frame and its
//! format: `{"name", "unit", "ours": {"min", "median", "max"}, "peer": {"name", "min", "median",
//! "max"}, "ratio"}`, where the ratio is our median over the peer's.

mod chains;
mod figure;
mod kernels;
mod page;
mod peers;
mod plot;
mod transport;
mod verbs;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::output;

/// `remora bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Latency, bandwidth and message rate of WRITEs, beside plain UDP and TCP on the same cores
    Transport(transport::Transport),
    /// Verbs programs, unmodified, beside Remora's own measurements and plain UDP
    Verbs(verbs::Verbs),
    /// Kernels on the card: StRoM's experiments beside their baselines, and a page with plots
    Kernels(kernels::Kernels),
    /// Chains on the card: RedN's experiments beside their baselines, and a page with plots
    Chains(chains::Chains),
    #[command(hide = true)]
    Peer(peers::Peer),
}

impl Bench {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        match self.what {
            What::Transport(transport) => transport.run(),
            What::Verbs(verbs) => verbs.run(),
            What::Kernels(kernels) => kernels.run(),
            What::Chains(chains) => chains.run(),
            What::Peer(peer) => peer.run(),
        }
    }
}

/// Options of every benchmark.
#[derive(Clone, Debug, Args)]
struct Options {
    /// Write the rows to a file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fewer and shorter runs: to see that it works, not how well
    #[arg(long)]
    quick: bool,
}

/// One thing to measure, ours and a peer's.
struct Case<'a> {
    name: &'static str,
    unit: &'static str,
    peer: &'static str,
    target: Target,
    ours: Box<dyn FnMut() -> Result<f64> + 'a>,
    theirs: Box<dyn FnMut() -> Result<f64> + 'a>,
}

/// What the ratio should be.
#[derive(Clone, Copy, Debug)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// So much more than the peer's, in the row's unit, instead of a ratio.
    AtMostMore(f64),
    /// Not of the ratio: ours is to be so much, in the row's unit.
    Reaches(f64),
    /// None: a figure to look at.
    Any,
}

impl Target {
    /// Is it met by our side's median beside the peer's? `None` where nothing is asked.
    fn is_met(self, ratio: f64, ours: f64, peer: f64) -> Option<bool> {
        match self {
            Target::AtMost(limit) => Some(ratio <= limit),
            Target::AtLeast(limit) => Some(ratio >= limit),
            Target::AtMostMore(limit) => Some(ours <= peer + limit),
            Target::Reaches(limit) => Some(ours >= limit),
            Target::Any => None,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtMost(limit) => write!(f, "≤ {limit} ×"),
            Target::AtLeast(limit) => write!(f, "≥ {limit} ×"),
            Target::AtMostMore(limit) => write!(f, "≤ {limit} more"),
            Target::Reaches(limit) => write!(f, "ours ≥ {limit}"),
            Target::Any => write!(f, "–"),
        }
    }
}

/// Several runs of one side.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    /// `runs` is not empty.
    fn of(mut runs: Vec<f64>) -> Spread {
        runs.sort_by(f64::total_cmp);
        let middle = runs.len() / 2;
        let median = if runs.len() % 2 == 1 {
            runs[middle]
        } else {
            f64::midpoint(runs[middle - 1], runs[middle])
        };
        Spread { min: runs[0], median, max: runs[runs.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3}–{:.3})", self.median, self.min, self.max)
    }
}

/// The peer's side of a row.
#[derive(Debug, Serialize)]
struct PeerSide {
    name: Cow<'static, str>,
    #[serde(flatten)]
    spread: Spread,
}

/// A line of the table.
#[derive(Debug, Serialize)]
struct Row {
    name: Cow<'static, str>,
    unit: &'static str,
    ours: Spread,
    peer: PeerSide,
    ratio: f64,
    #[serde(skip)]
    target: Target,
}

impl Row {
    /// What is said of its target: nothing where there is none.
    fn verdict(&self) -> &'static str {
        match self.target.is_met(self.ratio, self.ours.median, self.peer.spread.median) {
            None => "",
            Some(true) => "met",
            Some(false) => "missed",
        }
    }
}

/// Runs both sides in turn, `runs` times each.
fn measure(mut case: Case<'_>, runs: usize) -> Result<Row> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push((case.ours)()?);
        theirs.push((case.theirs)()?);
    }
    let Case { name, unit, peer, target, .. } = case;
    let ours = Spread::of(ours);
    let peer = PeerSide { name: peer.into(), spread: Spread::of(theirs) };
    let name = name.into();
    Ok(Row { name, unit, ours, ratio: ours.median / peer.spread.median, peer, target })
}

/// Prints the rows and writes them where they are wanted.
fn report(rows: &[Row], options: &Options) -> Result<()> {
    show(rows);
    write(rows, options)
}

/// Prints the rows.
fn show(rows: &[Row]) {
    let headings = ["row", "unit", "ours", "peer", "peer's", "ratio", "target", ""];
    let mut table = output::table(headings);
    for row in rows {
        table.add_row([
            row.name.to_string(),
            row.unit.to_owned(),
            row.ours.to_string(),
            row.peer.name.to_string(),
            row.peer.spread.to_string(),
            format!("{:.2}", row.ratio),
            row.target.to_string(),
            row.verdict().to_owned(),
        ]);
    }
    output::align_right(&mut table, [2, 4, 5, 6]);
    println!("{table}\nmedian (lowest–highest) of several runs in turn; ratio = ours / peer's");
}

/// Writes the page of rows and figures, and the rows of both where they are wanted.
fn publish(
    words: page::Words,
    mut rows: Vec<Row>,
    figures: &[figure::Figure],
    html: &Path,
    options: &Options,
) -> Result<()> {
    let page = page::render(words, &rows, figures)?;
    std::fs::write(html, page).with_context(|| format!("cannot write {}", html.display()))?;
    println!("\nThe plots: {}", html.display());
    rows.extend(figures.iter().flat_map(figure::Figure::rows));
    write(&rows, options)
}

/// Writes the rows where they are wanted.
fn write(rows: &[Row], options: &Options) -> Result<()> {
    match &options.json {
        Some(path) => output::write_json(path, &rows),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_agreed_form() {
        let mut values = [3.0, 1.0, 2.0].into_iter();
        let case = Case {
            name: "row",
            unit: "µs",
            peer: "other",
            target: Target::AtMost(1.0),
            ours: Box::new(move || Ok(values.next().unwrap())),
            theirs: Box::new(|| Ok(4.0)),
        };
        let row = measure(case, 3).unwrap();
        assert_eq!(row.verdict(), "met");
        let expected = serde_json::json!({
            "name": "row", "unit": "µs", "ratio": 0.5,
            "ours": {"min": 1.0, "median": 2.0, "max": 3.0},
            "peer": {"name": "other", "min": 4.0, "median": 4.0, "max": 4.0},
        });
        assert_eq!(serde_json::to_value(&row).unwrap(), expected);
        let row = Row { target: Target::AtMostMore(-2.0), ..row };
        assert_eq!(row.verdict(), "met");
        let row = Row { target: Target::AtMostMore(-2.5), ..row };
        assert_eq!(row.verdict(), "missed");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
    }
}
