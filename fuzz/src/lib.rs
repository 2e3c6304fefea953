//! Fuzz targets. Each is a function over bytes that panics when the code under test breaks a
//! promise.
//!
//! The same function serves two runners. libFuzzer, through `fuzz_targets/NAME.rs` and `cargo
//! fuzz`, finds new paths by coverage and needs nightly Rust. `tests/replay.rs` runs on stable
//! Rust with all other tests; it feeds the function the corpus in `corpus/NAME/`, mutations of it
//! and random bytes, all from one seed.
//!
//! To add a target: a module here with its function, a row in [`TARGETS`], a file in
//! `fuzz_targets/` (with its `[[bin]]` in `Cargo.toml`), and a folder in `corpus/`. The tests say
//! which of these is missing. An input that once broke a promise stays in the corpus.

mod arena;
mod card;
mod chain;
mod chain_text;
mod cluster;
mod descriptor;
mod element;
mod fronts;
mod impair;
mod interpreter;
mod kernel;
mod machine;
mod mad;
mod memcached;
mod module;
mod packet;
mod resp;
mod ring;
mod seeds;
mod selection;
mod session;
mod socket;
mod store_call;
mod store_files;
mod world;

pub use card::{card, card_counters};
pub use chain::{chain, chain_counters, chains};
pub use chain_text::{chain_text, texts};
pub use cluster::{
    cluster_documents, cluster_documents_written, cluster_requests, cluster_slots, cluster_wire,
    cluster_wires,
};
pub use descriptor::{descriptor, descriptor_counters, descriptors};
pub use element::{element, element_counters};
pub use impair::{impair, impairments};
pub use kernel::{kernel, kernel_counters};
pub use machine::{machine, machines};
pub use mad::{mad, mads};
pub use memcached::{memcached, memcached_requests};
pub use module::{module, module_counters, modules};
pub use packet::packet;
pub use resp::{resp, resp_requests};
pub use ring::{ring, rings};
pub use seeds::{Seed, calls, cards, elements, packets};
pub use selection::{codec, codecs, predicate, predicates, selection, selections};
pub use session::{session, session_counters, sessions};
pub use socket::{socket, socket_answers, sockets};
pub use store_call::{store_call, store_calls};
pub use store_files::{
    rdbs, store_rdb, store_record, store_records, store_segment, store_segments, store_snapshot,
    store_snapshots,
};
pub use world::{trace, traces, world, worlds};

/// A fuzz target: its name, its function, and the inputs that its corpus must hold.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its binary, and of its folder in `corpus/`.
    pub name: &'static str,
    /// Runs the target on one input.
    pub run: fn(&[u8]),
    /// Inputs that together reach every branch, such as one for each op-code or command.
    pub seeds: fn() -> Vec<Seed>,
    /// The longest input that runs try, in bytes.
    pub max_len: usize,
    /// The cost of an input relative to other targets; runs try fewer inputs accordingly.
    pub cost: u64,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "packet",
        run: packet,
        seeds: packets,
        max_len: remora_nic::wire::MAX_DATAGRAM + 8,
        cost: 1,
    },
    Target { name: "card", run: card, seeds: cards, max_len: 4096, cost: 1 },
    Target { name: "element", run: element, seeds: elements, max_len: 4096, cost: 1 },
    Target { name: "mad", run: mad, seeds: mads, max_len: 4096, cost: 1 },
    Target { name: "chain", run: chain, seeds: chains, max_len: 640, cost: 1 },
    Target { name: "chain_text", run: chain_text, seeds: texts, max_len: 4096, cost: 1 },
    Target { name: "impair", run: impair, seeds: impairments, max_len: 1024, cost: 1 },
    Target { name: "kernel", run: kernel, seeds: calls, max_len: 4096, cost: 1 },
    // A plan may have patterns to compile.
    Target { name: "predicate", run: predicate, seeds: predicates, max_len: 1024, cost: 2 },
    Target { name: "selection", run: selection, seeds: selections, max_len: 1024, cost: 2 },
    Target { name: "codec", run: codec, seeds: codecs, max_len: 1024, cost: 1 },
    // Each input has memory of its own.
    Target { name: "ring", run: ring, seeds: rings, max_len: 512, cost: 10 },
    // A ring is memory of the system's, made for each input.
    Target { name: "descriptor", run: descriptor, seeds: descriptors, max_len: 1024, cost: 4 },
    // A card, a session and its memory are made for each input.
    Target { name: "session", run: session, seeds: sessions, max_len: 1024, cost: 20 },
    // A card with its thread and a daemon are made for each input.
    Target { name: "machine", run: machine, seeds: machines, max_len: 512, cost: 100 },
    Target { name: "socket", run: socket, seeds: sockets, max_len: 1024, cost: 100 },
    Target { name: "store_record", run: store_record, seeds: store_records, max_len: 512, cost: 1 },
    Target {
        name: "store_segment",
        run: store_segment,
        seeds: store_segments,
        max_len: 2048,
        cost: 4,
    },
    Target {
        name: "store_snapshot",
        run: store_snapshot,
        seeds: store_snapshots,
        max_len: 1024,
        cost: 4,
    },
    Target { name: "store_rdb", run: store_rdb, seeds: rdbs, max_len: 4096, cost: 2 },
    // Each input begins with an empty store, and may have patterns to compile.
    Target { name: "store_call", run: store_call, seeds: store_calls, max_len: 2048, cost: 10 },
    // Each input begins with an empty store.
    Target { name: "resp", run: resp, seeds: resp_requests, max_len: 1024, cost: 10 },
    Target {
        name: "memcached",
        run: memcached,
        seeds: memcached_requests,
        max_len: 1024,
        cost: 10,
    },
    // Each input has a replica with memory of its own.
    Target {
        name: "cluster_wire",
        run: cluster_wire,
        seeds: cluster_wires,
        max_len: 1024,
        cost: 4,
    },
    Target {
        name: "cluster_documents",
        run: cluster_documents,
        seeds: cluster_documents_written,
        max_len: 512,
        cost: 1,
    },
    // Each input begins with an empty store.
    Target {
        name: "cluster_slots",
        run: cluster_slots,
        seeds: cluster_requests,
        max_len: 1024,
        cost: 10,
    },
    // A world may have many hosts and flows.
    Target { name: "world", run: world, seeds: worlds, max_len: 1024, cost: 20 },
    Target { name: "trace", run: trace, seeds: traces, max_len: 512, cost: 2 },
    // Inputs that are modules get compiled.
    Target { name: "module", run: module, seeds: modules, max_len: 1024, cost: 20 },
];

/// Runs a target over the files named on the command line, so that a stable build of the target's
/// binary can repeat a finding.
///
/// # Panics
///
/// If the target panics, or a file cannot be read.
pub fn replay_arguments(run: fn(&[u8])) {
    for path in std::env::args_os().skip(1) {
        let data =
            std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        run(&data);
        println!("{}: {} bytes, nothing found", path.display(), data.len());
    }
}
