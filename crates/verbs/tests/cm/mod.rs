//! A server and its clients, each a process on the library.

#[path = "../support/links.rs"]
mod links;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

#[allow(unused_imports, reason = "each test file uses a part of it")]
pub(crate) use links::{is_installed, links, skips};
use remora::unix_names::{self, Named};

/// How long a program may take. Only a hang takes that long: nothing is concluded from time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pairs run one after the other: each process spins, and test machines have few cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Do the programs share the card of a daemon? (`./ci.sh daemon` runs the tests so.)
pub(crate) fn shares_a_card() -> bool {
    env::var("REMORA_NIC").is_ok_and(|nic| !nic.is_empty() && nic != "off")
}

/// A port that no other test, and no other run of the tests, uses, neither of rdma_cm nor of TCP.
/// Listeners of rdma_cm have Unix sockets with the port in their names.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (process::id() % 1000) as u16 * 20;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        let taken = unix_names::named("remora/cm/").unwrap();
        if !taken.iter().any(|name| name.rest.contains(&format!("/{port}/")))
            && TcpListener::bind(("0.0.0.0", port)).is_ok()
        {
            return port;
        }
    }
}

/// A running program.
pub(crate) struct Program {
    child: Child,
    output: PathBuf,
    command: String,
}

impl Program {
    pub(crate) fn start(command: &str) -> Program {
        Program::start_with(command, |_| ())
    }

    /// As [`Program::start`], with `how` to change the command first.
    pub(crate) fn start_with(command: &str, how: impl FnOnce(&mut Command)) -> Program {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let links = links();
        let output = links.join(format!("output-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&output).unwrap();
        let mut words = command.split_whitespace();
        let program = words.next().unwrap();
        let mut builder = Command::new(program);
        builder
            .args(words)
            .env("LD_LIBRARY_PATH", &links)
            .env_remove("REMORA_ADDR")
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        how(&mut builder);
        let child =
            builder.spawn().unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        Program { child, output, command: command.to_owned() }
    }

    /// Waits until something has come about. A program that ends before that fails the test.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Program) -> bool) {
        let start = Instant::now();
        loop {
            // What it has done before its end counts.
            let ended = self.child.try_wait().unwrap();
            if done(self) {
                return;
            }
            let lasts = ended.is_none() && start.elapsed() < PATIENCE;
            assert!(lasts, "{}: not {what} ({ended:?}):\n{}", self.command, self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end; returns the exit code, if it ended by itself, and its output.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        self.until("at its end", |program| program.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap().code(), self.said())
    }

    /// Waits until a process listens on the port of rdma_cm.
    pub(crate) fn listens(&mut self, port: u16) {
        let is = |name: &Named| {
            let parts: Vec<&str> = name.rest.split('/').collect();
            parts.len() == 4 && parts[1] == port.to_string()
        };
        self.until("listening", |_| unix_names::named("remora/cm/").unwrap().iter().any(is));
    }

    /// Waits until a process has the TCP or UDP port.
    pub(crate) fn holds(&mut self, protocol: &str, port: u16) {
        let is = |line: &str| {
            let local = line.split_whitespace().nth(1).unwrap_or_default();
            local.ends_with(&format!(":{port:04X}"))
        };
        self.until("holding a socket", |_| {
            let tables =
                ["", "6"].map(|v6| fs::read_to_string(format!("/proc/net/{protocol}{v6}")));
            tables.iter().flatten().any(|table| table.lines().any(is))
        });
    }

    /// Waits until a table of the kernel holds these words.
    pub(crate) fn appears(&mut self, table: &str, words: &str) {
        let what = format!("{words} in {table}");
        self.until(&what, |_| fs::read_to_string(table).unwrap().contains(words));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until its output holds these words.
    pub(crate) fn says(&mut self, words: &str) {
        self.until(&format!("{words:?} said"), |program| program.said().contains(words));
    }

    /// Waits until its output has more than `lines` lines.
    pub(crate) fn goes_on(&mut self, lines: usize) {
        self.until("going on", |program| program.said().lines().count() > lines);
    }

    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended; if not, it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(Path::new(&self.output));
    }
}

/// Makes other pairs of this process wait.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a server and a client to their ends; both must succeed. `PORT` in the commands stands for
/// `port`, which is fixed for programs that have no option for it. Returns the client's output.
pub(crate) fn pair_at(port: u16, server: &str, client: &str) -> String {
    let _alone = alone();
    let command = |words: &str| words.replace("PORT", &port.to_string());
    let mut server = Program::start(&command(server));
    server.listens(port);
    let mut client = Program::start(&command(client));
    let (code, said) = client.end();
    assert_eq!(code, Some(0), "{}:\n{said}\nserver:\n{}", client.command, server.said());
    let (code, server_said) = server.end();
    assert_eq!(code, Some(0), "{}:\n{server_said}\nclient:\n{said}", server.command);
    said
}

/// As [`pair_at`], on any port.
pub(crate) fn pair(server: &str, client: &str) -> String {
    pair_at(port(), server, client)
}

/// Compiles one of the C programs of the tests; `None` if the header is not there.
pub(crate) fn built(source: &str, header: &str) -> Option<PathBuf> {
    if !fs::exists(format!("/usr/include/rdma/{header}")).unwrap_or(false) {
        skips::has_not(&format!("the header rdma/{header} is not there"));
        return None;
    }
    let links = links();
    let name = format!("{}-{}", source.replace('/', "-"), process::id());
    let program = links.join(name);
    // The libraries' symbols are resolved at run time: by these names, with their versions.
    let built = Command::new("cc")
        .args(["-Wall", "-o"])
        .arg(&program)
        .arg(format!("{}/tests/{source}.c", env!("CARGO_MANIFEST_DIR")))
        .args([links.join("librdmacm.so.1"), links.join("libibverbs.so.1")])
        .arg("-lpthread")
        .status()
        .expect("a C compiler");
    assert!(built.success());
    Some(program)
}

/// Runs one of the C programs of the tests. It exits with 0 if all its checks hold.
pub(crate) fn runs(source: &str, header: &str) {
    let Some(program) = built(source, header) else { return };
    let mut program = Program::start(program.to_str().unwrap());
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
}
