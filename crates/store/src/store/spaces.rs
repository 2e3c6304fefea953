//! Tablespaces come, are emptied and go.

use super::Store;
use super::change::UpdateError;
use crate::journal::{Journal, JournalError, Record};
use crate::memory::Memory;
use crate::tablespace::{TablespaceError, TablespaceId, TablespaceOptions};

/// Buckets that are emptied under one lock.
const BUCKETS_LOCKED: u32 = 64;
/// How often a partition is walked over until its lock is kept all the while.
const PASSES: usize = 4;

impl<M: Memory, J: Journal> Store<M, J> {
    /// Creates a tablespace.
    ///
    /// # Errors
    /// See [`TablespaceError`].
    pub fn create_tablespace(
        &self,
        options: &TablespaceOptions,
    ) -> Result<TablespaceId, TablespaceError> {
        self.create_tablespace_logged(options).map(|(id, _)| id)
    }

    /// Creates a tablespace. Returns the position of the change, too.
    ///
    /// # Errors
    /// See [`TablespaceError`].
    pub fn create_tablespace_logged(
        &self,
        options: &TablespaceOptions,
    ) -> Result<(TablespaceId, u64), TablespaceError> {
        let mut position = 0;
        let id = self.spaces.create(options, None, |tablespace| {
            position = self.journal.append(&Record::Create { tablespace, options })?;
            Ok(())
        })?;
        Ok((id, position))
    }

    /// Drops a tablespace with all its keys. When this returns, they are gone for readers by cached
    /// addresses, too. Returns the position of the change.
    ///
    /// # Errors
    /// See [`TablespaceError`].
    pub fn drop_tablespace(&self, tablespace: TablespaceId) -> Result<u64, TablespaceError> {
        let mut position = 0;
        let log = || {
            // No change may see that it serves, and be logged behind this.
            let all = self.table.lock_all();
            position = self.journal.append(&Record::Drop { tablespace })?;
            Ok(all)
        };
        self.spaces.drop(tablespace, log, || self.empty(tablespace, u64::MAX))?;
        Ok(position)
    }

    /// Removes all keys of a tablespace. Puts that are under way meanwhile come before or after it,
    /// as the log has them. When this returns, the keys are gone for readers by cached addresses,
    /// too. Returns the position of the change.
    ///
    /// # Errors
    /// There is no such tablespace, or the change could not be logged.
    pub fn flush(&self, tablespace: TablespaceId) -> Result<u64, UpdateError> {
        let space = self.spaces.serving(tablespace).ok_or(UpdateError::Tablespace(tablespace))?;
        let version = {
            // No change may look at a value before this, and be logged behind it.
            let _all = self.table.lock_all();
            let version = self.journal.append(&Record::Flush { tablespace })?;
            space.set_flushed(version);
            version
        };
        self.empty(tablespace, version);
        Ok(version)
    }

    /// Removes a tablespace's items up to a version.
    fn empty(&self, tablespace: TablespaceId, version: u64) {
        for partition in 0..self.table.geometry.partitions {
            let empty = |at_once| self.empty_partition(partition, (tablespace, version), at_once);
            if !(0..PASSES).any(|_| empty(BUCKETS_LOCKED)) {
                empty(u32::MAX);
            }
        }
    }

    /// Removes them from a partition, whose lock it lets go after so many buckets. Says whether all
    /// slots have stayed where they were meanwhile: else it may have passed some by.
    fn empty_partition(
        &self,
        partition: u64,
        (tablespace, version): (TablespaceId, u64),
        at_once: u32,
    ) -> bool {
        let (mut next, mut moves) = (0, None);
        loop {
            let mut locked = self.table.lock(partition);
            let moves = *moves.get_or_insert(locked.inner.moves);
            let end = locked.count().min(at_once.saturating_add(next));
            for bucket in next..end {
                for (place, slot) in locked.slots_of(bucket) {
                    self.remove_flushed(&mut locked, place, &slot, tablespace, version);
                }
            }
            if end == locked.count() {
                for (place, slot) in locked.stashed() {
                    self.remove_flushed(&mut locked, place, &slot, tablespace, version);
                }
                return locked.inner.moves == moves;
            }
            next = end;
        }
    }

    fn remove_flushed(
        &self,
        locked: &mut crate::table::Locked<'_, M>,
        place: crate::table::SlotPlace,
        slot: &crate::table::Slot,
        tablespace: TablespaceId,
        version: u64,
    ) {
        let old = |at| self.table.memory.load(at + 8) <= version;
        if slot.tablespace == tablespace && self.item_at(slot).is_none_or(old) {
            self.remove(locked, place, slot);
        }
    }

    /// Carries out a record of a log again, in the order of positions, or in any order that keeps
    /// that of each key. Records that the store has seen change nothing. Nothing is logged.
    ///
    /// # Errors
    /// The change cannot be made: see [`ReplayError`].
    pub fn replay(&self, version: u64, record: &Record<'_>) -> Result<(), ReplayError> {
        match *record {
            Record::Create { tablespace, options } => {
                let log = |_| Ok::<(), JournalError>(());
                match self.spaces.create(options, Some(tablespace), log) {
                    Err(TablespaceError::Exists(_))
                        if self.spaces.named(&options.name) == Some(tablespace) =>
                    {
                        Ok(())
                    }
                    other => Ok(other.map(|_| ())?),
                }
            }
            Record::Drop { tablespace } => {
                let empty = || self.empty(tablespace, u64::MAX);
                match self.spaces.drop(tablespace, || Ok(()), empty) {
                    Err(TablespaceError::Unknown(_)) => Ok(()),
                    other => Ok(other?),
                }
            }
            Record::Flush { tablespace } => {
                if let Some(space) = self.spaces.serving(tablespace) {
                    space.set_flushed(version);
                    self.empty(tablespace, version);
                }
                Ok(())
            }
            Record::Put { .. } | Record::Touch { .. } | Record::Delete { .. } => {
                Ok(self.replay_key(version, record)?)
            }
        }
    }
}

/// Why a record cannot be carried out again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// A change of a key.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// A change of a tablespace.
    #[error(transparent)]
    Tablespace(#[from] TablespaceError),
}
