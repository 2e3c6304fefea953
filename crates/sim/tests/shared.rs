//! Queues that the card shares with their owner: doorbells, slots that are free again, completion
//! queues that the card names.

use remora_nic::nic::PostError;
use remora_nic::qp::State;
use remora_nic::queue::{Completion, Data, SendFlags, SendOp, SendRequest, Status};
use remora_nic::wire::Transport;
use remora_nic::{Event, Memory, Psn, Queue};
use remora_sim::endpoint::{ConnectOptions, Endpoint, QueueOptions, connect, ring};
use remora_sim::{A, B, Pair, PairOptions};

/// A pair whose completion queues are exported.
fn exported(completions: usize) -> Pair {
    let queues = QueueOptions { exported: true, completions, ..QueueOptions::default() };
    Pair::new(&PairOptions { queues, srq: true, ..PairOptions::default() })
}

fn completed(t: &mut Pair, of: usize) -> Vec<u32> {
    core::iter::from_fn(|| t.world.hosts[of].nic.poll_completed()).collect()
}

#[test]
fn a_queue_with_entries_is_named_once() {
    let mut t = exported(64);
    for _ in 0..3 {
        t.receive(B, 0, 100);
        t.send(A, 0, 10);
    }
    t.run();
    let (sent, received) = (t.ends[A].send_cq, t.ends[B].recv_cq);
    assert_eq!((completed(&mut t, A), completed(&mut t, B)), (vec![sent], vec![received]));
    // Expect: entries that are left in a queue do not name it again, and new ones do.
    let mut one = [Completion::default()];
    assert_eq!(t.world.hosts[A].nic.poll_cq(sent, &mut one), Ok(1));
    assert_eq!(completed(&mut t, A), []);
    t.write(A, 0, 0, 10);
    t.run();
    assert_eq!(completed(&mut t, A), [sent]);
    assert_eq!(t.sent(A).len(), 3);
    t.tear_down();
}

#[test]
fn only_exported_queues_are_named() {
    let mut t = Pair::standard();
    t.write(A, 0, 0, 10);
    t.run();
    assert_eq!(completed(&mut t, A), []);
    t.tear_down();
}

#[test]
fn a_queue_that_overflows_is_named_and_a_destroyed_one_is_not() {
    let mut t = exported(1);
    let cq = t.ends[A].send_cq;
    t.write(A, 0, 0, 10);
    t.run();
    assert_eq!(completed(&mut t, A), [cq]);
    t.write(A, 0, 0, 10);
    t.run();
    // Expect: the owner learns of an overflow even if nothing was added to the queue.
    assert_eq!(completed(&mut t, A), [cq]);
    t.receive(B, 0, 100);
    t.send(A, 0, 10);
    t.run();
    // Expect: none of the queues that the pair destroys is named.
    t.destroy();
    assert_eq!((completed(&mut t, A), completed(&mut t, B)), (vec![], vec![]));
}

#[test]
fn slots_are_free_again_as_their_elements_are_done() {
    let mut t = exported(64);
    let (a, srq) = (t.ends[A], t.ends[B].srq.unwrap());
    t.write(A, 0, 0, 10);
    t.receive(B, 0, 100);
    t.receive(A, 0, 100);
    let retired = |t: &Pair, queue| t.world.hosts[A].nic.retired(a.qpn, queue);
    assert_eq!((retired(&t, Queue::Send), retired(&t, Queue::Recv)), (Some(0), Some(0)));
    assert_eq!(t.world.hosts[B].nic.srq_retired(srq), Some(0));
    t.send(A, 0, 10);
    t.send(B, 0, 10);
    t.run();
    assert_eq!((retired(&t, Queue::Send), retired(&t, Queue::Recv)), (Some(2), Some(1)));
    assert_eq!(t.world.hosts[B].nic.srq_retired(srq), Some(1));
    assert_eq!(t.world.hosts[A].nic.retired(0, Queue::Send), None);
    assert_eq!(t.world.hosts[B].nic.srq_retired(a.qpn), None);
    t.tear_down();
}

#[test]
fn an_owner_posts_to_a_shared_receive_queue_by_its_doorbell() {
    let mut t = Pair::standard();
    let (pds, queues) = (t.ends.map(|end| end.pd), QueueOptions::default());
    let host = &mut t.world.hosts[B];
    let ring = ring(host, 4, 1, 0);
    // Elements of zeroes have no entries: they are room for empty messages.
    host.memory.write(ring.addr, &vec![0; ring.len()]).unwrap();
    let srq = host.nic.create_srq(pds[B], ring).unwrap();
    let a = Endpoint::create(&mut t.world, (A, pds[A]), Transport::Rc, &queues, None);
    let b = Endpoint::create(&mut t.world, (B, pds[B]), Transport::Rc, &queues, Some(srq));
    let psns = (Psn::new(1), Psn::new(2));
    connect(&mut t.world, (&a, &b), &ConnectOptions::default(), psns);
    t.world.hosts[B].nic.handle_srq_doorbell(srq, 3).unwrap();
    let op = SendOp::Send { imm: None, to: None };
    let request = SendRequest { wr_id: 1, op, data: Data::Sges(&[]), flags: SendFlags::empty() };
    for _ in 0..3 {
        a.post_send(&mut t.world, &request).unwrap();
    }
    t.run();
    let received = Endpoint::drain(&mut t.world, B, b.recv_cq);
    assert_eq!(received.iter().map(|c| c.status).collect::<Vec<_>>(), [Status::Success; 3]);
    assert_eq!(t.world.hosts[B].nic.srq_retired(srq), Some(3));
}

#[test]
fn a_doorbell_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut t = exported(512);
    let (a, b, srq) = (t.ends[A], t.ends[B], t.ends[B].srq.unwrap());
    let [one, two] = &mut t.world.hosts[..] else { panic!("two hosts") };
    let mut refused = 0;
    for index in [65, 1000, 1 << 31, u32::MAX, u32::MAX - 63] {
        assert_eq!(one.nic.handle_send_doorbell(a.qpn, index), Err(PostError::Full), "{index}");
        assert_eq!(one.nic.handle_recv_doorbell(a.qpn, index), Err(PostError::Full), "{index}");
        assert_eq!(two.nic.handle_srq_doorbell(srq, index), Err(PostError::Full), "{index}");
        refused += 1;
    }
    // Nobody posts to the receive queue of a queue pair that has a shared one.
    assert_eq!(two.nic.handle_recv_doorbell(b.qpn, 1), Err(PostError::Full));
    assert_eq!(two.nic.handle_srq_doorbell(b.qpn, 1), Err(PostError::UnknownQueue));
    assert_eq!(one.nic.counters().doorbells_refused, 2 * refused);
    assert_eq!(two.nic.counters().doorbells_refused, refused + 2);
    assert_eq!(two.nic.query_srq(srq).unwrap().waiting, 0);
    // A whole ring fits, and no more; and no doorbell takes elements back.
    two.nic.handle_srq_doorbell(srq, 64).unwrap();
    assert_eq!(two.nic.handle_srq_doorbell(srq, 65), Err(PostError::Full));
    assert_eq!(two.nic.handle_srq_doorbell(srq, 63), Err(PostError::Full));
    assert_eq!(two.nic.query_srq(srq).unwrap().waiting, 64);
    t.tear_down();
}

#[test]
fn a_doorbell_is_refused_where_a_post_is() {
    let mut t = exported(64);
    let a = t.ends[A];
    a.go_to(&mut t.world, State::Reset);
    let nic = &mut t.world.hosts[A].nic;
    let refused = Err(PostError::State(State::Reset));
    assert_eq!(nic.handle_send_doorbell(a.qpn, 1), refused);
    assert_eq!(nic.handle_recv_doorbell(a.qpn, 1), refused);
    t.tear_down();
}

#[test]
fn a_driver_fails_a_queue_pair() {
    let mut t = exported(64);
    let a = t.ends[A];
    t.receive(A, 0, 100);
    let now = t.world.now;
    for _ in 0..2 {
        let host = &mut t.world.hosts[A];
        host.nic.fail_qp(now, &mut host.memory, a.qpn).unwrap();
    }
    t.run();
    // Expect: one event, and the work comes back.
    assert_eq!(a.state(&t.world), State::Error);
    assert_eq!(t.received(A)[0].status, Status::Flushed);
    let fatal = t.events(A).iter().filter(|e| **e == Event::QpFatal(a.qpn)).count();
    assert_eq!(fatal, 1);
    let host = &mut t.world.hosts[A];
    assert!(host.nic.fail_qp(now, &mut host.memory, 0).is_err());
    t.tear_down();
}
