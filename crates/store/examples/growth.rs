//! How long the longest put takes while a store grows from nothing.
//!
//! ```sh
//! cargo run --release -p remora-store --example growth -- 2000000
//! ```
//!
//! Prints the longest puts by the thread's own time, and by the clock, in which other programs'
//! turns are, too.

use std::time::Instant;

use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{Options, Store};
use remora_store::tablespace::TablespaceOptions;
use rustix::time::{ClockId, clock_gettime};

/// Bytes of memory for a key of 8 bytes and a value of 64, with room to spare.
const BYTES_A_KEY: u64 = 256;

/// The time of this thread, in ns.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(2_000_000), |keys| keys.parse())?;
    let keys = keys.max(1);
    let options = Options::new((keys * BYTES_A_KEY).max(16 << 20), 7);
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options)?;
    let space = store.create_tablespace(&TablespaceOptions::new("grows"))?;
    let (mut own, mut clock) = (Vec::new(), Vec::new());
    let began = store.index_bytes();
    for key in 0..keys {
        let (at, ns) = (Instant::now(), thread_ns());
        store.put(space, &key.to_le_bytes(), &[key as u8; 64], 0, None, 1)?;
        own.push(thread_ns() - ns);
        clock.push(at.elapsed().as_nanos() as u64);
    }
    println!("{keys} puts; the index grew from {began} to {} bytes", store.index_bytes());
    for (name, mut ns) in [("the thread's time", own), ("the clock", clock)] {
        ns.sort_unstable();
        let [median, rare, longest] =
            [ns.len() / 2, ns.len() - ns.len() / 10_000 - 1, ns.len() - 1]
                .map(|at| ns.get(at).copied().unwrap_or(0) as f64 / 1e3);
        println!(
            "by {name}: median {median:.1} us, one in 10000 {rare:.1} us, longest {longest:.1} us"
        );
    }
    Ok(())
}
