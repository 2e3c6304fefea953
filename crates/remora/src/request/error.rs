//! Why a request has no result.

use std::time::Duration;

use remora_nic::PostError;
use remora_nic::queue::{PollCqError, Status};
use thiserror::Error;

use crate::memory::BufferError;
use crate::region::RegisterError;
use crate::remote::RemoteError;

/// Why a request has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request ended with an error.
    #[error("the request failed: {0}")]
    Status(#[from] Status),
    /// The request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// There are more bytes than room for them at their destination. Nothing was posted.
    #[error("{len} bytes do not fit into the {room} bytes that are to take them")]
    NoRoom {
        /// Bytes to move.
        len: u64,
        /// Bytes of room at their destination.
        room: u64,
    },
    /// The queue pair reports to a completion queue that the application polls, or was made
    /// without room for such requests. Nothing was posted.
    #[error("the queue pair does not take such requests: make it with QueuePairOptions::new")]
    Polled,
    /// The completion queue has lost entries. (It has room for all requests that are futures. Only
    /// work requests that the program has also posted to the queue pair can overflow it.)
    #[error(transparent)]
    Lost(#[from] PollCqError),
    /// The local memory cannot be read or written by the program.
    #[error(transparent)]
    Memory(#[from] BufferError),
    /// Memory for the request's result cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The peer's message does not describe remote memory.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The request did not end in time. It goes on: see [the module](super) on dropping a future.
    #[error("the request did not end within {0:?}")]
    Timeout(Duration),
}
