//! Connections by RDMA connection management: listen, connect, accept, part.
//!
//! What takes a message of the peer is a [`Handshake`]: `.await` it, or [`wait`](Handshake::wait)
//! for it in an ordinary thread. The device's background thread carries the messages.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//! use remora::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let timeout = Duration::from_secs(10);
//! let server = Device::open()?;
//! let listener = server.listen(7471)?;
//! let address = SocketAddr::new(server.info().address, listener.port());
//! let served = std::thread::spawn(move || {
//!     let domain = server.alloc_pd().unwrap();
//!     let memory = domain.alloc(4096, Access::all()).unwrap();
//!     let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
//!     let params = ConnectionParams::new(server.info().mtu);
//!     let request = listener.accept().wait(timeout).unwrap();
//!     let connection = request.accept(qp, b"welcome", &params).wait(timeout).unwrap();
//!     connection.send_remote(memory.slice(..).remote()).wait(timeout).unwrap();
//!     connection.closed().wait(timeout).unwrap();
//!     memory.slice(..5).to_vec().unwrap()
//! });
//!
//! let device = Device::open()?;
//! let domain = device.alloc_pd()?;
//! let qp = domain.create_qp(&QueuePairOptions::new())?;
//! let params = ConnectionParams::new(device.info().mtu);
//! let connection = device.connect(qp.clone(), address, b"hello", &params).wait(timeout)?;
//! let peer = connection.recv_remote().wait(timeout)?;
//! qp.write(b"bytes", peer.slice(..)).wait(timeout)?;
//! drop(connection);
//! assert_eq!(served.join().unwrap(), b"bytes");
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use remora_nic::Access;
use remora_nic::cm::message::{RejectReason, TransportService};
use remora_nic::cm::service::PortSpace;
use remora_nic::cm::{
    AcceptParams, CmEvent, CommandError, ConnId, ConnectError, ConnectRequest, IncomingRequest,
    ListenError, ListenerId, Reply, State,
};
use remora_nic::qp::{ModifyQpError, Mtu};
use thiserror::Error;

use crate::channel::deadline;
use crate::device::Device;
use crate::driver::Driver;
use crate::live::Live;
use crate::queue_pair::{ConnectionParams, Peer, QueuePair};
use crate::remote::Remote;
use crate::request::Request;

/// Why a connection did not come about.
#[derive(Debug, Error)]
pub enum ConnectFailure {
    /// The request itself is refused.
    #[error(transparent)]
    Request(#[from] ConnectError),
    /// The connection is not in a state for this.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The queue pair refuses.
    #[error("the queue pair cannot be connected: {0}")]
    QueuePair(#[from] ModifyQpError),
    /// The peer refuses.
    #[error("the peer refuses the connection ({reason:?}){}", describe(.message))]
    Rejected {
        /// Its reason.
        reason: RejectReason,
        /// Its own words, if it sent any.
        message: String,
    },
    /// The peer does not answer.
    #[error("{0} does not answer: is its device up, and is this its address?")]
    Unreachable(IpAddr),
    /// The peer asks for larger packets than ours may be. It will ask again.
    #[error("the peer asks for the path MTU with code {asked}; ours is {} bytes", .ours.bytes())]
    Mtu {
        /// The code it asks for.
        asked: u8,
        /// Ours.
        ours: Mtu,
    },
    /// It took too long.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
}

fn describe(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// Listens for connections to a port of the TCP port space (RDMA CM's, not TCP's).
///
/// [The module](self) has an example with both sides.
///
/// ```
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let listener = device.listen(7473)?;
/// assert_eq!(listener.port(), 7473);
/// assert!(device.listen(7473).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    live: Arc<Live>,
    id: ListenerId,
    port: u16,
}

/// Somebody wants to connect. Dropping it refuses.
#[derive(Debug)]
pub struct IncomingConnection {
    live: Arc<Live>,
    request: Box<IncomingRequest>,
    /// The peer offers StRoM's op-codes.
    offers: bool,
    /// Accepted or rejected.
    answered: bool,
}

/// A connection. Dropping it disconnects.
///
/// What its queue pair still waits for then ends with an error, if its requests are futures. [The
/// module](self) has an example.
#[derive(Debug)]
pub struct Connection {
    live: Arc<Live>,
    conn: ConnId,
    queue_pair: QueuePair,
    private_data: Vec<u8>,
    peer: SocketAddr,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionEnd {
    /// The peer has disconnected.
    Disconnected,
    /// It has not.
    Alive,
}

impl Device {
    /// Listens on `port`.
    ///
    /// # Errors
    /// The port is taken on this device, or there are too many listeners.
    pub fn listen(&self, port: u16) -> Result<Listener, ListenError> {
        let service = PortSpace::Tcp.service_id(port);
        let id = self.live.command(|driver| driver.nic.cm_mut().listen(service))?;
        Ok(Listener { live: self.live.clone(), id, port })
    }

    /// Connects a fresh reliable queue pair to the listener at `remote`, with at most 56 bytes of
    /// private data for it (52, if kernels are offered). If the peer's path MTU is smaller than
    /// that of `params`, the connection has the peer's.
    pub fn connect(
        &self,
        queue_pair: QueuePair,
        remote: SocketAddr,
        private_data: &[u8],
        params: &ConnectionParams,
    ) -> Handshake<'static, Connection> {
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

/// What the active side of a connection asks for.
struct Asked {
    live: Arc<Live>,
    queue_pair: QueuePair,
    remote: SocketAddr,
    /// With the offer of kernels.
    private_data: Vec<u8>,
    params: ConnectionParams,
}

impl Asked {
    /// Asks the peer once.
    async fn connect(&self) -> Result<Connection, ConnectFailure> {
        self.queue_pair.to_init(self.params.access)?;
        let conn = self.live.command(|driver| {
            let now = driver.now();
            driver.nic.cm_mut().connect(now, &self.request())
        })?;
        // From here on, dropping the connection tells the peer.
        let connection = Connection {
            live: self.live.clone(),
            conn,
            queue_pair: self.queue_pair.clone(),
            private_data: Vec::new(),
            peer: self.remote,
        };
        match news(&self.live, |driver| driver.take_cm_event(conn)).await {
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

    /// Readies the queue pair for what the peer has agreed to, and tells the peer so.
    fn establish(
        &self,
        mut connection: Connection,
        mut reply: Reply,
    ) -> Result<Connection, ConnectFailure> {
        let params = &self.params;
        let agreed = ConnectionParams {
            max_rd_atomic: params.max_rd_atomic.min(reply.responder_resources),
            rnr_retry: reply.rnr_retry_count,
            kernels: take_offer(&mut reply.private_data, REPLY_DATA) && params.kernels,
            ..*params
        };
        // Each side has told the other with which PSN to begin.
        let psn = self.queue_pair.local().psn;
        let peer = Peer { address: self.remote.ip(), qpn: reply.remote_qpn, psn };
        let expects = ConnectionParams { max_rd_atomic: params.max_rd_atomic, ..agreed };
        self.queue_pair.to_rtr(peer, &expects)?;
        self.queue_pair.to_rts_from(reply.starting_psn, &agreed)?;
        connection.follow();
        self.live.command(|driver| {
            let now = driver.now();
            driver.nic.cm_mut().establish(now, connection.conn, &[])
        })?;
        connection.private_data = reply.private_data;
        Ok(connection)
    }
}

impl Listener {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next request.
    pub fn accept(&self) -> Handshake<'_, IncomingConnection> {
        Handshake::new(async {
            loop {
                let news = news(&self.live, |driver| driver.take_cm_request(self.id)).await;
                let CmEvent::ConnectRequest(mut request) = news else { continue };
                let offers = take_offer(&mut request.private_data, REQUEST_DATA);
                let live = self.live.clone();
                return Ok(IncomingConnection { live, request, offers, answered: false });
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.live.command(|driver| {
            driver.nic.cm_mut().unlisten(self.id);
            let now = driver.now();
            while let Some(CmEvent::ConnectRequest(request)) = driver.take_cm_request(self.id) {
                driver.refuse(now, request.conn, b"the listener is gone");
            }
        });
    }
}

impl IncomingConnection {
    /// Who asks.
    pub fn peer(&self) -> SocketAddr {
        self.request.peer
    }

    /// What it says: its private data, padded with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// Accepts with a fresh reliable queue pair and at most 196 bytes of private data. The peer's
    /// MTU and retries are taken, and its depths where they are the smaller. A peer whose MTU is
    /// larger than that of `params` is told so; [`Device::connect`] then asks again with less.
    pub fn accept(
        mut self,
        queue_pair: QueuePair,
        private_data: &[u8],
        params: &ConnectionParams,
    ) -> Handshake<'static, Connection> {
        let (params, private_data) = (*params, private_data.to_vec());
        Handshake::new(async move {
            let agreed = self.agree(&params)?;
            let depth = params.max_rd_atomic.min(self.request.initiator_depth);
            self.ready(&queue_pair, depth, &agreed)?;
            let private_data = with_offer(&private_data, REPLY_DATA, agreed.kernels);
            self.answer(AcceptParams {
                qpn: queue_pair.qpn(),
                starting_psn: queue_pair.local().psn,
                responder_resources: depth,
                initiator_depth: agreed.max_rd_atomic,
                target_ack_delay: 0,
                rnr_retry_count: params.rnr_retry,
                srq: false,
                flow_control: false,
                private_data: &private_data,
            })?;
            self.establish(queue_pair).await
        })
    }

    /// What both sides can do. A peer that asks for a larger MTU than ours is told so: only the
    /// side that asks names an MTU, and there is no answer but yes or no.
    fn agree(&mut self, ours: &ConnectionParams) -> Result<ConnectionParams, ConnectFailure> {
        let asked = self.request.path_mtu;
        let Some(mtu) = Mtu::from_code(asked).filter(|mtu| *mtu <= ours.mtu) else {
            self.answered = true;
            self.live.command(|driver| {
                let now = driver.now();
                let reason = RejectReason::INVALID_MTU;
                driver.nic.cm_mut().reject(now, self.request.conn, reason, &[])
            })?;
            return Err(ConnectFailure::Mtu { asked, ours: ours.mtu });
        };
        Ok(ConnectionParams {
            mtu,
            max_rd_atomic: ours.max_rd_atomic.min(self.request.responder_resources),
            retry_cnt: self.request.retry_count,
            rnr_retry: self.request.rnr_retry_count,
            kernels: self.offers && ours.kernels,
            ..*ours
        })
    }

    /// Readies the queue pair, which takes as many READs and atomics at a time as `depth`.
    fn ready(
        &self,
        queue_pair: &QueuePair,
        depth: u8,
        agreed: &ConnectionParams,
    ) -> Result<(), ModifyQpError> {
        // Each side tells the other with which PSN to begin.
        let (address, psn) = (self.request.peer.ip(), queue_pair.local().psn);
        let peer = Peer { address, qpn: self.request.remote_qpn, psn };
        queue_pair.to_init(agreed.access)?;
        queue_pair.to_rtr(peer, &ConnectionParams { max_rd_atomic: depth, ..*agreed })?;
        queue_pair.to_rts_from(self.request.starting_psn, agreed)
    }

    fn answer(&mut self, answer: AcceptParams<'_>) -> Result<(), CommandError> {
        self.live.command(|driver| {
            let now = driver.now();
            driver.nic.cm_mut().accept(now, self.request.conn, &answer)
        })?;
        self.answered = true;
        Ok(())
    }

    /// Waits until the peer has taken the answer.
    async fn establish(&self, queue_pair: QueuePair) -> Result<Connection, ConnectFailure> {
        let conn = self.request.conn;
        let connection = Connection {
            live: self.live.clone(),
            conn,
            queue_pair,
            private_data: self.request.private_data.clone(),
            peer: self.request.peer,
        };
        connection.follow();
        match news(&self.live, |driver| driver.take_cm_event(conn)).await {
            CmEvent::Established { .. } => Ok(connection),
            CmEvent::Rejected { reason, private_data, .. } => {
                Err(ConnectFailure::Rejected { reason, message: text(&private_data) })
            }
            _ => Err(ConnectFailure::Unreachable(connection.peer.ip())),
        }
    }

    /// Refuses, in words that the peer's user will read (at most 148 bytes are sent).
    pub fn reject(mut self, message: &str) {
        self.refuse(message);
    }

    fn refuse(&mut self, message: &str) {
        self.answered = true;
        let mut end = message.len().min(148);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        self.live.command(|driver| {
            let now = driver.now();
            driver.refuse(now, self.request.conn, &message.as_bytes()[..end]);
        });
    }
}

impl Drop for IncomingConnection {
    fn drop(&mut self) {
        if !self.answered {
            self.refuse("not accepted");
        }
    }
}

impl Connection {
    /// Its queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// What the peer said when it connected or accepted, padded with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Has the peer disconnected?
    pub fn end(&self) -> ConnectionEnd {
        match is_alive(&self.live.lock(), self.conn) {
            true => ConnectionEnd::Alive,
            false => ConnectionEnd::Disconnected,
        }
    }

    /// Waits until the peer disconnects, in an ordinary thread and for at most `timeout`.
    pub fn wait_for_end(&self, timeout: Duration) -> ConnectionEnd {
        match self.closed().wait(timeout) {
            Ok(()) => ConnectionEnd::Disconnected,
            Err(_) => self.end(),
        }
    }

    /// Ends when the peer disconnects.
    pub fn closed(&self) -> Handshake<'_, ()> {
        Handshake::new(async {
            news(&self.live, |driver| (!is_alive(driver, self.conn)).then_some(())).await;
            Ok(())
        })
    }

    /// Tells the peer of memory, as a message of [`Remote::LEN`] bytes for its
    /// [`Connection::recv_remote`].
    pub fn send_remote(&self, remote: Remote) -> Request {
        self.queue_pair.send(&remote.to_bytes())
    }

    /// The memory that the peer tells of by [`Connection::send_remote`]: the next message of the
    /// connection that no earlier request receives.
    pub fn recv_remote(&self) -> Request<Remote> {
        match self.queue_pair.pd().alloc(Remote::LEN, Access::LOCAL_WRITE) {
            Ok(memory) => self.queue_pair.recv_remote_into(memory.slice(..)),
            Err(error) => self.queue_pair.refused(error.into()),
        }
    }

    /// When the connection ends, what its queue pair still waits for ends with an error: without,
    /// a receive request would wait for ever.
    fn follow(&self) {
        if self.queue_pair.requests().is_some() {
            self.live.lock().follows.insert(self.conn, self.queue_pair.qpn());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.live.command(|driver| {
            if driver.follows.contains_key(&self.conn) {
                // The last acknowledges leave before the queue pair goes to the error state.
                driver.settle();
                driver.end_requests(self.conn);
            }
            let now = driver.now();
            let cm = driver.nic.cm_mut();
            // Where it is over already, there is nobody to tell.
            let told = cm.disconnect(now, self.conn, &[]);
            if let Err(error) = told {
                tracing::debug!(%error, "a connection was over before it was dropped");
            }
            if let Err(error) = cm.destroy(now, self.conn) {
                tracing::debug!(%error, "a connection was gone before it was dropped");
            }
            driver.forget_cm_events(self.conn);
        });
    }
}

fn is_alive(driver: &Driver, conn: ConnId) -> bool {
    let alive = [State::Established, State::RepSent, State::MraRepReceived];
    driver.nic.cm().state(conn).is_some_and(|state| alive.contains(&state))
}

/// A step of connection management, which takes a message of the peer. It begins when it is first
/// polled, or waited for; dropping it ends the attempt, and tells the peer so.
#[must_use = "nothing happens until it is awaited, or waited for"]
pub struct Handshake<'a, T> {
    step: Pin<Box<dyn Future<Output = Result<T, ConnectFailure>> + Send + 'a>>,
}

impl<'a, T> Handshake<'a, T> {
    fn new(step: impl Future<Output = Result<T, ConnectFailure>> + Send + 'a) -> Handshake<'a, T> {
        Handshake { step: Box::pin(step) }
    }

    /// Waits in an ordinary thread, for at most `timeout`.
    ///
    /// # Errors
    /// See [`ConnectFailure`].
    pub fn wait(mut self, timeout: Duration) -> Result<T, ConnectFailure> {
        let end = deadline(timeout);
        crate::park::until(end, &mut self).unwrap_or(Err(ConnectFailure::Timeout(timeout)))
    }
}

impl<T> Future for Handshake<'_, T> {
    type Output = Result<T, ConnectFailure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.step.as_mut().poll(context)
    }
}

impl<T> fmt::Debug for Handshake<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").finish_non_exhaustive()
    }
}

/// Waits until `look` finds something.
async fn news<T>(live: &Live, mut look: impl FnMut(&mut Driver) -> Option<T>) -> T {
    poll_fn(|context| {
        let _here = live.wakes.here();
        let mut driver = live.lock();
        live.progress(&mut driver);
        driver.dispatch_events();
        if let Some(found) = look(&mut driver) {
            return Poll::Ready(found);
        }
        // Under the lock, under which news come.
        live.wakes.wait_for_cm(context.waker());
        drop(driver);
        live.background.take_over();
        Poll::Pending
    })
    .await
}

/// What both sides put at the end of their private data to offer StRoM's op-codes (there is no
/// other place for it: the messages are the standard's).
const OFFER: &[u8; 4] = b"StRM";
/// Bytes of private data in a request, and in a reply.
const REQUEST_DATA: usize = 56;
const REPLY_DATA: usize = 196;

/// Private data with the offer at the end of its `room` bytes. (Data that leaves no room for it
/// becomes longer than may be, and is refused for that.)
fn with_offer(data: &[u8], room: usize, offers: bool) -> Vec<u8> {
    let mut all = data.to_vec();
    if offers {
        all.resize((room - OFFER.len()).max(data.len()), 0);
        all.extend_from_slice(OFFER);
    }
    all
}

/// Takes the offer out of private data; says whether there was one.
fn take_offer(data: &mut [u8], room: usize) -> bool {
    let end = data.get_mut(room - OFFER.len()..room);
    end.is_some_and(|end| {
        let offers = end == OFFER;
        if offers {
            end.fill(0);
        }
        offers
    })
}

/// The words in private data, without its padding.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
