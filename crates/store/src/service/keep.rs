//! What a service keeps beyond the process: a log, and snapshots of the store. (When a snapshot is
//! due is in `snapshot/save.rs`.)

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use remora::kernel::CallStatus;

use crate::disk::{Directory, Disk};
use crate::front::keyspace::{Awaited, Keeper};
use crate::log::{Fsync, Log, Position};
use crate::memory::Memory;
use crate::snapshot::{SaveError, Saved, Snapshots};
use crate::store::Store;
use crate::tablespace::TablespaceId;
use crate::way::call::{Operation, Refused};
use crate::way::clock::now_ms;
use crate::way::execute::{Effort, execute_with};
use crate::way::info::SpaceInfo;
use crate::way::kernel::{Executed, Served};

/// How often the length of the log is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// A store with its log, as kernels and fronts serve it.
pub struct Logged<M: Memory, D: Disk = Directory> {
    pub(super) store: Arc<Store<M, Log>>,
    snapshots: Arc<Snapshots<D>>,
}

impl<M: Memory, D: Disk> Logged<M, D> {
    /// A store that was read back, with the snapshots of its directory.
    pub fn new(store: Arc<Store<M, Log>>, snapshots: Arc<Snapshots<D>>) -> Logged<M, D> {
        Logged { store, snapshots }
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store<M, Log>> {
        &self.store
    }

    /// Makes a snapshot; `now_ms` answers the Unix time in ms.
    ///
    /// # Errors
    /// See [`SaveError`].
    pub fn save(&self, now_ms: &dyn Fn() -> u64) -> Result<Saved, SaveError> {
        self.snapshots.save(&self.store, now_ms)
    }

    fn log(&self) -> &Log {
        self.store.journal()
    }

    /// What an answer about an item of this version, or about what else there is, waits for. 0 for
    /// nothing: that is on the disk, or answers do not wait, or the disk refuses. What is only in
    /// memory then is shown, since nobody knows how long that lasts.
    fn unsynced(&self, version: Option<Position>) -> u64 {
        let log = self.log();
        if log.options().fsync != Fsync::Always {
            return 0;
        }
        let seen = log.seen(version);
        let waits = seen > log.durable() && log.read_only().is_none();
        if waits { seen.number() } else { 0 }
    }
}

impl<M: Memory + 'static, D: Disk + Send + Sync + 'static> Logged<M, D>
where
    D::File: 'static,
{
    /// Saves when the log has become long, until it is told to stop.
    pub(super) fn keep_short(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if self.snapshots.is_due(self.log())
                && let Err(error) = self.save(&now_ms)
            {
                tracing::warn!("{error}");
            }
            thread::sleep(LOOK);
        }
    }
}

impl<M: Memory, D: Disk> fmt::Debug for Logged<M, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logged").field("log", &self.log().stats()).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static, D: Disk + Send + Sync + 'static> Served for Logged<M, D> {
    fn execute(
        &self,
        effort: Effort,
        operation: Operation,
        bytes: &[u8],
        place: (u64, usize),
        out: &mut Vec<u8>,
    ) -> Executed {
        let done = execute_with(effort, &*self.store, operation, bytes, place, out);
        let mut executed = Executed::new(operation, done);
        if !executed.has_changed {
            let is_get = operation == Operation::Get;
            let version = done.ok().filter(|_| is_get).map(Position::from_number);
            executed.until = self.unsynced(version);
        }
        executed
    }

    fn is_durable(&self, executed: &Executed) -> Result<bool, CallStatus> {
        let (log, until) = (self.log(), Position::from_number(executed.until));
        if !self.is_awaited() || log.durable() >= until {
            return Ok(true);
        }
        log.hurry(until);
        match log.read_only() {
            None => Ok(false),
            // Nobody may be told that a change is kept which the disk has not taken.
            Some(_) if executed.has_changed => Err(Refused::ReadOnly.status()),
            Some(_) => Ok(true),
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let log = self.log().stats();
        let mut counts = Served::counts(&*self.store);
        counts.extend([
            ("log_records", log.records),
            ("log_bytes", log.bytes),
            ("log_commits", log.commits),
            ("log_syncs", log.syncs),
            ("log_errors", log.errors),
            ("log_behind", log.behind),
        ]);
        counts
    }

    fn tablespaces(&self) -> Vec<SpaceInfo> {
        Served::tablespaces(&*self.store)
    }
}

impl<M: Memory + 'static, D: Disk + Send + Sync + 'static> Keeper for Logged<M, D>
where
    D::File: 'static,
{
    fn is_awaited(&self) -> bool {
        self.log().options().fsync == Fsync::Always
    }

    fn is_logged(&self) -> bool {
        true
    }

    fn refuses(&self) -> Option<String> {
        self.log().read_only().map(|reason| reason.to_string())
    }

    fn hasten(&self, version: u64) {
        self.log().hurry(Position::from_number(version));
    }

    fn is_kept(&self, awaited: &Awaited) -> Result<bool, String> {
        let position = Position::from_number(awaited.version);
        self.log().is_durable(position).map_err(|error| error.to_string())
    }

    fn listen(&self, listener: Box<dyn Fn() + Send + Sync>) {
        self.log().listen(listener);
    }

    fn together(&self, act: &mut dyn FnMut()) {
        self.log().together(act);
    }

    fn seen(&self) -> u64 {
        self.unsynced(None)
    }

    /// (What the store shows of a key now was made by the change that the answer is about, or by a
    /// later one. Of a key that is not there, nothing says which change removed it.)
    fn seen_of(&self, ts: TablespaceId, keys: &mut dyn Iterator<Item = &[u8]>) -> u64 {
        // Usually all is on the disk, and then no key is looked up.
        if self.unsynced(None) == 0 {
            return 0;
        }
        let now = now_ms();
        let version = |key| self.store.version(ts, key, now).map(Position::from_number);
        keys.map(|key| self.unsynced(version(key))).max().unwrap_or(0)
    }

    fn save(&self, background: bool) -> Result<(), String> {
        let done = if background {
            self.snapshots.save_in_background(&self.store, now_ms).map(drop)
        } else {
            self.save(&now_ms).map(drop)
        };
        done.map_err(|error| error.to_string())
    }

    fn saved_s(&self) -> u64 {
        self.snapshots.last_save_ms() / 1000
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        let mut entries = self.snapshots.entries();
        entries.extend(self.log().entries());
        entries
    }
}

/// A directory that is served as it is, up to damage, and not written to.
#[derive(Debug)]
pub(super) struct Frozen(pub(super) Log);

impl Keeper for Frozen {
    fn is_awaited(&self) -> bool {
        false
    }

    fn is_logged(&self) -> bool {
        true
    }

    fn save(&self, _background: bool) -> Result<(), String> {
        let reason = self.0.read_only().unwrap_or_default();
        Err(format!("nothing is written to the directory: {reason}"))
    }

    fn saved_s(&self) -> u64 {
        0
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        self.0.entries()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Faulty;
    use crate::log::{self, Committer, Recovered};
    use crate::memory::Heap;
    use crate::store;
    use crate::tablespace::TablespaceOptions;

    type World = (Logged<Heap, Faulty>, Committer<Faulty>, TablespaceId, Arc<Faulty>);

    fn logged(fsync: Fsync) -> World {
        let own = store::Options::new(8 << 20, 7);
        let (disk, memory) = (Arc::new(Faulty::new(1)), Heap::new(own.memory_len()));
        let options = log::Options { fsync, salt: 3, ..log::Options::default() };
        let Recovered { store, mut committer, recovery } =
            log::open(&disk, memory, own, options, 1).unwrap();
        let space = store.create_tablespace(&TablespaceOptions::new("test")).unwrap();
        committer.finish(1);
        let snapshots = Arc::new(Snapshots::new(&disk, &recovery, 1));
        (Logged { store: Arc::new(store), snapshots }, committer, space, disk)
    }

    fn seen(kept: &Logged<Heap, Faulty>, version: Option<u64>) -> u64 {
        kept.unsynced(version.map(Position::from_number))
    }

    /// A change up to this position, as a kernel has made it.
    fn changed(until: u64) -> Executed {
        Executed::new(Operation::Put, Ok(until))
    }

    #[test]
    fn info_says_each_thing_once() {
        let (kept, ..) = logged(Fsync::EverySecond);
        let mut names: Vec<_> = kept.entries().into_iter().map(|(name, _)| name).collect();
        // INFO begins with these.
        names.extend(["loading", "rdb_last_save_time"]);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    #[test]
    fn under_always_nobody_is_told_of_what_a_crash_would_take_back() {
        let (kept, mut committer, space, _) = logged(Fsync::Always);
        let store = &kept.store;
        let old = store.put(space, b"old", b"value", 0, None, 1).unwrap().version;
        committer.turn(1);
        assert_eq!((seen(&kept, Some(old)), seen(&kept, None)), (0, 0));
        let new = store.put(space, b"new", b"value", 0, None, 1).unwrap().version;
        // Readers of what is on the disk do not wait, all others do.
        assert_eq!((seen(&kept, Some(old)), seen(&kept, Some(new))), (0, new));
        assert_eq!((seen(&kept, None), Keeper::seen(&kept)), (new, new));
        assert_eq!(kept.is_durable(&changed(new)), Ok(false));
        committer.turn(2);
        assert_eq!((seen(&kept, Some(new)), seen(&kept, None)), (0, 0));
        // Of a key that is gone nothing is left to look at.
        let gone = store.delete(space, b"new", 1).unwrap().version;
        assert_eq!((seen(&kept, Some(old)), seen(&kept, None)), (0, gone));
    }

    #[test]
    fn under_the_other_policies_nobody_waits() {
        for fsync in [Fsync::EverySecond, Fsync::No] {
            let (kept, _committer, space, _) = logged(fsync);
            let new = kept.store.put(space, b"new", b"value", 0, None, 1).unwrap().version;
            assert_eq!((seen(&kept, Some(new)), seen(&kept, None)), (0, 0));
        }
    }

    #[test]
    fn while_the_disk_refuses_the_store_can_be_read() {
        let (kept, mut committer, space, disk) = logged(Fsync::Always);
        let new = kept.store.put(space, b"new", b"value", 0, None, 1).unwrap().version;
        disk.limit(0);
        committer.turn(1);
        assert!(kept.log().read_only().is_some());
        assert_eq!((seen(&kept, Some(new)), seen(&kept, None)), (0, 0));
        let told = kept.is_durable(&changed(new));
        assert_eq!(told, Err(Refused::ReadOnly.status()), "its writer is told");
    }
}
