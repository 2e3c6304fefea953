//! Which items go when memory is short: those that the CLOCK finds unused.

use crate::journal::{Journal, Record};
use crate::layout::BUCKET;
use crate::memory::Memory;
use crate::slab::Rest;
use crate::store::Store;
use crate::table::{Locked, Slot, SlotPlace};
use crate::tablespace::TablespaceId;

/// Buckets that are looked at under one lock.
const BUCKETS_LOCKED: u32 = 32;
/// Locks that are taken until the clock has to name items although all were used recently.
const LOCKS_MAX: u64 = 256;
/// A tablespace with fewer items than one in so many buckets is sparse among the others.
const SPARSE: u64 = 16;
/// Retired blocks of a partition that are freed at once.
const FREED_MAX: usize = 64;

impl<M: Memory, J: Journal> Store<M, J> {
    /// Evicts items of `only` that tablespace, or of all that allow it, until their blocks have so
    /// many bytes. Returns how many they have. Under [`Rest::Cut`] the blocks are free then, unless
    /// somebody has pinned them.
    pub(crate) fn evict(
        &self,
        only: Option<TablespaceId>,
        bytes: u64,
        now: u64,
        rest: Rest,
    ) -> u64 {
        let mut evicted = 0;
        if !self.may_evict(only) {
            return 0;
        }
        if let Some(only) = only.filter(|only| self.is_sparse(*only)) {
            return self.evict_together(only, bytes, now, rest);
        }
        for spare_used in [true, false] {
            let locks = LOCKS_MAX.max(self.table().geometry.partitions);
            for _ in 0..locks {
                if evicted >= bytes {
                    return evicted;
                }
                let how = (spare_used, rest);
                evicted += self.evict_in(self.next_hand(), only, bytes - evicted, now, how);
            }
        }
        evicted
    }

    /// Whether so few items are a tablespace's that hands which pass buckets seldom come to one.
    fn is_sparse(&self, space: TablespaceId) -> bool {
        self.count(space) * SPARSE < self.index_bytes() / BUCKET
    }

    /// Evicts items of that tablespace whose blocks lie in one span, until these have so many
    /// bytes. Returns how many they have.
    fn evict_together(&self, only: TablespaceId, bytes: u64, now: u64, rest: Rest) -> u64 {
        let (blocks, mut evicted) = (self.some_blocks(only, self.next_hand()), 0);
        // A new item counts as used once.
        for spare_used in [true, true, false] {
            for &at in &blocks {
                if evicted >= bytes {
                    return evicted;
                }
                let size = self.with_slot_of(at, |locked, found| {
                    let (place, slot) = found?;
                    let goes = (locked.age(place) == 0 || !spare_used)
                        && self.evict_item(locked, (place, &slot), now, rest);
                    locked.unstash();
                    self.free_retired(locked, FREED_MAX, Rest::Whole);
                    goes.then(|| self.block_size(&slot))
                });
                evicted += size.flatten().unwrap_or(0);
            }
        }
        evicted
    }

    /// Lets the hand of a partition pass some buckets.
    pub(crate) fn evict_in(
        &self,
        partition: u64,
        only: Option<TablespaceId>,
        bytes: u64,
        now: u64,
        (spare_used, rest): (bool, Rest),
    ) -> u64 {
        let mut evicted = 0;
        let mut locked = self.table().lock(partition);
        for _ in 0..BUCKETS_LOCKED.min(locked.count()) {
            let bucket = locked.inner.hand % locked.count();
            locked.inner.hand = bucket + 1;
            let mut slots: Vec<(SlotPlace, Slot)> = locked.slots_of(bucket).collect();
            if bucket == 0 {
                slots.extend(locked.stashed());
            }
            for (place, slot) in slots {
                let named = only.is_none_or(|only| only == slot.tablespace);
                if evicted >= bytes || !named || !self.evicts(slot.tablespace) {
                    continue;
                }
                if (locked.age(place) == 0 || !spare_used)
                    && self.evict_item(&mut locked, (place, &slot), now, rest)
                {
                    evicted += self.block_size(&slot);
                }
            }
        }
        locked.unstash();
        self.free_retired(&mut locked, FREED_MAX, Rest::Whole);
        evicted
    }

    /// Removes an item for good: it is logged as deleted, or a restart would bring back what a
    /// client has seen to be gone.
    fn evict_item(
        &self,
        locked: &mut Locked<'_, M>,
        (place, slot): (SlotPlace, &Slot),
        now: u64,
        rest: Rest,
    ) -> bool {
        if !self.log_removal(slot, now) {
            return false;
        }
        self.remove(locked, place, slot);
        self.note_evicted(locked, slot, rest);
        self.count_evicted();
        true
    }

    /// Logs that an item is gone, if it was there at `now`. False if it cannot be logged.
    pub(crate) fn log_removal(&self, slot: &Slot, now: u64) -> bool {
        let tablespace = slot.tablespace;
        let log = |key: &[u8]| self.journal().append(&Record::Delete { tablespace, key }).is_ok();
        self.with_key_of(slot, now, log).unwrap_or(true)
    }
}
