//! memcached's clients at a node that is not the primary of its group.

use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use remora_store::front::keyspace::Keeper;
use remora_store::front::server::{Options, Server};

use crate::memcached::{answer, binary};
use crate::{Client, options, serve, serve_with};

/// A node that is a primary at times.
#[derive(Debug, Default)]
struct Node {
    is_backup: Mutex<bool>,
    leads_to: Mutex<Option<SocketAddr>>,
}

impl Node {
    fn set(&self, is_backup: bool, leads_to: Option<SocketAddr>) {
        *self.is_backup.lock().unwrap() = is_backup;
        *self.leads_to.lock().unwrap() = leads_to;
    }
}

impl Keeper for Node {
    fn is_awaited(&self) -> bool {
        true
    }

    fn wait(&self, _: u64, _: u64) -> Result<(), String> {
        if *self.is_backup.lock().unwrap() { Err("this is a backup".to_owned()) } else { Ok(()) }
    }

    fn seen(&self) -> u64 {
        7
    }

    fn is_clustered(&self) -> bool {
        true
    }

    fn is_elsewhere(&self) -> bool {
        *self.is_backup.lock().unwrap()
    }

    fn relays_to(&self) -> Option<SocketAddr> {
        *self.leads_to.lock().unwrap()
    }

    fn save(&self, _: bool) -> Result<(), String> {
        Ok(())
    }

    fn saved_s(&self) -> u64 {
        0
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A primary, and a backup that leads to it.
fn group(options: &Options) -> (Server, Server, Arc<Node>) {
    let primary = serve(options);
    let node = Arc::new(Node::default());
    node.set(true, Some(primary.memcached()[0]));
    (primary, serve_with(options, node.clone()), node)
}

fn with_password(word: &str) -> Options {
    Options { password: Some(word.to_owned()), ..options() }
}

#[test]
fn every_protocol_is_relayed() {
    let (primary, backup, _) = group(&options());
    let mut client = Client::memcached(&backup);
    client.ask("set k 5 0 3\r\nabc\r\nget k\r\n", "STORED\r\nVALUE k 5 3\r\nabc\r\nEND\r\n");
    client.ask("mg k v\r\nmn\r\n", "VA 3\r\nabc\r\nMN\r\n");
    let mut other = Client::memcached(&backup);
    other.send(binary(0, &[], b"k", b""));
    assert_eq!(answer(&mut other), (0, 0, b"\0\0\0\x05abc".to_vec()));
    // The client and the node that relays it are one client of the primary.
    Client::memcached(&primary).ask("get k\r\n", "VALUE k 5 3\r\nabc\r\nEND\r\n");
    assert_eq!(backup.world().stats.sums().connections_relayed, 2);
    client.send("quit\r\n");
    client.expect_end("");
}

/// Requests that come byte by byte, values that no socket takes at once, and answers that nobody
/// reads for a while.
#[test]
fn long_values_pass_in_both_directions() {
    let (_primary, backup, _) = group(&options());
    let mut client = Client::memcached(&backup);
    "set k 0 0 3\r\nabc\r\n".bytes().for_each(|byte| client.send([byte]));
    client.expect("STORED\r\n");
    let value = vec![b'v'; 8 << 20];
    client.send(format!("set long 0 0 {}\r\n", value.len()));
    client.send(&value);
    client.ask("\r\n", "STORED\r\n");
    (0..10).for_each(|_| client.send("get long\r\n"));
    for _ in 0..10 {
        client.expect(format!("VALUE long 0 {}\r\n", value.len()));
        client.expect(&value);
        client.expect("\r\nEND\r\n");
    }
}

#[test]
fn a_client_that_ends_its_half_gets_all_answers() {
    let (_primary, backup, _) = group(&options());
    let mut client = Client::memcached(&backup);
    client.send("set k 0 0 1\r\nx\r\nget k\r\n");
    client.0.shutdown(Shutdown::Write).unwrap();
    client.expect_end("STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn clients_log_in_at_any_node() {
    let (_primary, backup, node) = group(&with_password("secret"));
    let mut client = Client::memcached(&backup);
    client.send("get k\r\n");
    client.expect_end("CLIENT_ERROR unauthenticated\r\n");
    let mut client = Client::memcached(&backup);
    client.ask("set x 0 0 11\r\nuser secret\r\nset k 0 0 1\r\na\r\n", "STORED\r\nSTORED\r\n");
    // A client that has logged in need not do it again when the node is no primary any more.
    let leads_to = node.relays_to();
    node.set(false, None);
    let mut client = Client::memcached(&backup);
    client.ask("set x 0 0 11\r\nuser secret\r\nget k\r\n", "STORED\r\nEND\r\n");
    node.set(true, leads_to);
    client.ask("get k\r\n", "VALUE k 0 1\r\na\r\nEND\r\n");
}

#[test]
fn nodes_of_other_passwords_refuse() {
    let primary = serve(&with_password("another"));
    let node = Arc::new(Node::default());
    let backup = serve_with(&with_password("secret"), node.clone());
    let mut client = Client::memcached(&backup);
    client.ask("set x 0 0 11\r\nuser secret\r\n", "STORED\r\n");
    node.set(true, Some(primary.memcached()[0]));
    client.send("get k\r\n");
    client.expect("SERVER_ERROR the node that relays has another password: give all nodes of a ");
    client.expect_end("group the same\r\n");
    assert_eq!(primary.world().stats.sums().auth_refused, 1);
}

/// While nobody knows who the primary is, nodes may lead to each other.
#[test]
fn a_client_is_relayed_once_at_most() {
    let nodes = [Arc::new(Node::default()), Arc::new(Node::default())];
    let [one, other] = nodes.clone().map(|node| serve_with(&options(), node));
    nodes[0].set(true, Some(other.memcached()[0]));
    nodes[1].set(true, Some(one.memcached()[0]));
    let refusal = "SERVER_ERROR this node is not the primary of its cluster: ask another one\r\n";
    let mut client = Client::memcached(&one);
    client.send("get k\r\n");
    client.expect_end(refusal);
    // Nobody knows of a primary, or it serves no clients of memcached.
    nodes[0].set(true, None);
    let mut client = Client::memcached(&one);
    client.send("get k\r\n");
    client.expect_end(refusal);
}

#[test]
fn a_primary_that_is_gone_is_told() {
    let (primary, backup, node) = group(&options());
    let mut client = Client::memcached(&backup);
    client.ask("get k\r\n", "END\r\n");
    drop(primary);
    client.expect_end("");
    // Nobody is there.
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    node.set(true, Some(at));
    let mut client = Client::memcached(&backup);
    client.send("get k\r\n");
    client
        .expect(format!("SERVER_ERROR the primary of this node’s group, at {at}, is not reached"));
    client.expect_end(": Connection refused (os error 111)\r\n");
    // The next client finds the next primary, or this node itself.
    node.set(false, None);
    Client::memcached(&backup).ask("set k 0 0 1\r\nx\r\n", "STORED\r\n");
}

/// What is left of a value that was refused is passed over before the client is relayed.
#[test]
fn a_client_is_relayed_between_requests() {
    let primary = serve(&options());
    let node = Arc::new(Node::default());
    let backup = serve_with(&options(), node.clone());
    let mut client = Client::memcached(&backup);
    let len = 17 << 20;
    client.ask(format!("set k 0 0 {len}\r\n"), "SERVER_ERROR object too large for cache\r\n");
    client.send(vec![b'v'; 1000]);
    node.set(true, Some(primary.memcached()[0]));
    client.send(vec![b'v'; len - 1000]);
    client.ask("\r\nget k\r\n", "END\r\n");
    assert_eq!(backup.world().stats.sums().connections_relayed, 1);
}

/// A client that does not read costs the node a buffer, and other clients nothing.
#[test]
fn a_client_that_does_not_read_stands_alone() {
    let (_primary, backup, _) = group(&options());
    let mut stalled = Client::memcached(&backup);
    let value = vec![b'v'; 1 << 20];
    stalled.send(format!("set k 0 0 {}\r\n", value.len()));
    stalled.send(&value);
    stalled.ask("\r\n", "STORED\r\n");
    // 64 MiB of answers: far more than sockets and a buffer hold.
    stalled.send("get k\r\n".repeat(64));
    let mut other = Client::memcached(&backup);
    (0..1000).for_each(|_| other.ask("get no\r\n", "END\r\n"));
    for _ in 0..64 {
        stalled.expect(format!("VALUE k 0 {}\r\n", value.len()));
        stalled.expect(&value);
        stalled.expect("\r\nEND\r\n");
    }
}
