//! Long values: nobody waits for a lock while they are read, summed or copied.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::tests::with_space;
use super::*;
use crate::journal::{JournalError, Prepared, Record};
use crate::layout::BUCKET;
use crate::memory::Heap;
use crate::sweep::Swept;
use crate::tablespace::TablespaceOptions;

/// Counts how it is called.
#[derive(Debug, Default)]
struct Counting {
    positions: AtomicU64,
    /// Long records that were appended as they are: under the lock of their key.
    bare: AtomicU64,
    prepared: Mutex<Vec<usize>>,
}

impl Journal for Counting {
    fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
        let long = matches!(record, Record::Put { stored, .. } if stored.len() >= LONG);
        self.bare.fetch_add(long.into(), Relaxed);
        Ok(self.positions.fetch_add(1, Relaxed) + 1)
    }

    fn prepare(&self, record: &Record<'_>) -> Option<Prepared> {
        let Record::Put { stored, .. } = record else { return None };
        Some(Prepared { sum: stored.len() as u64, contents: stored.to_vec() })
    }

    fn append_prepared(&self, record: &Record<'_>, with: Prepared) -> Result<u64, JournalError> {
        let Record::Put { stored, .. } = record else { panic!("{record:?}") };
        assert_eq!(with.contents, *stored);
        self.prepared.lock().unwrap().push(stored.len());
        Ok(self.positions.fetch_add(1, Relaxed) + 1)
    }
}

#[test]
fn what_is_long_is_prepared_for_the_log_before_the_lock_is_taken() {
    let options = Options::new(64 << 20, 3);
    let memory = Heap::new(options.memory_len());
    let store = Store::new(memory, Counting::default(), options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("test")).unwrap();
    store.put(space, b"key", b"short", 0, None, 1).unwrap();
    store.put(space, b"key", &vec![1; LONG], 0, None, 1).unwrap();
    store.put(space, b"key", &vec![2; 1 << 20], 9, Some(77), 1).unwrap();
    // What is made of a long value is read and written without the lock, too.
    let appended = store.update(space, b"key", 1, &mut |old, scratch| {
        assert!(old.unwrap().append_value(scratch) && scratch.len() == 1 << 20);
        scratch.push(3);
        Change::Put { value: Value::Scratch, flags: 0, expiry: Expiry::Default }
    });
    assert_eq!(appended.unwrap().changed, Changed::Put);
    let mut value = Vec::new();
    store.get(space, b"key", 1, &mut value).unwrap();
    assert_eq!((value.len(), value.last()), ((1 << 20) + 1, Some(&3)));
    let journal = store.journal();
    assert_eq!(journal.bare.load(Relaxed), 0);
    assert_eq!(*journal.prepared.lock().unwrap(), [LONG, 1 << 20, (1 << 20) + 1]);
}

/// While the decision on a long value is made, another thread changes the same key: it does not
/// wait for a lock, and the decision is made anew.
#[test]
fn a_decision_on_a_long_value_holds_up_nobody_and_holds_only_for_that_value() {
    let (store, space) = with_space(64 << 20);
    let store = Arc::new(store);
    let long = |byte: u8| vec![byte; 1 << 20];
    store.put(space, b"key", &long(b'a'), 0, None, 1).unwrap();
    let mut asked = Vec::new();
    let updated = store.update(space, b"key", 1, &mut |old, scratch| {
        assert!(old.unwrap().append_value(scratch));
        asked.push(scratch[0]);
        if asked.len() == 1 {
            let (tell, done) = channel();
            let (other, value) = (store.clone(), long(b'b'));
            thread::spawn(move || {
                other.put(space, b"key", &value, 0, None, 1).unwrap();
                tell.send(()).unwrap();
            });
            // Only a lock that is held makes this fail, and then for ever.
            if done.recv_timeout(Duration::from_secs(100)).is_err() {
                return Change::Keep;
            }
        }
        scratch.push(b'x');
        Change::Put { value: Value::Scratch, flags: 0, expiry: Expiry::Default }
    });
    assert_eq!(updated.unwrap().changed, Changed::Put);
    assert_eq!(asked, b"ab");
    let mut value = Vec::new();
    store.get(space, b"key", 1, &mut value).unwrap();
    assert_eq!((value.len(), value[0], value[1 << 20]), ((1 << 20) + 1, b'b', b'x'));
    let used: u64 = store.classes(space).iter().map(|class| class.used).sum();
    assert_eq!(store.count(space), 1);
    assert!(used <= 3, "{used} blocks: what was written in vain is given back");
}

#[test]
fn a_key_that_goes_while_it_is_decided_on_is_decided_on_again() {
    let (store, space) = with_space(64 << 20);
    store.put(space, b"key", &vec![7; LONG], 0, None, 1).unwrap();
    let mut asked = Vec::new();
    let kept = store.update(space, b"key", 1, &mut |old, _| {
        asked.push(old.is_some());
        if asked.len() == 1 {
            // No lock is held.
            store.delete(space, b"key", 1).unwrap();
        }
        if old.is_some() { Change::Touch { expires_ms: Some(9) } } else { Change::Keep }
    });
    assert_eq!(kept.unwrap(), Updated { changed: Changed::Kept, existed: false, version: 0 });
    assert_eq!(asked, [true, false]);
}

#[test]
fn a_sweep_of_all_buckets_ends_after_a_lap() {
    let (store, space) = with_space(1 << 20);
    for key in 0..500u32 {
        store
            .put(space, &key.to_le_bytes(), b"value", 0, Some(5000 + 1000 * u64::from(key % 2)), 1)
            .unwrap();
    }
    assert_eq!(store.sweep(5000, u32::MAX).expired, 250);
    store.sweep(5000, 3);
    assert_eq!(store.sweep(6000, u32::MAX).expired, 250, "wherever it begins");
    assert_eq!((store.sweep(6000, u32::MAX).expired, store.count(space)), (0, 0));
}

#[test]
fn a_sweep_looks_only_where_something_may_have_expired() {
    let (store, space) = with_space(8 << 20);
    for key in 0..5000u32 {
        store.put(space, &key.to_le_bytes(), b"value", 0, None, 1).unwrap();
    }
    store.sweep(1, u32::MAX);
    assert_eq!(store.sweep(2000, u32::MAX), Swept::default());
    store.put(space, b"short", b"value", 0, Some(5000), 2000).unwrap();
    assert_eq!(store.sweep(4999, u32::MAX), Swept::default());
    let swept = store.sweep(5000, u32::MAX);
    let all = store.index_bytes() / BUCKET;
    assert!(swept.expired == 1 && (1..=all / 2).contains(&swept.buckets), "{swept:?} of {all}");
    assert_eq!(store.sweep(9000, u32::MAX), Swept::default());
}

#[test]
fn keys_that_move_while_a_sweep_goes_on_expire_in_time() {
    let (store, space) = with_space(4 << 20);
    for key in 0..12_000u32 {
        // Every other key expires, one after the other, and keys move at all times.
        let expires_ms = (key % 2 == 0).then_some(u64::from(key) + 1000);
        store.put(space, &key.to_le_bytes(), b"value", 0, expires_ms, key.into()).unwrap();
        store.sweep(key.into(), 1);
    }
    assert!(store.count(space) > 6000);
    store.sweep(13_000, u32::MAX);
    assert_eq!(store.count(space), 6000);
}
