//! The distribution's own programs in the machine, with partners written in Rust.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use remora::nic::queue::{
    Data, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Status, WorkKind,
};
use remora::nic::{Access, Psn};
use remora::{
    CompletionQueue, ConnectionParams, Device, DeviceOptions, MemoryRegion, Peer, QueuePair,
    QueuePairOptions,
};
use remora_tests::end::PATIENCE;
use remora_tests::machine::{Output, Running};
use remora_tests::namespace::{HOST_V4, MACHINE_V4};
use remora_tests::program::Program;

use crate::World;

/// A case of one program: its name, and the function that runs it.
type Case = (&'static str, fn(&World));

pub(crate) const CASES: &[Case] = &[
    ("ibv_rc_pingpong as the server", pingpong_server),
    ("ibv_rc_pingpong as the client", pingpong_client),
    ("rping as the server", rping_server),
    ("rping as the client", rping_client),
];

const ROUNDS: u32 = 100;
const SIZE: u32 = 9000;

/// The verbs objects of a program's partner on this host.
struct Partner {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
}

impl Partner {
    fn open() -> Partner {
        let device = DeviceOptions::new().bind(HOST_V4.to_string()).open().expect("a device");
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(64).expect("a completion queue");
        let qp = pd.create_qp(&QueuePairOptions::rc(&cq)).expect("a queue pair");
        let region = pd.alloc(1 << 16, Access::all()).expect("a region");
        Partner { device, cq, qp, region }
    }

    fn params(&self) -> ConnectionParams {
        let mtu = self.device.info().mtu;
        ConnectionParams::new(mtu).access(Access::all()).timeout(16)
    }

    fn recv(&self, offset: u64, len: u32) {
        let sges = [self.region.sge(offset, len)];
        self.qp.post_recv(&RecvRequest { wr_id: 0, sges: &sges }).expect("a receive request");
    }

    fn post(&self, op: SendOp, offset: u64, len: u32) {
        let sges = [self.region.sge(offset, len)];
        let flags = SendFlags::SIGNALED;
        let request = SendRequest { wr_id: 0, op, data: Data::Sges(&sges), flags };
        self.qp.post_send(&request).expect("a send request");
    }

    /// Waits until this many requests are complete; returns the length of the received message.
    fn done(&self, sends: u32, receives: u32) -> u32 {
        let (mut sends, mut receives, mut len) = (sends, receives, 0);
        while sends + receives > 0 {
            let done = self.cq.spin(PATIENCE).expect("a completion");
            assert_eq!(done.status, Status::Success);
            if matches!(done.kind, WorkKind::Send(_)) {
                sends -= 1;
            } else {
                receives -= 1;
                len = done.len;
            }
        }
        len
    }
}

/// The index of the machine's IPv4 address in its GID table.
fn machine_gid(world: &World) -> u64 {
    Program::in_machine(&world.machine, MACHINE_V4.into()).gid()
}

fn finish(program: Running) -> Output {
    let output = program.finish(PATIENCE).expect("the program ends");
    assert_eq!(output.status, 0, "{}", output.text);
    output
}

// --- ibv_rc_pingpong: its handshake is text ------------------------------------------------------

/// The length of the handshake, with its zero byte.
const HANDSHAKE: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;

fn handshake(peer: &Peer) -> Vec<u8> {
    let gid = match peer.address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let (qpn, psn) = (peer.qpn, peer.psn.value());
    format!("0000:{qpn:06x}:{psn:06x}:{:032x}\0", gid.to_bits()).into_bytes()
}

fn read_handshake(stream: &mut TcpStream) -> Peer {
    let mut bytes = [0; HANDSHAKE];
    stream.read_exact(&mut bytes).expect("a handshake");
    let text = String::from_utf8_lossy(&bytes);
    let words: Vec<&str> = text.trim_end_matches('\0').split(':').collect();
    let number = |word: &str| u32::from_str_radix(word, 16).expect("a number");
    let gid = u128::from_str_radix(words[3], 16).expect("a GID");
    let address = Ipv6Addr::from_bits(gid).to_canonical();
    Peer { address, qpn: number(words[1]), psn: Psn::new(number(words[2])) }
}

fn play(partner: &Partner, we_begin: bool) {
    for round in 0..ROUNDS {
        // The program's message of the round may have come before this request: its completion
        // waits then.
        if we_begin {
            partner.post(SendOp::Send { imm: None, to: None }, 0, SIZE);
            assert_eq!(partner.done(1, 1), SIZE, "round {round}");
            partner.recv(1 << 15, SIZE);
        } else {
            if round == 0 {
                assert_eq!(partner.done(0, 1), SIZE);
            }
            partner.recv(1 << 15, SIZE);
            partner.post(SendOp::Send { imm: None, to: None }, 0, SIZE);
            // The program's next message may arrive before this message is acknowledged.
            partner.done(1, u32::from(round + 1 < ROUNDS));
        }
    }
}

fn pingpong_server(world: &World) {
    let gid = machine_gid(world);
    let command = format!("ibv_rc_pingpong -g {gid} -n {ROUNDS} -s {SIZE} -m 4096");
    let server = world.machine.start(&command).expect("the machine");
    let partner = Partner::open();
    let address = SocketAddr::from((MACHINE_V4, 18515));
    // The program does not say when it listens, so the test tries until it connects.
    let stream = (0..500).find_map(|_| {
        let stream = TcpStream::connect(address);
        if stream.is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        stream.ok()
    });
    let mut stream = stream.expect("the server listens");
    stream.write_all(&handshake(&partner.qp.local())).expect("the server");
    let peer = read_handshake(&mut stream);
    partner.qp.connect(peer, &partner.params()).expect("to RTS");
    partner.recv(1 << 15, SIZE);
    stream.write_all(b"done\0").expect("the server");
    play(&partner, true);
    let said = finish(server).text;
    assert!(said.contains(&format!("{ROUNDS} iters")), "{said}");
}

fn pingpong_client(world: &World) {
    let gid = machine_gid(world);
    let listener = TcpListener::bind((HOST_V4, 18515)).expect("a port of our own namespace");
    let command = format!("ibv_rc_pingpong -g {gid} -n {ROUNDS} -s {SIZE} -m 4096 {HOST_V4}");
    let client = world.machine.start(&command).expect("the machine");
    let (mut stream, _) = listener.accept().expect("the client");
    let partner = Partner::open();
    let peer = read_handshake(&mut stream);
    partner.qp.connect(peer, &partner.params()).expect("to RTS");
    partner.recv(1 << 15, SIZE);
    stream.write_all(&handshake(&partner.qp.local())).expect("the client");
    stream.read_exact(&mut [0; 5]).expect("the client is done");
    play(&partner, false);
    let said = finish(client).text;
    assert!(said.contains(&format!("{ROUNDS} iters")), "{said}");
}

// --- rping: RDMA CM; advertisements in SENDs, then a READ and a WRITE by the server --------------

/// An address (8 bytes), a key and a length (4 each), all big-endian.
const ADVERT: u32 = 16;
const AT_ADVERT: u64 = 0;
const AT_RECV: u64 = 64;
const AT_PING: u64 = 1024;
const AT_PONG: u64 = 2048;
const PING: u32 = 64;
const PINGS: u32 = 10;

fn advertise(partner: &Partner, offset: u64) {
    let RemoteAddress { addr, rkey } = partner.region.remote(offset);
    let mut bytes = addr.to_be_bytes().to_vec();
    bytes.extend_from_slice(&rkey.to_be_bytes());
    bytes.extend_from_slice(&PING.to_be_bytes());
    partner.region.write_at(AT_ADVERT as usize, &bytes).expect("inside of the region");
    partner.post(SendOp::Send { imm: None, to: None }, AT_ADVERT, ADVERT);
}

fn advert(partner: &Partner) -> (RemoteAddress, u32) {
    let mut b = [0; ADVERT as usize];
    partner.region.read_at(AT_RECV as usize, &mut b).expect("inside of the region");
    let addr = u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    let word = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
    (RemoteAddress { addr, rkey: word(8) }, word(12))
}

fn rping_server(world: &World) {
    let command = format!("rping -s -a {MACHINE_V4} -p 7174 -C {PINGS} -v -V");
    let server = world.machine.start(&command).expect("the machine");
    let partner = Partner::open();
    let to = SocketAddr::from((MACHINE_V4, 7174));
    let params = partner.params();
    // The program does not say when it listens, so the test tries until it connects.
    let connection = (0..50).find_map(|_| {
        let made = partner.device.connect(partner.qp.clone(), to, b"", &params).wait(PATIENCE);
        if made.is_err() {
            std::thread::sleep(Duration::from_millis(100));
            let reset = remora::nic::qp::QpAttr {
                state: Some(remora::nic::qp::State::Reset),
                ..Default::default()
            };
            partner.qp.modify(&reset).expect("to RESET");
        }
        made.ok()
    });
    let connection = connection.expect("a connection to rping");
    for i in 0..PINGS {
        let text =
            format!("ping {i} of remora, padded to its length with words and words.\0\0\0\0");
        let text = &text.as_bytes()[..PING as usize];
        partner.region.write_at(AT_PING as usize, text).expect("inside of the region");
        partner.recv(AT_RECV, ADVERT);
        advertise(&partner, AT_PING);
        partner.done(1, 1);
        partner.recv(AT_RECV, ADVERT);
        advertise(&partner, AT_PONG);
        partner.done(1, 1);
        let mut back = vec![0; PING as usize];
        partner.region.read_at(AT_PONG as usize, &mut back).expect("inside of the region");
        assert_eq!(&back[..20], &text[..20], "what it read, it wrote back");
    }
    drop(connection);
    let output = server.finish(PATIENCE).expect("rping ends");
    assert!(output.text.contains("ping data: ping 9 of remora"), "{}", output.text);
}

fn rping_client(world: &World) {
    let partner = Partner::open();
    let listener = partner.device.listen(7174).expect("a port");
    let command = format!("rping -c -a {HOST_V4} -p 7174 -C {PINGS} -v -V");
    let client = world.machine.start(&command).expect("the machine");
    let request = listener.accept().wait(PATIENCE).expect("a request");
    let made = request.accept(partner.qp.clone(), b"", &partner.params()).wait(PATIENCE);
    let connection = made.expect("a connection");
    for _ in 0..PINGS {
        partner.recv(AT_RECV, ADVERT);
        partner.done(0, 1);
        let (from, len) = advert(&partner);
        partner.post(SendOp::Read { from }, AT_PING, len);
        partner.done(1, 0);
        partner.recv(AT_RECV, ADVERT);
        partner.post(SendOp::Send { imm: None, to: None }, AT_ADVERT, ADVERT);
        partner.done(1, 1);
        let (to, len) = advert(&partner);
        partner.post(SendOp::Write { to, imm: None }, AT_PING, len);
        partner.post(SendOp::Send { imm: None, to: None }, AT_ADVERT, ADVERT);
        partner.done(2, 0);
    }
    connection.wait_for_end(PATIENCE);
    drop(connection);
    let said = finish(client).text;
    assert_eq!(said.matches("ping data: rdma-ping").count(), PINGS as usize, "{said}");
}
