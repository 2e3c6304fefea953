//! The walk over a store that makes a snapshot.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, MutexGuard};

use super::error::SaveError;
use super::file::SnapshotFile;
use crate::disk::Disk;
use crate::journal::{Journal, Record};
use crate::log::{Log, Position, add_record};
use crate::memory::Memory;
use crate::scan::Cursor;
use crate::store::Store;
use crate::tablespace::TablespaceId;

/// How many items a step has at most.
const STEP: usize = 256;

/// What a journal knows when a snapshot of its store is begun.
#[derive(Clone, Debug, Default)]
pub struct Begun {
    /// Every change up to here is in the store, or has a lock of it until it is.
    pub covered: Position,
    /// The last flush of each tablespace: it may have its position, and not be carried out yet.
    pub flushes: Vec<(u16, Position)>,
    /// What a group's node knows, as it keeps it; else nothing.
    pub node: Vec<u8>,
    /// How often another store has stood in the place of this one.
    pub lineage: u64,
}

/// A journal on a disk, whose store can be written there as a whole.
pub trait Walked: Journal {
    /// The log.
    fn log(&self) -> &Log;

    /// A snapshot begins.
    fn begin(&self) -> Begun;

    /// The last position that the store may show something of.
    fn shown(&self) -> Position;

    /// Waits until all up to `end` is on the disk, and cannot be taken back. What is answered is
    /// held while the snapshot gets its name.
    ///
    /// # Errors
    ///
    /// [`SaveError`]: there is to be no snapshot.
    fn settle(
        &self,
        begun: &Begun,
        end: Position,
    ) -> Result<Option<MutexGuard<'_, u64>>, SaveError>;
}

impl Walked for Log {
    fn log(&self) -> &Log {
        self
    }

    fn begin(&self) -> Begun {
        let (covered, flushes) = self.last_and_flushes();
        Begun { covered, flushes, ..Begun::default() }
    }

    fn shown(&self) -> Position {
        self.last()
    }

    fn settle(
        &self,
        _begun: &Begun,
        end: Position,
    ) -> Result<Option<MutexGuard<'_, u64>>, SaveError> {
        Ok(self.sync(end).map(|()| None)?)
    }
}

/// A snapshot on its way: step by step, between which anything may happen to the store.
pub struct Walk<'s, M, D: Disk, J = Log> {
    store: &'s Store<M, J>,
    file: SnapshotFile<D>,
    begun: Begun,
    /// The tablespaces that are still to be walked, the next one last.
    spaces: Vec<TablespaceId>,
    cursor: Cursor,
    items: u64,
    /// How much damage the store had seen in its memory before.
    damaged: u64,
}

impl<'s, M: Memory, D: Disk, J: Walked> Walk<'s, M, D, J> {
    /// Begins a snapshot of `store` as a file of `disk`. `now_ms` is in ms of Unix time.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn begin(
        store: &'s Store<M, J>,
        disk: &Arc<D>,
        now_ms: u64,
    ) -> io::Result<Walk<'s, M, D, J>> {
        // First the position, then the tablespaces: those that come between are in both.
        let begun = store.journal().begin();
        let covered = begun.covered;
        let tablespaces = store.tablespaces();
        let salt = store.journal().log().options().salt;
        let mut file = SnapshotFile::create(disk, covered, now_ms, salt)?;
        file.add_node(covered, &begun.node)?;
        for space in &tablespaces {
            let record = Record::Create { tablespace: space.id, options: &space.options };
            add_record(&record, covered, |at, fields| file.add(at, fields))?;
        }
        // A flush that has its position and is not carried out yet would be missing.
        for (space, position) in &begun.flushes {
            let record = Record::Flush { tablespace: TablespaceId(*space) };
            add_record(&record, *position, |at, fields| file.add(at, fields))?;
        }
        let spaces = tablespaces.iter().rev().map(|space| space.id).collect();
        let damaged = store.damaged();
        Ok(Walk { store, file, begun, spaces, cursor: Cursor::START, items: 0, damaged })
    }

    /// Writes some items; answers whether there are more. Those that have expired are among them:
    /// a change that began before may still give them another expiry, and the log has it.
    ///
    /// # Errors
    ///
    /// What the operating system says: the snapshot cannot be finished then.
    pub fn step(&mut self) -> io::Result<bool> {
        let Some(space) = self.spaces.last() else { return Ok(false) };
        let (file, items) = (&mut self.file, &mut self.items);
        let mut written = Ok(());
        self.cursor = self.store.scan(*space, self.cursor, 0, STEP, &mut |item| {
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
        self.begun.covered
    }

    /// What was known when it was begun.
    pub(super) fn begun(&self) -> &Begun {
        &self.begun
    }

    /// How often the store's memory was seen to be damaged since the walk began: what is so is not
    /// in the snapshot, and may be in the log and in the snapshot before.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.store.damaged() - self.damaged
    }

    /// How many items were written.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// What [`Walk::finish`] needs the log to be synced up to, after the last step.
    #[must_use]
    pub fn needs(&self) -> Position {
        self.store.journal().shown()
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
        assert!(self.store.journal().log().durable() >= end, "a snapshot is ahead of its log");
        self.file.finish(end)
    }
}
