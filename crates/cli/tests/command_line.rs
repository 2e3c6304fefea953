//! What all commands have in common for people and scripts: exit statuses, words for what is wrong
//! with a line, JSON, and what goes with a command that is killed.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Folder, Killed, Node, run, succeed, until};

/// Nobody has this name (RFC 2606).
const NOBODY: &str = "no.such.name.invalid";

/// The status and what is said on standard error.
fn ended(line: &str) -> (Option<i32>, String) {
    let output = run(line.split_whitespace());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("panicked"), "{line}: {said}");
    (output.status.code(), said)
}

fn all_end_with(status: i32, lines: &[(&str, &str)]) {
    for (line, words) in lines {
        let (code, said) = ended(line);
        assert_eq!(code, Some(status), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    }
}

#[test]
fn a_wrong_line_has_a_status_of_its_own() {
    all_end_with(
        2,
        &[
            ("perf write lat --qps 2", "leave out --qps"),
            ("perf atomic lat --size 16", "leave out --size"),
            ("perf write bw --qps 100000 --depth 8192", "too many"),
            ("world compare one.toml", "name two worlds"),
            ("world run one.toml --seeds 2 --page page.html", "a page is of one seed"),
            ("world export one.toml", "say what to write"),
            ("world export one.toml --fct f --cable a b", "it is no node"),
            ("world import hpcc topology.txt --to w.toml", "hpcc takes a topology"),
            ("store serve --password x", "none are served"),
            ("store serve --tablespace a --tablespace a", "given twice"),
            ("store put 127.0.0.1 key", "<VALUE>"),
            ("store put 127.0.0.1 key value --expire soon", "no number of seconds"),
            ("store tablespace 127.0.0.1 create a --expire 0", "no time to live"),
            ("chain run x.chain --seconds NaN", "no number of seconds"),
            ("dma copy card:0 file", "Pass --len"),
            ("dma copy a card:0 --card DIR --socket nic.sock", "pass one"),
            ("nic impair loss=lots", "loss"),
            ("bench memory --quick --simulated --only fig7", "nothing is called `fig7`"),
            ("doctor 1.2.3", "is not a node's address"),
            ("mem ls 1.2.3", "is not a node's address"),
        ],
    );
}

#[test]
fn a_wrong_number_is_told_in_words_for_a_person() {
    all_end_with(
        2,
        &[
            ("sim abc", "invalid value 'abc' for '[SEED]': write a whole number, as in 42"),
            ("sim 1 --count 0", "the least is 1"),
            ("node --region a=1M --port 65536", "write a whole number from 1 to 65535"),
            ("store serve --threads 0", "the least is 1"),
            ("kernel call 127.0.0.1 --opcode ten", "no op-code: write it as in 256 or 0x100"),
        ],
    );
}

#[test]
fn a_size_that_cannot_work_is_refused_with_the_least() {
    all_end_with(
        2,
        &[
            ("store serve --memory 64", "the least is 256 KiB"),
            ("store cluster try --memory 64", "the least is 256 KiB"),
            ("store serve --tablespace a:1", "the least is 48 B"),
            ("store tablespace 127.0.0.1 create a --quota 0", "the least is 48 B"),
            ("store serve --redis --cluster a --ring 1K", "the least is 64 KiB"),
            ("dma files . --near 64", "the least is 2 MiB"),
            ("dma files . --far 1K", "the least is 2 MiB"),
            ("kernel load 127.0.0.1 x.wasm --opcode 1 --memory 64M", "the most is 16 MiB"),
            ("demo --size 0", "the least is 1 B"),
            ("demo --size 2G", "the most is 1 GiB"),
            ("perf write lat --size 0", "the least is 1 B"),
            ("node --region a=0", "give it at least one byte"),
        ],
    );
}

/// Every command that takes a node looks its name up, and the line is right if nobody has it.
#[test]
fn a_name_that_nobody_has_is_a_failure() {
    let unknown = format!("the address of the machine `{NOBODY}` is not known");
    for line in [
        "stats NODE",
        "mem ls NODE",
        "mem read NODE/data --out -",
        "mem write NODE:7000/data --in x",
        "kernel list NODE",
        "kernel call NODE --opcode 1",
        "store get NODE key",
        "store scan NODE:7000",
        "store info NODE",
        "store tablespace NODE list",
        "perf write lat NODE",
    ] {
        let (code, said) = ended(&line.replace("NODE", NOBODY));
        assert_eq!(code, Some(1), "{line}: {said}");
        assert!(said.starts_with(&format!("remora: {unknown}")), "{line}: {said}");
    }
    let output = run(["doctor", NOBODY]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{found}");
    assert!(found.contains(NOBODY), "{found}");
}

#[test]
fn what_was_tried_and_failed_has_status_1() {
    let folder = Folder::new();
    let missing = folder.path("missing");
    let missing = missing.to_str().unwrap();
    all_end_with(
        1,
        &[
            (&format!("world run {missing}"), "cannot read"),
            (&format!("chain run {missing}"), "cannot read"),
            (&format!("dma files {missing}"), "there is no directory"),
            (&format!("demo --file {missing}"), "cannot read"),
        ],
    );
    assert!(folder.names().is_empty(), "{:?}", folder.names());
    let help = run(["--help"]);
    assert!(String::from_utf8(help.stdout).unwrap().contains("The exit status is 0"));
}

/// A document is a line, whichever command prints it.
#[test]
fn a_document_of_json_is_a_line() {
    let node = Node::start(["--region", "m=1M"]);
    let at = node.address();
    let chain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/chains/search.chain");
    let chain = chain.to_str().unwrap();
    for words in [
        &["devinfo", "--json"][..],
        &["sim", "7", "--json"],
        &["chain", "run", chain, "--json"],
        &["dma", "paths", "--json"],
        &["mem", "ls", &at, "--json"],
        &["kernel", "list", &at, "--json"],
        &["stats", &at, "--json"],
        &["perf", "write", "lat", "--iters", "10", "--no-pin", "--json"],
    ] {
        let printed = succeed(words);
        assert_eq!(printed.matches('\n').count(), 1, "{words:?}: {printed}");
        serde_json::from_str::<Value>(&printed).unwrap();
    }
}

/// No signal keeps a program from ending with the command that has started it.
#[test]
fn a_program_of_a_command_that_is_killed_ends() {
    let script = "\"$0\" bound $$ sh -c 'echo $$; exec sleep 600' & wait";
    let mut starter = Command::new("sh");
    starter.args(["-c", script, env!("CARGO_BIN_EXE_remora")]).stdout(Stdio::piped());
    let mut starter = Killed(starter.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(starter.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let process = format!("/proc/{}/stat", line.trim());
    assert!(fs::exists(&process).unwrap());
    starter.kill().unwrap();
    // (Nobody may wait for it.)
    let is_gone = || fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z "));
    until("the program has ended", is_gone);
}

/// What is wrong in a file of another simulator is told of that file, and nothing is written.
#[test]
fn an_import_names_the_file_that_has_a_mistake() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let import = |kind: &str, file: &str| {
        ended(&format!("world import {kind} {} --to {}", at(file), at("to.toml")))
    };
    fs::write(at("bad.goal"), "num_ranks 2\nrank 0 {\nnonsense\n}\n").unwrap();
    fs::write(at("bad.cm"), "nonsense\n").unwrap();
    for (kind, file) in [("goal", "bad.goal"), ("htsim", "bad.cm")] {
        let (code, said) = import(kind, file);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&format!("{file} has a mistake")), "{said}");
        assert!(!folder.path("to.toml").exists());
    }
    let empty = "num_ranks 2\nrank 0 {\nsend 0b to 1\n}\nrank 1 {\nrecv 0b from 0\n}\n";
    fs::write(at("empty.goal"), empty).unwrap();
    let (code, said) = import("goal", "empty.goal");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("empty.goal: messages of 0 bytes have 1 here").count(), 1, "{said}");
}
