//! Objects that a program may change while they are in use: queues, regions, attributes.

use core::time::Duration;

use remora_nic::qp::{QpAttr, State};
use remora_nic::queue::{Data, Moderation, ResizeCqError, SendFlags, SendOp, Sge, Status};
use remora_nic::{
    Access, Event, MrChange, MrInit, PageTable, RegMrError, Time, Translation, nic::ResizeSrqError,
};
use remora_sim::endpoint::{QueueOptions, ring};
use remora_sim::world::Host;
use remora_sim::{A, B, Pair, PairOptions, statuses};

#[test]
fn completion_entries_carry_the_time_at_which_they_were_written() {
    let mut t = Pair::standard();
    let posted = t.world.now;
    t.receive(B, 0, 100);
    t.send(A, 0, 10);
    t.run();
    let (received, sent) = (t.received(B)[0].at, t.sent(A)[0].at);
    assert!(posted < received && received < sent && sent <= t.world.now);
    assert_ne!(received, Time::ZERO);
    t.tear_down();
}

#[test]
fn a_completion_queue_grows_and_shrinks_in_use() {
    let queues = QueueOptions { completions: 2, ..QueueOptions::default() };
    let mut t = Pair::new(&PairOptions { queues, ..PairOptions::default() });
    let cq = t.ends[A].send_cq;
    t.world.hosts[A].nic.resize_cq(cq, 4).unwrap();
    for _ in 0..4 {
        t.write(A, 0, 0, 10);
    }
    t.run();
    let nic = &mut t.world.hosts[A].nic;
    assert_eq!(nic.resize_cq(cq, 3), Err(ResizeCqError::Waiting { waiting: 4 }));
    assert_eq!(nic.resize_cq(0, 3), Err(ResizeCqError::UnknownCq));
    assert_eq!((nic.cq_capacity(cq), nic.cq_len(cq)), (Some(4), Some(4)));
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 4]);
    t.tear_down();
}

#[test]
fn a_moderated_queue_notifies_after_a_count_or_a_period() {
    let mut t = Pair::standard();
    let cq = t.ends[B].recv_cq;
    let period = Duration::from_micros(100);
    let nic = &mut t.world.hosts[B].nic;
    nic.modify_cq(cq, Moderation { count: 3, period }).unwrap();
    let told = |t: &mut Pair| {
        t.events(B).iter().filter(|e| **e == Event::CompletionQueueNotify(cq)).count()
    };
    for (messages, quietly) in [(3, false), (2, true)] {
        t.world.hosts[B].nic.req_notify_cq(cq, false).unwrap();
        for _ in 0..messages {
            t.receive(B, 0, 10);
            t.send(A, 0, 10);
        }
        t.world.run(Duration::from_micros(50));
        // Expect: three entries cause a notification at once, two when the period is over.
        assert_eq!(told(&mut t), usize::from(!quietly), "{messages} messages");
        t.run();
        assert_eq!(told(&mut t), usize::from(quietly), "{messages} messages");
    }
    t.received(B);
    t.tear_down();
}

#[test]
fn a_resized_shared_receive_queue_keeps_its_posted_elements() {
    let mut t = Pair::new(&PairOptions { srq: true, ..PairOptions::default() });
    let srq = t.ends[B].srq.unwrap();
    let posted: Vec<u64> = (0..5).map(|i| t.receive(B, i * 100, 100)).collect();
    t.send(A, 0, 10);
    t.run();
    let at_b = &mut t.world.hosts[B];
    let small = ring(at_b, 2, 4, 0);
    let larger = ring(at_b, 128, 8, 0);
    let Host { nic, memory, .. } = at_b;
    let refused = nic.resize_srq(memory, srq, small);
    assert_eq!(refused, Err(ResizeSrqError::Waiting { waiting: 4 }));
    nic.resize_srq(memory, srq, larger).unwrap();
    let info = nic.query_srq(srq).unwrap();
    assert_eq!((info.depth, info.waiting, info.limit), (128, 4, 0));
    for _ in 0..4 {
        t.send(A, 0, 10);
    }
    t.run();
    let taken: Vec<u64> = t.received(B).iter().map(|c| c.wr_id).collect();
    assert_eq!(taken, posted);
    t.tear_down();
}

#[test]
fn a_region_keeps_its_key_when_its_memory_domain_and_permissions_change() {
    let mut t = Pair::standard();
    let key = t.regions[B].key;
    let Host { nic, memory, .. } = &mut t.world.hosts[B];
    let other = memory.alloc(4096, 4096);
    let pages = PageTable::new(12, 0, [other]);
    let translation = Some(Translation { iova: 0, len: 4096, pages });
    let change = MrChange { translation, ..MrChange::default() };
    assert_eq!(nic.rereg_mr(key, change), Ok(key));
    let to = remora_nic::queue::RemoteAddress { addr: 16, rkey: key };
    let bytes = t.fill(A, 0, 100);
    t.ask(A, SendOp::Write { to, imm: None }, 0, 100);
    t.run();
    // Expect: addresses count from zero, in the new memory.
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    assert_eq!(t.world.hosts[B].memory.slice(other + 16, 100), bytes);

    let nic = &mut t.world.hosts[B].nic;
    let access = Some(Access::REMOTE_WRITE);
    let bad = MrChange { access, ..MrChange::default() };
    assert_eq!(nic.rereg_mr(key, bad), Err(RegMrError::Access));
    assert_eq!(nic.rereg_mr(key ^ 1, MrChange::default()), Err(RegMrError::UnknownKey));
    let pd = nic.alloc_pd().unwrap();
    let change = MrChange { pd: Some(pd), ..MrChange::default() };
    assert_eq!(nic.rereg_mr(key, change), Ok(key));
    assert!(nic.dealloc_pd(pd).is_err(), "a region still belongs to the domain");
    t.ask(A, SendOp::Write { to, imm: None }, 0, 100);
    t.run();
    // Expect: the region is not in the queue pair's domain any more.
    assert_eq!(statuses(&t.sent(A)), [Status::RemoteAccess]);
    assert_eq!(t.world.hosts[B].nic.counters().refused_domain, 1);
}

#[test]
fn a_null_region_discards_writes_and_reads_as_zeroes() {
    let mut t = Pair::standard();
    let (pd_a, pd_b) = (t.ends[A].pd, t.ends[B].pd);
    let nulls = [(A, pd_a), (B, pd_b)].map(|(of, pd)| {
        let nic = &mut t.world.hosts[of].nic;
        nic.alloc_null_mr(pd).unwrap()
    });
    let bytes = t.fill(A, 0, 3000);
    let to = t.remote(B, 0);
    // A message whose middle comes from the null region.
    let hole = Sge { addr: 0xFFFF_0000_0000, len: 1500, lkey: nulls[A] };
    let sges = [t.sge(A, 0, 1000), hole, t.sge(A, 1000, 501)];
    t.post(A, SendOp::Write { to, imm: None }, Data::Sges(&sges), SendFlags::SIGNALED);
    t.run();
    let expected = [&bytes[..1000], &[0; 1500], &bytes[1000..1501]].concat();
    assert_eq!(t.bytes(B, 0, 3001), expected);
    // A message of which only the end is stored, and a READ whose data is discarded.
    let into = [Sge { addr: 0, len: 2000, lkey: nulls[B] }, t.sge(B, 10_000, 1000)];
    let request = remora_nic::queue::RecvRequest { wr_id: 1, sges: &into };
    t.ends[B].post_recv(&mut t.world, &request).unwrap();
    t.send(A, 0, 3000);
    let from = t.remote(B, 0);
    let nowhere = Sge { addr: 0, len: 3000, lkey: nulls[A] };
    t.post(A, SendOp::Read { from }, Data::Sges(&[nowhere]), SendFlags::SIGNALED);
    t.run();
    assert_eq!(t.bytes(B, 10_000, 1000), bytes[2000..]);
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 3]);
    // Its key is not valid for peers, and it cannot be changed.
    let rkey = nulls[B];
    let nic = &mut t.world.hosts[B].nic;
    assert_eq!(nic.rereg_mr(rkey, MrChange::default()), Err(RegMrError::UnknownKey));
    let from = remora_nic::queue::RemoteAddress { addr: 0, rkey };
    t.ask(A, SendOp::Read { from }, 0, 100);
    t.run();
    assert_eq!(statuses(&t.sent(A)), [Status::RemoteAccess]);
    for (of, key) in nulls.into_iter().enumerate() {
        t.world.hosts[of].nic.dereg_mr(key).unwrap();
    }
    t.tear_down();
}

#[test]
fn a_region_may_have_no_bytes() {
    let mut t = Pair::standard();
    let pd = t.ends[B].pd;
    let pages = PageTable::contiguous(12, 0x1000, 0);
    let init = MrInit { iova: 0x1000, len: 0, access: Access::all(), pages };
    let key = t.world.hosts[B].nic.reg_mr(pd, init).unwrap();
    let to = remora_nic::queue::RemoteAddress { addr: 0x1000, rkey: key };
    t.ask(A, SendOp::Write { to, imm: None }, 0, 0);
    t.ask(A, SendOp::Write { to, imm: None }, 0, 1);
    t.run();
    // Expect: only an empty access is within the region.
    assert_eq!(statuses(&t.sent(A)), [Status::Success, Status::RemoteAccess]);
    t.world.hosts[B].nic.dereg_mr(key).unwrap();
    t.tear_down();
}

#[test]
fn a_query_returns_all_attributes_that_were_set() {
    let mut t = Pair::standard();
    let end = t.ends[A];
    let info = t.world.hosts[A].nic.query_qp(end.qpn).unwrap();
    assert_eq!((info.state, info.pd, info.srq), (State::Rts, end.pd, None));
    assert_eq!((info.send_cq, info.recv_cq, info.depths), (end.send_cq, end.recv_cq, (64, 64)));
    let attr = &info.attr;
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (Some(8), Some(7), Some(7)));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (Some(8), Some(8)));
    assert_eq!(attr.dest_qp, Some(t.ends[B].qpn));
    assert_eq!((attr.sq_psn.unwrap().value(), attr.rq_psn.unwrap().value()), (100, 5000));
    // In RTS, permissions and the RNR timer may change.
    let change =
        QpAttr { access: Some(Access::REMOTE_READ), min_rnr_timer: Some(12), ..QpAttr::default() };
    end.modify(&mut t.world, &change);
    let attr = t.world.hosts[A].nic.query_qp(end.qpn).unwrap().attr;
    assert_eq!((attr.access, attr.min_rnr_timer), (Some(Access::REMOTE_READ), Some(12)));
    // The query shows draining until the outstanding requests are done.
    t.write(A, 0, 0, 50_000);
    t.world.run(Duration::from_nanos(300));
    end.go_to(&mut t.world, State::Sqd);
    assert!(t.world.hosts[A].nic.query_qp(end.qpn).unwrap().draining);
    t.run();
    assert!(!t.world.hosts[A].nic.query_qp(end.qpn).unwrap().draining);
    assert!(t.events(A).contains(&Event::SendQueueDrained(end.qpn)));
    // One that has gone on before it was drained, and stops with nothing to drain, does not.
    end.go_to(&mut t.world, State::Rts);
    t.write(A, 0, 0, 50_000);
    t.world.run(Duration::from_nanos(300));
    end.go_to(&mut t.world, State::Sqd);
    end.go_to(&mut t.world, State::Rts);
    t.run();
    end.go_to(&mut t.world, State::Sqd);
    assert!(!t.world.hosts[A].nic.query_qp(end.qpn).unwrap().draining);
    t.tear_down();
}
