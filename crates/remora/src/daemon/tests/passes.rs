//! Passes, as the daemon gives them to clients that ask by hand.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::message::{MESSAGE_MAX, Pass, PassStatus};
use crate::options::{ConnectionParams, Peer, QueuePairOptions};
use crate::shared::Gates;

impl Client {
    /// Lends its memory by gates.
    fn share(&self) -> Gates {
        let (gates, file) = Gates::create().unwrap();
        assert_eq!(self.asker.refusal(&ClientRequest::Gates, &[file.as_fd()]), None);
        gates
    }

    fn pass(&self, qpn: u32, key: u32) -> Option<(Pass, Vec<OwnedFd>)> {
        self.asker.send(&encode(&ClientRequest::Pass { qpn, key }), &[]);
        let (bytes, came) = self.asker.receive();
        match decode(&bytes).unwrap() {
            Answer::Pass(pass) => pass.map(|pass| (pass, came)),
            other => panic!("{other:?}"),
        }
    }
}

/// Two clients that are connected, of which the second one lends its memory.
struct Two {
    a: Client,
    b: Client,
    qa: Queues,
    gates: Gates,
    memory: Buffer,
    /// The memory file's number, and the key of a region in it.
    lent: u32,
    key: u32,
}

impl Two {
    fn of(daemon: &Daemon) -> Two {
        Two::between(daemon.client(), daemon.client())
    }

    fn between(a: Client, b: Client) -> Two {
        let (qa, qb) = (a.queues(), b.queues());
        a.connect(&qa, &qb.made);
        b.connect(&qb, &qa.made);
        let gates = b.share();
        let (file, memory) = sealed(8192);
        let lent = b.lend(Loan::Sealed, &file);
        let bytes = Bytes { place: Place::Lent { number: lent, offset: 4096 }, iova: 16, len: 64 };
        let key = b.card().reg_mr(qb.pd, bytes, Access::all()).unwrap();
        Two { a, b, qa, gates, memory, lent, key }
    }

    fn pass(&self) -> Option<(Pass, Vec<OwnedFd>)> {
        self.a.pass(self.qa.made.qpn, self.key)
    }

    fn is_open(&self, pass: Pass) -> bool {
        self.gates.is_open(pass.gate, pass.mark)
    }
}

#[test]
fn a_pass_opens_a_gate_to_the_region_that_was_asked_for() {
    let daemon = Daemon::start();
    let two = Two::of(&daemon);
    let (pass, files) = two.pass().unwrap();
    let there = (pass.offset, pass.iova, pass.len, pass.access);
    assert_eq!(there, (4096, 16, 64, Access::REMOTE_WRITE | Access::REMOTE_READ));
    let [gates, memory] = <[OwnedFd; 2]>::try_from(files).unwrap();
    assert!(Gates::open(gates.as_fd()).unwrap().enter(pass.sender, pass.gate, pass.mark));
    Buffer::map(memory.as_fd(), 0, 8192).unwrap().store_u64(4096, 7).unwrap();
    assert_eq!(two.memory.load_u64(4096), Ok(7));

    // The answer to the command that ends the key comes behind the end of the gate.
    assert!(two.is_open(pass));
    two.b.card().dereg_mr(two.key).unwrap();
    assert!(!two.is_open(pass) && !two.gates.settle(Duration::ZERO), "one is within");
    assert!(two.pass().is_none(), "the key opens nothing");
    let Two { a, b, gates, lent, .. } = two;
    assert_eq!(b.asker.refusal(&ClientRequest::TakeBack(lent), &[]), None);
    drop(a);
    until("nobody is within", || gates.settle(Duration::ZERO));
    drop(b);
    daemon.wait_until_empty();
}

#[test]
fn passes_are_for_those_whose_queue_pair_it_is() {
    let daemon = Daemon::start();
    let two = Two::of(&daemon);
    let (stranger, qpn) = (daemon.client(), two.qa.made.qpn);
    assert!(stranger.pass(qpn, two.key).is_none());
    let own = stranger.queues();
    assert!(stranger.pass(own.made.qpn, two.key).is_none(), "it is connected to nobody");
    assert!(two.b.pass(qpn, two.key).is_none());
    for (qpn, key) in [(qpn, 0), (qpn, two.key ^ 0x100), (0, two.key), (u32::MAX, u32::MAX)] {
        assert!(two.a.pass(qpn, key).is_none());
    }
    let local = two.a.card().alloc_null_mr(two.qa.pd).unwrap();
    assert!(two.a.pass(qpn, local).is_none(), "its own region is not its peer's");
    assert!(two.pass().is_some());
}

#[test]
fn memory_is_not_lent_by_passes_unasked() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.client(), daemon.client());
    let (qa, qb) = (a.queues(), b.queues());
    a.connect(&qa, &qb.made);
    b.connect(&qb, &qa.made);
    let (file, _) = sealed(4096);
    let number = b.lend(Loan::Sealed, &file);
    let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 64 };
    let key = b.card().reg_mr(qb.pd, bytes, Access::all()).unwrap();
    assert!(a.pass(qa.made.qpn, key).is_none());
    b.share();
    assert!(a.pass(qa.made.qpn, key).is_none(), "it was lent before");
}

#[test]
fn a_second_process_of_either_session_ends_them() {
    let daemon = Daemon::start();
    for of_owner in [false, true] {
        let two = Two::of(&daemon);
        let (pass, _) = two.pass().unwrap();
        let host = if of_owner { &two.b } else { &two.a };
        let (session, token) = (host.welcome.session, host.welcome.share);
        let join = Some(crate::message::Join { session, token });
        let guest = Client::attach(&daemon, &Hello { join, ..Hello::default() }).unwrap();
        assert!(!two.is_open(pass));
        assert!(two.pass().is_none());
        assert!(guest.asker.refusal(&ClientRequest::Gates, &[]).is_some());
    }
}

/// A process that joins a sender's session, or takes it over, does not hide from the owner that the
/// sender is still within; and the sender's line is no other's.
#[test]
fn an_owner_waits_for_a_sender_that_has_lost_its_passes() {
    let daemon = Daemon::start();
    for joins in [true, false] {
        let hello = Hello { name: Some("a".into()), keep: Keep::Forever, ..Hello::default() };
        let two = Two::between(Client::attach(&daemon, &hello).unwrap(), daemon.client());
        let (pass, files) = two.pass().unwrap();
        let gates = Gates::open(files[0].as_fd()).unwrap();
        assert!(gates.enter(pass.sender, pass.gate, pass.mark));
        let Welcome { session, share, token, .. } = two.a.welcome;
        let other = if joins {
            let join = Some(crate::message::Join { session, token: share });
            Client::attach(&daemon, &Hello { join, ..Hello::default() }).unwrap()
        } else {
            Client::attach(&daemon, &Hello { token: Some(token), ..hello }).unwrap()
        };
        assert!(!two.is_open(pass) && !two.gates.settle(Duration::ZERO), "joins: {joins}");
        gates.leave(pass.sender);
        assert!(two.gates.settle(Duration::ZERO));
        drop((two, other));
        assert_eq!(daemon.observer().refusal(&ClientRequest::Evict("a"), &[]), None);
        daemon.wait_until_empty();
    }
}

#[test]
fn a_session_that_is_taken_over_neither_has_nor_gives_any() {
    let daemon = Daemon::start();
    let hello = Hello { name: Some("kept".into()), keep: Keep::Forever, ..Hello::default() };
    let two = Two::between(daemon.client(), Client::attach(&daemon, &hello).unwrap());
    let token = Some(two.b.welcome.token);
    let (pass, _) = two.pass().unwrap();
    assert!(two.is_open(pass));
    let heir = Client::attach(&daemon, &Hello { token, ..hello }).unwrap();
    assert!(!two.is_open(pass));
    assert!(two.pass().is_none());
    assert_eq!(daemon.observer().refusal(&ClientRequest::Evict("kept"), &[]), None);
    drop((two, heir));
    daemon.wait_until_empty();
}

/// A session that is kept lends its memory, and a sender is within when another process takes it
/// over: that one waits, until the sender has gone out, or has ended.
#[test]
fn who_takes_a_session_over_waits_for_those_within_its_memory() {
    let daemon = Daemon::start();
    let keep = Keep::Forever;
    let hello = Hello { name: Some("kept".into()), keep, ..Hello::default() };
    for ends in [true, false] {
        let two = Two::between(daemon.client(), Client::attach(&daemon, &hello).unwrap());
        let (pass, _) = two.pass().unwrap();
        assert!(two.gates.enter(pass.sender, pass.gate, pass.mark));
        let Two { a, b: former, gates, .. } = two;
        let token = former.welcome.token;
        drop(former);
        // By hand, the gates are all there is to see.
        let by_hand = Hello { token: Some(token), ..hello.clone() };
        let heir = Client::attach(&daemon, &by_hand).unwrap();
        let those = Gates::open(heir.former_gates.as_ref().unwrap().as_fd()).unwrap();
        assert!(!those.enter(9, pass.gate, pass.mark) && !those.settle(Duration::ZERO));
        let token = heir.welcome.token;
        let has_left = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let is_heir = |page: &StatusPage| page.sessions.iter().any(|of| of.epoch == 3);
                until("the heir is there", || daemon.observer().status().iter().any(is_heir));
                std::thread::sleep(Duration::from_millis(50));
                has_left.store(1, Ordering::SeqCst);
                if ends { drop(a) } else { gates.leave(pass.sender) }
            });
            let options = DeviceOptions::new().attach(&daemon.path);
            let ticket = crate::message::Ticket { name: "kept".into(), token };
            let device = options.take_over(ticket, keep).open().unwrap();
            assert_eq!(has_left.load(Ordering::SeqCst), 1, "it waits");
            assert!(those.settle(Duration::ZERO));
            drop(device);
        });
        assert_eq!(daemon.observer().refusal(&ClientRequest::Evict("kept"), &[]), None);
        daemon.wait_until_empty();
    }
}

/// An owner that hears by an event that its queue pair has failed finds nobody within its memory.
#[test]
fn an_event_of_the_end_waits_for_those_within() {
    let daemon = Daemon::start();
    let device = DeviceOptions::new().attach(&daemon.path).open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let (events, cq) = (device.events(), device.create_cq(16).unwrap());
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let sender = daemon.client();
    let mut queues = sender.queues();
    let owner = qp.local();
    sender.connect(&queues, &QpMade { qpn: owner.qpn, psn: owner.psn, ..queues.made });
    let QpMade { qpn, psn, .. } = queues.made;
    let params = ConnectionParams::new(Mtu::B1024);
    qp.connect(Peer { address: sender.address(), qpn, psn }, &params).unwrap();

    let at = sender.card().alloc_dm(64).unwrap();
    let bytes = Bytes { place: Place::Device(at), iova: 0, len: 64 };
    let key = sender.card().reg_mr(queues.pd, bytes, Access::all()).unwrap();

    let (pass, files) = sender.pass(qpn, memory.key()).unwrap();
    let gates = Gates::open(files[0].as_fd()).unwrap();
    assert!(gates.enter(pass.sender, pass.gate, pass.mark));
    let has_left = AtomicBool::new(false);
    std::thread::scope(|scope| {
        sender.post(&mut queues, &write(1, (0, key), (pass.iova, !memory.key()), 8));
        until("the gate is shut", || !gates.is_open(pass.gate, pass.mark));
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            has_left.store(true, Ordering::SeqCst);
            gates.leave(pass.sender);
        });
        let told = until_some("an event", || {
            device.progress();
            events.try_next()
        });
        assert!(has_left.load(Ordering::SeqCst), "it is told while somebody is within: {told:?}");
        assert_eq!(told, CardEvent::QpAccessError(qp.qpn()));
    });
}

#[test]
fn gates_of_wrong_kinds_are_refused() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (short, _) = sealed(4096);
    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
    let pipe = OwnedFd::from(std::io::pipe().unwrap().0);
    for file in [&null, &short, &unsealed, &pipe] {
        assert!(client.asker.refusal(&ClientRequest::Gates, &[file.as_fd()]).is_some(), "{file:?}");
    }
    let (long, _) = sealed(1 << 20);
    for files in [vec![], vec![long.as_fd(), long.as_fd()]] {
        assert!(client.asker.refusal(&ClientRequest::Gates, &files).is_some());
    }
    assert_eq!(
        client.asker.refusal(&ClientRequest::Gates, &[long.as_fd()]),
        None,
        "longer is enough"
    );
}

#[test]
fn an_owner_can_write_what_it_likes_into_its_gates() {
    let daemon = Daemon::start();
    let two = Two::of(&daemon);
    let (gates, file) = Gates::create().unwrap();
    let words = Buffer::map(file.as_fd(), 0, 16_384).unwrap();
    assert_eq!(two.b.asker.refusal(&ClientRequest::Gates, &[file.as_fd()]), None);
    words.fill(0xff);
    let (file, _) = sealed(8192);
    let number = two.b.lend(Loan::Sealed, &file);
    let qb = two.b.queues();
    let qa = two.a.queues();
    two.a.connect(&qa, &qb.made);
    two.b.connect(&qb, &qa.made);
    let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 64 };
    let key = two.b.card().reg_mr(qb.pd, bytes, Access::all()).unwrap();
    let (pass, _) = two.a.pass(qa.made.qpn, key).unwrap();
    assert!(gates.is_open(pass.gate, pass.mark));
    words.fill(0xff);
    two.b.card().dereg_mr(key).unwrap();
    assert!(!gates.is_open(pass.gate, pass.mark));
    drop(two);
    daemon.wait_until_empty();
}

#[test]
fn completions_that_are_told_of_count() {
    let daemon = Daemon::start();
    let (client, other) = (daemon.client(), daemon.client());
    let queues = client.queues();
    let told = ClientRequest::Counted { cq: queues.cq, count: 5 };
    assert_eq!(client.asker.refusal(&told, &[]), None);
    assert_eq!(client.card().cq_count(queues.cq), Some(5));
    assert!(other.asker.refusal(&told, &[]).is_some(), "the queue is another's");
    let most = ClientRequest::Counted { cq: queues.cq, count: u64::MAX };
    assert_eq!(client.asker.refusal(&most, &[]), None);
    assert_eq!(client.card().cq_count(queues.cq), Some(4), "as counts go");
}

#[test]
fn passes_are_shown_to_those_who_may_see_the_sessions() {
    let daemon = Daemon::start();
    let passes = |asker: &Asker| {
        asker.ask(&ClientRequest::Passes, &[], |answer| match answer {
            Answer::Passes(passes) => passes,
            other => panic!("{other:?}"),
        })
    };
    let (two, observer) = (Two::of(&daemon), daemon.observer());
    assert_eq!(passes(&observer), []);
    let (pass, _) = two.pass().unwrap();
    let (session, of) = (two.a.welcome.session, two.b.welcome.session);
    assert_eq!(passes(&observer), [PassStatus { session, of, passes: 1 }]);
    assert!(two.is_open(pass));
    two.b.card().dereg_mr(two.key).unwrap();
    assert_eq!(passes(&observer), []);
}

#[test]
fn all_passes_fit_one_answer() {
    let most = PassStatus { session: u32::MAX, of: u32::MAX, passes: u32::MAX };
    let answer = Answer::Passes(vec![most; super::open_passes::MOST]);
    assert!(encode(&answer).len() <= MESSAGE_MAX);
}
