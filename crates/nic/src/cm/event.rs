//! The events by which the manager tells its caller what has happened.

use core::net::SocketAddr;

use super::connection::ConnId;
use super::listener::ListenerId;
use super::message::{RejectReason, SidrStatus, TransportService};
use super::resolution::SidrId;
use super::service::{CmaHeader, ServiceId};
use crate::Psn;
use crate::wire::Dialect;

/// What has happened. Private data is as long as its message's field, padded with zeros: its real
/// length is not on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CmEvent {
    /// A peer asks for a connection. The caller must accept, reject or destroy it.
    ConnectRequest(Box<IncomingRequest>),
    /// The peer has accepted. The caller must move the queue pair to RTS, then call
    /// [`establish`](super::Cm::establish).
    Replied(Box<Reply>),
    /// Passive side: the peer is ready. (On the active side `establish` is that moment.)
    Established {
        /// The connection.
        conn: ConnId,
        /// The peer's private data; empty if the peer's message was lost and its first data packet
        /// showed that it is ready.
        private_data: Vec<u8>,
    },
    /// The peer refuses the connection, or has given it up. If the connection's state is then
    /// [`TimeWait`](super::ConnState::TimeWait), [`TimewaitExit`](CmEvent::TimewaitExit) follows.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// The peer's reason.
        reason: RejectReason,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The peer does not answer, and the manager has given the connection up.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// The connection has ended. If its [`state`](super::Cm::state) is
    /// [`DreqReceived`](super::ConnState::DreqReceived), the peer waits for
    /// [`disconnect_reply`](super::Cm::disconnect_reply).
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// The peer's private data; empty if the peer did not answer.
        private_data: Vec<u8>,
        /// This side has asked for the end, and the peer has answered none of the repetitions.
        timed_out: bool,
    },
    /// No late message can come any more: the queue pair may be used again.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// A peer asks for a datagram service. The caller must answer with
    /// [`sidr_reply`](super::Cm::sidr_reply).
    SidrRequest(Box<IncomingResolution>),
    /// The peer has answered a resolution, with a queue pair or a refusal. The id is free.
    SidrReply(Box<Resolution>),
    /// The peer does not answer a resolution. The id is free.
    SidrUnreachable {
        /// The resolution.
        sidr: SidrId,
    },
}

impl CmEvent {
    /// The connection that the event is about, if it is about one.
    pub fn conn(&self) -> Option<ConnId> {
        match self {
            CmEvent::ConnectRequest(request) => Some(request.conn),
            CmEvent::Replied(reply) => Some(reply.conn),
            CmEvent::Established { conn, .. }
            | CmEvent::Rejected { conn, .. }
            | CmEvent::Unreachable { conn }
            | CmEvent::Disconnected { conn, .. }
            | CmEvent::TimewaitExit { conn } => Some(*conn),
            CmEvent::SidrRequest(_) | CmEvent::SidrReply(_) | CmEvent::SidrUnreachable { .. } => {
                None
            }
        }
    }
}

/// A request for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IncomingRequest {
    /// The connection that the request is for.
    pub conn: ConnId,
    /// The listener that was asked.
    pub listener: ListenerId,
    /// The service that was asked for.
    pub service: ServiceId,
    /// The peer's address and port; port 0 outside the port spaces.
    pub peer: SocketAddr,
    /// The addresses that the peer states, if it states any. Its own may differ from that of its
    /// packets.
    pub told: Option<CmaHeader>,
    /// Kind of queue pair.
    pub transport: TransportService,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The first PSN that this side must send: the one that the peer's queue pair expects.
    pub starting_psn: Psn,
    /// How many reads and atomics the peer can answer at a time: the limit of this side's initiator
    /// depth.
    pub responder_resources: u8,
    /// How many reads and atomics the peer wants under way: this side's responder resources should
    /// hold as many.
    pub initiator_depth: u8,
    /// The peer's transport retries. Both sides use this number.
    pub retry_count: u8,
    /// The peer's retries after "receiver not ready".
    pub rnr_retry_count: u8,
    /// 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// Acknowledgement time-out of the path, as `ibv_qp_attr` has it.
    pub ack_timeout: u8,
    /// Traffic class that the peer will use.
    pub traffic_class: u8,
    /// Does the peer use a shared receive queue?
    pub srq: bool,
    /// Does the peer want end-to-end credits?
    pub flow_control: bool,
    /// What both cards offer beyond the standard. Accepting the request confirms it, and the queue
    /// pair must use it.
    pub dialect: Dialect,
    /// The peer's private data: 56 bytes, or 92 outside the port spaces.
    pub private_data: Vec<u8>,
}

/// The peer's reply to a request of this side.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reply {
    /// The connection.
    pub conn: ConnId,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The first PSN that this side must send: the one that the peer's queue pair expects.
    pub starting_psn: Psn,
    /// How many reads and atomics the peer can answer at a time.
    pub responder_resources: u8,
    /// How many reads and atomics the peer will have under way.
    pub initiator_depth: u8,
    /// The longest it takes the peer to acknowledge.
    pub target_ack_delay: u8,
    /// The peer's retries after "receiver not ready".
    pub rnr_retry_count: u8,
    /// Does the peer use a shared receive queue?
    pub srq: bool,
    /// Will the peer obey end-to-end credits?
    pub flow_control: bool,
    /// What the peer has confirmed of this card's offer beyond the standard: the queue pair must
    /// use it.
    pub dialect: Dialect,
    /// The peer's private data, 196 bytes.
    pub private_data: Vec<u8>,
}

/// A request to resolve a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IncomingResolution {
    /// The resolution, to be answered by [`sidr_reply`](super::Cm::sidr_reply).
    pub sidr: SidrId,
    /// The listener that was asked.
    pub listener: ListenerId,
    /// The service that was asked for.
    pub service: ServiceId,
    /// The peer's address and port; port 0 outside the port spaces.
    pub peer: SocketAddr,
    /// The addresses that the peer states, if it states any. Its own may differ from that of its
    /// packets.
    pub told: Option<CmaHeader>,
    /// The peer's private data: 180 bytes, or 216 outside the port spaces.
    pub private_data: Vec<u8>,
}

/// The peer's answer to a resolution that this side began.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Resolution {
    /// The resolution.
    pub sidr: SidrId,
    /// Success, or the reason for the refusal.
    pub status: SidrStatus,
    /// The queue pair that speaks for the service.
    pub qpn: u32,
    /// The queue key to send with.
    pub qkey: u32,
    /// The peer's private data, 136 bytes.
    pub private_data: Vec<u8>,
}
