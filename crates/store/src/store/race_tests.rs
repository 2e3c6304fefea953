//! Threads at once: histories of keys, judged as registers; and hostile memory.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::tests::with_space;
use super::*;
use crate::item::{Item, Live};
use crate::journal::{Journal, JournalError, Record};
use crate::layout::{BUCKET, BUCKET_HEADER, SLOT, SLOTS};
use crate::memory::{Heap, Memory, Watch, Watched};
use crate::slab::Rest;
use crate::table::Hash;
use crate::tablespace::{TablespaceId, TablespaceOptions};

/// An operation of a history, with the moments before it began and after it had ended.
#[derive(Clone, Copy, Debug)]
struct Event {
    begin: u64,
    end: u64,
    key: u64,
    does: Does,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Does {
    /// Writes this number; 0 deletes.
    Write(u64),
    /// Replaces the first number, which it saw, by the second.
    Swap(u64, u64),
    /// Reads this number; 0 if there is none.
    Read(u64),
}

/// Whether one key's events can be put in an order in which each takes effect between its begin and
/// its end, and each sees what the one before left. The search of Wing and Gong, with a memory of
/// what was tried.
fn is_linearizable(events: &[Event]) -> bool {
    fn search(events: &[Event], done: u128, value: u64, tried: &mut HashSet<(u128, u64)>) -> bool {
        let left = |index: &usize| done >> index & 1 == 0;
        let Some(first_end) = (0..events.len()).filter(left).map(|i| events[i].end).min() else {
            return true;
        };
        if !tried.insert((done, value)) {
            return false;
        }
        (0..events.len()).filter(left).filter(|&i| events[i].begin <= first_end).any(|index| {
            let next = match events[index].does {
                Does::Write(next) => Some(next),
                Does::Swap(seen, next) => (seen == value).then_some(next),
                Does::Read(seen) => (seen == value).then_some(value),
            };
            next.is_some_and(|next| search(events, done | 1 << index, next, tried))
        })
    }
    assert!(events.len() <= 128, "a history is short");
    search(events, 0, 0, &mut HashSet::new())
}

#[test]
fn the_checker_tells_right_from_wrong() {
    let event = |begin, end, does| Event { begin, end, key: 0, does };
    let write = event(1, 4, Does::Write(7));
    assert!(is_linearizable(&[write, event(2, 3, Does::Read(0)), event(5, 6, Does::Read(7))]));
    assert!(is_linearizable(&[write, event(2, 3, Does::Read(7))]));
    assert!(!is_linearizable(&[write, event(5, 6, Does::Read(0))]));
    let stale = [write, event(2, 3, Does::Read(7)), event(4, 5, Does::Read(0))];
    assert!(!is_linearizable(&stale));
    let twice = [event(1, 9, Does::Swap(0, 1)), event(1, 9, Does::Swap(0, 2))];
    assert!(!is_linearizable(&twice));
}

struct Recorder<'s> {
    store: &'s Store<Heap>,
    space: TablespaceId,
    clock: &'s AtomicU64,
    events: Vec<Event>,
}

impl Recorder<'_> {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn record(&mut self, key: u64, does: impl FnOnce(&Store<Heap>, TablespaceId) -> Does) {
        let begin = self.tick();
        let does = does(self.store, self.space);
        let end = self.tick();
        self.events.push(Event { begin, end, key, does });
    }

    /// A value says its number in all of its bytes, so that a mixture would show.
    fn value(number: u64) -> Vec<u8> {
        number.to_le_bytes().repeat(1 + number as usize % 40)
    }

    fn number(value: &[u8]) -> u64 {
        let number = u64::from_le_bytes(value[..8].try_into().unwrap());
        assert_eq!(value, Self::value(number), "parts of two values");
        number
    }

    fn write(&mut self, key: u64, number: u64) {
        self.record(key, |store, space| {
            store.put(space, &key.to_le_bytes(), &Self::value(number), 0, None, 1).unwrap();
            Does::Write(number)
        });
    }

    fn delete(&mut self, key: u64) {
        self.record(key, |store, space| {
            store.delete(space, &key.to_le_bytes(), 1).unwrap();
            Does::Write(0)
        });
    }

    fn read(&mut self, key: u64) {
        self.record(key, |store, space| {
            let mut value = Vec::new();
            let found = store.get(space, &key.to_le_bytes(), 1, &mut value);
            Does::Read(found.map_or(0, |_| Self::number(&value)))
        });
    }

    fn swap(&mut self, key: u64, number: u64) {
        self.record(key, |store, space| {
            let mut seen = 0;
            store
                .update(space, &key.to_le_bytes(), 1, &mut |old, scratch| {
                    seen = old.map_or(0, |old| {
                        assert!(old.append_value(scratch));
                        Self::number(scratch)
                    });
                    scratch.clear();
                    scratch.extend_from_slice(&Self::value(number));
                    Change::Put { value: Value::Scratch, flags: 0, expiry: Expiry::Default }
                })
                .unwrap();
            Does::Swap(seen, number)
        });
    }

    /// A READ by the address that a pin-free look gave, as a one-sided client with a cache does it.
    /// What is not there any more is asked of the store.
    fn read_cached(&mut self, key: u64, place: &mut Option<(u64, u64)>) {
        self.record(key, |store, space| {
            let name = key.to_le_bytes();
            if let Some((at, len)) = *place {
                let mut bytes = vec![0; len as usize];
                store.memory().read(at, &mut bytes);
                if let Some(item) = Item::parse(&bytes)
                    && item.key == name
                    && item.tablespace == space
                {
                    return Does::Read(Self::number(item.stored));
                }
            }
            let pin = store.pin();
            let located = store.locate(&pin, space, &name, 1);
            *place = located.map(|located| (located.at, located.len));
            let mut value = located.map_or(Vec::new(), |l| vec![0; l.stored as usize]);
            if let Some(located) = located {
                store.memory().read(located.value_at, &mut value);
            }
            Does::Read(located.map_or(0, |_| Self::number(&value)))
        });
    }
}

/// Rounds of threads that read and write the same keys, while others make the table grow, move its
/// items, and sweep.
#[test]
fn operations_on_a_key_are_linearizable() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 3;
    let (store, space) = with_space(8 << 20);
    let clock = AtomicU64::new(1);
    for round in 0..150u64 {
        let mut events: Vec<Event> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (store, clock) = (&store, &clock);
                    scope.spawn(move || {
                        let mut own = Recorder { store, space, clock, events: Vec::new() };
                        let mut place = [None; KEYS as usize];
                        for step in 0..20u64 {
                            let key = round * KEYS + (step + thread) % KEYS;
                            let number = 1 + thread + THREADS * step;
                            let slot = &mut place[(key % KEYS) as usize];
                            match (step * 7 + thread * 3 + round) % 6 {
                                0 => own.write(key, number),
                                1 => own.delete(key),
                                2 => own.swap(key, number),
                                3 => own.read_cached(key, slot),
                                4 => own.read_cached(key, slot),
                                _ => own.read(key),
                            }
                        }
                        own.events
                    })
                })
                .collect();
            scope.spawn(|| {
                for key in 0..100u64 {
                    let key = (1 << 40 | round << 8 | key).to_le_bytes();
                    store.put(space, &key, &[7; 30], 0, None, 1).unwrap();
                    store.delete(space, &(1u64 << 40 | (round / 2) << 8).to_le_bytes(), 1).unwrap();
                }
                store.sweep(1, 64);
            });
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        events.sort_by_key(|event| event.begin);
        for key in round * KEYS..(round + 1) * KEYS {
            let own: Vec<Event> = events.iter().filter(|event| event.key == key).copied().collect();
            assert!(own.len() > 10 && is_linearizable(&own), "{own:#?}");
        }
    }
    assert_eq!(store.damaged(), 0);
}

/// Adds 1 to a key.
fn increment(store: &Store<Heap, Unlogged>, space: TablespaceId, key: &[u8]) {
    store
        .update(space, key, 1, &mut |old, scratch| {
            if let Some(old) = old {
                assert!(old.append_value(scratch));
            }
            let number = scratch.first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes));
            scratch.clear();
            scratch.extend_from_slice(&(number + 1).to_le_bytes());
            Change::Put { value: Value::Scratch, flags: 0, expiry: Expiry::Default }
        })
        .unwrap();
}

/// What a key has been raised to.
fn sum(store: &Store<Heap, Unlogged>, space: TablespaceId, key: &[u8]) -> u64 {
    let mut value = Vec::new();
    let found = store.get(space, key, 1, &mut value);
    found.map_or(0, |_| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Increments by several threads: none is lost, none counted twice.
#[test]
fn no_increment_is_lost() {
    let (store, space) = with_space(4 << 20);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..5000u32).for_each(|n| increment(&store, space, &(n % 7).to_le_bytes()));
            });
        }
    });
    let total: u64 = (0..7u32).map(|key| sum(&store, space, &key.to_le_bytes())).sum();
    assert_eq!(total, 20_000);
}

/// Increments beside flushes: no more of them are there after a flush than can have come after it.
#[test]
fn no_increment_outlives_a_flush() {
    const KEY: &[u8] = b"key";
    let (store, space) = with_space(4 << 20);
    let (begun, done, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    begun.fetch_add(1, SeqCst);
                    increment(&store, space, KEY);
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        let worst = (0..2000).find_map(|_| {
            let before = done.load(SeqCst);
            store.flush(space).unwrap();
            let left = sum(&store, space, KEY);
            let may_be = begun.load(SeqCst) - before;
            (left > may_be).then_some((left, may_be))
        });
        over.store(true, SeqCst);
        assert_eq!(worst, None, "what is left, and the most that may be");
    });
}

/// A look-up of the kind that `layout` describes, by someone who knows the memory only.
fn look_up_remotely(memory: &Heap, hash: Hash, key: &[u8], space: TablespaceId) -> Option<Vec<u8>> {
    let partitions = memory.load(16);
    let index = memory.load(24);
    let partition = hash.partition(partitions);
    for _ in 0..100 {
        let count = memory.load(crate::layout::COUNTS_AT + partition * 8) as u32;
        let at = hash
            .buckets(count)
            .map(|bucket| index + (u64::from(bucket) * partitions + partition) * BUCKET);
        let mut buckets = [[0; BUCKET as usize]; 2];
        at.iter().zip(&mut buckets).for_each(|(&at, bucket)| memory.read(at, bucket));
        let word =
            |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let header = word(&buckets[0], 0);
        let sequence = |header: u64| header & 0x3F_FFFF_FFFF;
        let levels = [0, 1].map(|which| word(&buckets[which], 0) >> 32 & 0x3F);
        let known = hash.buckets(count).map(|b| u64::from(crate::table::level(b, count)));
        let odd = buckets.iter().any(|bucket| word(bucket, 0) & 1 != 0);
        if odd || levels != known || sequence(memory.load(at[0])) != sequence(header) {
            continue;
        }
        for bucket in &buckets {
            for slot in 0..SLOTS as u64 {
                let slot = (BUCKET_HEADER + slot * SLOT) as usize;
                if word(bucket, slot + 16) << 16 != hash.id() << 16 {
                    continue;
                }
                let mut bytes = vec![0; word(bucket, slot + 8) as u32 as usize];
                memory.read(word(bucket, slot), &mut bytes);
                let item = Item::parse(&bytes);
                let item = item.filter(|item| item.key == key && item.tablespace == space);
                return item.map(|item| item.stored.to_vec());
            }
        }
        return None;
    }
    None
}

#[test]
fn a_reader_of_the_memory_alone_finds_keys_while_the_table_grows() {
    let (store, space) = with_space(8 << 20);
    let stop = AtomicBool::new(false);
    let name = |key: u64| key.to_le_bytes();
    for key in 0..500 {
        store.put(space, &name(key), &name(!key), 0, None, 1).unwrap();
    }
    let (found, missed) = thread::scope(|scope| {
        scope.spawn(|| {
            (1000..40_000).for_each(|key| drop(store.put(space, &name(key), b"", 0, None, 1)));
            stop.store(true, SeqCst);
        });
        let (mut found, mut missed) = (0, 0);
        while !stop.load(SeqCst) {
            for key in 0..500 {
                let hash = store.hasher.hash(space, &name(key));
                match look_up_remotely(store.memory(), hash, &name(key), space) {
                    Some(value) => {
                        assert_eq!(value, name(!key));
                        found += 1;
                    }
                    None => missed += 1,
                }
            }
        }
        (found, missed)
    });
    // A miss is allowed (the kernel is asked then), and has to be rare.
    assert!(found > 100 * missed, "{found} found, {missed} missed");
}

/// One of the operations, on one of many keys, whatever comes of it.
fn visit(store: &Store<Heap, Unlogged>, space: TablespaceId, step: u64) {
    let key = (step * 7919 % 3000).to_le_bytes();
    match step % 8 {
        0..=3 => drop(store.put(space, &key, &[7; 100][..(step % 90) as usize], 1, None, 1)),
        4 => drop(store.delete(space, &key, 1)),
        5 => drop(store.update(space, &key, 1, &mut |old, scratch| {
            old.map(|old| old.append_value(scratch));
            scratch.truncate(1000);
            Change::Put { value: Value::Scratch, flags: 0, expiry: Expiry::At(5) }
        })),
        _ => drop(store.get(space, &key, 1, &mut Vec::new())),
    }
}

/// A client with access to the store's memory writes anything anywhere, at any time.
#[test]
fn hostile_memory_neither_panics_nor_loops() {
    let options = Options::new(512 << 10, 3);
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("t")).unwrap();
    let cache = TablespaceOptions {
        eviction: crate::tablespace::Eviction::Clock,
        codec: Codec::Lz4 { head: 0 },
        ..TablespaceOptions::new("c")
    };
    let cache = store.create_tablespace(&cache).unwrap();
    let geometry = store.table.geometry;
    let (done, memory) = (AtomicBool::new(false), store.memory());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut word = 1u64;
            while !done.load(SeqCst) {
                let mut roll = || {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    word >> 16
                };
                // The buckets in use and the first pages, or one word copied to another place.
                let index = geometry.index_at() + roll() % (geometry.partitions * 64 * BUCKET);
                let area = geometry.area_at + roll() % (256 << 10);
                let [index, area] = [index, area].map(|at| at & !7);
                match roll() % 4 {
                    0 => memory.store(index, roll() << 16 | roll()),
                    1 => memory.store(area, roll() << 16 | roll()),
                    2 => memory
                        .store(index, memory.load(geometry.index_at() + roll() % 4096 / 8 * 8)),
                    _ => memory.store(area, memory.load(geometry.area_at + roll() % 65536 / 8 * 8)),
                }
            }
        });
        for step in 0..8000u64 {
            let space = if step % 2 == 0 { space } else { cache };
            visit(&store, space, step);
            if step % 500 == 0 {
                store.sweep(1 + step, 32);
                let at = crate::scan::Cursor(step << 30);
                store.scan(space, at, 1, 50, &mut |_| std::ops::ControlFlow::Continue(()));
            }
            if step % 5000 == 0 {
                drop(store.flush(space));
            }
        }
        done.store(true, SeqCst);
    });
}

/// A flush lets the locks go now and then. What was there when it began is gone when it returns,
/// for readers by address, too, whatever moves meanwhile.
#[test]
fn a_flush_beside_growth_leaves_nothing_behind() {
    let options = Options::new(32 << 20, 5);
    let memory = Heap::new(options.memory_len());
    let store = Store::new(memory, Unlogged::default(), options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("t")).unwrap();
    let put = |key: u32| {
        store.put(space, &key.to_le_bytes(), b"value", 0, None, 1).unwrap();
    };
    for round in 0..10u32 {
        let keys = round * 100_000..round * 100_000 + 10_000;
        keys.clone().for_each(put);
        let pin = store.pin();
        let places: Vec<u64> = (keys.clone())
            .filter_map(|key| store.locate(&pin, space, &key.to_le_bytes(), 1))
            .map(|located| located.at)
            .collect();
        assert_eq!(places.len(), keys.len());
        thread::scope(|scope| {
            // These make slots move, and partitions grow.
            scope.spawn(|| (keys.end..keys.end + 10_000).for_each(put));
            store.flush(space).unwrap();
            let is_live = |at: &&u64| !Live(store.memory().load(**at)).is_dead();
            assert_eq!(places.iter().filter(is_live).count(), 0, "in round {round}");
        });
        drop(pin);
        store.flush(space).unwrap();
        assert_eq!(store.count(space), 0);
    }
}

/// What happens before the next bytes are read.
#[derive(Default)]
struct Interruption(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Watch for Interruption {
    fn before_read(&self, _: u64, _: usize) {
        let interruption = self.0.lock().unwrap().take();
        interruption.into_iter().for_each(|interrupt| interrupt());
    }
}

/// An item is about to be moved to another page, and its block becomes that of the key's next value
/// just before the lock is taken.
#[test]
fn a_moved_item_is_the_one_that_is_there_under_the_lock() {
    let options = Options::new(1 << 20, 11);
    let memory = Watched::new(options.memory_len(), Interruption::default());
    let store = std::sync::Arc::new(Store::new(memory, Unlogged::default(), options).unwrap());
    let space = store.create_tablespace(&TablespaceOptions::new("test")).unwrap();
    let (short, long) = (vec![1; 101], vec![2; 104]);
    store.put(space, b"key", &short, 0, None, 1).unwrap();
    let at = store.locate(&store.pin(), space, b"key", 1).unwrap().at;
    let (other, put) = (store.clone(), long.clone());
    let interrupt = move || {
        other.delete(space, b"key", 1).unwrap();
        other.gather(0);
        other.put(space, b"key", &put, 0, None, 1).unwrap();
        assert_eq!(other.locate(&other.pin(), space, b"key", 1).unwrap().at, at);
    };
    *store.memory().watch().0.lock().unwrap() = Some(Box::new(interrupt));
    assert!(store.move_item(at, Rest::Whole));
    let located = store.locate(&store.pin(), space, b"key", 1).unwrap();
    assert_ne!(located.at, at);
    let mut item = vec![0; located.len as usize];
    store.memory().read(located.at, &mut item);
    assert_eq!(Item::parse(&item).expect("a whole item").stored, long);
    assert_eq!(store.damaged(), 0);
}

/// Says when a change is logged, and lets it go on when it is told to.
struct Held {
    logged: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Journal for Held {
    fn append(&self, _: &Record<'_>) -> Result<u64, JournalError> {
        self.logged.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        Ok(1)
    }
}

/// A retry finds its request in the log before the first one's thread has published the change.
#[test]
fn a_change_that_is_logged_can_be_awaited() {
    let ((logged, is_logged), (proceed, go_on)) = (channel(), channel());
    proceed.send(()).unwrap();
    let options = Options::new(1 << 20, 11);
    let held = Held { logged, go_on: Mutex::new(go_on) };
    let store = Store::new(Heap::new(options.memory_len()), held, options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("test")).unwrap();
    is_logged.recv().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| store.put(space, b"key", b"value", 0, None, 1).unwrap());
        is_logged.recv().unwrap();
        let store = &store;
        let there = move || store.locate(&store.pin(), space, b"key", 1).is_some();
        assert!(!there(), "it is not published yet");
        let waits = scope.spawn(move || {
            store.await_change(space, b"key");
            there()
        });
        thread::sleep(Duration::from_millis(20));
        proceed.send(()).unwrap();
        assert!(waits.join().unwrap());
    });
}
