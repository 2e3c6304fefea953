//! Clients over the card of a group of three, in one process: by kernels, READs and chains, while
//! the primary goes.

#[allow(dead_code, reason = "the tests of moves use the rest")]
mod shards {
    pub(crate) mod client;
    pub(crate) mod trial;
}

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use remora::Device;
use remora_store::client::{Put, StoreClient, StoreError};
use remora_store::way::call::{Condition, Placement, Refused};
use remora_store::way::connect::ClientOptions;
use shards::trial::{Trial, until};

/// How long an operation may take on a busy machine; nothing is asserted about it.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(at: SocketAddr) -> StoreClient {
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    StoreClient::connect(&Device::open().unwrap(), at, &options).unwrap()
}

type Get = fn(&mut StoreClient, &[u8], &mut Vec<u8>) -> Result<Option<u64>, StoreError>;

/// The ways to read a value.
const WAYS: [(&str, Get); 3] = [
    ("a kernel", |store, key, out| Ok(store.get(key, out)?.map(|about| about.version))),
    ("READs", |store, key, out| Ok(store.get_one_sided(key, out)?.map(|about| about.version))),
    ("a chain", |store, key, out| Ok(store.get_by_chain(key, out)?.map(|about| about.version))),
];

fn read(store: &mut StoreClient, get: Get, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    get(store, key, &mut value).unwrap().map(|_| value)
}

/// A change that nobody knows the end of may have taken effect under its number. The next one has
/// another: under the same, the group would take it for that one, and not make it.
#[test]
fn a_change_after_one_in_doubt_takes_effect() {
    let trial = Trial::new(&["a"], 3);
    let mut store = connect(trial.doors()[0]);
    let mut doubts = 0;
    for round in 0..400u64 {
        let value = round.to_le_bytes();
        store.put(b"first", &value).unwrap();
        store.set_timeout(Duration::from_micros(round % 80));
        doubts += u32::from(matches!(store.put(b"one", &value), Err(StoreError::Doubt { .. })));
        store.set_timeout(PATIENCE);
        store.put(b"other", &value).unwrap();
        let mut read = Vec::new();
        assert!(store.get(b"other", &mut read).unwrap().is_some());
        assert_eq!(read, value, "round {round}");
    }
    assert!(doubts > 0, "no change was in doubt");
}

#[test]
fn a_client_of_any_node_finds_the_primary_in_every_way() {
    let trial = Trial::new(&["a"], 3);
    for at in trial.doors() {
        let mut store = connect(at);
        let key = at.to_string().into_bytes();
        let version = store.put(&key, b"first").unwrap();
        let long = vec![7; 100_000];
        store.put(b"long", &long).unwrap();
        for (way, get) in WAYS {
            for _ in 0..3 {
                assert_eq!(read(&mut store, get, &key).as_deref(), Some(&b"first"[..]), "{way}");
            }
            assert_eq!(read(&mut store, get, b"long").as_ref(), Some(&long), "{way}");
            assert_eq!(read(&mut store, get, b"nowhere"), None, "{way}");
        }
        let reads = store.one_sided_counters();
        assert!(reads.warm > 0, "READs of known places lead to values: {reads:?}");
        // What depends on the value, and what is counted.
        let absent = Put { condition: Condition::Absent, ..Put::default() };
        assert_eq!(store.put_with(&key, b"x", &absent).unwrap(), None);
        let exact = Put { condition: Condition::Version(version), ..Put::default() };
        assert!(store.put_with(&key, b"second", &exact).unwrap().is_some());
        assert_eq!(store.put_with(&key, b"third", &exact).unwrap(), None);
        let append = Put { placement: Placement::Append, ..Put::default() };
        assert!(store.put_with(&key, b"!", &append).unwrap().is_some());
        for (way, get) in WAYS {
            assert_eq!(read(&mut store, get, &key).as_deref(), Some(&b"second!"[..]), "{way}");
        }
        let counter = [&key[..], b" counter"].concat();
        assert_eq!((store.count(&counter, 2).unwrap(), store.count(&counter, 3).unwrap()), (2, 5));
        assert!(store.delete(&key).unwrap() && !store.delete(&key).unwrap());
        for (way, get) in WAYS {
            assert_eq!(read(&mut store, get, &key), None, "{way}");
        }
        let mut keys = Vec::new();
        store.items(|key, _, _| keys.push(key.to_vec())).unwrap();
        assert!(
            keys.contains(&counter) && keys.contains(&b"long".to_vec()) && !keys.contains(&key)
        );
        let made =
            store.create_tablespace(&remora_store::tablespace::TablespaceOptions::new("new"));
        assert!(matches!(made, Err(StoreError::Refused(Refused::Cluster))), "{made:?}");
    }
}

/// A counter that one client raises is never seen lower than it was acknowledged, and no addition
/// is made twice, whatever becomes of the primary.
#[test]
fn nothing_old_is_read_and_nothing_done_twice_while_primaries_go() {
    let mut trial = Trial::new(&["a"], 5);
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let doors = trial.doors();
    thread::scope(|scope| {
        let (acknowledged, is_over) = (&acknowledged, &is_over);
        let at = doors[0];
        let writer = scope.spawn(move || {
            let mut store = connect(at);
            let mut sum = 0;
            while !is_over.load(Ordering::Relaxed) {
                sum += 1;
                assert_eq!(store.count(b"counter", 1).unwrap(), sum, "once each");
                acknowledged.store(sum.cast_unsigned(), Ordering::SeqCst);
            }
        });
        let reader = |(index, (way, get)): (usize, (&'static str, Get))| {
            let at = doors[(index + 1) % doors.len()];
            scope.spawn(move || {
                let (mut store, mut reads) = (connect(at), 0u64);
                while !is_over.load(Ordering::Relaxed) {
                    let least = acknowledged.load(Ordering::SeqCst);
                    let value = read(&mut store, get, b"counter").unwrap_or_else(|| b"0".to_vec());
                    let value: u64 = String::from_utf8(value).unwrap().parse().unwrap();
                    assert!(value >= least, "{way}: {value} after {least}");
                    reads += 1;
                }
                reads
            })
        };
        let readers: Vec<_> = WAYS.into_iter().enumerate().map(reader).collect();
        let goes_on = || {
            let before = acknowledged.load(Ordering::SeqCst);
            until("the counter rises", || {
                (acknowledged.load(Ordering::SeqCst) > before + 50).then_some(())
            });
        };
        // A panic of its own ends the others, too.
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            goes_on();
            for _ in 0..2 {
                trial.kill_primary("a");
                goes_on();
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Slots go to another group and back while a client counts on keys of all slots.
#[test]
fn a_client_follows_slots_to_another_group() {
    let trial = Trial::new(&["a", "b"], 1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (at, is_over) = (trial.doors()[0], &is_over);
        let client = scope.spawn(move || {
            let (mut store, mut rounds) = (connect(at), 0i64);
            while !is_over.load(Ordering::Relaxed) {
                rounds += 1;
                for number in 0..50 {
                    let key = format!("key {number}").into_bytes();
                    assert_eq!(store.count(&key, 1).unwrap(), rounds);
                    for (way, get) in WAYS {
                        let value = read(&mut store, get, &key);
                        assert_eq!(value, Some(rounds.to_string().into_bytes()), "{way}");
                    }
                }
            }
            let mut keys = Vec::new();
            store.scan(None, |key, _| keys.push(key.to_vec())).unwrap();
            keys.len()
        });
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (slots, to) in [("0-8191", "b"), ("0-16383", "a"), ("4000-16383", "b")] {
                trial.move_slots(slots, to);
                trial.wait_until_moved();
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(client.join().unwrap(), 50, "of both groups");
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// A walk over all keys has each once, or ends with an error, wherever the keys of slots go in the
/// middle of it: to the group that was walked over first, from it, or to and fro.
#[test]
fn a_walk_while_keys_change_groups_is_refused() {
    let trial = Trial::new(&["a", "b"], 1);
    let mut store = connect(trial.doors()[0]);
    for number in 0..50 {
        store.put(format!("key {number}").as_bytes(), b"value").unwrap();
    }
    let go = |slots: &str, to: &str| {
        trial.move_slots(slots, to);
        trial.wait_until_moved();
    };
    let walk = |store: &mut StoreClient, moves: &[(&str, &str)]| {
        let (mut left, mut keys) = (moves, Vec::new());
        let walked = store.items(|key, _, _| {
            std::mem::take(&mut left).iter().for_each(|(slots, to)| go(slots, to));
            keys.push(key.to_vec());
        });
        keys.sort_unstable();
        keys.dedup();
        walked.map(|walked| (walked.rows, keys.len()))
    };
    go("0-8191", "b");
    let there_and_back = [("4000-8191", "a"), ("4000-8191", "b")];
    for moves in [&[("0-8191", "a")][..], &[("0-8191", "b")], &there_and_back] {
        let walked = walk(&mut store, moves);
        assert!(matches!(walked, Err(StoreError::Moved)), "{moves:?}: {walked:?}");
        assert_eq!(walk(&mut store, &[]).unwrap(), (50, 50), "after {moves:?}");
    }
}
