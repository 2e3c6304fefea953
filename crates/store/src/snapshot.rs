//! The table as a file, written while it serves.
//!
//! A snapshot is fuzzy: it is written while keys change, without a copy of anything and without a
//! pause. Its header has the position of the last record before the walk began; every change up to
//! there is in it, and of later changes some are. So whoever loads it makes all later changes of
//! the log again, in order: records have whole values, so to make a change twice does no harm.
//!
//! A snapshot may have something of changes that the log has not synced yet. So it gets its name
//! only when the log is on the disk as far as the walk's end, which its last record names.
//!
//! - `file`: writing the file, and reading it.

mod file;

pub use file::{Loaded, SnapshotFile, load, newest, snapshot_name, snapshot_position};
