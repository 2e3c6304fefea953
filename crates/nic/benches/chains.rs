//! The time that chains take in the card: verbs of loop-back queue pairs, and RedN's constructs.
//!
//! `cargo bench -p remora-nic --bench chains`. Nothing leaves the card, and no host posts again:
//! the time is that of fetching, checking, carrying out and ordering elements.

#[path = "../tests/support/ram.rs"]
mod ram;
#[path = "../tests/chains/rig.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod rig;

use divan::Bencher;
use divan::counter::ItemsCount;
use remora_nic::Calc;
use remora_nic::queue::{Data, Opcode, SendFlags, SendOp};

use rig::{DATA, MANAGED, PLAIN, Qp, Rig};

fn main() {
    divan::main();
}

const X: u64 = DATA;
const Y: u64 = DATA + 4096;
const SILENT: SendFlags = SendFlags::empty();
/// How many elements, or constructs, one iteration runs.
const BATCH: u64 = 64;

/// A plain queue of `BATCH` elements, with a doorbell for each iteration.
fn verb(bencher: Bencher<'_, '_>, post: impl Fn(&mut Rig, Qp)) {
    let mut rig = Rig::new();
    let qp = rig.looped(PLAIN, BATCH as u32);
    (0..BATCH).for_each(|_| post(&mut rig, qp));
    rig.run();
    let mut index = BATCH as u32;
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        index = index.wrapping_add(BATCH as u32);
        rig.doorbell(qp, index);
        rig.run();
    });
    assert!(rig.errors(qp).is_empty());
}

#[divan::bench]
fn noop(bencher: Bencher<'_, '_>) {
    verb(bencher, |rig, qp| rig.post(qp, SendOp::NoOp, &[]));
}

/// WRITEs by length in bytes.
#[divan::bench(args = [8, 64, 4096])]
fn write(bencher: Bencher<'_, '_>, len: u32) {
    verb(bencher, |rig, qp| rig.write(qp, X, Y, len));
}

#[divan::bench]
fn read_8(bencher: Bencher<'_, '_>) {
    verb(bencher, |rig, qp| {
        let (from, to) = (rig.remote(X), rig.sge(Y, 8));
        rig.post(qp, SendOp::Read { from }, &[to]);
    });
}

#[divan::bench]
fn compare_swap(bencher: Bencher<'_, '_>) {
    verb(bencher, |rig, qp| rig.compare_swap(qp, X, 0, 0));
}

#[divan::bench]
fn add(bencher: Bencher<'_, '_>) {
    verb(bencher, |rig, qp| rig.add(qp, X, 1));
}

#[divan::bench]
fn max(bencher: Bencher<'_, '_>) {
    verb(bencher, |rig, qp| {
        let at = rig.remote(X);
        rig.post(qp, SendOp::Calc { calc: Calc::Max, at, operand: 7 }, &[]);
    });
}

/// `if` (RedN §3.3): one copy, one compare-and-swap, three WAITs and ENABLEs, and the conditional
/// element, in a managed queue. The host only writes the rising counts.
#[divan::bench]
fn if_construct(bencher: Bencher<'_, '_>) {
    const DEPTH: u64 = 512;
    let mut rig = Rig::new();
    let (control, body) = (rig.looped(PLAIN, DEPTH as u32), rig.looped(MANAGED, BATCH as u32));
    let (noop, write) = (Opcode::NoOp as u64 | 5 << 16, Opcode::Write as u64 | 5 << 16);
    rig.put_word(X, noop);
    (0..BATCH).for_each(|_| rig.write(body, X, Y, 8));
    // The five elements of each construct, as the builder makes them, in a ring that does not run.
    let model = rig.fresh(MANAGED, DEPTH as u32);
    for i in 0..BATCH {
        let word = body.field(i, 0);
        let op = SendOp::Write { to: rig.remote(word), imm: None };
        let from = rig.sge(X, 8);
        rig.post_with(model, op, Data::Sges(&[from]), SILENT);
        rig.compare_swap(model, word, noop, write);
        order(&mut rig, model, SendOp::Wait { cq: control.cq, count: 0 });
        order(&mut rig, model, SendOp::Enable { qpn: body.qpn, index: 0 });
        order(&mut rig, model, SendOp::Wait { cq: body.cq, count: 0 });
    }
    let (mut posted, mut count) = (0, 0u64);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for i in 0..BATCH {
            count += 1;
            for k in 0..5 {
                let (from, to) = (model.field(5 * i + k, 0), control.field(posted, 0) as usize);
                rig.ram.0.copy_within(from as usize..from as usize + 64, to);
                if k >= 2 {
                    rig.ram.0[to + 16..to + 24].copy_from_slice(&count.to_le_bytes());
                }
                posted += 1;
            }
        }
        rig.doorbell(control, posted as u32);
        rig.run();
        assert_eq!(rig.count(body), count);
    });
    assert_eq!(rig.word(Y), noop, "the conditional element has run");
}

fn order(rig: &mut Rig, qp: Qp, op: SendOp) {
    rig.post_with(qp, op, Data::Sges(&[]), SILENT);
}

/// A recycled `while` (RedN §3.4) that runs for ever by itself. A round has three copies, two of
/// which spread a count that an ADD has raised, three atomics, and four WAITs and ENABLEs.
#[divan::bench]
fn while_recycled(bencher: Bencher<'_, '_>) {
    let mut rig = Rig::new();
    let (control, body) = (rig.looped(MANAGED, 16), rig.looped(MANAGED, 2));
    let word = body.field(0, 0);
    rig.put_word(X, Opcode::NoOp as u64 | 5 << 16);
    let (wait, enable, wait_body, again) = (2, 3, 4, 9);
    let copy = |rig: &mut Rig, from, to| {
        let (to, from) = (rig.remote(to), rig.sge(from, 8));
        rig.post_with(control, SendOp::Write { to, imm: None }, Data::Sges(&[from]), SILENT);
    };
    let add = |rig: &mut Rig, slot, operand| {
        let at = rig.remote(control.field(slot, 16));
        order(rig, control, SendOp::Calc { calc: Calc::Add, at, operand });
    };
    // The operand is copied to its place, and compared.
    copy(&mut rig, X, word);
    rig.compare_swap(control, word, Opcode::NoOp as u64 | 6 << 16, Opcode::Write as u64);
    order(&mut rig, control, SendOp::Wait { cq: control.cq, count: 1 });
    order(&mut rig, control, SendOp::Enable { qpn: body.qpn, index: 1 });
    order(&mut rig, control, SendOp::Wait { cq: body.cq, count: 1 });
    // The loop raises its own counts.
    add(&mut rig, wait, 1);
    copy(&mut rig, control.field(wait, 16), control.field(enable, 16));
    copy(&mut rig, control.field(wait, 16), control.field(wait_body, 16));
    add(&mut rig, again, 16);
    order(&mut rig, control, SendOp::Enable { qpn: control.qpn, index: 10 });
    (10..16).for_each(|_| order(&mut rig, control, SendOp::NoOp));
    (0..2).for_each(|_| rig.write(body, X, Y, 8));
    rig.doorbell(control, 10);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        let end = rig.count(body) + BATCH;
        while rig.count(body) < end {
            assert!(rig.poll());
        }
    });
    assert!(rig.errors(control).is_empty() && rig.errors(body).is_empty());
}
