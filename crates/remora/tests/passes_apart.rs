//! Passes between processes: memory that another process writes itself, when its owner wants it
//! back, when either is killed, and where they must not reach each other.

mod daemon;
#[path = "support/skips.rs"]
mod skips;

use std::process::Command;
use std::thread;

use daemon::Daemon;
use daemon::process::wait_for_sessions;
use daemon::program::Program;
use daemon::side::{LEN, Side};
use remora::nic::qp::{QpAttr, State};
use remora::nic::queue::{RemoteAddress, SendOp, Status};
use remora::prelude::Device;

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
        let (status, is_past) = side.writes(to);
        if is_past && !past {
            past = true;
            println!("says past");
        }
        if status != Status::Success {
            break;
        }
    }
}

/// A writer in this process that goes past the card, and the program that lends it memory.
fn lent(daemon: &Daemon) -> (Side, Program, RemoteAddress) {
    let mut program = Program::start("lend", &daemon.socket, "");
    let side = Side::on(daemon.attach());
    let to = side.connect(&program.says());
    program.hears(&side.described());
    assert_eq!(program.says(), "ready");
    assert!((0..1000).any(|_| side.goes_past(to)), "all WRITEs go by the card");
    (side, program, to)
}

#[test]
fn an_owner_that_has_ended_it_has_its_memory_for_itself() {
    let daemon = Daemon::start();
    for _ in 0..8 {
        let (side, mut program, to) = lent(&daemon);
        side.memory.buffer().unwrap().fill(0x11);
        program.hears("stop");
        while side.does(SendOp::Write { to, imm: None }) == Status::Success {}
        assert_eq!(program.says(), "untouched");
    }
}

#[test]
fn a_program_that_is_killed_is_written_no_more() {
    let daemon = Daemon::start();
    let (side, mut program, to) = lent(&daemon);
    program.kill();
    while side.does(SendOp::Write { to, imm: None }) == Status::Success {}
    wait_for_sessions(&daemon.observer(), 1);
    drop(side);
    wait_for_sessions(&daemon.observer(), 0);
}

#[test]
fn a_writer_that_is_killed_holds_nothing_up() {
    let daemon = Daemon::start();
    for _ in 0..4 {
        let mut program = Program::start("write", &daemon.socket, "");
        let side = Side::on(daemon.attach());
        side.connect(&program.says());
        program.hears(&side.described());
        assert_eq!(program.says(), "past");
        program.kill();
        drop(side);
        wait_for_sessions(&daemon.observer(), 0);
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
    let mut program = Program::within(unshare, "lend", &daemon.socket, "");
    let side = Side::on(daemon.attach());
    let to = side.connect(&program.says());
    program.hears(&side.described());
    assert_eq!(program.says(), "ready");
    assert!(!(0..200).any(|_| side.goes_past(to)), "memory of another namespace was mapped");
}
