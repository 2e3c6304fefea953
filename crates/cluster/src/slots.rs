//! A group's slots, where its nodes keep them: in its log. (A key's slot is in
//! [`remora_store::front::slots`]; a slot's group is in [`map`](crate::map).)
//!
//! What a group is for each slot, and which keys are on their way to another one, are two items in
//! a tablespace of its own. So they are replicated as all items are, and the node that becomes the
//! primary has them before it serves ([`load`]).
//!
//! The shard's lock is taken before all others: by commands to look, by what changes the group's
//! part to write. So all that the old state has let in are done before there is a new one.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLockWriteGuard};

use remora_store::front::keyspace::Transfer;
use remora_store::front::slots::{Holdings, Part, Range, Runs, Shard};
use remora_store::log::Position;
use remora_store::memory::Memory;
use remora_store::scan::Cursor;
use remora_store::store::{Change, Expiry, Store, Value};
use remora_store::tablespace::{TablespaceId, TablespaceOptions};
use remora_store::way::clock::now_ms;

use crate::group::Group;
use crate::journal::GroupLog;
use crate::map::{Atlas, SlotMap};
use crate::migration::{Item, first_holdings, is_in, transferred};

/// The tablespace of what is said here.
const SPACE: &str = "cluster";
/// Its items.
const HOLDINGS: &[u8] = b"holdings";
const TRANSIT: &[u8] = b"transit";
/// The tablespace whose keys have slots: the one database that Redis' clients have in a cluster.
const DATABASE: &str = "db0";
/// Items of a step of a walk.
const STEP: usize = 512;
/// The time of a walk on which nothing has expired.
const NOTHING_EXPIRES: u64 = 0;
/// The keys of all that decides which group answers.
pub(crate) const OF_SLOTS: [&[u8]; 2] = [HOLDINGS, TRANSIT];

/// A node's part in the slots of its group.
pub struct Slots<M: Memory> {
    pub(crate) group: Arc<Group>,
    pub(crate) store: Arc<Store<M, GroupLog>>,
    /// The group's name.
    pub(crate) name: String,
    /// The cluster, and in which epoch this node served when it looked, if it did.
    atlas: Mutex<(Arc<Atlas>, Option<u32>)>,
    pub(crate) is_stopping: AtomicBool,
    /// Keys that were handed over to other groups.
    pub(crate) moved: AtomicU64,
    /// Why no move goes on, if one does not.
    pub(crate) trouble: Mutex<Option<String>>,
}

/// What the log says of the group's slots.
///
/// # Errors
/// It says what cannot be understood.
pub(crate) fn load<M: Memory>(store: &Store<M, GroupLog>) -> Result<Shard, String> {
    let Some(space) = store.tablespace(SPACE) else { return Ok(Shard::default()) };
    let item = |key: &[u8]| {
        let mut value = Vec::new();
        store.get(space, key, now_ms(), &mut value).map(|_| value)
    };
    let unreadable = |_| "the group’s slots in its log are of another version".to_owned();
    let read = |bytes: Vec<u8>| postcard::from_bytes::<Holdings>(&bytes).map_err(unreadable);
    let holdings = item(HOLDINGS).map(read).transpose()?;
    let read = |bytes: Vec<u8>| postcard::from_bytes(&bytes).map_err(unreadable);
    let transit = item(TRANSIT).map(read).transpose()?.unwrap_or_default();
    Ok(Shard { holdings, transit, ..Shard::default() })
}

impl<M: Memory> std::fmt::Debug for Slots<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("group", &self.name).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static> Slots<M> {
    /// The part of a node in the slots of its group, which has this name in its cluster.
    pub fn new(group: Arc<Group>, store: Arc<Store<M, GroupLog>>, name: &str) -> Arc<Slots<M>> {
        Arc::new(Slots {
            group,
            store,
            name: name.to_owned(),
            atlas: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            trouble: Mutex::default(),
        })
    }

    /// The cluster, as this node has last heard of it.
    #[must_use]
    pub fn atlas(&self) -> Arc<Atlas> {
        self.atlas.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// The cluster as it was seen at a moment since which this node has served, in this epoch if in
    /// any.
    pub(crate) fn set_atlas(&self, atlas: Arc<Atlas>, epoch: Option<u32>) {
        *self.atlas.lock().unwrap_or_else(PoisonError::into_inner) = (atlas, epoch);
    }

    /// The cluster, as this primary has seen it since it began to serve: no move has begun of which
    /// the log tells, and not the map.
    fn atlas_of_epoch(&self) -> Result<Arc<Atlas>, String> {
        self.group.check().map_err(|reason| reason.to_string())?;
        let epoch = self.group.serves_in();
        let (atlas, seen_in) = self.atlas.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match epoch.is_some() && seen_in == epoch {
            true => Ok(atlas),
            false => Err("this primary has not seen the cluster’s map yet: try again".to_owned()),
        }
    }

    /// The group's slots as they are.
    pub(crate) fn shard(&self) -> Shard {
        self.group.shard.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Shard> {
        self.group.shard.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard, to be changed by what was begun in this epoch. (No later one begins meanwhile.)
    fn write_in(&self, epoch: u32) -> Result<RwLockWriteGuard<'_, Shard>, String> {
        let shard = self.write();
        match self.group.serves_in() == Some(epoch) {
            true => Ok(shard),
            false => Err("another node became the primary meanwhile".to_owned()),
        }
    }

    /// The tablespace of the group's slots, made if it is not there.
    fn space(&self) -> Result<TablespaceId, String> {
        if let Some(space) = self.store.tablespace(SPACE) {
            return Ok(space);
        }
        let made = self.store.create_tablespace(&TablespaceOptions::new(SPACE));
        made.map_err(|error| error.to_string())
    }

    /// Logs an item of the group's slots.
    fn put<T: serde::Serialize>(&self, key: &[u8], what: &T) -> Result<(), String> {
        let value = postcard::to_allocvec(what).expect("a vector has room for any value");
        let value = Value::Given(&value);
        let put = Change::Put { value, flags: 0, expiry: Expiry::Never };
        let space = self.space()?;
        // A group whose memory is full must be able to give slots away.
        let done =
            self.store.beyond_limit(|| self.store.update(space, key, now_ms(), &mut |_, _| put));
        done.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Waits until a majority has all that is logged.
    pub(crate) fn settle(&self) -> Result<(), String> {
        let last = self.last();
        self.group.wait(last).map_err(|doubt| doubt.to_string())
    }

    fn last(&self) -> Position {
        self.group.lock().replica.last().position
    }

    /// The map gives these slots to other groups, as this node has just heard.
    pub(crate) fn set_foreign(&self, slots: Runs<()>) {
        if self.shard().foreign != slots {
            self.write().foreign = slots;
        }
    }

    /// A new group's slots are those that the map says. To be called by the primary.
    pub(crate) fn begin(&self, map: &SlotMap) -> Result<(), String> {
        let mut shard = self.write();
        if shard.holdings.is_none() {
            let holdings = first_holdings(map, &self.name);
            self.put(HOLDINGS, &holdings)?;
            shard.holdings = Some(holdings);
        }
        Ok(())
    }

    /// Makes the group something else for these slots, if this node serves in this epoch.
    pub(crate) fn become_for(
        &self,
        epoch: u32,
        ranges: &[Range],
        part: Option<&Part>,
    ) -> Result<(), String> {
        let mut shard = self.write_in(epoch)?;
        let mut next = shard.holdings.clone().ok_or("the group has no slots yet")?;
        ranges.iter().for_each(|range| next.set(*range, part));
        if shard.holdings.as_ref() != Some(&next) {
            self.put(HOLDINGS, &next)?;
            shard.holdings = Some(next);
        }
        Ok(())
    }

    /// Sees to it that nobody changes these keys before they are released, whichever node is the
    /// primary.
    pub(crate) fn freeze(&self, epoch: u32, keys: &[Vec<u8>]) -> Result<(), String> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let mut shard = self.write_in(epoch)?;
        self.put(TRANSIT, &keys)?;
        shard.transit = keys;
        Ok(())
    }

    /// Another group has these keys, the frozen ones: they go from here.
    pub(crate) fn release(
        &self,
        epoch: u32,
        space: TablespaceId,
        keys: &[Vec<u8>],
    ) -> Result<(), String> {
        let mut shard = self.write_in(epoch)?;
        for key in keys {
            let gone = self.store.update(space, key, now_ms(), &mut |_, _| Change::Delete);
            gone.map_err(|error| error.to_string())?;
        }
        let none: &[Vec<u8>] = &[];
        self.put(TRANSIT, &none)?;
        shard.transit.clear();
        self.moved.fetch_add(keys.len() as u64, Relaxed);
        Ok(())
    }

    /// Up to where in the log keys have gone to other groups; 0 if none ever has.
    pub(crate) fn last_handed(&self) -> u64 {
        let Some(space) = self.store.tablespace(SPACE) else { return 0 };
        let located = self.store.locate(&self.store.pin(), space, TRANSIT, now_ms());
        located.map_or(0, |transit| transit.found.version)
    }

    /// The tablespace whose keys have slots, once it is there.
    pub(crate) fn database(&self) -> Option<TablespaceId> {
        self.store.tablespace(DATABASE)
    }

    /// Some keys of these slots from a place on, each with its bytes as stored, and where to go on.
    pub(crate) fn keys(
        &self,
        ranges: &[Range],
        from: Cursor,
        now: u64,
    ) -> (Vec<(Vec<u8>, usize)>, Cursor) {
        let Some(space) = self.database() else { return (Vec::new(), Cursor::END) };
        let mut keys = Vec::new();
        let next = self.store.scan(space, from, now, STEP, &mut |item| {
            if is_in(ranges, item.key) {
                keys.push((item.key.to_vec(), item.stored.len()));
            }
            ControlFlow::Continue(())
        });
        (keys, next)
    }

    /// Deletes all keys of these slots. What cannot be logged now stays, and the rest is gone: they
    /// are to be discarded again. The caller holds the shard, so that none comes meanwhile.
    fn discard(&self, ranges: &[Range]) -> Result<(), String> {
        let Some(space) = self.database() else { return Ok(()) };
        let (mut cursor, mut count) = (Cursor::START, 0);
        loop {
            let (keys, next) = self.keys(ranges, cursor, NOTHING_EXPIRES);
            for (key, _) in &keys {
                let gone = self.store.delete(space, key, now_ms());
                gone.map_err(|error| error.to_string())?;
            }
            count += keys.len();
            cursor = next;
            if cursor == Cursor::END {
                break;
            }
        }
        if count > 0 {
            tracing::warn!("{count} keys are gone that had come from a group that is no more");
        }
        Ok(())
    }

    /// The key with its value, if it is there.
    pub(crate) fn item(&self, space: TablespaceId, key: &[u8]) -> Option<Item> {
        let mut item = Item { key: key.to_vec(), ..Item::default() };
        let found = self.store.get(space, key, now_ms(), &mut item.value)?;
        (item.flags, item.expires_ms) = (found.flags, found.expires_ms);
        Some(item)
    }

    /// What another group's primary asks for: see
    /// [`Keeper::transfer`](remora_store::front::keyspace::Keeper::transfer).
    pub(crate) fn transfer(&self, asked: &Transfer<'_>) -> Result<u64, String> {
        let atlas = self.atlas_of_epoch()?;
        let planned = atlas.to_come(asked, &self.name)?;
        let mut shard = self.write();
        let held = shard.holdings.as_ref().ok_or("the group has no slots yet: try again")?;
        let (next, stale) = transferred(held, asked, &planned)?;
        if !stale.is_empty() {
            // In the log, their end comes before the beginning of those that come anew.
            self.discard(&stale)?;
        }
        if shard.holdings.as_ref() != Some(&next) {
            self.put(HOLDINGS, &next)?;
            shard.holdings = Some(next);
        }
        Ok(self.last().number())
    }
}
