//! A daemon as a child of the bench.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use remora::fabric::FABRIC_VARIABLE;

use crate::child::{self, Helper};

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Daemon {
    process: Helper,
    folder: Folder,
}

/// A folder of the bench's own, which goes with this value.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is in the folder for such things.
        fs::remove_dir_all(&self.0).ok();
    }
}

impl Daemon {
    /// Starts one, on the `core`-th core if there is one to spare; `fabric` carries its packets.
    pub(super) fn start(core: Option<usize>, fabric: &str) -> Result<Daemon> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("remora-bench-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        let made = DirBuilder::new().mode(0o700).create(&folder.0);
        made.with_context(|| format!("cannot make the folder {}", folder.0.display()))?;
        let socket = folder.0.join("nic.sock");
        let args = ["nic", "--json", "--child", "--socket"].map(OsStr::new);
        let args = args.into_iter().chain([socket.as_os_str()]);
        let start = || Helper::start_with(&[(FABRIC_VARIABLE, OsStr::new(fabric))], args);
        let mut process = match core {
            Some(core) => child::on_core(core, start)?,
            None => start()?,
        };
        process.line_within(PATIENCE).context("the daemon has not started")?;
        Ok(Daemon { process, folder })
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.0.join("nic.sock")
    }
}
