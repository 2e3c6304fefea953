//! Answers that wait for the disk, and what goes on meanwhile: a store whose log is written when a
//! test says so.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_store::disk::Faulty;
use remora_store::front::served::Served;
use remora_store::front::server::{Options, Server};
use remora_store::log::{self, Committer, Fsync, Position, Recovered, Turn};
use remora_store::memory::Heap;
use remora_store::service::Logged;
use remora_store::snapshot::Snapshots;
use remora_store::store;
use remora_store::tablespace::TablespaceOptions;

use crate::{Client, PATIENCE, options};

const LIMIT: u64 = 64 << 20;
const REFUSED: &str = "-MISCONF the log cannot be written: ";

struct World {
    server: Server,
    committer: Committer<Faulty>,
    disk: Arc<Faulty>,
    now_ms: u64,
}

impl World {
    fn new(options: &Options) -> World {
        let made = store::Options::new(LIMIT, 7);
        let (disk, memory) = (Arc::new(Faulty::new(1)), Heap::new(made.memory_len()));
        let logged = log::Options { fsync: Fsync::Always, salt: 3, ..log::Options::default() };
        let Recovered { store, committer, recovery } =
            log::open(&disk, memory, made, logged, 1).expect("an empty directory");
        let snapshots = Arc::new(Snapshots::new(&disk, &recovery, 1));
        let store = Arc::new(store);
        let keyspace = Arc::new(Served::new(store.clone(), LIMIT, TablespaceOptions::default()));
        let kept = Arc::new(Logged::new(store, snapshots));
        let server = Server::start(options, keyspace, kept).expect("loopback can be served");
        World { server, committer, disk, now_ms: 1 }
    }

    /// With a key that is on the disk, and the client that has put it there.
    fn with_a_key() -> (World, Client) {
        let mut world = World::new(&options());
        let mut client = Client::redis(&world.server);
        // (It also makes its tablespace, which is a change of its own.)
        world.park(&mut client, "SET old 1\r\n");
        world.sync();
        client.expect("+OK\r\n");
        (world, client)
    }

    fn last(&self) -> Position {
        self.committer.log().last()
    }

    /// Sends a request, and waits until its change is in the log.
    #[track_caller]
    fn change(&self, client: &mut Client, request: &str) {
        let before = self.last();
        client.send(request);
        wait_until(|| self.last() > before);
    }

    /// Sends a request that changes nothing, and waits until its answer waits for the disk.
    #[track_caller]
    fn park(&self, client: &mut Client, request: &str) {
        let before = self.waits();
        client.send(request);
        wait_until(|| self.waits() > before);
    }

    fn waits(&self) -> u64 {
        self.server.state().stats.sums().durability_waits
    }

    /// Has the log written once.
    fn turn(&mut self) -> Turn {
        self.now_ms += 10_000;
        self.committer.turn(self.now_ms)
    }

    #[track_caller]
    fn sync(&mut self) {
        let turn = self.turn();
        assert!(matches!(turn, Turn::Synced(1..)), "{turn:?}");
    }
}

#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come to that");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Nothing has come to a client.
#[track_caller]
fn expect_silence(client: &mut Client) {
    client.0.set_nonblocking(true).unwrap();
    let read = client.0.read(&mut [0; 16]);
    assert_eq!(read.expect_err("an answer").kind(), ErrorKind::WouldBlock);
    client.0.set_nonblocking(false).unwrap();
}

#[test]
fn a_client_that_waits_for_the_disk_holds_nobody_up() {
    let (mut world, mut writer) = World::with_a_key();
    let (mut reader, mut other) = (Client::redis(&world.server), Client::redis(&world.server));
    let mut memcached = Client::memcached(&world.server);
    world.change(&mut writer, "SET new 1\r\n");
    other.ask(
        "PING\r\nGET old\r\nMGET old old\r\n",
        "+PONG\r\n$1\r\n1\r\n*2\r\n$1\r\n1\r\n$1\r\n1\r\n",
    );
    memcached.ask("get old\r\nmg old v\r\n", "VALUE old 0 1\r\n1\r\nEND\r\nVA 1\r\n1\r\n");
    // Nobody is told of what a crash would take back, and that a key is not there may be such.
    world.park(&mut reader, "GET new\r\n");
    world.park(&mut other, "GET none\r\n");
    world.park(&mut memcached, "get none\r\n");
    [&mut writer, &mut reader, &mut other, &mut memcached].into_iter().for_each(expect_silence);
    world.sync();
    writer.expect("+OK\r\n");
    reader.expect("$1\r\n1\r\n");
    other.expect("$-1\r\n");
    memcached.expect("END\r\n");
}

/// What others append while a group is being written is the next group, and is not told of with it.
#[test]
fn each_answer_waits_for_its_own_group() {
    let (mut world, mut first) = World::with_a_key();
    let mut second = Client::redis(&world.server);
    world.change(&mut first, "SET a 1\r\n");
    world.sync();
    first.expect("+OK\r\n");
    world.change(&mut second, "SET b 1\r\n");
    world.change(&mut first, "SET a 2\r\n");
    world.sync();
    second.expect("+OK\r\n");
    first.expect("+OK\r\n");
}

#[test]
fn a_pipeline_is_answered_in_its_order() {
    let (mut world, mut client) = World::with_a_key();
    world.change(&mut client, "SET new 1\r\nGET old\r\nPING\r\n");
    client.send("GET old\r\nGET new\r\n");
    expect_silence(&mut client);
    // (The client is not read from meanwhile, and others are.)
    Client::redis(&world.server).ask("GET old\r\n", "$1\r\n1\r\n");
    expect_silence(&mut client);
    world.sync();
    client.expect("+OK\r\n$1\r\n1\r\n+PONG\r\n$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn a_disk_that_fails_ends_those_who_wait_for_it() {
    let (mut world, mut writer) = World::with_a_key();
    let (mut reader, mut other) = (Client::redis(&world.server), Client::redis(&world.server));
    world.change(&mut writer, "SET new 1\r\n");
    world.park(&mut reader, "GET new\r\n");
    world.disk.fail_one_in(1);
    assert!(matches!(world.turn(), Turn::Refused(_)));
    for client in [&mut writer, &mut reader] {
        client.expect(REFUSED);
        assert!(client.line().contains("cannot write the log"));
        client.expect_end("");
    }
    // What the memory has is shown while nobody knows how long the disk refuses.
    other.ask("GET old\r\nGET new\r\n", "$1\r\n1\r\n$1\r\n1\r\n");
    world.disk.fail_one_in(0);
    world.sync();
    world.change(&mut other, "SET new 2\r\n");
    world.sync();
    other.expect("+OK\r\n");
}

#[test]
fn a_client_that_goes_while_it_waits_leaves_nothing_behind() {
    let (mut world, mut other) = World::with_a_key();
    let (mut gone, mut killed) = (Client::redis(&world.server), Client::redis(&world.server));
    killed.ask("CLIENT SETNAME killed\r\n", "+OK\r\n");
    world.change(&mut gone, "SET a 1\r\nGET old\r\n");
    world.change(&mut killed, "SET b 1\r\n");
    drop(gone);
    let port = killed.0.local_addr().unwrap().port();
    other.ask(format!("CLIENT KILL ADDR 127.0.0.1:{port}\r\n"), ":1\r\n");
    // Another one may get its place.
    let mut next = Client::redis(&world.server);
    next.ask("PING\r\n", "+PONG\r\n");
    world.sync();
    next.ask("MGET a b\r\n", "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    let read = killed.0.read_to_end(&mut Vec::new());
    assert!(read.is_ok_and(|count| count <= "+OK\r\n".len()), "it was told something else");
}

/// Answers of 64 MiB would wait; the thread that keeps so many waits for the disk with them.
#[test]
fn what_waits_takes_bounded_memory() {
    let (mut world, mut writer) = World::with_a_key();
    let value = "v".repeat(1 << 20);
    let len = value.len();
    world.change(&mut writer, &format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${len}\r\n{value}\r\n"));
    let mut readers: Vec<_> = (0..64).map(|_| Client::redis(&world.server)).collect();
    readers.iter_mut().for_each(|reader| reader.send("GET long\r\n"));
    wait_until(|| world.waits() > 17);
    assert!(world.waits() < 40);
    world.sync();
    writer.expect("+OK\r\n");
    for reader in &mut readers {
        reader.expect(format!("${len}\r\n{value}\r\n"));
    }
}

/// A transaction is in memory until its end, as the log writes it as a whole. A short one that may
/// bring much is refused before it changes anything, whatever its ways to do so.
#[test]
fn a_short_transaction_brings_no_more_than_the_log_has_memory_for() {
    let (mut world, mut client) = World::with_a_key();
    world.change(&mut client, "SETRANGE long 1048575 x\r\n");
    world.sync();
    client.expect(":1048576\r\n");
    let before = world.last();
    let longest = (16 << 20) - 1;
    for (change, times) in [
        ("SETBIT long 1 1", 300),
        ("APPEND long x", 300),
        ("COPY long other REPLACE", 300),
        ("BITOP NOT other long", 300),
        ("BITFIELD long INCRBY u8 0 1", 300),
        (&format!("SETRANGE new {longest} x"), 17),
        ("BITFIELD new SET u8 #16777215 1", 40),
        ("SETBIT new 134217727 1", 17),
    ] {
        let changes = format!("{change}\r\n").repeat(times);
        client.send(format!("MULTI\r\n{changes}EXEC\r\n"));
        client.expect("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(times));
        client.expect("-EXECABORT Transaction discarded because its changes may take more than ");
        client.line();
        assert_eq!(world.last(), before, "{change}");
    }
    // What a transaction itself puts counts, in any database.
    let value = "v".repeat(1 << 20);
    let copies = "COPY a b REPLACE\r\n".repeat(300);
    let set = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n{value}\r\n", value.len());
    client.send(format!("MULTI\r\nSELECT 3\r\n{set}{copies}EXEC\r\n"));
    client.expect("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(302));
    client.expect("-EXECABORT ");
    client.line();
    // Many short ones are none of that, nor is what takes the place of a long value.
    let many = "SETBIT old 1 1\r\n".repeat(1000) + &"SET long x\r\n".repeat(1000);
    world.change(&mut client, &format!("MULTI\r\n{many}EXEC\r\n"));
    wait_until(|| !matches!(world.turn(), Turn::Idle));
    client.expect("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(2000) + "*2000\r\n:0\r\n:1\r\n");
}

#[test]
fn a_server_ends_while_clients_wait_for_the_disk() {
    let (mut world, mut writer) = World::with_a_key();
    world.change(&mut writer, "SET new 1\r\n");
    world.server.stop();
    writer.expect_end("");
}
