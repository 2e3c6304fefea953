//! `remora perf` between the clients of daemons.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result};
use remora::fabric::FABRIC_VARIABLE;
use remora::message::SOCKET_VARIABLE;
use serde_json::Value;

use super::super::daemon_process::Daemon;
use super::PATIENCE;
use crate::child::{self, Helper};

/// What `remora perf serve` prints before its address.
const LISTENING: &str = "listening on ";

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
