//! Whole runs of models, beside the same judges as cards.

use remora_nic::queue::Status;

use crate::flows::tests::tree;
use crate::flows::{
    Cluster, ClusterError, Content, Flow, Report, Sizes, Transport, incast, poisson,
    ring_all_reduce,
};
use crate::hardware::Profile;
use crate::net::time::{MS, US};
use crate::net::{Change, LineRate, Marking, Node, Routing, Star, Topology};

const NAMES: [&str; 2] = ["irn", "srnic"];

fn cluster(topology: Topology, name: &str) -> Cluster {
    Cluster { transport: Transport::named(name).unwrap(), ..Cluster::new(topology) }
}

fn star(hosts: u32, name: &str) -> Cluster {
    cluster(Star { hosts, rate: LineRate::gigabits(100), delay: US }.topology(), name)
}

fn assert_whole(report: &Report, flows: &[Flow]) {
    assert_eq!(report.done(), flows.len(), "{report}");
    assert!(report.flows.iter().zip(flows).all(|(done, flow)| done.arrived == flow.bytes));
    let t = &report.tally;
    assert_eq!(t.sent, t.delivered + t.dropped_full + t.dropped_loss + t.dropped_down, "{t:?}");
}

/// A message of one packet: 12 + 16 bytes of headers, SRNIC's 4 more, 4 of checksum.
#[test]
fn a_message_takes_what_arithmetic_says() {
    for (name, headers) in NAMES.into_iter().zip([32, 36]) {
        let flows = [Flow::new(0, 1, 1000, 0)];
        let report = star(2, name).run(&flows).unwrap();
        let expected = 2 * (1000 + headers + 66) * 80 + 2 * (24 + 66) * 80 + 4 * US;
        assert_eq!(report.flows[0].time(), Some(expected), "{name}");
        assert_eq!(report.flows[0].alone, expected, "{name}");
        assert_whole(&report, &flows);
    }
}

/// IRN has no more outstanding than the network holds, and that is enough for the whole rate.
#[test]
fn a_product_of_rate_and_delay_fills_the_link() {
    for name in NAMES {
        let flows = [Flow::new(0, 1, 1 << 20, 0)];
        let report = star(2, name).run(&flows).unwrap();
        let slowdown = report.flows[0].slowdown().unwrap();
        assert!((slowdown - 1.0).abs() < 2e-3, "{name}: {slowdown}");
        let flows = incast(1..9, 0, 1 << 20);
        let report = star(9, name).run(&flows).unwrap();
        assert_whole(&report, &flows);
        assert!(report.tally.dropped_full == 0 && report.retransmitted == 0, "{name}: {report}");
    }
}

/// Losses by full buffers, by chance, and by a cable that fails under spraying: all is sent again
/// and arrives, and two threads do the same as one.
#[test]
fn whatever_is_lost_arrives_on_one_thread_and_two() {
    let sizes = Sizes::parse("100 0.3\n5000 0.7\n200000 1").unwrap();
    let mut flows = poisson(16, 100_000_000_000, 0.6, &sizes, 150 * US, 5).unwrap();
    flows.extend(incast(1..16, 0, 50_000));
    for name in NAMES {
        let mut cluster = cluster(tree(), name);
        cluster.net.buffer.bytes = 150_000;
        cluster.net.buffer.marking = Some(Marking::step(30_000));
        cluster.net.routing = Routing::Spray;
        let link = 40;
        cluster.changes = vec![
            (0, Change::Loss { link: 16, probability: 0.02 }),
            (20 * US, Change::Cable { link, works: false }),
            (60 * US, Change::LearnCable { link }),
        ];
        let report = cluster.run(&flows).unwrap();
        assert_whole(&report, &flows);
        let t = report.tally;
        assert!(t.dropped_full > 0 && t.dropped_loss > 0 && t.dropped_down > 0, "{report}");
        assert!(t.marked > 0 && report.retransmitted > 0, "{report}");
        let lots = Cluster { threads: 2, lot: 4, ..cluster.clone() };
        assert!(lots.run(&flows).unwrap() == report, "{name}");
    }
}

/// Marks slow flows down: the queue at the last switch does not grow as it does without.
#[test]
fn marks_keep_queues_short() {
    let flows = incast(1..9, 0, 4 << 20);
    for name in NAMES {
        let longest = |marking| {
            let mut cluster = star(9, name);
            cluster.net.buffer.marking = marking;
            cluster.record = Some(crate::flows::RecordOptions { every: US, captures: vec![] });
            let report = cluster.run(&flows).unwrap();
            assert_whole(&report, &flows);
            let record = report.record.unwrap();
            // The last queues: the policies have had their time.
            let late = |queue: &Vec<u32>| queue[queue.len() / 2..queue.len() * 3 / 4].to_vec();
            record.links.iter().flat_map(|link| late(&link.queue)).max().unwrap()
        };
        let (without, with) = (longest(None), longest(Some(Marking::step(100_000))));
        assert!(with * 2 < without, "{name}: {with} and {without}");
    }
}

#[test]
fn flows_wait_for_each_other_as_with_cards() {
    let flows = ring_all_reduce(8, 80_000);
    for name in NAMES {
        let report = star(8, name).run(&flows).unwrap();
        assert_whole(&report, &flows);
        let card = star(8, "selective").run(&flows).unwrap();
        let (model, card) = (report.end() as f64, card.end() as f64);
        assert!((model / card - 1.0).abs() < 0.1, "{name}: {model} and {card}");
    }
}

/// A flow that hears nothing fails when a card's would, and nothing of it is left; one that does
/// not go that way ends.
#[test]
fn a_flow_whose_way_is_gone_fails() {
    let flows = [Flow::new(1, 0, 64_000, 0), Flow::new(2, 0, 64_000, 0), Flow::new(1, 2, 999, 0)];
    let ways: [fn(&mut Cluster, u32); 3] = [
        |cluster, link| cluster.changes = vec![(US, Change::Cable { link, works: false })],
        |cluster, link| cluster.changes = vec![(0, Change::Loss { link, probability: 1.0 })],
        |cluster, _| cluster.net.buffer.bytes = 0,
    ];
    for name in NAMES {
        for (way, goes) in ways.into_iter().zip([true, true, false]) {
            let mut cluster = Cluster { until: 100 * MS, ..star(3, name) };
            let links = cluster.topology.links();
            let to_0 = links.iter().position(|link| link.to == Node::Host(0)).unwrap();
            way(&mut cluster, to_0 as u32);
            let report = cluster.run(&flows).unwrap();
            let failed = report.flows.iter().map(|flow| flow.failed.is_some());
            assert_eq!(failed.collect::<Vec<_>>(), [true, true, !goes], "{name}");
            assert_eq!(report.flows[0].failed, Some(Status::RetryExceeded));
            // Eight waits of 524 µs, as a card's, and what a model's own timer is late.
            let (at, card) = (report.stopped, 8 * 524_288_000);
            assert!((card..card + MS).contains(&at), "{name}: {at}");
            assert_eq!(cluster.run(&flows).unwrap(), report);
        }
    }
}

#[test]
fn what_a_model_has_not_is_refused() {
    let flows = [Flow::new(0, 1, 1000, 0)];
    let error = ClusterError::Model("srnic");
    let real = Cluster { payload: Content::Real, ..star(2, "srnic") };
    assert_eq!(real.run(&flows), Err(error.clone()));
    let card = Cluster { hardware: vec![Profile::named("cx5"); 2], ..star(2, "srnic") };
    assert_eq!(card.run(&flows), Err(error));
    let early = Cluster { until: MS / 100, ..star(2, "irn") };
    assert_eq!(early.run(&[Flow::new(0, 1, 1 << 24, 0)]).unwrap().done(), 0);
}
