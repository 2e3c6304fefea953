//! When items were used last.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::memory::Heap;
use crate::tablespace::TablespaceOptions;

type TestStore = Store<Heap, Unlogged>;

fn traced(limit: u64) -> (TestStore, TablespaceId) {
    let options = Options { traced: Some("test"), ..Options::new(limit, 11) };
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("test")).unwrap();
    (store, space)
}

/// When a key was used last, by a look that nobody knows of.
fn trace(store: &TestStore, space: TablespaceId, key: &[u8], now: u64) -> Option<Trace> {
    store.get_unnoticed(space, key, now, &mut Vec::new()).unwrap().trace
}

#[test]
fn a_read_is_seen_by_the_next_one() {
    let (store, space) = traced(1 << 20);
    // Of all lengths of the begin of a word, and one that is written without the lock.
    for value in [&b"value"[..], b"values", b"a value", &[7; LONG + 3]] {
        store.put(space, b"k", value, 9, None, 5000).unwrap();
        let mut got = Vec::new();
        let first = store.get(space, b"k", 9_900, &mut got).unwrap();
        assert_eq!(first.trace, Some(Trace { second: 5, is_read: false }));
        assert!(got == value && first.flags == 9);
        let read = Some(Trace { second: 9, is_read: true });
        assert_eq!(trace(&store, space, b"k", 11_000), read);
        assert_eq!(trace(&store, space, b"k", 12_000), read, "the look before left none");
        let located = store.locate(&store.pin(), space, b"k", 13_000).unwrap();
        assert_eq!(located.found.trace, read);
        assert_eq!(trace(&store, space, b"k", 13_000).unwrap().second, 13);
    }
}

#[test]
fn what_is_not_traced_is_no_larger() {
    let (store, space) = traced(1 << 20);
    let other = store.create_tablespace(&TablespaceOptions::new("other")).unwrap();
    for space in [space, other] {
        store.put(space, &[1; 16], &[2; 64], 0, None, 1).unwrap();
    }
    assert_eq!(store.get(other, &[1; 16], 1, &mut Vec::new()).unwrap().trace, None);
    let sizes = [space, other].map(|space| store.classes(space)[0].size);
    assert_eq!(sizes, [128, 112]);
    // An item from before has no trace, and no room for one.
    let options = Options::new(1 << 20, 1);
    let memory = Heap::new(options.memory_len());
    let plain = Store::new(memory, Unlogged::default(), options).unwrap();
    let space = plain.create_tablespace(&TablespaceOptions::new("late")).unwrap();
    plain.put(space, b"old", b"value", 0, None, 7000).unwrap();
    plain.trace("late");
    plain.put(space, b"new", b"value", 0, None, 8000).unwrap();
    assert_eq!(trace(&plain, space, b"old", 9000), None);
    assert_eq!(trace(&plain, space, b"new", 9000).unwrap().second, 8);
}

#[test]
fn an_item_takes_its_trace_along_when_it_moves() {
    let (store, space) = traced(4 << 20);
    let key = |number: u32| number.to_be_bytes();
    for number in 0..20_000 {
        store.put(space, &key(number), b"value", 0, None, 5000).unwrap();
    }
    for number in (0..20_000).filter(|number| number % 7 != 0) {
        store.delete(space, &key(number), 5000).unwrap();
    }
    let place = |number| store.locate(&store.pin(), space, &key(number), 6000).unwrap().at;
    let before: Vec<u64> = (0..20_000).step_by(7).map(place).collect();
    while store.tidy_pages(false) {}
    let read = Some(Trace { second: 6, is_read: true });
    let traces = (0..20_000).step_by(7).map(|number| trace(&store, space, &key(number), 9000));
    assert_eq!(traces.filter(|is| *is == read).count(), before.len());
    let after: Vec<u64> = (0..20_000).step_by(7).map(place).collect();
    assert!(before != after, "nothing has moved");
}

/// A reader's word is written without a lock, and never into what a block holds later.
#[test]
fn traces_of_readers_damage_no_item() {
    let (store, space) = traced(16 << 20);
    const PUTS: u32 = 50_000;
    let (stop, mut refused) = (AtomicBool::new(false), 0);
    let key = |number: u32| (number % 16).to_be_bytes();
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let (mut value, mut number) = (Vec::new(), 0);
                while !stop.load(Relaxed) {
                    value.clear();
                    store.get(space, &key(number), u64::from(number), &mut value);
                    assert!(value.iter().all(|byte| *byte == 0xA5), "{value:x?}");
                    number += 1;
                }
            });
        }
        for number in 0..PUTS {
            let value = [0xA5; 256];
            let value = &value[..number as usize * 37 % 256];
            // A reader that does not run keeps all blocks as they are, and memory may be short.
            refused += u32::from(store.put(space, &key(number), value, 0, None, 1).is_err());
        }
        stop.store(true, Relaxed);
    });
    assert!(refused < PUTS / 2, "{refused} of {PUTS} puts were refused");
    assert_eq!(store.damaged(), 0);
}
