//! How a client connects, and why it cannot.

use std::net::SocketAddr;
use std::time::Duration;

use remora::connection::token::Token;
use remora::nic::CreateError;
use remora::{ConnectFailure, RegisterError};
use thiserror::Error;

use super::hello::BadGreeting;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The secret that the store asks for.
    pub token: Option<Token>,
    /// The number of the tablespace that calls are about.
    pub tablespace: u16,
    /// The longest piece of a value that comes with one call, in bytes.
    pub piece: usize,
    /// How many locations are kept of values that were read one-sided, 24 bytes each.
    pub locations: usize,
    /// How long connecting and each call may take.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        let timeout = Duration::from_secs(10);
        ClientOptions { token: None, tablespace: 0, piece: 64 << 10, locations: 1 << 16, timeout }
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
    #[error("no connection to the store at {store}: {source}")]
    Refused {
        /// Where.
        store: SocketAddr,
        /// Why.
        source: ConnectFailure,
    },
    /// What answers is no store.
    #[error(transparent)]
    Greeting(#[from] BadGreeting),
}
