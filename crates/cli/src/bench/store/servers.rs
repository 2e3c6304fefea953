//! Servers of Redis' and memcached's clients, ours and theirs, on the second core; and what loads
//! them from the first.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use super::super::program::{Program, cpu_s, free_tcp_port, has_tcp_listener};
use super::bed::{key, value};

/// What the rows say without their peers.
pub(super) const REDIS_MISSING: &str = "not measured: install redis-server and redis-tools";
pub(super) const MEMCACHED_MISSING: &str = "not measured: install memcached and libmemcached-tools";

const PATIENCE: Duration = Duration::from_secs(20);
/// Connections of the clients' programs.
const CONNECTIONS: &str = "50";
/// Keys that are set before an answer is read.
const TOGETHER: u64 = 500;

/// How fast a server answered: thousands of requests a second of the clock, and of its processor's
/// time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) wall: f64,
    pub(super) cpu: f64,
}

/// A process that serves on a port of 127.0.0.1; it is killed when this value is dropped.
pub(super) struct Server {
    program: Program,
    port: u16,
}

/// Is the program on the path?
pub(in crate::bench) fn is_there(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl Server {
    fn start(make: impl FnOnce(&str) -> Result<Command>) -> Result<Server> {
        let port = free_tcp_port()?;
        let mut program = Program::start_plain(1, make(&port.to_string())?)?;
        program.wait_until("listens", || has_tcp_listener(port))?;
        Ok(Server { program, port })
    }

    /// `remora store serve`, with the front that `front` names.
    pub(super) fn ours(front: &str, more: &[&str]) -> Result<Server> {
        Server::start(|port| {
            let ourselves = env::current_exe().context("cannot find this program's own file")?;
            let mut command = Command::new(ourselves);
            command.args(["store", "serve", front, port]).args(more);
            Ok(command)
        })
    }

    /// `redis-server`, if it is installed.
    pub(super) fn redis(more: &[&str]) -> Result<Option<Server>> {
        if !is_there("redis-server") {
            return Ok(None);
        }
        Server::start(|port| {
            let mut command = Command::new("redis-server");
            command.args(["--port", port, "--bind", "127.0.0.1", "--save", ""]);
            command.args(["--loglevel", "warning"]).args(more);
            Ok(command)
        })
        .map(Some)
    }

    /// Bytes of memory that its process has.
    pub(super) fn resident(&self) -> Result<f64> {
        let id = self.program.id()?;
        let status =
            fs::read_to_string(format!("/proc/{id}/status")).context("a server has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        Ok(kib.context("cannot read the memory of a server")? * 1024.0)
    }

    /// The rate of what `load` does, which says how many thousand requests a second it counted, of
    /// how many.
    fn rate(&self, load: impl FnOnce() -> Result<(f64, f64)>) -> Result<Rate> {
        let before = cpu_s(self.program.id()?)?;
        let (wall, requests) = load()?;
        let cpu_s = (cpu_s(self.program.id()?)? - before).max(0.01);
        Ok(Rate { wall, cpu: requests / cpu_s / 1e3 })
    }

    /// Sets keys 0 to `count` to values of 64 bytes, by Redis' protocol.
    pub(super) fn fill(&self, count: u64) -> Result<()> {
        let mut stream = connect(self.port)?;
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        for first in (0..count).step_by(TOGETHER as usize) {
            let numbers = first..count.min(first + TOGETHER);
            requests.clear();
            answers.resize(5 * (numbers.end - numbers.start) as usize, 0);
            for number in numbers {
                requests.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
                requests.extend_from_slice(&key(number));
                requests.extend_from_slice(b"\r\n$64\r\n");
                requests.extend_from_slice(&value(number, 64));
                requests.extend_from_slice(b"\r\n");
            }
            stream.write_all(&requests).context("cannot set keys")?;
            stream.read_exact(&mut answers).context("keys were not set")?;
            ensure!(answers.chunks(5).all(|answer| answer == b"+OK\r\n"), "a key was not set");
        }
        Ok(())
    }

    /// Runs `redis-benchmark`'s test on `keys` keys with so many requests in flight on each
    /// connection.
    pub(super) fn redis_benchmark(
        &self,
        test: &str,
        connections: &str,
        (keys, requests, in_flight): (u64, u64, u32),
    ) -> Result<Rate> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-t", test, "--csv"]);
        command.args(["-c", connections, "-d", "64", "-P", &in_flight.to_string()]);
        command.args(["-n", &requests.to_string(), "-r", &keys.to_string()]);
        self.rate(|| {
            let printed = Program::start_plain(0, command)?.succeed()?;
            let wanted = format!("\"{}\",", test.to_uppercase());
            let line = printed.lines().find_map(|line| line.strip_prefix(&*wanted));
            let field = line.and_then(|line| line.split(',').next());
            let rate = field.and_then(|field| field.trim_matches('"').parse::<f64>().ok());
            let rate = rate.with_context(|| format!("redis-benchmark printed\n{printed}"))?;
            Ok((rate / 1e3, requests as f64))
        })
    }
}

/// A server of memcached's clients.
pub(super) struct Memcached(Server);

impl Memcached {
    /// `remora store serve`.
    pub(super) fn start_ours() -> Result<Memcached> {
        Server::ours("--memcached", &["--memory", "256M"]).map(Memcached)
    }

    /// `memcached`, if it and its load generator are installed.
    pub(super) fn start_peer() -> Result<Option<Memcached>> {
        if !is_there("memcached") || !is_there("memcaslap") {
            return Ok(None);
        }
        let server = Server::start(|port| {
            let mut command = Command::new("memcached");
            command.args(["-t", "1", "-m", "1024", "-U", "0", "-l", "127.0.0.1", "-p", port]);
            // It refuses to be root unless it is told to be. As another user, it would not end with
            // this process.
            command.args(["-u", "root"]);
            Ok(command)
        })?;
        Ok(Some(Memcached(server)))
    }

    pub(super) fn port(&self) -> u16 {
        self.0.port
    }

    /// Runs `memcaslap` for a second: gets of 64 bytes, after it has set its keys.
    pub(super) fn load(&self) -> Result<Rate> {
        let pattern = TemporaryFile::new("memcaslap", PATTERN)?;
        let mut command = Command::new("memcaslap");
        command.args(["-s", &format!("127.0.0.1:{}", self.0.port), "-T", "1", "-c", CONNECTIONS]);
        command.args(["-w", "1k", "-t", "1s", "-F"]).arg(pattern.path());
        self.0.rate(|| {
            let printed = Program::start_plain(0, command)?.succeed()?;
            let number = |name: &str| {
                let rest = printed.split_once(name).map(|(_, rest)| rest.trim_start());
                let word = rest.and_then(|rest| rest.split_ascii_whitespace().next());
                let number = word.and_then(|word| word.parse::<f64>().ok());
                number.with_context(|| format!("memcaslap printed no `{name}`:\n{printed}"))
            };
            ensure!(number("get_misses:")? == 0.0, "memcached does not find what was set");
            Ok((number("TPS:")? / 1e3, number("Ops:")?))
        })
    }
}

/// Gets only, of keys of 16 bytes and values of 64.
const PATTERN: &[u8] = b"key\n16 16 1\nvalue\n64 64 1\ncmd\n0 0\n1 1\n";

/// A client of memcached that polls, for one key.
pub(super) struct Getter {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    len: usize,
}

impl Getter {
    /// Connects, and sets the key.
    pub(super) fn connect(port: u16, key: &[u8], value: &[u8]) -> Result<Getter> {
        let mut stream = connect(port)?;
        let key = String::from_utf8_lossy(key);
        let mut set = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
        set.extend_from_slice(value);
        set.extend_from_slice(b"\r\n");
        stream.write_all(&set)?;
        let mut stored = [0; 8];
        stream.read_exact(&mut stored).context("memcached does not set a key")?;
        ensure!(&stored == b"STORED\r\n", "memcached does not set a key");
        stream.set_nonblocking(true)?;
        let len = format!("VALUE {key} 0 {}\r\n", value.len()).len() + value.len() + 7;
        let request = format!("get {key}\r\n").into_bytes();
        Ok(Getter { stream, request, answer: vec![0; len + 1], len })
    }

    pub(super) fn get(&mut self) -> Result<()> {
        self.stream.write_all(&self.request)?;
        let (start, mut got) = (Instant::now(), 0);
        while got < self.len {
            match self.stream.read(&mut self.answer[got..]) {
                Ok(0) => bail!("memcached has closed a connection"),
                Ok(count) => got += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(start.elapsed() < PATIENCE, "memcached does not answer");
                }
                Err(error) => return Err(error.into()),
            }
        }
        let whole = got == self.len && self.answer[..got].ends_with(b"END\r\n");
        ensure!(whole, "memcached answers something else");
        Ok(())
    }
}

fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("no server answers")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A file or folder of a name of its own that is removed when this value is dropped.
pub(super) struct TemporaryFile(PathBuf);

impl TemporaryFile {
    pub(super) fn new(name: &str, bytes: &[u8]) -> Result<TemporaryFile> {
        let file = TemporaryFile::named(name);
        fs::write(file.path(), bytes)
            .with_context(|| format!("cannot write {}", file.path().display()))?;
        Ok(file)
    }

    pub(super) fn folder(name: &str) -> Result<TemporaryFile> {
        let folder = TemporaryFile::named(name);
        fs::create_dir(folder.path())
            .with_context(|| format!("cannot make {}", folder.path().display()))?;
        Ok(folder)
    }

    fn named(name: &str) -> TemporaryFile {
        TemporaryFile(env::temp_dir().join(format!("remora-{name}-{}", std::process::id())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn text(&self) -> Result<&str> {
        self.0.to_str().context("the folder of temporary files has no name in UTF-8")
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // What cannot be removed stays among the system's temporary files.
        if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) }.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_are_removed() {
        let file = TemporaryFile::new("test-of-files", b"bytes").unwrap();
        let path = file.path().to_owned();
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(is_there("sh") && !is_there("no-such-program-as-this"));
    }
}
