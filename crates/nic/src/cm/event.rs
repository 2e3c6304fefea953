//! What the manager tells its caller.

use core::net::SocketAddr;

use super::connection::ConnId;
use super::listener::ListenerId;
use super::message::{RejectReason, SidrStatus, TransportService};
use super::resolution::SidrId;
use super::service::{CmaHeader, ServiceId};
use crate::Psn;

/// Something happened. Private data is as long as its message's field, padded with zeros: its
/// real length is not on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEvent {
    /// A peer wants a connection: accept, reject or destroy it.
    ConnectRequest(Box<IncomingRequest>),
    /// The peer accepted. Move the queue pair to RTS, then [`establish`](super::Cm::establish).
    Replied(Box<Reply>),
    /// Passive side: the peer is ready. On the active side `establish` is that moment.
    Established {
        /// Which connection.
        conn: ConnId,
        /// The peer's; empty if its message was lost and data told instead.
        private_data: Vec<u8>,
    },
    /// The peer refuses, or has given up. If the connection's state is then
    /// [`TimeWait`](super::State::TimeWait), [`TimewaitExit`](CmEvent::TimewaitExit) follows.
    Rejected {
        /// Which connection.
        conn: ConnId,
        /// Why.
        reason: RejectReason,
        /// The peer's.
        private_data: Vec<u8>,
    },
    /// The peer does not answer; the connection is given up.
    Unreachable {
        /// Which connection.
        conn: ConnId,
    },
    /// The connection has ended. If its [`state`](super::Cm::state) is
    /// [`DreqReceived`](super::State::DreqReceived), the peer waits for
    /// [`disconnect_reply`](super::Cm::disconnect_reply).
    Disconnected {
        /// Which connection.
        conn: ConnId,
        /// The peer's; empty if it never answered.
        private_data: Vec<u8>,
    },
    /// No late message can come any more: the queue pair may be used again.
    TimewaitExit {
        /// Which connection.
        conn: ConnId,
    },
    /// A peer asks for a datagram service: answer it.
    SidrRequest(Box<IncomingResolution>),
    /// A datagram service is resolved, or is not to be had. The id is free.
    SidrReply(Box<Resolution>),
    /// Nobody answers a resolution. The id is free.
    SidrUnreachable {
        /// Which resolution.
        sidr: SidrId,
    },
}

impl CmEvent {
    /// The connection that it is about, if it is about one.
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
pub struct IncomingRequest {
    /// The connection that would be.
    pub conn: ConnId,
    /// Who was asked.
    pub listener: ListenerId,
    /// For what.
    pub service: ServiceId,
    /// Who asks; port 0 outside the port spaces.
    pub peer: SocketAddr,
    /// The addresses that the peer tells, where it does. Its own may not be that of its packets.
    pub told: Option<CmaHeader>,
    /// Kind of queue pair.
    pub transport: TransportService,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The first PSN that we are to send: the one that the peer's queue pair expects.
    pub starting_psn: Psn,
    /// How many reads and atomics the peer can answer at a time: a bound on our initiator depth.
    pub responder_resources: u8,
    /// How many it wants under way: what our responder resources should hold.
    pub initiator_depth: u8,
    /// The peer's transport retries, which serve for both sides.
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
    /// The peer's: 56 bytes, or 92 outside the port spaces.
    pub private_data: Vec<u8>,
}

/// A reply to a request of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Which connection.
    pub conn: ConnId,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The first PSN that we are to send: the one that the peer's queue pair expects.
    pub starting_psn: Psn,
    /// How many reads and atomics the peer can answer at a time.
    pub responder_resources: u8,
    /// How many it will have under way.
    pub initiator_depth: u8,
    /// The longest it takes the peer to acknowledge.
    pub target_ack_delay: u8,
    /// The peer's retries after "receiver not ready".
    pub rnr_retry_count: u8,
    /// Does the peer use a shared receive queue?
    pub srq: bool,
    /// Will the peer obey end-to-end credits?
    pub flow_control: bool,
    /// The peer's, 196 bytes.
    pub private_data: Vec<u8>,
}

/// A request to resolve a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IncomingResolution {
    /// The resolution, to be answered by [`sidr_reply`](super::Cm::sidr_reply).
    pub sidr: SidrId,
    /// Who was asked.
    pub listener: ListenerId,
    /// For what.
    pub service: ServiceId,
    /// Who asks; port 0 outside the port spaces.
    pub peer: SocketAddr,
    /// The addresses that the peer tells, where it does. Its own may not be that of its packets.
    pub told: Option<CmaHeader>,
    /// The peer's: 180 bytes, or 216 outside the port spaces.
    pub private_data: Vec<u8>,
}

/// What became of a resolution of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    /// Which resolution.
    pub sidr: SidrId,
    /// Success, or why not.
    pub status: SidrStatus,
    /// The queue pair that speaks for the service.
    pub qpn: u32,
    /// The queue key to send with.
    pub qkey: u32,
    /// The peer's, 136 bytes.
    pub private_data: Vec<u8>,
}
