//! Receive elements that messages take before their turn.

use remora_nic::qp::State;
use remora_nic::queue::Status::{LocalQpOperation, RemoteOperation};
use remora_nic::wire::Operation;

use crate::rig::{A, B, Fate, Rig};

/// The byte of a receive element that says how many entries it has.
const COUNT: u64 = 11;

/// An element that names more entries than it has room for ends the connection, whichever of its
/// messages comes first.
#[test]
fn an_element_that_is_none_is_refused_in_its_turn() {
    for late in [false, true] {
        let mut rig = Rig::new();
        for i in 0..3 {
            rig.receive(B, i * 64, 64);
        }
        rig.put(B, Rig::element(0) + COUNT, &[99]);
        let mut first = late;
        rig.rule(move |seen| {
            let is_first = seen.is(Operation::Send) && core::mem::take(&mut first);
            if is_first { Fate::Delay(500) } else { Fate::Pass }
        });
        rig.send(A, 0, 8);
        rig.send(A, 0, 8);
        rig.run();
        assert_eq!((rig.state(A), rig.state(B)), (State::Error, State::Error), "{late}");
        assert_eq!(rig.received(B)[0], (0, LocalQpOperation));
        assert_eq!(rig.sent(A)[0], (0, RemoteOperation));
        assert_eq!(rig.ends[B].nic.counters().elements_invalid, 1);
    }
}
