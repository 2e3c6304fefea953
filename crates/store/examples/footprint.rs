//! What a key costs: bytes of index and of all, and nanoseconds of a get and a put, for a million
//! keys of 16 bytes with values of 64.
//!
//! `cargo run --release -p remora-store --example footprint [KEYS]`

use std::time::Instant;

use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{Options, Store};
use remora_store::tablespace::TablespaceOptions;

const VALUE: [u8; 64] = [7; 64];

/// The resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn name(key: u64) -> [u8; 16] {
    let mut name = *b"key:000000000000";
    let mut rest = key;
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}

fn main() {
    let keys = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000u64);
    let options = Options::new(keys.max(10_000) * 200, 42);
    let before = resident();
    let memory = Heap::new(options.memory_len());
    let store = Store::new(memory, Unlogged::default(), options).expect("enough memory");
    let space = store.create_tablespace(&TablespaceOptions::new("t")).expect("the first one");

    // A stride that meets every key once, in no order.
    let order = |step: u64| step.wrapping_mul(0x9E37_79B1) % keys;
    let time = |what: &str, body: &dyn Fn(u64)| {
        let start = Instant::now();
        (0..keys).for_each(|step| body(order(step)));
        println!("{what:<28} {:>8.1} ns", start.elapsed().as_nanos() as f64 / keys as f64);
    };
    let put = |key: u64| {
        store.put(space, &name(key), &VALUE, 0, None, 1).expect("room for all");
    };
    let get = |key: u64| {
        thread_local!(static BUFFER: std::cell::RefCell<Vec<u8>> = Default::default());
        BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            store.get(space, &name(key), 1, buffer).expect("it was put");
        });
    };
    time("put, new", &put);
    let held = store.count(space) as f64;
    let a_key = |bytes: u64| bytes as f64 / held;
    println!("{:<28} {:>8.1} bytes", "index a key", a_key(store.index_bytes()));
    println!("{:<28} {:>8.1} bytes", "index and pages a key", a_key(store.used_bytes()));
    println!("{:<28} {:>8.1} bytes", "resident a key", a_key(resident() - before));
    println!("{:<28} {:>8.1} %", "index load", 100.0 * 128.0 / 5.0 / a_key(store.index_bytes()));
    time("get", &get);
    time("put, again", &put);
    time("get, a key that is not there", &|key| {
        assert!(store.get(space, &name(key + keys), 1, &mut Vec::new()).is_none());
    });
    time("get, one key", &|_| get(1));
}
