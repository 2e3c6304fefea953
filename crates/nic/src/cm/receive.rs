//! What the peer's messages do.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use super::connection::{Beginning, Connection, Side, rejection, standard_time};
use super::message::{
    Answered, Attribute, Drep, Dreq, Message, Mra, Rej, RejectReason, Rep, Req, Rtu,
    TransportService,
};
use super::service::{CmaHeader, ServiceId};
use super::state::{Input, Next, State};
use super::{Cm, CmEvent, ConnId, IncomingRequest, ListenerId, Reply};
use crate::Time;

/// Whom a request asks, and who it says it is.
pub(super) struct Admission {
    pub(super) listener: ListenerId,
    pub(super) peer: SocketAddr,
    pub(super) told: Option<CmaHeader>,
    pub(super) private_data: Vec<u8>,
}

/// The largest code of a path MTU: 4096 bytes.
pub(super) const MAX_MTU_CODE: u8 = 5;
/// XRC among the extended transports.
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
            Message::SidrReq(req) => self.on_sidr_req(src, tid, req),
            Message::SidrRep(rep) => self.on_sidr_rep(src, rep),
        }
    }

    fn on_req(&mut self, now: Time, src: IpAddr, tid: u64, req: &Req) {
        let known = self.by_peer.get(&(src, req.local_comm_id)).copied();
        let begun = known.and_then(|id| Some((id, self.connections.get(&id)?)));
        if let Some((id, conn)) = begun
            && conn.began_with(tid, req)
        {
            return self.on_duplicate_req(now, id);
        }
        // The same id or queue pair for something new: the peer forgot the connection it had.
        let stale = known.or_else(|| self.by_qpn.get(&(src, req.local_qpn)).copied());
        let verdict = match stale {
            Some(old) => {
                self.end_stale(now, old);
                Err(RejectReason::STALE_CONNECTION)
            }
            None => self.admit(src, req),
        };
        match verdict {
            Ok(admission) => self.begin(src, tid, req, admission),
            Err(reason) => {
                self.answer(src, tid, rejection(0, req.local_comm_id, Answered::Req, reason));
            }
        }
    }

    fn on_duplicate_req(&mut self, now: Time, id: u32) {
        match self.step(now, id, Input::DuplicateReq) {
            Some(Next::To(_)) => {
                self.counters.duplicates += 1;
                self.say_mra(id, Answered::Req, self.config.service_timeout);
            }
            Some(_) => {
                if !self.repeat_answer(id, &[Attribute::Mra, Attribute::Rep, Attribute::Rej]) {
                    self.reject_from(id, Answered::Req, RejectReason::STALE_CONNECTION);
                }
            }
            None => self.counters.out_of_place += 1,
        }
    }

    /// May this request become a connection?
    fn admit(&mut self, src: IpAddr, req: &Req) -> Result<Admission, RejectReason> {
        let Some(listener) = self.listeners.find(req.service_id) else {
            self.counters.invalid_service += 1;
            return Err(RejectReason::INVALID_SERVICE_ID);
        };
        let known = match req.transport {
            TransportService::Rc | TransportService::Uc => true,
            TransportService::Rd => false,
            TransportService::Extended => req.extended_transport == XRC,
        };
        if !known {
            self.counters.invalid_transport += 1;
            return Err(RejectReason::INVALID_TRANSPORT_TYPE);
        }
        if !(1..=MAX_MTU_CODE).contains(&req.path_mtu) {
            self.counters.invalid_mtu += 1;
            return Err(RejectReason::INVALID_MTU);
        }
        if self.connections.len() >= self.config.max_connections {
            self.counters.too_many_connections += 1;
            return Err(RejectReason::NO_RESOURCES);
        }
        if self.listeners.pending(listener) >= self.config.max_pending {
            self.counters.backlog_full += 1;
            return Err(RejectReason::NO_RESOURCES);
        }
        let Some((peer, told, data)) = who_asks(src, req.service_id, &req.private_data) else {
            self.counters.invalid_cma_header += 1;
            return Err(RejectReason::UNSUPPORTED);
        };
        Ok(Admission { listener, peer, told, private_data: data.to_vec() })
    }

    fn begin(&mut self, src: IpAddr, tid: u64, req: &Req, admission: Admission) {
        let id = self.free_id();
        let limit = self.config.max_service_timeout;
        let mut conn = Connection::new(
            State::ReqReceived,
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
        conn.remote_id = Some(req.local_comm_id);
        conn.remote_qpn = Some(req.local_qpn);
        conn.extended = req.transport == TransportService::Extended;
        self.connections.insert(id, conn);
        self.by_peer.insert((src, req.local_comm_id), id);
        self.by_qpn.insert((src, req.local_qpn), id);
        self.listeners.begin(admission.listener);
        self.events.push_back(CmEvent::ConnectRequest(Box::new(incoming(id, req, admission))));
    }

    /// The peer no longer knows a connection of ours, so it ends.
    fn end_stale(&mut self, now: Time, id: u32) {
        self.counters.stale_connection += 1;
        if self.connections.get(&id).is_some_and(|conn| conn.state == State::Established) {
            self.say_dreq(now, id, [0; 220]);
            self.step(now, id, Input::Disconnect);
        }
    }

    fn on_mra(&mut self, now: Time, src: IpAddr, mra: &Mra) {
        let Some(id) = self.find(src, mra.remote_comm_id, mra.local_comm_id) else { return };
        let input = match mra.acknowledged {
            Answered::Req => Input::MraOfReq,
            Answered::Rep => Input::MraOfRep,
            Answered::Other => return self.counters.out_of_place += 1,
        };
        if self.step(now, id, input).is_none() {
            return self.counters.out_of_place += 1;
        }
        let asked = standard_time(mra.service_timeout.min(self.config.max_service_timeout));
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.wait = conn.first_wait.max(asked);
        let again = now + conn.wait;
        self.set_deadline(id, again);
    }

    fn on_rej(&mut self, now: Time, src: IpAddr, rej: &Rej) {
        // One that gave up waiting for the first answer never learnt our id.
        let ours = match rej.remote_comm_id {
            0 => self.by_peer.get(&(src, rej.local_comm_id)).copied().unwrap_or(0),
            id => id,
        };
        let Some(id) = self.find(src, ours, rej.local_comm_id) else { return };
        let before = self.connections.get(&id).map(|conn| conn.state);
        let input = match rej.reason {
            RejectReason::STALE_CONNECTION => Input::RejStale,
            _ => Input::Rej,
        };
        if self.step(now, id, input).is_none() {
            return self.counters.out_of_place += 1;
        }
        match before {
            Some(State::DreqSent) => {
                self.tell(id, |conn| CmEvent::Disconnected { conn, private_data: Vec::new() });
            }
            Some(State::DreqReceived) => {} // already told
            _ => self.tell(id, |conn| CmEvent::Rejected {
                conn,
                reason: rej.reason,
                private_data: rej.private_data.to_vec(),
            }),
        }
    }

    fn on_rep(&mut self, now: Time, src: IpAddr, tid: u64, rep: &Rep) {
        let Some(id) = self.find(src, rep.remote_comm_id, rep.local_comm_id) else {
            // Let the peer not wait for an RTU that never comes.
            let reason = RejectReason::INVALID_COMM_ID;
            let rej = rejection(rep.remote_comm_id, rep.local_comm_id, Answered::Rep, reason);
            return self.answer(src, tid, rej);
        };
        // An XRC target stands in a field of its own.
        let extended = self.connections.get(&id).is_some_and(|conn| conn.extended);
        let target = extended && rep.local_eecn != 0;
        let rep =
            &Rep { local_qpn: if target { rep.local_eecn } else { rep.local_qpn }, ..rep.clone() };
        if self.takes_reply(id) && self.is_taken(src, rep, id) {
            return self.refuse_stale_reply(now, id, src, tid, rep);
        }
        match self.step(now, id, Input::Rep) {
            Some(Next::To(State::RepReceived)) => self.on_first_rep(id, src, rep),
            Some(Next::To(_)) => {
                self.counters.duplicates += 1;
                self.say_mra(id, Answered::Rep, self.config.service_timeout);
            }
            Some(_) => {
                if !self.repeat_answer(id, &[Attribute::Mra, Attribute::Rtu, Attribute::Rej]) {
                    self.counters.out_of_place += 1;
                }
            }
            None => self.counters.out_of_place += 1,
        }
    }

    fn takes_reply(&self, id: u32) -> bool {
        let on_rep = |conn: &Connection| conn.state.on(Input::Rep);
        self.connections.get(&id).map(on_rep) == Some(Next::To(State::RepReceived))
    }

    /// Does another connection already have the peer's id or queue pair?
    fn is_taken(&self, src: IpAddr, rep: &Rep, id: u32) -> bool {
        let others = |found: Option<&u32>| found.is_some_and(|other| *other != id);
        others(self.by_qpn.get(&(src, rep.local_qpn)))
            || others(self.by_peer.get(&(src, rep.local_comm_id)))
    }

    fn refuse_stale_reply(&mut self, now: Time, id: u32, src: IpAddr, tid: u64, rep: &Rep) {
        let reason = RejectReason::STALE_CONNECTION;
        let rej = rejection(id, rep.local_comm_id, Answered::Rep, reason);
        self.answer(src, tid, rej);
        if let Some(old) = self.by_qpn.get(&(src, rep.local_qpn)).copied() {
            self.end_stale(now, old);
        }
        self.step(now, id, Input::RejStale);
        self.tell(id, |conn| CmEvent::Rejected { conn, reason, private_data: Vec::new() });
    }

    fn on_first_rep(&mut self, id: u32, src: IpAddr, rep: &Rep) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.remote_id = Some(rep.local_comm_id);
        conn.remote_qpn = Some(rep.local_qpn);
        self.by_peer.insert((src, rep.local_comm_id), id);
        self.by_qpn.insert((src, rep.local_qpn), id);
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
            None => self.counters.out_of_place += 1,
        }
    }

    fn on_dreq(&mut self, now: Time, src: IpAddr, tid: u64, dreq: &Dreq) {
        let Some(id) = self.find(src, dreq.remote_comm_id, dreq.local_comm_id) else {
            // Long gone here, and the peer may know.
            return self.answer_drep(src, tid, dreq.remote_comm_id, dreq.local_comm_id);
        };
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.local_qpn != dreq.remote_qpn {
            return self.counters.wrong_qpn += 1;
        }
        match self.step(now, id, Input::Dreq) {
            Some(Next::To(state)) => {
                self.set_transaction(id, tid);
                // Both sides disconnect at once: there is no one left to ask for an answer.
                if state == State::TimeWait {
                    self.say_drep(id, [0; Drep::PRIVATE_DATA]);
                }
                let private_data = dreq.private_data.to_vec();
                self.tell(id, |conn| CmEvent::Disconnected { conn, private_data });
            }
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
            Some(_) => {
                let private_data = drep.private_data.to_vec();
                self.tell(id, |conn| CmEvent::Disconnected { conn, private_data });
            }
            None => self.counters.out_of_place += 1,
        }
    }

    /// No answer came, often enough.
    pub(super) fn give_up(&mut self, now: Time, id: u32) {
        let Some(conn) = self.connections.get(&id) else { return };
        if conn.state == State::DreqSent {
            self.tell(id, |conn| CmEvent::Disconnected { conn, private_data: Vec::new() });
        } else {
            self.counters.unreachable += 1;
            self.say_timeout(id);
            self.tell(id, |conn| CmEvent::Unreachable { conn });
        }
        self.step(now, id, Input::RetriesExhausted);
    }

    /// The live connection that a message names, by our id and, once that is known, the peer's.
    fn find(&mut self, src: IpAddr, ours: u32, theirs: u32) -> Option<u32> {
        let conn = self.connections.get(&ours);
        if conn.is_some_and(|c| c.state != State::Closed && c.is_between(src, theirs)) {
            return Some(ours);
        }
        self.counters.unknown_connection += 1;
        None
    }
}

/// How long to wait for an answer: the time it takes to make it, and the way there and back. A
/// way longer than the answer is not believed: a peer could stretch every wait to hours.
pub(super) fn answer_time(response_timeout: u8, ack_timeout: u8) -> Duration {
    standard_time(response_timeout) + standard_time(ack_timeout.min(response_timeout))
}

/// Who asks whom, by the addresses in the private data, and the private data without them.
/// `None` if they should be there and are not.
pub(super) fn who_asks(
    src: IpAddr,
    service: ServiceId,
    private_data: &[u8],
) -> Option<(SocketAddr, Option<CmaHeader>, &[u8])> {
    if service.port().is_none() {
        return Some((SocketAddr::new(src, 0), None, private_data));
    }
    let (header, user) = CmaHeader::split(private_data).ok()?;
    // The address is where the packet came from; only the port has to be believed.
    Some((SocketAddr::new(src, header.source.port()), Some(header), user))
}

fn incoming(id: u32, req: &Req, admission: Admission) -> IncomingRequest {
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
        private_data: admission.private_data,
    }
}
