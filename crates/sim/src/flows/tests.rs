//! Judges of whole runs: closed forms, conservation, and runs that must be the same.

use remora_nic::TurnOrder;

use super::*;
use crate::net::time::{MS, US};
use crate::net::{
    BufferOptions, Cable, Change, Dumbbell, FatTree, LeafSpine, LineRate, Marking, NetOptions,
    Node, PfcOptions, Ps, Routing, Star, Topology,
};

pub(super) fn star(hosts: u32) -> Cluster {
    Cluster::new(Star { hosts, rate: LineRate::gigabits(100), delay: US }.topology())
}

pub(super) fn tree() -> Topology {
    FatTree {
        pods: 2,
        tors: 2,
        aggs: 2,
        cores: 2,
        hosts_per_tor: 4,
        host_rate: LineRate::gigabits(100),
        fabric_rate: LineRate::gigabits(100),
        delay: US,
    }
    .topology()
}

/// Two leaves of four hosts, and two spines.
pub(super) fn leaves() -> Topology {
    let rate = LineRate::gigabits(100);
    let (host_rate, fabric_rate) = (rate, rate);
    LeafSpine { leaves: 2, spines: 2, hosts_per_leaf: 4, host_rate, fabric_rate, delay: US }
        .topology()
}

/// Runs flows among eight hosts whose switches lose some of their packets: all bytes arrive, real
/// or not, on one thread and on two, and with classes.
pub(super) fn assert_whole_under_load(flows: &[Flow]) {
    for transport in ["go-back-n", "selective"] {
        let mut cluster = Cluster::new(leaves());
        cluster.transport = Transport::named(transport).unwrap();
        cluster.net.buffer.bytes = 100_000;
        let run = |payload, threads| {
            let report = Cluster { payload, threads, ..cluster.clone() }.run(flows).unwrap();
            assert_eq!(report.done(), flows.len(), "{transport}: {report}");
            assert!(report.flows.iter().zip(flows).all(|(f, flow)| f.arrived == flow.bytes));
            report
        };
        let hollow = run(Content::Hollow, 1);
        assert!(hollow.tally.dropped_full > 0, "{hollow}");
        assert!(run(Content::Hollow, 2) == hollow, "{transport}: two threads");
        assert!(run(Content::Real, 1) == hollow, "{transport}: real bytes");
        cluster.short_first = true;
        cluster.net.classes = true;
        let classes = cluster.run(flows).unwrap();
        assert_eq!(classes.done(), flows.len(), "{transport}: {classes}");
    }
}

fn assert_whole(report: &Report, flows: &[Flow]) {
    assert_eq!(report.done(), flows.len(), "{report}");
    for (done, flow) in report.flows.iter().zip(flows) {
        assert_eq!(done.arrived, flow.bytes, "{flow:?}");
    }
    let found = (report.in_flight, report.in_flight_bytes);
    assert_eq!(report.tally.outstanding(), found, "{:?}", report.tally);
}

/// A message of one packet: its bytes at each rate, the delays, and the acknowledge's.
#[test]
fn a_message_takes_what_arithmetic_says() {
    let flows = [Flow::new(0, 1, 1000, 0)];
    let report = star(2).run(&flows).unwrap();
    let (data, acknowledge) = (1000 + 12 + 16 + 4 + 66, 12 + 4 + 4 + 66);
    let expected = 2 * data * 80 + 2 * acknowledge * 80 + 4 * US;
    // A card sees whole nanoseconds, and both its times are those of events.
    assert_eq!(report.flows[0].time(), Some(expected));
    assert_eq!(report.flows[0].alone, expected);
    assert_eq!(report.whole_at, [Some(2 * data * 80 + 2 * US)]);
    assert_whole(&report, &flows);
}

/// Messages of any length over links of different rates take what [`report`] computes for them,
/// to the picosecond, whether or not another flow waits for them.
#[test]
fn every_message_alone_has_a_slowdown_of_one() {
    let host_rate = LineRate::gigabits(100);
    let shapes = [
        Dumbbell { side: 1, host_rate, middle_rate: LineRate::gigabits(25), delay: US }.topology(),
        Dumbbell { side: 1, host_rate, middle_rate: LineRate::gigabits(400), delay: US }.topology(),
        tree(),
    ];
    for topology in shapes {
        let mut cluster = Cluster::new(topology);
        // Larger than any window that is needed here.
        cluster.config = |config| config.window_packets = 4096;
        let last = cluster.topology.hosts - 1;
        for bytes in [1, 1024, 1025, 10_000, 1 << 20] {
            let first = Flow::new(0, last, bytes, 0);
            for flows in [vec![first.clone()], vec![first, Flow::wait(last, vec![0], 0)]] {
                let report = cluster.run(&flows).unwrap();
                let done = report.flows[0];
                assert_eq!(done.time(), Some(done.alone), "{bytes} bytes of {}", flows.len());
                assert_whole(&report, &flows);
            }
        }
    }
}

/// Where one of two paths is slow, a flow's time alone is that of the other, whatever the seed.
#[test]
fn times_alone_are_those_of_the_fastest_path() {
    let alone = |topology: Topology, seed| {
        let mut cluster = Cluster { until: US, ..Cluster::new(topology) };
        cluster.net.seed = seed;
        let flows: Vec<Flow> = (0..8).map(|i| Flow::new(i, 7 - i, 1 << 20, 0)).collect();
        let report = cluster.run(&flows).unwrap();
        report.flows.iter().map(|flow| flow.alone).collect::<Vec<Ps>>()
    };
    let expected = alone(leaves(), 1);
    assert!(expected.iter().all(|time| *time > 80 * US));
    for (seed, slow) in (0..8).flat_map(|seed| [(seed, 2), (seed, 3)]) {
        let mut topology = leaves();
        let is_slow = |cable: &&mut Cable| [cable.a, cable.b].contains(&Node::Switch(slow));
        let cables = topology.cables.iter_mut().filter(is_slow);
        cables.for_each(|cable| cable.rate = LineRate::gigabits(10));
        assert_eq!(alone(topology, seed), expected, "seed {seed}, spine {slow}");
    }
}

/// What has arrived of flows under way at the end is the same with real bytes.
#[test]
fn what_has_arrived_at_an_early_end_is_known() {
    // The bytes of some begin as memory does.
    let flows: Vec<Flow> = (0..600).map(|i| Flow::new(1 + i % 8, 0, 10_000, 0)).collect();
    let run = |payload, ns| {
        let cluster = Cluster { payload, until: ns * US / 1000, ..star(9) };
        cluster.run(&flows).unwrap()
    };
    for ns in (2000..6000).step_by(800) {
        let (hollow, real) = (run(Content::Hollow, ns), run(Content::Real, ns));
        assert!(real == hollow, "at {ns} ns");
    }
}

fn mixed(hosts: u32) -> Vec<Flow> {
    let sizes = Sizes::parse("100 0.3\n5000 0.7\n200000 1").unwrap();
    poisson(hosts, 100_000_000_000, 0.6, &sizes, 150 * US, 5).unwrap()
}

/// A cluster in which packets are marked, dropped, and sprayed.
fn stressed(topology: Topology) -> Cluster {
    let marking = Some(Marking { from_bytes: 20_000, to_bytes: 80_000, most: 0.3 });
    let buffer = BufferOptions { bytes: 200_000, marking, ..BufferOptions::default() };
    let net = NetOptions { buffer, routing: Routing::Ecmp, ..NetOptions::default() };
    Cluster { net, ..Cluster::new(topology) }
}

#[test]
fn hollow_and_real_payload_any_threads_and_lots_are_the_same() {
    let flows = mixed(16);
    let run = |payload, threads, lot| {
        let cluster = Cluster { payload, threads, lot, ..stressed(tree()) };
        let report = cluster.run(&flows).unwrap();
        assert_whole(&report, &flows);
        report
    };
    let hollow = run(Content::Hollow, 1, 16);
    assert!(hollow.tally.marked > 0 && hollow.tally.delivered > 1000, "{hollow}");
    let real = run(Content::Real, 1, 16);
    assert_eq!((real.trace, real.tally), (hollow.trace, hollow.tally));
    assert!(real == hollow, "with bytes it is different");
    for (threads, lot) in [(1, 16), (2, 16), (1, 8), (1, 4), (2, 4)] {
        let other = run(Content::Hollow, threads, lot);
        let is_same = other == hollow && other.whole_at == hollow.whole_at;
        assert!(is_same, "with {threads} threads and lots of {lot} hosts it is different");
    }
}

/// Where the fabric is simulated ahead of the hosts, a run that ends at any moment is the same,
/// with failures on both sides of it, of cards and of models.
#[test]
fn a_fabric_of_its_own_changes_nothing() {
    let flows = mixed(16);
    for transport in ["selective", "irn"] {
        for until in [US / 2, 3 * US + 1, 40 * US, 101 * US - 1] {
            let mut cluster = Cluster { until, ..stressed(tree()) };
            cluster.transport = Transport::named(transport).unwrap();
            let net = cluster.build().unwrap();
            let link = net.links_between(Node::Switch(0), Node::Switch(4))[0];
            let loss = Change::Loss {
                link: net.links_between(Node::Switch(4), Node::Switch(8))[0],
                probability: 0.1,
            };
            cluster.changes = vec![
                (0, loss),
                (20 * US, Change::Cable { link, works: false }),
                (30 * US, Change::LearnCable { link }),
            ];
            let whole = cluster.run(&flows).unwrap();
            assert!(until < 40 * US || whole.tally.dropped_loss > 0, "{whole}");
            for (threads, lot) in [(1, 8), (1, 4), (2, 4)] {
                let apart = Cluster { threads, lot, ..cluster.clone() };
                assert!(apart.division().unwrap().ahead() > 0);
                let same = apart.run(&flows).unwrap() == whole;
                assert!(same, "{transport}, {threads} threads, lots of {lot}, until {until}");
            }
        }
    }
}

/// What a full buffer drops is sent again, and everything arrives.
#[test]
fn an_incast_that_overflows_a_buffer_arrives() {
    let flows = incast(1..9, 0, 300_000);
    let mut cluster = star(9);
    cluster.net.buffer = BufferOptions { bytes: 100_000, ..BufferOptions::default() };
    let report = cluster.run(&flows).unwrap();
    assert!(report.tally.dropped_full > 0 && report.retransmitted > 0, "{report}");
    assert_whole(&report, &flows);
}

/// With flow control nothing is lost, and the last link is busy from the first packet to the last.
#[test]
fn an_incast_with_flow_control_takes_what_its_link_takes() {
    let flows = incast(1..9, 0, 102_400);
    let mut cluster = star(9);
    cluster.net.buffer = BufferOptions { bytes: 300_000, ..BufferOptions::default() };
    cluster.net.pfc = Some(PfcOptions::default());
    let report = cluster.run(&flows).unwrap();
    assert_eq!((report.tally.dropped_full, report.retransmitted), (0, 0), "{report}");
    assert!(report.tally.pauses > 0, "{report}");
    let wire = 8 * (100 * (1024 + 16 + 66) + 16);
    let last = report.flows.iter().filter_map(|flow| flow.ended).max().unwrap();
    let bound = wire * 80 + 4 * US;
    assert!(last >= bound && last < bound + US, "{last} and {bound}");
    assert_whole(&report, &flows);
}

#[test]
fn collectives_take_as_long_as_their_steps() {
    let cluster = star(8);
    let (part, step) = (10_240u64, 2 * US);
    for flows in [ring_all_reduce(8, 8 * part), halving_doubling(8, 8 * part).unwrap()] {
        let report = cluster.run(&flows).unwrap();
        assert_whole(&report, &flows);
        let last = report.flows.iter().filter_map(|flow| flow.ended).max().unwrap();
        // Each host sends 14 parts; each step takes a way of 2 µs at least.
        let steps = flows.len() as u64 / 8;
        let least = 14 * part * 80 + steps * step;
        assert!(last > least && last < least * 5 / 4 + 4 * US, "{last} and {least}");
    }
    let flows = calls([1, 2, 3], 0, (64, 4096), US, 10);
    let report = cluster.run(&flows).unwrap();
    assert_whole(&report, &flows);
    let began = |i: usize| report.flows[i].began.unwrap();
    assert!(began(2) > began(1) + 3 * US, "the second call waits for the first answer");
}

/// What is recorded changes nothing, and does not depend on threads and lots.
#[test]
fn a_record_is_the_same_on_two_threads_and_changes_nothing() {
    let flows = mixed(16);
    let run = |threads, record: Option<RecordOptions>| {
        let lot = if threads == 2 { 4 } else { Cluster::LOT };
        let mut cluster = Cluster { threads, lot, record, ..stressed(tree()) };
        cluster.net.pfc = Some(PfcOptions::default());
        let net = cluster.build().unwrap();
        let inner = (0..net.links()).filter(|link| net.link(*link).from.switch().is_some());
        let loss = |link| (0, Change::Loss { link, probability: 0.01 });
        cluster.changes = inner.map(loss).collect();
        cluster.run(&flows).unwrap()
    };
    let options = RecordOptions { every: US / 2, captures: vec![0] };
    let plain = run(1, None);
    let (one, two) = (run(1, Some(options.clone())), run(2, Some(options)));
    assert!(plain == one && one == two, "{plain}{one}{two}");
    let (one, two) = (one.record.unwrap(), two.record.unwrap());
    assert_eq!((one.samples, one.stride), (two.samples, two.stride));
    assert!(one.links == two.links && one.notes.pauses == two.notes.pauses);
    assert_eq!(one.notes.packets.len(), two.notes.packets.len());
    let lost: u64 = one.links.iter().map(|link| link.usage.dropped).sum();
    assert!(lost > 10 && lost == plain.tally.dropped_loss, "{lost}: {plain}");
    // What has left a port has arrived: packets, and frames of flow control.
    let left: u64 = one.links.iter().map(|link| link.usage.packets).sum();
    assert_eq!(plain.tally.hops, left);
    // The queue that most packets have met is the longest that was seen, or nearly so.
    assert!(one.links.iter().any(|link| link.queue.iter().any(|bytes| *bytes > 10_000)));
    assert!(one.links.iter().any(|link| link.usage.waited > 0));
    assert_eq!(one.notes.packets.len() as u64, one.links[0].usage.packets);
}

/// Timers that ring for nothing make series no coarser. The first flow begins what is recorded.
#[test]
fn a_record_is_of_the_time_in_which_something_happens() {
    for start in [0, 2_000_000 * US + 700] {
        let flows = [Flow::new(0, 1, 100_000, start), Flow::new(1, 0, 10_000, start + US)];
        let mut cluster = star(2);
        let every = 50_000;
        cluster.record = Some(RecordOptions { every, captures: vec![] });
        let report = cluster.run(&flows).unwrap();
        assert_eq!((report.first, report.lasted()), (start, report.stopped - start));
        let record = report.record.unwrap();
        let samples = (report.stopped - (start - 700 * u64::from(start > 0))).div_ceil(every);
        assert_eq!((record.samples, record.stride), (samples, 1));
        assert!(record.first <= start && record.first + every > start);
        assert!((report.stopped..report.stopped + every).contains(&record.last()));
        for link in &record.links {
            assert_eq!((link.queue.len(), link.sent.len()), (samples as usize, samples as usize));
            assert_eq!(link.histogram.iter().sum::<u32>(), samples as u32);
            assert_eq!(link.sent.last(), Some(&link.usage.bytes));
        }
        assert_eq!(
            record.ends().take(2).collect::<Vec<_>>(),
            [1, 2].map(|i| record.first + i * every)
        );
    }
}

/// A wait takes the time that it says, and lets go on what waits for it. A flow that needs one of
/// two goes on with the first.
#[test]
fn waits_and_needs_hold() {
    let first = Flow::new(0, 1, 1000, 0);
    let late = Flow::new(2, 1, 1000, 100 * US);
    let wait = Flow::wait(1, vec![0], 5 * US);
    let either = Flow { after: vec![0, 1], needs: Some(1), ..Flow::new(1, 3, 1000, 0) };
    let behind = Flow { after: vec![2], ..Flow::new(1, 2, 1000, 0) };
    let flows = [first, late, wait, either, behind];
    let report = star(4).run(&flows).unwrap();
    assert_eq!(report.done(), 5);
    let arrived = 2 * 80 * (1000 + 32 + 4 + 66) + 2 * US;
    let began: Vec<Ps> = report.flows.iter().map(|flow| flow.began.unwrap()).collect();
    assert_eq!(began, [0, 100 * US, arrived + 5 * US, arrived, arrived + 5 * US]);
    assert_eq!(report.messages().count(), 4, "a wait is no message");
    let two = Flow { needs: Some(2), ..Flow::wait(1, vec![0], 0) };
    assert!(star(2).run(&[flows[0].clone(), two]).unwrap_err().to_string().contains("needs 2"));
}

/// Waits that add up to more than the clock can say are refused; up to a hundred days they are run.
#[test]
fn waits_do_not_run_past_the_end_of_the_clock() {
    let chain = |waits: u32| -> Vec<Flow> {
        let wait = |i: u32| Flow::wait(0, i.checked_sub(1).into_iter().collect(), Flow::LATEST);
        let last = Flow { after: vec![waits - 1], ..Flow::new(0, 1, 1000, 0) };
        (0..waits).map(wait).chain([last]).collect()
    };
    let report = star(2).run(&chain(10_000)).unwrap();
    assert_eq!((report.done(), report.flows[10_000].began), (10_001, Some(Flow::FURTHEST)));
    for waits in [10_001, 18_448] {
        let error = star(2).run(&chain(waits));
        assert_eq!(error, Err(ClusterError::Flow(FlowError::Far { flow: 10_000 })));
    }
    // Of two that it could go on with, the first counts.
    let first = Flow { needs: Some(1), after: vec![0, 9_999], ..Flow::new(0, 1, 1, Flow::LATEST) };
    let flows: Vec<Flow> = chain(10_000)[..10_000].iter().cloned().chain([first]).collect();
    assert_eq!(Flow::check(&flows, 2), Ok(()));
}

/// A flow of a high class is not held up by long ones of the lowest, in its card and in the switch.
#[test]
fn a_flow_has_the_class_that_it_says() {
    let run = |class, short_first| {
        let mut cluster = Cluster { short_first, ..star(4) };
        cluster.net.classes = true;
        let mut flows = incast([1, 2, 3, 1, 2, 3], 0, 1 << 20);
        flows.push(Flow { class, ..Flow::new(1, 0, 1 << 16, 20 * US) });
        let report = cluster.run(&flows).unwrap();
        assert_whole(&report, &flows);
        report.flows[6].slowdown().unwrap()
    };
    let (none, low, high) = (run(None, false), run(Some(0), false), run(Some(7), false));
    assert!(high < 2.0 && low > 3.0 && none > 3.0, "{high}, {low}, {none}");
    // It is the shortest, and of the highest class by its length; what it says goes first.
    let (short, told) = (run(None, true), run(Some(0), true));
    assert!(told > 3.0 * short, "{short}, {told}");
    let wrong = star(2).run(&[Flow { class: Some(8), ..Flow::new(0, 1, 1, 0) }]);
    assert_eq!(wrong, Err(ClusterError::Flow(FlowError::Class { flow: 0, class: 8 })));
}

/// Two hosts at 100 Gb/s, and two at 25, on one switch.
fn two_rates() -> Topology {
    let cable = |host| Cable {
        a: Node::Host(host),
        b: Node::Switch(0),
        rate: LineRate::gigabits(if host < 2 { 100 } else { 25 }),
        delay: US,
    };
    Topology { hosts: 4, switches: 1, cables: (0..4).map(cable).collect() }
}

/// A card's rate is that of its own cable, whatever others have.
#[test]
fn a_fast_host_is_not_held_to_the_slowest() {
    assert_eq!(
        Cluster::new(two_rates()).host_rates(),
        [100, 100, 25, 25].map(|g| g * 1_000_000_000)
    );
    for transport in TRANSPORTS {
        let cluster =
            Cluster { transport: *transport, window_packets: 4096, ..Cluster::new(two_rates()) };
        for (src, dst) in [(0, 1), (2, 3)] {
            let report = cluster.run(&[Flow::new(src, dst, 1 << 20, 0)]).unwrap();
            let slowdown = report.flows[0].slowdown().unwrap();
            assert!((slowdown - 1.0).abs() < 2e-3, "{}, from {src}: {slowdown}", transport.name);
        }
    }
}

/// Each transport carries what it is given, and alone takes the time that arithmetic says.
#[test]
fn every_transport_carries_messages() {
    for transport in TRANSPORTS {
        let mut cluster = Cluster { transport: *transport, window_packets: 4096, ..star(4) };
        let alone = [Flow::new(0, 1, 300_000, 0)];
        let report = cluster.run(&alone).unwrap();
        let slowdown = report.flows[0].slowdown().unwrap();
        assert!((slowdown - 1.0).abs() < 2e-3, "{}: {slowdown}", transport.name);
        cluster.net.buffer.bytes = 200_000;
        let flows = incast(1..4, 0, 300_000);
        assert_whole(&cluster.run(&flows).unwrap(), &flows);
    }
}

/// A cable that fails under spraying loses packets until switches learn of it; all is delivered.
#[test]
fn a_cable_may_fail_under_spraying() {
    let mut cluster = Cluster::new(tree());
    cluster.net.routing = Routing::Spray;
    cluster.transport = Transport::named("selective").unwrap();
    let net = cluster.build().unwrap();
    let link = net.links_between(Node::Switch(0), Node::Switch(4))[0];
    let works = false;
    cluster.changes =
        vec![(20 * US, Change::Cable { link, works }), (60 * US, Change::LearnCable { link })];
    let flows = permutation(16, 1_000_000, 3);
    let report = cluster.run(&flows).unwrap();
    assert!(report.tally.dropped_down > 0, "{report}");
    assert_whole(&report, &flows);
    assert!(Cluster { threads: 2, lot: 4, ..cluster }.run(&flows).unwrap() == report);
}

#[test]
fn what_cannot_be_run_is_refused() {
    let refused = |flow: Flow| star(2).run(&[flow]).unwrap_err().to_string();
    assert!(refused(Flow::new(0, 2, 1, 0)).contains("there is no host 2"));
    assert!(refused(Flow::new(1, 1, 1, 0)).contains("to itself"));
    assert!(refused(Flow::new(0, 1, 0, 0)).contains("0 bytes"));
    assert!(refused(Flow::new(0, 1, u64::MAX, 0)).contains("bytes"));
    assert!(refused(Flow::new(0, 1, 1, u64::MAX)).contains("later"));
    assert!(refused(Flow { after: vec![0], ..Flow::new(0, 1, 1, 0) }).contains("waits"));
    let two = Cluster { threads: 2, ..star(2) };
    assert_eq!(two.run(&[]), Err(ClusterError::Threads));
    assert_eq!(star(2).run(&[]).unwrap().done(), 0);
}

#[test]
fn a_run_can_end_early() {
    let flows = [Flow::new(0, 1, 1 << 30, 0), Flow::new(1, 0, 1, 3 * MS)];
    let watch = Watch::default();
    let report = Cluster { until: MS, ..star(2) }.run_watched(&flows, &watch).unwrap();
    assert_eq!((report.done(), report.flows[1].began), (0, None));
    // A flow is seen to come on before it ends.
    assert_eq!(watch.ended(), 0);
    assert_eq!(watch.delivered(), report.tally.delivered_bytes);
    assert_eq!((report.stopped, report.end()), (MS, 0));
    assert!(report.flows[0].arrived > 1 << 23);
}

/// A run is over when nothing happens any more, even if flows wait for one that has failed, and the
/// end that was set is later.
#[test]
fn a_run_in_which_nothing_is_under_way_has_stopped() {
    let first = Flow::new(0, 1, 1000, 0);
    let behind = Flow { after: vec![0], ..Flow::new(0, 1, 1000, 0) };
    for transport in ["go-back-n", "selective", "irn"] {
        let transport = Transport::named(transport).unwrap();
        let mut cluster = Cluster { transport, timeout: 1, until: 10_000 * MS, ..star(2) };
        cluster.changes = vec![(0, Change::Cable { link: 0, works: false })];
        let report = cluster.run(&[first.clone(), behind.clone()]).unwrap();
        assert_eq!((report.done(), report.failed()), (0, 1), "{report}");
        assert!(report.stopped < 100 * MS, "{}: {}", transport.name, report.stopped);
    }
}

/// A panic on one of two threads ends the other, too, and is the caller's.
#[test]
fn a_panic_on_a_thread_ends_the_run() {
    let configs: [fn(&mut remora_nic::Config); 2] = [
        |config| assert!(config.address != Cluster::address(0), "on the first thread"),
        |config| assert!(config.address != Cluster::address(15), "on the second thread"),
    ];
    for (config, expected) in
        configs.into_iter().zip(["on the first thread", "on the second thread"])
    {
        let cluster = Cluster { threads: 2, lot: 4, config, ..Cluster::new(tree()) };
        let run = std::panic::AssertUnwindSafe(|| cluster.run(&mixed(16)).map(|_| ()));
        let panic = std::panic::catch_unwind(run).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&expected));
    }
}

/// A short message that is posted behind a long one does not wait for it, if the card's order is
/// that of lengths.
#[test]
fn a_short_message_goes_before_a_long_one() {
    let flows = [Flow::new(0, 1, 2 << 20, 0), Flow::new(0, 2, 64 << 10, 10 * US)];
    for transport in ["go-back-n", "selective"] {
        let slowdown = |turn_order| {
            let transport = Transport::named(transport).unwrap();
            let report = Cluster { transport, turn_order, ..star(3) }.run(&flows).unwrap();
            assert_whole(&report, &flows);
            report.flows[1].slowdown().unwrap()
        };
        assert!(slowdown(TurnOrder::InTurn) > 1.45, "{}", slowdown(TurnOrder::InTurn));
        let first = slowdown(TurnOrder::ShortestFirst);
        assert!(first < 1.3, "{first}: a turn of 16 KB, and one of the longest that waits");
    }
}

/// Each moment of a message is one of what it waits for, and what that is, is plain: two from one
/// port take turns, a window of four packets holds a message for most of each round trip, and a
/// short one is only waited for.
#[test]
fn what_messages_wait_for_is_known() {
    let waits = |name: &str, flows: &[Flow], window| {
        let transport = Transport::named(name).unwrap();
        let mut cluster = Cluster { transport, window_packets: window, ..star(3) };
        cluster.record = Some(RecordOptions { every: US / 10, captures: Vec::new() });
        let report = cluster.run(flows).unwrap();
        let MessageWaits { turn, leave, peer } = report.record.as_ref().unwrap().waits;
        let all: Ps = report.flows.iter().filter_map(Completion::time).sum();
        let samples = (all / (US / 10)) as f64;
        let sum = (turn + leave + peer) as f64;
        assert!((sum - samples).abs() <= 2.0 * flows.len() as f64, "{name}: {sum} {samples}");
        [turn, leave, peer].map(|part| part as f64 / sum)
    };
    let long = |to| Flow::new(0, to, 1 << 20, 0);
    for name in ["go-back-n", "selective", "srnic"] {
        let [turn, ..] = waits(name, &[long(1), long(2)], 256);
        assert!(turn > 0.9, "{name}: {turn}");
        let [_, leave, _] = waits(name, &[long(1)], 4);
        assert!(leave > 0.9, "{name}: {leave}");
        let [.., peer] = waits(name, &[Flow::new(0, 1, 1000, 0)], 256);
        assert!(peer > 0.9, "{name}: {peer}");
    }
}

/// What is behind the warm-up is a part of the run, and the run is the same.
#[test]
fn a_steady_part_is_told_apart() {
    let flows: Vec<Flow> = (0..8).map(|i| Flow::new(i, 7 - i, 1 << 20, 0)).collect();
    let run = |warm_up, threads| {
        Cluster { warm_up, threads, ..Cluster::new(leaves()) }.run(&flows).unwrap()
    };
    let whole = run(0, 1);
    assert_eq!(whole.steady.packets, whole.tally.delivered);
    for threads in [1, 2] {
        let part = run(whole.end() / 2, threads);
        assert!(part == whole, "{threads} threads");
        let share = part.steady.packets as f64 / whole.steady.packets as f64;
        assert!((0.3..0.7).contains(&share), "{threads} threads: {share}");
        assert_eq!(run(2 * whole.end(), threads).steady.packets, 0);
    }
}
