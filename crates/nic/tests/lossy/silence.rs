//! How long a peer may be silent.

use remora_nic::Config;
use remora_nic::qp::Congestion;

use crate::rig::{A, Fate, Rig, Settings};

/// When a peer that has gone is missed first, with this policy.
fn missed_after(config: fn(&mut Config)) -> u64 {
    let mut rig = Rig::with(&Settings { config, ..Settings::default() });
    rig.write(A, 0, 0, 8);
    rig.run();
    rig.rule(|_| Fate::Drop);
    let start = rig.now.0;
    rig.write(A, 0, 0, 8);
    rig.until(|rig| rig.ends[A].nic.counters().timeouts == 1);
    rig.now.0 - start
}

/// Probes do not put the time-out off, whatever the policy.
#[test]
fn a_paced_queue_pair_misses_its_peer_as_soon_as_others() {
    let window = missed_after(|config| config.congestion = Congestion::Aimd);
    let rate = missed_after(|config| config.congestion = Congestion::Dcqcn);
    assert_eq!(rate, window);
}
