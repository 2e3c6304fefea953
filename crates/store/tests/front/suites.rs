//! Clients and suites of others, where they are installed (`./ci.sh setup`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use remora_store::front::server::{Options, Server};

use crate::{Client, options, serve};

/// The status of a program, and all it has written. None, with a word, if it is not installed.
fn run(command: &mut Command) -> Option<(bool, String)> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(Output { status, stdout, stderr }) => {
            let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
            Some((status.success(), text))
        }
        Err(error) => {
            skip(&format!("{name} does not run: {error}"));
            None
        }
    }
}

/// Says why something is left out. Under CI nothing may be.
#[track_caller]
fn skip(why: &str) {
    let why = format!("{why} (./ci.sh setup installs it)");
    assert!(std::env::var_os("CI").is_none(), "under CI nothing may be left out: {why}");
    eprintln!("left out: {why}");
}

/// A folder below `target/store-suites` whose name begins so.
fn suite(name: &str) -> Option<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/store-suites");
    let folders = std::fs::read_dir(&all).into_iter().flatten().flatten();
    let found = folders.map(|entry| entry.path()).find(|path| {
        path.is_dir() && path.file_name().is_some_and(|is| is.to_string_lossy().starts_with(name))
    });
    if found.is_none() {
        skip(&format!("no source of {name} in target/store-suites"));
    }
    found
}

/// The lines of a list, by their columns.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

/// Files of the suites: name, and why it is left out; without a reason it is run.
const REDIS_UNITS: &str = include_str!("skips/redis-units.tsv");
const MEMCACHED_TESTS: &str = include_str!("skips/memcached.tsv");

/// The files of a list that are run.
fn run_of(list: &str) -> impl Iterator<Item = &str> {
    rows(list).filter(|row| row.len() == 1).map(|row| row[0])
}

/// The files below a folder that end so, without that, by their paths in it.
fn files(folder: &Path, end: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(files(&entry.path(), end).iter().map(|below| format!("{name}/{below}")));
        } else {
            found.extend(name.strip_suffix(end).map(str::to_owned));
        }
    }
    found
}

/// Each file stands in the list once, by its name or that of its folder, and the list has no other.
#[track_caller]
fn assert_listed(list: &str, files: &BTreeSet<String>) {
    let is_of = |file: &str, row: &str| match row.strip_suffix('*') {
        Some(folder) => file.starts_with(folder),
        None => file == row,
    };
    let names: Vec<&str> = rows(list).map(|row| row[0]).collect();
    for file in files {
        let count = names.iter().filter(|row| is_of(file, row)).count();
        assert_eq!(count, 1, "{file} stands {count} times in the list");
    }
    for name in &names {
        assert!(files.iter().any(|file| is_of(file, name)), "the suite has no {name}");
    }
    assert!(rows(list).all(|row| row.len() <= 2 && row.iter().all(|word| !word.is_empty())));
}

#[test]
fn every_file_of_the_suites_is_run_or_left_out_for_a_reason() {
    if let Some(folder) = suite("redis-") {
        assert_listed(REDIS_UNITS, &files(&folder.join("tests"), ".tcl"));
        let skipped = include_str!("skips/redis.tsv");
        let is_run = |unit: &str| run_of(REDIS_UNITS).any(|run| run == unit);
        assert!(rows(skipped).all(|row| row.len() == 3 && is_run(row[0])));
    }
    if let Some(folder) = suite("memcached-") {
        assert_listed(MEMCACHED_TESTS, &files(&folder.join("t"), ".t"));
    }
}

fn address(server: &Server) -> String {
    server.memcached()[0].to_string()
}

#[test]
fn memccapable() {
    let server = serve(&options());
    let port = server.memcached()[0].port().to_string();
    let mut command = Command::new("memccapable");
    let Some((passed, text)) = run(command.args(["-h", "127.0.0.1", "-p", &port])) else { return };
    assert!(passed && text.contains("All tests passed"), "{text}");
    assert_eq!(text.matches("[pass]").count(), 54, "{text}");
}

#[test]
fn redis_cli_and_redis_benchmark() {
    let server = serve(&options());
    let port = server.redis()[0].port().to_string();
    let cli = |words: &[&str]| run(Command::new("redis-cli").args(["-p", &port]).args(words));
    for version in ["-2", "-3"] {
        let Some((_, text)) = cli(&[version, "SET", "k", "v"]) else { return };
        assert_eq!(text, "OK\n");
        assert_eq!(cli(&[version, "GET", "k"]).unwrap().1, "v\n");
    }
    let Some((passed, text)) = cli(&["--scan"]) else { return };
    assert!(passed && text == "k\n", "{text}");
    let mut command = Command::new("redis-benchmark");
    let kinds = "ping_inline,ping_mbulk,set,get,incr,mset";
    command.args(["-p", &port, "-q", "-n", "2000", "-P", "8", "-t", kinds]);
    let Some((passed, text)) = run(&mut command) else { return };
    assert!(passed && text.contains("GET:") && !text.to_lowercase().contains("error"), "{text}");
}

#[test]
fn redis_tcl_suite() {
    let Some(folder) = suite("redis-") else { return };
    let list = include_str!("skips/redis.tsv");
    for unit in run_of(REDIS_UNITS) {
        let server = serve(&options());
        let port = server.redis()[0].port().to_string();
        let mut command = Command::new("./runtest");
        command.current_dir(&folder).args(["--host", "127.0.0.1", "--port", &port]);
        command.args(["--singledb", "--ignore-encoding", "--ignore-digest"]);
        command.args(["--tags", "-needs:repl -needs:debug -needs:save", "--single", unit]);
        for row in rows(list).filter(|row| row[0] == unit) {
            command.args(["--skiptest", row[1]]);
        }
        let Some((passed, text)) = run(&mut command) else { return };
        assert!(passed && text.contains("All tests passed"), "{unit}: {text}");
    }
}

#[test]
fn memcached_perl_tests() {
    let Some(folder) = suite("memcached-") else { return };
    for name in run_of(MEMCACHED_TESTS) {
        let server = serve(&options());
        // The suite knows memcached's usual limit.
        let set = "CONFIG SET proto-max-bulk-len 1mb\r\n";
        Client::redis(&server).ask(set, "+OK\r\n");
        let mut command = Command::new("prove");
        command.current_dir(&folder).env("T_MEMD_USE_DAEMON", address(&server));
        let Some((passed, text)) = run(command.arg(format!("t/{name}.t"))) else { return };
        assert!(passed, "{name}: {}", text.chars().take(4000).collect::<String>());
    }
}

/// redis-py and pymemcache: `clients.py` says what it found wrong.
#[test]
fn python_clients() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/judges-venv/bin/python");
    let known = run(Command::new(&python).args(["-c", "import redis, pymemcache"]));
    if !known.is_some_and(|(passed, _)| passed) {
        return skip("redis-py and pymemcache");
    }
    let server = serve(&Options { threads: 2, ..options() });
    let ports = [server.redis()[0].port(), server.memcached()[0].port()].map(|p| p.to_string());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/front/clients.py");
    let (passed, text) = run(Command::new(&python).arg(script).args(&ports)).expect("it ran above");
    assert!(passed, "{text}");
}

/// Where `scripts/store-clients.sh` has put clients.
fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/store-clients")
}

/// go-redis and gomemcache: `clients/main.go` says what it found wrong.
#[test]
fn go_clients() {
    let program = clients().join("go-clients");
    if !program.exists() {
        return skip("go-redis and gomemcache, which scripts/store-clients.sh builds with Go");
    }
    let server = serve(&Options { threads: 2, ..options() });
    let ports = [server.redis()[0].port(), server.memcached()[0].port()].map(|p| p.to_string());
    let (passed, text) = run(Command::new(program).args(&ports)).expect("it was built here");
    assert!(passed, "{text}");
}

/// iovalkey: `clients/clients.mjs` says what it found wrong.
#[test]
fn node_client() {
    if !clients().join("node_modules/iovalkey").exists() {
        return skip("iovalkey, which scripts/store-clients.sh installs with npm");
    }
    let server = serve(&Options { threads: 2, ..options() });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/front/clients/clients.mjs");
    let mut command = Command::new("node");
    command.env("STORE_CLIENTS", clients()).arg(script);
    let ran = run(command.arg(server.redis()[0].port().to_string()));
    if let Some((passed, text)) = ran {
        assert!(passed, "{text}");
    }
}

/// libmemcached's load, each of whose values is compared with what was set.
#[test]
fn memcaslap() {
    let server = serve(&Options { threads: 2, ..options() });
    for protocol in [None, Some("--binary")] {
        let mut command = Command::new("memcaslap");
        command.args(["-s", &address(&server), "-T", "1", "-c", "8", "-x", "4000", "-v", "1.0"]);
        let Some((passed, text)) = run(command.args(protocol)) else { return };
        let is_right = text.contains("cmd_set") && text.contains("verify_failed: 0");
        assert!(passed && is_right, "{protocol:?}: {text}");
    }
}
