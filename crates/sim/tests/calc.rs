//! Chains over a network: calc verbs between cards that agreed on them, and WAIT and ENABLE in the
//! send queue of a connection.

use remora_nic::Calc;
use remora_nic::queue::{Data, Opcode, SendFlags, SendOp, Status, WorkKind};
use remora_nic::wire::{Dialect, Operation};
use remora_sim::{A, B, Fate, Pair, Rule};

const CALCS: [Calc; 6] = [Calc::Max, Calc::Min, Calc::And, Calc::Or, Calc::Xor, Calc::Add];

fn agreed() -> Pair {
    Pair::of_dialect(Dialect::KERNELS)
}

#[test]
fn calc_verbs_are_executed_once_at_the_peer() {
    for calc in CALCS {
        let mut t = agreed();
        // The answer is lost: the request is sent again, and the saved result answers it.
        t.rule(Rule::first(1, Fate::Drop, |seen| seen.is(Operation::AtomicAcknowledge)));
        let (word, operand) = (0xF0F0_1234_5678_9ABCu64, 0x0FF0_FFFF_0000_0001u64);
        t.set(B, 64, &word.to_ne_bytes());
        let op = SendOp::Calc { calc, at: t.remote(B, 64), operand };
        t.ask(A, op, 8, 8);
        t.run();
        let done = t.sent(A);
        assert_eq!((done.len(), done[0].status), (1, Status::Success), "{calc:?}");
        assert_eq!(done[0].kind, WorkKind::Send(Opcode::of(calc)));
        assert_eq!((t.word(A, 8), t.word(B, 64)), (word, calc.of(word, operand)), "{calc:?}");
        t.tear_down();
    }
}

#[test]
fn to_a_peer_that_did_not_agree_only_add_is_sent() {
    for calc in CALCS {
        let mut t = Pair::standard();
        t.set(B, 64, &5u64.to_ne_bytes());
        let op = SendOp::Calc { calc, at: t.remote(B, 64), operand: 3 };
        t.post(A, op, Data::Sges(&[]), SendFlags::SIGNALED);
        t.run();
        let (status, word) = match calc {
            Calc::Add => (Status::Success, 8),
            _ => (Status::LocalQpOperation, 5),
        };
        assert_eq!((t.sent(A)[0].status, t.word(B, 64)), (status, word), "{calc:?}");
    }
}

/// A WRITE behind a READ is sent before the READ's data has arrived; behind a WAIT for the READ,
/// it is sent with that data.
#[test]
fn a_wait_orders_a_write_behind_a_read() {
    for waits in [false, true] {
        let mut t = Pair::standard();
        t.set(B, 0, &77u64.to_ne_bytes());
        let old = t.word(A, 0);
        t.read(A, 0, 0, 8);
        if waits {
            let cq = t.ends[A].send_cq;
            t.post(A, SendOp::Wait { cq, count: 1 }, Data::Sges(&[]), SendFlags::SIGNALED);
        }
        t.write(A, 0, 64, 8);
        t.run();
        let ends: Vec<Status> = t.sent(A).iter().map(|c| c.status).collect();
        assert_eq!(ends, vec![Status::Success; if waits { 3 } else { 2 }]);
        assert_eq!(t.word(B, 64), if waits { 77 } else { old }, "waits: {waits}");
    }
}

/// In the send queue of a connection, a refused WAIT or ENABLE fails after all requests before it
/// have ended.
#[test]
fn a_refused_wait_or_enable_fails_in_its_turn() {
    let orders = [
        (SendOp::Enable { qpn: 1, index: 1 }, "chain_bad_enable"),
        (SendOp::Wait { cq: 1, count: 0 }, "chain_bad_wait"),
    ];
    for (order, counter) in orders {
        let mut t = Pair::standard();
        t.write(A, 0, 0, 50_000);
        t.post(A, order, Data::Sges(&[]), SendFlags::empty());
        t.write(A, 0, 0, 8);
        t.run();
        let ends: Vec<Status> = t.sent(A).iter().map(|c| c.status).collect();
        assert_eq!(ends, [Status::Success, Status::LocalQpOperation, Status::Flushed]);
        let incident = t.world.hosts[A].nic.poll_incident().unwrap();
        assert_eq!(incident.counter(), counter);
    }
}
