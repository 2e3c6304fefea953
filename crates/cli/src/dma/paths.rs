//! `remora dma paths`: the ways between an application's memory and the card's, measured.

use anyhow::Result;
use clap::Args;
use remora::dma::choose::{Cost, Measured, SIZES, choose, measured, or_environment};
use remora::dma::path::PathKind;
use serde::Serialize;

use super::daemon::{self, DaemonArgs};
use crate::output;

/// `remora dma paths`.
#[derive(Debug, Args)]
pub(super) struct Paths {
    /// Force a path by its name, as REMORA_DMA_PATH does
    #[arg(long, value_name = "NAME")]
    path: Option<PathKind>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    path: &'static str,
    about: &'static str,
    chosen: bool,
    /// Why it is not possible.
    impossible: Option<String>,
    costs: Option<[At; SIZES.len()]>,
}

#[derive(Serialize)]
struct At {
    bytes: usize,
    latency_us: f64,
    gb_per_s: f64,
}

impl Row {
    fn of(path: &Measured, best: PathKind) -> Row {
        let at = |costs: &[Cost; SIZES.len()]| {
            std::array::from_fn(|size| At {
                bytes: SIZES[size],
                latency_us: costs[size].latency_us,
                gb_per_s: costs[size].gb_per_s,
            })
        };
        Row {
            path: path.kind.name(),
            about: path.kind.about(),
            chosen: path.kind == best,
            impossible: path.costs.clone().err(),
            costs: path.costs.as_ref().ok().map(at),
        }
    }
}

impl Paths {
    pub(super) fn run(self) -> Result<()> {
        let card = self.daemon.card()?;
        let measured = match &card {
            Some(card) => daemon::measured(card)?,
            None => measured().to_vec(),
        };
        let best = choose(&measured, or_environment(self.path)?)?;
        let rows: Vec<Row> = measured.iter().map(|path| Row::of(path, best)).collect();
        if self.json {
            return output::json_line(&rows);
        }
        let headings = ["path", "4 KiB, µs", "4 KiB, GB/s", "1 MiB, µs", "1 MiB, GB/s", "", "by"];
        let mut table = output::table(headings);
        for row in rows {
            let figures: [String; 4] = match &row.costs {
                Some([small, large]) => [
                    format!("{:.2}", small.latency_us),
                    format!("{:.1}", small.gb_per_s),
                    format!("{:.1}", large.latency_us),
                    format!("{:.1}", large.gb_per_s),
                ],
                None => Default::default(),
            };
            let mark = if row.chosen { "chosen" } else { "" };
            let why = row.impossible.map(|why| format!("not possible here: {why}"));
            let by = why.unwrap_or_else(|| row.about.into());
            table
                .add_row([row.path.to_owned()].into_iter().chain(figures).chain([mark.into(), by]));
        }
        output::align_right(&mut table, 1..5);
        println!("{table}");
        let whose = match card {
            Some(_) => "a daemon’s card, card to host",
            None => "a card of this process, host to card",
        };
        println!("{whose}; µs: the best of several copies; GB/s: the middle one");
        Ok(())
    }
}
