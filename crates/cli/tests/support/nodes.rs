//! Nodes of a store on several machines, as processes: `remora store serve --cluster`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Killed, PATIENCE, succeed, until};

/// A process that says in a line of JSON that it is there, and is killed with this value.
pub(crate) struct Process {
    pub(crate) child: Killed,
    pub(crate) ready: Value,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Process {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Killed(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says {line:?}"));
        Process { child, ready }
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.ready[name].as_str().unwrap()
    }

    pub(crate) fn front(&self) -> &str {
        self.ready["redis"][0].as_str().unwrap()
    }

    /// What it says of itself by this name.
    pub(crate) fn info(&self, name: &str) -> Option<String> {
        let lines = redis(self.front(), "INFO persistence");
        lines.iter().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned()))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

/// The lines of a node's answer; none if it is gone.
pub(crate) fn redis(at: &str, command: &str) -> Vec<String> {
    let Ok(mut stream) = TcpStream::connect(at) else { return Vec::new() };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    if stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).is_err() {
        return Vec::new();
    }
    let mut lines: Vec<_> = BufReader::new(&stream).lines().map_while(Result::ok).collect();
    // That of QUIT, to which a connection does not come that is ended before.
    if lines.len() > 1 {
        lines.pop();
    }
    lines
}

/// Asks each node until one of them answers this. Which? (On a busy machine, the primary may
/// change at any time.)
pub(crate) fn answered(nodes: &[Option<Process>], ask: &str, wanted: &[&str]) -> usize {
    let mut by = None;
    let asked: String = ask.chars().take(80).collect();
    until(&format!("{asked:?}: {wanted:?}"), || {
        let answers = |node: &Option<Process>| {
            node.as_ref().is_some_and(|node| redis(node.front(), ask) == wanted)
        };
        by = nodes.iter().position(answers);
        by.is_some()
    });
    by.unwrap()
}

/// Waits until the nodes that are there have carried out the same, and have the same.
pub(crate) fn compare(nodes: &[Option<Process>]) {
    until("the nodes are alike", || {
        let contents = |node: &Process| {
            let digest = redis(node.front(), "DEBUG DIGEST");
            let has_one = digest.iter().any(|line| line.starts_with('+'));
            node.info("cluster_applied").filter(|_| has_one).map(|applied| (applied, digest))
        };
        let all: Vec<_> = nodes.iter().flatten().map(contents).collect();
        all.iter().all(|one| one.is_some() && *one == all[0])
    });
}

/// The names of a cluster's members, in order.
pub(crate) fn members(cluster: &str, etcd: &str) -> Vec<String> {
    let told = succeed(["store", "cluster", "status", cluster, "--etcd", etcd, "--json"]);
    let status: Value = serde_json::from_str(&told).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    let of = |node: &Value| node["node"].as_str().unwrap().to_owned();
    let mut members: Vec<_> = nodes.iter().filter(|node| node["part"] != "spare").map(of).collect();
    members.sort();
    members
}
