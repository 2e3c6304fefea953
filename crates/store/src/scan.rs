//! A walk over a tablespace.
//!
//! A scan goes partition by partition, and in a partition in the order of the keys' hashes. So a
//! key that moves to another bucket or block meanwhile is neither missed nor met twice, and a
//! cursor is a number that needs no state in the store.
//!
//! That order is none in memory. So items are looked at in groups: while one is judged the next is
//! on its way into the cache, and of items that a selection does not want only the judged columns
//! are read.

mod group;

use std::ops::ControlFlow;

use self::group::{GROUP, Group, fetch};
use crate::item::Item;
use crate::journal::Journal;
use crate::memory::Memory;
use crate::select::plan::Plan;
use crate::store::Store;
use crate::table::Slot;
use crate::tablespace::TablespaceId;

/// The most items of one call.
pub const BATCH_MAX: usize = 2048;
/// Bytes of items after which a call ends.
const READ_MAX: usize = 1 << 20;
/// Buckets after which a call ends, at the end of a partition: to walk over so many takes some
/// hundred microseconds.
pub(crate) const WALKED_MAX: usize = 8192;
const PARTITION_SHIFT: u32 = 48;
const ID: u64 = (1 << PARTITION_SHIFT) - 1;
/// Bits of an index in the order of slots.
const INDEX_BITS: u32 = u64::BITS - PARTITION_SHIFT;

/// How far a scan has come: the next partition, and the last hash in it that was visited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cursor(
    /// The number, for protocols that carry one; 0 begins a scan, and ends one.
    pub u64,
);

impl Cursor {
    /// Where a scan begins.
    pub const START: Cursor = Cursor(0);
    /// Where it has ended.
    pub const END: Cursor = Cursor(0);
}

/// What a visitor says of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visited {
    /// It wants the next one.
    Next,
    /// It wants no more.
    Last,
    /// It has not taken the item: the scan goes on with it the next time.
    NotTaken,
}

/// What a scan is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'p> {
    pub(crate) space: TablespaceId,
    /// The time in ms of Unix time.
    pub(crate) now: u64,
    /// Items of more bytes are not read.
    pub(crate) longest: usize,
    /// What an item that is visited may be selected by; it need not be.
    pub(crate) plan: Option<&'p Plan>,
}

/// What a call may still do, and what it has done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Items that it may look at.
    pub(crate) items: usize,
    /// Bytes of items.
    pub(crate) bytes: usize,
    /// Buckets that it may walk over, which is looked at after a partition.
    pub(crate) buckets: usize,
    /// Items that it has looked at.
    pub(crate) looked_at: u32,
}

/// How far a call has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Went {
    pub(crate) cursor: Cursor,
    /// Whether it ended since the next item is too long.
    pub(crate) is_long: bool,
}

/// A copy of an item as it was in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied<'a> {
    pub(crate) item: Item<'a>,
    bytes: &'a [u8],
}

impl Copied<'_> {
    /// Whether it is what the store once wrote: others may write in its memory.
    pub(crate) fn is_whole(&self) -> bool {
        self.item.has_sum(self.bytes)
    }
}

/// Buffers of a call.
#[derive(Debug, Default)]
struct Buffers {
    slots: Vec<Slot>,
    order: Vec<u64>,
    ordered: Vec<Slot>,
    group: Group,
    item: Vec<u8>,
}

type Visit<'v> = dyn FnMut(&Copied<'_>) -> Visited + 'v;

impl<M: Memory, J: Journal> Store<M, J> {
    /// Visits some `at_most` items of a tablespace, and answers where to go on: a scan begins at
    /// [`Cursor::START`] and has ended when the answer is [`Cursor::END`].
    ///
    /// A key that is there from the scan's begin to its end is visited exactly once, whatever
    /// happens to other keys; one that comes or goes meanwhile at most once each time it comes.
    /// Each item is as it is at one moment of the call that visits it. No lock is held while items
    /// are read and visited.
    ///
    /// A call visits fewer items, or none, if it has walked or copied much. It visits more than
    /// `at_most`, or some after the visitor breaks, if keys have the same hash: a cursor cannot
    /// tell them apart.
    pub fn scan(
        &self,
        space: TablespaceId,
        cursor: Cursor,
        now: u64,
        at_most: usize,
        visit: &mut dyn FnMut(&Item<'_>) -> ControlFlow<()>,
    ) -> Cursor {
        let mut visit = |item: &Item<'_>| match visit(item) {
            ControlFlow::Continue(()) => Visited::Next,
            ControlFlow::Break(()) => Visited::Last,
        };
        self.scan_while(space, cursor, now, at_most, &mut visit)
    }

    /// As [`Store::scan`], for a visitor that finds out that it has no room for an item when it
    /// sees it: the answer then leads to this item. (Items of the same hash that it has taken are
    /// visited again.)
    pub fn scan_while(
        &self,
        space: TablespaceId,
        cursor: Cursor,
        now: u64,
        at_most: usize,
        visit: &mut dyn FnMut(&Item<'_>) -> Visited,
    ) -> Cursor {
        let wanted = Wanted { space, now, longest: usize::MAX, plan: None };
        let items = at_most.clamp(1, BATCH_MAX);
        let mut budget = Budget { items, bytes: READ_MAX, buckets: WALKED_MAX, looked_at: 0 };
        let mut visit = |copied: &Copied<'_>| {
            if copied.is_whole() { visit(&copied.item) } else { Visited::Next }
        };
        self.scan_within(&wanted, cursor, &mut budget, &mut visit).cursor
    }

    /// As [`Store::scan_while`], within a budget, of items that may be selected. What a visitor
    /// gets is not checked by its sum.
    pub(crate) fn scan_within(
        &self,
        wanted: &Wanted<'_>,
        cursor: Cursor,
        budget: &mut Budget,
        visit: &mut Visit<'_>,
    ) -> Went {
        let partitions = self.table().geometry.partitions;
        let (mut partition, mut last) = (cursor.0 >> PARTITION_SHIFT, cursor.0 & ID);
        let mut buffers = Buffers::default();
        let end = |cursor| Went { cursor, is_long: false };
        // What a slot led to stays as it is, so that it can be read without the lock.
        let _pin = self.pin();
        while partition < partitions {
            let more = self.next_slots(wanted.space, (partition, last), budget, &mut buffers);
            let slots = std::mem::take(&mut buffers.ordered);
            slots.iter().take(GROUP).for_each(|slot| fetch(self, slot, wanted.plan));
            let mut rest = &slots[..];
            while !rest.is_empty() {
                if budget.is_spent() {
                    return end(cursor_at(partition, last));
                }
                let (group, ahead) = rest.split_at(group_len(rest, budget.items));
                let went =
                    self.visit_group(wanted, (group, ahead), last, (&mut buffers, budget), visit);
                if let ControlFlow::Break((last, is_long)) = went {
                    return Went { cursor: cursor_at(partition, last), is_long };
                }
                last = group.last().map_or(last, |slot| slot.hash.id());
                rest = ahead;
            }
            buffers.ordered = slots;
            (partition, last) = more.map_or((partition + 1, 0), |reached| (partition, reached));
            if budget.is_spent() || budget.buckets == 0 {
                break;
            }
        }
        end(if partition < partitions { cursor_at(partition, last) } else { Cursor::END })
    }

    /// Visits the items of a group that are wanted, behind the hash `last`. Breaks with the hash up
    /// to which it has come, and whether the next item is too long.
    fn visit_group(
        &self,
        wanted: &Wanted<'_>,
        (slots, ahead): (&[Slot], &[Slot]),
        last: u64,
        (buffers, budget): (&mut Buffers, &mut Budget),
        visit: &mut Visit<'_>,
    ) -> ControlFlow<(u64, bool)> {
        let Buffers { group, item: bytes, .. } = buffers;
        let is_long = |slot: &Slot| slot.len as usize > wanted.longest;
        let long_at = slots.iter().position(is_long);
        let (short, long) = slots.split_at(long_at.unwrap_or(slots.len()));
        match wanted.plan {
            Some(plan) => group.choose(self, (short, ahead), wanted.now, plan),
            None => group.choose_all(short.len()),
        }
        let before = |index: usize| if index == 0 { last } else { slots[index - 1].hash.id() };
        let (mut broke_at, mut not_taken) = (None, None);
        for &index in &group.chosen {
            let (slot, id) = (&short[index], short[index].hash.id());
            if broke_at.is_some_and(|(_, broke_at)| broke_at != id) {
                break;
            }
            if let (None, Some(next)) = (wanted.plan, ahead.get(index)) {
                fetch(self, next, None);
            }
            if !self.copy_pinned(slot, wanted.now, bytes) {
                continue;
            }
            let Some(item) = Item::parse_unsummed(bytes) else { continue };
            match visit(&Copied { item, bytes }) {
                Visited::NotTaken => {
                    not_taken = Some((index, before(index).min(id - 1)));
                    break;
                }
                Visited::Last => broke_at = Some((index + 1, id)),
                Visited::Next => {}
            }
            budget.looked_at += 1;
            budget.bytes = budget.bytes.saturating_sub(bytes.len());
        }
        let ended = not_taken.or(broke_at);
        let done = ended.map_or(short.len(), |(index, _)| index);
        let rejected = group.rejected.iter().take_while(|&&index| index < done).count();
        budget.looked_at += rejected as u32;
        budget.items = budget.items.saturating_sub(done);
        budget.bytes = budget.bytes.saturating_sub(rejected * group.judged);
        match (ended, long.first()) {
            (Some((_, reached)), _) => ControlFlow::Break((reached, false)),
            (None, Some(long)) => {
                ControlFlow::Break((before(short.len()).min(long.hash.id() - 1), true))
            }
            (None, None) => ControlFlow::Continue(()),
        }
    }

    /// Finds the slots of a partition that come next after the hash `last`, in order. Returns the
    /// hash up to which it has come, if that is not the partition's end.
    fn next_slots(
        &self,
        space: TablespaceId,
        (partition, last): (u64, u64),
        budget: &mut Budget,
        buffers: &mut Buffers,
    ) -> Option<u64> {
        let Buffers { slots, order, ordered, .. } = buffers;
        slots.clear();
        order.clear();
        ordered.clear();
        let locked = self.table().lock(partition);
        budget.buckets = budget.buckets.saturating_sub(locked.count() as usize);
        locked.each_slot(|slot| {
            if slot.tablespace == space && slot.hash.id() > last {
                slots.push(slot);
            }
        });
        drop(locked);
        let mut reached = None;
        if slots.len() > 2 * budget.items {
            let at = budget.items.min(slots.len() - 1);
            let (.., &mut middle, _) = slots.select_nth_unstable_by_key(at, |s| s.hash.id());
            slots.retain(|slot| slot.hash.id() <= middle.hash.id());
            reached = Some(middle.hash.id());
        }
        let key = |(index, slot): (usize, &Slot)| slot.hash.id() << INDEX_BITS | index as u64;
        order.extend(slots.iter().enumerate().map(key));
        order.sort_unstable();
        let index = |key: &u64| slots.get((key & ((1 << INDEX_BITS) - 1)) as usize).copied();
        ordered.extend(order.iter().filter_map(index));
        reached
    }
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.items == 0 || self.bytes == 0
    }
}

/// How many of the next slots are a group: those of the same hash are in one.
fn group_len(slots: &[Slot], at_most: usize) -> usize {
    let len = slots.len().min(GROUP).min(at_most);
    let last = slots[len - 1].hash;
    len + slots[len..].iter().take_while(|slot| slot.hash == last).count()
}

fn cursor_at(partition: u64, id: u64) -> Cursor {
    Cursor(partition << PARTITION_SHIFT | id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Unlogged;
    use crate::memory::Heap;
    use crate::store::Options;
    use crate::tablespace::TablespaceOptions;
    use std::collections::BTreeMap;

    type TestStore = Store<Heap, Unlogged>;

    fn store() -> (TestStore, TablespaceId) {
        let options = Options::new(8 << 20, 5);
        let store =
            Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
        let space = store.create_tablespace(&TablespaceOptions::new("t")).unwrap();
        (store, space)
    }

    fn put(store: &TestStore, space: TablespaceId, key: u32, expires_ms: Option<u64>) {
        let (name, value) = (key.to_le_bytes(), key.to_be_bytes());
        store.put(space, &name, &value, 0, expires_ms, 1).unwrap();
    }

    #[test]
    fn all_keys_come_once_while_others_are_inserted() {
        let (store, space) = store();
        (0..3000).for_each(|key| put(&store, space, key, None));
        (0..500).for_each(|key| put(&store, space, 100_000 + key, Some(5)));
        let (mut seen, mut cursor, mut calls) = (BTreeMap::new(), Cursor::START, 0);
        loop {
            let mut left = 7;
            cursor = store.scan(space, cursor, 10, 10, &mut |item| {
                assert_eq!(item.stored.len(), 4);
                *seen.entry(item.key.to_vec()).or_insert(0) += 1;
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            // These make others move, and the partitions grow.
            (0..20).for_each(|key| put(&store, space, 10_000 + calls * 20 + key, None));
            (0..20).for_each(|key| put(&store, space, key * 3, None));
            calls += 1;
            if cursor == Cursor::END {
                break;
            }
            assert!(calls < 100_000);
        }
        assert!((0..3000u32).all(|key| seen[key.to_le_bytes().as_slice()] == 1));
        assert!(seen.values().all(|&times| times == 1));
        assert!(
            (0..500u32).all(|key| !seen.contains_key((100_000 + key).to_le_bytes().as_slice()))
        );
    }

    #[test]
    fn an_item_that_is_not_taken_comes_again() {
        let (store, space) = store();
        (0..500).for_each(|key| put(&store, space, key, None));
        let (mut seen, mut cursor, mut refusals) = (BTreeMap::new(), Cursor::START, 0);
        loop {
            let mut room = 3;
            cursor = store.scan_while(space, cursor, 1, 50, &mut |item| {
                if room == 0 {
                    refusals += 1;
                    return Visited::NotTaken;
                }
                room -= 1;
                *seen.entry(item.key.to_vec()).or_insert(0) += 1;
                Visited::Next
            });
            if cursor == Cursor::END {
                break;
            }
        }
        assert!(refusals > 100);
        assert_eq!(seen.len(), 500);
        assert!(seen.values().all(|&times| times == 1));
    }

    #[test]
    fn any_cursor_is_accepted() {
        let (store, space) = store();
        (0..50).for_each(|key| put(&store, space, key, None));
        for cursor in [u64::MAX, ID, 1 << 48, 1 << 60, 3 << 47] {
            let mut cursor = Cursor(cursor);
            for _ in 0..1000 {
                cursor = store.scan(space, cursor, 1, 5, &mut |_| ControlFlow::Continue(()));
                if cursor == Cursor::END {
                    break;
                }
            }
            assert_eq!(cursor, Cursor::END);
        }
    }
}
