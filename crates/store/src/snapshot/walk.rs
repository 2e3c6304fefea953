//! The walk over a store that makes a snapshot.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::file::SnapshotFile;
use crate::disk::Disk;
use crate::journal::Record;
use crate::log::{Log, Position, add_record};
use crate::memory::Memory;
use crate::scan::Cursor;
use crate::store::Store;
use crate::tablespace::TablespaceId;

/// How many items a step has at most.
const STEP: usize = 256;

/// A snapshot on its way: step by step, between which anything may happen to the store.
pub struct Walk<'s, M, D: Disk> {
    store: &'s Store<M, Log>,
    file: SnapshotFile<D>,
    covered: Position,
    /// The tablespaces that are still to be walked, the next one last.
    spaces: Vec<TablespaceId>,
    cursor: Cursor,
    items: u64,
}

impl<'s, M: Memory, D: Disk> Walk<'s, M, D> {
    /// Begins a snapshot of `store` as a file of `disk`. `now_ms` is in ms of Unix time.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn begin(
        store: &'s Store<M, Log>,
        disk: &Arc<D>,
        now_ms: u64,
    ) -> io::Result<Walk<'s, M, D>> {
        // First the position, then the tablespaces: those that come between are in both.
        let (covered, flushes) = store.journal().last_and_flushes();
        let tablespaces = store.tablespaces();
        let salt = store.journal().options().salt;
        let mut file = SnapshotFile::create(disk, covered, now_ms, salt)?;
        for space in &tablespaces {
            let record = Record::Create { tablespace: space.id, options: &space.options };
            add_record(&record, covered, |at, fields| file.add(at, fields))?;
        }
        // A flush that has its position and is not carried out yet would be missing.
        for (space, position) in flushes {
            let record = Record::Flush { tablespace: TablespaceId(space) };
            add_record(&record, position, |at, fields| file.add(at, fields))?;
        }
        let spaces = tablespaces.iter().rev().map(|space| space.id).collect();
        Ok(Walk { store, file, covered, spaces, cursor: Cursor::START, items: 0 })
    }

    /// Writes some items; answers whether there are more.
    ///
    /// # Errors
    ///
    /// What the operating system says: the snapshot cannot be finished then.
    pub fn step(&mut self, now_ms: u64) -> io::Result<bool> {
        let Some(space) = self.spaces.last() else { return Ok(false) };
        let (file, items) = (&mut self.file, &mut self.items);
        let mut written = Ok(());
        self.cursor = self.store.scan(*space, self.cursor, now_ms, STEP, &mut |item| {
            let record = Record::of_item(item);
            // The visitor is called for the rest of a hash after it broke: the first error counts.
            if written.is_ok() {
                let version = Position::from_number(item.version);
                written = add_record(&record, version, |at, fields| file.add(at, fields));
                *items += 1;
            }
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        written?;
        if self.cursor == Cursor::END {
            self.spaces.pop();
        }
        Ok(!self.spaces.is_empty())
    }

    /// The snapshot has every change up to here.
    #[must_use]
    pub fn covered(&self) -> Position {
        self.covered
    }

    /// How many items were written.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// What [`Walk::finish`] needs the log to be synced up to, after the last step.
    #[must_use]
    pub fn needs(&self) -> Position {
        self.store.journal().last()
    }

    /// Ends the snapshot and gives it its name. `end` is what [`Walk::needs`] answered after the
    /// last step, and the log is on the disk as far. Answers the file's length in bytes.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    ///
    /// # Panics
    ///
    /// If the log is not on the disk up to `end`.
    pub fn finish(self, end: Position) -> io::Result<u64> {
        assert!(self.store.journal().durable() >= end, "a snapshot is ahead of its log");
        self.file.finish(end)
    }
}
