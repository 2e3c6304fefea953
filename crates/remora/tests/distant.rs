//! Peers on another machine (another network namespace, joined by a link) that stand still, end, or
//! are cut off, each in either dialect.

#[path = "support/skips.rs"]
mod skips;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use remora::nic::qp::{QpAttr, State};
use remora::prelude::*;

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 7482;
const SERVER: &str = "10.78.0.2";
/// Name the parts of this program's processes.
const ADDRESS: &str = "REMORA_TEST_ADDRESS";
const TIMEOUT: &str = "REMORA_TEST_TIMEOUT";
const DESERTS: &str = "REMORA_TEST_DESERTS";

fn open() -> Device {
    let address = std::env::var(ADDRESS).unwrap();
    DeviceOptions::new().embedded().bind(address).open().unwrap()
}

/// Serves memory until the connection ends. If it is to desert its peer, it takes its queue pair
/// away without a word, once a byte has come.
#[test]
#[ignore = "a program for other tests"]
fn server() {
    let device = open();
    let listener = device.listen(PORT).unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    println!("listens");
    let params = ConnectionParams::new(device.info().mtu);
    let request = listener.accept().wait(PATIENCE).unwrap();
    let connection = request.accept(qp.clone(), b"", &params).wait(PATIENCE).unwrap();
    connection.send_remote(memory.slice(..).remote()).wait(PATIENCE).unwrap();
    if std::env::var_os(DESERTS).is_some() {
        let until = Instant::now() + PATIENCE;
        while memory.slice(..1).to_vec().unwrap() != b"1" {
            assert!(Instant::now() < until, "nothing comes");
            std::thread::sleep(Duration::from_millis(1));
        }
        qp.modify(&QpAttr { state: Some(State::Reset), ..QpAttr::default() }).unwrap();
    }
    connection.closed().wait(PATIENCE).ok();
    println!("served");
}

/// Writes once, and once more when it is told to; says what became of that.
#[test]
#[ignore = "a program for other tests"]
fn client() {
    let device = open();
    let domain = device.alloc_pd().unwrap();
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    let timeout = std::env::var(TIMEOUT).unwrap().parse().unwrap();
    let params = ConnectionParams::new(device.info().mtu).timeout(timeout).retry_cnt(7);
    let to = SocketAddr::new(SERVER.parse().unwrap(), PORT);
    let connection = device.connect(qp.clone(), to, b"", &params).wait(PATIENCE).unwrap();
    let there = connection.recv_remote().wait(PATIENCE).unwrap();
    qp.write(b"1", there.slice(..1)).wait(PATIENCE).unwrap();
    println!("under way");
    let told = std::io::stdin().lines().next().unwrap().unwrap();
    assert_eq!(told, "go");
    let done = qp.write(b"2", there.slice(..1)).wait(PATIENCE);
    let counters = device.counters().card;
    let (waited, gone) = (counters.retries_waited > 0, counters.peers_gone);
    println!("ends: {done:?}, waited: {waited}, gone: {gone}, {counters:?}");
}

/// Two namespaces with a link, the server in one and the client in the other. `$2` is what happens
/// between the client's two writes, in a shell that knows `$server`; `$3` names a folder.
const NETWORK: &str = r#"set -e
    ip link set lo up && ip link add v0 type veth peer name v1
    unshare --net sleep 120 >/dev/null 2>&1 & other=$!
    trap 'kill $other; kill -9 $server 2>/dev/null; rm -r "$3"' EXIT
    space() { readlink "/proc/$1/ns/net"; }
    until [ "$(space $other)" != "$(space self)" ]; do :; done
    ip link set v1 netns $other
    inside() { nsenter --net --target $other -- "$@"; }
    inside ip link set lo up; inside ip addr add 10.78.0.2/24 dev v1; inside ip link set v1 up
    ip addr add 10.78.0.1/24 dev v0; ip link set v0 up
    mkfifo "$3/server" "$3/client" "$3/told"
    says() {
        while read -r line; do echo "$line"; case $line in *"$1"*) return;; esac; done; false
    }
    export REMORA_TEST_ADDRESS=10.78.0.2
    nsenter --net --target $other -- "$1" --ignored --exact server --nocapture \
        > "$3/server" 2>&1 & server=$!
    exec 3< "$3/server"; says listens <&3; cat <&3 &
    export REMORA_TEST_ADDRESS=10.78.0.1
    "$1" --ignored --exact client --nocapture > "$3/client" 2>&1 < "$3/told" & client=$!
    exec 5< "$3/client" 4> "$3/told"; says "under way" <&5
    eval "$2"
    says ends: <&5
    "#;

/// What the client says has become of its second write, if this happens before; `None` if there are
/// no namespaces here. The time-out is 4.096 µs · 2^`timeout`, with 7 retries.
fn outcome(dialect: &str, timeout: u8, happens: &str, server: &[(&str, &str)]) -> Option<String> {
    let program = std::env::current_exe().unwrap();
    let name = format!("remora-distant-{}-{dialect}-{:x}", std::process::id(), happens.len());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "timeout", "120"]);
    command.args(["sh", "-c", NETWORK, "sh"]).arg(&program).arg(happens).arg(&folder);
    command.envs([("REMORA_NIC", "off"), ("REMORA_DIALECT", dialect)]);
    command.env(TIMEOUT, timeout.to_string()).envs(server.iter().copied());
    command.env_remove("REMORA_IMPAIR");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said: Vec<String> = lines.collect();
    std::fs::remove_dir_all(&folder).ok();
    if !child.wait().unwrap().success() && std::env::var_os("CI").is_none() && said.is_empty() {
        skips::lacks("no network namespaces with a link between them here");
        return None;
    }
    let end = said.iter().find(|line| line.contains("ends: "));
    Some(end.unwrap_or_else(|| panic!("{said:?}")).clone())
}

const DIALECTS: [&str; 2] = ["auto", "standard"];

/// A process that is stopped for longer than a program's time-outs (some 300 ms here) breaks
/// nothing.
fn is_held(dialect: &str, seconds: u32) {
    // The signal is there before all of the threads stand still.
    let stops = "kill -STOP $server; \
                 while grep -h ^State /proc/$server/task/*/status | grep -qv stopped; do :; done";
    let happens = format!("{stops}; echo go >&4; sleep {seconds}; kill -CONT $server");
    if let Some(end) = outcome(dialect, 12, &happens, &[]) {
        assert!(end.contains("ends: Ok(") && end.contains("waited: true, gone: 0"), "{end}");
    }
}

#[test]
fn a_process_that_is_stopped_for_three_seconds_breaks_nothing() {
    is_held("standard", 3);
}

#[test]
fn a_process_that_is_stopped_for_ten_seconds_breaks_nothing() {
    is_held("auto", 10);
}

/// A process that has ended is found out, though the program would wait for more than half a
/// minute.
#[test]
fn a_process_that_has_ended_is_found_out() {
    for dialect in DIALECTS {
        if let Some(end) = outcome(dialect, 20, "kill -9 $server; echo go >&4", &[]) {
            assert!(end.contains("ends: Err(") && end.contains("gone: 1"), "{end}");
        }
    }
}

/// A machine that is cut off is given up as the program has asked for.
#[test]
fn a_machine_that_is_cut_off_is_given_up() {
    for dialect in DIALECTS {
        let happens = "inside ip link set v1 down; echo go >&4";
        if let Some(end) = outcome(dialect, 12, happens, &[]) {
            assert!(end.contains("ends: Err(") && end.contains("waited: false, gone: 0"), "{end}");
        }
    }
}

/// A card that is at work and has no such queue pair any more is not taken for one that is held.
#[test]
fn a_queue_pair_that_is_no_more_is_given_up() {
    for dialect in DIALECTS {
        // Connection management goes on, so that the card is at work.
        let happens = "sleep 1; echo go >&4";
        if let Some(end) = outcome(dialect, 12, happens, &[(DESERTS, "1")]) {
            assert!(end.contains("ends: Err(") && end.contains("gone: 0"), "{end}");
        }
    }
}
