//! Requests that must fail, and how.

use std::time::Duration;

use remora_tests::end::{At, Service, Status, Terms, Work};
use remora_tests::wire::{Fate, Towards};

use crate::{KERNEL, Two, next, well};

const THERE: u64 = 2 << 20;

pub(crate) fn wrong_keys(two: &mut Two<'_>) {
    let good = two.b.at(0);
    let key = At { rkey: good.rkey ^ 0x55, ..good };
    let bounds = two.b.at(remora_tests::end::REGION as u64 - 4);
    let odd = two.b.at(3);
    let mtu = u64::from(two.mtu);
    for (work, len, wanted) in [
        (Work::Write(key, None), 8, Status::RemoteAccess),
        (Work::Write(bounds, None), 8, Status::RemoteAccess),
        (Work::Write(bounds, None), 3 * mtu, Status::RemoteAccess),
        (Work::Read(key), 8, Status::RemoteAccess),
        (Work::Read(bounds), 8, Status::RemoteAccess),
        (Work::FetchAdd(key, 1), 8, Status::RemoteAccess),
        (Work::CompareSwap(odd, 1, 2), 8, Status::RemoteInvalidRequest),
    ] {
        if work == Work::CompareSwap(odd, 1, 2) && two.a.name() == KERNEL {
            continue; // soft-RoCE does not even take such a request
        }
        let (here, _) = two.reliable();
        two.a.post(&here, 1, work, 0, len);
        let done = next(&mut two.a);
        assert_eq!((done.wr_id, done.status), (1, wanted), "{work:?} of {len} bytes");
        // The queue pair is in ERROR, so later requests are flushed.
        two.a.post(&here, 2, Work::Write(good, None), 0, 8);
        let done = next(&mut two.a);
        assert_eq!((done.wr_id, done.status), (2, Status::Flushed));
    }
}

pub(crate) fn too_long(two: &mut Two<'_>) {
    for len in [9, 3 * u64::from(two.mtu)] {
        let (here, there) = two.reliable();
        two.b.recv(&there, 1, THERE, len - 1);
        two.a.post(&here, 1, Work::Send(None), 0, len);
        let (sent, got) = (next(&mut two.a), next(&mut two.b));
        let wanted = if two.b.name() == KERNEL {
            // soft-RoCE reports this as a failure of its own.
            (Status::RemoteOperation, Status::Other(2))
        } else {
            (Status::RemoteInvalidRequest, Status::LocalLength)
        };
        assert_eq!((sent.status, got.status), wanted, "a SEND of {len} bytes");
    }
}

pub(crate) fn late_receiver(two: &mut Two<'_>) {
    let (here, there) = two.reliable();
    two.a.fill(0, 20_000, 9);
    two.a.post(&here, 1, Work::Send(None), 0, 20_000);
    two.a.post(&here, 2, Work::Write(two.b.at(0), None), 0, 64);
    assert_eq!(
        two.a.poll(Duration::from_millis(150)),
        None,
        "the receiver has posted no request yet"
    );
    two.b.recv(&there, 3, THERE, 20_000);
    well(&mut two.b, 3);
    well(&mut two.a, 1);
    well(&mut two.a, 2);
    assert_eq!(two.b.sum(THERE, 20_000), remora_tests::end::sum_of_pattern(20_000, 9));
}

pub(crate) fn no_receiver(two: &mut Two<'_>) {
    let terms = Terms { rnr_retry: 2, min_rnr: 5, ..two.terms() };
    let (here, _) = two.join(Service::Rc, &terms);
    two.a.post(&here, 1, Work::Send(None), 0, 64);
    assert_eq!(next(&mut two.a).status, Status::RnrRetryExceeded);
}

/// Few retries, and short timeouts.
fn impatient(two: &Two<'_>) -> Terms {
    Terms { timeout: 12, retry: 3, ..two.terms() }
}

pub(crate) fn gone(two: &mut Two<'_>) {
    for work in [Work::Write(two.b.at(0), None), Work::Read(two.b.at(0))] {
        let terms = impatient(two);
        let (here, there) = two.join(Service::Rc, &terms);
        two.b.destroy(&there);
        two.a.post(&here, 1, work, 0, 64);
        assert_eq!(next(&mut two.a).status, Status::RetryExceeded, "{work:?}");
    }
    // A queue pair in ERROR does not answer either.
    let terms = impatient(two);
    let (here, there) = two.join(Service::Rc, &terms);
    two.b.break_off(&there);
    two.a.post(&here, 1, Work::Write(two.b.at(0), None), 0, 64);
    assert_eq!(next(&mut two.a).status, Status::RetryExceeded);
}

pub(crate) fn cut(two: &mut Two<'_>) {
    let terms = impatient(two);
    let (here, _) = two.join(Service::Rc, &terms);
    two.a.post(&here, 1, Work::Write(two.b.at(0), None), 0, 64);
    well(&mut two.a, 1);
    for towards in [Towards::Machine, Towards::Host] {
        two.world.wire.judge(towards, |_| Fate::Lose);
    }
    two.a.post(&here, 2, Work::Write(two.b.at(0), None), 0, 200_000);
    two.a.post(&here, 3, Work::Read(two.b.at(0)), 0, 64);
    let done = next(&mut two.a);
    assert_eq!((done.wr_id, done.status), (2, Status::RetryExceeded));
    let done = next(&mut two.a);
    assert_eq!((done.wr_id, done.status), (3, Status::Flushed));
    assert!(two.world.wire.heal() > 0);
}
