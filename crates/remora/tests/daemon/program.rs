//! A program beside a test: one of its tests that are ignored otherwise, as another process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use remora::message::{KEEP_VARIABLE, SOCKET_VARIABLE};
use rustix::process::{Pid, Signal, kill_process};

use super::killed::Killed;
pub(crate) use super::peer::{read, written};

pub(crate) struct Program {
    pub(crate) child: Killed,
    input: ChildStdin,
    lines: Box<dyn Iterator<Item = String> + Send>,
}

impl Program {
    /// The test `name`, as a client of the daemon at `socket`. Its session is kept as `keep` says,
    /// or, if that is empty, ends with it.
    pub(crate) fn start(name: &str, socket: &Path, keep: &str) -> Program {
        Program::within(Command::new(std::env::current_exe().unwrap()), name, socket, keep)
    }

    /// As [`Program::start`], by a command that ends with the name of this program.
    pub(crate) fn within(mut by: Command, name: &str, socket: &Path, keep: &str) -> Program {
        by.args(["--ignored", "--exact", name, "--nocapture"]);
        by.env(SOCKET_VARIABLE, socket).env_remove(KEEP_VARIABLE);
        if !keep.is_empty() {
            by.env(KEEP_VARIABLE, keep);
        }
        let mut child = by.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        Program { child: Killed(child), input, lines: Box::new(lines) }
    }

    /// What it says next; that may stand behind what the test's harness writes.
    pub(crate) fn says(&mut self) -> String {
        let rest = |line: String| line.split_once("says ").map(|(_, rest)| rest.to_owned());
        self.lines.find_map(rest).expect("the program goes on")
    }

    pub(crate) fn hears(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What the test says next to this program.
pub(crate) fn heard() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}
