//! Why a command of the card was refused, where several commands share the answer.

use thiserror::Error;

use crate::memory::MemoryFault;
use crate::qp::State;
use crate::queue::element::TooLong;

/// A card ran out of something, or an argument names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CreateError {
    /// No such protection domain.
    #[error("no such protection domain")]
    UnknownPd,
    /// No such completion queue.
    #[error("no such completion queue")]
    UnknownCq,
    /// No such shared receive queue, or one of another protection domain.
    #[error("no such shared receive queue in this protection domain")]
    UnknownSrq,
    /// No such XRC domain.
    #[error("no such XRC domain")]
    UnknownXrcd,
    /// A ring that is none: see [`crate::queue::RingInit`].
    #[error("a ring's depth must be a power of two up to 2^20, its stride a multiple of 64")]
    BadRing,
    /// A size of zero or above the card's limit.
    #[error("the size is zero or above the card's limit of {limit}")]
    Size {
        /// The limit.
        limit: usize,
    },
    /// The card has no more of these.
    #[error("the card has no more room: its limit is {limit}")]
    Full {
        /// The limit.
        limit: usize,
    },
}

/// Why something was not destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DestroyError {
    /// No such object.
    #[error("no such object")]
    Unknown,
    /// Others still use it.
    #[error("{users} objects still use it: destroy them first")]
    Busy {
        /// How many.
        users: u32,
    },
}

/// Why a work request was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PostError {
    /// No such queue pair or shared receive queue.
    #[error("no such queue")]
    UnknownQueue,
    /// The queue pair's state takes no such work.
    #[error("a queue pair in {0:?} takes no such work request")]
    State(State),
    /// The ring is full.
    #[error("the queue is full: poll completions first")]
    Full,
    /// More entries or inline bytes than the queue was created for.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The queue's memory cannot be written.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
}
