//! Connected queue pairs on a good wire.

use remora_tests::end::{Service, Status, Work, sum_of_pattern};

use crate::{Two, next, well};

/// The place of messages in the other side's memory.
const THERE: u64 = 2 << 20;

pub(crate) fn writes(two: &mut Two<'_>) {
    let (here, _) = two.reliable();
    for (i, len) in two.sizes().into_iter().enumerate() {
        // Among them places that are not aligned.
        let (from, to, seed) = (i as u64, THERE + 3 * i as u64, i as u8);
        two.a.fill(from, len, seed);
        two.a.post(&here, len, Work::Write(two.b.at(to), None), from, len);
        well(&mut two.a, len);
        assert_eq!(two.b.sum(to, len), sum_of_pattern(len, seed), "a WRITE of {len} bytes");
    }
}

pub(crate) fn reads(two: &mut Two<'_>) {
    let (here, _) = two.reliable();
    for (i, len) in two.sizes().into_iter().enumerate() {
        let (from, to, seed) = (THERE + i as u64, 3 * i as u64, i as u8);
        two.b.fill(from, len, seed);
        two.a.post(&here, len, Work::Read(two.b.at(from)), to, len);
        well(&mut two.a, len);
        assert_eq!(two.a.sum(to, len), sum_of_pattern(len, seed), "a READ of {len} bytes");
    }
}

pub(crate) fn sends(two: &mut Two<'_>) {
    let (here, there) = two.reliable();
    for (i, len) in two.sizes().into_iter().enumerate() {
        for imm in [None, Some(0x8000_0001 + i as u32)] {
            let seed = i as u8;
            two.b.recv(&there, 1000 + i as u64, THERE, len + 8);
            two.a.fill(0, len, seed);
            two.a.post(&here, len, Work::Send(imm), 0, len);
            let got = well(&mut two.b, 1000 + i as u64);
            assert_eq!((u64::from(got.len), got.imm), (len, imm), "a SEND of {len} bytes");
            well(&mut two.a, len);
            assert_eq!(two.b.sum(THERE, len), sum_of_pattern(len, seed));
        }
    }
}

pub(crate) fn writes_with_immediate(two: &mut Two<'_>) {
    let (here, there) = two.reliable();
    for (i, len) in two.sizes().into_iter().enumerate() {
        let (wr_id, imm) = (i as u64, 0x1234_0000 + i as u32);
        two.b.recv(&there, wr_id, 0, 0);
        two.a.fill(0, len, 7);
        two.a.post(&here, len, Work::Write(two.b.at(THERE), Some(imm)), 0, len);
        let got = well(&mut two.b, wr_id);
        assert_eq!((u64::from(got.len), got.imm), (len, Some(imm)));
        well(&mut two.a, len);
        assert_eq!(two.b.sum(THERE, len), sum_of_pattern(len, 7));
    }
}

pub(crate) fn atomics(two: &mut Two<'_>) {
    let (here, _) = two.reliable();
    let at = two.b.at(64);
    two.b.set(64, u64::MAX);
    let steps = [
        (Work::FetchAdd(at, 43), u64::MAX, 42),
        (Work::CompareSwap(at, 42, 1 << 63), 42, 1 << 63),
        (Work::CompareSwap(at, 42, 9), 1 << 63, 1 << 63),
        (Work::FetchAdd(at, 0x0102_0304_0506_0708), 1 << 63, 0x8102_0304_0506_0708),
    ];
    for (i, (work, before, after)) in steps.into_iter().enumerate() {
        two.a.post(&here, i as u64, work, 8, 8);
        well(&mut two.a, i as u64);
        assert_eq!((two.a.get(8), two.b.get(64)), (before, after), "{work:?}");
    }
    // More of them than may be outstanding.
    two.b.set(64, 0);
    for i in 0..32 {
        two.a.post(&here, i, Work::FetchAdd(at, 1), 1024 + 8 * i, 8);
    }
    for i in 0..32 {
        well(&mut two.a, i);
        assert_eq!(two.a.get(1024 + 8 * i), i);
    }
    assert_eq!(two.b.get(64), 32);
}

/// Requests of all kinds, posted without a wait.
pub(crate) fn in_flight(two: &mut Two<'_>) {
    let (here, there) = two.reliable();
    let mtu = u64::from(two.mtu);
    two.a.fill(0, 1 << 20, 5);
    two.b.fill(1 << 20, 1 << 20, 6);
    two.b.set(64, 0);
    for i in 0..25 {
        two.b.recv(&there, i, THERE + i * 2 * mtu, 2 * mtu);
    }
    for i in 0..25 {
        let len = 1 + i * mtu / 16;
        two.a.post(&here, 4 * i, Work::Send(None), 0, len);
        let far = two.b.at(THERE + (1 << 20) + i * 2 * mtu);
        two.a.post(&here, 4 * i + 1, Work::Write(far, None), 0, len);
        two.a.post(&here, 4 * i + 2, Work::Read(two.b.at(1 << 20)), (1 << 20) + i * 2 * mtu, len);
        two.a.post(&here, 4 * i + 3, Work::FetchAdd(two.b.at(64), 1), THERE + 8 * i, 8);
    }
    for i in 0..100 {
        well(&mut two.a, i);
    }
    for i in 0..25 {
        let len = 1 + i * mtu / 16;
        let got = well(&mut two.b, i);
        assert_eq!(u64::from(got.len), len);
        assert_eq!(two.b.sum(THERE + i * 2 * mtu, len), sum_of_pattern(len, 5));
        let far = THERE + (1 << 20) + i * 2 * mtu;
        assert_eq!(two.b.sum(far, len), sum_of_pattern(len, 5));
        assert_eq!(two.a.sum((1 << 20) + i * 2 * mtu, len), sum_of_pattern(len, 6));
        assert_eq!(two.a.get(THERE + 8 * i), i);
    }
}

pub(crate) fn many_queue_pairs(two: &mut Two<'_>) {
    let joined: Vec<_> = (0..32).map(|_| two.reliable()).collect();
    let len = 10_000;
    for (i, (here, _)) in joined.iter().enumerate() {
        let i = i as u64;
        two.a.fill(i * 16_384, len, i as u8);
        two.a.post(here, i, Work::Write(two.b.at(THERE + i * 16_384), None), i * 16_384, len);
    }
    let mut left: Vec<u64> = (0..32).collect();
    while !left.is_empty() {
        let done = next(&mut two.a);
        assert_eq!(done.status, Status::Success);
        left.retain(|wr_id| *wr_id != done.wr_id);
    }
    for i in 0..32 {
        assert_eq!(two.b.sum(THERE + i * 16_384, len), sum_of_pattern(len, i as u8));
    }
}

pub(crate) fn both_ways(two: &mut Two<'_>) {
    let (here, there) = two.reliable();
    let len = 1 << 20;
    two.a.fill(0, len, 1);
    two.b.fill(0, len, 2);
    two.a.post(&here, 1, Work::Write(two.b.at(THERE), None), 0, len);
    two.b.post(&there, 2, Work::Write(two.a.at(THERE), None), 0, len);
    two.a.post(&here, 3, Work::Read(two.b.at(0)), 1 << 20, len);
    two.b.post(&there, 4, Work::Read(two.a.at(0)), 1 << 20, len);
    for wr_id in [1, 3] {
        well(&mut two.a, wr_id);
    }
    for wr_id in [2, 4] {
        well(&mut two.b, wr_id);
    }
    for (at, of_a, of_b) in [(THERE, 2, 1), (1 << 20, 2, 1)] {
        assert_eq!(two.a.sum(at, len), sum_of_pattern(len, of_a));
        assert_eq!(two.b.sum(at, len), sum_of_pattern(len, of_b));
    }
}

pub(crate) fn unreliable(two: &mut Two<'_>) {
    let terms = two.terms();
    let (here, there) = two.join(Service::Uc, &terms);
    for (i, len) in two.sizes().into_iter().enumerate() {
        // An unreliable service repeats nothing, so messages are short enough for every buffer on
        // the way.
        let len = len.min(16 * u64::from(two.mtu));
        let (wr_id, imm) = (i as u64, Some(i as u32));
        two.a.fill(0, len, i as u8);
        two.b.recv(&there, wr_id, THERE, len);
        two.a.post(&here, wr_id, Work::Send(imm), 0, len);
        well(&mut two.a, wr_id);
        let got = well(&mut two.b, wr_id);
        assert_eq!((u64::from(got.len), got.imm), (len, imm), "a SEND of {len} bytes");
        assert_eq!(two.b.sum(THERE, len), sum_of_pattern(len, i as u8));
        let far = THERE + (1 << 20);
        two.b.recv(&there, wr_id, 0, 0);
        two.a.post(&here, wr_id, Work::Write(two.b.at(far), imm), 0, len);
        well(&mut two.a, wr_id);
        let got = well(&mut two.b, wr_id);
        assert_eq!((u64::from(got.len), got.imm), (len, imm), "a WRITE of {len} bytes");
        assert_eq!(two.b.sum(far, len), sum_of_pattern(len, i as u8));
    }
}
