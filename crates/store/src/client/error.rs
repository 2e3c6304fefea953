//! Why a call of a store has no result.

use std::time::Duration;

use remora::RegisterError;
use remora::kernel::{CallFailure, CallStatus};
use thiserror::Error;

use crate::select::wire::WireError;
use crate::way::call::{BadCall, Refused};
use crate::way::chain::ChainError;
use crate::way::connect::ConnectError;
use crate::way::one_sided::OneSidedError;

/// How often a long value is read again that changes while it comes.
pub(super) const TRIES: usize = 16;

/// Why a call has no result.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store refuses.
    #[error("the store refuses: {0}")]
    Refused(#[from] Refused),
    /// The call failed on its way, or on the store's card.
    #[error(transparent)]
    Call(CallFailure),
    /// The store's card runs none of its kernels: it is another process's, as a daemon's is, or
    /// the store is about to begin or to end. What READs and chains find, they find all the same;
    /// of a key that they do not find, only a kernel can say that it is absent.
    #[error(
        "the store’s card runs no kernels of it, which it needs to answer this: where the card is \
         a daemon’s, ask and change by Redis’ or memcached’s protocol; otherwise try again"
    )]
    NoKernels,
    /// The key, the value or the predicate is longer than a call can be.
    #[error(transparent)]
    Bad(#[from] BadCall),
    /// The selection has no bytes.
    #[error(transparent)]
    Selection(#[from] WireError),
    /// A long value changed each time it was read.
    #[error("the value changed while it was read, {TRIES} times in a row; try again")]
    Changing,
    /// The store cannot be read one-sided.
    #[error(transparent)]
    OneSided(#[from] OneSidedError),
    /// The store cannot be read by a chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// There is no connection to a chain.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No node of the cluster has carried out the call.
    #[error(
        "no node of the cluster has answered within {waited:?}: {reason}; look at its nodes with \
         `remora store cluster status`"
    )]
    NoPrimary {
        /// How long was tried.
        waited: Duration,
        /// What went wrong last.
        reason: String,
    },
    /// A change may have taken effect, or not.
    #[error("nobody knows whether the change took effect: read the key; {reason}")]
    Doubt {
        /// What went wrong last.
        reason: String,
    },
    /// Another node became a group's primary while its keys were walked over.
    #[error("a group has another primary now, whose keys have another order: scan anew")]
    Reordered,
    /// Keys went from one group to another while they were walked over, or the cluster has other
    /// groups now.
    #[error(
        "keys were on their way from one group to another, or the cluster got other groups: some \
         would be missing, or come twice. Wait until no slots are moving (`remora store cluster \
         status` shows them), and scan anew"
    )]
    Moved,
    /// There are no random numbers, by which a client of a cluster is known.
    #[error("the system has no random numbers: {0}")]
    Random(rustix::io::Errno),
    /// There is no memory for a call's bytes.
    #[error("there is no memory for the bytes of a call: {0}")]
    Memory(#[from] RegisterError),
}

impl StoreError {
    /// The key is not there, or the condition does not hold.
    pub(super) fn is_absent(&self) -> bool {
        matches!(
            self,
            StoreError::Call(CallFailure::Status(CallStatus::NOT_FOUND))
                | StoreError::Refused(Refused::Condition)
        )
    }

    /// The connection is of no more use, or of none soon.
    pub(super) fn is_broken(&self) -> bool {
        use CallFailure::{Connection, Poll, Post, Request, Timeout};
        matches!(
            self,
            StoreError::Call(Connection(_) | Poll(_) | Post(_) | Request(_) | Timeout(_))
                | StoreError::Chain(_)
                | StoreError::OneSided(
                    OneSidedError::Read(_)
                        | OneSidedError::Timeout(_)
                        | OneSidedError::Post(_)
                        | OneSidedError::Poll(_)
                        | OneSidedError::Request(_)
                )
        )
    }

    /// What reads a node's memory without a kernel is of no more use, or of none soon.
    pub(super) fn ends_reading(&self) -> bool {
        self.is_broken() || self.is_late()
    }

    /// There was no answer in time.
    pub(super) fn is_late(&self) -> bool {
        use remora::ConnectFailure;
        match self {
            StoreError::Call(CallFailure::Timeout(_)) => true,
            StoreError::Connect(ConnectError::Refused { source, .. }) => {
                matches!(source, ConnectFailure::Timeout(_))
            }
            _ => false,
        }
    }

    /// The answer is not that of a store.
    pub(super) fn answer() -> StoreError {
        StoreError::Call(CallFailure::Answer)
    }
}

impl From<CallFailure> for StoreError {
    fn from(failure: CallFailure) -> StoreError {
        match failure {
            CallFailure::Status(status) if Refused::of(status).is_some() => {
                Refused::of(status).map_or(StoreError::Call(failure), StoreError::Refused)
            }
            CallFailure::Status(CallStatus::NO_KERNEL) => StoreError::NoKernels,
            failure => StoreError::Call(failure),
        }
    }
}
