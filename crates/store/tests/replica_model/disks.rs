//! Disks that hang: they keep nothing, and refuse nothing either.

use super::*;

/// A node whose disk hangs lets others propose themselves first.
const OPTIONS: Options = Options { waits_for_disk: true, patience_ns: 1, ..super::OPTIONS };

fn on_disks() -> State {
    State::new(Group { options: OPTIONS, ..GROUP })
}

impl State {
    fn hang(&mut self, name: NodeId, hangs: bool) {
        self.node(name).unwrap().disk_hangs = hangs;
    }

    /// So many units of time pass for all nodes, and what happens by itself happens.
    fn pass(&mut self, time_ns: u64) {
        for _ in 0..time_ns {
            self.now_ns += 1;
            let (now_ns, names) = (self.now_ns, self.nodes.keys().copied().collect::<Vec<_>>());
            for name in names {
                self.with(name, |node| node.replica.handle_time(now_ns));
            }
            self.settle();
        }
    }

    fn is_silent(&self, name: NodeId) -> bool {
        self.nodes[&name].replica.is_disk_silent()
    }

    fn write_and_settle(&mut self, name: NodeId) {
        self.write(name);
        self.settle();
    }
}

/// The others have what it has ordered, so one of them takes over; it follows, and has all of it
/// when its disk answers again.
#[test]
fn a_primary_whose_disk_hangs_gives_its_lease_up() {
    let mut state = on_disks();
    state.write_and_settle(A);
    state.hang(A, true);
    state.pass(4 * LEASE_NS);
    assert!(!state.is_silent(A), "nothing waits for it");
    state.write_and_settle(A);
    assert_eq!(state.acknowledged.len(), 2, "two others hold it");
    state.pass(OPTIONS.disk_patience_ns - 1);
    assert_eq!(state.serving(), A, "others are as slow and get on");
    assert!(!state.is_silent(A));
    state.pass(1);
    assert!(state.is_silent(A));
    assert!(!state.may_answer(&state.nodes[&A]));
    state.pass(2 * LEASE_NS);
    let next = state.serving();
    assert_ne!(next, A);
    state.write_and_settle(next);
    assert_eq!(state.acknowledged.len(), 3);
    state.hang(A, false);
    state.pass(1);
    assert!(!state.is_silent(A));
    state.assert_equal_stores();
}

/// That is what this patience does: without it, such a primary keeps its lease.
#[test]
fn a_primary_that_is_patient_for_ever_stays() {
    let options = Options { disk_patience_ns: u64::MAX, ..OPTIONS };
    let mut state = State::new(Group { options, ..GROUP });
    state.hang(A, true);
    state.write_and_settle(A);
    state.pass(10 * OPTIONS.disk_patience_ns);
    assert_eq!((state.serving(), state.acknowledged.len()), (A, 1));
}

#[test]
fn a_backup_whose_disk_hangs_holds_nobody_up() {
    let mut state = on_disks();
    state.hang(B, true);
    for _ in 0..20 {
        state.write_and_settle(A);
        state.pass(1);
    }
    assert_eq!(state.acknowledged.len(), 20);
    assert!(state.is_silent(B) && !state.is_silent(A));
    assert_eq!(state.serving(), A);
}

/// Nobody else has anything either, so another primary would be no better.
#[test]
fn a_primary_stays_where_the_others_disks_hang_too() {
    let mut state = on_disks();
    [A, B].into_iter().for_each(|name| state.hang(name, true));
    state.write_and_settle(A);
    state.pass(2 * OPTIONS.disk_patience_ns);
    assert!(state.is_silent(A) && state.acknowledged.is_empty());
    assert_eq!(state.serving(), A);
    state.hang(B, false);
    state.pass(1);
    assert_eq!(state.acknowledged.len(), 1);
    state.pass(2 * LEASE_NS);
    assert_ne!(state.serving(), A, "now there are others");
}

/// Its disk may have kept all of it meanwhile, of which it has not heard.
#[test]
fn a_node_that_stood_still_does_not_blame_its_disk() {
    let mut state = on_disks();
    state.hang(A, true);
    state.write_and_settle(A);
    state.pass(1);
    let late = state.now_ns + 10 * OPTIONS.disk_patience_ns;
    state.with(A, |node| {
        node.replica.handle_time(late);
        assert!(!node.replica.is_disk_silent());
    });
}
