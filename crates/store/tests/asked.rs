//! Clients over the card: operations as futures, tablespaces, what a store says of itself, and
//! whose places become free.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use remora::{Device, DeviceOptions, wait_for};
use remora_store::client::{About, AsyncStoreClient, Put, StoreClient, StoreError};
use remora_store::codec::Codec;
use remora_store::front::keyspace::{Edit, Seen};
use remora_store::service::{FIRST, Service, ServiceOptions};
use remora_store::stats::{Op, Way};
use remora_store::tablespace::{Eviction, TablespaceOptions};
use remora_store::way::call::{Condition, Placement, Refused};
use remora_store::way::clock::now_ms;
use remora_store::way::connect::ClientOptions;
use remora_store::way::door::DoorOptions;

/// How long anything may take here.
const LIMIT: Duration = Duration::from_secs(60);

fn serve(door: impl FnOnce(&mut DoorOptions)) -> Service {
    static PORT: AtomicU16 = AtomicU16::new(7700);
    let device = DeviceOptions::new().embedded().open().unwrap();
    let mut options = ServiceOptions::new(64 << 20, 7);
    options.door.port = PORT.fetch_add(1, Ordering::Relaxed);
    door(&mut options.door);
    Service::start(&device, &options).unwrap()
}

fn client(service: &Service) -> StoreClient {
    let device = Device::open().unwrap();
    StoreClient::connect(&device, service.address(), &ClientOptions::default()).unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    wait_for(future, LIMIT).expect("an answer in time")
}

fn awaited(service: &Service, calls: usize) -> AsyncStoreClient {
    let options = ClientOptions { calls, ..ClientOptions::default() };
    let device = Device::open().unwrap();
    wait(AsyncStoreClient::connect(&device, service.address(), &options)).unwrap()
}

/// All results, of futures that are under way at once.
fn join<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    wait(poll_fn(|context| {
        for (future, done) in all.iter_mut().filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(result) = future.as_mut().poll(context) {
                *done = Some(result);
            }
        }
        if all.iter().all(|(_, done)| done.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    }));
    all.into_iter().filter_map(|(_, done)| done).collect()
}

/// Tries until it succeeds.
fn in_time<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < end, "it does not come about");
        std::thread::yield_now();
    }
}

type Get = fn(&mut StoreClient, &[u8], &mut Vec<u8>) -> Result<Option<About>, StoreError>;

#[test]
fn what_took_too_long_is_not_taken_for_what_comes_next() {
    let service = serve(|_| {});
    let mut writer = client(&service);
    writer.put(b"key", b"0").unwrap();
    let ways: [Get; 3] = [StoreClient::get, StoreClient::get_one_sided, StoreClient::get_by_chain];
    for (way, get) in ways.into_iter().enumerate() {
        let mut reader = client(&service);
        get(&mut reader, b"key", &mut Vec::new()).unwrap();
        let (mut late, mut n) = (0, 0);
        // The kernels' client looks more than once, whatever the time is.
        while n < 100 || way > 0 && late < 3 && n < 100_000 {
            n += 1;
            reader.set_timeout(Duration::ZERO);
            late += u32::from(get(&mut reader, b"key", &mut Vec::new()).is_err());
            writer.put(b"key", format!("{n}").as_bytes()).unwrap();
            reader.set_timeout(LIMIT);
            let mut value = Vec::new();
            get(&mut reader, b"key", &mut value).unwrap().unwrap();
            assert_eq!(value, format!("{n}").as_bytes(), "by way {way}, after {late} were late");
        }
        assert!(way == 0 || late > 0, "none was late by way {way}");
    }
}

/// The store hears of the end of a connection later than of the next.
#[test]
fn a_chain_that_connects_outlives_the_call_that_began_it() {
    let service = serve(|_| {});
    client(&service).put(b"key", b"value").unwrap();
    for tenths in 0..40 {
        let mut reader = awaited(&service, 4);
        let until = Instant::now() + tenths * Duration::from_micros(100);
        let mut value = Vec::new();
        {
            let mut given_up = pin!(reader.get_by_chain(b"key", &mut value));
            let mut context = Context::from_waker(Waker::noop());
            while given_up.as_mut().poll(&mut context).is_pending() && Instant::now() < until {}
        }
        value.clear();
        wait(reader.get_by_chain(b"key", &mut value)).unwrap().unwrap();
        assert_eq!(value, b"value", "after {tenths} tenths of a millisecond");
    }
}

#[test]
fn what_is_read_one_sided_is_counted_too() {
    let service = serve(|_| {});
    let mut reader = client(&service);
    reader.put(b"key", b"value").unwrap();
    for _ in 0..640 {
        reader.get_one_sided(b"key", &mut Vec::new()).unwrap().unwrap();
    }
    let counts = reader.counts().unwrap();
    let count = |wanted| counts.iter().find(|(name, _)| name == wanted).map(|(_, count)| *count);
    // One in 64 goes by a kernel, and tells of the others.
    assert_eq!((count("hits"), count("one_sided_hits")), (Some(10), Some(630)));
}

#[test]
fn what_chains_were_asked_is_counted_by_the_card() {
    let service = serve(|_| {});
    let mut watcher = client(&service);
    let mut look_ups = |least: u64| {
        in_time(|| {
            let counts = watcher.counts().unwrap();
            let count = counts.iter().find(|(name, _)| name == "chain_lookups").unwrap().1;
            (count >= least).then_some(count)
        })
    };
    assert_eq!(look_ups(0), 0);
    let mut reader = client(&service);
    reader.put(b"key", b"value").unwrap();
    for _ in 0..50 {
        reader.get_by_chain(b"key", &mut Vec::new()).unwrap().unwrap();
    }
    let first = look_ups(50);
    assert!(first <= 51, "one may have looked at the wrong bucket: {first}");
    // What a client's chain has answered stays when the client has gone.
    drop(reader);
    let mut reader = client(&service);
    for _ in 0..10 {
        reader.get_by_chain(b"key", &mut Vec::new()).unwrap().unwrap();
    }
    assert!(look_ups(first + 10) <= first + 11);
}

/// A long put waits for a lock that the test holds. The card goes on: it is not the one who waits.
#[test]
fn the_card_serves_others_while_a_long_call_is_carried_out() {
    let service = serve(|_| {});
    let store = service.keyspace().clone();
    let space = store.tablespace(FIRST).unwrap();
    let ((entered, is_entered), (open, is_open)) = (channel(), channel());
    let mut other = client(&service);
    other.put(b"other", b"value").unwrap();
    let count = |client: &mut StoreClient, wanted: &str| {
        let counts = client.counts().unwrap();
        counts.iter().find(|(name, _)| name == wanted).unwrap().1
    };
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || {
            let mut hold = |_: Option<Seen<'_>>, _: &mut Vec<u8>| {
                entered.send(()).unwrap();
                is_open.recv().unwrap();
                Edit::Keep
            };
            store.update(space, b"long", now_ms(), &mut hold).unwrap();
        });
        is_entered.recv().unwrap();
        let putting = scope.spawn(|| client(&service).put(b"long", &vec![7; 1 << 20]));
        in_time(|| (count(&mut other, "payload_bytes") > 1 << 20).then_some(()));
        for _ in 0..100 {
            assert!(other.get(b"other", &mut Vec::new()).unwrap().is_some());
        }
        assert!(other.get(b"long", &mut Vec::new()).unwrap().is_none());
        open.send(()).unwrap();
        putting.join().unwrap().unwrap();
    });
    let mut value = Vec::new();
    other.get(b"long", &mut value).unwrap().unwrap();
    assert!(value == vec![7; 1 << 20]);
    let put = |condition, placement| Put { condition, placement, ..Put::default() };
    assert_eq!(count(&mut other, "long_calls"), 1, "a long value is read in pieces by the card");
    // All of these look at the long value.
    let append = put(Condition::Value(&value), Placement::Append);
    assert!(other.put_with(b"long", b"more", &append).unwrap().is_some());
    assert!(other.put_with(b"long", b"", &append).unwrap().is_none(), "it has another value");
    assert!(other.count(b"long", 1).is_err());
    assert_eq!(count(&mut other, "long_calls"), 4);
    let mut long = 0;
    other.items(|key, _, value| long = long.max(key.len() + value.len())).unwrap();
    assert_eq!(long, 4 + (1 << 20) + 4);
}

#[test]
fn what_nobody_waits_for_is_not_taken_for_what_comes_next() {
    let service = serve(|_| {});
    let (mut writer, mut reader) = (client(&service), awaited(&service, 4));
    writer.put(b"key", b"0").unwrap();
    wait(reader.get_by_chain(b"key", &mut Vec::new())).unwrap().unwrap();
    wait(reader.get_one_sided(b"key", &mut Vec::new())).unwrap().unwrap();
    for n in 1..=50 {
        // Begun more often than queues are deep, and dropped.
        for _ in 0..8 {
            let mut context = Context::from_waker(Waker::noop());
            let mut value = Vec::new();
            _ = pin!(reader.get_by_chain(b"key", &mut value)).poll(&mut context);
            let mut value = Vec::new();
            _ = pin!(reader.get_one_sided(b"key", &mut value)).poll(&mut context);
        }
        writer.put(b"key", format!("{n}").as_bytes()).unwrap();
        let mut value = Vec::new();
        wait(reader.get_by_chain(b"key", &mut value)).unwrap().unwrap();
        assert_eq!(value, format!("{n}").as_bytes(), "by a chain");
        value.clear();
        wait(reader.get_one_sided(b"key", &mut value)).unwrap().unwrap();
        assert_eq!(value, format!("{n}").as_bytes(), "one-sided");
    }
}

#[test]
fn operations_are_futures_of_which_many_are_under_way() {
    let service = serve(|_| {});
    let store = awaited(&service, 8);
    // More than there are places, short and long.
    let puts = (0..200usize).map(|n| {
        let store = &store;
        async move { store.put(format!("key {n}").as_bytes(), &vec![n as u8; n * 10]).await }
    });
    assert!(join(puts).into_iter().all(|put| put.is_ok()));
    let gets = (0..200).map(|n| {
        let store = store.clone();
        async move {
            let mut value = Vec::new();
            let about = store.get(format!("key {n}").as_bytes(), &mut value).await.unwrap();
            about.map(|_| value)
        }
    });
    for (n, value) in join(gets).into_iter().enumerate() {
        assert_eq!(value, Some(vec![n as u8; n * 10]), "{n}");
    }
    let sums = join((0..50).map(|_| store.count(b"sum", 2)));
    assert_eq!(sums.into_iter().map(Result::unwrap).max(), Some(100));
    wait(async {
        assert!(store.delete(b"key 7").await.unwrap());
        let absent = Put { condition: Condition::Absent, ..Put::default() };
        assert_eq!(store.put_with(b"key 8", b"", &absent).await.unwrap(), None);
        assert!(store.touch(b"key 9", 1).await.unwrap());
        let long = vec![3; 3_000_000];
        store.put(b"long", &long).await.unwrap();
        let mut value = Vec::new();
        store.get(b"long", &mut value).await.unwrap().unwrap();
        assert!(value == long);
        let mut rows = 0;
        store.items(|_, _, _| rows += 1).await.unwrap();
        assert_eq!(rows, 200, "198 keys, the sum, and the long one");
        store.flush().await.unwrap();
        assert_eq!(store.get(b"key 1", &mut value).await.unwrap(), None);
    });
}

#[test]
fn reads_and_chains_are_futures_too() {
    let service = serve(|_| {});
    let mut store = awaited(&service, 4);
    wait(async {
        for n in 0..500u32 {
            let key = format!("key {}", n / 2);
            store.put(key.as_bytes(), &n.to_le_bytes()).await.unwrap();
            let mut value = Vec::new();
            store.get_one_sided(key.as_bytes(), &mut value).await.unwrap().unwrap();
            store.get_by_chain(key.as_bytes(), &mut value).await.unwrap().unwrap();
            assert_eq!(value, [n.to_le_bytes(), n.to_le_bytes()].concat());
        }
        let mut value = Vec::new();
        assert_eq!(store.get_one_sided(b"none", &mut value).await.unwrap(), None);
        assert_eq!(store.get_by_chain(b"none", &mut value).await.unwrap(), None);
    });
    let counters = store.one_sided_counters();
    assert!(counters.warm + counters.cold > 450, "{counters:?}");
}

#[test]
fn a_call_that_nobody_awaits_any_more_gives_its_place_back() {
    let service = serve(|_| {});
    let store = awaited(&service, 1);
    for n in 0..20u32 {
        let key = n.to_le_bytes();
        // It is posted by the first poll, and then dropped.
        let mut dropped = pin!(store.put(&key, b"value"));
        let first = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop::<Poll<_>>(first);
        dropped.set(store.put(&key, b"value"));
        wait(store.put(b"key", b"value")).unwrap();
    }
}

#[test]
fn tablespaces_come_and_go_by_the_card() {
    let service = serve(|_| {});
    let mut store = client(&service);
    let options = TablespaceOptions {
        quota: Some(1 << 20),
        eviction: Eviction::Clock,
        default_expiry_ms: Some(3_600_000),
        codec: Codec::Lz4 { head: 0 },
        ..TablespaceOptions::new("orders")
    };
    let orders = store.create_tablespace(&options).unwrap();
    let again = store.create_tablespace(&options).unwrap_err();
    assert!(matches!(again, StoreError::Refused(Refused::Exists)), "{again}");
    assert!(store.create_tablespace(&TablespaceOptions::new("")).is_err());
    assert_eq!(store.find_tablespace("orders").unwrap(), Some(orders));
    assert_eq!(store.find_tablespace("others").unwrap(), None);
    let kept = store.drop_tablespace().unwrap_err();
    assert!(matches!(kept, StoreError::Refused(Refused::Kept)), "{kept}");

    store.put(b"key", b"in the first").unwrap();
    store.set_tablespace(orders);
    let mut value = Vec::new();
    assert_eq!(store.get(b"key", &mut value).unwrap(), None);
    store.put(b"key", &[b'x'; 5000]).unwrap();
    let about = store.get(b"key", &mut value).unwrap().unwrap();
    assert!(about.expires_ms.is_some() && value == [b'x'; 5000]);
    let told = store.tablespaces().unwrap();
    let names: Vec<&str> = told.iter().map(|(info, _)| info.options.name.as_str()).collect();
    assert_eq!(names, [FIRST, "orders"]);
    let (info, classes) = &told[1];
    assert_eq!((&info.options, info.items), (&options, 1));
    assert!(info.bytes < 1000, "5000 bytes are compressed to {}", info.bytes);
    assert_eq!(classes.iter().map(|class| class.used).sum::<u64>(), 1);

    store.drop_tablespace().unwrap();
    let gone = store.put(b"key", b"value").unwrap_err();
    assert!(matches!(gone, StoreError::Refused(Refused::Tablespace)), "{gone}");
}

#[test]
fn a_store_says_what_was_done_by_kernels() {
    let service = serve(|_| {});
    let mut store = client(&service);
    service.stats().set_slow_us(0);
    store.put(b"key", b"value").unwrap();
    let mut value = Vec::new();
    assert!(store.get(b"key", &mut value).unwrap().is_some());
    assert!(store.get(b"none", &mut value).unwrap().is_none());
    let absent = Put { condition: Condition::Absent, ..Put::default() };
    assert!(store.put_with(b"key", b"other", &absent).unwrap().is_none());
    assert!(store.count(b"key", 1).is_err());
    let long = vec![1; 1 << 20];
    store.put(b"long", &long).unwrap();
    let counts = store.counts().unwrap();
    let count = |name: &str| counts.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!((count("hits"), count("misses"), count("stored"), count("errors")), (1, 1, 2, 1));
    assert!(count("used_bytes") > 0 && count("limit_bytes") >= 64 << 20);
    assert_eq!((count("payload_bytes"), count("payload_refused")), (0, 0));
    let latencies = store.latencies().unwrap();
    let of = |op| latencies.iter().find(|l| (l.way, l.op) == (Way::Kernel, op)).unwrap().count;
    assert_eq!((of(Op::Get), of(Op::Put), of(Op::Update)), (2, 2, 2));
    let slow = store.slow_operations().unwrap();
    let first = slow.last().unwrap();
    assert_eq!(first.arguments, [&b"put"[..], b"key"]);
    assert!(first.peer.starts_with("queue pair "), "{}", first.peer);
}

#[test]
fn items_come_with_what_is_known_of_them_however_long_they_are() {
    let service = serve(|_| {});
    let mut store = client(&service);
    let soon = remora_store::way::clock::now_ms() + 3_600_000;
    let mut expected = Vec::new();
    for n in 0..300u32 {
        let len = if n % 100 == 7 { 200_000 } else { n as usize };
        let (key, value) = (format!("key {n:03}").into_bytes(), vec![n as u8; len]);
        let expires_ms = if n % 2 == 0 { soon } else { 0 };
        let how = Put { flags: n, expires_ms, ..Put::default() };
        let version = store.put_with(&key, &value, &how).unwrap().unwrap();
        expected.push((key, n, version, (n % 2 == 0).then_some(soon), value));
    }
    let mut items = Vec::new();
    let scanned = store.items(|key, about, value| {
        items.push((key.to_vec(), about.flags, about.version, about.expires_ms, value.to_vec()));
    });
    assert_eq!(scanned.unwrap().rows, 300);
    items.sort();
    assert!(items == expected);
}

#[test]
fn a_chain_ends_with_the_connection_to_which_it_belongs() {
    let service = serve(|door| door.chains_max = 1);
    let by_chain = |store: &mut StoreClient| {
        let mut value = Vec::new();
        store.get_by_chain(b"key", &mut value).map(|_| value)
    };
    let mut first = client(&service);
    first.put(b"key", b"value").unwrap();
    assert_eq!(by_chain(&mut first).unwrap(), b"value");
    let refused = by_chain(&mut client(&service)).unwrap_err().to_string();
    assert!(refused.contains("serves 1 chains already"), "{refused}");
    // A second chain of one connection is refused, too: here by another handle of it.
    let service = serve(|_| {});
    let mut store = awaited(&service, 1);
    let mut other = store.clone();
    wait(async {
        let mut value = Vec::new();
        store.put(b"key", b"value").await.unwrap();
        store.get_by_chain(b"key", &mut value).await.unwrap().unwrap();
        let refused = other.get_by_chain(b"key", &mut value).await.unwrap_err().to_string();
        assert!(refused.contains("at most one"), "{refused}");
    });
    drop(other);
    // The connection for calls ends, that to the chain stays: as where a client's machine dies, but
    // sooner. The store lets both go.
    let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
    let (parted, broke) = (&service.door().parted, &service.door().broke);
    assert_eq!((count(parted), count(broke)), (0, 0));
    let forbidden = store.connection().queue_pair().write(b"x", store.memory());
    assert!(wait(forbidden).is_err());
    in_time(|| ((count(parted), count(broke)) == (1, 1)).then_some(()));
}
