//! A daemon as a child of the bench, and `remora perf` between its clients.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use remora::fabric::FABRIC_VARIABLE;
use remora::message::SOCKET_VARIABLE;
use serde_json::Value;

use super::PATIENCE;
use crate::child::{self, Helper};

/// What `remora perf serve` prints before its address.
const LISTENING: &str = "listening on ";

/// A daemon. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Daemon {
    _process: Helper,
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
        Ok(Daemon { _process: process, folder })
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.0.join("nic.sock")
    }
}

/// The variables with which a program attaches to the daemon that listens at `socket`.
pub(super) fn attached(socket: &Path) -> [(&'static str, &OsStr); 1] {
    [(SOCKET_VARIABLE, socket.as_os_str())]
}

/// The variables with which a program has a card of its own, and sends by UDP.
pub(super) fn embedded() -> [(&'static str, &'static OsStr); 2] {
    [(SOCKET_VARIABLE, OsStr::new("off")), (FABRIC_VARIABLE, OsStr::new("udp"))]
}

/// `remora perf serve` on a daemon's card, on the second core. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct PerfServer {
    _process: Helper,
    address: String,
}

impl PerfServer {
    pub(super) fn start(daemon: &Daemon) -> Result<PerfServer> {
        let socket = daemon.socket();
        let args = ["perf", "serve", "--child", "--pin", "1"];
        let mut process = Helper::start_with(&attached(&socket), args)?;
        let line = process.line_within(PATIENCE).context("`remora perf serve` has not started")?;
        let (_, address) = line.split_once(LISTENING).context("`remora perf serve` is silent")?;
        Ok(PerfServer { _process: process, address: address.trim().into() })
    }

    /// Runs `remora perf` with `test`, on the first core, as a client of `daemon`; returns a field
    /// of what it prints.
    pub(super) fn measure(&self, daemon: &Daemon, test: &str, figure: &str) -> Result<f64> {
        let socket = daemon.socket();
        let test = format!("{test} {}", self.address);
        child::on_core(0, || perf(&attached(&socket), &test, figure))
    }
}

/// Runs `remora perf` with `test`; returns a field of what it prints.
pub(super) fn perf(variables: &[(&str, &OsStr)], test: &str, figure: &str) -> Result<f64> {
    let args: Vec<&str> = ["perf"].into_iter().chain(test.split(' ')).chain(["--json"]).collect();
    let result: Value = child::run_for_json_within(PATIENCE, variables, &args)?;
    result[figure].as_f64().with_context(|| format!("`remora perf` prints no `{figure}`"))
}
