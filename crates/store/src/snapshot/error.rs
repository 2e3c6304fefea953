//! Why there is no snapshot.

use crate::log::LogError;

/// Why no snapshot was made. Those that were there still are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// Another one is on its way.
    #[error("a save is in progress already")]
    InProgress,
    /// The disk refuses.
    #[error("cannot write a snapshot in {place}: {reason}; the log still has every change")]
    Disk {
        /// The directory.
        place: String,
        /// What the operating system says.
        reason: String,
    },
    /// Items are missing, and the files that have them must stay.
    #[error(
        "no snapshot was made: {items} items are damaged in the store's memory. The snapshot and \
         the log from before have them as they were: start the store again, or give their keys \
         other values"
    )]
    Damaged {
        /// How often damage was seen.
        items: u64,
    },
    /// The store is another one now.
    #[error(
        "no snapshot was made: a copy of another node's store has come in the place of this one"
    )]
    Replaced,
    /// What the store shows is not decided.
    #[error("no snapshot was made: {0}")]
    Undecided(String),
    /// The log is not on the disk.
    #[error("no snapshot was made: {0}")]
    Log(#[from] LogError),
}
