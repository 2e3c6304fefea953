//! The one primitive of change.

mod all;

use std::sync::atomic::Ordering::Relaxed;

use thiserror::Error;

pub use self::all::Pair;
use self::all::Spare;
use super::Store;
use super::expiry::Expiry;
use super::old::Old;
use super::read::{LONG, Seen, Use};
use super::scratch::with_scratch;
use crate::codec::Codec;
use crate::item::{CHECKSUM, Item, KEY_MAX, Live, Trace, VALUE_MAX};
use crate::journal::{Journal, JournalError, Prepared, Record};
use crate::layout::BUCKET;
use crate::memory::Memory;
use crate::request::Asked;
use crate::select::plan::Plan;
use crate::slab::Rest;
use crate::table::{Crowded, Hash, Locked, Slot, SlotPlace};
use crate::tablespace::{Space, TablespaceId};

/// Retired blocks that a change frees.
const FREED_MAX: usize = 4;
/// How often a change is tried again after memory was freed for it.
const RETRIES: usize = 8;

/// Where the bytes of a new value are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'v> {
    /// Here.
    Given(&'v [u8]),
    /// In the buffer that the decision was lent.
    Scratch,
}

/// What becomes of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'v> {
    /// It stays as it is.
    Keep,
    /// It has a new value.
    Put {
        /// The value.
        value: Value<'v>,
        /// What to keep beside it.
        flags: u32,
        /// When it expires.
        expiry: Expiry,
    },
    /// Its value stays, and expires at another time, in ms of Unix time, or never.
    Touch {
        /// When.
        expires_ms: Option<u64>,
    },
    /// It has no value any more.
    Delete,
}

/// What an update did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// Nothing: the decision was to keep, or there was nothing to touch or delete.
    Kept,
    /// The key has a new value.
    Put,
    /// The value expires at another time.
    Touched,
    /// The key has no value any more.
    Deleted,
}

/// What an update did, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Updated {
    /// What it did.
    pub changed: Changed,
    /// Whether there was an item before.
    pub existed: bool,
    /// The log position of the change, after a Put also the item's version. If nothing was
    /// changed: the item's version, or 0.
    pub version: u64,
}

/// Why a key could not be changed. It is as it was.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UpdateError {
    /// There is no such tablespace.
    #[error("there is no tablespace of number {}: create it first", .0.0)]
    Tablespace(TablespaceId),
    /// The key is empty or too long.
    #[error("a key has 1 to {KEY_MAX} bytes, not {0}")]
    Key(usize),
    /// The value is too long.
    #[error("a value has at most {VALUE_MAX} bytes, not {0}")]
    Value(usize),
    /// The store is full.
    #[error(
        "the store's memory is full: {needed} bytes more do not fit into its limit of {limit}; \
        delete keys, allow eviction, or give it more"
    )]
    Memory {
        /// Bytes of the item.
        needed: u64,
        /// See [`super::Options::limit`].
        limit: u64,
    },
    /// The tablespace is full.
    #[error(
        "the tablespace is full: {needed} bytes more do not fit into its quota of {quota}; delete \
        keys, allow eviction, or raise the quota"
    )]
    Quota {
        /// Bytes of the item.
        needed: u64,
        /// The tablespace's quota.
        quota: u64,
    },
    /// Too many keys have the same place in the index.
    #[error(
        "the key finds no place in the index: it is full, or somebody chooses keys with equal \
        hashes"
    )]
    Crowded,
    /// The change could not be logged.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What is put: a value as it is to be stored.
#[derive(Clone, Copy)]
struct Put<'a> {
    stored: &'a [u8],
    codec: Codec,
    flags: u32,
    expires_ms: Option<u64>,
    traced: bool,
}

/// A block that holds an item already, but for its version.
struct Written<'v> {
    at: u64,
    /// See [`Item::write_undated`].
    sum: u64,
    value: &'v [u8],
    flags: u32,
    codec: Codec,
    traced: bool,
    /// The value as it is stored, if that is another.
    encoded: Vec<u8>,
    /// What the journal has made of it.
    prepared: Option<Prepared>,
}

impl Written<'_> {
    /// Whether this is what a decision wants to have put.
    fn is(&self, value: &[u8], flags: u32) -> bool {
        std::ptr::eq(self.value, value) && self.flags == flags
    }

    fn put(&self, expires_ms: Option<u64>) -> Put<'_> {
        let stored = if self.codec == Codec::None { self.value } else { &self.encoded };
        let Written { codec, flags, traced, .. } = *self;
        Put { stored, codec, flags, expires_ms, traced }
    }
}

/// A long value that a decision wants to have put, before it was written.
struct Unwritten<'v> {
    value: &'v [u8],
    flags: u32,
}

impl<'v> Unwritten<'v> {
    /// The long value that a change puts, if it does.
    fn of(change: &Change<'v>) -> Option<Unwritten<'v>> {
        match *change {
            Change::Put { value: Value::Given(value), flags, .. } => {
                (LONG..=VALUE_MAX).contains(&value.len()).then_some(Unwritten { value, flags })
            }
            _ => None,
        }
    }
}

/// What an attempt at a change came to.
enum Attempt<'v> {
    Done(Updated),
    /// Nothing was changed yet: this is to be written first.
    Write(Unwritten<'v>),
    /// Nothing was decided yet: the item is long, and is to be looked at without the lock.
    Look,
}

/// A decision that was made without the lock.
struct Decided<'v> {
    /// The item that it was made on. While the key has this one it holds.
    on: Seen,
    change: Change<'v>,
}

/// Where a change is decided on.
#[derive(Clone, Copy)]
enum Decision<'a, 'v> {
    /// Under the lock, unless the item is long.
    First,
    /// Under the lock, unless this decision holds.
    Again(Option<&'a Decided<'v>>),
}

/// The key that an operation is about.
#[derive(Clone, Copy)]
struct Subject<'a> {
    id: TablespaceId,
    space: &'a Space,
    key: &'a [u8],
    hash: Hash,
    asked: Option<Asked<'a>>,
    spare: Option<&'a Spare>,
}

/// The key that is to be changed, and who asks for that.
#[derive(Clone, Copy)]
struct Target<'a> {
    key: &'a [u8],
    hash: Hash,
    asked: Option<Asked<'a>>,
    spare: Option<&'a Spare>,
    /// As how many values an old one counts that is decided on: see [`Seen::is_long`].
    weight: usize,
}

type Current = Option<(SlotPlace, Slot, Seen)>;

/// See [`Store::update`].
type Decide<'d, 'v> = dyn FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Change<'v> + 'd;

/// Where a value that is put may be: in the buffer that the decision was lent, or in memory.
struct AtHand<'a, 'v> {
    scratch: &'a [u8],
    written: &'a mut Option<Written<'v>>,
}

fn item_of<'a>(tablespace: TablespaceId, key: &'a [u8], put: &Put<'a>) -> Item<'a> {
    let Put { stored, codec, flags, expires_ms, traced } = *put;
    Item { tablespace, key, stored, codec, flags, expires_ms, version: 0, traced, touched: false }
}

impl<M: Memory, J: Journal> Store<M, J> {
    /// Changes a key, depending on what it is: the one primitive of change.
    ///
    /// `decide` sees the item and says what becomes of it; the item is still the key's when that is
    /// done. It is lent an empty buffer, in which it may make the new value. It must not call the
    /// store. It is asked again if memory had to be freed for its answer, if a long value had to be
    /// written, and if a long item, which it sees without the lock, was changed meanwhile.
    /// Increments, appends, conditional writes are all calls of this function.
    ///
    /// # Errors
    /// See [`UpdateError`]; the key is then as it was.
    pub fn update<'v>(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        decide: &mut Decide<'_, 'v>,
    ) -> Result<Updated, UpdateError> {
        self.update_asked(space, key, now, None, decide)
    }

    /// As [`Store::update`]; the change takes effect once, if it is `asked` for by a request with a
    /// number.
    ///
    /// # Errors
    /// See [`UpdateError`]; the key is then as it was.
    pub fn update_asked<'v>(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        asked: Option<Asked<'_>>,
        decide: &mut Decide<'_, 'v>,
    ) -> Result<Updated, UpdateError> {
        self.update_weighed(space, key, now, (asked, 1), decide)
    }

    /// As [`Store::update_asked`], where it takes as long to decide on a value as to read so many.
    pub(crate) fn update_weighed<'v>(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        (asked, weight): (Option<Asked<'_>>, usize),
        decide: &mut Decide<'_, 'v>,
    ) -> Result<Updated, UpdateError> {
        if !(1..=KEY_MAX).contains(&key.len()) {
            return Err(UpdateError::Key(key.len()));
        }
        self.note_time(now);
        let hash = self.hasher.hash(space, key);
        let partition = hash.partition(self.table.geometry.partitions);
        let (target, mut tries) = (Target { key, hash, asked, spare: None, weight }, 0);
        loop {
            tries += 1;
            match self.update_once(space, target, now, decide) {
                Err(error) if tries <= RETRIES && self.reclaim(space, partition, &error, now) => {}
                result => return result,
            }
        }
    }

    /// Changes a key, with long values read and written before the lock is taken.
    fn update_once<'v>(
        &self,
        space: TablespaceId,
        target: Target<'_>,
        now: u64,
        decide: &mut Decide<'_, 'v>,
    ) -> Result<Updated, UpdateError> {
        let (mut scratch, mut decided) = (Vec::new(), None);
        let mut unwritten =
            match self.try_update(space, target, now, decide, Decision::First, &mut None)? {
                Attempt::Done(updated) => return Ok(updated),
                Attempt::Write(value) => Some(value),
                Attempt::Look => {
                    decided = self.decide_unlocked(space, target.key, now, decide, &mut scratch);
                    decided.as_ref().and_then(|decided| Unwritten::of(&decided.change))
                }
            };
        let mut written = None;
        loop {
            if let Some(value) = unwritten {
                written = Some(self.write(space, target.key, value)?);
            }
            let again = Decision::Again(decided.as_ref());
            let done = match self.try_update(space, target, now, decide, again, &mut written) {
                Ok(Attempt::Write(value)) => {
                    unwritten = Some(value);
                    continue;
                }
                Ok(Attempt::Look) => unreachable!("it was looked at"),
                Ok(Attempt::Done(updated)) => Ok(updated),
                Err(error) => Err(error),
            };
            // The last decision may have been another one.
            if let Some(Written { at, .. }) = written {
                self.free(at);
            }
            return done;
        }
    }

    /// Decides on an item without its lock, since to read it takes long.
    fn decide_unlocked<'s, 'v: 's>(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        decide: &mut Decide<'_, 'v>,
        scratch: &'s mut Vec<u8>,
    ) -> Option<Decided<'s>> {
        let _pin = self.pin();
        let (on, _) = self.look(space, key, now, Use::Change, &mut |_| true)?;
        let change = match self.ask(&on, decide, scratch) {
            Change::Put { value: Value::Scratch, flags, expiry } => {
                Change::Put { value: Value::Given(scratch), flags, expiry }
            }
            change => change,
        };
        Some(Decided { on, change })
    }

    /// Asks what becomes of an item.
    fn ask<'v>(
        &self,
        seen: &Seen,
        decide: &mut Decide<'_, 'v>,
        scratch: &mut Vec<u8>,
    ) -> Change<'v> {
        let reader = |out: &mut Vec<u8>, decoded: bool| {
            if decoded {
                return seen.append_value(&self.table.memory, out);
            }
            seen.append_stored(&self.table.memory, out);
            true
        };
        let passes = |plan: &Plan| seen.passes(plan, &self.table.memory);
        let (found, stored) = (self.found(seen), seen.head.stored);
        let old = Old { found, reader: &reader, passes: &passes, stored };
        decide(Some(&old), scratch)
    }

    fn try_update<'v: 'w, 'w>(
        &self,
        space: TablespaceId,
        Target { key, hash, asked, spare, weight }: Target<'_>,
        now: u64,
        decide: &mut Decide<'_, 'v>,
        decision: Decision<'_, 'w>,
        written: &mut Option<Written<'w>>,
    ) -> Result<Attempt<'w>, UpdateError> {
        let mut locked = self.table.lock_for(hash);
        let place = self.spaces.serving(space).ok_or(UpdateError::Tablespace(space))?;
        let subject = Subject { id: space, space: place, key, hash, asked, spare };
        self.free_retired(&mut locked, FREED_MAX, Rest::Whole);
        let current = self.current(&mut locked, &subject);
        let judged = self.judged_at(now);
        let alive = current.filter(|(_, _, seen)| !seen.head.live.is_expired(judged));
        with_scratch(|scratch| {
            let change: Change<'w> = match (alive, decision) {
                (None, _) => decide(None, scratch),
                (Some((_, _, seen)), Decision::First) if seen.is_long(weight) => {
                    return Ok(Attempt::Look);
                }
                (Some((_, _, seen)), Decision::Again(Some(decided))) if decided.on == seen => {
                    decided.change
                }
                (Some((_, _, seen)), _) => self.ask(&seen, decide, scratch),
            };
            if written.is_none()
                && let Some(long) = Unwritten::of(&change)
            {
                return Ok(Attempt::Write(long));
            }
            let (items, at_hand) = ((current, alive), AtHand { scratch, written });
            let done = self.carry_out(&mut locked, &subject, items, now, change, at_hand);
            done.map(Attempt::Done)
        })
    }

    /// Writes a long value to memory, for a change to come.
    fn write<'v>(
        &self,
        space: TablespaceId,
        key: &[u8],
        Unwritten { value, flags }: Unwritten<'v>,
    ) -> Result<Written<'v>, UpdateError> {
        let place = self.spaces.serving(space).ok_or(UpdateError::Tablespace(space))?;
        let (mut encoded, mut codec) = (Vec::new(), place.codec());
        if codec != Codec::None {
            codec = codec.encode(value, &mut encoded);
        }
        let (prepared, traced) = (None, place.traced());
        let mut written = Written { at: 0, sum: 0, value, flags, codec, traced, encoded, prepared };
        let item = item_of(space, key, &written.put(None));
        let at = self.allocate(space, place, item.head().block_len() as u64)?;
        let sum = with_scratch(|bytes| {
            let sum = item.write_undated(bytes);
            self.table.memory.write(at, bytes);
            sum
        });
        let prepared = self.journal.prepare(&Record::of_item(&item));
        (written.at, written.sum, written.prepared) = (at, sum, prepared);
        Ok(written)
    }

    /// Puts a value, whatever the key is, which expires at a time in ms of Unix time, or as the
    /// tablespace's default says.
    ///
    /// # Errors
    /// See [`UpdateError`]; the key is then as it was.
    pub fn put(
        &self,
        space: TablespaceId,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expires_ms: Option<u64>,
        now: u64,
    ) -> Result<Updated, UpdateError> {
        let (value, expiry) = (Value::Given(value), Expiry::asked(expires_ms));
        self.update(space, key, now, &mut |_, _| Change::Put { value, flags, expiry })
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// See [`UpdateError`]; the key is then as it was.
    pub fn delete(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
    ) -> Result<Updated, UpdateError> {
        self.update(space, key, now, &mut |_, _| Change::Delete)
    }

    /// The key's item, expired or not. One that was flushed is removed first.
    fn current(&self, locked: &mut Locked<'_, M>, subject: &Subject<'_>) -> Current {
        let found = locked.find(subject.hash, |slot| self.see(&slot, subject.id, subject.key));
        let (place, slot, seen) = found?;
        if seen.head.version > subject.space.flushed() {
            return found;
        }
        self.remove(locked, place, &slot);
        None
    }

    fn carry_out(
        &self,
        locked: &mut Locked<'_, M>,
        subject: &Subject<'_>,
        (current, alive): (Current, Current),
        now: u64,
        change: Change<'_>,
        AtHand { scratch, written }: AtHand<'_, '_>,
    ) -> Result<Updated, UpdateError> {
        let existed = alive.is_some();
        let kept = alive.map_or(0, |(_, _, seen)| seen.head.version);
        let (changed, version) = match (change, alive) {
            (Change::Put { value, flags, expiry }, _) => {
                let value = match value {
                    Value::Given(value) => value,
                    Value::Scratch => scratch,
                };
                if value.len() > VALUE_MAX {
                    return Err(UpdateError::Value(value.len()));
                }
                let expires_ms = expiry.time(subject.space, now);
                let written = written.take_if(|written| written.is(value, flags));
                let traced = subject.space.traced();
                let version = match (written, subject.space.codec()) {
                    (Some(mut written), _) => {
                        let prepared = written.prepared.take();
                        let put = written.put(expires_ms);
                        let written = Some((&written, prepared));
                        self.put_item(locked, subject, current, &put, written)
                    }
                    (None, codec @ Codec::None) => {
                        let put = Put { stored: value, codec, flags, expires_ms, traced };
                        self.put_item(locked, subject, current, &put, None)
                    }
                    (None, codec) => with_scratch(|encoded| {
                        let codec = codec.encode(value, encoded);
                        let put = Put { stored: encoded, codec, flags, expires_ms, traced };
                        self.put_item(locked, subject, current, &put, None)
                    }),
                };
                (Changed::Put, version?)
            }
            (Change::Touch { expires_ms }, Some((place, slot, seen))) => {
                let (tablespace, key) = (subject.id, subject.key);
                let record = Record::Touch { tablespace, key, expires_ms };
                let version = self.log(subject, &record, None)?;
                self.set_expiry(locked, place, slot, &seen, expires_ms);
                (Changed::Touched, version)
            }
            (Change::Delete, Some((place, slot, _))) => {
                let record = Record::Delete { tablespace: subject.id, key: subject.key };
                let version = self.log(subject, &record, None)?;
                self.remove(locked, place, &slot);
                (Changed::Deleted, version)
            }
            (Change::Keep | Change::Touch { .. } | Change::Delete, _) => (Changed::Kept, kept),
        };
        Ok(Updated { changed, existed, version })
    }

    /// Logs a change of a key, for the client that asked for it.
    fn log(
        &self,
        subject: &Subject<'_>,
        record: &Record<'_>,
        prepared: Option<Prepared>,
    ) -> Result<u64, JournalError> {
        match (subject.asked, prepared) {
            (Some(asked), _) => self.journal.append_asked(record, &asked),
            (None, Some(prepared)) => self.journal.append_prepared(record, prepared),
            (None, None) => self.journal.append(record),
        }
    }

    /// Sets when an item expires, in its live word and in its slot.
    pub(super) fn set_expiry(
        &self,
        locked: &mut Locked<'_, M>,
        place: SlotPlace,
        slot: Slot,
        seen: &Seen,
        expires_ms: Option<u64>,
    ) {
        let live = seen.head.live.touched(expires_ms);
        let was = slot.expiry;
        let slot = Slot { expiry: Slot::expiry_of(expires_ms), ..slot };
        if let Some(space) = self.spaces.place(slot.tablespace) {
            space.note_expiry(was, slot.expiry);
        }
        locked.replace(place, slot, || self.table.memory.store(seen.at, live.0));
    }

    fn put_item(
        &self,
        locked: &mut Locked<'_, M>,
        subject: &Subject<'_>,
        current: Current,
        put: &Put<'_>,
        written: Option<(&Written<'_>, Option<Prepared>)>,
    ) -> Result<u64, UpdateError> {
        let record = Record::Put {
            tablespace: subject.id,
            key: subject.key,
            stored: put.stored,
            codec: put.codec,
            flags: put.flags,
            expires_ms: put.expires_ms,
        };
        let (written, prepared) = written.unzip();
        let log = || self.log(subject, &record, prepared.flatten());
        self.put_logged(locked, subject, current, (put, written), log)
    }

    /// Puts an item, whose block may be written, under the version that `log` answers, once nothing
    /// else can fail.
    fn put_logged(
        &self,
        locked: &mut Locked<'_, M>,
        subject: &Subject<'_>,
        current: Current,
        (put, written): (&Put<'_>, Option<&Written<'_>>),
        log: impl FnOnce() -> Result<u64, JournalError>,
    ) -> Result<u64, UpdateError> {
        let mut item = item_of(subject.id, subject.key, put);
        let at = match written {
            Some(written) => written.at,
            None => self.allocate(subject.id, subject.space, item.head().block_len() as u64)?,
        };
        let give_up = |error| {
            self.free(at);
            error
        };
        let place = match current {
            Some((place, ..)) => place,
            None => {
                let room = locked.make_room(subject.hash, || self.take_bucket(subject));
                room.map_err(|Crowded| give_up(self.crowded()))?
            }
        };
        item.version = log().map_err(|error| give_up(error.into()))?;
        match written {
            Some(written) => self.date(&item, written),
            None => with_scratch(|bytes| {
                item.write(bytes);
                self.table.memory.write(at, bytes);
            }),
        }
        if let Some(trace_at) = item.head().trace_at() {
            // While a log is played again there is no time yet: nobody knows when it was used.
            let trace = Trace::at(self.time.load(Relaxed), false);
            self.table.memory.store(at + trace_at as u64, trace.to_word());
        }
        let slot = Slot {
            address: self.table.memory.base() + at,
            len: item.len() as u32,
            expiry: Slot::expiry_of(item.expires_ms),
            hash: subject.hash,
            tablespace: subject.id,
        };
        match current {
            Some((_, was, seen)) => {
                subject.space.note_expiry(was.expiry, slot.expiry);
                let dead = seen.head.live.dead();
                locked.replace(place, slot, || self.table.memory.store(seen.at, dead.0));
                locked.touch(place);
                self.retire(locked, seen.at);
            }
            None => {
                subject.space.note_expiry(0, slot.expiry);
                locked.insert(place, slot);
                subject.space.count_item();
            }
        }
        Ok(item.version)
    }

    /// Gives an item that was written what depends on its version; the live word last.
    fn date(&self, item: &Item<'_>, written: &Written<'_>) {
        let (live, sum) = item.date(written.sum);
        let (memory, at) = (&self.table.memory, written.at);
        memory.store(at + 8, item.version);
        memory.write(at + (item.len() - CHECKSUM) as u64, &sum.to_le_bytes());
        memory.store(at, live.0);
    }

    /// Carries out a record about a key again; see [`Store::replay`].
    ///
    /// What was acknowledged once must not be refused for want of memory, although blocks may be
    /// packed in another way now: the limit is lifted for a moment if need be.
    pub(super) fn replay_key(&self, version: u64, record: &Record<'_>) -> Result<(), UpdateError> {
        match self.try_replay_key(version, record) {
            Err(UpdateError::Memory { needed, .. }) => {
                self.gather(needed);
                self.usage.lifted(|| self.try_replay_key(version, record))
            }
            result => result,
        }
    }

    fn try_replay_key(&self, version: u64, record: &Record<'_>) -> Result<(), UpdateError> {
        let (Record::Put { tablespace, key, .. }
        | Record::Touch { tablespace, key, .. }
        | Record::Delete { tablespace, key }) = *record
        else {
            return Ok(());
        };
        if !(1..=KEY_MAX).contains(&key.len()) {
            return Err(UpdateError::Key(key.len()));
        }
        let hash = self.hasher.hash(tablespace, key);
        let mut locked = self.table.lock_for(hash);
        let space = self.spaces.serving(tablespace).ok_or(UpdateError::Tablespace(tablespace))?;
        let subject = Subject { id: tablespace, space, key, hash, asked: None, spare: None };
        self.free_retired(&mut locked, FREED_MAX, Rest::Whole);
        let current = self.current(&mut locked, &subject);
        if current.is_some_and(|(_, _, seen)| seen.head.version >= version)
            || space.flushed() >= version
        {
            return Ok(());
        }
        match (*record, current) {
            (Record::Put { stored, codec, flags, expires_ms, .. }, _) => {
                if stored.len() > VALUE_MAX {
                    return Err(UpdateError::Value(stored.len()));
                }
                let traced = space.traced();
                let put = Put { stored, codec, flags, expires_ms, traced };
                self.put_logged(&mut locked, &subject, current, (&put, None), || Ok(version))?;
            }
            (Record::Touch { expires_ms, .. }, Some((place, slot, seen))) => {
                self.set_expiry(&mut locked, place, slot, &seen, expires_ms);
            }
            (Record::Delete { .. }, Some((place, slot, _))) => {
                self.remove(&mut locked, place, &slot);
            }
            _ => {}
        }
        Ok(())
    }

    fn allocate(&self, id: TablespaceId, space: &Space, len: u64) -> Result<u64, UpdateError> {
        let Some(block) = self.blocks.alloc(&self.usage, id, len) else {
            let needed = self.blocks.size_for(len);
            return Err(UpdateError::Memory { needed, limit: self.usage.limit() });
        };
        if space.take(block.size) {
            return Ok(block.at);
        }
        // Counted as taken, so that it can be freed like any other.
        space.overdraw(block.size);
        self.free(block.at);
        Err(UpdateError::Quota { needed: block.size, quota: space.quota() })
    }

    /// Takes memory for the index to grow by a bucket.
    fn take_bucket(&self, subject: &Subject<'_>) -> bool {
        subject.spare.is_some_and(Spare::take) || self.usage.take(BUCKET)
    }

    /// Why there is no room in the index.
    fn crowded(&self) -> UpdateError {
        let (used, limit) = (self.usage.used(), self.usage.limit());
        if used + BUCKET > limit {
            UpdateError::Memory { needed: BUCKET, limit }
        } else {
            UpdateError::Crowded
        }
    }

    /// Removes an item, which is not logged here.
    pub(crate) fn remove(&self, locked: &mut Locked<'_, M>, place: SlotPlace, slot: &Slot) {
        let at = self.item_at(slot);
        locked.remove(place, || {
            if let Some(at) = at {
                let live = Live(self.table.memory.load(at));
                self.table.memory.store(at, live.dead().0);
            }
        });
        if let Some(space) = self.spaces.place(slot.tablespace) {
            space.forget_item();
            space.note_expiry(slot.expiry, 0);
        }
        match at {
            Some(at) => self.retire(locked, at),
            None => self.count_damage(),
        }
    }
}
