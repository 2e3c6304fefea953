//! Programs with an event loop, which sleep on the descriptors of completion channels.

#[path = "support/skips.rs"]
mod skips;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::nic::queue::{Data, RecvRequest, SendFlags, SendOp, SendRequest, Status, WorkKind};
use remora::prelude::*;
use remora::tokio::AsyncChannel;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: u32 = 64;
const ROOM: u64 = 4;

/// Says at its end that all is done: also where a test fails, so that no loop goes on.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One end of a connection, with a completion queue of its own.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn new(device: &Device, cq: CompletionQueue) -> End {
        let domain = device.alloc_pd().unwrap();
        let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
        let memory = domain.alloc((ROOM * u64::from(BYTES)) as usize, Access::all()).unwrap();
        End { qp, cq, memory }
    }

    fn post_recv(&self, slot: u64) {
        let sges = [self.memory.sge(slot * u64::from(BYTES), BYTES)];
        self.qp.post_recv(&RecvRequest { wr_id: slot, sges: &sges }).unwrap();
    }

    fn post_send(&self, bytes: &[u8]) {
        let op = SendOp::Send { imm: None, to: None };
        let data = Data::Inline(bytes);
        self.qp.post_send(&SendRequest { wr_id: 0, op, data, flags: SendFlags::SIGNALED }).unwrap();
    }

    /// Takes the entries that have come; sends back what was received. Returns how many messages
    /// that was.
    fn answer(&self) -> usize {
        let (mut answered, mut done) = (0, [Completion::default(); 8]);
        loop {
            let found = self.cq.poll(&mut done).unwrap();
            if found == 0 {
                return answered;
            }
            for entry in &done[..found] {
                assert_eq!(entry.status, Status::Success);
                if entry.kind == WorkKind::Recv {
                    let mut bytes = [0; 8];
                    self.memory.read_at(entry.wr_id as usize * BYTES as usize, &mut bytes).unwrap();
                    self.post_recv(entry.wr_id);
                    self.post_send(&bytes);
                    answered += 1;
                }
            }
        }
    }

    /// Sends a number, and spins until it comes back.
    fn ask(&self, number: u64) {
        self.post_send(&number.to_le_bytes());
        loop {
            let entry = self.cq.spin(PATIENCE).unwrap().ok().unwrap();
            if entry.kind == WorkKind::Recv {
                let mut bytes = [0; 8];
                self.memory.read_at(entry.wr_id as usize * BYTES as usize, &mut bytes).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), number);
                return self.post_recv(entry.wr_id);
            }
        }
    }
}

/// A client's end on a device of its own, connected to `server`.
fn client_of(server: &End) -> (Device, End) {
    let device = Device::open().unwrap();
    let client = End::new(&device, device.create_cq(64).unwrap());
    let params = ConnectionParams::new(device.info().mtu);
    client.qp.connect(server.qp.local(), &params).unwrap();
    server.qp.connect(client.qp.local(), &params).unwrap();
    for slot in 0..ROOM {
        client.post_recv(slot);
        server.post_recv(slot);
    }
    (device, client)
}

/// A channel, and an end whose queue is armed on it.
fn served(device: &Device) -> (CompletionChannel, End) {
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_on(&channel, 64).unwrap();
    cq.arm(false).unwrap();
    (channel, End::new(device, cq))
}

/// Takes all events of a channel, and deals with each. Returns how many messages were answered.
fn drain(channel: &CompletionChannel, end: &End) -> usize {
    let mut answered = 0;
    while channel.try_next().is_some() {
        end.cq.arm(false).unwrap();
        answered += end.answer();
    }
    answered
}

/// Sleeps until one of the descriptors is readable, or for a moment: loops end by a flag.
fn sleep(fds: &[&dyn AsFd]) -> bool {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap() > 0
}

/// Rounds of questions, with pauses in which the loop is given up.
fn ask_in_rounds(client: &End) {
    for round in 0..3 {
        (0..200).for_each(|i| client.ask(round << 32 | i));
        thread::sleep(Duration::from_millis(30));
    }
}

#[test]
fn a_loop_answers_before_and_after_it_was_idle() {
    let device = Device::open().unwrap();
    let (channel, server) = served(&device);
    let (_device, client) = client_of(&server);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = AtEnd(&done);
        scope.spawn(|| {
            let mut answered = 0;
            while !done.load(Ordering::Relaxed) {
                answered += drain(&channel, &server);
                sleep(&[&channel]);
            }
            assert_eq!(answered, 600);
        });
        ask_in_rounds(&client);
    });
}

#[test]
fn one_loop_serves_many_channels_some_of_which_go() {
    let device = Device::open().unwrap();
    let mut served: Vec<(CompletionChannel, End)> = (0..6).map(|_| served(&device)).collect();
    let clients: Vec<(Device, End)> = served.iter().map(|(_, server)| client_of(server)).collect();
    // While the first serve, the last channels are closed, whichever has the sockets behind it.
    for left in (1..=6).rev() {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = AtEnd(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for (channel, server) in served.iter().rev() {
                        drain(channel, server);
                    }
                    let fds: Vec<&dyn AsFd> = served.iter().map(|(c, _)| c as _).collect();
                    sleep(&fds);
                }
            });
            for i in 0..100 {
                clients[..left].iter().for_each(|(_, client)| client.ask(i));
            }
        });
        served.pop();
    }
}

#[test]
fn two_loops_share_a_card() {
    let device = Device::open().unwrap();
    let served = [(); 2].map(|()| served(&device));
    let clients = served.each_ref().map(|(_, server)| client_of(server));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = AtEnd(&done);
        for (channel, server) in &served {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drain(channel, server);
                    sleep(&[channel]);
                }
            });
        }
        let asking = clients.each_ref().map(|(_, client)| scope.spawn(|| ask_in_rounds(client)));
        asking.into_iter().for_each(|asking| asking.join().unwrap());
    });
}

#[test]
fn a_loop_may_be_edge_triggered() {
    let device = Device::open().unwrap();
    let (channel, server) = served(&device);
    let (_device, client) = client_of(&server);
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&poller, &channel, epoll::EventData::new_u64(0), edges).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = AtEnd(&done);
        scope.spawn(|| {
            let mut events = Vec::with_capacity(4);
            while !done.load(Ordering::Relaxed) {
                drain(&channel, &server);
                // Edges that get lost would be found out by the client's patience.
                let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let room = rustix::buffer::spare_capacity(&mut events);
                let edge = epoll::wait(&poller, room, Some(&pause)).unwrap() > 0;
                while !edge && !done.load(Ordering::Relaxed) {
                    events.clear();
                    let room = rustix::buffer::spare_capacity(&mut events);
                    if epoll::wait(&poller, room, Some(&pause)).unwrap() > 0 {
                        break;
                    }
                }
                events.clear();
            }
        });
        ask_in_rounds(&client);
    });
}

#[test]
fn a_thread_that_waits_on_a_channel_is_woken_each_time() {
    let device = Device::open().unwrap();
    let (channel, server) = served(&device);
    let (_device, client) = client_of(&server);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut answered = 0;
            while answered < 600 {
                channel.wait(PATIENCE).unwrap();
                server.cq.arm(false).unwrap();
                answered += server.answer();
            }
        });
        ask_in_rounds(&client);
    });
}

#[tokio::test]
async fn a_task_of_tokios_is_a_loop() {
    let device = Device::open().unwrap();
    let (channel, server) = served(&device);
    let (_device, client) = client_of(&server);
    let asking = thread::spawn(move || ask_in_rounds(&client));
    let mut channel = AsyncChannel::new(channel).unwrap();
    let mut answered = 0;
    while answered < 600 {
        channel.next().await.unwrap();
        server.cq.arm(false).unwrap();
        answered += server.answer();
    }
    asking.join().unwrap();
}

/// A WRITE brings no completion to its target, so only a loop that is woken by packets themselves
/// notices it.
#[test]
fn packets_wake_the_loop_that_drives_the_card() {
    let device = Device::open().unwrap();
    if device.is_attached() {
        return skips::lacks("the card is a daemon’s, and no loop of this process drives it");
    }
    let (channel, server) = served(&device);
    let (_device, client) = client_of(&server);
    let start = Instant::now();
    let mut woken = false;
    while !woken {
        assert!(start.elapsed() < PATIENCE, "no packet has woken the loop");
        for _ in 0..20 {
            assert_eq!(channel.try_next(), None);
        }
        let op = SendOp::Write { to: server.memory.remote(0), imm: None };
        let flags = SendFlags::SIGNALED;
        let data = Data::Inline(b"w");
        client.qp.post_send(&SendRequest { wr_id: 0, op, data, flags }).unwrap();
        // If the background thread was faster, the loop is not woken: then it is tried again.
        woken = sleep(&[&channel]);
        assert_eq!(channel.try_next(), None);
        client.cq.spin(PATIENCE).unwrap().ok().unwrap();
    }
}

#[test]
fn peers_are_served_while_the_loop_is_busy_elsewhere() {
    let device = Device::open().unwrap();
    let (channel, server) = served(&device);
    let (_device, client) = client_of(&server);
    let from = server.memory.remote(0);
    for _ in 0..20 {
        // The loop is given the card, and then does not come back to it.
        (0..20).for_each(|_| assert_eq!(channel.try_next(), None));
        for _ in 0..3 {
            let sges = [client.memory.sge(0, 8)];
            let (op, data) = (SendOp::Read { from }, Data::Sges(&sges));
            let flags = SendFlags::SIGNALED;
            client.qp.post_send(&SendRequest { wr_id: 0, op, data, flags }).unwrap();
            client.cq.spin(PATIENCE).unwrap().ok().unwrap();
        }
    }
}

#[test]
fn posts_of_a_loop_that_sleeps_at_once_are_sent() {
    let device = Device::open().unwrap();
    let (channel, server) = served(&device);
    let (_device, client) = client_of(&server);
    for round in 0..50 {
        // The last round's SENDs may complete only now: the client has them before their
        // acknowledgements have come back.
        (0..20).for_each(|_| assert_eq!(drain(&channel, &server), 0));
        (0..3).for_each(|_| server.post_send(&[round; 8]));
        // Nobody drives the server's card from here on but its background thread.
        let mut received = 0;
        while received < 3 {
            let entry = client.cq.spin(PATIENCE).unwrap().ok().unwrap();
            client.post_recv(entry.wr_id);
            received += 1;
        }
        drain(&channel, &server);
    }
}
