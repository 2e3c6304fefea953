//! `Store`: what a store holds, how it is opened, and its sizes; its operations are in files below.
//!
//! - `read`: looks at an item in memory, and gets.
//! - `change`: the one primitive of change; `old`: what it shows of an item.
//! - `expiry`: when a value that is put expires.
//! - `reclaim`: frees blocks that nobody sees any more, and empties sparse pages.
//! - `scratch`: buffers that a thread uses again.
//! - `spaces`: tablespaces, flush, and records of a log played again.

mod change;
mod expiry;
mod old;
mod read;
mod reclaim;
mod scratch;
mod spaces;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use thiserror::Error;

pub use self::change::{Change, Changed, Pair, UpdateError, Updated, Value};
pub use self::expiry::Expiry;
pub use self::old::Old;
pub(crate) use self::read::{LONG, Short, is_long};
pub use self::reclaim::Located;
use self::reclaim::Sweeper;
pub use self::spaces::ReplayError;
use crate::codec::Codec;
use crate::item::{TRACE, Trace};
use crate::journal::{Journal, Unlogged};
use crate::layout::{COUNTS_AT, Geometry, MAGIC};
use crate::memory::Memory;
use crate::slab::{Blocks, ClassInfo, Epochs, Usage};
use crate::table::{Hasher, Table};
use crate::tablespace::{TablespaceId, TablespaceInfo, Tablespaces};

/// How a store is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most bytes that index and items may take.
    pub limit: u64,
    /// The seed of the keys' hashes: random, and secret from clients that choose keys.
    pub seed: u64,
    /// How long a block stays as it is after its item has gone, in ms, for readers by chain and
    /// one-sided READs, while there are any ([`Memory::has_readers`]) and memory is not short.
    pub quarantine_ms: u64,
    /// See [`Store::trace`]: to say it here traces what a log brings back, too.
    pub traced: Option<&'static str>,
}

impl Options {
    /// Options for that limit, without one-sided readers.
    pub fn new(limit: u64, seed: u64) -> Options {
        Options { limit, seed, quarantine_ms: 0, traced: None }
    }

    /// Bytes of memory that such a store lives in. They are address space: the store writes no more
    /// of them at a time than the limit.
    pub fn memory_len(&self) -> u64 {
        Geometry::for_limit(self.limit).memory_len()
    }
}

/// Why a store cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// There is less memory than the limit needs.
    #[error("the store needs {needed} bytes of address space, and there are {len}")]
    Memory {
        /// See [`Options::memory_len`].
        needed: u64,
        /// The memory's bytes.
        len: u64,
    },
}

/// What is known of an item besides its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The log position of the change that wrote it: it grows with every change of the key's value.
    pub version: u64,
    /// What the client wished to have kept beside the value.
    pub flags: u32,
    /// When the item expires, in ms of Unix time.
    pub expires_ms: Option<u64>,
    /// How the value is stored.
    pub codec: Codec,
    /// Whose item it is.
    pub tablespace: TablespaceId,
    /// When it was used last, before this, if it is traced ([`Store::trace`]).
    pub trace: Option<Trace>,
}

/// A key-value store in foreign memory.
///
/// All methods can be called by several threads at once, and take their time from the caller: `now`
/// is in ms of Unix time. Operations on one key are linearizable.
pub struct Store<M, J = Unlogged> {
    table: Table<M>,
    blocks: Blocks,
    spaces: Tablespaces,
    hasher: Hasher,
    journal: J,
    options: Options,
    usage: Usage,
    epochs: Epochs,
    /// The latest time that a caller has told, in ms.
    time: AtomicU64,
    sweeper: Mutex<Sweeper>,
    /// The partition whose items are evicted next.
    hand: AtomicU64,
    damaged: AtomicU64,
    evicted: AtomicU64,
    /// Bytes of evicted items whose blocks are not free yet.
    evicted_resting: AtomicU64,
    expired: AtomicU64,
}

impl<M: Memory, J: Journal> Store<M, J> {
    /// An empty store. What the memory holds is overwritten.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn new(memory: M, journal: J, options: Options) -> Result<Store<M, J>, OpenError> {
        let geometry = Geometry::for_limit(options.limit);
        let (needed, len) = (geometry.memory_len(), memory.len());
        if len < needed {
            return Err(OpenError::Memory { needed, len });
        }
        let Geometry { partitions, area_at, limit, .. } = geometry;
        let head = [MAGIC, options.seed, partitions, geometry.index_at(), area_at, limit];
        for (word, at) in head.into_iter().zip((0..COUNTS_AT).step_by(8)) {
            memory.store(at, word);
        }
        let spaces = Tablespaces::new();
        if let Some(name) = options.traced {
            spaces.trace(name);
        }
        let table = Table::new(memory, geometry);
        let usage = Usage::new(geometry.limit);
        usage.take(table.index_bytes());
        Ok(Store {
            table,
            blocks: Blocks::new(geometry),
            spaces,
            hasher: Hasher::new(options.seed),
            journal,
            options,
            usage,
            epochs: Epochs::default(),
            time: AtomicU64::new(0),
            sweeper: Mutex::default(),
            hand: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            evicted_resting: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        })
    }

    /// The log.
    pub fn journal(&self) -> &J {
        &self.journal
    }

    /// The memory that the store lives in.
    pub fn memory(&self) -> &M {
        &self.table.memory
    }

    /// What a reader without a lock has to know of the index: the seed, the geometry, and for each
    /// partition how many buckets it has now.
    pub fn index(&self) -> (u64, Geometry, impl Iterator<Item = u32> + '_) {
        (self.options.seed, self.table.geometry, self.table.counts())
    }

    /// The tablespaces, as they are now.
    pub fn tablespaces(&self) -> Vec<TablespaceInfo> {
        self.spaces.infos()
    }

    /// The number of the tablespace with that name.
    pub fn tablespace(&self, name: &str) -> Option<TablespaceId> {
        self.spaces.named(name)
    }

    /// Has the items traced that are written from now on into the tablespace of this name, which
    /// may come later: each takes a word more of memory, which says when it was used last. A store
    /// traces one tablespace, the first that is named.
    pub fn trace(&self, name: &str) {
        self.spaces.trace(name);
    }

    /// The items of a tablespace, expired ones included until they are swept; 0 if there is no such
    /// tablespace.
    pub fn count(&self, tablespace: TablespaceId) -> u64 {
        self.spaces.serving(tablespace).map_or(0, |space| space.items())
    }

    /// Those of [`Store::count`] that expire.
    pub fn expiring(&self, tablespace: TablespaceId) -> u64 {
        self.spaces.serving(tablespace).map_or(0, |space| space.expiring())
    }

    pub(crate) fn sweeper(&self) -> &Mutex<Sweeper> {
        &self.sweeper
    }

    /// The partition whose items are evicted next; the one after it comes then.
    pub(crate) fn next_hand(&self) -> u64 {
        self.hand.fetch_add(1, Relaxed) % self.table.geometry.partitions
    }

    /// Whether a tablespace's items may be evicted.
    pub(crate) fn evicts(&self, tablespace: TablespaceId) -> bool {
        self.spaces.place(tablespace).is_some_and(|space| space.evicts() && space.items() > 0)
    }

    /// Whether there is something to evict.
    pub(crate) fn may_evict(&self, only: Option<TablespaceId>) -> bool {
        match only {
            Some(only) => self.evicts(only),
            None => self.spaces.any_evicts(),
        }
    }

    /// Bytes of a slot's block.
    pub(crate) fn block_size(&self, slot: &crate::table::Slot) -> u64 {
        let traced = self.spaces.place(slot.tablespace).is_some_and(|space| space.traced());
        self.blocks.size_for(u64::from(slot.len) + if traced { TRACE as u64 } else { 0 })
    }

    pub(crate) fn table(&self) -> &Table<M> {
        &self.table
    }

    /// Bytes that index and pages in use have together.
    pub fn used_bytes(&self) -> u64 {
        self.usage.used()
    }

    /// The most that [`Store::used_bytes`] can be.
    pub fn limit(&self) -> u64 {
        self.usage.limit()
    }

    /// Has changes take so many bytes at most from now on, and never more than [`Options::limit`].
    /// What is replayed does not count: others have it already.
    pub fn set_limit(&self, bytes: u64) {
        self.usage.set_limit(bytes);
    }

    /// A tablespace's blocks by size.
    pub fn classes(&self, tablespace: TablespaceId) -> Vec<ClassInfo> {
        self.blocks.infos(tablespace)
    }

    /// Bytes of the index.
    pub fn index_bytes(&self) -> u64 {
        self.table.index_bytes()
    }

    /// How often the store's memory held what the store did not write there: a client with access
    /// to it writes where it should not.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Relaxed)
    }

    /// How many items were let go since memory was short.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    pub(crate) fn count_evicted(&self) {
        self.evicted.fetch_add(1, Relaxed);
    }

    /// How many items a sweep has removed since their time had come.
    pub fn expired(&self) -> u64 {
        self.expired.load(Relaxed)
    }

    pub(crate) fn count_expired(&self, items: u64) {
        self.expired.fetch_add(items, Relaxed);
    }
}

#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod race_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trace_tests;
