//! The primary goes while a node that comes is sent a copy of the store.
#![cfg(feature = "cluster")]

#[path = "../../cluster/tests/etcd/member.rs"]
mod member;
mod support;

use std::fs;
use std::path::Path;

use member::Etcd;
use remora::impair::IMPAIR_VARIABLE;
use rustix::process::Signal;
use support::nodes::{Process, answered, compare, members, redis};
use support::verbs::installed;
use support::{Folder, command, until};

const CLUSTER: &str = "copies";
/// How many values a copy has, and how long they are: together far more than is sent before a
/// primary that was seen to send is killed.
const VALUES: usize = 1000;
const LENGTH: usize = 64_000;

struct Trial {
    /// Those that are asked. (They end before etcd does.)
    nodes: Vec<Option<Process>>,
    etcd: Etcd,
    written: usize,
}

impl Trial {
    fn start() -> Trial {
        let etcd = Etcd::start();
        let nodes: Vec<_> = (0..3).map(|_| node_command(&etcd)).collect();
        let nodes = nodes.into_iter().map(|command| Some(Process::start(command))).collect();
        Trial { nodes, etcd, written: 0 }
    }

    /// Writes values; who was the last to take one?
    fn write(&mut self, count: usize) -> usize {
        let mut by = 0;
        for number in self.written..self.written + count {
            let (key, value) = (format!("key{number}"), value(number));
            let set = format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}",
                key.len(),
                value.len()
            );
            by = answered(&self.nodes, &set, &["+OK"]);
        }
        self.written += count;
        by
    }

    /// All that was acknowledged is there.
    fn check(&self) {
        for number in 0..self.written {
            let value = value(number);
            let length = format!("${}", value.len());
            answered(&self.nodes, &format!("GET key{number}"), &[&length, &value]);
        }
    }

    fn members(&self) -> Vec<String> {
        members(CLUSTER, &self.etcd.endpoints.join(","))
    }

    /// The number of copies that a node has begun to send.
    fn copies(&self, index: usize) -> u32 {
        let said = self.nodes[index].as_ref().and_then(|node| node.info("cluster_snapshots"));
        said.map_or(0, |count| count.parse().unwrap())
    }

    /// Waits until a primary sends more copies than before. Which one?
    fn sender(&self, before: &[u32]) -> usize {
        let mut sender = None;
        until("a primary sends a copy", || {
            sender = (0..before.len()).find(|index| {
                let serves = |node: &Process| node.info("cluster_standing").unwrap() == "serves";
                self.copies(*index) > before[*index]
                    && self.nodes[*index].as_ref().is_some_and(serves)
            });
            sender.is_some()
        });
        sender.unwrap()
    }
}

fn value(number: usize) -> String {
    format!("{number:08}").repeat(LENGTH / 8)
}

fn node_command(etcd: &Etcd) -> std::process::Command {
    let serve = ["store", "serve", "--json", "--until-eof", "--redis", "127.0.0.1:0"];
    let how = ["--memory", "256M", "--ring", "1M", "--lease", "1", "--cluster", CLUSTER];
    let mut node = command([&serve[..], &how, &["--etcd", &etcd.endpoints.join(",")]].concat());
    node.env_remove(IMPAIR_VARIABLE);
    node
}

/// A network that is so slow that no copy comes to its end, or as quick as it is.
fn make_slow(file: &Path, is_slow: bool) {
    // The card reads it again and again: it never sees a part of it.
    let next = file.with_extension("next");
    fs::write(&next, if is_slow { "delay=5ms" } else { "off" }).unwrap();
    fs::rename(&next, file).unwrap();
}

/// A backup is taken for lost, and a spare node is brought up in its place. In the middle of that
/// the primary is killed, and the backup goes on: it has missed so much that it needs a copy, too.
#[test]
fn the_primary_goes_while_it_sends_a_copy() {
    if !installed(&[("etcd", "etcd-server")]) {
        return;
    }
    let folder = Folder::new();
    let network = folder.path("network");
    let mut trial = Trial::start();
    let primary = trial.write(VALUES);
    let lost = trial.nodes[(primary + 1) % 3].take().unwrap();
    lost.signal(Signal::STOP);
    // More than the ring has.
    trial.write(40);
    let before: Vec<_> = (0..3).map(|index| trial.copies(index)).collect();
    make_slow(&network, true);
    let mut command = node_command(&trial.etcd);
    command.env(IMPAIR_VARIABLE, format!("@{}", network.display()));
    let spare = Process::start(command);
    let sender = trial.sender(&before);
    // What changes meanwhile is part of what the node is to have.
    trial.write(10);
    let killed = trial.nodes[sender].take().unwrap();
    let killed_name = killed.text("node").to_owned();
    drop(killed);
    // (Nobody else changes the members before a lease is over.)
    let members = trial.members();
    assert!(members.contains(&killed_name), "{members:?}");
    assert!(!members.contains(&spare.text("node").to_owned()), "the copy was there at its end");
    make_slow(&network, false);
    lost.signal(Signal::CONT);
    trial.nodes.extend([Some(lost), Some(spare)]);
    trial.write(10);
    let mut left: Vec<_> =
        trial.nodes.iter().flatten().map(|node| node.text("node").to_owned()).collect();
    left.sort();
    until("the spare has the place of the primary that was killed", || trial.members() == left);
    trial.write(10);
    trial.check();
    compare(&trial.nodes);
    for node in trial.nodes.iter().flatten() {
        assert_eq!(redis(node.front(), "DBSIZE"), [format!(":{}", trial.written)]);
    }
}
