//! A store whose card is a daemon's: what the card answers alone, while the store's process stands
//! still.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use remora::{DeviceOptions, wait_for};
use remora_store::client::{About, AsyncStoreClient, StoreClient, StoreError};
use remora_store::way::connect::ClientOptions;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::nic::Daemon;
use support::{Folder, Killed, command, fail, succeed, until};

/// A store on a daemon's card; it ends with the test.
struct Served {
    child: Killed,
    store: SocketAddr,
    redis: SocketAddr,
}

impl Served {
    fn start(daemon: &Daemon) -> Served {
        let mut serve = command(["store", "serve", "--json", "--memory", "64M", "--redis", "0"]);
        serve.env("REMORA_NIC", daemon.folder.path("nic.sock")).stdout(Stdio::piped());
        let mut child = Killed(serve.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = |value: &Value| value.as_str().unwrap().parse().unwrap();
        Served { child, store: address(&ready["store"]), redis: address(&ready["redis"][0]) }
    }

    /// Sets keys by Redis' protocol.
    fn set(&self, keys: &[u32], value: &str) {
        let mut redis = TcpStream::connect(self.redis).unwrap();
        let commands = keys.iter().map(|n| format!("SET key:{n} {value}:{n}\r\n"));
        redis.write_all(commands.collect::<String>().as_bytes()).unwrap();
        let mut answers = vec![0; 5 * keys.len()];
        redis.read_exact(&mut answers).unwrap();
        assert!(answers.chunks(5).all(|answer| answer == b"+OK\r\n"));
    }

    fn client(&self) -> StoreClient {
        let device = DeviceOptions::new().embedded().open().unwrap();
        StoreClient::connect(&device, self.store, &ClientOptions::default()).unwrap()
    }

    fn awaited(&self) -> AsyncStoreClient {
        let device = DeviceOptions::new().embedded().open().unwrap();
        let options = ClientOptions::default();
        wait(AsyncStoreClient::connect(&device, self.store, &options)).unwrap()
    }

    /// Stops the process, and waits until all its threads stand still.
    fn stop(&self) {
        let pid = self.child.id();
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        until("the store stands still", || {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            threads.into_iter().all(|thread| {
                let stat = fs::read_to_string(thread.unwrap().path().join("stat"));
                stat.is_ok_and(|stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
            })
        });
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

type Got = Result<Option<About>, StoreError>;
type Get<C> = fn(&mut C, &[u8], &mut Vec<u8>) -> Got;

/// The ways to read that need the card alone.
const BY_THE_CARD: [Get<StoreClient>; 2] = [StoreClient::get_by_chain, StoreClient::get_one_sided];
const AWAITED: [Get<AsyncStoreClient>; 2] = [
    |client, key, value| wait(client.get_by_chain(key, value)),
    |client, key, value| wait(client.get_one_sided(key, value)),
];

fn wait<T>(future: impl Future<Output = T>) -> T {
    wait_for(future, Duration::from_secs(60)).expect("an answer in time")
}

fn check<C>((client, ways): (&mut C, [Get<C>; 2]), keys: &[u32], expected: &str) {
    for get in ways {
        for n in keys {
            let mut value = Vec::new();
            let found = get(client, format!("key:{n}").as_bytes(), &mut value).unwrap();
            assert!(found.is_some());
            assert_eq!(String::from_utf8(value).unwrap(), format!("{expected}:{n}"));
        }
        let none = get(client, b"none", &mut Vec::new()).unwrap_err();
        assert!(matches!(none, StoreError::NoKernels), "{none}");
    }
}

#[test]
fn chains_and_reads_are_answered_while_the_store_stands_still() {
    let daemon = Daemon::start();
    let served = Served::start(&daemon);
    let (few, many): (Vec<u32>, Vec<u32>) = ((0..300).collect(), (0..3000).collect());
    served.set(&few, "before");
    let mut client = served.client();
    let mut awaited = served.awaited();
    let mut check_both = |keys: &[u32], expected: &str| {
        check((&mut client, BY_THE_CARD), keys, expected);
        check((&mut awaited, AWAITED), keys, expected);
    };
    // To connect to a chain takes the store's process.
    check_both(&few[..1], "before");
    served.stop();
    check_both(&few, "before");
    served.go_on();
    // The index grows.
    served.set(&many, "after");
    check_both(&few, "after");
    served.stop();
    check_both(&many, "after");
    let by_kernel = client.get(b"key:1", &mut Vec::new()).unwrap_err();
    assert!(matches!(by_kernel, StoreError::NoKernels), "{by_kernel}");
}

/// A key that READs find is there; of any other, nobody can say that it is not.
#[test]
fn store_get_reads_what_it_finds() {
    let daemon = Daemon::start();
    let served = Served::start(&daemon);
    served.set(&[7], "value");
    let store = served.store.ip().to_string();
    assert_eq!(succeed(["store", "get", &store, "key:7"]), "value:7");
    for args in [&["get", &store, "none"][..], &["put", &store, "key:7", "another"]] {
        let said = fail([&["store"], args].concat());
        assert!(said.contains("ask and change by Redis’ or memcached’s protocol"), "{said}");
    }
}

#[test]
fn what_needs_kernels_is_not_served() {
    let daemon = Daemon::start();
    let folder = Folder::new();
    let log = folder.path("").display().to_string();
    let refused = [
        (&["serve"][..], "so that nobody could put a key: serve --redis or --memcached"),
        (&["serve", "--redis", "0", "--dir", &log, "--fsync", "always"], "--fsync"),
    ];
    for (args, reason) in refused {
        let output = daemon.run(&[&["store"], args].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(reason), "{args:?}: {said}");
    }
}
