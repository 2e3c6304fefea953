//! Tablespaces that give new keys an end, and keys of theirs that are to have none.

use std::sync::Arc;

use remora_store::front::keyspace::Forgetful;
use remora_store::front::server::Server;
use remora_store::tablespace::TablespaceOptions;

use super::{Client, options, serve_spaces};

/// A server whose tablespaces give keys an end that no test waits for.
fn serve() -> Server {
    let hour = Some(3_600_000);
    let spaces = TablespaceOptions { default_expiry_ms: hour, ..TablespaceOptions::default() };
    serve_spaces(&options(), Arc::new(Forgetful), 64 << 20, spaces)
}

/// Has a key that never ends, although its tablespace gives keys one.
fn persist(client: &mut Client, key: &str) {
    client.ask(format!("SET {key} 5\r\nPERSIST {key}\r\n"), "+OK\r\n:1\r\n");
    client.ask(format!("TTL {key}\r\n"), ":-1\r\n");
}

#[test]
fn what_changes_a_value_leaves_it_without_an_end() {
    let server = serve();
    let mut client = Client::redis(&server);
    for (change, answer) in [
        ("INCR n", ":6\r\n"),
        ("INCRBYFLOAT n 0.5", "$3\r\n5.5\r\n"),
        ("APPEND n 6", ":2\r\n"),
        ("SETRANGE n 1 7", ":2\r\n"),
        ("SETBIT n 7 0", ":1\r\n"),
        ("BITFIELD n INCRBY u8 0 1", "*1\r\n:54\r\n"),
        ("SET n 9 KEEPTTL", "+OK\r\n"),
    ] {
        persist(&mut client, "n");
        client.ask(format!("{change}\r\n"), answer);
        client.ask("TTL n\r\n", ":-1\r\n");
    }
}

#[test]
fn a_copy_has_the_end_of_what_it_is_a_copy_of() {
    let server = serve();
    let mut client = Client::redis(&server);
    persist(&mut client, "n");
    client.ask("COPY n other\r\nTTL other\r\n", ":1\r\n:-1\r\n");
    client.ask("RENAME n new\r\nTTL new\r\n", "+OK\r\n:-1\r\n");
    client.ask("MOVE new 1\r\nSELECT 1\r\nTTL new\r\n", ":1\r\n+OK\r\n:-1\r\n");
    client.ask("EXPIRE new 500\r\nCOPY new other\r\n", ":1\r\n:1\r\n");
    client.ask("TTL other\r\n", ":500\r\n");
}

#[test]
fn a_new_value_has_the_end_that_its_tablespace_gives() {
    let server = serve();
    let mut client = Client::redis(&server);
    for (change, answer) in [
        ("SET n 9", "+OK\r\n"),
        ("MSET n 9", "+OK\r\n"),
        ("GETSET n 9", "$1\r\n5\r\n"),
        ("DEL n\r\nSET n 9 KEEPTTL", ":1\r\n+OK\r\n"),
        ("DEL n\r\nINCR n", ":1\r\n:1\r\n"),
        ("BITOP NOT n n", ":1\r\n"),
        ("DEL n\r\nSETBIT n 1 0", ":1\r\n:0\r\n"),
        ("DEL n\r\nBITFIELD n SET u8 0 1", ":1\r\n*1\r\n:0\r\n"),
        ("DEL n\r\nAPPEND n 9", ":1\r\n:1\r\n"),
    ] {
        persist(&mut client, "n");
        client.ask(format!("{change}\r\n"), answer);
        client.ask("TTL n\r\n", ":3600\r\n");
    }
}

#[test]
fn memcached_leaves_an_item_without_an_end() {
    let server = serve();
    let mut client = Client::memcached(&server);
    for (change, answer) in [
        ("incr n 1", "6\r\n"),
        ("append n 0 0 1\r\n1", "STORED\r\n"),
        ("ma n", "HD\r\n"),
        ("ma n T0", "HD\r\n"),
        ("md n I", "HD\r\n"),
        ("md n I T0", "HD\r\n"),
        ("md n x", "HD\r\n"),
        ("ms n 1 C1 I\r\n7", "HD\r\n"),
    ] {
        client.ask("set n 0 0 1\r\n5\r\ntouch n 0\r\n", "STORED\r\nTOUCHED\r\n");
        client.ask(format!("{change}\r\n"), answer);
        client.ask("mg n t q\r\nmn\r\n", "");
        let line = client.line();
        assert!(line.contains("t-1"), "{change}: {line}");
        assert_eq!(client.line(), "MN\r\n");
    }
}
