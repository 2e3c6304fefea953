//! The rows of `event_server.c`: a server and its clients, each one thread that sleeps until
//! something has arrived, over completion channels and over TCP.

use std::path::Path;

use anyhow::{Context, Result};

use super::c_program::CProgram;
use super::program::{Program, free_tcp_port, has_tcp_listener};
use super::row::{Case, Run, Target};

/// The program in C.
const SOURCE: &str = include_str!("event_server.c");

const CLIENTS: usize = 50;

/// The program, compiled.
#[derive(Debug)]
pub(super) struct EventServer(CProgram);

impl EventServer {
    /// Compiles the program against this machine's libibverbs.
    pub(super) fn compile() -> Result<EventServer> {
        CProgram::compile("event-server", SOURCE, &["-libverbs"]).map(EventServer)
    }

    /// The rows, each beside TCP: with a channel for each client, as key-value stores have it, and
    /// with one completion queue for all; where 16 are in flight, those that have arrived together
    /// in one SEND or write, and each in its own.
    pub(super) fn cases(&self, seconds: &'static str) -> [Case<'_>; 6] {
        let case = |name, [way, peers]: [&'static str; 2], depth| Case {
            name,
            unit: "K requests/s",
            peer: "TCP, epoll",
            target: Target::AtLeast(1.0),
            ours: self.rate(way, depth, seconds),
            theirs: self.rate(peers, depth, seconds),
        };
        [
            case("event_server_50", ["each", "tcp"], 1),
            case("event_server_50_p16", ["each", "tcp"], 16),
            case("event_server_50_p16_apart", ["each-apart", "tcp-apart"], 16),
            case("event_server_50_shared", ["one", "tcp"], 1),
            case("event_server_50_shared_p16", ["one", "tcp"], 16),
            case("event_server_50_shared_p16_apart", ["one-apart", "tcp-apart"], 16),
        ]
    }

    /// Thousands of requests a second that the server answers to all clients, which each have
    /// `depth` requests in flight.
    fn rate(&self, way: &'static str, depth: usize, seconds: &'static str) -> Run<'_> {
        let program = self.0.path();
        Box::new(move || rate(program, way, depth, seconds).map(|rate| rate / 1e3))
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
