//! The judge: starts etcd and nodes, writes, does harm, and looks what is left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::member::Etcd;
use super::{away, histories, readers};
#[path = "../../../remora/tests/support/until.rs"]
mod until;
pub(super) use until::until_ok as until;

/// How long anything may take on a busy machine; nothing is asserted about it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long the client waits for an answer before it asks another node.
const ANSWER: Duration = Duration::from_millis(3000);

/// A node, as a process.
pub(super) struct Node {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    asked: u64,
}

impl Node {
    fn start(endpoints: &[String]) -> Node {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["node", &endpoints.join(",")]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Node { process, commands, answers, asked: 0 }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Its number in the group.
    pub(super) fn number(&self) -> u64 {
        u64::from(self.process.id())
    }

    /// Sends a command; answers its number.
    fn send(&mut self, command: &str) -> u64 {
        self.asked += 1;
        // A node that has ended takes nothing, and does not answer.
        let _ = writeln!(self.commands, "{} {command}", self.asked);
        self.asked
    }

    /// The answer to a command, if it comes within `timeout`. Those to earlier ones are late.
    fn answer(&self, number: u64, timeout: Duration) -> Option<String> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.answers.recv_timeout(left).ok()?;
            let (of, answer) = line.split_once(' ')?;
            if of.parse() == Ok(number) {
                return Some(answer.to_owned());
            }
        }
    }

    pub(super) fn ask(&mut self, command: &str) -> Option<String> {
        let number = self.send(command);
        self.answer(number, ANSWER)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // (A process that is stopped ends by this signal, too.)
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) struct Trial {
    pub(super) nodes: BTreeMap<usize, Node>,
    pub(super) written: u64,
    /// Who took the last write.
    pub(super) primary: usize,
}

impl Trial {
    /// Writes until `wanted` more writes are acknowledged, by whichever node takes them. The answer
    /// is how long the longest wait for one was.
    pub(super) fn write(&mut self, wanted: u64) -> Duration {
        let mut longest = Duration::ZERO;
        for _ in 0..wanted {
            let start = Instant::now();
            let number = self.written;
            let put = format!("put key{number} value{number}");
            assert_eq!(self.ask(&put), "ok");
            self.written += 1;
            longest = longest.max(start.elapsed());
        }
        longest
    }

    /// The group's answer: that of the node that takes the command, which is tried at all.
    pub(super) fn ask(&mut self, command: &str) -> String {
        let start = Instant::now();
        loop {
            let first = self.primary;
            let others = self.nodes.keys().copied().filter(|name| *name != first);
            for name in [first].into_iter().chain(others).collect::<Vec<_>>() {
                let Some(node) = self.nodes.get_mut(&name) else { continue };
                let answer = node.ask(command);
                if let Some(answer) = answer.filter(|answer| !answer.starts_with("no:")) {
                    self.primary = name;
                    return answer;
                }
            }
            assert!(start.elapsed() < PATIENCE, "nobody takes {command}: {:#?}", self.statuses());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn statuses(&mut self) -> Vec<Option<String>> {
        self.nodes.values_mut().map(|node| node.ask("status")).collect()
    }

    /// Whether all nodes say such a thing of themselves; else what they say.
    pub(super) fn all_say(&mut self, is_it: impl Fn(&str) -> bool) -> Result<(), String> {
        let statuses = self.statuses();
        let says = |status: &Option<String>| status.as_deref().is_some_and(&is_it);
        if statuses.iter().all(says) { Ok(()) } else { Err(format!("{statuses:#?}")) }
    }

    /// All that was acknowledged is there.
    pub(super) fn check(&mut self) {
        for number in 0..self.written {
            let read = self.ask(&format!("get key{number}"));
            assert_eq!(read, format!("value{number}"), "key{number} is lost");
        }
    }

    /// All nodes have the same.
    fn compare(&mut self) {
        until("the nodes are alike", || {
            let mut ask = |command| -> Vec<_> {
                self.nodes.values_mut().map(|node| node.ask(command)).collect()
            };
            let (applied, digests) = (ask("applied"), ask("digest"));
            let are_alike = |all: &[Option<String>]| all.windows(2).all(|pair| pair[0] == pair[1]);
            let is_so = are_alike(&applied) && are_alike(&digests);
            if is_so { Ok(()) } else { Err(format!("{applied:?} {digests:?}")) }
        });
    }
}

pub(crate) fn run() {
    let mut etcd = Etcd::start();
    let endpoints = etcd.endpoints.clone();
    let start = || Node::start(&endpoints);
    let nodes = (0..3).map(|name| (name, start())).collect();
    let mut trial = Trial { nodes, written: 0, primary: 0 };
    trial.write(300);
    trial.compare();
    redirect(&mut trial);
    for round in 0..2 {
        stop_and_go_on(&mut trial, round);
    }
    away::run(&mut trial, &mut etcd);
    trial.compare();
    readers::run(&mut trial);
    trial.compare();
    histories::run(&mut trial, &start);
    trial.check();
    trial.compare();
    let killed = trial.primary;
    trial.nodes.remove(&killed);
    let took = trial.write(100);
    println!("kill -9 of the primary: the next write was acknowledged after {took:?}");
    trial.check();
    trial.compare();
    println!("{} writes acknowledged, none lost", trial.written);
    forget_everything(&mut trial, &mut etcd);
}

/// The primary sleeps past its lease, and wakes up with questions.
fn stop_and_go_on(trial: &mut Trial, round: u32) {
    let stopped = trial.primary;
    let pid = trial.nodes[&stopped].pid();
    kill_process(pid, Signal::STOP).unwrap();
    let mut node = trial.nodes.remove(&stopped).unwrap();
    let took = trial.write(100);
    println!("{round}: SIGSTOP of the primary: the next write after {took:?}");
    // What it is asked first is about a write that it cannot have taken part in.
    let last = trial.written - 1;
    let asked = node.send(&format!("get key{last}"));
    kill_process(pid, Signal::CONT).unwrap();
    let answer = node.answer(asked, PATIENCE).expect("a node that goes on answers");
    let is_right = answer.starts_with("no:") || answer == format!("value{last}");
    assert!(is_right, "a primary of the past answers {answer}");
    trial.nodes.insert(stopped, node);
    trial.write(50);
    trial.check();
}

/// etcd comes back without all that it had: nobody begins the group anew, and all say why.
fn forget_everything(trial: &mut Trial, etcd: &mut Etcd) {
    etcd.forget();
    etcd.wait();
    until("all nodes say what is wrong", || {
        trial.all_say(|status| status.contains("has lost its data"))
    });
    // A lease that was written before holds until its end.
    let reads = |node: &mut Node| node.ask("get key0").is_some_and(|a| !a.starts_with("no:"));
    until("no node serves", || {
        if trial.nodes.values_mut().any(reads) { Err("one does") } else { Ok(()) }
    });
    let refuses = |node: &mut Node| node.ask("put key0 other").is_none_or(|a| a.starts_with("no:"));
    assert!(trial.nodes.values_mut().all(refuses), "a node serves without a lease");
}

/// Redis' clients are served by the primary, and sent to it by the others.
fn redirect(trial: &mut Trial) {
    let start = Instant::now();
    // On a busy machine, the primary may change meanwhile.
    while let Err(wrong) = redirects(trial) {
        assert!(start.elapsed() < PATIENCE, "{wrong}");
        trial.write(1);
    }
    // (The flush took all with it.)
    trial.written = 0;
    trial.write(100);
}

fn redirects(trial: &mut Trial) -> Result<(), String> {
    let primary = trial.primary;
    let ask = |node: &mut Node| node.ask("redis").unwrap_or_default();
    let at: BTreeMap<_, _> =
        trial.nodes.iter_mut().map(|(name, node)| (*name, ask(node))).collect();
    for (name, address) in &at {
        let elsewhere = format!("-MOVED 12182 {}", at[&primary]);
        let readonly = "-READONLY You can't write against a read only replica.".to_owned();
        let own = [("SET foo 1", "+OK"), ("GET foo", "$1"), ("FLUSHDB", "+OK")];
        let others = [elsewhere.clone(), elsewhere, readonly];
        for ((command, own), other) in own.into_iter().zip(others) {
            let expected = if *name == primary { own } else { &other };
            expect(address, command, expected)?;
        }
        expect(address, "CLUSTER KEYSLOT foo", ":12182")?;
        expect(address, "CLUSTER SLOTS", "*1")?;
    }
    Ok(())
}

fn expect(address: &str, command: &str, expected: &str) -> Result<(), String> {
    let line = redis(address, command);
    if line == expected { Ok(()) } else { Err(format!("{command} at {address}: {line}")) }
}

/// The first line of the reply to a command.
fn redis(address: &str, command: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a node's Redis front");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}
