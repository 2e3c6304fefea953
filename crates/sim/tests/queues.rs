//! Queues: notification, overflow, shared receive queues, draining, flushing; and page tables.

use core::time::Duration;

use remora_nic::Event;
use remora_nic::qp::{QpAttr, State};
use remora_nic::queue::{
    Completion, CompletionFlags, Data, PollCqError, RecvRequest, SendFlags, SendOp, Status,
};
use remora_nic::wire::{Operation, Transport};
use remora_sim::endpoint::{ConnectOptions, QueueOptions};
use remora_sim::memory::Layout;
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule, statuses};

#[test]
fn an_armed_queue_notifies_once() {
    let mut t = Pair::standard();
    let cq = t.ends[B].recv_cq;
    t.world.hosts[B].nic.req_notify_cq(cq, false).unwrap();
    for _ in 0..3 {
        t.receive(B, 0, 10);
        t.send(A, 0, 10);
    }
    t.run();
    // Expect: one notification for three entries.
    let told = t.events(B).iter().filter(|e| **e == Event::CompletionQueueNotify(cq)).count();
    assert_eq!((told, t.received(B).len()), (1, 3));
    t.tear_down();
}

#[test]
fn a_queue_armed_for_solicited_entries_waits_for_one() {
    let mut t = Pair::standard();
    let cq = t.ends[B].recv_cq;
    t.world.hosts[B].nic.req_notify_cq(cq, true).unwrap();
    t.receive(B, 0, 10);
    t.receive(B, 0, 10);
    t.send(A, 0, 10);
    t.run();
    // Expect: no notification for the unsolicited message.
    assert!(!t.events(B).contains(&Event::CompletionQueueNotify(cq)));
    let (sge, send) = (t.sge(A, 0, 10), SendOp::Send { imm: None, to: None });
    t.post(A, send, Data::Sges(&[sge]), SendFlags::SOLICITED);
    t.run();
    // Expect: a notification, and the solicited flag in the entry.
    assert!(t.events(B).contains(&Event::CompletionQueueNotify(cq)));
    assert!(t.received(B)[1].flags.contains(CompletionFlags::SOLICITED));
    t.tear_down();
}

#[test]
fn an_overflow_causes_one_event_and_an_error() {
    let queues = QueueOptions { completions: 2, ..QueueOptions::default() };
    let mut t = Pair::new(&PairOptions { queues, ..PairOptions::default() });
    for _ in 0..4 {
        t.write(A, 0, 0, 10);
    }
    t.run();
    // Expect: an event; and the entries that fit, followed by an error.
    let cq = t.ends[A].send_cq;
    let told = t.events(A).iter().filter(|e| **e == Event::CompletionQueueError(cq)).count();
    assert_eq!(told, 1);
    let nic = &mut t.world.hosts[A].nic;
    let mut out = [Completion::default(); 8];
    assert_eq!(nic.poll_cq(cq, &mut out), Ok(2));
    assert_eq!(nic.poll_cq(cq, &mut out), Err(PollCqError::Overrun));
    assert_eq!(nic.counters().cq_overflows, 2);
    t.tear_down();
}

#[test]
fn a_shared_queue_below_its_limit_causes_an_event() {
    let mut t = Pair::new(&PairOptions { srq: true, ..PairOptions::default() });
    let srq = t.ends[B].srq.unwrap();
    t.world.hosts[B].nic.arm_srq(srq, 2).unwrap();
    for i in 0..4 {
        t.receive(B, i * 1000, 1000);
    }
    for left in [3, 2, 1, 0] {
        t.send(A, 0, 10);
        t.run();
        // Expect: one event, when fewer than two elements are left.
        let told = t.events(B).contains(&Event::SrqLimitReached(srq));
        assert_eq!(told, left == 1, "{left} left");
    }
    assert_eq!(t.received(B).len(), 4);
    t.tear_down();
}

#[test]
fn a_queue_pair_in_error_stops_using_its_shared_queue_and_causes_an_event() {
    let mut t = Pair::new(&PairOptions { srq: true, ..PairOptions::default() });
    t.receive(B, 0, 1000);
    let end = t.ends[B];
    end.go_to(&mut t.world, State::Error);
    t.run();
    // Expect: the event occurs once, and the shared queue's element is not flushed.
    let told = t.events(B).iter().filter(|e| **e == Event::LastElementReached(end.qpn)).count();
    assert_eq!(told, 1);
    assert_eq!(t.received(B), []);
    t.tear_down();
}

#[test]
fn a_send_queue_drains() {
    let mut t = Pair::standard();
    let end = t.ends[A];
    for _ in 0..3 {
        t.write(A, 0, 0, 50_000);
    }
    t.world.run(Duration::from_nanos(300));
    end.go_to(&mut t.world, State::Sqd);
    t.write(A, 0, 0, 10);
    t.run();
    // Expect: the request under way ends, the event occurs, and the new request waits.
    assert!(t.events(A).contains(&Event::SendQueueDrained(end.qpn)));
    assert_eq!(t.sent(A).len() + t.world.hosts[A].nic.query_qp(end.qpn).unwrap().sends as usize, 4);
    assert_eq!(end.state(&t.world), State::Sqd);
    end.go_to(&mut t.world, State::Rts);
    t.run();
    // Expect: back in RTS, the waiting request is sent.
    assert_eq!(t.world.hosts[A].nic.query_qp(end.qpn).unwrap().sends, 0);
    t.tear_down();
}

#[test]
fn an_error_flushes_everything_in_order() {
    let mut t = Pair::standard();
    t.rule(Rule::all(Fate::Drop, |_| true));
    let sends: Vec<u64> = (0..20).map(|_| t.write(A, 0, 0, 5000)).collect();
    let receives: Vec<u64> = (0..20).map(|i| t.receive(A, i * 100, 100)).collect();
    t.world.run(Duration::from_micros(5));
    let end = t.ends[A];
    end.go_to(&mut t.world, State::Error);
    t.run();
    let late = t.write(A, 0, 0, 10);
    let late_receive = t.receive(A, 0, 10);
    t.run();
    // Expect: every request is flushed once, in the order of posting; later ones too.
    let sent = t.sent(A);
    let expected: Vec<u64> = sends.into_iter().chain([late]).collect();
    assert_eq!(sent.iter().map(|c| c.wr_id).collect::<Vec<_>>(), expected);
    assert!(statuses(&sent).iter().all(|s| *s == Status::Flushed));
    let received = t.received(A);
    let expected: Vec<u64> = receives.into_iter().chain([late_receive]).collect();
    assert_eq!(received.iter().map(|c| c.wr_id).collect::<Vec<_>>(), expected);
    t.tear_down();
}

#[test]
fn a_receive_in_progress_is_flushed_with_the_rest() {
    let mut t = Pair::standard();
    let first = t.receive(B, 0, 100_000);
    let second = t.receive(B, 200_000, 100);
    t.rule(Rule::all(Fate::Drop, |p| p.bth.psn.value() == 110));
    t.send(A, 0, 50_000);
    t.world.run(Duration::from_micros(20));
    let end = t.ends[B];
    end.go_to(&mut t.world, State::Error);
    t.world.run(Duration::from_micros(20));
    // Expect: the element that holds half a message comes back first.
    let received = t.received(B);
    assert_eq!(received.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [first, second]);
    assert_eq!(statuses(&received), [Status::Flushed; 2]);
    t.run();
    t.tear_down();
}

#[test]
fn an_unreliable_queue_pair_stops_sending_and_can_go_on() {
    let mut t = Pair::new(&PairOptions { transport: Transport::Uc, ..PairOptions::default() });
    let mut sge = t.sge(A, 0, 10);
    sge.lkey ^= 1;
    let to = t.remote(B, 0);
    t.post(A, SendOp::Write { to, imm: None }, Data::Sges(&[sge]), SendFlags::empty());
    t.write(A, 0, 0, 10);
    t.write(A, 0, 0, 10);
    t.run();
    // Expect: an error, the other requests flushed, and the state SQE.
    let expected = [Status::LocalProtection, Status::Flushed, Status::Flushed];
    assert_eq!(statuses(&t.sent(A)), expected);
    let end = t.ends[A];
    assert_eq!(end.state(&t.world), State::Sqe);
    end.go_to(&mut t.world, State::Rts);
    let bytes = t.fill(A, 0, 10);
    t.write(A, 0, 0, 10);
    t.run();
    // Expect: the queue pair sends again.
    assert_eq!(t.bytes(B, 0, 10), bytes);
    t.tear_down();
}

#[test]
fn many_small_pages_hold_a_message_together() {
    // Expect: the same bytes with all page sizes, and no byte elsewhere.
    for shift in [6, 7, 12] {
        let layout = Layout::Scattered { shift };
        let connect = ConnectOptions::default();
        let mut t = Pair::new(&PairOptions { layout, connect, ..PairOptions::default() });
        let before = t.world.hosts[B].memory.clone();
        let bytes = t.fill(A, 33, 30_001);
        t.write(A, 33, 77, 30_001);
        t.read(A, 77, 100_001, 30_001);
        t.fetch_add(A, 200_000, 3, 300_000);
        t.run();
        assert_eq!(t.bytes(B, 77, 30_001), bytes);
        assert_eq!(t.bytes(A, 100_001, 30_001), bytes);
        assert_eq!(t.sent(A).len(), 3);
        let mut touched = t.regions[B].pieces(77, 30_001);
        touched.extend(t.regions[B].pieces(200_000, 8));
        let after = t.world.hosts[B].memory.bytes();
        let changed = (0..after.len()).filter(|i| after[*i] != before.bytes()[*i]);
        let stray = changed.filter(|i| !touched.iter().any(|r| r.contains(&(*i as u64)))).count();
        assert_eq!(stray, 0);
        t.tear_down();
    }
}

#[test]
fn entries_are_gathered_and_scattered_in_their_order() {
    let mut t = Pair::standard();
    t.fill(A, 0, 10_000);
    let pieces = [(5000, 1500), (0, 0), (100, 1), (2000, 999)];
    let sges: Vec<_> = pieces.iter().map(|&(at, len)| t.sge(A, at, len)).collect();
    let bytes: Vec<u8> =
        pieces.iter().flat_map(|&(at, len)| t.bytes(A, at, u64::from(len))).collect();
    let into = [t.sge(B, 8000, 700), t.sge(B, 0, 1300), t.sge(B, 20_000, 1000)];
    let request = RecvRequest { wr_id: 1, sges: &into };
    t.ends[B].post_recv(&mut t.world, &request).unwrap();
    let send = SendOp::Send { imm: Some(9), to: None };
    t.post(A, send, Data::Sges(&sges), SendFlags::SIGNALED);
    t.run();
    // Expect: 2500 bytes, in order, spread over the receive element's entries.
    let got = [t.bytes(B, 8000, 700), t.bytes(B, 0, 1300), t.bytes(B, 20_000, 500)].concat();
    assert_eq!(got, bytes);
    assert_eq!(t.received(B)[0].imm_or_key, 9);
    t.tear_down();
}

#[test]
fn zero_length_operations_complete() {
    let mut t = Pair::standard();
    let before = t.bytes(B, 0, 100);
    t.receive(B, 0, 100);
    t.write(A, 0, 0, 0);
    t.read(A, 0, 0, 0);
    t.send(A, 0, 0);
    let to = remora_nic::queue::RemoteAddress { addr: 1, rkey: 2 };
    t.post(A, SendOp::Write { to, imm: None }, Data::Sges(&[]), SendFlags::SIGNALED);
    t.run();
    // Expect: all succeed, the key of an empty WRITE is not checked, and no byte changes.
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 4]);
    assert_eq!(t.received(B)[0].len, 0);
    assert_eq!(t.bytes(B, 0, 100), before);
    assert_eq!(t.seen(|p| p.is(Operation::ReadResponse)).len(), 1);
    t.tear_down();
}

#[test]
fn a_ring_can_be_used_over_and_over() {
    let queues = QueueOptions { sends: 4, receives: 4, ..QueueOptions::default() };
    let mut t = Pair::new(&PairOptions { queues, ..PairOptions::default() });
    for round in 0..50 {
        for _ in 0..4 {
            t.receive(B, 0, 100);
            t.send(A, 0, 100);
        }
        t.run();
        // Expect: all completions of each round.
        assert_eq!((t.sent(A).len(), t.received(B).len()), (4, 4), "round {round}");
    }
    t.tear_down();
}

/// A card in hardware takes turns that give no packet, too: as many as there is work for.
#[test]
fn a_long_queue_is_flushed_by_a_card_in_hardware() {
    const RECEIVES: usize = 256;
    let queues = QueueOptions {
        receives: RECEIVES as u32,
        completions: 2 * RECEIVES,
        ..QueueOptions::default()
    };
    let config = |config: &mut remora_nic::Config| config.fetch_elements = 1;
    let mut t = Pair::new(&PairOptions { queues, config, ..PairOptions::default() });
    t.world.driver.hardware = true;
    (0..RECEIVES).for_each(|_| _ = t.receive(B, 0, 10));
    let end = t.ends[B];
    end.go_to(&mut t.world, State::Error);
    t.run();
    assert_eq!(statuses(&t.received(B)), [Status::Flushed; RECEIVES]);
    t.tear_down();
}

#[test]
fn a_receive_doorbell_in_error_is_flushed_too() {
    let mut t = Pair::standard();
    let end = t.ends[B];
    end.go_to(&mut t.world, State::Error);
    t.run();
    t.world.hosts[B].nic.handle_recv_doorbell(end.qpn, 2).unwrap();
    t.run();
    // Expect: an element that the ring's owner wrote itself comes back like a posted one.
    assert_eq!(statuses(&t.received(B)), [Status::Flushed; 2]);
    t.tear_down();
}

#[test]
fn a_reset_removes_the_queue_pairs_completions() {
    let mut t = Pair::standard();
    t.receive(A, 0, 100);
    t.write(A, 0, 0, 10);
    t.run();
    t.ends[A].modify(&mut t.world, &QpAttr { state: Some(State::Error), ..QpAttr::default() });
    t.run();
    // Expect: the WRITE's success and the receive's flush are in the queues, and the reset removes
    // them.
    t.ends[A].modify(&mut t.world, &QpAttr { state: Some(State::Reset), ..QpAttr::default() });
    t.run();
    assert_eq!((t.sent(A).len(), t.received(A).len()), (0, 0));
    t.tear_down();
}
