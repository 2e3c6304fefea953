//! What two cards agree on beyond the standard.

use super::*;
use crate::wire::Dialect;

/// Connects two managers that offer these dialects. Returns what either side has agreed on.
fn agreed(
    transport: TransportService,
    (a, b): (Dialect, Dialect),
) -> (Pair, Dialect, Dialect, ConnId) {
    let mut pair = Pair::new();
    pair.a.config.offers = a;
    pair.b.config.offers = b;
    let request = ConnectRequest { transport, ..to_port(ip(2), PORT, A_QPN) };
    let conn = pair.a.connect(pair.now, &request).unwrap();
    pair.a_to_b();
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    pair.b.accept(pair.now, request.conn, &params(B_QPN)).unwrap();
    pair.b_to_a();
    let Some(CmEvent::Replied(reply)) = pair.a.poll_event() else { panic!() };
    (pair, reply.dialect, request.dialect, conn)
}

#[test]
fn both_sides_use_what_both_offer() {
    let all = [Dialect::STANDARD, Dialect::KERNELS, Dialect::LOSSY, Dialect::all()];
    for a in all {
        for b in all {
            let (_, at_a, at_b, _) = agreed(TransportService::Rc, (a, b));
            assert_eq!((at_a, at_b), (a & b, a & b), "{a:?} and {b:?}");
        }
    }
}

#[test]
fn only_reliable_connections_have_a_dialect() {
    let offers = (Dialect::all(), Dialect::all());
    for transport in [TransportService::Uc, TransportService::Extended] {
        let (_, at_a, at_b, _) = agreed(transport, offers);
        assert_eq!((at_a, at_b), (Dialect::STANDARD, Dialect::STANDARD));
    }
}

/// A peer that knows no offers has a GUID without the mark, and sees a GUID like any other.
#[test]
fn a_card_that_offers_nothing_has_its_own_guid() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    let Message::Req(req) = pair.a_to_b() else { panic!() };
    assert_eq!(req.local_ca_guid, 1);
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    pair.b.accept(pair.now, request.conn, &params(B_QPN)).unwrap();
    let Message::Rep(rep) = pair.b_to_a() else { panic!() };
    assert_eq!(rep.local_ca_guid, 2);
}

/// A reply that confirms more than was offered gets no more than that.
#[test]
fn a_reply_cannot_confirm_more_than_was_offered() {
    let mut pair = Pair::new();
    pair.a.config.offers = Dialect::KERNELS;
    pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    pair.a_to_b();
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    pair.b.accept(pair.now, request.conn, &params(B_QPN)).unwrap();
    let mad = pair.b.poll_mad().unwrap();
    let (tid, Message::Rep(rep)) = Message::from_mad(mad.bytes.as_slice()).unwrap() else {
        panic!()
    };
    let local_ca_guid = crate::cm::offer::guid_with(2, Dialect::LOSSY);
    let rep = Message::from(crate::cm::message::Rep { local_ca_guid, ..rep }).to_mad(tid);
    pair.a.handle_mad(pair.now, ip(2), CM_QPN, &rep);
    let Some(CmEvent::Replied(reply)) = pair.a.poll_event() else { panic!() };
    assert_eq!(reply.dialect, Dialect::STANDARD);
}

/// A repeated request is the same request, and a peer that gives up is recognised, although the
/// messages of one card differ in what they offer.
#[test]
fn a_card_is_the_same_in_all_its_messages() {
    let mut pair = Pair::new();
    (pair.a.config.offers, pair.b.config.offers) = (Dialect::all(), Dialect::all());
    let conn = pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    let _lost = pair.a_to_b();
    let Some(CmEvent::ConnectRequest(_)) = pair.b.poll_event() else { panic!() };
    pair.a.destroy(pair.now, conn).unwrap();
    pair.settle();
    assert!(
        matches!(pair.b.poll_event(), Some(CmEvent::Rejected { .. })),
        "the passive side did not recognise the card that gave up"
    );
}
