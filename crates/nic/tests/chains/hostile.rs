//! Chains that are wrong, by mistake or on purpose: each ends with a status and a counted reason,
//! and other queue pairs go on.

use remora_nic::incident::Cause;
use remora_nic::queue::{SendOp, Status};
use remora_nic::{Access, Datagram, EnableError, PostError, Queue};

use crate::rig::{DATA, MANAGED, PLAIN, Qp, Rig, region};

const X: u64 = DATA;

/// A queue beside the hostile ones, which must go on working.
fn bystander(rig: &mut Rig) -> Qp {
    rig.looped(PLAIN, 64)
}

fn still_works(rig: &mut Rig, qp: Qp) {
    let before = rig.count(qp);
    for _ in 0..64 {
        rig.write(qp, X, X + 8, 8);
    }
    for _ in 0..64 {
        rig.poll();
    }
    assert_eq!(rig.count(qp), before + 64);
}

#[test]
fn orders_that_name_nothing() {
    type Case = (&'static str, fn(&mut Rig, Qp), &'static str);
    let cases: [Case; 6] = [
        ("no completion queue", |rig, a| rig.wait(a, 0xDEAD, 0), "chain_bad_wait"),
        ("a queue pair's number for one", |rig, a| rig.wait(a, a.qpn, 1), "chain_bad_wait"),
        (
            "no queue pair",
            |rig, a| {
                rig.post(a, SendOp::Enable { qpn: 1, index: 1 }, &[]);
            },
            "chain_bad_enable",
        ),
        ("not managed", |rig, a| rig.enable(a, a, 1), "chain_bad_enable"),
        (
            "past the end",
            |rig, a| {
                let b = rig.looped(MANAGED, 8);
                rig.enable(a, b, 9);
            },
            "chain_bad_enable",
        ),
        (
            "another domain",
            |rig, a| {
                let own = rig.pd;
                rig.pd = rig.nic.alloc_pd().unwrap();
                let b = rig.looped(MANAGED, 8);
                rig.pd = own;
                rig.enable(a, b, 1);
            },
            "chain_bad_enable",
        ),
    ];
    for (what, post, counter) in cases {
        let mut rig = Rig::new();
        let (a, other) = (rig.looped(PLAIN, 8), bystander(&mut rig));
        post(&mut rig, a);
        rig.run();
        assert_eq!(rig.errors(a), [(0, Status::LocalQpOperation)], "{what}");
        assert_eq!(rig.counter(counter), 1, "{what}");
        assert_eq!(rig.incidents()[0].counter(), counter, "{what}");
        still_works(&mut rig, other);
    }
}

/// A completion queue has no protection domain of its own, but that of the queue pairs that report
/// to it. A WAIT of another protection domain must not learn its count.
#[test]
fn a_wait_learns_nothing_of_other_domains() {
    let mut rig = Rig::new();
    let own = rig.pd;
    let mine = rig.looped(PLAIN, 8);
    rig.pd = rig.nic.alloc_pd().unwrap();
    let theirs = rig.looped(PLAIN, 8);
    rig.pd = own;
    let unused = rig.nic.create_counting_cq(1).unwrap();
    let refused = |rig: &mut Rig, cq| {
        let qp = rig.looped(PLAIN, 8);
        rig.wait(qp, cq, 0);
        rig.run();
        rig.errors(qp) == [(0, Status::LocalQpOperation)]
    };
    assert!(!refused(&mut rig, mine.cq));
    assert!(refused(&mut rig, theirs.cq));
    assert!(refused(&mut rig, unused));
    // A queue pair of another domain reports there as well, and later no more.
    let guest = rig.reporting_to(theirs.cq);
    assert!(refused(&mut rig, theirs.cq), "two domains share it");
    rig.nic.destroy_qp(theirs.qpn).unwrap();
    assert!(refused(&mut rig, theirs.cq), "its count still tells what the other domain did");
    rig.nic.destroy_qp(guest.qpn).unwrap();
    rig.reporting_to(theirs.cq);
    assert!(!refused(&mut rig, theirs.cq));
    assert_eq!(rig.counter("chain_bad_wait"), 4);
}

#[test]
fn an_enable_of_a_queue_in_error_stops_the_queue_that_gives_it() {
    let mut rig = Rig::new();
    let (a, b) = (rig.looped(PLAIN, 8), rig.looped(MANAGED, 8));
    rig.nic.post_element(&mut rig.ram, b.qpn, Queue::Send, &[0xEE; 64]).unwrap();
    rig.enable(a, b, 1);
    rig.run();
    assert_eq!(rig.errors(b).len(), 1);
    rig.enable(a, b, 2);
    rig.run();
    assert_eq!(rig.errors(a), [(1, Status::LocalQpOperation)]);
    let told = rig.incidents();
    assert!(told.iter().any(|i| i.cause == Cause::BadEnable(EnableError::State)), "{told:?}");
}

/// The owner, too, may enable no more than the ring holds.
#[test]
fn the_owner_cannot_enable_more_than_the_ring_holds() {
    let mut rig = Rig::new();
    let qp = rig.looped(MANAGED, 8);
    for index in [9, 1000, 1 << 30] {
        let refused = rig.nic.handle_send_doorbell(qp.qpn, index);
        assert_eq!(refused, Err(PostError::Full), "{index}");
    }
    let fresh = rig.fresh(MANAGED, 8);
    assert!(matches!(rig.nic.handle_send_doorbell(fresh.qpn, 1), Err(PostError::State(_))));
}

/// A recycled loop whose counts are wrong either stops by itself or is refused.
#[test]
fn wrong_counts_in_a_recycled_loop() {
    for (by, status) in [(0, None), (3, Some(Status::LocalQpOperation))] {
        let mut rig = Rig::new();
        let (qp, other) = (rig.looped(MANAGED, 2), bystander(&mut rig));
        // The loop raises its own index by too little, or by too much.
        rig.add(qp, qp.field(1, 16), by);
        rig.enable(qp, qp, 4 - by as u32);
        rig.doorbell(qp, 2);
        rig.run();
        let ended: Vec<_> = rig.errors(qp).into_iter().map(|(_, status)| status).collect();
        assert_eq!(ended.first().copied(), status, "by {by}");
        still_works(&mut rig, other);
    }
}

/// The region that a chain writes through is deregistered while the chain runs; so is the region
/// over its ring.
#[test]
fn memory_deregistered_under_a_running_chain() {
    for status in [Status::RemoteAccess, Status::LocalProtection] {
        let mut rig = Rig::new();
        let other = bystander(&mut rig);
        let qp = rig.looped(MANAGED, 4);
        let doomed = region(&mut rig.nic, rig.pd, Access::all());
        let keep = rig.key;
        let (rkey, lkey) =
            if status == Status::RemoteAccess { (doomed, keep) } else { (keep, doomed) };
        let to = remora_nic::queue::RemoteAddress { addr: X + 64, rkey };
        let from = remora_nic::queue::Sge { addr: X, len: 8, lkey };
        rig.post(qp, SendOp::Write { to, imm: None }, &[from]);
        rig.add(qp, qp.field(3, 16), 4);
        rig.post(qp, SendOp::NoOp, &[]);
        rig.enable(qp, qp, 4);
        rig.doorbell(qp, 4);
        assert!((0..10).all(|_| rig.poll()));
        rig.nic.dereg_mr(doomed).unwrap();
        rig.run();
        let errors = rig.errors(qp);
        assert_eq!(errors[0].1, status);
        assert!(errors[1..].iter().all(|(_, status)| *status == Status::Flushed));
        still_works(&mut rig, other);
    }
}

/// An application may put any bytes into a ring that runs. Here one chain overwrites the ring of
/// another, byte after byte, while that one runs.
#[test]
fn rings_are_rewritten_while_they_run() {
    let mut rig = Rig::new();
    let other = bystander(&mut rig);
    let scribbler = rig.looped(MANAGED, 4);
    let victims: Vec<Qp> = (0..32).map(|_| rig.looped(MANAGED, 8)).collect();
    for (i, &victim) in victims.iter().enumerate() {
        for _ in 0..8 {
            rig.write(victim, X, X + 128, 8);
        }
        // One byte of the first 64 of every element is changed.
        for k in 0..8 {
            let at = victim.field(k, (i as u64 * 2 + k) % 64);
            let byte = rig.bytes(at, 1)[0];
            rig.put(at, &[byte ^ (0xA5u8.rotate_left(i as u32))]);
        }
        rig.doorbell(victim, 8);
    }
    rig.add(scribbler, victims[7].field(0, 0), 0x0101);
    rig.add(scribbler, scribbler.field(3, 16), 4);
    rig.post(scribbler, SendOp::NoOp, &[]);
    rig.enable(scribbler, scribbler, 4);
    rig.doorbell(scribbler, 4);
    assert!((0..100).all(|_| rig.poll()), "the chain that overwrites goes on");
    for victim in victims {
        let ended = rig.errors(victim).len() as u64 + rig.count(victim);
        assert!(ended <= 8, "no element ends twice");
    }
    still_works(&mut rig, other);
}

/// A packet from outside that names a loop-back queue pair is dropped, from any source address.
#[test]
fn packets_do_not_reach_loop_back() {
    use remora_nic::wire::icrc::{Flow, Icrc};
    use remora_nic::wire::{Bth, Dialect, Extensions, ICRC_LEN, MAX_HEADER, Op, Packet, ROCE_PORT};
    let mut rig = Rig::new();
    let qp = rig.looped(PLAIN, 8);
    let own = rig.nic.config().address;
    let op = Op::lookup(0x04, Dialect::STANDARD).unwrap();
    let bth = Bth { dest_qp: qp.qpn, ..Bth::ours() };
    let mut bytes = [0; MAX_HEADER];
    let len = Packet::emit_headers(&bth, op, &Extensions::default(), &mut bytes);
    let flow = Flow { src: own, dst: own, src_port: ROCE_PORT, dst_port: ROCE_PORT };
    let icrc = Icrc::start(&flow, 0, len + ICRC_LEN, &bytes[..len]).finish();
    let bytes = [&bytes[..len], &icrc].concat();
    let (src, dst, src_port) = (own, own, ROCE_PORT);
    let datagram = Datagram { src, src_port, dst, ip_id: Some(0), tos: 0, bytes: &bytes };
    rig.nic.handle_packets(rig.now, &mut rig.ram, [datagram]);
    assert_eq!(rig.counter("drop_transport"), 1);
    rig.run();
}
