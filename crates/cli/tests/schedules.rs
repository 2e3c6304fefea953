//! Schedules by seed: a cluster of two groups, each of three nodes, as processes, with etcd's three
//! members. While clients work, nodes are killed, stopped, and cut off from each other or from
//! etcd; members of etcd are killed and stopped; and slots move to and fro. In half of them, nodes
//! keep their logs on disks, and come again after they were killed, also after all nodes of a group
//! were, or of both. What the clients saw is written for porcupine (docs/testing.md). Here it must
//! hold that the cluster serves again, that no node has ended by itself, that each key is with one
//! group, and that the nodes of a group have the same.
//!
//! `REMORA_SCHEDULES` says how many schedules there are, `REMORA_SCHEDULES_FIRST` which is the
//! first; without them there are three, in which all that can happen does. A seed draws the same
//! schedule each time; what comes of it depends on the machine.
#![cfg(feature = "cluster")]

#[path = "../../store/tests/history/mod.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod history;
mod support;
mod schedules {
    pub(crate) mod card;
    pub(crate) mod cluster;
    pub(crate) mod gate;
    #[path = "../../../cluster/tests/etcd/member.rs"]
    pub(crate) mod member;
    #[path = "../../../cluster/tests/etcd/moving.rs"]
    pub(crate) mod moving;
    pub(crate) mod plan;
}

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use history::course::{Client, Course, name_of, random_numbers};
use history::redis::pair_of;
use history::{Event, Op, Record};
use remora::DeviceOptions;
use schedules::card::Card;
use schedules::cluster::Cluster;
use schedules::member::Etcd;
use schedules::moving::Moving;
use schedules::plan::{Plan, Step};
use support::verbs::installed;

/// The keys of a schedule: they have slots of both groups.
const KEYS: u64 = 12;
/// Pairs of keys that are set together, and those who do that.
const PAIRS: u64 = 3;
const PAIR_CLIENTS: usize = 2;
/// How long a client thinks at most before it does something else, in milliseconds.
const THINKS_MS: u64 = 10;

/// Seeds that draw every kind of step between them, each where it finds somebody; in the first, a
/// primary is stopped past its lease, in the others, nodes have disks.
const SEEDS: [u64; 3] = [47077, 6891, 59397];

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

fn seeds() -> Vec<u64> {
    let (first, count) = (setting("REMORA_SCHEDULES_FIRST"), setting("REMORA_SCHEDULES"));
    if (first, count) == (None, None) {
        return SEEDS.to_vec();
    }
    let first = first.unwrap_or(1);
    (first..first + count.unwrap_or(1)).collect()
}

#[test]
fn the_seeds_of_every_run_draw_every_kind_of_step() {
    let plans = SEEDS.map(Plan::of);
    let steps = plans.iter().flat_map(|plan| &plan.steps).map(|(_, step)| step);
    let drawn: BTreeSet<_> = steps.map(Step::kind).collect();
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), Step::KINDS);
}

#[test]
fn clusters_live_through_schedules() {
    if !installed(&[("etcd", "etcd-server")]) {
        return;
    }
    let seeds = seeds();
    let mut etcd = Etcd::start();
    let (mut failed, mut all_reads) = (Vec::new(), 0);
    for seed in seeds.iter().copied() {
        let start = Instant::now();
        let plan = Plan::of(seed);
        match catch_unwind(AssertUnwindSafe(|| run(&plan, &mut etcd))) {
            Ok(Outcome { ended, open, reads, skipped }) => {
                all_reads += reads;
                println!(
                    "schedule {seed}: {ended} operations ended, {open} are open, {reads} by READs; \
                     {:.1} s; {plan}; nobody there for {skipped:?}",
                    start.elapsed().as_secs_f64()
                );
            }
            Err(_) => {
                println!("schedule {seed} failed: {plan}");
                failed.push(seed);
                etcd.mend();
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} schedules failed: {failed:?}; REMORA_SCHEDULES_FIRST names one of them, \
         what its nodes said is in {}",
        failed.len(),
        seeds.len(),
        env!("CARGO_TARGET_TMPDIR"),
    );
    assert!(all_reads > 0, "no READ has led to a value");
}

/// What came of a schedule.
struct Outcome {
    /// How many operations of clients ended, and of how many nobody saw the end.
    ended: usize,
    open: usize,
    /// How many values READs have led to.
    reads: u64,
    /// What there was nobody for.
    skipped: Vec<Step>,
}

fn run(plan: &Plan, etcd: &mut Etcd) -> Outcome {
    let round = plan.seed as usize;
    let device = DeviceOptions::new().embedded().open().unwrap();
    let mut cluster = Cluster::start(plan, etcd, device.info().address);
    let (mut course, mut pairs) = (Course::default(), Course::default());
    course.keys = KEYS;
    (pairs.keys, pairs.only_sets) = (PAIRS, true);
    let (fronts, over) = (cluster.fronts(), AtomicBool::new(false));
    let moving = |index, of_pairs| {
        let mut client = Moving::new(fronts.clone(), index);
        client.of_pairs = of_pairs;
        client
    };
    let mut card = Card::new(&device, &cluster.stores());
    let (mut events, mut of_pairs, skipped) = scope(|scope| {
        let (course, pairs, over) = (&course, &pairs, &over);
        let client = |index: usize, of_pairs: bool, mut client: Box<dyn Client>| {
            let course = if of_pairs { pairs } else { course };
            let mut random = random_numbers(plan.seed << 8 | index as u64);
            let goes_on = move || {
                sleep(Duration::from_millis(random() % THINKS_MS));
                !over.load(Relaxed)
            };
            scope.spawn(move || course.run_while(index, round, &mut *client, goes_on))
        };
        let of_redis = |index, of_pairs| client(index, of_pairs, Box::new(moving(index, of_pairs)));
        let mut clients: Vec<_> = (0..plan.clients).map(|index| of_redis(index, false)).collect();
        clients.push(client(plan.clients, false, Box::new(&mut card)));
        let numbers = plan.clients + 1..plan.clients + 1 + PAIR_CLIENTS;
        let of_pairs: Vec<_> = numbers.map(|index| of_redis(index, true)).collect();
        let acted = catch_unwind(AssertUnwindSafe(|| cluster.live_through(plan)));
        over.store(true, Relaxed);
        let [events, of_pairs] = [clients, of_pairs].map(|clients| -> Vec<Event> {
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        (events, of_pairs, acted.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    cluster.settle();
    // What was acknowledged, and what happened besides, is there.
    let read_all = |course: &Course, of_pairs| -> Vec<Event> {
        let mut reader = moving(0, of_pairs);
        let read = |key| course.carry_out(plan.clients + 9, round, key, Op::Get, &mut reader);
        (0..course.keys).map(read).collect()
    };
    events.extend(read_all(&course, false));
    of_pairs.extend(read_all(&pairs, true));
    let names = (0..PAIRS).flat_map(|key| pair_of(&name_of(round, key)));
    cluster.compare(&(0..KEYS).map(|key| name_of(round, key)).chain(names).collect::<Vec<_>>());
    let mut record = Record::create(&format!("schedule-{}", plan.seed));
    events.iter().for_each(|event| record.add(&name_of(round, event.key), event));
    of_pairs.iter().for_each(|event| record.add(&format!("pair-{}", event.key), event));
    let ended = |events: &[Event]| events.iter().filter(|event| event.ended.is_some()).count();
    let all = [ended(&events), ended(&of_pairs)];
    assert!(all[0] > KEYS as usize && all[1] > PAIRS as usize, "{all:?} operations ended");
    let by_card = events.iter().filter(|event| event.client == plan.clients);
    assert!(by_card.filter(|event| event.ended.is_some()).count() > 0, "none by the card");
    let (ended, begun) = (all[0] + all[1], events.len() + of_pairs.len());
    Outcome { ended, open: begun - ended, reads: card.read_one_sided(), skipped }
}
