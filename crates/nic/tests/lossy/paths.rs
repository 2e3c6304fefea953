//! Routes of several that carry nothing.

use std::ops::Range;

use remora_nic::qp::State;
use remora_nic::queue::Status::{RnrRetryExceeded, Success};

use crate::rig::{A, B, Fate, MILLISECOND, Rig, Seen, Settings};

/// The source ports of all paths but the first.
const OTHERS: Range<u16> = 0xC001..0xC040;

fn is_first(seen: &Seen) -> bool {
    !OTHERS.contains(&seen.src_port)
}

/// Two cards with eight paths, of which an end's first carries nothing.
fn rig(of: usize, rnr_retry: u8) -> Rig {
    let mut rig = Rig::with(&Settings {
        config: |config| config.paths = 8,
        rnr_retry,
        ..Settings::default()
    });
    let dead = move |seen: &Seen| seen.from == of && is_first(seen);
    rig.rule(move |seen| if dead(seen) { Fate::Drop } else { Fate::Pass });
    rig
}

/// Usual acknowledges take the first path. Where those are lost, a copy's takes another.
#[test]
fn acknowledges_find_a_route() {
    let mut rig = rig(B, 7);
    for _ in 0..20 {
        rig.write(A, 0, 0, 8);
        rig.run();
    }
    let sent = rig.sent(A);
    assert!(sent.len() == 20 && sent.iter().all(|entry| entry.1 == Success), "{sent:?}");
    assert_eq!(rig.state(A), State::Rts);
}

/// A refusal takes the path of the packet that is refused.
#[test]
fn refusals_find_a_route() {
    let mut rig = rig(B, 0);
    rig.send(A, 0, 8);
    rig.run();
    assert_eq!(rig.sent(A), [(0, RnrRetryExceeded)]);
}

/// What has payload finds no room for long, and the first path carries nothing: questions take the
/// others.
#[test]
fn questions_find_a_route() {
    let mut rig = rig(A, 7);
    let full = rig.rule_while(|seen| seen.from == A && seen.len > 500);
    rig.write(A, 0, 0, 1000);
    rig.pass(5000 * MILLISECOND);
    assert_eq!(rig.sent(A), []);
    full.set(false);
    rig.run();
    assert_eq!(rig.sent(A), [(0, Success)]);
}
