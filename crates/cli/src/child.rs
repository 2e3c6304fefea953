//! Processes of our own: this same program, started again for the other end of a measurement.
//!
//! A child prints one line when it is ready. It is told to go by its standard input: when that
//! closes, because it is no longer wanted or because its parent has died, it ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::de::DeserializeOwned;

/// This program, running as a child until it is dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    _stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this program with `args`. What it prints on standard error goes where ours goes.
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

    /// The next line it prints; an error if it ends instead.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("cannot read what the other process prints")?;
        if line.is_empty() {
            let status = self.child.wait().context("cannot wait for the other process")?;
            bail!("the other process ended early ({status}); its reason stands above");
        }
        Ok(line.trim_end().to_owned())
    }

    /// The rest of what it prints, after telling it to end.
    pub(crate) fn finish(mut self) -> Result<String> {
        drop(self._stdin.take());
        let mut rest = String::new();
        self.stdout
            .read_to_string(&mut rest)
            .context("cannot read what the other process prints")?;
        let status = self.child.wait().context("cannot wait for the other process")?;
        ensure!(status.success(), "the other process failed ({status}); its reason stands above");
        Ok(rest)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Both fail only where it has ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs this program with `args` to its end and reads the JSON it prints.
pub(crate) fn run_for_json<T: DeserializeOwned>(args: &[&str]) -> Result<T> {
    let output = ourselves()?
        .args(args)
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

/// For a child: ends the process, successfully, when standard input closes.
pub(crate) fn end_with_stdin() -> Result<()> {
    let watch = || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|n| n > 0) {}
        std::process::exit(0);
    };
    thread::Builder::new().name("parent".into()).spawn(watch).context("cannot start a thread")?;
    Ok(())
}

/// Pins the calling thread, and those it starts from now on, to the `which`-th of the cores that
/// the process may use. Returns the core; `None` where there are fewer.
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
