//! The sweep: items whose time has come, and the other work that nobody waits for.

use std::sync::TryLockError;

use crate::journal::Journal;
use crate::memory::Memory;
use crate::slab::Rest;
use crate::store::Store;
use crate::table::{Locked, Slot, SlotPlace};

/// Buckets that are looked at under one lock.
const BUCKETS_LOCKED: u32 = 64;
/// Retired blocks of a partition that are freed at once.
const FREED_MAX: usize = 256;
/// Bytes that one sweep evicts, at most.
const EVICTED_MAX: u64 = 256 << 10;

/// What a sweep did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Buckets looked at for expired items: none of a partition in which nothing can have expired.
    pub buckets: u64,
    /// Items removed, since they had expired.
    pub expired: u64,
    /// Bytes of items evicted.
    pub evicted_bytes: u64,
    /// Whether items were moved out of a sparse span.
    pub moved: bool,
    /// Bytes of free pages that the machine has back.
    pub given_back_bytes: u64,
}

impl<M: Memory, J: Journal> Store<M, J> {
    /// Does a bounded piece of the work that nobody waits for: removes expired items of the next
    /// `buckets` buckets, of all at most; frees blocks that nobody sees any more, evicts where the
    /// limit is near, empties sparse pages, and lets the machine have free ones back. For a
    /// thread that calls it again and again; two calls at once are one.
    pub fn sweep(&self, now: u64, buckets: u32) -> Swept {
        self.note_time(now);
        let mut swept = self.expire(now, buckets);
        if swept.expired > 0 {
            self.count_expired(swept.expired);
        }
        let (over, missing) = self.missing_bytes();
        if missing > 0 {
            swept.evicted_bytes = self.evict(None, missing.min(EVICTED_MAX), now, Rest::Whole);
        }
        swept.moved = self.tidy_pages(over > 0);
        swept.given_back_bytes = self.give_back();
        swept
    }

    /// Removes expired items of the next `buckets` buckets; after the last one of a partition, what
    /// else there is to do in it.
    fn expire(&self, now: u64, buckets: u32) -> Swept {
        let mut swept = Swept::default();
        let mut sweeper = match self.sweeper().try_lock() {
            Ok(sweeper) => sweeper,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return swept,
        };
        let partitions = self.table().geometry.partitions;
        let (mut left, mut ended) = (buckets, 0);
        // At most a lap, and the partition again in which it began.
        while left > 0 && ended <= partitions {
            let mut locked = self.table().lock(sweeper.partition);
            let count = locked.count();
            let end = count.min(sweeper.bucket + BUCKETS_LOCKED.min(left));
            left -= (end - sweeper.bucket).max(1);
            if sweeper.bucket == 0 && !locked.begin_expiry(now / 1000) {
                sweeper.bucket = count;
            }
            for bucket in sweeper.bucket..end {
                swept.buckets += 1;
                for (place, slot) in locked.slots_of(bucket) {
                    swept.expired += u64::from(self.remove_expired(&mut locked, place, slot, now));
                }
            }
            sweeper.bucket = sweeper.bucket.max(end);
            if sweeper.bucket >= count {
                for (place, slot) in locked.stashed() {
                    swept.expired += u64::from(self.remove_expired(&mut locked, place, slot, now));
                }
                locked.unstash();
                self.free_retired(&mut locked, FREED_MAX, Rest::Whole);
                ended += 1;
                sweeper.bucket = 0;
                sweeper.partition = (sweeper.partition + 1) % partitions;
            }
        }
        swept
    }

    /// Removes an item if it has expired. That needs no record, since its expiry is in the log
    /// already, unless the journal says so.
    fn remove_expired(
        &self,
        locked: &mut Locked<'_, M>,
        place: SlotPlace,
        slot: Slot,
        now: u64,
    ) -> bool {
        // The slot's second is a hint, and the item has the truth; most items are not looked at.
        let due = slot.expiry > 0 && u64::from(slot.expiry) <= now / 1000;
        let expired = due
            && self.is_expired(&slot, now)
            && (!self.journal().logs_expiry() || self.log_removal(&slot, 0));
        if expired {
            self.remove(locked, place, &slot);
        } else {
            locked.note_expiry(Some(slot));
        }
        expired
    }
}
