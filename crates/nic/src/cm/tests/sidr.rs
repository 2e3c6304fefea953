//! Datagram services.

use super::*;
use crate::cm::message::SidrStatus;

const SERVICE: u16 = 7471;

fn ask(pair: &mut Pair) -> SidrId {
    let service = PortSpace::Udp.service_id(SERVICE);
    let request = ResolveRequest {
        remote: ip(2),
        service,
        local_port: 555,
        told: None,
        private_data: b"who?",
    };
    pair.a.resolve_sidr(pair.now, &request).unwrap()
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

#[test]
fn old_answers_make_room_for_questions() {
    let mut pair = Pair::new();
    pair.b = Cm::new(CmConfig { max_resolutions: 2, ..config(2) }, 2);
    pair.b.listen(PortSpace::Udp.service_id(SERVICE)).unwrap();
    let mut told = Vec::new();
    for _ in 0..3 {
        ask(&mut pair);
        pair.a_to_b();
        told.extend(events(&mut pair.b));
    }
    assert_eq!((told.len(), pair.b.counters().too_many_resolutions), (2, 1));
    let CmEvent::SidrRequest(first) = &told[0] else { panic!() };
    pair.b.sidr_reply(pair.now, first.sidr, &answer()).unwrap();
    ask(&mut pair);
    pair.a_to_b();
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::SidrRequest(_))));
}
