//! Datagram services.

use super::*;
use crate::cm::message::SidrStatus;

const SERVICE: u16 = 7471;

fn question() -> ResolveRequest<'static> {
    ResolveRequest {
        remote: ip(2),
        service: PortSpace::Udp.service_id(SERVICE),
        local_port: 555,
        told: None,
        private_data: b"who?",
    }
}

fn ask(pair: &mut Pair) -> SidrId {
    pair.a.resolve_sidr(pair.now, &question()).unwrap()
}

fn answer() -> SidrAnswer<'static> {
    SidrAnswer { status: SidrStatus::Success, qpn: 0x33, qkey: 0x0123_4567, private_data: b"me" }
}

fn asked(pair: &mut Pair) -> (SidrId, SidrId) {
    pair.b.listen(PortSpace::Udp.service_id(SERVICE)).unwrap();
    let a = ask(pair);
    pair.a_to_b();
    let Some(CmEvent::SidrRequest(request)) = pair.b.poll_event() else { panic!() };
    let destination = request.told.map(|told| told.destination);
    assert_eq!((request.peer, destination), ((ip(1), 555).into(), Some(ip(2))));
    assert_eq!((&request.private_data[..5], request.private_data.len()), (&b"who?\0"[..], 180));
    (a, request.sidr)
}

#[test]
fn a_service_is_resolved() {
    let mut pair = Pair::new();
    let (a, b) = asked(&mut pair);
    pair.b.sidr_reply(pair.now, b, &answer()).unwrap();
    pair.b_to_a();
    let Some(CmEvent::SidrReply(reply)) = pair.a.poll_event() else { panic!() };
    assert_eq!((reply.sidr, reply.status), (a, SidrStatus::Success));
    assert_eq!((reply.qpn, reply.qkey), (0x33, 0x0123_4567));
    assert_eq!((&reply.private_data[..3], reply.private_data.len()), (&b"me\0"[..], 136));
    assert_eq!(pair.a.poll_timeout(), Time::NEVER);
    pair.b.handle_timeout(pair.b.poll_timeout());
    assert_eq!(pair.b.poll_timeout(), Time::NEVER, "the answer is forgotten in the end");
}

#[test]
fn a_service_is_resolved_by_a_mapped_address() {
    let mut pair = Pair::new();
    pair.b.listen(PortSpace::Udp.service_id(SERVICE)).unwrap();
    let asks = ResolveRequest { remote: mapped(2), ..question() };
    let sidr = pair.a.resolve_sidr(pair.now, &asks).unwrap();
    pair.a_to_b();
    let Some(CmEvent::SidrRequest(request)) = pair.b.poll_event() else { panic!() };
    pair.b.sidr_reply(pair.now, request.sidr, &answer()).unwrap();
    pair.b_to_a();
    let Some(CmEvent::SidrReply(reply)) = pair.a.poll_event() else { panic!() };
    assert_eq!((reply.sidr, reply.status), (sidr, SidrStatus::Success));
}

#[test]
fn a_repeated_question_is_told_once_and_answered_twice() {
    let mut pair = Pair::new();
    let (_, b) = asked(&mut pair);
    pair.wait();
    pair.a_to_b();
    assert_eq!((pair.b.poll_event(), pair.b.poll_mad()), (None, None));
    pair.b.sidr_reply(pair.now, b, &answer()).unwrap();
    let lost = pair.b.poll_mad();
    pair.wait();
    pair.a_to_b();
    assert_eq!((pair.b.poll_event(), pair.b.poll_mad()), (None, lost));
    assert_eq!(pair.b.sidr_reply(pair.now, b, &answer()), Err(SidrError::Unknown));
}

#[test]
fn a_service_without_a_listener_is_refused() {
    let mut pair = Pair::new();
    ask(&mut pair);
    pair.settle();
    let Some(CmEvent::SidrReply(reply)) = pair.a.poll_event() else { panic!() };
    assert_eq!(reply.status, SidrStatus::Unsupported);
    assert_eq!(pair.b.counters().invalid_service, 1);
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    let mut pair = Pair::new();
    let sidr = ask(&mut pair);
    for _ in 0..16 {
        pair.wait();
    }
    assert_eq!(pair.a.poll_event(), Some(CmEvent::SidrUnreachable { sidr }));
    assert_eq!((sent(&mut pair.a).len(), pair.a.poll_timeout()), (16, Time::NEVER));
}

#[test]
fn a_cancelled_question_causes_no_event() {
    let mut pair = Pair::new();
    let (a, b) = asked(&mut pair);
    pair.a.cancel_sidr(a).unwrap();
    assert_eq!(pair.a.cancel_sidr(a), Err(SidrError::Unknown));
    assert_eq!(pair.b.cancel_sidr(b), Err(SidrError::Unknown), "it is the peer's");
    pair.b.sidr_reply(pair.now, b, &answer()).unwrap();
    pair.b_to_a();
    assert_eq!((pair.a.poll_event(), pair.a.poll_timeout()), (None, Time::NEVER));
}

/// `b` may remember so many resolutions of peers.
fn limited(max_resolutions: usize) -> Pair {
    let mut pair = Pair::new();
    pair.b = Cm::new(CmConfig { max_resolutions, ..config(2) }, 2);
    pair.b.listen(PortSpace::Udp.service_id(SERVICE)).unwrap();
    pair
}

/// Carries a question of `a`'s to `b` as one that comes from `from`; returns what `b` tells of it.
fn asked_from(pair: &mut Pair, from: IpAddr) -> Option<SidrId> {
    ask(pair);
    let mad = pair.a.poll_mad().unwrap();
    pair.b.handle_mad(pair.now, from, CM_QPN, mad.bytes.as_slice());
    match pair.b.poll_event()? {
        CmEvent::SidrRequest(question) => Some(question.sidr),
        other => panic!("{other:?}"),
    }
}

#[test]
fn old_answers_make_room_for_questions() {
    let mut pair = limited(2);
    for n in 0..4 {
        let sidr = asked_from(&mut pair, ip(1));
        pair.b.sidr_reply(pair.now, sidr.unwrap_or_else(|| panic!("{n}")), &answer()).unwrap();
    }
    assert_eq!(pair.b.counters().too_many_resolutions, 0);
}

#[test]
fn a_peer_may_have_half_of_the_questions_that_wait() {
    let mut pair = limited(4);
    let told: Vec<_> = (0..3).map(|_| asked_from(&mut pair, ip(1)).is_some()).collect();
    assert_eq!(told, [true, true, false]);
    assert_eq!(pair.b.counters().too_many_resolutions, 1);
    assert!(asked_from(&mut pair, ip(3)).is_some(), "another peer finds room");
}

#[test]
fn a_question_that_nobody_answers_is_forgotten() {
    let mut pair = limited(4);
    let first = asked_from(&mut pair, ip(1)).unwrap();
    for _ in 0..2 {
        ask(&mut pair);
        pair.a_to_b();
    }
    assert_eq!(pair.b.counters().too_many_resolutions, 1, "there is room for two");
    pair.b.poll_mad();
    pair.now = pair.b.poll_timeout();
    pair.b.handle_timeout(pair.now);
    assert_eq!((pair.b.poll_event(), pair.b.poll_timeout()), (None, Time::NEVER));
    assert_eq!(pair.b.sidr_reply(pair.now, first, &answer()), Err(SidrError::Unknown));
    assert!(asked_from(&mut pair, ip(1)).is_some(), "there is room again");
}

#[test]
fn the_end_of_a_listener_refuses_the_questions_that_nobody_has_seen() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(PortSpace::Udp.service_id(SERVICE)).unwrap();
    let seen = asked_from(&mut pair, ip(1)).unwrap();
    ask(&mut pair);
    pair.a_to_b();
    assert!(pair.b.unlisten(listener));
    assert_eq!(pair.b.poll_event(), None);
    let Message::SidrRep(no) = pair.b_to_a() else { panic!() };
    assert_eq!(no.status, SidrStatus::Unsupported);
    pair.b.sidr_reply(pair.now, seen, &answer()).unwrap();
}

#[test]
fn a_service_of_connections_is_not_resolved() {
    let mut pair = Pair::new();
    let service = PortSpace::Tcp.service_id(PORT);
    let request = ResolveRequest { service, ..question() };
    pair.a.resolve_sidr(pair.now, &request).unwrap();
    pair.settle();
    let Some(CmEvent::SidrReply(reply)) = pair.a.poll_event() else { panic!() };
    assert_eq!(reply.status, SidrStatus::Unsupported);
    assert_eq!((pair.b.poll_event(), pair.b.counters().invalid_service), (None, 1));
}
