//! memcached's clients at a node that is not the primary of its group.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remora::connection::token::Token;
use remora_store::front::keyspace::{Awaited, Keeper};
use remora_store::front::server::{Options, Server};

use crate::memcached::{answer, binary};
use crate::{Client, options, serve, serve_with};

const TOKEN: [u8; 16] = [7; 16];
const REFUSED: &str = "SERVER_ERROR the primary of this node’s group does not serve: ";

/// A node that is a primary at times.
#[derive(Debug, Default)]
struct Node {
    is_backup: Mutex<bool>,
    leads_to: Mutex<Option<SocketAddr>>,
    /// It is one no more when it has waited once.
    steps_aside: Mutex<bool>,
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

    fn is_kept(&self, _: &Awaited) -> Result<bool, String> {
        let mut is_backup = self.is_backup.lock().unwrap();
        if *is_backup {
            return Err("this is a backup".to_owned());
        }
        *is_backup = *self.steps_aside.lock().unwrap();
        Ok(true)
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

    fn group_token(&self) -> Option<Token> {
        Token::new(TOKEN)
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
    let primary = serve_with(options, Arc::new(Node::default()));
    let (backup, node) = backup(options, primary.memcached()[0]);
    (primary, backup, node)
}

/// A backup that leads there.
fn backup(options: &Options, to: SocketAddr) -> (Server, Arc<Node>) {
    let node = Arc::new(Node::default());
    node.set(true, Some(to));
    (serve_with(options, node.clone()), node)
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
    assert_eq!(backup.state().stats.sums().connections_relayed, 2);
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

/// What a client may do at a node is what it may do at its primary.
#[test]
fn nodes_of_other_passwords_let_no_strangers_in() {
    for (own, other) in [(Some("secret"), None), (None, Some("secret"))] {
        let options =
            |word: Option<&str>| Options { password: word.map(str::to_owned), ..options() };
        let primary = serve_with(&options(other), Arc::new(Node::default()));
        let (backup, _) = backup(&options(own), primary.memcached()[0]);
        let mut client = Client::memcached(&backup);
        client.send("get k\r\n");
        client.expect_end("CLIENT_ERROR unauthenticated\r\n");
    }
}

/// Another program at the address of a primary that is gone gets nothing of a client's.
#[test]
fn others_than_nodes_of_the_group_get_nothing() {
    let store = serve(&options());
    let (backup, node) = backup(&options(), store.memcached()[0]);
    let mut client = Client::memcached(&backup);
    client.send("set k 0 0 1\r\nx\r\n");
    client.expect_end(format!("{REFUSED}the node that relays is of another group\r\n"));
    Client::memcached(&store).ask("get k\r\n", "END\r\n");
    assert_eq!(store.state().stats.sums().auth_refused, 1);
    for (answer, told) in [("ERROR\r\n", "ERROR"), ("", "it has ended the connection")] {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        node.set(true, Some(other.local_addr().unwrap()));
        let mut client = Client::memcached(&backup);
        client.send("get k\r\n");
        let (mut taken, _) = other.accept().unwrap();
        let mut mark = [0; 44];
        taken.read_exact(&mut mark).unwrap();
        assert!(mark.starts_with(b"relayed "));
        taken.write_all(answer.as_bytes()).unwrap();
        drop(taken);
        client.expect_end(format!("{REFUSED}{told}\r\n"));
    }
}

/// While nobody knows who the primary is, nodes may lead to each other.
#[test]
fn a_client_is_relayed_once_at_most() {
    let nodes = [Arc::new(Node::default()), Arc::new(Node::default())];
    let [one, other] = nodes.clone().map(|node| serve_with(&options(), node));
    nodes[0].set(true, Some(other.memcached()[0]));
    nodes[1].set(true, Some(one.memcached()[0]));
    let refusal = "this node is not the primary of its cluster: ask another one\r\n";
    let mut client = Client::memcached(&one);
    client.send("get k\r\n");
    client.expect_end(format!("{REFUSED}{refusal}"));
    // Nobody knows of a primary, or it serves no clients of memcached.
    nodes[0].set(true, None);
    let mut client = Client::memcached(&one);
    client.send("get k\r\n");
    client.expect_end(format!("SERVER_ERROR {refusal}"));
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
    client.expect_end(format!("{REFUSED}Connection refused (os error 111)\r\n"));
    // The next client finds the next primary, or this node itself.
    node.set(false, None);
    Client::memcached(&backup).ask("set k 0 0 1\r\nx\r\n", "STORED\r\n");
}

/// A primary that hangs does not end its connections, but the group says that it is none any more.
#[test]
fn clients_are_let_go_when_another_node_is_the_primary() {
    // Its kernel takes everything, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options { max_clients: 2, ..options() };
    let (backup, node) = backup(&options, silent.local_addr().unwrap());
    let mut waits = Client::memcached(&backup);
    waits.send("get k\r\n");
    let mut leaves = Client::memcached(&backup);
    leaves.send("get k\r\n");
    let relayed = || backup.state().stats.sums().connections_relayed;
    while relayed() < 2 {
        std::thread::yield_now();
    }
    drop(leaves);
    node.set(false, None);
    waits.expect_end("");
    let mut next = Client::memcached(&backup);
    next.ask("get k\r\n", "END\r\n");
    Client::memcached(&backup).ask("get k\r\n", "END\r\n");
}

/// Neither the client nor the primary has to be quick.
#[test]
fn a_client_may_read_late() {
    let (_primary, backup, _) = group(&options());
    let mut client = Client::memcached(&backup);
    let mut sender = client.0.try_clone().unwrap();
    // 32 MiB each way: far more than sockets and buffers hold.
    let (parts, part) = (128, 1 << 16);
    let asks = std::thread::spawn(move || {
        (0..parts).for_each(|_| sender.write_all("mn\r\n".repeat(part).as_bytes()).unwrap());
    });
    std::thread::sleep(Duration::from_secs(4));
    (0..parts).for_each(|_| client.expect("MN\r\n".repeat(part)));
    asks.join().unwrap();
}

/// What is left of a value that was refused is passed over before the client is relayed.
#[test]
fn a_client_is_relayed_between_requests() {
    let primary = serve_with(&options(), Arc::new(Node::default()));
    let node = Arc::new(Node::default());
    let backup = serve_with(&options(), node.clone());
    let mut client = Client::memcached(&backup);
    let len = 17 << 20;
    client.ask(format!("set k 0 0 {len}\r\n"), "SERVER_ERROR object too large for cache\r\n");
    client.send(vec![b'v'; 1000]);
    node.set(true, Some(primary.memcached()[0]));
    client.send(vec![b'v'; len - 1000]);
    client.ask("\r\nget k\r\n", "END\r\n");
    assert_eq!(backup.state().stats.sums().connections_relayed, 1);
}

/// A walk over all keys takes many steps: between two of them, the client is not relayed to a node
/// that would begin it again.
#[test]
fn a_dump_ends_where_its_node_is_the_primary_no_more() {
    let primary = serve_with(&options(), Arc::new(Node::default()));
    let node = Arc::new(Node::default());
    let backup = serve_with(&options(), node.clone());
    let mut client = Client::memcached(&backup);
    let count = 5000;
    let sets = (0..count).map(|number| format!("set k{number} 0 0 1\r\nx\r\n"));
    client.ask(sets.collect::<String>(), "STORED\r\n".repeat(count));
    node.set(false, Some(primary.memcached()[0]));
    *node.steps_aside.lock().unwrap() = true;
    client.send("lru_crawler metadump all\r\n");
    let mut dump = String::new();
    client.0.read_to_string(&mut dump).unwrap();
    let (lines, last) = dump.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(last, "SERVER_ERROR this node is not the primary of its cluster: ask another one");
    assert!(lines.lines().all(|line| line.starts_with("key=k")), "{lines}");
    assert!((1..count).contains(&lines.lines().count()));
    assert_eq!(backup.state().stats.sums().connections_relayed, 0);
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
