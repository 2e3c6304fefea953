//! Runs verbs programs on Remora for tests: two processes that find each other.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use super::{PATIENCE, command, skips};

/// The features of this crate, and whether these tests have them.
const FEATURES: [(&str, bool); 4] = [
    ("remora-cli/cluster", cfg!(feature = "cluster")),
    ("remora-cli/fuse", cfg!(feature = "fuse")),
    ("remora-cli/parquet", cfg!(feature = "parquet")),
    ("remora-cli/zstd", cfg!(feature = "zstd")),
];

/// Builds the libraries beside the command, once: cargo builds no shared object for the tests of
/// another crate. They are built of what `cargo test --workspace` has built, so with the features
/// that these tests have: others would have half of the crates built again.
pub(crate) fn libraries() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let beside = Path::new(env!("CARGO_BIN_EXE_remora")).parent().unwrap();
        let target = beside.parent().unwrap();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--workspace", "--lib", "--examples"]);
        for feature in FEATURES.iter().filter(|(_, is_on)| *is_on) {
            cargo.args(["--features", feature.0]);
        }
        cargo.arg("--target-dir").arg(target);
        match beside.file_name().and_then(OsStr::to_str) {
            Some("debug") => {}
            Some("release") => drop(cargo.arg("--release")),
            other => panic!("tests in a profile that is neither debug nor release: {other:?}"),
        }
        assert!(cargo.status().unwrap().success(), "the libraries do not build");
    });
}

/// `remora run` with these arguments.
pub(crate) fn remora_run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    libraries();
    let mut command = command([OsStr::new("run")]);
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "REMORA_ADDR", "REMORA_LIB_DIR"] {
        command.env_remove(name);
    }
    command.args(args);
    command
}

/// Runs the command to its end, expects success, and returns its output.
pub(crate) fn printed(command: &mut Command) -> String {
    Running::start(command).succeeds()
}

/// A program's output, for the message of a failure.
pub(crate) fn described(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    let text = String::from_utf8_lossy;
    format!("{}\n--- output\n{}\n--- errors\n{}", output.status, text(out), text(errors))
}

/// Are these programs, of these packages, installed? If not, says what to install; in CI that is a
/// failure.
pub(crate) fn installed(programs: &[(&str, &str)]) -> bool {
    programs.iter().all(|(name, package)| skips::has(name, package))
}

/// A TCP port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A program that runs beside the test, and is killed when this value is dropped.
pub(crate) struct Running {
    child: Option<Child>,
    name: String,
}

impl Running {
    /// Starts a program.
    pub(crate) fn start(command: &mut Command) -> Running {
        let name = format!("{command:?}");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { child: Some(child), name }
    }

    /// Its standard input and output, for a test that talks to it.
    pub(crate) fn streams(&mut self) -> (ChildStdin, ChildStdout) {
        let child = self.child.as_mut().unwrap();
        (child.stdin.take().unwrap(), child.stdout.take().unwrap())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Waits until it listens on this TCP port, so that a client finds it. (Not tested by
    /// connecting: many servers serve their first client only.)
    pub(crate) fn listens_on_tcp(&mut self, port: u16) {
        let wanted = format!(":{port:04X}");
        self.until("listens over TCP", || {
            ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
                let table = fs::read_to_string(table).unwrap_or_default();
                table.lines().any(|line| {
                    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
                    fields.len() > 3 && fields[1].ends_with(&wanted) && fields[3] == "0A"
                })
            })
        });
    }

    /// Waits until it listens for connections on this port of rdma_cm.
    pub(crate) fn listens_by_cm(&mut self, port: u16) {
        self.until("listens by rdma_cm", || {
            remora::unix_names::named("remora/cm/").unwrap().iter().any(|name| {
                let parts: Vec<&str> = name.rest.split('/').collect();
                parts.len() > 3 && parts[1] == port.to_string()
            })
        });
    }

    fn until(&mut self, what: &str, there: impl Fn() -> bool) {
        let start = Instant::now();
        while !there() {
            let child = self.child.as_mut().unwrap();
            if child.try_wait().unwrap().is_some() {
                let output = self.child.take().unwrap().wait_with_output().unwrap();
                panic!("{} has ended before it {what}: {}", self.name, described(&output));
            }
            assert!(start.elapsed() < PATIENCE, "{} never {what}", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end.
    pub(crate) fn output(mut self) -> Output {
        let child = self.child.as_mut().unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > PATIENCE {
                child.kill().unwrap();
                let output = self.child.take().unwrap().wait_with_output().unwrap();
                panic!("{} does not end: {}", self.name, described(&output));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.take().unwrap().wait_with_output().unwrap()
    }

    /// Waits for its successful end; returns its output.
    pub(crate) fn succeeds(self) -> String {
        let name = self.name.clone();
        let output = self.output();
        assert!(output.status.success(), "{name}: {}", described(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}
