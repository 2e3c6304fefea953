//! Random worlds: a few on every run. `SIM_SEEDS` sets their number and `SIM_FIRST` the first
//! seed.

#[path = "support/survive.rs"]
mod survive;

use remora_sim::Options;
use remora_sim::run::run_world;
use survive::survive;

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

/// Two ends call each other's only invocation: results do not wait for room until the kernels'
/// patience ends.
#[test]
fn calls_of_two_ends_do_not_wait_for_each_other() {
    let report = remora_sim::run(4542).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.congested, 0, "{report}");
    assert!(report.steps < 100_000, "{report}");
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
    survive("SIM", 50, remora_sim::run);
}
