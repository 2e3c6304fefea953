//! Two sessions of one daemon of which one carries out WRITEs and READs in the other's memory
//! itself: what goes that way, in which order it completes, and what ends it.

mod daemon;

use std::collections::VecDeque;
use std::time::Duration;

use daemon::Daemon;
use remora::nic::QpFlags;
use remora::nic::qp::{QpAttr, State};
use remora::nic::queue::{
    Completion, Data, Opcode, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Status,
    WorkKind,
};
use remora::prelude::{
    Access, CompletionQueue, ConnectionParams, Device, MemoryRegion, QueuePair, QueuePairOptions,
};

const LONG: Duration = Duration::from_secs(20);
const LEN: usize = 1 << 18;
/// Requests of a random sequence.
const REQUESTS: u64 = 4000;

/// One end of a connection.
struct Side {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Side {
    fn on(device: Device) -> Side {
        let cq = device.create_cq(512).unwrap();
        let domain = device.alloc_pd().unwrap();
        let options = QueuePairOptions::rc(&cq).inline(64).recv_depth(256);
        let qp = domain.create_qp(&options).unwrap();
        let memory = domain.alloc(LEN, Access::all()).unwrap();
        Side { device, cq, qp, memory }
    }

    /// Posts a signaled request, and waits for its end.
    fn does(&self, op: SendOp, offset: u64, len: u32) -> Status {
        let sges = [self.memory.sge(offset, len)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id: 7, op, data, flags }).unwrap();
        let done = self.cq.spin(LONG).unwrap();
        assert_eq!((done.wr_id, done.qpn), (7, self.qp.qpn()));
        done.status
    }

    fn writes(&self, to: &Side, text: &[u8]) -> Status {
        self.memory.write_at(0, text).unwrap();
        let op = SendOp::Write { to: to.memory.remote(64), imm: None };
        self.does(op, 0, text.len() as u32)
    }

    fn holds(&self, text: &[u8]) -> bool {
        self.memory.slice(64..64 + text.len()).to_vec().unwrap() == text
    }

    /// Does a WRITE to `to` go past the card?
    fn goes_past(&self, to: &Side) -> bool {
        let fetched = || self.device.counters().card.elements_fetched;
        let before = fetched();
        assert_eq!(self.writes(to, b"a message"), Status::Success);
        assert!(to.holds(b"a message"));
        to.memory.write_at(64, &[0; 9]).unwrap();
        fetched() == before
    }

    /// Writes until that goes past the card.
    fn begin(&self, to: &Side) {
        assert!((0..1000).any(|_| self.goes_past(to)), "all WRITEs go by the card");
    }

    fn stays_with_card(&self, to: &Side) -> bool {
        !(0..200).any(|_| self.goes_past(to))
    }
}

/// Two ends on one daemon, connected.
fn pair(daemon: &Daemon) -> (Side, Side) {
    let (a, b) = (Side::on(daemon.attach()), Side::on(daemon.attach()));
    connect(&a, &b);
    (a, b)
}

fn connect(a: &Side, b: &Side) {
    // Few retries of 67 ms: a peer that has gone is soon found out.
    let params = ConnectionParams::new(a.device.info().mtu).timeout(14).retry_cnt(1);
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
}

#[test]
fn writes_and_reads_go_past_the_card_both_ways() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    for (a, b) in [(&a, &b), (&b, &a)] {
        a.begin(b);
        let fetched = a.device.counters().card.elements_fetched;
        let long: Vec<u8> = (0..200_000).map(|i| (i % 251) as u8).collect();
        a.memory.write_at(0, &long).unwrap();
        let op = SendOp::Write { to: b.memory.remote(1001), imm: None };
        assert_eq!(a.does(op, 0, 200_000), Status::Success);
        assert!(b.memory.slice(1001..201_001).to_vec().unwrap() == long);
        b.memory.write_at(5, b"read me").unwrap();
        let op = SendOp::Read { from: b.memory.remote(5) };
        assert_eq!(a.does(op, 50, 7), Status::Success);
        assert_eq!(a.memory.slice(50..57).to_vec().unwrap(), b"read me");
        assert_eq!(a.device.counters().card.elements_fetched, fetched, "nothing reached the card");
    }
    let status = daemon.observer().status().unwrap();
    let ways: Vec<_> = status.passes.iter().map(|row| (row.session, row.of, row.passes)).collect();
    let [one, other] = [0, 1].map(|at| status.sessions[at].session);
    assert_eq!(ways, [(one, other, 1), (other, one, 1)]);
}

#[test]
fn a_completion_says_what_it_says_of_the_card() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    a.begin(&b);
    let before = a.cq.count().unwrap();
    let data = Data::Inline(b"12345");
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    a.qp.post_send(&SendRequest { wr_id: 9, op, data, flags: SendFlags::empty() }).unwrap();
    assert_eq!(a.cq.poll(&mut [Completion::default()]), Ok(0), "it was not to be reported");
    a.qp.post_send(&SendRequest { wr_id: 10, op, data, flags: SendFlags::SIGNALED }).unwrap();
    let done = a.cq.spin(LONG).unwrap();
    assert_eq!((done.wr_id, done.kind, done.len), (10, WorkKind::Send(Opcode::Write), 5));
    assert!(done.at.0 > 0);
    assert_eq!(a.cq.count(), Ok(before + 1), "WAITs and programs count it");
}

/// How many elements the card has got of a device's session.
fn posted(daemon: &Daemon, device: &Device) -> u64 {
    let (status, name) = (daemon.observer().status().unwrap(), device.ticket().unwrap().name);
    status.sessions.iter().find(|session| session.name == name).unwrap().posted
}

/// Draws numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % most
    }
}

/// What a READ that is under way has to find, and where it puts it.
struct Expected {
    wr_id: u64,
    at: u64,
    bytes: Vec<u8>,
}

/// Requests from one end to another, and what has to come of them.
struct Sequence<'a> {
    a: &'a Side,
    b: &'a Side,
    draw: Draw,
    seed: u64,
    /// What `b`'s memory begins with when all requests are done.
    model: Vec<u8>,
    reads: Vec<Expected>,
    /// Those under way that report their end.
    signaled: VecDeque<u64>,
    /// How many were posted since the last of those.
    silent: u64,
}

impl Sequence<'_> {
    fn receive(&self, slot: u64) {
        let sges = [self.b.memory.sge(100_000 + slot * 64, 64)];
        self.b.qp.post_recv(&RecvRequest { wr_id: slot, sges: &sges }).unwrap();
    }

    /// Posts a request of any kind.
    fn post(&mut self, wr_id: u64, is_last: bool) {
        let (at, len) = (self.draw.below(4000), 1 + self.draw.below(32) as usize);
        let bytes: Vec<u8> = (0..len).map(|i| (wr_id as usize + i) as u8).collect();
        let remote = self.b.memory.remote(at);
        let slot = 1024 + wr_id % 512 * 64;
        let sges = [self.a.memory.sge(slot, len as u32)];
        let inline = Data::Inline(&bytes);
        let (op, data) = match self.draw.below(10) {
            0 => (SendOp::Send { imm: None, to: None }, inline),
            1 => (SendOp::Write { to: remote, imm: Some(5) }, inline),
            2 | 3 => (SendOp::Read { from: remote }, Data::Sges(&sges)),
            _ => (SendOp::Write { to: remote, imm: None }, inline),
        };
        let is_read = matches!(op, SendOp::Read { .. });
        let reports = is_read || self.draw.below(2) == 0 || self.silent >= 60 || is_last;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, reports);
        // Without it, a WRITE may come before what a READ before it finds.
        flags.set(SendFlags::FENCE, !is_read);
        self.a.qp.post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
        let place = &mut self.model[at as usize..at as usize + len];
        if matches!(op, SendOp::Write { .. }) {
            place.copy_from_slice(&bytes);
        }
        if is_read {
            self.reads.push(Expected { wr_id, at: slot, bytes: place.to_vec() });
        }
        self.silent += 1;
        if reports {
            self.signaled.push_back(wr_id);
            self.silent = 0;
        }
    }

    /// Waits until at most so many that report are under way.
    fn complete(&mut self, keeps: usize) {
        let seed = self.seed;
        while self.signaled.len() > keeps {
            let done = self.a.cq.spin(LONG).unwrap();
            let first = self.signaled.pop_front();
            assert_eq!((Some(done.wr_id), done.status), (first, Status::Success), "seed {seed}");
            if let Some(read) = self.reads.iter().position(|read| read.wr_id == done.wr_id) {
                let Expected { at, bytes, .. } = self.reads.remove(read);
                let found = self.a.memory.slice(at as usize..at as usize + bytes.len());
                assert_eq!(found.to_vec().unwrap(), bytes, "READ {} of seed {seed}", done.wr_id);
            }
        }
        let mut came = [Completion::default(); 8];
        let count = self.b.cq.poll(&mut came).unwrap();
        for done in &came[..count] {
            assert_eq!(done.status, Status::Success);
            self.receive(done.wr_id);
        }
    }
}

/// Requests of all kinds, some of which go past the card: they complete in the order of posts, and
/// each sees what those before it have done.
#[test]
fn order_is_kept_however_requests_go() {
    let daemon = Daemon::start();
    for seed in 0..6 {
        let (a, b) = pair(&daemon);
        a.begin(&b);
        let (model, reads, signaled) = (vec![0; 4096], Vec::new(), VecDeque::new());
        b.memory.write_at(0, &model).unwrap();
        let (a, b, draw) = (&a, &b, Draw(seed));
        let mut sequence = Sequence { a, b, draw, seed, model, reads, signaled, silent: 0 };
        (0..200).for_each(|slot| sequence.receive(slot));
        let before = posted(&daemon, &a.device);
        for wr_id in 1..=REQUESTS {
            let is_last = wr_id == REQUESTS;
            sequence.post(wr_id, is_last);
            // Sometimes the program waits for all, sometimes it has many under way.
            let waits = sequence.draw.below(4) == 0 || is_last;
            let keeps = if waits { 0 } else { sequence.draw.below(40) as usize };
            sequence.complete(keeps);
        }
        let by_card = posted(&daemon, &a.device) - before;
        assert!(by_card > REQUESTS / 5 && by_card < REQUESTS * 3 / 4, "{by_card} by the card");
        assert!(b.memory.slice(..4096).to_vec().unwrap() == sequence.model, "seed {seed}");
    }
}

/// A post waits for what is under way for some milliseconds only, in which a machine that is busy
/// with something else may not have come to it: so there are many connections that may show it.
#[test]
fn a_program_that_never_waits_comes_to_it_too() {
    let daemon = Daemon::start();
    let comes = (0..50).any(|_| comes_to_it_without_waiting(&daemon));
    assert!(comes, "with 16 WRITEs under way all go by the card");
}

/// Posts WRITEs of which always as many are under way, and polls for as many completions as there
/// is room for, until one is of a receive request. Returns that one's id.
fn receives_among_writes(a: &Side, b: &Side, under_way: u64, room: usize) -> Option<u64> {
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    let (data, flags) = (Data::Inline(b"a word"), SendFlags::SIGNALED);
    let mut out = vec![Completion::default(); room];
    let (mut posted, mut done) = (0, 0);
    for _ in 0..10_000 {
        while posted < done + under_way {
            a.qp.post_send(&SendRequest { wr_id: posted, op, data, flags }).unwrap();
            posted += 1;
        }
        let count = a.cq.poll(&mut out).unwrap();
        for entry in &out[..count] {
            assert_eq!(entry.status, Status::Success);
            if entry.kind.is_receive() {
                return Some(entry.wr_id);
            }
            assert_eq!(entry.wr_id, done);
            done += 1;
        }
    }
    None
}

/// A program that polls no more often than it writes hears of messages, too.
#[test]
fn messages_are_seen_among_writes_that_go_past_the_card() {
    let daemon = Daemon::start();
    for (under_way, room) in [(1, 1), (2, 1), (2, 16), (20, 3)] {
        let (a, b) = pair(&daemon);
        a.begin(&b);
        for wr_id in 100..103 {
            let sges = [a.memory.sge(0, 8)];
            a.qp.post_recv(&RecvRequest { wr_id, sges: &sges }).unwrap();
            assert_eq!(b.does(SendOp::Send { imm: None, to: None }, 0, 8), Status::Success);
            let received = receives_among_writes(&a, &b, under_way, room);
            assert_eq!(received, Some(wr_id), "{under_way} under way, room for {room}");
            while a.cq.poll(&mut [Completion::default(); 16]).unwrap() > 0 {}
        }
    }
}

/// A WRITE before which more has completed than this process keeps goes by the card, and completes
/// behind all of that.
#[test]
fn a_write_completes_behind_all_messages_that_were_there() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    a.begin(&b);
    for count in [1, 255, 256] {
        for wr_id in 0..count {
            let sges = [a.memory.sge(0, 8)];
            a.qp.post_recv(&RecvRequest { wr_id, sges: &sges }).unwrap();
        }
        for _ in 0..count {
            assert_eq!(b.does(SendOp::Send { imm: None, to: None }, 0, 8), Status::Success);
        }
        // (The answer to a command comes behind all completions before it.)
        let fetched = || a.device.counters().card.elements_fetched;
        let (before, is_past) = (fetched(), count < 256);
        let op = SendOp::Write { to: b.memory.remote(0), imm: None };
        let (data, flags) = (Data::Inline(b"behind"), SendFlags::SIGNALED);
        a.qp.post_send(&SendRequest { wr_id: count, op, data, flags }).unwrap();
        for wr_id in 0..=count {
            assert_eq!(a.cq.spin(LONG).unwrap().ok().unwrap().wr_id, wr_id);
        }
        assert_eq!(fetched() == before, is_past, "{count} messages");
    }
    a.begin(&b);
}

/// Posts a thousand WRITEs on a new connection, 16 of them always under way. Returns whether they
/// go past the card after a while.
fn comes_to_it_without_waiting(daemon: &Daemon) -> bool {
    let (a, b) = pair(daemon);
    let fetched = || a.device.counters().card.elements_fetched;
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    let sges = [a.memory.sge(0, 65_536)];
    let (mut posted, mut done) = (0, 0);
    let mut stream = |count: u64| {
        for _ in 0..count {
            while posted - done >= 16 {
                assert_eq!(a.cq.spin(LONG).unwrap().ok().unwrap().wr_id, done);
                done += 1;
            }
            let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
            a.qp.post_send(&SendRequest { wr_id: posted, op, data, flags }).unwrap();
            posted += 1;
        }
    };
    (0..8).any(|_| {
        stream(100);
        let before = fetched();
        stream(32);
        fetched() == before
    })
}

/// What ends passes: from then on, requests are judged by the card, and `after` says how.
fn ends(act: impl FnOnce(&Side, &mut Side), after: Status) {
    let daemon = Daemon::start();
    let (a, mut b) = pair(&daemon);
    let buffer = remora::memory::Buffer::new(LEN).unwrap();
    let domain = b.memory.domain().clone();
    b.memory = domain.register(buffer, Access::all()).unwrap();
    a.begin(&b);
    act(&a, &mut b);
    a.memory.write_at(0, b"too late").unwrap();
    let op = SendOp::Write { to: b.memory.remote(64), imm: None };
    assert_eq!(a.does(op, 0, 8), after);
    assert!(!b.holds(b"too late"));
}

#[test]
fn an_invalidated_key_ends_it() {
    let by_peer = |a: &Side, b: &mut Side| {
        let sges = [b.memory.sge(0, 8)];
        b.qp.post_recv(&RecvRequest { wr_id: 1, sges: &sges }).unwrap();
        let op = SendOp::SendInvalidate { rkey: b.memory.key() };
        // The receive element names the region, too, whose key is good until the message ends.
        assert_eq!(a.does(op, 0, 0), Status::Success);
        assert_eq!(b.cq.spin(LONG).unwrap().ok().unwrap().imm_or_key, b.memory.key());
    };
    ends(by_peer, Status::RemoteAccess);
}

#[test]
fn an_attribute_that_changes_ends_it() {
    let narrows = |_: &Side, b: &mut Side| {
        let access = Some(Access::REMOTE_READ);
        b.qp.modify(&QpAttr { access, ..QpAttr::default() }).unwrap();
    };
    ends(narrows, Status::RemoteAccess);
}

#[test]
fn a_queue_pair_in_error_ends_it() {
    let fails = |_: &Side, b: &mut Side| {
        b.qp.modify(&QpAttr { state: Some(State::Error), ..QpAttr::default() }).unwrap();
    };
    ends(fails, Status::RetryExceeded);
    let own = |a: &Side, _: &mut Side| {
        a.qp.modify(&QpAttr { state: Some(State::Error), ..QpAttr::default() }).unwrap();
    };
    ends(own, Status::Flushed);
}

#[test]
fn a_region_that_was_deregistered_is_not_written() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    let (domain, access) = (b.memory.domain(), Access::all());
    let gone = domain.alloc(4096, access).unwrap();
    let op = SendOp::Write { to: gone.remote(0), imm: None };
    let fetched = || a.device.counters().card.elements_fetched;
    let past = (0..1000).any(|_| {
        let before = fetched();
        assert_eq!(a.does(op, 0, 8), Status::Success);
        fetched() == before
    });
    assert!(past);
    drop(gone);
    assert_eq!(a.does(op, 0, 8), Status::RemoteAccess);
}

#[test]
fn a_session_that_ends_is_not_written() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    a.begin(&b);
    let op = SendOp::Write { to: b.memory.remote(64), imm: None };
    drop(b);
    assert_ne!(a.does(op, 0, 8), Status::Success);
    let (a, b) = pair(&daemon);
    a.begin(&b);
    // A session with much to destroy has ended, too, when the command returns.
    let domain = b.memory.domain().clone();
    let options = QueuePairOptions::rc(&b.cq).send_depth(1).recv_depth(1);
    let _more: Vec<_> = (0..1000).map(|_| domain.create_qp(&options).unwrap()).collect();
    let status = daemon.observer().status().unwrap();
    let last = status.sessions.iter().map(|session| session.session).max().unwrap();
    daemon.observer().evict(&last.to_string()).unwrap();
    a.memory.write_at(0, b"too late").unwrap();
    assert_ne!(a.does(SendOp::Write { to: b.memory.remote(64), imm: None }, 0, 8), Status::Success);
    assert!(!b.holds(b"too late"));
}

#[test]
fn what_is_wrong_is_refused_as_ever() {
    let daemon = Daemon::start();
    let wrong: [fn(&Side, &Side) -> SendOp; 4] = [
        |_, b| SendOp::Write { to: b.memory.remote(LEN as u64 - 7), imm: None },
        |_, b| SendOp::Read { from: b.memory.remote(LEN as u64 - 7) },
        |_, b| {
            let to = b.memory.remote(0);
            SendOp::Write { to: RemoteAddress { addr: to.addr - 1, ..to }, imm: None }
        },
        |a, b| {
            let to = b.memory.remote(0);
            SendOp::Write { to: RemoteAddress { rkey: a.memory.key(), ..to }, imm: None }
        },
    ];
    for (at, wrong) in wrong.iter().enumerate() {
        let (a, b) = pair(&daemon);
        a.begin(&b);
        assert_eq!(a.does(wrong(&a, &b), 0, 8), Status::RemoteAccess, "request {at}");
    }
    let (a, b) = pair(&daemon);
    a.begin(&b);
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    let sges = [remora::nic::queue::Sge { lkey: b.memory.key(), ..a.memory.sge(0, 8) }];
    let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
    a.qp.post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
    assert_eq!(a.cq.spin(LONG).unwrap().status, Status::LocalProtection);
}

#[test]
fn packets_that_somebody_wants_to_see_are_packets() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    a.begin(&b);
    let packets = || a.device.counters().card.tx_packets;
    daemon.observer().impair("loss=0.1%").unwrap();
    let before = packets();
    assert!(a.stays_with_card(&b));
    assert!(packets() > before, "requests are packets, which can be lost");
    daemon.observer().impair("off").unwrap();
    // This is asked for seldom, after it was refused; and no command says that it was over.
    let again = (0..1000).any(|_| {
        let before = posted(&daemon, &a.device);
        (0..100).for_each(|_| assert_eq!(a.writes(&b, b"a message"), Status::Success));
        posted(&daemon, &a.device) == before
    });
    assert!(again);
}

#[test]
fn an_armed_queue_is_told_of_by_the_card() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    a.begin(&b);
    a.cq.arm(false).unwrap();
    assert!(!a.goes_past(&b), "the completion has an event");
    assert!((0..1000).any(|_| a.goes_past(&b)));
}

#[test]
fn a_session_with_chains_leaves_all_to_the_card() {
    let daemon = Daemon::start();
    let (a, b) = pair(&daemon);
    a.begin(&b);
    let before = a.cq.count().unwrap();
    assert!(a.goes_past(&b));
    let options = QueuePairOptions::rc(&a.cq).flags(QpFlags::MANAGED_SEND);
    let managed = a.memory.domain().create_qp(&options).unwrap();
    assert_eq!(a.cq.count(), Ok(before + 1), "the card knows of the completions");
    assert!(a.stays_with_card(&b));
    drop(managed);
}

#[test]
fn both_ends_may_be_one_programs() {
    let daemon = Daemon::start();
    let device = daemon.attach();
    let (a, b) = (Side::on(device.clone()), Side::on(device));
    connect(&a, &b);
    a.begin(&b);
    b.begin(&a);
}
