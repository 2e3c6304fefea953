//! Errors that several commands of the card share.

use thiserror::Error;

/// Why an object could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// The ring's sizes are not legal: see [`crate::queue::RingInit`].
    #[error("a ring's depth must be a power of two up to 2^20, its stride a multiple of 64")]
    BadRing,
    /// A size of zero or above the card's limit.
    #[error("the size is zero or above the card's limit of {limit}")]
    Size {
        /// The limit.
        limit: usize,
    },
    /// The card has as many of these objects as its limit allows.
    #[error("the card has no more room: its limit is {limit}")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// There is no memory for the queue's ring.
    #[error("no memory for a ring of {bytes} bytes")]
    NoMemory {
        /// The ring's bytes.
        bytes: usize,
    },
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Why an object could not be destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DestroyError {
    /// No such object.
    #[error("no such object")]
    Unknown,
    /// Other objects still use it.
    #[error("{users} objects still use it: destroy them first")]
    Busy {
        /// How many objects use it.
        users: u32,
    },
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}
