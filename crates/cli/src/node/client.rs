//! The client's side: a connection to one region of a node.

use std::net::SocketAddr;
use std::time::Duration;

use remora::kernel::KernelClient;
use remora::nic::CreateError;
use remora::nic::cm::message::RejectReason;
use remora::nic::queue::Remote;
use remora::{
    CompletionQueue, ConnectFailure, Connection, ConnectionParams, CreateQpError, Device,
    ProtectionDomain, QueuePair, QueuePairOptions, RegisterError,
};
use thiserror::Error;

use super::KERNELS_DOCUMENT;
use super::address::{NodeAddress, RegionAddress};
use super::protocol::{ACK_TIMEOUT, REQUEST_LEN, Reply, ReplyError, Request, Token};

/// Pieces in flight.
pub const WINDOW: usize = 8;
/// How long a node may take to answer. The manager repeats its request once in that time.
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
    /// Nobody answers.
    #[error(
        "no answer from {node} within {patience:?}: is `remora node` running there, and can \
         {local} reach it?"
    )]
    NoAnswer {
        /// The node.
        node: NodeAddress,
        /// How long it was waited for.
        patience: Duration,
        /// Our own device.
        local: std::net::IpAddr,
    },
    /// There is a device, but no node.
    #[error("{0} has a card, but no memory node listens there on port {port}", port = .0.port)]
    NoListener(NodeAddress),
    /// The node refuses.
    #[error("node {node} refuses: {words}")]
    Refused {
        /// The node.
        node: NodeAddress,
        /// Its words.
        words: String,
    },
    /// Something else listens there.
    #[error("{node} is no memory node: {source}")]
    NoNode {
        /// The peer.
        node: NodeAddress,
        /// What is wrong.
        source: ReplyError,
    },
    /// Another failure.
    #[error("cannot connect to {node}: {source}")]
    Connect {
        /// The node.
        node: NodeAddress,
        /// Why.
        source: ConnectFailure,
    },
    /// Not a region's name.
    #[error("`{0}` cannot be the name of a region")]
    Name(String),
    /// Our own card has no room.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Our own card has no room for a queue pair.
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
            // The offer of op-codes takes the room of the name's padding.
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
        let to = SocketAddr::new(node.ip, node.port);
        let connection = device.connect(queue_pair, to, &request, &params).wait(patience);
        let connection = connection.map_err(|failure| describe(failure, node, device))?;
        let reply = Reply::parse(connection.private_data())
            .map_err(|source| OpenRegionError::NoNode { node, source })?;
        let (device, address) = (device.clone(), address.clone());
        Ok(RemoteRegion { device, address, token, reply, pd, cq, recv_cq, connection })
    }

    /// Connects anew, to learn why this connection broke.
    pub(crate) fn reopen(&self, patience: Duration) -> Result<RemoteRegion, OpenRegionError> {
        RemoteRegion::open(&self.device, &self.address, self.token, patience)
    }

    /// Where it is.
    pub fn address(&self) -> &RegionAddress {
        &self.address
    }

    /// Its length.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.reply.len
    }

    /// May it be written?
    pub fn writable(&self) -> bool {
        self.reply.writable
    }

    /// What a work request needs to reach the bytes from `offset` on.
    pub fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.reply.addr.wrapping_add(offset), rkey: self.reply.rkey }
    }

    /// Where local memory for work requests is to be registered.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Where work requests are posted.
    pub fn queue_pair(&self) -> &QueuePair {
        self.connection.queue_pair()
    }

    /// Where they complete.
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Calls kernels, if this is the node's region of them, with results of at most so many bytes.
    ///
    /// # Errors
    /// No memory for the results.
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

/// A peer's words may hold anything; a terminal should see text.
fn printable(words: &str) -> String {
    words.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_words_cannot_steer_a_terminal() {
        assert_eq!(printable("no\x1b[2J way"), "no?[2J way");
    }
}
