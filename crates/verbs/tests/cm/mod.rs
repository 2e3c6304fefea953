//! A server and its clients, each a process on the library.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

/// How long a program may take. Only a hang takes that long: nothing is concluded from time.
const PATIENCE: Duration = Duration::from_secs(120);

/// One pair after the other: each process spins, and machines that test have few cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A directory in which the library has the names that programs look for.
pub(crate) fn links() -> PathBuf {
    let links = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cm-{}", process::id()));
    fs::create_dir_all(&links).unwrap();
    let library = env::current_exe().unwrap().with_file_name("libremora_verbs.so");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        // Another test's thread may be making it, too.
        if let Err(error) = symlink(&library, links.join(name)) {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        }
    }
    links
}

/// Is the program installed? If not, that is said.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let there = env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !there {
        println!("skipped: {program} is not installed; `./ci.sh setup` does it");
        assert!(env::var_os("CI").is_none(), "CI is no place to skip this");
    }
    there
}

/// A port that no other test, and no other run of the tests, has. Listeners have Unix sockets with
/// the port in their names, so who has one can be seen.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (process::id() % 1000) as u16 * 20;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        let taken = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        if !taken.lines().any(|line| line.contains(&format!("/{port}/"))) {
            return port;
        }
    }
}

/// A program that runs.
pub(crate) struct Program {
    child: Child,
    output: PathBuf,
    command: String,
}

impl Program {
    pub(crate) fn start(command: &str) -> Program {
        Program::start_with(command, |_| ())
    }

    /// As [`Program::start`], with more to say about how.
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

    /// Waits for its end; returns the exit code, if it ended by itself, and what it said.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if start.elapsed() > PATIENCE {
                self.child.kill().unwrap();
                panic!("{} hangs:\n{}", self.command, self.said());
            }
            thread::sleep(Duration::from_millis(5));
        }
        (self.child.wait().unwrap().code(), self.said())
    }

    /// Waits until somebody listens on the port, which is a server's.
    pub(crate) fn listens(&mut self, port: u16) {
        let start = Instant::now();
        loop {
            let table = fs::read_to_string("/proc/net/unix").unwrap();
            let is = |line: &str| {
                let name = line.split_once("@remora/cm/").map_or("", |(_, name)| name);
                name.split('/').nth(1) == Some(&port.to_string()) && name.split('/').count() == 4
            };
            if table.lines().any(is) {
                return;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{} has ended:\n{}", self.command, self.said());
            assert!(start.elapsed() < PATIENCE, "{} does not listen", self.command);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until somebody has the port of TCP or UDP, which is a server's.
    pub(crate) fn holds(&mut self, protocol: &str, port: u16) {
        let start = Instant::now();
        loop {
            let tables =
                ["", "6"].map(|v6| fs::read_to_string(format!("/proc/net/{protocol}{v6}")));
            let is = |line: &str| {
                let local = line.split_whitespace().nth(1).unwrap_or_default();
                local.ends_with(&format!(":{port:04X}"))
            };
            if tables.iter().flatten().any(|table| table.lines().any(is)) {
                return;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{} has ended:\n{}", self.command, self.said());
            assert!(start.elapsed() < PATIENCE, "{} has no socket", self.command);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a table of the kernel's says something that this program brings about.
    pub(crate) fn appears(&mut self, table: &str, words: &str) {
        let start = Instant::now();
        while !fs::read_to_string(table).unwrap().contains(words) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{} has ended:\n{}", self.command, self.said());
            assert!(start.elapsed() < PATIENCE, "{}: no {words} in {table}", self.command);
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says something.
    pub(crate) fn says(&mut self, words: &str) {
        let start = Instant::now();
        while !self.said().contains(words) {
            assert!(
                start.elapsed() < PATIENCE,
                "{} never says {words:?}:\n{}",
                self.command,
                self.said()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has said more than so many lines.
    pub(crate) fn goes_on(&mut self, lines: usize) {
        let start = Instant::now();
        while self.said().lines().count() <= lines {
            assert!(start.elapsed() < PATIENCE, "{} stands still:\n{}", self.command, self.said());
            thread::sleep(Duration::from_millis(5));
        }
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
        // It may have ended; if not, nothing of it is to stay.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(Path::new(&self.output));
    }
}

/// Keeps other pairs of this process waiting.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a server and a client to their ends; both must succeed. `PORT` in the commands is a port,
/// which has to be `port` where a program has no option for it. Returns what the client said.
pub(crate) fn pair_at(port: u16, server: &str, client: &str) -> String {
    (1..=TRIES)
        .rev()
        .find_map(|tries| try_pair(port, server, client, tries))
        .expect("the last try ends the test if it fails")
}

/// How often a pair is started whose client came too early.
const TRIES: u32 = 5;

/// `None` if the client came too early, and there are more `tries`.
fn try_pair(port: u16, server: &str, client: &str, tries: u32) -> Option<String> {
    let _alone = alone();
    let command = |words: &str| words.replace("PORT", &port.to_string());
    let mut server = Program::start(&command(server));
    server.listens(port);
    let mut client = Program::start(&command(client));
    let (code, said) = client.end();
    if code != Some(0) && is_too_early(&said) && tries > 1 {
        return None;
    }
    assert_eq!(code, Some(0), "{}:\n{said}\nserver:\n{}", client.command, server.said());
    let (code, server_said) = server.end();
    assert_eq!(code, Some(0), "{}:\n{server_said}\nclient:\n{said}", server.command);
    Some(said)
}

/// perftest's client connects twice, and may ask the second time before its own server listens
/// again: then it is refused, as anywhere, and has to be started anew. (For a connection, 8 says
/// that nobody listens there; for datagrams 1 does.)
fn is_too_early(said: &str) -> bool {
    let refused = ["RDMA_CM_EVENT_REJECTED; error: 8", "RDMA_CM_EVENT_UNREACHABLE; error: 1"];
    said.contains("Failed to create RDMA CM connection")
        && refused.iter().any(|event| said.contains(event))
}

/// As [`pair_at`], on any port.
pub(crate) fn pair(server: &str, client: &str) -> String {
    pair_at(port(), server, client)
}
