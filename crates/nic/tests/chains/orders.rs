//! The three orders of RedN §3.1, each by its visible effect, and recycling (RedN §3.4).

use remora_nic::queue::{Data, Opcode, SendFlags, SendOp};
use remora_nic::{Calc, Queue, StepEnd};

use crate::rig::{DATA, MANAGED, PLAIN, Qp, Rig};

const X: u64 = DATA;
const Y: u64 = DATA + 64;

/// Posts a NOOP that becomes a WRITE of X to Y when its op-code is changed.
fn post_disguised_write(rig: &mut Rig, qp: Qp) {
    rig.write(qp, X, Y, 8);
    let index = rig.nic.next_index(qp.qpn, Queue::Send).unwrap() - 1;
    let opcode = qp.field(index.into(), 0);
    rig.put(opcode, &(Opcode::NoOp as u16).to_le_bytes());
}

const NOOP: u64 = Opcode::NoOp as u64;
const WRITE: u64 = Opcode::Write as u64;

#[test]
fn in_wq_order_a_fetched_element_runs_as_it_was() {
    let mut rig = Rig::new();
    let qp = rig.looped(PLAIN, 8);
    rig.put_word(X, 7);
    rig.compare_swap(qp, qp.field(1, 0), NOOP, WRITE);
    post_disguised_write(&mut rig, qp);
    rig.run();
    assert_eq!(rig.word(qp.field(1, 0)), WRITE, "it was changed");
    assert_eq!((rig.word(Y), rig.count(qp)), (0, 2), "but had been fetched before");
}

#[test]
fn in_completion_order_data_is_seen_and_elements_may_be_old() {
    let mut rig = Rig::new();
    let qp = rig.looped(PLAIN, 8);
    rig.put_word(X, 7);
    rig.compare_swap(qp, qp.field(2, 0), NOOP, WRITE);
    rig.wait(qp, qp.cq, 1);
    post_disguised_write(&mut rig, qp);
    rig.run();
    assert_eq!((rig.word(Y), rig.count(qp)), (0, 3), "fetched with the WAIT");
    // Across queues: the data of the request that was waited for is in memory.
    let (first, second) = (rig.looped(PLAIN, 8), rig.looped(PLAIN, 8));
    rig.wait(second, first.cq, 1);
    rig.write(second, X + 8, Y, 8);
    rig.run();
    assert_eq!((rig.word(Y), rig.count(second)), (0, 0), "the WAIT holds its queue");
    rig.write(first, X, X + 8, 8);
    rig.run();
    assert_eq!((rig.word(Y), rig.count(second)), (7, 2));
}

#[test]
fn in_doorbell_order_a_changed_element_runs_as_it_is() {
    let mut rig = Rig::new();
    let (control, managed) = (rig.looped(PLAIN, 8), rig.looped(MANAGED, 8));
    rig.put_word(X, 7);
    post_disguised_write(&mut rig, managed);
    rig.run();
    assert_eq!(rig.count(managed), 0, "nothing runs before it is enabled");
    rig.compare_swap(control, managed.field(0, 0), NOOP, WRITE);
    rig.wait(control, control.cq, 1);
    rig.enable(control, managed, 1);
    rig.run();
    assert_eq!((rig.word(Y), rig.count(managed)), (7, 1));
}

/// In a managed queue, each element is fetched just before it runs.
#[test]
fn a_managed_queue_fetches_one_by_one() {
    let mut rig = Rig::new();
    let qp = rig.looped(MANAGED, 8);
    rig.put_word(X, 7);
    rig.compare_swap(qp, qp.field(1, 0), NOOP, WRITE);
    post_disguised_write(&mut rig, qp);
    rig.doorbell(qp, 2);
    rig.run();
    assert_eq!(rig.word(Y), 7);
}

/// `if (x == y)` of RedN Fig. 4: x is the id of a NOOP, y an operand of the compare-and-swap.
#[test]
fn an_if_by_compare_and_swap() {
    for (x, y, sent) in [(5, 5, 1), (5, 6, 0), (0xFFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF, 1)] {
        let mut rig = Rig::new();
        let (control, body) = (rig.looped(PLAIN, 8), rig.looped(MANAGED, 8));
        rig.put_word(X, 1);
        post_disguised_write(&mut rig, body);
        let word = body.field(0, 0);
        rig.put_word(word, NOOP | x << 16);
        rig.compare_swap(control, word, NOOP | y << 16, WRITE | y << 16);
        rig.enable(control, body, 1);
        rig.run();
        assert_eq!(rig.word(Y), sent, "{x:#x} == {y:#x}");
    }
}

/// A queue that enables itself beyond its end runs its slots again, as long as it raises its own
/// index and its WAIT's count (RedN §3.4).
#[test]
fn a_recycled_queue_must_raise_its_own_counts() {
    const ROUNDS: u64 = 1000;
    let mut rig = Rig::new();
    let qp = rig.looped(MANAGED, 4);
    // Element 0 counts a round, 1 raises the ENABLE's index, 2 is the ENABLE, 3 is a NOOP.
    rig.add(qp, X, 1);
    rig.add(qp, qp.field(2, 16), 4);
    // (Each round the ENABLE releases all four elements again.)
    rig.enable(qp, qp, 3);
    rig.post(qp, SendOp::NoOp, &[]);
    rig.doorbell(qp, 3);
    let mut polls = 0u64;
    while rig.word(X) < ROUNDS {
        assert!(rig.poll(), "it goes on by itself");
        polls += 1;
    }
    assert!(polls >= ROUNDS * 4 / 256, "each poll does a bounded amount of work");
    // A queue that does not raise its index runs one more round, and then stops.
    let mut rig = Rig::new();
    let qp = rig.looped(MANAGED, 2);
    rig.add(qp, X, 1);
    rig.enable(qp, qp, 4);
    rig.doorbell(qp, 2);
    rig.run();
    assert_eq!((rig.word(X), rig.count(qp)), (2, 4));
}

/// The host's processor may sleep: the recycled queue itself causes the completions that its WAIT
/// waits for, and raises the count like the index.
#[test]
fn a_recycled_wait_raises_its_count() {
    let mut rig = Rig::new();
    let qp = rig.looped(MANAGED, 8);
    let silent = SendFlags::empty();
    let add = |rig: &mut Rig, at, operand| {
        let op = SendOp::Calc { calc: Calc::Add, at: rig.remote(at), operand };
        rig.post_with(qp, op, Data::Sges(&[]), silent);
    };
    // Each round has one signaled element and a WAIT for it.
    rig.add(qp, X, 1);
    rig.post_with(qp, SendOp::Wait { cq: qp.cq, count: 1 }, Data::Sges(&[]), silent);
    add(&mut rig, qp.field(1, 16), 1);
    add(&mut rig, qp.field(4, 16), 8);
    rig.post_with(qp, SendOp::Enable { qpn: qp.qpn, index: 5 }, Data::Sges(&[]), silent);
    for _ in 0..3 {
        rig.post_with(qp, SendOp::NoOp, Data::Sges(&[]), silent);
    }
    rig.nic.trace_chains(64);
    rig.doorbell(qp, 5);
    for _ in 0..20 {
        assert!(rig.poll());
    }
    let rounds = rig.word(X);
    assert!(rounds > 100, "{rounds}");
    assert!(rig.errors(qp).is_empty());
    let steps: Vec<_> = std::iter::from_fn(|| rig.nic.poll_chain_step()).collect();
    assert_eq!(steps.len(), 64, "the last ones are kept");
    assert!(steps.iter().all(|step| step.end == StepEnd::Done && step.qpn == qp.qpn));
    assert!(steps.windows(2).all(|pair| pair[0].index + 1 == pair[1].index));
}

/// Indices count modulo 2^32, so that a queue may be recycled for ever.
#[test]
fn indices_wrap() {
    let mut rig = Rig::new();
    let qp = rig.looped(MANAGED, 2);
    rig.post(qp, SendOp::NoOp, &[]);
    rig.post(qp, SendOp::NoOp, &[]);
    let mut index = 0u32;
    // Counting to 2^32 takes too long for a test, which therefore only checks that indices far
    // ahead and behind are told apart.
    rig.doorbell(qp, 2);
    rig.run();
    for ahead in [3, 1 << 30, (1 << 31) - 1] {
        index = index.wrapping_add(ahead).wrapping_add(2);
        assert!(rig.nic.handle_send_doorbell(qp.qpn, index).is_err(), "{ahead} ahead");
        index = 0;
    }
    for behind in [0u32, 1, 1 << 30] {
        rig.nic.handle_send_doorbell(qp.qpn, 2u32.wrapping_sub(behind)).unwrap();
    }
    rig.run();
    assert_eq!(rig.count(qp), 2, "behind means done");
}
