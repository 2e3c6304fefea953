//! Incidents: each failed request is explained at both ends, under the name of a counter that
//! counts it.

use core::time::Duration;

use remora_nic::incident::{Cause, LossSign, MAX_INCIDENTS, Outcome, Touched};
use remora_nic::queue::{Data, Opcode, SendFlags, SendOp, Status};
use remora_nic::wire::{Nak, Operation, Transport};
use remora_nic::{Access, AccessError, Incident};
use remora_sim::endpoint::ConnectOptions;
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule};

/// Takes the incidents of a host, and checks that the counter that each names has counted.
fn incidents(t: &mut Pair, of: usize) -> Vec<Incident> {
    let nic = &mut t.world.hosts[of].nic;
    let all: Vec<Incident> = core::iter::from_fn(|| nic.poll_incident()).collect();
    for incident in &all {
        let named = nic.counters().iter().find(|(name, ..)| *name == incident.counter());
        let (name, value, _) = named.expect("a counter of this name");
        assert!(value > 0, "the counter {name} has not counted: {incident}");
    }
    all
}

fn the_one(t: &mut Pair, of: usize) -> Incident {
    let all = incidents(t, of);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

#[test]
fn a_refused_key_is_explained_at_both_ends() {
    let mut t = Pair::standard();
    let mut to = t.remote(B, 50);
    to.rkey ^= 1;
    let wr_id = t.ask(A, SendOp::Write { to, imm: None }, 0, 20);
    t.run();
    let at_b = the_one(&mut t, B);
    let memory = Touched { key: to.rkey, addr: to.addr, len: 20 };
    assert_eq!(at_b.outcome, Outcome::Refused(Nak::RemoteAccess));
    assert_eq!((at_b.cause, at_b.memory), (Cause::Access(AccessError::Key), Some(memory)));
    assert_eq!(at_b.op.map(|op| op.name), Some("RC RDMA WRITE Only"));
    assert_eq!(at_b.psn.map(|psn| psn.value()), Some(100));
    let at_a = the_one(&mut t, A);
    let (opcode, status) = (Some(Opcode::Write), Status::RemoteAccess);
    assert_eq!(at_a.outcome, Outcome::Failed { wr_id, opcode, status });
    assert_eq!((at_a.cause, at_a.memory), (Cause::Told(Nak::RemoteAccess), Some(memory)));
}

#[test]
fn each_check_of_the_responder_has_its_name() {
    type Case = (Access, ConnectOptions, u64, u32, Cause);
    let open = ConnectOptions::default();
    let closed = ConnectOptions { access: Access::REMOTE_READ, ..open };
    let cases: [Case; 3] = [
        (Access::all(), open, (1 << 20) - 10, 20, Cause::Access(AccessError::Bounds)),
        (Access::REMOTE_READ, open, 0, 20, Cause::Access(AccessError::Permission)),
        (Access::all(), closed, 0, 20, Cause::QpAccess),
    ];
    for (access, connect, at, len, cause) in cases {
        let mut t = Pair::new(&PairOptions { access, connect, ..PairOptions::default() });
        t.write(A, 0, at, len);
        t.run();
        assert_eq!(the_one(&mut t, B).cause, cause);
    }
}

#[test]
fn a_receive_that_is_too_short_is_explained() {
    let mut t = Pair::standard();
    let receive = t.receive(B, 0, 10);
    t.send(A, 0, 20);
    t.run();
    let cause = Cause::ReceiveTooShort { wr_id: receive, got: 20, room: 10 };
    assert_eq!(the_one(&mut t, B).cause, cause);
    assert_eq!(the_one(&mut t, A).cause, Cause::Told(Nak::InvalidRequest));
}

#[test]
fn exhausted_retries_say_how_many_and_how_long() {
    let mut t = Pair::standard();
    t.rule(Rule::all(Fate::Drop, |p| p.is(Operation::Write)));
    t.write(A, 0, 0, 20);
    t.run();
    let Cause::RetriesExhausted { sign, retries, elapsed } = the_one(&mut t, A).cause else {
        panic!("another cause")
    };
    // Timeout code 8 is 1.05 ms. From the first of seven retries on, two waits are up to half as
    // long again, one up to three times as long, and four two to four times.
    assert_eq!((sign, retries), (LossSign::Timeout, 7));
    assert!((12..22).contains(&(elapsed.as_micros() / 1048)), "{elapsed:?}");
    assert!(incidents(&mut t, B).is_empty());
}

#[test]
fn a_receiver_that_is_never_ready_is_told_of() {
    let connect = ConnectOptions { rnr_retry: 2, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    t.send(A, 0, 20);
    t.run();
    let Cause::RnrRetriesExhausted { retries: 2, elapsed } = the_one(&mut t, A).cause else {
        panic!("another cause")
    };
    assert!(elapsed > Duration::from_micros(40), "{elapsed:?}");
}

#[test]
fn a_local_key_is_named_before_anything_is_sent() {
    let mut t = Pair::standard();
    let mut sge = t.sge(A, 0, 10);
    sge.lkey ^= 1;
    let send = SendOp::Send { imm: None, to: None };
    t.post(A, send, Data::Sges(&[sge]), SendFlags::SIGNALED);
    t.run();
    let incident = the_one(&mut t, A);
    assert_eq!(incident.cause, Cause::Access(AccessError::Key));
    assert_eq!(incident.memory, Some(Touched { key: sge.lkey, addr: sge.addr, len: 10 }));
    assert_eq!((incident.op, incident.psn), (None, None));
}

#[test]
fn unreliable_messages_say_why_they_were_dropped() {
    let mut t = Pair::new(&PairOptions { transport: Transport::Uc, ..PairOptions::default() });
    let mut to = t.remote(B, 0);
    to.rkey ^= 1;
    t.ask(A, SendOp::Write { to, imm: None }, 0, 20);
    t.run();
    let incident = the_one(&mut t, B);
    assert_eq!(incident.outcome, Outcome::Dropped);
    assert_eq!(incident.cause, Cause::Access(AccessError::Key));
    let mut t = Pair::new(&PairOptions { transport: Transport::Ud, ..PairOptions::default() });
    t.send(A, 0, 2000);
    t.run();
    assert_eq!(the_one(&mut t, A).cause, Cause::TooLong { len: 2000, mtu: 1024 });
}

#[test]
fn what_works_leaves_no_incident_and_too_many_are_counted() {
    let mut t = Pair::standard();
    t.rule(Rule::nth(3, Fate::Drop, |p| p.is(Operation::Write)));
    t.write(A, 0, 0, 20_000);
    t.run();
    assert!(incidents(&mut t, A).is_empty() && incidents(&mut t, B).is_empty());
    let mut t = Pair::new(&PairOptions { transport: Transport::Uc, ..PairOptions::default() });
    let to = remora_nic::queue::RemoteAddress { rkey: 1, ..t.remote(B, 0) };
    for _ in 0..2 {
        for _ in 0..60 {
            t.ask(A, SendOp::Write { to, imm: None }, 0, 20);
        }
        t.run();
    }
    assert_eq!(incidents(&mut t, B).len(), MAX_INCIDENTS);
    assert_eq!(t.world.hosts[B].nic.counters().incidents_lost, 120 - MAX_INCIDENTS as u64);
}
