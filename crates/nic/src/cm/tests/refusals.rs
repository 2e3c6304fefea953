//! Which requests and replies are refused, with which reason, and that each is counted.

use super::*;
use crate::cm::message::{Answered, Dreq, Rej, RejectReason, Req};

/// `b`'s answer to a request of `a`'s that is changed on the way.
fn refusal_of(pair: &mut Pair, change: impl FnOnce(&mut Req)) -> Rej {
    let request = to_port(ip(2), PORT, A_QPN + 1);
    let conn = pair.a.connect(pair.now, &request).unwrap();
    let mad = pair.a.poll_mad().unwrap();
    let (tid, Message::Req(mut req)) = Message::from_mad(mad.bytes.as_slice()).unwrap() else {
        panic!()
    };
    change(&mut req);
    pair.b.handle_mad(pair.now, ip(1), 1, &Message::Req(req).to_mad(tid));
    let Message::Rej(rej) = pair.b_to_a() else { panic!() };
    assert_eq!((rej.rejected, rej.remote_comm_id), (Answered::Req, conn.0));
    let told = events(&mut pair.a);
    assert!(matches!(&told[0], CmEvent::Rejected { reason, .. } if *reason == rej.reason));
    pair.a.destroy(pair.now, conn).unwrap();
    rej
}

#[test]
fn a_service_without_a_listener_is_refused() {
    let mut pair = Pair::new();
    let rej = refusal_of(&mut pair, |req| req.service_id = PortSpace::Tcp.service_id(1));
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
    assert_eq!(pair.b.counters().invalid_service, 1);
    assert_eq!(pair.a.connections(), 0);
}

#[test]
fn a_datagram_service_is_not_connected_to() {
    let mut pair = Pair::new();
    let service = PortSpace::Udp.service_id(PORT);
    pair.b.listen(service).unwrap();
    let rej = refusal_of(&mut pair, |req| req.service_id = service);
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
    assert_eq!((pair.b.poll_event(), pair.b.counters().invalid_service), (None, 1));
}

#[test]
fn a_service_without_a_listener_any_more_is_refused() {
    let mut pair = Pair::new();
    let service = PortSpace::Tcp.service_id(7);
    let listener = pair.b.listen(service).unwrap();
    assert_eq!(pair.b.listen(service), Err(ListenError::InUse(service)));
    assert!(pair.b.unlisten(listener));
    assert!(!pair.b.unlisten(listener));
    let rej = refusal_of(&mut pair, |req| req.service_id = service);
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn requests_that_make_no_sense() {
    let mut pair = Pair::new();
    let rej = refusal_of(&mut pair, |req| req.transport = TransportService::Rd);
    assert_eq!(rej.reason, RejectReason::INVALID_TRANSPORT_TYPE);
    let rej = refusal_of(&mut pair, |req| req.path_mtu = 6);
    assert_eq!(rej.reason, RejectReason::INVALID_MTU);
    let rej = refusal_of(&mut pair, |req| req.private_data = [0xff; 92]);
    assert_eq!(rej.reason, RejectReason::UNSUPPORTED);
    let counters = pair.b.counters();
    assert_eq!(
        (counters.invalid_transport, counters.invalid_mtu, counters.invalid_cma_header),
        (1, 1, 1)
    );
    assert_eq!(pair.b.connections(), 0);
}

#[test]
fn the_application_refuses() {
    let mut pair = Pair::new();
    let (a, b) = pair.requested();
    let reason = RejectReason::CONSUMER_DEFINED;
    pair.b.reject(pair.now, b, reason, b"no").unwrap();
    let lost = pair.b.poll_mad();
    assert_eq!(pair.b.state(b), None, "rejecting gives the id back");
    pair.a.handle_timeout(pair.a.poll_timeout());
    let now = pair.a.poll_timeout();
    pair.a_to_b();
    let Some(CmEvent::ConnectRequest(again)) = pair.b.poll_event() else { panic!() };
    assert_ne!(again.conn, b, "a repeated request is a new one");
    pair.b.destroy(now, again.conn).unwrap();
    pair.a.handle_mad(now, ip(2), 1, lost.unwrap().bytes.as_slice());
    let Some(CmEvent::Rejected { conn, reason: told, private_data }) = pair.a.poll_event() else {
        panic!()
    };
    assert_eq!((conn, told, &private_data[..3]), (a, reason, &b"no\0"[..]));
    assert_eq!((pair.b.connections(), pair.b.poll_event()), (0, None));
}

#[test]
fn a_refused_queue_pair_may_ask_again_at_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.requested();
    pair.b.reject(pair.now, b, RejectReason::CONSUMER_DEFINED, b"").unwrap();
    pair.settle();
    pair.a.destroy(pair.now, a).unwrap();
    pair.requested();
}

#[test]
fn the_active_side_refuses_a_reply() {
    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.a.reject(pair.now, a, RejectReason::CONSUMER_DEFINED, b"changed my mind").unwrap();
    let Message::Rej(rej) = pair.a_to_b() else { panic!() };
    assert_eq!(rej.rejected, Answered::Rep);
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::Rejected { conn, .. }) if conn == b));
}

#[test]
fn a_peer_that_forgot_its_connection_is_stale() {
    let mut pair = Pair::new();
    let (_, b) = pair.established();
    pair.a = Cm::new(config(1), 99);
    let conn = pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    pair.a_to_b();
    pair.settle();
    let told = events(&mut pair.a);
    assert!(matches!(told[..], [CmEvent::Rejected { reason: RejectReason::STALE_CONNECTION, .. }]));
    assert_eq!(pair.a.state(conn), Some(ConnState::TimeWait), "the queue pair must rest");
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::Disconnected { conn, .. }) if conn == b));
    assert_eq!(pair.b.counters().stale_connection, 1);

    // When both have rested in time-wait, the same queue pair can connect.
    pair.wait();
    assert_eq!(events(&mut pair.b).len(), 1);
    pair.requested();
}

/// Another card at the peer's address says nothing about the peer's connections, whatever numbers
/// it names: its request is judged like any other.
#[test]
fn another_card_at_the_address_ends_no_connection() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    let mut other = Cm::new(CmConfig { ca_guid: 77, ..config(1) }, 99);
    other.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    let mad = other.poll_mad().unwrap();
    let (tid, Message::Req(mut req)) = Message::from_mad(mad.bytes.as_slice()).unwrap() else {
        panic!()
    };
    req.local_comm_id = a.0;
    pair.b.handle_mad(pair.now, ip(1), 1, &Message::Req(req).to_mad(tid));
    assert_eq!((sent(&mut pair.b), pair.b.counters().stale_connection), (vec![], 0));
    assert_eq!(pair.b.state(b), Some(ConnState::Established));
    assert!(matches!(events(&mut pair.b)[..], [CmEvent::ConnectRequest(_)]));

    // Nor does its word that it waits no longer.
    let (a, b) = {
        pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN + 1)).unwrap();
        let Message::Req(req) = pair.a_to_b() else { panic!() };
        let [CmEvent::ConnectRequest(asked)] = &events(&mut pair.b)[..] else { panic!() };
        (req.local_comm_id, asked.conn)
    };
    let mut rej = Rej {
        local_comm_id: a,
        remote_comm_id: 0,
        rejected: Answered::Other,
        info_len: 8,
        reason: RejectReason::TIMEOUT,
        info: [0; 72],
        private_data: [0; Rej::PRIVATE_DATA],
    };
    for (guid, state) in [(77_u64, ConnState::ReqReceived), (1, ConnState::Closed)] {
        rej.info[..8].copy_from_slice(&guid.to_be_bytes());
        pair.b.handle_mad(pair.now, ip(1), 1, &Message::Rej(rej.clone()).to_mad(5));
        assert_eq!(pair.b.state(b), Some(state));
    }
}

/// A request goes to the listener at the address that it asks for.
#[test]
fn one_port_has_a_listener_for_each_family_or_address() {
    let scope = |ip: &str| AddressScope::One(ip.parse().unwrap());
    let (v4, v6) = (AddressScope::Family { v6: false }, AddressScope::Family { v6: true });
    let service = PortSpace::Tcp.service_id(7);
    let mut pair = Pair::new();
    let mut asks = |b: &mut Cm, destination: &str| {
        let source = "10.0.0.1:1".parse().unwrap();
        let told = CmaHeader { source, destination: destination.parse().unwrap() };
        let request = ConnectRequest { told: Some(told), ..to_port(ip(2), 7, A_QPN) };
        let conn = pair.a.connect(pair.now, &request).unwrap();
        let mad = pair.a.poll_mad().unwrap();
        b.handle_mad(pair.now, ip(1), 1, mad.bytes.as_slice());
        pair.a.destroy(pair.now, conn).unwrap();
        let withdrawn = pair.a.poll_mad().unwrap();
        let to = match b.poll_event() {
            Some(CmEvent::ConnectRequest(request)) => Some((request.listener, request.conn)),
            _ => None,
        };
        b.handle_mad(pair.now, ip(1), 1, withdrawn.bytes.as_slice());
        while b.poll_event().is_some() {}
        let (listener, conn) = to?;
        b.destroy(pair.now, conn).unwrap();
        Some(listener)
    };
    let mut b = Cm::new(config(2), 2);
    let four = b.listen_at(service, v4).unwrap();
    let six = b.listen_at(service, v6).unwrap();
    for taken in [v4, v6, AddressScope::All, scope("10.0.0.9"), scope("::1")] {
        assert_eq!(b.listen_at(service, taken), Err(ListenError::InUse(service)), "{taken:?}");
    }
    assert_eq!(asks(&mut b, "10.0.0.2"), Some(four));
    assert_eq!(asks(&mut b, "127.0.0.1"), Some(four));
    assert_eq!(asks(&mut b, "::1"), Some(six));

    assert!(b.unlisten(four));
    let (one, other) = (scope("10.0.0.8"), scope("10.0.0.9"));
    let one = b.listen_at(service, one).unwrap();
    let other = b.listen_at(service, other).unwrap();
    assert_eq!(asks(&mut b, "10.0.0.8"), Some(one));
    assert_eq!(asks(&mut b, "::ffff:10.0.0.9"), Some(other));
    assert_eq!(asks(&mut b, "10.0.0.7"), None);
    assert_eq!(b.counters().invalid_service, 1);
    // A peer that knows the card only by its own address reaches what there is.
    assert!(asks(&mut b, "10.0.0.2").is_some());
}

#[test]
fn a_comm_id_used_anew_is_stale() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN + 1)).unwrap();
    let mad = pair.a.poll_mad().unwrap();
    let (tid, Message::Req(mut req)) = Message::from_mad(mad.bytes.as_slice()).unwrap() else {
        panic!()
    };
    req.local_comm_id = a.0;
    pair.b.handle_mad(pair.now, ip(1), 1, &Message::Req(req).to_mad(tid));
    let answers = sent(&mut pair.b);
    assert!(matches!(answers[0], Message::Dreq(_)), "the old connection ends");
    let Message::Rej(rej) = &answers[1] else { panic!() };
    assert_eq!(rej.reason, RejectReason::STALE_CONNECTION);
    assert_eq!(pair.b.state(b), Some(ConnState::DreqSent));
}

#[test]
fn a_reply_to_no_request_is_refused() {
    let mut pair = Pair::new();
    let (_, b) = pair.requested();
    pair.a = Cm::new(config(1), 99);
    pair.b.accept(pair.now, b, &params(B_QPN)).unwrap();
    pair.b_to_a();
    let Message::Rej(rej) = pair.a_to_b() else { panic!() };
    assert_eq!((rej.reason, rej.rejected), (RejectReason::INVALID_COMM_ID, Answered::Rep));
    assert!(matches!(pair.b.poll_event(), Some(CmEvent::Rejected { .. })));
}

#[test]
fn a_disconnection_for_another_queue_pair_is_ignored() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    let dreq = Dreq {
        local_comm_id: a.0,
        remote_comm_id: b.0,
        remote_qpn: B_QPN + 1,
        private_data: [0; Dreq::PRIVATE_DATA],
    };
    pair.b.handle_mad(pair.now, ip(1), 1, &Message::Dreq(dreq).to_mad(5));
    assert_eq!(pair.b.state(b), Some(ConnState::Established));
    assert_eq!(pair.b.counters().wrong_qpn, 1);
}

#[test]
fn another_peer_cannot_speak_for_a_connection() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.disconnect(pair.now, a, b"").unwrap();
    let mad = pair.a.poll_mad().unwrap();
    pair.b.handle_mad(pair.now, ip(3), 1, mad.bytes.as_slice());
    pair.b.handle_mad(pair.now, ip(1), 7, mad.bytes.as_slice());
    assert_eq!(pair.b.state(b), Some(ConnState::Established));
    assert_eq!(pair.b.counters().unknown_connection, 1);
    assert_eq!(pair.b.counters().wrong_queue_pair, 1);
}

#[test]
fn the_connections_are_limited() {
    let mut pair = Pair::new();
    for port in 1..9 {
        pair.b.connect(pair.now, &to_port(ip(9), port, 200)).unwrap();
    }
    sent(&mut pair.b);
    let request = to_port(ip(9), 1, 200);
    assert_eq!(pair.b.connect(pair.now, &request), Err(ConnectError::TooManyConnections));
    pair.a.destroy(pair.now, ConnId(0)).unwrap_err();
    pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    pair.a_to_b();
    let Message::Rej(rej) = pair.b_to_a() else { panic!() };
    assert_eq!(rej.reason, RejectReason::NO_RESOURCES);
    assert_eq!(pair.b.counters().too_many_connections, 1);
}

#[test]
fn commands_out_of_place_change_nothing() {
    let mut pair = Pair::new();
    let (a, b) = pair.requested();
    let wrong = |state| Err(CommandError::WrongState(state));
    assert_eq!(pair.a.establish(pair.now, a, b""), wrong(ConnState::ReqSent));
    assert_eq!(pair.a.accept(pair.now, a, &params(1)), wrong(ConnState::ReqSent));
    assert_eq!(pair.a.disconnect(pair.now, a, b""), wrong(ConnState::ReqSent));
    assert_eq!(pair.b.disconnect_reply(pair.now, b, b""), wrong(ConnState::ReqReceived));
    assert_eq!(pair.b.notify_established(pair.now, b), wrong(ConnState::ReqReceived));
    let long = AcceptParams { private_data: &[0; 197], ..params(1) };
    assert!(matches!(pair.b.accept(pair.now, b, &long), Err(CommandError::PrivateData(_))));
    assert_eq!(pair.b.accept(pair.now, a, &params(1)), Err(CommandError::UnknownConnection));
    assert_eq!((pair.a.poll_mad(), pair.b.poll_mad()), (None, None));
    assert_eq!(pair.b.state(b), Some(ConnState::ReqReceived));
}

#[test]
fn requests_that_cannot_be_sent() {
    let mut pair = Pair::new();
    let good = to_port(ip(2), PORT, A_QPN);
    let bad = ConnectRequest { path_mtu: 0, ..good.clone() };
    assert_eq!(pair.a.connect(pair.now, &bad), Err(ConnectError::PathMtu(0)));
    let bad = ConnectRequest { transport: TransportService::Rd, ..good.clone() };
    assert!(matches!(pair.a.connect(pair.now, &bad), Err(ConnectError::Transport(_))));
    let bad = ConnectRequest { private_data: &[0; 57], ..good };
    assert!(matches!(pair.a.connect(pair.now, &bad), Err(ConnectError::PrivateData(_))));
    assert_eq!(pair.a.connections(), 0);
}
