//! `remora dma` with the card of a daemon.

mod support;

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};

use remora::daemon::DmaClient;
use serde_json::Value;
use support::nic::Daemon;
use support::{command, pattern, until};

#[test]
fn bytes_stay_on_the_card_between_commands() {
    let daemon = Daemon::start();
    let data = daemon.folder.file("data", 3_000_001);
    let (data, back) = (data.to_str().unwrap(), daemon.folder.path("back"));
    let back_to = back.to_str().unwrap();
    for (number, path) in ["engine", "mapping", "process_vm", "pipe"].iter().enumerate() {
        let at = format!("card:{:#x}", number * 4_000_003);
        let told = daemon.json(&["dma", "copy", data, &at, "--path", path, "--json"]);
        assert_eq!((&told["bytes"], &told["to_card"]), (&3_000_001.into(), &(*path).into()));
        daemon.succeed(&["dma", "copy", &at, back_to, "--len", "3000001", "--path", path]);
        assert!(fs::read(&back).unwrap() == pattern(3_000_001), "{path}");
    }
    daemon.succeed(&["dma", "copy", "card:0", "card:0x4000001", "--len", "2M"]);
    let out = daemon.run(&["dma", "copy", "card:0x4000001", "-", "--len", "2M"]);
    assert!(out.stdout == pattern(3_000_001)[..2 << 20]);

    let beyond = daemon.run(&["dma", "copy", data, "card:0xffffffffff"]);
    let said = String::from_utf8_lossy(&beyond.stderr).into_owned();
    assert!(!beyond.status.success() && !said.contains("panicked"), "{said}");
    let both = ["dma", "copy", data, "card:0", "--card", "x", "--socket", "y"];
    assert!(String::from_utf8_lossy(&daemon.run(&both).stderr).contains("pass one"));
    let nowhere =
        command(["dma", "copy", data, "card:0", "--socket", "/nowhere"]).output().unwrap();
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(said.contains("no daemon listens at /nowhere"), "{said}");
}

/// Programs put bytes on the card without asking for a piece of it, too.
#[test]
fn what_is_measured_stays_as_it_is() {
    let daemon = Daemon::start();
    let data = daemon.folder.file("data", 2 << 20);
    let data = data.to_str().unwrap();
    // By first fit, measured pieces would lie at the beginnings of near and far memory.
    for at in ["card:0", "card:4G"] {
        daemon.succeed(&["dma", "copy", data, at, "--path", "engine"]);
    }
    daemon.succeed(&["dma", "paths"]);
    daemon.succeed(&["dma", "channels"]);
    daemon.succeed(&["dma", "copy", data, "card:1G"]);
    for at in ["card:0", "card:4G", "card:1G"] {
        let out = daemon.run(&["dma", "copy", at, "-", "--len", "2M"]);
        assert!(out.status.success() && out.stdout == pattern(2 << 20), "{at}");
    }
}

#[test]
fn paths_and_channels_of_a_daemon_are_told() {
    let daemon = Daemon::start();
    let paths = daemon.json(&["dma", "paths", "--json"]);
    let paths = paths.as_array().unwrap();
    assert_eq!(paths.iter().filter(|path| path["chosen"] == true).count(), 1);
    let engine = paths.iter().find(|path| path["path"] == "engine").unwrap();
    assert!(engine["impossible"].is_null(), "{engine}");
    let told = daemon.json(&["dma", "channels", "--json"]);
    assert_eq!(told["channels"].as_array().unwrap().len(), 8);
    assert_eq!(told["open"]["channels"], Value::Array(Vec::new()), "before it opened its own");
    // What was measured was carried out by the daemon's engine, and counted there.
    let again = daemon.json(&["dma", "channels", "--json"]);
    assert!(again["open"]["counters"]["done"].as_u64().unwrap() > 100);
    assert_eq!(again["open"]["counters"]["failed"], 0);
    let text = daemon.succeed(&["dma", "channels"]);
    assert!(text.contains("No program has a channel open"), "{text}");
}

/// A copy to the card by the engine, whose first MiB is there, and which waits for more.
fn half_a_copy(daemon: &Daemon, card: &DmaClient) -> (Child, ChildStdin) {
    let mut copy = command(["dma", "copy", "-", "card:0", "--path", "engine"]);
    copy.env("REMORA_NIC", daemon.folder.path("nic.sock"));
    let mut copy = copy.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = copy.stdin.take().unwrap();
    let data = pattern(1 << 20);
    input.write_all(&data).unwrap();
    let last = u64::from_le_bytes(data[data.len() - 8..].try_into().unwrap());
    until("the first part is on the card", || card.memory().load_u64((1 << 20) - 8) == Ok(last));
    (copy, input)
}

#[test]
fn a_program_that_is_killed_leaves_its_bytes_and_no_channel() {
    let daemon = Daemon::start();
    let card = DmaClient::connect(Some(&daemon.folder.path("nic.sock"))).unwrap();
    let (mut copy, _input) = half_a_copy(&daemon, &card);
    assert_eq!(card.status().unwrap().channels.len(), 2);
    until("its channels are shown", || {
        let told = daemon.json(&["nic", "status", "--json"]);
        let clients = told["dma_clients"].as_array().unwrap();
        let used = clients.iter().find(|client| client["pid"] == copy.id()).unwrap();
        assert!(used["regions"].as_u64() > Some(0), "{used}");
        // (None while the engine is in a call.)
        used["channels"].as_array().is_some_and(|channels| channels.len() == 2)
    });
    let table = daemon.succeed(&["nic", "status"]);
    // The process's number stands in the first of its rows.
    let row = table.lines().find(|line| line.contains(&format!(" {} ", copy.id())));
    assert!(row.is_some_and(|row| row.contains("memory") && row.contains("served")), "{table}");
    copy.kill().unwrap();
    copy.wait().unwrap();
    until("its channels are closed", || card.status().unwrap().channels.is_empty());
    let gone = |told: &Value| told["dma_clients"].as_array().unwrap().len() == 1;
    until("the test's own client is left", || gone(&daemon.json(&["nic", "status", "--json"])));
    let out = daemon.run(&["dma", "copy", "card:0", "-", "--len", "1M"]);
    assert!(out.stdout == pattern(1 << 20));
}

#[test]
fn a_copy_says_that_the_daemon_was_killed() {
    let daemon = Daemon::start();
    let card = DmaClient::connect(Some(&daemon.folder.path("nic.sock"))).unwrap();
    let (copy, mut input) = half_a_copy(&daemon, &card);
    drop(daemon);
    // The copy may have ended before it has read all of it.
    input.write_all(&[1; 100]).ok();
    drop(input);
    let ended = copy.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && said.contains("engine has stopped"), "{said}");
    assert!(card.status().is_err());
}

#[cfg(not(feature = "fuse"))]
#[test]
fn a_build_without_file_systems_says_how_to_get_one() {
    let said = support::fail(["dma", "mount", "--channels", "2", "somewhere"]);
    assert!(said.contains("--features fuse") && said.contains("dma files"), "{said}");
}
