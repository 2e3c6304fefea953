//! A daemon that is killed at any moment, again and again, while its clients work: each request
//! completes once, all that waits ends with a reason, and the next daemon at the same place serves
//! the same clients. Nothing of the former one stays with them. The same where clients attach,
//! register memory and make queues meanwhile.

mod daemon;

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use daemon::process::{DaemonProcess, Held};
use remora::ConnectFailure;
use remora::memory::Buffer;
use remora::nic::queue::{
    Completion, Data, PollCqError, RecvRequest, SendFlags, SendOp, SendRequest, Status,
};
use remora::nic::{CreateError, PostError};
use remora::prelude::*;

const LONG: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 12;
const LEN: u64 = 1 << 16;

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A queue pair with a completion queue for each direction.
struct Side {
    sent: CompletionQueue,
    received: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Side {
    fn on(device: &Device) -> Side {
        let (sent, received) = (device.create_cq(64).unwrap(), device.create_cq(64).unwrap());
        let domain = device.alloc_pd().unwrap();
        let options = QueuePairOptions::rc(&sent).recv_cq(&received);
        let qp = domain.create_qp(&options).unwrap();
        let memory = domain.alloc(LEN as usize, Access::all()).unwrap();
        Side { sent, received, qp, memory }
    }

    /// Posts a request of any kind to the peer.
    fn post(&self, peer: &Side, wr_id: u64, random: &mut Random) -> Result<(), PostError> {
        let word = random.below(LEN / 8) * 8;
        let len = 1 + random.below(20_000);
        let at = random.below(LEN - len);
        let there = peer.memory.remote(at);
        let (op, len) = match random.below(6) {
            0 | 1 => (SendOp::Write { to: there, imm: None }, len),
            2 => (SendOp::Read { from: there }, len),
            3 => (SendOp::FetchAdd { at: peer.memory.remote(word), add: 1 }, 8),
            4 => (SendOp::Send { imm: Some(7), to: None }, len.min(64)),
            _ => (SendOp::CompareSwap { at: peer.memory.remote(word), compare: 0, swap: 1 }, 8),
        };
        let sges = [self.memory.sge((at & !7).min(LEN - len), len as u32)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id, op, data, flags })
    }

    fn receive(&self, wr_id: u64) -> Result<(), PostError> {
        let sges = [self.memory.sge(0, 64)];
        self.qp.post_recv(&RecvRequest { wr_id, sges: &sges })
    }
}

/// The requests of one direction, oldest first, and how they complete.
#[derive(Default)]
struct Requests {
    posted: VecDeque<u64>,
    next: u64,
    flushed: bool,
}

impl Requests {
    /// Posts until `many` are under way; `false` if the card is gone.
    fn fill(&mut self, many: usize, mut post: impl FnMut(u64) -> Result<(), PostError>) -> bool {
        while self.posted.len() < many {
            match post(self.next) {
                Ok(()) => self.posted.push_back(self.next),
                Err(PostError::Gone) => return false,
                Err(other) => panic!("a request is refused: {other}"),
            }
            self.next += 1;
        }
        true
    }

    /// Takes completions; `None` if the card is gone, and with it all that came from it. Each
    /// request completes once, in order, and behind one that was flushed all are.
    fn drain(&mut self, cq: &CompletionQueue) -> Option<usize> {
        let mut out = [Completion::default(); 8];
        let found = match cq.poll(&mut out) {
            Ok(found) => found,
            Err(PollCqError::Gone) => return None,
            Err(other) => panic!("completions are lost: {other}"),
        };
        for entry in &out[..found] {
            assert_eq!(Some(entry.wr_id), self.posted.pop_front(), "{entry:?}");
            match entry.status {
                Status::Success => assert!(!self.flushed, "{entry:?} behind a flushed one"),
                Status::Flushed => self.flushed = true,
                other => panic!("{other}: {entry:?}"),
            }
        }
        Some(found)
    }
}

/// Requests of all kinds between two clients, until their card is gone.
fn works(a: &Side, b: &Side, done: &AtomicU64, seed: u64) {
    let mut random = Random(seed);
    let (mut sends, mut receives) = (Requests::default(), Requests::default());
    let until = Instant::now() + LONG;
    let mut gone = [false; 2];
    while gone != [true; 2] {
        assert!(Instant::now() < until, "requests stay: {:?} {:?}", sends.posted, receives.posted);
        receives.fill(16, |wr_id| b.receive(wr_id));
        sends.fill(8, |wr_id| a.post(b, wr_id, &mut random));
        for ((requests, cq), gone) in
            [(&mut sends, &a.sent), (&mut receives, &b.received)].into_iter().zip(&mut gone)
        {
            match requests.drain(cq) {
                Some(found) => _ = done.fetch_add(found as u64, Ordering::Relaxed),
                None => *gone = true,
            }
        }
    }
    assert!(sends.posted.is_empty() && receives.posted.is_empty(), "requests are lost");
    assert_eq!(a.post(b, 0, &mut random), Err(PostError::Gone));
    assert_eq!(b.receive(0), Err(PostError::Gone));
}

/// A card of its own writes to a client over the network, until the client's card is gone.
fn writes_from_afar(own: &Device, b: &Side, device: &Device, done: &AtomicU64) {
    let domain = own.alloc_pd().unwrap();
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    let theirs = &b.qp;
    let params = ConnectionParams::new(own.info().mtu.min(device.info().mtu));
    let connected = theirs.connect(qp.local(), &params).is_ok();
    if !connected || qp.connect(theirs.local(), &params).is_err() {
        return;
    }
    let memory = domain.alloc(5000, Access::all()).unwrap();
    let there = Remote { addr: b.memory.remote(0).addr, rkey: b.memory.remote(0).rkey, len: 5000 };
    loop {
        match qp.write(memory.slice(..), there).wait(LONG) {
            Ok(_) => _ = done.fetch_add(1, Ordering::Relaxed),
            Err(RequestError::Status(_)) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

fn is_gone(device: &Device) -> bool {
    match device.alloc_pd() {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error, CreateError::Gone);
            assert!(error.to_string().contains("attach again"), "{error}");
            true
        }
    }
}

fn queue_pair(device: &Device) -> Option<QueuePair> {
    device.alloc_pd().ok()?.create_qp(&QueuePairOptions::new()).ok()
}

/// Serves a connection. (It may fail since the other end has gone already.)
fn serves(device: &Device, listener: &Listener) -> Result<(), ConnectFailure> {
    let request = listener.accept().wait(LONG)?;
    let Some(qp) = queue_pair(device) else { return Ok(()) };
    let params = ConnectionParams::new(device.info().mtu);
    request.accept(qp, b"", &params).wait(LONG)?.closed().wait(LONG)
}

/// Makes a connection.
fn asks(device: &Device, address: SocketAddr) -> Result<(), ConnectFailure> {
    let Some(qp) = queue_pair(device) else { return Ok(()) };
    let params = ConnectionParams::new(device.info().mtu);
    device.connect(qp, address, b"", &params).wait(LONG).map(drop)
}

/// Connections are made and ended, until the card is gone. No step waits for one that is.
fn meets(server: &Device, client: &Device, done: &AtomicU64) {
    let Ok(listener) = server.listen(7471) else { return };
    let address = SocketAddr::new(server.info().address, listener.port());
    let goes_on = |made: Result<(), ConnectFailure>| {
        let fails = matches!(made, Err(ConnectFailure::Timeout(_)));
        assert!(!fails, "a step of a connection waits for a card that is gone");
        done.fetch_add(u64::from(made.is_ok()), Ordering::Relaxed);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_gone(server) {
                goes_on(serves(server, &listener));
            }
        });
        scope.spawn(|| {
            while !is_gone(client) {
                goes_on(asks(client, address));
            }
        });
    });
}

/// A step of a program that sets itself up: what it has made, or why it has not.
fn made<T, E: std::fmt::Display>(step: Result<T, E>, steps: &AtomicU64) -> Result<T, String> {
    steps.fetch_add(1, Ordering::Relaxed);
    step.map_err(|error| error.to_string())
}

/// Attaches, registers memory of each kind, and makes queues of each kind.
fn sets_up(socket: &Path, steps: &AtomicU64) -> Result<(), String> {
    let device = made(DeviceOptions::new().attach(socket).open(), steps)?;
    let domain = made(device.alloc_pd(), steps)?;
    let _shared = made(domain.alloc(8192, Access::all()), steps)?;
    let _own = made(domain.register(Buffer::new(4096).unwrap(), Access::all()), steps)?;
    let _card = made(domain.alloc_device_memory(64, Access::all()), steps)?;
    let mut file = tempfile();
    file.write_all(&[7; 4096]).unwrap();
    let _file = made(domain.register_file(file, Access::all()), steps)?;
    let cq = made(device.create_cq(64), steps)?;
    let srq = made(domain.create_srq(16, 1), steps)?;
    let with_srq = QueuePairOptions::rc(&cq).srq(&srq);
    let (a, b) = (made(domain.create_qp(&QueuePairOptions::rc(&cq)), steps)?, with_srq);
    let b = made(domain.create_qp(&b), steps)?;
    let params = ConnectionParams::new(device.info().mtu);
    made(a.connect(b.local(), &params), steps)?;
    // (Others may listen at the same time, each at another port.)
    static PORTS: AtomicU16 = AtomicU16::new(1);
    let port = PORTS.fetch_add(1, Ordering::Relaxed).max(1);
    let _listener = made(device.listen(port), steps)?;
    Ok(())
}

/// A file without a name.
fn tempfile() -> std::fs::File {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("remora-killed-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let options = std::fs::File::options().read(true).write(true).create_new(true).clone();
    let file = options.open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

/// Sets up again and again, until the daemon is gone; returns the reason that was given.
fn sets_up_until_refused(socket: &Path, steps: &AtomicU64) -> String {
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        if let Err(reason) = sets_up(socket, steps) {
            return reason;
        }
    }
    panic!("the daemon is not killed");
}

#[test]
fn clients_that_set_themselves_up_while_their_daemon_is_killed_learn_why_and_attach_again() {
    let mut daemon = DaemonProcess::start("killed-early");
    let mut random = Random(0x5EED_1601);
    sets_up(&daemon.socket, &AtomicU64::new(0)).unwrap();
    let before = Held::by("self");
    for round in 0..2 * ROUNDS {
        let steps = AtomicU64::new(0);
        let (moment, spins) = (random.below(150), random.below(200_000));
        let socket = daemon.socket.clone();
        let reasons: Vec<String> = thread::scope(|scope| {
            let client = || scope.spawn(|| sets_up_until_refused(&socket, &steps));
            let clients = [client(), client(), client()];
            let until = Instant::now() + LONG;
            while steps.load(Ordering::Relaxed) < moment {
                assert!(Instant::now() < until, "round {round}: the clients do not go on");
                thread::yield_now();
            }
            (0..spins).for_each(|_| std::hint::spin_loop());
            daemon.kill();
            clients.map(|client| client.join().unwrap()).into()
        });
        for reason in reasons {
            let words = ["attach again", "`remora nic` running", "does not answer"];
            assert!(words.iter().any(|words| reason.contains(words)), "round {round}: {reason}");
        }
        before.wait_until_no_more("self");
        daemon.again();
        sets_up(&daemon.socket, &AtomicU64::new(0)).unwrap();
    }
}

/// One daemon, its clients, and its end after so many steps of theirs.
fn round(daemon: &mut DaemonProcess, own: &Device, random: &mut Random) {
    let (one, two) = (daemon.attach(), daemon.attach());
    let (a, b, far) = (Side::on(&one), Side::on(&two), Side::on(&two));
    let params = ConnectionParams::new(one.info().mtu);
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
    let done = AtomicU64::new(0);
    let (moment, seed) = (random.below(3000), 1 + random.below(1 << 40));
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let until = Instant::now() + LONG;
            while done.load(Ordering::Relaxed) < moment {
                assert!(Instant::now() < until, "the clients do not go on");
                std::hint::spin_loop();
            }
            daemon.kill();
        });
        scope.spawn(|| meets(&two, &one, &done));
        scope.spawn(|| writes_from_afar(own, &far, &two, &done));
        works(&a, &b, &done, seed);
        killer.join().unwrap();
    });
    for device in [&one, &two] {
        let events = device.events();
        let until = Instant::now() + LONG;
        while events.try_next() != Some(remora::nic::Event::DeviceFatal) {
            assert!(Instant::now() < until, "the device says nothing");
            thread::yield_now();
        }
    }
    // What was written stays readable, and the objects of a card that is gone can be given back.
    let mut bytes = [0; 64];
    b.memory.buffer().unwrap().read_at(0, &mut bytes).unwrap();
}

#[test]
fn clients_of_a_daemon_that_is_killed_at_any_moment_attach_again() {
    let own = DeviceOptions::new().embedded().open().unwrap();
    let mut daemon = DaemonProcess::start("killed");
    let mut random = Random(0x5EED_0016);
    drop(daemon.attach());
    let before = Held::by("self");
    for _ in 0..ROUNDS {
        round(&mut daemon, &own, &mut random);
        before.wait_until_no_more("self");
        daemon.again();
    }
    assert!(!is_gone(&daemon.attach()));
}
