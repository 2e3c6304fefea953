//! Schedules by seed: a cluster of two groups, each of three nodes, as processes, with etcd's three
//! members. While clients work, nodes are killed, stopped, and cut off from each other or from
//! etcd; members of etcd are killed and stopped; and slots move to and fro. What the clients saw is
//! written for porcupine (docs/testing.md). Here it must hold that the cluster serves again, that
//! no node has ended by itself, that each key is with one group, and that the nodes of a group have
//! the same.
//!
//! `REMORA_SCHEDULES` says how many schedules there are, `REMORA_SCHEDULES_FIRST` which is the
//! first. A seed draws the same schedule each time; what comes of it depends on the machine.
#![cfg(feature = "cluster")]

#[path = "../../store/tests/history/mod.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod history;
mod support;
mod schedules {
    pub(crate) mod cluster;
    pub(crate) mod gate;
    #[path = "../../../cluster/tests/etcd/member.rs"]
    pub(crate) mod member;
    #[path = "../../../cluster/tests/etcd/moving.rs"]
    pub(crate) mod moving;
    pub(crate) mod plan;
}

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use history::course::{Course, name_of, random_numbers};
use history::{Event, Op, Record};
use schedules::cluster::Cluster;
use schedules::member::Etcd;
use schedules::moving::Moving;
use schedules::plan::Plan;
use support::verbs::installed;

/// The keys of a schedule: they have slots of both groups.
const KEYS: u64 = 12;
/// How long a client thinks at most before it does something else, in milliseconds.
const THINKS_MS: u64 = 10;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number"))
    })
}

#[test]
fn clusters_live_through_schedules() {
    if !installed(&[("etcd", "etcd-server")]) {
        return;
    }
    let (first, count) = (setting("REMORA_SCHEDULES_FIRST", 1), setting("REMORA_SCHEDULES", 2));
    let mut etcd = Etcd::start();
    let mut failed = Vec::new();
    for seed in first..first + count {
        let start = Instant::now();
        let plan = Plan::of(seed);
        match catch_unwind(AssertUnwindSafe(|| run(&plan, &mut etcd))) {
            Ok((ended, open)) => println!(
                "schedule {seed}: {ended} operations ended, {open} are open; {:.1} s; {plan}",
                start.elapsed().as_secs_f64()
            ),
            Err(_) => {
                println!("schedule {seed} failed: {plan}");
                failed.push(seed);
                etcd.mend();
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {count} schedules failed: {failed:?}; REMORA_SCHEDULES_FIRST names one of them, \
         what its nodes said is in {}",
        failed.len(),
        env!("CARGO_TARGET_TMPDIR"),
    );
}

/// Runs a schedule. How many operations of clients ended, and of how many nobody saw the end?
fn run(plan: &Plan, etcd: &mut Etcd) -> (usize, usize) {
    let round = plan.seed as usize;
    let mut cluster = Cluster::start(plan.seed, etcd);
    let (mut course, over) = (Course::default(), AtomicBool::new(false));
    course.keys = KEYS;
    let fronts = cluster.fronts();
    let mut events: Vec<Event> = scope(|scope| {
        let client = |index: usize| {
            let (mut client, course, over) = (Moving::new(fronts.clone(), index), &course, &over);
            let mut random = random_numbers(plan.seed << 8 | index as u64);
            let goes_on = move || {
                sleep(Duration::from_millis(random() % THINKS_MS));
                !over.load(Relaxed)
            };
            scope.spawn(move || course.run_while(index, round, &mut client, goes_on))
        };
        let clients: Vec<_> = (0..plan.clients).map(client).collect();
        let acted = catch_unwind(AssertUnwindSafe(|| cluster.live_through(plan)));
        over.store(true, Relaxed);
        let events = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        acted.unwrap_or_else(|panic| resume_unwind(panic));
        events
    });
    cluster.settle();
    // What was acknowledged, and what happened besides, is there.
    let mut reader = Moving::new(fronts, 0);
    let read = |key| course.carry_out(plan.clients, round, key, Op::Get, &mut reader);
    events.extend((0..KEYS).map(read));
    cluster.compare(&(0..KEYS).map(|key| name_of(round, key)).collect::<Vec<_>>());
    let mut record = Record::create(&format!("schedule-{}", plan.seed));
    events.iter().for_each(|event| record.add(&name_of(round, event.key), event));
    let ended = events.iter().filter(|event| event.ended.is_some()).count();
    assert!(ended > KEYS as usize, "{ended} operations ended");
    (ended, events.len() - ended)
}
