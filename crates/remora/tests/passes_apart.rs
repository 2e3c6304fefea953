//! Passes between processes: memory that another process writes itself, when its owner wants it
//! back, when either is killed, and where they must not reach each other.

mod daemon;
#[path = "support/skips.rs"]
mod skips;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use daemon::Daemon;
use remora::message::SOCKET_VARIABLE;
use remora::nic::Psn;
use remora::nic::qp::{QpAttr, State};
use remora::nic::queue::{Data, Remote, SendFlags, SendOp, SendRequest, Status};
use remora::prelude::{
    Access, CompletionQueue, ConnectionParams, Device, DeviceOptions, MemoryRegion, Peer,
    QueuePair, QueuePairOptions,
};

const LONG: Duration = Duration::from_secs(20);
const LEN: usize = 1 << 18;

/// One end of a connection.
struct Side {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Side {
    fn on(device: Device) -> Side {
        let cq = device.create_cq(64).unwrap();
        let domain = device.alloc_pd().unwrap();
        let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
        let memory = domain.alloc(LEN, Access::all()).unwrap();
        Side { device, cq, qp, memory }
    }

    /// What a peer has to know.
    fn described(&self) -> String {
        let (Peer { address, qpn, psn }, Remote { addr, rkey }) =
            (self.qp.local(), self.memory.remote(0));
        format!("{address} {qpn} {} {addr} {rkey}", psn.value())
    }

    /// Connects to the peer that has described itself so; returns its memory.
    fn connect(&self, peer: &str) -> Remote {
        let words: Vec<&str> = peer.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let psn = Psn::new(number(2) as u32);
        let peer = Peer { address: words[0].parse().unwrap(), qpn: number(1) as u32, psn };
        let params = ConnectionParams::new(self.device.info().mtu).timeout(14).retry_cnt(1);
        self.qp.connect(peer, &params).unwrap();
        Remote { addr: number(3), rkey: number(4) as u32 }
    }

    /// Writes all of the peer's memory, once.
    fn writes(&self, to: Remote) -> Status {
        let sges = [self.memory.sge(0, LEN as u32)];
        let op = SendOp::Write { to, imm: None };
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
        self.cq.spin(LONG).unwrap().status
    }

    /// Does a WRITE go past the card?
    fn goes_past(&self, to: Remote) -> bool {
        let fetched = || self.device.counters().card.elements_fetched;
        let before = fetched();
        assert_eq!(self.writes(to), Status::Success);
        fetched() == before
    }
}

/// Lends its memory, until it is told to `stop`: then it ends its queue pair, and looks whether its
/// memory is its own.
#[test]
#[ignore = "a program for other tests"]
fn lend() {
    let side = Side::on(Device::open().unwrap());
    println!("says {}", side.described());
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    side.connect(&lines.next().unwrap());
    println!("says ready");
    for line in lines {
        assert_eq!(line, "stop");
        side.qp.modify(&QpAttr { state: Some(State::Error), ..QpAttr::default() }).unwrap();
        let own = [0xEE; 4096];
        side.memory.buffer().unwrap().fill(own[0]);
        let is_own = |at: usize| side.memory.slice(at..at + 4096).to_vec().unwrap() == own;
        let untouched = (0..20).all(|_| {
            thread::yield_now();
            (0..LEN).step_by(4096).all(is_own)
        });
        println!("says {}", if untouched { "untouched" } else { "touched" });
    }
}

/// Writes a peer's memory for ever.
#[test]
#[ignore = "a program for other tests"]
fn write() {
    let side = Side::on(Device::open().unwrap());
    println!("says {}", side.described());
    let to = side.connect(&std::io::stdin().lines().next().unwrap().unwrap());
    let mut past = false;
    while side.device.is_attached() {
        if !past && side.goes_past(to) {
            past = true;
            println!("says past");
        }
        if side.writes(to) != Status::Success {
            break;
        }
    }
}

/// Another process, which runs one of the tests above.
struct Program {
    child: Child,
    input: ChildStdin,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Program {
    fn start(daemon: &Daemon, test: &str) -> Program {
        Program::spawn(Command::new(std::env::current_exe().unwrap()), daemon, test)
    }

    fn spawn(mut command: Command, daemon: &Daemon, test: &str) -> Program {
        command.args(["--ignored", "--exact", test, "--nocapture"]);
        command.env(SOCKET_VARIABLE, &daemon.socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        Program { child, input, lines: Box::new(lines) }
    }

    /// What the program says next; it may stand behind what the test's harness writes.
    fn line(&mut self) -> String {
        let rest = |line: String| line.split_once("says ").map(|(_, rest)| rest.to_owned());
        self.lines.find_map(rest).expect("the program goes on")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A writer in this process that goes past the card, and the program that lends it memory.
fn lent(daemon: &Daemon) -> (Side, Program, Remote) {
    let mut program = Program::start(daemon, "lend");
    let side = Side::on(attach(daemon));
    let to = side.connect(&program.line());
    writeln!(program.input, "{}", side.described()).unwrap();
    assert_eq!(program.line(), "ready");
    assert!((0..1000).any(|_| side.goes_past(to)), "all WRITEs go by the card");
    (side, program, to)
}

fn attach(daemon: &Daemon) -> Device {
    DeviceOptions::new().attach(&daemon.socket).open().unwrap()
}

/// Waits until the daemon has only so many sessions.
fn wait_for_sessions(daemon: &Daemon, count: usize) {
    let until = Instant::now() + LONG;
    while daemon.observer().status().unwrap().sessions.len() != count {
        assert!(Instant::now() < until, "a session stays");
        thread::yield_now();
    }
}

#[test]
fn an_owner_that_has_ended_it_has_its_memory_for_itself() {
    let daemon = Daemon::start();
    for _ in 0..8 {
        let (side, mut program, to) = lent(&daemon);
        side.memory.buffer().unwrap().fill(0x11);
        writeln!(program.input, "stop").unwrap();
        while side.writes(to) == Status::Success {}
        assert_eq!(program.line(), "untouched");
    }
}

#[test]
fn a_program_that_is_killed_is_written_no_more() {
    let daemon = Daemon::start();
    let (side, mut program, to) = lent(&daemon);
    program.kill();
    while side.writes(to) == Status::Success {}
    wait_for_sessions(&daemon, 1);
    drop(side);
    wait_for_sessions(&daemon, 0);
}

#[test]
fn a_writer_that_is_killed_holds_nothing_up() {
    let daemon = Daemon::start();
    for _ in 0..4 {
        let mut program = Program::start(&daemon, "write");
        let side = Side::on(attach(&daemon));
        side.connect(&program.line());
        writeln!(program.input, "{}", side.described()).unwrap();
        assert_eq!(program.line(), "past");
        program.kill();
        drop(side);
        wait_for_sessions(&daemon, 0);
    }
}

#[test]
fn programs_that_cannot_read_each_others_memory_go_by_the_card() {
    if !skips::has("unshare", "util-linux") {
        return;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user"]);
    let mut probe = Command::new("unshare");
    if !probe.args(["--user", "true"]).status().is_ok_and(|status| status.success()) {
        skips::lacks("this system makes no user namespaces");
        return;
    }
    let daemon = Daemon::start();
    unshare.arg(std::env::current_exe().unwrap());
    let mut program = Program::spawn(unshare, &daemon, "lend");
    let side = Side::on(attach(&daemon));
    let to = side.connect(&program.line());
    writeln!(program.input, "{}", side.described()).unwrap();
    assert_eq!(program.line(), "ready");
    assert!(!(0..200).any(|_| side.goes_past(to)), "memory of another namespace was mapped");
}
