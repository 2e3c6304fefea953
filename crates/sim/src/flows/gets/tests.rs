//! Whole runs in which hosts serve values.

use remora_nic::qp::Mtu;

use crate::flows::tests::{assert_whole_under_load, star};
use crate::flows::{Cluster, ClusterError, Flow, Transport, get_calls, incast};
use crate::hardware::Profile;
use crate::net::Change;
use crate::net::time::US;

/// A call there and a value back, and nothing else: no acknowledge is waited for.
#[test]
fn a_value_takes_what_its_call_and_its_bytes_take() {
    for transport in ["go-back-n", "selective"] {
        for (bytes, mtu) in [1, 64, 1024, 100_000]
            .into_iter()
            .flat_map(|bytes| [(bytes, Mtu::B1024), (bytes, Mtu::B256)])
        {
            let transport = Transport::named(transport).unwrap();
            let report = Cluster { transport, mtu, ..star(2) }.run(&[Flow::fetch(0, 1, bytes, 0)]);
            let report = report.unwrap();
            assert_eq!((report.done(), report.flows[0].arrived), (1, bytes), "{report}");
            let slowdown = report.flows[0].slowdown().unwrap();
            let name = transport.name;
            assert!((slowdown - 1.0).abs() < 1e-3, "{name}, {bytes}, {mtu:?}: {slowdown}");
        }
    }
}

/// Many clients, messages beside them, losses: each value is whole, real or not, on one thread and
/// on two.
#[test]
fn values_arrive_whole_under_load() {
    let mut lengths = [10u64, 300, 5000, 40_000].into_iter().cycle();
    let mut flows = get_calls(0..8, 5, (6, US), || lengths.next().unwrap());
    let first = flows.len() as u32;
    let mut more = get_calls(4..8, 0, (6, 0), || 2000);
    more.iter_mut().for_each(|flow| flow.after.iter_mut().for_each(|other| *other += first));
    flows.extend(more);
    flows.extend(incast(1..8, 0, 100_000));
    assert_whole_under_load(&flows);
}

/// A call that has its answer, but whose acknowledge is lost with the cable, has ended; one whose
/// connection fails has failed once.
#[test]
fn a_call_ends_or_fails_and_not_both() {
    let transport = Transport::named("selective").unwrap();
    let mut cluster = Cluster { transport, timeout: 4, ..star(17) };
    let flows = get_calls(1..17, 0, (4, 0), || 4000);
    let mut failed = 0;
    for at in (10..200).step_by(5).map(|at| at * US) {
        let cut = Change::Cable { link: 0, works: false };
        cluster.changes = vec![(0, Change::Loss { link: 0, probability: 0.1 }), (at, cut)];
        let report = cluster.run(&flows).unwrap();
        failed += report.failed();
        let both = report.flows.iter().filter(|f| f.ended.is_some() && f.failed.is_some()).count();
        assert_eq!(both, 0, "at {at}: {report}");
    }
    assert!(failed > 0);
}

/// The kernel reaches the host's memory through the card's hardware: an entry, then the value.
#[test]
fn hardware_takes_its_time_for_each_access() {
    let time = |card: Option<&str>| {
        let hardware = vec![card.and_then(Profile::named); 2];
        let report = Cluster { hardware, ..star(2) }.run(&[Flow::fetch(0, 1, 64, 0)]).unwrap();
        report.flows[0].time().unwrap()
    };
    let (none, strom) = (time(None), time(Some("strom")));
    // 1.5 µs for the entry, and as much for the value; a write's way at the end.
    assert!((3 * US..5 * US).contains(&(strom - none)), "{strom} and {none}");
}

/// A card that sends small packets as fast as its reads permit takes what arrives like one that
/// sends nothing: what arrives needs none of its reads.
#[test]
fn what_arrives_does_not_wait_for_what_is_to_be_sent() {
    for name in ["srnic", "strom-100g"] {
        let arrives = |beside: Option<Flow>| {
            let cluster = Cluster { mtu: Mtu::B256, ..star(3) };
            let hardware = vec![Profile::named(name); 3];
            let flows = [Flow::new(1, 0, 64, 20 * US), Flow::wait(0, vec![0], 0)];
            let flows: Vec<Flow> = flows.into_iter().chain(beside).collect();
            let report = Cluster { hardware, ..cluster }.run(&flows).unwrap();
            assert_eq!(report.done(), flows.len(), "{report}");
            report.flows[1].began.unwrap()
        };
        let (alone, beside) = (arrives(None), arrives(Some(Flow::new(0, 2, 1 << 20, 0))));
        // It waits for requests on the link, no more than are fetched ahead.
        assert!(beside < alone + US / 10, "{name}: {beside} and {alone}");
    }
}

/// A card's kernels and its packets have the same reads: with one in flight, each GET takes as long
/// as two, of its entry and of its value.
#[test]
fn kernels_share_the_reads_of_their_card() {
    let profile = Profile::named("strom").unwrap().with_reads(1);
    let flows = get_calls(1..9, 0, (20, 0), || 64);
    let report = Cluster { hardware: vec![Some(profile)], ..star(9) }.run(&flows).unwrap();
    assert_eq!(report.done(), 160, "{report}");
    let each = report.end() / 160;
    assert!((3 * US..3 * US + US / 10).contains(&each), "{each}");
}

#[test]
fn what_waits_for_a_value_waits_where_it_goes() {
    let first = Flow::fetch(0, 1, 5000, 0);
    let then = Flow { after: vec![0], ..Flow::new(0, 2, 1000, 0) };
    let report = star(3).run(&[first.clone(), then.clone()]).unwrap();
    assert_eq!(report.flows[1].began, report.flows[0].ended);
    let wrong = star(3).run(&[first.clone(), Flow { src: 1, ..then }]).unwrap_err();
    assert!(wrong.to_string().contains("waits for flow 0"), "{wrong}");
    let model = Cluster { transport: Transport::named("irn").unwrap(), ..star(2) };
    assert_eq!(model.run(&[first]), Err(ClusterError::Model("irn")));
}
