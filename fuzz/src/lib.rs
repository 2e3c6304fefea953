//! Fuzz targets. Each is one function over bytes, that panics when a promise is broken.
//!
//! The same function serves two runners: libFuzzer, through `fuzz_targets/NAME.rs` and
//! `cargo fuzz`, which looks for new paths by coverage and needs nightly Rust; and
//! `tests/replay.rs`, which on stable Rust and in every test run feeds it the corpus in
//! `corpus/NAME/`, mutations of it and random bytes, all from one seed.
//!
//! To add a target: a module here with its function, a row in [`TARGETS`], a file in
//! `fuzz_targets/` (with its `[[bin]]` in `Cargo.toml`), and a folder in `corpus/`. The tests say
//! which is missing. An input that once broke a promise stays in the corpus.

mod arena;
mod card;
mod chain;
mod chain_text;
mod element;
mod interpreter;
mod kernel;
mod mad;
mod module;
mod packet;
mod seeds;

pub use card::{card, card_counters};
pub use chain::{chain, chain_counters, chains};
pub use chain_text::{chain_text, texts};
pub use element::{element, element_counters};
pub use kernel::{kernel, kernel_counters};
pub use mad::{mad, mads};
pub use module::{module, module_counters, modules};
pub use packet::packet;
pub use seeds::{Seed, calls, cards, elements, packets};

/// A target: what it is called, what runs it, and what its corpus must at least hold.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its binary and of its folder in `corpus/`.
    pub name: &'static str,
    /// Runs it on one input.
    pub run: fn(&[u8]),
    /// Inputs that reach its every branch: one an op-code, one a command, …
    pub seeds: fn() -> Vec<Seed>,
    /// The longest input worth trying, in bytes.
    pub max_len: usize,
    /// How many others could be tried instead of one: the runs try so many fewer.
    pub cost: u64,
}

/// Every target.
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
    Target { name: "kernel", run: kernel, seeds: calls, max_len: 4096, cost: 1 },
    // Those that are modules are compiled.
    Target { name: "module", run: module, seeds: modules, max_len: 1024, cost: 20 },
];

/// Runs a target over the files named on the command line: how a stable build of a target's
/// binary repeats a finding.
///
/// # Panics
///
/// If the target does, or a file cannot be read.
pub fn replay_arguments(run: fn(&[u8])) {
    for path in std::env::args_os().skip(1) {
        let data =
            std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        run(&data);
        println!("{}: {} bytes, nothing found", path.display(), data.len());
    }
}
