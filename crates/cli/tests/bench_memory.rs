//! `remora bench memory`, its simulated half, as a user runs it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(["bench", "memory"]).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

/// The error output of a run that fails.
fn failure(args: &[&str]) -> String {
    let output = bench(args);
    assert!(!output.status.success(), "`remora bench memory {args:?}` should fail");
    String::from_utf8(output.stderr).unwrap()
}

fn path(end: &str) -> PathBuf {
    std::env::temp_dir().join(format!("remora-memory-{}.{end}", std::process::id()))
}

#[test]
fn simulated_figures_become_rows_and_a_page() {
    let (json, html) = (path("json"), path("html"));
    let [json_name, html_name] = [&json, &html].map(|path| path.to_str().unwrap());
    let args =
        ["--simulated", "--quick", "--only", "fig8", "--json", json_name, "--page", html_name];
    let output = bench(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&html).unwrap();
    // Expect: the paper's two values, each beside the simulated one.
    let rows = rows.as_array().unwrap();
    let stated: Vec<_> = rows
        .iter()
        .map(|row| (row["name"].as_str().unwrap(), row["peer"]["median"].as_f64().unwrap()))
        .collect();
    assert_eq!(stated, [("fig8: H2C, 1 MiB", 7.54), ("fig8: C2H, 1 MiB", 7.77)]);
    let printed = String::from_utf8(output.stdout).unwrap();
    for row in rows {
        let simulated = row["ours"]["median"].as_f64().unwrap();
        assert!(printed.contains(&format!("{simulated:.2}")), "{row} is not in\n{printed}");
    }
    assert_eq!(page.matches("<svg").count(), 1);
}

#[test]
fn predictions_are_rows_and_outlive_a_page_that_cannot_be_written() {
    let json = path("predictions.json");
    let folder = std::env::temp_dir();
    let args = ["--simulated", "--quick", "--only", "predictions", "--json"];
    let more = [json.to_str().unwrap(), "--html", folder.to_str().unwrap()];
    let said = failure(&[&args[..], &more].concat());
    assert!(said.contains(&format!("cannot write {}", folder.display())), "{said}");
    let rows: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    let rows = rows.as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"] == "predictions: 226 ns more, H2C, 4"), "{rows:?}");
    assert!(rows.iter().all(|row| row["ours"]["median"].as_f64() > Some(0.0)));
}

#[test]
fn each_parameter_is_printed_with_its_ground() {
    let output = bench(&["--parameters"]);
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    for words in ["round trip of a read", "1500 ns", "StRoM", "hypothesis", "assumed", "PG195"] {
        assert!(printed.contains(words), "`{words}` is not in\n{printed}");
    }
}

#[test]
fn what_cannot_be_run_is_said() {
    let said = failure(&["--simulated", "--only", "fig7"]);
    assert!(said.contains("nothing is called `fig7`") && said.contains("fig20"), "{said}");
    let said = failure(&["--parameters", "--simulated"]);
    assert!(said.contains("cannot be used with"), "{said}");
    let nowhere = "/nonexistent/page.html";
    let said = failure(&["--simulated", "--quick", "--only", "fig8", "--html", nowhere]);
    assert!(said.contains("there is no folder /nonexistent"), "{said}");
}
