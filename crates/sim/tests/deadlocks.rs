//! Deadlocks of flow control: what is one, and that it is found.

use remora_sim::dice::SplitMix;
use remora_sim::flows::{Cluster, Flow, RecordOptions};
use remora_sim::net::time::{MS, NEVER, US};
use remora_sim::net::{BufferOptions, Cable, Change, LineRate, Node, PfcOptions, Topology};

/// Four switches in a ring, each with two hosts, whose cables may be slower than the ring's.
fn ring(host_gigabits: u64) -> Cluster {
    let cable = |a, b, rate| Cable { a, b, rate: LineRate::gigabits(rate), delay: US };
    let host = |h| cable(Node::Host(h), Node::Switch(h / 2), host_gigabits);
    let mut cables: Vec<Cable> = (0..8).map(host).collect();
    cables.extend((0..4).map(|s| cable(Node::Switch(s), Node::Switch((s + 1) % 4), 100)));
    let mut cluster = Cluster::new(Topology { hosts: 8, switches: 4, cables });
    cluster.net.buffer = BufferOptions { bytes: 60_000, ..BufferOptions::default() };
    cluster.net.pfc = Some(PfcOptions::default());
    cluster.config = |config| config.window_packets = 4096;
    cluster
}

/// Eight flows of each host of a [`ring`] to one two switches on: it comes to a deadlock.
fn across() -> Vec<Flow> {
    let flow = |i: u32| Flow::new(i % 8, (i + 4) % 8, 2_000_000, 0);
    (0..64).map(flow).collect()
}

#[test]
fn a_deadlock_is_found_and_explained() {
    let (mut cluster, flows) = (ring(100), across());
    cluster.record = Some(RecordOptions { every: 100 * US, captures: Vec::new() });
    let report = cluster.run(&flows).unwrap();
    let deadlock = report.deadlock.clone().unwrap();
    let ways = ["switch 3 to switch 0", "switch 0 to switch 3"];
    assert!(ways.iter().any(|way| deadlock.to_string().contains(way)), "{deadlock}");
    assert_eq!(deadlock.left, 64 - report.done());
    let nexts = deadlock.links.iter().cycle().skip(1);
    for ((_, to), (from, _)) in deadlock.links.iter().zip(nexts) {
        assert_eq!(to, from, "each is paused by the next: {deadlock}");
    }
    // What was recorded up to then is there, and pauses last to the end.
    assert_eq!(report.stopped, deadlock.at);
    let recorded = report.record.as_ref().unwrap();
    assert_eq!(recorded.samples, deadlock.at / (100 * US));
    assert!(recorded.paused(deadlock.at).iter().any(|paused| *paused > deadlock.at / 2));
    // The circle has links of all parts.
    for (threads, lot) in [(2, 8), (1, 2), (2, 2)] {
        (cluster.threads, cluster.lot) = (threads, lot);
        assert!(cluster.run(&flows).unwrap() == report, "{threads} threads, lots of {lot}");
    }
}

/// The same, where nothing happens between the first look and the end.
#[test]
fn a_deadlock_is_seen_before_the_end_that_is_set() {
    let cluster = Cluster { timeout: 20, until: 10 * MS, ..ring(100) };
    let report = cluster.run(&across()).unwrap();
    assert!(report.deadlock.is_some() && report.failed() == 0, "{report}");
    let short = Cluster { until: MS / 2, ..cluster }.run(&across()).unwrap();
    assert_eq!(short.stopped, MS / 2);
}

/// A cable that fails, or is back, ends what waits for it: that is waited for, and no other change.
#[test]
fn a_deadlock_that_may_end_is_none() {
    let cluster = Cluster { timeout: 14, ..ring(100) };
    let found_until = |until, change| {
        let changes = vec![(20 * MS, change)];
        let report = Cluster { changes, until, ..cluster.clone() }.run(&across());
        report.unwrap().deadlock.map_or(NEVER, |deadlock| deadlock.at)
    };
    let found = |change| found_until(NEVER, change);
    let link = cluster.build().unwrap().links_between(Node::Switch(1), Node::Switch(0))[0];
    assert!(found(Change::Rate { link, rate: LineRate::gigabits(1) }) < 5 * MS);
    assert!(found(Change::Cable { link, works: false }) > 20 * MS);
    assert!(found(Change::Switch { switch: 2, works: false }) > 20 * MS);
    // What would come behind the end ends nothing.
    assert!(found_until(10 * MS, Change::Cable { link, works: false }) < 5 * MS);
}

/// What waits for a change that is far away is recorded without a look at each moment until then.
#[test]
fn a_record_of_what_stands_still_takes_no_time() {
    let mut cluster = Cluster { timeout: 14, ..ring(100) };
    let link = cluster.build().unwrap().links_between(Node::Switch(1), Node::Switch(0))[0];
    cluster.changes = vec![(1_000_000 * MS, Change::Cable { link, works: false })];
    cluster.record = Some(RecordOptions { every: US, captures: Vec::new() });
    let report = cluster.run(&across()).unwrap();
    assert!(report.deadlock.is_none() && report.failed() > 0, "{report}");
    let record = report.record.unwrap();
    assert_eq!(record.samples, report.stopped / US);
    let waits = |queue: &[u32]| queue.iter().filter(|bytes| **bytes > 5000).count();
    let stands = record.links.iter().filter(|link| waits(&link.queue) > link.queue.len() / 2);
    let stands = stands.count();
    assert!(stands >= 4, "{stands}");
}

/// Ports that wait for each other in a circle at two looks, but go on: some of what they wait for
/// leaves by slow cables to hosts.
#[test]
fn a_circle_that_dissolves_is_no_deadlock() {
    for seed in [1291, 1395] {
        let mut random = SplitMix::new(seed);
        let mut below = |n: u64| random.number() % n;
        let mut cluster = ring([1, 5, 10, 40, 100][below(5) as usize]);
        cluster.timeout = 20;
        cluster.net.buffer.bytes = 60_000 << below(3);
        let flows = (0..2 + below(40)).map(|_| {
            let src = below(8) as u32;
            let dst = (src + 1 + below(7) as u32) % 8;
            Flow::new(src, dst, 1000 + below(2_000_000), below(2 * MS))
        });
        let flows: Vec<Flow> = flows.collect();
        let report = cluster.run(&flows).unwrap();
        assert_eq!((report.deadlock.clone(), report.done()), (None, flows.len()), "{report}");
    }
}
