//! READs whose answers cannot be placed.

use remora_nic::queue::Status::{Flushed, LocalProtection, Success};
use remora_nic::wire::Operation;

use crate::rig::{A, DELAY, Rig};

/// A READ that fails ends those behind it unanswered, though the peer has acknowledged all.
#[test]
fn a_read_behind_one_that_fails_is_flushed() {
    let mut rig = Rig::new();
    let gone = rig.region(A);
    rig.read(A, 0, 64 << 10);
    rig.read_by(A, 1 << 17, 8, gone);
    rig.read(A, 1 << 18, 8);
    // Requests have arrived, and no answer has.
    rig.pass(DELAY);
    rig.forget(A, gone);
    rig.run();
    assert_eq!(rig.sent(A), [(0, Success), (1, LocalProtection), (2, Flushed)]);
}

/// A READ whose answer cannot be placed, and has come before that of an earlier one, is reported
/// behind that one.
#[test]
fn a_read_that_fails_before_its_turn_is_reported_in_its_turn() {
    let mut rig = Rig::new();
    let gone = rig.region(A);
    rig.lose(&[1], |seen| seen.is(Operation::ReadResponse));
    rig.read(A, 0, 8);
    rig.read_by(A, 1 << 17, 8, gone);
    // Requests have arrived, and no answer has.
    rig.pass(DELAY);
    rig.forget(A, gone);
    rig.run();
    assert_eq!(rig.sent(A), [(0, Success), (1, LocalProtection)]);
}
