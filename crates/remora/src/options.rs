//! The options of queue pairs and connections.

use std::net::IpAddr;

use remora_nic::qp::{MAX_RD_ATOMIC, Mtu};
use remora_nic::wire::{Dialect, Transport};
use remora_nic::{Access, Psn, QpFlags};

use crate::completion::CompletionQueue;
use crate::shared_receive::SharedReceiveQueue;

/// The options of a queue pair.
///
/// [`QueuePairOptions::new`] makes one whose requests are futures ([`crate::request`]),
/// [`QueuePairOptions::rc`] one that reports to a completion queue that the application polls.
///
/// ```
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let domain = device.alloc_pd()?;
/// let awaited = domain.create_qp(&QueuePairOptions::new().send_depth(32).inline(128))?;
///
/// let queue = device.create_cq(64)?;
/// let polled = domain.create_qp(&QueuePairOptions::rc(&queue).send_sges(2))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct QueuePairOptions<'a> {
    pub(crate) transport: Transport,
    pub(crate) send_cq: Option<&'a CompletionQueue>,
    pub(crate) recv_cq: Option<&'a CompletionQueue>,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) send_sges: usize,
    pub(crate) recv_sges: usize,
    pub(crate) inline: usize,
    pub(crate) signal_all: bool,
    pub(crate) flags: QpFlags,
}

impl Default for QueuePairOptions<'_> {
    fn default() -> Self {
        QueuePairOptions::new()
    }
}

impl<'a> QueuePairOptions<'a> {
    /// A reliable connection of moderate size whose requests are futures.
    pub fn new() -> QueuePairOptions<'a> {
        QueuePairOptions {
            transport: Transport::Rc,
            send_cq: None,
            recv_cq: None,
            srq: None,
            send_depth: 128,
            recv_depth: 128,
            send_sges: 1,
            recv_sges: 1,
            inline: 24,
            signal_all: false,
            flags: QpFlags::empty(),
        }
    }

    /// As [`QueuePairOptions::new`], but the queue pair reports to `cq`, which the application
    /// polls.
    pub fn rc(cq: &'a CompletionQueue) -> QueuePairOptions<'a> {
        QueuePairOptions::new().send_cq(cq).recv_cq(cq)
    }

    /// Sets the transport service.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        QueuePairOptions { transport, ..self }
    }

    /// Has send requests report to `cq`, which the application polls; they are not futures then.
    #[must_use]
    pub fn send_cq(self, cq: &'a CompletionQueue) -> Self {
        QueuePairOptions { send_cq: Some(cq), ..self }
    }

    /// Has receive requests report to `cq`, which the application polls; they are not futures then.
    #[must_use]
    pub fn recv_cq(self, cq: &'a CompletionQueue) -> Self {
        QueuePairOptions { recv_cq: Some(cq), ..self }
    }

    /// Takes receive requests from `srq` instead of a queue of the queue pair's own. They report to
    /// [`recv_cq`](QueuePairOptions::recv_cq), which must be set then.
    #[must_use]
    pub fn srq(self, srq: &'a SharedReceiveQueue) -> Self {
        QueuePairOptions { srq: Some(srq), ..self }
    }

    /// Sets how many send requests may be outstanding; rounded up to a power of two.
    #[must_use]
    pub fn send_depth(self, send_depth: u32) -> Self {
        QueuePairOptions { send_depth, ..self }
    }

    /// Sets how many receive requests may be outstanding; rounded up to a power of two.
    #[must_use]
    pub fn recv_depth(self, recv_depth: u32) -> Self {
        QueuePairOptions { recv_depth, ..self }
    }

    /// Sets how many scatter/gather entries a send request may have, at most 16.
    #[must_use]
    pub fn send_sges(self, send_sges: usize) -> Self {
        QueuePairOptions { send_sges, ..self }
    }

    /// Sets how many scatter/gather entries a receive request may have, at most 16.
    #[must_use]
    pub fn recv_sges(self, recv_sges: usize) -> Self {
        QueuePairOptions { recv_sges, ..self }
    }

    /// Sets how many inline bytes a send request may have, at most 1024.
    #[must_use]
    pub fn inline(self, bytes: usize) -> Self {
        QueuePairOptions { inline: bytes, ..self }
    }

    /// Has every send request reported, signaled or not. (Requests that are futures always are.)
    #[must_use]
    pub fn signal_all(self, signal_all: bool) -> Self {
        QueuePairOptions { signal_all, ..self }
    }

    /// Makes queues managed, for chains.
    #[must_use]
    pub fn flags(self, flags: QpFlags) -> Self {
        QueuePairOptions { flags, ..self }
    }
}

/// What one side of a connection must know of the other. [`QueuePair::local`] tells it of this
/// side; the other side passes it to [`QueuePair::connect`]. The two need no connection manager.
///
/// ```
/// use remora::nic::Psn;
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (a, b) = (Device::open()?, Device::open()?);
/// # let qp = a.alloc_pd()?.create_qp(&QueuePairOptions::new())?;
/// # let theirs = b.alloc_pd()?.create_qp(&QueuePairOptions::new())?;
/// # let Peer { address, qpn, psn } = theirs.local();
/// # let number = psn.value();
/// // The three have come by any means, as three words of a line for example.
/// let peer = Peer { address, qpn, psn: Psn::new(number) };
/// qp.connect(peer, &ConnectionParams::new(a.info().mtu))?;
/// # Ok(())
/// # }
/// ```
///
/// [`QueuePair::local`]: crate::QueuePair::local
/// [`QueuePair::connect`]: crate::QueuePair::connect
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The side's address.
    pub address: IpAddr,
    /// The number of its queue pair.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub psn: Psn,
}

/// How a connection behaves. The defaults suit a machine or a rack.
///
/// Methods change the defaults, and the fields can be read.
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::qp::Mtu;
///
/// let params = ConnectionParams::new(Mtu::B4096).access(Access::REMOTE_READ).retry_cnt(3);
/// assert_eq!((params.retry_cnt, params.rnr_retry), (3, 7));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectionParams {
    /// The path MTU.
    pub mtu: Mtu,
    /// What the peer may do to local memory.
    pub access: Access,
    /// READs and atomics outstanding in each direction, at most 16.
    pub max_rd_atomic: u8,
    /// The wait for an acknowledge, as a code `n`: 4.096 µs · 2^n.
    pub timeout: u8,
    /// How often a request is sent again without progress before it fails.
    pub retry_cnt: u8,
    /// How often a request is sent again to a receiver that is not ready; 7: without end.
    pub rnr_retry: u8,
    /// The wait that a peer is asked for when this side is not ready, as verbs' code.
    pub min_rnr_timer: u8,
    /// Whether calls of kernels (StRoM's op-codes) may be used, in both directions.
    pub kernels: bool,
    /// Whether the lossy dialect is spoken ([`crate::dialect`]).
    pub lossy: bool,
    /// The service level, 0 to 15 ([`crate::service_levels`]).
    pub service_level: u8,
}

impl ConnectionParams {
    /// The defaults, for a path of this MTU.
    pub fn new(mtu: Mtu) -> ConnectionParams {
        ConnectionParams {
            mtu,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            max_rd_atomic: MAX_RD_ATOMIC,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            kernels: false,
            lossy: false,
            service_level: 0,
        }
    }

    /// What queue pairs of the connection speak.
    pub(crate) fn dialect(&self) -> Dialect {
        let flags = [(self.kernels, Dialect::KERNELS), (self.lossy, Dialect::LOSSY)];
        flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect()
    }

    /// Sets the path MTU.
    #[must_use]
    pub fn mtu(self, mtu: Mtu) -> ConnectionParams {
        ConnectionParams { mtu, ..self }
    }

    /// Sets what the peer may do to local memory.
    #[must_use]
    pub fn access(self, access: Access) -> ConnectionParams {
        ConnectionParams { access, ..self }
    }

    /// Limits the READs and atomics outstanding in each direction, to 16 at most.
    #[must_use]
    pub fn max_rd_atomic(self, max_rd_atomic: u8) -> ConnectionParams {
        ConnectionParams { max_rd_atomic, ..self }
    }

    /// Sets the wait for an acknowledge: 4.096 µs · 2^`timeout`.
    #[must_use]
    pub fn timeout(self, timeout: u8) -> ConnectionParams {
        ConnectionParams { timeout, ..self }
    }

    /// Limits how often a request is sent again without progress before it fails.
    #[must_use]
    pub fn retry_cnt(self, retry_cnt: u8) -> ConnectionParams {
        ConnectionParams { retry_cnt, ..self }
    }

    /// Limits how often a request is sent again to a receiver that is not ready; 7: no limit.
    #[must_use]
    pub fn rnr_retry(self, rnr_retry: u8) -> ConnectionParams {
        ConnectionParams { rnr_retry, ..self }
    }

    /// Sets the wait that a peer is asked for when this side is not ready, as verbs' code.
    #[must_use]
    pub fn min_rnr_timer(self, min_rnr_timer: u8) -> ConnectionParams {
        ConnectionParams { min_rnr_timer, ..self }
    }

    /// Allows calls of kernels (StRoM's op-codes), in both directions. Connection management uses
    /// them where both sides offer it. [`QueuePair::connect`](crate::QueuePair::connect) trusts the
    /// caller: allow them only where the other side does, since other cards may give those op-codes
    /// another meaning.
    #[must_use]
    pub fn kernels(self, kernels: bool) -> ConnectionParams {
        ConnectionParams { kernels, ..self }
    }

    /// Speaks the lossy dialect, for [`QueuePair::connect`](crate::QueuePair::connect), which
    /// trusts the caller: set it only where the other side does. Connection management needs no
    /// word of it: there the cards agree by themselves.
    #[must_use]
    pub fn lossy(self, lossy: bool) -> ConnectionParams {
        ConnectionParams { lossy, ..self }
    }

    /// Sets the service level, 0 to 15, by which the card schedules this side's queue pair
    /// ([`crate::service_levels`]).
    #[must_use]
    pub fn service_level(self, service_level: u8) -> ConnectionParams {
        ConnectionParams { service_level, ..self }
    }
}
