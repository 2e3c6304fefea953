//! Queue pairs that are connected, posted to and queried. Their requests as futures are in
//! [`crate::request`].

use std::net::IpAddr;
use std::sync::Arc;

use remora_nic::nic::McastError;
use remora_nic::qp::{ModifyQpError, QpAttr, State};
use remora_nic::queue::{RecvRequest, RingInit, SendRequest};
use remora_nic::{Access, CreateError, Path, PostError, Psn, QpFlags, QpInfo, QpInit, Queue};

use crate::attach::AdoptedQueuePair;
use crate::commands::{Commands, QpMade};
use crate::completion::CompletionQueue;
use crate::live::Live;
use crate::memory::Buffer;
use crate::multicast::JoinError;
use crate::options::{ConnectionParams, Peer, QueuePairOptions};
use crate::region::{ProtectionDomain, RingMemory};
use crate::request::queue::Requests;
use crate::shared_receive::{CreateQpError, SharedReceiveQueue, ring};

impl ProtectionDomain {
    /// Makes a queue pair.
    ///
    /// # Errors
    /// The card refuses, or memory for its rings is short.
    pub fn create_qp(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, CreateQpError> {
        QueuePair::new(self.clone(), options)
    }
}

/// A queue pair. It is destroyed when the last handle is dropped.
///
/// Its requests are futures, with a method for each kind ([`crate::request`]). Or the program posts
/// work requests, which report to a [`CompletionQueue`].
///
/// ```
/// use remora::prelude::*;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timeout = Duration::from_secs(10);
/// let (here, there) = (Device::open()?, Device::open()?);
/// let (mine, theirs) = (here.alloc_pd()?, there.alloc_pd()?);
/// let qp = mine.create_qp(&QueuePairOptions::new())?;
/// let peer = theirs.create_qp(&QueuePairOptions::new())?;
/// // Each side must know the other's `local()`, by any means; `Device::connect` exchanges both.
/// let params = ConnectionParams::new(here.info().mtu);
/// qp.connect(peer.local(), &params)?;
/// peer.connect(qp.local(), &params)?;
///
/// let room = theirs.alloc(64, Access::LOCAL_WRITE)?;
/// let message = peer.recv(&room);
/// qp.send(b"hello").wait(timeout)?;
/// assert_eq!(message.wait(timeout)?.len, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct QueuePair {
    inner: Arc<QpInner>,
}

#[derive(Debug)]
struct QpInner {
    pd: ProtectionDomain,
    qpn: u32,
    psn: Psn,
    /// With what it was made.
    made: QpInit,
    /// Views of memory that the card's owner keeps until the queue pair is destroyed.
    rings: [(Option<Buffer>, RingInit); 2],
    requests: Option<Arc<Requests>>,
    /// Which of the two queues have requests that are futures.
    awaited: [bool; 2],
    _queues: (CompletionQueue, CompletionQueue, Option<SharedReceiveQueue>),
}

impl Requests {
    /// The requests of a queue pair that is about to be made, if some of them are futures.
    fn of(
        pd: &ProtectionDomain,
        options: &QueuePairOptions<'_>,
        send_depth: u32,
        recv_depth: u32,
    ) -> Result<Option<Arc<Requests>>, CreateError> {
        let (sends, recvs) = (options.send_cq.is_none(), options.recv_cq.is_none());
        if !sends && !recvs {
            return Ok(None);
        }
        let slots = |awaited: bool, depth| if awaited { depth } else { 0 };
        Requests::new(pd.live(), slots(sends, send_depth), slots(recvs, recv_depth)).map(Some)
    }
}

impl QueuePair {
    pub(crate) fn new(
        pd: ProtectionDomain,
        options: &QueuePairOptions<'_>,
    ) -> Result<QueuePair, CreateQpError> {
        let sq = ring(options.send_depth, options.send_sges, options.inline);
        let recv_depth = if options.srq.is_some() { 0 } else { options.recv_depth };
        let rq = ring(recv_depth, options.recv_sges, 0);
        if options.srq.is_some() && options.recv_cq.is_none() {
            return Err(CreateQpError::NoCompletionQueue);
        }
        let given = [options.send_cq, options.recv_cq].into_iter().flatten();
        let mut lives =
            given.map(CompletionQueue::live).chain(options.srq.map(SharedReceiveQueue::live));
        if !lives.all(|live| std::ptr::eq(live, &**pd.live())) {
            return Err(CreateQpError::OtherDevice);
        }
        let requests = Requests::of(&pd, options, sq.depth, rq.depth)?;
        let own = requests.as_ref().map(|requests| requests.cq());
        let cq = |given: Option<&CompletionQueue>| {
            given.or(own).cloned().expect("a side without a queue has requests")
        };
        let (send_cq, recv_cq) = (cq(options.send_cq), cq(options.recv_cq));
        let init = QpInit {
            pd: pd.pd(),
            transport: options.transport,
            send_cq: send_cq.handle(),
            recv_cq: recv_cq.handle(),
            srq: options.srq.map(SharedReceiveQueue::handle),
            sq,
            rq,
            signal_all: options.signal_all,
            flags: options.flags,
            client: 0,
        };
        let mut driver = pd.live().lock();
        let QpMade { qpn, psn, sq, rq } = driver.create_qp(init)?;
        // SAFETY: the card's owner keeps the rings until the queue pair is destroyed, which is when
        // the last handle is dropped; every user of a view has a handle.
        let rings = [sq, rq].map(|ring| (unsafe { driver.ring_view(ring) }, ring));
        drop(driver);
        let awaited = [options.send_cq.is_none(), options.recv_cq.is_none()];
        let queues = (send_cq, recv_cq, options.srq.cloned());
        let made = init;
        let inner = QpInner { pd, qpn, psn, made, rings, requests, awaited, _queues: queues };
        Ok(QueuePair { inner: Arc::new(inner) })
    }

    /// A queue pair that another process has made in the same session, with the completion queues
    /// that it has there.
    pub(crate) fn adopt(
        pd: ProtectionDomain,
        qpn: u32,
        adopted: &AdoptedQueuePair,
        (send_cq, recv_cq): (CompletionQueue, CompletionQueue),
    ) -> QueuePair {
        let driver = pd.live().lock();
        // SAFETY: as in `QueuePair::new`.
        let rings = adopted.rings.map(|ring| (unsafe { driver.ring_view(ring) }, ring));
        drop(driver);
        let info = &adopted.info;
        let psn = info.attr.sq_psn.unwrap_or(Psn::new(0));
        let made = QpInit {
            pd: info.pd,
            transport: info.transport,
            send_cq: info.send_cq,
            recv_cq: info.recv_cq,
            srq: info.srq,
            sq: adopted.rings[0],
            rq: adopted.rings[1],
            signal_all: info.signal_all,
            flags: QpFlags::empty(),
            client: info.client,
        };
        let queues = (send_cq, recv_cq, None);
        let (requests, awaited) = (None, [false; 2]);
        let inner = QpInner { pd, qpn, psn, made, rings, requests, awaited, _queues: queues };
        QueuePair { inner: Arc::new(inner) }
    }

    /// The requests of one of the queues, if they are futures.
    pub(crate) fn requests_of(&self, queue: Queue) -> Option<&Requests> {
        let has_ring = self.ring(queue).depth > 0;
        self.requests().filter(|_| has_ring && self.inner.awaited[queue as usize])
    }

    /// The queue pair's requests, if some of them are futures.
    pub(crate) fn requests(&self) -> Option<&Requests> {
        self.inner.requests.as_deref()
    }

    /// The queue pair's number.
    pub fn qpn(&self) -> u32 {
        self.inner.qpn
    }

    pub(crate) fn live(&self) -> &Live {
        self.inner.pd.live()
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The ring of a queue; empty if the queue has none of its own.
    pub(crate) fn ring(&self, queue: Queue) -> RingInit {
        self.inner.rings[queue as usize].1
    }

    /// The memory of a queue's ring.
    pub(crate) fn ring_buffer(&self, queue: Queue) -> Option<&Buffer> {
        self.inner.rings[queue as usize].0.as_ref()
    }

    /// Begins a batch of posts on the queue pair's device.
    #[inline]
    pub fn post_batch(&self) -> PostBatch<'_> {
        let live = self.live();
        PostBatch { live, driver: live.lock() }
    }

    /// What a peer must know to connect to the queue pair.
    pub fn local(&self) -> Peer {
        let address = self.inner.pd.live().info.address;
        Peer { address, qpn: self.inner.qpn, psn: self.inner.psn }
    }

    /// Changes attributes and state. RESET drops the work in flight without completions; futures
    /// of requests end with [`Status::Flushed`](remora_nic::queue::Status::Flushed) all the same.
    ///
    /// # Errors
    /// See [`ModifyQpError`]; nothing was changed then.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        self.inner.pd.live().command(|driver| driver.modify_qp(self.inner.qpn, attr.clone()))?;
        if let (Some(State::Reset), Some(requests)) = (attr.state, self.requests()) {
            requests.flush();
        }
        Ok(())
    }

    /// Takes a connected queue pair from RESET to INIT: receive requests may be posted.
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn to_init(&self, access: Access) -> Result<(), ModifyQpError> {
        let state = Some(State::Init);
        self.modify(&QpAttr { state, access: Some(access), ..QpAttr::default() })
    }

    /// Takes a reliable connection from INIT to RTR: the peer may send from then on.
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn to_rtr(&self, peer: Peer, params: &ConnectionParams) -> Result<(), ModifyQpError> {
        let path = Path::new(peer.address, self.inner.qpn);
        self.modify(&QpAttr {
            state: Some(State::Rtr),
            path: Some(Path { service_level: params.service_level, ..path }),
            path_mtu: Some(params.mtu),
            dest_qp: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: Some(params.max_rd_atomic),
            min_rnr_timer: Some(params.min_rnr_timer),
            dialect: Some(params.dialect()),
            ..QpAttr::default()
        })
    }

    /// Takes a reliable connection from RTR to RTS: this side may send from then on.
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn to_rts(&self, params: &ConnectionParams) -> Result<(), ModifyQpError> {
        self.to_rts_from(self.inner.psn, params)
    }

    /// As [`QueuePair::to_rts`], with the first PSN that the peer expects. (In RDMA connection
    /// management, the receiver chooses it.)
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn to_rts_from(&self, psn: Psn, params: &ConnectionParams) -> Result<(), ModifyQpError> {
        self.modify(&QpAttr {
            state: Some(State::Rts),
            sq_psn: Some(psn),
            max_rd_atomic: Some(params.max_rd_atomic),
            timeout: Some(params.timeout),
            retry_cnt: Some(params.retry_cnt),
            rnr_retry: Some(params.rnr_retry),
            ..QpAttr::default()
        })
    }

    /// Connects a fresh reliable queue pair to its peer, all the way to RTS.
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn connect(&self, peer: Peer, params: &ConnectionParams) -> Result<(), ModifyQpError> {
        self.to_init(params.access)?;
        self.to_rtr(peer, params)?;
        self.to_rts(params)
    }

    /// Readies a fresh datagram queue pair. Datagrams to it must carry `qkey`.
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn activate_ud(&self, qkey: u32) -> Result<(), ModifyQpError> {
        let path_mtu = Some(self.inner.pd.live().info.mtu);
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        self.modify(&QpAttr { qkey: Some(qkey), ..to(State::Init) })?;
        self.modify(&QpAttr { path_mtu, ..to(State::Rtr) })?;
        self.modify(&QpAttr { sq_psn: Some(self.inner.psn), ..to(State::Rts) })
    }

    /// Has this datagram queue pair receive the datagrams to a multicast group that carry its
    /// Q_Key. To send to a group, make an address handle for the group's address and send to queue
    /// pair [`MULTICAST_QPN`](remora_nic::nic::MULTICAST_QPN). A member gets its own datagrams too.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn attach_mcast(&self, group: IpAddr) -> Result<(), JoinError> {
        self.inner.pd.live().command(|card| card.attach_mcast(self.inner.qpn, group))
    }

    /// Ends what [`QueuePair::attach_mcast`] began; dropping the queue pair does it too.
    ///
    /// # Errors
    /// The queue pair was not attached to the group.
    pub fn detach_mcast(&self, group: IpAddr) -> Result<(), McastError> {
        self.inner.pd.live().command(|card| card.detach_mcast(self.inner.qpn, group))
    }

    /// The queue pair's state and attributes. If the card was another process's, and that process
    /// has ended, the queue pair is in the error state, and has no other attributes.
    pub fn query(&self) -> QpInfo {
        let info = self.inner.pd.live().lock().query_qp(self.inner.qpn);
        info.unwrap_or_else(|| QpInfo::lost(&self.inner.made))
    }

    /// Posts a send request and rings the doorbell.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.inner.pd.live().command(|driver| driver.post_send(self.inner.qpn, 0, request))
    }

    /// Posts requests in turn and rings the doorbell once. Stops at the first request that is
    /// refused; returns how many were posted, and why one was refused.
    pub fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
    ) -> (usize, Result<(), PostError>) {
        self.inner.pd.live().command(|driver| {
            let mut posted = 0;
            for request in requests {
                let post = driver.post_send(self.inner.qpn, 0, &request);
                if post.is_err() {
                    return (posted, post);
                }
                posted += 1;
            }
            (posted, Ok(()))
        })
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let live = self.inner.pd.live();
        let mut guard = live.lock();
        let driver = &mut *guard;
        driver.post_recv(self.inner.qpn, request)?;
        if driver.wants_transmit() {
            // The queue pair is in ERROR: the card flushes the request.
            live.after_command(driver);
        }
        Ok(())
    }
}

/// A ring of a queue pair. It keeps the queue pair alive.
#[derive(Debug)]
pub(crate) struct RingOf(pub(crate) QueuePair, pub(crate) Queue);

impl RingMemory for RingOf {
    fn buffer(&self) -> Option<&Buffer> {
        self.0.ring_buffer(self.1)
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let mut driver = self.pd.live().lock();
        driver.detach_all(self.qpn);
        if let Err(error) = driver.destroy_qp(self.qpn) {
            tracing::error!(%error, "a queue pair was gone before its handle");
        }
        // Unlocked before regions are dropped, since those take the lock.
        drop(driver);
        if let Some(requests) = &self.requests {
            requests.give_up();
        }
    }
}

/// Posts to many queue pairs of one device, and rings all doorbells at once when it is dropped. So
/// packets of different queue pairs to one peer share system calls.
///
/// A batch holds the device's lock: drop it as soon as all is posted.
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open()?;
/// # let domain = device.alloc_pd()?;
/// # let queue = device.create_cq(64)?;
/// # let qp = domain.create_qp(&QueuePairOptions::rc(&queue))?;
/// # qp.loop_back(&qp, Access::all())?;
/// let (op, data, flags) = (SendOp::NoOp, Data::Sges(&[]), SendFlags::SIGNALED);
/// let mut batch = device.post_batch();
/// for wr_id in 0..8 {
///     batch.post_send(&qp, &SendRequest { wr_id, op, data, flags })?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PostBatch<'a> {
    live: &'a crate::live::Live,
    driver: std::sync::MutexGuard<'a, crate::either::Driver>,
}

impl crate::device::Device {
    /// Begins a batch of posts.
    #[inline]
    pub fn post_batch(&self) -> PostBatch<'_> {
        PostBatch { live: &self.live, driver: self.live.lock() }
    }
}

impl PostBatch<'_> {
    /// Posts a send request to a queue pair of this device.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_send(
        &mut self,
        qp: &QueuePair,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        self.driver.post_send(qp.qpn(), 0, request)
    }

    /// Posts a receive request to a queue pair of this device.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(
        &mut self,
        qp: &QueuePair,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        self.driver.post_recv(qp.qpn(), request)
    }
}

impl Drop for PostBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.live.after_command(&mut self.driver);
    }
}
