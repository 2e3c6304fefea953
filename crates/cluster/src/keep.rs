//! What a node keeps on its disk: the log and snapshots of a store alone (`remora_store::log`), and
//! in each snapshot who the node is and what it knows of its group.
//!
//! The log's end lies in the ring, too. What the node takes up there, or orders, is given to the
//! log ([`Feed`]), and counts as held once the log has kept it. What the primary cuts off is cut
//! off the log. A copy of another node's store is written to the disk before it counts; see
//! [`write_copy`].

use std::io;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use remora_store::disk::{Directory, Disk};
use remora_store::log::{
    CommitThread, Fields, Fsync, Log, Operation, Options, Parts, Player, Position, Progress,
    Recovery, Repeats, ReplayError, Source, read_directory, segment_first,
};
use remora_store::memory::Memory;
use remora_store::replica::{NodeId, Replica, Snapshot, members_of};
use remora_store::snapshot::{
    Begun, SaveError, SnapshotFile, Snapshots, Walked, adopt, load_node, newest,
};
use remora_store::store::Store;
use remora_store::way::clock::now_ms;
use serde::{Deserialize, Serialize};

use crate::feed::{Feed, KeepError, Saves};
use crate::group::Group;
use crate::journal::GroupLog;

/// What a snapshot has of the node besides the store.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    node: NodeId,
    salt: u64,
    snapshot: Snapshot,
}

impl Head {
    /// Reads it; `None` if it is none. It ends with the members, which those of earlier releases
    /// lack: no members are a zero.
    fn read(mut bytes: Vec<u8>) -> Option<Head> {
        let whole = |bytes: &[u8]| match postcard::take_from_bytes(bytes) {
            Ok((head, [])) => Some(head),
            _ => None,
        };
        whole(&bytes).or_else(|| {
            bytes.push(0);
            whole(&bytes)
        })
    }
}

/// A node's directory, which is this process's until the value is dropped.
#[derive(Debug)]
pub struct Kept {
    disk: Arc<Directory>,
    fsync: Fsync,
    head: Option<Head>,
    progress: Progress,
}

impl Kept {
    /// Opens a directory: that of a node, or an empty one for a new node. Under [`Fsync::Always`] a
    /// change counts as held by the node when it is on the disk, else when the system has it.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub fn open(directory: &Path, fsync: Fsync) -> Result<Kept, KeepError> {
        let disk = Arc::new(Directory::open(directory)?);
        let place = disk.place();
        let failed = |source| ReplayError::Io { place: disk.place(), file: ".".to_owned(), source };
        adopt(&*disk).map_err(failed)?;
        let Some(newest) = newest(&*disk).map_err(failed)? else {
            let names = disk.list().map_err(failed)?;
            let is_empty = !names.iter().any(|name| segment_first(name).is_some());
            return if is_empty {
                Ok(Kept { disk, fsync, head: None, progress: Progress::default() })
            } else {
                Err(KeepError::Alone(place))
            };
        };
        let head = Head::read(load_node(&*disk, newest)?).ok_or(KeepError::Alone(place))?;
        Ok(Kept { disk, fsync, head: Some(head), progress: Progress::default() })
    }

    /// Tells how far reading back is.
    #[must_use]
    pub fn telling(self, progress: Progress) -> Kept {
        Kept { progress, ..self }
    }

    /// Which node the directory is of, unless it is empty.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        self.head.as_ref().map(|head| head.node)
    }

    /// The salt of the group that it is of, unless it is empty.
    #[must_use]
    pub fn salt(&self) -> Option<u64> {
        self.head.as_ref().map(|head| head.salt)
    }

    /// Reads back what the directory has, into a store in which nothing is and its group.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub fn read_back<M: Memory + 'static>(
        self,
        store: &Arc<Store<M, GroupLog>>,
    ) -> Result<Keeping, KeepError> {
        let group = &store.journal().0;
        let head = self.claim(group)?;
        let log =
            Log::new(Options { fsync: self.fsync, salt: group.options.salt, ..Options::default() });
        let mut replica = match &head {
            Some(head) => {
                let snapshot = &head.snapshot;
                Replica::recovered(group.options.me, group.replica(true), snapshot, &group.region)
            }
            None => Replica::new(group.options.me, group.replica(true)),
        };
        let mut player = Player::new(store, 1);
        let mut members = replica.snapshot().members;
        let mut reading = self.progress.begin(&*self.disk)?;
        let (committer, recovery) =
            read_directory(&self.disk, &log, Parts::All, &mut |source, position, fields| {
                reading.add(fields);
                match source {
                    Source::Snapshot if fields.operation == Operation::Node => Ok(()),
                    Source::Snapshot => player.play(position, fields),
                    Source::Log => {
                        if fields.operation == Operation::Epoch {
                            members = members_of(fields.value);
                        }
                        let carry_out = &mut |at, fields: &Fields<'_>| player.play(at, fields);
                        replica.read_back(&group.region, position, fields, carry_out)
                    }
                }
            })?;
        drop(reading);
        let last = recovery.log.last;
        let failed = |(position, reason)| ReplayError::Apply {
            place: self.disk.place(),
            file: ".".to_owned(),
            position,
            reason,
        };
        if let Some(snapshot) = &recovery.snapshot {
            let carry_out = &mut |at, fields: &Fields<'_>| player.play(at, fields);
            let read = replica.end_reading_back(&group.region, snapshot.end, carry_out);
            read.map_err(|reason| failed((last, reason)))?;
        }
        // (What has expired is there until the log has its deletion.)
        player.finish(last, 0).map_err(failed)?;
        let snapshots = Arc::new(Snapshots::new(&self.disk, &recovery, now_ms()));
        let writer = CommitThread::start(committer)
            .map_err(|source| KeepError::Write { place: self.disk.place(), source })?;
        group.begin_to_keep(replica, &log, &self.disk);
        let saver = Saver { store: Arc::downgrade(store), snapshots };
        Ok(Keeping { saver: Arc::new(saver), writer, recovery, members })
    }

    /// Makes sure that the directory is this node's, and writes who it is into an empty one.
    /// Answers what it had before.
    fn claim(&self, group: &Group) -> Result<Option<&Head>, KeepError> {
        let (node, salt) = (group.options.me, group.options.salt);
        if let Some(head) = &self.head {
            let is_ours = head.node == node && head.salt == salt;
            return is_ours.then_some(Some(head)).ok_or(KeepError::OtherGroup(self.disk.place()));
        }
        let snapshot = Replica::new(node, group.replica(true)).snapshot();
        let node = bytes_of(&Head { node, salt, snapshot });
        let write = || {
            let mut file = SnapshotFile::create(&self.disk, Position::NONE, now_ms(), salt)?;
            file.add_node(Position::NONE, &node)?;
            file.finish(Position::NONE)
        };
        let written = write();
        written.map_err(|source| KeepError::Write { place: self.disk.place(), source })?;
        Ok(None)
    }
}

fn bytes_of(head: &Head) -> Vec<u8> {
    postcard::to_allocvec(head).expect("a vector has room for any snapshot")
}

/// Writes a copy of another node's store to the disk, whole and without a name yet. `records` are
/// those of the copy, as the log has them.
///
/// # Errors
/// Why it cannot be, in words.
pub(crate) fn write_copy(
    group: &Group,
    disk: &Arc<Directory>,
    snapshot: &Snapshot,
    mut records: &[u8],
) -> Result<SnapshotFile<Directory>, String> {
    let (node, salt) = (group.options.me, group.options.salt);
    let covered = snapshot.ends.last().map_or(Position::NONE, |mark| mark.position);
    let head = bytes_of(&Head { node, salt, snapshot: snapshot.clone() });
    let failed = |error: io::Error| format!("cannot write a copy in {}: {error}", disk.place());
    let mut file = SnapshotFile::create_copy(disk, covered, now_ms(), salt).map_err(failed)?;
    file.add_node(covered, &head).map_err(failed)?;
    while !records.is_empty() {
        let (version, fields, length) = Fields::decode(records, salt)
            .map_err(|why| format!("a copy of the store has what is no record: {why:?}"))?;
        file.add(version, &fields).map_err(failed)?;
        records = &records[length..];
    }
    // What is read back up to a snapshot's end counts as committed. A sender that has copied
    // without a change in between has not waited for that.
    file.complete(covered.min(snapshot.committed)).map_err(failed)?;
    Ok(file)
}

impl Group {
    /// The node has what its directory had, and keeps what comes.
    fn begin_to_keep(self: &Arc<Group>, replica: Replica, log: &Log, disk: &Arc<Directory>) {
        let mut state = self.lock();
        let patience = self.options.disk_patience();
        state.disk = Some(Feed::new(log.clone(), disk.clone(), replica.last(), patience));
        state.replica = replica;
        drop(state);
        let group = Arc::downgrade(self);
        log.listen(move || {
            if let Some(group) = group.upgrade() {
                group.hear_disk();
            }
        });
        // (A group's directory is read back once.)
        let _ = self.log.set(log.clone());
    }

    /// The disk has taken something, or refuses.
    fn hear_disk(&self) {
        let Some(log) = self.log.get() else { return };
        let refusal = log.read_only();
        let mut state = self.lock();
        state.disk.iter_mut().for_each(|feed| feed.hear(refusal.clone()));
        state.carry_out(self);
    }

    /// How often a copy of another node's store has come in the place of this one.
    pub(crate) fn lineage(&self) -> MutexGuard<'_, u64> {
        self.lineage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Repeats for GroupLog {
    fn repeat(&self, position: Position, repeat: &mut dyn FnMut()) {
        self.0.lock().repeating = Some(position);
        repeat();
        self.0.lock().repeating = None;
    }
}

impl Walked for GroupLog {
    fn log(&self) -> &Log {
        self.0.log.get().expect("a snapshot is made of what is kept")
    }

    fn begin(&self) -> Begun {
        let group = &*self.0;
        let lineage = *group.lineage();
        let (snapshot, flushes) = group.lock_at_rest().begin_walk();
        let covered = snapshot.ends.last().map_or(Position::NONE, |mark| mark.position);
        let (node, salt) = (group.options.me, group.options.salt);
        let node = bytes_of(&Head { node, salt, snapshot });
        Begun { covered, flushes, node, lineage }
    }

    fn shown(&self) -> Position {
        self.0.lock_at_rest().replica.applied().position
    }

    fn settle(
        &self,
        begun: &Begun,
        end: Position,
    ) -> Result<Option<MutexGuard<'_, u64>>, SaveError> {
        self.0.wait(end).map_err(|doubt| SaveError::Undecided(doubt.to_string()))?;
        self.log().sync(end)?;
        let lineage = self.0.lineage();
        // A node that ends waits for nothing: the store may have been in the middle of a change
        // when this was begun.
        let is_whole = *lineage == begun.lineage && !self.0.is_stopping();
        if is_whole { Ok(Some(lineage)) } else { Err(SaveError::Replaced) }
    }
}

/// The snapshots of a store that its node keeps alive.
struct Saver<M: Memory> {
    store: Weak<Store<M, GroupLog>>,
    snapshots: Arc<Snapshots<Directory>>,
}

impl<M: Memory> std::fmt::Debug for Saver<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver").field("snapshots", &self.snapshots).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static> Saves for Saver<M> {
    fn save(&self, background: bool) -> Result<(), String> {
        let store = self.store.upgrade().ok_or("the node ends")?;
        let done = if background {
            self.snapshots.save_in_background(&store, now_ms).map(drop)
        } else {
            self.snapshots.save(&store, &now_ms).map(drop)
        };
        done.map_err(|error| error.to_string())
    }

    fn keep_short(&self, log: &Log) {
        if self.snapshots.is_due(log)
            && let Err(error) = self.save(false)
        {
            tracing::warn!("{error}");
        }
    }

    fn saved_s(&self) -> u64 {
        self.snapshots.last_save_ms() / 1000
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        self.snapshots.entries()
    }
}

/// What a node does for its directory. The log's writer ends after all that give it something.
#[derive(Debug)]
pub struct Keeping {
    pub(crate) saver: Arc<dyn Saves>,
    pub(crate) writer: CommitThread,
    pub(crate) recovery: Recovery,
    members: Vec<NodeId>,
}

impl Keeping {
    /// The number of the position of the last change that was read back, if there was one.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        let last = self.recovery.log.last;
        (last > Position::NONE).then(|| last.number())
    }

    /// Who had a vote in the epoch of that change, where the log says so.
    #[must_use]
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }
}

#[cfg(test)]
mod tests {
    use remora::Device;
    use remora_store::memory::Heap;
    use remora_store::replica::Mark;
    use remora_store::store;

    use super::*;
    use crate::group::GroupOptions;

    fn group() -> Arc<Group> {
        Group::new(&Device::open().unwrap(), GroupOptions::of_a_test(7492)).unwrap()
    }

    /// A primary that begins sends what it took over before a majority has its first record.
    #[test]
    fn a_copy_that_is_read_back_is_committed_as_far_as_its_sender_knew() {
        let path = std::env::temp_dir().join(format!("remora-copy-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let (committed, covered) = (Position::new(4, 7), Position::new(5, 9));
        let ends = vec![Mark { position: covered, offset: 512 }];
        let members = vec![NodeId(1), NodeId(4)];
        let requests = Default::default();
        let snapshot = Snapshot { epoch: 5, ends, committed, requests, members: members.clone() };
        let sender = group();
        let disk = Arc::new(Directory::open(&path).unwrap());
        write_copy(&sender, &disk, &snapshot, &[]).unwrap().name().unwrap();
        drop(disk);
        let (reader, options) = (group(), store::Options::new(1 << 20, 11));
        let log = GroupLog(reader.clone());
        let memory = Heap::new(options.memory_len());
        let store = Arc::new(Store::new(memory, log, options).unwrap());
        let kept = Kept::open(&path, Fsync::Always).unwrap().read_back(&store).unwrap();
        let state = reader.lock();
        assert_eq!(state.replica.applied().position, covered);
        assert_eq!(state.replica.committed(), committed);
        assert!(!state.replica.is_of_one_time(), "nobody reads it before that is decided");
        assert_eq!(kept.members(), members);
        drop((state, kept));
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn the_head_of_an_earlier_release_names_no_members() {
        let (node, salt) = (NodeId(300), 1 << 40);
        let snapshot = Replica::new(node, group().replica(true)).snapshot();
        let mut bytes = bytes_of(&Head { node, salt, snapshot: snapshot.clone() });
        assert_eq!(bytes.pop(), Some(0), "no members");
        let head = Head::read(bytes.clone()).unwrap();
        assert_eq!((head.node, head.salt, &head.snapshot), (node, salt, &snapshot));
        assert!(Head::read(bytes[..bytes.len() - 1].to_vec()).is_none());
        let snapshot = Snapshot { members: vec![NodeId(1), node], ..snapshot };
        bytes = bytes_of(&Head { node, salt, snapshot: snapshot.clone() });
        assert_eq!(Head::read(bytes.clone()).unwrap().snapshot, snapshot);
        assert!(Head::read([&bytes[..], &[7]].concat()).is_none());
    }
}
