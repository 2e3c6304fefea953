//! The table as a file, written while it serves.
//!
//! A snapshot is fuzzy: it is written while keys change, without a copy of anything and without a
//! pause. Its header has the position of the last record before the walk began; every change up to
//! there is in it, and of later changes some are. So its loader makes all later changes of
//! the log again, in order: records have whole values, so to make a change twice does no harm.
//!
//! That every change up to that position is in it rests on the walk's locks: a change has its
//! position while it holds the lock of its part of the table, and the walk takes that lock, so it
//! comes after all that was given a position before. A flush has no such lock; the last one of each
//! tablespace is written into the snapshot.
//!
//! A snapshot may have something of changes that the log has not synced yet. So it gets its name
//! only when the log is on the disk as far as the walk's end, which its last record names.
//!
//! - `file`: writing the file, and reading it.
//! - `walk`: the walk over the store.
//! - `save`: one at a time, in the background; which was the last, and when the next one is due.
//! - `error`: why there is none.

mod error;
mod file;
mod save;
mod walk;

#[cfg(test)]
mod tests;

pub use error::SaveError;
pub use file::{
    Loaded, SnapshotFile, adopt, load, load_node, newest, snapshot_name, snapshot_position,
};
pub use save::{Saved, Snapshots};
pub use walk::{Begun, Walk, Walked};
