//! UC and UD: a lost packet costs its message, and no other message.

use core::time::Duration;

use remora_nic::queue::{CompletionFlags, Data, SendFlags, SendOp, Status};
use remora_nic::wire::{Operation, Transport};
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule};

fn pair(transport: Transport) -> Pair {
    Pair::new(&PairOptions { transport, ..PairOptions::default() })
}

#[test]
fn a_gap_drops_its_message_and_the_next_one_uses_its_receive_element() {
    for lost in [1, 2, 3] {
        let mut t = pair(Transport::Uc);
        t.fill(A, 0, 3000);
        let bytes = t.fill(A, 10_000, 2500);
        let first = t.receive(B, 0, 4000);
        t.rule(Rule::nth(lost, Fate::Drop, |p| p.is(Operation::Send)));
        t.send(A, 0, 3000);
        t.send(A, 10_000, 2500);
        t.run();
        // Expect: both are sent, and the second arrives in the first receive element.
        assert_eq!(t.sent(A).len(), 2);
        let received = t.received(B);
        assert_eq!(received.len(), 1, "packet {lost} lost");
        assert_eq!((received[0].wr_id, received[0].len), (first, 2500));
        assert_eq!(t.bytes(B, 0, 2500), bytes);
        t.tear_down();
    }
}

#[test]
fn a_write_with_a_gap_causes_no_completion_at_the_receiver() {
    let mut t = pair(Transport::Uc);
    let bytes = t.fill(A, 0, 5000);
    t.receive(B, 0, 0);
    t.rule(Rule::nth(3, Fate::Drop, |p| p.is(Operation::Write)));
    let (to, sge) = (t.remote(B, 10_000), t.sge(A, 0, 5000));
    let write = SendOp::Write { to, imm: Some(1) };
    t.post(A, write, Data::Sges(&[sge]), SendFlags::SIGNALED);
    t.run();
    // Expect: the bytes before the gap are written, those after it are not, and there is no
    // completion.
    assert_eq!(t.bytes(B, 10_000, 2048), bytes[..2048]);
    assert_ne!(t.bytes(B, 13_072, 1000), bytes[3072..4072]);
    assert_eq!(t.received(B), []);
    t.post(A, write, Data::Sges(&[sge]), SendFlags::SIGNALED);
    t.run();
    // Expect: the next message arrives in full.
    assert_eq!(t.bytes(B, 10_000, 5000), bytes);
    assert_eq!(t.received(B)[0].len, 5000);
    t.tear_down();
}

#[test]
fn an_unreliable_message_without_a_receive_element_is_dropped() {
    for transport in [Transport::Uc, Transport::Ud] {
        let mut t = pair(transport);
        t.send(A, 0, 100);
        t.run();
        t.receive(B, 0, 200);
        t.send(A, 0, 101);
        t.run();
        // Expect: the first is counted as dropped, the second arrives, and nothing is answered.
        assert_eq!(t.world.hosts[B].nic.counters().drop_no_receive, 1);
        assert_eq!(t.received(B).len(), 1);
        assert!(t.seen(|p| p.from == B).is_empty());
        t.tear_down();
    }
}

#[test]
fn a_datagram_comes_with_its_grh() {
    let mut t = pair(Transport::Ud);
    let bytes = t.fill(A, 0, 500);
    t.receive(B, 0, 1000);
    let (to, sge) = (Some(t.to_peer(A)), t.sge(A, 0, 500));
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    t.post(A, SendOp::Send { imm: Some(77), to }, Data::Sges(&[sge]), flags);
    t.run();
    // Expect: 40 bytes of GRH with the IPv4 header at their end, then the message.
    let entry = t.received(B)[0];
    assert_eq!((entry.status, entry.len, entry.imm_or_key), (Status::Success, 540, 77));
    assert_eq!(entry.src_qp, t.ends[A].qpn);
    let flags = CompletionFlags::GRH | CompletionFlags::IMM | CompletionFlags::SOLICITED;
    assert_eq!(entry.flags, flags);
    let grh = t.bytes(B, 0, 40);
    assert_eq!((grh[20], grh[29]), (0x45, 17), "IPv4 without options, UDP");
    assert_eq!(grh[32..40], [10, 0, 0, 1, 10, 0, 0, 2], "from A to B");
    assert_eq!(t.bytes(B, 40, 500), bytes);
    assert_eq!(t.sent(A)[0].status, Status::Success);
    t.tear_down();
}

#[test]
fn a_datagram_with_the_wrong_key_is_dropped() {
    let mut t = pair(Transport::Ud);
    t.receive(B, 0, 1000);
    let mut to = t.to_peer(A);
    to.qkey ^= 1;
    let sge = t.sge(A, 0, 100);
    let send = SendOp::Send { imm: None, to: Some(to) };
    t.post(A, send, Data::Sges(&[sge]), SendFlags::SIGNALED);
    // A Q_Key whose top bit is set means the Q_Key of the sending queue pair.
    to.qkey = 1 << 31;
    let send = SendOp::Send { imm: None, to: Some(to) };
    t.post(A, send, Data::Sges(&[sge]), SendFlags::SIGNALED);
    t.run();
    // Expect: only the second datagram arrives.
    assert_eq!(t.received(B).len(), 1);
    assert_eq!(t.world.hosts[B].nic.counters().drop_qkey, 1);
    t.tear_down();
}

#[test]
fn a_datagram_longer_than_the_mtu_is_refused_at_once() {
    let mut t = pair(Transport::Ud);
    t.send(A, 0, 1025);
    t.send(A, 0, 10);
    t.run();
    // Expect: a length error, the rest flushed, and nothing sent.
    let statuses: Vec<Status> = t.sent(A).iter().map(|c| c.status).collect();
    assert_eq!(statuses, [Status::LocalLength, Status::Flushed]);
    assert!(t.seen(|_| true).is_empty());
    t.tear_down();
}

#[test]
fn corrupted_packets_are_dropped() {
    let mut t = Pair::standard();
    let bytes = t.fill(A, 0, 20_000);
    // One flipped bit each in the header, the payload and the checksum of three packets.
    for (n, bit) in [(2, 8 * 9), (5, 8 * 100 + 3), (8, 8 * 1040)] {
        t.rule(Rule::nth(n, Fate::Flip(bit), |p| p.is(Operation::Write)));
    }
    t.write(A, 0, 0, 20_000);
    t.run();
    // Expect: each is counted and dropped, and the bytes are right.
    assert_eq!(t.world.hosts[B].nic.counters().drop_icrc, 3);
    assert_eq!(t.bytes(B, 0, 20_000), bytes);
    t.tear_down();
}

#[test]
fn late_copies_of_packets_change_nothing() {
    let mut t = Pair::standard();
    t.rule(Rule::all(Fate::Echo(Duration::from_micros(20)), |_| true));
    t.write(A, 0, 0, 3000);
    t.fetch_add(A, 10_000, 1, 0);
    assert!(!t.world.run(Duration::from_micros(10)));
    let after = t.fill(B, 0, 20_000);
    t.run();
    // Expect: copies that arrive after B has changed its memory have no effect.
    assert_eq!(t.bytes(B, 0, 20_000), after);
    assert_eq!(t.sent(A).len(), 2);
    t.tear_down();
}
