//! Suites and clients of others, where they are installed (`./ci.sh setup`), for servers that are
//! there already.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The status of a program, and all it has written. None, with a word, if it is not installed.
pub(crate) fn run(command: &mut Command) -> Option<(bool, String)> {
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
pub(crate) fn skip(why: &str) {
    let why = format!("{why} (./ci.sh setup installs it)");
    assert!(std::env::var_os("CI").is_none(), "under CI nothing may be left out: {why}");
    eprintln!("left out: {why}");
}

/// What a script has put into the folder in which cargo builds, which need not be `target`.
pub(crate) fn brought(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(name)
}

/// A folder below `target/store-suites` whose name begins so.
pub(crate) fn suite(name: &str) -> Option<PathBuf> {
    let folders = std::fs::read_dir(brought("store-suites")).into_iter().flatten().flatten();
    let found = folders.map(|entry| entry.path()).find(|path| {
        path.is_dir() && path.file_name().is_some_and(|is| is.to_string_lossy().starts_with(name))
    });
    if found.is_none() {
        skip(&format!("no source of {name} in target/store-suites"));
    }
    found
}

/// The lines of a list, by their columns.
pub(crate) fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

/// Files of the suites: name, and why it is left out; without a reason it is run.
pub(crate) const REDIS_UNITS: &str = include_str!("skips/redis-units.tsv");
pub(crate) const MEMCACHED_TESTS: &str = include_str!("skips/memcached.tsv");

/// The files of a list that are run.
pub(crate) fn run_of(list: &str) -> impl Iterator<Item = &str> {
    rows(list).filter(|row| row.len() == 1).map(|row| row[0])
}

/// The tests of units of Redis' suite that are left out: unit, name or pattern, reason.
pub(crate) const REDIS_SKIPS: &str = include_str!("skips/redis.tsv");

/// Runs a unit of Redis' suite, in `folder`, against the server at `host` and `port`.
#[track_caller]
pub(crate) fn redis_unit(folder: &Path, (host, port): (&str, &str), unit: &str, more: &[&str]) {
    let mut command = Command::new("./runtest");
    command.current_dir(folder).args(["--host", host, "--port", port]).args(more);
    command.args(["--singledb", "--ignore-encoding", "--ignore-digest"]);
    command.args(["--tags", "-needs:repl -needs:debug -needs:save", "--single", unit]);
    for row in rows(REDIS_SKIPS).filter(|row| row[0] == unit) {
        command.args(["--skiptest", row[1]]);
    }
    if let Some((passed, text)) = run(&mut command) {
        assert!(passed && text.contains("All tests passed"), "{unit}: {text}");
    }
}

/// Runs one of memcached's tests, in `folder`, against the server at `address`, which takes values
/// of at most 1 MiB: the suite knows memcached's usual limit.
#[track_caller]
pub(crate) fn memcached_test(folder: &Path, address: &str, name: &str) {
    let mut command = Command::new("prove");
    command.current_dir(folder).env("T_MEMD_USE_DAEMON", address);
    if let Some((passed, text)) = run(command.arg(format!("t/{name}.t"))) {
        assert!(passed, "{name}: {}", text.chars().take(4000).collect::<String>());
    }
}

/// Where `scripts/store-clients.sh` has put clients.
fn clients() -> PathBuf {
    brought("store-clients")
}

/// go-redis and gomemcache, whose program says what it found wrong.
pub(crate) fn go_clients(args: &[&str]) {
    passes(go_command(), args);
}

/// iovalkey, whose script says what it found wrong.
pub(crate) fn node_client(args: &[&str]) {
    passes(node_command(), args);
}

fn passes(command: Option<Command>, args: &[&str]) {
    let done = command.and_then(|mut command| run(command.args(args)));
    if let Some((passed, text)) = done {
        assert!(passed, "{text}");
    }
}

/// The program of [`go_clients`], if it was built.
pub(crate) fn go_command() -> Option<Command> {
    let program = clients().join("go-clients");
    if !program.exists() {
        skip("go-redis and gomemcache, which scripts/store-clients.sh builds with Go");
        return None;
    }
    Some(Command::new(program))
}

/// The script of [`node_client`], if iovalkey is there.
pub(crate) fn node_command() -> Option<Command> {
    if !clients().join("node_modules/iovalkey").exists() {
        skip("iovalkey, which scripts/store-clients.sh installs with npm");
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/front/clients/clients.mjs");
    let mut command = Command::new("node");
    command.env("STORE_CLIENTS", clients()).arg(script);
    Some(command)
}
