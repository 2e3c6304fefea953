//! Runs the real command for tests.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use killed::Killed;
use serde_json::Value;

#[path = "../../../remora/tests/support/killed.rs"]
pub(crate) mod killed;
#[cfg(feature = "fuse")]
pub(crate) mod mount;
pub(crate) mod nic;
#[cfg(feature = "cluster")]
pub(crate) mod nodes;
#[path = "../../../remora/tests/support/skips.rs"]
pub(crate) mod skips;
pub(crate) mod verbs;
pub(crate) mod xdma;

/// How long anything may take. Only a hang takes that long: nothing is concluded from time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something has come about.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An address of loopback that no other test, and no other run of the tests, has.
pub(crate) fn address() -> [u8; 4] {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, 128 + NEXT.fetch_add(1, Ordering::Relaxed), high, low.clamp(1, 254)]
}

/// A kernel that is built in the tree.
pub(crate) fn guest(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/built").join(name);
    path.to_str().unwrap().to_owned()
}

/// A folder that belongs to one test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("remora-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a file of `len` bytes whose pattern does not repeat soon.
    pub(crate) fn file(&self, name: &str, len: usize) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, pattern(len)).unwrap();
        path
    }

    /// The names of the files in it.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = fs::read_dir(&self.0).unwrap().map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let word = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    let mut bytes: Vec<u8> = (1..=len.div_ceil(8) as u64).flat_map(word).collect();
    bytes.truncate(len);
    bytes
}

/// The command with these arguments, without the environment's settings for Remora.
pub(crate) fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args);
    for name in ["REMORA_TOKEN", "REMORA_KERNEL_TOKEN", "REMORA_LOG", "REMORA_PCAP"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    command(args).output().unwrap()
}

/// Runs the command, expects success, and returns its output.
pub(crate) fn succeed<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, expects a failure with a reason, and returns the reason.
pub(crate) fn fail<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = run(args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "it should have failed: {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

/// A running node; it ends with the test.
pub(crate) struct Node {
    pub(crate) child: Killed,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// The line of JSON that it printed when it was ready.
    pub(crate) ready: Value,
}

impl Node {
    pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Node {
        Node::start_with(args, |_| {})
    }

    /// As [`Node::start`], with `prepare` to change the command first.
    pub(crate) fn start_with<S: AsRef<OsStr>>(
        args: impl IntoIterator<Item = S>,
        prepare: impl FnOnce(&mut Command),
    ) -> Node {
        let mut command = command(["node", "--json", "--until-eof"]);
        prepare(&mut command);
        let command = command.args(args).stdin(Stdio::piped());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Killed(command.spawn().unwrap());
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("the node did not start: {errors}");
        }
        let ready = serde_json::from_str(&line).unwrap();
        Node { child, stdin, stdout, ready }
    }

    /// Its address, as the node printed it.
    pub(crate) fn address(&self) -> String {
        self.ready["node"].as_str().unwrap().to_owned()
    }

    /// A region of it.
    pub(crate) fn region(&self, name: &str) -> String {
        format!("{}/{name}", self.address())
    }

    /// Ends the node; returns the rest of its output and of its errors.
    pub(crate) fn finish(mut self) -> (String, String) {
        drop(self.stdin.take());
        self.end()
    }

    /// Waits until it ends by itself.
    pub(crate) fn end(&mut self) -> (String, String) {
        let (mut rest, mut errors) = (String::new(), String::new());
        self.stdout.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {errors}");
        (rest, errors)
    }
}

/// `name=path`, in the form of `--region`.
pub(crate) fn region_of(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
