//! What a process that was killed has left on a shared card, in the hands of another, which posts,
//! polls, writes and destroys it as if it had made it.

mod daemon;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use daemon::Daemon;
use daemon::process::DaemonProcess;
use daemon::program::{Program, heard, read, written};
use daemon::until::until;
use remora::message::{Keep, Object, Ticket};
use remora::nic;
use remora::nic::queue::{
    Completion, Data, PollCqError, RecvRequest, SendFlags, SendOp, SendRequest, Status,
};
use remora::prelude::*;
use remora::{AdoptError, ConnectionEnd};

const LONG: Duration = Duration::from_secs(60);
/// What is counted lies here in the memory of each side.
const COUNT: usize = 1024;

/// Writes rising numbers to a peer, whose place comes by standard input, and has a receive request
/// posted, until it is killed.
#[test]
#[ignore = "a program for other tests"]
fn write_until_killed() {
    let device = DeviceOptions::new().open().unwrap();
    let cq = device.create_cq(64).unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let kept = domain.alloc_device_memory(4096, Access::all()).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    println!("says {}", written(qp.local()));
    let line = heard();
    let mut words = line.splitn(3, ' ');
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let to = nic::queue::RemoteAddress { addr: number(), rkey: number() as u32 };
    let params = ConnectionParams::new(device.info().mtu);
    qp.connect(read(words.next().unwrap()).0, &params).unwrap();
    memory.write_at(0, b"of the former process").unwrap();
    let sges = [memory.sge(2048, 64)];
    qp.post_recv(&RecvRequest { wr_id: 77, sges: &sges }).unwrap();
    println!("says {} {} {}", memory.key(), kept.key(), device.ticket().unwrap());
    for number in 1u64.. {
        memory.write_at(COUNT, &number.to_le_bytes()).unwrap();
        let sges = [memory.sge(COUNT as u64, 8)];
        let (op, data) = (SendOp::Write { to, imm: None }, Data::Sges(&sges));
        let flags = SendFlags::SIGNALED;
        qp.post_send(&SendRequest { wr_id: number, op, data, flags }).unwrap();
        assert_eq!(cq.spin(LONG).unwrap().status, Status::Success);
    }
}

/// The peer of the program: a device of its own, or another client of the daemon.
struct Peers {
    _domain: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Peers {
    fn new(device: &Device) -> Peers {
        let cq = device.create_cq(16).unwrap();
        let domain = device.alloc_pd().unwrap();
        let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
        let memory = domain.alloc(4096, Access::all()).unwrap();
        Peers { _domain: domain, cq, qp, memory }
    }

    fn number(&self) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_at(0, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn post(&self, wr_id: u64, op: SendOp, bytes: u32) -> Status {
        let sges = [self.memory.sge(512, bytes)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
        self.cq.spin(LONG).unwrap().status
    }
}

/// Starts the program, connects it, and waits until it writes; returns its keys and its ticket.
fn start(daemon: &Daemon, peer: &Peers, mtu: nic::qp::Mtu) -> (Program, [u32; 2], Ticket) {
    let mut program = Program::start("write_until_killed", &daemon.socket, "numbers:10m");
    let its = read(&program.says()).0;
    let (addr, key) = (peer.memory.addr(), peer.memory.key());
    program.hears(&format!("{addr} {key} {}", written(peer.qp.local())));
    peer.qp.connect(its, &ConnectionParams::new(mtu)).unwrap();
    let line = program.says();
    let mut words = line.splitn(3, ' ');
    let keys = [(); 2].map(|()| words.next().unwrap().parse().unwrap());
    let ticket = words.next().unwrap().parse().unwrap();
    let until = Instant::now() + LONG;
    while peer.number() < 3 {
        assert!(Instant::now() < until, "the program writes nothing");
        thread::yield_now();
    }
    (program, keys, ticket)
}

fn only<T: Copy>(taken: &[Object], of: impl Fn(&Object) -> Option<T>) -> T {
    let mut found = taken.iter().filter_map(of);
    let first = found.next().unwrap();
    assert!(found.next().is_none());
    first
}

fn queue_pair_of(taken: &[Object]) -> u32 {
    only(taken, |object| match object {
        Object::Qp(number) => Some(*number),
        _ => None,
    })
}

fn adopted(daemon: &Daemon, peer: &Peers, mtu: nic::qp::Mtu) {
    let (mut program, [key, kept], ticket) = start(daemon, peer, mtu);
    program.kill();
    let options = DeviceOptions::new().attach(&daemon.socket);
    let device = options.take_over(ticket, Keep::Seconds(60)).open().unwrap();
    let number = queue_pair_of(&device.taken());
    let qp = device.adopt_qp(number).unwrap();
    assert_eq!(device.adopt_qp(number).unwrap_err(), AdoptError::Before);
    let cq = device.adopt_cq(qp.query().send_cq).unwrap();
    assert_eq!(device.adopt_cq(9999).unwrap_err(), AdoptError::Unknown);

    // Its memory is there, and this process has it mapped.
    let memory = device.adopt_region(key).unwrap();
    assert_eq!(memory.slice(..21).to_vec().unwrap(), b"of the former process");
    let before = peer.number();
    let (op, sges) = (SendOp::Write { to: peer.memory.remote(0), imm: None }, [memory.sge(0, 8)]);
    memory.write_at(0, &(before + 100).to_le_bytes()).unwrap();
    let flags = SendFlags::SIGNALED;
    qp.post_send(&SendRequest { wr_id: 1 << 40, op, data: Data::Sges(&sges), flags }).unwrap();
    // What the former process has posted last may have completed, and it has not seen that.
    loop {
        let done = cq.spin(LONG).unwrap();
        assert_eq!(done.status, Status::Success);
        if done.wr_id == 1 << 40 {
            break;
        }
        assert!(done.wr_id >= before, "{} was seen before", done.wr_id);
    }
    assert_eq!(peer.number(), before + 100);

    // The peer goes on, too: with the memory, and with the request that the former has posted.
    let write = SendOp::Write { to: memory.remote(100), imm: None };
    assert_eq!(peer.post(1, write, 5), Status::Success);
    assert_eq!(peer.post(2, SendOp::Send { imm: None, to: None }, 5), Status::Success);
    let received = cq.spin(LONG).unwrap().ok().unwrap();
    assert_eq!((received.wr_id, received.len), (77, 5));
    assert_eq!(memory.slice(2048..2053).to_vec().unwrap(), b"bytes");
    assert_eq!(memory.slice(100..105).to_vec().unwrap(), b"bytes");
    let card = device.adopt_region(kept).unwrap();
    card.write_at(8, b"card").unwrap();
    assert_eq!(card.slice(8..12).to_vec().unwrap(), b"card");

    // And all of it ends as if this process had made it.
    let gone = memory.remote(100);
    drop((memory, card));
    let in_use = || {
        let all = device.in_use();
        (all.mrs, all.qps, all.cqs, all.pds)
    };
    assert_eq!(in_use(), (0, 1, 1, 1));
    let refused = peer.post(3, SendOp::Write { to: gone, imm: None }, 5);
    assert_eq!(refused, Status::RemoteAccess);
    drop((qp, cq));
    device.release_rest().unwrap();
    assert_eq!(in_use(), (0, 0, 0, 0));
    until("no memory stays behind", || has_no_memory(daemon));
}

fn has_no_memory(daemon: &Daemon) -> bool {
    let mut all = daemon.observer().status().unwrap().sessions.into_iter();
    let of = all.find(|session| session.name == "numbers").unwrap();
    (of.lent.len(), of.arena_bytes) == (0, 0)
}

#[test]
fn a_process_goes_on_with_what_a_killed_one_has_left() {
    let daemon = Daemon::start();
    for embedded in [true, false] {
        let device = match embedded {
            true => DeviceOptions::new().embedded().open().unwrap(),
            false => daemon.attach(),
        };
        let peer = Peers::new(&device);
        peer.memory.write_at(512, b"bytes").unwrap();
        adopted(&daemon, &peer, device.info().mtu);
        let sessions = || daemon.observer().status().unwrap().sessions;
        let until = Instant::now() + LONG;
        while sessions().iter().any(|session| session.attached && session.name == "numbers") {
            assert!(Instant::now() < until, "the session stays attached");
            thread::yield_now();
        }
        daemon.observer().evict("numbers").unwrap();
    }
}

/// Posts requests to a peer that takes two of its messages, and receive requests, and polls nothing
/// until it is killed.
#[test]
#[ignore = "a program for other tests"]
fn poll_nothing() {
    let device = DeviceOptions::new().open().unwrap();
    let cq = device.create_cq(64).unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    println!("says {}", written(qp.local()));
    qp.connect(read(&heard()).0, &ConnectionParams::new(device.info().mtu)).unwrap();
    let sges = [memory.sge(0, 64)];
    (0..8).for_each(|wr_id| qp.post_recv(&RecvRequest { wr_id, sges: &sges }).unwrap());
    for wr_id in 100..104 {
        let silent = wr_id == 101;
        let flags = if silent { SendFlags::empty() } else { SendFlags::SIGNALED };
        let (op, data) = (SendOp::Send { imm: None, to: None }, Data::Sges(&sges));
        qp.post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
    }
    println!("says {}", device.ticket().unwrap());
    heard();
    let until = Instant::now() + LONG;
    while device.alloc_pd().is_ok() {
        assert!(Instant::now() < until, "the session was taken over");
    }
    println!("says fenced");
    heard();
}

#[test]
fn each_request_completes_once_across_an_adoption_and_the_end_of_the_card() {
    for is_killed in [true, false] {
        complete_once_across_an_adoption(is_killed);
    }
}

/// Takes the session over from a program that is killed before, or that goes on.
fn complete_once_across_an_adoption(is_killed: bool) {
    let mut daemon = DaemonProcess::start("adoption");
    let device = daemon.attach();
    let peer = Peers::new(&device);
    let mut program = Program::start("poll_nothing", &daemon.socket, "unread:10m");
    peer.qp.connect(read(&program.says()).0, &ConnectionParams::new(device.info().mtu)).unwrap();
    let sges = [peer.memory.sge(0, 64)];
    (0..2).for_each(|wr_id| peer.qp.post_recv(&RecvRequest { wr_id, sges: &sges }).unwrap());
    program.hears(&written(peer.qp.local()));
    let ticket = program.says().parse().unwrap();
    (0..2).for_each(|_| assert_eq!(peer.cq.spin(LONG).unwrap().status, Status::Success));
    for wr_id in 0..5 {
        let send = SendOp::Send { imm: None, to: None };
        assert_eq!(peer.post(wr_id, send, 8), Status::Success);
    }
    if is_killed {
        program.kill();
    }
    let options = DeviceOptions::new().attach(&daemon.socket);
    let device = options.take_over(ticket, Keep::Seconds(60)).open().unwrap();
    if !is_killed {
        program.hears("the session has another holder");
        assert_eq!(program.says(), "fenced");
    }
    let qp = device.adopt_qp(queue_pair_of(&device.taken())).unwrap();
    let cq = device.adopt_cq(qp.query().send_cq).unwrap();
    let mut completed: Vec<_> = (0..2).map(|_| cq.spin(LONG).unwrap()).collect();
    daemon.kill();
    let until = Instant::now() + LONG;
    loop {
        let mut out = [Completion::default(); 4];
        match cq.poll(&mut out) {
            Ok(found) => completed.extend(&out[..found]),
            Err(PollCqError::Gone) => break,
            Err(other) => panic!("completions are lost: {other}"),
        }
        assert!(Instant::now() < until, "the end of the card is not told");
        thread::yield_now();
    }
    let mut ends: Vec<_> = completed.iter().map(|entry| (entry.wr_id, entry.status)).collect();
    ends.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    // The card may not have said that the silent one was done.
    ends.retain(|end| *end != (101, Status::Flushed));
    let done = (0..5).chain([100]).map(|wr_id| (wr_id, Status::Success));
    let left = (5..8).chain([102, 103]).map(|wr_id| (wr_id, Status::Flushed));
    let mut expected: Vec<_> = done.chain(left).collect();
    expected.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(ends, expected);
}

#[test]
fn what_is_not_adopted_can_be_released() {
    let daemon = Daemon::start();
    let device = daemon.attach();
    let peer = Peers::new(&device);
    let (mut program, [key, _], ticket) = start(&daemon, &peer, device.info().mtu);
    program.kill();
    let options = DeviceOptions::new().attach(&daemon.socket);
    let device = options.take_over(ticket, Keep::No).open().unwrap();
    let memory = device.adopt_region(key).unwrap();
    // The region keeps its domain.
    let domain = memory.domain().clone();
    device.release_rest().unwrap();
    let left = device.in_use();
    assert_eq!((left.mrs, left.qps, left.cqs, left.pds), (1, 0, 0, 1));
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    qp.write(memory.slice(..7), memory.slice(64..).remote()).wait(LONG).unwrap();
    assert_eq!(memory.slice(64..71).to_vec().unwrap(), b"of the ");
}

#[test]
fn a_device_that_took_nothing_over_adopts_nothing() {
    let daemon = Daemon::start();
    let own = DeviceOptions::new().embedded().open().unwrap();
    for device in [daemon.attach(), own] {
        let peer = Peers::new(&device);
        assert_eq!(device.adopt_qp(peer.qp.qpn()).unwrap_err(), AdoptError::Unknown);
        assert_eq!(device.adopt_cq(peer.cq.handle()).unwrap_err(), AdoptError::Unknown);
        assert_eq!(device.adopt_region(peer.memory.key()).unwrap_err(), AdoptError::Unknown);
        device.release_rest().unwrap();
    }
}

/// Has a session whose name is that of the one before.
#[test]
#[ignore = "a program for other tests"]
fn begin_anew() {
    let device = match DeviceOptions::new().anew().open() {
        Ok(device) => device,
        Err(refused) => return println!("says {refused}"),
    };
    let _listener = device.listen(7471).unwrap();
    println!("says listens");
    heard();
}

#[test]
fn a_program_begins_anew_behind_one_that_was_killed() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        let mut program = Program::start("begin_anew", &daemon.socket, "server");
        assert_eq!(program.says(), "listens");
        let mut other = Program::start("begin_anew", &daemon.socket, "server");
        let refused = other.says();
        assert!(refused.contains("is there"), "its program runs: {refused}");
        program.kill();
    }
    let sessions = daemon.observer().status().unwrap().sessions;
    assert_eq!(sessions.iter().filter(|session| session.name == "server").count(), 1);
}

/// Connects to a listener, whose address comes by standard input, and waits until it is killed.
#[test]
#[ignore = "a program for other tests"]
fn connect_until_killed() {
    let device = DeviceOptions::new().open().unwrap();
    let cq = device.create_cq(16).unwrap();
    let qp = device.alloc_pd().unwrap().create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    let (to, params) = (heard().parse().unwrap(), ConnectionParams::new(device.info().mtu));
    let _connection = device.connect(qp, to, b"hello", &params).wait(LONG).unwrap();
    println!("says {}", device.ticket().unwrap());
    heard();
}

#[test]
fn a_connection_goes_on_in_another_process_and_each_side_hears_of_its_end() {
    let daemon = Daemon::start();
    let server = DeviceOptions::new().embedded().open().unwrap();
    let listener = server.listen(7472).unwrap();
    let address = SocketAddr::new(server.info().address, listener.port());
    for is_left in [false, true] {
        let keep = format!("connected-{is_left}:10m");
        let mut program = Program::start("connect_until_killed", &daemon.socket, &keep);
        program.hears(&address.to_string());
        let peer = Peers::new(&server);
        let params = ConnectionParams::new(server.info().mtu);
        let request = listener.accept().wait(LONG).unwrap();
        let accepted = request.accept(peer.qp.clone(), b"", &params).wait(LONG).unwrap();
        let ticket = program.says().parse().unwrap();
        program.kill();

        let options = DeviceOptions::new().attach(&daemon.socket);
        let device = options.take_over(ticket, Keep::No).open().unwrap();
        let number = only(&device.taken(), |object| match object {
            Object::Connection(number) => Some(*number),
            _ => None,
        });
        let qp = device.adopt_qp(queue_pair_of(&device.taken())).unwrap();
        let connection = device.adopt_connection(number, qp.clone()).unwrap();
        let again = device.adopt_connection(number, qp.clone()).unwrap_err();
        assert_eq!(again, AdoptError::Before);
        device.release_rest().unwrap();
        assert_eq!(connection.peer().ip(), server.info().address);
        assert_eq!(
            (connection.end(), accepted.end()),
            (ConnectionEnd::Alive, ConnectionEnd::Alive)
        );
        let (op, flags) =
            (SendOp::Write { to: peer.memory.remote(0), imm: None }, SendFlags::SIGNALED);
        qp.post_send(&SendRequest { wr_id: 1, op, data: Data::Inline(b"goes on "), flags })
            .unwrap();
        let cq = device.adopt_cq(qp.query().send_cq).unwrap();
        assert_eq!(cq.spin(LONG).unwrap().status, Status::Success);
        assert_eq!(peer.number().to_le_bytes(), *b"goes on ");

        let heard = match is_left {
            true => {
                drop(connection);
                accepted.wait_for_end(LONG)
            }
            false => {
                drop(accepted);
                connection.wait_for_end(LONG)
            }
        };
        assert_eq!(heard, ConnectionEnd::Disconnected, "{is_left}");
    }
}
