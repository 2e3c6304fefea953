//! `remora bench memory`: paths between a host's memory and a card's.
//!
//! [`live`]: the paths of this machine, measured beside each other and beside a peer's.

mod live;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::page;
use super::report::{Options, publish, show};

/// Measures paths between memories.
#[derive(Debug, Args)]
pub(super) struct MemoryBench {
    #[command(flatten)]
    pub(super) options: Options,
    #[command(flatten)]
    live: live::Live,
    /// Write the page with the plots here
    #[arg(long, alias = "page", value_name = "FILE", default_value = "remora-memory.html")]
    html: PathBuf,
}

const WORDS: page::Words = page::Words {
    title: "Between a host’s memory and a card’s",
    about: "The paths between an application’s memory and its card’s, on this machine, beside \
            those of UCX.",
    rows: "What a path costs",
    ours: "path",
    command: "remora bench memory",
};

impl MemoryBench {
    pub(super) fn run(&self) -> Result<()> {
        let rows = self.live.rows(&self.options)?;
        show(&rows);
        let figures = self.live.figures(&self.options)?;
        for figure in &figures {
            figure.show();
        }
        publish(WORDS, rows, &figures, &self.html, &self.options)
    }
}
