//! The limits of a chain: turns, rates, the longest WAIT, budgets (RedN §3.5).

use remora_nic::queue::{SendOp, Status};
use remora_nic::{ChainError, ChainLimits, Event, Rate};

use std::time::Duration;

use crate::rig::{DATA, MANAGED, PLAIN, Qp, Rig};

const X: u64 = DATA;

/// A queue that increments the word at `at` for ever, by itself.
fn endless(rig: &mut Rig, at: u64) -> Qp {
    let qp = rig.looped(MANAGED, 4);
    rig.add(qp, at, 1);
    rig.add(qp, qp.field(3, 16), 4);
    rig.post(qp, SendOp::NoOp, &[]);
    rig.enable(qp, qp, 4);
    qp
}

fn limit(rig: &mut Rig, qp: Qp, limits: ChainLimits) {
    rig.nic.set_chain_limits(rig.now, qp.qpn, limits).unwrap();
}

#[test]
fn an_endless_chain_takes_turns_with_others() {
    let mut rig = Rig::new();
    let loops: Vec<Qp> = (0..4).map(|i| endless(&mut rig, X + 8 * i)).collect();
    let plain = rig.looped(PLAIN, 64);
    loops.iter().for_each(|qp| rig.doorbell(*qp, 4));
    for _ in 0..64 {
        rig.write(plain, X, X + 64, 8);
    }
    let mut polls = 0;
    while rig.count(plain) < 64 {
        assert!(rig.poll());
        polls += 1;
    }
    // Each of the five queues runs eight elements a turn, and all together 256 a poll.
    assert!(polls <= 3, "{polls}");
    let rounds: Vec<u64> = (0..4).map(|i| rig.word(X + 8 * i)).collect();
    let (least, most) = (rounds.iter().min().unwrap(), rounds.iter().max().unwrap());
    assert!(*least > 0 && most - least <= 2, "{rounds:?}");
}

#[test]
fn a_rate_holds_a_queue_and_no_other() {
    let mut rig = Rig::new();
    let (slow, fast) = (endless(&mut rig, X), endless(&mut rig, X + 8));
    let rate = Some(Rate { per_second: 4_000_000, burst: 8 });
    limit(&mut rig, slow, ChainLimits { rate, ..ChainLimits::default() });
    rig.doorbell(slow, 4);
    rig.run();
    assert_eq!(rig.word(X), 2, "the burst: two rounds of four elements");
    for _ in 0..10 {
        rig.pass(1000);
    }
    assert_eq!(rig.word(X), 2 + 10, "four elements a microsecond");
    rig.doorbell(fast, 4);
    for _ in 0..100 {
        assert!(rig.poll());
    }
    assert_eq!(rig.word(X), 12);
    assert!(rig.word(X + 8) > 5000, "{}", rig.word(X + 8));
    limit(&mut rig, slow, ChainLimits::default());
    let before = rig.word(X);
    for _ in 0..10 {
        rig.poll();
    }
    assert!(rig.word(X) > before + 100, "without the limit it runs on");
    let refused = rig.nic.set_chain_limits(
        rig.now,
        slow.qpn,
        ChainLimits { rate: Some(Rate { per_second: 0, burst: 1 }), ..ChainLimits::default() },
    );
    assert_eq!(refused, Err(ChainError::Rate));
}

#[test]
fn a_budget_stops_a_runaway_chain_and_says_so() {
    let mut rig = Rig::new();
    let (runaway, innocent) = (endless(&mut rig, X), endless(&mut rig, X + 8));
    let budget = rig.nic.create_budget(1000).unwrap();
    limit(&mut rig, runaway, ChainLimits { budget: Some(budget), ..ChainLimits::default() });
    rig.doorbell(runaway, 4);
    rig.run();
    assert_eq!(rig.word(X), 250, "a thousand elements, four a round");
    assert_eq!(rig.nic.poll_event(), Some(Event::ChainStopped(runaway.qpn)));
    let errors = rig.errors(runaway);
    assert_eq!(errors[0].1, Status::LocalQpOperation);
    assert!(errors[1..].iter().all(|(_, status)| *status == Status::Flushed));
    assert_eq!(rig.counter("chain_budget"), 1);
    assert_eq!(rig.incidents()[0].counter(), "chain_budget");
    rig.doorbell(innocent, 4);
    assert!((0..20).all(|_| rig.poll()), "another chain goes on");
    assert!(rig.nic.destroy_budget(budget).is_err(), "it is in use");
    rig.nic.destroy_qp(runaway.qpn).unwrap();
    rig.nic.destroy_budget(budget).unwrap();
    assert_eq!(rig.nic.in_use().budgets, 0);
    let limits = ChainLimits { budget: Some(budget), ..ChainLimits::default() };
    let refused = rig.nic.set_chain_limits(rig.now, innocent.qpn, limits);
    assert_eq!(refused, Err(ChainError::UnknownBudget));
}

/// A post by the owner fills the budget of a chain, so that only chains that run by themselves are
/// stopped.
#[test]
fn what_comes_from_outside_fills_a_budget() {
    let mut rig = Rig::new();
    let qp = rig.looped(PLAIN, 16);
    let budget = rig.nic.create_budget(3).unwrap();
    limit(&mut rig, qp, ChainLimits { budget: Some(budget), ..ChainLimits::default() });
    for round in 1..=10 {
        for _ in 0..3 {
            rig.add(qp, X, 1);
        }
        rig.run();
        assert_eq!(rig.word(X), 3 * round);
    }
    for _ in 0..4 {
        rig.add(qp, X, 1);
    }
    rig.run();
    assert_eq!(rig.word(X), 33);
    assert_eq!(rig.errors(qp), [(33, Status::LocalQpOperation)]);
}

/// A doorbell that is refused is nothing that comes from outside.
#[test]
fn refused_doorbells_fill_no_budget() {
    let mut rig = Rig::new();
    let runaway = endless(&mut rig, X);
    let budget = rig.nic.create_budget(1000).unwrap();
    limit(&mut rig, runaway, ChainLimits { budget: Some(budget), ..ChainLimits::default() });
    rig.doorbell(runaway, 4);
    for _ in 0..1000 {
        rig.nic.handle_send_doorbell(runaway.qpn, 1 << 20).unwrap_err();
        rig.poll();
    }
    assert_eq!((rig.word(X), rig.counter("chain_budget")), (250, 1));
}

/// Two queues that wait for each other take no turns, and end when their WAITs take too long.
#[test]
fn a_deadlock_is_bounded() {
    let mut rig = Rig::new();
    let (a, b) = (rig.looped(PLAIN, 8), rig.looped(PLAIN, 8));
    rig.wait(a, b.cq, 1);
    rig.wait(b, a.cq, 1);
    rig.run();
    assert!(!rig.poll(), "a blocked WAIT takes no turns");
    rig.pass(1_000_000_000);
    assert_eq!((rig.errors(a), rig.errors(b)), (vec![], vec![]));
    let max_wait = Some(Duration::from_micros(5));
    limit(&mut rig, a, ChainLimits { max_wait, ..ChainLimits::default() });
    rig.run();
    assert_eq!(rig.nic.poll_timeout(), rig.now + Duration::from_micros(5));
    rig.pass(4999);
    assert_eq!(rig.errors(a), []);
    rig.pass(1);
    assert_eq!(rig.errors(a), [(0, Status::LocalQpOperation)]);
    assert_eq!((rig.counter("chain_wait_expired"), rig.count(b)), (1, 0));
    assert_eq!(rig.incidents()[0].counter(), "chain_wait_expired");
    assert_eq!(rig.errors(b), [], "a WAIT does not count an error");
}
