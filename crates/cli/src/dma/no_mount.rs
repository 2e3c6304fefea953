//! `remora dma mount` of a program that was built without it.

use std::ffi::OsString;

use anyhow::{Result, bail};
use clap::Args;

/// `remora dma mount`.
#[derive(Debug, Args)]
pub(super) struct Mount {
    /// What it would take
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<OsString>,
}

impl Mount {
    pub(super) fn run(self) -> Result<()> {
        bail!(
            "this `remora` was built without file systems: build it with \
             `cargo build --release -p remora-cli --features fuse`, or use `remora dma files DIR`"
        )
    }
}
