//! Tablespaces: named parts of the store, each with its quota and policy.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use thiserror::Error;

use crate::codec::Codec;
use crate::journal::error::JournalError;

/// The most tablespaces at a time.
pub const TABLESPACES_MAX: usize = 1024;
/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// The number of a tablespace, by which items and slots name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TablespaceId(pub u16);

/// What happens when a tablespace reaches its quota, or the store its limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Eviction {
    /// Changes that need room are refused.
    #[default]
    Never,
    /// Items that have not been used for some time go (CLOCK).
    Clock,
}

/// What a tablespace is created with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TablespaceOptions {
    /// The name, of 1 to [`NAME_MAX`] bytes.
    pub name: String,
    /// The most bytes that its blocks may have.
    pub quota: Option<u64>,
    /// What happens at the quota and at the limit.
    pub eviction: Eviction,
    /// How long an item lives, in ms, if its writer does not say.
    pub default_expiry_ms: Option<u64>,
    /// How values are stored.
    pub codec: Codec,
}

impl TablespaceOptions {
    /// A tablespace of that name, without a quota, eviction, expiry or compression.
    pub fn new(name: &str) -> TablespaceOptions {
        TablespaceOptions { name: name.to_owned(), ..TablespaceOptions::default() }
    }
}

/// Why a tablespace cannot be created, or dropped.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TablespaceError {
    /// The name is taken.
    #[error("there is a tablespace {0:?} already: choose another name, or drop that one first")]
    Exists(String),
    /// The name is empty or too long.
    #[error("a tablespace's name has 1 to {NAME_MAX} bytes, not {0}")]
    Name(usize),
    /// There are as many as there can be.
    #[error("there are {TABLESPACES_MAX} tablespaces, the most there can be: drop one first")]
    Full,
    /// There is none with that number.
    #[error("there is no tablespace of number {}", .0.0)]
    Unknown(TablespaceId),
    /// The change could not be logged.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// A tablespace, as it is at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TablespaceInfo {
    /// Its number.
    pub id: TablespaceId,
    /// What it was created with.
    pub options: TablespaceOptions,
    /// Its items, expired ones included until they are swept.
    pub items: u64,
    /// The bytes of its items' blocks.
    pub bytes: u64,
}

/// The place of a tablespace, which others may use in turn.
///
/// What operations need of the options is in atomics, so that they take no lock. An operation that
/// changes something looks at `state` again under its key's lock: a tablespace is dropped by
/// changing `state` and then walking all keys under these locks, and its place is free after that.
#[derive(Debug, Default)]
pub(crate) struct Space {
    state: AtomicU8,
    evicts: AtomicBool,
    /// Whether its items are written with a word that says when they were used last.
    traced: AtomicBool,
    codec: AtomicU16,
    quota: AtomicU64,
    default_expiry_ms: AtomicU64,
    items: AtomicU64,
    /// Those of them that expire.
    expiring: AtomicU64,
    bytes: AtomicU64,
    flushed: AtomicU64,
}

const FREE: u8 = 0;
const SERVES: u8 = 1;
const DROPPED: u8 = 2;

impl Space {
    pub(crate) fn serves(&self) -> bool {
        self.state.load(Acquire) == SERVES
    }

    fn set(&self, options: &TablespaceOptions, traced: bool) {
        self.traced.store(traced, Relaxed);
        self.evicts.store(options.eviction == Eviction::Clock, Relaxed);
        self.codec.store(options.codec.to_u16(), Relaxed);
        self.quota.store(options.quota.unwrap_or(u64::MAX), Relaxed);
        self.default_expiry_ms.store(options.default_expiry_ms.unwrap_or(0), Relaxed);
        self.flushed.store(0, Relaxed);
        self.state.store(SERVES, Release);
    }

    pub(crate) fn evicts(&self) -> bool {
        self.evicts.load(Relaxed)
    }

    pub(crate) fn traced(&self) -> bool {
        self.traced.load(Relaxed)
    }

    pub(crate) fn codec(&self) -> Codec {
        Codec::from_u16(self.codec.load(Relaxed)).unwrap_or_default()
    }

    pub(crate) fn quota(&self) -> u64 {
        self.quota.load(Relaxed)
    }

    /// When an item expires whose writer does not say, in ms of Unix time.
    pub(crate) fn default_expiry(&self, now: u64) -> Option<u64> {
        let ms = self.default_expiry_ms.load(Relaxed);
        (ms > 0).then(|| now.saturating_add(ms))
    }

    /// Items up to this version are gone.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Acquire)
    }

    pub(crate) fn set_flushed(&self, version: u64) {
        self.flushed.fetch_max(version, AcqRel);
    }

    pub(crate) fn items(&self) -> u64 {
        self.items.load(Relaxed)
    }

    pub(crate) fn expiring(&self) -> u64 {
        self.expiring.load(Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Takes so many bytes of the quota, if as many are left.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let quota = self.quota();
        let more = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= quota);
        self.bytes.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Takes so many bytes, whether they are left or not.
    pub(crate) fn overdraw(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn give(&self, bytes: u64) {
        let _ = self.bytes.fetch_update(Relaxed, Relaxed, |held| held.checked_sub(bytes));
    }

    pub(crate) fn count_item(&self) {
        self.items.fetch_add(1, Relaxed);
    }

    pub(crate) fn forget_item(&self) {
        // A hostile client may have made two slots of one.
        let _ = self.items.fetch_update(Relaxed, Relaxed, |items| items.checked_sub(1));
    }

    /// An item expires at `is`, and did so at `was`, as slots have it: 0 is never, or no item.
    pub(crate) fn note_expiry(&self, was: u32, is: u32) {
        match (was, is) {
            (0, 1..) => _ = self.expiring.fetch_add(1, Relaxed),
            // As above: slots are where a hostile client writes.
            (1.., 0) => {
                let less = |items: u64| items.checked_sub(1);
                _ = self.expiring.fetch_update(Relaxed, Relaxed, less);
            }
            _ => {}
        }
    }
}

/// All tablespaces, by number.
#[derive(Debug)]
pub(crate) struct Tablespaces {
    spaces: Box<[Space]>,
    /// The options, and by their lock the right to create and drop.
    options: Mutex<Vec<Option<TablespaceOptions>>>,
    /// The number after the one that was given last, under the same lock. Those of tablespaces that
    /// were dropped come last: a client that has not heard of it is to find none, not another one.
    next: AtomicUsize,
    /// The tablespace whose items are traced.
    traced: OnceLock<String>,
}

impl Tablespaces {
    pub(crate) fn new() -> Tablespaces {
        let spaces = (0..TABLESPACES_MAX).map(|_| Space::default()).collect();
        let (options, next, traced) = Default::default();
        Tablespaces { spaces, options, next, traced }
    }

    /// Has the items traced that are written from now on into the tablespace of this name. The
    /// first name counts.
    pub(crate) fn trace(&self, name: &str) {
        let all = self.lock();
        let traced = self.traced.get_or_init(|| name.to_owned());
        for (options, space) in all.iter().zip(&self.spaces) {
            if options.as_ref().is_some_and(|options| options.name == *traced) {
                space.traced.store(true, Relaxed);
            }
        }
    }

    /// Whether there may be items that are traced.
    #[inline]
    pub(crate) fn any_traced(&self) -> bool {
        self.traced.get().is_some()
    }

    /// The tablespace, if there is one of that number.
    #[inline]
    pub(crate) fn serving(&self, id: TablespaceId) -> Option<&Space> {
        self.spaces.get(usize::from(id.0)).filter(|space| space.serves())
    }

    /// The place of a tablespace, which may be free or being dropped.
    pub(crate) fn place(&self, id: TablespaceId) -> Option<&Space> {
        self.spaces.get(usize::from(id.0))
    }

    /// Whether any tablespace has something to evict.
    pub(crate) fn any_evicts(&self) -> bool {
        self.evicting().next().is_some()
    }

    /// The tablespaces that have something to evict.
    pub(crate) fn evicting(&self) -> impl Iterator<Item = TablespaceId> + '_ {
        let evicts = |space: &Space| space.serves() && space.evicts() && space.items() > 0;
        let all = (0..).map(TablespaceId).zip(&self.spaces);
        all.filter(move |(_, space)| evicts(space)).map(|(id, _)| id)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<TablespaceOptions>>> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a tablespace, under `wanted` if that is given. `log` is told before it serves.
    pub(crate) fn create(
        &self,
        options: &TablespaceOptions,
        wanted: Option<TablespaceId>,
        log: impl FnOnce(TablespaceId) -> Result<(), JournalError>,
    ) -> Result<TablespaceId, TablespaceError> {
        if !(1..=NAME_MAX).contains(&options.name.len()) {
            return Err(TablespaceError::Name(options.name.len()));
        }
        let mut all = self.lock();
        if all.iter().flatten().any(|other| other.name == options.name) {
            return Err(TablespaceError::Exists(options.name.clone()));
        }
        let free = |index: &usize| self.spaces[*index].state.load(Acquire) == FREE;
        let index = match wanted {
            Some(id) => Some(usize::from(id.0)).filter(|&index| index < TABLESPACES_MAX),
            None => {
                let next = self.next.load(Relaxed);
                (next..next + TABLESPACES_MAX).map(|index| index % TABLESPACES_MAX).find(free)
            }
        };
        let index = index.filter(free).ok_or(TablespaceError::Full)?;
        let id = TablespaceId(index as u16);
        log(id)?;
        self.next.store(index + 1, Relaxed);
        let longer = all.len().max(index + 1);
        all.resize(longer, None);
        all[index] = Some(options.clone());
        let traced = self.traced.get().is_some_and(|name| *name == options.name);
        self.spaces[index].set(options, traced);
        Ok(id)
    }

    /// Ends a tablespace. `empty` removes its keys, and `log` is told before; what it answers is
    /// held until the tablespace serves no more.
    pub(crate) fn drop<G>(
        &self,
        id: TablespaceId,
        log: impl FnOnce() -> Result<G, JournalError>,
        empty: impl FnOnce(),
    ) -> Result<(), TablespaceError> {
        let space = {
            let mut all = self.lock();
            let space = self.serving(id).ok_or(TablespaceError::Unknown(id))?;
            let _held = log()?;
            space.state.store(DROPPED, Release);
            if let Some(options) = all.get_mut(usize::from(id.0)) {
                *options = None;
            }
            space
        };
        empty();
        space.state.store(FREE, Release);
        Ok(())
    }

    /// The number of the tablespace with that name.
    pub(crate) fn named(&self, name: &str) -> Option<TablespaceId> {
        let all = self.lock();
        let named = |options: &Option<TablespaceOptions>| {
            options.as_ref().is_some_and(|options| options.name == name)
        };
        all.iter().position(named).map(|index| TablespaceId(index as u16))
    }

    pub(crate) fn infos(&self) -> Vec<TablespaceInfo> {
        let all = self.lock();
        let present = all.iter().enumerate().filter_map(|(index, options)| {
            let space = &self.spaces[index];
            Some(TablespaceInfo {
                id: TablespaceId(index as u16),
                options: options.clone()?,
                items: space.items(),
                bytes: space.bytes(),
            })
        });
        present.collect()
    }
}
