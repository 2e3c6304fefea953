//! The examples run, not only compile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;

const EXAMPLES: [&str; 5] =
    ["ping_pong", "key_value_get", "ring_buffer", "kernel_call", "async_server"];

/// Where cargo puts examples: beside the folder of the tests.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

/// Is a program older than no file of `sources`, and made of this one among them? Cargo lists them
/// all beside it.
fn is_fresh(program: &Path, source: &Path) -> bool {
    let written = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
    let Some(built) = written(program) else { return false };
    let Ok(list) = fs::read_to_string(program.with_extension("d")) else { return false };
    let list = list.replace("\\ ", "\0");
    let mut sources = list.split_whitespace().skip(1).map(|path| path.replace('\0', " "));
    let is_older = |time: SystemTime| time <= built;
    sources.clone().all(|path| written(Path::new(&path)).is_some_and(is_older))
        && sources.any(|path| Path::new(&path).canonicalize().ok().as_deref() == Some(source))
}

/// `cargo test --test examples` alone builds no examples, and a target folder that several
/// checkouts share has those of another.
fn build_what_is_stale() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let sources = sources.canonicalize().unwrap();
    if EXAMPLES.iter().all(|name| is_fresh(&example(name), &sources.join(format!("{name}.rs")))) {
        return;
    }
    let mut cargo = Command::new(std::env::var("CARGO").unwrap());
    cargo.args(["build", "-p", "remora", "--examples"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
}

fn run(name: &str) -> String {
    static BUILT: Once = Once::new();
    BUILT.call_once(build_what_is_stale);
    let path = example(name);
    let output = Command::new(&path).output().unwrap();
    let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {err}");
    String::from_utf8_lossy(out).into_owned()
}

#[test]
fn ping_pong() {
    let said = run("ping_pong");
    assert!(said.starts_with("server: 127.") && said.contains("1000 messages came back"), "{said}");
}

#[test]
fn key_value_get() {
    assert_eq!(run("key_value_get"), "key 7: seven\nkey 42: the answer\nkey 1000: (none)\n");
}

#[test]
fn ring_buffer() {
    let said = "2000 records went through a ring of 16 slots; the last was \"record 1999\"\n";
    assert_eq!(run("ring_buffer"), said);
}

#[test]
fn kernel_call() {
    assert!(run("kernel_call").ends_with("in one round trip and 8 bytes: 499500\n"));
}

#[test]
fn async_server() {
    assert_eq!(run("async_server"), "8 clients counted 400 answers on one word\n");
}
