//! Which recoveries are undone, and which are not.

use remora_nic::qp::Congestion;
use remora_nic::wire::Operation;

use crate::rig::{A, B, DELAY, Fate, Rig, Seen, Settings};

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

/// A late packet was taken for lost, and its copy comes later still. Meanwhile delays have shrunk
/// the window, too: that stays.
#[test]
fn a_decrease_for_delays_is_not_undone() {
    let config = |config: &mut remora_nic::Config| config.congestion = Congestion::Swift;
    let mut rig = Rig::with(&Settings { config, ..Settings::default() });
    warm(&mut rig);
    let mut count = 0;
    rig.rule(move |seen| {
        count += u32::from(is_write(seen));
        match count {
            _ if !is_write(seen) => Fate::Pass,
            // Later by more than a round trip than when it is sent again.
            1 => Fate::Delay(3300),
            2..=4 => Fate::Pass,
            // The copy.
            5 => Fate::Delay(500_000),
            _ => Fate::Delay(100_000),
        }
    });
    rig.write(A, 0, 0, 4 << 10);
    rig.pass(10 * DELAY);
    for _ in 0..3 {
        rig.write(A, 0, 0, 8);
        rig.pass(110_000);
    }
    rig.run();
    let counters = rig.ends[A].nic.counters();
    assert_eq!((counters.found_lost, counters.recoveries_undone), (1, 0));
    assert_eq!(rig.sent(A).len(), 24);
}
