//! Directed tests, one message at a time: connecting, repeating, disconnecting.

use super::*;
use crate::cm::message::{Answered, RejectReason};

#[test]
fn a_connection_from_beginning_to_end() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    pair.a_to_b();
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    assert_eq!(request.peer, (ip(1), 40_000).into());
    assert_eq!(request.told.map(|told| told.destination), Some(ip(2)));
    assert_eq!(request.service.port(), Some((PortSpace::Tcp, PORT)));
    assert_eq!((request.remote_qpn, request.starting_psn), (A_QPN, Psn::new(100)));
    assert_eq!((request.responder_resources, request.initiator_depth), (4, 2));
    assert_eq!((request.retry_count, request.rnr_retry_count), (7, 7));
    assert_eq!((request.path_mtu, request.ack_timeout), (3, 14));
    assert_eq!((&request.private_data[..7], request.private_data.len()), (&b"please\0"[..], 56));

    let b = request.conn;
    pair.b.accept(pair.now, b, &params(B_QPN)).unwrap();
    pair.b_to_a();
    let Some(CmEvent::Replied(reply)) = pair.a.poll_event() else { panic!() };
    assert_eq!((reply.conn, reply.remote_qpn, reply.starting_psn), (a, B_QPN, Psn::new(200)));
    assert_eq!((&reply.private_data[..8], reply.private_data.len()), (&b"welcome\0"[..], 196));

    pair.a.establish(pair.now, a, b"go").unwrap();
    pair.a_to_b();
    let Some(CmEvent::Established { conn, private_data }) = pair.b.poll_event() else { panic!() };
    assert_eq!((conn, &private_data[..3], private_data.len()), (b, &b"go\0"[..], 224));
    assert_eq!((pair.a.poll_timeout(), pair.b.poll_timeout()), (Time::NEVER, Time::NEVER));

    pair.a.disconnect(pair.now, a, b"bye").unwrap();
    pair.a_to_b();
    let Some(CmEvent::Disconnected { conn, private_data, timed_out: false }) = pair.b.poll_event()
    else {
        panic!()
    };
    assert_eq!((conn, &private_data[..4], private_data.len()), (b, &b"bye\0"[..], 220));
    pair.b.disconnect_reply(pair.now, b, b"ok").unwrap();
    pair.b_to_a();
    let Some(CmEvent::Disconnected { conn, private_data, timed_out: false }) = pair.a.poll_event()
    else {
        panic!()
    };
    assert_eq!((conn, &private_data[..3], private_data.len()), (a, &b"ok\0"[..], 224));

    assert_eq!(pair.a.state(a), Some(ConnState::TimeWait));
    let before = pair.now;
    pair.wait();
    assert_eq!(pair.now.since(before), Duration::from_nanos(4096 << 14));
    assert_eq!(events(&mut pair.a), [CmEvent::TimewaitExit { conn: a }]);
    assert_eq!(events(&mut pair.b), [CmEvent::TimewaitExit { conn: b }]);
    pair.a.destroy(pair.now, a).unwrap();
    pair.b.destroy(pair.now, b).unwrap();
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
    assert_eq!(pair.a.counters(), &CmCounters::default());
    assert_eq!(pair.b.counters(), &CmCounters::default());
}

/// A socket of IPv6 names a peer of IPv4 by a mapped address. The peer answers from its own.
#[test]
fn a_peer_may_be_named_by_its_mapped_address() {
    let mut pair = Pair::new();
    let request = ConnectRequest { remote: mapped(2), ..to_port(ip(2), PORT, A_QPN) };
    pair.a.connect(pair.now, &request).unwrap();
    pair.a_to_b();
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    assert_eq!(request.told.map(|told| told.destination), Some(ip(2)));
    pair.b.accept(pair.now, request.conn, &params(B_QPN)).unwrap();
    pair.b_to_a();
    assert!(matches!(pair.a.poll_event(), Some(CmEvent::Replied(_))));
}

/// An XRC target's queue pair number is in the field of the end-to-end context. Other
/// implementations' replies have it only there.
#[test]
fn an_xrc_target_is_found_in_its_own_field() {
    let mut pair = Pair::new();
    let request =
        ConnectRequest { transport: TransportService::Extended, ..to_port(ip(2), PORT, A_QPN) };
    pair.a.connect(pair.now, &request).unwrap();
    pair.a_to_b();
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    assert_eq!(request.transport, TransportService::Extended);
    pair.b.accept(pair.now, request.conn, &params(B_QPN)).unwrap();
    let mad = pair.b.poll_mad().unwrap();
    let (tid, Message::Rep(rep)) = Message::from_mad(mad.bytes.as_slice()).unwrap() else {
        panic!()
    };
    assert_eq!((rep.local_eecn, rep.srq), (B_QPN, true));
    let rep = Message::from(crate::cm::message::Rep { local_qpn: 0, ..rep }).to_mad(tid);
    pair.a.handle_mad(pair.now, ip(2), CM_QPN, &rep);
    let Some(CmEvent::Replied(reply)) = pair.a.poll_event() else { panic!() };
    assert_eq!(reply.remote_qpn, B_QPN);
}

#[test]
fn all_messages_until_established_share_a_transaction() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    let tid = |mad: &OutgoingMad| Message::from_mad(mad.bytes.as_slice()).unwrap().0;
    let req = pair.a.poll_mad().unwrap();
    pair.b.handle_mad(pair.now, ip(1), 1, req.bytes.as_slice());
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    pair.b.accept(pair.now, request.conn, &params(B_QPN)).unwrap();
    let rep = pair.b.poll_mad().unwrap();
    pair.a.handle_mad(pair.now, ip(2), 1, rep.bytes.as_slice());
    pair.a.establish(pair.now, a, b"").unwrap();
    let rtu = pair.a.poll_mad().unwrap();
    assert_eq!((tid(&req), tid(&rep)), (tid(&rtu), tid(&rtu)));
}

#[test]
fn a_lost_request_is_repeated() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    let lost = pair.a.poll_mad().unwrap();
    pair.wait();
    assert_eq!(pair.a.poll_mad().unwrap(), lost);
    assert_eq!(pair.a.counters().retransmissions, 1);
}

#[test]
fn a_repeated_request_gets_the_reply_again() {
    let mut pair = Pair::new();
    let (a, b) = pair.requested();
    pair.b.accept(pair.now, b, &params(B_QPN)).unwrap();
    let lost = sent(&mut pair.b);
    pair.a.handle_timeout(pair.a.poll_timeout());
    pair.a_to_b();
    assert_eq!(sent(&mut pair.b), lost);
    assert_eq!(events(&mut pair.b), []);
    assert_eq!(pair.a.state(a), Some(ConnState::ReqSent));
}

#[test]
fn a_request_repeated_before_the_answer_gets_a_receipt() {
    let mut pair = Pair::new();
    let (a, b) = pair.requested();
    pair.a.handle_timeout(pair.a.poll_timeout());
    pair.a_to_b();
    let Message::Mra(mra) = pair.b_to_a() else { panic!() };
    assert_eq!((mra.acknowledged, mra.service_timeout), (Answered::Req, 24));
    assert_eq!(pair.a.state(a), Some(ConnState::MraReqReceived));
    assert_eq!(pair.a.poll_timeout(), pair.now + Duration::from_nanos(4096 << 24));
    pair.b.accept(pair.now, b, &params(B_QPN)).unwrap();
    pair.b_to_a();
    assert!(matches!(pair.a.poll_event(), Some(CmEvent::Replied(_))));
}

#[test]
fn a_repeated_reply_gets_ready_to_use_again() {
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.a.establish(pair.now, a, b"go").unwrap();
    let lost = sent(&mut pair.a);
    pair.wait();
    assert!(matches!(pair.b_to_a(), Message::Rep(_)));
    assert_eq!(vec![pair.a_to_b()], lost);
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::Established { conn, .. }) if conn == b));
}

#[test]
fn a_reply_repeated_before_ready_to_use_gets_a_receipt() {
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.wait();
    pair.b_to_a();
    let Message::Mra(mra) = pair.a_to_b() else { panic!() };
    assert_eq!(mra.acknowledged, Answered::Rep);
    assert_eq!(pair.b.state(b), Some(ConnState::MraRepReceived));
    pair.a.establish(pair.now, a, b"").unwrap();
    pair.a_to_b();
    assert_eq!(pair.b.state(b), Some(ConnState::Established));
}

#[test]
fn data_that_comes_early_establishes() {
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.a.establish(pair.now, a, b"go").unwrap();
    pair.b.notify_established(pair.now, b).unwrap();
    let private_data = Vec::new();
    assert_eq!(events(&mut pair.b), [CmEvent::Established { conn: b, private_data }]);
    pair.a_to_b();
    assert_eq!(events(&mut pair.b), [], "told once");
}

#[test]
fn the_caller_can_ask_for_time_on_both_sides() {
    let mut pair = Pair::new();
    let (a, b) = pair.requested();
    pair.b.mra(pair.now, b, 22).unwrap();
    pair.b_to_a();
    assert_eq!(pair.a.state(a), Some(ConnState::MraReqReceived));
    assert_eq!(pair.b.mra(pair.now, b, 22), Err(CommandError::WrongState(ConnState::MraReqSent)));
    pair.b.accept(pair.now, b, &params(B_QPN)).unwrap();
    pair.b_to_a();
    pair.a.mra(pair.now, a, 23).unwrap();
    pair.a_to_b();
    assert_eq!(pair.b.state(b), Some(ConnState::MraRepReceived));
    assert_eq!(pair.b.poll_timeout(), pair.now + Duration::from_nanos(4096 << 23));
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable_after_all_retries() {
    let mut pair = Pair::new();
    let conn = pair.a.connect(pair.now, &to_port(ip(9), PORT, A_QPN)).unwrap();
    // Five repetitions come before the peer's time for an answer is over, and do not count.
    for _ in 0..5 + 16 {
        assert_eq!(events(&mut pair.a), []);
        pair.wait();
    }
    assert_eq!(events(&mut pair.a), [CmEvent::Unreachable { conn }]);
    let all = sent(&mut pair.a);
    assert_eq!(all.iter().filter(|m| matches!(m, Message::Req(_))).count(), 5 + 16);
    let Some(Message::Rej(rej)) = all.last() else { panic!() };
    assert_eq!((rej.reason, rej.info_len), (RejectReason::TIMEOUT, 8));
    assert_eq!(rej.info[..8], 1_u64.to_be_bytes());
    assert_eq!((pair.a.state(conn), pair.a.poll_timeout()), (Some(ConnState::Closed), Time::NEVER));
}

#[test]
fn a_passive_side_left_alone_gives_up() {
    let mut pair = Pair::new();
    let (_, conn) = pair.requested();
    pair.b.accept(pair.now, conn, &params(B_QPN)).unwrap();
    while pair.b.state(conn) == Some(ConnState::RepSent) {
        pair.b.handle_timeout(pair.b.poll_timeout());
    }
    assert_eq!(pair.b.poll_event(), Some(CmEvent::Unreachable { conn }));
    pair.b.handle_timeout(pair.b.poll_timeout());
    assert_eq!(pair.b.poll_event(), Some(CmEvent::TimewaitExit { conn }));
    pair.settle();
    assert_eq!(pair.a.connections(), 1, "the caller's until destroyed");
}

#[test]
fn giving_up_reaches_a_peer_whose_id_is_not_known() {
    let mut pair = Pair::new();
    let (a, conn) = pair.requested();
    pair.a.destroy(pair.now, a).unwrap();
    let Message::Rej(rej) = pair.a_to_b() else { panic!() };
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::TIMEOUT, 0));
    assert!(matches!(
        pair.b.poll_event(),
        Some(CmEvent::Rejected { reason: RejectReason::TIMEOUT, .. })
    ));
    assert_eq!(pair.b.state(conn), Some(ConnState::Closed));
}

#[test]
fn a_lost_disconnection_is_repeated_and_answered_from_time_wait() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.disconnect(pair.now, a, b"").unwrap();
    pair.a_to_b();
    pair.b.disconnect_reply(pair.now, b, b"seen").unwrap();
    let lost = pair.b.poll_mad().unwrap();
    pair.a.handle_timeout(pair.a.poll_timeout());
    pair.a_to_b();
    assert_eq!(pair.b.poll_mad(), Some(lost));
}

#[test]
fn a_disconnection_of_a_forgotten_connection_is_answered() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.disconnect(pair.now, a, b"").unwrap();
    pair.b = Cm::new(config(2), 77);
    pair.a_to_b();
    let Message::Drep(drep) = pair.b_to_a() else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (b.0, a.0));
    assert_eq!(pair.a.state(a), Some(ConnState::TimeWait));
    assert_eq!(pair.b.counters().unknown_connection, 1);
}

#[test]
fn a_disconnection_without_an_answer_ends_in_time_wait_too() {
    let mut pair = Pair::new();
    let (conn, _) = pair.established();
    pair.a.disconnect(pair.now, conn, b"").unwrap();
    while pair.a.state(conn) == Some(ConnState::DreqSent) {
        assert_eq!(events(&mut pair.a), []);
        pair.a.handle_timeout(pair.a.poll_timeout());
    }
    let private_data = Vec::new();
    let told = CmEvent::Disconnected { conn, private_data, timed_out: true };
    assert_eq!(events(&mut pair.a), [told]);
    pair.a.handle_timeout(pair.a.poll_timeout());
    assert_eq!(events(&mut pair.a), [CmEvent::TimewaitExit { conn }]);
}

#[test]
fn both_sides_disconnect_at_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.disconnect(pair.now, a, b"a").unwrap();
    pair.b.disconnect(pair.now, b, b"b").unwrap();
    pair.settle();
    assert_eq!(events(&mut pair.a).len(), 1);
    assert_eq!(events(&mut pair.b).len(), 1);
    assert_eq!(pair.a.state(a), Some(ConnState::TimeWait));
    assert_eq!(pair.b.state(b), Some(ConnState::TimeWait));
}

#[test]
fn destroying_an_established_connection_tells_the_peer_even_over_loss() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.destroy(pair.now, a).unwrap();
    assert_eq!(pair.a.state(a), None);
    sent(&mut pair.a);
    pair.wait();
    pair.a_to_b();
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::Disconnected { .. })));
    pair.b.disconnect(pair.now, b, b"").unwrap();
    pair.settle();
    pair.wait();
    assert_eq!((events(&mut pair.a), pair.a.connections()), (vec![], 0));
}

#[test]
fn a_disconnection_overtakes_a_lost_ready_to_use() {
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.a.establish(pair.now, a, b"").unwrap();
    sent(&mut pair.a);
    pair.a.disconnect(pair.now, a, b"").unwrap();
    pair.a_to_b();
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::Disconnected { .. })));
    assert_eq!(pair.b.state(b), Some(ConnState::DreqReceived));
}

/// Client and server in one process, at one address.
#[test]
fn a_manager_connects_to_itself() {
    let mut pair = Pair::new();
    let active = pair.b.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    let loop_back = |pair: &mut Pair| {
        let mad = pair.b.poll_mad().unwrap();
        pair.b.handle_mad(pair.now, ip(2), CM_QPN, mad.bytes.as_slice());
    };
    loop_back(&mut pair);
    let Some(CmEvent::ConnectRequest(request)) = pair.b.poll_event() else { panic!() };
    pair.b.accept(pair.now, request.conn, &params(B_QPN)).unwrap();
    loop_back(&mut pair);
    pair.b.establish(pair.now, active, b"").unwrap();
    loop_back(&mut pair);
    assert_eq!(pair.b.state(active), Some(ConnState::Established));
    assert_eq!(pair.b.state(request.conn), Some(ConnState::Established));
    pair.b.disconnect(pair.now, request.conn, b"").unwrap();
    loop_back(&mut pair);
    pair.b.disconnect_reply(pair.now, active, b"").unwrap();
    loop_back(&mut pair);
    assert_eq!(pair.b.state(active), Some(ConnState::TimeWait));
    assert_eq!(pair.b.state(request.conn), Some(ConnState::TimeWait));
    assert_eq!(pair.b.counters(), &CmCounters::default());
}
