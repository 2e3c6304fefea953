//! Clients that want too much.

use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use remora_store::front::server::Options;

use crate::redis::request;
use crate::{Client, PATIENCE, options, serve};

/// What replies may wait, and what is read beyond them, in bytes.
const BOUND: u64 = 4 << 20;

/// A client that asks for far more than it reads makes the server keep little, and holds nobody
/// up; then it gets all of it.
#[test]
fn a_client_that_does_not_read_is_waited_for() {
    let server = serve(&options());
    let [mut lazy, mut other] = [Client::redis(&server), Client::redis(&server)];
    let value = "v".repeat(100_000);
    lazy.ask(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n{value}\r\n"), "+OK\r\n");
    let count = 1000;
    lazy.send("GET k\r\n".repeat(count));
    for _ in 0..100 {
        other.ask("PING\r\n", "+PONG\r\n");
    }
    let held = held(&mut other);
    assert!(held < BOUND, "{held} bytes wait");
    let answer = format!("$100000\r\n{value}\r\n");
    for _ in 0..count {
        lazy.expect(&answer);
    }
}

/// Bytes that all connections make the server keep, as it tells a client.
fn held(client: &mut Client) -> u64 {
    client.send("INFO memory\r\n");
    let mut held = None;
    loop {
        let line = client.line();
        if let Some(number) = line.strip_prefix("mem_clients_normal:") {
            held = Some(number.trim().parse().unwrap());
        }
        // The last one of the section, and the end of the reply.
        if line.starts_with("maxmemory_human:") {
            client.line();
            return held.unwrap();
        }
    }
}

/// A gigabyte that is sent without a pause is never more than a piece of it in memory.
#[test]
fn a_pipeline_of_a_gigabyte() {
    let server = serve(&options());
    let [mut client, mut other] = [Client::redis(&server), Client::redis(&server)];
    let (len, count) = (256 << 10, 4096);
    let request = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${len}\r\n{}\r\n", "v".repeat(len));
    let mut writer = client.0.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        (0..count).for_each(|_| writer.write_all(request.as_bytes()).unwrap());
    });
    let (mut most, mut done) = (0, 0);
    while done < count {
        most = most.max(held(&mut other));
        let some = 64;
        client.expect("+OK\r\n".repeat(some));
        done += some;
    }
    sender.join().unwrap();
    assert!(most < BOUND, "{most} bytes at a time");
    client.ask("STRLEN k\r\n", format!(":{len}\r\n"));
}

/// A pipeline without an end is taken as fast as it is answered.
#[test]
fn a_long_pipeline() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    let (piece, pieces) = ("PING\r\n".repeat(10_000), 200);
    let mut writer = client.0.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        (0..pieces).for_each(|_| writer.write_all(piece.as_bytes()).unwrap());
    });
    let answer = "+PONG\r\n".repeat(10_000);
    for _ in 0..pieces {
        client.expect(&answer);
    }
    sender.join().unwrap();
    assert!(server.state().stats.sums().memory_refused == 0);
}

#[test]
fn one_reply_has_a_limit() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CONFIG SET client-output-buffer-limit 1mb\r\n", "+OK\r\n");
    let value = "v".repeat(200_000);
    client.ask(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200000\r\n{value}\r\n"), "+OK\r\n");
    client.send(format!("MGET{}\r\n", " k".repeat(1000)));
    assert!(client.line().contains("client-output-buffer-limit"));
    client.expect_end("");
    let mut client = Client::redis(&server);
    client.send("MULTI\r\nINCR a\r\n".to_owned() + &"GET k\r\n".repeat(100) + "INCR b\r\n");
    client.expect("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(102));
    client.send("EXEC\r\n");
    assert!(client.line().contains("client-output-buffer-limit"));
    client.expect_end("");
    // A transaction is one step, whatever becomes of its answer.
    let mut client = Client::redis(&server);
    client.ask("GET a\r\nGET b\r\n", "$1\r\n1\r\n$1\r\n1\r\n");
    for command in ["COMMAND INFO", "COMMAND DOCS"] {
        let mut client = Client::redis(&server);
        client.send(format!("{command}{}\r\n", " get".repeat(16_000)));
        assert!(client.line().contains("client-output-buffer-limit"), "{command}");
        client.expect_end("");
    }
    assert_eq!(server.state().stats.sums().memory_refused, 4);
}

/// A row and its columns are no way around the limit of a reply.
#[test]
fn rows_that_are_selected_have_a_limit() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CONFIG SET client-output-buffer-limit 1mb\r\n", "+OK\r\n");
    client.ask(request(&[b"SET", b"k", &vec![b'v'; 2 << 20]]), "+OK\r\n");
    let (scan, get): (&[&[u8]], &[&[u8]]) =
        (&[b"REMORA.SCAN", b"db0", b"0"], &[b"REMORA.GET", b"k"]);
    for begin in [scan, get] {
        let ask = |columns: &[u8]| {
            let more: &[&[u8]] = &[b"SCHEMA", b"n u32\nt text", b"SELECT", columns];
            let mut client = Client::redis(&server);
            client.send(request(&[begin, more].concat()));
            (client.line(), client)
        };
        let (line, mut client) = ask(b"t, n, t");
        assert!(line.contains("select:1:7: `t` is named twice"), "{line}");
        client.ask("PING\r\n", "+PONG\r\n");
        let (line, mut client) = ask(b"n, t");
        assert!(line.contains("client-output-buffer-limit"), "{line}");
        client.expect_end("");
        let (line, _) = ask(b"n");
        assert!(line.starts_with('*'), "{line}");
    }
    assert_eq!(server.state().stats.sums().memory_refused, 2);
}

/// The patterns of a predicate are counted before any of them is made.
#[test]
fn patterns_of_a_predicate_have_a_limit() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("SET k v\r\n", "+OK\r\n");
    let condition = (0..16).map(|n| format!("t matches 'a{n}'")).collect::<Vec<_>>().join(" and ");
    let (scan, get): (&[&[u8]], &[&[u8]]) =
        (&[b"REMORA.SCAN", b"db0", b"0"], &[b"REMORA.GET", b"k"]);
    for begin in [scan, get] {
        let more: &[&[u8]] = &[b"SCHEMA", b"t text", b"WHERE", condition.as_bytes()];
        client.send(request(&[begin, more].concat()));
        let line = client.line();
        assert!(line.starts_with("-ERR where:1:87: a selection has at most 4 patterns"), "{line}");
    }
}

/// What a client says of itself is kept for as long as it is there, and shown to others.
#[test]
fn names_of_clients_have_a_limit() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    let [long, longest] = [2000, 1024].map(|len| "n".repeat(len));
    for request in ["CLIENT SETNAME", "CLIENT SETINFO lib-name", "HELLO 2 SETNAME"] {
        client.send(format!("{request} {long}\r\n"));
        let line = client.line();
        assert!(line.starts_with("-ERR") && line.contains("1024 bytes"), "{line}");
    }
    client.ask(format!("CLIENT SETNAME {longest}\r\n"), "+OK\r\n");
    client.ask("CLIENT GETNAME\r\n", format!("$1024\r\n{longest}\r\n"));
}

#[test]
fn all_connections_together_have_a_limit() {
    let server = serve(&options());
    server.state().settings.buffered_bytes.store(8 << 20, SeqCst);
    let mut clients: Vec<_> = (0..8).map(|_| Client::redis(&server)).collect();
    let half = vec![b'x'; 3 << 20];
    for client in &mut clients {
        // Half a request of 4 MiB each. A client that is refused is ended, and may see it here.
        client.send("*2\r\n$4\r\nECHO\r\n$4194304\r\n");
        let _ = client.0.write_all(&half);
    }
    let mut other = Client::redis(&server);
    let begun = Instant::now();
    loop {
        other.ask("PING\r\n", "+PONG\r\n");
        let sums = server.state().stats.sums();
        if sums.memory_refused > 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody is refused: {sums:?}");
    }
}

#[test]
fn too_many_connections() {
    let server = serve(&Options { max_clients: 3, ..options() });
    let mut clients: Vec<_> = (0..3).map(|_| Client::redis(&server)).collect();
    clients.iter_mut().for_each(|client| client.ask("PING\r\n", "+PONG\r\n"));
    Client::redis(&server).expect_end("-ERR max number of clients reached\r\n");
    Client::memcached(&server).expect_end("ERROR Too many open connections\r\n");
    clients[0].ask("QUIT\r\n", "+OK\r\n");
    clients[0].expect_end("");
    Client::redis(&server).ask("PING\r\n", "+PONG\r\n");
    assert_eq!(server.state().stats.sums().connections_refused, 2);
}

const WANTED: usize = 10_000;

/// As many connections as this process may have both ends of, and no more than ten thousand.
fn many_connections() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    // The other tests need some, too.
    let count = (maximum.map_or(usize::MAX, |most| most as usize - 500) / 2).min(WANTED);
    if count < WANTED {
        eprintln!("only {count} connections, not {WANTED}: the hard limit of files is {maximum:?}");
    }
    count
}

/// Ten thousand clients, each of whom has sent half a request, take little memory and hold nobody
/// up; then each gets its answer.
#[test]
fn ten_thousand_connections_at_once() {
    let server = serve(&Options { threads: 2, ..options() });
    let count = many_connections();
    let mut clients: Vec<_> = (0..count).map(|_| Client::redis(&server)).collect();
    for (index, client) in clients.iter_mut().enumerate().skip(1) {
        client.send(format!("*3\r\n$3\r\nSET\r\n$6\r\nk{index:05}\r\n$5\r\n"));
    }
    clients[0].ask("PING\r\n", "+PONG\r\n");
    let held = held(&mut clients[0]);
    assert!(held < 1024 * count as u64, "{held} bytes wait for {count} clients");
    for client in &mut clients[1..] {
        client.send("value\r\nDEL none\r\n");
    }
    clients[1..].iter_mut().for_each(|client| client.expect("+OK\r\n:0\r\n"));
    clients[0].ask("DBSIZE\r\n", format!(":{}\r\n", count - 1));
    assert_eq!(server.state().stats.sums().memory_refused, 0);
}

#[test]
fn values_at_and_beyond_their_limit() {
    let server = serve(&options());
    let (most, mut client) = (16 << 20, Client::redis(&server));
    let value = vec![b'v'; most];
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${most}\r\n"));
    client.send(&value);
    client.ask("\r\n", "+OK\r\n");
    client.ask("STRLEN k\r\n", format!(":{most}\r\n"));
    let too_long = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
    client.ask("APPEND k x\r\n", too_long);
    client.ask("SETRANGE k 999999999 x\r\n", too_long);
    let length = "-ERR Protocol error: invalid bulk length\r\n";
    client.ask(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", most + 1), length);
    client.expect_end("");
    let mut client = Client::redis(&server);
    let key = "k".repeat((64 << 10) + 1);
    client.ask(
        format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1\r\nv\r\n", key.len()),
        "-ERR a key is 1 to 65536 bytes long\r\n",
    );
    let mut client = Client::memcached(&server);
    client.send(format!("set k 0 0 {}\r\n", most + 1));
    client.send(vec![b'x'; most + 1]);
    client.ask("\r\nversion\r\n", "SERVER_ERROR object too large for cache\r\nVERSION ");
}

#[test]
fn lines_without_an_end() {
    let server = serve(&options());
    let endless = vec![b'a'; 70_000];
    let mut client = Client::redis(&server);
    client.send(&endless);
    client.expect("-ERR Protocol error: too big inline request\r\n");
    let mut client = Client::memcached(&server);
    client.send(&endless);
    client.expect("CLIENT_ERROR line too long\r\n");
    assert_eq!(server.state().stats.sums().protocol_errors, 2);
}

#[test]
fn idle_connections_are_ended() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CONFIG SET timeout 1\r\n", "+OK\r\n");
    client.expect_end("");
    assert_eq!(server.state().stats.sums().connections_idle, 1);
}
