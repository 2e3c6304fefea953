//! Clients that end while the connection manager waits for one of them, or while their chains run;
//! and what becomes of requests that are refused.

use remora_nic::Psn;
use remora_nic::cm::message::{RejectReason, SidrStatus};
use remora_nic::cm::service::{PortSpace, ServiceId};
use remora_nic::cm::{
    AcceptParams, AddressScope, CmEvent, CommandError, ConnId, ConnState, ConnectError,
    ConnectRequest, ListenerId, ResolveRequest, SidrAnswer, SidrError, WideNumber,
};

use super::crashes::Step;
use super::hogs::policy_with;
use super::notices::{event, looped};
use super::*;

/// A client with its events.
struct Party {
    events: EventConsumer,
    client: Client,
    qpn: u32,
}

impl Party {
    fn of(daemon: &Daemon) -> Party {
        let client = daemon.client();
        let (events, qpn) = (EventConsumer::new(&client.arena), client.queues().made.qpn);
        Party { events, client, qpn }
    }

    fn card(&self) -> Stubs<&Asker> {
        self.client.card()
    }

    /// Waits for the next event of the connection manager.
    fn told(&mut self) -> CmEvent {
        until_some("an event", || match event(&self.client, &mut self.events) {
            Some(CardEvent::Cm(told)) => Some(told),
            _ => None,
        })
    }
}

/// A service that no other test has.
fn service() -> ServiceId {
    static SERVICE: AtomicU32 = AtomicU32::new(0);
    ServiceId(u64::from(SERVICE.fetch_add(1, Ordering::Relaxed)) | 1 << 40)
}

fn accepts_with(qpn: u32) -> AcceptParams<'static> {
    AcceptParams {
        qpn,
        starting_psn: Psn::new(0),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 0,
        rnr_retry_count: 7,
        srq: false,
        flow_control: false,
        private_data: &[],
    }
}

/// Two clients, one of which has asked the other for a connection.
struct Meeting {
    active: Party,
    passive: Party,
    listener: ListenerId,
    asks: ConnId,
    asked: ConnId,
}

impl Meeting {
    fn begin(daemon: &Daemon) -> Meeting {
        let service = service();
        let (active, mut passive) = (Party::of(daemon), Party::of(daemon));
        let listener = passive.card().listen(service, AddressScope::All).unwrap();
        let to = passive.client.address();
        let asks = active.card().connect(ConnectRequest::new(to, service, active.qpn)).unwrap();
        let told = passive.told();
        let CmEvent::ConnectRequest(request) = told else { panic!("{told:?}") };
        Meeting { active, passive, listener, asks, asked: request.conn }
    }

    /// The passive client has accepted, and the active one knows.
    fn replied(daemon: &Daemon) -> Meeting {
        let mut meeting = Meeting::begin(daemon);
        let params = accepts_with(meeting.passive.qpn);
        meeting.passive.card().accept(meeting.asked, params).unwrap();
        let told = meeting.active.told();
        assert!(matches!(told, CmEvent::Replied(_)), "{told:?}");
        meeting
    }

    /// The connection stands.
    fn established(daemon: &Daemon) -> Meeting {
        let mut meeting = Meeting::replied(daemon);
        meeting.active.card().establish(meeting.asks, &[]).unwrap();
        let told = meeting.passive.told();
        assert!(matches!(told, CmEvent::Established { .. }), "{told:?}");
        meeting
    }
}

fn asks_and_is_not_answered(daemon: &Daemon) {
    drop(Meeting::begin(daemon).active);
}

fn is_asked_and_does_not_answer(daemon: &Daemon) {
    drop(Meeting::begin(daemon).passive);
}

/// A client that asks for a queue pair is told that nobody serves any more.
fn is_questioned_and_does_not_answer(daemon: &Daemon) {
    static PORT: AtomicU32 = AtomicU32::new(1);
    let (mut active, mut passive) = (Party::of(daemon), Party::of(daemon));
    let service = PortSpace::Udp.service_id(PORT.fetch_add(1, Ordering::Relaxed) as u16);
    passive.card().listen(service, AddressScope::All).unwrap();
    let remote = passive.client.address();
    let question = ResolveRequest { remote, service, local_port: 0, told: None, private_data: &[] };
    active.card().resolve_sidr(question).unwrap();
    let told = passive.told();
    let CmEvent::SidrRequest(asked) = told else { panic!("{told:?}") };
    let wide = active.qpn | 1 << 24;
    let answer = SidrAnswer { status: SidrStatus::Success, qpn: wide, qkey: 0, private_data: &[] };
    let refused = passive.card().sidr_reply(asked.sidr, answer);
    assert_eq!(refused, Err(SidrError::QpNumber(WideNumber(wide))));
    drop(passive);
    let told = active.told();
    let CmEvent::SidrReply(reply) = told else { panic!("{told:?}") };
    assert_eq!(reply.status, SidrStatus::Unsupported);
}

fn stops_to_listen_between(daemon: &Daemon) {
    let meeting = Meeting::begin(daemon);
    assert!(meeting.passive.card().unlisten(meeting.listener));
    drop(meeting.active);
}

fn accepts_and_goes(daemon: &Daemon) {
    drop(Meeting::replied(daemon).passive);
}

fn is_accepted_and_goes(daemon: &Daemon) {
    drop(Meeting::replied(daemon).active);
}

/// The end of one client is told to the other as the end of the connection.
fn is_connected_and_goes(daemon: &Daemon) {
    let mut meeting = Meeting::established(daemon);
    drop(meeting.active);
    let told = meeting.passive.told();
    assert!(matches!(told, CmEvent::Disconnected { .. }), "{told:?}");
}

fn wants_the_end_and_goes(daemon: &Daemon) {
    let meeting = Meeting::established(daemon);
    meeting.active.card().disconnect(meeting.asks, &[]).unwrap();
    drop(meeting.active);
}

fn is_told_of_the_end_and_does_not_reply(daemon: &Daemon) {
    let mut meeting = Meeting::established(daemon);
    meeting.active.card().disconnect(meeting.asks, &[]).unwrap();
    let told = meeting.passive.told();
    assert!(matches!(told, CmEvent::Disconnected { .. }), "{told:?}");
    drop(meeting.passive);
}

/// An element without data.
fn bare(opcode: u8, remote: u64, key: u32) -> [u8; 64] {
    let mut element = [0; 64];
    element[0] = opcode;
    element[8] = 1;
    element[12..16].copy_from_slice(&key.to_le_bytes());
    element[16..24].copy_from_slice(&remote.to_le_bytes());
    element
}

const NO_OP: u8 = 16;
const WAIT: u8 = 17;

fn waits_for_what_never_comes(daemon: &Daemon) {
    let client = daemon.client();
    let (mut queues, _key) = looped(&client);
    client.post(&mut queues, &bare(NO_OP, 0, 0));
    assert_eq!(client.completion(&mut queues).status, Status::Success);
    let never = u64::MAX / 2;
    let cq = queues.cq;
    client.post(&mut queues, &bare(WAIT, never, cq));
    client.post(&mut queues, &bare(NO_OP, 0, 0));
}

fn has_used_up_its_budget(daemon: &Daemon) {
    let client = daemon.client();
    let (mut queues, _key) = looped(&client);
    let budget = client.card().create_budget(1).unwrap();
    let limits = remora_nic::ChainLimits { budget: Some(budget), ..Default::default() };
    client.card().set_chain_limits(queues.made.qpn, limits).unwrap();
    for _ in 0..3 {
        client.post(&mut queues, &bare(NO_OP, 0, 0));
    }
    assert_eq!(client.completion(&mut queues).status, Status::Success);
}

pub(super) const STEPS: [Step; 11] = [
    asks_and_is_not_answered,
    is_asked_and_does_not_answer,
    is_questioned_and_does_not_answer,
    stops_to_listen_between,
    accepts_and_goes,
    is_accepted_and_goes,
    is_connected_and_goes,
    wants_the_end_and_goes,
    is_told_of_the_end_and_does_not_reply,
    waits_for_what_never_comes,
    has_used_up_its_budget,
];

/// Messages have 24 bits for a number. A wider one, which they would cut to another session's
/// queue pair, would make the peer end that one's connection as stale.
#[test]
fn nobody_connects_or_accepts_with_a_number_that_is_cut_to_another_sessions() {
    let daemon = Daemon::start();
    let victim = Meeting::established(&daemon);
    let stands = || victim.passive.card().connection_state(victim.asked);
    let wide = victim.active.qpn | 1 << 24;
    let (mut attacker, mut peer) = (Party::of(&daemon), Party::of(&daemon));
    let (to, service) = (peer.client.address(), service());
    let listener = peer.card().listen(service, AddressScope::All).unwrap();
    let connected = attacker.card().connect(ConnectRequest::new(to, service, wide));
    // Honest requests come behind it.
    let asks = attacker.card().connect(ConnectRequest::new(to, service, attacker.qpn)).unwrap();
    assert!(matches!(peer.told(), CmEvent::ConnectRequest(_)));
    assert_eq!(stands(), Some(ConnState::Established), "{connected:?}");
    assert_eq!(connected, Err(ConnectError::QpNumber(WideNumber(wide))));
    attacker.card().destroy_connection(asks).unwrap();
    assert!(peer.card().unlisten(listener));

    attacker.card().listen(service, AddressScope::All).unwrap();
    peer.card().connect(ConnectRequest::new(to, service, peer.qpn)).unwrap();
    let told = attacker.told();
    let CmEvent::ConnectRequest(request) = told else { panic!("{told:?}") };
    let accepted = attacker.card().accept(request.conn, accepts_with(wide));
    attacker.card().accept(request.conn, accepts_with(attacker.qpn)).ok();
    until("an answer", || {
        let told = event(&peer.client, &mut peer.events);
        matches!(told, Some(CardEvent::Cm(CmEvent::Replied(_) | CmEvent::Rejected { .. })))
    });
    assert_eq!(stands(), Some(ConnState::Established), "{accepted:?}");
    assert_eq!(accepted, Err(CommandError::QpNumber(WideNumber(wide))));
}

/// A request that a server has refused is none of its connections any more: it may refuse more
/// than it may have, and is told of the next one.
#[test]
fn refused_requests_count_for_no_quota() {
    const CONNECTIONS: usize = 16;
    let daemon = Daemon::with(policy_with(&format!("quotas.others = {CONNECTIONS}")));
    let (mut active, mut passive) = (Party::of(&daemon), Party::of(&daemon));
    let (to, service) = (passive.client.address(), service());
    passive.card().listen(service, AddressScope::All).unwrap();
    for _ in 0..2 * CONNECTIONS {
        let asks = active.card().connect(ConnectRequest::new(to, service, active.qpn)).unwrap();
        let told = passive.told();
        let CmEvent::ConnectRequest(request) = told else { panic!("{told:?}") };
        passive.card().reject(request.conn, RejectReason::CONSUMER_DEFINED, &[]).unwrap();
        let again = passive.card().destroy_connection(request.conn);
        assert_eq!(again, Err(CommandError::UnknownConnection));
        let told = active.told();
        assert!(matches!(told, CmEvent::Rejected { .. }), "{told:?}");
        active.card().destroy_connection(asks).unwrap();
    }
    drop((active, passive));
    daemon.wait_until_empty();
}
