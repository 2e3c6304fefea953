//! Groups by seed: the replicas of a store as they are, in worlds where nodes die and are stopped,
//! links break in one direction or both, disks are slow or hang, clocks drift, and the
//! configuration service is away.
//!
//! What must hold in each: the clients' history is linearizable, with what was not answered open;
//! once all is mended, the group serves again; and all its nodes have the same in their stores.
//!
//! - [`Plan`] (`plan`): what a world is like. `world`: its events. `faults`: what goes wrong.
//! - `node`: a node, whose store is `kept`, on a `disk`, by a `clock`. `network`: what connects
//!   them. `client`, `clients`: who reads and writes.

mod client;
mod clients;
mod clock;
mod disk;
mod faults;
mod kept;
mod network;
mod node;
mod plan;
mod world;

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use remora_store::replica::Counters;
use thiserror::Error;

pub use self::plan::Plan;
use self::world::World;
use crate::check::{Violation, demand, linearizable};

/// What has happened in a world.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the world was like.
    pub plan: Plan,
    /// What clients have asked for.
    pub operations: u64,
    /// Those of them that nobody has answered.
    pub open: u64,
    /// The epoch at the end.
    pub epochs: u32,
    /// All nodes there were. One without a disk comes back as another one.
    pub nodes: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Epochs that the replicas that were there at the end have begun to serve.
    pub served: u64,
    /// Times one of these gave up being primary for want of a majority.
    pub resigned: u64,
    /// Times one of these forgot what had not been committed.
    pub truncated: u64,
    /// Backups that one of these cut off as they were too slow.
    pub overrun: u64,
    /// Stores that were sent, as these have counted it.
    pub snapshots: u64,
    /// Those of them that did not come whole.
    pub broken_off: u64,
    /// Times that a disk hung for so long that it counted as one that refuses.
    pub silences: u64,
    /// The virtual time at the end.
    pub time: Duration,
    /// Events.
    pub steps: u64,
}

/// A checker found a violation.
#[derive(Clone, Debug, Error)]
#[error("seed {}: {violation}", .plan.seed)]
pub struct Failure {
    /// What the world was like.
    pub plan: Box<Plan>,
    /// What the checker found.
    pub violation: Violation,
}

/// Runs the world of `seed` to its end.
pub fn run(seed: u64) -> Result<Report, Failure> {
    run_world(Plan::draw(seed))
}

/// Runs a world like this to its end.
pub fn run_world(plan: Plan) -> Result<Report, Failure> {
    let (_, dice) = Plan::draw_from(plan.seed);
    let mut world = World::new(plan, dice);
    match judge(&mut world) {
        Ok(()) => Ok(report(world)),
        Err(violation) => Err(Failure { plan: Box::new(world.plan), violation }),
    }
}

fn judge(world: &mut World) -> Result<(), Violation> {
    let plan = &world.plan;
    let until_ns = plan.calm_at_ns + 100 * plan.lease_ns + 200 * plan.patience_ns;
    while !world.is_done() {
        let goes_on = world.step(until_ns);
        demand(goes_on, "liveness", || format!("the group does not serve: {}", standings(world)))?;
    }
    linearizable::check(&world.history)?;
    let quiet_ns = world.now_ns + 40 * world.plan.lease_ns;
    while world.step(quiet_ns) {}
    check_digests(world)
}

/// All members have carried out the same, and hold the same.
fn check_digests(world: &World) -> Result<(), Violation> {
    let members = world.registry.latest().map(|latest| &latest.members[..]).unwrap_or_default();
    let states: BTreeMap<_, _> = members
        .iter()
        .map(|name| (*name, (world.nodes[name].replica.applied(), world.nodes[name].kept.table())))
        .collect();
    let mut machines = world.machines.clone();
    machines.sort();
    let is_same = states.values().all(|state| Some(state) == states.values().next());
    demand(is_same && *members == machines, "digests", || {
        format!("the nodes differ: {states:?}\n{}", standings(world))
    })
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

fn report(world: World) -> Report {
    let is_open = |operation: &&linearizable::Operation| operation.answered_ns.is_none();
    let sum = |of: fn(&Counters) -> u64| {
        world.nodes.values().map(|node| of(node.replica.counters())).sum()
    };
    Report {
        operations: world.history.len() as u64,
        open: world.history.iter().filter(is_open).count() as u64,
        epochs: world.registry.latest().map_or(0, |latest| latest.epoch),
        nodes: world.nodes.len() as u64,
        deaths: world.nodes.values().map(|node| node.life).sum(),
        served: sum(|counters| counters.served),
        resigned: sum(|counters| counters.resigned),
        truncated: sum(|counters| counters.truncated),
        overrun: sum(|counters| counters.overrun),
        snapshots: sum(|counters| counters.snapshots),
        broken_off: world.copies_begun - world.copies_come,
        silences: world.silences,
        time: Duration::from_nanos(world.now_ns),
        steps: world.steps,
        plan: world.plan,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { operations, open, epochs, nodes, deaths, served, resigned, .. } = self;
        let Report { truncated, overrun, snapshots, broken_off, silences, time, steps, .. } = self;
        write!(f, "{}", self.plan)?;
        writeln!(f, "  done    {operations} operations, {open} without an answer")?;
        writeln!(f, "  nodes   {nodes} in all, {deaths} deaths")?;
        writeln!(
            f,
            "  epochs  {epochs}; {served} served and {resigned} given up by nodes that lived on"
        )?;
        writeln!(
            f,
            "  logs    {truncated} cut back, {overrun} backups too slow, {snapshots} snapshots, \
             {broken_off} of them broken off"
        )?;
        if self.plan.on_disk && self.plan.disks_hang {
            writeln!(f, "  disks   {silences} hung for too long")?;
        }
        writeln!(f, "  time    {time:?}; {steps} steps")
    }
}
