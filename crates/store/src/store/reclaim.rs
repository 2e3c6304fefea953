//! Frees blocks that nobody sees any more, empties sparse pages, and evicts items where a change
//! has found no room.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use super::change::UpdateError;
use super::read::Use;
use super::scratch::with_scratch;
use super::{Found, Store};
use crate::item::{CHECKSUM, HEAD, Head, ITEM_MAX};
use crate::journal::Journal;
use crate::layout::PAGE;
use crate::memory::Memory;
use crate::slab::{Drained, Pin, Rest, Retired};
use crate::table::{Locked, Slot, SlotPlace};
use crate::tablespace::TablespaceId;

/// Bytes that are evicted at least, when a change finds no room.
const EVICTED_MIN: u64 = 16 << 10;
/// One part in so many of the limit stays resident although it is free; where tablespaces evict, a
/// sweep sees to it that as much is.
const KEPT: u64 = 64;
/// What has expired does not come back while clocks are set back by so many ms at most. (Threads'
/// clocks differ by one or two.)
pub(super) const BACK_MS: u64 = 1000;
/// Retired blocks of a partition that are freed at once.
const FREED_MAX: usize = 64;

/// Where a sweep goes on.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    pub(crate) partition: u64,
    pub(crate) bucket: u32,
    /// The tablespace and class whose sparse spans are emptied next.
    pub(crate) span: (usize, usize),
}

/// Where an item lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    /// The item's offset.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// The offset of the value, as it is stored.
    pub value_at: u64,
    /// The value's bytes, as it is stored.
    pub stored: u64,
    /// What else is known of the item.
    pub found: Found,
}

impl<M: Memory, J: Journal> Store<M, J> {
    /// Keeps all blocks as they are that are in use now, until the pin is dropped.
    pub fn pin(&self) -> Pin<'_> {
        self.epochs.pin()
    }

    /// Where the key's item is. Its bytes stay there while the pin lives, which is a pin of this
    /// store's, although the item may be replaced meanwhile.
    pub fn locate(
        &self,
        _pin: &Pin<'_>,
        space: TablespaceId,
        key: &[u8],
        now: u64,
    ) -> Option<Located> {
        let (seen, found) = self.look(space, key, now, Use::Read, &mut |_| true)?;
        Some(Located {
            at: seen.at,
            len: seen.head.item_len() as u64,
            value_at: seen.at + seen.head.value_at() as u64,
            stored: seen.head.stored as u64,
            found,
        })
    }

    pub(crate) fn note_time(&self, now: u64) {
        let latest = self.time.load(Relaxed);
        if latest < now {
            self.time.fetch_max(now, Relaxed);
        } else if latest - now > BACK_MS {
            // Set back, and believed: see `judged_at`.
            self.time.store(now, Relaxed);
        }
    }

    /// By which time expiry is judged at `now`: by none before one that a caller has told, since
    /// what has expired is not to come back. A clock that was set back further than [`BACK_MS`] is
    /// believed: it may have been far ahead, and whatever is to expire would do so at once.
    #[inline]
    pub(crate) fn judged_at(&self, now: u64) -> u64 {
        let latest = self.time.load(Relaxed);
        if latest.saturating_sub(now) <= BACK_MS { latest.max(now) } else { now }
    }

    /// Frees a block that no reader may see.
    pub(super) fn free(&self, at: u64) {
        match self.blocks.free(&self.usage, at) {
            Ok((space, size)) => {
                if let Some(space) = self.spaces.place(space) {
                    space.give(size);
                }
            }
            Err(_) => self.count_damage(),
        }
    }

    /// Frees a block once no reader can see it any more.
    pub(super) fn retire(&self, locked: &mut Locked<'_, M>, at: u64) {
        // A reader that pins a later epoch than is read here must not see the slot as it was.
        fence(SeqCst);
        let ms = self.time.load(Relaxed);
        locked.inner.retired.push_back(Retired { at, epoch: self.epochs.now(), ms, evicted: 0 });
    }

    /// Frees up to `most` of the partition's retired blocks that nobody sees any more.
    pub(crate) fn free_retired(&self, locked: &mut Locked<'_, M>, most: usize, rest: Rest) {
        for _ in 0..most {
            let Some(&Retired { at, epoch, ms, .. }) = locked.inner.retired.front() else { break };
            let quarantined = rest == Rest::Whole && self.is_quarantined(locked, ms);
            if quarantined || !self.epochs.is_past(epoch) {
                break;
            }
            if let Some(Retired { evicted, .. }) = locked.inner.retired.pop_front() {
                self.evicted_resting.fetch_sub(evicted.into(), Relaxed);
            }
            self.free(at);
        }
    }

    /// Whether the partition's first retired block, which is of the time `ms`, rests still.
    fn is_quarantined(&self, locked: &mut Locked<'_, M>, ms: u64) -> bool {
        let quarantine_ms = self.options.quarantine_ms;
        if quarantine_ms == 0 || !self.table.memory.has_readers() {
            return false;
        }
        let now = self.time.load(Relaxed);
        // While a log is played again there is no time yet, and no reader either.
        if now == 0 {
            return false;
        }
        if ms > now {
            // The clock was set back, and nobody knows how long they have rested: all begin anew.
            locked.inner.retired.iter_mut().for_each(|retired| retired.ms = retired.ms.min(now));
        }
        now < ms.min(now).saturating_add(quarantine_ms)
    }

    /// Notes that an item was evicted whose block was just retired. Under [`Rest::Cut`] the block
    /// is free then, unless somebody has pinned it.
    pub(crate) fn note_evicted(&self, locked: &mut Locked<'_, M>, slot: &Slot, rest: Rest) {
        let at = self.item_at(slot);
        let retired = &mut locked.inner.retired;
        let Some(last) = retired.back_mut().filter(|last| at == Some(last.at)) else { return };
        if rest == Rest::Cut && self.epochs.is_past(last.epoch) {
            let at = last.at;
            retired.pop_back();
            self.free(at);
        } else {
            last.evicted = u32::try_from(self.block_size(slot)).unwrap_or(u32::MAX);
            self.evicted_resting.fetch_add(last.evicted.into(), Relaxed);
        }
    }

    /// Makes room after a change of a key in that partition found none. Says whether it is worth
    /// trying again.
    pub(super) fn reclaim(
        &self,
        space: TablespaceId,
        partition: u64,
        error: &UpdateError,
        now: u64,
    ) -> bool {
        match *error {
            UpdateError::Quota { needed, quota } => {
                let evicts = self.spaces.serving(space).is_some_and(|own| own.evicts());
                let evict = || self.evict(Some(space), needed.max(EVICTED_MIN), now, Rest::Cut);
                needed <= quota && (evicts && evict() > 0 || self.free_all_retired(Rest::Cut))
            }
            UpdateError::Memory { needed, limit } if needed <= limit => {
                // A span for blocks of this size may be needed, too.
                let wanted = self.blocks.span_bytes(needed).max(EVICTED_MIN) + PAGE;
                let evicted = self.evict(None, wanted, now, Rest::Cut);
                self.gather(needed) || evicted > 0
            }
            UpdateError::Crowded => {
                let evict = |spare| {
                    let how = (spare, Rest::Whole);
                    self.evict_in(partition, None, EVICTED_MIN, now, how)
                };
                self.may_evict(None) && (evict(true) > 0 || evict(false) > 0)
            }
            _ => false,
        }
    }

    /// Gathers free memory for a block of so many bytes without evicting anything. Says whether
    /// there is more than before.
    pub(super) fn gather(&self, needed: u64) -> bool {
        let retired = self.free_all_retired(Rest::Cut);
        // Pages of other sizes and tablespaces become free only if they are emptied.
        self.empty_pages(self.blocks.span_bytes(needed)) || retired
    }

    pub(crate) fn free_all_retired(&self, rest: Rest) -> bool {
        let mut freed = false;
        for partition in 0..self.table.geometry.partitions {
            let mut locked = self.table.lock(partition);
            let before = locked.inner.retired.len();
            self.free_retired(&mut locked, FREED_MAX, rest);
            freed |= locked.inner.retired.len() < before;
        }
        freed
    }

    /// Moves items out of sparse pages until so many bytes are free, and says whether any pages
    /// have become so.
    fn empty_pages(&self, needed: u64) -> bool {
        let before = self.usage.used();
        let mut hint = (0, 0);
        let most = needed / PAGE * 2 + 4;
        let mut given = self.blocks.give_up_empty(&self.usage);
        for _ in 0..most {
            if self.usage.used() + needed <= self.usage.limit() {
                break;
            }
            let Some(drained) = self.blocks.drain(&mut hint, true) else { break };
            self.move_items(&drained, Rest::Cut);
            given |= self.usage.used() < before;
        }
        given
    }

    /// How many bytes of pages have to become free until a part of the limit is, and of items how
    /// many have to be evicted for that. Free blocks of tablespaces that evict are as good as
    /// pages, since pages can be emptied, and so is what was evicted and rests: an eviction frees a
    /// page only where all items of the page go.
    pub(crate) fn missing_bytes(&self) -> (u64, u64) {
        let reserve = (self.limit() / KEPT).max(2 * PAGE);
        let over = || (self.used_bytes() + reserve).saturating_sub(self.limit());
        if over() == 0 || !self.may_evict(None) {
            return (0, 0);
        }
        self.blocks.give_up_empty(&self.usage);
        let free: u64 = self.spaces.evicting().map(|space| self.blocks.free_bytes(space)).sum();
        let (over, spare) = (over(), free + self.evicted_resting.load(Relaxed));
        (over, over.saturating_sub(spare))
    }

    /// Moves the items of a sparse span elsewhere, if there is one that is worth it, or, if that is
    /// `urgent`, that can be emptied at all. Says whether there was.
    pub(crate) fn tidy_pages(&self, urgent: bool) -> bool {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        let drained = self.blocks.drain(&mut sweeper.span, urgent);
        drop(sweeper);
        drained.inspect(|drained| self.move_items(drained, Rest::Whole)).is_some()
    }

    /// Lets the machine have back pages that are free, but for some that are soon wanted again.
    /// Returns how many bytes.
    pub(crate) fn give_back(&self) -> u64 {
        let (used, limit) = (self.usage.used(), self.usage.limit());
        let kept = limit.saturating_sub(used).min(limit / KEPT);
        self.blocks.give_back(&self.table.memory, kept)
    }

    fn move_items(&self, drained: &Drained, rest: Rest) {
        let moved = drained.blocks.iter().filter(|&&at| self.move_item(at, rest)).count();
        if moved < drained.blocks.len() {
            self.blocks.undrain(drained);
        }
    }

    /// The head at `at`, if an item may lie there.
    fn head_at(&self, at: u64) -> Option<Head> {
        let memory = &self.table.memory;
        let head = Head::from_words([0, 8, 16].map(|word| memory.load(at + word)));
        let is_inside = at + head.block_len() as u64 <= self.table.geometry.area_end();
        let head = Some(head).filter(|head| is_inside && head.item_len() <= ITEM_MAX);
        if head.is_none() {
            self.count_damage();
        }
        head
    }

    /// Lets `act` see the slot that leads to the block at `at`, if one does, under the lock of the
    /// partition that it would be in. `None` if what lies there is no item.
    pub(crate) fn with_slot_of<T>(
        &self,
        at: u64,
        act: impl FnOnce(&mut Locked<'_, M>, Option<(SlotPlace, Slot)>) -> T,
    ) -> Option<T> {
        let head = self.head_at(at)?;
        let hash = with_scratch(|start| {
            start.resize(head.value_at(), 0);
            self.table.memory.read(at, start);
            self.hasher.hash(head.tablespace, &start[head.key_at()..])
        });
        let mut locked = self.table.lock_for(hash);
        let here = |slot: Slot| (self.item_at(&slot) == Some(at)).then_some(());
        let found = locked.find(hash, here).map(|(place, slot, ())| (place, slot));
        Some(act(&mut locked, found))
    }

    /// Moves the item at `at` to another block of its size. False if that cannot be done now.
    pub(super) fn move_item(&self, at: u64, rest: Rest) -> bool {
        let moved = self.with_slot_of(at, |locked, found| {
            // If it is retired it goes by itself. If not, it is being written, or is free by now;
            // or its slot was damaged, and it is lost until the store is made anew.
            let moved = match found {
                Some((place, slot)) => self.move_locked(locked, at, place, slot),
                None => locked.inner.retired.iter().any(|retired| retired.at == at),
            };
            self.free_retired(locked, FREED_MAX, rest);
            moved
        });
        moved == Some(true)
    }

    fn move_locked(
        &self,
        locked: &mut Locked<'_, M>,
        at: u64,
        place: SlotPlace,
        slot: Slot,
    ) -> bool {
        // Before the lock was taken, an earlier item of the key may have been here.
        let Some(head) = self.head_at(at) else { return false };
        let (len, memory) = (head.block_len(), &self.table.memory);
        if head.item_len() != slot.len as usize {
            self.count_damage();
            return false;
        }
        let Some(block) = self.blocks.alloc(&self.usage, slot.tablespace, len as u64) else {
            return false;
        };
        if let Some(space) = self.spaces.place(slot.tablespace) {
            space.overdraw(block.size);
        }
        with_scratch(|item| {
            item.resize(len, 0);
            memory.read(at, item);
            memory.write(block.at, item);
        });
        let moved = Slot { address: memory.base() + block.at, ..slot };
        let live = crate::item::Live(memory.load(at));
        locked.replace(place, moved, || memory.store(at, live.dead().0));
        self.retire(locked, at);
        true
    }

    /// Blocks in use of one of a tablespace's spans, chosen by `seed`: none if it has none.
    pub(crate) fn some_blocks(&self, space: TablespaceId, seed: u64) -> Vec<u64> {
        self.blocks.some_in_use(space, seed)
    }
}

const _: () = assert!(HEAD + CHECKSUM < ITEM_MAX);
