//! Makes room for a slot: items move, or the table grows. Where neither helps ([`Crowded`]),
//! `store/reclaim.rs` evicts, and `store/change.rs` tries again or says why not.

use super::bucket::Slot;
use super::hash::{level, split_from};
use super::{Hash, Locked, SlotPlace};
use crate::layout::SLOTS;
use crate::memory::Memory;

/// A partition grows when so many of a hundred slots are taken. While half of its buckets are split
/// some of these have too few keys to be full, which ends displacement at a load of 95 to 96 %. At
/// 95, insertion takes two to four times as long, for 0.9 bytes a key.
pub const LOAD_MAX: u64 = 92;
/// The most buckets by which a partition grows for one key.
const SPLITS_MAX: usize = 4;
/// The most slots that find no bucket, for each partition.
const STASH_MAX: usize = 16;
/// The most buckets that are looked at for a free slot.
const SEARCH_MAX: usize = 512;

/// There is no room for a key: more keys than can be expected have the same buckets, or the index
/// cannot grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crowded;

/// A bucket that could take a slot of the bucket that it was reached from.
#[derive(Clone, Copy)]
struct Step {
    bucket: u32,
    /// The step from which it was reached, and that bucket's slot; none for a key's own buckets.
    from: Option<(u16, u8)>,
}

impl<M: Memory> Locked<'_, M> {
    /// An empty place for a key. `grow` is asked before the index takes another bucket.
    ///
    /// # Errors
    /// See [`Crowded`].
    pub(crate) fn make_room(
        &mut self,
        hash: Hash,
        grow: impl Fn() -> bool,
    ) -> Result<SlotPlace, Crowded> {
        if self.is_full() && self.may_grow() && grow() {
            self.split();
        }
        for _ in 0..SPLITS_MAX {
            if let Some(place) = self.displace(hash) {
                return Ok(place);
            }
            if !self.may_grow() || !grow() {
                break;
            }
            self.split();
        }
        if self.inner.stash.len() < STASH_MAX {
            return Ok(SlotPlace::Stash(self.inner.stash.len()));
        }
        Err(Crowded)
    }

    /// Whether the partition should grow before the next slot comes.
    fn is_full(&self) -> bool {
        let slots = u64::from(self.count()) * SLOTS as u64;
        (u64::from(self.inner.items) + 1) * 100 > slots * LOAD_MAX
    }

    fn may_grow(&self) -> bool {
        self.count() < self.table.geometry.buckets_max
    }

    /// Splits one bucket in two, and takes slots out of the stash for which there is room now.
    fn split(&mut self) {
        self.inner.moves += 1;
        let count = self.count();
        let (old, new) = (split_from(count), count);
        let (from, to) = (self.bucket(old), self.bucket(new));
        to.clear(level(new, count + 1));
        from.begin();
        let mut moved = [false; SLOTS];
        let mut free = 0;
        for (index, moved) in moved.iter_mut().enumerate() {
            let Some(slot) = from.slot(index) else { continue };
            let [before, after] = [count, count + 1].map(|count| slot.hash.buckets(count));
            *moved = (0..2).any(|which| before[which] == old && after[which] == new);
            if *moved {
                let clock = from.clock(index);
                to.begin();
                to.set(free, Some(slot));
                to.end();
                to.set_clock(free, clock);
                self.note_expiry(Some(slot));
                free += 1;
            }
        }
        // From here on readers look for these slots in the new bucket, and not before.
        self.table.set_count(self.partition, count + 1);
        for index in (0..SLOTS).filter(|&index| moved[index]) {
            from.set(index, None);
        }
        from.set_level(level(old, count + 1));
        from.end();
        self.note_free(old);
        self.note_free(new);
        self.unstash();
    }

    /// Takes slots out of the stash for which there is room now.
    pub(crate) fn unstash(&mut self) {
        for (place, slot) in self.stashed() {
            if let Some(room) = self.displace(slot.hash) {
                self.inner.moves += 1;
                self.fill(room, slot);
                self.change(place, None, || ());
            }
        }
    }

    /// Finds a free slot in one of the key's buckets, or frees one: the shortest row of slots, each
    /// of which can move to the next one's bucket, moves up by one.
    fn displace(&mut self, hash: Hash) -> Option<SlotPlace> {
        let buckets = hash.buckets(self.count());
        // The emptier one: buckets that were split have fewer keys to choose from, and take those
        // that can be there.
        let [first, second] = buckets.map(|bucket| self.bucket(bucket).free_slots());
        let emptier = usize::from(second.count_ones() > first.count_ones());
        if let Some(slot) = [first, second][emptier].checked_ilog2() {
            return Some(SlotPlace::Bucket { bucket: buckets[emptier], slot: slot as usize });
        }
        self.search(buckets)
    }

    fn search(&mut self, buckets: [u32; 2]) -> Option<SlotPlace> {
        let mut steps = [Step { bucket: 0, from: None }; SEARCH_MAX];
        let (mut at, mut end) = (0, buckets.len());
        for (step, bucket) in steps.iter_mut().zip(buckets) {
            step.bucket = bucket;
        }
        let count = self.count();
        while at < end {
            let here = steps[at].bucket;
            let bucket = self.bucket(here);
            for index in 0..SLOTS {
                if end < SEARCH_MAX
                    && let Some(slot) = bucket.slot(index)
                    && let Some(other) = other_bucket(slot, here, count)
                {
                    steps[end] = Step { bucket: other, from: Some((at as u16, index as u8)) };
                    end += 1;
                    if let Some(free) = self.known_free(other) {
                        return Some(self.move_up(&steps[..end], free));
                    }
                }
            }
            at += 1;
        }
        None
    }

    /// An empty slot of a bucket, if it is known to have one and still has.
    fn known_free(&self, bucket: u32) -> Option<usize> {
        let known = self.inner.free.get(bucket as usize).is_some_and(|&free| free > 0);
        let slot = if known { self.bucket(bucket).free_slots().checked_ilog2() } else { None };
        slot.map(|slot| slot as usize)
    }

    /// Notes which slots of a bucket are empty.
    pub(super) fn note_free(&mut self, bucket: u32) {
        let free = self.bucket(bucket).free_slots() as u8;
        let index = bucket as usize;
        if self.inner.free.len() <= index {
            self.inner.free.resize(index + 1, 0);
        }
        self.inner.free[index] = free;
    }

    /// Moves the slots that lead to the last step, whose slot `free` is empty, from there on back.
    /// Returns the place that is free then.
    fn move_up(&mut self, steps: &[Step], mut free: usize) -> SlotPlace {
        self.inner.moves += 1;
        let mut at = steps.len() - 1;
        while let Some((from, index)) = steps[at].from {
            let (below, above) = (steps[usize::from(from)].bucket, steps[at].bucket);
            let (source, target) = (self.bucket(below), self.bucket(above));
            let slot = source.slot(index.into());
            let clock = source.clock(index.into());
            source.begin();
            target.begin();
            target.set(free, slot);
            source.set(index.into(), None);
            target.end();
            source.end();
            target.set_clock(free, clock);
            self.note_expiry(slot);
            self.note_free(above);
            (at, free) = (from.into(), index.into());
        }
        let bucket = steps[at].bucket;
        self.note_free(bucket);
        SlotPlace::Bucket { bucket, slot: free }
    }
}

/// The bucket to which a slot can move. None if it is where it cannot be, which a hostile client
/// can bring about.
fn other_bucket(slot: Slot, bucket: u32, count: u32) -> Option<u32> {
    let [first, second] = slot.hash.buckets(count);
    if bucket == first { Some(second) } else { (bucket == second).then_some(first) }
}
