//! Memory that goes while packets from it may have to be sent again.

use remora_nic::qp::State;
use remora_nic::queue::Status::{LocalProtection, RemoteAccess, Success};
use remora_nic::queue::{RemoteAddress, SendOp};
use remora_nic::wire::Operation;

use crate::rig::{A, B, DELAY, MILLISECOND, Rig, Seen};

fn is_answer(seen: &Seen) -> bool {
    seen.is(Operation::ReadResponse)
}

/// An answer has arrived and its acknowledge is lost. The peer, which has what it asked for, ends
/// the key: the connection goes on.
#[test]
fn memory_may_go_when_the_peer_has_read_it() {
    let mut rig = Rig::new();
    rig.lose(&[1], |seen| seen.from == A && seen.is(Operation::Acknowledge));
    rig.read(A, 0, 8);
    rig.until(|rig| rig.sent(A).len() == 1);
    rig.forget(B, rig.ends[B].key);
    rig.run();
    assert_eq!((rig.state(A), rig.state(B)), (State::Rts, State::Rts));
}

/// The same, where the answer is lost: it cannot be sent again, and the peer is told.
#[test]
fn memory_that_goes_before_the_peer_has_read_it_ends_the_connection() {
    let mut rig = Rig::new();
    rig.lose(&[1], is_answer);
    rig.read(A, 0, 8);
    // Requests have arrived, and no answer has.
    rig.pass(DELAY);
    rig.forget(B, rig.ends[B].key);
    rig.run();
    let statuses: Vec<_> = rig.sent(A).iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [RemoteAccess]);
}

/// A lost WRITE that cannot be sent again is an error once. It waits for its turn to be reported,
/// and what is lost behind it is sent again meanwhile.
#[test]
fn a_lost_packet_whose_memory_has_gone_holds_nothing_up() {
    let mut rig = Rig::new();
    let gone = rig.region(A);
    let answers = rig.rule_while(is_answer);
    rig.lose(&[1, 2], |seen| seen.is(Operation::Write));
    rig.read(A, 1 << 18, 8);
    let to = RemoteAddress { addr: 512, rkey: rig.ends[B].key };
    rig.post(A, SendOp::Write { to, imm: None }, (0, gone, 8));
    rig.write(A, 0, 1024, 8);
    rig.write(A, 0, 2048, 8);
    rig.pass(DELAY / 2);
    rig.forget(A, gone);
    rig.pass(MILLISECOND / 2);
    assert_eq!(rig.ends[A].nic.counters().elements_protection, 1);
    assert!(rig.ends[A].nic.counters().tx_retransmitted > 0, "the one behind it is held up");
    answers.set(false);
    rig.run();
    assert_eq!(rig.sent(A)[..2], [(0, Success), (1, LocalProtection)]);
    assert_eq!(rig.ends[A].nic.counters().elements_protection, 1);
}
