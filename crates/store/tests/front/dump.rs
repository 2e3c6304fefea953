//! `DUMP` and `RESTORE`.

use std::sync::Arc;

use remora_store::front::keyspace::Forgetful;
use remora_store::rdb::dump;
use remora_store::tablespace::TablespaceOptions;

use super::redis::request;
use super::{Client, options, serve, serve_spaces};

fn payload(value: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    dump(value, &mut payload);
    payload
}

fn restore(key: &str, ttl_ms: u64, value: &[u8], options: &[&[u8]]) -> Vec<u8> {
    let (ttl_ms, payload) = (ttl_ms.to_string(), payload(value));
    let words: &[&[u8]] = &[b"RESTORE", key.as_bytes(), ttl_ms.as_bytes(), &payload];
    request(&[words, options].concat())
}

/// A time that no test waits for, in ms of Unix time.
const LATER: u64 = 4_102_444_800_123;

#[test]
fn what_was_dumped_is_restored() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    for value in [&b""[..], b"a\r\n\0b", &[b'v'; 100_000]] {
        client.ask(request(&[b"SET", b"k", value]), "+OK\r\n");
        let payload = payload(value);
        let head = format!("${}\r\n", payload.len()).into_bytes();
        client.ask("DUMP k\r\n", [&head[..], &payload, b"\r\n"].concat());
        client.ask("DEL k\r\n", ":1\r\n");
        client.ask(restore("k", 0, value, &[]), "+OK\r\n");
        let head = format!("${}\r\n", value.len()).into_bytes();
        client.ask("TTL k\r\nGET k\r\n", [b":-1\r\n", &head[..], value, b"\r\n"].concat());
    }
    client.ask("DUMP none\r\n", "$-1\r\n");
}

#[test]
fn a_restored_key_has_the_end_that_was_asked_for() {
    let hour = Some(3_600_000);
    let spaces = TablespaceOptions { default_expiry_ms: hour, ..TablespaceOptions::default() };
    let server = serve_spaces(&options(), Arc::new(Forgetful), 64 << 20, spaces);
    let mut client = Client::redis(&server);
    client.ask(restore("k", 0, b"v", &[]), "+OK\r\n");
    client.ask("TTL k\r\n", ":-1\r\n");
    client.ask(restore("k", 500_000, b"v", &[b"replace"]), "+OK\r\n");
    client.ask("TTL k\r\n", ":500\r\n");
    client.ask(restore("k", LATER, b"v", &[b"REPLACE", b"ABSTTL"]), "+OK\r\n");
    client.ask("PEXPIRETIME k\r\n", format!(":{LATER}\r\n"));
    client.ask(restore("k", i64::MAX as u64, b"v", &[b"REPLACE"]), "+OK\r\n");
    client.ask("PEXPIRETIME k\r\n", format!(":{}\r\n", (1u64 << 47) - 1));
    // One whose time is over is not made, and what it replaces is gone.
    client.ask(restore("new", 1, b"v", &[b"ABSTTL"]), "+OK\r\n");
    client.ask(restore("k", 1, b"v", &[b"ABSTTL", b"REPLACE"]), "+OK\r\n");
    client.ask("EXISTS k new\r\n", ":0\r\n");
}

#[test]
fn a_key_is_restored_over_another_only_if_that_is_asked_for() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    let busy = "-BUSYKEY Target key name already exists.\r\n";
    client.ask("SET k old\r\n", "+OK\r\n");
    client.ask(restore("k", 0, b"new", &[]), busy);
    client.ask(restore("k", 1, b"new", &[b"ABSTTL"]), busy);
    client.ask("GET k\r\nWATCH k\r\n", "$3\r\nold\r\n+OK\r\n");
    client.ask(restore("k", 0, b"new", &[b"REPLACE", b"IDLETIME", b"5"]), "+OK\r\n");
    client.ask("MULTI\r\nEXEC\r\n", "+OK\r\n*-1\r\n");
    client.ask("MULTI\r\n", "+OK\r\n");
    client.ask(restore("k", 0, b"x", &[b"REPLACE", b"FREQ", b"5"]), "+QUEUED\r\n");
    client.ask(restore("k", 0, b"y", &[]), "+QUEUED\r\n");
    client.ask("GET k\r\nEXEC\r\n", format!("+QUEUED\r\n*3\r\n+OK\r\n{busy}$1\r\nx\r\n"));
}
