//! The store: operations against a model, limits and quotas.

use std::collections::HashMap;
use std::ops::ControlFlow;

use proptest::prelude::*;

use super::reclaim::BACK_MS;
use super::*;
use crate::item::{ITEM_MAX, KEY_MAX, VALUE_MAX};
use crate::journal::{JournalError, Record};
use crate::memory::Heap;
use crate::scan::Cursor;
use crate::tablespace::{TABLESPACES_MAX, TablespaceError, TablespaceOptions};

pub(super) type TestStore = Store<Heap, Unlogged>;

fn store(limit: u64) -> TestStore {
    let options = Options::new(limit, 11);
    Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap()
}

pub(super) fn with_space(limit: u64) -> (TestStore, TablespaceId) {
    let store = store(limit);
    let space = store.create_tablespace(&TablespaceOptions::new("test")).unwrap();
    (store, space)
}

pub(super) fn get<J: Journal>(
    store: &Store<Heap, J>,
    space: TablespaceId,
    key: &[u8],
    now: u64,
) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    store.get(space, key, now, &mut value).map(|_| value)
}

#[test]
fn what_is_put_is_found_until_it_is_deleted() {
    let (store, space) = with_space(1 << 20);
    assert_eq!(get(&store, space, b"key", 1), None);
    let put = store.put(space, b"key", b"value", 42, Some(900), 1).unwrap();
    assert_eq!((put.changed, put.existed), (Changed::Put, false));
    let mut value = b"before ".to_vec();
    let found = store.get(space, b"key", 1, &mut value).unwrap();
    assert_eq!(value, b"before value");
    assert_eq!((found.flags, found.expires_ms, found.version), (42, Some(900), put.version));
    assert_eq!(store.count(space), 1);
    assert!(store.delete(space, b"key", 1).unwrap().existed);
    assert_eq!(store.delete(space, b"key", 1).unwrap().changed, Changed::Kept);
    assert_eq!(get(&store, space, b"key", 1), None);
    assert_eq!(store.count(space), 0);
}

#[test]
fn a_decision_sees_the_old_value() {
    let (store, space) = with_space(1 << 20);
    store.put(space, b"n", b"41", 7, None, 1).unwrap();
    let before = store.get(space, b"n", 1, &mut Vec::new()).unwrap().version;
    let updated = store.update(space, b"n", 1, &mut |old, scratch| {
        let old = old.unwrap();
        assert!(old.append_value(scratch));
        assert_eq!((scratch.as_slice(), old.found.flags), (b"41".as_slice(), 7));
        scratch.clear();
        scratch.extend_from_slice(b"42");
        Change::Put { value: Value::Scratch, flags: old.found.flags, expiry: Expiry::Default }
    });
    let updated = updated.unwrap();
    assert!(updated.version > before);
    assert_eq!(get(&store, space, b"n", 1).unwrap(), b"42");
    let kept = store.update(space, b"n", 1, &mut |_, _| Change::Keep).unwrap();
    assert_eq!((kept.changed, kept.version), (Changed::Kept, updated.version));
}

#[test]
fn expired_items_are_not_there() {
    let (store, space) = with_space(1 << 20);
    store.put(space, b"key", b"value", 0, Some(100), 1).unwrap();
    assert!(get(&store, space, b"key", 99).is_some());
    assert!(get(&store, space, b"key", 100).is_none());
    store
        .update(space, b"key", 100, &mut |old, _| {
            assert!(old.is_none());
            Change::Touch { expires_ms: None }
        })
        .unwrap();
    assert!(get(&store, space, b"key", 100).is_none(), "touching does not wake the dead");
    store.put(space, b"key", b"new", 0, Some(200), 100).unwrap();
    assert_eq!(store.count(space), 1);
    store.update(space, b"key", 150, &mut |_, _| Change::Touch { expires_ms: Some(300) }).unwrap();
    assert_eq!(get(&store, space, b"key", 250).unwrap(), b"new");
    store.update(space, b"key", 250, &mut |_, _| Change::Touch { expires_ms: None }).unwrap();
    assert_eq!(get(&store, space, b"key", u64::MAX).unwrap(), b"new");
}

/// Threads' clocks differ, and the machine's may be set back.
#[test]
fn what_was_seen_to_have_expired_does_not_come_back() {
    let (store, space) = with_space(1 << 20);
    let keys = || {
        let mut keys = 0;
        store.scan(space, Cursor::START, 9_999, 100, &mut |_| {
            keys += 1;
            ControlFlow::Continue(())
        });
        keys
    };
    store.put(space, b"key", b"value", 0, Some(10_000), 1).unwrap();
    assert_eq!((get(&store, space, b"key", 9_999).is_some(), keys()), (true, 1));
    assert!(get(&store, space, b"key", 10_000).is_none());
    assert_eq!((get(&store, space, b"key", 9_999).is_some(), keys()), (false, 0));
    let mut seen = true;
    store
        .update(space, b"key", 9_999, &mut |old, _| {
            seen = old.is_some();
            Change::Keep
        })
        .unwrap();
    assert!(!seen);
    // A clock that was far ahead is set right.
    assert!(get(&store, space, b"key", 10_000 - BACK_MS - 1).is_some());
}

#[test]
fn keys_and_values_have_limits() {
    let (store, space) = with_space(64 << 20);
    let (key, value) = (vec![b'k'; KEY_MAX], vec![b'v'; VALUE_MAX]);
    store.put(space, &key, &value, 1, None, 1).unwrap();
    assert_eq!(get(&store, space, &key, 1).unwrap(), value);
    store.put(space, b"k", b"", 0, None, 1).unwrap();
    assert_eq!(get(&store, space, b"k", 1).unwrap(), b"");
    let long = vec![0; VALUE_MAX + 1];
    assert_eq!(store.put(space, b"k", &long, 0, None, 1), Err(UpdateError::Value(long.len())));
    let long = vec![0; KEY_MAX + 1];
    assert_eq!(store.put(space, &long, b"", 0, None, 1), Err(UpdateError::Key(long.len())));
    assert_eq!(store.put(space, b"", b"", 0, None, 1), Err(UpdateError::Key(0)));
    assert_eq!(get(&store, space, b"", 1), None);
    assert!(ITEM_MAX as u64 > VALUE_MAX as u64);
}

#[test]
fn the_limit_holds_and_a_refused_change_changes_nothing() {
    let (store, space) = with_space(1 << 20);
    let value = vec![7; 1000];
    let mut held = 0u32;
    let error = loop {
        match store.put(space, &held.to_le_bytes(), &value, 0, None, 1) {
            Ok(_) => held += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, UpdateError::Memory { .. }), "{error}");
    assert!(held > 500, "{held}");
    assert!(
        (0..held).all(|key| get(&store, space, &key.to_le_bytes(), 1).as_ref() == Some(&value))
    );
    assert_eq!(get(&store, space, &held.to_le_bytes(), 1), None);
    for key in 0..held {
        store.delete(space, &key.to_le_bytes(), 1).unwrap();
    }
    store.put(space, b"again", &value, 0, None, 1).unwrap();
}

#[test]
fn a_quota_holds() {
    let store = store(1 << 20);
    let options = TablespaceOptions { quota: Some(10_000), ..TablespaceOptions::new("small") };
    let space = store.create_tablespace(&options).unwrap();
    let value = vec![7; 4000];
    store.put(space, b"a", &value, 0, None, 1).unwrap();
    store.put(space, b"b", &value, 0, None, 1).unwrap();
    let error = store.put(space, b"c", &value, 0, None, 1).unwrap_err();
    assert!(matches!(error, UpdateError::Quota { quota: 10_000, .. }));
    assert!(store.tablespaces()[0].bytes <= 10_000);
}

#[test]
fn tablespaces_are_apart_and_go_with_their_keys() {
    let store = store(1 << 20);
    let create = |name| store.create_tablespace(&TablespaceOptions::new(name));
    let (one, two) = (create("one").unwrap(), create("two").unwrap());
    assert_eq!(create("one"), Err(TablespaceError::Exists("one".into())));
    assert_eq!(create(""), Err(TablespaceError::Name(0)));
    store.put(one, b"key", b"1", 0, None, 1).unwrap();
    store.put(two, b"key", b"2", 0, None, 1).unwrap();
    assert_eq!(get(&store, one, b"key", 1).unwrap(), b"1");
    store.drop_tablespace(one).unwrap();
    assert_eq!(store.drop_tablespace(one), Err(TablespaceError::Unknown(one)));
    assert_eq!(store.put(one, b"key", b"", 0, None, 1), Err(UpdateError::Tablespace(one)));
    assert_eq!(get(&store, one, b"key", 1), None);
    assert_eq!(get(&store, two, b"key", 1).unwrap(), b"2");
    let again = create("one").unwrap();
    assert_eq!((get(&store, again, b"key", 1), store.count(again)), (None, 0));
    assert_eq!(store.tablespace("two"), Some(two));
}

#[test]
fn a_default_expiry_is_taken_where_none_is_given() {
    let store = store(1 << 20);
    let options =
        TablespaceOptions { default_expiry_ms: Some(50), ..TablespaceOptions::new("brief") };
    let space = store.create_tablespace(&options).unwrap();
    store.put(space, b"a", b"", 0, None, 100).unwrap();
    store.put(space, b"b", b"", 0, Some(500), 100).unwrap();
    assert!(get(&store, space, b"a", 149).is_some() && get(&store, space, b"a", 150).is_none());
    assert!(get(&store, space, b"b", 499).is_some());
}

#[test]
fn a_default_expiry_is_not_taken_by_what_never_expires() {
    let store = store(1 << 20);
    let options =
        TablespaceOptions { default_expiry_ms: Some(50), ..TablespaceOptions::new("brief") };
    let space = store.create_tablespace(&options).unwrap();
    for value in [vec![b'v'; 10], vec![b'v'; LONG]] {
        let put = |expiry| {
            let put = Change::Put { value: Value::Given(&value), flags: 0, expiry };
            store.update(space, b"key", 100, &mut |_, _| put).unwrap();
            let mut read = Vec::new();
            store.get(space, b"key", 100, &mut read).unwrap().expires_ms
        };
        assert_eq!(put(Expiry::Never), None);
        assert_eq!(put(Expiry::Default), Some(150));
        assert_eq!(put(Expiry::At(500)), Some(500));
        assert_eq!(put(Expiry::of_item(None)), None);
    }
}

/// A client that still has the number of a tablespace that was dropped finds none of it.
#[test]
fn a_number_is_not_given_again_at_once() {
    let store = store(1 << 20);
    let create = |name: &str| store.create_tablespace(&TablespaceOptions::new(name)).unwrap();
    let (kept, dropped) = (create("kept"), create("dropped"));
    store.drop_tablespace(dropped).unwrap();
    for round in 1..TABLESPACES_MAX - 1 {
        let other = create("other");
        assert!(other != kept && other != dropped, "in round {round}");
        store.put(other, b"key", b"value", 0, None, 1).unwrap();
        let error = store.put(dropped, b"key", b"value", 0, None, 1).unwrap_err();
        assert_eq!(error, UpdateError::Tablespace(dropped));
        assert!(store.flush(dropped).is_err());
        store.drop_tablespace(other).unwrap();
    }
    assert_eq!(create("last"), dropped, "there is no other left that was not given since");
    assert_eq!(store.damaged(), 0);
}

/// What was given last is known from the log, too.
#[test]
fn a_number_that_a_log_has_given_is_not_given_again_at_once() {
    let store = store(1 << 20);
    let options = TablespaceOptions::new("replayed");
    let tablespace = TablespaceId(7);
    store.replay(1, &Record::Create { tablespace, options: &options }).unwrap();
    store.replay(2, &Record::Drop { tablespace }).unwrap();
    let next = store.create_tablespace(&TablespaceOptions::new("next")).unwrap();
    assert_eq!(next, TablespaceId(8));
}

#[test]
fn values_are_compressed_where_the_tablespace_says_so() {
    let store = store(1 << 20);
    let options =
        TablespaceOptions { codec: Codec::Lz4 { head: 4 }, ..TablespaceOptions::new("packed") };
    let space = store.create_tablespace(&options).unwrap();
    let value = b"row row row row ".repeat(100);
    store.put(space, b"key", &value, 3, None, 1).unwrap();
    let mut out = Vec::new();
    let found = store.get(space, b"key", 1, &mut out).unwrap();
    assert_eq!((found.codec, found.flags, out), (Codec::Lz4 { head: 4 }, 3, value.clone()));
    store
        .update(space, b"key", 1, &mut |old, scratch| {
            assert!(old.unwrap().stored_len() < value.len() / 2);
            old.unwrap().append_value(scratch);
            assert_eq!(scratch, &value);
            Change::Keep
        })
        .unwrap();
}

#[test]
fn what_cannot_be_logged_is_not_done() {
    struct Full;
    impl Journal for Full {
        fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
            match record {
                Record::Create { .. } => Ok(1),
                Record::Put { key, .. } if *key == b"a" => Ok(2),
                _ => Err(JournalError::Failed("the disk is full".into())),
            }
        }
    }
    let options = Options::new(1 << 20, 11);
    let store = Store::new(Heap::new(options.memory_len()), Full, options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("t")).unwrap();
    store.put(space, b"a", b"1", 0, None, 1).unwrap();
    let bytes = store.tablespaces()[0].bytes;
    assert!(matches!(store.put(space, b"b", b"", 0, None, 1), Err(UpdateError::Journal(_))));
    assert!(matches!(store.delete(space, b"a", 1), Err(UpdateError::Journal(_))));
    assert!(matches!(store.flush(space), Err(UpdateError::Journal(_))));
    assert_eq!(get(&store, space, b"a", 1).unwrap(), b"1");
    assert_eq!(get(&store, space, b"b", 1), None);
    assert_eq!(store.tablespaces()[0].bytes, bytes);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize, Option<u64>),
    Append(u8, usize),
    Touch(u8, Option<u64>),
    Delete(u8),
    Get(u8),
    Flush,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let expiry = || prop::option::of(0u64..300);
    prop_oneof![
        6 => (any::<u8>(), 0usize..2000, expiry()).prop_map(|(k, l, e)| Step::Put(k, l, e)),
        2 => (any::<u8>(), 0usize..99).prop_map(|(key, len)| Step::Append(key, len)),
        2 => (any::<u8>(), expiry()).prop_map(|(key, expiry)| Step::Touch(key, expiry)),
        2 => any::<u8>().prop_map(Step::Delete),
        4 => any::<u8>().prop_map(Step::Get),
        1 => Just(Step::Flush),
        1 => (0u64..60).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn the_store_is_a_map(steps in prop::collection::vec(step(), 1..300)) {
        let (store, space) = with_space(4 << 20);
        let mut model: HashMap<u8, (Vec<u8>, Option<u64>)> = HashMap::new();
        let (mut now, mut salt) = (1, 0u8);
        for step in steps {
            salt = salt.wrapping_add(1);
            model.retain(|_, (_, expiry)| expiry.is_none_or(|at| at.max(1) > now));
            match step {
                Step::Put(key, len, expiry) => {
                    let value = vec![salt; len];
                    let updated = store.put(space, &[key], &value, 0, expiry, now).unwrap();
                    let old = model.insert(key, (value, expiry));
                    prop_assert_eq!(updated.existed, old.is_some());
                }
                Step::Append(key, len) => {
                    let suffix = vec![salt; len];
                    store.update(space, &[key], now, &mut |old, scratch| {
                        let Some(old) = old else { return Change::Keep };
                        assert!(old.append_value(scratch));
                        scratch.extend_from_slice(&suffix);
                        let expiry = Expiry::of_item(old.found.expires_ms);
                        Change::Put { value: Value::Scratch, flags: 0, expiry }
                    }).unwrap();
                    model.entry(key).and_modify(|(value, _)| value.extend_from_slice(&suffix));
                }
                Step::Touch(key, expires_ms) => {
                    let touch = Change::Touch { expires_ms };
                    store.update(space, &[key], now, &mut |_, _| touch).unwrap();
                    model.entry(key).and_modify(|(_, old)| *old = expires_ms);
                }
                Step::Delete(key) => {
                    let deleted = store.delete(space, &[key], now).unwrap();
                    prop_assert_eq!(deleted.existed, model.remove(&key).is_some());
                }
                Step::Get(key) => {
                    let model = model.get(&key).map(|(value, _)| value.clone());
                    prop_assert_eq!(get(&store, space, &[key], now), model);
                }
                Step::Flush => {
                    store.flush(space).unwrap();
                    model.clear();
                    prop_assert_eq!(store.count(space), 0);
                }
                Step::Pass(ms) => now += ms,
            }
        }
        for key in 0..=255 {
            let alive = |(_, expiry): &&(_, Option<u64>)| expiry.is_none_or(|at| at.max(1) > now);
            let model = model.get(&key).filter(alive).map(|(value, _)| value.clone());
            prop_assert_eq!(get(&store, space, &[key], now), model);
        }
        prop_assert_eq!(store.damaged(), 0);
    }
}
