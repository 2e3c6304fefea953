//! An application for others to reach: a process with memory of its own, on the second core.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use remora::dma::path::Application;
use serde::{Deserialize, Serialize};

use crate::child::{self, Helper};
use crate::output;

/// The hidden command `remora dma application`.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Bytes of memory
    len: usize,
}

#[derive(Serialize, Deserialize)]
struct Told {
    addr: u64,
    descriptor: i32,
}

impl Serve {
    pub(super) fn run(&self) -> Result<()> {
        child::pin(1)?;
        let (application, memory) = Application::of_this_process(self.len)?;
        memory.fill(1);
        let file = application.file.as_ref().context("memory without a file")?;
        child::end_with_stdin()?;
        output::json_line(&Told { addr: application.addr, descriptor: file.as_raw_fd() })?;
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
}

/// Another process with `len` bytes of memory, which ends with the helper.
pub(crate) fn start(len: usize) -> Result<(Helper, Application)> {
    let args = ["dma".to_owned(), "application".into(), len.to_string()];
    let mut helper = Helper::start(args)?;
    let told: Told = serde_json::from_str(&helper.line()?).context("no answer of a child")?;
    let pid = helper.id();
    let path = format!("/proc/{pid}/fd/{}", told.descriptor);
    let file = File::options().read(true).write(true).open(&path);
    let file = OwnedFd::from(file.with_context(|| format!("cannot open {path}"))?);
    let (addr, len) = (told.addr, len as u64);
    let application = Application { pid: pid as i32, addr, len, file: Some(Arc::new(file)) };
    Ok((helper, application))
}
