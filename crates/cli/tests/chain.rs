//! `remora chain`, as a user runs it.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use support::Folder;

fn chain(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora")).arg("chain").args(args).output().unwrap()
}

fn example(name: &str) -> String {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.join("../../examples/chains").join(name).display().to_string()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json_lines(output: &Output) -> Vec<Value> {
    out(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn examples_do_what_they_say() {
    let expected = [
        ("if.chain", "answer = 1\n"),
        ("search.chain", "found = 4\n"),
        ("compare.chain", "equal = 2\nless = 1\nsame = 1\nsorted = 42\n"),
        ("hash_get.chain", "the client received \"the value of 7\"\n"),
        ("mov.chain", "r = 5, 10, 30, 0\narray = 10, 20, 5, 40\n"),
    ];
    for (name, text) in expected {
        let run = chain(&["run", &example(name)]);
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(out(&run), text, "{name}");
    }
}

#[test]
fn an_endless_program_runs_until_it_is_stopped() {
    let run = chain(&["run", &example("endless.chain"), "--seconds", "0.2", "--json"]);
    assert!(run.status.success());
    let outcome = &json_lines(&run)[0];
    assert_eq!(outcome["rests"], false);
    let rounds = outcome["shown"][0]["value"].as_str().unwrap();
    assert_ne!(rounds, "0");
}

#[test]
fn a_trace_shows_each_step_and_draws_the_chain() {
    let folder = Folder::new();
    let svg = folder.path("if.svg");
    let trace = chain(&["trace", &example("if.chain"), "--svg", svg.to_str().unwrap(), "--json"]);
    assert!(trace.status.success());
    let steps = json_lines(&trace);
    let cas = &steps[0];
    assert_eq!(cas["fetched"], "cas r2.head: noop:5 ⇒ write:5");
    assert_eq!(cas["effect"][0], "r2.head: noop:5 → write:5");
    assert!(steps.iter().any(|step| step["effect"][0] == "answer: 0 → 1"));
    assert_eq!(steps.last().unwrap()["shown"][0]["value"], "1");
    let picture = fs::read_to_string(svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    // One box for each request, with its name.
    assert_eq!(picture.matches("class=\"verb\"").count(), 5);
    assert!(picture.contains("NOOP ⇢ WRITE"));
}

#[test]
fn a_trace_leaves_no_file_that_nobody_asked_for() {
    let folder = Folder::new();
    let path = example("if.chain");
    let mut trace = support::command(["chain", "trace", &path]);
    let trace = trace.current_dir(folder.path("")).output().unwrap();
    assert!(trace.status.success() && !out(&trace).contains("drawn"), "{}", out(&trace));
    assert!(folder.names().is_empty(), "{:?}", folder.names());
}

#[test]
fn mistakes_are_shown_with_their_line_and_column() {
    let folder = Folder::new();
    let file = folder.path("wrong.chain");
    fs::write(&file, "data x = 1\nprogram {\n    add y, 1\n}\n").unwrap();
    let path = file.to_str().unwrap();
    let run = chain(&["run", path]);
    assert_eq!(run.status.code(), Some(1));
    let error = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(error.contains(&format!("{path}:3:9")), "{error}");
    assert!(error.contains("nothing is called `y`") && error.contains("is it `x`?"), "{error}");
    let json = json_lines(&chain(&["run", path, "--json"]));
    assert_eq!((&json[0]["line"], &json[0]["column"]), (&3.into(), &9.into()));
    let none = chain(&["run", "/no/such.chain"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("/no/such.chain"));
}

#[test]
fn a_request_that_fails_is_an_error() {
    let folder = Folder::new();
    let file = folder.path("outside.chain");
    fs::write(&file, "data p = 5\ndata x = 0\nprogram {\n    mov x, [p]\n}\n").unwrap();
    let run = chain(&["run", file.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(1));
    let error = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(error.contains("main[1]") && error.contains("protection"), "{error}");
}

#[test]
fn a_failure_without_its_number_names_its_queue() {
    let folder = Folder::new();
    let file = folder.path("numbers.chain");
    let text = "data a = 5\ndata b = 0\nqueue work managed {\n write 999999 -> r.wr_id\n\
                write 1 -> r.dst\n r: write a -> b\n}\n";
    fs::write(&file, text).unwrap();
    for command in ["run", "trace"] {
        let run = chain(&[command, file.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(1));
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(error.contains("a request failed: work: "), "{error}");
    }
}

#[test]
fn rule_110_is_computed_and_checked() {
    let run = chain(&["automaton", "--cells", "16", "--generations", "6", "--json"]);
    assert!(run.status.success());
    let rows = json_lines(&run);
    assert_eq!(rows.len(), 7);
    let cells: Vec<u64> =
        rows[6]["cells"].as_array().unwrap().iter().map(|cell| cell.as_u64().unwrap()).collect();
    assert_eq!(cells, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1]);
}

#[test]
fn a_turing_machine_runs_and_halts() {
    let run = chain(&["machine", &example("busy_beaver.json"), "--json"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let outcome = &json_lines(&run)[0];
    assert_eq!((&outcome["steps"], &outcome["halted"]), (&107.into(), &true.into()));
    let tape = outcome["tape"].as_array().unwrap();
    assert_eq!(tape.iter().filter(|symbol| **symbol == 1).count(), 13);
    // If the tape is too short, the error says so.
    let folder = Folder::new();
    let file = folder.path("short.json");
    let text = fs::read_to_string(example("busy_beaver.json")).unwrap();
    fs::write(&file, text.replace("\"head\": 12", "\"head\": 19")).unwrap();
    let run = chain(&["machine", file.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("make it longer"));
    // A symbol that the table does not have is no matter of the tape's length.
    fs::write(&file, text.replacen("\"tape\": [0", "\"tape\": [3", 1)).unwrap();
    let run = chain(&["machine", file.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("the table knows 0 to 1"));
}
