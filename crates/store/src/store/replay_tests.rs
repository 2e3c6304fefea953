//! What is logged leads to the same store again; and how much work a change may do.

use std::ops::ControlFlow;
use std::sync::Mutex;

use super::tests::with_space;
use super::*;
use crate::item::Item;
use crate::journal::{JournalError, Record};
use crate::layout::BUCKET;
use crate::memory::Heap;
use crate::scan::Cursor;
use crate::tablespace::{Eviction, TablespaceOptions};

/// A record that owns what it names.
enum Logged {
    Put(TablespaceId, Vec<u8>, Vec<u8>, Codec, u32, Option<u64>),
    Touch(TablespaceId, Vec<u8>, Option<u64>),
    Delete(TablespaceId, Vec<u8>),
    Create(TablespaceId, TablespaceOptions),
    Drop(TablespaceId),
    Flush(TablespaceId),
}

/// Keeps every record; its position is its place.
#[derive(Default)]
struct Memo(Mutex<Vec<Logged>>);

impl Journal for Memo {
    fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
        let mut all = self.0.lock().unwrap();
        all.push(match *record {
            Record::Put { tablespace, key, stored, codec, flags, expires_ms } => {
                Logged::Put(tablespace, key.to_vec(), stored.to_vec(), codec, flags, expires_ms)
            }
            Record::Touch { tablespace, key, expires_ms } => {
                Logged::Touch(tablespace, key.to_vec(), expires_ms)
            }
            Record::Delete { tablespace, key } => Logged::Delete(tablespace, key.to_vec()),
            Record::Create { tablespace, options } => Logged::Create(tablespace, options.clone()),
            Record::Drop { tablespace } => Logged::Drop(tablespace),
            Record::Flush { tablespace } => Logged::Flush(tablespace),
        });
        Ok(all.len() as u64)
    }
}

impl Memo {
    fn play(&self, store: &Store<Heap>) {
        for (index, logged) in self.0.lock().unwrap().iter().enumerate() {
            let record = match *logged {
                Logged::Put(tablespace, ref key, ref stored, codec, flags, expires_ms) => {
                    Record::Put { tablespace, key, stored, codec, flags, expires_ms }
                }
                Logged::Touch(tablespace, ref key, expires_ms) => {
                    Record::Touch { tablespace, key, expires_ms }
                }
                Logged::Delete(tablespace, ref key) => Record::Delete { tablespace, key },
                Logged::Create(tablespace, ref options) => Record::Create { tablespace, options },
                Logged::Drop(tablespace) => Record::Drop { tablespace },
                Logged::Flush(tablespace) => Record::Flush { tablespace },
            };
            store.replay(index as u64 + 1, &record).unwrap();
        }
    }
}

/// All items, in the order of their keys' hashes.
fn all<J: Journal>(store: &Store<Heap, J>, space: TablespaceId) -> Vec<String> {
    let (mut cursor, mut items) = (Cursor::START, Vec::new());
    loop {
        cursor = store.scan(space, cursor, 0, 100, &mut |item: &Item<'_>| {
            items.push(format!("{item:?}"));
            ControlFlow::Continue(())
        });
        if cursor == Cursor::END {
            return items;
        }
    }
}

#[test]
fn a_log_played_again_makes_the_same_store() {
    let options = Options::new(1 << 20, 21);
    let memory = || Heap::new(options.memory_len());
    let store = Store::new(memory(), Memo::default(), options).unwrap();
    let create = |options| store.create_tablespace(&options).unwrap();
    let spaces = [
        create(TablespaceOptions { eviction: Eviction::Clock, ..TablespaceOptions::new("a") }),
        create(TablespaceOptions {
            codec: Codec::Lz4 { head: 2 },
            eviction: Eviction::Clock,
            ..TablespaceOptions::new("b")
        }),
        create(TablespaceOptions::new("gone")),
    ];
    for step in 0..20_000u64 {
        let space = spaces[(step % 3) as usize];
        let key = (step * 7919 % 4001).to_le_bytes();
        match step % 11 {
            0 => drop(store.delete(space, &key, 1).unwrap()),
            1 => {
                let touch = Change::Touch { expires_ms: Some(1000 + step) };
                store.update(space, &key, 1, &mut |_, _| touch).unwrap();
            }
            // More than fits, so that some are evicted, which is in the log, too.
            _ => match store.put(space, &key, &step.to_le_bytes().repeat(60), 3, None, 1) {
                Ok(_) => {}
                Err(error) => assert!(matches!(error, UpdateError::Memory { .. }), "{error}"),
            },
        }
        match step {
            9_000 => drop(store.flush(spaces[0]).unwrap()),
            15_000 => store.flush(spaces[2]).map(|_| ()).unwrap(),
            _ => {}
        }
    }
    store.drop_tablespace(spaces[2]).unwrap();
    let again = Store::new(memory(), Unlogged::default(), options).unwrap();
    store.journal().play(&again);
    assert!(all(&store, spaces[0]).len() > 50);
    for space in spaces {
        assert_eq!(all(&again, space), all(&store, space));
        assert_eq!(again.count(space), store.count(space));
    }
    // Records that are known, as those before a snapshot's end are.
    store.journal().play(&again);
    for space in spaces {
        assert_eq!(all(&again, space), all(&store, space));
    }
}

/// What is logged of an expiry is what came of it, not what was asked for.
#[test]
fn a_log_played_again_gives_no_expiry_that_was_not_given() {
    let options = Options::new(1 << 20, 21);
    let memory = || Heap::new(options.memory_len());
    let store = Store::new(memory(), Memo::default(), options).unwrap();
    let brief =
        TablespaceOptions { default_expiry_ms: Some(50), ..TablespaceOptions::new("brief") };
    let space = store.create_tablespace(&brief).unwrap();
    let value = Value::Given(b"value");
    for (key, expiry) in [(1, Expiry::Default), (2, Expiry::Never), (3, Expiry::At(500))] {
        let put = Change::Put { value, flags: 0, expiry };
        store.update(space, &[key], 100, &mut |_, _| put).unwrap();
    }
    let again = Store::new(memory(), Unlogged::default(), options).unwrap();
    store.journal().play(&again);
    assert_eq!(all(&again, space), all(&store, space));
    let ends =
        [1u8, 2, 3].map(|key| again.get(space, &[key], 100, &mut Vec::new()).unwrap().expires_ms);
    assert_eq!(ends, [Some(150), None, Some(500)]);
}

/// However large the store is, a put splits a handful of buckets and never waits for a whole table
/// to be made anew.
#[test]
fn growth_is_a_bounded_part_of_a_put() {
    let (store, space) = with_space(32 << 20);
    let mut largest = 0;
    for key in 0..100_000u64 {
        let before = store.index_bytes();
        store.put(space, &key.to_le_bytes(), b"", 0, None, 1).unwrap();
        largest = largest.max(store.index_bytes() - before);
    }
    assert!((BUCKET..=5 * BUCKET).contains(&largest), "{largest} bytes at once");
    let load = 100_000.0 / (store.index_bytes() / BUCKET * 5) as f64;
    assert!(load >= 0.9, "{load}");
}
