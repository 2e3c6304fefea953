//! Child processes: this same program, started again for the other end of a measurement.
//!
//! A child prints one line when it is ready. It ends when its standard input closes: its parent no
//! longer needs it, or has died.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::de::DeserializeOwned;

use crate::thread;

/// The pause between two looks whether a child has ended.
const LOOK: Duration = Duration::from_millis(2);

/// This program, running as a child until it is dropped.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this program with `args`. Its standard error goes to this process's.
    pub fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Result<Helper> {
        Helper::start_with(&[], args)
    }

    /// As [`Helper::start`], with environment variables set.
    pub fn start_with<S: AsRef<OsStr>>(
        variables: &[(&str, &OsStr)],
        args: impl IntoIterator<Item = S>,
    ) -> Result<Helper> {
        let mut child = ourselves()?
            .args(args)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start this program a second time")?;
        let stdout = child.stdout.take().context("a child without standard output")?;
        Ok(Helper { stdin: child.stdin.take(), stdout: BufReader::new(stdout), child })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints; an error if it ends instead.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("cannot read what the other process prints")?;
        if line.is_empty() {
            let status = self.child.wait().context("cannot wait for the other process")?;
            bail!("the other process ended early ({status}); its error is above");
        }
        Ok(line.trim_end().to_owned())
    }

    /// As [`Helper::line`], for at most `limit`.
    pub fn line_within(&mut self, limit: Duration) -> Result<String> {
        if self.stdout.buffer().is_empty() {
            let limit =
                Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
            let mut fds = [PollFd::new(self.stdout.get_ref(), PollFlags::IN)];
            let count =
                poll(&mut fds, Some(&limit)).context("cannot wait for the other process")?;
            ensure!(count > 0, "the other process prints nothing");
        }
        self.line()
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the other process was told to end")?;
        writeln!(stdin, "{line}").context("the other process does not listen")
    }

    /// Kills it, without a chance to end in good order; returns when the signal was sent.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the other process")
    }

    /// Closes its standard input, and returns the rest of what it prints.
    pub fn finish(mut self) -> Result<String> {
        drop(self.stdin.take());
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
pub fn run_for_json<T: DeserializeOwned>(args: &[&str]) -> Result<T> {
    run_for_json_with(&[], args)
}

/// As [`run_for_json`], with environment variables set.
pub fn run_for_json_with<T: DeserializeOwned>(
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
    json_of(&output, args)
}

/// As [`run_for_json_with`], for a child that is killed if it has not ended within `limit`.
pub fn run_for_json_within<T: DeserializeOwned>(
    limit: Duration,
    variables: &[(&str, &OsStr)],
    args: &[&str],
) -> Result<T> {
    let mut command = ourselves()?;
    command.args(args).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = output_within(limit, &mut command)
        .with_context(|| format!("cannot run `remora {}`", args.join(" ")))?;
    json_of(&output, args)
}

/// Runs a program to its end and returns what it has printed, which fits into a pipe. It is killed
/// if it has not ended within `limit`.
pub fn output_within(limit: Duration, command: &mut Command) -> Result<Output> {
    let child = command.stdout(Stdio::piped()).spawn().context("cannot start a program")?;
    let mut child = Killed(Some(child));
    let start = Instant::now();
    while child.as_mut()?.try_wait().context("cannot wait for a program")?.is_none() {
        ensure!(start.elapsed() < limit, "it has not ended after {limit:?}");
        std::thread::sleep(LOOK);
    }
    let ended = child.0.take().context("a program that is waited for twice")?;
    ended.wait_with_output().context("cannot read what a program has printed")
}

/// A child that is killed when this value is dropped, unless it was taken.
struct Killed(Option<Child>);

impl Killed {
    fn as_mut(&mut self) -> Result<&mut Child> {
        self.0.as_mut().context("a program that is waited for twice")
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Both calls fail only if it has ended already.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn json_of<T: DeserializeOwned>(output: &Output, args: &[&str]) -> Result<T> {
    let status = output.status;
    ensure!(status.success(), "`remora {}` failed ({status})", args.join(" "));
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`remora {}` printed no JSON", args.join(" ")))
}

fn ourselves() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's own file")?))
}

/// For a child: ends the process successfully when standard input closes.
pub fn end_with_stdin() -> Result<()> {
    let watch = || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|n| n > 0) {}
        std::process::exit(0);
    };
    thread::spawn("parent", watch)?;
    Ok(())
}

/// Runs `act` with the calling thread, and the threads and processes that it starts, on one core
/// only: the `which`-th that the process may use, if there are as many.
pub fn on_core<R>(which: usize, act: impl FnOnce() -> Result<R>) -> Result<R> {
    let before = sched_getaffinity(None).context("cannot read which cores may be used")?;
    // A thread that is pinned already has one core only, which is the first.
    sched_setaffinity(None, &all_cores()).context("cannot use all cores")?;
    pin(which)?;
    let result = act();
    sched_setaffinity(None, &before).context("cannot return to the cores of before")?;
    result
}

/// All cores of the machine, for a thread that was pinned; the system leaves out those that the
/// process may not use.
pub fn all_cores() -> CpuSet {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
    all
}

/// Pins the calling thread, and threads that it starts later, to the `which`-th core that the
/// process may use. Returns the core; `None` if there are fewer.
pub fn pin(which: usize) -> Result<Option<usize>> {
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
