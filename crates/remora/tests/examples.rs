//! The examples run, not only compile.

use std::path::PathBuf;
use std::process::Command;

/// Where cargo puts examples: beside the folder of the tests.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

fn run(name: &str) -> String {
    let path = example(name);
    if !path.exists() {
        // `cargo test --test examples` alone does not build them.
        let cargo = std::env::var("CARGO").unwrap();
        let built = Command::new(cargo).args(["build", "-p", "remora", "--examples"]).status();
        assert!(built.unwrap().success());
    }
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
