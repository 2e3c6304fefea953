//! `remora bench daemon`, as a user runs it. The measured values are not checked here.

mod support;

use std::fs;

use serde_json::Value;
use support::verbs::{installed, libraries};
use support::{Folder, run};

/// The rows of any machine, and those that need perftest.
const ROWS: [&str; 8] = [
    "daemon_write_lat_8B",
    "daemon_write_bw_1MiB",
    "local_write_lat_8B",
    "local_write_bw_1MiB",
    "dma_h2c_4KiB",
    "dma_c2h_1MiB",
    "victim_p99",
    "takeover_ms",
];
const VERBS_ROWS: [&str; 2] = ["ib_write_lat_8B_local", "ib_send_bw_64B_local"];

#[test]
fn the_bench_of_a_shared_card_writes_its_rows() {
    libraries();
    let folder = Folder::new();
    let json = folder.path("rows.json");
    let output = run(["bench", "daemon", "--quick", "--json", json.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let rows = rows.as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name);
    let median = |name, side| row(name).unwrap()[side]["median"].as_f64();
    for name in ROWS {
        assert!(median(name, "ours").unwrap() > 0.0, "{name}");
        // UCX may not be installed.
        assert!(name == "local_write_lat_8B" || median(name, "peer").unwrap() > 0.0, "{name}");
    }
    if installed(&[("ib_write_lat", "perftest"), ("ib_send_bw", "perftest")]) {
        assert!(VERBS_ROWS.iter().all(|name| median(name, "ours").unwrap() > 0.0));
    }
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("16 clients moved") && printed.contains("takeover_ms"), "{printed}");
}

#[test]
fn a_row_that_there_is_none_of_is_named() {
    let output = run(["bench", "daemon", "--quick", "--only", "fig7"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("nothing is called `fig7`"), "{said}");
}
