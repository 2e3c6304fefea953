//! `remora bench scale`, what of it needs no quiet machine, as a user runs it.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::skips;
use support::verbs::libraries;

fn path(end: &str) -> PathBuf {
    std::env::temp_dir().join(format!("remora-scale-{}.{end}", std::process::id()))
}

#[test]
fn a_row_of_memory_is_found_by_its_name_and_another_name_writes_nothing() {
    let (rows, _) = bench("memory_10000_bitmaps");
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["memory_10000_bitmaps"]);
    let html = path("before.html");
    std::fs::write(&html, "the page of before").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(["bench", "scale", "--quick", "--only", "memroy", "--html"]).arg(&html);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("nothing is called `memroy`"), "{said}");
    assert_eq!(std::fs::read(&html).unwrap(), b"the page of before");
    std::fs::remove_file(&html).unwrap();
}

/// The rows whose names contain `only`, and the page.
fn bench(only: &str) -> (Vec<Value>, String) {
    let (json, html) = (path(&format!("{only}.json")), path(&format!("{only}.html")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(["bench", "scale", "--quick", "--only", only]).arg("--json").arg(&json);
    let output = command.arg("--html").arg(&html).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&html).unwrap();
    (rows, page)
}

#[test]
fn what_structures_take_is_beside_the_papers() {
    let (rows, page) = bench("memory_");
    let row = |name: &str| rows.iter().find(|row| row["name"] == name);
    let median = |name: &str| row(name).unwrap()["ours"]["median"].as_f64().unwrap();
    for part in ["queue_pairs_hot", "work_queue_rings", "receive_buffer", "lossy_state"] {
        assert!(median(&format!("memory_10000_{part}")) > 0.0, "{part}");
    }
    // There are none without losses.
    for part in ["bitmaps", "reordering_buffer"] {
        assert_eq!(median(&format!("memory_10000_{part}")), 0.0, "{part}");
    }
    assert!(median("memory_500_all") > 0.0);
    assert!(page.contains("StRoM, 100 Gb/s") && page.contains("memory_10000_bitmaps"));
}

/// Two processes, by rdma_cm: the program fails if one connection does.
#[test]
fn a_storm_of_a_verbs_program_is_all_up() {
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        skips::has_not("librdmacm's headers are not installed");
        return;
    }
    libraries();
    let (rows, page) = bench("storm_5000_verbs");
    assert!(rows[0]["ours"]["median"].as_f64().unwrap() > 0.0, "{rows:?}");
    assert!(page.contains("storm_5000_verbs"));
}

#[test]
fn crowds_of_clients_are_served() {
    for name in ["clients_200", "behind_70000_refused"] {
        let (rows, _) = bench(name);
        assert!(rows[0]["ours"]["median"].as_f64().unwrap() > 0.0, "{rows:?}");
    }
}
