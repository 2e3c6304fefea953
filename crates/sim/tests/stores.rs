//! Stores in random worlds, and whether their judge sees what is wrong.

use remora_sim::run::run_world;
use remora_sim::{Failure, Options, Report, StoreOptions, StoreTally};
use remora_store::codec::Codec;
use remora_store::tablespace::Eviction;

/// Runs the worlds of these seeds that have stores, after a change of their options.
fn worlds(
    seeds: std::ops::Range<u64>,
    change: impl Fn(&mut Options),
) -> Vec<Result<Report, Failure>> {
    let drawn = seeds.map(Options::draw).filter(|options| !options.stores.is_empty());
    let changed = drawn.map(|mut options| {
        change(&mut options);
        options
    });
    changed.map(run_world).collect()
}

#[test]
fn stores_keep_what_they_acknowledge() {
    let mut total = StoreTally::default();
    for report in worlds(1..150, |_| {}) {
        total += report.unwrap_or_else(|e| panic!("{e}")).stores;
    }
    // All of it happens somewhere.
    let StoreTally { ended, open, lives, saved, refused, additions, flushes, expiries, .. } = total;
    assert!(ended > 500 && open > 20 && lives > 100 && saved > 20, "{total:?}");
    assert!(refused > 0 && additions > 20 && flushes > 5 && expiries > 20, "{total:?}");
}

/// Tablespaces that are too small for their keys: some go by themselves, and do not come back.
#[test]
fn keys_that_are_evicted_stay_away() {
    let small = |options: &mut Options| {
        for store in &mut options.stores {
            (store.quota, store.eviction, store.value_max) = (Some(500), Eviction::Clock, 400);
        }
    };
    let reports = worlds(1..150, small).into_iter();
    let evicted = reports.map(|report| report.unwrap_or_else(|e| panic!("{e}")).stores.evicted);
    assert!(evicted.sum::<u64>() > 20);
}

/// A store that answers before its log is on the disk loses what it has acknowledged.
#[test]
fn a_store_that_does_not_wait_for_its_disk_is_found_out() {
    let hasty = |options: &mut Options| {
        for store in &mut options.stores {
            store.waits_for_disk = false;
            store.commit = 0.3;
        }
    };
    let failed = worlds(1..150, hasty).into_iter().filter_map(Result::err);
    let reasons: Vec<String> = failed.map(|failure| failure.to_string()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("has no order")), "{reasons:?}");
}

/// The world of a seed is the same each time.
#[test]
fn a_seed_determines_what_stores_do() {
    let run = || -> Vec<_> {
        let told = |report: Result<Report, Failure>| {
            report.map_or_else(|e| e.to_string(), |r| r.to_string())
        };
        worlds(1..30, |_| {}).into_iter().map(told).collect()
    };
    assert_eq!(run(), run());
}

/// A world that has shown an error: what a process had read back behind a sync that had failed was
/// lost with the machine.
#[test]
fn what_is_read_behind_a_failed_sync_stays() {
    for report in worlds(2684..2685, as_they_were) {
        report.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Stores without counters, flushes, expiry, tablespaces of several kinds.
fn as_they_were(options: &mut Options) {
    for store in &mut options.stores {
        store.mixes = false;
        in_one_space(store);
    }
}

fn in_one_space(store: &mut StoreOptions) {
    (store.spaces, store.codec, store.quota) = (1, Codec::None, None);
}

/// A world that would show an error if clients' clocks were believed: one that begins with its
/// connection read an item by a READ, after its time.
#[test]
fn what_has_expired_is_not_read_by_a_clock_that_is_slow() {
    let plain = |options: &mut Options| options.stores.iter_mut().for_each(in_one_space);
    for report in worlds(1816..1817, plain) {
        report.unwrap_or_else(|failure| panic!("{failure}"));
    }
}
