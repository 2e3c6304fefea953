//! Memory that goes while packets from it may have to be sent again.

use remora_nic::Config;
use remora_nic::qp::State;
use remora_nic::queue::Status::{LocalProtection, RemoteAccess, Success};
use remora_nic::queue::{RemoteAddress, SendOp};
use remora_nic::wire::Operation;

use crate::rig::{A, B, DELAY, MILLISECOND, Rig, Seen, Settings};

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

/// A reads B's memory, and again by a key that ends when both requests have arrived.
fn read_twice(rig: &mut Rig, first: u32, second: u32) {
    let (key, rkey) = (rig.ends[A].key, rig.region(B));
    rig.read(A, 1 << 18, first);
    let from = RemoteAddress { addr: 0, rkey };
    rig.post(A, SendOp::Read { from }, (1 << 19, key, second));
    rig.pass(DELAY);
    rig.forget(B, rkey);
}

/// An earlier answer that has not arrived is sent all the same, so that its READ is not blamed.
#[test]
fn memory_that_goes_ends_no_earlier_read() {
    // The later answer is lost, and the earlier one twice; or the later one waits for the window.
    for (lost, window, len) in [(&[1, 2, 3][..], 64, 8), (&[8][..], 4, 8 << 10)] {
        let config: fn(&mut Config) =
            if window == 4 { |config| config.window_packets = 4 } else { |_| {} };
        let mut rig = Rig::with(&Settings { config, ..Settings::default() });
        rig.put(B, 0, &vec![7; 8 << 10]);
        rig.lose(lost, is_answer);
        read_twice(&mut rig, len, 8);
        rig.run();
        assert_eq!(rig.sent(A), [(0, Success), (1, RemoteAccess)]);
        assert_eq!(rig.bytes(A, 1 << 18, len as usize), vec![7; len as usize]);
    }
}

/// The same in the middle of the later answer, half of which has left: a request of B's own would
/// contradict that half, and stays.
#[test]
fn memory_that_goes_in_the_middle_of_an_answer_ends_no_earlier_read() {
    let config: fn(&mut Config) = |config| config.window_packets = 4;
    let mut rig = Rig::with(&Settings { config, ..Settings::default() });
    rig.lose(&[1], is_answer);
    read_twice(&mut rig, 8, 16 << 10);
    rig.write(B, 0, 0, 64);
    rig.run();
    assert_eq!(rig.sent(A), [(0, Success), (1, RemoteAccess)]);
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
