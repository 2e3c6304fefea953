//! A walk over a tablespace.
//!
//! A scan goes partition by partition, and in a partition in the order of the keys' hashes. So a
//! key that moves to another bucket or block meanwhile is neither missed nor met twice, and a
//! cursor is a number that needs no state in the store.

use std::ops::ControlFlow;

use crate::item::Item;
use crate::journal::Journal;
use crate::memory::Memory;
use crate::store::Store;
use crate::table::Slot;
use crate::tablespace::TablespaceId;

/// The most items of one call.
pub const BATCH_MAX: usize = 2048;
/// Bytes of items after which a call ends.
const READ_MAX: usize = 1 << 20;
/// Items that are fetched together: their hashes' order is no order in memory, so that each of them
/// is in no cache.
const AHEAD: usize = 16;
/// Partitions of a call in which nothing is found.
const EMPTY_MAX: usize = 64;
const PARTITION_SHIFT: u32 = 48;
const ID: u64 = (1 << PARTITION_SHIFT) - 1;

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
        let went = self.scan_short(space, cursor, now, (at_most, usize::MAX), visit);
        went.expect("no item is longer")
    }

    /// As [`Store::scan_while`], up to the first item of more than `longest` bytes. `None` if that
    /// is the next one, which was not read.
    pub(crate) fn scan_short(
        &self,
        space: TablespaceId,
        cursor: Cursor,
        now: u64,
        (at_most, longest): (usize, usize),
        visit: &mut dyn FnMut(&Item<'_>) -> Visited,
    ) -> Option<Cursor> {
        let at_most = at_most.clamp(1, BATCH_MAX);
        let partitions = self.table().geometry.partitions;
        let (mut partition, mut last) = (cursor.0 >> PARTITION_SHIFT, cursor.0 & ID);
        let (mut slots, mut item) = (Vec::new(), Vec::new());
        // What a slot led to stays as it is, so that it can be read without the lock.
        let _pin = self.pin();
        for _ in 0..EMPTY_MAX {
            if partition >= partitions {
                return Some(Cursor::END);
            }
            let more = self.next_slots(space, (partition, last), at_most, &mut slots);
            let (mut left, mut bytes, mut broke_at) = (at_most, READ_MAX, None);
            for (index, slot) in slots.iter().enumerate() {
                let (id, len) = (slot.hash.id(), slot.len as usize);
                let ends = left == 0 || bytes == 0 || broke_at.is_some();
                if ends && id != last {
                    return Some(cursor_at(partition, last));
                }
                if len > longest {
                    let visited = left < at_most;
                    return visited.then(|| cursor_at(partition, last.min(id - 1)));
                }
                if index % AHEAD == 0 {
                    let next = &slots[index..slots.len().min(index + AHEAD)];
                    next.iter().for_each(|slot| self.prefetch_item(slot));
                }
                if self.copy_pinned(slot, now, &mut item) {
                    (left, bytes) = (left.saturating_sub(1), bytes.saturating_sub(len));
                    match Item::parse(&item).map_or(Visited::Next, |item| visit(&item)) {
                        Visited::Next => {}
                        Visited::Last => broke_at = Some(id),
                        Visited::NotTaken => return Some(cursor_at(partition, last.min(id - 1))),
                    }
                }
                last = id;
            }
            if broke_at.is_some() {
                return Some(cursor_at(partition, last));
            }
            (partition, last) = more.map_or((partition + 1, 0), |reached| (partition, reached));
            if left < at_most {
                break;
            }
        }
        Some(if partition >= partitions { Cursor::END } else { cursor_at(partition, last) })
    }

    /// Finds the slots of a partition that come next after the hash `last`, in order. Returns the
    /// hash up to which it has come, if that is not the partition's end.
    fn next_slots(
        &self,
        space: TablespaceId,
        (partition, last): (u64, u64),
        at_most: usize,
        slots: &mut Vec<Slot>,
    ) -> Option<u64> {
        slots.clear();
        let locked = self.table().lock(partition);
        let wanted = |slot: &Slot| slot.tablespace == space && slot.hash.id() > last;
        let stashed = locked.stashed();
        let all = (0..locked.count()).flat_map(|bucket| locked.slots_of(bucket)).chain(stashed);
        slots.extend(all.map(|(_, slot)| slot).filter(wanted));
        drop(locked);
        let mut reached = None;
        if slots.len() > 2 * at_most {
            let (.., &mut middle, _) = slots.select_nth_unstable_by_key(at_most, |s| s.hash.id());
            slots.retain(|slot| slot.hash.id() <= middle.hash.id());
            reached = Some(middle.hash.id());
        }
        slots.sort_unstable_by_key(|slot| slot.hash.id());
        reached
    }
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
