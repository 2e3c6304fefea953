//! Why a command of the card was refused, where several commands share the answer.

use thiserror::Error;

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
