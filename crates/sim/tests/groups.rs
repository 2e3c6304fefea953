//! Groups of replicas by seed: some on every run. `remora sim --of groups` runs more.

use std::panic;

use remora_sim::groups::{Plan, Report, run_world};

/// What the worlds of some seeds come to, changed like this.
fn run_all(
    seeds: impl IntoIterator<Item = u64>,
    change: impl Fn(&mut Plan),
) -> (Vec<Report>, Vec<String>) {
    let (mut reports, mut failed) = (vec![], vec![]);
    for seed in seeds {
        let mut plan = Plan::draw(seed);
        change(&mut plan);
        let shown = plan.to_string();
        match panic::catch_unwind(|| run_world(plan)) {
            Ok(Ok(report)) => reports.push(report),
            Ok(Err(failure)) => failed.push(format!("{shown}{failure}")),
            Err(_) => failed.push(format!("{shown}panic")),
        }
    }
    (reports, failed)
}

fn assert_none(failed: &[String]) {
    assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn groups_survive_what_goes_wrong() {
    let (reports, failed) = run_all(1..=200, |_| {});
    assert_none(&failed);
    // Each of these goes wrong somewhere, so that it is known to be mended.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    for (what, count) in [
        ("operations without an answer", sum(|report| report.open)),
        ("deaths", sum(|report| report.deaths)),
        ("backups that were too slow", sum(|report| report.overrun)),
        ("snapshots", sum(|report| report.snapshots)),
        ("snapshots that broke off", sum(|report| report.broken_off)),
        ("logs cut back", sum(|report| report.truncated)),
        ("primaries that gave up", sum(|report| report.resigned)),
        ("disks that hung for too long", sum(|report| report.silences)),
    ] {
        assert!(count > 0, "no {what}");
    }
}

/// Worlds that have shown errors: a disk's node that was the primary and went on in its epoch, a
/// second primary's greeting before the service's, a ring without room for an epoch's first record,
/// what is committed learned before the history was taken over, a ring that went on while a backup
/// forgot what it had to, and a primary that was not told of the little room that its epoch's first
/// record needs.
#[test]
fn worlds_that_have_failed() {
    let seeds = [78, 309, 383, 429, 433, 655, 700, 1136, 1296, 1762, 2083, 2724, 2937, 12839];
    let as_they_were = |plan: &mut Plan| {
        (plan.pieces, plan.transacts, plan.disks_hang) = (0, false, false);
    };
    assert_none(&run_all(seeds, as_they_were).1);
    // A part of a transaction was carried out, as all of it was known to be committed.
    assert_none(&run_all([1136], |plan| (plan.pieces, plan.disks_hang) = (0, false)).1);
}

/// The checkers see it when something is wrong: reads that do not look at the lease are stale.
#[test]
fn reads_without_a_lease_are_found_out() {
    let (_, failed) = run_all(2401..=2600, |plan| {
        (plan.pieces, plan.transacts, plan.disks_hang) = (0, false, false);
        plan.honours_lease = false;
    });
    assert!(failed.iter().any(|why| why.contains("linearizable")), "{failed:?}");
}

/// A seed is a world: the same happens each time.
#[test]
fn a_world_is_the_same_each_time() {
    let (first, second) = (run_all([7, 8], |_| {}).0, run_all([7, 8], |_| {}).0);
    let shown = |reports: &[Report]| reports.iter().map(Report::to_string).collect::<String>();
    assert_eq!(shown(&first), shown(&second));
}
