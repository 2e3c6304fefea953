//! What wakes a program, in tokio's reactor.

use std::time::Duration;

use remora::nic::Event;
use remora::nic::queue::{Data, RecvRequest, SendFlags, SendOp, SendRequest};
use remora::prelude::*;
use remora::tokio::{AsyncChannel, AsyncEvents};
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(30);

fn send(wr_id: u64) -> SendRequest<'static> {
    let op = SendOp::Send { imm: None, to: None };
    SendRequest { wr_id, op, data: Data::Inline(b"bytes"), flags: SendFlags::SIGNALED }
}

#[tokio::test]
async fn a_channel_wakes_a_task_for_each_entry_it_is_armed_for() {
    let device = Device::open().unwrap();
    let channel = device.create_channel().unwrap();
    let queue = device.create_cq_on(&channel, 16).unwrap();
    let domain = device.alloc_pd().unwrap();
    let qp = domain.create_qp(&QueuePairOptions::rc(&queue)).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    let room = domain.alloc(64, Access::LOCAL_WRITE).unwrap();
    let mut channel = AsyncChannel::new(channel).unwrap();
    for wr_id in 0..50 {
        queue.arm(false).unwrap();
        qp.post_recv(&RecvRequest { wr_id, sges: &[room.sge(0, 64)] }).unwrap();
        qp.post_send(&send(wr_id)).unwrap();
        let woken = timeout(TIMEOUT, channel.next()).await.unwrap().unwrap();
        assert_eq!(woken, queue.handle());
        let mut left = 2;
        while left > 0 {
            let mut done = [Completion::default(); 4];
            let n = queue.poll(&mut done).unwrap();
            assert!(done[..n].iter().all(|entry| entry.ok().unwrap().wr_id == wr_id));
            left -= n;
        }
    }
}

#[tokio::test]
async fn asynchronous_events_wake_a_task() {
    let device = Device::open().unwrap();
    let queue = device.create_cq(16).unwrap();
    let domain = device.alloc_pd().unwrap();
    let shared = domain.create_srq(4, 1).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::rc(&queue).srq(&shared)).unwrap();
    qp.connect(qp.local(), &ConnectionParams::new(device.info().mtu)).unwrap();
    let room = domain.alloc(64, Access::LOCAL_WRITE).unwrap();
    let mut events = AsyncEvents::new(&device).unwrap();
    for wr_id in 0..3 {
        shared.post_recv(&RecvRequest { wr_id, sges: &[room.sge(0, 64)] }).unwrap();
        // The message takes the only receive request, which is below this limit.
        shared.arm(1).unwrap();
        qp.post_send(&send(wr_id)).unwrap();
        let event = timeout(TIMEOUT, events.next()).await.unwrap().unwrap();
        assert!(matches!(event, Event::SrqLimitReached(_)), "{event:?}");
    }
}
