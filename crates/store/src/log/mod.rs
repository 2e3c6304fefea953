//! The log: every change, in order, on the disk.
//!
//! - [`Position`]: where a record is; the version of what it wrote.
//! - `record`, `segment`: records as bytes, and the files they are in (docs/store-log.md).
//! - [`Log`]: what appends; [`Committer`]: what writes, in groups; [`CommitThread`]: its thread.
//! - [`replay`], [`open_log`]: reading the log back, and going on from there.
//! - [`open`]: a store from what a directory has; `journal`: its changes as records.

mod commit;
mod journal;
mod open;
mod position;
mod record;
mod recover;
mod replay;
mod segment;
mod thread;
mod writer;

#[cfg(test)]
mod tests;

pub use commit::{Committer, Turn};
pub(crate) use journal::add_record;
pub use open::{open_log, remove_before};
pub use position::Position;
pub use record::{Fields, HEADER, MAX_KEY, MAX_RECORD, MAX_VALUE, NoRecord, Operation, seal};
pub use recover::{RecoverError, Recovered, Recovery, open};
pub use replay::{ReplayError, Replayed, Torn, replay};
pub use segment::{
    LOG_MAGIC, NoSegment, SEGMENT_HEADER, SNAPSHOT_MAGIC, SegmentHeader, VERSION, segment_first,
    segment_name,
};
pub(crate) use segment::{Next, Reader, TEMPORARY};
pub use thread::CommitThread;
pub use writer::{Fsync, Log, LogError, LogStats, Options};
