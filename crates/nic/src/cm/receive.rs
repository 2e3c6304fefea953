//! What the peer's messages do to a connection.
//!
//! Where a message may come is in the table of states ([`super::state`]). A message that the table
//! refuses in this state is late, doubled or out of place: it is counted and dropped. The rules are
//! those of InfiniBand volume 1, chapter 12 (Communication Management), and for the address header
//! those of annex A11 (RDMA IP CM Service).

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use super::connection::{Beginning, Connection, Side, rejection, standard_time};
use super::message::{
    Answered, Attribute, Drep, Dreq, Message, Mra, Rej, RejectReason, Rep, Req, Rtu,
    TransportService,
};
use super::offer::{identity, offered};
use super::service::{CmaHeader, ServiceId};
use super::state::{ConnState, Input, Next};
use super::{Cm, CmEvent, ConnId, IncomingRequest, ListenerId, Reply, of_qpn};
use crate::Time;
use crate::wire::Dialect;

/// A request that may become a connection: its listener, and the addresses that it states.
pub(super) struct Admission {
    pub(super) listener: ListenerId,
    pub(super) peer: SocketAddr,
    pub(super) told: Option<CmaHeader>,
    pub(super) private_data: Vec<u8>,
}

/// What a request that does not become a connection is answered.
enum Refusal {
    /// A REJ, for this reason.
    Told(RejectReason),
    /// Nothing.
    Silent,
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Refusal {
        Refusal::Told(reason)
    }
}

/// How long an accepted request keeps its place, though others need it: many times what a peer on
/// a busy machine takes to complete it.
const HALF_OPEN_GRACE: Duration = Duration::from_secs(1);
/// The largest code of a path MTU: 4096 bytes.
pub(super) const MAX_MTU_CODE: u8 = 5;
/// The code of XRC among the extended transports.
pub(super) const XRC: u8 = 1;

impl Cm {
    pub(super) fn receive(&mut self, now: Time, src: IpAddr, tid: u64, message: &Message) {
        match message {
            Message::Req(req) => self.on_req(now, src, tid, req),
            Message::Mra(mra) => self.on_mra(now, src, mra),
            Message::Rej(rej) => self.on_rej(now, src, rej),
            Message::Rep(rep) => self.on_rep(now, src, tid, rep),
            Message::Rtu(rtu) => self.on_rtu(now, src, rtu),
            Message::Dreq(dreq) => self.on_dreq(now, src, tid, dreq),
            Message::Drep(drep) => self.on_drep(now, src, drep),
            Message::SidrReq(req) => self.on_sidr_req(now, src, tid, req),
            Message::SidrRep(rep) => self.on_sidr_rep(src, rep),
        }
    }

    fn on_req(&mut self, now: Time, src: IpAddr, tid: u64, req: &Req) {
        let card = (src, identity(req.local_ca_guid));
        let known = self.by_peer.get(&(card, req.local_comm_id)).copied();
        let begun = known.and_then(|id| Some((id, self.connections.get(&id)?)));
        // The request that began a connection, once more, is a duplicate: no second connection
        // begins.
        if let Some((id, conn)) = begun
            && conn.began_with(tid, req)
        {
            return self.on_duplicate_req(now, id);
        }
        // A new request with the id or queue pair of a known connection shows that the peer has
        // forgotten that connection: it is stale and ends, and the request is rejected. Only the
        // card that has the connection can show that, and not another one at its address.
        let stale = known.or_else(|| self.by_qpn.get(&of_qpn(card, req.local_qpn)).copied());
        let verdict = match stale {
            Some(old) => {
                self.end_stale(now, old);
                Err(RejectReason::STALE_CONNECTION.into())
            }
            None => self.admit(now, src, req),
        };
        match verdict {
            Ok(admission) => self.begin(src, tid, req, admission),
            Err(Refusal::Silent) => {}
            Err(Refusal::Told(reason)) => {
                self.answer(src, tid, rejection(0, req.local_comm_id, Answered::Req, reason));
            }
        }
    }

    /// A duplicate request shows that its answer was lost or is late.
    fn on_duplicate_req(&mut self, now: Time, id: u32) {
        match self.step(now, id, Input::DuplicateReq) {
            // The caller has not answered yet: the peer is asked for more time.
            Some(Next::To(_)) => {
                self.counters.duplicates += 1;
                self.say_mra(id, Answered::Req, self.config.service_timeout);
            }
            // The answer is sent again. If there was none, the connection is one that the peer must
            // not use any more.
            Some(_) => {
                if !self.repeat_answer(id, &[Attribute::Mra, Attribute::Rep, Attribute::Rej]) {
                    self.reject_from(id, Answered::Req, RejectReason::STALE_CONNECTION);
                }
            }
            None => self.counters.out_of_place += 1,
        }
    }

    /// May this request become a connection? If not, the reason goes to the peer in a REJ.
    fn admit(&mut self, now: Time, src: IpAddr, req: &Req) -> Result<Admission, Refusal> {
        // A service of a port space needs the address header (annex A11).
        let Some((peer, told, data)) = who_asks(src, req.service_id, &req.private_data) else {
            self.counters.invalid_cma_header += 1;
            return Err(RejectReason::UNSUPPORTED.into());
        };
        // A service without a listener at this address is not offered here.
        let Some(listener) = self.listener(req.service_id, told.as_ref()) else {
            self.counters.invalid_service += 1;
            return Err(RejectReason::INVALID_SERVICE_ID.into());
        };
        // A datagram service is resolved, and not connected to.
        if !req.service_id.takes_connections() {
            self.counters.invalid_service += 1;
            return Err(RejectReason::INVALID_SERVICE_ID.into());
        }
        // The services that can be connected are RC, UC and XRC. RD does not exist here.
        let known = match req.transport {
            TransportService::Rc | TransportService::Uc => true,
            TransportService::Rd => false,
            TransportService::Extended => req.extended_transport == XRC,
        };
        if !known {
            self.counters.invalid_transport += 1;
            return Err(RejectReason::INVALID_TRANSPORT_TYPE.into());
        }
        // A path MTU is one of five codes, 256 to 4096 bytes.
        if !(1..=MAX_MTU_CODE).contains(&req.path_mtu) {
            self.counters.invalid_mtu += 1;
            return Err(RejectReason::INVALID_MTU.into());
        }
        // A peer must not make the manager remember more than its limits: connections in all and of
        // the peer, and requests that wait at a listener.
        if !self.has_share(src) || !self.make_room(now) {
            self.counters.too_many_connections += 1;
            return Err(RejectReason::NO_RESOURCES.into());
        }
        // Managers such as Linux's take "no resources" for a final answer. So a listener that is
        // only busy stays silent, and the peer repeats its request.
        if !self.make_room_in_backlog(now, listener, src) {
            self.counters.backlog_full += 1;
            return Err(Refusal::Silent);
        }
        Ok(Admission { listener, peer, told, private_data: data.to_vec() })
    }

    /// Makes room at a listener for a request of this peer: if need be, one that was accepted long
    /// enough ago is given up; before that, its peer may still be about to complete it. Returns
    /// whether there is room.
    fn make_room_in_backlog(&mut self, now: Time, listener: ListenerId, src: IpAddr) -> bool {
        let max = self.config.max_pending;
        if !self.listeners.has_room(listener, src, max)
            && let Some((since, oldest)) = self.listeners.first_to_go(listener, src)
            && now >= since + HALF_OPEN_GRACE
        {
            self.counters.half_open_dropped += 1;
            self.give_up(now, oldest);
        }
        self.listeners.has_room(listener, src, max)
    }

    /// Begins the passive side of a connection. The peer's times and retries are cut to the
    /// manager's limits.
    fn begin(&mut self, src: IpAddr, tid: u64, req: &Req, admission: Admission) {
        let id = self.free_id();
        let limit = self.config.max_requested_timeout;
        let mut conn = Connection::new(
            ConnState::ReqReceived,
            Beginning {
                side: Side::Passive(admission.listener),
                peer: src,
                local_qpn: 0,
                transaction_id: tid,
                wait: answer_time(req.local_response_timeout.min(limit), req.primary.ack_timeout),
                max_retries: req.max_cm_retries.min(self.config.max_retries),
                time_wait: standard_time(req.primary.ack_timeout.min(limit)),
            },
        );
        conn.guid = identity(req.local_ca_guid);
        if req.transport == TransportService::Rc {
            conn.dialect = offered(req.local_ca_guid) & self.offers_to(src);
        }
        let dialect = conn.dialect;
        conn.remote_id = Some(req.local_comm_id);
        conn.remote_qpn = Some(req.local_qpn);
        conn.extended = req.transport == TransportService::Extended;
        conn.waits = true;
        let card = conn.card();
        self.connections.insert(id, conn);
        self.by_peer.insert((card, req.local_comm_id), id);
        self.by_qpn.insert(of_qpn(card, req.local_qpn), id);
        self.listeners.begin(admission.listener, src);
        *self.asked_by.entry(src).or_default() += 1;
        self.events
            .push_back(CmEvent::ConnectRequest(Box::new(incoming(id, req, dialect, admission))));
    }

    /// Ends a connection that the peer no longer knows.
    fn end_stale(&mut self, now: Time, id: u32) {
        self.counters.stale_connection += 1;
        if self.connections.get(&id).is_some_and(|conn| conn.state == ConnState::Established) {
            self.say_dreq(now, id, [0; Dreq::PRIVATE_DATA]);
            self.step(now, id, Input::Disconnect);
        }
    }

    /// The peer asks for more time to answer a REQ or REP.
    fn on_mra(&mut self, now: Time, src: IpAddr, mra: &Mra) {
        let Some(id) = self.find(src, mra.remote_comm_id, mra.local_comm_id) else { return };
        let input = match mra.acknowledged {
            Answered::Req => Input::MraOfReq,
            Answered::Rep => Input::MraOfRep,
            // For any other message no time can be asked here: path migration is not known.
            Answered::Other => return self.counters.out_of_place += 1,
        };
        if self.step(now, id, input).is_none() {
            return self.counters.out_of_place += 1;
        }
        // The peer gets the time it asks for, up to the manager's limit, and once: the repetitions
        // after it have the usual waits between them.
        let asked = standard_time(mra.service_timeout.min(self.config.max_service_timeout));
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.wait = conn.first_wait;
        let again = now + conn.wait.max(asked);
        self.set_deadline(id, again);
    }

    fn on_rej(&mut self, now: Time, src: IpAddr, rej: &Rej) {
        // A peer that has given up waiting for the first answer does not know this side's id, and
        // sends 0. Its own id and the GUID that such a rejection carries name the connection then.
        let ours = match (rej.remote_comm_id, rej.info.first_chunk()) {
            (0, Some(guid)) => {
                let card = (src, identity(u64::from_be_bytes(*guid)));
                self.by_peer.get(&(card, rej.local_comm_id)).copied().unwrap_or(0)
            }
            (id, _) => id,
        };
        let Some(id) = self.find(src, ours, rej.local_comm_id) else { return };
        if rej.reason == RejectReason::NO_RESOURCES && self.asks_again(now, id) {
            return;
        }
        let before = self.connections.get(&id).map(|conn| conn.state);
        // "Stale connection" means that the peer still remembers this queue pair: it rests in
        // time-wait before it is used again.
        let input = match rej.reason {
            RejectReason::STALE_CONNECTION => Input::RejStale,
            _ => Input::Rej,
        };
        if self.step(now, id, input).is_none() {
            return self.counters.out_of_place += 1;
        }
        match before {
            Some(ConnState::DreqSent) => {
                self.tell_end(id, Vec::new(), false);
            }
            // The caller knows already that the connection is over.
            Some(ConnState::DreqReceived) => {}
            _ => self.tell(id, |conn| CmEvent::Rejected {
                conn,
                reason: rej.reason,
                private_data: rej.private_data.to_vec(),
            }),
        }
    }

    fn on_rep(&mut self, now: Time, src: IpAddr, tid: u64, rep: &Rep) {
        let Some(id) = self.find(src, rep.remote_comm_id, rep.local_comm_id) else {
            // A REP for a connection that does not exist is rejected, so that the peer does not
            // wait for an RTU.
            let reason = RejectReason::INVALID_COMM_ID;
            let rej = rejection(rep.remote_comm_id, rep.local_comm_id, Answered::Rep, reason);
            return self.answer(src, tid, rej);
        };
        // An XRC target's queue pair number has a field of its own (annex A14).
        let extended = self.connections.get(&id).is_some_and(|conn| conn.extended);
        let target = extended && rep.local_eecn != 0;
        let rep =
            &Rep { local_qpn: if target { rep.local_eecn } else { rep.local_qpn }, ..rep.clone() };
        // A REP with the id or queue pair of another connection shows that the peer has forgotten
        // that one. This reply cannot be used either: it is rejected as stale.
        if self.takes_reply(id) && self.is_taken(src, rep, id) {
            return self.refuse_stale_reply(now, id, src, tid, rep);
        }
        match self.step(now, id, Input::Rep) {
            Some(Next::To(ConnState::RepReceived)) => self.on_first_rep(id, rep),
            // A duplicate, and the caller has not established the connection yet: the peer is asked
            // for more time.
            Some(Next::To(_)) => {
                self.counters.duplicates += 1;
                self.say_mra(id, Answered::Rep, self.config.service_timeout);
            }
            // A duplicate whose answer was lost: the answer is sent again.
            Some(_) => {
                if !self.repeat_answer(id, &[Attribute::Mra, Attribute::Rtu, Attribute::Rej]) {
                    self.counters.out_of_place += 1;
                }
            }
            None => self.counters.out_of_place += 1,
        }
    }

    /// Would a REP be this connection's first?
    fn takes_reply(&self, id: u32) -> bool {
        let on_rep = |conn: &Connection| conn.state.on(Input::Rep);
        self.connections.get(&id).map(on_rep) == Some(Next::To(ConnState::RepReceived))
    }

    /// Does another connection already have the peer's id or queue pair?
    fn is_taken(&self, src: IpAddr, rep: &Rep, id: u32) -> bool {
        let card = (src, identity(rep.local_ca_guid));
        let others = |found: Option<&u32>| found.is_some_and(|other| *other != id);
        others(self.by_qpn.get(&of_qpn(card, rep.local_qpn)))
            || others(self.by_peer.get(&(card, rep.local_comm_id)))
    }

    fn refuse_stale_reply(&mut self, now: Time, id: u32, src: IpAddr, tid: u64, rep: &Rep) {
        let reason = RejectReason::STALE_CONNECTION;
        let rej = rejection(id, rep.local_comm_id, Answered::Rep, reason);
        self.answer(src, tid, rej);
        let card = (src, identity(rep.local_ca_guid));
        if let Some(old) = self.by_qpn.get(&of_qpn(card, rep.local_qpn)).copied() {
            self.end_stale(now, old);
        }
        self.step(now, id, Input::RejStale);
        self.tell(id, |conn| CmEvent::Rejected { conn, reason, private_data: Vec::new() });
    }

    fn on_first_rep(&mut self, id: u32, rep: &Rep) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.guid = identity(rep.local_ca_guid);
        // A peer can confirm no more than it was offered.
        conn.dialect &= offered(rep.local_ca_guid);
        let dialect = conn.dialect;
        conn.remote_id = Some(rep.local_comm_id);
        conn.remote_qpn = Some(rep.local_qpn);
        let card = conn.card();
        self.by_peer.insert((card, rep.local_comm_id), id);
        self.by_qpn.insert(of_qpn(card, rep.local_qpn), id);
        self.tell(id, |conn| {
            CmEvent::Replied(Box::new(Reply {
                conn,
                remote_qpn: rep.local_qpn,
                starting_psn: rep.starting_psn,
                responder_resources: rep.responder_resources,
                initiator_depth: rep.initiator_depth,
                target_ack_delay: rep.target_ack_delay,
                rnr_retry_count: rep.rnr_retry_count,
                srq: rep.srq,
                flow_control: rep.flow_control,
                dialect,
                private_data: rep.private_data.to_vec(),
            }))
        });
    }

    fn on_rtu(&mut self, now: Time, src: IpAddr, rtu: &Rtu) {
        let Some(id) = self.find(src, rtu.remote_comm_id, rtu.local_comm_id) else { return };
        match self.step(now, id, Input::Rtu) {
            Some(_) => {
                let private_data = rtu.private_data.to_vec();
                self.tell(id, |conn| CmEvent::Established { conn, private_data });
            }
            // A second RTU, or one that no REP asked for.
            None => self.counters.out_of_place += 1,
        }
    }

    fn on_dreq(&mut self, now: Time, src: IpAddr, tid: u64, dreq: &Dreq) {
        let Some(id) = self.find(src, dreq.remote_comm_id, dreq.local_comm_id) else {
            // The connection is gone here. The peer is told that it is over, so that it need not
            // repeat its request.
            return self.answer_drep(src, tid, dreq.remote_comm_id, dreq.local_comm_id);
        };
        let Some(conn) = self.connections.get_mut(&id) else { return };
        // A DREQ must name the queue pair of the connection; otherwise it is for an older one that
        // had the same ids.
        if conn.local_qpn != dreq.remote_qpn {
            return self.counters.wrong_qpn += 1;
        }
        match self.step(now, id, Input::Dreq) {
            Some(Next::To(state)) => {
                self.set_transaction(id, tid);
                // Both sides have asked at the same time: the manager answers itself, as the caller
                // expects no further request.
                if state == ConnState::TimeWait {
                    self.say_drep(id, [0; Drep::PRIVATE_DATA]);
                }
                self.tell_end(id, dreq.private_data.to_vec(), false);
            }
            // A duplicate whose answer was lost: the answer is sent again.
            Some(_) => {
                if !self.repeat_answer(id, &[Attribute::Drep]) {
                    self.answer_drep(src, tid, id, dreq.local_comm_id);
                }
            }
            None => self.counters.out_of_place += 1,
        }
    }

    fn set_transaction(&mut self, id: u32, tid: u64) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.transaction_id = tid;
        }
    }

    fn answer_drep(&mut self, src: IpAddr, tid: u64, local_comm_id: u32, remote_comm_id: u32) {
        self.answer(
            src,
            tid,
            Drep { local_comm_id, remote_comm_id, private_data: [0; Drep::PRIVATE_DATA] },
        );
    }

    fn on_drep(&mut self, now: Time, src: IpAddr, drep: &Drep) {
        let Some(id) = self.find(src, drep.remote_comm_id, drep.local_comm_id) else { return };
        match self.step(now, id, Input::Drep) {
            Some(_) => self.tell_end(id, drep.private_data.to_vec(), false),
            // A second DREP, or one that no DREQ asked for.
            None => self.counters.out_of_place += 1,
        }
    }

    /// The connection that a message names. It must be one with this peer and not closed; its id
    /// here must match, and the peer's id too, once that is known. Any other message is dropped.
    fn find(&mut self, src: IpAddr, ours: u32, theirs: u32) -> Option<u32> {
        let conn = self.connections.get(&ours);
        if conn.is_some_and(|c| c.state != ConnState::Closed && c.is_between(src, theirs)) {
            return Some(ours);
        }
        self.counters.unknown_connection += 1;
        None
    }
}

/// How long to wait for an answer: the time to make it, and the way there and back. A way that is
/// longer than the time to make the answer is cut to that time, or a peer could stretch every wait
/// to hours.
pub(super) fn answer_time(response_timeout: u8, ack_timeout: u8) -> Duration {
    standard_time(response_timeout) + standard_time(ack_timeout.min(response_timeout))
}

/// The peer's address and port, the address header, and the private data behind it. `None` if the
/// service needs the header and the private data does not begin with a legal one.
pub(super) fn who_asks(
    src: IpAddr,
    service: ServiceId,
    private_data: &[u8],
) -> Option<(SocketAddr, Option<CmaHeader>, &[u8])> {
    if service.port().is_none() {
        return Some((SocketAddr::new(src, 0), None, private_data));
    }
    let (header, user) = CmaHeader::split(private_data).ok()?;
    // The address is that of the packet. Only the port is taken from the header unchecked.
    Some((SocketAddr::new(src, header.source.port()), Some(header), user))
}

fn incoming(id: u32, req: &Req, dialect: Dialect, admission: Admission) -> IncomingRequest {
    IncomingRequest {
        conn: ConnId(id),
        listener: admission.listener,
        service: req.service_id,
        peer: admission.peer,
        told: admission.told,
        transport: req.transport,
        remote_qpn: req.local_qpn,
        starting_psn: req.starting_psn,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        path_mtu: req.path_mtu,
        ack_timeout: req.primary.ack_timeout,
        traffic_class: req.primary.traffic_class,
        srq: req.srq,
        flow_control: req.flow_control,
        dialect,
        private_data: admission.private_data,
    }
}
