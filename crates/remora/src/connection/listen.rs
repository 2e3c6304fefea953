//! The passive side of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use remora_nic::cm::message::{Rej, RejectReason};
use remora_nic::cm::service::PortSpace;
use remora_nic::cm::{
    AcceptParams, AddressScope, CmEvent, CommandError, IncomingRequest, ListenError, ListenerId,
};
use remora_nic::qp::{ModifyQpError, Mtu};

use super::handshake::{ConnectFailure, Handshake, news, news_of, text};
use super::inbox::Topic;
use super::offer::{REPLY_DATA, REQUEST_DATA, take_offer, with_offer};
use super::{Connection, follow};
use crate::commands::Commands;
use crate::device::Device;
use crate::either::Driver;
use crate::live::Live;
use crate::news::Concerned;
use crate::options::{ConnectionParams, Peer};
use crate::queue_pair::QueuePair;

/// Listens for connections to a port of the TCP port space (RDMA CM's, not TCP's).
///
/// A listener has no descriptor. [`accept`](Listener::accept) is a future: any executor can await
/// it, and an ordinary thread can wait for it. [The module](super) shows both sides.
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

/// A peer that wants to connect. Dropping it refuses.
///
/// ```
/// use remora::prelude::*;
/// # use std::{net::SocketAddr, time::Duration};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timeout = Duration::from_secs(10);
/// # let server = Device::open()?;
/// let listener = server.listen(7471)?;
/// # let to = SocketAddr::new(server.info().address, listener.port());
/// # let refused = std::thread::spawn(move || {
/// #     let device = Device::open().unwrap();
/// #     let qp = device.alloc_pd().unwrap().create_qp(&QueuePairOptions::new()).unwrap();
/// #     let params = ConnectionParams::new(device.info().mtu);
/// #     device.connect(qp, to, b"hello", &params).wait(timeout).unwrap_err().to_string()
/// # });
/// let request: IncomingConnection = listener.accept().wait(timeout)?;
/// if request.private_data().starts_with(b"hello") {
///     request.reject("name a table to read"); // `accept` takes a queue pair, and connects it
/// }
/// # assert!(refused.join().unwrap().contains("name a table to read"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct IncomingConnection {
    live: Arc<Live>,
    request: Box<IncomingRequest>,
    /// The peer offers kernels.
    offers: bool,
    /// The peer was accepted or refused.
    answered: bool,
}

impl Device {
    /// Listens on `port`.
    ///
    /// # Errors
    /// The port is taken on this device, or there are too many listeners.
    pub fn listen(&self, port: u16) -> Result<Listener, ListenError> {
        let service = PortSpace::Tcp.service_id(port);
        let id = self.live.command(|driver| driver.listen(service, AddressScope::All))?;
        Ok(Listener { live: self.live.clone(), id, port })
    }
}

impl Listener {
    /// The port that the listener listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next peer that wants to connect.
    pub fn accept(&self) -> Handshake<'_, IncomingConnection> {
        Handshake::new(async {
            let topic = Topic::Listener(self.id);
            loop {
                // A card that is gone has no further news.
                let look = |driver: &mut Driver| match driver.news().cm_inbox.take(topic) {
                    None if driver.is_lost() => Some(Err(CommandError::Gone)),
                    news => news.map(Ok),
                };
                let news = news_of(&self.live, topic, look).await?;
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
        let topic = Topic::Listener(self.id);
        let wakers = self.live.command(|driver| {
            driver.unlisten(self.id);
            while let Some(CmEvent::ConnectRequest(request)) = driver.news().cm_inbox.take(topic) {
                driver.refuse(request.conn, b"the listener is gone");
            }
            self.live.wakes.forget_cm(topic)
        });
        drop(wakers);
    }
}

impl IncomingConnection {
    /// The peer's address and port.
    pub fn peer(&self) -> SocketAddr {
        self.request.peer
    }

    /// The peer's private data, padded with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// Accepts with a fresh reliable queue pair and at most 196 bytes of private data. The
    /// connection uses the peer's MTU and retries, and the smaller depths. A peer that asks for a
    /// larger MTU than that of `params` is refused for that reason; its [`Device::connect`] then
    /// asks again with a smaller one.
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
            self.answer(
                &queue_pair,
                AcceptParams {
                    qpn: queue_pair.qpn(),
                    starting_psn: queue_pair.local().psn,
                    responder_resources: depth,
                    initiator_depth: agreed.max_rd_atomic,
                    target_ack_delay: 0,
                    rnr_retry_count: params.rnr_retry,
                    srq: false,
                    flow_control: false,
                    private_data: &private_data,
                },
            )?;
            self.establish(queue_pair).await
        })
    }

    /// What both sides can do. A peer that asks for a larger MTU than ours is refused for that
    /// reason: only a request names an MTU, and the answer to it can only accept or refuse.
    fn agree(&mut self, ours: &ConnectionParams) -> Result<ConnectionParams, ConnectFailure> {
        let asked = self.request.path_mtu;
        let Some(mtu) = Mtu::from_code(asked).filter(|mtu| *mtu <= ours.mtu) else {
            let reason = RejectReason::INVALID_MTU;
            self.live.command(|driver| driver.reject(self.request.conn, reason, &[]))?;
            self.answered = true;
            return Err(ConnectFailure::Mtu { asked, ours: ours.mtu });
        };
        Ok(ours
            .mtu(mtu)
            .max_rd_atomic(ours.max_rd_atomic.min(self.request.responder_resources))
            .retry_cnt(self.request.retry_count)
            .rnr_retry(self.request.rnr_retry_count)
            .kernels(self.offers && ours.kernels))
    }

    /// Readies the queue pair to take `depth` READs and atomics at a time.
    fn ready(
        &self,
        queue_pair: &QueuePair,
        depth: u8,
        agreed: &ConnectionParams,
    ) -> Result<(), ModifyQpError> {
        // Each side tells the other the first PSN to send.
        let (address, psn) = (self.request.peer.ip(), queue_pair.local().psn);
        let peer = Peer { address, qpn: self.request.remote_qpn, psn };
        queue_pair.to_init(agreed.access)?;
        queue_pair.to_rtr(peer, &agreed.max_rd_atomic(depth))?;
        queue_pair.to_rts_from(self.request.starting_psn, agreed)
    }

    fn answer(
        &mut self,
        queue_pair: &QueuePair,
        answer: AcceptParams<'_>,
    ) -> Result<(), CommandError> {
        let conn = self.request.conn;
        self.live.command(|driver| {
            // Before: the peer may have come, and gone, when this thread goes on.
            follow(driver, conn, queue_pair);
            driver.accept(conn, answer).inspect_err(|_| {
                driver.news().follows.remove(&conn);
            })
        })?;
        self.answered = true;
        Ok(())
    }

    /// Waits until the peer has received the answer.
    async fn establish(&self, queue_pair: QueuePair) -> Result<Connection, ConnectFailure> {
        let conn = self.request.conn;
        let connection = Connection {
            live: self.live.clone(),
            conn,
            queue_pair,
            private_data: self.request.private_data.clone(),
            peer: self.request.peer,
        };
        match news(&self.live, Topic::Connection(conn)).await {
            CmEvent::Established { .. } => Ok(connection),
            CmEvent::Rejected { reason, private_data, .. } => {
                Err(ConnectFailure::Rejected { reason, message: text(&private_data) })
            }
            _ => Err(ConnectFailure::Unreachable(connection.peer.ip())),
        }
    }

    /// Refuses, with a message for the peer's user (at most 148 bytes of it are sent).
    pub fn reject(mut self, message: &str) {
        self.refuse(message);
    }

    fn refuse(&mut self, message: &str) {
        self.answered = true;
        let mut end = message.len().min(Rej::PRIVATE_DATA);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        let message = &message.as_bytes()[..end];
        self.live.command(|driver| driver.refuse(self.request.conn, message));
    }
}

impl Drop for IncomingConnection {
    fn drop(&mut self) {
        if !self.answered {
            self.refuse("not accepted");
        }
    }
}
