//! The rows of `event_server.c`: a server and its clients, each one thread that sleeps until
//! something has arrived, over completion channels and over TCP.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use super::row::{Case, Run, Target};
use super::running::{Program, free_tcp_port, has_tcp_listener};

/// The program in C.
const SOURCE: &str = include_str!("event_server.c");

const CLIENTS: usize = 50;

/// The program, compiled; its file is removed with this value.
#[derive(Debug)]
pub(super) struct EventServer {
    path: PathBuf,
}

impl EventServer {
    /// Compiles the program against this machine's libibverbs.
    pub(super) fn compile() -> Result<EventServer> {
        let name = format!("remora-event-server-{}", std::process::id());
        let path = env::temp_dir().join(name);
        let mut compiler = Command::new("cc")
            .args(["-O2", "-x", "c", "-", "-libverbs", "-o"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start `cc`; install a C compiler (Debian, Ubuntu: apt install gcc)")?;
        let mut stdin = compiler.stdin.take().context("a compiler without standard input")?;
        // If the compiler ends early, its own words say why.
        stdin.write_all(SOURCE.as_bytes()).ok();
        drop(stdin);
        let out = compiler.wait_with_output().context("cannot wait for `cc`")?;
        let program = EventServer { path };
        ensure!(
            out.status.success(),
            "cannot compile a verbs program; install libibverbs-dev if headers are missing:\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(program)
    }

    /// The rows, each beside TCP: with a channel for each client, as key-value stores have it, and
    /// with one completion queue for all.
    pub(super) fn cases(&self, seconds: &'static str) -> [Case<'_>; 4] {
        let case = |name, way, depth| Case {
            name,
            unit: "K requests/s",
            peer: "TCP, epoll",
            target: Target::AtLeast(1.0),
            ours: self.rate(way, depth, seconds),
            theirs: self.rate("tcp", depth, seconds),
        };
        [
            case("event_server_50", "each", 1),
            case("event_server_50_p16", "each", 16),
            case("event_server_50_shared", "one", 1),
            case("event_server_50_shared_p16", "one", 16),
        ]
    }

    /// Thousands of requests a second that the server answers to all clients, which each have
    /// `depth` requests in flight.
    fn rate(&self, way: &'static str, depth: usize, seconds: &'static str) -> Run<'_> {
        let program = &self.path;
        Box::new(move || rate(program, way, depth, seconds).map(|rate| rate / 1e3))
    }
}

impl Drop for EventServer {
    fn drop(&mut self) {
        // It is not there if it could not be compiled.
        fs::remove_file(&self.path).ok();
    }
}

fn rate(program: &Path, way: &str, depth: usize, seconds: &str) -> Result<f64> {
    let port = free_tcp_port()?;
    let args = |role: &str| -> Vec<String> {
        let (port, clients, depth) = (port.to_string(), CLIENTS.to_string(), depth.to_string());
        let program = program.display().to_string();
        vec![program, way.into(), role.into(), port, clients, depth]
    };
    let mut server = Program::start(1, &args("server"))?;
    server.wait_until("listens", || has_tcp_listener(port))?;
    let mut client = args("client");
    client.push(seconds.into());
    let out = Program::start(0, &client)?.succeed()?;
    server.succeed()?;
    out.trim().parse().with_context(|| format!("the event server printed no rate: {out}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_compiled_and_removed() {
        if fs::exists("/usr/include/infiniband/verbs.h").unwrap() {
            let program = EventServer::compile().unwrap();
            let path = program.path.clone();
            assert!(path.exists());
            drop(program);
            assert!(!path.exists());
        }
    }
}
