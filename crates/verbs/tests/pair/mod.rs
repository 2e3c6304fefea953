//! Programs of the distribution, run as two processes on the library.

#[path = "../support/links.rs"]
mod links;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use links::is_installed;
use links::links;

/// How long a pair may take. Only a hang takes that long: nothing is concluded from time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pairs run one after the other: each process spins, and test machines have few cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// One end of a pair.
struct End {
    child: Child,
    output: PathBuf,
    command: String,
}

impl End {
    fn start(name: &str, links: &Path, words: &[String]) -> End {
        let output = links.join(name);
        let file = File::create(&output).unwrap();
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env("LD_LIBRARY_PATH", links)
            .env_remove("REMORA_ADDR")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", words[0]));
        End { child, output, command: words.join(" ") }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A TCP port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// Does a process listen on the TCP port?
fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        let wanted = format!(":{port:04X}");
        table.lines().any(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            local.ends_with(&wanted) && words.nth(1) == Some("0A")
        })
    })
}

/// Runs a program that takes `-p PORT`, and, as the client, the server's address as its last
/// argument. Returns the output of client and server; panics with both if one fails or hangs.
pub(crate) fn run(command: &str) -> (String, String) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let links = links();
    let port = free_port();
    let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    words.extend(["-p".to_owned(), port.to_string()]);
    let start = Instant::now();
    let mut server = End::start("server", &links, &words);
    while !is_listening(port) && server.status().is_none() && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
    words.push("127.0.0.1".to_owned());
    let mut client = End::start("client", &links, &words);
    let mut ended = (None, None);
    while (ended.0.is_none() || ended.1.is_none()) && start.elapsed() < PATIENCE {
        ended = (client.status(), server.status());
        thread::sleep(Duration::from_millis(5));
    }
    let succeeded = |status: Option<ExitStatus>| status.is_some_and(|status| status.success());
    if !(succeeded(ended.0) && succeeded(ended.1)) {
        let mut report = String::new();
        for (end, status) in [(&client, ended.0), (&server, ended.1)] {
            let status = status.map_or("did not end".to_owned(), |status| status.to_string());
            writeln!(report, "$ {}\n{}{status}\n", end.command, end.said()).unwrap();
        }
        panic!("{report}");
    }
    (client.said(), server.said())
}

/// Runs a program until its output holds `wanted`, then ends it.
pub(crate) fn run_until(command: &str, wanted: &str) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let start = Instant::now();
    let mut end = End::start("alone", &links(), &words);
    while !end.said().contains(wanted) {
        assert!(end.status().is_none() && start.elapsed() < PATIENCE, "{command}: {}", end.said());
        thread::sleep(Duration::from_millis(5));
    }
}
