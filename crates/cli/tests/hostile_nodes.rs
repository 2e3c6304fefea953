//! A client is safe from the node that it connects to.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use remora::nic::Access;
use remora::{Connection, ConnectionParams, Device, QueuePairOptions};
use remora_command::node::document;
use remora_command::node::protocol::Reply;
use remora_command::node::{DEFAULT_PORT, KERNELS_DOCUMENT};
use serde_json::{Value, json};
use support::{fail, succeed};

const PATIENCE: Duration = Duration::from_millis(100);

/// Says at its end that all is done: also where a test fails, so that no thread goes on.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Answers every client with this document, and says that it has `len` bytes, while `act` runs.
fn as_node(text: &str, len: Option<u64>, act: impl FnOnce(&str)) {
    let device = Device::open().unwrap();
    let listener = device.listen(DEFAULT_PORT).unwrap();
    let pd = device.alloc_pd().unwrap();
    let bytes = document::emit(1, text);
    let region = pd.alloc(bytes.len(), Access::REMOTE_READ).unwrap();
    region.write_at(0, &bytes).unwrap();
    let remote = region.remote(0);
    let (addr, rkey, len) = (remote.addr, remote.rkey, len.unwrap_or(region.len()));
    let reply = Reply { addr, len, rkey, writable: false, file: false }.emit();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = AtEnd(&done);
        scope.spawn(|| {
            let mut clients: Vec<Connection> = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let Ok(incoming) = listener.accept().wait(PATIENCE) else { continue };
                let kernels =
                    incoming.private_data()[24..].starts_with(KERNELS_DOCUMENT.as_bytes());
                let qp = pd.create_qp(&QueuePairOptions::new()).unwrap();
                let params = ConnectionParams::new(device.info().mtu).kernels(kernels);
                clients.extend(incoming.accept(qp, &reply, &params).wait(100 * PATIENCE));
            }
        });
        act(&device.info().address.to_string());
    });
}

#[test]
fn the_length_that_a_node_promises_is_bounded() {
    for len in [(1 << 20) + 1, 1 << 40, u64::MAX >> 1] {
        as_node("[]", Some(len), |node| {
            for command in [&["mem", "ls", node][..], &["stats", node], &["kernel", "list", node]] {
                let why = fail(command);
                assert!(why.contains(&format!("it has {len} bytes")), "{command:?}: {why}");
            }
        });
    }
}

/// What a terminal would obey.
const STEERING: [char; 5] = ['\x1b', '\x07', '\u{202e}', '\u{9b}', '\u{200b}'];
const HOSTILE: &str = "\x1b]0;x\x07\u{202e}\u{9b}\u{200b}";

fn harmless(printed: &str) {
    let found = printed.chars().find(|c| STEERING.contains(c));
    assert!(found.is_none() && !printed.contains(r"\u001b"), "{found:?} in {printed:?}");
    assert!(printed.contains("?]0;x????"), "{printed:?}");
}

fn harmless_json(printed: &str) {
    harmless(printed);
    assert!(serde_json::from_str::<Value>(printed).is_ok(), "{printed:?}");
}

#[test]
fn a_nodes_names_do_not_steer_a_terminal() {
    let region = json!({
        "name": HOSTILE, "bytes": 1, "writable": false, "file": false, "withdrawn": HOSTILE,
    });
    as_node(&json!([region]).to_string(), None, |node| {
        harmless(&succeed(["mem", "ls", node]));
        harmless_json(&succeed(["mem", "ls", node, "--json"]));
    });
    let stats = json!({
        "node": HOSTILE, "uptime_ms": 1, "clients": 1, "events": {HOSTILE: 1}, "counters": {},
    });
    as_node(&stats.to_string(), None, |node| {
        harmless(&succeed(["stats", node]));
        harmless_json(&succeed(["stats", node, "--json"]));
    });
    let kernel = json!({
        "opcode": 1, "name": HOSTILE, "budget": 1, "memory": 1,
        "grants": [{"region": HOSTILE, "addr": 1, "bytes": 1, "writable": true}],
        "tap": {"region": HOSTILE, "payloads": 1, "stopped": HOSTILE},
        "calls": 1, "failed": 1, "running": 1,
    });
    as_node(&json!([kernel]).to_string(), None, |node| {
        harmless(&succeed(["kernel", "list", node]));
        harmless_json(&succeed(["kernel", "list", node, "--json"]));
    });
    // What is not understood is told, without what steers.
    as_node(&json!(HOSTILE).to_string(), None, |node| harmless(&fail(["mem", "ls", node])));
}

#[test]
fn a_refusals_words_do_not_steer_a_terminal() {
    let device = Device::open().unwrap();
    let listener = device.listen(DEFAULT_PORT).unwrap();
    let client = thread::spawn({
        let node = device.info().address.to_string();
        move || fail(["mem", "ls", &node])
    });
    listener.accept().wait(100 * PATIENCE).unwrap().reject(HOSTILE);
    harmless(&client.join().unwrap());
}
