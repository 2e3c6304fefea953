//! The sink of the card's connection events: turns them into events of ids.
//!
//! `events` may change their kind before the program sees them. Events without a packet are made in
//! `connect`, `connection` and `sidr`.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};

use remora::nic::cm::message::{RejectReason, SidrStatus, TransportService};
use remora::nic::cm::service::{CmaHeader, ServiceId};
use remora::nic::cm::{
    CmEvent, ConnId, IncomingRequest, IncomingResolution, Reply, Resolution, SidrAnswer,
};
use remora::nic::qp::Mtu;
use remora::raw::Commands;

use super::agreement::{param_of, random_psn};
use super::connection::{disconnected, end_by, over, unreachable};
use super::events::forget_request;
use super::manager::{Manager, current, push, transport};
use super::objects::{Agreement, Id, News, Param, Route, Stage};
use super::{ENODEV, Result, sidr, watch};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::process;

/// Opens the process's cards, if this is the first call, and connects their events to the sink.
pub(super) fn start() -> Result<()> {
    let manager = current();
    let mut started = manager.started.lock().unwrap_or_else(PoisonError::into_inner);
    if *started {
        return Ok(());
    }
    let cards = process::current().cards();
    if cards.is_empty() {
        return Err(ENODEV);
    }
    for card in cards {
        let to = manager.clone();
        let (index, mtu) = (card.index, card.mtu);
        let neighbours = card.device.limits().neighbours;
        card.device.set_cm_sink(Box::new(move |commands, event| {
            let neighbours = &neighbours;
            Sink { manager: &to, card: index, mtu, neighbours, commands }.take(event);
        }));
    }
    *started = true;
    watch::at_exit();
    Ok(())
}

/// The sink while it handles one event, under the card's lock.
struct Sink<'a> {
    manager: &'a Manager,
    card: usize,
    mtu: Mtu,
    /// The addresses of this machine besides those of loopback.
    neighbours: &'a [IpAddr],
    commands: &'a mut dyn Commands,
}

impl Sink<'_> {
    fn take(&mut self, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest(request) => self.on_request(*request),
            CmEvent::SidrRequest(question) => self.on_question(*question),
            CmEvent::SidrReply(answer) => self.on_answer(&answer),
            CmEvent::SidrUnreachable { sidr } => {
                if let Some(id) = self.manager.tables().questions.remove(&(self.card, sidr)) {
                    id.lock().sidr = None;
                    push(&id, RDMA_CM_EVENT_UNREACHABLE, |news| news.status = -libc::ETIMEDOUT);
                }
            }
            CmEvent::Replied(reply) => self.on_reply(*reply),
            // As Linux has it, without the private data of the peer's message.
            CmEvent::Established { conn, .. } => self.on(conn, |id| {
                id.lock().stage = Stage::Connected;
                push(id, RDMA_CM_EVENT_ESTABLISHED, |news| {
                    news.param = Param::Conn(rdma_conn_param::zeroed());
                });
            }),
            CmEvent::Rejected { conn, reason, private_data } => {
                self.on_rejected(conn, reason, private_data);
            }
            CmEvent::Unreachable { conn } => self.on(conn, unreachable),
            CmEvent::Disconnected { conn, timed_out, .. } => {
                self.on(conn, |id| disconnected(id, timed_out));
            }
            CmEvent::TimewaitExit { conn } => {
                self.on(conn, |id| push(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, |_| ()));
            }
        }
    }

    fn on(&self, conn: ConnId, act: impl FnOnce(&Arc<Id>)) {
        let id = self.manager.tables().connections.get(&(self.card, conn)).cloned();
        if let Some(id) = id {
            act(&id);
        }
    }

    fn on_request(&mut self, request: IncomingRequest) {
        let key = (self.card, request.listener);
        let listener = self.manager.tables().listeners.get(&key).cloned();
        let refusal = match &listener {
            None => Some(RejectReason::INVALID_SERVICE_ID),
            // A program cannot accept a request of another kind than its listener's.
            Some(listener) if !connects(listener.qp_type, request.transport) => {
                Some(RejectReason::INVALID_SERVICE_ID)
            }
            // Only a client names an MTU; refused, it asks again with a smaller one.
            Some(_) if request.path_mtu > self.mtu.code() => Some(RejectReason::INVALID_MTU),
            Some(listener) => {
                let mut state = listener.lock();
                let full = state.waiting >= state.backlog;
                state.waiting += usize::from(!full);
                full.then_some(RejectReason::CONSUMER_DEFINED)
            }
        };
        let child = match (&listener, refusal) {
            (Some(listener), None) => {
                self.child(listener, self.addresses(request.service, request.peer, request.told))
            }
            _ => None,
        };
        let (Some(listener), Some(child)) = (listener, child) else {
            let reason = refusal.unwrap_or(RejectReason::NO_RESOURCES);
            let refused = self.commands.reject(request.conn, reason, &[]);
            return tracing::debug!(?reason, ?refused, "a connection request is refused");
        };
        let mut state = child.lock();
        state.conn = Some(request.conn);
        state.route = Some(Route { peer: request.peer.ip(), mtu: request.path_mtu });
        state.agreement = Agreement {
            remote_qpn: request.remote_qpn,
            remote_psn: request.starting_psn.value(),
            local_psn: random_psn(),
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ack_timeout: request.ack_timeout,
            path_mtu: request.path_mtu,
            traffic_class: request.traffic_class,
            srq: request.srq,
        };
        let agreement = state.agreement;
        drop(state);
        self.manager.tables().connections.insert((self.card, request.conn), child.clone());
        let mut param = param_of(&agreement);
        param.flow_control = request.flow_control.into();
        self.announce(&listener, &child, Param::Conn(param), request.private_data);
    }

    /// The addresses of a request as the program sees them: this side's, then the peer's.
    fn addresses(
        &self,
        service: ServiceId,
        peer: SocketAddr,
        told: Option<CmaHeader>,
    ) -> Option<(SocketAddr, SocketAddr)> {
        let told = told?;
        let port = service.port().map_or(0, |(_, port)| port);
        let local = SocketAddr::new(told.destination.to_canonical(), port);
        Some((local, source(told.source, peer.ip(), self.neighbours)))
    }

    /// Makes the id of a request, which the listener has counted already.
    fn child(&self, listener: &Arc<Id>, told: Option<(SocketAddr, SocketAddr)>) -> Option<Arc<Id>> {
        let made = listener
            .channel()
            .and_then(|channel| Id::create(channel, false, listener.space, listener.qp_type).ok());
        let Some(child) = made else {
            listener.admitted();
            return None;
        };
        let context = listener.get(|c| c.context);
        child.set(|c| {
            // SAFETY: `set` gives the C struct, and this is a plain field of it.
            unsafe { (*c).context = context };
        });
        let mut state = child.lock();
        state.stage = Stage::Connecting;
        state.card = Some(self.card);
        if let Some((local, remote)) = told {
            (state.local, state.remote) = (Some(local), Some(remote));
        }
        drop(state);
        Some(child)
    }

    fn announce(
        &mut self,
        listener: &Arc<Id>,
        child: &Arc<Id>,
        param: Param,
        private_data: Vec<u8>,
    ) {
        // Locked until the request is there, so that it does not come to a channel which the
        // listener has left since the child was made.
        let state = listener.lock();
        let Some(channel) = &state.channel else {
            drop(state);
            // The listener is being destroyed: nobody else would answer the peer.
            end_by(self.commands, self.card, child);
            return forget_request(child);
        };
        child.change_channel(&mut child.lock(), channel);
        channel.push(News {
            listener: Some(listener.clone()),
            param,
            private_data,
            ..News::new(child, RDMA_CM_EVENT_CONNECT_REQUEST)
        });
    }

    fn on_reply(&mut self, reply: Reply) {
        self.on(reply.conn, |id| {
            let mut state = id.lock();
            state.stage = Stage::Replied;
            let ours = state.agreement;
            state.agreement = Agreement {
                remote_qpn: reply.remote_qpn,
                remote_psn: reply.starting_psn.value(),
                responder_resources: ours.responder_resources.min(reply.initiator_depth),
                initiator_depth: ours.initiator_depth.min(reply.responder_resources),
                rnr_retry_count: reply.rnr_retry_count,
                srq: reply.srq,
                ..ours
            };
            let mut param = param_of(&state.agreement);
            drop(state);
            param.responder_resources = reply.initiator_depth;
            param.initiator_depth = reply.responder_resources;
            param.flow_control = reply.flow_control.into();
            push(id, RDMA_CM_EVENT_CONNECT_RESPONSE, |news| {
                news.param = Param::Conn(param);
                news.private_data = reply.private_data;
            });
        });
    }

    fn on_rejected(&mut self, conn: ConnId, reason: RejectReason, private_data: Vec<u8>) {
        let id = self.manager.tables().connections.get(&(self.card, conn)).cloned();
        let Some(id) = id else { return };
        if reason == RejectReason::INVALID_MTU && self.ask_for_less(&id, conn) {
            return;
        }
        over(&id, RDMA_CM_EVENT_REJECTED, |news| {
            news.status = i32::from(reason.0);
            news.param = Param::Conn(rdma_conn_param::zeroed());
            news.private_data = private_data;
        });
    }

    /// Asks again with a smaller MTU, because the peer's link carries only smaller packets.
    fn ask_for_less(&mut self, id: &Arc<Id>, conn: ConnId) -> bool {
        let mut state = id.lock();
        let Some(mtu) = Mtu::from_code(state.agreement.path_mtu.wrapping_sub(1)) else {
            return false;
        };
        let Some(request) = state.request.clone() else { return false };
        let Ok(again) = self.commands.connect(request.with_mtu(mtu)) else { return false };
        if let Err(error) = self.commands.destroy_connection(conn) {
            tracing::debug!(%error, "a refused connection was gone already");
        }
        state.agreement.path_mtu = mtu.code();
        state.conn = Some(again);
        drop(state);
        let mut tables = self.manager.tables();
        tables.connections.remove(&(self.card, conn));
        tables.connections.insert((self.card, again), id.clone());
        true
    }

    fn on_question(&mut self, question: IncomingResolution) {
        let key = (self.card, question.listener);
        let listener = self.manager.tables().listeners.get(&key).cloned();
        // A program cannot answer a question to a listener for connections.
        let Some(listener) = listener.filter(|listener| listener.is_datagram()) else {
            return self.refuse_question(&question, SidrStatus::Unsupported);
        };
        let admitted = Some(listener).filter(|listener| {
            let mut state = listener.lock();
            let room = state.waiting < state.backlog;
            state.waiting += usize::from(room);
            room
        });
        let told = self.addresses(question.service, question.peer, question.told);
        let child = admitted.as_ref().and_then(|l| self.child(l, told));
        let (Some(listener), Some(child)) = (admitted, child) else {
            return self.refuse_question(&question, SidrStatus::NoQp);
        };
        let mut state = child.lock();
        state.sidr = Some(question.sidr);
        state.route = Some(Route { peer: question.peer.ip(), mtu: self.mtu.code() });
        drop(state);
        let param = Param::Datagram(rdma_ud_param::zeroed());
        self.announce(&listener, &child, param, question.private_data);
    }

    fn refuse_question(&mut self, question: &IncomingResolution, status: SidrStatus) {
        let no = SidrAnswer { status, qpn: 0, qkey: 0, private_data: &[] };
        let answered = self.commands.sidr_reply(question.sidr, no);
        tracing::debug!(?status, ?answered, "a resolution is refused");
    }

    fn on_answer(&mut self, answer: &Resolution) {
        let id = self.manager.tables().questions.remove(&(self.card, answer.sidr));
        let Some(id) = id else { return };
        sidr::on_answer(&id, answer);
    }
}

/// Can a queue pair of this type be connected as a request asks?
fn connects(qp_type: ibv_qp_type, asked: TransportService) -> bool {
    qp_type != IBV_QPT_UD && transport(qp_type) == asked
}

/// The address that a program sees as the peer's. The peer says it; but a peer on another machine
/// has none but the one that its packets come from, or access lists would let in a peer that
/// claims to be another.
fn source(told: SocketAddr, peer: IpAddr, neighbours: &[IpAddr]) -> SocketAddr {
    let is_here = |ip: &IpAddr| ip.is_loopback() || neighbours.contains(ip);
    let (ip, peer) = (told.ip().to_canonical(), peer.to_canonical());
    let believed = ip == peer || is_here(&ip) && is_here(&peer);
    SocketAddr::new(if believed { ip } else { peer }, told.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_takes_requests_of_its_own_kind() {
        let services = [TransportService::Rc, TransportService::Uc, TransportService::Extended];
        let taken_by = |qp_type| services.map(|asked| connects(qp_type, asked));
        assert_eq!(taken_by(IBV_QPT_RC), [true, false, false]);
        assert_eq!(taken_by(IBV_QPT_UC), [false, true, false]);
        assert_eq!(taken_by(IBV_QPT_XRC_RECV), [false, false, true]);
        assert_eq!(taken_by(IBV_QPT_UD), [false; 3]);
    }

    #[test]
    fn a_peer_does_not_choose_who_it_is() {
        let neighbours = ["10.0.0.1".parse().unwrap()];
        let seen = |told: &str, peer: &str| {
            let told = SocketAddr::new(told.parse().unwrap(), 7);
            let source = source(told, peer.parse().unwrap(), &neighbours);
            assert_eq!(source.port(), 7);
            source.ip().to_string()
        };
        // One program on this machine, whose card has an address of its own, reaches another by
        // any address of the machine.
        assert_eq!(seen("127.0.0.1", "127.0.0.94"), "127.0.0.1");
        assert_eq!(seen("10.0.0.1", "127.0.0.94"), "10.0.0.1");
        assert_eq!(seen("::1", "10.0.0.1"), "::1");
        assert_eq!(seen("::ffff:10.0.0.9", "10.0.0.9"), "10.0.0.9");
        // One on another machine is at the address that its packets come from.
        assert_eq!(seen("127.0.0.1", "10.0.0.9"), "10.0.0.9");
        assert_eq!(seen("10.0.0.1", "10.0.0.9"), "10.0.0.9");
        assert_eq!(seen("10.0.0.8", "10.0.0.9"), "10.0.0.9");
        assert_eq!(seen("10.0.0.9", "127.0.0.94"), "127.0.0.94");
    }
}
