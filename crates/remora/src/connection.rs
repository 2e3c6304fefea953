//! Connections by RDMA connection management: listen, connect, accept, part.
//!
//! These calls block, in threads of the application; the device's background thread carries the
//! messages.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_nic::cm::message::{RejectReason, TransportService};
use remora_nic::cm::service::PortSpace;
use remora_nic::cm::{
    AcceptParams, CmEvent, CommandError, ConnId, ConnectError, ConnectRequest, IncomingRequest,
    ListenError, ListenerId, State,
};
use remora_nic::qp::{ModifyQpError, Mtu};
use thiserror::Error;

use crate::device::Device;
use crate::driver::Driver;
use crate::live::Live;
use crate::queue_pair::{ConnectionParams, Peer, QueuePair};

/// How often a waiting thread drives the device itself, should everybody else rest.
const LOOK: Duration = Duration::from_millis(20);

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
    /// private data for it (52, if kernels are offered).
    ///
    /// # Errors
    /// See [`ConnectFailure`].
    pub fn connect(
        &self,
        queue_pair: QueuePair,
        remote: SocketAddr,
        private_data: &[u8],
        params: &ConnectionParams,
        patience: Duration,
    ) -> Result<Connection, ConnectFailure> {
        let mut params = *params;
        loop {
            let made =
                self.connect_once(queue_pair.clone(), remote, private_data, &params, patience);
            let smaller = Mtu::from_code(params.mtu.code() - 1);
            match (&made, smaller) {
                (
                    Err(ConnectFailure::Rejected { reason: RejectReason::INVALID_MTU, .. }),
                    Some(mtu),
                ) => params.mtu = mtu,
                _ => return made,
            }
        }
    }

    fn connect_once(
        &self,
        queue_pair: QueuePair,
        remote: SocketAddr,
        private_data: &[u8],
        params: &ConnectionParams,
        patience: Duration,
    ) -> Result<Connection, ConnectFailure> {
        let local = queue_pair.local();
        queue_pair.to_init(params.access)?;
        let private_data = &with_offer(private_data, REQUEST_DATA, params.kernels);
        let request = ConnectRequest {
            remote: remote.ip(),
            service: PortSpace::Tcp.service_id(remote.port()),
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
            private_data,
        };
        let conn = self.live.command(|driver| {
            let now = driver.now();
            driver.nic.cm_mut().connect(now, &request)
        })?;
        // From here on, dropping the connection tells the peer.
        let mut connection = Connection {
            live: self.live.clone(),
            conn,
            queue_pair,
            private_data: Vec::new(),
            peer: remote,
        };
        let event = wait(&self.live, patience, |driver| driver.take_cm_event(conn))
            .ok_or(ConnectFailure::Timeout(patience))?;
        let mut reply = match event {
            CmEvent::Replied(reply) => reply,
            CmEvent::Rejected { reason, private_data, .. } => {
                return Err(ConnectFailure::Rejected { reason, message: text(&private_data) });
            }
            _ => return Err(ConnectFailure::Unreachable(remote.ip())),
        };
        let agreed = ConnectionParams {
            max_rd_atomic: params.max_rd_atomic.min(reply.responder_resources),
            rnr_retry: reply.rnr_retry_count,
            kernels: take_offer(&mut reply.private_data, REPLY_DATA) && params.kernels,
            ..*params
        };
        // Each side has told the other with which PSN to begin.
        let peer = Peer { address: remote.ip(), qpn: reply.remote_qpn, psn: local.psn };
        let depth = params.max_rd_atomic;
        let expects = ConnectionParams { max_rd_atomic: depth, ..agreed };
        connection.queue_pair.to_rtr(peer, &expects)?;
        connection.queue_pair.to_rts_from(reply.starting_psn, &agreed)?;
        self.live.command(|driver| {
            let now = driver.now();
            driver.nic.cm_mut().establish(now, conn, &[])
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

    /// The next request; `None` if none comes within `patience`.
    pub fn accept(&self, patience: Duration) -> Option<IncomingConnection> {
        let event = wait(&self.live, patience, |driver| driver.take_cm_request(self.id))?;
        let CmEvent::ConnectRequest(mut request) = event else { return None };
        let offers = take_offer(&mut request.private_data, REQUEST_DATA);
        Some(IncomingConnection { live: self.live.clone(), request, offers, answered: false })
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
    ///
    /// # Errors
    /// See [`ConnectFailure`].
    pub fn accept(
        mut self,
        queue_pair: QueuePair,
        private_data: &[u8],
        params: &ConnectionParams,
        patience: Duration,
    ) -> Result<Connection, ConnectFailure> {
        let request = &*self.request;
        let conn = request.conn;
        // Only the side that asks names an MTU; there is no answer but yes or no.
        let Some(mtu) = Mtu::from_code(request.path_mtu).filter(|mtu| *mtu <= params.mtu) else {
            self.answered = true;
            self.live.command(|driver| {
                let now = driver.now();
                driver.nic.cm_mut().reject(now, conn, RejectReason::INVALID_MTU, &[])
            })?;
            return Err(ConnectFailure::Mtu { asked: request.path_mtu, ours: params.mtu });
        };
        let agreed = ConnectionParams {
            mtu,
            max_rd_atomic: params.max_rd_atomic.min(request.responder_resources),
            retry_cnt: request.retry_count,
            rnr_retry: request.rnr_retry_count,
            kernels: self.offers && params.kernels,
            ..*params
        };
        // Each side tells the other with which PSN to begin.
        let local = queue_pair.local();
        let peer = Peer { address: request.peer.ip(), qpn: request.remote_qpn, psn: local.psn };
        let depth = params.max_rd_atomic.min(request.initiator_depth);
        queue_pair.to_init(params.access)?;
        queue_pair.to_rtr(peer, &ConnectionParams { max_rd_atomic: depth, ..agreed })?;
        queue_pair.to_rts_from(request.starting_psn, &agreed)?;
        let private_data = &with_offer(private_data, REPLY_DATA, agreed.kernels);
        let answer = AcceptParams {
            qpn: local.qpn,
            starting_psn: local.psn,
            responder_resources: depth,
            initiator_depth: agreed.max_rd_atomic,
            target_ack_delay: 0,
            rnr_retry_count: params.rnr_retry,
            srq: false,
            flow_control: false,
            private_data,
        };
        self.live.command(|driver| {
            let now = driver.now();
            driver.nic.cm_mut().accept(now, conn, &answer)
        })?;
        self.answered = true;
        let connection = Connection {
            live: self.live.clone(),
            conn,
            queue_pair,
            private_data: self.request.private_data.clone(),
            peer: self.request.peer,
        };
        match wait(&self.live, patience, |driver| driver.take_cm_event(conn)) {
            Some(CmEvent::Established { .. }) => Ok(connection),
            Some(CmEvent::Rejected { reason, private_data, .. }) => {
                Err(ConnectFailure::Rejected { reason, message: text(&private_data) })
            }
            Some(_) => Err(ConnectFailure::Unreachable(connection.peer.ip())),
            None => Err(ConnectFailure::Timeout(patience)),
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
        let state = self.live.lock().nic.cm().state(self.conn);
        match state {
            Some(State::Established | State::RepSent | State::MraRepReceived) => {
                ConnectionEnd::Alive
            }
            _ => ConnectionEnd::Disconnected,
        }
    }

    /// Waits until the peer disconnects, at most for `patience`.
    pub fn wait_for_end(&self, patience: Duration) -> ConnectionEnd {
        let ended = wait(&self.live, patience, |driver| {
            let event = driver.take_cm_event(self.conn);
            event.filter(|e| matches!(e, CmEvent::Disconnected { .. }))
        });
        if ended.is_some() { ConnectionEnd::Disconnected } else { self.end() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.live.command(|driver| {
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

/// Waits until `look` finds something, at most for `patience`.
fn wait(
    live: &Live,
    patience: Duration,
    mut look: impl FnMut(&mut Driver) -> Option<CmEvent>,
) -> Option<CmEvent> {
    let end = crate::channel::deadline(patience);
    let mut driver = live.lock();
    loop {
        driver.dispatch_events();
        if let Some(event) = look(&mut driver) {
            return Some(event);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let arrived = live.cm_arrived.wait_timeout(driver, left.min(LOOK));
        driver = arrived.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        driver.progress();
    }
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
