//! Clients and suites of others, where they are installed (`./ci.sh setup`).

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use remora_store::front::server::{Options, Server};

use crate::judges::{
    MEMCACHED_TESTS, REDIS_SKIPS, REDIS_UNITS, go_clients, memcached_test, node_client, redis_unit,
    rows, run, run_of, skip, suite,
};
use crate::{Client, options, serve};

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
        let is_run = |unit: &str| run_of(REDIS_UNITS).any(|run| run == unit);
        assert!(rows(REDIS_SKIPS).all(|row| row.len() == 3 && is_run(row[0])));
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
    for unit in run_of(REDIS_UNITS) {
        let server = serve(&options());
        redis_unit(&folder, ("127.0.0.1", &server.redis()[0].port().to_string()), unit, &[]);
    }
}

#[test]
fn memcached_perl_tests() {
    let Some(folder) = suite("memcached-") else { return };
    for name in run_of(MEMCACHED_TESTS) {
        let server = serve(&options());
        let set = "CONFIG SET proto-max-bulk-len 1mb\r\n";
        Client::redis(&server).ask(set, "+OK\r\n");
        memcached_test(&folder, &address(&server), name);
    }
}

/// redis-py, valkey-py, Valkey GLIDE and pymemcache: `clients.py` says what it found wrong.
#[test]
fn python_clients() {
    let python = crate::judges::brought("judges-venv").join("bin/python");
    let known =
        run(Command::new(&python).args(["-c", "import redis, valkey, glide_sync, pymemcache"]));
    if !known.is_some_and(|(passed, _)| passed) {
        return skip("redis-py, valkey-py, Valkey GLIDE and pymemcache");
    }
    let server = serve(&Options { threads: 2, ..options() });
    let ports = [server.redis()[0].port(), server.memcached()[0].port()].map(|p| p.to_string());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/front/clients.py");
    let (passed, text) = run(Command::new(&python).arg(script).args(&ports)).expect("it ran above");
    assert!(passed, "{text}");
}

#[test]
fn clients_in_go() {
    let server = serve(&Options { threads: 2, ..options() });
    let ports = [server.redis()[0].port(), server.memcached()[0].port()].map(|p| p.to_string());
    go_clients(&[&ports[0], &ports[1]]);
}

#[test]
fn client_of_node() {
    let server = serve(&Options { threads: 2, ..options() });
    node_client(&[&server.redis()[0].port().to_string()]);
}

/// The programs of libmemcached that are clients by its library: memcapable and memcaslap, below,
/// have sockets of their own.
#[test]
fn libmemcacheds_own_clients() {
    let server = serve(&options());
    let servers = format!("--servers={}", address(&server));
    // (memccp puts a file under its name.)
    let name = format!("remora-carried-{}", std::process::id());
    let file = std::env::temp_dir().join(&name);
    std::fs::write(&file, "of two lines\r\nEND\r\n").unwrap();
    for protocol in [None, Some("--binary")] {
        let of = |program: &str, words: &[&str]| {
            run(Command::new(program).arg(&servers).args(protocol).args(words))
        };
        let steps: [(&str, &[&str], bool, &str); 8] = [
            ("memccp", &[file.to_str().unwrap()], true, ""),
            ("memccat", &[&name], true, "of two lines\r\nEND"),
            ("memcexist", &[&name], true, ""),
            ("memctouch", &["--expire=1000", &name], true, ""),
            ("memcstat", &[], true, "curr_items: 1"),
            ("memcrm", &[&name], true, ""),
            ("memcexist", &[&name], false, ""),
            ("memcflush", &[], true, ""),
        ];
        for (program, words, succeeds, says) in steps {
            let Some((passed, text)) = of(program, words) else { return };
            let is_right = passed == succeeds && text.contains(says);
            assert!(is_right, "{program} {words:?} {protocol:?}: {passed}, {text}");
        }
    }
    std::fs::remove_file(file).unwrap();
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
