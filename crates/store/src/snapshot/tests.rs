//! Stores that are read back: after crashes, with snapshots, against a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::codec::Codec;
use crate::disk::{Disk, Fault, Faulty};
use crate::log::{
    Committer, Fsync, Log, Options, Progress, RecoverError, Recovered, Recovery, open, salvage,
};
use crate::memory::{Heap, Memory};
use crate::store::{self, Change, Expiry, Store, Value};
use crate::tablespace::{Eviction, TablespaceId, TablespaceOptions};

/// What a store has: by tablespace and key, the value, the flags and the expiry.
type Model = BTreeMap<(String, Vec<u8>), (Vec<u8>, u32, Option<u64>)>;

fn log_options(fsync: Fsync) -> Options {
    Options { fsync, segment_bytes: 1000, salt: 3, retry_ms: 10, ..Options::default() }
}

fn reopen(disk: &Arc<Faulty>, fsync: Fsync) -> Result<Recovered<Heap, Faulty>, RecoverError> {
    reopen_with(disk, log_options(fsync))
}

fn reopen_with(disk: &Arc<Faulty>, log: Options) -> Result<Recovered<Heap, Faulty>, RecoverError> {
    let options = store::Options::new(4 << 20, 5);
    open(disk, Heap::new(options.memory_len()), options, log, 0)
}

/// All that a store has, and the version of each item.
fn contents(store: &Store<Heap, Log>) -> Model {
    let mut model = Model::new();
    for space in store.tablespaces() {
        let mut cursor = crate::scan::Cursor::START;
        loop {
            cursor = store.scan(space.id, cursor, 0, 100, &mut |item| {
                let mut value = Vec::new();
                item.codec.decode(item.stored, 1 << 20, &mut value).unwrap();
                let key = (space.options.name.clone(), item.key.to_vec());
                model.insert(key, (value, item.flags, item.expires_ms));
                std::ops::ControlFlow::Continue(())
            });
            if cursor == crate::scan::Cursor::END {
                break;
            }
        }
    }
    model
}

/// A change that a client asks for.
#[derive(Clone, Debug)]
enum Ask {
    Put(u8, u8, u16, Option<u64>),
    Touch(u8, u8, Option<u64>),
    Delete(u8, u8),
    Create(u8),
    Drop(u8),
    Flush(u8),
    Turn,
    /// Some steps of a snapshot: begins one if there is none, ends it after the last.
    Snapshot(u8),
}

fn asks() -> impl Strategy<Value = Ask> {
    let time = prop_oneof![Just(None), (1u64..1 << 40).prop_map(Some)];
    prop_oneof![
        8 => (0u8..4, 0u8..12, 0u16..300, time.clone())
            .prop_map(|(space, key, length, time)| Ask::Put(space, key, length, time)),
        2 => (0u8..4, 0u8..12, time).prop_map(|(space, key, time)| Ask::Touch(space, key, time)),
        2 => (0u8..4, 0u8..12).prop_map(|(space, key)| Ask::Delete(space, key)),
        1 => (0u8..4).prop_map(Ask::Create),
        1 => (0u8..4).prop_map(Ask::Drop),
        1 => (0u8..4).prop_map(Ask::Flush),
        6 => Just(Ask::Turn),
        3 => (1u8..4).prop_map(Ask::Snapshot),
    ]
}

fn space_options(space: u8) -> TablespaceOptions {
    TablespaceOptions {
        name: format!("space{space}"),
        quota: (space == 1).then_some(1 << 20),
        eviction: if space == 2 { Eviction::Clock } else { Eviction::Never },
        default_expiry_ms: None,
        codec: if space == 3 { Codec::Lz4 { head: 0 } } else { Codec::None },
    }
}

/// A store under a client, and what it should have after each position of the log.
struct World {
    disk: Arc<Faulty>,
    fsync: Fsync,
    now_ms: u64,
    /// What the store has had, by the counter of the change that made it so.
    history: BTreeMap<u64, Model>,
    model: Model,
    count: u64,
}

impl World {
    fn new(seed: u64, fsync: Fsync) -> World {
        let history = BTreeMap::from([(0, Model::new())]);
        let disk = Arc::new(Faulty::new(seed));
        World { disk, fsync, now_ms: 0, history, model: Model::new(), count: 0 }
    }

    /// Runs a life of the store: it is opened, compared, changed as asked until the disk crashes.
    /// Answers what was durable at the end.
    fn live(&mut self, durable: u64, asks: &[Ask]) -> u64 {
        let Ok(recovered) = reopen(&self.disk, self.fsync) else {
            assert!(self.disk.crashed(), "a store that cannot be opened");
            return durable;
        };
        let Recovered { store, mut committer, recovery } = recovered;
        self.compare(&store, &recovery, durable);
        let mut walk = None;
        for ask in asks {
            if self.disk.crashed() {
                break;
            }
            self.now_ms += 1;
            match ask {
                Ask::Turn => _ = committer.turn(self.now_ms),
                Ask::Snapshot(steps) => {
                    walk = self.snapshot(&store, &mut committer, walk, *steps);
                }
                change => self.change(&store, change),
            }
        }
        store.journal().durable().counter()
    }

    fn compare(&mut self, store: &Store<Heap, Log>, recovery: &Recovery, durable: u64) {
        let last = recovery.log.last.counter();
        assert!(last >= durable, "{durable} were durable, {recovery:?}");
        self.history.split_off(&(last + 1));
        let (_, expected) = self.history.last_key_value().unwrap();
        assert_eq!(contents(store), *expected, "{recovery:?}");
        self.model = expected.clone();
    }

    fn change(&mut self, store: &Store<Heap, Log>, ask: &Ask) {
        let name = |space: &u8| format!("space{space}");
        let find = |space: &u8| store.tablespace(&name(space));
        let now = 0;
        self.count += 1;
        let done = match ask {
            Ask::Put(space, key, length, expires_ms) => find(space).is_some_and(|id| {
                let value = vec![(self.count % 251) as u8; usize::from(*length)];
                let flags = u32::from(*length) * 3;
                let put = store.put(id, &[*key], &value, flags, *expires_ms, now);
                let key = (name(space), vec![*key]);
                put.is_ok() && {
                    self.model.insert(key, (value, flags, *expires_ms));
                    true
                }
            }),
            Ask::Touch(space, key, expires_ms) => find(space).is_some_and(|id| {
                let expires_ms = *expires_ms;
                let touch =
                    &mut |_: Option<&store::Old<'_>>, _: &mut Vec<u8>| Change::Touch { expires_ms };
                let touched = store.update(id, &[*key], now, touch);
                let item = self.model.get_mut(&(name(space), vec![*key]));
                touched.is_ok()
                    && item.is_some_and(|item| {
                        item.2 = expires_ms;
                        true
                    })
            }),
            Ask::Delete(space, key) => find(space).is_some_and(|id| {
                store.delete(id, &[*key], now).is_ok()
                    && self.model.remove(&(name(space), vec![*key])).is_some()
            }),
            Ask::Create(space) => store.create_tablespace(&space_options(*space)).is_ok(),
            Ask::Drop(space) => find(space).is_some_and(|id| {
                let dropped = store.drop_tablespace(id).is_ok();
                if dropped {
                    self.model.retain(|(of, _), _| *of != name(space));
                }
                dropped
            }),
            Ask::Flush(space) => find(space).is_some_and(|id| {
                let flushed = store.flush(id).is_ok();
                if flushed {
                    self.model.retain(|(of, _), _| *of != name(space));
                }
                flushed
            }),
            Ask::Turn | Ask::Snapshot(_) => false,
        };
        if done {
            self.history.insert(store.journal().last().counter(), self.model.clone());
        }
    }

    /// Some steps of a snapshot. It is what [`Snapshots`] does, spread over time.
    fn snapshot<'s>(
        &mut self,
        store: &'s Store<Heap, Log>,
        committer: &mut Committer<Faulty>,
        walk: Option<Walk<'s, Heap, Faulty>>,
        steps: u8,
    ) -> Option<Walk<'s, Heap, Faulty>> {
        let mut walk = match walk {
            Some(walk) => walk,
            None => Walk::begin(store, &self.disk, self.now_ms).ok()?,
        };
        for _ in 0..steps {
            match walk.step() {
                Ok(true) => {}
                Ok(false) => {
                    let (covered, end) = (walk.covered(), walk.needs());
                    store.journal().hurry(end);
                    committer.turn(self.now_ms);
                    if store.journal().durable() >= end && walk.finish(end).is_ok() {
                        _ = file::remove_before(&*self.disk, covered);
                        _ = crate::log::remove_before(&*self.disk, covered);
                    }
                    return None;
                }
                Err(_) => return None,
            }
        }
        Some(walk)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Three lives, each cut short at some step of the disk: after each, the store is as it was
    /// after some change that is not before the last one that was durable.
    #[test]
    fn a_store_is_read_back_as_it_was_after_a_change(
        seed: u64,
        policy in 0usize..3,
        lives in prop::collection::vec((prop::collection::vec(asks(), 0..80), 0u64..120), 3),
    ) {
        let fsync = [Fsync::Always, Fsync::EverySecond, Fsync::No][policy];
        let mut world = World::new(seed, fsync);
        let mut durable = 0;
        for (asks, crash) in &lives {
            world.disk.fault_at(world.disk.steps() + crash, Fault::Crash);
            // Every space is there from the start, so that most changes are made.
            let all = (0..4).map(Ask::Create).chain(asks.iter().cloned()).collect::<Vec<_>>();
            durable = world.live(durable, &all);
            world.disk.restart();
        }
        world.live(durable, &[]);
    }
}

/// The same with errors of the disk instead of crashes.
#[test]
fn errors_of_the_disk_harm_no_snapshot() {
    let mut saved = 0;
    for seed in 0..60 {
        let mut world = World::new(seed, Fsync::Always);
        let mut asks: Vec<_> = (0..4).map(Ask::Create).collect();
        for at in 0..60u8 {
            asks.push(Ask::Put(at % 4, at % 7, u16::from(at) * 3, None));
            asks.push(if at % 3 == 0 { Ask::Snapshot(1) } else { Ask::Turn });
        }
        let mut durable = world.live(0, &asks);
        for _ in 0..3 {
            world.disk.fail_one_in(8);
            durable = match reopen(&world.disk, world.fsync) {
                Ok(_) => {
                    world.disk.fail_one_in(0);
                    durable
                }
                Err(error) => {
                    assert!(error.to_string().contains("cannot read"), "{error}");
                    world.disk.fail_one_in(0);
                    continue;
                }
            };
            world.disk.restart();
            durable = world.live(durable, &asks);
            world.disk.restart();
        }
        world.live(durable, &[]);
        saved += usize::from(newest(&*world.disk).unwrap().is_some());
    }
    assert!(saved > 30, "{saved}");
}

fn recovered(disk: &Arc<Faulty>) -> (Store<Heap, Log>, Committer<Faulty>, Recovery) {
    let Recovered { store, committer, recovery } = reopen(disk, Fsync::No).unwrap();
    (store, committer, recovery)
}

fn space(store: &Store<Heap, Log>, name: &str) -> TablespaceId {
    store.create_tablespace(&TablespaceOptions::new(name)).unwrap()
}

#[test]
fn tablespaces_come_back_with_their_options() {
    let disk = Arc::new(Faulty::new(1));
    let all = |store: &Store<Heap, Log>| {
        let infos = store.tablespaces();
        infos.into_iter().map(|info| (info.id, info.options, info.items)).collect::<Vec<_>>()
    };
    let (store, mut committer, _) = recovered(&disk);
    for number in 0..4 {
        store.create_tablespace(&space_options(number)).unwrap();
    }
    store.drop_tablespace(TablespaceId(1)).unwrap();
    store.put(TablespaceId(3), b"key", &[b'x'; 5000], 7, Some(999), 0).unwrap();
    let before = all(&store);
    committer.finish(1);
    let (store, committer, recovery) = recovered(&disk);
    assert_eq!((all(&store), recovery.snapshot), (before.clone(), None));
    save(&disk, &store, committer, &recovery).unwrap();
    let (store, _, recovery) = recovered(&disk);
    assert_eq!(all(&store), before);
    assert_eq!(recovery.log.records, 0, "all of it is in the snapshot");
    let mut value = Vec::new();
    let found = store.get(TablespaceId(3), b"key", 1, &mut value).unwrap();
    assert_eq!((value.len(), found.flags, found.expires_ms), (5000, 7, Some(999)));
    assert!(matches!(found.codec, Codec::Lz4 { .. }), "it is not compressed a second time");
}

/// Saves as the thread of a node does.
fn save(
    disk: &Arc<Faulty>,
    store: &Store<Heap, Log>,
    committer: Committer<Faulty>,
    recovery: &Recovery,
) -> Result<Saved, SaveError> {
    let thread = crate::log::CommitThread::start(committer).unwrap();
    let snapshots = Snapshots::new(disk, recovery, 5);
    assert_eq!(snapshots.last_save_ms(), recovery.snapshot.map_or(5, |last| last.created_ms));
    let saved = snapshots.save(store, &|| 77);
    assert_eq!(snapshots.last(), Some(saved.clone()));
    assert!(!snapshots.in_progress());
    if saved.is_ok() {
        assert_eq!(snapshots.last_save_ms(), 77);
    }
    _ = thread.close();
    saved
}

#[test]
fn a_save_removes_what_it_makes_useless() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, recovery) = recovered(&disk);
    let id = space(&store, "a");
    for round in 0..100u8 {
        store.put(id, &[round % 10], &[round; 100], 0, None, 0).unwrap();
        committer.turn(u64::from(round));
    }
    assert!(disk.list().unwrap().len() > 8);
    let saved = save(&disk, &store, committer, &recovery).unwrap();
    assert_eq!((saved.items, saved.covered.counter(), saved.ended_ms), (10, 101, 77));
    assert_eq!(disk.list().unwrap().len(), 2, "{:?}", disk.list());
    let (again, committer, recovery) = recovered(&disk);
    assert_eq!(contents(&again), contents(&store));
    let versions = |store: &Store<Heap, Log>, key: u8| {
        store.get(id, &[key], 0, &mut Vec::new()).unwrap().version
    };
    assert!((0..10).all(|key| versions(&again, key) == versions(&store, key)));
    save(&disk, &again, committer, &recovery).unwrap();
    assert_eq!(disk.list().unwrap().len(), 2);
}

#[test]
fn a_save_that_fails_says_why_and_leaves_the_last_one() {
    let disk = Arc::new(Faulty::new(1));
    let (store, committer, recovery) = recovered(&disk);
    let id = space(&store, "a");
    store.put(id, b"key", &[1; 1000], 0, None, 0).unwrap();
    save(&disk, &store, committer, &recovery).unwrap();
    let (store, committer, recovery) = recovered(&disk);
    store.put(id, b"other", &[2; 1000], 0, None, 0).unwrap();
    let before = disk.list().unwrap();
    disk.limit(3500);
    let refused = save(&disk, &store, committer, &recovery).unwrap_err();
    assert!(matches!(refused, SaveError::Disk { .. } | SaveError::Log(_)), "{refused}");
    assert!(before.iter().all(|name| disk.list().unwrap().contains(name)));
}

#[test]
fn a_save_at_a_time_and_in_the_background() {
    let disk = Arc::new(Faulty::new(1));
    let (store, committer, recovery) = recovered(&disk);
    let store = Arc::new(store);
    let id = space(&store, "a");
    store.put(id, b"key", b"value", 0, None, 0).unwrap();
    let snapshots = Arc::new(Snapshots::new(&disk, &recovery, 5));
    // Nobody writes the log yet, so that the save waits.
    let saving = snapshots.save_in_background(&store, || 9).unwrap();
    assert!(snapshots.in_progress());
    assert_eq!(snapshots.save(&store, &|| 9), Err(SaveError::InProgress));
    let thread = crate::log::CommitThread::start(committer).unwrap();
    saving.join().unwrap();
    assert!(!snapshots.in_progress());
    assert_eq!(snapshots.last().unwrap().unwrap().items, 1);
    assert!(!snapshots.is_due(store.journal()));
    thread.close().unwrap();
}

#[test]
fn changes_during_a_walk_are_all_there_afterwards() {
    let disk = Arc::new(Faulty::new(1));
    let (store, committer, recovery) = recovered(&disk);
    let id = space(&store, "a");
    for key in 0..2000u32 {
        store.put(id, &key.to_le_bytes(), &key.to_be_bytes(), 0, None, 0).unwrap();
    }
    let thread = crate::log::CommitThread::start(committer).unwrap();
    let snapshots = Snapshots::new(&disk, &recovery, 0);
    std::thread::scope(|scope| {
        for writer in 0..3u32 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..3000u32 {
                    let key = (round * 7 % 2500).wrapping_mul(3) + writer;
                    let key = key.to_le_bytes();
                    if round % 5 == 0 {
                        store.delete(id, &key, 0).unwrap();
                    } else {
                        store.put(id, &key, &round.to_le_bytes(), writer, None, 0).unwrap();
                    }
                }
            });
        }
        for _ in 0..5 {
            snapshots.save(&store, &|| 1).unwrap();
        }
    });
    thread.close().unwrap();
    let (again, _, recovery) = recovered(&disk);
    assert!(recovery.snapshot.is_some());
    assert_eq!(contents(&again), contents(&store));
}

/// A flush that has its position when a walk begins and is not carried out yet.
#[test]
fn a_snapshot_has_the_flushes_before_it() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let id = space(&store, "a");
    store.put(id, b"old", b"1", 0, None, 0).unwrap();
    // As `Store::flush` does before it removes anything.
    let record = crate::journal::Record::Flush { tablespace: id };
    crate::journal::Journal::append(store.journal(), &record).unwrap();
    store.put(id, b"new", b"2", 0, None, 0).unwrap();
    let mut walk = Walk::begin(&store, &disk, 1).unwrap();
    while walk.step().unwrap() {}
    let end = walk.needs();
    committer.finish(1);
    assert_eq!(walk.items(), 2);
    walk.finish(end).unwrap();
    let (again, _, _) = recovered(&disk);
    assert_eq!(again.get(id, b"old", 1, &mut Vec::new()), None);
    assert!(again.get(id, b"new", 1, &mut Vec::new()).is_some());
}

#[test]
fn a_log_that_ends_before_its_snapshot_is_refused() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let id = space(&store, "a");
    let mut walk = Walk::begin(&store, &disk, 1).unwrap();
    store.put(id, b"key", b"1", 0, None, 0).unwrap();
    while walk.step().unwrap() {}
    let end = walk.needs();
    committer.finish(1);
    walk.finish(end).unwrap();
    let log = disk.list().unwrap().into_iter().find(|name| name.starts_with("log-")).unwrap();
    disk.remove(&log).unwrap();
    let Err(refused) = reopen(&disk, Fsync::No) else { panic!("it was opened") };
    assert!(refused.to_string().contains("memory lacks the log from position"), "{refused}");
}

#[test]
fn too_little_memory_is_said_in_words() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let id = space(&store, "a");
    for key in 0..40u8 {
        store.put(id, &[key], &[key; 60_000], 0, None, 0).unwrap();
    }
    committer.finish(1);
    let options = store::Options::new(1 << 20, 5);
    let memory = Heap::new(options.memory_len());
    let Err(refused) = open(&disk, memory, options, log_options(Fsync::No), 0) else {
        panic!("it was opened");
    };
    let text = refused.to_string();
    assert!(text.contains("memory is full") && text.contains("log-"), "{text}");
}

#[test]
fn a_value_changed_in_place_of_another_is_one_record() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let id = space(&store, "a");
    for _ in 0..10 {
        store
            .update(id, b"count", 0, &mut |old, scratch| {
                let mut value = Vec::new();
                if let Some(old) = old {
                    assert!(old.append_value(&mut value));
                }
                scratch.push(value.first().map_or(1, |count| count + 1));
                Change::Put { value: Value::Scratch, flags: 0, expiry: Expiry::Default }
            })
            .unwrap();
    }
    committer.finish(1);
    let (again, _, recovery) = recovered(&disk);
    assert_eq!(recovery.log.records, 11);
    let mut value = Vec::new();
    again.get(id, b"count", 0, &mut value).unwrap();
    assert_eq!(value, [10]);
}

/// Blocks that are kept for one-sided readers are freed while a log is played: nobody reads yet.
#[test]
fn a_log_of_many_overwrites_needs_no_more_memory_than_its_keys() {
    let disk = Arc::new(Faulty::new(1));
    let options = store::Options { quarantine_ms: 1000, ..store::Options::new(4 << 20, 5) };
    let opened = || {
        let memory = Heap::new(options.memory_len());
        open(&disk, memory, options, log_options(Fsync::No), 0).unwrap()
    };
    let Recovered { store, mut committer, .. } = opened();
    let id = space(&store, "a");
    for round in 0..400u64 {
        // Two seconds pass between one put and the next.
        let value = [round as u8; 50_000];
        store.put(id, &[round as u8 % 8], &value, 0, None, 2000 * round).unwrap();
        committer.turn(round);
    }
    committer.finish(400);
    assert_eq!(contents(&opened().store), contents(&store));
}

/// A cache that is full is read back, also where there is less memory than before: what has to go
/// for that goes when the store serves.
#[test]
fn a_full_cache_is_read_back() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let cache = TablespaceOptions { eviction: Eviction::Clock, ..TablespaceOptions::new("cache") };
    let id = store.create_tablespace(&cache).unwrap();
    let mut random = 1u64;
    for round in 0..3000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let length = (random >> 33) % 30_000;
        store.put(id, &round.to_le_bytes(), &vec![7; length as usize], 0, None, 5).unwrap();
        committer.turn(round);
    }
    committer.finish(3000);
    let before = contents(&store);
    assert!(before.len() < 1000, "{}", before.len());
    let options = store::Options::new(3 << 20, 5);
    let memory = || Heap::new(options.memory_len());
    let Recovered { store, mut committer, .. } =
        open(&disk, memory(), options, log_options(Fsync::No), 0).unwrap();
    let after = contents(&store);
    let counts = (before.len(), after.len());
    assert!(counts.1 > counts.0 / 3, "{counts:?}");
    assert!(after.iter().all(|(key, value)| before.get(key) == Some(value)));
    // With all the memory again they do not come back.
    committer.finish(1);
    let (store, _, _) = recovered(&disk);
    let last = contents(&store);
    assert!(last.keys().all(|key| after.contains_key(key)));
    assert!(last.len() > after.len() / 3, "{} {}", last.len(), after.len());
}

/// As below, where nothing may be evicted: what has expired goes when the log was played.
#[test]
fn a_quota_that_expired_items_would_fill_is_read_back() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let quota = TablespaceOptions { quota: Some(200_000), ..TablespaceOptions::new("a") };
    let id = store.create_tablespace(&quota).unwrap();
    for round in 0..100u64 {
        let now = 1000 * round;
        store.put(id, &round.to_le_bytes(), &[7; 10_000], 0, Some(now + 5000), now).unwrap();
        store.sweep(now, 100_000);
        committer.turn(round);
    }
    committer.finish(100);
    let before = contents(&store);
    let options = store::Options { quarantine_ms: 1000, ..store::Options::new(4 << 20, 5) };
    let memory = Heap::new(options.memory_len());
    let read = open(&disk, memory, options, log_options(Fsync::No), 99_000).unwrap();
    let after = contents(&read.store);
    assert!(before.len() >= 5 && before.iter().all(|(key, value)| after.get(key) == Some(value)));
    // It takes changes, and frees what rests as soon as before.
    for now in [99_001, 101_010, 101_020] {
        read.store.put(id, b"later", &[7; 100_000], 0, None, now).unwrap();
        read.store.delete(id, b"later", now).unwrap();
        read.store.sweep(now + 1000, 100_000);
    }
}

/// A put that saw the tablespace before it was dropped, and was logged after that.
#[test]
fn changes_behind_a_drop_say_nothing() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let (dropped, other) = (space(&store, "a"), space(&store, "b"));
    store.put(other, b"key", b"1", 0, None, 0).unwrap();
    store.drop_tablespace(dropped).unwrap();
    let late = crate::journal::Record::Delete { tablespace: dropped, key: b"late" };
    crate::journal::Journal::append(store.journal(), &late).unwrap();
    committer.finish(1);
    let (again, mut committer, _) = recovered(&disk);
    assert_eq!(contents(&again), contents(&store));
    // A later tablespace of the same number has its changes. All others are given before.
    let mut id = space(&again, "c");
    while id != dropped {
        again.drop_tablespace(id).unwrap();
        id = space(&again, "c");
    }
    again.put(id, b"key", b"2", 0, None, 0).unwrap();
    committer.finish(2);
    assert_eq!(contents(&recovered(&disk).0), contents(&again));
}

/// A change whose time is before a key's end may be logged after a walk has passed the key.
#[test]
fn a_key_that_is_kept_while_a_walk_finds_it_expired_is_not_lost() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let id = space(&store, "a");
    store.put(id, b"key", b"1", 0, Some(5000), 4000).unwrap();
    let mut walk = Walk::begin(&store, &disk, 6000).unwrap();
    while walk.step().unwrap() {}
    let persist = store.update(id, b"key", 4999, &mut |_, _| Change::Touch { expires_ms: None });
    persist.unwrap();
    let end = walk.needs();
    committer.finish(6000);
    walk.finish(end).unwrap();
    assert_eq!(contents(&recovered(&disk).0), contents(&store));
}

/// Items that expired and were removed, which needs no record, are there again while a log is
/// played, and count for a quota.
#[test]
fn a_cache_with_a_quota_is_read_back() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let cache = TablespaceOptions {
        eviction: Eviction::Clock,
        quota: Some(200_000),
        ..TablespaceOptions::new("cache")
    };
    let id = store.create_tablespace(&cache).unwrap();
    for round in 0..100u64 {
        let now = 1000 * round;
        store.put(id, &round.to_le_bytes(), &[7; 10_000], 0, Some(now + 5000), now).unwrap();
        store.sweep(now, 100_000);
        committer.turn(round);
    }
    committer.finish(100);
    let before = contents(&store);
    // What the log is told meanwhile is more than it takes before it writes some.
    let log = Options { behind_bytes: 500, ..log_options(Fsync::No) };
    let Recovered { store, mut committer, .. } = reopen_with(&disk, log).unwrap();
    assert!(store.journal().stats().commits > 0);
    let after = contents(&store);
    assert!(after.len() > before.len() / 2, "{} {}", before.len(), after.len());
    committer.finish(101);
    assert_eq!(contents(&recovered(&disk).0), after);
}

/// What is damaged in memory is not in a snapshot, so there is none, and the files stay which have
/// it as it was.
#[test]
fn a_store_whose_memory_is_damaged_is_not_saved() {
    let disk = Arc::new(Faulty::new(1));
    let (store, committer, recovery) = recovered(&disk);
    let id = space(&store, "a");
    (0..10u8).for_each(|key| _ = store.put(id, &[key], &[key; 100], 0, None, 0).unwrap());
    save(&disk, &store, committer, &recovery).unwrap();
    let (store, committer, recovery) = recovered(&disk);
    store.put(id, b"new", b"value", 0, None, 0).unwrap();
    let whole = contents(&store);
    let at = {
        let pin = store.pin();
        store.locate(&pin, id, &[3], 1).unwrap().value_at
    };
    store.memory().write(at + 7, b"?");
    let before: Vec<_> = disk.list().unwrap();
    let refused = save(&disk, &store, committer, &recovery).unwrap_err();
    assert!(matches!(refused, SaveError::Damaged { items: 1 }), "{refused}");
    assert!(before.iter().all(|name| disk.list().unwrap().contains(name)));
    assert_eq!(contents(&recovered(&disk).0), whole);
}

/// What a damaged directory has before the damage, and how that is said.
fn salvaged(disk: &Faulty) -> (Model, String) {
    let options = store::Options::new(4 << 20, 5);
    let memory = Heap::new(options.memory_len());
    let read = salvage(disk, memory, options, 0, &Progress::new(|_, _| ())).unwrap();
    (contents(&read.store), read.freeze())
}

#[test]
fn what_comes_before_a_place_that_cannot_be_read_is_salvaged() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let id = space(&store, "a");
    (0..5u8).for_each(|key| _ = store.put(id, &[key], &[key; 100], 0, None, 0).unwrap());
    committer.finish(1);
    let log = disk.list().unwrap().pop().unwrap();
    let whole = disk.copy(1);
    whole.make_read_only();
    assert_eq!(salvaged(&whole).0, contents(&store), "on a disk that takes nothing");
    disk.fail_reads(&log, 610);
    let refused = reopen(&disk, Fsync::No).err().unwrap().to_string();
    assert!(refused.contains("cannot read memory/log-"), "{refused}");
    let (left, reason) = salvaged(&disk);
    assert_eq!(left.len(), 3);
    assert!(reason.contains("cannot read memory/log-"), "{reason}");
    // The same in a snapshot.
    let other = Arc::new(whole.copy(1));
    let (store, committer, recovery) = recovered(&other);
    save(&other, &store, committer, &recovery).unwrap();
    let snapshot = other.list().unwrap().into_iter().find(|name| name.starts_with("snapshot"));
    other.fail_reads(&snapshot.unwrap(), 600);
    let (left, reason) = salvaged(&other);
    assert!((1..5).contains(&left.len()), "{left:?}");
    assert!(reason.contains("cannot read memory/snapshot-"), "{reason}");
}

/// Where a snapshot needs what lies behind damage of the log, to cut the log there helps nobody.
#[test]
fn no_cut_is_advised_that_a_snapshot_does_not_bear() {
    let disk = Arc::new(Faulty::new(1));
    let (store, mut committer, _) = recovered(&disk);
    let id = space(&store, "a");
    let mut walk = Walk::begin(&store, &disk, 1).unwrap();
    (0..3u8).for_each(|key| _ = store.put(id, &[key], b"value", 0, None, 0).unwrap());
    while walk.step().unwrap() {}
    let end = walk.needs();
    committer.finish(1);
    walk.finish(end).unwrap();
    let log = disk.list().unwrap().into_iter().find(|name| name.starts_with("log-")).unwrap();
    let damaged = disk.contents(&log).unwrap().windows(5).position(|word| word == b"value");
    disk.damage(&log, |bytes| bytes[damaged.unwrap()] ^= 1);
    let refused = reopen(&disk, Fsync::No).err().unwrap().to_string();
    assert!(refused.contains("is damaged at byte") && refused.contains("--damaged"), "{refused}");
    assert!(!refused.contains("truncate"), "{refused}");
    assert!(salvaged(&disk).1.contains("is damaged at byte"));
}
