//! Moves of slots by seed: three groups give each other slots, by the migration as it is, while
//! clients read, write and delete. Primaries change at any moment: the next one has what is
//! committed, and any part of the rest; the one before goes on for a while with what it knows.
//! Answers are late or lost, requests of sessions that have ended arrive later, and the map is
//! written by several at once. The service loses its data, the map among it: all groups end then,
//! and begin again one after the other, with what they have in their logs. Or groups are in memory:
//! one loses all its nodes, and begins anew, now and then with a map from before it gave slots.
//!
//! What the replicas of a group promise is taken for granted here: one log, of which nothing that
//! is committed is lost. Their own worlds are in `crates/sim/src/groups`.
//!
//! What must hold in each: the clients' history is linearizable, with what was not answered open;
//! once all is calm, the moves end, and each key is with one group.

mod clients;
mod groups;
mod hands;
mod world;

use std::panic;

use remora_sim::check::linearizable;
use world::{Plan, World};

/// Steps in which a world that is calm has to come to its end.
const CALM: u64 = 50_000;
/// Worlds in which groups are lost.
const IN_MEMORY: Plan = Plan { is_in_memory: true, ..Plan::DEFAULT };

fn run(seed: u64, plan: Plan) -> Result<World, String> {
    let mut world = World::new(seed, plan);
    for _ in 0..world.plan.steps {
        world.step();
    }
    world.calm();
    let mut left = CALM;
    while !world.is_done() {
        left = left.checked_sub(1).ok_or_else(|| format!("it does not end: {world:?}"))?;
        world.step();
    }
    linearizable::check(&world.history()).map_err(|found| found.to_string())?;
    world.check_keys()?;
    Ok(world)
}

/// Why the worlds of these seeds fail, if they do.
fn failures(first: u64, count: u64, plan: Plan) -> impl Iterator<Item = (u64, String)> {
    (first..first + count).filter_map(move |seed| match panic::catch_unwind(|| run(seed, plan)) {
        Ok(Ok(_)) => None,
        Ok(Err(why)) => Some((seed, why)),
        Err(_) => Some((seed, "panic".to_owned())),
    })
}

fn assert_none(failed: impl Iterator<Item = (u64, String)>) {
    let failed: Vec<_> = failed.collect();
    let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "{} failed, {seeds:?}\n{}", seeds.len(), failed[0].1);
}

#[test]
fn slots_move_whatever_goes_wrong() {
    assert_none(failures(1, 300, Plan::DEFAULT));
}

/// Groups that are lost with what they have in memory: what of it has been missed once stays so.
#[test]
fn slots_move_where_groups_begin_anew() {
    assert_none(failures(1, 300, IN_MEMORY));
}

/// Some thousand worlds: `WORLD_FIRST` and `WORLD_COUNT` say which.
#[test]
#[ignore = "takes minutes"]
fn slots_move_in_many_worlds() {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    for plan in [Plan::DEFAULT, IN_MEMORY] {
        assert_none(failures(number("WORLD_FIRST", 1), number("WORLD_COUNT", 20_000), plan));
    }
}

/// Each of these goes wrong somewhere, so that it is known to be mended.
#[test]
fn worlds_have_what_can_go_wrong() {
    let worlds = |count, plan| (0..count).map(move |seed| run(seed, plan).unwrap());
    let worlds: Vec<_> = worlds(60, Plan::DEFAULT).chain(worlds(240, IN_MEMORY)).collect();
    let sum = |of: fn(&World) -> u64| worlds.iter().map(of).sum::<u64>();
    for (what, count) in [
        ("operations without an answer", sum(World::open)),
        ("moves that ended", sum(|world| world.counts.moved)),
        ("changes of primaries", sum(|world| world.counts.replaced)),
        ("requests that were late", sum(|world| world.counts.late)),
        ("clients that were sent on", sum(|world| world.counts.asked)),
        ("changes that were refused as keys were frozen", sum(|world| world.counts.frozen)),
        ("losses of the map", sum(|world| world.counts.forgotten)),
        ("groups that began anew", sum(|world| world.counts.begun_anew)),
        ("slots of older maps", sum(|world| world.counts.older_maps)),
        ("keys of groups that are no more", sum(|world| world.counts.discarded)),
    ] {
        assert!(count > 20, "{count} {what}");
    }
}

/// The checkers see it when something is wrong: keys that are sent while clients change them.
#[test]
fn keys_that_are_not_frozen_are_found_out() {
    let mut failed = failures(1, 300, Plan { freezes: false, ..Plan::DEFAULT });
    assert!(failed.any(|(_, why)| why.contains("linearizable")), "nobody notices");
}

/// The same: keys stay that have come from a group that is no more.
#[test]
fn keys_that_are_not_discarded_are_found_out() {
    let mut failed = failures(1, 300, Plan { discards: false, ..IN_MEMORY });
    assert!(failed.any(|(_, why)| why.contains("linearizable")), "nobody notices");
}
