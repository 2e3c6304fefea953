//! The caller's commands: connect, accept, reject, establish, disconnect, destroy.
//!
//! In which state a command makes sense is in the table of states ([`super::state`]).

use core::net::{IpAddr, SocketAddr};

use rand_core::Rng;

use super::connection::{Beginning, Connection, Side, rejection, standard_time};
use super::message::{
    Answered, Drep, Dreq, Mra, Primary, Rej, RejectReason, Rep, Req, Rtu, TooLong,
    TransportService, private_data,
};
use super::receive::{MAX_MTU_CODE, XRC, answer_time};
use super::service::{CmaHeader, ServiceId};
use super::state::{ConnState, Input, Next};
use super::{Cm, CmEvent, ConnId};
use crate::wire::Dialect;
use crate::{Psn, Time};

/// A connection to ask a peer for. Numbers wider than their field are cut to it, but the queue
/// pair's: see [`WideNumber`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnectRequest<'a> {
    /// The peer.
    pub remote: IpAddr,
    /// The service to ask for. [`PortSpace::service_id`](super::service::PortSpace::service_id)
    /// makes one of a port.
    pub service: ServiceId,
    /// The port that the peer sees; used with services of the port spaces only.
    pub local_port: u16,
    /// Addresses to tell the peer, if they differ from those of the packets: for example a second
    /// address that the peer listens at. The port in them replaces `local_port`.
    pub told: Option<CmaHeader>,
    /// RC, UC or XRC.
    pub transport: TransportService,
    /// This side's queue pair.
    pub local_qpn: u32,
    /// The first PSN that the peer must send: the one that this side's queue pair will expect.
    pub starting_psn: Psn,
    /// How many reads and atomics this side can answer at a time.
    pub responder_resources: u8,
    /// How many reads and atomics this side wants under way.
    pub initiator_depth: u8,
    /// Transport retries, at most 7.
    pub retry_count: u8,
    /// Retries after "receiver not ready", at most 7.
    pub rnr_retry_count: u8,
    /// Does this side's queue pair use a shared receive queue?
    pub srq: bool,
    /// Will this side obey end-to-end credits?
    pub flow_control: bool,
    /// 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// Acknowledgement time-out, an exponent of at most 31. Time-wait is as long.
    pub ack_timeout: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// At most 56 bytes, or 92 outside the port spaces.
    pub private_data: &'a [u8],
}

impl ConnectRequest<'_> {
    /// A request for a reliable connection with the longest retries, one READ or atomic at a time
    /// each way, packets of 1024 bytes and 67 ms to acknowledge, from port 0 and without private
    /// data. The caller replaces what is to differ.
    pub fn new(remote: IpAddr, service: ServiceId, local_qpn: u32) -> ConnectRequest<'static> {
        ConnectRequest {
            remote,
            service,
            local_port: 0,
            told: None,
            transport: TransportService::Rc,
            local_qpn,
            starting_psn: Psn::new(0),
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            flow_control: false,
            path_mtu: 3,
            ack_timeout: 14,
            traffic_class: 0,
            private_data: &[],
        }
    }
}

/// The passive side's answer. Numbers wider than their field are cut to it, but the queue pair's:
/// see [`WideNumber`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AcceptParams<'a> {
    /// This side's queue pair.
    pub qpn: u32,
    /// The first PSN that the peer must send: the one that this side's queue pair will expect.
    pub starting_psn: Psn,
    /// How many reads and atomics this side can answer at a time.
    pub responder_resources: u8,
    /// How many reads and atomics this side will have under way.
    pub initiator_depth: u8,
    /// The longest time that this side takes to acknowledge, an exponent of at most 31.
    pub target_ack_delay: u8,
    /// Retries after "receiver not ready", at most 7.
    pub rnr_retry_count: u8,
    /// Does this side's queue pair use a shared receive queue?
    pub srq: bool,
    /// Will this side obey end-to-end credits?
    pub flow_control: bool,
    /// At most 196 bytes.
    pub private_data: &'a [u8],
}

/// A number that is no queue pair's, since those have 24 bits. Messages have no more room, and cut
/// to that it would be the number of another queue pair, whose connections the peer would end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[error("{0:#x} is no number of a queue pair, which has 24 bits")]
pub struct WideNumber(pub u32);

impl WideNumber {
    /// Refuses what is wider than 24 bits.
    pub(super) fn refuse(qpn: u32) -> Result<(), WideNumber> {
        if qpn >> 24 == 0 { Ok(()) } else { Err(WideNumber(qpn)) }
    }
}

/// Why a request for a connection cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConnectError {
    /// There are as many connections as [`CmConfig`](super::CmConfig) allows.
    #[error("too many connections")]
    TooManyConnections,
    /// The private data does not fit.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// The path MTU is not 1 to 5.
    #[error("no path MTU has the code {0}")]
    PathMtu(u8),
    /// There are no reliable datagrams.
    #[error("cannot connect {0:?} queue pairs")]
    Transport(TransportService),
    /// The queue pair's number is none.
    #[error(transparent)]
    QpNumber(#[from] WideNumber),
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Why a command to a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CommandError {
    /// There is no connection with this id, or the caller has destroyed it.
    #[error("unknown connection")]
    UnknownConnection,
    /// The command makes no sense in this state.
    #[error("{}", not_in(*.0))]
    WrongState(ConnState),
    /// The private data does not fit.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// The queue pair's number is none.
    #[error(transparent)]
    QpNumber(#[from] WideNumber),
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Why a connection's state has no room for a command, in words.
fn not_in(state: ConnState) -> String {
    match state {
        ConnState::DreqSent | ConnState::DreqReceived | ConnState::TimeWait | ConnState::Closed => {
            "the connection has ended".into()
        }
        _ => format!("not possible in state {state:?}"),
    }
}

impl Cm {
    /// Asks a peer for a connection. One event follows: [`CmEvent::Replied`],
    /// [`CmEvent::Rejected`] or [`CmEvent::Unreachable`]. For queue pairs of a card there is
    /// [`crate::Nic::connect`].
    ///
    /// # Errors
    /// [`ConnectError::PathMtu`] if the path MTU is not 1 to 5; [`ConnectError::Transport`] for
    /// reliable datagrams; [`ConnectError::QpNumber`] if the queue pair's number is wider than 24
    /// bits; [`ConnectError::PrivateData`] if the private data is too long;
    /// [`ConnectError::TooManyConnections`] if there are as many as [`CmConfig`](super::CmConfig)
    /// allows, and the caller has destroyed none of them.
    pub fn connect(
        &mut self,
        now: Time,
        request: &ConnectRequest<'_>,
    ) -> Result<ConnId, ConnectError> {
        self.connect_speaking(now, request, Dialect::all())
    }

    /// As [`Cm::connect`], for a queue pair that can speak no more than `speaks`.
    pub(crate) fn connect_speaking(
        &mut self,
        now: Time,
        request: &ConnectRequest<'_>,
        speaks: Dialect,
    ) -> Result<ConnId, ConnectError> {
        // The peer of a mapped address answers from its own, that of IPv4.
        let request = &ConnectRequest { remote: request.remote.to_canonical(), ..request.clone() };
        if !(1..=MAX_MTU_CODE).contains(&request.path_mtu) {
            return Err(ConnectError::PathMtu(request.path_mtu));
        }
        if request.transport == TransportService::Rd {
            return Err(ConnectError::Transport(request.transport));
        }
        WideNumber::refuse(request.local_qpn)?;
        let data = self.request_data(request)?;
        if !self.make_room(now) {
            return Err(ConnectError::TooManyConnections);
        }
        let id = self.free_id();
        let mut conn = Connection::new(
            ConnState::ReqSent,
            Beginning {
                side: Side::Active,
                peer: request.remote,
                local_qpn: request.local_qpn,
                transaction_id: self.rng.next_u64(),
                wait: answer_time(self.config.response_timeout, request.ack_timeout),
                max_retries: self.config.max_retries,
                time_wait: standard_time(request.ack_timeout),
            },
        );
        conn.extended = request.transport == TransportService::Extended;
        if request.transport == TransportService::Rc {
            conn.dialect = self.offers_to(request.remote) & speaks;
        }
        let offers = conn.dialect;
        self.connections.insert(id, conn);
        self.ask(now, id, self.req(id, request, offers, data));
        Ok(ConnId(id))
    }

    fn request_data(
        &self,
        request: &ConnectRequest<'_>,
    ) -> Result<[u8; Req::PRIVATE_DATA], TooLong> {
        if request.service.port().is_none() {
            return private_data(request.private_data);
        }
        let header =
            request.told.unwrap_or_else(|| self.cma_header(request.remote, request.local_port));
        header.prepend(request.private_data)
    }

    pub(super) fn cma_header(&self, destination: IpAddr, local_port: u16) -> CmaHeader {
        CmaHeader { source: SocketAddr::new(self.config.local, local_port), destination }
    }

    fn req(
        &self,
        id: u32,
        request: &ConnectRequest<'_>,
        offers: Dialect,
        private_data: [u8; Req::PRIVATE_DATA],
    ) -> Req {
        let config = &self.config;
        let path =
            Primary::between(config.local, request.remote, config.hop_limit, request.ack_timeout);
        Req {
            local_comm_id: id,
            service_id: request.service,
            local_ca_guid: config.guid_with(offers),
            local_qkey: 0,
            local_qpn: request.local_qpn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            remote_response_timeout: config.response_timeout,
            transport: request.transport,
            flow_control: request.flow_control,
            starting_psn: request.starting_psn,
            local_response_timeout: config.response_timeout,
            retry_count: request.retry_count,
            pkey: config.pkey,
            path_mtu: request.path_mtu,
            rnr_retry_count: request.rnr_retry_count,
            max_cm_retries: config.max_retries,
            srq: request.srq,
            extended_transport: u8::from(request.transport == TransportService::Extended) * XRC,
            primary: Primary { traffic_class: request.traffic_class, ..path },
            private_data,
        }
    }

    /// Passive side: accepts a request. The queue pair should be able to receive already. One event
    /// follows: [`CmEvent::Established`], or one of a failure. For queue pairs of a card there is
    /// [`crate::Nic::accept`].
    ///
    /// # Errors
    /// [`CommandError::QpNumber`] if the queue pair's number is wider than 24 bits;
    /// [`CommandError::PrivateData`] if the private data is longer than [`Rep::PRIVATE_DATA`];
    /// [`CommandError::UnknownConnection`] if there is no connection with this id, or the caller
    /// has destroyed it; [`CommandError::WrongState`] if no request waits to be accepted.
    pub fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        params: &AcceptParams<'_>,
    ) -> Result<(), CommandError> {
        self.accept_speaking(now, conn, params, Dialect::all())
    }

    /// As [`Cm::accept`], with a queue pair that can speak no more than `speaks`: nothing else is
    /// confirmed.
    pub(crate) fn accept_speaking(
        &mut self,
        now: Time,
        conn: ConnId,
        params: &AcceptParams<'_>,
        speaks: Dialect,
    ) -> Result<(), CommandError> {
        WideNumber::refuse(params.qpn)?;
        let private_data = private_data(params.private_data)?;
        self.command(now, conn, Input::Accept)?;
        let Some(connection) = self.connections.get_mut(&conn.0) else { return Ok(()) };
        connection.local_qpn = params.qpn;
        connection.dialect &= speaks;
        if let Side::Passive(listener) = connection.side {
            self.listeners.accept(listener, connection.peer, now, conn.0);
        }
        let rep = Rep {
            local_comm_id: conn.0,
            remote_comm_id: connection.remote_id.unwrap_or(0),
            local_qkey: 0,
            local_qpn: params.qpn,
            local_eecn: if connection.extended { params.qpn } else { 0 },
            starting_psn: params.starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            target_ack_delay: params.target_ack_delay,
            failover_accepted: 0,
            flow_control: params.flow_control,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq || connection.extended,
            local_ca_guid: self.config.guid_with(connection.dialect),
            private_data,
        };
        self.ask(now, conn.0, rep);
        Ok(())
    }

    /// Active side: tells the peer that the queue pair is ready. The connection is established.
    ///
    /// # Errors
    /// [`CommandError::PrivateData`] if `data` is longer than [`Rtu::PRIVATE_DATA`];
    /// [`CommandError::UnknownConnection`] as of [`Cm::accept`]; [`CommandError::WrongState`] if no
    /// reply of the peer waits for this.
    pub fn establish(&mut self, now: Time, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        let private_data = private_data(data)?;
        self.command(now, conn, Input::Establish)?;
        let (local_comm_id, remote_comm_id) = self.ids(conn.0);
        self.say(conn.0, Rtu { local_comm_id, remote_comm_id, private_data });
        Ok(())
    }

    /// Passive side: establishes the connection because a packet has come on its queue pair. The
    /// peer is ready then, even if its message that says so is lost. [`CmEvent::Established`]
    /// follows.
    ///
    /// # Errors
    /// [`CommandError::UnknownConnection`] as of [`Cm::accept`]; [`CommandError::WrongState`] if
    /// the connection does not wait, accepted, for the peer to say that it is ready.
    pub fn notify_established(&mut self, now: Time, conn: ConnId) -> Result<(), CommandError> {
        self.command(now, conn, Input::NotifyEstablished)?;
        self.tell(conn.0, |conn| CmEvent::Established { conn, private_data: Vec::new() });
        Ok(())
    }

    /// Refuses a request or a reply. The id is not valid any more after this.
    ///
    /// # Errors
    /// [`CommandError::PrivateData`] if `data` is longer than [`Rej::PRIVATE_DATA`];
    /// [`CommandError::UnknownConnection`] as of [`Cm::accept`]; [`CommandError::WrongState`] if
    /// neither a request nor a reply waits for the caller's answer.
    pub fn reject(
        &mut self,
        now: Time,
        conn: ConnId,
        reason: RejectReason,
        data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data = private_data(data)?;
        let rejected = self.owned(conn).ok_or(CommandError::UnknownConnection)?.unanswered();
        self.command(now, conn, Input::Reject)?;
        let (local, remote) = self.ids(conn.0);
        self.say(conn.0, Rej { private_data, ..rejection(local, remote, rejected, reason) });
        self.release(now, conn.0);
        Ok(())
    }

    /// Asks the peer for more time: the peer repeats the message that the caller has not answered
    /// only after `service_timeout`, an exponent of at most 31. The manager asks by itself when the
    /// peer repeats a message.
    ///
    /// # Errors
    /// [`CommandError::UnknownConnection`] as of [`Cm::accept`]; [`CommandError::WrongState`] if
    /// neither a request nor a reply waits for the caller's answer, or the caller or the manager
    /// has asked for more time already.
    pub fn mra(
        &mut self,
        now: Time,
        conn: ConnId,
        service_timeout: u8,
    ) -> Result<(), CommandError> {
        let of = self.owned(conn).ok_or(CommandError::UnknownConnection)?.unanswered();
        self.command(now, conn, Input::Mra)?;
        self.say_mra(conn.0, of, service_timeout);
        Ok(())
    }

    /// Ends an established connection; [`CmEvent::Disconnected`] follows. If the peer has already
    /// asked to end it, this does the same as [`disconnect_reply`](Cm::disconnect_reply).
    ///
    /// # Errors
    /// [`CommandError::PrivateData`] if `data` is longer than [`Dreq::PRIVATE_DATA`];
    /// [`CommandError::UnknownConnection`] as of [`Cm::accept`]; [`CommandError::WrongState`] if
    /// the connection is not established. If the peer has asked already, as
    /// [`Cm::disconnect_reply`].
    pub fn disconnect(&mut self, now: Time, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        if self.state(conn) == Some(ConnState::DreqReceived) {
            return self.disconnect_reply(now, conn, data);
        }
        let private_data = private_data(data)?;
        self.command(now, conn, Input::Disconnect)?;
        self.say_dreq(now, conn.0, private_data);
        Ok(())
    }

    /// Agrees that the peer ends the connection. The queue pair must send nothing more.
    ///
    /// # Errors
    /// [`CommandError::PrivateData`] if `data` is longer than [`Drep::PRIVATE_DATA`];
    /// [`CommandError::UnknownConnection`] as of [`Cm::accept`]; [`CommandError::WrongState`] if
    /// the peer has not asked to end the connection, or has its answer.
    pub fn disconnect_reply(
        &mut self,
        now: Time,
        conn: ConnId,
        data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data = private_data(data)?;
        self.command(now, conn, Input::DisconnectReply)?;
        self.say_drep(conn.0, private_data);
        Ok(())
    }

    /// Gives the id back, in any state. A connection that is not closed yet is rejected, cancelled
    /// or disconnected, without further events.
    ///
    /// # Errors
    /// Only [`CommandError::UnknownConnection`], as of [`Cm::accept`].
    pub fn destroy(&mut self, now: Time, conn: ConnId) -> Result<(), CommandError> {
        let before = self.owned(conn).ok_or(CommandError::UnknownConnection)?;
        let (state, unanswered) = (before.state, before.unanswered());
        match state {
            ConnState::ReqSent | ConnState::MraReqReceived => self.say_timeout(conn.0),
            ConnState::ReqReceived
            | ConnState::MraReqSent
            | ConnState::RepReceived
            | ConnState::MraRepSent
            | ConnState::RepSent
            | ConnState::MraRepReceived => {
                self.reject_from(conn.0, unanswered, RejectReason::CONSUMER_DEFINED);
            }
            ConnState::Established => self.say_dreq(now, conn.0, [0; Dreq::PRIVATE_DATA]),
            ConnState::DreqReceived => self.say_drep(conn.0, [0; Drep::PRIVATE_DATA]),
            ConnState::DreqSent | ConnState::TimeWait | ConnState::Closed => {}
        }
        self.step(now, conn.0, Input::Destroy);
        self.release(now, conn.0);
        Ok(())
    }

    /// Moves a connection of the caller's as the table says of a command.
    fn command(&mut self, now: Time, conn: ConnId, input: Input) -> Result<Next, CommandError> {
        let state = self.state(conn).ok_or(CommandError::UnknownConnection)?;
        self.step(now, conn.0, input).ok_or(CommandError::WrongState(state))
    }

    /// The caller is done with a connection. What is left of it serves the peer only.
    fn release(&mut self, now: Time, id: u32) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let of_peer = (conn.side != Side::Active && !conn.released).then_some(conn.peer);
        conn.released = true;
        self.released.add(now, id);
        of_peer.into_iter().for_each(|peer| self.give_share_back(peer));
        self.drop_if_done(id);
    }

    /// This side's and the peer's id of a connection; 0 if the peer's is not known.
    fn ids(&self, id: u32) -> (u32, u32) {
        (id, self.connections.get(&id).and_then(|conn| conn.remote_id).unwrap_or(0))
    }

    pub(super) fn say_mra(&mut self, id: u32, acknowledged: Answered, service_timeout: u8) {
        let (local_comm_id, remote_comm_id) = self.ids(id);
        let private_data = [0; Mra::PRIVATE_DATA];
        self.say(
            id,
            Mra { local_comm_id, remote_comm_id, acknowledged, service_timeout, private_data },
        );
    }

    pub(super) fn reject_from(&mut self, id: u32, rejected: Answered, reason: RejectReason) {
        let (local, remote) = self.ids(id);
        self.say(id, rejection(local, remote, rejected, reason));
    }

    /// Tells the peer that its answer took too long. The peer may not know this side's id of the
    /// connection, so the message also names this side's card.
    pub(super) fn say_timeout(&mut self, id: u32) {
        let (local, remote) = self.ids(id);
        let mut rej = rejection(local, remote, Answered::Other, RejectReason::TIMEOUT);
        let guid = self.config.guid_with(Dialect::STANDARD).to_be_bytes();
        rej.info[..guid.len()].copy_from_slice(&guid);
        rej.info_len = guid.len() as u8;
        self.say(id, rej);
    }

    pub(super) fn say_dreq(&mut self, now: Time, id: u32, private_data: [u8; Dreq::PRIVATE_DATA]) {
        let transaction_id = self.rng.next_u64();
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.transaction_id = transaction_id;
        let dreq = Dreq {
            local_comm_id: id,
            remote_comm_id: conn.remote_id.unwrap_or(0),
            remote_qpn: conn.remote_qpn.unwrap_or(0),
            private_data,
        };
        self.ask(now, id, dreq);
    }

    pub(super) fn say_drep(&mut self, id: u32, private_data: [u8; Drep::PRIVATE_DATA]) {
        let (local_comm_id, remote_comm_id) = self.ids(id);
        self.say(id, Drep { local_comm_id, remote_comm_id, private_data });
    }
}
