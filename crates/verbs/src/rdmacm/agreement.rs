//! The parameters on which the ends of a connection agree, and the names they have for each other.
//! [`super::connect`] sends them, [`super::sink`] takes the peer's.

use std::net::SocketAddr;

use remora::nic::Psn;
use remora::nic::cm::ConnectRequest;
use remora::nic::cm::service::{CmaHeader, PortSpace, ServiceId};
use remora::nic::qp::Mtu;

use super::objects::{Agreement, Id, Request};
use super::{EINVAL, Result};
use crate::abi::rdma_cma::*;

/// The acknowledge timeout if the program sets none: 4.096 µs · 2^16, 0.27 s.
pub(super) const ACK_TIMEOUT: u8 = 16;

impl Request {
    /// The request to the card, with this path MTU.
    pub(super) fn with_mtu(&self, mtu: Mtu) -> ConnectRequest<'_> {
        ConnectRequest {
            remote: self.remote,
            service: self.service,
            local_port: self.told.source.port(),
            told: Some(self.told),
            transport: self.transport,
            local_qpn: self.qpn,
            starting_psn: Psn::new(self.agreement.local_psn),
            responder_resources: self.agreement.responder_resources,
            initiator_depth: self.agreement.initiator_depth,
            retry_count: self.agreement.retry_count.min(7),
            rnr_retry_count: self.agreement.rnr_retry_count.min(7),
            srq: self.agreement.srq,
            flow_control: self.flow_control,
            path_mtu: mtu.code(),
            ack_timeout: self.agreement.ack_timeout,
            traffic_class: self.agreement.traffic_class,
            private_data: &self.private_data,
        }
    }
}

/// The service id of a port in a port space. IPoIB's space has no services of its own and uses
/// UDP's.
pub(super) fn service(space: rdma_port_space, port: u16) -> ServiceId {
    let space = match space {
        RDMA_PS_TCP => PortSpace::Tcp,
        RDMA_PS_IB => PortSpace::Ib,
        _ => PortSpace::Udp,
    };
    space.service_id(port)
}

/// A random first packet number, so that a late packet of an earlier connection does not match.
pub(super) fn random_psn() -> u32 {
    let mut random = [0; 4];
    // If the system gives no randomness, zero works too.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(random) & 0xff_ffff
}

/// An agreement as the program sees it.
pub(super) fn param_of(agreement: &Agreement) -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: agreement.responder_resources,
        initiator_depth: agreement.initiator_depth,
        retry_count: agreement.retry_count,
        rnr_retry_count: agreement.rnr_retry_count,
        srq: agreement.srq.into(),
        qp_num: agreement.remote_qpn,
        ..rdma_conn_param::zeroed()
    }
}

/// The addresses that the peer is told.
pub(super) fn told(id: &Id) -> Result<CmaHeader> {
    let state = id.lock();
    let (source, remote) = (state.local.ok_or(EINVAL)?, state.remote.ok_or(EINVAL)?);
    Ok(CmaHeader { source: canonical(source), destination: remote.ip().to_canonical() })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
