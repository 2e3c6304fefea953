//! Answers, requests and kernels' messages that wait for each other.

use remora_nic::Config;
use remora_nic::kernel::{HEADER_LEN, Header, Notify, STATUS_WORD_LEN};
use remora_nic::qp::{QpAttr, State};
use remora_nic::queue::RemoteAddress;
use remora_nic::queue::Status::{RnrRetryExceeded, Success};
use remora_nic::wire::{Aeth, Dialect, Extensions, Sack};

use crate::rig::{A, B, DELAY, FIRST, MILLISECOND, Rig, Settings};

/// A peer reads while it is not ready for a SEND, for as long as it likes.
#[test]
fn a_peer_that_is_not_ready_for_a_send_goes_on_reading() {
    let mut rig = Rig::with(&Settings { reads: 1, ..Settings::default() });
    rig.send(B, 0, 64);
    rig.pass(MILLISECOND);
    for i in 0..10 {
        rig.read(A, i * 1024, 64);
    }
    rig.pass(100 * MILLISECOND);
    assert_eq!(rig.sent(A).len(), 10, "its READs come to nothing");
    rig.receive(A, 1 << 17, 64);
    rig.run();
    assert_eq!(rig.sent(B), [(0, Success)]);
}

/// A queue pair that takes no more READs answers those that it has taken.
#[test]
fn what_is_owed_is_answered_when_no_more_is_taken() {
    let config: fn(&mut Config) = |config| config.window_packets = 4;
    let mut rig = Rig::with(&Settings { config, ..Settings::default() });
    rig.read(A, 1 << 18, 16 << 10);
    rig.read(A, 1 << 19, 8);
    // Requests have arrived, and half of an answer has left.
    rig.pass(DELAY);
    rig.modify(B, &QpAttr { state: Some(State::Sqd), ..QpAttr::default() });
    rig.modify(B, &QpAttr { max_dest_rd_atomic: Some(0), ..QpAttr::default() });
    rig.run();
    assert_eq!(rig.sent(A), [(0, Success), (1, Success)]);
}

/// A peer acknowledges an answer behind a SEND, and takes that back: it gets no other.
#[test]
fn an_answer_that_has_arrived_cannot_be_taken_back() {
    let mut rig = Rig::new();
    rig.send(B, 0, 64);
    rig.pass(DELAY);
    rig.read(A, 0, 64);
    rig.pass(MILLISECOND);
    assert_eq!(rig.sent(A), [(0, Success)]);
    let answers = rig.ends[B].nic.counters().tx_bytes;
    let (aeth, sack) = (Aeth { syndrome: 31, msn: FIRST + 1 }, Some(Sack::default()));
    rig.forge(B, (0xF1, FIRST), &Extensions { aeth, sack, ..Extensions::default() });
    rig.pass(MILLISECOND);
    assert_eq!(rig.sent(B), [(0, Success)]);
    assert_eq!(rig.ends[B].nic.counters().tx_bytes, answers);
}

/// A peer that always has more to READ leaves turns to kernels' messages.
#[test]
fn a_peer_that_reads_on_leaves_turns_to_kernels() {
    const WORD: u64 = 1 << 20;
    let dialect = Dialect::LOSSY | Dialect::KERNELS;
    let mut rig = Rig::with(&Settings { dialect, ..Settings::default() });
    for _ in 0..16 {
        rig.read(A, 0, 64 << 10);
    }
    rig.pass(5 * DELAY);
    rig.sent(A);
    let to = RemoteAddress { addr: WORD, rkey: rig.ends[A].key };
    let header =
        Header { notify: Notify::Word(to), local: false, params_len: 0, to, max_len: 0, cookie: 7 };
    assert_eq!(header.to_bytes().len(), HEADER_LEN);
    rig.call(B, &header.to_bytes());
    let mut ended = 0;
    rig.until(|rig| {
        for _ in rig.sent(A) {
            rig.read(A, 0, 64 << 10);
            ended += 1;
        }
        assert!(ended < 8, "READs only");
        rig.bytes(A, WORD, STATUS_WORD_LEN) != [0; STATUS_WORD_LEN]
    });
}

/// A queue pair that cannot send yet is not ready for what it would have to answer.
#[test]
fn a_read_waits_for_a_peer_that_cannot_send_yet() {
    let receives = Settings { b_goes_to: State::Rtr, ..Settings::default() };
    let mut rig = Rig::with(&receives);
    rig.read(A, 0, 64);
    rig.pass(10 * MILLISECOND);
    assert!(rig.ends[B].nic.counters().tx_rnr_naks > 1);
    rig.ready(B, &receives);
    rig.run();
    assert_eq!(rig.sent(A), [(0, Success)]);
    let mut rig = Rig::with(&Settings { rnr_retry: 2, ..receives });
    rig.read(A, 0, 64);
    rig.run();
    assert_eq!(rig.sent(A), [(0, RnrRetryExceeded)]);
}
