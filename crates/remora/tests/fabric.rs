//! Cards of several processes of this machine, by shared memory and by UDP.

#[path = "support/killed.rs"]
mod killed;
#[path = "support/skips.rs"]
mod skips;
#[path = "support/until.rs"]
mod until;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use killed::Killed;
use remora::fabric::FabricChoice;
use remora::nic::Access;
use remora::nic::wire::Dialect;
use remora::{
    Connection, ConnectionParams, Device, DeviceOptions, DialectChoice, MemoryRegion,
    QueuePairOptions, Remote,
};
use until::until;

const PATIENCE: Duration = Duration::from_secs(30);
/// The environment variable that makes this program a server, and says of what kind.
const SERVER: &str = "REMORA_TEST_FABRIC_SERVER";
/// The environment variable with the address of its card.
const ADDRESS: &str = "REMORA_TEST_FABRIC_ADDRESS";
const PORT: u16 = 7474;
const SIZE: usize = 3 << 20;
/// The messages that a server of the kind `receives` takes from each client.
const RECEIVES: u32 = 256;

/// The server's process: it offers memory to each client, and sleeps meanwhile.
#[test]
fn server_process() {
    let Ok(kind) = std::env::var(SERVER) else { return };
    let options = match std::env::var(ADDRESS) {
        Ok(address) => DeviceOptions::new().bind(address),
        Err(_) => DeviceOptions::new(),
    };
    let device = options.open().unwrap();
    let listener = device.listen(PORT).unwrap();
    if kind == "forks" {
        // SAFETY: the child calls nothing but `pause`, which is safe after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: no pointers are passed.
                unsafe { libc::pause() };
            }
        }
        println!("\nchild {child}");
    }
    println!("\naddress {}", device.info().address);
    std::io::stdout().flush().unwrap();
    let serve = move || {
        let pd = device.alloc_pd().unwrap();
        let memory = pd.alloc(SIZE, Access::all()).unwrap();
        let (mut clients, mut received) = (Vec::new(), Vec::new());
        loop {
            let Ok(request) = listener.accept().wait(Duration::from_secs(3600)) else { return };
            let qp = pd.create_qp(&QueuePairOptions::new().recv_depth(RECEIVES)).unwrap();
            let client = request.accept(qp, b"", &params(&device)).wait(PATIENCE).unwrap();
            let receives = if kind == "receives" { RECEIVES } else { 0 };
            let qp = client.queue_pair();
            received.extend((0..receives).map(|_| qp.recv(memory.slice(..512))));
            client.send_remote(memory.slice(..).remote()).wait(PATIENCE).unwrap();
            clients.push(client);
        }
    };
    thread::spawn(serve);
    // The end of the test is the end of the input.
    assert_eq!(std::io::stdin().lock().lines().count(), 0);
    std::process::exit(0);
}

fn params(device: &Device) -> ConnectionParams {
    ConnectionParams::new(device.info().mtu)
}

/// A process that is killed with the test.
struct Server {
    child: Killed,
    _pipes: (ChildStdin, BufReader<ChildStdout>),
    address: IpAddr,
    /// The process that it has forked.
    forked: Option<i32>,
}

impl Server {
    fn start(kind: &str, variables: &[(&str, &str)]) -> Server {
        Server::run(Command::new(std::env::current_exe().unwrap()), kind, variables)
    }

    fn run(mut program: Command, kind: &str, variables: &[(&str, &str)]) -> Server {
        let mut child = program
            .args(["--exact", "server_process", "--nocapture"])
            .env(SERVER, kind)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut forked = None;
        let address = loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "the server has ended");
            if let Some(pid) = line.strip_prefix("child ") {
                forked = Some(pid.trim().parse().unwrap());
            }
            if let Some(address) = line.strip_prefix("address ") {
                break address.trim().parse().unwrap();
            }
        };
        let _pipes = (child.stdin.take().unwrap(), output);
        Server { child: Killed(child), _pipes, address, forked }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: no pointers are passed; the process is this test's own child.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(forked) = self.forked {
            // SAFETY: no pointers are passed; the process was forked by this test's own child.
            unsafe { libc::kill(forked, libc::SIGKILL) };
        }
    }
}

/// A connection to a server, and the memory that it offers.
struct Client {
    device: Device,
    connection: Connection,
    memory: MemoryRegion,
    theirs: Remote,
}

impl Client {
    fn connect(device: &Device, server: &Server) -> Client {
        Client::connect_with(device, server, params(device))
    }

    fn connect_with(device: &Device, server: &Server, params: ConnectionParams) -> Client {
        let pd = device.alloc_pd().unwrap();
        let qp = pd.create_qp(&QueuePairOptions::new()).unwrap();
        let to = SocketAddr::new(server.address, PORT);
        let connection = device.connect(qp, to, b"", &params).wait(PATIENCE).unwrap();
        let theirs = connection.recv_remote().wait(PATIENCE).unwrap();
        let memory = pd.alloc(SIZE, Access::all()).unwrap();
        Client { device: device.clone(), connection, memory, theirs }
    }

    /// Writes bytes to the server and reads them back.
    fn exchange(&self, len: usize, seed: u8) {
        let bytes: Vec<u8> = (0..len)
            .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed)
            .collect();
        self.memory.write_at(0, &bytes).unwrap();
        let (qp, theirs) = (self.connection.queue_pair(), self.theirs.slice(..len));
        qp.write(self.memory.slice(..len), theirs).wait(PATIENCE).unwrap();
        self.memory.write_at(0, &vec![0; len]).unwrap();
        qp.read(self.memory.slice(..len), theirs).wait(PATIENCE).unwrap();
        assert!(self.memory.slice(..len).to_vec().unwrap() == bytes, "{len} bytes");
    }

    /// Exchanges bytes until they go by a ring.
    fn until_by_ring(&self) {
        until("a ring carries the packets", || {
            self.exchange(100, 1);
            let counters = self.device.counters().fabric;
            counters.tx_packets > 0 && counters.rx_packets > 0
        });
    }

    fn by_udp(&self) -> u64 {
        let counters = self.device.counters();
        counters.egress.packets - counters.egress.by_ring
    }
}

#[test]
fn two_processes_meet_and_share_a_ring() {
    let server = Server::start("plain", &[]);
    let client = Client::connect(&Device::open().unwrap(), &server);
    client.until_by_ring();
    assert_eq!(client.device.ring_peers(), Some(1));
    let by_udp = client.by_udp();
    for (seed, len) in [1, 7, 8, 64, 4095, 4096, 4097, 65_536, 1_000_003, SIZE].iter().enumerate() {
        client.exchange(*len, seed as u8);
    }
    let counters = client.device.counters();
    assert_eq!(client.by_udp(), by_udp, "no packet goes by UDP any more");
    assert_eq!((counters.card.drop_icrc, counters.fabric.broken), (0, 0));
    assert!(counters.fabric.tx_packets > 700 && counters.fabric.rx_packets > 700);
}

/// Both ends sleep between two messages: each has to be woken for every one.
#[test]
fn cards_that_sleep_are_woken() {
    let server = Server::start("plain", &[]);
    let device = Device::open().unwrap();
    // 4.3 s: on a busy machine an answer is not late before a wake-up is lost.
    let client = Client::connect_with(&device, &server, params(&device).timeout(20));
    client.until_by_ring();
    let timeouts = || device.counters().card.timeouts;
    let before = timeouts();
    for round in 0..50 {
        // Longer than either card's thread goes on looking.
        thread::sleep(Duration::from_millis(3));
        client.exchange(8, round);
    }
    // A wake-up that is lost costs a retransmission's wait.
    assert_eq!(timeouts(), before);
}

#[test]
fn udp_alone_where_one_of_the_cards_asks_for_it() {
    for ours in [true, false] {
        let variables = [("REMORA_FABRIC", if ours { "auto" } else { "udp" })];
        let server = Server::start("plain", &variables);
        let choice = if ours { FabricChoice::Udp } else { FabricChoice::Auto };
        let device = DeviceOptions::new().fabric(choice).open().unwrap();
        let client = Client::connect(&device, &server);
        (0..20).for_each(|seed| client.exchange(100_000, seed));
        assert_eq!(device.ring_peers(), (!ours).then_some(0));
        assert_eq!(device.counters().fabric, remora::fabric::FabricCounters::default());
    }
}

/// The server's user is another one; only root can try it.
#[test]
fn users_do_not_share() {
    // SAFETY: no pointers are passed.
    if unsafe { libc::geteuid() } != 0 {
        return skips::lacks("only root can start a program of another user");
    }
    let folder = std::env::temp_dir().join(format!("remora-fabric-user-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    let program = folder.join("server");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&program);
    command.uid(61_185).gid(61_185).current_dir(&folder);
    let server = Server::run(command, "plain", &[]);
    let client = Client::connect(&Device::open().unwrap(), &server);
    for seed in 0..20 {
        client.exchange(100_000, seed);
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(client.device.ring_peers(), Some(0));
    assert_eq!(client.device.counters().fabric.tx_packets, 0);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A process is killed while bytes flow, and another one takes its address.
#[test]
fn a_killed_peer_is_missed_and_the_next_one_found() {
    // Of its own: other tests take the first free one.
    let pid = std::process::id();
    let address = format!("127.78.{}.{}", pid >> 8 & 0xff, pid & 0xff);
    let mut server = Server::start("plain", &[(ADDRESS, &address)]);
    let device = Device::open().unwrap();
    let client = Client::connect(&device, &server);
    client.until_by_ring();
    let write = || client.connection.queue_pair().write(client.memory.slice(..), client.theirs);
    let all_succeed = || {
        let writes: Vec<_> = (0..4).map(|_| write()).collect();
        writes.into_iter().filter_map(|write| write.wait(PATIENCE).err()).count() == 0
    };
    thread::scope(|scope| {
        // Requests to a process that is gone fail.
        let writing = scope.spawn(|| while all_succeed() {});
        thread::sleep(Duration::from_millis(5));
        server.kill();
        writing.join().unwrap();
    });
    until("the ring is closed", || {
        device.progress();
        device.ring_peers() == Some(0)
    });

    let next = Server::start("plain", &[(ADDRESS, &address)]);
    assert_eq!(next.address, server.address);
    let client = Client::connect(&device, &next);
    until("a ring to the next process", || {
        client.exchange(1000, 3);
        device.ring_peers() == Some(1)
    });
    client.exchange(SIZE, 4);
}

/// The connection between the two cards stays open in the child.
#[test]
fn a_killed_peer_is_missed_although_its_forked_child_lives() {
    let mut server = Server::start("forks", &[]);
    assert!(server.forked.is_some_and(|pid| pid > 0));
    let device = Device::open().unwrap();
    let client = Client::connect(&device, &server);
    client.until_by_ring();
    client.exchange(SIZE, 1);
    server.kill();
    until("the ring is closed", || {
        device.progress();
        device.ring_peers() == Some(0)
    });
}

/// The packets to a process that is stopped must not hold up those to all others.
#[test]
fn a_stopped_peer_does_not_hold_up_others() {
    let (stopped, other) = (Server::start("plain", &[]), Server::start("plain", &[]));
    let device = Device::open().unwrap();
    let [first, second] = [&stopped, &other].map(|server| Client::connect(&device, server));
    first.until_by_ring();
    second.until_by_ring();
    until("both rings", || {
        second.exchange(10, 1);
        device.ring_peers() == Some(2)
    });
    stopped.signal(libc::SIGSTOP);
    let qp = first.connection.queue_pair();
    let writes: Vec<_> = (0..4).map(|_| qp.write(first.memory.slice(..), first.theirs)).collect();
    (0..10).for_each(|seed| second.exchange(200_000, seed));
    stopped.signal(libc::SIGCONT);
    for write in writes {
        write.wait(PATIENCE).unwrap();
    }
    first.exchange(SIZE, 9);
    second.exchange(SIZE, 8);
}

/// Each fabric with each dialect.
const WAYS: [(&str, DialectChoice); 4] = [
    ("auto", DialectChoice::Standard),
    ("udp", DialectChoice::Standard),
    ("auto", DialectChoice::Lossy),
    ("udp", DialectChoice::Lossy),
];

/// A server by this fabric, and a device that speaks this dialect with it.
fn start(kind: &str, (fabric, choice): (&str, DialectChoice)) -> (Server, Device) {
    let speaks = if choice == DialectChoice::Lossy { "lossy" } else { "standard" };
    let server = Server::start(kind, &[("REMORA_FABRIC", fabric), ("REMORA_DIALECT", speaks)]);
    (server, DeviceOptions::new().dialect(choice).open().unwrap())
}

/// A server that is stopped for so long gets all that was on its way, once it goes on.
fn survives_a_pause((fabric, choice): (&str, DialectChoice), pause: Duration) {
    let (server, device) = start("plain", (fabric, choice));
    let client = Client::connect(&device, &server);
    let is_lossy = client.connection.queue_pair().dialect().contains(Dialect::LOSSY);
    assert_eq!(is_lossy, choice == DialectChoice::Lossy);
    if fabric == "auto" {
        client.until_by_ring();
    }
    client.exchange(SIZE, 1);
    server.signal(libc::SIGSTOP);
    let qp = client.connection.queue_pair();
    let writes: Vec<_> = (0..4).map(|_| qp.write(client.memory.slice(..), client.theirs)).collect();
    thread::sleep(pause);
    server.signal(libc::SIGCONT);
    for write in writes {
        write.wait(PATIENCE).unwrap();
    }
    let counters = client.device.counters().card;
    let about = format!("{fabric}, {choice:?}: {counters:?}");
    assert!(counters.retries_waited > 0 && counters.peers_gone == 0, "{about}");
    client.exchange(SIZE, 2);
}

#[test]
fn a_connection_survives_a_pause_of_three_seconds() {
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || survives_a_pause(way, Duration::from_secs(3)));
        }
    });
}

#[test]
fn a_connection_survives_a_pause_of_ten_seconds() {
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || survives_a_pause(way, Duration::from_secs(10)));
        }
    });
}

/// The timeout alone would take minutes.
#[test]
fn the_end_of_a_process_is_noticed_before_retries_are_used_up() {
    for (fabric, timeout) in [("auto", 22), ("udp", 16)] {
        let mut server = Server::start("plain", &[("REMORA_FABRIC", fabric)]);
        let device = Device::open().unwrap();
        let client = Client::connect_with(&device, &server, params(&device).timeout(timeout));
        if fabric == "auto" {
            client.until_by_ring();
        }
        server.signal(libc::SIGSTOP);
        let qp = client.connection.queue_pair();
        let write = qp.write(client.memory.slice(..), client.theirs);
        until("packets have left", || {
            device.progress();
            device.counters().card.tx_packets > 10
        });
        server.kill();
        assert!(write.wait(PATIENCE).is_err());
        let counters = device.counters().card;
        assert!(counters.peers_gone > 0 && counters.retries_waited == 0, "{fabric}: {counters:?}");
    }
}

/// Processes that only compute, beside those of a test.
fn load(processes: usize) -> Vec<Killed> {
    let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    (0..processes).map(|_| Killed(busy())).collect()
}

/// SENDs of 512 bytes by 128 queue pairs, beside a load of ten busy processes.
#[test]
fn connections_stay_beside_a_load_of_ten_processes() {
    for way in WAYS {
        let (server, device) = start("receives", way);
        let clients: Vec<_> = (0..128).map(|_| Client::connect(&device, &server)).collect();
        let load = load(10);
        for _ in 0..RECEIVES / 32 {
            let sends = clients.iter().flat_map(|client| {
                let qp = client.connection.queue_pair();
                (0..32).map(move |n| qp.send(client.memory.slice(n * 512..(n + 1) * 512)))
            });
            for send in sends.collect::<Vec<_>>() {
                send.wait(PATIENCE).unwrap_or_else(|error| panic!("{way:?}: {error}"));
            }
        }
        drop(load);
    }
}

/// A network that does all that a bad one can, in both directions of both cards.
const BAD: &str = "loss=1%,delay=20us+-10us,reorder=1%,duplicate=1%,corrupt=0.5%,rate=10G,seed=7";

#[test]
fn what_a_bad_network_does_is_repaired_on_both_fabrics() {
    for fabric in ["auto", "udp"] {
        let server = Server::start("plain", &[("REMORA_IMPAIR", BAD), ("REMORA_FABRIC", fabric)]);
        let options = DeviceOptions::new().impair(BAD.parse().unwrap());
        let client = Client::connect(&options.open().unwrap(), &server);
        if fabric == "auto" {
            client.until_by_ring();
        }
        (0..5).for_each(|seed| client.exchange(1_000_000, seed));
        let counters = client.device.counters();
        assert!(counters.card.tx_retransmitted > 0, "{counters:?}");
        assert!(counters.card.drop_icrc > 0, "damage is seen by the ICRC, in rings too");
        for (direction, counts) in counters.impaired {
            let done = [counts.lost, counts.delayed, counts.duplicated, counts.corrupted];
            assert!(done.iter().all(|count| *count > 0), "{fabric} {direction}: {counts:?}");
        }
    }
}

#[test]
fn a_network_becomes_bad_and_good_again_while_a_card_runs() {
    let server = Server::start("plain", &[]);
    let client = Client::connect(&Device::open().unwrap(), &server);
    client.until_by_ring();
    let lost = || client.device.counters().impaired.map(|(_, counts)| counts.lost);
    client.exchange(SIZE, 1);
    assert_eq!(lost(), [0, 0]);
    let other = "peer=192.0.2.1,loss=100%; out,loss=3%,corrupt=1%; in,loss=0%,corrupt=1%,seed=7";
    client.device.impair(&other.parse().unwrap()).unwrap();
    until("packets are lost and repeated", || {
        client.exchange(1_000_000, 2);
        client.device.counters().card.tx_retransmitted > 0
    });
    let [arriving, leaving] = lost();
    assert!(arriving == 0 && leaving > 0, "{arriving} {leaving}");
    client.device.impair(&"off".parse().unwrap()).unwrap();
    (0..3).for_each(|seed| client.exchange(SIZE, seed));
    assert_eq!(lost(), [0, leaving]);
}

#[test]
fn a_file_says_what_happens_to_packets_meanwhile() {
    let path = std::env::temp_dir().join(format!("remora-bad-{}", std::process::id()));
    std::fs::write(&path, "off").unwrap();
    let from = format!("@{}", path.display());
    let server = Server::start("plain", &[("REMORA_IMPAIR", &from)]);
    let client = Client::connect(&Device::open().unwrap(), &server);
    client.until_by_ring();
    (0..5).for_each(|seed| client.exchange(1_000_000, seed));
    assert_eq!(client.device.counters().card.tx_retransmitted, 0);
    std::fs::write(&path, "in,loss=3%").unwrap();
    until("the server's card loses packets", || {
        client.exchange(1_000_000, 9);
        client.device.counters().card.tx_retransmitted > 0
    });
    std::fs::remove_file(path).unwrap();
}

/// Where one card captures packets, they have an ICRC in the ring, too.
#[test]
fn packets_of_a_ring_are_captured() {
    let folder = std::env::temp_dir().join(format!("remora-fabric-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("packets.pcapng");
    let variables = [("REMORA_PCAP", path.to_str().unwrap())];
    let server = Server::start("plain", &variables);
    let client = Client::connect(&Device::open().unwrap(), &server);
    client.until_by_ring();
    client.exchange(SIZE, 1);
    assert_eq!(client.device.counters().card.drop_icrc, 0);
    // The card's thread writes it out before it sleeps.
    until("the packets are in the file", || {
        std::fs::metadata(&path).unwrap().len() >= 2 * SIZE as u64
    });
    std::fs::remove_dir_all(folder).unwrap();
}
