//! A hostile peer: nothing that it sends makes the manager panic or grow beyond its limits.

use proptest::prelude::*;

use super::*;
use crate::cm::mad::{self, Header};
use crate::cm::message::RejectReason;

/// What may happen to a manager.
#[derive(Clone, Debug)]
enum Happening {
    /// Any bytes.
    Bytes(Vec<u8>),
    /// A well-formed message of random content, with ids that may exist.
    Message {
        kind: u16,
        seed: u64,
        ids: (u8, u8),
        qpn: u8,
    },
    /// The caller does something to one of its connections.
    Command {
        which: u8,
        what: u8,
    },
    Time,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        1 => proptest::collection::vec(any::<u8>(), 0..300).prop_map(Happening::Bytes),
        8 => (0x10..=0x18_u16, any::<u64>(), any::<(u8, u8)>(), 0..4_u8)
            .prop_map(|(kind, seed, ids, qpn)| Happening::Message { kind, seed, ids, qpn }),
        4 => any::<(u8, u8)>().prop_map(|(which, what)| Happening::Command { which, what }),
        2 => Just(Happening::Time),
    ]
}

/// Random data of a message, with ids and queue pairs that may exist.
fn data(cm: &Cm, kind: u16, seed: u64, ids: (u8, u8), qpn: u8) -> mad::Data {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut data = [0; mad::DATA_LEN];
    rng.fill_bytes(&mut data);
    let ours: Vec<u32> = cm.connections.keys().copied().collect();
    let pick = |n: u8| ours.get(usize::from(n) % (ours.len() + 1)).copied().unwrap_or(7);
    // The peer's id is a small number, so that several messages have the same one.
    data[..4].copy_from_slice(&u32::from(ids.0 % 4).to_be_bytes());
    if !matches!(kind, 0x10 | 0x17) {
        data[4..8].copy_from_slice(&pick(ids.1).to_be_bytes());
    }
    if kind == 0x10 && !seed.is_multiple_of(8) {
        data[8..16].copy_from_slice(&PortSpace::Tcp.service_id(PORT).0.to_be_bytes());
        data[32..35].copy_from_slice(&[0, 0, qpn]);
        data[43] &= !0b110;
        data[50] = 3 << 4;
        data[140..142].copy_from_slice(&[0, 4 << 4]);
    }
    if kind == 0x17 {
        data[8..16].copy_from_slice(&PortSpace::Udp.service_id(PORT).0.to_be_bytes());
        data[16..18].copy_from_slice(&[0, 4 << 4]);
    }
    data
}

fn command(cm: &mut Cm, now: Time, which: u8, what: u8) {
    let ours: Vec<u32> = cm.connections.keys().copied().collect();
    let Some(id) = ours.get(usize::from(which) % (ours.len() + 1)) else {
        let _ = cm.connect(now, &to_port(ip(1), PORT, u32::from(what)));
        return;
    };
    let conn = ConnId(*id);
    let _ = match what % 9 {
        0 | 1 => cm.accept(now, conn, &params(u32::from(what))),
        2 => cm.establish(now, conn, b""),
        3 => cm.reject(now, conn, RejectReason::CONSUMER_DEFINED, b""),
        4 => cm.mra(now, conn, what),
        5 => cm.disconnect(now, conn, b""),
        6 => cm.disconnect_reply(now, conn, b""),
        7 => cm.notify_established(now, conn),
        _ => cm.destroy(now, conn),
    };
}

proptest! {
    #[test]
    fn nothing_panics_and_nothing_grows(
        happenings in proptest::collection::vec(happening(), 0..300),
    ) {
        let limits = CmConfig { max_outgoing: 16, max_resolutions: 3, ..config(2) };
        let mut cm = Cm::new(limits, 5);
        cm.listen(PortSpace::Tcp.service_id(PORT)).unwrap();
        cm.listen(PortSpace::Udp.service_id(PORT)).unwrap();
        let mut now = Time::ZERO;
        for (n, happening) in happenings.into_iter().enumerate() {
            match happening {
                Happening::Bytes(bytes) => cm.handle_mad(now, ip(1), CM_QPN, &bytes),
                Happening::Message { kind, seed, ids, qpn } => {
                    let header = Header { transaction_id: seed % 3, attribute_id: kind };
                    let mad = mad::emit(header, &data(&cm, kind, seed, ids, qpn));
                    cm.handle_mad(now, ip(1), CM_QPN, &mad);
                }
                Happening::Command { which, what } => command(&mut cm, now, which, what),
                Happening::Time if cm.poll_timeout() != Time::NEVER => {
                    prop_assert!(cm.poll_timeout() > now, "what was due was done");
                    now = cm.poll_timeout();
                    cm.handle_timeout(now);
                }
                Happening::Time => {}
            }
            prop_assert!(cm.connections.len() <= limits.max_connections);
            prop_assert!(cm.by_peer.len() <= cm.connections.len());
            prop_assert!(cm.by_qpn.len() <= cm.connections.len());
            prop_assert!(cm.released.len() <= cm.connections.len());
            prop_assert!(cm.timers.len() <= cm.connections.len() + limits.max_resolutions);
            prop_assert!(cm.outgoing.len() <= limits.max_outgoing);
            // The caller takes events only now and then, and there must be few enough even so.
            if n % 64 == 63 {
                prop_assert!(cm.events.len() <= 6 * (64 + limits.max_connections));
                events(&mut cm);
            }
        }
    }
}

/// A peer floods a caller that takes no events: the queue of events does not grow without end.
#[test]
fn a_flood_of_requests_fills_no_queue_without_end() {
    let mut pair = Pair::new();
    pair.b.listen(PortSpace::Udp.service_id(PORT)).unwrap();
    for n in 0..5000_u32 {
        let header = Header { transaction_id: u64::from(n), attribute_id: 0x10 };
        let mut data = data(&pair.b, 0x10, 1, (0, 0), 0);
        data[..4].copy_from_slice(&n.to_be_bytes());
        data[32..35].copy_from_slice(&n.to_be_bytes()[1..]);
        pair.b.handle_mad(pair.now, ip(1), CM_QPN, &mad::emit(header, &data));
        // Each request is given up at once, which would be another event.
        let mut rej = [0; mad::DATA_LEN];
        rej[..4].copy_from_slice(&n.to_be_bytes());
        rej[11] = 4;
        rej[12..20].copy_from_slice(&data[16..24]);
        let header = Header { transaction_id: u64::from(n), attribute_id: 0x12 };
        pair.b.handle_mad(pair.now, ip(1), CM_QPN, &mad::emit(header, &rej));
        sent(&mut pair.b);
    }
    assert_eq!(pair.b.connections(), 2, "half of the backlog, as all come from one peer");
    assert_eq!(events(&mut pair.b).len(), 4);
    assert_eq!(pair.b.counters().backlog_full, 5000 - 2);
}

#[test]
fn what_cannot_be_sent_is_dropped_and_counted() {
    let mut cm = Cm::new(CmConfig { max_outgoing: 1, ..config(1) }, 1);
    cm.connect(Time::ZERO, &to_port(ip(2), PORT, 1)).unwrap();
    cm.connect(Time::ZERO, &to_port(ip(2), PORT, 2)).unwrap();
    assert_eq!((sent(&mut cm).len(), cm.counters().outgoing_full), (1, 1));
}

#[test]
fn every_counter_has_a_name() {
    let mut cm = Cm::new(config(1), 1);
    cm.handle_mad(Time::ZERO, ip(2), CM_QPN, b"junk");
    let counted: Vec<_> = cm.counters().named().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [("cm_malformed", 1)]);
}
