//! A daemon in a thread, and clients that speak its protocol by hand: honest ones, and others.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remora_nic::nic::InUse;
use remora_nic::qp::{Mtu, QpAttr, State};
use remora_nic::queue::{Completion, RingInit, Status};
use remora_nic::wire::Transport;
use remora_nic::{Access, CreateError, DestroyError, Event as CardEvent, Path, QpFlags, QpInit};
use rustix::fs::{MemfdFlags, SealFlags};
use serde::de::DeserializeOwned;

use super::*;
use crate::commands::{Bytes, Command, Commands, Place, QpMade, Stubs, Wire};
use crate::dma::MemoryKind;
use crate::event::Event;
use crate::memory::Buffer;
use crate::message::{
    Answer, ClientRequest, Hello, Keep, Loan, MessageError, MessageSocket, Object, RingPlace,
    StatusPage, VERSION, Welcome, decode, encode, greeting, parse_answer_to_greeting,
};
use crate::shared::{Arena, CompletionConsumer, EventConsumer, WorkQueue, WorkQueueState};
use crate::{Device, DeviceOptions};

mod changing;
mod closings;
mod crashes;
mod doorbells;
#[path = "../../tests/support/echo.rs"]
mod echo;
mod evictions;
mod hogs;
mod kernels;
mod loans;
mod many;
mod meetings;
mod notices;
mod passes;
mod polls;
mod restore;
mod shared_receives;
mod takeovers;
mod turns;
#[path = "../../tests/support/until.rs"]
mod until;

use until::{until, until_ok, until_some};

/// A daemon in a thread of this process.
struct Daemon {
    device: Device,
    path: PathBuf,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::with(Policy::default())
    }

    fn with(policy: Policy) -> Daemon {
        Daemon::restored(policy, None).0
    }

    /// A daemon that goes on with what another one has left.
    fn restored(
        policy: Policy,
        store: Option<(FdStore, Vec<(String, OwnedFd)>)>,
    ) -> (Daemon, Restored) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("remora-daemon-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let device = DeviceOptions::new().embedded().open().unwrap();
        let options =
            ServerOptions { socket: Some(path.clone()), policy, loader: Some(echo::load) };
        let mut server = Server::new(device.clone(), options).unwrap();
        let restored = store.map(|(store, left)| server.restore(store, left)).unwrap_or_default();
        let stop = Arc::new(Event::new().unwrap());
        let stops = stop.clone();
        let thread = std::thread::spawn(move || server.run(&stops).unwrap());
        (Daemon { device, path, stop, thread: Some(thread) }, restored)
    }

    /// Waits until all that sessions have made is gone from the card.
    fn wait_until_empty(&self) {
        let connections = || {
            let uses = self.device.memory_use();
            uses.iter().find(|part| part.name == "connections").map(|part| part.count)
        };
        until_ok("nothing is left on the card", || match (self.device.in_use(), connections()) {
            (in_use, Some(0)) if in_use == InUse::default() => Ok(()),
            left => Err(format!("{left:?}")),
        });
        let has_none =
            |observer: Asker| observer.status().iter().all(|page| page.sessions.is_empty());
        until("no session is left", || has_none(self.observer()));
    }

    fn client(&self) -> Client {
        Client::attach(self, &Hello::default()).unwrap()
    }

    fn observer(&self) -> Asker {
        let asker = Asker { socket: MessageSocket::connect(&self.path).unwrap() };
        asker.send(&greeting(&Hello { observer: true, ..Hello::default() }), &[]);
        assert!(matches!(decode(&asker.receive().0), Ok(Answer::Done)));
        asker
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.notify().unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        let ended_well = ended.is_none_or(|ended| ended.is_ok());
        assert!(ended_well || std::thread::panicking(), "the daemon has panicked");
    }
}

/// One end of a connection to a daemon.
struct Asker {
    socket: MessageSocket,
}

impl Asker {
    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.socket.send(bytes, descriptors).unwrap();
    }

    /// The next message, empty if the daemon has ended the connection.
    fn receive(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = Vec::new();
        self.socket.wait(None).unwrap();
        let came = self.socket.receive(&mut bytes).unwrap();
        came.map_or((Vec::new(), Vec::new()), |came| (bytes, came))
    }

    /// The reason for which the daemon drops this client.
    fn farewell(&self) -> String {
        let (bytes, _) = self.receive();
        match decode(&bytes) {
            Ok(Answer::Farewell(reason)) => reason.to_owned(),
            other => panic!("no farewell: {other:?}"),
        }
    }

    fn ask<R>(
        &self,
        request: &ClientRequest<'_>,
        with: &[BorrowedFd<'_>],
        read: impl FnOnce(Answer<'_>) -> R,
    ) -> R {
        self.send(&encode(request), with);
        let (bytes, _) = self.receive();
        read(decode(&bytes).unwrap())
    }

    fn status(&self) -> Vec<StatusPage> {
        let (mut pages, mut from) = (Vec::new(), 0);
        loop {
            let page = self.ask(&ClientRequest::Status(from), &[], |answer| match answer {
                Answer::Status(page) => page,
                other => panic!("{other:?}"),
            });
            let more = page.more;
            from = page.sessions.last().map_or(0, |last| last.session + 1);
            pages.push(page);
            if !more {
                return pages;
            }
        }
    }

    fn refusal(&self, request: &ClientRequest<'_>, with: &[BorrowedFd<'_>]) -> Option<String> {
        self.ask(request, with, |answer| match answer {
            Answer::Refused(reason) => Some(reason.to_owned()),
            _ => None,
        })
    }
}

impl Wire for &Asker {
    fn call<R: DeserializeOwned>(&mut self, command: &Command<'_>) -> Option<R> {
        let bytes = encode(command);
        self.ask(&ClientRequest::Command(&bytes), &[], |answer| match answer {
            Answer::Result(bytes) => Some(decode(bytes).unwrap()),
            other => panic!("{other:?}"),
        })
    }
}

/// A client with a session.
struct Client {
    asker: Asker,
    welcome: Welcome,
    arena: Arena,
    doorbell: std::fs::File,
    wake: OwnedFd,
    former_gates: Option<OwnedFd>,
}

/// A reliable queue pair of a client, with its rings and its completion queue.
struct Queues {
    made: QpMade,
    cq: u32,
    pd: remora_nic::Pd,
    completions: CompletionConsumer,
    posted: u32,
}

impl Client {
    fn attach(daemon: &Daemon, hello: &Hello) -> Result<Client, String> {
        let asker = Asker { socket: MessageSocket::connect(&daemon.path).unwrap() };
        asker.send(&greeting(hello), &[]);
        let (bytes, came) = asker.receive();
        let welcome = match decode::<Answer<'_>>(&bytes).unwrap() {
            Answer::Welcome(welcome) => welcome,
            Answer::Farewell(reason) => return Err(reason.to_owned()),
            other => panic!("{other:?}"),
        };
        let mut came = came.into_iter();
        let [arena, doorbell, wake] = std::array::from_fn(|_| came.next().unwrap());
        let (arena, former_gates) = (Arena::open(arena.as_fd()).unwrap(), came.next());
        Ok(Client { asker, welcome, arena, doorbell: doorbell.into(), wake, former_gates })
    }

    fn card(&self) -> Stubs<&Asker> {
        Stubs(&self.asker)
    }

    fn address(&self) -> IpAddr {
        self.welcome.card.address
    }

    fn lend(&self, loan: Loan, file: &OwnedFd) -> u32 {
        self.asker.ask(&ClientRequest::Lend(loan), &[file.as_fd()], |answer| match answer {
            Answer::Lent(number) => number,
            other => panic!("{other:?}"),
        })
    }

    fn queues(&self) -> Queues {
        let pd = self.card().alloc_pd().unwrap();
        self.queues_of(pd, |init| init)
    }

    fn queues_of(&self, pd: remora_nic::Pd, how: impl Fn(QpInit) -> QpInit) -> Queues {
        let mut card = self.card();
        let cq = card.create_cq(16).unwrap();
        let made = card.create_qp(how(init(pd, cq))).unwrap();
        let place =
            self.asker.ask(&ClientRequest::CompletionQueue(cq), &[], |answer| match answer {
                Answer::CompletionQueue(place) => place,
                other => panic!("{other:?}"),
            });
        let completions =
            CompletionConsumer::new(&self.arena, place.number, place.ring as usize, place.depth);
        Queues { made, cq, pd, completions, posted: 0 }
    }

    fn connect(&self, queues: &Queues, peer: &QpMade) {
        let mut card = self.card();
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        let access = Some(Access::all());
        let qpn = queues.made.qpn;
        card.modify_qp(qpn, QpAttr { access, ..to(State::Init) }).unwrap();
        let rtr = QpAttr {
            path: Some(Path::new(self.address(), qpn)),
            path_mtu: Some(Mtu::B1024),
            dest_qp: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..to(State::Rtr)
        };
        card.modify_qp(qpn, rtr).unwrap();
        let rts = QpAttr {
            sq_psn: Some(queues.made.psn),
            max_rd_atomic: Some(1),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..to(State::Rts)
        };
        card.modify_qp(qpn, rts).unwrap();
    }

    fn work_queue(&self, ring: &RingInit) -> (WorkQueue, usize) {
        let place = RingPlace::of_addr(ring.addr);
        (WorkQueue::new(&self.arena, place.number), place.offset as usize)
    }

    /// Writes an element, publishes it and rings.
    fn post(&self, queues: &mut Queues, element: &[u8; 64]) {
        let number = self.publish(queues, element);
        self.ring(number);
    }

    /// Writes an element and publishes it; returns the queue's number.
    fn publish(&self, queues: &mut Queues, element: &[u8; 64]) -> u32 {
        let (queue, ring) = self.work_queue(&queues.made.sq);
        let slot = ring + (queues.posted % queues.made.sq.depth) as usize * 64;
        self.arena.memory().write_at(slot, element).unwrap();
        queues.posted = queues.posted.wrapping_add(1);
        queue.publish(queues.posted);
        queue.number()
    }

    fn ring(&self, number: u32) {
        if self.arena.ring(number) {
            std::io::Write::write_all(&mut &self.doorbell, &1u64.to_ne_bytes()).unwrap();
        }
    }

    fn completion(&self, queues: &mut Queues) -> Completion {
        let mut out = [Completion::default()];
        until("a completion", || queues.completions.poll(&mut out).unwrap().0 > 0);
        out[0]
    }
}

fn init(pd: remora_nic::Pd, cq: u32) -> QpInit {
    let ring = RingInit { addr: 0, depth: 8, stride: 64 };
    QpInit {
        pd,
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        sq: ring,
        rq: ring,
        signal_all: true,
        flags: QpFlags::empty(),
        client: 0,
    }
}

/// A WRITE of `len` bytes.
fn write(wr_id: u64, (from, lkey): (u64, u32), (to, rkey): (u64, u32), len: u32) -> [u8; 64] {
    let mut element = [0; 64];
    element[0] = 4;
    element[8] = 1;
    element[11] = 1;
    element[12..16].copy_from_slice(&rkey.to_le_bytes());
    element[16..24].copy_from_slice(&to.to_le_bytes());
    element[32..40].copy_from_slice(&wr_id.to_le_bytes());
    element[40..48].copy_from_slice(&from.to_le_bytes());
    element[48..52].copy_from_slice(&len.to_le_bytes());
    element[52..56].copy_from_slice(&lkey.to_le_bytes());
    element
}

/// A sealed memory file, and this process's view of it.
fn sealed(len: usize) -> (OwnedFd, Buffer) {
    let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, len as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let buffer = Buffer::map(file.as_fd(), 0, len).unwrap();
    (file, buffer)
}

#[test]
fn two_clients_move_bytes_without_a_call() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.client(), daemon.client());
    let (mut qa, qb) = (a.queues(), b.queues());
    a.connect(&qa, &qb.made);
    b.connect(&qb, &qa.made);
    let ((fa, ma), (fb, mb)) = (sealed(8192), sealed(8192));
    let (la, lb) = (a.lend(Loan::Sealed, &fa), b.lend(Loan::Sealed, &fb));
    let bytes =
        |number| Bytes { place: Place::Lent { number, offset: 4096 }, iova: 0x1000, len: 64 };
    let ka = a.card().reg_mr(qa.pd, bytes(la), Access::all()).unwrap();
    let kb = b.card().reg_mr(qb.pd, bytes(lb), Access::all()).unwrap();
    ma.write_at(4096, b"between processes").unwrap();
    for round in 0..50 {
        a.post(&mut qa, &write(round, (0x1000, ka), (0x1000, kb), 17));
        let done = a.completion(&mut qa);
        assert_eq!((done.wr_id, done.status), (round, Status::Success));
    }
    let mut back = [0; 17];
    mb.read_at(4096, &mut back).unwrap();
    assert_eq!(&back, b"between processes");
    let (queue, _) = a.work_queue(&qa.made.sq);
    assert_eq!(queue.retired(), 50);
    let status = daemon.observer().status();
    let counts: Vec<_> = status[0].sessions.iter().map(|s| (s.posted, s.completed)).collect();
    assert_eq!(counts, [(50, 50), (0, 0)]);
    assert_eq!(status[0].sessions[0].lent, [(Loan::Sealed, 1)]);

    // Behind what is lent, and what is another's.
    let beyond = Bytes { place: Place::Lent { number: la, offset: 8192 - 63 }, iova: 0, len: 64 };
    assert!(a.card().reg_mr(qa.pd, beyond, Access::all()).is_err());
    assert!(a.card().reg_mr(qa.pd, bytes(lb), Access::all()).is_err());
    let refused = a.asker.refusal(&ClientRequest::TakeBack(la), &[]).unwrap();
    assert!(refused.contains("1 regions"), "{refused}");
    a.card().dereg_mr(ka).unwrap();
    assert_eq!(a.asker.refusal(&ClientRequest::TakeBack(la), &[]), None);
    drop((a, b));
    daemon.wait_until_empty();
}

#[test]
fn a_client_that_sleeps_is_woken() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut queues = client.queues();
    let peer = client.card().create_qp(init(queues.pd, queues.cq)).unwrap();
    let other = Queues { made: peer, completions: client.queues().completions, ..queues };
    client.connect(&queues, &peer);
    client.connect(&other, &queues.made);
    let (file, memory) = sealed(4096);
    let number = client.lend(Loan::Sealed, &file);
    let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 4096 };
    let key = client.card().reg_mr(queues.pd, bytes, Access::all()).unwrap();
    let mut events = EventConsumer::new(&client.arena);
    for round in 1..=20 {
        memory.store_u64(0, round).unwrap();
        queues.completions.arm(false);
        events.will_sleep(&client.arena, 1);
        // The daemon has had the time to fall asleep, in some of the rounds.
        std::thread::sleep(Duration::from_millis(round * 2));
        client.post(&mut queues, &write(round, (0, key), (64, key), 8));
        let mut event = Vec::new();
        until("an event", || events.next(&client.arena, &mut event).is_some());
        assert_eq!(decode(&event), Ok(CardEvent::CompletionQueueNotify(queues.cq)));
        assert_eq!(client.completion(&mut queues).wr_id, round);
        assert_eq!(memory.load_u64(64).unwrap(), round);
    }
}

/// Fills whatever the client is woken by, and makes it wait for room, as far as the client can.
fn clog(client: &Client) {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", client.wake.as_raw_fd());
    rustix::io::ioctl_fionbio(&client.wake, false).unwrap();
    // The greatest count of an event.
    rustix::io::write(&client.wake, &(u64::MAX - 1).to_ne_bytes()).ok();
    let other = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    if let Ok(other) = rustix::fs::open(path, other, rustix::fs::Mode::empty()) {
        while rustix::io::write(&other, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&other, false).unwrap();
    }
}

#[test]
fn a_client_cannot_have_the_daemon_wait_for_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut queues = client.queues();
    let peer = client.card().create_qp(init(queues.pd, queues.cq)).unwrap();
    let other = Queues { made: peer, completions: client.queues().completions, ..queues };
    client.connect(&queues, &peer);
    client.connect(&other, &queues.made);
    clog(&client);
    let events = EventConsumer::new(&client.arena);
    for round in 0..3 {
        queues.completions.arm(false);
        events.will_sleep(&client.arena, 1);
        client.post(&mut queues, &write(round, (0, 0), (0, 0), 0));
        client.completion(&mut queues);
    }
    // The thread that drives the card goes on, and others get what they ask for.
    let (sender, answered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(daemon.client().card().alloc_pd().is_ok()));
        let patience = Duration::from_secs(20);
        assert_eq!(answered.recv_timeout(patience), Ok(true), "the daemon is stuck");
    });
}

#[test]
fn objects_of_others_do_not_exist() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.client(), daemon.client());
    let queues = a.queues();
    let key = a.card().alloc_null_mr(queues.pd).unwrap();
    let ah = a.card().create_ah(queues.pd, Path::new(a.address(), 1)).unwrap();
    let budget = a.card().create_budget(5).unwrap();
    let mut other = b.card();
    assert_eq!(other.dealloc_pd(queues.pd), Err(DestroyError::Unknown));
    assert_eq!(other.destroy_cq(queues.cq), Err(DestroyError::Unknown));
    assert_eq!(other.destroy_qp(queues.made.qpn), Err(DestroyError::Unknown));
    assert_eq!(other.dereg_mr(key), Err(DestroyError::Unknown));
    assert_eq!(other.destroy_ah(ah), Err(DestroyError::Unknown));
    assert_eq!(other.destroy_budget(budget), Err(DestroyError::Unknown));
    assert!(other.query_qp(queues.made.qpn).is_none());
    assert!(other.cq_count(queues.cq).is_none());
    let stolen = init(queues.pd, queues.cq);
    assert_eq!(other.create_qp(stolen), Err(CreateError::UnknownPd));
    let pd = other.alloc_pd().unwrap();
    assert_eq!(other.create_qp(QpInit { pd, ..stolen }), Err(CreateError::UnknownCq));
    let reset = QpAttr { state: Some(State::Reset), ..QpAttr::default() };
    assert!(other.modify_qp(queues.made.qpn, reset).is_err());
    assert!(other.loop_back(queues.made.qpn, queues.made.qpn, Access::all()).is_err());
    for place in [Place::Process(4096), Place::Checked(4096), Place::File(1 << 63)] {
        let bytes = Bytes { place, iova: 0, len: 8 };
        assert!(other.reg_mr(pd, bytes, Access::all()).is_err(), "{place:?}");
    }
    for offset in [0, 4096, u64::MAX - 4, 1 << 40] {
        let bytes = Bytes { place: Place::Arena(offset), iova: 0, len: 8 };
        assert!(other.reg_mr(pd, bytes, Access::all()).is_err(), "{offset}");
    }
    assert_eq!(other.in_use().pds, 1, "its own only");
}

#[test]
fn card_memory_is_a_piece_of_the_users() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut card = client.card();
    let pd = card.alloc_pd().unwrap();
    let at = card.alloc_dm(100).unwrap();
    card.write_dm(at + 4, b"near").unwrap();
    assert_eq!(card.read_dm(at + 4, 4).unwrap(), b"near");
    // Another program of the user has it mapped, and has other pieces.
    let dma = DmaClient::connect(Some(&daemon.path)).unwrap();
    let mut bytes = [0; 4];
    dma.memory().read_at(at as usize + 4, &mut bytes).unwrap();
    assert_eq!(&bytes, b"near");
    assert_ne!(dma.alloc(MemoryKind::Near, 64).unwrap().0, at);
    let other = daemon.client();
    let theirs = other.card().alloc_dm(100).unwrap();
    assert_ne!(theirs, at);
    assert!(card.read_dm(theirs, 4).is_err(), "of another session");
    assert!(card.read_dm(at + 97, 4).is_err() && card.write_dm(at - 1, b"x").is_err());
    let region = |addr, len| Bytes { place: Place::Device(addr), iova: 0, len };
    let key = card.reg_mr(pd, region(at, 100), Access::all()).unwrap();
    assert!(card.reg_mr(pd, region(at, 101), Access::all()).is_err());
    card.dereg_mr(key).unwrap();
    card.free_dm(at).unwrap();
    assert_eq!(card.free_dm(at), Err(DestroyError::Unknown));
    other.card().free_dm(theirs).unwrap();
    let again = card.alloc_dm(100).unwrap();
    assert_eq!((again, card.read_dm(again + 4, 4).unwrap()), (at, vec![0; 4]), "it is zero");
    let far = card.alloc_dm(1 << 20).unwrap();
    card.write_dm(far + (1 << 20) - 3, b"far").unwrap();
    dma.memory().read_at(far as usize + (1 << 20) - 4, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0far");
}

#[test]
fn an_index_that_cannot_be_ends_its_queue_pair_only() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (mut queues, peer) = (client.queues(), client.queues());
    client.connect(&queues, &peer.made);
    client.connect(&peer, &queues.made);
    let (queue, _) = client.work_queue(&queues.made.sq);
    queue.publish(1 << 31);
    client.ring(queue.number());
    until("the queue ends", || queue.state() != WorkQueueState::Live);
    assert_eq!(queue.state(), WorkQueueState::Refused);
    let state = |qpn| client.card().query_qp(qpn).unwrap().state;
    assert_eq!((state(queues.made.qpn), state(peer.made.qpn)), (State::Error, State::Rts));
    let mut events = EventConsumer::new(&client.arena);
    let mut event = Vec::new();
    until("an event", || events.next(&client.arena, &mut event).is_some());
    assert_eq!(decode(&event), Ok(CardEvent::QpFatal(queues.made.qpn)));
    assert_eq!(daemon.observer().status()[0].sessions[0].refused, 1);
    // After a reset it begins again.
    let reset = QpAttr { state: Some(State::Reset), ..QpAttr::default() };
    client.card().modify_qp(queues.made.qpn, reset).unwrap();
    assert_eq!((queue.posted(), queue.state()), (0, WorkQueueState::Live));
    queues.posted = 0;
}

#[test]
fn quotas_are_kept() {
    let own = rustix::process::geteuid();
    let text = format!(
        "[users.{}]\nsessions = 2\n[users.{0}.quotas]\nqueue_pairs = 1\nregions = 1\n\
         completion_queues = 1\nentries = 16\nmemory_bytes = 4096\nothers = 3\n\
         arena_bytes = 1\n",
        own.as_raw()
    );
    let file = std::env::temp_dir().join(format!("remora-policy-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let daemon = Daemon::with(Policy::read(&file).unwrap());
    std::fs::remove_file(file).unwrap();
    let client = daemon.client();
    let _second = daemon.client();
    let refused = Client::attach(&daemon, &Hello::default()).err().unwrap();
    assert!(refused.contains("as many sessions"), "{refused}");
    let mut card = client.card();
    let pd = card.alloc_pd().unwrap();
    assert_eq!(card.create_cq(17), Err(CreateError::Full { limit: 16 }));
    let cq = card.create_cq(16).unwrap();
    assert_eq!(card.create_cq(1), Err(CreateError::Full { limit: 1 }));
    // The smallest arena has one page besides its rings.
    let qp = card.create_qp(init(pd, cq));
    assert_eq!(qp.unwrap_err(), CreateError::NoMemory { bytes: 512 });
    assert_eq!(card.in_use().qps, 0, "nothing is left behind");
    let (file, _) = sealed(4096);
    let number = client.lend(Loan::Sealed, &file);
    let (large, _) = sealed(8192);
    let refused =
        client.asker.refusal(&ClientRequest::Lend(Loan::Sealed), &[large.as_fd()]).unwrap();
    assert!(refused.contains("quota"), "{refused}");
    let bytes = |len| Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len };
    let key = card.reg_mr(pd, bytes(4096), Access::all()).unwrap();
    assert!(card.reg_mr(pd, bytes(1), Access::all()).is_err());
    card.dereg_mr(key).unwrap();
    card.reg_mr(pd, bytes(1), Access::all()).unwrap();
    assert!(card.alloc_pd().is_ok() && card.alloc_pd().is_ok());
    assert_eq!(card.alloc_pd(), Err(CreateError::Full { limit: 3 }));
}

#[test]
fn what_is_no_client_is_sent_away() {
    let daemon = Daemon::start();
    let connect = || Asker { socket: MessageSocket::connect(&daemon.path).unwrap() };
    let says = |bytes: &[u8], expected: &str| {
        let asker = connect();
        asker.send(bytes, &[]);
        let reason = asker.farewell();
        assert!(reason.contains(expected), "{reason}");
        assert!(asker.receive().0.is_empty(), "the connection has ended");
    };
    says(b"GET / HTTP/1.1\r\n", "no greeting");
    let mut newer = greeting(&Hello::default());
    newer[4] = 200;
    let other = connect();
    other.send(&newer, &[]);
    let (said, reason) = (other.receive().0, other.farewell());
    let versions = MessageError::Version { client: VERSION, daemon: VERSION };
    assert_eq!(parse_answer_to_greeting(&said), Err(versions), "whatever the version");
    assert!(reason.contains("version 200"), "{reason}");
    says(&greeting(&Hello::default())[..8], "cannot be read");
    for name in ["", &"x".repeat(65), "a\nb", "rank 0\u{202e}7 knar"] {
        says(&greeting(&Hello { name: Some(name.into()), ..Hello::default() }), "64 bytes");
    }
    let wrong = Hello { token: Some([1; 16]), ..Hello::default() };
    says(&greeting(&wrong), "no session of this name and token");
    // Greeted, and then nonsense.
    let client = daemon.client();
    client.asker.send(&[200; 64], &[]);
    assert!(client.asker.farewell().contains("cannot be read"));
    let client = daemon.client();
    client.asker.send(&encode(&ClientRequest::Command(&[255; 9])), &[]);
    assert!(client.asker.farewell().contains("command cannot be read"));
    // An observer commands nothing.
    let observer = daemon.observer();
    observer.send(&encode(&ClientRequest::Command(&encode(&Command::AllocPd {}))), &[]);
    assert!(observer.farewell().contains("no session"));
    drop((client, observer));
    daemon.wait_until_empty();
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    client.card().alloc_pd().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let many = [writer.as_fd(); 16];
    for loan in [Loan::Sealed, Loan::File, Loan::Process, Loan::ProcessFile] {
        assert!(client.asker.refusal(&ClientRequest::Lend(loan), &many).is_some());
        assert!(client.asker.refusal(&ClientRequest::Lend(loan), &many[..1]).is_some());
    }
    client.asker.send(&encode(&ClientRequest::Command(&encode(&Command::AllocPd {}))), &many);
    client.asker.receive();
    client.asker.send(&encode(&ClientRequest::Status(0)), &many);
    client.asker.receive();
    drop(writer);
    let read = std::io::Read::read(&mut reader, &mut [0]);
    assert_eq!(read.unwrap(), 0, "the daemon has closed all copies");
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let request = encode(&ClientRequest::Status(0));
    // Until its requests are not taken any more, since it was dropped.
    let gone = (0..1_000_000).find_map(|_| match client.asker.socket.send(&request, &[]) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Some(()),
        _ => None,
    });
    assert!(gone.is_some());
    assert!(daemon.client().card().alloc_pd().is_ok(), "others are served");
}

#[test]
fn a_kept_session_is_taken_over_with_all_it_has() {
    let daemon = Daemon::start();
    let hello = Hello { name: Some("store".into()), keep: Keep::Forever, ..Hello::default() };
    let first = Client::attach(&daemon, &hello).unwrap();
    let mut queues = first.queues();
    let peer = daemon.client();
    let mut theirs = peer.queues();
    first.connect(&queues, &theirs.made);
    peer.connect(&theirs, &queues.made);
    let at = first.card().alloc_dm(4096).unwrap();
    let bytes = Bytes { place: Place::Device(at), iova: 0, len: 4096 };
    let key = first.card().reg_mr(queues.pd, bytes, Access::all()).unwrap();
    first.card().write_dm(at, b"kept").unwrap();
    let (token, quotas) = (first.welcome.token, first.welcome.quotas);
    let again = Client::attach(&daemon, &hello).err().unwrap();
    assert!(again.contains("take it over"), "{again}");
    let old_arena = first.arena.clone();
    drop(first);

    // Nobody has it, and peers read and write on.
    let (file, memory) = sealed(4096);
    let number = peer.lend(Loan::Sealed, &file);
    let lent = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 64 };
    let mine = peer.card().reg_mr(theirs.pd, lent, Access::all()).unwrap();
    memory.write_at(0, b"from a peer").unwrap();
    peer.post(&mut theirs, &write(1, (0, mine), (100, key), 11));
    assert_eq!(peer.completion(&mut theirs).status, Status::Success);
    let kept = daemon.observer().status()[0].sessions[0].clone();
    assert_eq!((kept.name.as_str(), kept.attached, kept.ends_in_s), ("store", false, None));

    let second = Hello { token: Some(token), ..hello.clone() };
    let second = Client::attach(&daemon, &second).unwrap();
    assert_eq!((second.welcome.epoch, second.welcome.quotas), (2, quotas));
    assert_eq!(old_arena.epoch(), 2, "the old holder can see that it is fenced");
    for object in [Object::Mr(key), Object::Qp(queues.made.qpn), Object::Dm(at)] {
        assert!(second.welcome.objects.contains(&object), "{object:?}");
    }
    assert_eq!(second.card().read_dm(at, 4).unwrap(), b"kept");
    assert_eq!(second.card().read_dm(at + 100, 11).unwrap(), b"from a peer");
    queues.posted = 0;
    // A third one takes it from the second, which is told.
    let third = Hello { token: Some(token), keep: Keep::No, ..hello };
    let third = Client::attach(&daemon, &third).unwrap();
    assert!(second.asker.farewell().contains("taken the session over"));
    assert_eq!(third.welcome.epoch, 3);
    drop((second, third, peer));
    daemon.wait_until_empty();
}

#[test]
fn a_lease_ends() {
    let daemon = Daemon::start();
    let hello = Hello { keep: Keep::Seconds(1), ..Hello::default() };
    let client = Client::attach(&daemon, &hello).unwrap();
    client.queues();
    drop(client);
    daemon.wait_until_empty();
}

#[test]
fn an_observer_impairs_the_card() {
    let daemon = Daemon::start();
    let observer = daemon.observer();
    let refused = observer.refusal(&ClientRequest::Impair("lose=1%"), &[]).unwrap();
    assert!(refused.contains("the names are loss"), "{refused}");
    let rules = || daemon.device.live.lock().as_own().unwrap().is_impaired();
    assert!(!rules());
    assert_eq!(observer.refusal(&ClientRequest::Impair("loss=1%"), &[]), None);
    assert!(rules());
    assert_eq!(observer.refusal(&ClientRequest::Impair("off"), &[]), None);
    assert!(!rules());
}

#[test]
fn a_second_daemon_at_the_same_place_is_refused() {
    let daemon = Daemon::start();
    let options = ServerOptions { socket: Some(daemon.path.clone()), ..ServerOptions::default() };
    let taken = Server::new(DeviceOptions::new().embedded().open().unwrap(), options);
    assert!(matches!(taken, Err(ServeError::Taken(_))));
    let path = daemon.path.clone();
    drop(daemon);
    assert!(!path.exists(), "the socket goes with its daemon");
    // A socket that a killed daemon left.
    let left = std::os::unix::net::UnixListener::bind(&path).unwrap();
    drop(left);
    let options = ServerOptions { socket: Some(path.clone()), ..ServerOptions::default() };
    let server = Server::new(DeviceOptions::new().embedded().open().unwrap(), options).unwrap();
    assert_eq!(server.path(), Some(path.as_path()));
}

#[test]
fn a_file_in_the_place_of_the_socket_stays() {
    let daemon = Daemon::start();
    let file = daemon.path.with_extension("precious");
    std::fs::write(&file, "precious").unwrap();
    let options = ServerOptions { socket: Some(file.clone()), ..ServerOptions::default() };
    let refused = Server::new(DeviceOptions::new().embedded().open().unwrap(), options);
    assert!(matches!(refused, Err(ServeError::NoSocket(_))));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    std::fs::remove_file(&file).unwrap();
}
