//! `remora bench loss`, its simulated half, as a user runs it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(["bench", "loss"]).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

fn path(end: &str) -> PathBuf {
    std::env::temp_dir().join(format!("remora-loss-{}.{end}", std::process::id()))
}

/// The simulated rows and figures: each target is met, and each scheme has a column.
#[test]
fn simulated_rows_meet_their_targets_and_become_a_page() {
    let (json, html) = (path("json"), path("html"));
    let [json_name, html_name] = [&json, &html].map(|path| path.to_str().unwrap());
    let args = ["--simulated", "--quick", "--json", json_name, "--html", html_name];
    let output = bench(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&html).unwrap();
    let rows = rows.as_array().unwrap();
    let ratio = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no row {name} in {rows:?}"))["ratio"].as_f64().unwrap()
    };
    for mtu in ["1024", "4096"] {
        assert!(ratio(&format!("loss_1pct_{mtu}")) >= 0.97);
    }
    for paths in ["1", "8", "64"] {
        assert!(ratio(&format!("spurious_{paths}_paths")) <= 1.0);
    }
    assert!(ratio("tail_loss") <= 1.0, "{}", ratio("tail_loss"));
    // Two figures by loss and one by paths.
    assert_eq!(page.matches("<svg").count(), 3);
    let printed = String::from_utf8(output.stdout).unwrap();
    for scheme in ["lossy dialect", "go-back-N", "SRNIC (model)", "IRN (model)"] {
        assert!(page.contains(scheme) && printed.contains(scheme), "`{scheme}` is missing");
    }
}

/// `--only` leaves out all other rows and figures.
#[test]
fn only_what_is_asked_for_is_measured() {
    let (json, html) = (path("only.json"), path("only.html"));
    let [json_name, html_name] = [&json, &html].map(|path| path.to_str().unwrap());
    let only = ["--simulated", "--quick", "--only", "tail", "--json", json_name];
    let output = bench(&[&only[..], &["--html", html_name]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::remove_file(&html).unwrap();
    assert!(page.contains("tail_loss") && !page.contains("<svg"));
    let names: Vec<&str> =
        rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tail_loss"]);
}
