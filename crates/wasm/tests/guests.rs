//! The examples of loaded kernels, in Rust, C and AssemblyScript: as they are built in the tree,
//! and built anew.

#[path = "../../remora/tests/support/skips.rs"]
mod skips;
#[path = "../../remora/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use remora::kernel::builtin::RemoteTable;
use remora::kernel::{Bound, CallFailure, CallStatus, Deployment};
use remora::nic::Access;
use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora::offload::kernel::builtin::{get, opcode};
use remora_wasm::Module;
use support::{PATIENCE, pair};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn load(folder: &Path, name: &str) -> Module {
    let path = folder.join(name);
    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Module::load(&bytes).unwrap()
}

/// Fetches values from a hash table with chains.
fn get_works(module: &Module) {
    let (_a, b, mut client) = pair();
    let grants = [b.memory.grant_read()];
    b.device.load_kernel(opcode::GET, Deployment::new("get", grants), module).unwrap();
    let base = b.memory.addr();
    let mut table = get::Table::new(4, 12);
    for key in 0..40u64 {
        let value = get::Value { addr: base + 8192 + key * 100, len: 100 };
        table.insert(key, value).unwrap();
        b.memory.write_at(8192 + key as usize * 100, &[key as u8 + 1; 100]).unwrap();
    }
    b.memory.write_at(0, table.bytes()).unwrap();
    let remote = RemoteTable { table: base, heads: 4 };
    let mut value = Vec::new();
    for key in 0..40 {
        value.clear();
        assert!(remote.get(&mut client, key, &mut value).unwrap());
        assert_eq!(value, [key as u8 + 1; 100]);
    }
    assert!(!remote.get(&mut client, 40, &mut value).unwrap());
    let mut refusal = |params: &[u8]| match client.call(opcode::GET, params, &mut value) {
        Err(CallFailure::Status(status)) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(b"nonsense"), CallStatus::BAD_PARAMS);
    let wild = get::Params { table: 1 << 50, key: 1, entry: 0, chain_max: 0 };
    assert_eq!(refusal(&wild.to_bytes()), CallStatus::ACCESS);
}

/// Selects lines of a text.
fn lines_works(module: &Module) {
    let (a, b, mut client) = pair();
    b.device.load_kernel(9, Deployment::new("lines", []).budget(1 << 30), module).unwrap();
    let text: String = (0..30_000).map(|i| format!("{i} green bottles\n")).collect();
    let mut select = |text: &str, word: &str| {
        a.memory.write_at(0, text.as_bytes()).unwrap();
        let mut out = Vec::new();
        let payload = a.memory.sge(0, text.len() as u32);
        client.call_with(9, word.as_bytes(), payload, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    };
    let with = |word: &str| -> String {
        text.lines().filter(|line| line.contains(word)).map(|line| format!("{line}\n")).collect()
    };
    for word in ["99 ", "green", "red", "12345"] {
        assert_eq!(select(&text, word).unwrap_or_else(|e: CallFailure| panic!("{e}")), with(word));
    }
    assert_eq!(select("no end", "end").unwrap(), "no end");
    let refusal = |result| match result {
        Err(CallFailure::Status(status)) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(select(&text, "")), CallStatus::BAD_PARAMS);
    assert_eq!(refusal(select(&"x".repeat(20_000), "x")), CallStatus::TOO_LONG);
}

/// Keeps the last lines of a text.
fn tail_works(module: &Module) {
    let (a, b, mut client) = pair();
    b.device.load_kernel(9, Deployment::new("tail", []), module).unwrap();
    let text: String = (0..30_000).map(|i| format!("{i} green bottles\n")).collect();
    let mut tail = |text: &str, lines: &[u8]| {
        a.memory.write_at(0, text.as_bytes()).unwrap();
        let mut out = Vec::new();
        let payload = a.memory.sge(0, text.len() as u32);
        match client.call_with(9, lines, payload, &mut out) {
            Ok(_) => Ok(String::from_utf8(out).unwrap()),
            Err(CallFailure::Status(status)) => Err(status),
            Err(other) => panic!("{other}"),
        }
    };
    for lines in [0, 1, 2, 100, 1_000] {
        let last: String = text.lines().skip(30_000 - lines).flat_map(|l| [l, "\n"]).collect();
        assert_eq!(tail(&text, &(lines as u32).to_le_bytes()), Ok(last), "{lines}");
    }
    assert_eq!(tail("one\ntwo", &1u32.to_le_bytes()).unwrap(), "two");
    assert_eq!(tail("one\ntwo\n", &9u32.to_le_bytes()).unwrap(), "one\ntwo\n");
    assert_eq!(tail(&text, &20_000u32.to_le_bytes()), Err(CallStatus::TOO_LONG));
    assert_eq!(tail("", b"?"), Err(CallStatus::BAD_PARAMS));
}

/// Adds up the numbers of WRITEs as they pass.
fn sum_works(module: &Module) {
    let (a, b, mut client) = pair();
    let notes = b.pd.alloc(4096, Access::LOCAL_WRITE).unwrap();
    let grants = [notes.grant_write()];
    b.device.load_kernel(9, Deployment::new("sum", grants), module).unwrap();
    let tap = Box::new(module.tap(1_000_000).unwrap());
    let binding = b.device.bind_kernel(Bound::Region(b.memory.key()), grants.to_vec(), tap);
    let binding = binding.unwrap();
    let numbers: Vec<u64> = (0..5_000).map(|i| i * i * i).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    a.memory.write_at(0, &bytes).unwrap();
    for times in 1..=3u64 {
        let op = SendOp::Write { to: b.memory.remote(0), imm: None };
        let data = [a.memory.sge(0, bytes.len() as u32)];
        let (data, flags) = (Data::Sges(&data), SendFlags::SIGNALED);
        a.qp.post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
        assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
        let mut answer = Vec::new();
        client.call(9, &[], &mut answer).unwrap();
        let sum = numbers.iter().sum::<u64>() * times;
        let expected = [sum.to_le_bytes(), (times * 5_000).to_le_bytes()].concat();
        assert_eq!(answer, expected, "{:?}", binding.info());
    }
}

#[test]
fn the_examples_in_the_tree_work() {
    let built = root().join("guest/built");
    get_works(&load(&built, "get.wasm"));
    lines_works(&load(&built, "lines.wasm"));
    sum_works(&load(&built, "sum.wasm"));
    tail_works(&load(&built, "tail.wasm"));
}

#[test]
fn the_examples_are_built_and_work() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let built = Command::new(root().join("scripts/guests.sh")).arg(&folder).output().unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    if built.status.code() == Some(77) {
        assert!(std::env::var_os("CI").is_none(), "{errors}");
        return skips::lacks(&errors);
    }
    assert!(built.status.success(), "{errors}");
    get_works(&load(&folder, "get.wasm"));
    lines_works(&load(&folder, "lines.wasm"));
    sum_works(&load(&folder, "sum.wasm"));
    if folder.join("tail.wasm").exists() {
        tail_works(&load(&folder, "tail.wasm"));
    } else {
        eprintln!("{errors}");
    }
}
