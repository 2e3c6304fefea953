//! Child processes: this same program, started again for the other end of a measurement.
//!
//! A child prints one line when it is ready. It ends when its standard input closes: its parent no
//! longer needs it, or has died.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::de::DeserializeOwned;

use crate::thread;

/// This program, running as a child until it is dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    _stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this program with `args`. Its standard error goes to this process's.
    pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Result<Helper> {
        let mut child = ourselves()?
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start this program a second time")?;
        let stdout = child.stdout.take().context("a child without standard output")?;
        Ok(Helper { _stdin: child.stdin.take(), stdout: BufReader::new(stdout), child })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints; an error if it ends instead.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("cannot read what the other process prints")?;
        if line.is_empty() {
            let status = self.child.wait().context("cannot wait for the other process")?;
            bail!("the other process ended early ({status}); its error is above");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Closes its standard input, and returns the rest of what it prints.
    pub(crate) fn finish(mut self) -> Result<String> {
        drop(self._stdin.take());
        let mut rest = String::new();
        self.stdout
            .read_to_string(&mut rest)
            .context("cannot read what the other process prints")?;
        let status = self.child.wait().context("cannot wait for the other process")?;
        ensure!(status.success(), "the other process failed ({status}); its error is above");
        Ok(rest)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Both calls fail only if it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs this program with `args` to its end and reads the JSON it prints.
pub(crate) fn run_for_json<T: DeserializeOwned>(args: &[&str]) -> Result<T> {
    run_for_json_with(&[], args)
}

/// As [`run_for_json`], with environment variables set.
pub(crate) fn run_for_json_with<T: DeserializeOwned>(
    variables: &[(&str, &str)],
    args: &[&str],
) -> Result<T> {
    let output = ourselves()?
        .args(args)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start this program a second time")?;
    let status = output.status;
    ensure!(status.success(), "`remora {}` failed ({status})", args.join(" "));
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`remora {}` printed no JSON", args.join(" ")))
}

fn ourselves() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's own file")?))
}

/// For a child: ends the process successfully when standard input closes.
pub(crate) fn end_with_stdin() -> Result<()> {
    let watch = || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|n| n > 0) {}
        std::process::exit(0);
    };
    thread::spawn("parent", watch)?;
    Ok(())
}

/// Runs `act` with the calling thread, and the processes that it starts, on one core only.
pub(crate) fn on_one_core<R>(act: impl FnOnce() -> Result<R>) -> Result<R> {
    let allowed = sched_getaffinity(None).context("cannot read which cores may be used")?;
    pin(0)?;
    let result = act();
    sched_setaffinity(None, &allowed).context("cannot use all cores again")?;
    result
}

/// All cores of the machine, for a thread that was pinned; the system leaves out those that the
/// process may not use.
pub(crate) fn all_cores() -> CpuSet {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
    all
}

/// Pins the calling thread, and threads that it starts later, to the `which`-th core that the
/// process may use. Returns the core; `None` if there are fewer.
pub(crate) fn pin(which: usize) -> Result<Option<usize>> {
    let allowed = sched_getaffinity(None).context("cannot read which cores may be used")?;
    let core = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).nth(which);
    if let Some(core) = core {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)
            .with_context(|| format!("cannot pin the process to core {core}"))?;
    }
    Ok(core)
}
