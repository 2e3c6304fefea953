//! `remora kernel load` between processes: kernels bound to the WRITEs of a region, and built-in
//! kernels.

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{Folder, Node, command, fail, guest, pattern, run, succeed, until};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The tap of the only kernel in the node's list.
fn tap(node: &str) -> Value {
    let list = json(&succeed(["kernel", "list", node, "--json"]));
    assert_eq!(list.as_array().unwrap().len(), 1);
    list[0]["tap"].clone()
}

/// Writes `bytes` into a region, and checks that they arrive.
fn write(folder: &Folder, region: &str, bytes: &[u8]) {
    let (from, back) = (folder.path("from"), folder.path("back"));
    fs::write(&from, bytes).unwrap();
    succeed(["mem", "write", region, "--in", from.to_str().unwrap()]);
    let len = bytes.len().to_string();
    let to = back.to_str().unwrap();
    succeed(["mem", "read", region, "--len", &len, "--out", to]);
    assert!(fs::read(&back).unwrap() == bytes);
}

#[test]
fn a_module_sees_the_writes_of_a_region_as_they_pass() {
    let folder = Folder::new();
    let node = Node::start(["--region", "stream=1M,rw", "--region", "notes=4K,rw"]);
    let (at, stream, sum) = (node.address(), node.region("stream"), guest("sum.wasm"));
    let load = |more: &[&str]| {
        let args = ["kernel", "load", &at, &sum, "--opcode", "9", "--tap", "stream"];
        run(args.iter().chain(more).copied())
    };
    let loaded = load(&["--grant", "notes,rw"]);
    let said = String::from_utf8(loaded.stdout).unwrap();
    assert_eq!(said, format!("Loaded sum as op-code 0x9 at {at}, bound to stream.\n"));
    let answer = || {
        let output = run(["kernel", "call", &at, "--opcode", "9"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let word = |at: usize| u64::from_le_bytes(output.stdout[at..at + 8].try_into().unwrap());
        (word(0), word(8))
    };
    let bytes = pattern(100_000);
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let sum = words.fold(0, u64::wrapping_add);
    write(&folder, &stream, &bytes);
    assert_eq!(answer(), (sum, 12_500));
    // A kernel that replaces it continues the sum, which is in the granted region.
    assert!(load(&["--grant", "notes,rw", "--replace"]).status.success());
    write(&folder, &stream, &bytes);
    assert_eq!(answer(), (sum.wrapping_mul(2), 25_000));
    until("payloads are counted", || tap(&at)["payloads"] != 0);
    assert_eq!(tap(&at)["stopped"], Value::Null);
    let table = succeed(["kernel", "list", &at]);
    assert!(table.contains("stream: ") && table.contains("payloads"), "{table}");

    // A kernel without its granted region fails, and the writers do not.
    assert!(load(&["--replace"]).status.success());
    write(&folder, &stream, &bytes);
    until("the kernel is stopped", || tap(&at)["stopped"] != Value::Null);
    assert_eq!(
        (&tap(&at)["stopped"], &tap(&at)["payloads"]),
        (&"not found (status 3)".into(), &1.into())
    );
    let stops = || {
        let stats = json(&succeed(["stats", &at, "--json"]));
        stats["counters"]["kernel_taps_stopped"].as_u64().unwrap()
    };
    until("the stop is counted", || stops() != 0);
    assert_eq!(stops(), 1);
    assert!(load(&["--grant", "notes,rw", "--replace"]).status.success());
    assert_eq!(answer(), (sum.wrapping_mul(2), 25_000));

    // After unloading it sees no more WRITEs, and another kernel can be bound.
    let other = ["kernel", "load", &at, &guest("sum.wasm"), "--opcode", "10", "--tap", "stream"];
    let why = fail(other);
    assert!(why.contains("pass another kernel already"), "{why}");
    succeed(["kernel", "unload", &at, "--opcode", "9"]);
    write(&folder, &stream, &bytes);
    succeed(other.iter().chain(&["--grant", "notes"]));
    assert_eq!(tap(&at)["payloads"], 0);
    assert!(fail(other).contains("--replace loads"), "the op-code is judged before it is bound");
    node.finish();
}

#[test]
fn kernels_that_cannot_be_bound_are_refused_with_a_reason() {
    let folder = Folder::new();
    let file = support::region_of("file", &folder.file("file", 4096));
    let node = Node::start(["--region", "stream=1M,rw", "--region", &file]);
    let at = node.address();
    let (get, sum) = (guest("get.wasm"), guest("sum.wasm"));
    for (what, words) in [
        (&[&*get, "--opcode", "1", "--tap", "stream"][..], "exports no function `tap`"),
        (&[&*sum, "--opcode", "1", "--tap", "nothing"], "no region `nothing`"),
        (
            &[&*sum, "--opcode", "1", "--tap", "file"],
            "the WRITEs of region `file`: it is read-only",
        ),
        (&["--builtin", "get", "--tap", "stream"], "only hyperloglog can be bound"),
        (&["--builtin", "nothing"], "possible values: get, traversal, consistency"),
        (&["--builtin", "shuffle_send"], "possible values: get, traversal, consistency"),
        (&["--builtin", "get", &*sum], "cannot be used with"),
        (&[&*sum], "--opcode"),
        (&["--opcode", "1"], "<FILE>"),
    ] {
        let why = fail(["kernel", "load", &at].iter().chain(what));
        assert!(why.contains(words), "{what:?}: {why}");
    }
    assert_eq!(json(&succeed(["kernel", "list", &at, "--json"])), json("[]"));
    node.finish();
}

/// The example of docs/kernels.md, run as it is printed there.
#[test]
fn the_example_of_built_in_kernels_works() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md");
    let docs = fs::read_to_string(docs).unwrap();
    let begin = "<!-- the tests run this -->\n```sh\nremora node --bind 127.0.0.9 ";
    let (_, rest) = docs.split_once(begin).unwrap();
    let (example, _) = rest.split_once("kill $!; wait $!\n```").unwrap();
    let (regions, commands) = example.split_once(" &\nsleep 1\n").unwrap();
    let node = Node::start(regions.split_whitespace());
    let folder = Folder::new();
    let program = Path::new(env!("CARGO_BIN_EXE_remora")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = std::process::Command::new("sh");
    let commands = commands.replace("127.0.0.9", &node.address());
    shell.args(["-euc", &commands]).env("PATH", path).current_dir(folder.path(""));
    let output = shell.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let figures: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [distinct, count] = figures[figures.len() - 2..] else { panic!("{said}") };
    // The example writes 2,000 numbers, half of which are distinct.
    assert!((distinct / 1000.0 - 1.0).abs() < 0.05 && count == 2000.0, "{said}");
    node.finish();
}

/// Each built-in kernel answers a call whose parameters are as docs/kernels.md describes them.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The bytes at `base`: at 0 an entry of a hash table, whose key 5 has the 16 bytes at 256; at 64
/// an element of a list with the same key and value.
fn table_and_list(base: u64) -> Vec<u8> {
    let mut data = words(&[5, base + 256]);
    data.extend_from_slice(&16u32.to_le_bytes());
    data.resize(64, 0);
    data.extend(words(&[5, base + 256, 0]));
    data.resize(256, 0);
    data.extend_from_slice(b"sixteen bytes...");
    data
}

/// The parameters of a traversal from `first` on: key at 0, compared for equality, the value's
/// pointer at 8, the next element's at 16, elements of 24 bytes.
fn traversal(first: u64, key: u64) -> Vec<u8> {
    let mut params = words(&[first, key]);
    params.extend_from_slice(&16u32.to_le_bytes());
    params.extend_from_slice(&[0; 4]);
    params.extend_from_slice(&[1, 0, 0, 2, 4, 24, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    params
}

#[test]
fn built_in_kernels_are_served_by_name() {
    let folder = Folder::new();
    let node = Node::start(["--region", "data=64K,rw"]);
    let at = node.address();
    let load = |name: &str| {
        let args = ["kernel", "load", &at, "--builtin", name, "--grant", "data,rw", "--json"];
        json(&succeed(args))
    };
    let row = load("get");
    assert_eq!((row["name"].as_str(), row["opcode"].as_u64()), (Some("get"), Some(1)));
    let base = row["grants"][0]["addr"].as_u64().unwrap();
    for name in ["traversal", "consistency", "shuffle", "hyperloglog", "filter", "aggregate"] {
        assert_eq!(load(name)["name"], name);
    }
    let taken = fail(["kernel", "load", &at, "--builtin", "get"]);
    assert!(taken.contains("the built-in kernel get is not loaded"), "{taken}");
    assert!(taken.contains("0x1 is taken"), "{taken}");
    let file = folder.path("data");
    fs::write(&file, table_and_list(base)).unwrap();
    succeed(["mem", "write", &node.region("data"), "--in", file.to_str().unwrap()]);
    let rows = folder.path("rows");
    fs::write(&rows, words(&[3, 1, 4, 1, 5, 9])).unwrap();
    let call = |opcode: &str, params: &[u8], payload: bool| {
        let mut call = command(["kernel", "call", &at, "--opcode", opcode]);
        call.args(["--params", &hex(params)]);
        if payload {
            call.args(["--payload", rows.to_str().unwrap()]);
        }
        let output = call.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        if output.status.success() { Ok(output.stdout) } else { Err(errors) }
    };
    assert_eq!(call("1", &words(&[base, 5, 0]), false).unwrap(), b"sixteen bytes...");
    let traversal = |key| traversal(base + 64, key);
    assert_eq!(call("2", &traversal(5), false).unwrap(), b"sixteen bytes...");
    assert!(call("2", &traversal(6), false).unwrap_err().contains("not found (status 3)"));
    let mut object = words(&[base]);
    object.extend_from_slice(&[64, 0, 0, 0, 2, 0, 0, 0]);
    assert!(call("3", &object, false).unwrap_err().contains("(status 7)"), "no checksum");
    let why = call("4", &words(&[1, 0]), true).unwrap_err();
    assert!(why.contains("(status 3)"), "{why}");
    let report = call("6", &words(&[1, 0]), true).unwrap();
    assert_eq!(report[8..16], 6u64.to_le_bytes());
    // The parameters: rows of 8 bytes, "less than", the column at 0 of 8 bytes.
    let mut filter = vec![8, 0, 2, 0, 0, 0, 8, 0];
    filter.extend(words(&[4, 0]));
    assert_eq!(call("7", &filter, true).unwrap(), words(&[3, 1, 1]));
    let aggregate = [8, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(call("8", &aggregate, true).unwrap(), words(&[0, 6, 23, 0, 1, 9]));
    let table = succeed(["kernel", "list", &at]);
    assert!(table.contains("hyperloglog") && table.contains("built in"), "{table}");
    node.finish();
}
