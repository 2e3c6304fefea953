//! Multicast: one datagram for all members of a group, each with its own Q_Key and receive queue.

use core::net::IpAddr;

use remora_nic::nic::{DestroyError, MULTICAST_QPN, McastError};
use remora_nic::queue::{SendOp, Status, UdDestination};
use remora_nic::wire::Transport;
use remora_nic::{Config, Path};
use remora_sim::endpoint::{Endpoint, QKEY, QueueOptions};
use remora_sim::{A, B, Pair, PairOptions};

fn pair(config: fn(&mut Config)) -> Pair {
    Pair::new(&PairOptions { transport: Transport::Ud, config, ..PairOptions::default() })
}

fn group(i: u8) -> IpAddr {
    IpAddr::from([239, 1, 2, i])
}

/// A sends 50 bytes to a group.
fn send(t: &mut Pair, to: IpAddr, qkey: u32) {
    let pd = t.ends[A].pd;
    let ah = t.world.hosts[A].nic.create_ah(pd, Path::new(to, 1)).unwrap();
    let to = Some(UdDestination { ah, qpn: MULTICAST_QPN, qkey });
    t.ask(A, SendOp::Send { imm: None, to }, 0, 50);
    t.run();
    t.world.hosts[A].nic.destroy_ah(ah).unwrap();
}

#[test]
fn every_member_and_no_other_queue_pair_gets_a_datagram() {
    let mut t = pair(|_| {});
    let b = t.ends[B];
    let queues = QueueOptions::default();
    let (member, idle) = [(); 2]
        .map(|()| {
            let end = Endpoint::create(&mut t.world, (B, b.pd), Transport::Ud, &queues, None);
            let psn = remora_nic::Psn::new(1);
            end.bring_up(&mut t.world, &b, &Default::default(), (psn, psn));
            end
        })
        .into();
    let nic = &mut t.world.hosts[B].nic;
    nic.attach_mcast(b.qpn, group(1)).unwrap();
    nic.attach_mcast(member.qpn, "ff0e::ffff:239.1.2.1".parse().unwrap()).unwrap();
    nic.attach_mcast(member.qpn, group(1)).unwrap();
    nic.attach_mcast(idle.qpn, group(2)).unwrap();
    assert_eq!(nic.mcast_groups().collect::<Vec<_>>(), [group(1), group(2)]);
    let bytes = t.fill(A, 0, 50);
    t.receive(B, 0, 200);
    let sges = [t.sge(B, 1000, 200)];
    let request = remora_nic::queue::RecvRequest { wr_id: 5, sges: &sges };
    member.post_recv(&mut t.world, &request).unwrap();
    send(&mut t, group(1), QKEY);
    // Expect: one datagram for each member, with the group's address in the GRH.
    assert_eq!((t.received(B).len(), t.bytes(B, 40, 50)), (1, bytes.clone()));
    let got = Endpoint::drain(&mut t.world, B, member.recv_cq);
    assert_eq!((got.len(), got[0].src_qp, t.bytes(B, 1040, 50)), (1, t.ends[A].qpn, bytes));
    assert_eq!(t.bytes(B, 36, 4), [239, 1, 2, 1]);
    assert!(Endpoint::drain(&mut t.world, B, idle.recv_cq).is_empty());
    assert_eq!(t.sent(A)[0].status, Status::Success);
    // Each member checks the Q_Key; a member without a receive element does not affect the others.
    send(&mut t, "ff0e::ffff:239.1.2.1".parse().unwrap(), QKEY ^ 1);
    assert_eq!(t.world.hosts[B].nic.counters().drop_qkey, 2);
    let nic = &mut t.world.hosts[B].nic;
    assert_eq!(nic.destroy_qp(idle.qpn), Err(DestroyError::Busy { users: 1 }));
    nic.detach_mcast(idle.qpn, group(2)).unwrap();
    assert_eq!(nic.detach_mcast(idle.qpn, group(2)), Err(McastError::NotAttached));
    nic.detach_mcast(b.qpn, group(1)).unwrap();
    nic.detach_mcast(member.qpn, group(1)).unwrap();
    assert_eq!(nic.mcast_groups().count(), 0);
    for end in [member, idle] {
        nic.destroy_qp(end.qpn).unwrap();
        nic.destroy_cq(end.send_cq).unwrap();
        nic.destroy_cq(end.recv_cq).unwrap();
    }
    t.tear_down();
}

#[test]
fn a_sender_that_is_a_member_hears_itself() {
    let mut t = pair(|_| {});
    let qpn = t.ends[A].qpn;
    t.world.hosts[A].nic.attach_mcast(qpn, group(9)).unwrap();
    t.receive(A, 0, 200);
    send(&mut t, group(9), QKEY);
    assert_eq!(t.received(A).len(), 1);
    t.world.hosts[A].nic.detach_mcast(qpn, group(9)).unwrap();
    t.tear_down();
}

#[test]
fn invalid_groups_and_members_are_refused_and_their_number_is_limited() {
    let mut t = pair(|config| config.max_mcast = 1);
    let qpn = t.ends[A].qpn;
    let nic = &mut t.world.hosts[A].nic;
    assert_eq!(nic.attach_mcast(qpn, [10, 0, 0, 1].into()), Err(McastError::Address));
    assert_eq!(nic.attach_mcast(qpn ^ 1, group(1)), Err(McastError::UnknownQp));
    nic.attach_mcast(qpn, group(1)).unwrap();
    assert_eq!(nic.attach_mcast(qpn, group(2)), Err(McastError::Full { limit: 1 }));
    nic.detach_mcast(qpn, group(1)).unwrap();
    t.tear_down();
    let mut t = Pair::standard();
    let qpn = t.ends[A].qpn;
    let refused = t.world.hosts[A].nic.attach_mcast(qpn, group(1));
    assert_eq!(refused, Err(McastError::UnknownQp), "only datagram queue pairs may join");
}
