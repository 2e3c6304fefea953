//! The client's side: a connection to one region of a node.

use std::net::SocketAddr;
use std::time::Duration;

use remora::connection::token::Token;
use remora::kernel::KernelClient;
use remora::nic::CreateError;
use remora::nic::cm::message::RejectReason;
use remora::nic::queue::RemoteAddress;
use remora::{
    CompletionQueue, ConnectFailure, Connection, ConnectionParams, CreateQpError, Device,
    ProtectionDomain, QueuePair, QueuePairOptions, RegisterError, printable,
};
use thiserror::Error;

use super::KERNELS_DOCUMENT;
use super::address::{NodeAddress, RegionAddress};
use super::protocol::{ACK_TIMEOUT, REQUEST_LEN, Reply, ReplyError, Request};

/// Pieces in flight.
pub const WINDOW: usize = 8;
/// How long a node may take to answer. Within that time RDMA CM repeats the request once.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(6);
/// Calls of kernels in flight.
const CALLS: usize = 1;

/// A connection to a region of a node. Dropping it disconnects.
#[derive(Debug)]
pub struct RemoteRegion {
    device: Device,
    address: RegionAddress,
    token: Option<Token>,
    reply: Reply,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    recv_cq: CompletionQueue,
    connection: Connection,
}

/// Why there is no connection to a region.
#[derive(Debug, Error)]
pub enum OpenRegionError {
    /// The node does not answer.
    #[error(
        "no answer from {node} within {patience:?}: is `remora node` running there, and can \
         {local} reach it?"
    )]
    NoAnswer {
        /// The node.
        node: NodeAddress,
        /// How long the client has waited.
        patience: Duration,
        /// The address of the client's own device.
        local: std::net::IpAddr,
    },
    /// A device answers, but no node listens there.
    #[error("{0} has a card, but no memory node listens on its port {port}", port = .0.port)]
    NoListener(NodeAddress),
    /// The node refuses the client.
    #[error("node {node} refuses: {words}")]
    Refused {
        /// The node.
        node: NodeAddress,
        /// The reason, as the node says it.
        words: String,
    },
    /// Something other than a node listens there.
    #[error("{node} is not a memory node: {source}")]
    NoNode {
        /// The peer.
        node: NodeAddress,
        /// What is wrong with its reply.
        source: ReplyError,
    },
    /// Another failure.
    #[error("cannot connect to {node}: {source}")]
    Connect {
        /// The node.
        node: NodeAddress,
        /// The reason.
        source: ConnectFailure,
    },
    /// The name is not valid for a region.
    #[error("`{0}` cannot be the name of a region")]
    Name(String),
    /// The client's own card has no room for another object.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The client's own card has no room for a queue pair.
    #[error(transparent)]
    QueuePair(#[from] CreateQpError),
}

impl RemoteRegion {
    /// Connects to a region, within `patience`.
    ///
    /// # Errors
    /// See [`OpenRegionError`].
    pub fn open(
        device: &Device,
        address: &RegionAddress,
        token: Option<Token>,
        patience: Duration,
    ) -> Result<RemoteRegion, OpenRegionError> {
        let node = address.node;
        let request = Request { name: &address.name, token };
        let mut request =
            request.emit().ok_or_else(|| OpenRegionError::Name(address.name.clone()))?.to_vec();
        if address.name == KERNELS_DOCUMENT {
            // The name's padding is cut off to make room for the offer of op-codes.
            request.truncate(REQUEST_LEN - 4);
        }
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(4 * WINDOW)?;
        let recv_cq = device.create_cq(CALLS)?;
        let options = QueuePairOptions::rc(&cq)
            .recv_cq(&recv_cq)
            .send_depth(2 * WINDOW as u32)
            .recv_depth(CALLS as u32)
            .send_sges(2);
        let queue_pair = pd.create_qp(&options)?;
        let params = ConnectionParams::new(device.info().mtu)
            .timeout(ACK_TIMEOUT)
            .kernels(address.name == KERNELS_DOCUMENT);
        let to = SocketAddr::from(node);
        let connection = device.connect(queue_pair, to, &request, &params).wait(patience);
        let connection = connection.map_err(|failure| describe(failure, node, device))?;
        let reply = Reply::parse(connection.private_data())
            .map_err(|source| OpenRegionError::NoNode { node, source })?;
        let (device, address) = (device.clone(), address.clone());
        Ok(RemoteRegion { device, address, token, reply, pd, cq, recv_cq, connection })
    }

    /// Connects again, to learn why this connection broke.
    pub(crate) fn reopen(&self, patience: Duration) -> Result<RemoteRegion, OpenRegionError> {
        RemoteRegion::open(&self.device, &self.address, self.token, patience)
    }

    /// The region's address.
    pub fn address(&self) -> &RegionAddress {
        &self.address
    }

    /// The region's length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.reply.len
    }

    /// May the client write to the region?
    pub fn writable(&self) -> bool {
        self.reply.writable
    }

    /// The remote address and key of the bytes from `offset` on, for a work request.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: self.reply.addr.wrapping_add(offset), rkey: self.reply.rkey }
    }

    /// The protection domain in which to register local memory for work requests.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The queue pair on which to post work requests.
    pub fn queue_pair(&self) -> &QueuePair {
        self.connection.queue_pair()
    }

    /// The completion queue of those work requests.
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// A client for calling kernels, if this is the node's region of kernels; results have at most
    /// `result_len` bytes.
    ///
    /// # Errors
    /// The results' memory cannot be registered.
    pub fn kernels(&self, result_len: usize) -> Result<KernelClient, RegisterError> {
        KernelClient::new(&self.pd, self.queue_pair(), &self.recv_cq, CALLS, result_len)
    }
}

fn describe(failure: ConnectFailure, node: NodeAddress, device: &Device) -> OpenRegionError {
    let local = device.info().address;
    match failure {
        ConnectFailure::Timeout(patience) => OpenRegionError::NoAnswer { node, patience, local },
        ConnectFailure::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. } => {
            OpenRegionError::NoListener(node)
        }
        ConnectFailure::Rejected { message, .. } if !message.is_empty() => {
            OpenRegionError::Refused { node, words: printable(&message) }
        }
        source => OpenRegionError::Connect { node, source },
    }
}
