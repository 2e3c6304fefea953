//! The dialect of live connections: cards agree on it by themselves, and what it does on networks
//! that lose packets, with peers that stand still, and over several paths.

#[path = "support/skips.rs"]
mod skips;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use remora::daemon::{Server, ServerOptions};
use remora::event::Event;
use remora::fabric::FabricChoice;
use remora::nic::qp::Congestion;
use remora::nic::wire::Dialect;
use remora::prelude::*;
use remora::{ConnectFailure, DialectChoice};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 7481;

fn options(choice: DialectChoice, fabric: FabricChoice) -> DeviceOptions {
    DeviceOptions::new().embedded().dialect(choice).fabric(fabric)
}

/// A connection by connection management, its two devices, and memory of each.
struct Pair {
    client: Device,
    server: Device,
    ends: [Connection; 2],
    memory: [MemoryRegion; 2],
}

fn accept(
    listener: &Listener,
    qp: QueuePair,
    device: &Device,
) -> Result<Connection, ConnectFailure> {
    let params = ConnectionParams::new(device.info().mtu);
    listener.accept().wait(PATIENCE)?.accept(qp, b"", &params).wait(PATIENCE)
}

impl Pair {
    fn connect(client: Device, server: Device) -> Pair {
        Pair::connect_with(client, server, |params| params)
    }

    fn connect_with(
        client: Device,
        server: Device,
        how: impl FnOnce(ConnectionParams) -> ConnectionParams,
    ) -> Pair {
        let listener = server.listen(PORT).unwrap();
        let to = SocketAddr::new(server.info().address, PORT);
        let domains = [&client, &server].map(|device| device.alloc_pd().unwrap());
        let qps = domains.each_ref().map(|pd| pd.create_qp(&QueuePairOptions::new()).unwrap());
        let memory = domains.map(|domain| domain.alloc(4 << 20, Access::all()).unwrap());
        let [mine, theirs] = qps;
        let ends = thread::scope(|scope| {
            let accepting = scope.spawn(|| accept(&listener, theirs, &server).unwrap());
            let params = how(ConnectionParams::new(client.info().mtu));
            let connection = client.connect(mine, to, b"", &params).wait(PATIENCE).unwrap();
            [connection, accepting.join().unwrap()]
        });
        Pair { client, server, ends, memory }
    }

    fn dialects(&self) -> [Dialect; 2] {
        self.ends.each_ref().map(|end| end.queue_pair().dialect())
    }

    /// Moves bytes by each verb, and checks them.
    fn exchange(&self) {
        let [mine, theirs] = &self.memory;
        let [a, b] = self.ends.each_ref().map(Connection::queue_pair);
        let bytes: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
        mine.write_at(0, &bytes).unwrap();
        let there = theirs.slice(..1 << 20).remote();
        a.write(mine.slice(..1 << 20), there.slice(..)).wait(PATIENCE).unwrap();
        assert!(theirs.slice(..1 << 20).to_vec().unwrap() == bytes, "a WRITE's bytes differ");
        a.read(mine.slice(1 << 20..2 << 20), there.slice(..)).wait(PATIENCE).unwrap();
        assert!(mine.slice(1 << 20..2 << 20).to_vec().unwrap() == bytes, "a READ's bytes differ");
        for (from, to, room) in [(a, b, theirs), (b, a, mine)] {
            let message = to.recv(room.slice(2 << 20..3 << 20));
            from.send(b"a message").wait(PATIENCE).unwrap();
            assert_eq!(message.wait(PATIENCE).unwrap().len, 9);
        }
    }
}

/// A connection speaks what both cards offer. Between cards of one machine `auto` offers nothing,
/// unless packets are lost on purpose.
#[test]
fn both_ends_speak_what_both_offer() {
    use DialectChoice::{Auto, Lossy, Standard};
    use FabricChoice::{Auto as Rings, Udp};
    for (client, server, fabric, lossy) in [
        (Auto, Auto, Udp, false),
        (Lossy, Lossy, Udp, true),
        (Auto, Auto, Rings, false),
        (Lossy, Lossy, Rings, true),
        (Lossy, Standard, Udp, false),
        (Standard, Lossy, Udp, false),
        (Standard, Standard, Udp, false),
    ] {
        let [a, b] = [client, server].map(|choice| options(choice, fabric).open().unwrap());
        let pair = Pair::connect(a, b);
        let expected = if lossy { Dialect::LOSSY } else { Dialect::STANDARD };
        assert_eq!(pair.dialects(), [expected; 2], "{client:?} and {server:?}, {fabric:?}");
        let (peer, dialect, count) = pair.client.dialects()[0];
        assert_eq!((peer, dialect, count), (pair.server.info().address, expected, 1));
        pair.exchange();
    }
}

/// Each congestion policy carries everything, in either dialect.
#[test]
fn every_congestion_policy_carries_what_it_is_given() {
    for choice in [DialectChoice::Standard, DialectChoice::Lossy] {
        for policy in Congestion::ALL {
            let open = || options(choice, FabricChoice::Udp).congestion(policy).open().unwrap();
            let pair = Pair::connect(open(), open());
            assert_eq!(pair.ends.each_ref().map(|end| end.queue_pair().congestion()), [policy; 2]);
            pair.exchange();
        }
    }
}

/// Calls of kernels are agreed on in another way, and go with either dialect.
#[test]
fn kernels_and_the_lossy_dialect_go_together() {
    let [a, b] = [(); 2].map(|()| options(DialectChoice::Lossy, FabricChoice::Udp).open().unwrap());
    // The server does not allow kernels.
    let pair = Pair::connect_with(a, b, |params| params.kernels(true));
    assert_eq!(pair.dialects(), [Dialect::LOSSY; 2]);
    pair.exchange();
}

/// A queue pair that begins anew does not speak what it spoke before.
#[test]
fn a_queue_pair_that_begins_anew_is_standard() {
    use remora::nic::qp::{QpAttr, State};
    let [a, b] = [(); 2].map(|()| options(DialectChoice::Lossy, FabricChoice::Udp).open().unwrap());
    let pair = Pair::connect(a, b);
    let qp = pair.ends[0].queue_pair().clone();
    assert_eq!(qp.dialect(), Dialect::LOSSY);
    qp.modify(&QpAttr { state: Some(State::Reset), ..QpAttr::default() }).unwrap();
    assert_eq!(qp.dialect(), Dialect::STANDARD);
}

/// On a network that loses, repeats and reorders packets all bytes arrive, and what was lost is
/// found by later packets.
#[test]
fn a_bad_network_is_repaired() {
    let bad = "loss=3%,reorder=1%,duplicate=1%,delay=20us,seed=5";
    let open = || {
        let options = options(DialectChoice::Auto, FabricChoice::Auto);
        options.impair(bad.parse().unwrap()).open().unwrap()
    };
    let pair = Pair::connect(open(), open());
    assert_eq!(pair.dialects(), [Dialect::LOSSY; 2], "packets are lost on purpose");
    for _ in 0..4 {
        pair.exchange();
    }
    let counters = pair.client.counters().card;
    assert!(counters.found_lost > 0 && counters.rx_selective > 0, "{counters:?}");
}

/// A peer whose card is not driven for long, as if its process were stopped, breaks no connection,
/// though the retries are used up.
#[test]
fn a_peer_that_stands_still_breaks_no_connection() {
    let [a, b] = [(); 2].map(|()| options(DialectChoice::Lossy, FabricChoice::Udp).open().unwrap());
    let pair = Pair::connect_with(a, b, |params| params.timeout(10).retry_cnt(2));
    assert_eq!(pair.dialects(), [Dialect::LOSSY; 2]);
    let there = pair.memory[1].slice(..5).remote();
    let write = {
        // The owner of a batch has the device's lock.
        let _held = pair.server.post_batch();
        let write = pair.ends[0].queue_pair().write(b"hello", there.slice(..));
        let until = Instant::now() + PATIENCE;
        while pair.client.counters().card.retries_waited < 3 {
            assert!(Instant::now() < until, "{:?}", pair.client.counters());
            thread::sleep(Duration::from_millis(5));
        }
        write
    };
    write.wait(PATIENCE).unwrap();
    assert_eq!(pair.memory[1].slice(..5).to_vec().unwrap(), b"hello");
}

/// A program on a daemon's card has the dialect as any other.
#[test]
fn a_daemons_clients_have_it_too() {
    let name = format!("remora-dialect-{}.sock", std::process::id());
    let socket = std::env::temp_dir().join(name);
    let card = options(DialectChoice::Lossy, FabricChoice::Udp).open().unwrap();
    let served = ServerOptions { socket: Some(socket.clone()), ..ServerOptions::default() };
    let mut server = Server::new(card, served).unwrap();
    let (stop, told) = (Arc::new(Event::new().unwrap()), Arc::new(Event::new().unwrap()));
    let stopper = stop.clone();
    let running = thread::spawn(move || server.run(&stopper).unwrap());
    let attached = DeviceOptions::new().attach(&socket).open().unwrap();
    assert!(attached.is_attached());
    let other = options(DialectChoice::Lossy, FabricChoice::Udp).open().unwrap();
    let pair = Pair::connect(attached.clone(), other.clone());
    assert_eq!(pair.dialects(), [Dialect::LOSSY; 2]);
    pair.exchange();
    let status = remora::daemon::Observer::connect(Some(&socket)).unwrap().status().unwrap();
    assert_eq!(status.sessions[0].lossy, 1);
    drop(pair);
    let pair = Pair::connect(other, attached);
    assert_eq!(pair.dialects(), [Dialect::LOSSY; 2]);
    pair.exchange();
    drop((pair, told));
    stop.notify().unwrap();
    running.join().unwrap();
    std::fs::remove_file(&socket).ok();
}

/// Names the part of this program's process in [`packets_are_spread_over_paths`].
const ADDRESS: &str = "REMORA_TEST_ADDRESS";
const SERVER: &str = "10.77.0.2";
const PATHS: u8 = 8;

fn spread() -> Device {
    let address = std::env::var(ADDRESS).unwrap();
    DeviceOptions::new().embedded().bind(address).paths(PATHS).open().unwrap()
}

#[test]
#[ignore = "a program for another test"]
fn spread_server() {
    let device = spread();
    let listener = device.listen(PORT).unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4 << 20, Access::all()).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    println!("listens");
    let connection = accept(&listener, qp, &device).unwrap();
    connection.send_remote(memory.slice(..).remote()).wait(PATIENCE).unwrap();
    connection.closed().wait(PATIENCE).unwrap();
    let expected: Vec<u8> = (0..4u32 << 20).map(|i| (i >> 7) as u8).collect();
    assert!(memory.slice(..).to_vec().unwrap() == expected, "the bytes differ");
    let counters = device.counters();
    assert_eq!((counters.card.drop_icrc, counters.card.drop_source_port), (0, 0));
    println!("served");
}

#[test]
#[ignore = "a program for another test"]
fn spread_client() {
    let device = spread();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4 << 20, Access::all()).unwrap();
    let expected: Vec<u8> = (0..4u32 << 20).map(|i| (i >> 7) as u8).collect();
    memory.write_at(0, &expected).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    let params = ConnectionParams::new(device.info().mtu);
    let to = SocketAddr::new(SERVER.parse().unwrap(), PORT);
    let connection = device.connect(qp.clone(), to, b"", &params).wait(PATIENCE).unwrap();
    assert_eq!(qp.dialect(), Dialect::LOSSY);
    let there = connection.recv_remote().wait(PATIENCE).unwrap();
    // A thread that loses its processor between two paths makes packets late: not each time.
    let mut least = u64::MAX;
    for _ in 0..10 {
        let before = device.counters().card.tx_for_nothing;
        qp.write(memory.slice(..), there.slice(..)).wait(PATIENCE).unwrap();
        least = least.min(device.counters().card.tx_for_nothing - before);
    }
    drop(connection);
    let egress = device.counters().egress;
    println!("spread: {} packets in {} calls {least} for nothing", egress.packets, egress.groups);
}

/// Between two machines (network namespaces), packets leave from as many ports as there are paths,
/// in runs that segmentation offload sends, and all bytes arrive.
#[test]
fn packets_are_spread_over_paths() {
    let program = std::env::current_exe().unwrap();
    let capture = std::env::temp_dir().join(format!("remora-paths-{}.pcapng", std::process::id()));
    let script = r#"set -e
        ip link set lo up && ip link add v0 type veth peer name v1
        unshare --net sleep 120 >/dev/null 2>&1 & other=$!
        trap 'kill $other' EXIT
        space() { readlink "/proc/$1/ns/net"; }
        until [ "$(space $other)" != "$(space self)" ]; do :; done
        ip link set v1 netns $other
        inside() { nsenter --net --target $other -- "$@"; }
        inside ip link set lo up; inside ip addr add 10.77.0.2/24 dev v1; inside ip link set v1 up
        ip addr add 10.77.0.1/24 dev v0; ip link set v0 up
        mkfifo "$2.fifo"
        REMORA_TEST_ADDRESS=10.77.0.2 inside "$1" --ignored --exact spread_server --nocapture \
            > "$2.fifo" & server=$!
        { while read -r line; do case $line in *listens) break;; esac; done
          REMORA_PCAP=$2 REMORA_TEST_ADDRESS=10.77.0.1 \
              "$1" --ignored --exact spread_client --nocapture
          cat; } < "$2.fifo"
        status=0; wait $server || status=$?
        rm "$2.fifo"; exit $status"#;
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--net",
        "timeout",
        "120",
        "sh",
        "-c",
        script,
        "sh",
    ]);
    command.arg(&program).arg(&capture).env("REMORA_NIC", "off");
    command.env_remove("REMORA_DIALECT").env_remove("REMORA_PATHS");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said: Vec<String> = lines.collect();
    if !child.wait().unwrap().success() && std::env::var_os("CI").is_none() && said.is_empty() {
        return skips::lacks("no network namespaces with a link between them here");
    }
    assert!(said.iter().any(|line| line.contains("served")), "{said:?}");
    let bytes = std::fs::read(&capture).unwrap();
    std::fs::remove_file(&capture).unwrap();
    // The ports of IPv4 packets with UDP from the client: at 20 bytes behind the header's begin.
    let header = |at: &&[u8]| at[0] == 0x45 && at[9] == 17 && at[12..16] == [10, 77, 0, 1];
    let ports = bytes.windows(28).filter(header).map(|at| u16::from_be_bytes([at[20], at[21]]));
    let ports: std::collections::BTreeSet<u16> = ports.collect();
    let others = (1..u16::from(PATHS)).map(|path| 0xC000 + path);
    assert_eq!(ports, [4791].into_iter().chain(others).collect(), "{said:?}");
    let numbers =
        said.iter().find(|line| line.contains("spread: ")).expect("the client has said so");
    let numbers: Vec<u64> = numbers.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] > 3 * numbers[1], "packets leave several at a time: {numbers:?}");
    assert_eq!(numbers[2], 0, "packets are sent again for nothing each time");
}
