//! Devices that are attached to the card of a daemon: memory, queues, connections, channels, and
//! the end of the daemon.

mod daemon;

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use daemon::Daemon;
use daemon::process::DaemonProcess;
use daemon::until::until;
use remora::memory::Buffer;
use remora::message::{Keep, Object, Ticket};
use remora::nic::nic::MULTICAST_QPN;
use remora::nic::queue::{
    Completion, Data, PollCqError, RecvRequest, SendFlags, SendOp, SendRequest, Status,
    UdDestination,
};
use remora::nic::wire::Transport;
use remora::nic::{CreateError, PostError};
use remora::prelude::*;

const LONG: Duration = Duration::from_secs(20);

/// A queue pair with a completion queue that the test polls.
struct Side {
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Side {
    fn on(device: &Device) -> Side {
        let cq = device.create_cq(64).unwrap();
        let domain = device.alloc_pd().unwrap();
        let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
        let memory = domain.alloc(1 << 16, Access::all()).unwrap();
        Side { cq, qp, memory }
    }

    fn send(&self, wr_id: u64, op: SendOp, offset: u64, len: u32) -> Completion {
        let sges = [self.memory.sge(offset, len)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
        let done = self.cq.spin(LONG).unwrap();
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
        done
    }
}

fn connect(a: &Side, b: &Side, devices: [&Device; 2]) {
    let params = ConnectionParams::new(devices[0].info().mtu.min(devices[1].info().mtu));
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
}

/// WRITE, READ, SEND and atomics, both ways.
fn talk(a: &Side, b: &Side) {
    for (a, b) in [(a, b), (b, a)] {
        a.memory.write_at(0, &[7; 10_000]).unwrap();
        a.send(1, SendOp::Write { to: b.memory.remote(20_000), imm: None }, 0, 10_000);
        assert_eq!(b.memory.slice(20_000..30_000).to_vec().unwrap(), [7; 10_000]);

        b.memory.write_at(40_000, b"read me").unwrap();
        a.send(2, SendOp::Read { from: b.memory.remote(40_000) }, 50_000, 7);
        assert_eq!(a.memory.slice(50_000..50_007).to_vec().unwrap(), b"read me");

        let room = [b.memory.sge(1000, 64)];
        b.qp.post_recv(&RecvRequest { wr_id: 9, sges: &room }).unwrap();
        a.memory.write_at(100, b"message").unwrap();
        a.send(3, SendOp::Send { imm: Some(5), to: None }, 100, 7);
        let got = b.cq.spin(LONG).unwrap().ok().unwrap();
        assert_eq!((got.wr_id, got.len, got.imm_or_key), (9, 7, 5));
        assert_eq!(b.memory.slice(1000..1007).to_vec().unwrap(), b"message");

        b.memory.buffer().unwrap().store_u64(64, 40).unwrap();
        a.send(4, SendOp::FetchAdd { at: b.memory.remote(64), add: 2 }, 128, 8);
        assert_eq!(a.memory.buffer().unwrap().load_u64(128), Ok(40));
        let swap = SendOp::CompareSwap { at: b.memory.remote(64), compare: 42, swap: 1 };
        a.send(5, swap, 128, 8);
        assert_eq!(b.memory.buffer().unwrap().load_u64(64), Ok(1));
    }
}

#[test]
fn two_clients_of_one_daemon() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.attach(), daemon.attach());
    assert!(one.is_attached());
    assert_eq!(one.info(), two.info());
    let (a, b) = (Side::on(&one), Side::on(&two));
    connect(&a, &b, [&one, &two]);
    talk(&a, &b);
    assert!(a.qp.query().attr.dest_qp.is_some());
}

/// An attached device tells of the card's memory.
#[test]
fn the_memory_of_the_card_is_told_to_clients() {
    let daemon = Daemon::start();
    let device = daemon.attach();
    let of = |device: &Device, name: &str| {
        device.memory_use().into_iter().find(|part| part.name == name).unwrap().bytes
    };
    let before = of(&device, "work_queue_rings");
    let _side = Side::on(&device);
    assert!(of(&device, "work_queue_rings") > before);
    let names = |device: Device| device.memory_use().into_iter().map(|part| part.name);
    let own = DeviceOptions::new().embedded().open().unwrap();
    assert!(names(own).eq(names(device)));
}

#[test]
fn clients_of_two_daemons_and_a_device_of_its_own() {
    let daemons = [Daemon::start(), Daemon::start()];
    let own = DeviceOptions::new().embedded().open().unwrap();
    let devices = [daemons[0].attach(), daemons[1].attach(), own];
    for (from, to) in [(0, 1), (0, 2), (2, 1)] {
        let (one, two) = (&devices[from], &devices[to]);
        let (a, b) = (Side::on(one), Side::on(two));
        connect(&a, &b, [one, two]);
        talk(&a, &b);
    }
}

#[test]
fn a_session_is_taken_over_by_its_ticket() {
    let daemon = Daemon::start();
    let here = || DeviceOptions::new().attach(&daemon.socket);
    let first = here().keep("store", Keep::Forever).open().unwrap();
    assert!(first.taken().is_empty());
    let domain = first.alloc_pd().unwrap();
    let kept = domain.alloc_device_memory(4096, Access::all()).unwrap();
    let writer = domain.create_qp(&QueuePairOptions::new()).unwrap();
    writer.loop_back(&writer, Access::all()).unwrap();
    let there = Remote { addr: kept.addr(), rkey: kept.key(), len: 4 };
    writer.write(b"kept", there).wait(LONG).unwrap();
    let ticket = first.ticket().unwrap();
    let wrong = Ticket { token: [0; 16], ..ticket.clone() };
    let refused = here().take_over(wrong, Keep::No).open().unwrap_err().to_string();
    assert!(refused.contains("no session of this name and token"), "{refused}");

    let second = here().take_over(ticket.clone(), Keep::No).open().unwrap();
    assert_eq!(second.ticket(), Some(ticket.clone()));
    assert!(first.alloc_pd().is_err(), "the former holder is fenced");
    let taken = second.taken();
    for object in [Object::Mr(kept.key()), Object::Qp(writer.qpn())] {
        assert!(taken.contains(&object), "{object:?} is not in {taken:?}");
    }
    let domains = taken.iter().filter_map(|object| match object {
        Object::Pd(pd) => second.adopt_pd(*pd),
        _ => None,
    });
    let adopted: Vec<ProtectionDomain> = domains.collect();
    let reader = adopted[0].create_qp(&QueuePairOptions::new()).unwrap();
    reader.loop_back(&reader, Access::all()).unwrap();
    let memory = adopted[0].alloc(64, Access::all()).unwrap();
    reader.read(memory.slice(..4), there).wait(LONG).unwrap();
    assert_eq!(memory.slice(..4).to_vec().unwrap(), b"kept");
    drop((memory, reader));
    let before = second.in_use().pds;
    drop(adopted);
    assert_eq!(second.in_use().pds, before, "an adopted domain stays");
    // It was taken over for as long as this process has it.
    drop(second);
    let until = Instant::now() + Duration::from_secs(60);
    while here().take_over(ticket.clone(), Keep::No).open().is_ok() {
        assert!(Instant::now() < until, "the session stays");
        thread::yield_now();
    }
}

#[test]
fn a_card_of_its_own_has_no_session_to_take_over() {
    let own = DeviceOptions::new().embedded().open().unwrap();
    assert!(own.ticket().is_none() && own.taken().is_empty());
}

#[test]
fn everything_that_was_made_is_given_back() {
    let daemon = Daemon::start();
    let device = daemon.attach();
    let before = device.in_use();
    {
        let side = Side::on(&device);
        side.qp.loop_back(&side.qp, Access::all()).unwrap();
        let to = side.memory.remote(100);
        side.send(1, SendOp::Write { to, imm: None }, 0, 10);
        assert!(device.in_use() != before);
    }
    assert_eq!(device.in_use(), before);
    // A client that goes without a word.
    let other = daemon.attach();
    let side = Side::on(&other);
    std::mem::forget((side, other));
}

#[test]
fn memory_of_the_program_is_reached_where_it_is() {
    let daemon = Daemon::start();
    let device = daemon.attach();
    let side = Side::on(&device);
    side.qp.loop_back(&side.qp, Access::all()).unwrap();
    let buffer = Buffer::new(100_000).unwrap();
    let memory = side.memory.domain().register(buffer, Access::all()).unwrap();
    memory.write_at(0, b"private").unwrap();
    let data = Data::Sges(&[memory.sge(0, 7)]);
    let op = SendOp::Write { to: memory.remote(50_000), imm: None };
    let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED };
    side.qp.post_send(&request).unwrap();
    assert_eq!(side.cq.spin(LONG).unwrap().status, Status::Success);
    assert_eq!(memory.slice(50_000..50_007).to_vec().unwrap(), b"private");
}

#[test]
fn a_ring_that_is_full_has_room_again() {
    let daemon = Daemon::start();
    let device = daemon.attach();
    let (cq, domain) = (device.create_cq(4).unwrap(), device.alloc_pd().unwrap());
    let options = QueuePairOptions::rc(&cq).send_depth(4);
    let qp = domain.create_qp(&options).unwrap();
    let request = |wr_id| SendRequest {
        wr_id,
        op: SendOp::NoOp,
        data: Data::Sges(&[]),
        flags: SendFlags::SIGNALED,
    };
    assert!(matches!(qp.post_send(&request(0)), Err(PostError::State(_))));
    qp.loop_back(&qp, Access::all()).unwrap();
    let (mut posted, mut done) = (0, 0);
    let end = Instant::now() + LONG;
    while done < 1000 {
        assert!(Instant::now() < end, "{posted} posted, {done} done");
        // No more than the completion queue holds.
        if posted < 1000 && posted - done < 4 && qp.post_send(&request(posted)).is_ok() {
            posted += 1;
        }
        let mut out = [Completion::default(); 2];
        let found = cq.poll(&mut out).unwrap();
        for entry in &out[..found] {
            assert_eq!((entry.wr_id, entry.status), (done, Status::Success));
            done += 1;
        }
    }
}

#[test]
fn channels_wake_those_who_wait() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.attach(), daemon.attach());
    let channel = two.create_channel().unwrap();
    let a = Side::on(&one);
    let cq = two.create_cq_on(&channel, 16).unwrap();
    let domain = two.alloc_pd().unwrap();
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    let b = Side { cq, qp, memory: domain.alloc(4096, Access::all()).unwrap() };
    connect(&a, &b, [&one, &two]);
    for round in 0..20 {
        let room = [b.memory.sge(0, 64)];
        b.qp.post_recv(&RecvRequest { wr_id: round, sges: &room }).unwrap();
        b.cq.arm(false).unwrap();
        let mut out = [Completion::default()];
        assert_eq!(b.cq.poll(&mut out), Ok(0));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| channel.wait(LONG).unwrap());
            a.send(1, SendOp::Send { imm: None, to: None }, 0, 8);
            assert_eq!(waiter.join().unwrap(), b.cq.handle());
        });
        assert_eq!(b.cq.poll(&mut out), Ok(1));
        assert_eq!((out[0].wr_id, out[0].status), (round, Status::Success));
    }
}

#[test]
fn connections_and_requests_that_are_futures() {
    let daemons = [Daemon::start(), Daemon::start()];
    for to in [0, 1] {
        let server = daemons[0].attach();
        let listener = server.listen(7471).unwrap();
        let address = SocketAddr::new(server.info().address, listener.port());
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                let domain = server.alloc_pd().unwrap();
                let memory = domain.alloc(4096, Access::all()).unwrap();
                let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
                let params = ConnectionParams::new(server.info().mtu);
                let request = listener.accept().wait(LONG).unwrap();
                assert!(request.private_data().starts_with(b"hello"));
                let connection = request.accept(qp, b"welcome", &params).wait(LONG).unwrap();
                connection.send_remote(memory.slice(..).remote()).wait(LONG).unwrap();
                connection.closed().wait(LONG).unwrap();
                memory.slice(..5).to_vec().unwrap()
            });
            let device = daemons[to].attach();
            let domain = device.alloc_pd().unwrap();
            let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
            let params = ConnectionParams::new(device.info().mtu);
            let connecting = device.connect(qp.clone(), address, b"hello", &params);
            let connection = connecting.wait(LONG).unwrap();
            assert!(connection.private_data().starts_with(b"welcome"));
            let peer = connection.recv_remote().wait(LONG).unwrap();
            qp.write(b"bytes", peer.slice(..)).wait(LONG).unwrap();
            drop(connection);
            assert_eq!(served.join().unwrap(), b"bytes");
        });
    }
}

/// The end of a process, as a peer of its sees it, on the same card or on another one: its
/// connection ends, and so does a request that is under way.
#[test]
fn the_end_of_a_session_ends_connections_and_requests_of_its_peers() {
    let daemon = Daemon::start();
    for device in [daemon.attach(), DeviceOptions::new().embedded().open().unwrap()] {
        let server = daemon.attach();
        let listener = server.listen(7471).unwrap();
        let address = SocketAddr::new(server.info().address, listener.port());
        let params = ConnectionParams::new(device.info().mtu);
        let queue_pair = |device: &Device| {
            let domain = device.alloc_pd().unwrap();
            domain.create_qp(&QueuePairOptions::new()).unwrap()
        };
        let (qp, theirs) = (queue_pair(&device), queue_pair(&server));
        let (connection, _theirs) = thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let request = listener.accept().wait(LONG).unwrap();
                request.accept(theirs, b"", &params).wait(LONG).unwrap()
            });
            let connecting = device.connect(qp.clone(), address, b"", &params);
            (connecting.wait(LONG).unwrap(), accepted.join().unwrap())
        });
        // No receive is posted there.
        let sent = qp.send(b"a message");
        daemon.observer().evict(&server.ticket().unwrap().name).unwrap();
        connection.closed().wait(LONG).unwrap();
        assert!(sent.wait(LONG).is_err());
    }
}

/// A queue pair for datagrams.
struct Datagrams {
    cq: CompletionQueue,
    domain: ProtectionDomain,
    qp: QueuePair,
    room: MemoryRegion,
}

impl Datagrams {
    /// With so many receive elements.
    fn on(device: &Device, receives: u64) -> Datagrams {
        let (cq, domain) = (device.create_cq(64).unwrap(), device.alloc_pd().unwrap());
        let options = QueuePairOptions::rc(&cq).transport(Transport::Ud).signal_all(false);
        let qp = domain.create_qp(&options).unwrap();
        qp.activate_ud(1).unwrap();
        let room = domain.alloc(64, Access::all()).unwrap();
        for wr_id in 0..receives {
            qp.post_recv(&RecvRequest { wr_id, sges: &[room.sge(0, 64)] }).unwrap();
        }
        Datagrams { cq, domain, qp, room }
    }

    /// Sends so many times, and asks for no completion.
    fn send(&self, to: IpAddr, qpn: u32, times: u64) {
        let ah = self.domain.create_ah(to).unwrap();
        let to = Some(UdDestination { ah: ah.handle(), qpn, qkey: 1 });
        for wr_id in 0..times {
            let op = SendOp::Send { imm: None, to };
            let (data, flags) = (Data::Inline(b"last words"), SendFlags::empty());
            self.qp.post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
        }
    }
}

#[test]
fn datagrams_leave_although_their_queue_pair_is_destroyed_at_once() {
    let daemon = Daemon::start();
    let (from, to) = (daemon.attach(), daemon.attach());
    for _ in 0..20 {
        let (target, source) = (Datagrams::on(&to, 16), Datagrams::on(&from, 0));
        source.send(to.info().address, target.qp.qpn(), 16);
        drop(source);
        for wr_id in 0..16 {
            assert_eq!(target.cq.spin(LONG).unwrap().ok().unwrap().wr_id, wr_id);
        }
    }
}

/// The client does not wake the daemon: it watches its memory.
#[test]
fn a_daemon_that_sleeps_hears_of_a_new_group() {
    let group: IpAddr = "239.18.1.1".parse().unwrap();
    let daemon = Daemon::start();
    let (client, other) = (daemon.attach(), Device::open().unwrap());
    let (member, source) = (Datagrams::on(&client, 1), Datagrams::on(&other, 0));
    thread::sleep(Duration::from_millis(200));
    member.qp.attach_mcast(group).unwrap();
    thread::sleep(Duration::from_millis(200));
    source.send(group, MULTICAST_QPN, 1);
    let has_come = || member.room.slice(40..50).to_vec().unwrap() == b"last words";
    until("the daemon wakes", has_come);
}

#[test]
fn chains_run_on_the_daemons_card() {
    use remora::offload::chain::offload::{list, table::Value};
    let daemon = Daemon::start();
    let server = daemon.attach();
    let domain = server.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let value = Value { addr: memory.addr() + 1024, len: 5 };
    memory.write_at(0, &list::nodes(memory.addr(), &[(7, value)])).unwrap();
    memory.write_at(1024, b"seven").unwrap();
    let chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()]).unwrap();
    let device = DeviceOptions::new().embedded().open().unwrap();
    let mtu = device.info().mtu;
    let mut client = AsyncChainClient::new(&device.alloc_pd().unwrap(), 64).unwrap();
    client.connect(chain.local().unwrap(), mtu).unwrap();
    chain.serve(client.local(), mtu).unwrap();
    for _ in 0..10 {
        let answer = client.call(&list::message(7, memory.addr())).wait(LONG).unwrap();
        assert_eq!(answer, b"seven");
    }
}

#[test]
fn the_end_of_the_daemon_is_noticed() {
    let mut daemon = Daemon::start();
    let device = daemon.attach();
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_on(&channel, 16).unwrap();
    let domain = device.alloc_pd().unwrap();
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    for wr_id in [1, 2] {
        qp.post_recv(&RecvRequest { wr_id, sges: &[memory.sge(0, 64)] }).unwrap();
    }
    cq.arm(false).unwrap();
    let events = device.events();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| channel.wait(LONG).unwrap());
        daemon.end();
        // The server's thread has ended, and with it its sockets; the waiting thread learns it.
        assert_eq!(waiter.join().unwrap(), cq.handle());
    });
    let flushed = [(); 2].map(|()| cq.spin(LONG).unwrap());
    assert_eq!(
        flushed.map(|entry| (entry.wr_id, entry.status)),
        [(1, Status::Flushed), (2, Status::Flushed),]
    );
    assert_eq!(cq.poll(&mut [Completion::default()]), Err(PollCqError::Gone));
    let recv = RecvRequest { wr_id: 3, sges: &[memory.sge(0, 64)] };
    assert_eq!(qp.post_recv(&recv), Err(PostError::Gone));
    assert_eq!(device.create_cq(4).unwrap_err(), CreateError::Gone);
    let end = Instant::now() + LONG;
    while events.try_next() != Some(remora::nic::Event::DeviceFatal) {
        assert!(Instant::now() < end);
        thread::yield_now();
    }
    memory.write_at(0, b"still mapped").unwrap();
}

#[test]
fn a_daemon_that_is_killed_takes_its_card_with_it() {
    let mut daemon = DaemonProcess::start("attached");
    let device = daemon.attach();
    let (a, b) = (Side::on(&device), Side::on(&device));
    connect(&a, &b, [&device, &device]);
    talk(&a, &b);
    // Memory of the program's own, in another process.
    let memory = a.memory.domain().register(Buffer::new(4096).unwrap(), Access::all()).unwrap();
    let room = [memory.sge(0, 64)];
    a.qp.post_recv(&RecvRequest { wr_id: 17, sges: &room }).unwrap();
    let listener = device.listen(7471).unwrap();
    daemon.kill();
    let flushed = a.cq.spin(LONG).unwrap();
    assert_eq!((flushed.wr_id, flushed.status), (17, Status::Flushed));
    let op = SendOp::NoOp;
    let data = Data::Sges(&[]);
    let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED };
    assert_eq!(a.qp.post_send(&request), Err(PostError::Gone));
    assert!(device.alloc_pd().is_err());
    let error = DeviceOptions::new().attach(&daemon.socket).open().unwrap_err();
    assert!(error.to_string().contains("remora nic"), "{error}");
    drop((a, b, listener, device));
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    let error = DeviceOptions::new().attach("/nonexistent/nic.sock").open().unwrap_err();
    let said = error.to_string();
    assert!(said.contains("/nonexistent/nic.sock") && said.contains("remora nic"), "{said}");
}
