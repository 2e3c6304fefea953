//! Failures while a node runs: files that shrink, nodes and clients that vanish.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::net::Ipv4Addr;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Folder, Node, address, command, fail, region_of, run, succeed, until};

#[test]
fn a_file_that_shrinks_is_withdrawn() {
    let folder = Folder::new();
    let data = folder.file("data", 8 << 20);
    let node = Node::start(["--region", &region_of("data", &data), "--region", "m=1M", "--stats"]);
    let copy = folder.path("copy");
    // A client that reads slowly, because the test does not empty the pipe to which it writes.
    let mut reader = command(["mem", "read", &node.region("data"), "--out", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = reader.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    File::options().write(true).open(&data).unwrap().set_len(1 << 20).unwrap();

    // A client that comes now gets the reason; a client that was reading may have all its data in
    // flight.
    let why = fail(["mem", "read", &node.region("data"), "--out", copy.to_str().unwrap()]);
    assert!(why.contains("`data` is withdrawn: its file shrank from 8388608 to 1048576"), "{why}");
    let rest = std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    let output = reader.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    if output.status.success() {
        assert_eq!(rest, (8 << 20) - 1000);
    } else {
        assert!(errors.contains("its file shrank"), "{errors}");
    }

    assert_eq!(folder.names(), ["data"]);
    succeed(["mem", "read", &node.region("m"), "--out", "-"]);
    let (stats, said) = node.finish();
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["events"]["regions_withdrawn"], 1);
    assert!(stats["events"]["refused_withdrawn_region"].as_u64() >= Some(1));
    assert!(said.contains("region `data` is withdrawn"), "{said}");
}

#[test]
fn a_file_that_shrinks_in_mid_transfer_ends_it_with_a_reason() {
    let folder = Folder::new();
    let data = folder.file("data", 64 << 20);
    let node = Node::start(["--region", &region_of("data", &data)]);
    let mut reader = command(["mem", "read", &node.region("data"), "--out", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = reader.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    // At most 8 MiB are in flight; the rest waits until this test empties the pipe.
    File::options().write(true).open(&data).unwrap().set_len(1000).unwrap();
    std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    let output = reader.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(errors.contains("its file shrank from 67108864 to 1000 bytes"), "{errors}");
}

#[test]
fn a_node_that_is_killed_in_mid_transfer_is_noticed() {
    let folder = Folder::new();
    let data = folder.file("data", 64 << 20);
    // An address that no other test's node takes when this node is gone.
    let region = region_of("data", &data);
    let bind = Ipv4Addr::from(address()).to_string();
    let mut node = Node::start(["--bind", &bind, "--region", &region]);
    let mut reader = command(["mem", "read", &node.region("data"), "--out", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = reader.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    node.child.kill().unwrap();
    let read = std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    let output = reader.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && read < (64 << 20) - 1000, "{errors}");
    assert!(errors.contains("the peer did not answer") && errors.contains("no answer"), "{errors}");
}

#[test]
fn an_interrupted_read_leaves_no_half_file() {
    let folder = Folder::new();
    let node = Node::start(["--region", "m=1G"]);
    let copy = folder.path("copy");
    let mut reader = command(["mem", "read", &node.region("m"), "--out", copy.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while folder.names().is_empty() && reader.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&reader), Signal::INT).unwrap();
    let status = reader.wait().unwrap();
    if status.success() {
        assert_eq!(fs::metadata(&copy).unwrap().len(), 1 << 30, "the read ended before the signal");
    } else {
        assert!(folder.names().is_empty(), "{:?}", folder.names());
    }
}

#[test]
fn signals_end_a_node_in_order() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut node = Node::start(["--region", "m=1M", "--stats"]);
        kill_process(Pid::from_child(&node.child), signal).unwrap();
        let (stats, _) = node.end();
        assert!(serde_json::from_str::<Value>(&stats).unwrap()["counters"].is_object());
    }
}

#[test]
fn clients_that_are_killed_do_not_stay() {
    let node = Node::start(["--region", "m=1G"]);
    let address = node.address();
    for _ in 0..3 {
        let mut reader = command(["mem", "read", &node.region("m"), "--out", "-"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = reader.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 1000]).unwrap();
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    // The node notices by its own probes, some time later.
    until("three clients have vanished", || {
        let stats: Value = serde_json::from_str(&succeed(["stats", &address, "--json"])).unwrap();
        stats["events"]["clients_vanished"].as_u64() >= Some(3)
    });
}

/// Between two looks of the node the file shrinks and is as long again. Its bytes are those of a
/// file that was rewritten in place; a reader gets them whole, or a reason.
#[test]
fn a_file_that_shrinks_and_grows_again_within_a_tick() {
    const LEN: usize = 1 << 20;
    let folder = Folder::new();
    let data = folder.file("data", LEN);
    let node = Node::start(["--region", &region_of("data", &data), "--region", "m=1M"]);
    let copy = folder.path("copy");
    let file = File::options().write(true).open(&data).unwrap();
    for _ in 0..20 {
        let mut reader = command(["mem", "read", &node.region("data"), "--out"])
            .arg(&copy)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while reader.try_wait().unwrap().is_none() {
            file.set_len(1000).unwrap();
            file.set_len(LEN as u64).unwrap();
        }
        let output = reader.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.contains("panicked"), "{errors}");
        if output.status.success() {
            assert_eq!(fs::metadata(&copy).unwrap().len(), LEN as u64);
        } else {
            assert!(errors.contains("READ of") || errors.contains("shrank"), "{errors}");
        }
    }
    // The node serves on, and the file too unless a look found it shrunk.
    succeed(["mem", "read", &node.region("m"), "--out", "-"]);
    let output = run(["mem", "read", &node.region("data"), "--out", copy.to_str().unwrap()]);
    if output.status.success() {
        assert_eq!(fs::read(&copy).unwrap(), fs::read(&data).unwrap());
    } else {
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("its file shrank"), "{errors}");
    }
}

/// The capture ends with one warning, the node goes on, and what the capture lacks is counted.
#[test]
fn a_full_disk_ends_the_capture_only() {
    let node = Node::start_with(["--region", "m=8M", "--stats"], |command| {
        command.env("REMORA_PCAP", "/dev/full");
    });
    succeed(["mem", "read", &node.region("m"), "--out", "-"]);
    let (stats, said) = node.finish();
    assert_eq!(said.matches("the capture ends").count(), 1, "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert!(stats["counters"]["capture_missed"].as_u64() > Some(1000), "{stats}");
}
