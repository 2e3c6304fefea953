//! The log: every change, in order, on the disk.
//!
//! - [`Position`] (`position`): where a record is; the version of what it wrote.
//! - `record`, `segment`: records as bytes, and the files they are in (docs/store-log.md).
//! - [`Log`] appends, and waits as [`Fsync`] asks (`append`, `options`), to a `batch`;
//!   [`Committer`] writes, in groups (`commit`), as it is told (`work`), and lets an [`Errand`] be
//!   done beside that (`errand`); [`CommitThread`] is its thread (`thread`); [`LogStats`]: what is
//!   counted (`stats`).
//! - [`replay`] reads the log back (`replay`), and of transactions the whole ones (`transactions`);
//!   [`open_log`] goes on from there (`reopen`).
//! - `trim` removes segments that a snapshot covers; `snapshot/save.rs` says when one is due.
//! - [`open`]: a store from what a directory has, and [`salvage`] from one that is damaged
//!   (`recover`), which tells how far it is (`progress`); `journal`: its changes as records.

mod append;
mod batch;
mod commit;
mod errand;
mod journal;
mod options;
mod position;
mod progress;
mod record;
mod recover;
mod reopen;
mod replay;
mod segment;
mod stats;
mod thread;
mod transactions;
mod trim;
mod work;

#[cfg(test)]
mod tests;

pub use append::{Log, LogError};
pub use commit::{Committer, Turn};
pub use errand::{Errand, Outcome};
pub(crate) use journal::{add_record, with_fields, with_record};
pub use options::{Fsync, Options};
pub use position::Position;
pub use progress::{Progress, Reading};
pub use record::{Fields, HEADER, MAX_KEY, MAX_RECORD, MAX_VALUE, NoRecord, Operation, seal};
pub use recover::{
    Player, RecoverError, Recovered, Recovery, Repeats, Salvaged, Source, open, open_telling,
    read_directory, salvage,
};
pub use reopen::open_log;
pub use replay::{ReplayError, Replayed, Torn};
pub use segment::{
    LOG_MAGIC, NoSegment, SEGMENT_HEADER, SNAPSHOT_MAGIC, SegmentHeader, VERSION, segment_first,
    segment_name,
};
pub(crate) use segment::{Next, Reader, TEMPORARY};
pub use stats::LogStats;
pub use thread::CommitThread;
pub use transactions::{Parts, replay};
pub use trim::remove_before;
