//! What a server says of itself, in words that monitors of Redis and memcached know.

use std::collections::BTreeMap;
use std::sync::Arc;

use remora_store::front::keyspace::{Forgetful, Keeper};
use remora_store::front::server::Server;

use crate::{Client, options, serve, serve_limited, serve_with};

/// The lines of `INFO`, by name.
fn info(server: &Server) -> BTreeMap<String, String> {
    let mut client = Client::redis(server);
    client.send("INFO\r\n");
    let len: usize = client.line()[1..].trim().parse().unwrap();
    let (mut lines, mut read) = (BTreeMap::new(), 0);
    while read < len {
        let line = client.line();
        read += line.len();
        if let Some((name, value)) = line.trim_end().split_once(':') {
            lines.insert(name.to_owned(), value.to_owned());
        }
    }
    lines
}

#[test]
fn the_time_that_the_process_has_used_is_told() {
    let server = serve(&options());
    let seconds = |name: &str| info(&server)[name].parse::<f64>().unwrap();
    assert!(seconds("used_cpu_user_children") >= 0.0 && seconds("used_cpu_sys_children") >= 0.0);
    // To ask takes time, too.
    let used = (0..100_000).any(|_| seconds("used_cpu_user") + seconds("used_cpu_sys") > 0.0);
    assert!(used);
}

/// What memcached's `stats WHAT` answers, by name.
fn stats(client: &mut Client, what: &str) -> BTreeMap<String, u64> {
    client.send(format!("stats {what}\r\n"));
    let mut found = BTreeMap::new();
    loop {
        let line = client.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["STAT", name, value] => {
                found.extend(value.parse().ok().map(|value| (name.to_owned(), value)));
            }
            ["END"] => return found,
            _ => panic!("{line}"),
        }
    }
}

#[test]
fn keys_that_were_evicted_or_have_expired_are_counted() {
    let server = serve_limited(&options(), Arc::new(Forgetful), 8 << 20);
    let [mut redis, mut memcached] = [Client::redis(&server), Client::memcached(&server)];
    redis.ask("SET short v PX 1\r\n", "+OK\r\n");
    while info(&server)["expired_keys"] != "1" {
        std::thread::yield_now();
    }
    assert_eq!(info(&server)["evicted_keys"], "0");
    let value = "v".repeat(100_000);
    for key in 0..200 {
        memcached.ask(format!("set k{key} 0 0 100000\r\n{value}\r\n"), "STORED\r\n");
    }
    // The sweep goes on meanwhile, and may evict more.
    let evicted = || info(&server)["evicted_keys"].parse::<u64>().unwrap();
    let left = stats(&mut memcached, "");
    assert!(left["evictions"] > 100 && left["curr_items"] < 100, "{left:?}");
    assert_eq!(left["expired_keys"], 1);
    assert!(evicted() >= left["evictions"]);
    redis.ask("CONFIG RESETSTAT\r\n", "+OK\r\n");
    assert!(evicted() < 100 && stats(&mut memcached, "")["evictions"] < 100);
    assert_eq!(info(&server)["expired_keys"], "0");
}

#[test]
fn keys_that_expire_are_counted_by_database() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    let mut after = |commands: &str, answers: &str, keys: &str| {
        client.ask(commands, answers);
        assert_eq!(info(&server).get("db0").map_or("", |line| line), keys, "{commands}");
    };
    after("SET a 1 EX 1000\r\nSET b 2\r\n", "+OK\r\n+OK\r\n", "keys=2,expires=1,avg_ttl=0");
    after("EXPIRE b 1000\r\n", ":1\r\n", "keys=2,expires=2,avg_ttl=0");
    after("EXPIRE b 2000\r\n", ":1\r\n", "keys=2,expires=2,avg_ttl=0");
    after("SET a 3\r\n", "+OK\r\n", "keys=2,expires=1,avg_ttl=0");
    after("APPEND b 3\r\n", ":2\r\n", "keys=2,expires=1,avg_ttl=0");
    after("PERSIST b\r\n", ":1\r\n", "keys=2,expires=0,avg_ttl=0");
    after("SET b 2 EX 9\r\nDEL b\r\n", "+OK\r\n:1\r\n", "keys=1,expires=0,avg_ttl=0");
    after("EXPIRE a 9\r\nFLUSHALL\r\n", ":1\r\n+OK\r\n", "");
    after("SET a 1\r\n", "+OK\r\n", "keys=1,expires=0,avg_ttl=0");
}

#[test]
fn memcached_clients_see_blocks_by_size() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    assert_eq!(stats(&mut client, "slabs")["active_slabs"], 0);
    for key in 0..10 {
        client.ask(format!("set k{key} 0 0 5\r\nvalue\r\n"), "STORED\r\n");
    }
    client.ask(format!("set long 0 0 9000\r\n{}\r\n", "v".repeat(9000)), "STORED\r\n");
    let slabs = stats(&mut client, "slabs");
    assert_eq!(slabs["active_slabs"], 2);
    let ten = slabs.iter().find(|(name, count)| name.ends_with(":used_chunks") && **count == 10);
    let small = ten.expect("a class of ten").0.split(':').next().unwrap();
    let chunks = ["total_chunks", "used_chunks", "free_chunks"];
    let [total, used, free] = chunks.map(|name| slabs[&format!("{small}:{name}")]);
    assert_eq!(total, used + free);
    let of = |(key, size): (&String, &u64)| {
        let number = key.strip_suffix(":chunk_size")?;
        Some(size * slabs[&format!("{number}:total_chunks")])
    };
    assert_eq!(slabs["total_malloced"], slabs.iter().filter_map(of).sum::<u64>());
    let items = stats(&mut client, "items");
    assert_eq!((items.len(), items[&format!("items:{small}:number")]), (2, 10));
}

/// Keeps a log that no answer waits for.
#[derive(Debug)]
struct Lazy;

impl Keeper for Lazy {
    fn is_awaited(&self) -> bool {
        false
    }

    fn is_logged(&self) -> bool {
        true
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

#[test]
fn a_log_is_one_although_nothing_waits_for_it() {
    for (server, answer) in
        [(serve(&options()), "no"), (serve_with(&options(), Arc::new(Lazy)), "yes")]
    {
        let len = answer.len();
        let answer = format!("*2\r\n$10\r\nappendonly\r\n${len}\r\n{answer}\r\n");
        Client::redis(&server).ask("CONFIG GET appendonly\r\n", answer);
    }
}

/// By operation, as they are counted.
#[test]
fn latencies_are_told_by_operation() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("MSET k 1 l 2\r\nSET k v\r\nGET k\r\n", "+OK\r\n+OK\r\n$1\r\nv\r\n");
    client.ask("LATENCY HISTOGRAM blabla\r\nLATENCY LATEST\r\n", "*0\r\n*0\r\n");
    for name in ["set", "MSET set blabla", "redis_put"] {
        client.send(format!("LATENCY HISTOGRAM {name}\r\n"));
        client.expect("*2\r\n$9\r\nredis_put\r\n*4\r\n$5\r\ncalls\r\n:2\r\n");
        client.expect("$14\r\nhistogram_usec\r\n");
        let count: usize = client.line()[1..].trim_end().parse().expect("a length");
        let steps: Vec<String> = (0..count).map(|_| client.line()).collect();
        assert_eq!(steps.last().map(String::as_str), Some(":2\r\n"), "{steps:?}");
    }
    client.ask("CONFIG RESETSTAT\r\n", "+OK\r\n");
    client.ask("LATENCY HISTOGRAM get set\r\n", "*0\r\n");
}
