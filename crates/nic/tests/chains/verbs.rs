//! The verbs of loop-back: they do the same as on a connection, with its checks and statuses.

use remora_nic::qp::State;
use remora_nic::queue::{Data, Opcode, SendFlags, SendOp, Status};
use remora_nic::{Access, Calc, Event, QpFlags, Queue};

use crate::rig::{DATA, MANAGED, PLAIN, Qp, Rig, region};

const X: u64 = DATA;
const Y: u64 = DATA + 0x1_0000;
const Z: u64 = DATA + 0x2_0000;

/// Two plain queue pairs, connected to each other.
fn pair(rig: &mut Rig, access: Access) -> (Qp, Qp) {
    let (a, b) = (rig.fresh(PLAIN, 16), rig.fresh(PLAIN, 16));
    rig.nic.loop_back(a.qpn, b.qpn, access).unwrap();
    (a, b)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8).collect()
}

#[test]
fn writes_and_reads_of_every_length() {
    for len in [0, 1, 8, 4095, 4096, 4097, 40_000] {
        let mut rig = Rig::new();
        let (a, b) = pair(&mut rig, Access::all());
        let bytes = pattern(len as usize);
        rig.put(X, &bytes);
        rig.write(a, X, Y, len);
        rig.wait(b, a.cq, 1);
        // The data is scattered over two entries, one of them at an odd address.
        let (from, split) = (rig.remote(Y), len as usize / 3);
        let (head, tail) = (rig.sge(Z, len / 3), rig.sge(Z + 0x1_0001, len - len / 3));
        rig.post(b, SendOp::Read { from }, &[head, tail]);
        rig.run();
        assert_eq!((rig.count(a), rig.count(b)), (1, 2));
        assert_eq!(rig.bytes(Y, len as usize), bytes);
        assert_eq!(rig.bytes(Z, split), bytes[..split]);
        assert_eq!(rig.bytes(Z + 0x1_0001, len as usize - split), bytes[split..], "{len}");
        assert_eq!(rig.nic.in_use().lists, 0);
        assert_eq!(rig.nic.in_use().outstanding, 0);
    }
}

#[test]
fn atomics_and_calc_verbs() {
    let (a, b) = (0xFFFF_0000_1234_0000u64, 0x0000_FFFF_1234_5678u64);
    let calcs = [
        (Calc::Max, a),
        (Calc::Min, b),
        (Calc::And, a & b),
        (Calc::Or, a | b),
        (Calc::Xor, a ^ b),
        (Calc::Add, a.wrapping_add(b)),
    ];
    for (calc, result) in calcs {
        let mut rig = Rig::new();
        let qp = rig.looped(PLAIN, 8);
        rig.put_word(X, a);
        let (at, back) = (rig.remote(X), rig.sge(Y, 8));
        rig.post(qp, SendOp::Calc { calc, at, operand: b }, &[back]);
        rig.post(qp, SendOp::Calc { calc, at, operand: result }, &[]);
        rig.post(qp, SendOp::CompareSwap { at, compare: 1, swap: 2 }, &[rig.sge(Y + 8, 8)]);
        rig.run();
        let twice = calc.of(result, result);
        assert_eq!((rig.word(Y), rig.word(Y + 8), rig.word(X)), (a, twice, twice), "{calc:?}");
        assert_eq!(rig.count(qp), 3);
    }
}

#[test]
fn a_send_scatters_into_a_ring() {
    let mut rig = Rig::new();
    let (a, b) = pair(&mut rig, Access::empty());
    let body = rig.looped(MANAGED, 16);
    for _ in 0..16 {
        rig.post(body, SendOp::NoOp, &[]);
    }
    // One word goes into the operand of each of sixteen elements. 16 entries need a longer slot.
    let long = rig.fresh_with(PLAIN, 16, 16);
    let far = rig.fresh(PLAIN, 16);
    rig.nic.loop_back(long.qpn, far.qpn, Access::empty()).unwrap();
    let entries: Vec<_> = (0..16).map(|i| rig.sge(body.field(i, 24), 8)).collect();
    rig.recv(long, &entries);
    let words: Vec<u8> = (0..16u64).flat_map(|i| (i * 3).to_le_bytes()).collect();
    rig.put(X, &words);
    let message = rig.sge(X, 128);
    rig.post(far, SendOp::Send { imm: Some(9), to: None }, &[message]);
    rig.run();
    assert_eq!((rig.count(long), rig.count(far)), (1, 1));
    for i in 0..16 {
        assert_eq!(rig.word(body.field(i, 24)), i * 3);
    }
    // A SEND waits for a receive element, and continues when there is one.
    rig.post(a, SendOp::Send { imm: None, to: None }, &[message]);
    rig.post(a, SendOp::NoOp, &[]);
    rig.run();
    assert_eq!(rig.count(a), 0);
    let room = rig.sge(Y, 128);
    rig.recv(b, &[room]);
    rig.run();
    assert_eq!((rig.count(a), rig.count(b)), (2, 1));
    assert_eq!(rig.bytes(Y, 128), words);
}

#[test]
fn a_managed_receive_queue_is_recycled() {
    let mut rig = Rig::new();
    let (server, client) = (rig.fresh(QpFlags::MANAGED_RECV, 2), rig.fresh(PLAIN, 16));
    rig.nic.loop_back(server.qpn, client.qpn, Access::empty()).unwrap();
    let control = rig.looped(PLAIN, 16);
    for i in 0..2 {
        let room = rig.sge(Y + 8 * i, 8);
        rig.recv(server, &[room]);
    }
    for i in 1..=5 {
        rig.put_word(X, i);
        let op = SendOp::Send { imm: None, to: None };
        rig.post_with(client, op, Data::Inline(&i.to_le_bytes()), SendFlags::SIGNALED);
    }
    rig.run();
    assert_eq!(rig.count(server), 0, "the elements are written, but not yet enabled");
    for (index, taken) in [(1, 1), (3, 3), (3, 3), (5, 5)] {
        rig.post(control, SendOp::EnableRecv { qpn: server.qpn, index }, &[]);
        rig.run();
        assert_eq!(rig.count(server), taken);
    }
    assert_eq!((rig.word(Y), rig.word(Y + 8)), (5, 4));
    assert_eq!(rig.count(client), 5);
}

#[test]
fn write_with_immediate_takes_a_receive_element() {
    let mut rig = Rig::new();
    let (a, b) = pair(&mut rig, Access::all());
    rig.put(X, &pattern(9000));
    let (to, from) = (rig.remote(Y), rig.sge(X, 9000));
    rig.post(a, SendOp::Write { to, imm: Some(1) }, &[from]);
    rig.run();
    assert_eq!(rig.count(a), 0, "it waits for the element with its last piece");
    rig.recv(b, &[]);
    rig.run();
    assert_eq!((rig.count(a), rig.count(b)), (1, 1));
    assert_eq!(rig.bytes(Y, 9000), pattern(9000));
}

/// A refusal: what is wrong, how it is posted, its status, and its counter.
type Refused = (&'static str, fn(&mut Rig, Qp), Status, &'static str);

fn refused_by_the_peer() -> [Refused; 5] {
    [
        (
            "no such key",
            |rig, a| rig.post_keys(a, (Y, 1), (X, 8)),
            Status::RemoteAccess,
            "refused_key",
        ),
        (
            "past the region",
            |rig, a| {
                let key = rig.key;
                rig.post_keys(a, (crate::rig::SIZE - 4, key), (X, 8));
            },
            Status::RemoteAccess,
            "refused_bounds",
        ),
        (
            "read-only region",
            |rig, a| {
                let key = region(&mut rig.nic, rig.pd, Access::REMOTE_READ);
                rig.post_keys(a, (Y, key), (X, 8));
            },
            Status::RemoteAccess,
            "refused_permission",
        ),
        (
            "another domain",
            |rig, a| {
                let pd = rig.nic.alloc_pd().unwrap();
                let key = region(&mut rig.nic, pd, Access::all());
                rig.post_keys(a, (Y, key), (X, 8));
            },
            Status::RemoteAccess,
            "refused_domain",
        ),
        (
            "a word off its alignment",
            |rig, a| rig.add(a, X + 4, 1),
            Status::RemoteInvalidRequest,
            "refused_invalid_request",
        ),
    ]
}

fn refused_before_it_gets_there() -> [Refused; 3] {
    [
        (
            "no local key",
            |rig, a| {
                let to = rig.remote(Y);
                let from = remora_nic::queue::Sge { lkey: 1, ..rig.sge(X, 8) };
                rig.post(a, SendOp::Write { to, imm: None }, &[from]);
            },
            Status::LocalProtection,
            "elements_protection",
        ),
        (
            "an unknown op-code",
            |rig, a| {
                rig.nic.post_element(&mut rig.ram, a.qpn, Queue::Send, &[0xFF; 64]).unwrap();
            },
            Status::LocalQpOperation,
            "elements_invalid",
        ),
        (
            "an operation that loop-back does not have",
            |rig, a| {
                let at = rig.remote(Y);
                rig.post(a, SendOp::Flush { at, len: 8, kind: Default::default() }, &[]);
            },
            Status::LocalQpOperation,
            "elements_invalid",
        ),
    ]
}

/// Each refusal is the same as on a connection: the status, the counter, and both ends in ERROR
/// with their work flushed.
#[test]
fn refusals_have_the_statuses_of_a_connection() {
    let cases = refused_by_the_peer().into_iter().chain(refused_before_it_gets_there());
    for (what, post, status, counter) in cases {
        let mut rig = Rig::new();
        let (a, b) = pair(&mut rig, Access::all());
        rig.write(a, X, Y, 8);
        post(&mut rig, a);
        rig.write(a, X, Y, 8);
        rig.run();
        let statuses: Vec<_> = rig.errors(a).into_iter().map(|(_, status)| status).collect();
        assert_eq!(statuses, [status, Status::Flushed], "{what}");
        assert_eq!((rig.count(a), rig.counter(counter)), (1, 1), "{what}");
        let remote = matches!(status, Status::RemoteAccess | Status::RemoteInvalidRequest);
        assert_eq!(rig.nic.poll_event().is_some(), remote, "{what}: the peer's owner is told");
        let told = rig.incidents();
        assert!(told.iter().any(|i| i.counter() == counter), "{what}: {told:?}");
        // Both can be destroyed, and leave nothing behind.
        rig.nic.destroy_qp(b.qpn).unwrap();
        rig.nic.destroy_qp(a.qpn).unwrap();
        assert_eq!(rig.nic.in_use().lists, 0);
    }
}

#[test]
fn a_queue_pair_that_does_not_permit_writes_refuses_them() {
    let mut rig = Rig::new();
    let (a, _) = pair(&mut rig, Access::REMOTE_READ);
    let from = rig.remote(Y);
    let to = rig.sge(X, 8);
    rig.post(a, SendOp::Read { from }, &[to]);
    rig.write(a, X, Y, 8);
    rig.run();
    assert_eq!((rig.count(a), rig.errors(a)), (1, vec![(1, Status::RemoteAccess)]));
    assert!(matches!(rig.nic.poll_event(), Some(Event::QpAccessError(_))));
}

#[test]
fn a_request_to_a_peer_that_is_gone_fails() {
    let mut rig = Rig::new();
    let (a, b) = pair(&mut rig, Access::all());
    rig.nic.destroy_qp(b.qpn).unwrap();
    rig.post(a, SendOp::NoOp, &[]);
    rig.write(a, X, Y, 8);
    rig.run();
    assert_eq!((rig.count(a), rig.errors(a)), (1, vec![(1, Status::RetryExceeded)]));
    assert_eq!(rig.counter("chain_peer_gone"), 1);
}

/// A SEND waits for a receive element, alone or in the middle of a message, and its peer ends.
#[test]
fn a_send_that_waits_ends_with_its_peer() {
    let ends: [fn(&mut Rig, Qp); 3] = [
        |rig, b| rig.nic.destroy_qp(b.qpn).unwrap(),
        |rig, b| rig.enter(b, State::Error),
        |rig, b| rig.enter(b, State::Reset),
    ];
    for (end, len) in ends.into_iter().flat_map(|end| [(end, 8), (end, 9000)]) {
        let mut rig = Rig::new();
        let (a, b) = pair(&mut rig, Access::all());
        let from = rig.sge(X, len);
        rig.post(a, SendOp::Send { imm: None, to: None }, &[from]);
        rig.run();
        assert!(rig.errors(a).is_empty(), "it waits");
        end(&mut rig, b);
        rig.run();
        assert_eq!(rig.errors(a), [(0, Status::RetryExceeded)]);
        assert_eq!(rig.counter("chain_peer_gone"), 1);
    }
}

/// An order may hold another element's fields, which it ignores.
#[test]
fn orders_look_at_their_own_fields_only() {
    let mut rig = Rig::new();
    let qp = rig.looped(PLAIN, 8);
    let mut raw = [0xFF; 64];
    raw[..2].copy_from_slice(&(Opcode::NoOp as u16).to_le_bytes());
    raw[8..10].copy_from_slice(&SendFlags::SIGNALED.bits().to_le_bytes());
    rig.nic.post_element(&mut rig.ram, qp.qpn, Queue::Send, &raw).unwrap();
    rig.run();
    assert_eq!(rig.count(qp), 1);
}
