//! ATOMIC WRITE and FLUSH (InfiniBand specification, annex A19), and how repeated ones are
//! handled.

use remora_nic::incident::Cause;
use remora_nic::queue::{Data, FlushKind, Opcode, SendFlags, SendOp, Status, WorkKind};
use remora_nic::wire::{Dialect, Operation, Transport};
use remora_nic::{Access, AccessError};
use remora_sim::endpoint::ConnectOptions;
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule, statuses};

const GLOBAL: FlushKind = FlushKind { global: true, persistent: false, whole_region: false };
const PERSISTENT: FlushKind = FlushKind { global: false, persistent: true, whole_region: true };

fn atomic_write(t: &mut Pair, at: u64, value: u64) {
    let to = t.remote(B, at);
    let bytes = value.to_ne_bytes();
    t.post(A, SendOp::AtomicWrite { to }, Data::Inline(&bytes), SendFlags::SIGNALED);
}

fn flush(t: &mut Pair, at: u64, len: u32, kind: FlushKind) {
    let at = t.remote(B, at);
    t.post(A, SendOp::Flush { at, len, kind }, Data::Sges(&[]), SendFlags::SIGNALED);
}

#[test]
fn an_atomic_write_is_answered_like_an_empty_read() {
    let mut t = Pair::standard();
    atomic_write(&mut t, 64, 0x1122_3344_5566_7788);
    t.set(A, 0, &7u64.to_ne_bytes());
    let to = t.remote(B, 72);
    t.ask(A, SendOp::AtomicWrite { to }, 0, 8);
    t.run();
    assert_eq!((t.word(B, 64), t.word(B, 72)), (0x1122_3344_5566_7788, 7));
    let sent = t.sent(A);
    assert_eq!(statuses(&sent), [Status::Success; 2]);
    assert_eq!((sent[0].kind, sent[0].len), (WorkKind::Send(Opcode::AtomicWrite), 8));
    let answers = t.seen(|p| p.is(Operation::ReadResponse));
    assert_eq!(
        answers.iter().map(|p| (p.bth.opcode, p.payload)).collect::<Vec<_>>(),
        [(0x10, 0); 2]
    );
    t.tear_down();
}

#[test]
fn requests_are_executed_once_when_answers_are_lost() {
    let mut t = Pair::standard();
    t.rule(Rule::first(2, Fate::Drop, |p| p.is(Operation::ReadResponse)));
    atomic_write(&mut t, 0, 1);
    t.fetch_add(A, 0, 10, 100);
    flush(&mut t, 0, 8, GLOBAL);
    t.run();
    // Expect: the sum is there; a second execution of the ATOMIC WRITE would have overwritten it.
    assert_eq!(t.word(B, 0), 11);
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 3]);
    assert!(t.world.hosts[B].nic.counters().rx_duplicates > 0);
    t.tear_down();
}

#[test]
fn a_flush_names_its_range_and_is_executed_in_order() {
    let mut t = Pair::standard();
    t.write(A, 0, 0, 5000);
    flush(&mut t, 0, 5000, GLOBAL);
    flush(&mut t, 0, 0, PERSISTENT);
    t.run();
    let sent = t.sent(A);
    assert_eq!(statuses(&sent), [Status::Success; 3]);
    assert_eq!((sent[1].kind, sent[1].len), (WorkKind::Send(Opcode::Flush), 5000));
    let asked = t.seen(|p| p.is(Operation::Flush));
    let said: Vec<_> = asked
        .iter()
        .map(|p| (p.ext.feth.placement, p.ext.feth.selectivity, p.ext.reth.len))
        .collect();
    assert_eq!(said, [(1, 0, 5000), (2, 1, 0)]);
    t.tear_down();
}

#[test]
fn requests_without_permission_are_refused() {
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let none = Cause::Access(AccessError::Permission);
    for (access, kind, cause) in [
        (writes, GLOBAL, Some(none)),
        (writes | Access::FLUSH_GLOBAL, GLOBAL, None),
        (writes | Access::FLUSH_GLOBAL, PERSISTENT, Some(none)),
        (writes | Access::FLUSH_PERSISTENT, PERSISTENT, None),
        (Access::all(), FlushKind::default(), Some(Cause::Sequence)),
    ] {
        let mut t = Pair::new(&PairOptions { access, ..PairOptions::default() });
        flush(&mut t, 0, 8, kind);
        t.run();
        let got = t.world.hosts[B].nic.poll_incident().map(|incident| incident.cause);
        assert_eq!(got, cause, "{access:?} {kind:?}");
        assert_eq!(t.sent(A)[0].status == Status::Success, cause.is_none());
    }
    let mut t = Pair::standard();
    atomic_write(&mut t, 4, 1);
    t.run();
    assert_eq!(t.world.hosts[B].nic.poll_incident().unwrap().cause, Cause::Alignment);
    assert_eq!(statuses(&t.sent(A)), [Status::RemoteInvalidRequest]);
}

#[test]
fn other_services_and_the_other_dialect_have_no_flush() {
    let strom = ConnectOptions { dialect: Dialect::KERNELS, ..ConnectOptions::default() };
    for (transport, connect) in [(Transport::Uc, ConnectOptions::default()), (Transport::Rc, strom)]
    {
        let mut t = Pair::new(&PairOptions { transport, connect, ..PairOptions::default() });
        flush(&mut t, 0, 8, GLOBAL);
        t.run();
        assert_eq!(statuses(&t.sent(A)), [Status::LocalQpOperation]);
        assert!(t.seen(|_| true).is_empty());
        t.tear_down();
    }
}
