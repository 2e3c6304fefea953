//! Recovery: makes a store from what a directory has after a stop or a crash, which is the newest
//! snapshot and the log from there on.
//!
//! `replay` reads the log and decides where it ends (a torn tail, or corruption); here its records
//! are carried out; `reopen` goes on writing behind the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::journal::with_record;
use super::progress::Progress;
use super::{
    Committer, Fields, Fsync, Log, LogError, Operation, Options, Parts, Position, ReplayError,
    Replayed, open_log, replay,
};
use crate::codec::Codec;
use crate::disk::Disk;
use crate::item::VALUE_MAX;
use crate::journal::{Journal, Record};
use crate::layout::{BUCKET, PARTITIONS_MAX};
use crate::memory::Memory;
use crate::slab::Rest;
use crate::snapshot::{self, Loaded};
use crate::store::{self, Change, Expiry, OpenError, Store, UpdateError, Value};
use crate::tablespace::TablespaceId;

/// A store that was read back.
pub struct Recovered<M: Memory, D: Disk> {
    /// The store.
    pub store: Store<M, Log>,
    /// What writes its log: see [`CommitThread`](super::CommitThread).
    pub committer: Committer<D>,
    /// What was found.
    pub recovery: Recovery,
}

/// What was found in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The snapshot, if there was one.
    pub snapshot: Option<Loaded>,
    /// The log after it.
    pub log: Replayed,
}

/// Why a store cannot be read back. Nothing in the directory was changed.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The files.
    #[error(transparent)]
    Files(#[from] ReplayError),
    /// The memory.
    #[error(transparent)]
    Memory(#[from] OpenError),
}

/// Makes a store in `memory` of what `disk` has; an empty directory is an empty store. `now_ms` is
/// in ms of Unix time.
///
/// # Errors
///
/// [`RecoverError`].
pub fn open<M: Memory, D: Disk>(
    disk: &Arc<D>,
    memory: M,
    store: store::Options,
    log: Options,
    now_ms: u64,
) -> Result<Recovered<M, D>, RecoverError> {
    open_telling(disk, memory, store, log, now_ms, &Progress::default())
}

/// As [`open`], and tells how far it is.
///
/// # Errors
///
/// [`RecoverError`].
pub fn open_telling<M: Memory, D: Disk>(
    disk: &Arc<D>,
    memory: M,
    store: store::Options,
    log: Options,
    now_ms: u64,
    progress: &Progress,
) -> Result<Recovered<M, D>, RecoverError> {
    let log = Log::new(log);
    let step_ms = store.quarantine_ms + 1;
    let store = Store::new(memory, log.clone(), store)?;
    let mut player = Player::new(&store, step_ms);
    let mut reading = progress.begin(&**disk)?;
    let (mut committer, recovery) =
        read_directory(disk, &log, Parts::Whole, &mut |_, position, fields| {
            reading.add(fields);
            player.play(position, fields)
        })?;
    drop(reading);
    let last = recovery.log.last;
    let failed = |(position, reason)| ReplayError::Apply {
        place: disk.place(),
        file: ".".to_owned(),
        position,
        reason,
    };
    player.finish(last, now_ms).map_err(failed)?;
    let noted = note_evictions(&store, &mut committer, now_ms);
    noted.map_err(|error| failed((last, error.to_string())))?;
    Ok(Recovered { store, committer, recovery })
}

/// What could be read of a directory that is damaged.
pub struct Salvaged<M: Memory> {
    /// The store. It logs nothing: see [`Salvaged::freeze`].
    pub store: Store<M, Log>,
    /// How many records were read.
    pub records: u64,
    /// The damage, if there is any.
    pub damage: Option<ReplayError>,
}

impl<M: Memory> Salvaged<M> {
    /// From now on the store takes no changes. Answers why, as clients are told.
    #[must_use]
    pub fn freeze(&self) -> String {
        let reason = match &self.damage {
            Some(damage) => format!("only what comes before damage is served: {damage}"),
            None => "the directory is served as it is, and is not damaged".to_owned(),
        };
        self.store.journal().failed(&reason);
        reason
    }
}

/// Makes a store in `memory` of what `disk` has before damage, and changes nothing there: to read
/// what is left. `now_ms` is in ms of Unix time.
///
/// # Errors
///
/// [`RecoverError`], of what is no damage.
pub fn salvage<M: Memory, D: Disk>(
    disk: &D,
    memory: M,
    store: store::Options,
    now_ms: u64,
    progress: &Progress,
) -> Result<Salvaged<M>, RecoverError> {
    let log = Log::new(Options { fsync: Fsync::No, ..Options::default() });
    let step_ms = store.quarantine_ms + 1;
    let store = Store::new(memory, log.clone(), store)?;
    let mut player = Player::new(&store, step_ms);
    let mut reading = progress.begin(disk)?;
    let (mut last, mut records) = (Position::NONE, 0);
    let visit = &mut |_: Source, position: Position, fields: &Fields<'_>| {
        reading.add(fields);
        (last, records) = (last.max(position), records + 1);
        player.play(position, fields)
    };
    let read = read_files(disk, visit, |from, visit| replay(disk, from, Parts::Whole, visit));
    let damage = match read {
        Ok(_) => None,
        Err(damage) if damage.is_damage() || damage.is_unreadable() => Some(damage),
        Err(error) => return Err(error.into()),
    };
    drop(reading);
    log.begin(last);
    // (What the log has of tablespaces whose end it lacks is of no use.)
    player.carry_out_deferred(now_ms).map_err(|(position, reason)| {
        let (place, file) = (disk.place(), ".".to_owned());
        ReplayError::Apply { place, file, position, reason }
    })?;
    drop(player);
    Ok(Salvaged { store, records, damage })
}

/// Which of a directory's files a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The newest snapshot.
    Snapshot,
    /// The log after it.
    Log,
}

/// Gives `visit` all that a directory has, or whole transactions only, in order, and lets `log`,
/// which is a new one, go on after it. Answers what writes the log, and what was found.
///
/// # Errors
///
/// [`ReplayError`]; the text of an error that `visit` answers becomes [`ReplayError::Apply`].
pub fn read_directory<D: Disk>(
    disk: &Arc<D>,
    log: &Log,
    parts: Parts,
    visit: &mut dyn FnMut(Source, Position, &Fields<'_>) -> Result<(), String>,
) -> Result<(Committer<D>, Recovery), ReplayError> {
    let mut writer = None;
    let recovery = read_files(&**disk, visit, |from, visit| {
        let (committer, replayed) = open_log(disk, log, from, parts, visit)?;
        writer = Some(committer);
        Ok(replayed)
    })?;
    Ok((writer.expect("the log was read"), recovery))
}

/// What gets the records of the log.
type VisitLog<'v> = dyn FnMut(Position, &Fields<'_>) -> Result<(), String> + 'v;

/// Gives `visit` what the newest snapshot has, and what `read_log` reads of the log behind it.
fn read_files<D: Disk>(
    disk: &D,
    visit: &mut dyn FnMut(Source, Position, &Fields<'_>) -> Result<(), String>,
    read_log: impl FnOnce(Position, &mut VisitLog<'_>) -> Result<Replayed, ReplayError>,
) -> Result<Recovery, ReplayError> {
    let newest = snapshot::newest(disk).map_err(|source| ReplayError::Io {
        place: disk.place(),
        file: ".".to_owned(),
        source,
    })?;
    let load = |covered| {
        let visit = &mut |at, fields: &Fields<'_>| visit(Source::Snapshot, at, fields);
        snapshot::load(disk, covered, visit)
    };
    let snapshot = newest.map(load).transpose()?;
    let from = newest.unwrap_or(Position::NONE);
    let end = snapshot.map_or(Position::NONE, |loaded| loaded.end);
    let log = read_log(from, &mut |at, fields| visit(Source::Log, at, fields));
    let log = log.map_err(|error| error.needed_by(end))?;
    let (place, last, expected) = (disk.place(), log.last, end);
    if expected > last {
        return Err(ReplayError::TooShort { place, last, expected });
    }
    Ok(Recovery { snapshot, log })
}

/// Keys that were evicted to make room for others are gone for good: the log says so, unless a
/// later record brought them back. They may be more than the log takes before it writes some.
fn note_evictions<M: Memory, D: Disk>(
    store: &Store<M, Log>,
    committer: &mut Committer<D>,
    now_ms: u64,
) -> Result<(), LogError> {
    let spaces = store.tablespaces();
    for (space, key) in store.journal().take_evicted() {
        let tablespace = TablespaceId(space);
        let there = spaces.iter().any(|info| info.id == tablespace);
        if there && store.get(tablespace, &key, 0, &mut Vec::new()).is_none() {
            let fields = Fields { tablespace: space, key: &key, ..Fields::of(Operation::Delete) };
            let mut noted = store.journal().append(&fields);
            if matches!(noted, Err(LogError::Behind { .. })) {
                committer.turn(now_ms);
                noted = store.journal().append(&fields);
            }
            noted?;
        }
    }
    Ok(())
}

/// A journal whose store carries out records again.
pub trait Repeats: Journal {
    /// While `repeat` makes the change of the record at `position` again as a client would, the
    /// journal answers that position, and logs nothing.
    fn repeat(&self, position: Position, repeat: &mut dyn FnMut());
}

impl Repeats for Log {
    fn repeat(&self, position: Position, repeat: &mut dyn FnMut()) {
        self.repeating(position, repeat);
    }
}

/// Carries out records again.
pub struct Player<'s, M, J> {
    store: &'s Store<M, J>,
    /// Tablespaces that a snapshot does not have, since they were dropped when it was begun, and of
    /// which the log has changes still: it drops them later.
    gone: BTreeSet<u16>,
    /// Tablespaces that were dropped: what the log has of them behind that says nothing, until one
    /// of the same number is created.
    dropped: BTreeSet<u16>,
    /// Values that found no room, by tablespace and key: items that have expired are in their way,
    /// and go when all records are carried out.
    deferred: BTreeMap<(u16, Vec<u8>), Deferred>,
    /// The time that the store is told, in ms: no item expires before all records are carried out,
    /// since a later one may give it another expiry. So it begins at 0, and only goes on so that
    /// blocks are freed that the store keeps for a while.
    now_ms: u64,
    step_ms: u64,
}

/// A value that found no room.
struct Deferred {
    position: Position,
    codec: Codec,
    flags: u32,
    expires_ms: Option<u64>,
    stored: Vec<u8>,
}

fn is_full(error: &UpdateError) -> bool {
    matches!(error, UpdateError::Memory { .. } | UpdateError::Quota { .. })
}

impl<'s, M: Memory, J: Repeats> Player<'s, M, J> {
    /// A player for a store in which nothing is. `step_ms` is how long it keeps blocks for readers,
    /// and a little more.
    pub fn new(store: &'s Store<M, J>, step_ms: u64) -> Player<'s, M, J> {
        let (gone, dropped, deferred) = Default::default();
        Player { store, gone, dropped, deferred, now_ms: 0, step_ms }
    }

    /// Carries out the next record.
    ///
    /// # Errors
    ///
    /// Why it cannot be, in words.
    pub fn play(&mut self, position: Position, fields: &Fields<'_>) -> Result<(), String> {
        let known = || self.store.tablespaces().iter().any(|info| info.id.0 == fields.tablespace);
        match fields.operation {
            Operation::Drop => {
                self.gone.remove(&fields.tablespace);
                self.dropped.insert(fields.tablespace);
            }
            Operation::Create => with_record(fields, |record| self.make_way(position, record))?,
            _ if self.gone.contains(&fields.tablespace) => return Ok(()),
            _ if self.dropped.contains(&fields.tablespace) => return Ok(()),
            Operation::Put | Operation::Touch | Operation::Delete => {}
            Operation::Flush if !known() => return Ok(()),
            Operation::Epoch | Operation::Request | Operation::Done => return Ok(()),
            Operation::Node => {
                return Err("the directory is a group's node's: serve it with --cluster".to_owned());
            }
            Operation::Flush | Operation::Synced | Operation::End => {}
        }
        if !self.deferred.is_empty() && self.change_deferred(fields) {
            return Ok(());
        }
        let played =
            with_record(fields, |record| match self.store.replay(position.number(), record) {
                Err(store::ReplayError::Update(full)) if is_full(&full) => {
                    self.repeat(position, record, &full).or_else(|reason| {
                        let quota = matches!(full, UpdateError::Quota { .. });
                        (quota && self.defer(position, record)).then_some(()).ok_or(reason)
                    })
                }
                played => played.map_err(|error| error.to_string()),
            });
        if played.is_err() && !known() && fields.operation != Operation::Create {
            self.gone.insert(fields.tablespace);
            return Ok(());
        }
        played
    }

    /// There is no room for a value, and there was when it was put: pages are used otherwise now,
    /// or are kept for readers whom there are none of. It is put as a client would put it, which
    /// frees what can be freed and evicts what may be evicted.
    fn repeat(
        &mut self,
        position: Position,
        record: &Record<'_>,
        full: &UpdateError,
    ) -> Result<(), String> {
        let Record::Put { tablespace, key, stored, codec, flags, expires_ms } = *record else {
            return Err(full.to_string());
        };
        let mut value = Vec::new();
        codec.decode(stored, VALUE_MAX, &mut value).map_err(|error| error.to_string())?;
        self.free_retired();
        let (store, now) = (self.store, self.now_ms);
        let (value, expiry) = (Value::Given(&value), Expiry::of_item(expires_ms));
        let put = Change::Put { value, flags, expiry };
        let mut repeated = Ok(());
        store.journal().repeat(position, &mut || {
            repeated = store.update(tablespace, key, now, &mut |_, _| put).map(drop);
        });
        repeated.map_err(|error| error.to_string())
    }

    /// Frees all blocks whose items have gone: there are no readers whom they are kept for.
    fn free_retired(&mut self) {
        self.now_ms += self.step_ms;
        self.store.note_time(self.now_ms);
        while self.store.free_all_retired(Rest::Whole) {}
    }

    /// Keeps a value for later, if its tablespace may have items that have expired.
    fn defer(&mut self, position: Position, record: &Record<'_>) -> bool {
        let Record::Put { tablespace, key, stored, codec, flags, expires_ms } = *record else {
            return false;
        };
        let stored = stored.to_vec();
        let deferred = Deferred { position, codec, flags, expires_ms, stored };
        self.deferred.insert((tablespace.0, key.to_vec()), deferred);
        true
    }

    /// What a record does to values that are kept for later; whether that is all it does.
    fn change_deferred(&mut self, fields: &Fields<'_>) -> bool {
        let key = (fields.tablespace, fields.key.to_vec());
        match fields.operation {
            Operation::Put | Operation::Delete => _ = self.deferred.remove(&key),
            Operation::Drop | Operation::Flush => {
                self.deferred.retain(|(space, _), _| *space != fields.tablespace);
            }
            Operation::Touch => {
                if let Some(deferred) = self.deferred.get_mut(&key) {
                    deferred.expires_ms = Some(fields.expires_ms).filter(|ms| *ms > 0);
                    return true;
                }
            }
            Operation::Create
            | Operation::Synced
            | Operation::End
            | Operation::Epoch
            | Operation::Request
            | Operation::Node
            | Operation::Done => {}
        }
        false
    }

    /// All records are carried out, the last of which is at `last`; carries out what was kept for
    /// later.
    ///
    /// # Errors
    ///
    /// Which record cannot be carried out, and why, in words.
    pub fn finish(mut self, last: Position, now_ms: u64) -> Result<(), (Position, String)> {
        if let Some(tablespace) = self.gone.first() {
            let reason = format!("the log has changes of tablespace {tablespace}, and no such one");
            return Err((last, reason));
        }
        self.carry_out_deferred(now_ms)
    }

    /// Removes what has expired, and carries out what was kept for later.
    fn carry_out_deferred(&mut self, now_ms: u64) -> Result<(), (Position, String)> {
        if self.deferred.is_empty() {
            return Ok(());
        }
        // As many buckets as there are, and the one that is begun in each partition.
        let buckets = self.store.index_bytes() / BUCKET + PARTITIONS_MAX;
        self.store.sweep(now_ms, u32::try_from(buckets).unwrap_or(u32::MAX));
        self.now_ms = now_ms;
        self.free_retired();
        // The store's time goes on with the machine's: were it far ahead, blocks would rest long.
        self.step_ms = 0;
        for ((space, key), deferred) in std::mem::take(&mut self.deferred) {
            let Deferred { position, codec, flags, expires_ms, stored } = deferred;
            let (tablespace, key, stored) = (TablespaceId(space), &key[..], &stored[..]);
            let record = if expires_ms.is_some_and(|at| at <= now_ms) {
                Record::Delete { tablespace, key }
            } else {
                Record::Put { tablespace, key, stored, codec, flags, expires_ms }
            };
            let played = match self.store.replay(position.number(), &record) {
                Err(store::ReplayError::Update(full)) if is_full(&full) => {
                    self.repeat(position, &record, &full)
                }
                played => played.map_err(|error| error.to_string()),
            };
            played.map_err(|reason| (position, reason))?;
        }
        Ok(())
    }

    /// A snapshot's tablespaces are as they were when its walk began, and the log goes on from a
    /// moment before. Another tablespace of the same name or number as one that the log creates is
    /// from after that, and the log creates it again, with all that is in it.
    fn make_way(&mut self, position: Position, record: &Record<'_>) -> Result<(), String> {
        let Record::Create { tablespace, options } = record else { return Ok(()) };
        self.gone.remove(&tablespace.0);
        self.dropped.remove(&tablespace.0);
        for other in self.store.tablespaces() {
            let (number, name) = (other.id == *tablespace, other.options.name == options.name);
            if number != name {
                let drop = Record::Drop { tablespace: other.id };
                let dropped = self.store.replay(position.number(), &drop);
                dropped.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
