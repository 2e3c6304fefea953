//! A program that a bench starts, pinned to a core, and what tells that it listens: a verbs program
//! by `remora run`, or any other as it is.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use remora_command::bound::bound;

use crate::child;

/// The longest that one run may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks for an event that takes milliseconds.
const LOOK: Duration = Duration::from_millis(2);

/// A program, which is killed when this value is dropped, or this process ends.
pub(super) struct Program {
    name: String,
    child: Option<Child>,
}

impl Program {
    /// Starts a verbs program on the `core`-th core, by `remora run`.
    pub(super) fn start(core: usize, args: &[String]) -> Result<Program> {
        Program::start_with(&[], core, args)
    }

    /// As [`Program::start`], with environment variables set.
    pub(super) fn start_with(
        variables: &[(&str, &OsStr)],
        core: usize,
        args: &[String],
    ) -> Result<Program> {
        let ourselves: PathBuf =
            std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(ourselves);
        command.args(["run", "--pin", &core.to_string()]);
        command.arg("--").args(args).envs(variables.iter().copied());
        Program::spawn(args.join(" "), command)
    }

    /// Starts a command on the `core`-th core, as it is.
    pub(super) fn start_plain(core: usize, command: Command) -> Result<Program> {
        child::on_core(core, || Program::start_on_any(command))
    }

    /// Starts a command on any core, as it is.
    pub(super) fn start_on_any(command: Command) -> Result<Program> {
        Program::spawn(name_of(&command), command)
    }

    fn spawn(name: String, command: Command) -> Result<Program> {
        let mut command = bound(&command)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot start `{name}`"))?;
        Ok(Program { name, child: Some(child) })
    }

    /// Its process id, while it has not ended.
    pub(super) fn id(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("it has ended")?.id())
    }

    pub(super) fn wait_until(&mut self, what: &str, done: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !done() {
            ensure!(start.elapsed() < PATIENCE, "`{}` never {what}", self.name);
            if !self.is_running()? {
                return self.output().and_then(|out| bail!(self.complaint(&out)));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn is_running(&mut self) -> Result<bool> {
        let child = self.child.as_mut().context("it has ended")?;
        Ok(child.try_wait().context("cannot wait for a program")?.is_none())
    }

    fn output(&mut self) -> Result<Output> {
        let child = self.child.take().context("it has ended")?;
        child.wait_with_output().context("cannot wait for a program")
    }

    fn complaint(&self, out: &Output) -> String {
        let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        let (printed, errors) = (text(&out.stdout), text(&out.stderr));
        format!("`{}` failed ({}):\n{errors}\n{printed}", self.name, out.status)
    }

    /// Waits for its successful end; returns its output. A verbs program's output fits into the
    /// pipe, so the program does not wait for this process.
    pub(super) fn succeed(mut self) -> Result<String> {
        let start = Instant::now();
        while self.is_running()? {
            ensure!(start.elapsed() < PATIENCE, "`{}` does not end", self.name);
            thread::sleep(LOOK);
        }
        let output = self.output()?;
        ensure!(output.status.success(), self.complaint(&output));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both calls fail only if it has ended already.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn name_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The seconds for which a process has had a processor.
pub(super) fn cpu_s(id: u32) -> Result<f64> {
    cpu_fields(&id.to_string(), 11)
}

/// The seconds for which processes have had a processor that this one has started, or that those
/// have, and that have ended.
pub(super) fn cpu_of_children_s() -> Result<f64> {
    cpu_fields("self", 13)
}

/// The sum of two fields of a process's `stat`, behind so many that follow its name, in seconds.
fn cpu_fields(process: &str, skip: usize) -> Result<f64> {
    /// Clock ticks a second, as `/proc` counts on every Linux.
    const TICKS: f64 = 100.0;
    let stat =
        fs::read_to_string(format!("/proc/{process}/stat")).context("a process has ended")?;
    // The name may have blanks; the fields behind it begin with the third.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_ascii_whitespace().skip(skip).take(2);
    let ticks: Vec<f64> = ticks.filter_map(|field| field.parse().ok()).collect();
    ensure!(ticks.len() == 2, "cannot read the processor time of a process");
    Ok((ticks[0] + ticks[1]) / TICKS)
}

pub(super) fn free_tcp_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free TCP port")?;
    Ok(listener.local_addr()?.port())
}

/// Does a process listen on this port? Not tested by connecting: perftest's servers would take that
/// for their client.
pub(super) fn has_tcp_listener(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&wanted))
                && fields.nth(1) == Some("0A")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_without_connecting_to_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(has_tcp_listener(listener.local_addr().unwrap().port()));
    }
}
