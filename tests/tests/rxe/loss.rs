//! Bad wires: each request is still executed once, whole and in order.

use remora_tests::end::{Pair, Service, Terms, Work, sum_of_pattern};
use remora_tests::wire::{Fate, Seen, Towards};

use crate::{KERNEL, Two, well};

const THERE: u64 = 2 << 20;
const LONG: u64 = 300_000;

/// BTH op-codes of reliable connections.
const READ_RESPONSE_FIRST: u8 = 0x0d;
const READ_RESPONSE_ONLY: u8 = 0x10;
const ACKNOWLEDGE: u8 = 0x11;
const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
const WRITE_LAST: u8 = 0x08;

/// The direction in which `a` sends.
fn forth(two: &Two<'_>) -> Towards {
    if two.a.name() == KERNEL { Towards::Host } else { Towards::Machine }
}

/// The direction in which `a` receives.
fn back(two: &Two<'_>) -> Towards {
    if forth(two) == Towards::Host { Towards::Machine } else { Towards::Host }
}

fn join(two: &mut Two<'_>) -> (Pair, Pair) {
    let terms = Terms { timeout: 14, ..two.terms() };
    two.join(Service::Rc, &terms)
}

/// Some traffic of each kind, checked.
fn traffic(two: &mut Two<'_>, (here, there): &(Pair, Pair), seed: u8) {
    two.a.fill(0, LONG, seed);
    two.b.fill(1 << 20, LONG, seed + 1);
    two.b.set(64, 0);
    for i in 0..8 {
        two.b.recv(there, i, THERE + i * 16_384, 10_000);
    }
    two.a.post(here, 100, Work::Write(two.b.at(THERE + (1 << 20)), None), 0, LONG);
    for i in 0..8 {
        two.a.post(here, 101 + i, Work::Send(Some(i as u32)), 0, 10_000);
    }
    two.a.post(here, 109, Work::Read(two.b.at(1 << 20)), 1 << 20, LONG);
    for i in 0..8 {
        two.a.post(here, 110 + i, Work::FetchAdd(two.b.at(64), 1), THERE + 8 * i, 8);
    }
    for i in 100..118 {
        well(&mut two.a, i);
    }
    for i in 0..8 {
        let got = well(&mut two.b, i);
        assert_eq!((got.len, got.imm), (10_000, Some(i as u32)));
        assert_eq!(two.b.sum(THERE + i * 16_384, 10_000), sum_of_pattern(10_000, seed));
        assert_eq!(two.a.get(THERE + 8 * i), i, "each atomic is carried out once");
    }
    assert_eq!(two.b.get(64), 8, "each atomic is carried out once");
    assert_eq!(two.b.sum(THERE + (1 << 20), LONG), sum_of_pattern(LONG, seed));
    assert_eq!(two.a.sum(1 << 20, LONG), sum_of_pattern(LONG, seed + 1));
}

/// Gives the same fate to one in n packets in these directions, then makes traffic. The packets are
/// chosen pseudo-randomly: a regular loss can hit the same packet each time it is sent again. For
/// example, soft-RoCE repeats 55 packets from the lost one on; if every 5th is lost, the first is
/// lost each time, and with a retry count of 7 soft-RoCE never gives up.
fn one_in(two: &mut Two<'_>, n: u64, fate: Fate, towards: &[Towards]) {
    let joined = join(two);
    for towards in towards {
        let chosen = move |count: u64| {
            let mixed = count.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(27) ^ count;
            mixed.is_multiple_of(n)
        };
        two.world.wire.trouble(*towards, fate, |_| true, chosen);
    }
    for round in 0..3 {
        traffic(two, &joined, 10 * round);
    }
    let troubled = two.world.wire.heal();
    assert!(troubled > 2, "only {troubled} packets met their fate");
    traffic(two, &joined, 99);
}

pub(crate) fn of_data(two: &mut Two<'_>) {
    let forth = forth(two);
    one_in(two, 37, Fate::Lose, &[forth]);
}

pub(crate) fn of_answers(two: &mut Two<'_>) {
    let back = back(two);
    one_in(two, 23, Fate::Lose, &[back]);
}

pub(crate) fn both_ways(two: &mut Two<'_>) {
    one_in(two, 41, Fate::Lose, &[Towards::Machine, Towards::Host]);
}

pub(crate) fn repeated(two: &mut Two<'_>) {
    one_in(two, 3, Fate::Repeat, &[Towards::Machine, Towards::Host]);
}

pub(crate) fn out_of_order(two: &mut Two<'_>) {
    one_in(two, 29, Fate::Delay, &[Towards::Machine, Towards::Host]);
}

pub(crate) fn of_an_atomic_answer(two: &mut Two<'_>) {
    let (here, _) = join(two);
    two.b.set(64, 5);
    let is = |seen: &Seen| seen.opcode == ATOMIC_ACKNOWLEDGE;
    two.world.wire.trouble(back(two), Fate::Lose, is, |n| n == 1 || n == 4);
    for i in 0..6 {
        two.a.post(&here, i, Work::FetchAdd(two.b.at(64), 10), 8 * i, 8);
    }
    for i in 0..6 {
        well(&mut two.a, i);
        assert_eq!(two.a.get(8 * i), 5 + 10 * i);
    }
    assert_eq!(two.b.get(64), 65);
    assert_eq!(two.world.wire.heal(), 2);
}

pub(crate) fn of_read_answers(two: &mut Two<'_>) {
    let (here, _) = join(two);
    let len = 6 * u64::from(two.mtu);
    two.b.fill(THERE, len, 3);
    for lost in READ_RESPONSE_FIRST..=READ_RESPONSE_ONLY {
        let len = if lost == READ_RESPONSE_ONLY { 64 } else { len };
        two.world.wire.trouble(back(two), Fate::Lose, move |seen| seen.opcode == lost, |n| n == 1);
        two.a.fill(0, len, 0);
        two.a.post(&here, 1, Work::Read(two.b.at(THERE)), 0, len);
        // A request after it, whose response shows that something is missing.
        two.a.post(&here, 2, Work::Read(two.b.at(THERE)), 1 << 20, len);
        well(&mut two.a, 1);
        well(&mut two.a, 2);
        assert_eq!(two.a.sum(0, len), sum_of_pattern(len, 3), "without answer {lost:#x}");
        assert_eq!(two.a.sum(1 << 20, len), sum_of_pattern(len, 3), "without answer {lost:#x}");
        assert_eq!(two.world.wire.heal(), 1, "without answer {lost:#x}");
    }
}

/// No later packet shows the gap: only the timeout does.
pub(crate) fn of_the_last(two: &mut Two<'_>) {
    let (here, _) = join(two);
    let len = 3 * u64::from(two.mtu);
    for (towards, lost) in [(forth(two), WRITE_LAST), (back(two), ACKNOWLEDGE)] {
        two.world.wire.trouble(towards, Fate::Lose, move |seen| seen.opcode == lost, |n| n == 1);
        two.a.fill(0, len, lost);
        two.a.post(&here, 1, Work::Write(two.b.at(THERE), None), 0, len);
        well(&mut two.a, 1);
        assert_eq!(two.b.sum(THERE, len), sum_of_pattern(len, lost));
        assert_eq!(two.world.wire.heal(), 1);
    }
}
