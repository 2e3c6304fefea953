//! The requester and the completer, packet by packet.

use remora_nic::queue::Status;
use remora_nic::wire::Operation;
use remora_sim::{A, B, Fate, Pair, Rule};

#[test]
fn a_write_a_read_and_a_send_arrive() {
    let mut t = Pair::standard();
    let bytes = t.fill(A, 0, 10_000);
    t.write(A, 0, 20_000, 10_000);
    t.run();
    // Expect: the bytes at B, one completion.
    assert_eq!(t.bytes(B, 20_000, 10_000), bytes);
    assert_eq!(t.sent(A).len(), 1);
    t.read(A, 20_000, 40_000, 10_000);
    t.receive(B, 60_000, 20_000);
    t.send(A, 0, 10_000);
    t.run();
    // Expect: both in order, the same bytes back and at B's receive element.
    assert!(t.sent(A).iter().all(|c| c.status == Status::Success && c.len == 10_000));
    assert_eq!(t.bytes(A, 40_000, 10_000), bytes);
    assert_eq!(t.bytes(B, 60_000, 10_000), bytes);
    assert_eq!(t.received(B)[0].len, 10_000);
    t.tear_down();
}

#[test]
fn a_lost_packet_is_sent_again() {
    let mut t = Pair::standard();
    let bytes = t.fill(A, 0, 10_000);
    t.rule(Rule::nth(3, Fate::Drop, |p| p.is(Operation::Write)));
    t.write(A, 0, 20_000, 10_000);
    t.run();
    assert_eq!(t.bytes(B, 20_000, 10_000), bytes);
    assert_eq!(t.sent(A)[0].status, Status::Success);
    t.tear_down();
}
