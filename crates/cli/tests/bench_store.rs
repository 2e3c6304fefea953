//! `remora bench store`, as a user runs it. The measured values are not checked here.

mod support;

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use support::skips::is_there;
use support::{Folder, fail, run};

/// Rows that need no program from elsewhere.
const OWN: [&str; 15] = [
    "get_kernel_64B",
    "get_cached_64B",
    "get_chain_64B",
    "put_kernel_64B",
    "conditions_8",
    "kernel_rate_64B",
    "skew_128",
    "scan_pushdown",
    "scan_compare",
    "scan_compare_store",
    "scan_like",
    "scan_like_store",
    "scan_lz4",
    "scan_lz4_store",
    "bytes_a_key",
];
/// Rows of the clients of Redis and memcached, each also by processor time.
const REDIS: [&str; 5] =
    ["redis_get_p1", "redis_set_p1", "redis_get_p16", "redis_set_p16", "put_logged_64B"];
const MEMCACHED: [&str; 1] = ["memcached_get"];
/// A point of each figure, and the fewest rows of it: one for each way but the first.
const POINTS: [(&str, usize); 9] = [
    ("fig7: 64", 6),
    ("fig7c: 16", 1),
    ("fig8: 256", 5),
    ("fig9: 128", 1),
    ("fig11: 4096", 2),
    ("fig12: 10", 1),
    ("fig13: substring", 1),
    ("fig14: 4 KiB", 3),
    ("table5: 64 B, median", 3),
];

fn bench(folder: &Folder, more: &[&str]) -> (Output, Vec<Value>, String) {
    let (json, html) = (folder.path("rows.json"), folder.path("page.html"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (json_name, html_name) = (text(&json), text(&html));
    let args = ["bench", "store", "--quick", "--json", &json_name, "--html", &html_name];
    let output = run([&args, more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    (output, rows, std::fs::read_to_string(&html).unwrap())
}

fn median(row: &Value, side: &str) -> Option<f64> {
    row[side]["median"].as_f64()
}

#[test]
fn the_bench_of_the_store_writes_its_rows_and_a_page() {
    let folder = Folder::new();
    let (output, rows, page) = bench(&folder, &[]);
    let named = |name: &str| {
        let found = rows.iter().filter(move |row| row["name"].as_str().unwrap().starts_with(name));
        found.collect::<Vec<_>>()
    };
    let one = |name: &str| {
        let found = rows.iter().filter(|row| row["name"] == name).collect::<Vec<_>>();
        assert_eq!(found.len(), 1, "{name}");
        assert!(median(found[0], "ours") > Some(0.0), "{}", found[0]);
        found[0]
    };
    OWN.iter().for_each(|name| _ = one(name));
    let served = [(&REDIS[..], "redis-benchmark"), (&MEMCACHED[..], "memcaslap")];
    for (names, client) in served {
        for name in names.iter().filter(|_| is_there(client)) {
            let rows = [one(name), one(&format!("{name}_cpu"))];
            let server = if client == "memcaslap" { "memcached" } else { "redis-server" };
            assert!(!is_there(server) || rows.iter().all(|r| median(r, "peer") > Some(0.0)));
        }
    }
    // What is not installed is named, and has no figure.
    for row in &rows {
        let peer = row["peer"]["name"].as_str().unwrap();
        let is_missing = peer.starts_with("not measured: install");
        assert!(is_missing == row["peer"]["median"].is_null(), "{row}");
    }
    for (point, ways) in POINTS {
        assert!(named(point).len() >= ways, "{point}");
    }
    assert_eq!(page.matches("<svg").count(), POINTS.len());
    assert!(page.contains("Caribou’s Figure 12") && page.contains("RedN’s Table 5"));
    assert!(!page.contains("NaN"), "what was not measured is a dash");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("get_chain_64B") && printed.contains("processor: "));
}

#[test]
fn one_row_needs_no_others() {
    let folder = Folder::new();
    let (_, rows, page) = bench(&folder, &["--only", "scan_compare"]);
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["scan_compare", "scan_compare_store"]);
    assert!(!page.contains("<svg"));
    let said = fail(["bench", "store", "--quick", "--only", "fig99"]);
    assert!(said.contains("nothing is called `fig99`") && said.contains("fig9"), "{said}");
}
