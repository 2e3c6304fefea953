//! Why a call of a kernel has no result.

use std::time::Duration;

use remora_nic::PostError;
use remora_nic::kernel::HEADER_LEN;
use remora_nic::queue::{PollCqError, Status};
use thiserror::Error;

use super::CallStatus;
use crate::memory::BufferError;
use crate::request::RequestError;

/// Why a call has no result.
#[derive(Debug, Error)]
pub enum CallFailure {
    /// The kernel, or the card that it was to run on, reports an error.
    #[error("the call failed: {0}")]
    Status(CallStatus),
    /// The call cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Connection(Status),
    /// The completion queue overflowed.
    #[error(transparent)]
    Poll(#[from] PollCqError),
    /// The call took too long.
    #[error("the kernel did not answer within {0:?}")]
    Timeout(Duration),
    /// The parameters are longer than the connection takes. Nothing was sent.
    #[error(
        "the parameters are {len} bytes long, and a call by this connection has at most {most}: \
         they and a header of {HEADER_LEN} bytes must fit its path MTU"
    )]
    TooLong {
        /// Bytes of the parameters.
        len: usize,
        /// The most that there may be.
        most: usize,
    },
    /// There is no such room for the result.
    #[error(transparent)]
    Room(#[from] BufferError),
    /// A request of a call failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// As many calls are in flight as the client was made for.
    #[error("all {0} places for calls are taken: finish one first")]
    Full(usize),
    /// The answer does not have the form of such a kernel's answers.
    #[error("the kernel's answer does not have the expected form: is it another kernel?")]
    Answer,
}
