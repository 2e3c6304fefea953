//! Saving: what `SAVE`, `BGSAVE` and `LASTSAVE` do, and when the next one is due.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::threads::without_signals;

use super::error::SaveError;
use super::file::remove_before;
use super::walk::{Walk, Walked};
use crate::disk::Disk;
use crate::log::{self, Log, Position, Recovery};
use crate::memory::Memory;
use crate::store::Store;

/// A log shorter than this is no reason to save, in bytes.
const DUE_BYTES: u64 = 64 << 20;

/// A snapshot that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// It has every change up to here.
    pub covered: Position,
    /// How many items it has.
    pub items: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was finished, in ms of Unix time.
    pub ended_ms: u64,
}

/// The snapshots of a directory: one at a time.
#[derive(Debug)]
pub struct Snapshots<D> {
    disk: Arc<D>,
    state: Arc<Mutex<SavesSoFar>>,
}

#[derive(Debug)]
struct SavesSoFar {
    running: bool,
    last_save_ms: u64,
    last: Option<Result<Saved, SaveError>>,
    /// The length of the latest snapshot that is there, in bytes.
    bytes: u64,
    /// Where the log was when the last save began, in bytes of this process; below 0 before the
    /// first one, by what was read back.
    began: i128,
}

impl SavesSoFar {
    fn new(recovery: &Recovery, now_ms: u64) -> SavesSoFar {
        let last_save_ms = recovery.snapshot.map_or(now_ms, |snapshot| snapshot.created_ms);
        let bytes = recovery.snapshot.map_or(0, |snapshot| snapshot.bytes);
        let began = -i128::from(recovery.log.bytes);
        SavesSoFar { running: false, last_save_ms, last: None, bytes, began }
    }

    /// Whether another save is due when the log of this process has so many bytes.
    fn is_due(&self, log_bytes: u64) -> bool {
        let grown = i128::from(log_bytes) - self.began;
        !self.running && grown > self.bytes.max(DUE_BYTES).into()
    }
}

/// The right to make a snapshot, until it is dropped.
struct Turn(Arc<Mutex<SavesSoFar>>);

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.0).running = false;
    }
}

/// A thread that panicked with the lock held left it whole: each change is one assignment.
fn lock(state: &Mutex<SavesSoFar>) -> MutexGuard<'_, SavesSoFar> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Disk> Snapshots<D> {
    /// The snapshots of a directory that a store was read back from at `now_ms` of Unix time.
    #[must_use]
    pub fn new(disk: &Arc<D>, recovery: &Recovery, now_ms: u64) -> Snapshots<D> {
        let state = SavesSoFar::new(recovery, now_ms);
        Snapshots { disk: Arc::clone(disk), state: Arc::new(Mutex::new(state)) }
    }

    /// Makes a snapshot, and removes what it makes useless. `now_ms` answers the Unix time in ms.
    ///
    /// # Errors
    ///
    /// [`SaveError`].
    pub fn save<M: Memory, J: Walked>(
        &self,
        store: &Store<M, J>,
        now_ms: &dyn Fn() -> u64,
    ) -> Result<Saved, SaveError> {
        let turn = self.turn()?;
        self.save_in(&turn, store, now_ms)
    }

    /// Makes a snapshot on a thread of its own; [`Snapshots::last`] has what came of it.
    ///
    /// # Errors
    ///
    /// [`SaveError::InProgress`]; [`SaveError::Disk`] if there is no thread to be had.
    pub fn save_in_background<M: Memory + 'static, J: Walked + 'static>(
        self: &Arc<Self>,
        store: &Arc<Store<M, J>>,
        now_ms: impl Fn() -> u64 + Send + 'static,
    ) -> Result<std::thread::JoinHandle<()>, SaveError>
    where
        D: 'static,
    {
        let turn = self.turn()?;
        let (snapshots, store) = (Arc::clone(self), Arc::clone(store));
        let named = std::thread::Builder::new().name("snapshot".to_owned());
        let save = move || {
            // What came of it is kept for clients that ask.
            _ = snapshots.save_in(&turn, &store, &now_ms);
        };
        without_signals(|| named.spawn(save)).map_err(|error| self.failed(&error))
    }

    /// Whether a save is on its way.
    #[must_use]
    pub fn in_progress(&self) -> bool {
        self.lock().running
    }

    /// When the last save that succeeded ended, in ms of Unix time; before the first one, when the
    /// snapshot that was loaded was made, or the store was started.
    #[must_use]
    pub fn last_save_ms(&self) -> u64 {
        self.lock().last_save_ms
    }

    /// What came of the last save of this process.
    #[must_use]
    pub fn last(&self) -> Option<Result<Saved, SaveError>> {
        self.lock().last.clone()
    }

    /// What `INFO persistence` says of them, as names and values.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let last_save = if self.last().is_none_or(|saved| saved.is_ok()) { "ok" } else { "err" };
        vec![
            ("rdb_bgsave_in_progress", u8::from(self.in_progress()).to_string()),
            ("rdb_last_bgsave_status", last_save.to_owned()),
        ]
    }

    /// Whether the log has become so long since the last save that another one is worth its while:
    /// as long as the last snapshot, and 64 MiB at least.
    #[must_use]
    pub fn is_due(&self, log: &Log) -> bool {
        self.lock().is_due(log.stats().bytes)
    }

    fn turn(&self) -> Result<Turn, SaveError> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.running, true) {
            return Err(SaveError::InProgress);
        }
        Ok(Turn(Arc::clone(&self.state)))
    }

    fn save_in<M: Memory, J: Walked>(
        &self,
        _: &Turn,
        store: &Store<M, J>,
        now_ms: &dyn Fn() -> u64,
    ) -> Result<Saved, SaveError> {
        let log_bytes = store.journal().log().stats().bytes;
        let saved = self.write(store, now_ms);
        let mut state = self.lock();
        // After a failure, too: it is not tried again at every turn.
        state.began = log_bytes.into();
        if let Ok(saved) = &saved {
            state.last_save_ms = saved.ended_ms;
            state.bytes = saved.bytes;
        }
        state.last = Some(saved.clone());
        saved
    }

    fn write<M: Memory, J: Walked>(
        &self,
        store: &Store<M, J>,
        now_ms: &dyn Fn() -> u64,
    ) -> Result<Saved, SaveError> {
        let failed = |error: io::Error| self.failed(&error);
        let mut walk = Walk::begin(store, &self.disk, now_ms()).map_err(failed)?;
        while walk.step().map_err(failed)? {}
        if let items @ 1.. = walk.damaged() {
            return Err(SaveError::Damaged { items });
        }
        let (covered, items, end) = (walk.covered(), walk.items(), walk.needs());
        let _held = store.journal().settle(walk.begun(), end)?;
        let bytes = walk.finish(end).map_err(failed)?;
        remove_before(&*self.disk, covered).map_err(failed)?;
        log::remove_before(&*self.disk, covered).map_err(failed)?;
        Ok(Saved { covered, items, bytes, ended_ms: now_ms() })
    }

    fn failed(&self, error: &io::Error) -> SaveError {
        SaveError::Disk { place: self.disk.place(), reason: error.to_string() }
    }

    fn lock(&self) -> MutexGuard<'_, SavesSoFar> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Replayed;
    use crate::snapshot::Loaded;

    #[test]
    fn what_was_read_back_counts_for_the_next_save() {
        let snapshot = |bytes| Loaded {
            covered: Position::NONE,
            end: Position::NONE,
            records: 1,
            created_ms: 7,
            bytes,
        };
        let state = |snapshot, bytes| {
            let log = Replayed { bytes, ..Replayed::default() };
            SavesSoFar::new(&Recovery { snapshot, log }, 9)
        };
        let empty = state(None, 0);
        assert!(!empty.is_due(DUE_BYTES) && empty.is_due(DUE_BYTES + 1));
        // A snapshot of ten times as many bytes, and a log behind it.
        let long = state(Some(snapshot(10 * DUE_BYTES)), DUE_BYTES);
        assert!(!long.is_due(9 * DUE_BYTES) && long.is_due(9 * DUE_BYTES + 1));
        assert!(state(Some(snapshot(5)), 2 * DUE_BYTES).is_due(0));
    }
}
