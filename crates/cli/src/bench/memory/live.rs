//! The paths of this machine, live.

use anyhow::Result;
use clap::Args;

use super::super::figure::Figure;
use super::super::report::Options;
use super::super::row::Row;

/// What a user chooses about live measurements.
#[derive(Debug, Args)]
pub(super) struct Live {}

impl Live {
    /// The rows whose names contain `options.only`.
    pub(super) fn rows(&self, options: &Options) -> Result<Vec<Row>> {
        let _ = options;
        Ok(Vec::new())
    }

    /// The figures whose names contain `options.only`.
    pub(super) fn figures(&self, options: &Options) -> Result<Vec<Figure>> {
        let _ = options;
        Ok(Vec::new())
    }
}
