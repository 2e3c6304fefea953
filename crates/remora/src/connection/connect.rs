//! The active side of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use remora_nic::cm::message::{RejectReason, TransportService};
use remora_nic::cm::service::PortSpace;
use remora_nic::cm::{CmEvent, ConnectRequest, Reply};
use remora_nic::qp::Mtu;

use super::handshake::{ConnectFailure, Handshake, news, text};
use super::inbox::Topic;
use super::offer::{REPLY_DATA, REQUEST_DATA, take_offer, with_offer};
use super::{Connection, follow};
use crate::commands::Commands;
use crate::device::Device;
use crate::live::Live;
use crate::options::{ConnectionParams, Peer};
use crate::queue_pair::QueuePair;

impl Device {
    /// Connects a fresh reliable queue pair to the listener at `remote`, with at most 56 bytes of
    /// private data for it (52, if kernels are offered). If the peer's path MTU is smaller than
    /// that of `params`, the connection uses the peer's.
    pub fn connect(
        &self,
        queue_pair: QueuePair,
        remote: SocketAddr,
        private_data: &[u8],
        params: &ConnectionParams,
    ) -> Handshake<'static, Connection> {
        // The packets of a peer come from its own address, which a mapped one is not.
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let private_data = with_offer(private_data, REQUEST_DATA, params.kernels);
        let mut asked =
            Asked { live: self.live.clone(), queue_pair, remote, private_data, params: *params };
        Handshake::new(async move {
            loop {
                let made = asked.connect().await;
                let smaller = Mtu::from_code(asked.params.mtu.code() - 1);
                match (&made, smaller) {
                    (
                        Err(ConnectFailure::Rejected { reason: RejectReason::INVALID_MTU, .. }),
                        Some(mtu),
                    ) => asked.params.mtu = mtu,
                    _ => return made,
                }
            }
        })
    }
}

/// The request of the active side.
struct Asked {
    live: Arc<Live>,
    queue_pair: QueuePair,
    remote: SocketAddr,
    /// With the offer of kernels at its end, if kernels are offered.
    private_data: Vec<u8>,
    params: ConnectionParams,
}

impl Asked {
    /// Sends the request once, and waits for the peer's answer.
    async fn connect(&self) -> Result<Connection, ConnectFailure> {
        self.queue_pair.to_init(self.params.access)?;
        let conn = self.live.command(|driver| driver.connect(self.request()))?;
        // From here on, if the connection is dropped, the peer is told.
        let connection = Connection {
            live: self.live.clone(),
            conn,
            queue_pair: self.queue_pair.clone(),
            private_data: Vec::new(),
            peer: self.remote,
        };
        match news(&self.live, Topic::Connection(conn)).await {
            CmEvent::Replied(reply) => self.establish(connection, *reply),
            CmEvent::Rejected { reason, private_data, .. } => {
                Err(ConnectFailure::Rejected { reason, message: text(&private_data) })
            }
            _ => Err(ConnectFailure::Unreachable(self.remote.ip())),
        }
    }

    fn request(&self) -> ConnectRequest<'_> {
        let (local, params) = (self.queue_pair.local(), &self.params);
        ConnectRequest {
            remote: self.remote.ip(),
            service: PortSpace::Tcp.service_id(self.remote.port()),
            local_port: 0,
            told: None,
            transport: TransportService::Rc,
            local_qpn: local.qpn,
            starting_psn: local.psn,
            responder_resources: params.max_rd_atomic,
            initiator_depth: params.max_rd_atomic,
            retry_count: params.retry_cnt,
            rnr_retry_count: params.rnr_retry,
            srq: false,
            flow_control: false,
            path_mtu: params.mtu.code(),
            ack_timeout: params.timeout,
            traffic_class: 0,
            private_data: &self.private_data,
        }
    }

    /// Readies the queue pair for what the peer has agreed to, and tells the peer that it is ready.
    fn establish(
        &self,
        mut connection: Connection,
        mut reply: Reply,
    ) -> Result<Connection, ConnectFailure> {
        let params = &self.params;
        let agreed = params
            .max_rd_atomic(params.max_rd_atomic.min(reply.responder_resources))
            .rnr_retry(reply.rnr_retry_count)
            .kernels(take_offer(&mut reply.private_data, REPLY_DATA) && params.kernels);
        // Each side has told the other the first PSN to send.
        let psn = self.queue_pair.local().psn;
        let peer = Peer { address: self.remote.ip(), qpn: reply.remote_qpn, psn };
        let expects = agreed.max_rd_atomic(params.max_rd_atomic);
        self.queue_pair.to_rtr(peer, &expects)?;
        self.queue_pair.to_rts_from(reply.starting_psn, &agreed)?;
        self.live.command(|driver| {
            follow(driver, connection.conn, &self.queue_pair);
            driver.establish(connection.conn, &[])
        })?;
        connection.private_data = reply.private_data;
        Ok(connection)
    }
}
