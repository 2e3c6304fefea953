//! How a client connects, and why it cannot.

use std::net::SocketAddr;
use std::time::Duration;

use remora::connection::token::Token;
use remora::nic::CreateError;
use remora::{
    ConnectFailure, Connection, ConnectionParams, Device, QueuePair, RegisterError, wait_for,
};
use thiserror::Error;

use super::hello::{BadGreeting, Hello, Welcome};

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The secret that the store asks for.
    pub token: Option<Token>,
    /// The number of the tablespace that calls are about.
    pub tablespace: u16,
    /// The longest piece of a value that comes with one call, in bytes.
    pub piece: usize,
    /// How many calls are in flight at most, of a client whose calls are futures. Others wait.
    pub calls: usize,
    /// How many locations are kept of values that were read one-sided, 24 bytes each.
    pub locations: usize,
    /// How long connecting and each call may take, of a client that waits in an ordinary thread.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            token: None,
            tablespace: 0,
            piece: 64 << 10,
            calls: 32,
            locations: 1 << 16,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Why there is no connection to a store.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The card cannot make what a connection needs.
    #[error("this side's card has no room for a connection: {0}")]
    Card(#[from] CreateError),
    /// The card cannot make a queue pair.
    #[error("this side's card has no room for a queue pair: {0}")]
    QueuePair(String),
    /// Memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// No store answers there, or it refuses.
    #[error("the store at {store} cannot be reached: {source}{}", advice(.source))]
    Refused {
        /// Where.
        store: SocketAddr,
        /// Why.
        source: ConnectFailure,
    },
    /// A node of a cluster does not tell the map.
    #[error("the store is a part of a cluster, whose map it does not tell: {0}")]
    Map(String),
    /// What answers is no store.
    #[error(transparent)]
    Greeting(#[from] BadGreeting),
}

fn advice(failure: &ConnectFailure) -> &'static str {
    match failure {
        ConnectFailure::Timeout(_) => "; is `remora store serve` running there?",
        _ => "",
    }
}

/// Connects a queue pair to a store, and says what the connection is for.
pub(crate) async fn greet(
    device: &Device,
    store: SocketAddr,
    queue_pair: &QueuePair,
    hello: &Hello,
    params: &ConnectionParams,
) -> Result<(Connection, Welcome), ConnectError> {
    let hello = hello.to_bytes();
    let step = device.connect(queue_pair.clone(), store, &hello, params);
    let connection = step.await.map_err(|source| ConnectError::Refused { store, source })?;
    let welcome = Welcome::parse(connection.private_data())?;
    Ok((connection, welcome))
}

/// Waits in an ordinary thread until there is a connection, for at most so long.
pub(crate) fn in_time<T>(
    store: SocketAddr,
    timeout: Duration,
    connecting: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let late = ConnectFailure::Timeout(timeout);
    let done = wait_for(connecting, timeout);
    done.unwrap_or(Err(ConnectError::Refused { store, source: late }))
}
