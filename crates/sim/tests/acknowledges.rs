//! How acknowledges are sent: alone, behind data, or in the same packet as data (the StRoM
//! dialect's op-code "with Acknowledge").

use core::time::Duration;

use remora_nic::qp::State;
use remora_nic::queue::{Data, RemoteAddress, SendFlags, SendOp, Status};
use remora_nic::wire::icrc::{Flow, Icrc};
use remora_nic::wire::opcode::Follows;
use remora_nic::wire::{
    Aeth, Dialect, Extensions, Nak, Op, Operation, Position, ROCE_PORT, Reth, Syndrome, Transport,
};
use remora_nic::{Datagram, Transmit, TransmitBatch};
use remora_sim::pair::address;
use remora_sim::{A, B, Fate, Pair, Rule};

const ACK: &str = "RC Acknowledge";
const WRITE: &str = "RC RDMA WRITE Only";
const BOTH: &str = "RC RDMA WRITE Only with Acknowledge";

/// A pair that agreed to the StRoM dialect.
fn strom_pair() -> Pair {
    Pair::of_dialect(Dialect::KERNELS)
}

/// Posts an empty WRITE at `from` and delivers it at once. Returns the names of the packets sent.
fn tell(t: &mut Pair, from: usize, answering: bool) -> Vec<&'static str> {
    let to = t.remote(1 - from, 0);
    let op = SendOp::Write { to, imm: None };
    t.post(from, op, Data::Inline(&[]), SendFlags::SIGNALED);
    pass(t, from, answering)
}

/// Delivers the packets that the card of `from` has to send; they must have no payload.
/// `answering` is what the driver tells the card about the batch.
fn pass(t: &mut Pair, from: usize, answering: bool) -> Vec<&'static str> {
    let now = t.world.now;
    let mut batch = TransmitBatch::new();
    batch.set_answering(answering);
    let host = &mut t.world.hosts[from];
    host.nic.poll_transmit(now, &mut host.memory, &mut batch, 64);
    let to = &mut t.world.hosts[1 - from];
    let (src, dst) = (address(from), address(1 - from));
    let deliver = |packet: &Transmit| {
        let src_port = packet.path.src_port;
        let flow = Flow { src, dst, src_port, dst_port: ROCE_PORT };
        let icrc = Icrc::start(&flow, 0, packet.datagram_len(), packet.header()).finish();
        let bytes = [packet.header(), &icrc].concat();
        let datagram = Datagram { src, src_port, dst, ip_id: Some(0), tos: 0, bytes: &bytes };
        to.nic.handle_packets(now, &mut to.memory, [datagram]);
        Op::lookup(bytes[0], Dialect::KERNELS).unwrap().name
    };
    batch.packets().iter().map(deliver).collect()
}

#[test]
fn acknowledges_of_a_dialogue_coalesce() {
    let mut t = Pair::standard();
    for round in 1..=24 {
        tell(&mut t, A, false);
        let rides = tell(&mut t, B, true);
        // Expect: data in each round, and one acknowledge for every eight messages, behind the
        // data.
        assert_eq!(rides, [WRITE, ACK][..1 + usize::from(round % 8 == 0)], "round {round}");
    }
    // Expect: a held-back acknowledge is sent once, when the driver asks for it.
    tell(&mut t, A, false);
    assert_eq!(tell(&mut t, B, true), [WRITE]);
    assert!(pass(&mut t, B, false).is_empty());
    assert!(t.world.hosts[B].nic.has_late_acknowledges());
    t.world.hosts[B].nic.release_acknowledges();
    assert_eq!(pass(&mut t, B, false), [ACK]);
    assert!(!t.world.hosts[B].nic.has_late_acknowledges());
    // Expect: since the driver had to ask, the next acknowledges are sent promptly.
    for _ in 0..16 {
        tell(&mut t, A, false);
        assert_eq!(tell(&mut t, B, true), [WRITE, ACK]);
    }
    tell(&mut t, A, false);
    assert_eq!(tell(&mut t, B, true), [WRITE]);
}

#[test]
fn an_answer_takes_the_acknowledge_along() {
    let mut t = strom_pair();
    assert_eq!(tell(&mut t, A, false), [WRITE]);
    for _ in 0..20 {
        // Expect: each WRITE acknowledges the peer's last one in the same packet.
        assert_eq!(tell(&mut t, B, false), [BOTH]);
        assert_eq!(tell(&mut t, A, false), [BOTH]);
    }
    assert_eq!(pass(&mut t, B, false), [ACK]);
    assert!(pass(&mut t, B, false).is_empty());
    // Expect: all messages are acknowledged, and none was sent twice.
    assert_eq!((t.sent(A).len(), t.sent(B).len()), (21, 20));
    for host in [A, B] {
        let counters = t.world.hosts[host].nic.counters();
        assert_eq!((counters.tx_retransmitted, counters.tx_acks), (0, 20 + u64::from(host == B)));
    }
    t.tear_down();
}

/// A pair in which A has sent a WRITE and received B's WRITE with an acknowledge.
fn answered() -> Pair {
    let mut t = strom_pair();
    assert_eq!(tell(&mut t, A, false), [WRITE]);
    assert_eq!(tell(&mut t, B, false), [BOTH]);
    // Expect: the card has not processed the acknowledge yet, and asks to be called for it.
    assert!(t.sent(A).is_empty() && t.world.hosts[A].nic.wants_transmit());
    t
}

#[test]
fn an_acknowledge_in_an_answer_is_processed_after_the_next_request_is_sent() {
    let mut t = answered();
    // Expect: the next request is sent first, and it carries an acknowledge already.
    assert_eq!(tell(&mut t, A, false), [BOTH]);
    assert!(t.sent(A).is_empty());
    assert!(pass(&mut t, A, false).is_empty());
    assert_eq!((t.sent(A).len(), t.world.hosts[A].nic.wants_transmit()), (1, false));
    t.tear_down();
}

#[test]
fn an_acknowledge_in_an_answer_waits_for_one_batch_only() {
    // Expect: it is processed after one batch, even if there is more to send.
    let mut t = answered();
    tell(&mut t, A, false);
    assert_eq!((tell(&mut t, A, false), t.sent(A).len()), (vec![WRITE], 1));
    // Expect: another packet that arrives, or a timer, lets the card process it too.
    let mut t = answered();
    tell(&mut t, B, false);
    assert_eq!(t.sent(A).len(), 1);
    let mut t = answered();
    let (now, host) = (t.world.now, &mut t.world.hosts[A]);
    host.nic.handle_timeout(now, &mut host.memory);
    assert_eq!(t.sent(A).len(), 1);
}

#[test]
fn a_request_that_an_answer_acknowledged_is_not_flushed() {
    let mut t = answered();
    let end = t.ends[A];
    end.go_to(&mut t.world, State::Error);
    assert_eq!(t.sent(A)[0].status, Status::Success);
    // Expect: after a reset, the acknowledge of the earlier connection has no effect.
    let mut t = answered();
    let end = t.ends[A];
    end.go_to(&mut t.world, State::Reset);
    assert!(pass(&mut t, A, false).is_empty());
    assert!(!t.world.hosts[A].nic.wants_transmit() && t.sent(A).is_empty());
}

#[test]
fn several_messages_are_followed_by_a_separate_acknowledge() {
    let mut t = strom_pair();
    tell(&mut t, A, false);
    let to = t.remote(A, 0);
    for _ in 0..3 {
        t.post(B, SendOp::Write { to, imm: None }, Data::Inline(&[]), SendFlags::empty());
    }
    // Expect: three packets of one length and then the shorter acknowledge, so that the socket can
    // send them as one group.
    assert_eq!(pass(&mut t, B, false), [WRITE, WRITE, WRITE, ACK]);
    t.tear_down();
}

#[test]
fn a_requester_with_unacknowledged_messages_sends_acknowledges_alone() {
    let mut t = strom_pair();
    assert_eq!(tell(&mut t, B, false), [WRITE]);
    let to = t.remote(B, 0);
    for _ in 0..2 {
        t.post(A, SendOp::Write { to, imm: None }, Data::Inline(&[]), SendFlags::empty());
    }
    assert_eq!(pass(&mut t, A, true), [WRITE, WRITE]);
    // Expect: B does not know yet that its first message has arrived, so its second is not the
    // only one outstanding and carries no acknowledge.
    assert_eq!(tell(&mut t, B, false), [WRITE, ACK]);
    t.tear_down();
}

#[test]
fn without_the_agreement_acknowledges_are_packets_of_their_own() {
    let mut t = Pair::standard();
    tell(&mut t, A, false);
    assert_eq!(tell(&mut t, B, false), [WRITE, ACK]);
    t.tear_down();
}

#[test]
fn an_acknowledge_in_a_request_is_checked_like_any_other() {
    let op = Op::of(Transport::Rc, Operation::Write, Position::Only, Follows::AETH);
    let ack = Syndrome::Ack { credits: Syndrome::UNLIMITED }.byte();
    let nak = Syndrome::Nak(Nak::RemoteAccess).byte();
    // Distances from the PSN of B's only message: this PSN, the one before, the one after, and an
    // impossible one. The last two cases are a NAK and an unknown syndrome.
    let cases = [(ack, 0), (ack, 0xFF_FFFF), (ack, 1), (ack, 0x80_0000), (nak, 0), (0xFF, 0)];
    for (syndrome, distance) in cases {
        let mut t = strom_pair();
        t.rule(Rule::all(Fate::Drop, |p| p.is_ack()));
        let first = t.world.hosts[B].nic.query_qp(t.ends[B].qpn).unwrap().attr.sq_psn.unwrap();
        t.post(
            B,
            SendOp::Write { to: t.remote(A, 0), imm: None },
            Data::Inline(&[]),
            SendFlags::SIGNALED,
        );
        let RemoteAddress { addr, rkey } = t.remote(B, 0);
        let aeth = Aeth { syndrome, msn: first.plus(distance).value() };
        let reth = Reth { addr, rkey, len: 4 };
        t.world.run(Duration::from_micros(5));
        t.forge(A, 100, op, &Extensions { reth, aeth, ..Extensions::default() }, &[7; 4]);
        t.world.run(Duration::from_micros(5));
        // Expect: the request is executed in any case, and only a valid acknowledge of B's message
        // completes it.
        assert_eq!(t.bytes(B, 0, 4), [7; 4]);
        assert_eq!(t.sent(B).len(), usize::from((syndrome, distance) == (ack, 0)));
    }
}
