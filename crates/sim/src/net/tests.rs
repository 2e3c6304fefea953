//! Tests of the network alone: closed forms, conservation, and what switches do under pressure.

use super::deadlock::Paused;
use super::pfc::LONGEST;
use super::time::{NEVER, US};
use super::*;
use crate::dice::SplitMix;

/// A packet of `bytes` to `dst`.
fn packet(dst: u32, bytes: u32, flow: u32) -> Packet {
    Packet { dst, bytes, flow, heeds_marks: true, ..Packet::default() }
}

fn send(net: &mut Net, src: u32, packet: Packet) {
    net.send(src, packet, Cargo::Head(Head::default()));
}

/// Runs until nothing is left; returns each arrival: time, host, the packet.
fn arrivals(net: &mut Net) -> Vec<(Ps, u32, Packet)> {
    let mut all = Vec::new();
    while let Some(happening) = net.step(NEVER) {
        if let Happening::Arrival { host, packet } = happening {
            net.take(&packet);
            all.push((net.now(), host, packet));
        }
    }
    all
}

fn assert_conserved(net: &Net) {
    assert_eq!(net.tally.outstanding(), net.on_their_way(), "{:?}", net.tally);
    assert_eq!(net.on_their_way().0, net.in_flight(), "{:?}", net.tally);
}

/// The usual flow control.
const PFC: PfcOptions =
    PfcOptions { alpha: 0.125, reserve_bytes: 4096, resume_bytes: 3072, headroom_bytes: None };

fn star(hosts: u32, options: &NetOptions) -> Net {
    let star = Star { hosts, rate: LineRate::gigabits(100), delay: US };
    Net::new(&star.topology(), options).unwrap()
}

/// Store and forward: the sum of rates and delays on the way of the first packet, and the slowest
/// link's rate for each further one.
#[test]
fn a_message_takes_what_store_and_forward_takes() {
    let (host_rate, fabric_rate) = (LineRate::gigabits(100), LineRate::gigabits(400));
    let tree = FatTree {
        pods: 2,
        tors: 2,
        aggs: 2,
        cores: 1,
        hosts_per_tor: 2,
        host_rate,
        fabric_rate,
        delay: US,
    };
    for queues in [false, true] {
        let options = NetOptions { classes: queues, ..NetOptions::default() };
        let mut net = Net::new(&tree.topology(), &options).unwrap();
        for _ in 0..10 {
            send(&mut net, 0, packet(7, 1000, 5));
        }
        let all = arrivals(&mut net);
        let times: Vec<Ps> = all.iter().map(|(at, ..)| *at).collect();
        let first = 2 * 80_000 + 4 * 20_000 + 6 * US;
        let expected: Vec<Ps> = (0..10).map(|i| first + i * 80_000).collect();
        assert_eq!(times, expected, "with queues: {queues}");
        assert_conserved(&net);
    }
}

/// Both ways to wait agree where nothing is dropped, paused or overtaken.
#[test]
fn one_event_a_hop_and_two_give_the_same() {
    let tree = FatTree {
        pods: 3,
        tors: 2,
        aggs: 2,
        cores: 2,
        hosts_per_tor: 3,
        host_rate: LineRate::gigabits(100),
        fabric_rate: LineRate::gigabits(100),
        delay: US,
    };
    let marking = Some(Marking { from_bytes: 5_000, to_bytes: 50_000, most: 0.5 });
    let run = |classes| {
        let buffer = BufferOptions { marking, ..BufferOptions::default() };
        let options = NetOptions { classes, buffer, ..NetOptions::default() };
        let mut net = Net::new(&tree.topology(), &options).unwrap();
        let mut random = SplitMix::new(9);
        for _ in 0..3000 {
            let n = random.number();
            let (src, dst) = ((n % 18) as u32, (n >> 8) as u32 % 18);
            send(&mut net, src, packet(dst, 64 + (n >> 16) as u32 % 1400, n as u32 >> 20));
        }
        let all = arrivals(&mut net);
        assert_conserved(&net);
        let tally = net.tally;
        let all: Vec<_> = all.iter().map(|(at, h, p)| (*at, *h, p.bytes, p.marked)).collect();
        (all, tally)
    };
    let (fast, slow) = (run(false), run(true));
    assert!(fast.1.marked > 100 && fast.1.dropped_full == 0, "{:?}", fast.1);
    assert!(fast == slow, "{:?} and {:?}", fast.1, slow.1);
}

/// M/D/1: packets of one length that come at random wait for `rho / (2 (1 - rho))` of the time that
/// one takes, on average (Pollaczek and Khinchine).
#[test]
fn packets_wait_at_a_port_as_queueing_theory_says() {
    const PACKETS: usize = 400_000;
    let fast = LineRate::gigabits(50_000);
    let topology =
        Dumbbell { side: 1, host_rate: fast, middle_rate: LineRate::gigabits(100), delay: US };
    let buffer = BufferOptions::ENDLESS;
    let options = NetOptions { buffer, ..NetOptions::default() };
    for load in [0.5, 0.8] {
        let mut net = Net::new(&topology.topology(), &options).unwrap();
        let (mut random, mut waited, mut at) = (SplitMix::new(4), 0.0, 0.0);
        let service = 80_000.0;
        let alone = (3 * US + 80_000 + 2 * fast.time(1000)) as f64;
        for _ in 0..PACKETS {
            at -= (1.0 - random.fraction()).ln() * service / load;
            while let Some(happening) = net.step(at as Ps) {
                let Happening::Arrival { packet, .. } = happening else { continue };
                net.take(&packet);
                let flow = packet.flow;
                // The low bits of the time at which it was sent.
                let took = (net.now() as u32).wrapping_sub(flow);
                waited += f64::from(took) - alone;
            }
            net.advance(at as Ps);
            send(&mut net, 0, packet(1, 1000, at as Ps as u32));
        }
        let mean = waited / PACKETS as f64 / service;
        let theory = load / (2.0 * (1.0 - load));
        assert!((mean / theory - 1.0).abs() < 0.03, "at {load}: {mean} and not {theory}");
    }
}

/// An incast is done when the last link has carried everything, and not earlier.
#[test]
fn an_incast_takes_what_its_last_link_takes() {
    let mut net = star(9, &NetOptions::default());
    for src in 1..9 {
        for i in 0..20 {
            send(&mut net, src, packet(0, 1000, src * 100 + i));
        }
    }
    let all = arrivals(&mut net);
    assert_eq!(all.last().unwrap().0, 160 * 80_000 + 80_000 + 2 * US);
    assert_conserved(&net);
}

#[test]
fn what_a_buffer_does_not_hold_is_dropped_and_counted() {
    for classes in [false, true] {
        let buffer = BufferOptions { bytes: 40_000, alpha: 1.0, ..BufferOptions::default() };
        let mut net = star(9, &NetOptions { buffer, classes, ..NetOptions::default() });
        for src in 1..9 {
            (0..20).for_each(|i| send(&mut net, src, packet(0, 1000, src * 100 + i)));
        }
        let delivered = arrivals(&mut net).len() as u64;
        let t = net.tally;
        assert_eq!((t.delivered, t.delivered + t.dropped_full), (delivered, 160));
        // With one busy queue the threshold is half of the buffer. While the eight packets that
        // come at once arrive, one leaves.
        assert!((35..=45).contains(&delivered), "{delivered}, {classes}");
        assert_conserved(&net);
    }
}

#[test]
fn flow_control_loses_nothing() {
    let buffer = BufferOptions { bytes: 100_000, ..BufferOptions::default() };
    let mut net = star(9, &NetOptions { buffer, pfc: Some(PFC), ..NetOptions::default() });
    for src in 1..9 {
        (0..200).for_each(|i| send(&mut net, src, packet(0, 1000, src * 100 + i)));
    }
    let all = arrivals(&mut net);
    assert_eq!((all.len(), net.tally.dropped_full), (1600, 0));
    assert!(net.tally.pauses > 8, "{:?}", net.tally);
    assert_eq!(all.last().unwrap().0, 1600 * 80_000 + 80_000 + 2 * US, "the link never idles");
    assert_eq!(net.circle_of_pauses(), None);
    assert_conserved(&net);
}

/// Packets of MTU 1024 and 4096, over cables of any length. Each host gets packets, too, so that
/// frames of flow control wait for those.
#[test]
fn flow_control_has_headroom_for_long_packets_and_short_cables() {
    const SIZES: [u32; 2] = [1134, LONGEST as u32];
    let buffer = BufferOptions { bytes: 100_000, ..BufferOptions::default() };
    let options = NetOptions { buffer, pfc: Some(PFC), ..NetOptions::default() };
    let rate = LineRate::gigabits(100);
    let delays = || (0..=40).map(|step| step * US / 20);
    for (bytes, delay) in SIZES.into_iter().flat_map(|bytes| delays().map(move |d| (bytes, d))) {
        let mut net = Net::new(&Star { hosts: 9, rate, delay }.topology(), &options).unwrap();
        for src in 1..9 {
            for i in 0..200 {
                let dst = if i % 2 == 0 { 0 } else { src % 8 + 1 };
                send(&mut net, src, packet(dst, bytes, src * 100 + i));
            }
        }
        let arrived = arrivals(&mut net).len();
        let about = format!("{bytes} bytes, {delay} ps: {:?}", net.tally);
        assert_eq!((arrived, net.tally.dropped_full), (1600, 0), "{about}");
        assert!(net.tally.pauses > 8, "{about}");
        assert_conserved(&net);
    }
}

#[test]
fn a_higher_class_overtakes() {
    let mut net = star(3, &NetOptions { classes: true, ..NetOptions::default() });
    (0..10).for_each(|i| send(&mut net, 1, packet(0, 1000, i)));
    send(&mut net, 1, Packet { class: 5, ..packet(0, 1000, 99) });
    let order: Vec<u32> = arrivals(&mut net).iter().map(|(.., p)| p.flow).collect();
    assert_eq!(order[..3], [0, 99, 1], "one had begun");
}

/// A class whose line is full loses packets and has them marked; one whose line is empty neither.
#[test]
fn a_full_class_costs_no_other_class_anything() {
    let buffer = BufferOptions {
        queue_bytes: 40_000,
        marking: Some(Marking::step(20_000)),
        ..BufferOptions::default()
    };
    let mut net = star(9, &NetOptions { classes: true, buffer, ..NetOptions::default() });
    for src in 1..9 {
        (0..40).for_each(|i| send(&mut net, src, packet(0, 1000, i)));
    }
    assert!(net.step(3 * US / 2).is_none(), "the first are at the switch");
    net.advance(3 * US / 2);
    (1..9).for_each(|src| send(&mut net, src, Packet { class: 7, ..packet(0, 1000, 99) }));
    // The line is full from 1.6 µs on, and these come at 2.7 µs: before what waits, and whole.
    let all = arrivals(&mut net);
    let high: Vec<&(Ps, u32, Packet)> = all.iter().filter(|(.., p)| p.flow == 99).collect();
    assert_eq!(high.len(), 8, "none is dropped");
    assert!(high.iter().all(|(.., p)| !p.marked), "none is marked");
    assert!(high[7].0 < 5 * US, "{}", high[7].0);
    let t = net.tally;
    assert!(t.dropped_full > 100 && t.marked > 40, "{t:?}");
    assert_conserved(&net);
}

/// Flow control alone heeds no classes: packets keep their order.
#[test]
fn without_classes_a_class_is_nothing() {
    let mut net = star(3, &NetOptions { pfc: Some(PFC), ..NetOptions::default() });
    (0..10).for_each(|i| send(&mut net, 1, packet(0, 1000, i)));
    send(&mut net, 1, Packet { class: 5, ..packet(0, 1000, 99) });
    let order: Vec<u32> = arrivals(&mut net).iter().map(|(.., p)| p.flow).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99]);
}

/// Four switches in a ring, each with traffic that goes two cables on: the textbook deadlock.
#[test]
fn a_circle_of_pauses_is_found() {
    let rate = LineRate::gigabits(100);
    let cable = |a, b| Cable { a, b, rate, delay: US };
    let mut cables: Vec<Cable> =
        (0..8).map(|h| cable(Node::Host(h), Node::Switch(h / 2))).collect();
    cables.extend((0..4).map(|s| cable(Node::Switch(s), Node::Switch((s + 1) % 4))));
    let topology = Topology { hosts: 8, switches: 4, cables };
    let buffer = BufferOptions { bytes: 60_000, ..BufferOptions::default() };
    let pfc = Some(PfcOptions::default());
    let mut net =
        Net::new(&topology, &NetOptions { buffer, pfc, ..NetOptions::default() }).unwrap();
    // Two cables on there are two shortest paths, one each way round: both rings fill.
    for i in 0..4000 {
        for src in 0..8 {
            send(&mut net, src, packet((src + 4) % 8, 1000, i * 8 + src));
        }
    }
    let arrived = arrivals(&mut net).len();
    assert_eq!(arrived as u64 + net.in_flight(), 32_000, "nothing is lost");
    if net.in_flight() > 0 {
        let circle = net.circle_of_pauses().expect("what stands still waits in a circle");
        assert!(circle.len() >= 3, "{circle:?}");
        assert!(net.link(circle[0]).from.switch().is_some());
    }
    assert!(net.in_flight() > 0, "this traffic is known to stop");
}

/// A frame of flow control that is lost leaves no port paused for ever: neither one that a cable or
/// a switch loses while it does not work, nor one that left before and comes when they work again,
/// nor one on a link that loses packets at random.
#[test]
fn what_is_told_of_pauses_is_not_lost() {
    let cable = |works| Change::Cable { link: 1, works };
    let switch = |works| Change::Switch { switch: 0, works };
    let loss = |probability| Change::Loss { link: 3, probability };
    // Host 1's packet is at the switch at 1.08 µs, over the threshold. The pause arrives at
    // 2.0867 µs, and the frame that ends it at 2.1667 µs.
    let cases = [
        (2_100_000, cable(false), 5 * US, cable(true)),
        (2_100_000, switch(false), 5 * US, switch(true)),
        (2_100_000, loss(1.0), 5 * US, loss(0.0)),
        (1_100_000, cable(false), 1_110_000, cable(true)),
        (1_000_000, loss(0.0), 2_100_000, cable(true)),
    ];
    for (from, ends, until, begins) in cases {
        let pfc = PfcOptions { alpha: 0.001, reserve_bytes: 0, resume_bytes: 0, ..PFC };
        let buffer = BufferOptions { bytes: 100_000, ..BufferOptions::default() };
        let mut net = star(2, &NetOptions { buffer, pfc: Some(pfc), ..NetOptions::default() });
        assert_eq!((net.link(3).from, net.link(3).to), (Node::Switch(0), Node::Host(1)));
        net.plan(from, ends);
        net.plan(until, begins);
        send(&mut net, 1, packet(0, 1000, 1));
        arrivals(&mut net);
        assert_eq!((net.tally.pauses, net.paused()), (1, Paused::new()), "{ends:?} at {from}");
        send(&mut net, 1, packet(0, 1000, 2));
        let came: Vec<u32> = arrivals(&mut net).iter().map(|(.., p)| p.flow).collect();
        assert_eq!((came, net.paused()), (vec![2], Paused::new()), "{ends:?} at {from}");
        assert_conserved(&net);
    }
}

/// Cables fail and come back at any moment of an incast with flow control: all that is not lost
/// arrives, and no port stays paused.
#[test]
fn flow_control_survives_cables_that_fail() {
    let buffer = BufferOptions { bytes: 100_000, ..BufferOptions::default() };
    for seed in 0..20 {
        let mut net = star(9, &NetOptions { buffer, pfc: Some(PFC), ..NetOptions::default() });
        let mut random = SplitMix::new(seed);
        for _ in 0..12 {
            let (n, down) = (random.number(), random.number() % (30 * US));
            let (link, at) = (1 + (n % 8) as u32, (n >> 8) % (120 * US));
            net.plan(at, Change::Cable { link, works: false });
            net.plan(at + down, Change::Cable { link, works: true });
        }
        for src in 1..9 {
            (0..200).for_each(|i| send(&mut net, src, packet(0, 1000, src * 100 + i)));
        }
        arrivals(&mut net);
        assert!(net.tally.pauses > 8 && net.tally.dropped_down > 0, "{:?}", net.tally);
        assert_eq!(
            (net.in_flight(), net.paused()),
            (0, Paused::new()),
            "seed {seed}: {:?}",
            net.tally
        );
        assert_conserved(&net);
    }
}

#[test]
fn what_fails_loses_packets_until_switches_know() {
    let rate = LineRate::gigabits(100);
    let shape = LeafSpine {
        leaves: 2,
        spines: 2,
        hosts_per_leaf: 1,
        host_rate: rate,
        fabric_rate: rate,
        delay: US,
    };
    let options = NetOptions { routing: Routing::Spray, ..NetOptions::default() };
    let mut net = Net::new(&shape.topology(), &options).unwrap();
    let link = net.links_between(Node::Switch(0), Node::Switch(2))[0];
    net.plan(US, Change::Cable { link, works: false });
    net.plan(50 * US, Change::LearnCable { link });
    (0..2000).for_each(|i| send(&mut net, 0, packet(1, 1000, i)));
    arrivals(&mut net);
    // Of the first 50 µs, 625 packets, half are lost.
    let lost = net.tally.dropped_down;
    assert!((250..380).contains(&lost), "{lost}");
    assert_conserved(&net);
    net.plan(net.now(), Change::Switch { switch: 3, works: false });
    net.plan(net.now(), Change::LearnSwitch { switch: 3 });
    net.step(net.now());
    send(&mut net, 0, packet(1, 1000, 1));
    arrivals(&mut net);
    assert_eq!(net.tally.dropped_no_path, 1);
}

/// Switches learn of each failure in its own time, and not with another's.
#[test]
fn what_is_learnt_of_one_cable_is_nothing_of_another() {
    let rate = LineRate::gigabits(100);
    let shape = LeafSpine {
        leaves: 2,
        spines: 4,
        hosts_per_leaf: 1,
        host_rate: rate,
        fabric_rate: rate,
        delay: US,
    };
    let options = NetOptions { routing: Routing::Spray, ..NetOptions::default() };
    let lost = |learnt: [Ps; 2]| {
        let mut net = Net::new(&shape.topology(), &options).unwrap();
        for (spine, at) in [(2, learnt[0]), (3, learnt[1])] {
            let link = net.links_between(Node::Switch(0), Node::Switch(spine))[0];
            net.plan(US, Change::Cable { link, works: false });
            net.plan(at, Change::LearnCable { link });
        }
        (0..2000).for_each(|i| send(&mut net, 0, packet(1, 1000, i)));
        arrivals(&mut net);
        assert_conserved(&net);
        net.tally.dropped_down
    };
    // Of 12.5 packets a microsecond half go to where they cannot go on, then a third, then none.
    let both = lost([20 * US, 20 * US]);
    assert!((90..150).contains(&both), "{both}");
    let apart = lost([20 * US, 100 * US]);
    assert!((380..530).contains(&apart), "{apart}");
    assert!((380..530).contains(&lost([100 * US, 20 * US])));
}

#[test]
fn a_lossy_link_loses_its_share_and_a_slow_one_is_slow() {
    let mut net = star(2, &NetOptions { buffer: BufferOptions::ENDLESS, ..NetOptions::default() });
    net.plan(0, Change::Loss { link: 0, probability: 0.1 });
    net.plan(0, Change::Rate { link: 0, rate: LineRate::gigabits(10) });
    net.step(0);
    (0..10_000).for_each(|i| send(&mut net, 0, packet(1, 1000, i)));
    let all = arrivals(&mut net);
    assert!((850..1150).contains(&net.tally.dropped_loss), "{:?}", net.tally);
    assert!(all.last().unwrap().0 > 9_900 * 800_000);
    assert_conserved(&net);
}

/// What waits when a rate changes keeps its length, and leaves at the new rate.
#[test]
fn a_rate_that_changes_is_that_of_what_waits() {
    for (before, after) in [(100, 10), (10, 100)] {
        let buffer = BufferOptions { bytes: 400_000, ..BufferOptions::default() };
        let mut net = star(9, &NetOptions { buffer, ..NetOptions::default() });
        let link = net.links_between(Node::Switch(0), Node::Host(0))[0];
        let each = |gigabits| LineRate::gigabits(gigabits).time(1000);
        // The 40th of 160 packets is on its way then.
        let change = US + each(100) + 39 * each(before) + each(before) / 2;
        net.plan(0, Change::Rate { link, rate: LineRate::gigabits(before) });
        net.plan(change, Change::Rate { link, rate: LineRate::gigabits(after) });
        for src in 1..9 {
            (0..20).for_each(|i| send(&mut net, src, packet(0, 1000, src * 100 + i)));
        }
        let all = arrivals(&mut net);
        assert_eq!(net.tally.dropped_full, 0, "{:?}", net.tally);
        let last = 2 * US + each(100) + 40 * each(before) + 120 * each(after);
        assert_eq!(all.last().unwrap().0, last, "from {before} to {after}");
        assert_conserved(&net);
    }
}

/// News of a failure that comes when the cable is back, and known to be, is none.
#[test]
fn late_news_is_of_how_things_are() {
    let rate = LineRate::gigabits(100);
    let (host_rate, fabric_rate) = (rate, rate);
    let shape =
        LeafSpine { leaves: 2, spines: 1, hosts_per_leaf: 1, host_rate, fabric_rate, delay: US };
    let mut net = Net::new(&shape.topology(), &NetOptions::default()).unwrap();
    let link = net.links_between(Node::Switch(0), Node::Switch(2))[0];
    for (at, learnt, works) in [(10 * US, 210 * US, false), (50 * US, 60 * US, true)] {
        net.plan(at, Change::Cable { link, works });
        net.plan(learnt, Change::LearnCable { link });
        net.plan(at, Change::Switch { switch: 2, works });
        net.plan(learnt, Change::LearnSwitch { switch: 2 });
    }
    assert!(net.step(300 * US).is_none());
    send(&mut net, 0, packet(1, 1000, 1));
    assert_eq!(arrivals(&mut net).len(), 1, "{:?}", net.tally);
}

/// Where a port slows down, it marks at a shorter queue: thresholds are for a rate.
#[test]
fn a_port_that_slows_down_marks_as_a_slow_one() {
    let marked = |slows_at: Option<Ps>| {
        let buffer = BufferOptions {
            marking: Some(Marking::step(100_000)),
            marking_bits: 100_000_000_000,
            ..BufferOptions::default()
        };
        let mut net = star(3, &NetOptions { buffer, ..NetOptions::default() });
        let link = net.links_between(Node::Switch(0), Node::Host(0))[0];
        let slow = LineRate::gigabits(10);
        slows_at.into_iter().for_each(|at| net.plan(at, Change::Rate { link, rate: slow }));
        (1..3).for_each(|src| (0..50).for_each(|i| send(&mut net, src, packet(0, 1000, i))));
        arrivals(&mut net).iter().filter(|(.., p)| p.marked).count()
    };
    assert_eq!(marked(None), 0, "the queue has 50 packets at most");
    // Of 100 packets, those that meet more than ten.
    assert!(marked(Some(US)) > 70, "{}", marked(Some(US)));
}

/// Which packets a link loses depends on the seed, and on nothing else.
#[test]
fn losses_come_from_the_seed() {
    let arrived = |seed| {
        let buffer = BufferOptions::ENDLESS;
        let mut net = star(2, &NetOptions { buffer, seed, ..NetOptions::default() });
        net.plan(0, Change::Loss { link: 0, probability: 0.5 });
        net.step(0);
        (0..64).for_each(|i| send(&mut net, 0, packet(1, 1000, i)));
        arrivals(&mut net).iter().map(|(.., p)| p.flow).collect::<Vec<u32>>()
    };
    assert_eq!(arrived(1), arrived(1));
    assert_ne!(arrived(1), arrived(2));
}

/// What links and switches draw is apart for each, for each use, and for each seed: no two begin
/// with the same number.
#[test]
fn what_is_drawn_is_apart() {
    let mut first: Vec<u64> = Vec::new();
    for seed in 1..=8 {
        let mut net = star(9, &NetOptions { seed, ..NetOptions::default() });
        net.changes.set_loss(0, 0.5);
        let lost = net.changes.losses.iter_mut().map(|(_, random)| random);
        let paths = net.routes.choosers.iter_mut().map(|chooser| &mut chooser.random);
        first.extend(net.randoms.iter_mut().chain(lost).chain(paths).map(SplitMix::number));
    }
    assert_eq!(first.len(), 8 * (18 + 18 + 1));
    first.sort_unstable();
    assert!(first.windows(2).all(|two| two[0] != two[1]), "two streams are one");
}

/// A network in two parts that hand over packets does what one does.
#[test]
fn two_parts_give_the_same_as_one() {
    let rate = LineRate::gigabits(100);
    let shape = LeafSpine {
        leaves: 2,
        spines: 2,
        hosts_per_leaf: 3,
        host_rate: rate,
        fabric_rate: rate,
        delay: US,
    };
    let topology = shape.topology();
    let marking = Some(Marking { from_bytes: 0, to_bytes: 100_000, most: 0.5 });
    let buffer = BufferOptions { marking, ..BufferOptions::default() };
    let options = NetOptions { buffer, routing: Routing::Spray, ..NetOptions::default() };
    let load = |net: &mut Net, mine: &dyn Fn(u32) -> bool| {
        for i in (0..600u32).filter(|i| mine(i % 6)) {
            send(net, i % 6, packet((i * 7 + 3) % 6, 500 + i, i));
        }
    };
    let note = |net: &mut Net, happening| match happening {
        Happening::Arrival { host, packet } => {
            let at = net.now();
            net.take(&packet);
            Some((at, host, packet.flow, packet.marked))
        }
        _ => None,
    };
    let mut whole = Net::new(&topology, &options).unwrap();
    load(&mut whole, &|_| true);
    let mut expected = Vec::new();
    while let Some(happening) = whole.step(NEVER) {
        expected.extend(note(&mut whole, happening));
    }
    // Hosts 0-2, leaf 0 and spine 0 are one part.
    let of = vec![0, 0, 0, 1, 1, 1, 0, 1, 0, 1];
    let mut parts = [0, 1].map(|own| {
        let mut net = Net::new(&topology, &options).unwrap();
        net.set_part(Part { of: of.clone(), own, leaving: vec![Vec::new(), Vec::new()] });
        load(&mut net, &|host| of[host as usize] == own);
        net
    });
    let mut all = Vec::new();
    for window in 1..200 {
        for net in &mut parts {
            while let Some(happening) = net.step(window * US - 1) {
                all.extend(note(net, happening));
            }
        }
        for own in [0, 1] {
            let other = 1 - own;
            for parcel in core::mem::take(&mut parts[own].leaving()[other]) {
                assert!(parcel.at() >= window * US);
                parts[other].receive(parcel);
            }
        }
    }
    all.sort_unstable();
    expected.sort_unstable();
    assert!(all == expected, "{} and {} arrivals", all.len(), expected.len());
}
