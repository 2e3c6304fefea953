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
fn one_sided() {
    assert_eq!(run("one_sided"), "in the server's memory: written by a peer\n");
}

#[test]
fn connect() {
    assert!(run("connect").ends_with("client: the server says \"and good bye\"\n"));
}

#[test]
fn atomics() {
    assert_eq!(run("atomics"), "4 peers added 250 each: 1000\n");
}
