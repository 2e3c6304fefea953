//! The index: a cuckoo hash table.
//!
//! It is divided into partitions by the keys' hashes. A partition has a lock of its own, and both
//! buckets of a key are in one partition: the thread that changes a key holds one lock, moves
//! other keys out of the way under it, and never waits for a second one. The locks are not in the
//! store's memory, where a hostile client could hold one for ever; what remote readers see there is
//! a sequence number a bucket.
//!
//! - [`hash`]: which partition and buckets a key has.
//! - `bucket`: a bucket's bytes.
//! - `room`: makes room for a slot: growth by one bucket at a time, displacement, the stash.
//!
//! A partition grows by linear hashing when [`LOAD_MAX`] of its slots are taken, one bucket with
//! the insertion that needs it. So the index always has that load, and no insertion does more than
//! a bounded amount of work.

mod bucket;
mod hash;
mod room;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::bucket::Slot;
pub(crate) use self::bucket::{Bucket, differs, is_changing};
pub use self::hash::{Hash, Hasher, level};
pub use self::room::{Crowded, LOAD_MAX};
use crate::layout::{BUCKET, BUCKETS_MIN, Geometry, SLOTS};
use crate::memory::Memory;

/// Buckets that are fetched before a walk over all comes to them.
const BUCKETS_AHEAD: u32 = 8;

/// The index of a store.
pub(crate) struct Table<M> {
    pub(crate) memory: M,
    pub(crate) geometry: Geometry,
    partitions: Box<[Partition]>,
    /// Buckets of all partitions.
    buckets: AtomicU64,
}

#[derive(Default)]
struct Partition {
    inner: Mutex<Inner>,
    /// How many buckets it has: changed under the lock, while the bucket that is split is changing.
    count: AtomicU32,
    /// How many slots are in the stash, for those who look without the lock.
    stashed: AtomicU32,
}

/// What the lock of a partition protects, besides its buckets.
#[derive(Default)]
pub(crate) struct Inner {
    /// Slots in use, those of the stash included.
    items: u32,
    /// Slots that found no bucket.
    stash: Vec<Slot>,
    /// For each bucket, which slots are empty: a search looks here before it looks at buckets.
    free: Vec<u8>,
    /// Where the hand of the clock is: the next bucket.
    pub(crate) hand: u32,
    /// How often a slot has moved to another place, or may have: a walk that has let the lock go in
    /// between may have passed it by.
    pub(crate) moves: u64,
    /// No slot expires before this second of Unix time: until then nobody need look for one.
    soonest: u32,
    /// Blocks that readers may still see.
    pub(crate) retired: VecDeque<crate::slab::Retired>,
}

/// Where a slot is: valid as long as the lock is held and no room is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotPlace {
    /// In a bucket of the partition.
    Bucket {
        /// The bucket.
        bucket: u32,
        /// The slot's index.
        slot: usize,
    },
    /// In the stash, by index.
    Stash(usize),
}

impl<M: Memory> Table<M> {
    /// An empty table in memory of at least [`Geometry::memory_len`] bytes.
    pub(crate) fn new(memory: M, geometry: Geometry) -> Table<M> {
        let partitions = (0..geometry.partitions).map(|_| Partition::default()).collect();
        let table = Table { memory, geometry, partitions, buckets: AtomicU64::new(0) };
        for partition in 0..geometry.partitions {
            for bucket in 0..BUCKETS_MIN {
                table.bucket(partition, bucket).clear(level(bucket, BUCKETS_MIN));
            }
            table.set_count(partition, BUCKETS_MIN);
            let mut locked = table.lock(partition);
            (0..BUCKETS_MIN).for_each(|bucket| locked.note_free(bucket));
        }
        table
    }

    fn set_count(&self, partition: u64, count: u32) {
        let own = &self.partitions[partition as usize].count;
        let before = own.swap(count, Release);
        self.buckets.fetch_add(u64::from(count - before), Relaxed);
        self.memory.store(self.geometry.count_at(partition), count.into());
    }

    #[inline]
    fn bucket(&self, partition: u64, bucket: u32) -> Bucket<'_, M> {
        Bucket { memory: &self.memory, at: self.geometry.bucket_at(partition, bucket) }
    }

    /// How many buckets each partition has.
    pub(crate) fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.partitions.iter().map(|partition| partition.count.load(Acquire))
    }

    /// Bytes of all buckets.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.buckets.load(Relaxed) * BUCKET
    }

    /// Takes the lock of a partition.
    pub(crate) fn lock(&self, partition: u64) -> Locked<'_, M> {
        let lock = &self.partitions[partition as usize].inner;
        // What the lock protects is whole between any two steps of its holders.
        let inner = lock.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { table: self, partition, inner }
    }

    /// Takes the locks of all partitions. Nobody who has one of them waits for another, but for
    /// those who are here, and take them in this order, too.
    pub(crate) fn lock_all(&self) -> Vec<Locked<'_, M>> {
        (0..self.geometry.partitions).map(|partition| self.lock(partition)).collect()
    }

    /// Takes the lock of a hash's partition.
    pub(crate) fn lock_for(&self, hash: Hash) -> Locked<'_, M> {
        self.lock(hash.partition(self.geometry.partitions))
    }

    /// Looks at a key's buckets without the lock. `None` if they are changing.
    #[inline]
    pub(crate) fn peek(&self, hash: Hash) -> Option<Peek<'_, M>> {
        let partition = hash.partition(self.geometry.partitions);
        let count = self.partitions[partition as usize].count.load(Acquire);
        let buckets = hash.buckets(count).map(|bucket| self.bucket(partition, bucket));
        let headers = [buckets[0].header(), buckets[1].header()];
        let changing = headers.into_iter().any(bucket::is_changing);
        (!changing).then_some(Peek { table: self, partition, count, buckets, headers })
    }
}

/// A key's two buckets, looked at without the lock.
pub(crate) struct Peek<'t, M> {
    table: &'t Table<M>,
    partition: u64,
    count: u32,
    buckets: [Bucket<'t, M>; 2],
    headers: [u64; 2],
}

impl<M: Memory> Peek<'_, M> {
    /// The first slot with that tag for which `wanted` finds something, with what it finds.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        hash: Hash,
        mut wanted: impl FnMut(Slot) -> Option<T>,
    ) -> Option<(T, (usize, usize))> {
        for (which, bucket) in self.buckets.iter().enumerate() {
            for index in 0..SLOTS {
                if bucket.tag(index) & hash::ID == hash.id()
                    && let Some(slot) = bucket.slot(index)
                    && let Some(found) = wanted(slot)
                {
                    return Some((found, (which, index)));
                }
            }
        }
        None
    }

    /// Whether nothing has changed since the look: what was found, or not found, is true.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        let same =
            |which: usize| !bucket::differs(self.headers[which], self.buckets[which].header());
        let count = &self.table.partitions[self.partition as usize].count;
        same(0) && same(1) && count.load(Acquire) == self.count
    }

    /// Whether the key may be in the stash.
    #[inline]
    pub(crate) fn may_be_stashed(&self) -> bool {
        self.table.partitions[self.partition as usize].stashed.load(Acquire) > 0
    }

    /// Says that the slot which was found was used.
    #[inline]
    pub(crate) fn touch(&self, (which, index): (usize, usize)) {
        self.buckets[which].touch(index, self.headers[which]);
    }
}

/// A partition whose lock is held.
pub(crate) struct Locked<'t, M> {
    table: &'t Table<M>,
    partition: u64,
    pub(crate) inner: MutexGuard<'t, Inner>,
}

impl<'t, M: Memory> Locked<'t, M> {
    fn own(&self) -> &'t Partition {
        &self.table.partitions[self.partition as usize]
    }

    /// How many buckets the partition has.
    pub(crate) fn count(&self) -> u32 {
        self.own().count.load(Relaxed)
    }

    /// How many slots are in use.
    #[cfg(test)]
    pub(crate) fn items(&self) -> u32 {
        self.inner.items
    }

    fn bucket(&self, bucket: u32) -> Bucket<'t, M> {
        self.table.bucket(self.partition, bucket)
    }

    /// The first slot with that hash for which `wanted` finds something, with what it finds.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        hash: Hash,
        mut wanted: impl FnMut(Slot) -> Option<T>,
    ) -> Option<(SlotPlace, Slot, T)> {
        for at in hash.buckets(self.count()) {
            let bucket = self.bucket(at);
            for index in 0..SLOTS {
                if bucket.tag(index) & hash::ID == hash.id()
                    && let Some(slot) = bucket.slot(index)
                    && let Some(found) = wanted(slot)
                {
                    return Some((SlotPlace::Bucket { bucket: at, slot: index }, slot, found));
                }
            }
        }
        self.inner.stash.iter().enumerate().find_map(|(index, &slot)| {
            let found = if slot.hash == hash { wanted(slot) } else { None };
            Some((SlotPlace::Stash(index), slot, found?))
        })
    }

    /// Fills an empty place that [`Locked::make_room`] found.
    pub(crate) fn insert(&mut self, place: SlotPlace, slot: Slot) {
        self.inner.items += 1;
        self.fill(place, slot);
        if let SlotPlace::Bucket { bucket, slot } = place {
            self.bucket(bucket).set_clock(slot, 1);
        }
    }

    /// Fills an empty place.
    fn fill(&mut self, place: SlotPlace, slot: Slot) {
        self.change(place, Some(slot), || ());
        self.note_change(place);
    }

    /// Replaces a slot. `bury` marks the old item as dead: remote readers that see the new slot
    /// then find the old item dead, and those that look at the buckets meanwhile look again.
    pub(crate) fn replace(&mut self, place: SlotPlace, slot: Slot, bury: impl FnOnce()) {
        self.change(place, Some(slot), bury);
    }

    /// Empties a place; `bury` marks the item as dead.
    pub(crate) fn remove(&mut self, place: SlotPlace, bury: impl FnOnce()) {
        self.inner.items = self.inner.items.saturating_sub(1);
        self.change(place, None, bury);
        self.note_change(place);
    }

    /// Notes that a place was filled or emptied.
    fn note_change(&mut self, place: SlotPlace) {
        if let SlotPlace::Bucket { bucket, .. } = place {
            self.note_free(bucket);
        }
    }

    fn change(&mut self, place: SlotPlace, slot: Option<Slot>, bury: impl FnOnce()) {
        match (place, slot) {
            (SlotPlace::Bucket { bucket: at, slot: index }, slot) => {
                let bucket = self.bucket(at);
                bucket.begin();
                bury();
                bucket.set(index, slot);
                bucket.end();
                self.note_expiry(slot);
            }
            (SlotPlace::Stash(index), Some(slot)) => {
                bury();
                self.note_expiry(Some(slot));
                match self.inner.stash.get_mut(index) {
                    Some(old) => *old = slot,
                    None => self.inner.stash.push(slot),
                }
            }
            (SlotPlace::Stash(index), None) => {
                bury();
                if index < self.inner.stash.len() {
                    self.inner.stash.swap_remove(index);
                }
            }
        }
        self.own().stashed.store(self.inner.stash.len() as u32, Release);
    }

    /// Notes when a slot expires that was written, moved, or looked at and left.
    pub(crate) fn note_expiry(&mut self, slot: Option<Slot>) {
        if let Some(Slot { expiry: second @ 1.., .. }) = slot {
            self.inner.soonest = self.inner.soonest.min(second);
        }
    }

    /// Whether a slot may have expired by this second of Unix time. If so, the caller looks at all
    /// slots, one bucket after the other, and notes the expiry of each that stays
    /// ([`Locked::note_expiry`]).
    pub(crate) fn begin_expiry(&mut self, second: u64) -> bool {
        let due = u64::from(self.inner.soonest) <= second;
        if due {
            self.inner.soonest = u32::MAX;
        }
        due
    }

    /// Says that a slot was used.
    pub(crate) fn touch(&self, place: SlotPlace) {
        if let SlotPlace::Bucket { bucket, slot } = place {
            let bucket = self.bucket(bucket);
            bucket.set_clock(slot, bucket.clock(slot) + 1);
        }
    }

    /// How recently a slot was used, 0 to 3; says that it was used one step longer ago.
    pub(crate) fn age(&self, place: SlotPlace) -> u64 {
        let SlotPlace::Bucket { bucket, slot } = place else { return 0 };
        let bucket = self.bucket(bucket);
        let clock = bucket.clock(slot);
        bucket.set_clock(slot, clock.saturating_sub(1));
        clock
    }

    /// The slots of a bucket.
    pub(crate) fn slots_of(
        &self,
        bucket: u32,
    ) -> impl Iterator<Item = (SlotPlace, Slot)> + use<'t, M> {
        let at = self.bucket(bucket);
        (0..SLOTS)
            .filter_map(move |slot| Some((SlotPlace::Bucket { bucket, slot }, at.slot(slot)?)))
    }

    /// Calls `each` with the slots of these buckets, and, where they end with the last one, with
    /// those of the stash.
    pub(crate) fn each_slot(&self, buckets: Range<u32>, mut each: impl FnMut(Slot)) {
        let (count, end) = (self.count(), buckets.end);
        for bucket in buckets {
            // A partition's buckets lie far from each other, where no processor expects them.
            if bucket + BUCKETS_AHEAD < end {
                self.table.memory.prefetch(self.bucket(bucket + BUCKETS_AHEAD).at, BUCKET);
            }
            self.bucket(bucket).each_slot(&mut each);
        }
        if end == count {
            self.inner.stash.iter().copied().for_each(each);
        }
    }

    /// The slots of the stash, last ones first, so that each can be removed when it comes.
    pub(crate) fn stashed(&self) -> Vec<(SlotPlace, Slot)> {
        let slots = self.inner.stash.iter().enumerate().rev();
        slots.map(|(index, &slot)| (SlotPlace::Stash(index), slot)).collect()
    }
}

#[cfg(test)]
mod tests;
