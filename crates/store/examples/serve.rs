//! Serves a store to Redis' and memcached's clients on 127.0.0.1, in memory only.
//!
//! `cargo run --release -p remora-store --example serve`, and after `--` up to four numbers: Redis'
//! port, memcached's, the limit in MiB, threads. A password is taken from the environment, as
//! `STORE_PASSWORD`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use remora_store::front::keyspace::Forgetful;
use remora_store::front::served::Served;
use remora_store::front::server::{Options, Server};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{self, Store};
use remora_store::tablespace::{Eviction, TablespaceOptions};
use remora_store::way::clock::now_ms;

/// Buckets of the index that one look for expired keys passes.
const BUCKETS: u32 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let mut number = |default: u64| numbers.next().unwrap_or(Ok(default));
    let [redis, memcached] = [number(6379)?, number(11211)?];
    let (limit, threads) = (number(1024)? << 20, number(1)? as usize);

    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    let options = store::Options::new(limit, u64::from_ne_bytes(seed));
    let memory = Heap::new(options.memory_len());
    let store = Arc::new(Store::new(memory, Unlogged::default(), options)?);
    let spaces = TablespaceOptions { eviction: Eviction::Clock, ..TablespaceOptions::default() };
    let keyspace = Arc::new(Served::new(store.clone(), limit, spaces));

    let at = |port: u64| -> Result<Vec<SocketAddr>, Box<dyn Error>> {
        Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port)?))])
    };
    let options = Options {
        redis: at(redis)?,
        memcached: at(memcached)?,
        threads,
        password: std::env::var("STORE_PASSWORD").ok(),
        ..Options::default()
    };
    let server = Server::start(&options, keyspace, Arc::new(Forgetful))?;
    println!("Redis' clients: {:?}; memcached's: {:?}", server.redis(), server.memcached());
    while !server.is_stopping() {
        store.sweep(now_ms(), BUCKETS);
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
