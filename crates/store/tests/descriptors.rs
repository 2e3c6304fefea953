//! A server in a process that may have few descriptors, and so needs a process of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use remora_store::front::keyspace::Forgetful;
use remora_store::front::served::Served;
use remora_store::front::server::{Options, Server};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{self, Store};
use remora_store::tablespace::TablespaceOptions;
use rustix::process::{Resource, Rlimit, setrlimit};

/// What this process may have: of each connection, both ends.
const DESCRIPTORS: u64 = 64;

fn client(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).expect("a connection waits in the system");
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client
}

fn ask(mut client: &TcpStream, request: &str) -> String {
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 256];
    let len = client.read(&mut answer).expect("an answer comes");
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

#[test]
fn clients_wait_where_there_are_no_descriptors() {
    let limit = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let made = store::Options::new(1 << 20, 7);
    let memory = Heap::new(made.memory_len());
    let store = Arc::new(Store::new(memory, Unlogged::default(), made).unwrap());
    let keyspace = Arc::new(Served::new(store, 1 << 20, TablespaceOptions::default()));
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    // Two sockets that are listened to: both are heard again.
    let options = Options { redis: vec![any], memcached: vec![any], ..Options::default() };
    let server = Server::start(&options, keyspace, Arc::new(Forgetful)).unwrap();
    let (redis, memcached) = (server.redis()[0], server.memcached()[0]);

    let first = client(redis);
    assert_eq!(ask(&first, "PING\r\n"), "+PONG\r\n");
    let refused = ask(&first, "CONFIG SET maxclients 20000\r\n");
    assert!(refused.contains("fewer files"), "{refused}");
    assert_eq!(ask(&first, "CONFIG SET maxclients 30\r\n").get(..4), Some("-ERR"), "no room");

    // As many as there are ends for: the last ones are not accepted.
    let mut others: Vec<TcpStream> = Vec::new();
    while let Ok(other) = TcpStream::connect(redis) {
        others.push(other);
    }
    drop(others);
    for address in [redis, memcached] {
        let later = client(address);
        let answer = ask(&later, if address == redis { "PING\r\n" } else { "mn\r\n" });
        assert!(["+PONG\r\n", "MN\r\n"].contains(&answer.as_str()), "{answer}");
    }
    assert_eq!(ask(&first, "PING\r\n"), "+PONG\r\n");
}
