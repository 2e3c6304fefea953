//! Clients over the card: calls, conditions, long values, scans, and who is let in.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use remora::connection::token::Token;
use remora::{Device, DeviceOptions};
use remora_store::client::{Put, StoreClient, StoreError};
use remora_store::front::keyspace::{Edit, Expiry};
use remora_store::log::Fsync;
use remora_store::service::{FIRST, KeepOptions, Service, ServiceOptions};
use remora_store::way::call::{Condition, Placement, Refused, VALUE_MAX};
use remora_store::way::clock::now_ms;
use remora_store::way::connect::{ClientOptions, ConnectError};
use remora_store::way::kernel::undeploy;

/// A store on a card of this process.
struct Served(Service);

impl Served {
    fn start(token: Option<Token>) -> Served {
        Served::with(|options| options.door.token = token)
    }

    fn with(change: impl FnOnce(&mut ServiceOptions)) -> Served {
        static PORT: AtomicU64 = AtomicU64::new(7600);
        let device = DeviceOptions::new().embedded().open().unwrap();
        let mut options = ServiceOptions::new(64 << 20, 7);
        options.door.port = PORT.fetch_add(1, Ordering::Relaxed) as u16;
        change(&mut options);
        Served(Service::start(&device, &options).unwrap())
    }

    fn client(&self) -> StoreClient {
        let device = Device::open().unwrap();
        StoreClient::connect(&device, self.0.address(), &ClientOptions::default()).unwrap()
    }
}

fn get(client: &mut StoreClient, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = b"before".to_vec();
    let about = client.get(key, &mut value).unwrap();
    about.map(|_| value.split_off(6))
}

#[test]
fn keys_are_set_read_changed_and_removed() {
    let served = Served::start(None);
    let mut client = served.client();
    assert_eq!(get(&mut client, b"key"), None);
    let first = client.put(b"key", b"value").unwrap();
    assert_eq!(get(&mut client, b"key").unwrap(), b"value");
    // The application of the store sees the same.
    let (store, mut value) = (served.0.keyspace(), Vec::new());
    let found = store.get(store.tablespace(FIRST).unwrap(), b"key", now_ms(), &mut value).unwrap();
    assert_eq!((found.version, value.as_slice()), (first, &b"value"[..]));

    let how = |condition| Put { condition, ..Put::default() };
    assert_eq!(client.put_with(b"key", b"x", &how(Condition::Absent)).unwrap(), None);
    assert_eq!(client.put_with(b"key", b"x", &how(Condition::Version(first + 1))).unwrap(), None);
    assert_eq!(client.put_with(b"none", b"x", &how(Condition::Present)).unwrap(), None);
    let second = client.put_with(b"key", b"x", &how(Condition::Version(first))).unwrap().unwrap();
    assert!(second > first);
    assert!(client.put_with(b"key", b"y", &how(Condition::Value(b"x"))).unwrap().is_some());
    let behind = Put { placement: Placement::Append, flags: 9, ..Put::default() };
    client.put_with(b"key", b"-z", &behind).unwrap().unwrap();
    let mut value = Vec::new();
    let about = client.get(b"key", &mut value).unwrap().unwrap();
    assert_eq!((value.as_slice(), about.flags, about.expires_ms), (&b"y-z"[..], 9, None));

    assert_eq!(client.count(b"n", 5).unwrap(), 5);
    assert_eq!(client.count(b"n", -7).unwrap(), -2);
    let not = client.count(b"key", 1).unwrap_err();
    assert!(matches!(not, StoreError::Refused(Refused::Number)), "{not}");

    assert!(!client.delete_if(b"key", Condition::Version(1 << 50)).unwrap());
    assert!(client.delete(b"key").unwrap());
    assert!(!client.delete(b"key").unwrap());
    assert_eq!(get(&mut client, b"key"), None);
    client.flush().unwrap();
    assert_eq!(get(&mut client, b"n"), None);
}

#[test]
fn keys_expire_when_they_are_told_to() {
    let served = Served::start(None);
    let mut client = served.client();
    let past = Put { expires_ms: 1, ..Put::default() };
    client.put_with(b"old", b"value", &past).unwrap();
    assert_eq!(get(&mut client, b"old"), None);
    client.put(b"key", b"value").unwrap();
    let soon = now_ms() + 3_600_000;
    assert!(client.touch(b"key", soon).unwrap());
    let about = client.get(b"key", &mut Vec::new()).unwrap().unwrap();
    assert_eq!(about.expires_ms, Some(soon));
    client.put_with(b"key", b"other", &Put::default()).unwrap();
    let about = client.get(b"key", &mut Vec::new()).unwrap().unwrap();
    assert_eq!(about.expires_ms, Some(soon), "an expiry is kept unless another is given");
    assert!(client.touch(b"key", 1).unwrap());
    assert_eq!(get(&mut client, b"key"), None);
    assert!(!client.touch(b"none", soon).unwrap());
}

#[test]
fn blocks_rest_while_a_client_may_read_them_and_no_longer() {
    let served = Served::start(None);
    let keyspace = served.0.keyspace();
    let space = keyspace.tablespace(FIRST).unwrap();
    let bytes_after_a_put = || {
        let put = Edit::Put { value: &[7; 64], flags: 0, expiry: Expiry::Default };
        keyspace.update(space, b"key", now_ms(), &mut |_, _| put).unwrap();
        keyspace.bytes().0
    };
    let first = bytes_after_a_put();
    // The new block, the one before, and no other.
    let few = first + 2 * 112;
    assert!((0..100).all(|_| bytes_after_a_put() <= few), "nobody can read what was replaced");
    let mut client = served.client();
    assert!((0..1000).any(|_| bytes_after_a_put() > few + 1000), "a client may");
    assert_eq!(get(&mut client, b"key").unwrap(), [7; 64]);
    drop(client);
    let again = (0..30_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        bytes_after_a_put() <= few
    });
    assert!(again, "the client has gone");
}

#[test]
fn keys_and_values_may_be_long() {
    let served = Served::start(None);
    let mut client = served.client();
    let long = |len: usize| (0..len).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<_>>();
    for len in [0, 1, 100, 200, 4096, 65_000, 70_000, 1 << 20, (1 << 20) + 1, 3_000_000] {
        let value = long(len);
        client.put(b"value", &value).unwrap();
        assert!(get(&mut client, b"value").unwrap() == value, "{len}");
    }
    for len in [1, 150, 300, 5000, 65_536] {
        let key = long(len);
        client.put(&key, b"of a long key").unwrap();
        assert_eq!(get(&mut client, &key).unwrap(), b"of a long key", "{len}");
    }
    assert!(matches!(client.put(&long(65_537), b""), Err(StoreError::Bad(_))));
    assert!(matches!(client.put(b"", b""), Err(StoreError::Refused(Refused::TooLarge))));
}

/// From one card to another, and back by the kernel and one-sided.
#[test]
fn the_longest_value_is_put_and_read() {
    let served = Served::with(|options| options.limit = 256 << 20);
    let mut client = served.client();
    let byte = |at: usize, seed: usize| (at * 7 + at / 251 + seed) as u8;
    let long = |seed| (0..VALUE_MAX).map(|at| byte(at, seed)).collect::<Vec<_>>();
    for seed in 0..2 {
        let value = long(seed);
        client.put(b"value", &value).unwrap();
        assert!(get(&mut client, b"value").unwrap() == value, "by the kernel: {seed}");
        assert!(get_one_sided(&mut client, b"value").unwrap() == value, "one-sided: {seed}");
    }
    let beyond = client.put(b"value", &vec![0; VALUE_MAX + 1]);
    assert!(matches!(beyond, Err(StoreError::Bad(_))), "{beyond:?}");
    assert!(get(&mut client, b"value").unwrap() == long(1), "it is as it was");
}

#[test]
fn many_clients_count_on_one_key() {
    let served = Served::start(None);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = served.client();
                for _ in 0..200 {
                    client.count(b"counter", 1).unwrap();
                }
            });
        }
    });
    assert_eq!(get(&mut served.client(), b"counter").unwrap(), b"800");
}

#[test]
fn a_full_store_says_so() {
    let served = Served::start(None);
    let mut client = served.client();
    let value = vec![1; 8 << 20];
    let full = (0..100).find_map(|n| client.put(format!("{n}").as_bytes(), &value).err()).unwrap();
    assert!(matches!(full, StoreError::Refused(Refused::Full)), "{full}");
    assert!(client.delete(b"0").unwrap());
}

#[test]
fn strangers_are_not_let_in() {
    let token: Token = "00112233445566778899aabbccddeeff".parse().unwrap();
    let served = Served::start(Some(token));
    let device = Device::open().unwrap();
    let with = |token| {
        let options = ClientOptions { token, ..ClientOptions::default() };
        StoreClient::connect(&device, served.0.address(), &options)
    };
    let refused = with(None).unwrap_err();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("token"), "{refused}");
    assert!(with(Token::new([9; 16])).is_err());
    with(Some(token)).unwrap().put(b"key", b"value").unwrap();
    // Another tablespace does not exist.
    let options = ClientOptions { token: Some(token), tablespace: 999, ..ClientOptions::default() };
    let mut client = StoreClient::connect(&device, served.0.address(), &options).unwrap();
    let none = client.put(b"key", b"value").unwrap_err();
    assert!(matches!(none, StoreError::Refused(Refused::Tablespace)), "{none}");
}

fn get_one_sided(client: &mut StoreClient, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    client.get_one_sided(key, &mut value).unwrap().map(|_| value)
}

#[test]
fn values_are_read_one_sided_as_they_change() {
    let served = Served::start(None);
    let (mut client, mut writer) = (served.client(), served.client());
    assert_eq!(get_one_sided(&mut client, b"key"), None);
    writer.put(b"key", b"first").unwrap();
    for _ in 0..10 {
        assert_eq!(get_one_sided(&mut client, b"key").unwrap(), b"first");
    }
    let counters = client.one_sided_counters();
    assert_eq!((counters.cold, counters.warm, counters.left), (1, 9, 1));
    writer.put(b"key", b"second").unwrap();
    assert_eq!(get_one_sided(&mut client, b"key").unwrap(), b"second");
    assert_eq!(client.one_sided_counters().stale, 1);
    writer.delete(b"key").unwrap();
    assert_eq!(get_one_sided(&mut client, b"key"), None);
    // Values that a reader has no room for come by kernel.
    writer.put(b"long", &vec![7; 100_000]).unwrap();
    assert_eq!(get_one_sided(&mut client, b"long").unwrap().len(), 100_000);
    writer.touch(b"long", 1).unwrap();
    assert_eq!(get_one_sided(&mut client, b"long"), None);
}

#[test]
fn keys_are_found_one_sided_while_the_index_grows() {
    let served = Served::start(None);
    let (mut client, mut writer) = (served.client(), served.client());
    let key = |n: u32| format!("key {n}");
    for n in 0..3000 {
        writer.put(key(n).as_bytes(), &n.to_le_bytes()).unwrap();
        let asked = n / 2;
        let found = get_one_sided(&mut client, key(asked).as_bytes());
        assert_eq!(found.unwrap(), asked.to_le_bytes());
    }
    let counters = client.one_sided_counters();
    assert!(counters.cold + counters.warm > 2800, "few are left to kernels: {counters:?}");
}

#[test]
fn one_sided_readers_never_see_a_value_go_back() {
    let served = Served::start(None);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut writer = served.client();
        writer.put(b"counter", b"0").unwrap();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut last, mut reads) = (served.client(), 0u64, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let value = get_one_sided(&mut client, b"counter").unwrap();
                        let value = String::from_utf8(value).unwrap().parse().unwrap();
                        assert!(value >= last, "{value} after {last}");
                        (last, reads) = (value, reads + 1);
                    }
                    reads
                })
            })
            .collect();
        for n in 1..=500 {
            assert_eq!(writer.count(b"counter", 1).unwrap(), n);
            // What is acknowledged is seen by everybody from then on.
            let seen = get_one_sided(&mut writer, b"counter").unwrap();
            assert_eq!(seen, n.to_string().as_bytes());
        }
        stop.store(true, Ordering::Relaxed);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
    });
}

#[test]
fn values_are_read_by_chains() {
    let served = Served::start(None);
    let (mut client, mut writer) = (served.client(), served.client());
    let mut get = |key: &str| {
        let mut value = Vec::new();
        client.get_by_chain(key.as_bytes(), &mut value).unwrap().map(|_| value)
    };
    assert_eq!(get("key"), None);
    writer.put(b"key", b"first").unwrap();
    assert_eq!(get("key").unwrap(), b"first");
    writer.put(b"key", b"second").unwrap();
    assert_eq!(get("key").unwrap(), b"second");
    // While the index grows, and in either bucket.
    for n in 0..2000u32 {
        writer.put(format!("key {n}").as_bytes(), &n.to_le_bytes()).unwrap();
        let asked = n / 3;
        assert_eq!(get(&format!("key {asked}")).unwrap(), asked.to_le_bytes());
    }
    writer.put(b"long", &vec![7; 100_000]).unwrap();
    assert_eq!(get("long").unwrap().len(), 100_000);
    // A client that is silent for long is not probed: that would disturb the program.
    thread::sleep(Duration::from_secs(6));
    (0..3).for_each(|_| assert_eq!(get("key").unwrap(), b"second"));
    writer.delete(b"key").unwrap();
    assert_eq!(get("key"), None);
}

/// Sends a request over TCP, and reads as many bytes as the answer is expected to have.
fn ask(at: SocketAddr, request: &str, expected: &str) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), expected);
}

#[test]
fn one_key_is_the_same_by_all_five_ways() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let served = Served::with(|options| {
        options.fronts.redis.push(any);
        options.fronts.memcached.push(any);
    });
    let fronts = served.0.fronts().unwrap();
    let (redis, memcached) = (fronts.redis()[0], fronts.memcached()[0]);
    let mut client = served.client();
    let check = |client: &mut StoreClient, value: &str| {
        type Get = dyn Fn(&mut StoreClient, &mut Vec<u8>) -> bool;
        let all: [&Get; 3] = [
            &|client, out| client.get(b"key", out).unwrap().is_some(),
            &|client, out| client.get_one_sided(b"key", out).unwrap().is_some(),
            &|client, out| client.get_by_chain(b"key", out).unwrap().is_some(),
        ];
        for get in all {
            let mut out = Vec::new();
            assert!(get(client, &mut out));
            assert_eq!(out, value.as_bytes());
        }
        let len = value.len();
        ask(redis, "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", &format!("${len}\r\n{value}\r\n"));
        ask(memcached, "get key\r\n", &format!("VALUE key 0 {len}\r\n{value}\r\nEND\r\n"));
    };
    client.put(b"key", b"by a kernel").unwrap();
    check(&mut client, "by a kernel");
    ask(redis, "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$8\r\nby Redis\r\n", "+OK\r\n");
    check(&mut client, "by Redis");
    ask(memcached, "set key 0 0 12\r\nby memcached\r\n", "STORED\r\n");
    check(&mut client, "by memcached");
}

/// Under `--fsync always` a reader without a kernel takes only what it knows to be on the disk; a
/// kernel, which waits for the disk, tells it of the rest.
#[test]
fn readers_by_the_card_alone_are_shown_what_is_on_the_disk() {
    let name = format!("remora-store-shown-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    for fsync in [Fsync::Always, Fsync::EverySecond] {
        let keep = KeepOptions::new(directory.clone(), fsync);
        let served = Served::with(|options| options.keep = Some(keep));
        let (mut client, mut reader) = (served.client(), served.client());
        let holds_back = u64::from(fsync == Fsync::Always);
        for round in 1..=5u64 {
            client.put(b"key", &round.to_le_bytes()).unwrap();
            for _ in 0..3 {
                assert_eq!(get_one_sided(&mut reader, b"key").unwrap(), round.to_le_bytes());
                let mut value = Vec::new();
                reader.get_by_chain(b"key", &mut value).unwrap().unwrap();
                assert_eq!(value, round.to_le_bytes());
            }
            // Of three reads of a value, the first is by a kernel, if it has to be.
            let counters = reader.one_sided_counters();
            assert_eq!(counters.left, round * holds_back, "{fsync}: {counters:?}");
            assert_eq!(counters.warm + counters.cold, round * (3 - holds_back), "{counters:?}");
        }
        // No version tells of a change of the expiry: a kernel shows it until the next value.
        assert!(client.touch(b"key", 1 << 45).unwrap());
        let before = reader.one_sided_counters().left;
        for _ in 0..3 {
            get_one_sided(&mut reader, b"key").unwrap();
            assert!(reader.get_by_chain(b"key", &mut Vec::new()).unwrap().is_some());
        }
        assert_eq!(reader.one_sided_counters().left, before + 3 * holds_back, "{fsync}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Only kernels know what a reader may take, of a store that has or had some.
#[test]
fn a_store_whose_kernels_have_ended_is_not_read_by_the_card_alone() {
    let device = DeviceOptions::new().embedded().open().unwrap();
    let mut options = ServiceOptions::new(64 << 20, 7);
    options.door.port = 7599;
    let served = Served(Service::start(&device, &options).unwrap());
    let mut client = served.client();
    client.put(b"key", b"value").unwrap();
    undeploy(&device);
    for get in [StoreClient::get_one_sided, StoreClient::get_by_chain] {
        let refused = get(&mut client, b"key", &mut Vec::new()).unwrap_err();
        assert!(matches!(refused, StoreError::NoKernels), "{refused}");
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let directory = std::env::temp_dir().join(format!("remora-store-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let start = || {
        let keep = KeepOptions::new(directory.clone(), Fsync::Always);
        Served::with(|options| options.keep = Some(keep))
    };
    {
        let served = start();
        assert_eq!(served.0.recovery().unwrap().log.records, 0);
        let mut client = served.client();
        for n in 0..100u32 {
            client.put(format!("key {n}").as_bytes(), &n.to_le_bytes()).unwrap();
        }
        assert!(client.delete(b"key 7").unwrap());
        client.count(b"counter", 41).unwrap();
    }
    let served = start();
    assert!(served.0.recovery().unwrap().log.records >= 102);
    let mut client = served.client();
    for n in 0..100u32 {
        let expected = (n != 7).then(|| n.to_le_bytes().to_vec());
        assert_eq!(get(&mut client, format!("key {n}").as_bytes()), expected);
    }
    assert_eq!(client.count(b"counter", 1).unwrap(), 42);
    drop((client, served));
    std::fs::remove_dir_all(&directory).unwrap();
}
