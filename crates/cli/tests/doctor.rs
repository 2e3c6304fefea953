//! `remora doctor`: its findings on machines with faults that the tests make.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use support::nic::Daemon;
use support::verbs::{free_port, installed, libraries, remora_run};
use support::{Folder, Node, command, skips};

/// The check of what shares the card.
const CARD: &str = "shared card";

fn doctor(args: &[&str]) -> std::process::Command {
    libraries();
    let mut command = command(["doctor", "--json"]);
    for name in ["REMORA_ADDR", "REMORA_LIB_DIR", "NCCL_IB_GID_INDEX"] {
        command.env_remove(name);
    }
    command.args(args);
    command
}

fn report(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("panicked"), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {errors}"))
}

/// The status and the text of the check of this name; asserts that the exit status fits the report.
fn check(output: &Output, name: &str) -> (String, String) {
    let report = report(output);
    assert_eq!(report["healthy"].as_bool().unwrap(), output.status.success(), "{report}");
    let checks = report["checks"].as_array().unwrap();
    // The worst of them, if several checks have this name.
    let rank = |check: &&Value| {
        ["ok", "note", "warn", "fail"].iter().position(|s| check["status"] == **s).unwrap()
    };
    let found = checks.iter().filter(|check| check["name"] == name).max_by_key(rank);
    let found = found.unwrap_or_else(|| panic!("no check {name}: {report}"));
    let text = format!("{}; {}", found["found"], found["advice"]);
    (found["status"].as_str().unwrap().to_owned(), text)
}

#[test]
fn a_healthy_machine_passes() {
    let output = doctor(&[]).output().unwrap();
    for name in ["library", "address", "UDP port", "firewall", "GID", "MTU"] {
        let (status, text) = check(&output, name);
        assert_eq!(status, "ok", "{name}: {text}");
    }
    assert!(output.status.success());
    let table = command(["doctor"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("keeps verbs programs from connecting"), "{table}");
}

/// As in `remora doctor | head -n 1`.
#[test]
fn a_reader_of_only_the_first_lines_sees_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(["doctor"]).stdout(writer).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(128 + 13));
}

/// As in `remora devinfo > FILE`, on a disk that is full.
#[test]
fn an_output_that_cannot_be_written_is_an_error_and_no_panic() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(["devinfo"]).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("remora: cannot write to stdout: No space left"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_port_that_is_held_is_reported_with_the_process_that_holds_it() {
    let node = Node::start(["--region", "x=4096"]);
    let address = node.ready["node"].as_str().unwrap().split(':').next().unwrap().to_owned();
    for output in [
        doctor(&["--addr", &address]).output().unwrap(),
        doctor(&[]).env("REMORA_ADDR", &address).output().unwrap(),
    ] {
        let (status, text) = check(&output, "UDP port");
        assert_eq!(status, "fail", "{text}");
        assert!(text.contains(&node.child.id().to_string()) && text.contains("remora"), "{text}");
    }
}

#[test]
fn an_address_of_another_machine_is_refused() {
    for address in ["192.0.2.1", "nosuch0"] {
        let output = doctor(&["--addr", address]).output().unwrap();
        let (status, text) = check(&output, "address");
        assert_eq!(status, "fail", "{text}");
        assert!(text.contains(address) && text.contains("lo 127.0.0.1"), "{text}");
    }
}

#[test]
fn a_peer_that_does_not_answer_is_reported() {
    // Outside the addresses that cards take by themselves, so that no card takes it when it is free
    // again.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = format!("127.77.{high}.{}", low.clamp(1, 254));
    let node = Node::start(["--bind", &address, "--region", "x=4096"]);
    let (status, text) = check(&doctor(&[&address]).output().unwrap(), "peer");
    assert_eq!(status, "ok", "{text}");
    node.finish();
    let (status, text) = check(&doctor(&[&address]).output().unwrap(), "peer");
    assert_eq!(status, "fail", "{text}");
    assert!(text.contains("4791"), "{text}");
    let (status, text) = check(&doctor(&["no.such.name.invalid"]).output().unwrap(), "peer");
    assert_eq!(status, "fail", "{text}");
}

#[test]
fn settings_for_another_card_are_reported() {
    let output = doctor(&[]).env("NCCL_IB_GID_INDEX", "9").output().unwrap();
    let (status, text) = check(&output, "GID");
    assert_eq!(status, "warn");
    assert!(text.contains("NCCL_IB_GID_INDEX=9"), "{text}");
}

#[test]
fn a_daemon_that_shares_the_card_is_told() {
    let daemon = Daemon::start();
    let look = |nic: &OsStr| check(&doctor(&[]).env("REMORA_NIC", nic).output().unwrap(), CARD);
    let (status, text) = look(daemon.folder.path("nic.sock").as_os_str());
    assert_eq!(status, "ok", "{text}");
    assert!(text.contains("a daemon serves the card at 127."), "{text}");
    let none = daemon.folder.path("none.sock");
    let (status, text) = look(none.as_os_str());
    assert_eq!(status, "fail", "{text}");
    assert!(text.contains("none.sock") && text.contains("unset REMORA_NIC"), "{text}");
}

#[test]
fn a_card_of_its_own_is_no_fault() {
    let off = doctor(&[]).env("REMORA_NIC", "off").output().unwrap();
    let (status, text) = check(&off, CARD);
    assert!(status == "note" && text.contains("REMORA_NIC=off"), "{status}: {text}");
    if Path::new("/run/remora/nic.sock").exists() {
        return skips::lacks("this machine has a daemon at the usual place");
    }
    // The usual places: a folder of this user's, and the machine's.
    let folder = Folder::new();
    let mut usual = doctor(&[]);
    usual.env_remove("REMORA_NIC").env("XDG_RUNTIME_DIR", folder.path(""));
    let (status, text) = check(&usual.output().unwrap(), CARD);
    assert!(status == "note" && text.contains("no daemon"), "{status}: {text}");
}

/// The output in a network namespace that `prepare` has set up; `None` if the test cannot make one.
fn in_a_network(prepare: &str) -> Option<Output> {
    in_a_network_with(prepare, &[])
}

fn in_a_network_with(prepare: &str, args: &[&str]) -> Option<Output> {
    let plain = doctor(&[]);
    let script = format!(
        "ip link set lo up && {prepare} && echo made >&2 && exec \"$0\" doctor --json \"$@\""
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["-rn", "sh", "-c", &script]).arg(plain.get_program()).args(args);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().ok()?;
    let made = output.stderr.starts_with(b"made");
    if !made {
        skips::lacks(&format!("no network can be made here: {output:?}"));
    }
    made.then_some(output)
}

#[test]
fn a_link_of_small_packets_is_reported() {
    let Some(output) = in_a_network("ip link set lo mtu 1100") else { return };
    let (status, text) = check(&output, "MTU");
    assert_eq!(status, "warn");
    assert!(text.contains("path MTU 512") && text.contains("1100"), "{text}");
}

/// The way to an address of this machine's own starts at that address, which is its card's.
#[test]
fn a_card_of_this_machine_is_reached_at_an_address_of_its_network() {
    let folder = Folder::new();
    let out = folder.path("out");
    let out = out.display();
    let prepare = format!(
        "start() {{ setpriv --pdeathsig KILL \"$0\" \"$@\" > {out}.$1 & \
         while ! [ -s {out}.$1 ]; do sleep 0.05; done; }} && \
         for i in 192.0.2.7/32 192.0.2.8/32 192.0.2.9/32 fd00::7/128; do \
         ip addr add $i dev lo || exit 1; done && \
         {{ export REMORA_TOKEN=0123456789abcdef0123456789abcdef; \
         start node --json --bind 192.0.2.9 --region m=1M; \
         start perf serve --bind 192.0.2.8; \
         \"$0\" mem ls 192.0.2.9 > {out}.ls 2>&1; \
         \"$0\" perf write lat --iters 5 --no-pin --json 192.0.2.8 > {out}.to 2>&1; \
         \"$0\" perf write lat --iters 5 --no-pin --json --bind 192.0.2.7 > {out}.from 2>&1; \
         \"$0\" perf write lat --iters 5 --no-pin --json --bind fd00::7 > {out}.six 2>&1; }}"
    );
    let Some(output) = in_a_network_with(&prepare, &["192.0.2.9"]) else { return };
    for name in ["route", "peer"] {
        let (status, text) = check(&output, name);
        assert_eq!(status, "ok", "{text}");
    }
    let measured = ["to", "from", "six"].map(|name| (name, "median_us"));
    for (name, words) in measured.into_iter().chain([("ls", "1 048 576")]) {
        let told = fs::read_to_string(folder.path(&format!("out.{name}"))).unwrap();
        assert!(told.contains(words), "{name}: {told}");
    }
}

#[test]
fn a_firewall_is_reported() {
    // A filter of one instruction: it drops every packet.
    let drops = "tc qdisc add dev lo clsact && \
        tc filter add dev lo ingress bpf da bytecode '1,6 0 0 2,'";
    let Some(output) = in_a_network(drops) else { return };
    let (status, text) = check(&output, "firewall");
    assert_eq!(status, "fail");
    assert!(text.contains("4791") && !text.contains("os error"), "{text}");
}

#[test]
fn a_library_that_is_missing_or_not_remoras_is_a_failure() {
    let folder = Folder::new();
    let at = |path: &str| doctor(&[]).env("REMORA_LIB_DIR", path).output().unwrap();
    let (status, text) = check(&at("/no/such/folder"), "library");
    assert!(status == "fail" && text.contains("/no/such/folder"), "{text}");
    fs::write(folder.path("libremora_verbs.so"), "no library").unwrap();
    let path = folder.path("").to_str().unwrap().to_owned();
    let (status, text) = check(&at(&path), "library");
    assert!(status == "fail" && text.contains("no library"), "{text}");
}

#[test]
fn a_program_is_examined_and_not_run() {
    let folder = Folder::new();
    let trace = folder.path("it-ran");
    let script = format!("touch {}", trace.display());
    let output = doctor(&["--", "sh", "-c", &script]).output().unwrap();
    assert_eq!(check(&output, "program").0, "note", "sh is not a verbs program");
    assert!(!trace.exists());
    let (status, _) = check(&doctor(&["--", "no-such-program"]).output().unwrap(), "program");
    assert_eq!(status, "fail");
    if installed(&[("ibv_devinfo", "ibverbs-utils"), ("ib_write_lat", "perftest")]) {
        for name in ["ibv_devinfo", "ib_write_lat"] {
            let (status, text) = check(&doctor(&["--", name]).output().unwrap(), "program");
            assert_eq!(status, "ok", "{name}: {text}");
        }
    }
}

/// A file may name any program as the one that is to load it.
#[test]
fn what_a_program_names_as_its_loader_is_not_run() {
    let folder = Folder::new();
    let make = |name: &str, bytes: &[u8]| {
        fs::write(folder.path(name), bytes).unwrap();
        fs::set_permissions(folder.path(name), fs::Permissions::from_mode(0o700)).unwrap();
    };
    make("loader", b"#!/bin/sh\ntouch it-ran\n");
    let mut program = fs::read("/bin/true").unwrap();
    let at = program.windows(5).position(|word| word == b"/lib6").unwrap();
    program[at..at + 9].copy_from_slice(b"./loader\0");
    make("program", &program);
    let output = doctor(&["--", "./program"]).current_dir(folder.path(".")).output().unwrap();
    let (status, text) = check(&output, "program");
    assert!(status == "note" && text.contains("its libraries were not checked"), "{text}");
    assert_eq!(folder.names(), ["loader", "program"]);
}

#[test]
fn listeners_are_shown_with_their_cards() {
    if !installed(&[("ucmatose", "rdmacm-utils")]) {
        return;
    }
    let port = free_port().to_string();
    let mut server = remora_run(["--", "ucmatose", "-p", &port]);
    let mut server = support::verbs::Running::start(&mut server);
    server.listens_by_cm(port.parse().unwrap());
    let (status, text) = check(&doctor(&[]).output().unwrap(), "listeners");
    assert_eq!(status, "ok");
    assert!(text.contains(&format!("TCP port {port} of")), "{text}");
}
