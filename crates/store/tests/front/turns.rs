//! The time of turns, and what is done when its time comes: sessions on a clock of their own.

use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use remora_store::front::keyspace::{Forgetful, Keeper, Keyspace};
use remora_store::front::memcached::session::Session as Memcached;
use remora_store::front::redis::session::Session as Redis;
use remora_store::front::served::Served;
use remora_store::front::server::Options;
use remora_store::front::server_state::{ServerState, Turn};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{self, Store};
use remora_store::tablespace::TablespaceOptions;

use crate::{Client, PATIENCE, options, serve};

/// A client of each kind, of one database; a thread serves both.
struct Talk {
    redis: Redis,
    memcached: Memcached,
    turn: Turn,
}

impl Talk {
    fn new() -> Talk {
        Talk::of(&Talk::server(Arc::new(Forgetful)))
    }

    /// Of a server that several threads serve.
    fn server(keeper: Arc<dyn Keeper>) -> Arc<ServerState> {
        let made = store::Options::new(1 << 20, 7);
        let store = Store::new(Heap::new(made.memory_len()), Unlogged::default(), made).unwrap();
        let spaces = TablespaceOptions::default();
        let keyspace: Arc<dyn Keyspace> = Arc::new(Served::new(Arc::new(store), 1 << 20, spaces));
        Arc::new(ServerState::new(keyspace, keeper, 2, true))
    }

    fn of(server: &Arc<ServerState>) -> Talk {
        let (redis, memcached) = (Redis::detached(server), Memcached::new(server));
        Talk { redis, memcached, turn: Turn::new(server.clone()) }
    }

    #[track_caller]
    fn redis(&mut self, request: &str, answer: &str) {
        let mut out = Vec::new();
        self.redis.run(&mut self.turn, request.as_bytes(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), answer, "{request}");
    }

    #[track_caller]
    fn memcached(&mut self, request: &str, answer: &str) {
        let mut out = Vec::new();
        self.memcached.run(&mut self.turn, request.as_bytes(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), answer, "{request}");
    }
}

#[test]
fn a_flush_removes_what_is_there_at_its_time_and_nothing_later() {
    let mut talk = Talk::new();
    talk.redis("SET before 1\r\n", "+OK\r\n");
    talk.memcached("flush_all 10\r\n", "OK\r\n");
    talk.turn.now += 9_000;
    talk.redis("GET before\r\n", "$1\r\n1\r\n");
    talk.turn.now += 1_000;
    talk.redis("SET after 1\r\n", "+OK\r\n");
    talk.memcached("get x\r\n", "END\r\n");
    talk.redis("GET after\r\nGET before\r\n", "$1\r\n1\r\n$-1\r\n");
}

#[test]
fn a_flush_takes_back_the_one_before_it() {
    for (another, is_kept) in [("flush_all", true), ("flush_all 100", true), ("get x", false)] {
        let mut talk = Talk::new();
        let answer = if another == "get x" { "END\r\n" } else { "OK\r\n" };
        talk.memcached("flush_all 10\r\n", "OK\r\n");
        talk.memcached(&format!("{another}\r\n"), answer);
        talk.memcached("set k 0 0 1\r\nv\r\n", "STORED\r\n");
        talk.turn.now += 20_000;
        let found = if is_kept { "VALUE k 0 1\r\nv\r\nEND\r\n" } else { "END\r\n" };
        talk.memcached("get k\r\n", found);
    }
}

/// A flush is done when nobody of memcached's clients asks any more, too.
#[test]
fn a_flush_waits_for_nobody() {
    let server = serve(&Options { is_shared: true, ..options() });
    let mut redis = Client::redis(&server);
    redis.ask("SET k 1\r\n", "+OK\r\n");
    Client::memcached(&server).ask("flush_all 1\r\nquit\r\n", "OK\r\n");
    let begun = Instant::now();
    redis.send("DBSIZE\r\n");
    while redis.line() != ":0\r\n" {
        assert!(begun.elapsed() < PATIENCE, "nothing is flushed");
        redis.send("DBSIZE\r\n");
    }
    redis.ask("SET after 1\r\n", "+OK\r\n");
    Client::memcached(&server).ask("get x\r\n", "END\r\n");
    redis.ask("GET after\r\n", "$1\r\n1\r\n");
}

/// A turn that has taken an hour until then.
#[test]
fn ends_count_from_the_command_that_sets_them() {
    const HOUR_MS: u64 = 3_600_000;
    let mut talk = Talk::new();
    for is_redis in [true, false] {
        talk.turn.begin();
        talk.turn.now -= HOUR_MS;
        match is_redis {
            true => talk.redis("SET k 1 PX 1800000\r\n", "+OK\r\n"),
            false => talk.memcached("set k 0 1800 1\r\n1\r\n", "STORED\r\n"),
        }
        talk.turn.begin();
        talk.redis("GETDEL k\r\n", "$1\r\n1\r\n");
    }
    // Nor does time go back.
    talk.turn.now += HOUR_MS;
    let later = talk.turn.now;
    talk.redis("PING\r\n", "+PONG\r\n");
    assert_eq!(talk.turn.now, later);
}

/// What is one step takes a while, and another thread knows when.
#[derive(Debug)]
struct Slow {
    begins: Barrier,
    done: Mutex<Vec<&'static str>>,
}

impl Keeper for Slow {
    fn is_awaited(&self) -> bool {
        false
    }

    fn together(&self, act: &mut dyn FnMut()) {
        act();
        self.begins.wait();
        std::thread::sleep(Duration::from_millis(100));
        self.done.lock().unwrap().push("EXEC");
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

/// A transaction of Redis' clients is one step for memcached's, too.
#[test]
fn memcached_does_not_come_between_the_steps_of_a_transaction() {
    let slow = Arc::new(Slow { begins: Barrier::new(2), done: Mutex::default() });
    let server = Talk::server(slow.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut talk = Talk::of(&server);
            slow.begins.wait();
            talk.memcached("set k 0 0 5\r\nafter\r\n", "STORED\r\n");
            slow.done.lock().unwrap().push("set");
        });
        let mut talk = Talk::of(&server);
        talk.redis("WATCH k\r\nMULTI\r\nSET k 1\r\n", "+OK\r\n+OK\r\n+QUEUED\r\n");
        talk.redis("EXEC\r\n", "*1\r\n+OK\r\n");
    });
    assert_eq!(*slow.done.lock().unwrap(), ["EXEC", "set"]);
    Talk::of(&server).redis("GET k\r\n", "$5\r\nafter\r\n");
}
