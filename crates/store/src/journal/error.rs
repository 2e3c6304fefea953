//! Why a change was not logged.

use thiserror::Error;

/// The change was not logged, and so was not made. Each says why, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JournalError {
    /// The log takes no changes now.
    #[error("the change was not made, since it could not be logged: {0}")]
    Failed(String),
    /// The log takes changes, and never one as long.
    #[error("the change was not made: {0}")]
    TooLong(String),
}
