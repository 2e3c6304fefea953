//! Two devices of one process, over real sockets on loopback.

#[path = "support/until.rs"]
mod until;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use remora::daemon::{Server, ServerOptions};
use remora::nic::cm::ConnectRequest;
use remora::nic::cm::service::PortSpace;
use remora::nic::qp::{Mtu, QpAttr, State};
use remora::nic::queue::{
    Data, Opcode, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Status,
    UdDestination, WorkKind,
};
use remora::nic::service_level::ServiceLevel;
use remora::nic::transmit::PayloadRef;
use remora::nic::wire::icrc::{Flow, Icrc};
use remora::nic::wire::{ROCE_PORT, Transport};
use remora::nic::{Access, Config, Nic, Path, Time, TransmitBatch};
use remora::{
    CompletionChannel, CompletionQueue, ConnectFailure, ConnectionEnd, ConnectionParams,
    CreateQpError, Device, DeviceOptions, OpenError, Peer, ProtectionDomain, QueuePair,
    QueuePairOptions, RegisterError,
};
use until::until;

const PATIENCE: Duration = Duration::from_secs(20);
const OPEN: Access = Access::all();

struct End {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

fn end() -> End {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(256).unwrap();
    let qp = pd.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    End { device, pd, cq, qp }
}

/// As [`end`], with a channel to sleep on.
struct Sleeper {
    device: Device,
    channel: CompletionChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

fn end_on_channel() -> Sleeper {
    let device = Device::open().unwrap();
    let channel = device.create_channel().unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq_on(&channel, 256).unwrap();
    let qp = pd.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    Sleeper { device, channel, pd, cq, qp }
}

fn connect_unreliable(qp: &QueuePair, peer: Peer) {
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    qp.to_init(OPEN).unwrap();
    qp.modify(&QpAttr {
        path: Some(Path::new(peer.address, qp.qpn())),
        path_mtu: Some(Mtu::B4096),
        dest_qp: Some(peer.qpn),
        rq_psn: Some(peer.psn),
        ..to(State::Rtr)
    })
    .unwrap();
    qp.modify(&QpAttr { sq_psn: Some(qp.local().psn), ..to(State::Rts) }).unwrap();
}

fn pair() -> (End, End) {
    let (a, b) = (end(), end());
    let params = ConnectionParams::new(a.device.info().mtu);
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
    (a, b)
}

fn signaled<'a>(wr_id: u64, op: SendOp, data: Data<'a>) -> SendRequest<'a> {
    SendRequest { wr_id, op, data, flags: SendFlags::SIGNALED }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

#[test]
fn writes_and_reads_of_many_sizes_arrive_byte_for_byte() {
    let (a, b) = pair();
    let size = 3 << 20;
    let mine = a.pd.alloc(size, OPEN).unwrap();
    let theirs = b.pd.alloc(size, OPEN).unwrap();
    for (i, len) in [1, 7, 8, 64, 4095, 4096, 4097, 65_536, 1_000_003, 3 << 20].iter().enumerate() {
        let (len, seed) = (*len, i as u8 + 1);
        let bytes = pattern(len, seed);
        mine.write_at(0, &bytes).unwrap();
        let sge = [mine.sge(0, len as u32)];
        let to = SendOp::Write { to: theirs.remote(0), imm: None };
        a.qp.post_send(&signaled(1, to, Data::Sges(&sge))).unwrap();
        let done = a.cq.spin(PATIENCE).unwrap();
        assert_eq!((done.wr_id, done.status), (1, Status::Success), "WRITE of {len}");
        let mut got = vec![0; len];
        theirs.read_at(0, &mut got).unwrap();
        assert!(got == bytes, "WRITE of {len} bytes");

        mine.write_at(0, &vec![0; len]).unwrap();
        let from = SendOp::Read { from: theirs.remote(0) };
        a.qp.post_send(&signaled(2, from, Data::Sges(&sge))).unwrap();
        let done = a.cq.spin(PATIENCE).unwrap();
        assert_eq!((done.wr_id, done.status), (2, Status::Success), "READ of {len}");
        mine.read_at(0, &mut got).unwrap();
        assert!(got == bytes, "READ of {len} bytes");
    }
}

#[test]
fn sends_are_received_in_order_with_their_immediate_data() {
    let (a, b) = pair();
    let room = b.pd.alloc(1 << 16, OPEN).unwrap();
    for i in 0..16 {
        let sges = [room.sge(i * 4096, 4096)];
        b.qp.post_recv(&RecvRequest { wr_id: i, sges: &sges }).unwrap();
    }
    for i in 0..16u32 {
        let text = format!("message {i}");
        let op = SendOp::Send { imm: Some(i), to: None };
        a.qp.post_send(&signaled(0, op, Data::Inline(text.as_bytes()))).unwrap();
    }
    for i in 0..16u32 {
        let got = b.cq.spin(PATIENCE).unwrap().ok().unwrap();
        let text = format!("message {i}");
        assert_eq!((got.wr_id, got.kind, got.imm_or_key), (u64::from(i), WorkKind::Recv, i));
        assert_eq!(got.len as usize, text.len());
        let mut bytes = vec![0; text.len()];
        room.read_at(i as usize * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, text.as_bytes());
    }
}

#[test]
fn atomics_return_the_word_before() {
    let (a, b) = pair();
    let result = a.pd.alloc(4096, OPEN).unwrap();
    let word = b.pd.alloc(4096, OPEN).unwrap();
    word.buffer().unwrap().store_u64(8, 40).unwrap();
    let sge = [result.sge(0, 8)];
    let at = word.remote(8);
    let ops = [SendOp::FetchAdd { at, add: 2 }, SendOp::CompareSwap { at, compare: 42, swap: 7 }];
    for (op, before, after) in [(ops[0], 40, 42), (ops[1], 42, 7), (ops[1], 7, 7)] {
        a.qp.post_send(&signaled(0, op, Data::Sges(&sge))).unwrap();
        let done = a.cq.spin(PATIENCE).unwrap();
        assert_eq!(done.status, Status::Success);
        assert!(matches!(done.kind, WorkKind::Send(Opcode::FetchAdd | Opcode::CompareSwap)));
        assert_eq!(result.buffer().unwrap().load_u64(0).unwrap(), before);
        assert_eq!(word.buffer().unwrap().load_u64(8).unwrap(), after);
    }
}

#[test]
fn a_stale_key_is_refused_and_named() {
    let (a, b) = pair();
    let mine = a.pd.alloc(4096, OPEN).unwrap();
    let theirs = b.pd.alloc(4096, OPEN).unwrap();
    let stale = theirs.remote(0);
    drop(theirs);
    let sge = [mine.sge(0, 8)];
    let op = SendOp::Write { to: stale, imm: None };
    let refused = || b.device.counters().card.refused_key;
    let before = refused();
    a.qp.post_send(&signaled(9, op, Data::Sges(&sge))).unwrap();
    let done = a.cq.spin(PATIENCE).unwrap();
    assert_eq!((done.wr_id, done.status), (9, Status::RemoteAccess));
    assert!(refused() > before);
}

/// What one device has is not another's, though their numbers may be the same.
#[test]
fn objects_of_another_device_are_refused() {
    let [one, other] = [(); 2].map(|()| Device::open().unwrap());
    let [here, there] = [&one, &other].map(|device| device.alloc_pd().unwrap());
    let queue = other.create_cq(16).unwrap();
    let options = QueuePairOptions::new().send_cq(&queue);
    assert!(matches!(here.create_qp(&options), Err(CreateQpError::OtherDevice)));
    let srq = there.create_srq(16, 1).unwrap();
    let own = one.create_cq(16).unwrap();
    let options = QueuePairOptions::new().recv_cq(&own).srq(&srq);
    assert!(matches!(here.create_qp(&options), Err(CreateQpError::OtherDevice)));
    let path = std::env::temp_dir().join(format!("remora-of-one-{}", std::process::id()));
    std::fs::write(&path, [1; 4096]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let region = here.register_file(file, Access::REMOTE_READ).unwrap();
    assert!(matches!(
        region.register_in(&there, 0, Access::REMOTE_READ),
        Err(RegisterError::OtherDevice)
    ));
    // The memory of the process is everybody's.
    let memory = here.alloc(4096, Access::all()).unwrap();
    assert!(memory.register_in(&there, 0, Access::all()).is_ok());
}

#[test]
fn a_silent_peer_ends_in_retries_exceeded() {
    let a = end();
    let gone = end();
    let peer = gone.qp.local();
    let mine = a.pd.alloc(4096, OPEN).unwrap();
    drop(gone);
    let mtu = a.device.info().mtu;
    let params = ConnectionParams::new(mtu).timeout(8).retry_cnt(2);
    a.qp.connect(peer, &params).unwrap();
    let sge = [mine.sge(0, 8)];
    let op = SendOp::Write { to: RemoteAddress { addr: 0, rkey: 1 }, imm: None };
    a.qp.post_send(&signaled(1, op, Data::Sges(&sge))).unwrap();
    assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::RetryExceeded);
}

#[test]
fn an_idle_process_still_answers() {
    let (a, b) = pair();
    let mine = a.pd.alloc(1 << 20, OPEN).unwrap();
    let theirs = b.pd.alloc(1 << 20, OPEN).unwrap();
    // Only `a` is polled here; `b` is driven by its background thread alone.
    let sge = [mine.sge(0, 1 << 20)];
    for i in 0..50 {
        let op = SendOp::Read { from: theirs.remote(0) };
        a.qp.post_send(&signaled(i, op, Data::Sges(&sge))).unwrap();
        assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::Success);
    }
}

#[test]
fn a_channel_wakes_who_waits() {
    let a = end();
    let device = Device::open().unwrap();
    let channel = device.create_channel().unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq_on(&channel, 16).unwrap();
    let qp = pd.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    let params = ConnectionParams::new(device.info().mtu);
    a.qp.connect(qp.local(), &params).unwrap();
    qp.connect(a.qp.local(), &params).unwrap();
    let room = pd.alloc(4096, OPEN).unwrap();
    let sges = [room.sge(0, 4096)];
    qp.post_recv(&RecvRequest { wr_id: 5, sges: &sges }).unwrap();
    cq.arm(false).unwrap();
    let op = SendOp::Send { imm: None, to: None };
    a.qp.post_send(&signaled(0, op, Data::Inline(b"wake"))).unwrap();
    assert_eq!(channel.wait(PATIENCE).unwrap(), cq.handle());
    assert_eq!(cq.spin(PATIENCE).unwrap().ok().unwrap().wr_id, 5);
}

#[test]
fn datagrams_carry_their_route() {
    let make = |device: &Device| {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64).unwrap();
        let options = QueuePairOptions::rc(&cq).transport(Transport::Ud);
        let qp = pd.create_qp(&options).unwrap();
        qp.activate_ud(0x1111).unwrap();
        (pd, cq, qp)
    };
    let (here, there) = (Device::open().unwrap(), Device::open().unwrap());
    let (pd, cq, qp) = make(&here);
    let (pd2, cq2, qp2) = make(&there);
    let room = pd2.alloc(4096, OPEN).unwrap();
    let sges = [room.sge(0, 4096)];
    qp2.post_recv(&RecvRequest { wr_id: 1, sges: &sges }).unwrap();
    let ah = pd.create_ah(there.info().address).unwrap();
    let to = UdDestination { ah: ah.handle(), qpn: qp2.qpn(), qkey: 0x1111 };
    let op = SendOp::Send { imm: None, to: Some(to) };
    qp.post_send(&signaled(2, op, Data::Inline(b"datagram"))).unwrap();
    assert_eq!(cq.spin(PATIENCE).unwrap().ok().unwrap().wr_id, 2);
    let got = cq2.spin(PATIENCE).unwrap().ok().unwrap();
    assert_eq!((got.len, got.src_qp), (40 + 8, qp.qpn()));
    let mut bytes = [0; 48];
    room.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes[40..], b"datagram");
    assert_eq!(bytes[20] >> 4, 4, "an IPv4 header stands in the second half of the GRH");
}

#[test]
fn connections_are_made_used_and_parted() {
    let server = end();
    let client = end();
    let listener = server.device.listen(7471).unwrap();
    let to = SocketAddr::new(server.device.info().address, 7471);
    let params = ConnectionParams::new(server.device.info().mtu);
    let room = server.pd.alloc(4096, OPEN).unwrap();
    let sges = [room.sge(0, 4096)];
    let passive = std::thread::spawn(move || {
        let request = listener.accept().wait(PATIENCE).expect("a request");
        assert_eq!(&request.private_data()[..5], b"hello");
        let connection =
            request.accept(server.qp.clone(), b"welcome", &params).wait(PATIENCE).unwrap();
        connection.queue_pair().post_recv(&RecvRequest { wr_id: 3, sges: &sges }).unwrap();
        assert_eq!(server.cq.spin(PATIENCE).unwrap().ok().unwrap().wr_id, 3);
        assert_eq!(connection.wait_for_end(PATIENCE), ConnectionEnd::Disconnected);
    });
    let connection =
        client.device.connect(client.qp.clone(), to, b"hello", &params).wait(PATIENCE).unwrap();
    assert_eq!(&connection.private_data()[..7], b"welcome");
    let op = SendOp::Send { imm: None, to: None };
    connection.queue_pair().post_send(&signaled(0, op, Data::Inline(b"x"))).unwrap();
    assert_eq!(client.cq.spin(PATIENCE).unwrap().status, Status::Success);
    drop(connection);
    passive.join().unwrap();
}

/// A program with sockets of IPv6 names a peer of IPv4 by a mapped address.
#[test]
fn a_peer_may_be_named_by_its_mapped_address() {
    let (server, client) = (end(), end());
    let listener = server.device.listen(7471).unwrap();
    let IpAddr::V4(there) = server.device.info().address else { panic!("a card of IPv4") };
    let to = SocketAddr::new(there.to_ipv6_mapped().into(), 7471);
    let params = ConnectionParams::new(server.device.info().mtu);
    let passive = std::thread::spawn(move || {
        let request = listener.accept().wait(PATIENCE).expect("a request");
        request.accept(server.qp.clone(), b"", &params).wait(PATIENCE).unwrap()
    });
    let active = client.device.connect(client.qp.clone(), to, b"", &params).wait(PATIENCE).unwrap();
    let passive = passive.join().unwrap();
    let op = SendOp::Send { imm: None, to: None };
    passive.queue_pair().post_recv(&RecvRequest { wr_id: 3, sges: &[] }).unwrap();
    active.queue_pair().post_send(&signaled(0, op, Data::Inline(b""))).unwrap();
    assert_eq!(client.cq.spin(PATIENCE).unwrap().status, Status::Success);
}

/// Every process can bind the address of another one's card, with another port. What it sends from
/// there is not the card's word: here, that the card has forgotten its connection.
#[test]
fn another_port_of_an_address_is_not_the_card_there() {
    let (server, client) = (end(), end());
    let (here, there) = (client.device.info().address, server.device.info().address);
    let listener = server.device.listen(7471).unwrap();
    let to = SocketAddr::new(there, 7471);
    let params = ConnectionParams::new(server.device.info().mtu);
    let qp = server.qp.clone();
    let passive = std::thread::spawn(move || {
        let request = listener.accept().wait(PATIENCE).expect("a request");
        request.accept(qp, b"", &params).wait(PATIENCE).unwrap()
    });
    let active = client.device.connect(client.qp.clone(), to, b"", &params).wait(PATIENCE).unwrap();
    let passive = passive.join().unwrap();

    let pretender = UdpSocket::bind((here, 0)).unwrap();
    let service = PortSpace::Tcp.service_id(7471);
    let request = ConnectRequest::new(there, service, client.qp.qpn());
    let mut config = Config::new(here);
    config.cm.ca_guid = client.device.limits().cm.ca_guid;
    let mut card = Nic::new(config, [1; 32]);
    card.cm_mut().connect(Time(0), &request).unwrap();
    let mut batch = TransmitBatch::new();
    // SAFETY: no memory is registered.
    let memory = &mut unsafe { remora::memory::HostMemory::new() };
    card.poll_transmit(Time(0), memory, &mut batch, 1);
    let [packet] = batch.packets() else { panic!("one request") };
    let PayloadRef::Bytes(payload) = batch.payload(packet) else { panic!("on the card") };
    let src_port = pretender.local_addr().unwrap().port();
    let flow = Flow { src: here, dst: there, src_port, dst_port: ROCE_PORT };
    let mut icrc = Icrc::start(&flow, 0, packet.datagram_len(), packet.header());
    icrc.update(payload);
    let bytes = [packet.header(), payload, &icrc.finish()].concat();
    // (The card may have other programs.)
    let dropped = || server.device.counters().card.drop_source_port;
    let before = dropped();
    pretender.send_to(&bytes, (there, ROCE_PORT)).unwrap();
    until("the packet is dropped", || dropped() > before);
    assert_eq!(passive.end(), ConnectionEnd::Alive);
    drop((active, passive));
}

/// A peer may still remember connections of the process that had the address before, and a queue
/// pair of this one may have a number of its. The peer tells the two cards by their GUIDs.
#[test]
fn each_card_at_an_address_has_a_guid_of_its_own() {
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = format!("127.88.{high}.{}", low.clamp(1, 254));
    let guid = || {
        let device = DeviceOptions::new().bind(&address).open().unwrap();
        device.limits().cm.ca_guid.to_be_bytes()
    };
    let (first, second) = (guid(), guid());
    assert_ne!(first, second);
    assert_eq!((first[0] & 3, second[0] & 3), (2, 2), "of one card, and not of a vendor's");
}

#[test]
fn whom_a_connection_manager_tells_of_a_psn_begins_with_it() {
    // As Linux does: a REQ or REP tells the PSN that its sender expects.
    let (server, client) = (end(), end());
    let listener = server.device.listen(7471).unwrap();
    let to = SocketAddr::new(server.device.info().address, 7471);
    let params = ConnectionParams::new(server.device.info().mtu);
    let told = [client.qp.local().psn, server.qp.local().psn];
    let passive = std::thread::spawn(move || {
        let request = listener.accept().wait(PATIENCE).expect("a request");
        request.accept(server.qp.clone(), b"", &params).wait(PATIENCE).unwrap()
    });
    let active = client.device.connect(client.qp.clone(), to, b"", &params).wait(PATIENCE).unwrap();
    let passive = passive.join().unwrap();
    let psns = |qp: &QueuePair| {
        let attr = qp.query().attr;
        (attr.rq_psn.unwrap(), attr.sq_psn.unwrap())
    };
    assert_eq!(psns(active.queue_pair()), (told[0], told[1]));
    assert_eq!(psns(passive.queue_pair()), (told[1], told[0]));
}

#[test]
fn a_refusal_says_why() {
    let (server, client) = (end(), end());
    let listener = server.device.listen(7471).unwrap();
    let to = SocketAddr::new(server.device.info().address, 7471);
    let passive = std::thread::spawn(move || {
        listener.accept().wait(PATIENCE).expect("a request").reject("not today");
        std::thread::sleep(Duration::from_millis(50));
    });
    let params = ConnectionParams::new(client.device.info().mtu);
    let refused = client.device.connect(client.qp.clone(), to, b"", &params).wait(PATIENCE);
    assert!(refused.unwrap_err().to_string().ends_with("not today"));
    passive.join().unwrap();
}

#[test]
fn nothing_is_left_when_all_is_dropped() {
    let (a, b) = pair();
    let region = a.pd.alloc(4096, OPEN).unwrap();
    let device = a.device.clone();
    drop((a, region));
    assert_eq!(device.in_use(), Default::default());
    drop(b);
}

/// The background thread keeps an acknowledge back for a moment if the program has polled lately.
#[test]
fn a_card_closes_while_an_acknowledge_waits() {
    let (told, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..50 {
            let (a, b) = pair();
            let memory = b.pd.alloc(4096, OPEN).unwrap();
            for _ in 0..100 {
                assert!(b.cq.poll(&mut [Default::default(); 1]).unwrap() == 0);
            }
            std::thread::sleep(Duration::from_millis(3));
            let op = SendOp::Write { to: memory.remote(0), imm: None };
            a.qp.post_send(&signaled(1, op, Data::Inline(&[7; 8]))).unwrap();
            let mut byte = [0];
            while byte == [0] {
                memory.read_at(7, &mut byte).unwrap();
                std::thread::yield_now();
            }
            drop((b, memory));
        }
        told.send(()).unwrap();
    });
    done.recv_timeout(PATIENCE).expect("a card does not close");
}

/// A timer that runs out while only the background thread drives.
#[test]
fn a_receiver_that_is_late_is_waited_for_without_polling() {
    let a = end_on_channel();
    let b = end();
    let params = ConnectionParams::new(b.device.info().mtu).min_rnr_timer(1);
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
    a.cq.arm(false).unwrap();
    let op = SendOp::Send { imm: None, to: None };
    a.qp.post_send(&signaled(1, op, Data::Inline(b"early"))).unwrap();
    until("a refusal", || a.device.counters().card.rx_rnr_naks > 0);
    let room = b.pd.alloc(4096, OPEN).unwrap();
    b.qp.post_recv(&RecvRequest { wr_id: 2, sges: &[room.sge(0, 64)] }).unwrap();
    a.channel.wait(PATIENCE).unwrap();
    assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::Success);
}

/// There is more work than one step sends, and no thread polls.
#[test]
fn a_long_unreliable_write_leaves_whole_without_polling() {
    let a = end_on_channel();
    let b = end();
    let make = |pd: &ProtectionDomain, cq: &CompletionQueue| {
        let options = QueuePairOptions::rc(cq).transport(Transport::Uc);
        pd.create_qp(&options).unwrap()
    };
    let (here, there) = (make(&a.pd, &a.cq), make(&b.pd, &b.cq));
    connect_unreliable(&here, there.local());
    connect_unreliable(&there, here.local());
    let len = 8 << 20;
    let mine = a.pd.alloc(len, OPEN).unwrap();
    let theirs = b.pd.alloc(len, OPEN).unwrap();
    a.cq.arm(false).unwrap();
    let op = SendOp::Write { to: theirs.remote(0), imm: None };
    here.post_send(&signaled(1, op, Data::Sges(&[mine.sge(0, len as u32)]))).unwrap();
    a.channel.wait(PATIENCE).unwrap();
    assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::Success);
}

/// A file that shrinks while it is read.
#[test]
fn a_file_that_shrinks_is_a_clear_error_at_the_reader() {
    let (a, b) = pair();
    let path = std::env::temp_dir().join(format!("remora-shrinks-{}", std::process::id()));
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let served = b.pd.register_file(file, Access::REMOTE_READ).unwrap();
    let mine = a.pd.alloc(1 << 20, OPEN).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let op = SendOp::Read { from: served.remote(0) };
    a.qp.post_send(&signaled(1, op, Data::Sges(&[mine.sge(0, 1 << 20)]))).unwrap();
    assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::RemoteOperation);
    assert!(b.device.counters().card.refused_memory > 0);
    std::fs::remove_file(&path).unwrap();
}

/// What was opened for appending is written where the peer says, and does not grow.
#[test]
fn a_file_that_appends_is_written_in_its_place() {
    let (a, b) = pair();
    let path = std::env::temp_dir().join(format!("remora-appends-{}", std::process::id()));
    std::fs::write(&path, [1; 4096]).unwrap();
    let file = std::fs::File::options().read(true).append(true).open(&path).unwrap();
    let served = b.pd.register_file(file, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let mine = a.pd.alloc(64, OPEN).unwrap();
    mine.write_at(0, &[2; 64]).unwrap();
    let op = SendOp::Write { to: served.remote(0), imm: None };
    a.qp.post_send(&signaled(1, op, Data::Sges(&[mine.sge(0, 64)]))).unwrap();
    assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::Success);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), &bytes[..64], bytes[64]), (4096, &[2; 64][..], 1));
    std::fs::remove_file(&path).unwrap();
}

/// A card has room for as many regions as it says, and not only for some thousands.
#[test]
fn there_may_be_many_regions() {
    let end = end();
    let memory = end.pd.alloc(64, OPEN).unwrap();
    let regions: Vec<_> = (0..20_000).map(|_| end.pd.alloc(8, OPEN).unwrap()).collect();
    let keys: std::collections::BTreeSet<u32> =
        regions.iter().map(|mr| mr.remote(0).rkey).collect();
    assert!(keys.len() == regions.len() && !keys.contains(&memory.remote(0).rkey));
}

/// The refusal arises while no packet is sent or received. It leaves at once all the same: the
/// reader has no timer that asks for it again.
#[test]
fn a_refusal_leaves_an_idle_process_at_once() {
    let (a, b) = (end(), end());
    let params = ConnectionParams::new(a.device.info().mtu).timeout(0);
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
    let path = std::env::temp_dir().join(format!("remora-refused-{}", std::process::id()));
    std::fs::write(&path, vec![1; 4096]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let served = b.pd.register_file(file, Access::REMOTE_READ).unwrap();
    let mine = a.pd.alloc(4096, OPEN).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    // By now the server's background thread sleeps.
    std::thread::sleep(Duration::from_millis(20));
    let op = SendOp::Read { from: served.remote(0) };
    a.qp.post_send(&signaled(1, op, Data::Sges(&[mine.sge(0, 4096)]))).unwrap();
    assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::RemoteOperation);
    std::fs::remove_file(&path).unwrap();
}

/// The client's link takes larger packets than the server's.
#[test]
fn a_smaller_mtu_is_agreed_on() {
    let small = Mtu::B1024;
    let (server, client) = (end(), end());
    let listener = server.device.listen(7471).unwrap();
    let to = SocketAddr::new(server.device.info().address, 7471);
    let passive = std::thread::spawn(move || {
        let params = ConnectionParams::new(small);
        loop {
            let request = listener.accept().wait(PATIENCE).expect("a request");
            match request.accept(server.qp.clone(), b"", &params).wait(PATIENCE) {
                Ok(connection) => break connection.queue_pair().query().attr.path_mtu,
                Err(refused) => assert!(matches!(refused, ConnectFailure::Mtu { .. })),
            }
        }
    });
    let params = ConnectionParams::new(client.device.info().mtu);
    let made = client.device.connect(client.qp.clone(), to, b"", &params).wait(PATIENCE).unwrap();
    assert_eq!(made.queue_pair().query().attr.path_mtu, Some(small));
    assert_eq!(passive.join().unwrap(), Some(small));
}

#[test]
fn memory_on_the_card_is_served_like_any_other() {
    let (a, b) = pair();
    let on_card = b.pd.alloc_device_memory(4096, OPEN).unwrap();
    let mine = a.pd.alloc(4096, OPEN).unwrap();
    mine.write_at(0, &pattern(4096, 3)).unwrap();
    let sges = [mine.sge(0, 4096)];
    let ops = [
        SendOp::Write { to: on_card.remote(0), imm: None },
        SendOp::Read { from: on_card.remote(0) },
    ];
    for op in ops {
        a.qp.post_send(&signaled(1, op, Data::Sges(&sges))).unwrap();
        assert_eq!(a.cq.spin(PATIENCE).unwrap().status, Status::Success);
    }
    let mut got = vec![0; 4096];
    mine.read_at(0, &mut got).unwrap();
    assert!(got == pattern(4096, 3));
    drop(on_card);
    let whole = b.device.limits().device_memory;
    let again = b.pd.alloc_device_memory(whole.end - whole.start, OPEN);
    assert!(again.is_ok(), "a dropped region gives its memory back");
}

/// The scheduling class of this process's threads called `remora`.
fn classes_of_cards() -> Vec<u64> {
    let mut classes = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        // Threads of other tests may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let (name, rest) = stat.rsplit_once(')').unwrap();
        if name.ends_with("(remora") {
            // The 41st field; the third is the first behind the name.
            classes.push(rest.split_whitespace().nth(41 - 3).unwrap().parse().unwrap());
        }
    }
    classes
}

#[test]
fn a_card_goes_before_others_where_it_may() {
    match DeviceOptions::new().real_time().open() {
        Ok(_device) => assert!(classes_of_cards().contains(&(libc::SCHED_FIFO as u64))),
        Err(error @ OpenError::RealTime(_)) => {
            let said = error.to_string();
            assert!(said.contains("CAP_SYS_NICE") && said.contains("ulimit"), "{said}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// A level of higher priority has all turns while it wants them, on a live card too.
#[test]
fn a_service_level_goes_before_others_as_the_options_say() {
    const LEN: u64 = 4 << 20;
    let first = ServiceLevel { priority: 1, ..ServiceLevel::default() };
    let device = DeviceOptions::new().embedded().service_level(5, first).open().unwrap();
    // What the card of a daemon sends itself stays within it, so that no window keeps a queue pair
    // from its turn.
    let name = format!("remora-levels-{}.sock", std::process::id());
    let socket = Some(std::env::temp_dir().join(name));
    let options = ServerOptions { socket, ..ServerOptions::default() };
    let _server = Server::new(device.clone(), options).unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let memory = pd.alloc(2 * LEN as usize, OPEN).unwrap();
    let [(first, _to_first), (other, _to_other)] = [5, 0].map(|level| {
        let ends = [(); 2].map(|()| pd.create_qp(&QueuePairOptions::rc(&cq)).unwrap());
        let params = ConnectionParams::new(device.info().mtu).service_level(level);
        ends[0].connect(ends[1].local(), &params).unwrap();
        ends[1].connect(ends[0].local(), &params).unwrap();
        ends.into()
    });
    let (sge, to) = ([memory.sge(0, LEN as u32)], memory.remote(LEN));
    let write = |qp: &QueuePair, wr_id| {
        let op = SendOp::Write { to, imm: None };
        qp.post_send(&signaled(wr_id, op, Data::Sges(&sge))).unwrap();
    };
    // They take much longer than it takes to post what is behind them.
    (0..24).for_each(|number| write(&first, number));
    write(&other, 24);
    for number in 0..25 {
        let done = cq.spin(PATIENCE).unwrap();
        assert_eq!((done.wr_id, done.status), (number, Status::Success));
    }
}
