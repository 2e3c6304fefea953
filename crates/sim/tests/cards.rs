//! Hosts whose cards' hardware takes time, beside each other in one world.

use remora_sim::flows::{Cluster, Content, Flow, Report, Sizes, Transport, incast, poisson};
use remora_sim::hardware::{CardTime, PROFILES, Profile};
use remora_sim::net::time::{NS, US};
use remora_sim::net::{LeafSpine, LineRate, Ps, Star};
use remora_sim::world_file::{Experiment, Mistake, Overrides};

fn star(hosts: u32, card: &str) -> Cluster {
    let cluster = Cluster::new(Star { hosts, rate: LineRate::gigabits(100), delay: US }.topology());
    let profile = Profile::named(card).expect("a card");
    Cluster { hardware: vec![Some(profile); hosts as usize], ..cluster }
}

fn assert_whole(report: &Report, flows: &[Flow]) {
    assert_eq!(report.done(), flows.len(), "{report}");
    assert!(report.flows.iter().zip(flows).all(|(done, flow)| done.arrived == flow.bytes));
}

/// A message of one packet takes the network's time, and that of both cards there and back.
#[test]
fn a_message_takes_its_cards_time_besides() {
    for profile in PROFILES {
        let flows = [Flow::new(0, 1, 1000, 0)];
        let report = star(2, profile.name).run(&flows).unwrap();
        assert_whole(&report, &flows);
        let mut cards = [CardTime::new(*profile), CardTime::new(*profile)];
        let there = cards[0].sends(0, Some(0), 1000) + cards[1].receives(0, Some(0), 1000);
        let back = cards[1].sends(US, None, 0) + cards[0].receives(US, None, 0) - 2 * US;
        let Some(time) = report.flows[0].time() else { panic!("it ended") };
        let expected = report.flows[0].alone + there + back;
        // A card sees whole nanoseconds.
        assert!(time.abs_diff(expected) <= 4 * NS, "{}: {time} and {expected}", profile.name);
    }
}

/// A long message takes what the slowest part leaves: of StRoM's link of eight lanes, 6.59 GB/s.
#[test]
fn a_long_message_takes_what_the_slowest_part_takes() {
    let bytes = 8 << 20;
    let gigabits = |card: &str| {
        let flows = [Flow::new(0, 1, bytes, 0)];
        let report = star(2, card).run(&flows).unwrap();
        assert_whole(&report, &flows);
        // The first packet waits longer, and none passes it.
        assert_eq!(report.retransmitted, 0, "{card}: {report}");
        bytes as f64 * 8e3 / report.flows[0].time().unwrap() as f64
    };
    // The port: 1024 of 1106 bytes are payload.
    let line = 100.0 * 1024.0 / 1106.0;
    for card in ["srnic", "cx5"] {
        let rate = gigabits(card);
        assert!(rate > 0.97 * line && rate <= line, "{card}: {rate}");
    }
    let (strom, software) = (gigabits("strom"), gigabits("software"));
    assert!((50.0..53.0).contains(&strom), "{strom}");
    // 385 ns a packet, data one way and acknowledges the other.
    let processor = 1024.0 * 8.0 / 385.0;
    assert!(software > 0.9 * processor && software <= processor, "{software}");
}

/// Cards of all kinds in one world: real and hollow payload, one thread and two do the same.
#[test]
fn cards_of_all_kinds_do_the_same_on_one_and_two_threads() {
    let rate = LineRate::gigabits(100);
    let shape = LeafSpine {
        leaves: 2,
        spines: 2,
        hosts_per_leaf: 5,
        host_rate: rate,
        fabric_rate: rate,
        delay: US,
    };
    let sizes = Sizes::parse("100 0.3\n5000 0.7\n100000 1").unwrap();
    let mut flows = poisson(10, 100_000_000_000, 0.3, &sizes, 100 * US, 5).unwrap();
    flows.extend(incast(1..10, 0, 50_000));
    for transport in ["go-back-n", "selective"] {
        let mut cluster = Cluster::new(shape.topology());
        cluster.transport = Transport::named(transport).unwrap();
        // Every seventh host's card takes no time.
        cluster.hardware = (0..10).map(|host| PROFILES.get(host % 7).copied()).collect();
        cluster.net.buffer.bytes = 150_000;
        let run = |payload, threads| {
            let report = Cluster { payload, threads, ..cluster.clone() }.run(&flows).unwrap();
            assert_whole(&report, &flows);
            report
        };
        let hollow = run(Content::Hollow, 1);
        assert!(hollow.tally.dropped_full > 0, "{hollow}");
        assert!(run(Content::Real, 1) == hollow, "with bytes it is different");
        assert!(run(Content::Hollow, 2) == hollow, "with two threads it is different");
        cluster.net.pfc = Some(Default::default());
        let paused = Cluster { ..cluster.clone() }.run(&flows).unwrap();
        assert_whole(&paused, &flows);
        assert!(paused.tally.pauses > 0 && paused.tally.dropped_full == 0, "{paused}");
    }
}

#[test]
fn a_world_file_says_which_cards_hosts_have() {
    let world = r#"
        [topology]
        shape = "star"
        hosts = 4
        rate = "100Gbps"
        delay = "1us"

        [host]
        card = "cx5"

        [[card]]
        hosts = "2..3"
        name = "software"

        [[workload]]
        kind = "permutation"
        bytes = 1000
    "#;
    let none = |name: &str| Err(format!("there is no file {name}"));
    let read = |text: &str| Experiment::parse(text, &none, Overrides::default());
    let cluster = read(world).unwrap().cluster;
    let names: Vec<_> = cluster.hardware.iter().map(|card| card.map(|card| card.name)).collect();
    assert_eq!(names, ["cx5", "cx5", "software", "software"].map(Some));
    let wrong = |from: &str, to: &str| {
        let text = world.replace(from, to);
        let Mistake { at, help, .. } = read(&text).unwrap_err();
        (text[at].to_owned(), help)
    };
    let (place, help) = wrong("\"software\"", "\"cx9\"");
    assert!(place == "\"cx9\"" && help.contains("`srnic`"), "{place} {help}");
    assert_eq!(wrong("2..3", "2..4").0, "\"2..4\"");
    assert_eq!(wrong("\"cx5\"", "5").0, "5");
    let with_reads = world.replace("\"cx5\"", "\"cx5\"\nreads = 256");
    let card = read(&with_reads).unwrap().cluster.hardware[0].expect("a card");
    assert_eq!((card.way.tags, card.ahead_bytes), (256, 128 << 10));
    assert_eq!(wrong("\"cx5\"", "\"cx5\"\nreads = 257").0, "257");
    let (place, _) = wrong("\"software\"", "\"software\"\nreads = 64");
    assert!(place.starts_with("reads"), "a processor asks for no reads: {place}");
    let times: Vec<Option<Ps>> = {
        let experiment = read(world).unwrap();
        let report = experiment.cluster.run(&experiment.flows.flows).unwrap();
        report.flows.iter().map(|flow| flow.time()).collect()
    };
    assert!(times.iter().all(|time| time.is_some_and(|ps| ps > 4 * US)), "{times:?}");
}
