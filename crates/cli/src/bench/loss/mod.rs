//! `remora bench loss`: what losses and many paths cost, live and simulated, beside SRNIC's figures
//! (§6.3, Fig. 11).
//!
//! Live, two processes of this machine exchange packets by UDP, and each card loses some of those
//! that it sends (docs/bad-networks.md). [`simulated`] has the same in the simulator, where the
//! link is as fast as the paper's.

pub(in crate::bench) mod simulated;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use remora::dialect::DIALECT_VARIABLE;
use remora::fabric::FABRIC_VARIABLE;
use remora::impair::IMPAIR_VARIABLE;

use super::figure::{Figure, Point, Style};
use super::page;
use super::report::{Found, Options, publish, show};
use super::row::{Case, Run, Target};
use crate::child;
use crate::output;

/// Measures what losses cost.
#[derive(Debug, Args)]
pub(super) struct Loss {
    #[command(flatten)]
    pub(super) options: Options,
    /// Only simulate; measure nothing
    #[arg(long)]
    simulated: bool,
    /// Write the page with the plots here
    #[arg(long, alias = "page", value_name = "FILE", default_value = "remora-loss.html")]
    #[arg(value_parser = output::file())]
    html: PathBuf,
}

const WORDS: page::Words = page::Words {
    title: "Networks that lose and reorder",
    about: "The lossy dialect beside the standard one, whose loss recovery is go-back-N, and \
            beside what SRNIC (NSDI 2023, §6.3) reports of itself and of ConnectX-6. Live: two \
            processes of this machine over UDP, whose cards lose packets on purpose. Simulated: a \
            link of 100 Gb/s, 1 µs each way. The window is the card’s usual one live, and fixed \
            in the simulator, as in the paper.",
    rows: "What a loss costs",
    ours: "lossy dialect",
    command: "remora bench loss",
    such: "`tail_loss`, `fig11_live`",
};

/// WRITEs of 1 MiB, enough of them outstanding for the window.
const STREAM: &str = "bw --size 1M --mtu 4096 --qps 1 --depth 16";
/// The rates of loss of the paper's Fig. 11, in per cent.
const LOSSES: [&str; 5] = ["0", "0.01", "0.1", "0.5", "1"];

impl Loss {
    pub(super) fn run(&self) -> Result<()> {
        let quick = self.options.quick;
        let (runs, seconds) = if quick { (1, "0.1") } else { (9, "0.4") };
        let is_wanted = |name: &str| self.options.wants(name);
        let live = if self.simulated { Vec::new() } else { cases(seconds) };
        let (mut rows, mut figures) = (self.options.measure(live, runs)?, Vec::new());
        rows.extend(simulated::rows(&is_wanted, quick));
        show(&rows);
        if !self.simulated && is_wanted("fig11_live") {
            figures.push(by_loss(runs.div_ceil(2), seconds).context("cannot measure fig11_live")?);
        }
        figures.extend(simulated::figures(&is_wanted, quick));
        figures.iter().for_each(Figure::show);
        let found = Found { rows, figures, ..Found::default() };
        publish(WORDS, found, &self.html, &self.options)
    }
}

fn cases(seconds: &'static str) -> Vec<Case<'static>> {
    let both = |name, unit, target, test: &str, figure, impair: &'static str| Case {
        name,
        unit,
        peer: "the standard dialect",
        target,
        ours: writes("lossy", test, impair, seconds, figure),
        theirs: writes("standard", test, impair, seconds, figure),
    };
    let (least, most) = (Target::AtLeast, Target::AtMost);
    let lossless = "lossless_cost_1MiB";
    vec![
        both("lossless_cost_8B", "µs", most(1.05), "lat --size 8", "median_us", "off"),
        both(lossless, "Gb/s", least(0.97), STREAM, "gbps", "off"),
        both("loss_1pct_live", "Gb/s", least(2.0), STREAM, "gbps", "out,loss=1%"),
    ]
}

/// The field `figure` of the JSON that `remora perf write …` prints, in a dialect and on a network
/// that does this to packets.
fn writes(
    dialect: &'static str,
    test: &str,
    impair: &str,
    seconds: &str,
    figure: &'static str,
) -> Run<'static> {
    let args = format!("perf write {test} --duration {seconds} --json");
    let impair = impair.to_owned();
    Box::new(move || {
        let args: Vec<&str> = args.split(' ').collect();
        let on = [
            (FABRIC_VARIABLE, "udp"),
            (DIALECT_VARIABLE, dialect),
            (IMPAIR_VARIABLE, impair.as_str()),
        ];
        let result: serde_json::Value = child::run_for_json_with(&on, &args)?;
        ensure!(result["dialect"] == dialect, "the cards have not agreed on the dialect");
        result[figure].as_f64().with_context(|| format!("`remora perf` prints no `{figure}`"))
    })
}

/// Goodput by loss, live.
fn by_loss(runs: usize, seconds: &str) -> Result<Figure> {
    let dialects = [("lossy", "lossy dialect"), ("standard", "standard dialect (go-back-N)")];
    let points = LOSSES.into_iter().map(|loss| {
        let impair = format!("out,loss={loss}%");
        let mut ways = dialects.map(|(name, _)| writes(name, STREAM, &impair, seconds, "gbps"));
        Point::measure(format!("{loss} %"), runs, &mut ways)
    });
    let points = points.collect::<Result<Vec<_>>>()?;
    let here = simulated::kept(&points, &dialects.map(|(_, name)| name.to_owned()));
    Ok(Figure {
        id: "fig11_live",
        origin: "SRNIC’s Figure 11, live",
        title: "Goodput by loss",
        about: "WRITEs of 1 MiB over one queue pair, path MTU 4096, with the card’s usual \
                congestion window. Each card loses so many of the packets that it sends, \
                acknowledges included.",
        x: "loss",
        y: "goodput",
        unit: "Gb/s",
        style: Style::Lines,
        ways: dialects.map(|(_, name)| name.to_owned()).into(),
        points,
        paper: simulated::PAPER,
        here,
    })
}
