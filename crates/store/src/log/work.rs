//! What there is to do for the committer, and what it sleeps for.

use super::Position;
use super::batch::Batch;

/// What the committer takes: the records from `first` to `last`.
pub(crate) struct Group {
    pub(crate) batch: Batch,
    pub(crate) first: Position,
    pub(crate) records: usize,
    pub(crate) last: Position,
}

/// What the committer does next.
pub(crate) enum Work {
    Write(Group),
    /// The cut of this number.
    Cut(u64, Cut),
}

/// What a cut leaves of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All up to here.
    After(Position),
    /// Nothing: a copy of another store stands in its place (see `snapshot::adopt`).
    All,
}

/// What a committer sleeps for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    /// A record, a cut, or somebody who waits for a sync.
    Any,
    /// A cut, or somebody who waits for a sync.
    Haste,
    /// A cut, or as many records, or as many threads that wait as the last sync served.
    Crowd {
        /// Records.
        records: usize,
        /// Threads that wait, 0 if none did: there are other ways to wait.
        waiters: usize,
    },
    /// A record, a cut, or the end of the errand that is under way.
    More,
    /// The end of the errand that is under way.
    Returned,
    /// Nothing: only time, or the log's end.
    Nothing,
}
