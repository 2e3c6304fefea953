//! Many clients at once at one node, honest and hostile.

#[path = "../src/bench/scale/hostile.rs"]
mod hostile;
mod support;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hostile::Hostile;
use remora::Device;
use remora::nic::cm::CmConfig;
use remora_command::node::address::{NodeAddress, RegionAddress};
use remora_command::node::client::{OpenRegionError, RemoteRegion};
use serde_json::Value;
use support::{Folder, Node, PATIENCE, address, succeed, until};

/// A client who is not served within this time is locked out. One who is served waits for a small
/// part of it, on a busy machine, too.
const LOCKED_OUT: Duration = Duration::from_secs(20);
const TOKEN: &str = "00112233445566778899aabbccddeeff";

fn open(device: &Device, node: NodeAddress) -> Result<RemoteRegion, OpenRegionError> {
    open_within(PATIENCE, device, node)
}

fn open_within(
    patience: Duration,
    device: &Device,
    node: NodeAddress,
) -> Result<RemoteRegion, OpenRegionError> {
    let address = RegionAddress { node, name: "m".into() };
    RemoteRegion::open(device, &address, TOKEN.parse().ok(), patience)
}

fn address_of(node: &Node) -> NodeAddress {
    node.address().parse().unwrap()
}

/// How often an event has happened, as the node has published it last.
fn count(node: &Node, event: &str) -> u64 {
    let stats = succeed(["stats", &node.address(), "--token", TOKEN, "--json"]);
    let stats: Value = serde_json::from_str(&stats).unwrap();
    stats["events"][event].as_u64().unwrap()
}

#[test]
fn two_hundred_clients_at_once_are_served() {
    let node = Node::start(["--region", "m=1M", "--token", TOKEN]);
    let at = address_of(&node);
    let devices: Vec<Device> = (0..20).map(|_| Device::open().unwrap()).collect();
    let begun = Instant::now();
    let served = thread::scope(|scope| {
        let open = |device: &Device| open(device, at).map(|region| (begun.elapsed(), region));
        let clients: Vec<_> = (0..200)
            .map(|n| (&devices[n % 20], open))
            .map(|(device, open)| scope.spawn(move || open(device)))
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let refused: Vec<_> = served.iter().filter_map(|end| end.as_ref().err()).collect();
    assert!(refused.is_empty(), "{} of 200: {}", refused.len(), refused[0]);
    let last = served.iter().flatten().map(|(after, _)| *after).max().unwrap();
    println!("200 clients at once: the last is served after {} ms", last.as_millis());
    assert!(last < LOCKED_OUT, "the last is served after {last:?}");
    // (The node publishes its counters now and then.)
    until("200 are admitted", || count(&node, "clients_admitted") >= 200);
}

#[test]
fn seventy_thousand_refused_requests_keep_nobody_out() {
    let node = Node::start(["--region", "m=1M", "--token", TOKEN]);
    let at = address_of(&node);
    let mut hostile = Hostile::new(address(), at, None).unwrap();
    let begun = Instant::now();
    let mut answered = 0;
    while hostile.asked() < 70_000 {
        (0..64).for_each(|_| hostile.ask().unwrap());
        answered += hostile.answers(64);
    }
    println!("{answered} of 70000 requests refused in {} ms", begun.elapsed().as_millis());
    assert!(answered > 35_000, "the requests reach the node: {answered}");
    let begun = Instant::now();
    open_within(LOCKED_OUT, &Device::open().unwrap(), at).unwrap();
    println!("then an honest client is served after {} ms", begun.elapsed().as_millis());
    until("35 000 are refused", || count(&node, "refused_token") >= 35_000);
}

#[test]
fn half_open_requests_keep_nobody_out() {
    let node = Node::start(["--region", "m=1M", "--token", TOKEN]);
    let at = address_of(&node);
    let device = Device::open().unwrap();
    let mut hostile = Hostile::new(address(), at, TOKEN.parse().ok()).unwrap();
    // More than the node keeps half-open, and then eight with each honest client.
    for _ in 0..300 {
        hostile.ask().unwrap();
        hostile.answers(1);
    }
    let mut regions = Vec::new();
    for n in 0..50 {
        (0..8).for_each(|_| hostile.ask().unwrap());
        regions.push(open(&device, at).unwrap_or_else(|error| panic!("client {n}: {error}")));
    }
    until("44 are incomplete", || count(&node, "clients_incomplete") >= 44);
}

/// As many addresses as each user of a machine has: no share by peer keeps them back.
#[test]
fn half_open_requests_of_thousands_of_addresses_keep_nobody_out() {
    let node = Node::start(["--region", "m=1M", "--token", TOKEN]);
    let at = address_of(&node);
    for n in 0..8000_u32 {
        let ([.., high, low], [.., run]) = (n.to_be_bytes(), std::process::id().to_be_bytes());
        let from = [127, 64 + run % 64, high, low];
        Hostile::new(from, at, TOKEN.parse().ok()).unwrap().ask().unwrap();
        if n % 64 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
    let begun = Instant::now();
    open_within(LOCKED_OUT, &Device::open().unwrap(), at).unwrap();
    println!("an honest client is served after {} ms", begun.elapsed().as_millis());
    until("4 000 are incomplete", || count(&node, "clients_incomplete") >= 4000);
}

/// Starts a server again and again, each time with room for one more thread: it says what it lacks
/// and ends, or it serves until its standard input closes.
fn starts_within_limits(user: u32, args: &[&str]) {
    let folder = Folder::new();
    let program = folder.path("remora");
    std::fs::copy(env!("CARGO_BIN_EXE_remora"), &program).unwrap();
    let root = rustix::process::geteuid().is_root();
    let mut served = false;
    // The limit is for all processes of a user; so as root, be one who has none. (Another user has
    // some already, and may start none with the least limit.)
    for limit in 1..=if root { 10 } else { 1 } {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nproc={limit}")).arg("--").arg(&program).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if root {
            command.uid(70_000 + 10 * (std::process::id() % 10_000) + user);
        }
        let mut server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        drop(server.stdin.take());
        let output = server.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let serves = output.status.success();
        assert!(!errors.contains("panicked"), "{limit}: {errors}");
        assert!(serves || errors.contains("raise it"), "{limit}: {errors}");
        assert!(serves || !served, "fewer are enough, but not {limit}: {errors}");
        assert!(!serves || limit > 1, "{errors}");
        served = serves;
    }
    assert_eq!(served, root);
}

#[test]
fn a_node_says_that_a_thread_cannot_be_started() {
    starts_within_limits(0, &["node", "--json", "--until-eof", "--region", "m=1M"]);
}

#[test]
fn a_daemon_says_that_a_thread_cannot_be_started() {
    let folder = Folder::new();
    let open = Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path("."), open).unwrap();
    let socket = folder.path("nic.sock");
    let socket = socket.to_str().unwrap();
    starts_within_limits(1, &["nic", "--json", "--child", "--socket", socket]);
}

#[test]
fn a_store_says_that_a_thread_cannot_be_started() {
    let serve = ["store", "serve", "--json", "--until-eof", "--memory", "64M", "--threads", "2"];
    starts_within_limits(2, &[&serve[..], &["--redis", "127.0.0.1:0"]].concat());
}

/// More requests than a listener may keep waiting, from one peer that does not stop meanwhile. The
/// peers take turns, so that a client at another address does not wait until they have been served.
#[test]
fn a_client_behind_a_flood_is_served() {
    let node = Node::start(["--region", "m=1M", "--token", TOKEN]);
    let at = address_of(&node);
    let backlog = CmConfig::new(at.ip, 0).max_pending as u64;
    let mut hostile = Hostile::new(address(), at, TOKEN.parse().ok()).unwrap();
    let flood = |hostile: &mut Hostile| {
        (0..64).for_each(|_| hostile.ask().unwrap());
        thread::sleep(Duration::from_millis(2));
    };
    while u64::from(hostile.asked()) < 2 * backlog {
        flood(&mut hostile);
    }
    let served = AtomicBool::new(false);
    let before = count(&node, "clients_incomplete");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !served.load(Ordering::Relaxed) {
                flood(&mut hostile);
            }
        });
        let opened = open(&Device::open().unwrap(), at);
        served.store(true, Ordering::Relaxed);
        opened.unwrap();
    });
    // One peer may have half of the backlog: all of it would have been given up by now.
    let given_up = count(&node, "clients_incomplete") - before;
    println!("a client is served while {given_up} requests of another are given up");
    assert!(given_up < backlog * 3 / 8, "{given_up} of {backlog} were given up meanwhile");
}
