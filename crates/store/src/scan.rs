//! A walk over a tablespace.
//!
//! A scan goes partition by partition, and in a partition in the order of the keys' hashes. So a
//! key that moves to another bucket or block meanwhile is neither missed nor met twice, and a
//! cursor is a number that needs no state in the store.
//!
//! That order is none in memory, and to sort all keys of a partition would cost more than to judge
//! them. So a selection judges the keys that come next in whatever order the index has them, by
//! their judged columns only, while those behind them are on their way into the cache; what may be
//! selected is sorted by hash, and visited.

mod buffers;
mod judge;

use std::ops::ControlFlow;

use self::buffers::{Buffers, with_buffers};
use self::judge::{AHEAD_MAX, HEAD_AHEAD, JUDGED_MAX};
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
/// Items that are fetched before they are visited.
const VISITED_AHEAD: usize = 16;

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
pub(crate) struct ScanBudget {
    /// Items that it may visit, and about as many that it may judge: up to twice as many, if they
    /// are all that is left of a partition.
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

/// What the keys that come next in a partition are followed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// None.
    End,
    /// Others, behind this hash.
    More(u64),
    /// One that is too long, of this hash.
    Long(u64),
}

/// What there is in a partition behind a hash.
#[derive(Clone, Copy, Debug)]
struct Walked {
    /// Buckets of the partition.
    buckets: usize,
    /// The lowest hash of an item that is too long; `u64::MAX` if there is none.
    long: u64,
    /// Bytes of the items.
    len: usize,
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
        let mut budget = ScanBudget { items, bytes: READ_MAX, buckets: WALKED_MAX, looked_at: 0 };
        let mut visit = |copied: &Copied<'_>| {
            if copied.is_whole() {
                return visit(&copied.item);
            }
            self.count_damage();
            Visited::Next
        };
        self.scan_within(&wanted, cursor, &mut budget, &mut visit).cursor
    }

    /// As [`Store::scan_while`], within a budget, of items that may be selected. What a visitor
    /// gets is not checked by its sum.
    pub(crate) fn scan_within(
        &self,
        wanted: &Wanted<'_>,
        cursor: Cursor,
        budget: &mut ScanBudget,
        visit: &mut Visit<'_>,
    ) -> Went {
        // What a slot led to stays as it is, so that it can be read without the lock.
        let _pin = self.pin();
        let wanted = &Wanted { now: self.judged_at(wanted.now), ..*wanted };
        with_buffers(|buffers| self.scan_by(wanted, cursor, (buffers, budget), visit))
    }

    fn scan_by(
        &self,
        wanted: &Wanted<'_>,
        cursor: Cursor,
        (buffers, budget): (&mut Buffers, &mut ScanBudget),
        visit: &mut Visit<'_>,
    ) -> Went {
        let partitions = self.table().geometry.partitions;
        let (mut partition, mut last) = (cursor.0 >> PARTITION_SHIFT, cursor.0 & ID);
        let went = |cursor, is_long| Went { cursor, is_long };
        while partition < partitions {
            let next = self.next_slots(wanted, (partition, last), budget, buffers);
            match wanted.plan {
                Some(plan) => {
                    let Buffers { judge, slots, chosen, .. } = &mut *buffers;
                    judge.choose(self, wanted.space, slots, (wanted.now, plan), chosen);
                }
                None => buffers.choose_all(),
            }
            if let ControlFlow::Break(last) = self.visit_chosen(wanted, buffers, budget, visit) {
                return went(cursor_at(partition, last), false);
            }
            match next {
                Next::End => (partition, last) = (partition + 1, 0),
                Next::More(reached) => return went(cursor_at(partition, reached), false),
                Next::Long(id) => return went(cursor_at(partition, id - 1), true),
            }
            // To judge keys means to walk over all of their partition: not for a few.
            let few = wanted.plan.is_some() && buffers.slots.len() > 2 * budget.items;
            if budget.is_spent() || budget.buckets == 0 || few {
                break;
            }
        }
        went(if partition < partitions { cursor_at(partition, last) } else { Cursor::END }, false)
    }

    /// Visits the items that were chosen. Breaks with the hash up to which it has come, if that is
    /// not the last one.
    fn visit_chosen(
        &self,
        wanted: &Wanted<'_>,
        buffers: &mut Buffers,
        budget: &mut ScanBudget,
        visit: &mut Visit<'_>,
    ) -> ControlFlow<u64> {
        buffers.chosen.sort_unstable();
        let mut bytes = std::mem::take(&mut buffers.item);
        let mut flow = ControlFlow::Continue(());
        let fetch = |slot| self.prefetch_item(slot, AHEAD_MAX);
        buffers.chosen_slots(0).take(VISITED_AHEAD).for_each(fetch);
        let mut ahead = buffers.chosen_slots(VISITED_AHEAD);
        let (mut broke, mut before) = (false, 0);
        for slot in buffers.chosen_slots(0) {
            let id = slot.hash.id();
            if id != before && (broke || budget.is_spent()) {
                flow = ControlFlow::Break(id - 1);
                break;
            }
            before = id;
            ahead.next().into_iter().for_each(fetch);
            let copied = self.copy_pinned(slot, wanted.now, &mut bytes);
            let item = if copied { Item::parse_unsummed(&bytes) } else { None };
            if copied && item.is_none() {
                self.count_damage();
            }
            if let Some(item) = item {
                match visit(&Copied { item, bytes: &bytes }) {
                    Visited::NotTaken => {
                        flow = ControlFlow::Break(id - 1);
                        break;
                    }
                    Visited::Last => broke = true,
                    Visited::Next => {}
                }
                budget.looked_at += 1;
                budget.bytes = budget.bytes.saturating_sub(bytes.len());
            }
            budget.items = budget.items.saturating_sub(1);
        }
        drop(ahead);
        if broke && flow.is_continue() {
            flow = ControlFlow::Break(before);
        }
        buffers.item = bytes;
        let rejected = buffers.rejected(flow.break_value().unwrap_or(ID));
        budget.looked_at += rejected as u32;
        budget.items = budget.items.saturating_sub(rejected);
        budget.bytes = budget.bytes.saturating_sub(buffers.judge.bytes);
        flow
    }

    /// How many buckets the partition has to which a cursor leads.
    pub(crate) fn buckets_of(&self, cursor: Cursor) -> usize {
        let mut counts = self.table().counts();
        counts.nth((cursor.0 >> PARTITION_SHIFT) as usize).unwrap_or(0) as usize
    }

    /// Finds the slots in a partition behind the hash `last`, in no order, and lets the lock go
    /// after so many buckets.
    fn walk(
        &self,
        wanted: &Wanted<'_>,
        (partition, last): (u64, u64),
        at_once: u32,
        slots: &mut Vec<Slot>,
    ) -> Walked {
        // Where slots move meanwhile, some may be missed, or met twice: then it is all at once.
        for at_once in [at_once, u32::MAX] {
            slots.clear();
            let (mut next, mut moves) = (0, None);
            let (mut long, mut len) = (u64::MAX, 0);
            loop {
                let locked = self.table().lock(partition);
                if *moves.get_or_insert(locked.inner.moves) != locked.inner.moves {
                    break;
                }
                let (count, end) = (locked.count(), at_once.saturating_add(next));
                locked.each_slot(next..end.min(count), |slot| {
                    let id = slot.hash.id();
                    if slot.tablespace == wanted.space && id > last {
                        if slot.len as usize > wanted.longest {
                            long = long.min(id);
                        }
                        len += slot.len as usize;
                        slots.push(slot);
                    }
                });
                if end >= count {
                    return Walked { buckets: count as usize, long, len };
                }
                next = end;
            }
        }
        unreachable!("the lock is held all the while")
    }

    /// Finds the slots of a partition that come next after the hash `last`, in no order.
    fn next_slots(
        &self,
        wanted: &Wanted<'_>,
        (partition, last): (u64, u64),
        budget: &mut ScanBudget,
        buffers: &mut Buffers,
    ) -> Next {
        let Buffers { slots, chosen: ids, .. } = buffers;
        let at_once = WALKED_MAX as u32;
        let Walked { buckets, long, len } = self.walk(wanted, (partition, last), at_once, slots);
        budget.buckets = budget.buckets.saturating_sub(buckets);
        let mut next = Next::End;
        if long != u64::MAX {
            next = Next::Long(long);
            slots.retain(|slot| slot.hash.id() < long);
        }
        let at_most = match wanted.plan {
            // What is judged of all of them counts as read.
            Some(plan) => {
                let each = (plan.reach().min(JUDGED_MAX) + HEAD_AHEAD).saturating_mul(slots.len());
                let share = len.min(each) / budget.bytes.max(1) + 1;
                budget.items.min(slots.len().div_ceil(share)).max(1)
            }
            None => budget.items,
        };
        if slots.len() > 2 * at_most {
            ids.clear();
            ids.extend(slots.iter().map(|slot| slot.hash.id()));
            let (.., &mut reached, _) = ids.select_nth_unstable(at_most - 1);
            slots.retain(|slot| slot.hash.id() <= reached);
            next = Next::More(reached);
        }
        next
    }
}

impl ScanBudget {
    fn is_spent(&self) -> bool {
        self.items == 0 || self.bytes == 0
    }
}

fn cursor_at(partition: u64, id: u64) -> Cursor {
    Cursor(partition << PARTITION_SHIFT | id)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod cursor_tests {
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

    /// The lock is let go in between, and slots move then.
    #[test]
    fn a_partition_is_walked_over_in_pieces() {
        let (store, space) = store();
        (0..3000).for_each(|key| put(&store, space, key, None));
        let walk = |at_once| {
            let mut slots = Vec::new();
            let wanted = Wanted { space, now: 1, longest: usize::MAX, plan: None };
            store.walk(&wanted, (1, 5), at_once, &mut slots);
            slots.into_iter().map(|slot| slot.hash).collect::<Vec<_>>()
        };
        let stay = walk(u32::MAX);
        assert!(stay.len() > 500);
        std::thread::scope(|scope| {
            let others =
                scope.spawn(|| (3000..30_000).for_each(|key| put(&store, space, key, None)));
            while !others.is_finished() {
                let mut found = walk(8);
                found.sort_unstable();
                assert!(stay.iter().all(|hash| found.binary_search(hash).is_ok()));
                let all = found.len();
                found.dedup();
                assert_eq!(found.len(), all, "none twice");
            }
        });
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
