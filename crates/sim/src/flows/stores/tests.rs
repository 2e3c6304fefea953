//! Whole runs in which hosts ask stores.

use remora_nic::qp::Mtu;
use remora_nic::queue::Status;

use super::*;
use crate::flows::tests::{assert_whole_under_load, star};
use crate::flows::{Cluster, ClusterError, Content, FlowError, Transport, incast};

/// A call there and an answer back, of short values and of long ones.
#[test]
fn an_operation_takes_what_its_bytes_take() {
    for transport in ["go-back-n", "selective"] {
        for verb in [Verb::StoreGet(7), Verb::StorePut(7)] {
            for (bytes, mtu) in [1, 136, 137, 5000, Flow::VALUE]
                .into_iter()
                .flat_map(|bytes| [(bytes, Mtu::B1024), (bytes, Mtu::B256)])
            {
                let transport = Transport::named(transport).unwrap();
                let cluster = Cluster { transport, mtu, ..star(2) };
                let report = cluster.run(&[Flow { verb, ..Flow::new(0, 1, bytes, 0) }]).unwrap();
                let told = format!("{}, {verb:?}, {bytes}, {mtu:?}: {report}", transport.name);
                assert_eq!((report.done(), report.flows[0].arrived), (1, bytes), "{told}");
                let slowdown = report.flows[0].slowdown().unwrap();
                assert!((slowdown - 1.0).abs() < 1e-3, "{slowdown}: {told}");
            }
        }
    }
}

/// Many clients of two stores, messages beside them, losses: each value is whole, real or not, on
/// one thread and on two.
#[test]
fn values_are_whole_under_load() {
    let load = StoreLoad { gets: 0.5, skew: 0.99, depth: 3, keys: 20, ..StoreLoad::new(10, 3) };
    let sizes = Sizes::parse("10 0.3\n1000 0.6\n40000 1").unwrap();
    let mut flows = load.flows(&[0, 1, 4, 5, 7], &[2, 6], &sizes);
    assert_eq!(flows.len(), 5 * 3 * 10);
    flows.extend(incast([0, 1, 3, 4, 5, 6, 7], 2, 100_000));
    assert_whole_under_load(&flows);
}

/// A value that takes the place of another is of the key's length, so much is written to one store
/// without more room.
#[test]
fn writes_take_the_place_of_what_was_there() {
    let load = StoreLoad { gets: 0.0, keys: 2, ..StoreLoad::new(200, 1) };
    let flows = load.flows(&[1, 2, 3], &[0], &Sizes::fixed(100_000));
    let report = star(4).run(&flows).unwrap();
    assert_eq!(report.done(), 600, "{report}");
}

/// Keys are drawn by rank, and each has one length.
#[test]
fn the_first_keys_are_asked_for_oftener() {
    let load = StoreLoad { skew: 0.99, ..StoreLoad::new(20_000, 5) };
    let flows = load.flows(&[1], &[0, 2], &Sizes::named("hadoop").unwrap());
    let count = |key| flows.iter().filter(|flow| flow.verb.key() == Some(key)).count();
    // 1 / H(1000), with an exponent of 0.99.
    let share = count(0) as f64 / 20_000.0;
    assert!((share - 0.13).abs() < 0.01 && count(0) > 50 * count(400), "{share}");
    let gets = flows.iter().filter(|flow| flow.fetches()).count() as f64 / 20_000.0;
    assert!((gets - 0.95).abs() < 0.01, "{gets}");
    for flow in &flows {
        let key = flow.verb.key().unwrap();
        assert_eq!(flow.bytes, load.length(key, &Sizes::named("hadoop").unwrap()));
        assert_eq!(flow.dst, [0, 2][key as usize % 2]);
    }
    let none = StoreLoad { skew: 0.0, ..load };
    let flat = none.flows(&[1], &[0], &Sizes::fixed(8));
    let first = flat.iter().filter(|flow| flow.verb.key() == Some(0)).count();
    assert!((5..50).contains(&first), "{first}");
}

#[test]
fn what_no_store_can_have_is_refused() {
    let put = |bytes| Flow { verb: Verb::StorePut(1), ..Flow::new(0, 1, bytes, 0) };
    let long = star(2).run(&[put(Flow::VALUE + 1)]).unwrap_err();
    assert_eq!(long, ClusterError::Flow(FlowError::Value { flow: 0, bytes: Flow::VALUE + 1 }));
    let all: Vec<Flow> = (0..1100)
        .map(|key| Flow { verb: Verb::StoreGet(key), ..Flow::new(0, 1, Flow::VALUE, 0) })
        .collect();
    let much = star(2).run(&all).unwrap_err();
    assert_eq!(much, ClusterError::Flow(FlowError::Stored { bytes: 1_100_000_000 }));
    let model = Cluster { transport: Transport::named("irn").unwrap(), ..star(2) };
    assert_eq!(model.run(&[put(8)]), Err(ClusterError::Model("irn")));
}

/// A value that was there before is none that has arrived: not with a store that is cut off, nor
/// with a run that ends early.
#[test]
fn a_put_that_has_not_ended_has_brought_nothing() {
    for payload in [Content::Hollow, Content::Real] {
        let flows = [Flow { verb: Verb::StorePut(7), ..Flow::new(1, 0, 100_000, 0) }];
        let mut cluster = Cluster { payload, timeout: 1, ..star(2) };
        cluster.changes = vec![(0, crate::net::Change::Cable { link: 0, works: false })];
        let report = cluster.run(&flows).unwrap();
        assert_eq!((report.failed(), report.flows[0].arrived), (1, 0), "{report}");
        let short = Cluster { payload, until: 3 * crate::net::time::US, ..star(2) };
        assert_eq!(short.run(&flows).unwrap().flows[0].arrived, 0);
    }
}

/// What a store has at the start counts for none of its puts.
#[test]
fn a_put_that_is_not_in_the_store_is_missed() {
    let flows = [Flow { verb: Verb::StorePut(7), ..Flow::new(1, 0, 1000, 0) }];
    for is_real in [false, true] {
        let store = open(&mut SimMemory::default(), &flows, (0, is_real)).unwrap();
        assert_eq!(stored(&store, (7, 1000), is_real), 0);
        let value = put_value(7, 1000, is_real);
        store.put(SPACE, &key_of(7, 1000), &value, 0, None, 0).unwrap();
        assert_eq!(stored(&store, (7, 1000), is_real), 1000);
    }
}

/// A store that is cut off: its clients' operations fail, and nothing waits for ever.
#[test]
fn an_operation_fails_with_its_connection() {
    let mut cluster = star(2);
    cluster.timeout = 1;
    let cable = crate::net::Change::Cable { link: 0, works: false };
    cluster.changes = vec![(0, cable)];
    let report =
        cluster.run(&[Flow { verb: Verb::StoreGet(0), ..Flow::new(0, 1, 64, 0) }]).unwrap();
    assert_eq!(report.flows[0].failed, Some(Status::RetryExceeded), "{report}");
}
