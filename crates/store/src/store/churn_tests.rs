//! Long runs: churn, eviction, expiry, in virtual time.

use super::tests::{get, with_space};
use super::*;
use crate::item::{EXTENSION, HEAD};
use crate::journal::{JournalError, Record};
use crate::memory::{Heap, Watch, Watched};
use crate::tablespace::{Eviction, TablespaceOptions};

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const HOUR: u64 = 3_600_000;

/// A day in which the sizes of values change every hour, most keys expire, and some stay for ever.
/// The memory in use stays in proportion to what is held, and everything that should be there is.
#[test]
fn a_day_of_churn_does_not_fragment_memory() {
    let (store, space) = with_space(64 << 20);
    let mut dice = Dice(1);
    let mut worst: f64 = 0.0;
    for hour in 0..24 {
        let least = [20, 900, 200, 6000, 60, 2500][hour as usize % 6];
        for step in 0..4000 {
            let now = 1 + hour * HOUR + step * (HOUR / 4000);
            let value = vec![hour as u8; (least + dice.roll(least)) as usize];
            // One of 50 stays.
            let stays = dice.roll(50) == 0;
            let key = if stays { dice.roll(2000) } else { 10_000 + dice.roll(100_000) };
            let expires_ms = (!stays).then(|| now + HOUR / 2 + dice.roll(HOUR));
            store.put(space, &key.to_le_bytes(), &value, 0, expires_ms, now).unwrap();
            if step % 4 == 0 {
                store.sweep(now, 64);
            }
        }
        let info = &store.tablespaces()[0];
        let used = store.used_bytes() - store.index_bytes();
        if hour >= 3 {
            worst = worst.max(used as f64 / info.bytes as f64);
        }
    }
    assert!(worst < 1.6, "pages have {worst} times the bytes of blocks");
    assert_eq!(store.damaged(), 0);
    let end = 30 * HOUR;
    for _ in 0..2000 {
        store.sweep(end, 64);
    }
    let info = &store.tablespaces()[0];
    assert!(info.items <= 2000, "{} items are left: what expired is gone", info.items);
    let present = (0..2000u64).filter(|key| get(&store, space, &key.to_le_bytes(), end).is_some());
    assert_eq!(present.count() as u64, info.items);
    let used = store.used_bytes() - store.index_bytes();
    assert!(used < 2 * info.bytes + (4 << 20), "{used} bytes of pages for {}", info.bytes);
}

fn cache(limit: u64) -> (Store<Heap>, TablespaceId) {
    cache_with(Options::new(limit, 9))
}

fn cache_with(options: Options) -> (Store<Heap>, TablespaceId) {
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
    let options =
        TablespaceOptions { eviction: Eviction::Clock, ..TablespaceOptions::new("cache") };
    let space = store.create_tablespace(&options).unwrap();
    (store, space)
}

/// A cache takes everything, whatever sizes come after each other, with a sweeper and without one,
/// and while readers without a lock are connected, for whom blocks rest.
#[test]
fn a_cache_never_refuses() {
    for (sweeps, quarantine_ms) in [(false, 0), (true, 0), (false, 1000), (true, 1000)] {
        let (store, space) = cache_with(Options { quarantine_ms, ..Options::new(4 << 20, 9) });
        let (mut dice, mut now) = (Dice(2), 1);
        for round in 0..12u64 {
            let len = [100, 3000, 30, 700, 20_000, 100_000][round as usize % 6];
            for step in 0..(6 << 20) / (len + 80) {
                let value = vec![round as u8; (len + dice.roll(len / 4)) as usize];
                let key = dice.roll(1 << 40).to_le_bytes();
                store.put(space, &key, &value, 0, None, now).unwrap();
                if step % 16 == 0 {
                    assert_eq!(get(&store, space, &key, now).unwrap(), value);
                    now += 1;
                    if sweeps {
                        store.sweep(now, 8);
                    }
                }
                assert!(store.used_bytes() <= store.limit());
            }
        }
        assert_eq!(store.damaged(), 0);
        let bytes = store.tablespaces()[0].bytes;
        assert!(bytes > store.limit() / 3, "{bytes} bytes are in use of {}", store.limit());
    }
}

/// A put evicts about what it needs, while what was evicted rests for readers, too; and a sweep no
/// more than is to be free.
#[test]
fn no_more_is_evicted_than_needed() {
    for quarantine_ms in [0, 1000] {
        let (store, space) = cache_with(Options { quarantine_ms, ..Options::new(16 << 20, 9) });
        let put = |key: u32, now| store.put(space, &key.to_le_bytes(), &[1; 64], 0, None, now);
        let mut keys = 0..;
        while store.evicted() == 0 {
            put(keys.next().unwrap(), 1).unwrap();
        }
        let (held, before) = (store.count(space), store.evicted());
        keys.by_ref().take(20_000).for_each(|key| _ = put(key, 1).unwrap());
        let evicted = store.evicted() - before;
        assert!(evicted < 22_000, "{evicted} for 20000 puts with {quarantine_ms} ms of rest");
        // Nobody writes any more.
        (0..1000).for_each(|turn| _ = store.sweep(2 + 10 * turn, 4096));
        let kept = store.count(space);
        assert!(kept * 10 > held * 9, "{kept} of {held} with {quarantine_ms} ms of rest");
        assert!(store.used_bytes() + (16 << 20) / 128 <= store.limit(), "pages are kept free");
        for key in keys.take(100) {
            store.put(space, &key.to_le_bytes(), &[1; 20_000], 0, None, 20_000).unwrap();
        }
        assert_eq!(store.damaged(), 0);
    }
}

/// The longest read.
#[derive(Default)]
struct Longest(AtomicU64);

impl Watch for Longest {
    fn before_read(&self, _: u64, len: usize) {
        self.0.fetch_max(len as u64, Relaxed);
    }
}

/// Keys that were deleted.
#[derive(Default)]
struct Deleted(Unlogged, Mutex<Vec<Vec<u8>>>);

impl Journal for Deleted {
    fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
        if let Record::Delete { key, .. } = record {
            self.1.lock().unwrap().push(key.to_vec());
        }
        self.0.append(record)
    }
}

/// Of an item that is evicted only its key is read, for the log.
#[test]
fn a_value_that_is_evicted_is_not_read() {
    let options = Options::new(64 << 20, 9);
    let memory = Watched::new(options.memory_len(), Longest::default());
    let store = Store::new(memory, Deleted::default(), options).unwrap();
    let options =
        TablespaceOptions { eviction: Eviction::Clock, ..TablespaceOptions::new("cache") };
    let space = store.create_tablespace(&options).unwrap();
    let value = vec![1; 16 << 20];
    let keys: Vec<Vec<u8>> = (0..8).map(|key: u8| vec![key; 1000]).collect();
    for key in &keys {
        store.put(space, key, &value, 0, None, 1).unwrap();
    }
    let deleted = store.journal().1.lock().unwrap().clone();
    assert!(deleted.len() as u64 == store.evicted() && deleted.len() >= 4);
    assert!(deleted.iter().all(|key| keys.contains(key)));
    assert!(store.memory().watch().0.load(Relaxed) <= (HEAD + EXTENSION + 1000) as u64);
}

#[test]
fn what_is_used_often_stays_in_the_cache() {
    let (store, space) = cache(2 << 20);
    let value = vec![1; 400];
    let hot = |key: u64| key.to_le_bytes();
    (0..200).for_each(|key| drop(store.put(space, &hot(key), &value, 0, None, 1)));
    for key in 1000..30_000u64 {
        store.put(space, &key.to_le_bytes(), &value, 0, None, 1).unwrap();
        store.get(space, &hot(key % 200), 1, &mut Vec::new());
    }
    let kept = (0..200).filter(|&key| get(&store, space, &hot(key), 1).is_some()).count();
    assert!(kept > 180, "{kept} of 200");
}

#[test]
fn eviction_at_a_quota_takes_that_tablespaces_items_only() {
    for quarantine_ms in [0, 1000] {
        evict_at_a_quota(Options { quarantine_ms, ..Options::new(4 << 20, 9) });
    }
}

fn evict_at_a_quota(options: Options) {
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
    let kept = store.create_tablespace(&TablespaceOptions::new("kept")).unwrap();
    let small = store
        .create_tablespace(&TablespaceOptions {
            quota: Some(100_000),
            eviction: Eviction::Clock,
            ..TablespaceOptions::new("small")
        })
        .unwrap();
    let value = vec![1; 400];
    for key in 0..2000u32 {
        store.put(kept, &key.to_le_bytes(), &value, 0, None, 1).unwrap();
        store.put(small, &key.to_le_bytes(), &value, 0, None, 1).unwrap();
    }
    assert_eq!(store.count(kept), 2000);
    let info = &store.tablespaces()[1];
    assert!(info.bytes <= 100_000 && info.bytes > 60_000, "{info:?}");
    let long = vec![0; 200_000];
    let error = store.put(small, b"long", &long, 0, None, 1).unwrap_err();
    assert!(matches!(error, UpdateError::Quota { .. }));
    assert_eq!(store.tablespaces()[1].items, info.items, "nothing went for what cannot fit");
}

/// A small cache finds its own items among very many of others, used ones last.
#[test]
fn a_small_cache_beside_a_large_tablespace_takes_everything() {
    let options = Options::new(64 << 20, 9);
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
    let large = store.create_tablespace(&TablespaceOptions::new("large")).unwrap();
    let cache = TablespaceOptions {
        quota: Some(1 << 20),
        eviction: Eviction::Clock,
        ..TablespaceOptions::new("cache")
    };
    let small = store.create_tablespace(&cache).unwrap();
    for key in 0..400_000u32 {
        store.put(large, &key.to_le_bytes(), b"value", 0, None, 1).unwrap();
    }
    let value = vec![1; 50_000];
    for key in 0..200u32 {
        store.put(small, &key.to_le_bytes(), &value, 0, None, 1).unwrap();
        store.get(small, &0u32.to_le_bytes(), 1, &mut Vec::new());
    }
    assert_eq!(store.count(large), 400_000);
    assert!((15..=20).contains(&store.count(small)), "{}", store.count(small));
    assert!(get(&store, small, &0u32.to_le_bytes(), 1).is_some(), "what is used stays");
}

/// What was deleted makes room at a quota, wherever in the index it was.
#[test]
fn what_was_deleted_makes_room_at_a_quota() {
    let (store, _) = with_space(8 << 20);
    let quota = TablespaceOptions { quota: Some(100_000), ..TablespaceOptions::new("quota") };
    let space = store.create_tablespace(&quota).unwrap();
    for key in 0..100u32 {
        store.put(space, &key.to_le_bytes(), &[1; 60_000], 0, None, 1).unwrap();
        let more = store.put(space, b"more", &[1; 60_000], 0, None, 1).unwrap_err();
        assert!(matches!(more, UpdateError::Quota { .. }));
        store.delete(space, &key.to_le_bytes(), 1).unwrap();
    }
}

/// A block that a pin may look at is not written, and one in quarantine not before its time.
#[test]
fn blocks_that_may_be_seen_stay_as_they_are() {
    let (store, space) = with_space(1 << 20);
    store.put(space, b"key", b"first", 0, None, 1).unwrap();
    let pin = store.pin();
    let place = store.locate(&pin, space, b"key", 1).unwrap();
    let bytes = |place: &Located| {
        let mut bytes = vec![0; place.stored as usize];
        store.memory().read(place.value_at, &mut bytes);
        bytes
    };
    for n in 0..500u32 {
        store.put(space, b"key", &n.to_le_bytes().repeat(2)[..5], 0, None, 1).unwrap();
    }
    assert_eq!(bytes(&place), b"first");
    drop(pin);
    for n in 0..500u32 {
        store.put(space, b"key", &n.to_le_bytes().repeat(2)[..5], 0, None, 1).unwrap();
    }
    assert!(store.used_bytes() < 300_000);

    let options = Options { quarantine_ms: 10, ..Options::new(1 << 20, 9) };
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("t")).unwrap();
    store.put(space, b"key", b"first", 0, None, 100).unwrap();
    let place = store.locate(&store.pin(), space, b"key", 100).unwrap();
    let mut written = false;
    for now in 100..120 {
        store.put(space, b"key", b"later", 0, None, now).unwrap();
        let mut bytes = [0; 5];
        store.memory().read(place.value_at, &mut bytes);
        written |= &bytes != b"first";
        assert!(!written || now >= 110, "written at {now}");
    }
    assert!(written);
}

/// A clock that is set back far is believed: blocks rest from then on for as long as before, and no
/// longer.
#[test]
fn blocks_become_free_after_the_clock_was_set_back() {
    let options = Options { quarantine_ms: 10, ..Options::new(1 << 20, 9) };
    let store = Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap();
    let space = store.create_tablespace(&TablespaceOptions::new("t")).unwrap();
    let put = |now| _ = store.put(space, b"key", &[1; 4000], 0, None, now).unwrap();
    (0..100).for_each(|_| put(HOUR));
    let used = store.used_bytes();
    (0..10).for_each(|_| put(HOUR / 2));
    assert!(store.used_bytes() > used, "what was retired before rests");
    for now in HOUR / 2..HOUR / 2 + 1000 {
        put(now);
    }
    assert!(store.used_bytes() < used + 100_000, "{} after {used}", store.used_bytes());
}

/// Threads that fill a cache with values of changing sizes, while it evicts, expires, moves items
/// and grows: no value is mixed with another, the limit holds, and no block is lost or freed twice.
#[test]
fn a_cache_under_threads_stays_whole() {
    let (store, space) = cache(3 << 20);
    let value = |key: u64, len: u64| key.to_le_bytes().repeat(len as usize / 8 + 1);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for step in 0..15_000u64 {
                    let now = 1 + step;
                    let key = dice.roll(8000);
                    let name = key.to_le_bytes();
                    let long = [60, 300, 2000][(step / 2000) as usize % 3];
                    let expires_ms = key.is_multiple_of(3).then(|| now + 500);
                    match dice.roll(8) {
                        0..=3 => {
                            let value = value(key, dice.roll(long));
                            store.put(space, &name, &value, 0, expires_ms, now).unwrap();
                        }
                        4 => drop(store.delete(space, &name, now).unwrap()),
                        5 if step % 64 == 0 => drop(store.sweep(now, 64)),
                        _ => {
                            if let Some(held) = get(store, space, &name, now) {
                                assert_eq!(held, value(key, held.len() as u64 - 1));
                            }
                        }
                    }
                    assert!(store.used_bytes() <= store.limit());
                }
            });
        }
    });
    assert_eq!(store.damaged(), 0);
    store.drop_tablespace(space).unwrap();
    // A lap frees a part of what was retired.
    (0..64).for_each(|_| _ = store.sweep(1 << 20, u32::MAX));
    assert!(store.classes(space).iter().all(|class| class.used == 0), "{:?}", store.classes(space));
}

/// What is deleted is resident no more, but for what a store keeps at hand; and what comes then is
/// whole.
#[test]
fn the_machine_has_back_what_was_deleted() {
    let (store, space) = with_space(32 << 20);
    let value = |key: u32| vec![key as u8; 900];
    let long = vec![7; 2 << 20];
    let fill = |store: &Store<Heap>| {
        (0..10_000u32).for_each(|key| {
            store.put(space, &key.to_le_bytes(), &value(key), 0, None, 1).unwrap();
        });
        store.put(space, b"long", &long, 0, None, 1).unwrap();
    };
    fill(&store);
    let full = store.memory().resident();
    assert!(full > 12 << 20, "{full} bytes");
    // Every hundredth key stays: its page is emptied by moving it.
    let stays = |key: &u32| key.is_multiple_of(100);
    (0..10_000u32).filter(|key| !stays(key)).for_each(|key| {
        store.delete(space, &key.to_le_bytes(), 1).unwrap();
    });
    store.delete(space, b"long", 1).unwrap();
    let mut given = 0;
    for turn in 0..2000 {
        given += store.sweep(2 + turn, 4096).given_back_bytes;
    }
    let (left, used) = (store.memory().resident(), store.used_bytes());
    assert!(left <= used + (32 << 20) / 64 + (256 << 10), "{left} resident, {used} in use");
    assert!(given > 8 << 20 && left < full / 4, "{left} of {full}");
    let has = |key: u32, now: u64| get(&store, space, &key.to_le_bytes(), now);
    assert!((0..10_000).filter(stays).all(|key| has(key, 3000) == Some(value(key))));
    fill(&store);
    assert!((0..10_000).all(|key| has(key, 3000) == Some(value(key))));
    assert_eq!((get(&store, space, b"long", 3000), store.damaged()), (Some(long), 0));
}
