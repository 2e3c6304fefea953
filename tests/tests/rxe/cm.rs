//! RDMA connection management.

use std::sync::atomic::{AtomicU16, Ordering};

use remora_tests::end::{End, Met, PATIENCE, Pair, Work, sum_of_pattern};
use remora_tests::wire::{Fate, Seen, Towards};

use crate::{Two, well};

const THERE: u64 = 2 << 20;

/// Attributes of the connection manager's messages.
pub(crate) const REQ: u16 = 0x10;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;

/// A new port for each connection, because the kernel keeps a port for a while after its use.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(7500);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `a` connects to `b`; returns their queue pairs.
fn meet(two: &mut Two<'_>) -> (Pair, Pair) {
    let port = port();
    two.b.listen(port);
    two.b.begin_accept("welcome");
    two.a.begin_connect(two.b.address(), port, "hello");
    let (of_a, of_b) = (two.a.finish(), two.b.finish());
    let Met::Connected(here, said) = of_a else { panic!("{}: {of_a:?}", two.a.name()) };
    assert_eq!(said, "welcome");
    let Met::Connected(there, said) = of_b else { panic!("{}: {of_b:?}", two.b.name()) };
    assert_eq!(said, "hello");
    two.b.unlisten();
    (here, there)
}

/// Some traffic of each kind, both ways.
fn talk(two: &mut Two<'_>, here: &Pair, there: &Pair) {
    let len = 3 * u64::from(two.mtu) + 1;
    tell(&mut two.a, &mut two.b, (here, there), len);
    tell(&mut two.b, &mut two.a, (there, here), len);
}

fn tell(
    from: &mut Box<dyn End>,
    to: &mut Box<dyn End>,
    (of_from, of_to): (&Pair, &Pair),
    len: u64,
) {
    from.fill(0, len, 4);
    to.recv(of_to, 1, THERE, len);
    from.post(of_from, 2, Work::Send(None), 0, len);
    well(to, 1);
    well(from, 2);
    assert_eq!(to.sum(THERE, len), sum_of_pattern(len, 4));
    from.post(of_from, 3, Work::Write(to.at(THERE + (1 << 20)), None), 0, len);
    well(from, 3);
    from.post(of_from, 4, Work::Read(to.at(THERE)), 1 << 20, len);
    well(from, 4);
    assert_eq!(from.sum(1 << 20, len), sum_of_pattern(len, 4));
    to.set(64, 1);
    from.post(of_from, 5, Work::FetchAdd(to.at(64), 1), 128, 8);
    well(from, 5);
    assert_eq!(to.get(64), 2);
}

pub(crate) fn connecting(two: &mut Two<'_>) {
    let (here, there) = meet(two);
    talk(two, &here, &there);
    two.a.disconnect(&here);
    assert!(two.b.ended(&there, PATIENCE), "{} learns that the connection has ended", two.b.name());
    two.b.disconnect(&there);
}

pub(crate) fn parting_by_passive(two: &mut Two<'_>) {
    let (here, there) = meet(two);
    talk(two, &here, &there);
    two.b.disconnect(&there);
    assert!(two.a.ended(&here, PATIENCE), "{} learns that the connection has ended", two.a.name());
}

pub(crate) fn refusing(two: &mut Two<'_>) {
    let port = port();
    two.b.listen(port);
    two.b.begin_refuse("not-today");
    two.a.begin_connect(two.b.address(), port, "hello");
    assert_eq!(two.a.finish(), Met::Refused("not-today".into()));
    assert_eq!(two.b.finish(), Met::Refused("hello".into()));
}

pub(crate) fn no_listener(two: &mut Two<'_>) {
    two.a.begin_connect(two.b.address(), port(), "hello");
    let met = two.a.finish();
    assert!(matches!(met, Met::Refused(_)), "{met:?}");
}

pub(crate) fn again_and_again(two: &mut Two<'_>) {
    for _ in 0..20 {
        let (here, there) = meet(two);
        two.a.post(&here, 1, Work::Write(two.b.at(THERE), None), 0, 64);
        well(&mut two.a, 1);
        two.a.disconnect(&here);
        assert!(two.b.ended(&there, PATIENCE));
        two.a.destroy(&here);
        two.b.destroy(&there);
    }
}

/// The first message of each kind is lost. The manager's timers are slow: about four seconds for
/// each.
pub(crate) fn with_loss(two: &mut Two<'_>) {
    for towards in [Towards::Machine, Towards::Host] {
        let mut lost = Vec::new();
        two.world.wire.judge(towards, move |seen: &Seen| match seen.cm {
            Some(kind @ (REQ | REP | RTU)) if !lost.contains(&kind) => {
                lost.push(kind);
                Fate::Lose
            }
            _ => Fate::Pass,
        });
    }
    let (here, there) = meet(two);
    assert_eq!(two.world.wire.heal(), 3);
    talk(two, &here, &there);
    two.a.disconnect(&here);
    assert!(two.b.ended(&there, PATIENCE));
}
