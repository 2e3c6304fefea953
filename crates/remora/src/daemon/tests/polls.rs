//! What a client's polls tell of it: a program that finds nothing gives its core away.

use remora_nic::queue::{Data, SendFlags, SendOp, SendRequest};

use super::*;
use crate::QueuePairOptions;

#[test]
fn each_look_that_finds_nothing_counts_once() {
    let daemon = Daemon::start();
    let device = DeviceOptions::new().attach(&daemon.path).open().unwrap();
    let (domain, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let empty = || device.live.yielding.empty();
    for polls in 1..=100 {
        assert_eq!(cq.poll(&mut [Completion::default()]), Ok(0));
        assert_eq!(empty(), polls);
    }
    // A program that watches memory drives the device only,
    assert!(!device.progress());
    assert_eq!(empty(), 101);
    // and answers what it has seen there.
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    let flags = SendFlags::SIGNALED;
    let request = SendRequest { wr_id: 1, op: SendOp::NoOp, data: Data::Sges(&[]), flags };
    qp.post_send(&request).unwrap();
    assert!(!device.progress());
    assert_eq!(empty(), 1);
}
