//! A store, bound to what the fronts use of it.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::front::keyspace::{
    ChangeRefused, Decide, Edit, Found, Keyspace, LetGo, Pair, Row, Seen, Visit,
};
use crate::item::{CHECKSUM, EXTENSION, HEAD, Item, KEY_MAX, VALUE_MAX};
use crate::journal::{Journal, JournalError};
use crate::memory::Memory;
use crate::scan::Cursor;
use crate::select::plan::Plan;
use crate::select::rows::Span;
use crate::select::selection::Selection;
use crate::select::sieve::{Sieve, Stored};
use crate::slab::ClassInfo;
use crate::store::{self, Changed, Short, Store, UpdateError, Value};
use crate::tablespace::{Eviction, TablespaceError, TablespaceId, TablespaceOptions};

/// Buffers of values up to this size are kept for the next change, in bytes.
const KEPT_BYTES: usize = 64 * 1024;

/// Bytes of values, as clients see them, after which a step of a selection ends.
const SELECTED_FROM: usize = 16 << 20;

/// Calls of the store's for one step of a walk. Each looks at some thousand buckets, which may have
/// no key of the tablespace's; others wait meanwhile.
const CALLS: usize = 16;

thread_local! {
    /// Where a change looks at the value before it.
    static BEFORE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A store that is served.
pub struct Served<M, J> {
    store: Arc<Store<M, J>>,
    limit: u64,
    options: TablespaceOptions,
}

impl<M, J> fmt::Debug for Served<M, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<M: Memory, J: Journal> Served<M, J> {
    /// Serves a store that may take `limit` bytes. Tablespaces that clients make by using them get
    /// these options, but for the name.
    pub fn new(store: Arc<Store<M, J>>, limit: u64, options: TablespaceOptions) -> Served<M, J> {
        Served { store, limit, options }
    }

    /// See [`Keyspace::scan`].
    fn walk(
        &self,
        ts: TablespaceId,
        cursor: u64,
        budget: usize,
        now: u64,
        visit: &mut dyn FnMut(&Item<'_>) -> bool,
    ) -> u64 {
        let (mut cursor, mut left, mut goes_on) = (Cursor(cursor), budget, true);
        // A call of the store's stays within one part of the index, which may have few keys.
        for _ in 0..CALLS {
            cursor = self.store.scan(ts, cursor, now, left, &mut |item| {
                goes_on = visit(item);
                left = left.saturating_sub(1);
                if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            if cursor == Cursor::END || left == 0 || !goes_on {
                break;
            }
        }
        cursor.0
    }
}

fn found(found: &store::Found) -> Found {
    let store::Found { version, flags, expires_ms, trace, .. } = *found;
    Found { version, flags, expires_ms, trace }
}

fn change(change: Edit<'_>) -> store::Change<'_> {
    match change {
        Edit::Keep => store::Change::Keep,
        Edit::Put { value, flags, expiry } => {
            store::Change::Put { value: Value::Given(value), flags, expiry }
        }
        Edit::Make { flags, expiry } => store::Change::Put { value: Value::Scratch, flags, expiry },
        Edit::Touch { expires_ms } => store::Change::Touch { expires_ms },
        Edit::Delete => store::Change::Delete,
    }
}

impl From<JournalError> for ChangeRefused {
    fn from(error: JournalError) -> ChangeRefused {
        match error {
            JournalError::Failed(why) => ChangeRefused::Log(why),
            JournalError::TooLong(why) => ChangeRefused::Other(why),
        }
    }
}

impl From<UpdateError> for ChangeRefused {
    fn from(error: UpdateError) -> ChangeRefused {
        match error {
            UpdateError::Key(_) => ChangeRefused::Key { limit: KEY_MAX },
            UpdateError::Value(_) => ChangeRefused::Value { limit: VALUE_MAX },
            UpdateError::Memory { .. } | UpdateError::Quota { .. } | UpdateError::Crowded => {
                ChangeRefused::Memory(error.to_string())
            }
            UpdateError::Journal(why) => why.into(),
            UpdateError::Tablespace(_) => ChangeRefused::Other(error.to_string()),
        }
    }
}

impl<M: Memory, J: Journal> Keyspace for Served<M, J> {
    fn get(&self, ts: TablespaceId, key: &[u8], now: u64, value: &mut Vec<u8>) -> Option<Found> {
        self.store.get(ts, key, now, value).as_ref().map(found)
    }

    fn get_where(
        &self,
        ts: TablespaceId,
        key: &[u8],
        now: u64,
        plan: &Plan,
        value: &mut Vec<u8>,
    ) -> Option<bool> {
        let start = value.len();
        let read = self.store.get_where(ts, key, now, plan, value)?;
        let selected = matches!(read, Short::Read(_)) && plan.is_match(&value[start..]);
        if !selected {
            value.truncate(start);
        }
        Some(selected)
    }

    fn get_unnoticed(
        &self,
        ts: TablespaceId,
        key: &[u8],
        now: u64,
        value: &mut Vec<u8>,
    ) -> Option<Found> {
        self.store.get_unnoticed(ts, key, now, value).as_ref().map(found)
    }

    fn note_read(&self, ts: TablespaceId, key: &[u8], now: u64) {
        let pin = self.store.pin();
        self.store.locate(&pin, ts, key, now);
    }

    fn trace(&self, name: &str) {
        self.store.trace(name);
    }

    fn look(&self, ts: TablespaceId, key: &[u8], now: u64) -> Option<Found> {
        let mut seen = None;
        let kept = self.store.update(ts, key, now, &mut |old, _| {
            seen = old.map(|old| found(&old.found));
            store::Change::Keep
        });
        // A key that cannot be is not there.
        kept.ok().and(seen)
    }

    fn update(
        &self,
        ts: TablespaceId,
        key: &[u8],
        now: u64,
        decide: Decide<'_, '_>,
    ) -> Result<Option<u64>, ChangeRefused> {
        let updated = self.store.update(ts, key, now, &mut |old, scratch| {
            let Some(old) = old else { return change(decide(None, scratch)) };
            let fetched = OnceCell::new();
            let fetch = || {
                let mut buffer = BEFORE.take();
                buffer.clear();
                // A value that was damaged is shown as empty; the store counts it.
                old.append_value(&mut buffer);
                buffer
            };
            let seen = Seen::new(found(&old.found), &fetched, &fetch);
            let decided = change(decide(Some(seen), scratch));
            if let Some(buffer) = fetched.into_inner()
                && buffer.capacity() <= KEPT_BYTES
            {
                BEFORE.set(buffer);
            }
            decided
        });
        let updated = updated?;
        Ok((updated.changed != Changed::Kept).then_some(updated.version))
    }

    fn put_all(
        &self,
        ts: TablespaceId,
        pairs: &[Pair<'_>],
        now: u64,
    ) -> Result<u64, ChangeRefused> {
        Ok(self.store.put_all(ts, pairs, now)?)
    }

    fn scan(
        &self,
        ts: TablespaceId,
        cursor: u64,
        budget: usize,
        now: u64,
        visit: Visit<'_>,
    ) -> u64 {
        self.walk(ts, cursor, budget, now, &mut |item| {
            let (version, flags, expires_ms) = (item.version, item.flags, item.expires_ms);
            visit(item.key, &Found { version, flags, expires_ms, trace: None })
        })
    }

    fn select(
        &self,
        ts: TablespaceId,
        cursor: u64,
        budget: usize,
        now: u64,
        selection: &Selection,
        visit: Row<'_>,
    ) -> Result<u64, ChangeRefused> {
        let plan = Plan::new(selection).map_err(|error| ChangeRefused::Other(error.to_string()))?;
        let (mut sieve, mut bytes) = (Sieve::new(selection), 0);
        Ok(self.walk(ts, cursor, budget, now, &mut |item| {
            let mut goes_on = true;
            let (spans, codecs) =
                ([Span { start: 0, len: item.stored.len() as u32 }], [item.codec]);
            let value_max = VALUE_MAX;
            let value = Stored { bytes: item.stored, spans: &spans, codecs: &codecs, value_max };
            // Only a limit ends it, and the selection has none.
            let _: ControlFlow<()> =
                sieve.values(&plan, &value, |_, row| goes_on = visit(item.key, row));
            // One that says that it is too long is not decoded.
            let len = item.codec.decoded_len(item.stored, VALUE_MAX);
            bytes += len.unwrap_or(item.stored.len());
            goes_on && bytes < SELECTED_FROM
        }))
    }

    fn somewhere(&self, seed: u64) -> u64 {
        let partitions = self.store.table().geometry.partitions;
        (((seed >> 16) % partitions) << 48) | (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16)
    }

    fn count(&self, ts: TablespaceId) -> u64 {
        self.store.count(ts)
    }

    fn expiring(&self, ts: TablespaceId) -> u64 {
        self.store.expiring(ts)
    }

    fn let_go(&self) -> LetGo {
        LetGo { evicted: self.store.evicted(), expired: self.store.expired() }
    }

    fn classes(&self, ts: TablespaceId) -> Vec<ClassInfo> {
        self.store.classes(ts)
    }

    fn flush(&self, ts: TablespaceId, _now: u64) -> Result<u64, ChangeRefused> {
        Ok(self.store.flush(ts)?)
    }

    fn evicts(&self) -> bool {
        self.options.eviction == Eviction::Clock
    }

    fn known(&self, name: &str) -> Option<TablespaceId> {
        self.store.tablespace(name)
    }

    fn tablespace(&self, name: &str) -> Result<TablespaceId, ChangeRefused> {
        if let Some(id) = self.store.tablespace(name) {
            return Ok(id);
        }
        let options = TablespaceOptions { name: name.to_owned(), ..self.options.clone() };
        match self.store.create_tablespace(&options) {
            Ok(id) => Ok(id),
            // Another thread was faster.
            Err(TablespaceError::Exists(_)) => {
                let there = self.store.tablespace(name);
                there.ok_or_else(|| {
                    ChangeRefused::Other(format!("the tablespace {name} comes and goes"))
                })
            }
            Err(TablespaceError::Journal(why)) => Err(why.into()),
            Err(other) => Err(ChangeRefused::Other(other.to_string())),
        }
    }

    fn bytes_of(&self, ts: TablespaceId, key: &[u8], now: u64) -> Option<u64> {
        let mut bytes = None;
        let kept = self.store.update(ts, key, now, &mut |old, _| {
            let around = HEAD + EXTENSION + CHECKSUM;
            bytes = old.map(|old| (around + key.len() + old.stored_len()) as u64);
            store::Change::Keep
        });
        kept.ok().and(bytes)
    }

    fn bytes(&self) -> (u64, u64) {
        let items: u64 = self.store.tablespaces().iter().map(|space| space.bytes).sum();
        (items + self.store.index_bytes(), self.limit.min(self.store.limit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::journal::Unlogged;
    use crate::memory::Heap;
    use crate::select::Predicate;
    use crate::select::schema::Schema;
    use crate::select::selection::Output;
    use crate::store::Options;

    /// A value whose compressed part is damaged cannot be decompressed, and so does not seem to be
    /// there; what is plain of it says that it is not selected before that is tried.
    #[test]
    fn a_value_is_decompressed_only_where_what_is_plain_of_it_passes() {
        let limit = 1 << 20;
        let made = Options::new(limit, 5);
        let heap = Heap::new(made.memory_len());
        let store = Arc::new(Store::new(heap, Unlogged::default(), made).unwrap());
        let codec = Codec::Lz4 { head: 4 };
        let options = TablespaceOptions { codec, ..TablespaceOptions::default() };
        let served = Served::new(store.clone(), limit, options);
        let space = served.tablespace("rows").unwrap();
        let row = [&7u32.to_le_bytes()[..], &[b'x'; 100]].concat();
        store.put(space, b"k", &row, 0, None, 1).unwrap();
        let plan = |predicate| {
            let schema = Schema::parse("id u32").unwrap();
            let condition = Predicate::parse(predicate).unwrap().bind(&schema, &[]).unwrap();
            let (row_least, output, limit) = (schema.fixed(), Output::Whole, u64::MAX);
            Plan::new(&Selection { row_least, condition, output, limit }).unwrap()
        };
        let get = |predicate| {
            let mut value = Vec::new();
            let found = served.get_where(space, b"k", 1, &plan(predicate), &mut value);
            assert!(value == if found == Some(true) { &row[..] } else { &[] });
            found
        };
        assert_eq!((get("id = 7"), get("id = 8")), (Some(true), Some(false)));
        let pin = store.pin();
        let at = store.locate(&pin, space, b"k", 1).unwrap().value_at;
        drop(pin);
        store.memory().write(at + 4, &[0xFF; 4]);
        assert_eq!((get("id = 7"), get("id = 8")), (None, Some(false)));
    }

    #[test]
    fn a_selection_steps_by_what_it_decodes() {
        let limit = 16 << 20;
        let made = Options::new(limit, 5);
        let heap = Heap::new(made.memory_len());
        let store = Arc::new(Store::new(heap, Unlogged::default(), made).unwrap());
        let codec = Codec::Lz4 { head: 0 };
        let options = TablespaceOptions { codec, ..TablespaceOptions::default() };
        let served = Served::new(store.clone(), limit, options);
        let space = served.tablespace("rows").unwrap();
        for key in 0..6 {
            store.put(space, &[key], &vec![0; SELECTED_FROM / 2], 0, None, 1).unwrap();
        }
        let schema = Schema::parse("id u32").unwrap();
        let condition = Predicate::parse("id = 1").unwrap().bind(&schema, &[]).unwrap();
        let (row_least, output) = (schema.fixed(), Output::Whole);
        let selection = Selection { row_least, condition, output, limit: u64::MAX };
        let (mut cursor, mut steps) = (0, 0);
        loop {
            let step = served.select(space, cursor, 1000, 1, &selection, &mut |_, _| true);
            (cursor, steps) = (step.unwrap(), steps + 1);
            if cursor == 0 {
                break;
            }
        }
        assert!(steps >= 3, "two of six values fill a step, and there were {steps}");
    }
}
