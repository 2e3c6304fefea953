//! Connections by RDMA connection management: listen, connect, accept, disconnect.
//!
//! A step that waits for a message of the peer is a [`Handshake`]: `.await` it, or
//! [`wait`](Handshake::wait) for it in an ordinary thread. The device's background thread sends and
//! receives the messages.
//!
//! `connection/listen.rs` is the passive side, `connect.rs` the active one; `handshake.rs` has the
//! steps that wait for the peer, and `offer.rs` the offer of kernels. A server of many clients has
//! them in [`arrivals`] until they are connected, and then in a [`roster`]; it may ask for a
//! [`token`].
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

pub mod arrivals;
mod connect;
mod handshake;
pub(crate) mod inbox;
mod listen;
mod offer;
pub mod roster;
pub mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use remora_nic::Access;
use remora_nic::cm::{ConnId, ConnState};

use self::handshake::news_of;
pub use self::handshake::{ConnectFailure, Handshake};
use self::inbox::Topic;
pub use self::listen::{IncomingConnection, Listener};
use crate::commands::Commands;
use crate::either::Driver;
use crate::live::Live;
use crate::news::Concerned;
use crate::queue_pair::QueuePair;
use crate::remote::Remote;
use crate::request::Request;

/// A connection. Dropping it disconnects.
///
/// If the queue pair's requests are futures, those that are still in flight then end with an error.
/// [The module](self) shows both sides.
///
/// ```
/// use remora::prelude::*;
/// # use std::{net::SocketAddr, time::Duration};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timeout = Duration::from_secs(10);
/// # let server = Device::open()?;
/// # let listener = server.listen(7471)?;
/// # let to = SocketAddr::new(server.info().address, listener.port());
/// # let served = std::thread::spawn(move || {
/// #     let domain = server.alloc_pd().unwrap();
/// #     let memory = domain.alloc(4096, Access::all()).unwrap();
/// #     let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
/// #     let params = ConnectionParams::new(server.info().mtu);
/// #     let request = listener.accept().wait(timeout).unwrap();
/// #     let connection = request.accept(qp, b"welcome", &params).wait(timeout).unwrap();
/// #     connection.send_remote(memory.slice(..).remote()).wait(timeout).unwrap();
/// #     connection.closed().wait(timeout).unwrap();
/// # });
/// # let device = Device::open()?;
/// # let qp = device.alloc_pd()?.create_qp(&QueuePairOptions::new())?;
/// # let params = ConnectionParams::new(device.info().mtu);
/// let connection = device.connect(qp, to, b"hello", &params).wait(timeout)?;
/// assert!(connection.private_data().starts_with(b"welcome"));
/// let memory = connection.recv_remote().wait(timeout)?; // the server tells of its memory
/// connection.queue_pair().write(b"bytes", memory.slice(..)).wait(timeout)?;
/// drop(connection); // the server learns that the client has gone
/// # served.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Connection {
    live: Arc<Live>,
    conn: ConnId,
    queue_pair: QueuePair,
    private_data: Vec<u8>,
    peer: SocketAddr,
}

/// Whether a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionEnd {
    /// The peer has disconnected.
    Disconnected,
    /// The peer has not disconnected.
    Alive,
}

impl Connection {
    /// A connection that another process has made in the same session. What came with it, that
    /// process knew.
    pub(crate) fn adopt(live: Arc<Live>, conn: ConnId, queue_pair: QueuePair) -> Connection {
        let path = queue_pair.query().attr.path;
        let address = path.map_or(live.info.address, |path| path.dst);
        let peer = SocketAddr::new(address, 0);
        Connection { live, conn, queue_pair, private_data: Vec::new(), peer }
    }

    /// The connection's queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// The private data with which the peer connected or accepted, padded with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer's address and port.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Has the peer disconnected?
    pub fn end(&self) -> ConnectionEnd {
        match is_alive(&mut self.live.lock(), self.conn) {
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

    /// A future that ends when the peer disconnects.
    pub fn closed(&self) -> Handshake<'_, ()> {
        Handshake::new(async {
            let over = |driver: &mut Driver| (!is_alive(driver, self.conn)).then_some(());
            news_of(&self.live, Topic::Connection(self.conn), over).await;
            Ok(())
        })
    }

    /// Sends the peer a description of memory, as a message of [`Remote::LEN`] bytes for its
    /// [`Connection::recv_remote`].
    pub fn send_remote(&self, remote: Remote) -> Request {
        self.queue_pair.send(&remote.to_bytes())
    }

    /// Receives a description of the peer's memory, which the peer sends by
    /// [`Connection::send_remote`]. It takes the next message that no earlier request receives.
    pub fn recv_remote(&self) -> Request<Remote> {
        match self.queue_pair.pd().alloc(Remote::LEN, Access::LOCAL_WRITE) {
            Ok(memory) => self.queue_pair.recv_remote_into(memory.slice(..)),
            Err(error) => self.queue_pair.refused(error.into()),
        }
    }
}

/// Has the queue pair's requests end with an error when the connection ends. Otherwise a receive
/// request would wait without end.
fn follow(driver: &mut Driver, conn: ConnId, queue_pair: &QueuePair) {
    if queue_pair.requests().is_some() {
        driver.news().follows.insert(conn, queue_pair.qpn());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let wakers = self.live.command(|driver| {
            if driver.news().follows.contains_key(&self.conn) {
                // The last acknowledges leave before the queue pair goes to the error state.
                driver.settle();
                driver.end_requests(self.conn);
            }
            // This fails if the connection is over already.
            let told = driver.disconnect(self.conn, &[]);
            if let Err(error) = told {
                tracing::debug!(%error, "a connection was over before it was dropped");
            }
            if let Err(error) = driver.destroy_connection(self.conn) {
                tracing::debug!(%error, "a connection was gone before it was dropped");
            }
            driver.news().cm_inbox.forget(self.conn);
            self.live.wakes.forget_cm(Topic::Connection(self.conn))
        });
        drop(wakers);
    }
}

fn is_alive(driver: &mut Driver, conn: ConnId) -> bool {
    let alive = [ConnState::Established, ConnState::RepSent, ConnState::MraRepReceived];
    driver.connection_state(conn).is_some_and(|state| alive.contains(&state))
}
