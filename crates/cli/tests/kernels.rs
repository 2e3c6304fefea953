//! `remora kernel` between processes: loading, calling, listing and unloading kernels, and the
//! permission to do so.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::Value;
use support::{Folder, Node, command, fail, guest, run, succeed, until};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn list(node: &str) -> Vec<Value> {
    json(&succeed(["kernel", "list", node, "--json"])).as_array().unwrap().clone()
}

#[test]
fn a_kernel_is_loaded_called_listed_and_unloaded() {
    let folder = Folder::new();
    let node = Node::start(["--region", "m=1M,rw"]);
    let at = node.address();
    assert!(list(&at).is_empty());
    let lines = guest("lines.wasm");
    let said = succeed(["kernel", "load", &at, &lines, "--opcode", "0x100"]);
    assert_eq!(said, format!("Loaded lines as op-code 0x100 at {at}.\n"));
    // A text streams through the kernel.
    let text: String = (0..50_000).map(|i| format!("entry {i}\n")).collect();
    let log = folder.path("log");
    fs::write(&log, &text).unwrap();
    let call = ["kernel", "call", &at, "--opcode", "256", "--text", "777", "--payload"];
    let call = |more: &[&str]| {
        let log = log.to_str().unwrap();
        run(call.iter().chain([&log]).chain(more).copied())
    };
    let expected: String =
        text.lines().filter(|line| line.contains("777")).map(|line| format!("{line}\n")).collect();
    let output = call(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    let result = folder.path("result");
    assert!(call(&["--out", result.to_str().unwrap()]).status.success());
    assert_eq!(fs::read_to_string(&result).unwrap(), expected);
    fs::remove_file(&result).unwrap();
    let told = call(&["--json", "--out", result.to_str().unwrap()]);
    let told = json(&String::from_utf8(told.stdout).unwrap());
    assert_eq!(told["bytes"], expected.len());
    assert_eq!(fs::read_to_string(&result).unwrap(), expected);

    let listed = list(&at);
    assert_eq!((listed.len(), &listed[0]["name"]), (1, &Value::from("lines")));
    assert_eq!(listed[0]["opcode"], 256);
    // The node updates the counts of its list a few times a second.
    until("the calls are counted", || list(&at)[0]["calls"] == 3);
    let table = succeed(["kernel", "list", &at]);
    assert!(
        table.contains("lines") && table.contains("0x100") && table.contains("4 MiB"),
        "{table}"
    );

    let again = ["kernel", "load", &at, &lines, "--opcode", "256"];
    let why = fail(again);
    assert!(why.contains("0x100 is taken") && why.contains("--replace"), "{why}");
    let replaced = succeed(again.iter().chain(&["--replace", "--name", "new", "--json"]));
    assert_eq!(json(&replaced)["name"], "new");
    assert_eq!(list(&at)[0]["name"], "new");
    let said = succeed(["kernel", "unload", &at, "--opcode", "0x100"]);
    assert_eq!(said, format!("Unloaded new, op-code 0x100, from {at}.\n"));
    assert!(list(&at).is_empty());
    let output = call(&["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&String::from_utf8(output.stdout).unwrap())["status"], 1);
    let why = fail(["kernel", "unload", &at, "--opcode", "0x100"]);
    assert!(why.contains("no kernel is deployed for op-code 0x100"), "{why}");
    node.finish();
}

/// No packet has room for them, so nothing leaves.
#[test]
fn parameters_that_are_too_long_are_refused() {
    let folder = Folder::new();
    let node = Node::start(["--region", "m=1M,rw"]);
    let at = node.address();
    succeed(["kernel", "load", &at, &guest("lines.wasm"), "--opcode", "0x100"]);
    let (payload, text) = (folder.file("payload", 5000), "x".repeat(4057));
    let payload = payload.to_str().unwrap();
    let call = ["kernel", "call", &at, "--opcode", "0x100", "--text", &text];
    for payload in [None, Some(["--payload", payload])] {
        let why = fail(call.iter().chain(payload.iter().flatten()));
        assert!(why.contains("4057") && why.contains("at most 4056"), "{why}");
    }
    node.finish();
}

#[test]
fn a_kernel_reaches_the_regions_that_it_was_granted() {
    let folder = Folder::new();
    let values = folder.file("values", 4096);
    let node = Node::start([
        "--region",
        "table=64K,rw",
        "--region",
        &support::region_of("values", &values),
    ]);
    let (at, get) = (node.address(), guest("get.wasm"));
    let load = |grants: &[&str]| {
        let mut args = vec!["kernel", "load", &at, &get, "--opcode", "7", "--json", "--replace"];
        grants.iter().for_each(|grant| args.extend(["--grant", grant]));
        run(args)
    };
    let loaded = load(&["table", "values"]);
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    let row = json(&String::from_utf8(loaded.stdout).unwrap());
    let addr = |i: usize| row["grants"][i]["addr"].as_u64().unwrap();
    // One entry of the table: key 5 has 100 bytes of the file, from byte 1,000 on.
    let mut entry = 5u64.to_le_bytes().to_vec();
    entry.extend_from_slice(&(addr(1) + 1000).to_le_bytes());
    entry.extend_from_slice(&100u32.to_le_bytes());
    let file = folder.path("entry");
    fs::write(&file, &entry).unwrap();
    succeed(["mem", "write", &node.region("table"), "--in", file.to_str().unwrap()]);
    let call = |key: u64| {
        let words = [addr(0), key, 0];
        let params: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let params: String = params.iter().map(|byte| format!("{byte:02x}")).collect();
        run(["kernel", "call", &at, "--opcode", "7", "--params", &params])
    };
    assert_eq!(call(5).stdout, &support::pattern(4096)[1000..1100]);
    let missed = call(6);
    assert_eq!(missed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missed.stderr).contains("not found (status 3)"));
    // Without a grant of the file, the kernel cannot reach its bytes.
    assert!(load(&["table"]).status.success());
    let refused = String::from_utf8(call(5).stderr).unwrap();
    assert!(refused.contains("may not reach that memory (status 5)"), "{refused}");
    for (grant, words) in [("nothing", "no region `nothing`"), ("values,rw", "is read-only")] {
        let refused = load(&[grant]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(words), "{said}");
    }
    node.finish();
}

#[test]
fn loading_needs_permission_and_calling_does_not() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let own = |folder: &Folder, args: &[&str]| {
        let output = command(args).env("XDG_RUNTIME_DIR", folder.path("")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), said)
    };
    let run_dir = folder.path("");
    let node = Node::start_with(["--region", "m=1M", "--kernel-token", TOKEN], |node| {
        node.env("XDG_RUNTIME_DIR", &run_dir);
    });
    let (at, lines) = (node.address(), guest("lines.wasm"));
    let load = ["kernel", "load", &at, &lines, "--opcode", "1"];
    // Another user finds no permit, and a wrong token permits nothing.
    let (loaded, why) = own(&elsewhere, &load);
    assert!(!loaded && why.contains("not permitted"), "{why}");
    let wrong = [&load[..], &["--kernel-token", "00000000000000000000000000000001"]].concat();
    let (loaded, why) = own(&elsewhere, &wrong);
    assert!(!loaded && why.contains("not permitted"), "{why}");
    let unload = ["kernel", "unload", &at, "--opcode", "1"];
    assert!(own(&elsewhere, &[&load[..], &["--kernel-token", TOKEN]].concat()).0);
    assert!(!own(&elsewhere, &unload).0);
    assert!(own(&folder, &unload).0, "the same user needs no token");
    assert!(own(&folder, &load).0);
    // A permit that other users can read or write does not count.
    let permit = fs::read_dir(folder.path("remora")).unwrap().next().unwrap().unwrap().path();
    fs::set_permissions(&permit, fs::Permissions::from_mode(0o644)).unwrap();
    let (loaded, why) = own(&folder, &unload);
    assert!(!loaded && why.contains("open to others"), "{why}");
    // A client that may not load may call.
    let (called, why) = own(&elsewhere, &["kernel", "call", &at, "--opcode", "1", "--text", "a"]);
    assert!(called, "{why}");
    // The node counts the refusals, and publishes its counters a few times a second.
    let refused = || {
        let stats = json(&succeed(["stats", &at, "--json"]));
        stats["events"]["refused_kernel_permit"].as_u64().unwrap()
    };
    until("the refusals are counted", || refused() >= 3);
    assert_eq!(refused(), 3);
    // The node removes its permit when it ends.
    let left = || fs::read_dir(folder.path("remora")).unwrap().count();
    assert_eq!(left(), 1);
    node.finish();
    assert_eq!(left(), 0);
}

#[test]
fn modules_that_are_not_kernels_are_refused_with_a_reason() {
    let folder = Folder::new();
    let node = Node::start(["--region", "m=1M"]);
    let at = node.address();
    let load = |name: &str, bytes: &[u8]| {
        let path = folder.path(name);
        fs::write(&path, bytes).unwrap();
        fail(["kernel", "load", &at, path.to_str().unwrap(), "--opcode", "1"])
    };
    for (name, bytes, words) in [
        ("script", &b"#!/bin/sh\n"[..], "not a WebAssembly module: it begins with"),
        ("gzip", b"\x1F\x8B\x08\x08", r#"it begins with "\x1f\x8b\x08\x08""#),
        ("empty", b"\0asm\x01\0\0\0", "exports no function `kernel`"),
        ("a b", b"", "a name has 1 to 64"),
    ] {
        let why = load(name, bytes);
        assert!(why.contains(words), "{name}: {why}");
    }
    let big = load("big", &vec![0; 2 << 20]);
    assert!(big.contains("2097152 bytes"), "{big}");
    let lines = guest("lines.wasm");
    let reserved = fail(["kernel", "load", &at, &lines, "--opcode", "0xffffffffffffffff"]);
    assert!(reserved.contains("the node's own"), "{reserved}");
    let small = fail(["kernel", "load", &at, &lines, "--opcode", "1", "--memory", "4K"]);
    assert!(small.contains("this kernel may have 4096"), "{small}");
    assert!(list(&at).is_empty());
    node.finish();
}

/// A module that a compiler spends much time on.
fn slow_module() -> Vec<u8> {
    let turn = "(loop (br_if 0 (local.tee 1 (i32.add (local.get 2) (i32.const 3)))))";
    let locals = "i32 ".repeat(400);
    let text = format!(
        r#"(module (func (export "kernel") (result i32) (i32.const 0))
            (func (local {locals}) {}))"#,
        turn.repeat(4_000),
    );
    wat::parse_str(text).unwrap()
}

/// Does the process have a thread of this name?
fn has_thread(process: u32, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut names =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.any(|other| other.trim_end() == name)
}

#[test]
fn others_are_served_while_a_module_is_compiled() {
    let folder = Folder::new();
    let node = Node::start(["--region", "m=1M"]);
    let at = node.address();
    let slow = folder.path("slow.wasm");
    fs::write(&slow, slow_module()).unwrap();
    let load = ["kernel", "load", &at, slow.to_str().unwrap(), "--opcode", "1"];
    let mut compiling = command(load).stdout(Stdio::null()).spawn().unwrap();
    let compiles = || has_thread(node.child.id(), "compiler");
    until("the module is compiled", || compiles() || compiling.try_wait().unwrap().is_some());
    succeed(["kernel", "load", &at, "--builtin", "get", "--opcode", "2"]);
    assert!(compiles(), "another kernel has waited for the compiler, or it was faster");
    succeed(["kernel", "unload", &at, "--opcode", "2"]);
    assert!(compiling.wait().unwrap().success());
    // A refusal for its cost says which function is too much.
    let nested = format!(
        r#"(module (func (export "kernel") (result i32) (i32.const 0)) (func {} {}))"#,
        "(loop ".repeat(5_000),
        ")".repeat(5_000),
    );
    fs::write(&slow, wat::parse_str(nested).unwrap()).unwrap();
    let why = fail(["kernel", "load", &at, slow.to_str().unwrap(), "--opcode", "3"]);
    assert!(why.contains("too long to compile") && why.contains("function 1"), "{why}");
    node.finish();
}
