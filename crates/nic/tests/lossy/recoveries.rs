//! Which recoveries are undone, and which are not.

use remora_nic::wire::Operation;

use crate::rig::{A, B, DELAY, Rig, Seen};

fn is_write(seen: &Seen) -> bool {
    seen.from == A && seen.is(Operation::Write)
}

/// Round trips are known.
fn warm(rig: &mut Rig) {
    for _ in 0..20 {
        rig.write(A, 0, 0, 8);
        rig.run();
    }
}

/// A packet is lost and sent again, and the acknowledge of that is lost. The probe is a copy, also
/// if it leaves later than its timer has run out, and says nothing about the loss.
#[test]
fn a_probe_that_leaves_late_undoes_no_recovery() {
    let mut rig = Rig::new();
    warm(&mut rig);
    rig.lose(&[1], is_write);
    rig.write(A, 0, 0, 4 << 10);
    rig.until(|rig| rig.ends[A].nic.counters().tx_retransmitted == 1);
    let answers = rig.rule_while(|seen| seen.from == B);
    rig.pass(3 * DELAY / 2);
    answers.set(false);
    rig.time_out(A, 10);
    rig.run();
    let counters = rig.ends[A].nic.counters();
    assert_eq!((counters.found_lost, counters.probes), (1, 1));
    assert_eq!((counters.recoveries_undone, counters.tx_for_nothing), (0, 0));
}
