//! How much memory the replies take that clients ask for and do not read. A process of its own: its
//! peak of memory is looked at.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use remora_store::front::keyspace::Forgetful;
use remora_store::front::served::Served;
use remora_store::front::server::{Options, Server};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{self, Store};
use remora_store::tablespace::TablespaceOptions;

const MIB: usize = 1 << 20;
/// The value that all ask for, and how often each asks in one command.
const VALUE: usize = 8 * MIB;
const TIMES: usize = 2;
const CLIENTS: usize = 48;
/// What all connections may keep.
const KEPT: usize = 64 * MIB;

/// The most memory that this process has had, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

fn ask(stream: &mut TcpStream, request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, answer);
}

#[test]
fn clients_that_do_not_read_do_not_have_their_replies_made_all_at_once() {
    let options = Options { redis: vec![(Ipv4Addr::LOCALHOST, 0).into()], ..Options::default() };
    let made = store::Options::new(32 * MIB as u64, 7);
    let heap = Heap::new(made.memory_len());
    let store = Arc::new(Store::new(heap, Unlogged::default(), made).unwrap());
    let served = Served::new(store, made.memory_len(), TablespaceOptions::default());
    let server = Server::start(&options, Arc::new(served), Arc::new(Forgetful)).unwrap();
    let connect = || {
        let stream = TcpStream::connect(server.redis()[0]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let mut first = connect();
    ask(&mut first, format!("CONFIG SET maxmemory-clients {KEPT}\r\n").as_bytes(), b"+OK\r\n");
    let mut set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE}\r\n").into_bytes();
    set.resize(set.len() + VALUE, b'v');
    set.extend_from_slice(b"\r\n");
    ask(&mut first, &set, b"+OK\r\n");
    let before = peak();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect()).collect();
    // While the thread makes the first replies, the other requests come: a turn has most of them.
    for client in &mut clients {
        client.write_all(format!("MGET{}\r\n", " k".repeat(TIMES)).as_bytes()).unwrap();
    }
    // The thread has looked at all when it has ended those for which there is no room.
    let mut ended = 0;
    for client in &mut clients {
        let mut begin = [0; 8];
        ended += usize::from(client.read_exact(&mut begin).is_err());
    }
    assert!(ended < CLIENTS, "some have room");
    let more = peak() - before;
    let all = CLIENTS * TIMES * VALUE;
    assert!(more < all / 3, "{} MiB of {} were kept at once", more / MIB, all / MIB);
}
