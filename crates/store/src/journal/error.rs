//! Why a change was not logged.

use thiserror::Error;

/// The change was not logged, and so was not made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the change was not made, since it could not be logged: {0}")]
pub struct JournalError(
    /// Why, and what to do.
    pub String,
);
