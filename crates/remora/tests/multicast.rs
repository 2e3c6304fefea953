//! Multicast on loopback: each member of a group gets one copy, from whichever device.

#[path = "support/until.rs"]
mod until;

use std::net::IpAddr;
use std::time::Duration;

use remora::nic::Access;
use remora::nic::nic::MULTICAST_QPN;
use remora::nic::queue::{
    Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, UdDestination,
};
use remora::nic::wire::Transport;
use remora::{
    CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions,
};
use until::until;

const PATIENCE: Duration = Duration::from_secs(10);
const QKEY: u32 = 0x1111;

struct Member {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    room: MemoryRegion,
}

fn member(device: &Device, qkey: u32) -> Member {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(64).unwrap();
    let options = QueuePairOptions::rc(&cq).transport(Transport::Ud);
    let qp = pd.create_qp(&options).unwrap();
    qp.activate_ud(qkey).unwrap();
    let room = pd.alloc(4096, Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..4 {
        qp.post_recv(&RecvRequest { wr_id, sges: &[room.sge(0, 4096)] }).unwrap();
    }
    Member { pd, cq, qp, room }
}

impl Member {
    fn send(&self, group: IpAddr, text: &[u8], member: bool) {
        let ah = self.pd.create_ah(group).unwrap();
        let to = Some(UdDestination { ah: ah.handle(), qpn: MULTICAST_QPN, qkey: QKEY });
        let op = SendOp::Send { imm: None, to };
        let (data, flags) = (Data::Inline(text), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id: 99, op, data, flags }).unwrap();
        // A member gets its own datagram, perhaps before the completion of the sending.
        let sent = |c: Completion| c.wr_id == 99;
        if !sent(self.cq.spin(PATIENCE).unwrap().ok().unwrap()) {
            assert!(sent(self.cq.spin(PATIENCE).unwrap().ok().unwrap()));
        } else if member {
            assert!(!sent(self.cq.spin(PATIENCE).unwrap().ok().unwrap()));
        }
    }

    fn gets(&self, text: &[u8]) {
        let got = self.cq.spin(PATIENCE).unwrap().ok().unwrap();
        assert_eq!(got.len as usize, 40 + text.len());
        let mut bytes = vec![0; text.len()];
        self.room.read_at(40, &mut bytes).unwrap();
        assert_eq!(bytes, text);
    }

    fn has_nothing(&self) {
        let mut out = [Completion::default()];
        for _ in 0..1000 {
            assert_eq!(self.cq.poll(&mut out).unwrap(), 0, "{:?}", out[0]);
        }
    }
}

#[test]
fn each_member_gets_one_copy() {
    let group: IpAddr = "239.18.0.7".parse().unwrap();
    let (here, there) = (Device::open().unwrap(), Device::open().unwrap());
    let (a, b) = (member(&here, QKEY), member(&here, QKEY));
    let (c, other_key) = (member(&there, QKEY), member(&there, QKEY + 1));
    let stranger = member(&there, QKEY);
    for m in [&a, &b, &c, &other_key] {
        m.qp.attach_mcast(group).unwrap();
    }
    a.send(group, b"to all", true);
    b.gets(b"to all");
    c.gets(b"to all");
    for m in [&a, &b, &c, &other_key, &stranger] {
        m.has_nothing();
    }
    c.qp.detach_mcast(group).unwrap();
    assert!(c.qp.detach_mcast(group).is_err(), "it has left already");
    stranger.qp.attach_mcast(group).unwrap();
    a.send(group, b"again", true);
    b.gets(b"again");
    stranger.gets(b"again");
    for m in [&a, &b, &c] {
        m.has_nothing();
    }
}

#[test]
fn a_sleeping_member_is_woken() {
    let group: IpAddr = "239.18.0.8".parse().unwrap();
    let (here, there) = (Device::open().unwrap(), Device::open().unwrap());
    let channel = there.create_channel().unwrap();
    let pd = there.alloc_pd().unwrap();
    let cq = there.create_cq_on(&channel, 16).unwrap();
    let options = QueuePairOptions::rc(&cq).transport(Transport::Ud);
    let qp = pd.create_qp(&options).unwrap();
    qp.activate_ud(QKEY).unwrap();
    let room = pd.alloc(4096, Access::LOCAL_WRITE).unwrap();
    qp.post_recv(&RecvRequest { wr_id: 5, sges: &[room.sge(0, 4096)] }).unwrap();
    cq.arm(false).unwrap();
    qp.attach_mcast(group).unwrap();
    member(&here, QKEY).send(group, b"wake", false);
    assert_eq!(channel.wait(PATIENCE).unwrap(), cq.handle());
    assert_eq!(cq.spin(PATIENCE).unwrap().ok().unwrap().wr_id, 5);
}

/// The device's own thread sleeps already when the member joins, and nobody else drives the card.
#[test]
fn a_device_that_sleeps_hears_of_a_new_group() {
    let group: IpAddr = "239.18.0.9".parse().unwrap();
    let (here, there) = (Device::open().unwrap(), Device::open().unwrap());
    let (a, b) = (member(&here, QKEY), member(&there, QKEY));
    std::thread::sleep(Duration::from_millis(200));
    b.qp.attach_mcast(group).unwrap();
    a.send(group, b"wake", false);
    let has_come = || b.room.slice(40..44).to_vec().unwrap() == b"wake";
    until("the datagram is in memory", has_come);
}

#[test]
fn an_address_of_no_group_is_refused() {
    let device = Device::open().unwrap();
    let a = member(&device, QKEY);
    assert!(a.qp.attach_mcast("10.0.0.1".parse().unwrap()).is_err());
    assert!(a.qp.attach_mcast("ff0e::1".parse().unwrap()).is_err(), "another family");
    a.has_nothing();
}
