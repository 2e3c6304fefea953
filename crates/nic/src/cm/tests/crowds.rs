//! Many requests at once, honest and hostile: nobody takes what all share.

use super::*;
use crate::cm::message::{Answered, Mra, RejectReason, Req, Rtu};

/// A peer that sends requests without end, from an address of its own, and asks for long times.
struct Flood {
    like: Req,
    source: u8,
    sent: u32,
}

impl Flood {
    fn new(pair: &Pair, source: u8) -> Flood {
        let mut sender = Cm::new(config(source), 66);
        sender.connect(pair.now, &to_port(ip(2), PORT, 1)).unwrap();
        let Message::Req(mut like) = sent(&mut sender).remove(0) else { panic!() };
        like.local_response_timeout = 31;
        like.max_cm_retries = 15;
        like.primary.ack_timeout = 31;
        Flood { like, source, sent: 0 }
    }

    /// Sends the next request; returns the connection if the listener has been told of one.
    fn ask(&mut self, pair: &mut Pair) -> Option<ConnId> {
        self.sent += 1;
        self.like.local_comm_id = self.sent;
        self.like.local_qpn = self.sent;
        let mad = Message::Req(self.like.clone()).to_mad(u64::from(self.sent));
        pair.b.handle_mad(pair.now, ip(self.source), CM_QPN, &mad);
        sent(&mut pair.b);
        requests(pair).first().map(|request| request.conn)
    }

    /// As before; then the listener accepts, and the peer says no more.
    fn ask_and_vanish(&mut self, pair: &mut Pair) -> Option<ConnId> {
        let conn = self.ask(pair)?;
        pair.b.accept(pair.now, conn, &params(B_QPN)).unwrap();
        sent(&mut pair.b);
        Some(conn)
    }

    fn mad_of(&self, make: impl FnOnce(u32) -> Message) -> [u8; MAD_LEN] {
        make(self.sent).to_mad(u64::from(self.sent))
    }
}

/// The requests that `b`'s caller learns of. It destroys what has failed.
fn requests(pair: &mut Pair) -> Vec<IncomingRequest> {
    let mut requests = Vec::new();
    for event in events(&mut pair.b) {
        match event {
            CmEvent::ConnectRequest(request) => requests.push(*request),
            CmEvent::Unreachable { conn } => pair.b.destroy(pair.now, conn).unwrap(),
            _ => {}
        }
    }
    requests
}

fn usual_limits() -> Pair {
    let mut pair = Pair::new();
    pair.b = Cm::new(CmConfig { max_pending: 1024, ..CmConfig::new(ip(2), 2) }, 2);
    pair.b.listen(PortSpace::Tcp.service_id(PORT)).unwrap();
    pair
}

#[test]
fn seventy_thousand_refusals_keep_nobody_out() {
    let mut pair = usual_limits();
    let mut flood = Flood::new(&pair, 66);
    for n in 0..70_000 {
        let conn = flood.ask(&mut pair).expect("the listener is asked");
        match n % 2 {
            0 => pair.b.reject(pair.now, conn, RejectReason::CONSUMER_DEFINED, b"no").unwrap(),
            _ => pair.b.destroy(pair.now, conn).unwrap(),
        }
        sent(&mut pair.b);
    }
    assert_eq!(pair.b.connections(), 0, "a refusal leaves nothing behind");
    assert_eq!(pair.b.poll_timeout(), Time::NEVER);
    pair.established();
}

/// Connections that the caller has ended are kept for the peer's sake only, whatever times the peer
/// has chosen and whether or not it answers.
#[test]
fn what_has_ended_makes_room() {
    let mut pair = Pair::new();
    let mut flood = Flood::new(&pair, 66);
    for n in 0..100 {
        let conn = flood.ask_and_vanish(&mut pair).expect("there is room");
        if n % 2 == 0 {
            let (remote_comm_id, private_data) = (conn.0, [0; 224]);
            let rtu = |local_comm_id| Rtu { local_comm_id, remote_comm_id, private_data };
            let mad = flood.mad_of(|theirs| rtu(theirs).into());
            pair.b.handle_mad(pair.now, ip(66), CM_QPN, &mad);
            assert_eq!(pair.b.state(conn), Some(ConnState::Established));
        }
        pair.b.destroy(pair.now, conn).unwrap();
        assert!(pair.b.connections() <= 8);
    }
    assert_eq!(pair.b.counters().forgotten_early, 100 - 8);
    pair.b.connect(pair.now, &to_port(ip(9), 1, 200)).expect("the caller's own have room too");
    sent(&mut pair.b);
    pair.established();
}

#[test]
fn a_time_that_a_peer_chooses_is_capped() {
    let mut pair = usual_limits();
    let mut flood = Flood::new(&pair, 66);
    flood.ask_and_vanish(&mut pair).unwrap();
    let begun = pair.now;
    wait_till_given_up(&mut pair);
    let gave_up = pair.now;
    assert!(gave_up.since(begun) < Duration::from_secs(160), "{:?}", gave_up.since(begun));
    assert!(pair.b.poll_timeout().since(gave_up) < Duration::from_secs(5));
}

fn wait_till_given_up(pair: &mut Pair) {
    while pair.b.connections.values().any(|conn| conn.state != ConnState::TimeWait) {
        pair.now = pair.b.poll_timeout();
        pair.b.handle_timeout(pair.now);
        sent(&mut pair.b);
    }
}

/// By an MRA a peer may choose another time: it counts once, and not for each repetition.
#[test]
fn the_time_of_an_mra_counts_once() {
    let mut pair = usual_limits();
    let mut flood = Flood::new(&pair, 66);
    let conn = flood.ask_and_vanish(&mut pair).unwrap();
    let begun = pair.now;
    let mad = flood.mad_of(|theirs| {
        let private_data = [0; Mra::PRIVATE_DATA];
        let acknowledged = Answered::Rep;
        let (local_comm_id, remote_comm_id, service_timeout) = (theirs, conn.0, 31);
        Mra { local_comm_id, remote_comm_id, acknowledged, service_timeout, private_data }.into()
    });
    pair.b.handle_mad(pair.now, ip(66), CM_QPN, &mad);
    assert_eq!(pair.b.state(conn), Some(ConnState::MraRepReceived));
    wait_till_given_up(&mut pair);
    let waited = pair.now.since(begun);
    assert!(waited > Duration::from_secs(60) && waited < Duration::from_secs(230), "{waited:?}");
}

#[test]
fn one_peer_leaves_half_of_the_backlog_to_others() {
    let mut pair = usual_limits();
    let mut flood = Flood::new(&pair, 66);
    let told = (0..2000).filter(|_| flood.ask(&mut pair).is_some()).count();
    assert_eq!(told, 512);
    let mut other = Flood::new(&pair, 67);
    let told = (0..2000).filter(|_| other.ask(&mut pair).is_some()).count();
    assert_eq!(told, 256);
    assert_eq!(pair.b.counters().backlog_full, 4000 - 512 - 256);
    pair.established();
}

/// So it is with connections, at however many listeners a peer asks for them.
#[test]
fn one_peer_leaves_half_of_the_connections_to_others() {
    let mut pair = Pair::new();
    pair.b = Cm::new(CmConfig { max_connections: 64, ..CmConfig::new(ip(2), 2) }, 2);
    pair.b.listen(PortSpace::Tcp.service_id(PORT)).unwrap();
    let mut flood = Flood::new(&pair, 66);
    let taken: Vec<_> = (0..100).filter_map(|_| flood.ask_and_vanish(&mut pair)).collect();
    assert_eq!(taken.len(), 32);
    let mut other = Flood::new(&pair, 67);
    let of_other = (0..100).filter(|_| other.ask(&mut pair).is_some()).count();
    assert_eq!((of_other, pair.b.counters().too_many_connections), (16, 200 - 32 - 16));
    pair.established();
    // What the caller has destroyed no longer counts, though it is kept for the peer's sake.
    taken.iter().for_each(|conn| pair.b.destroy(pair.now, *conn).unwrap());
    sent(&mut pair.b);
    assert!(flood.ask(&mut pair).is_some());
}

/// A peer that takes its request back makes no room by it before the caller has seen that, or it
/// could begin anew without end.
#[test]
fn requests_that_were_taken_back_wait_too() {
    let mut pair = usual_limits();
    let mut flood = Flood::new(&pair, 66);
    let mut waiting = Vec::new();
    for _ in 0..1000 {
        waiting.extend(flood.ask(&mut pair));
        let mad = flood.mad_of(|theirs| {
            let reason = RejectReason::CONSUMER_DEFINED;
            connection::rejection(theirs, 0, Answered::Req, reason).into()
        });
        pair.b.handle_mad(pair.now, ip(66), CM_QPN, &mad);
    }
    assert_eq!((waiting.len(), pair.b.connections()), (512, 512));
    for conn in waiting {
        pair.b.destroy(pair.now, conn).unwrap();
    }
    assert_eq!(pair.b.connections(), 0);
    assert!(flood.ask(&mut pair).is_some());
}

/// Eight half-open requests a second from each of many peers: an honest client always gets in.
#[test]
fn half_open_requests_make_room() {
    let mut pair = Pair::new();
    let mut honest = 0;
    for n in 0..400_u32 {
        let mut flood = Flood { sent: n, ..Flood::new(&pair, 60 + (n % 64) as u8) };
        flood.ask_and_vanish(&mut pair);
        pair.now = pair.now + Duration::from_millis(125);
        pair.b.handle_timeout(pair.now);
        sent(&mut pair.b);
        if n % 8 == 7 {
            let (a, b) = served(&mut pair, 500 + n);
            pair.a.destroy(pair.now, a).unwrap();
            pair.b.destroy(pair.now, b).unwrap();
            settle(&mut pair);
            honest += 1;
        }
    }
    assert_eq!(honest, 50);
    assert!(pair.b.counters().half_open_dropped > 0);
}

/// A peer that asks without end displaces its own half-open requests, and not those of others.
#[test]
fn a_flood_displaces_only_itself() {
    let mut pair = Pair::new();
    let mut slow = Flood::new(&pair, 67);
    let slow = slow.ask_and_vanish(&mut pair).expect("there is room");
    let mut flood = Flood::new(&pair, 66);
    for _ in 0..100 {
        flood.ask_and_vanish(&mut pair);
        pair.now = pair.now + Duration::from_millis(500);
    }
    assert!(pair.b.counters().half_open_dropped > 0);
    assert_eq!(pair.b.state(slow), Some(ConnState::RepSent));
}

/// Carries messages between `a` and `b` until there are none; what is for others is lost.
fn settle(pair: &mut Pair) {
    loop {
        let (to_b, to_a) = (pair.a.poll_mad(), pair.b.poll_mad());
        if to_b.is_none() && to_a.is_none() {
            return;
        }
        if let Some(mad) = to_b {
            carry(pair.now, &mad, ip(1), ip(2), &mut pair.b);
        }
        if let Some(mad) = to_a.filter(|mad| mad.dst == ip(1)) {
            carry(pair.now, &mad, ip(2), ip(1), &mut pair.a);
        }
    }
}

/// Connects, and asks again as long as the peer has no room. Returns both sides' connections.
fn served(pair: &mut Pair, qpn: u32) -> (ConnId, ConnId) {
    let a = pair.a.connect(pair.now, &to_port(ip(2), PORT, qpn)).unwrap();
    while pair.a.state(a) == Some(ConnState::ReqSent) {
        settle(pair);
        if let Some(request) = requests(pair).first() {
            let b = request.conn;
            pair.b.accept(pair.now, b, &params(qpn)).unwrap();
            settle(pair);
            pair.a.establish(pair.now, a, b"").unwrap();
            settle(pair);
            assert_eq!(pair.b.state(b), Some(ConnState::Established));
            return (a, b);
        }
        pair.wait();
    }
    panic!("{:?}, {:?}", pair.a.state(a), pair.b.counters());
}

/// The peer has no room: the request is repeated after growing waits, and in the end the caller
/// learns the reason.
#[test]
fn a_peer_without_room_is_asked_again() {
    let mut pair = Pair::new();
    let connect = |port| pair.b.connect(pair.now, &to_port(ip(9), port, 200)).unwrap();
    let full: Vec<ConnId> = (1..9).map(connect).collect();
    sent(&mut pair.b);
    let begun = pair.now;
    let a = pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    let mut waits = Vec::new();
    settle(&mut pair);
    while pair.a.state(a) == Some(ConnState::ReqSent) {
        let before = pair.now;
        pair.now = pair.a.poll_timeout();
        waits.push(pair.now.since(before));
        pair.a.handle_timeout(pair.now);
        settle(&mut pair);
    }
    let last = events(&mut pair.a);
    let reason = RejectReason::NO_RESOURCES;
    assert!(matches!(last[..], [CmEvent::Rejected { reason: told, .. }] if told == reason));
    assert_eq!((waits.len(), pair.a.counters().asked_again), (15, 15));
    assert!(waits[0] <= Duration::from_millis(8) && waits[14] >= Duration::from_millis(500));
    assert!(pair.now.since(begun) < Duration::from_secs(10));

    let again = pair.a.connect(pair.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
    settle(&mut pair);
    assert_eq!(events(&mut pair.a), []);
    for conn in full {
        pair.b.destroy(pair.now, conn).unwrap();
    }
    while pair.b.counters().forgotten_early == 0 {
        pair.now = pair.a.poll_timeout();
        pair.a.handle_timeout(pair.now);
        settle(&mut pair);
    }
    assert_eq!(pair.a.state(again), Some(ConnState::ReqSent));
    assert_eq!(requests(&mut pair).len(), 1);
}
