//! Random worlds: a few on every run. `SIM_SEEDS` sets their number and `SIM_FIRST` the first
//! seed.

use std::env;

use remora_sim::Options;
use remora_sim::run::run_world;

/// Worlds that showed a bug.
#[test]
fn worlds_that_failed_once() {
    // A lossy responder that had given its answers up posted requests, which never ended.
    for seed in [3504] {
        if let Err(failure) = remora_sim::run(seed) {
            panic!("{}{failure}", failure.options);
        }
    }
}

/// Calls that wait for each other until the kernels' patience ends take few steps of the world.
#[test]
fn calls_that_wait_for_each_other_take_few_steps() {
    let report = remora_sim::run(4542).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.congested > 0, "{report}");
    assert!(report.steps < 3_000_000, "{report}");
}

/// Guests of some worlds have atomics, each of which is carried out once.
#[test]
fn guests_have_atomics() {
    let with_some = (1..60)
        .map(Options::draw)
        .filter(|options| options.guests.iter().any(|guest| guest.atomics && guest.messages > 6));
    let reports = with_some.map(|options| run_world(options).unwrap_or_else(|e| panic!("{e}")));
    assert!(reports.map(|report| report.guest_atomics).sum::<u64>() > 100);
}

#[test]
fn random_worlds() {
    let number = |name, default| env::var(name).map_or(default, |v| v.parse().unwrap());
    let (first, count): (u64, u64) = (number("SIM_FIRST", 1), number("SIM_SEEDS", 50));
    let mut failures = Vec::new();
    for seed in first..first + count {
        let result = std::panic::catch_unwind(|| remora_sim::run(seed));
        match result {
            Ok(Ok(report)) if count == 1 => println!("{report}"),
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => {
                println!("{}{failure}", failure.options);
                failures.push(seed);
            }
            Err(_) => {
                println!("seed {seed}: panic");
                failures.push(seed);
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed: {failures:?}", failures.len());
}
