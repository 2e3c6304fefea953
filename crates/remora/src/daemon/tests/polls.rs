//! What a client's polls tell of it: a program that finds nothing gives its core away. And what its
//! calls tell of a daemon that has ended.

use remora_nic::ChainError;
use remora_nic::queue::{Data, PollCqError, SendFlags, SendOp, SendRequest};

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

#[test]
fn calls_say_that_the_daemon_has_ended() {
    let daemon = Daemon::start();
    let device = DeviceOptions::new().attach(&daemon.path).open().unwrap();
    let (domain, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let (srq, budget) = (domain.create_srq(4, 1).unwrap(), device.create_budget(8).unwrap());
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    let before = qp.query();
    assert_eq!((cq.count(), srq.arm(1), budget.refill()), (Ok(0), Ok(()), Ok(())));
    drop(daemon);
    let gone = (Err(PollCqError::Gone), Err(DestroyError::Gone), Err(ChainError::Gone));
    assert_eq!((cq.count(), srq.arm(1), budget.refill()), gone);
    let after = qp.query();
    assert_eq!((before.state, after.state), (State::Rts, State::Error));
    assert_eq!((before.recv_cq, before.depths), (after.recv_cq, after.depths));
    assert_eq!(qp.dialect(), remora_nic::wire::Dialect::STANDARD);
}

/// A batch that there is room for is taken whole, even if the daemon has not come by what was
/// posted before.
#[test]
fn room_for_a_batch_counts_what_the_daemon_has_not_seen() {
    let daemon = Daemon::start();
    let device = DeviceOptions::new().attach(&daemon.path).open().unwrap();
    let (domain, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let options = QueuePairOptions::rc(&cq).send_depth(8);
    let qp = domain.create_qp(&options).unwrap();
    let check = |count| device.live.lock().check_sends(qp.qpn(), count);
    assert_eq!(check(1), Err(remora_nic::PostError::State(State::Reset)));
    qp.loop_back(&qp, Access::all()).unwrap();
    assert_eq!(check(9), Err(remora_nic::PostError::Full));
    let flags = SendFlags::empty();
    let request = SendRequest { wr_id: 1, op: SendOp::NoOp, data: Data::Sges(&[]), flags };
    let mut batches = 0;
    while batches < 1000 {
        device.live.command(|card| {
            let fits = card.check_sends(qp.qpn(), 3).is_ok();
            for _ in 0..if fits { 3 } else { 0 } {
                assert_eq!(card.post_send(qp.qpn(), 0, &request), Ok(()));
            }
            batches += u32::from(fits);
        });
    }
}
