//! All fuzz targets on stable Rust: each runs its corpus, and then inputs made from one seed.
//!
//! `REMORA_FUZZ_SEED` and `REMORA_FUZZ_ROUNDS` choose the inputs; `./ci.sh fuzz` sets them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::{env, fs};

use remora_fuzz::{
    Seed, TARGETS, Target, card_counters, chain_counters, descriptor_counters, element_counters,
    kernel_counters, module_counters, session_counters, socket_answers,
};
use remora_nic::Counters;
use remora_nic::split_mix::SplitMix;
use remora_nic::wire::opcode::TABLE;
use remora_nic::wire::{Dialect, Malformed, Op, Packet};

#[test]
fn every_target_survives_its_corpus() {
    for target in TARGETS {
        for seed in corpus(target) {
            attempt(target, &seed.data, &format!("corpus/{}/{}", target.name, seed.name));
        }
    }
}

#[test]
fn every_target_survives_mutations_and_noise() {
    let first = setting("REMORA_FUZZ_SEED", 1);
    let rounds = setting("REMORA_FUZZ_ROUNDS", 20_000);
    for target in TARGETS {
        let corpus = corpus(target);
        for seed in first..first.saturating_add(rounds.div_ceil(target.cost)) {
            let data = Random::new(seed).input(&corpus, target.max_len);
            attempt(target, &data, &format!("REMORA_FUZZ_SEED={seed} REMORA_FUZZ_ROUNDS=1"));
        }
    }
}

#[test]
fn every_target_has_its_binary_and_its_corpus() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let binaries = names(&here.join("fuzz_targets"));
    let binaries = binaries.iter().map(|name| name.trim_end_matches(".rs").to_owned()).collect();
    assert_eq!(named, binaries, "TARGETS and fuzz_targets/ differ");
    assert_eq!(named, names(&here.join("corpus")), "TARGETS and corpus/ differ");
}

#[test]
fn every_seed_is_in_the_corpus() {
    for target in TARGETS {
        let corpus = corpus(target);
        for seed in (target.seeds)() {
            assert!(
                corpus.contains(&seed),
                "{}/{} is missing or old: cargo test -p remora-fuzz -- --ignored",
                target.name,
                seed.name,
            );
        }
    }
}

#[test]
#[ignore = "writes the seeds into the corpus"]
fn write_seeds() {
    for target in TARGETS {
        let folder = corpus_folder(target);
        fs::create_dir_all(&folder).unwrap();
        for seed in (target.seeds)() {
            fs::write(folder.join(seed.name), seed.data).unwrap();
        }
    }
}

/// Elements whose key opens memory, and others.
#[test]
fn inputs_for_session_reach_memory_and_refusals() {
    let sums = counted("session", session_counters);
    assert!(sums["chain_elements"] > 50, "carried out: {}", sums["chain_elements"]);
    assert!(sums["elements_protection"] > 10, "refused: {}", sums["elements_protection"]);
}

/// A target whose inputs reach nothing finds nothing: inputs must pass the first checks.
#[test]
fn inputs_for_packet_reach_every_op_code_and_every_refusal() {
    let target = TARGETS.iter().find(|target| target.name == "packet").unwrap();
    let corpus = corpus(target);
    let mut parsed = BTreeSet::new();
    let mut refused = BTreeSet::new();
    for seed in 1..20_000 {
        let data = Random::new(seed).input(&corpus, target.max_len);
        for dialect in [Dialect::STANDARD, Dialect::KERNELS, Dialect::all()] {
            let outcome = Packet::bth(&data).and_then(|bth| {
                let op = Op::lookup(bth.opcode, dialect);
                op.map(|op| Packet::parse(bth, op, &data)).transpose()
            });
            match outcome {
                Ok(Some(packet)) => _ = parsed.insert(packet.op.name),
                Ok(None) => _ = refused.insert("the op-code is unknown".to_owned()),
                Err(malformed) => _ = refused.insert(malformed.to_string()),
            }
        }
    }
    assert_eq!(parsed, TABLE.iter().map(|op| op.name).collect());
    let reasons = [Malformed::TooShort, Malformed::Truncated, Malformed::Padding];
    for reason in reasons {
        assert!(refused.contains(&reason.to_string()), "no input was refused because {reason}");
    }
}

#[test]
fn inputs_for_kernel_reach_every_end_of_a_call() {
    let sums = counted("kernel", kernel_counters);
    let ends = ["done", "bad_params", "not_found", "too_long", "access", "budget", "inconsistent"];
    for end in ends {
        let name = format!("kernel_{end}");
        assert!(sums[name.as_str()] > 20, "{name}: {}", sums[name.as_str()]);
    }
}

#[test]
fn inputs_for_module_reach_every_end_of_a_guest() {
    let sums = counted("module", module_counters);
    for end in ["done", "trap", "budget", "memory"] {
        let name = format!("kernel_{end}");
        assert!(sums[name.as_str()] > 5, "{name}: {}", sums[name.as_str()]);
    }
    assert!(sums["kernel_taps_stopped"] > 5, "{}", sums["kernel_taps_stopped"]);
}

#[test]
fn inputs_for_descriptor_reach_what_an_engine_does() {
    let target = TARGETS.iter().find(|target| target.name == "descriptor").unwrap();
    let corpus = corpus(target);
    let mut sums = BTreeMap::new();
    for seed in 1..20_000 / target.cost {
        for (name, value) in
            descriptor_counters(&Random::new(seed).input(&corpus, target.max_len)).iter()
        {
            *sums.entry(name).or_insert(0) += value;
        }
    }
    for name in ["done", "invalid", "out_of_range", "bytes", "halted"] {
        assert!(sums[name] > 20, "{name}: {}", sums[name]);
    }
}

/// Each request has an answer of its own, and each is refused to some.
#[test]
fn inputs_for_socket_get_every_answer() {
    let target = TARGETS.iter().find(|target| target.name == "socket").unwrap();
    let corpus = corpus(target);
    let mut sums = BTreeMap::new();
    for seed in 1..20_000 / target.cost {
        for (name, value) in socket_answers(&Random::new(seed).input(&corpus, target.max_len)) {
            *sums.entry(name).or_insert(0) += value;
        }
    }
    let answers = [
        "welcome",
        "result",
        "lent",
        "completion queue",
        "described",
        "objects",
        "xrcd",
        "status",
        "regions",
        "passes",
        "dma clients",
        "kernel",
        "dma",
        "pass",
        "done",
        "refused",
        "farewell",
        "other version",
    ];
    let missed: Vec<_> = answers.iter().filter(|name| !sums.contains_key(**name)).collect();
    assert!(missed.is_empty(), "never answered: {missed:?}; {sums:?}");
}

#[test]
fn inputs_for_chain_reach_what_chains_do() {
    let sums = counted("chain", chain_counters);
    let reached = [
        ("chain_elements", 100_000),
        ("chain_bad_wait", 20),
        ("chain_bad_enable", 50),
        ("elements_invalid", 1000),
        ("elements_protection", 30),
        ("elements_flushed", 1000),
        ("refused_key", 30),
        ("refused_bounds", 30),
        ("refused_invalid_request", 30),
    ];
    for (name, least) in reached {
        assert!(sums[name] >= least, "{name}: {}", sums[name]);
    }
}

/// The counters of the card by name, summed over the inputs of a target.
fn counted(name: &str, run: fn(&[u8]) -> Counters) -> BTreeMap<&'static str, u64> {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus = corpus(target);
    let mut sums = BTreeMap::new();
    for seed in 1..20_000 / target.cost {
        for (name, value, _) in run(&Random::new(seed).input(&corpus, target.max_len)).iter() {
            *sums.entry(name).or_default() += value;
        }
    }
    sums
}

#[test]
fn inputs_for_card_reach_every_counter_but_a_few() {
    let sums = counted("card", card_counters);
    // The arena has one peer, which sends from one port, and one protection domain. It has no
    // limits that are reached, memory that never fails, only valid elements, no listener, and no
    // client that writes rings itself; nor does it send to itself without its driver. Its inputs
    // are too short to be refused 64 times, and too short for the time in which the lossy dialect
    // finds a loss: the simulator's worlds do that.
    let beyond = [
        "cq_overflows",
        "doorbells_refused",
        // It holds more than 4096 messages, or a megabyte that waits.
        "drop_ahead_full",
        "drop_icrc",
        "drop_source_port",
        "drop_wrong_source",
        "elements_invalid",
        "elements_protection",
        "found_lost",
        "incidents_lost",
        "local_messages",
        "local_packets",
        // Each arena has one path.
        "paths_retired",
        // The driver says that a peer is held or gone.
        "peers_gone",
        "pool_full",
        "probes",
        "recoveries_undone",
        "refused_domain",
        "refused_memory",
        "retries_waited",
        "rx_selective",
        "tx_for_nothing",
        "tx_management",
    ];
    let missed: Vec<_> = sums.iter().filter(|(_, sum)| **sum == 0).map(|(name, _)| name).collect();
    // The card of this target runs no kernels and no chains: these have targets of their own.
    let others = |name: &str| name.starts_with("kernel_") || name.starts_with("chain_");
    let missed: Vec<_> =
        missed.iter().filter(|name| !beyond.contains(**name) && !others(name)).collect();
    assert!(missed.is_empty(), "never counted: {missed:?}");
}

/// Messages of the lossy dialect that are held, and end: three packets of 1024 bytes and one of
/// five each, two messages on either queue pair.
#[test]
fn messages_of_the_lossy_dialect_are_held_and_end() {
    let target = TARGETS.iter().find(|target| target.name == "card").unwrap();
    for name in ["lossy-send-held", "lossy-rdma-write-held"] {
        let seeds = (target.seeds)();
        let counters = card_counters(&seeds.iter().find(|seed| seed.name == name).unwrap().data);
        let refused = (counters.refused_contradiction, counters.drop_early);
        assert_eq!((counters.rx_bytes, refused), (4 * (3 * 1024 + 5), (0, 0)), "{name}");
    }
}

/// Much is held when the arena is given far packets, too.
#[test]
fn inputs_for_card_reach_what_the_lossy_dialect_holds() {
    let sums = counted("card", card_counters);
    let reached = [("rx_out_of_sequence", 500), ("refused_contradiction", 50), ("drop_early", 50)];
    for (name, least) in reached {
        assert!(sums[name] >= least, "{name}: {}", sums[name]);
    }
}

#[test]
fn inputs_for_element_reach_the_checks_of_elements() {
    let sums = counted("element", element_counters);
    for name in ["elements_fetched", "elements_invalid", "elements_protection", "tx_bytes"] {
        assert!(sums[name] > 100, "{name}: {}", sums[name]);
    }
}

/// Runs a target. If it panics, keeps the input and says how to repeat the run.
fn attempt(target: &Target, data: &[u8], origin: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(data))).is_err() {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-finding", target.name));
        let kept = match fs::write(&kept, data) {
            Ok(()) => format!("cargo run -p remora-fuzz --bin {} {}", target.name, kept.display()),
            Err(error) => format!("(the input could not be kept: {error})"),
        };
        panic!("target {} panicked on {} bytes from {origin}\n{kept}", target.name, data.len());
    }
}

fn corpus_folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// A target's corpus, sorted by name, so that a seed always makes the same inputs.
fn corpus(target: &Target) -> Vec<Seed> {
    let folder = corpus_folder(target);
    let read = |name: String| Seed { data: fs::read(folder.join(&name)).unwrap(), name };
    names(&folder).into_iter().map(read).collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number"))
    })
}

/// Random inputs.
struct Random(SplitMix);

impl Random {
    fn new(seed: u64) -> Random {
        Random(SplitMix::new(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.number()
    }

    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        // Boundary values find more than the values between them.
        const EDGES: [u8; 6] = [0, 1, 0x7F, 0x80, 0xFE, 0xFF];
        if self.below(2) == 0 { EDGES[self.below(EDGES.len())] } else { self.next() as u8 }
    }

    /// Random bytes one time in eight, or else an input of the corpus with a few changes.
    fn input(mut self, corpus: &[Seed], max_len: usize) -> Vec<u8> {
        // Seeds are small consecutive numbers: mix once before the first choice.
        self.next();
        if corpus.is_empty() || self.below(8) == 0 {
            let limit = if self.below(8) == 0 { max_len } else { max_len.min(96) };
            return (0..self.below(limit + 1)).map(|_| self.next() as u8).collect();
        }
        let mut data = corpus[self.below(corpus.len())].data.clone();
        for _ in 0..=self.below(4) {
            self.mutate(&mut data, corpus);
        }
        data.truncate(max_len);
        data
    }

    fn mutate(&mut self, data: &mut Vec<u8>, corpus: &[Seed]) {
        let at = self.below(data.len() + 1);
        match self.below(6) {
            0 => data.truncate(at),
            1 => {
                let byte = self.byte();
                data.extend(std::iter::repeat_n(byte, at.max(1)));
            }
            2 => data.insert(at, self.byte()),
            // The start of this input with the end of another.
            3 => {
                let other = &corpus[self.below(corpus.len())].data;
                data.truncate(at);
                data.extend_from_slice(other.get(at..).unwrap_or_default());
            }
            4 if at < data.len() => data[at] ^= 1 << self.below(8),
            _ if at < data.len() => data[at] = self.byte(),
            _ => {}
        }
    }
}
