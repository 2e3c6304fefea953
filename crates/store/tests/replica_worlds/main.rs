//! Groups by seed: the replicas as they are, in worlds where nodes die and are stopped, links break
//! in one direction or both, disks are slow, clocks drift, and the configuration service is away.
//!
//! What must hold in each: the clients' history is linearizable, with what was not answered open;
//! once all is mended, the group serves again; and all its nodes have the same in their stores.
//!
//! `WORLD_FIRST=17 WORLD_COUNT=1 cargo test -p remora-store --test replica_worlds -- --ignored`
//! runs one of them again.

mod clients;
mod dice;
mod disk;
mod faults;
mod kept;
mod linearizable;
mod network;
mod node;
mod plan;
mod world;

use std::collections::BTreeMap;
use std::panic;

use dice::Dice;
use linearizable::Operation;
use plan::Plan;
use world::World;

/// Runs a world to its end.
fn run(plan: Plan, dice: Dice) -> Result<World, String> {
    let mut world = World::new(plan, dice);
    let plan = &world.plan;
    let until_ns = plan.calm_at_ns + 100 * plan.lease_ns + 200 * plan.patience_ns;
    while !world.is_done() {
        if !world.step(until_ns) {
            return Err(format!("the group does not serve: {}", standings(&world)));
        }
    }
    linearizable::check(&world.history)?;
    let quiet_ns = world.now_ns + 40 * world.plan.lease_ns;
    while world.step(quiet_ns) {}
    check_digests(&world)?;
    Ok(world)
}

/// All members have carried out the same, and hold the same.
fn check_digests(world: &World) -> Result<(), String> {
    let members = &world.registry.latest().expect("a configuration").members;
    let states: BTreeMap<_, _> = members
        .iter()
        .map(|name| (*name, (world.nodes[name].replica.applied(), world.nodes[name].kept.table())))
        .collect();
    let first = states.values().next().expect("a member");
    if states.values().all(|state| state == first) && *members == sorted(&world.machines) {
        return Ok(());
    }
    Err(format!("the nodes differ: {states:?}\n{}", standings(world)))
}

fn sorted<T: Ord + Clone>(all: &[T]) -> Vec<T> {
    let mut all = all.to_vec();
    all.sort();
    all
}

fn standings(world: &World) -> String {
    let lines = world.nodes.values().filter(|node| node.is_up).map(|node| {
        let replica = &node.replica;
        format!(
            "{} epoch {} {:?} last {:?} committed {} applied {:?} {:?}\n",
            replica.me(),
            replica.epoch(),
            replica.standing(),
            replica.last(),
            replica.committed(),
            replica.applied(),
            replica.counters(),
        )
    });
    format!("{:?}\n{}", world.registry.latest(), lines.collect::<String>())
}

/// What some worlds have come to.
#[derive(Default)]
struct Outcome {
    /// The seeds of those that failed, and why.
    failed: Vec<(u64, String)>,
    /// What the replicas that were there at the end have counted, and the clients.
    totals: BTreeMap<&'static str, u64>,
}

impl Outcome {
    fn add(&mut self, world: &World) {
        let open = |operation: &&Operation| operation.answered_ns.is_none();
        let mut counted = vec![
            ("operations", world.history.len() as u64),
            ("operations without an answer", world.history.iter().filter(open).count() as u64),
            ("epochs", u64::from(world.registry.latest().map_or(0, |latest| latest.epoch))),
            ("nodes", world.nodes.len() as u64),
            ("lives", world.nodes.values().map(|node| node.life).sum()),
        ];
        for node in world.nodes.values() {
            let counters = node.replica.counters();
            counted.extend([
                ("served", counters.served),
                ("overrun", counters.overrun),
                ("snapshots", counters.snapshots),
                ("truncated", counters.truncated),
                ("resigned", counters.resigned),
                ("full", counters.full),
                ("stale", counters.stale),
                ("refused", counters.refused),
            ]);
        }
        counted
            .into_iter()
            .for_each(|(what, count)| *self.totals.entry(what).or_default() += count);
    }
}

fn run_all(first: u64, count: u64, change: impl Fn(&mut Plan)) -> Outcome {
    let mut outcome = Outcome::default();
    for seed in first..first + count {
        let mut dice = Dice::new(seed);
        let mut plan = Plan::of(&mut dice);
        change(&mut plan);
        let shown = format!("{plan:?}");
        match panic::catch_unwind(panic::AssertUnwindSafe(|| run(plan, dice))) {
            Ok(Ok(world)) => outcome.add(&world),
            Ok(Err(why)) => outcome.failed.push((seed, format!("{why}\n{shown}"))),
            Err(_) => outcome.failed.push((seed, format!("panic\n{shown}"))),
        }
    }
    outcome
}

fn assert_none(outcome: &Outcome) {
    let failed = &outcome.failed;
    let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "{} failed, {seeds:?}\n{}", seeds.len(), failed[0].1);
}

#[test]
fn groups_survive_what_goes_wrong() {
    let outcome = run_all(1, 200, |_| {});
    assert_none(&outcome);
    // Each of these goes wrong somewhere, so that it is known to be mended.
    for what in ["operations without an answer", "overrun", "snapshots", "truncated", "resigned"] {
        assert!(outcome.totals[what] > 0, "no {what}: {:?}", outcome.totals);
    }
}

/// Worlds that have shown errors: a disk's node that was the primary and went on in its epoch, a
/// second primary's greeting before the service's, a ring without room for an epoch's first record,
/// what is committed learned before the history was taken over, and a ring that went on while a
/// backup forgot what it had to.
#[test]
fn worlds_that_have_failed() {
    for seed in [78, 309, 383, 433, 655, 700, 1136, 1296, 1762, 2083, 2724, 2937, 12839] {
        assert_none(&run_all(seed, 1, |_| {}));
    }
}

/// Some thousand worlds: `WORLD_FIRST` and `WORLD_COUNT` say which.
#[test]
#[ignore = "takes minutes"]
fn groups_survive_what_goes_wrong_in_many_worlds() {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    assert_none(&run_all(number("WORLD_FIRST", 1), number("WORLD_COUNT", 10_000), |_| {}));
}

/// The checkers see it when something is wrong: reads that do not look at the lease are stale.
#[test]
fn reads_without_a_lease_are_found_out() {
    let failed = run_all(1, 200, |plan| plan.honours_lease = false).failed;
    assert!(failed.iter().any(|(_, why)| why.contains("not linearizable")), "{failed:?}");
}
