//! Several keys put as one: all of them, or none.

use std::cell::Cell;

use super::{
    Attempt, Change, Decide, Decision, RETRIES, Target, Unwritten, UpdateError, Value, Written,
};
use crate::item::{KEY_MAX, VALUE_MAX};
use crate::journal::Journal;
use crate::layout::BUCKET;
use crate::memory::Memory;
use crate::store::{Expiry, Store};
use crate::tablespace::TablespaceId;

/// A key and its value.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// Buckets that the index may grow by, taken from the memory beforehand.
#[derive(Debug, Default)]
pub(super) struct Spare(Cell<u64>);

impl Spare {
    /// Takes one, if one is left.
    pub(super) fn take(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }
}

impl<M: Memory, J: Journal> Store<M, J> {
    /// Puts all pairs in order, each as [`Store::put`] does without flags or a time, or none of
    /// them. Others may see a part of them meanwhile. The answer is the version of the last one.
    ///
    /// All memory is taken before anything is changed, and a log that takes the first record of a
    /// transaction takes all of it. So a part can be left only where the index has no place for a
    /// later key ([`UpdateError::Crowded`]), or where the tablespace is dropped meanwhile.
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub fn put_all(
        &self,
        space: TablespaceId,
        pairs: &[Pair<'_>],
        now: u64,
    ) -> Result<u64, UpdateError> {
        for (key, value) in pairs {
            if !(1..=KEY_MAX).contains(&key.len()) {
                return Err(UpdateError::Key(key.len()));
            }
            if value.len() > VALUE_MAX {
                return Err(UpdateError::Value(value.len()));
            }
        }
        self.note_time(now);
        let (spare, mut written) = (Spare::default(), Vec::with_capacity(pairs.len()));
        let done = self.write_all(space, pairs, now, (&spare, &mut written)).and_then(|()| {
            let mut last = 0;
            let mut ready = pairs.iter().zip(written.drain(..));
            let linked = ready.try_for_each(|((key, _), written)| {
                last = self.link(space, key, now, (&spare, written))?;
                Ok(())
            });
            ready.for_each(|(_, written)| self.free(written.at));
            linked.map(|()| last)
        });
        written.into_iter().for_each(|written| self.free(written.at));
        self.usage.give(spare.0.get() * BUCKET);
        done
    }

    /// Takes all memory that the pairs need.
    fn write_all<'v>(
        &self,
        space: TablespaceId,
        pairs: &[Pair<'v>],
        now: u64,
        (spare, all): (&Spare, &mut Vec<Written<'v>>),
    ) -> Result<(), UpdateError> {
        let buckets = pairs.len() as u64;
        let needed = buckets * BUCKET;
        self.with_room(space, 0, now, || match self.usage.take(needed) {
            true => Ok(()),
            false => Err(UpdateError::Memory { needed, limit: self.usage.limit() }),
        })?;
        spare.0.set(buckets);
        for &(key, value) in pairs {
            let partition = self.hasher.hash(space, key).partition(self.table.geometry.partitions);
            let write = || self.write(space, key, Unwritten { value, flags: 0 });
            all.push(self.with_room(space, partition, now, write)?);
        }
        Ok(())
    }

    /// What `act` answers once there is room for it, if room can be made.
    fn with_room<T>(
        &self,
        space: TablespaceId,
        partition: u64,
        now: u64,
        mut act: impl FnMut() -> Result<T, UpdateError>,
    ) -> Result<T, UpdateError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match act() {
                Err(error) if tries <= RETRIES && self.reclaim(space, partition, &error, now) => {}
                result => return result,
            }
        }
    }

    /// Gives a key the item that was written for it. The answer is its version.
    fn link(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        (spare, written): (&Spare, Written<'_>),
    ) -> Result<u64, UpdateError> {
        let (value, flags, expiry) = (Value::Given(written.value), 0, Expiry::Default);
        let target = Target {
            key,
            hash: self.hasher.hash(space, key),
            asked: None,
            spare: Some(spare),
            weight: 1,
        };
        let mut written = Some(written);
        let decide: &mut Decide<'_, '_> = &mut |_, _| Change::Put { value, flags, expiry };
        let done = self.try_update(space, target, now, decide, Decision::Again(None), &mut written);
        if let Some(Written { at, .. }) = written {
            self.free(at);
        }
        match done {
            Ok(Attempt::Done(updated)) => Ok(updated.version),
            Err(error) if !matches!(error, UpdateError::Crowded) => Err(error),
            // Something may be evicted for it.
            _ => Ok(self.update(space, key, now, decide)?.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{JournalError, Record};
    use crate::memory::Heap;
    use crate::store::Options;
    use crate::store::tests::{get, with_space};
    use crate::tablespace::TablespaceOptions;

    /// All pairs, or none for want of memory; what was taken for them is given back.
    #[test]
    fn a_full_store_takes_no_part() {
        let (store, space) = with_space(1 << 20);
        store.put(space, b"first", b"old", 7, None, 1).unwrap();
        let value = vec![7; 100 << 10];
        let keys: Vec<String> = (0..20).map(|number| format!("key {number}")).collect();
        let few = |count: usize| -> Vec<Pair<'_>> {
            let first = [(&b"first"[..], &b"new"[..])].into_iter();
            first.chain(keys[..count].iter().map(|key| (key.as_bytes(), &value[..]))).collect()
        };
        let (used, items) = (store.used_bytes(), store.count(space));
        for _ in 0..3 {
            let refused = store.put_all(space, &few(20), 1);
            assert!(matches!(refused, Err(UpdateError::Memory { .. })), "{refused:?}");
            assert_eq!(get(&store, space, b"first", 1).unwrap(), b"old");
            assert_eq!(store.count(space), items);
        }
        let version = store.put_all(space, &few(4), 1).unwrap();
        assert_eq!(store.count(space), items + 4);
        assert_eq!(get(&store, space, b"first", 1).unwrap(), b"new");
        assert_eq!(get(&store, space, b"key 3", 1).unwrap(), value);
        assert_eq!(store.get(space, b"key 3", 1, &mut Vec::new()).unwrap().version, version);
        for key in &keys[..4] {
            store.delete(space, key.as_bytes(), 1).unwrap();
        }
        store.gather(1 << 20);
        assert!(store.used_bytes() <= used + (64 << 10), "{used} {}", store.used_bytes());
    }

    #[test]
    fn a_quota_takes_no_part_and_eviction_makes_room() {
        let (store, _) = with_space(8 << 20);
        let quota = Some(256 << 10);
        let options = TablespaceOptions { quota, ..TablespaceOptions::new("small") };
        let small = store.create_tablespace(&options).unwrap();
        let value = vec![7; 100 << 10];
        let pairs: [Pair<'_>; 3] = [(b"a", b"1"), (b"b", &value), (b"c", &value)];
        let twice: Vec<Pair<'_>> = [pairs, [(b"d", &value), (b"e", &value), (b"f", b"2")]].concat();
        let refused = store.put_all(small, &twice, 1);
        assert!(matches!(refused, Err(UpdateError::Quota { .. })), "{refused:?}");
        assert_eq!(store.count(small), 0);
        store.put_all(small, &pairs, 1).unwrap();
        assert_eq!(store.count(small), 3);
        let eviction = crate::tablespace::Eviction::Clock;
        let options = TablespaceOptions { quota, eviction, ..TablespaceOptions::new("evicts") };
        let evicts = store.create_tablespace(&options).unwrap();
        for name in 0..9_u8 {
            store.put_all(evicts, &[(&[name], &value), (b"last", &[name])], 1).unwrap();
            assert_eq!(get(&store, evicts, b"last", 1).unwrap(), [name]);
            assert_eq!(get(&store, evicts, &[name], 1).unwrap(), value);
        }
    }

    #[derive(Debug, Default)]
    struct Refuses(std::sync::atomic::AtomicU64);

    impl Journal for Refuses {
        fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
            if matches!(record, Record::Put { .. }) {
                return Err(JournalError::Failed("no".to_owned()));
            }
            Ok(1 + self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
        }
    }

    #[test]
    fn a_log_that_refuses_leaves_nothing_taken() {
        let options = Options::new(1 << 20, 11);
        let store =
            Store::new(Heap::new(options.memory_len()), Refuses::default(), options).unwrap();
        let space = store.create_tablespace(&TablespaceOptions::new("test")).unwrap();
        let value = vec![7; 100 << 10];
        for _ in 0..50 {
            let refused = store.put_all(space, &[(b"a", &value), (b"b", b"2")], 1);
            assert!(matches!(refused, Err(UpdateError::Journal(_))), "{refused:?}");
        }
        assert_eq!(store.count(space), 0);
    }

    /// The same key twice has the later value, and many keys make the index grow.
    #[test]
    fn all_are_put_in_order() {
        let (store, space) = with_space(8 << 20);
        let keys: Vec<[u8; 4]> = (0..20_000_u32).map(u32::to_le_bytes).collect();
        let mut pairs: Vec<Pair<'_>> = keys.iter().map(|key| (&key[..], &key[..])).collect();
        pairs.push((&keys[5], b"again"));
        store.put_all(space, &pairs, 1).unwrap();
        assert_eq!(store.count(space), 20_000);
        assert_eq!(get(&store, space, &keys[5], 1).unwrap(), b"again");
        assert!(keys[6..].iter().all(|key| get(&store, space, key, 1).unwrap() == key));
        for (key, value) in [(vec![], vec![]), (b"k".to_vec(), vec![0; VALUE_MAX + 1])] {
            store.put_all(space, &[(b"new", b"1"), (&key, &value)], 1).unwrap_err();
            assert_eq!(get(&store, space, b"new", 1), None);
        }
    }
}
