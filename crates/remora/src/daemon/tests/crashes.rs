//! Clients that end at any step. Each time the card gets back all that they had. (For the daemon, a
//! client that is killed is one whose connection ends and whose memory stays as it is.)

use super::*;

/// A step at which a client ends.
pub(super) type Step = fn(&Daemon);

fn asker(daemon: &Daemon) -> Asker {
    Asker { socket: MessageSocket::connect(&daemon.path).unwrap() }
}

/// A client, and a connection between two queue pairs of it with a region of 4096 bytes.
pub(super) fn connected(daemon: &Daemon) -> (Client, Queues, Queues, u32) {
    let client = daemon.client();
    let (one, two) = (client.queues(), client.queues());
    client.connect(&one, &two.made);
    client.connect(&two, &one.made);
    let (file, _) = sealed(4096);
    let number = client.lend(Loan::Sealed, &file);
    let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 4096 };
    // Of the second one's domain: peers reach it there.
    let key = client.card().reg_mr(two.pd, bytes, Access::all()).unwrap();
    (client, one, two, key)
}

/// A region of the first queue pair's own domain.
pub(super) fn local(client: &Client, queues: &Queues) -> u32 {
    let at = client.card().alloc_dm(4096).unwrap();
    let bytes = Bytes { place: Place::Device(at), iova: 0, len: 4096 };
    client.card().reg_mr(queues.pd, bytes, Access::all()).unwrap()
}

fn connects_and_says_nothing(daemon: &Daemon) {
    drop(asker(daemon));
}

fn greets_and_does_not_read(daemon: &Daemon) {
    asker(daemon).send(&greeting(&Hello::default()), &[]);
}

fn lends_and_does_not_read(daemon: &Daemon) {
    let client = daemon.client();
    let (file, _) = sealed(4096);
    client.asker.send(&encode(&ClientRequest::Lend(Loan::Sealed)), &[file.as_fd()]);
}

fn registers_and_does_not_read(daemon: &Daemon) {
    let client = daemon.client();
    let pd = client.card().alloc_pd().unwrap();
    let (file, _) = sealed(4096);
    let number = client.lend(Loan::Sealed, &file);
    let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 4096 };
    let command = encode(&Command::RegMr { pd, bytes, access: Access::all() });
    client.asker.send(&encode(&ClientRequest::Command(&command)), &[]);
}

fn makes_queues_and_does_not_read(daemon: &Daemon) {
    let client = daemon.client();
    let (pd, cq) = (client.card().alloc_pd().unwrap(), client.card().create_cq(16).unwrap());
    let command = encode(&Command::CreateQp { init: init(pd, cq) });
    client.asker.send(&encode(&ClientRequest::Command(&command)), &[]);
}

fn writes_half_an_element(daemon: &Daemon) {
    let (client, one, _two, key) = connected(daemon);
    let (_, ring) = client.work_queue(&one.made.sq);
    let element = write(1, (0, key), (0, key), 8);
    client.arena.memory().write_at(ring, &element[..32]).unwrap();
}

fn publishes_and_does_not_ring(daemon: &Daemon) {
    let (client, one, _two, key) = connected(daemon);
    let (queue, ring) = client.work_queue(&one.made.sq);
    client.arena.memory().write_at(ring, &write(1, (0, key), (0, key), 8)).unwrap();
    queue.publish(1);
}

fn rings_twice_and_ahead(daemon: &Daemon) {
    let (client, one, _two, _key) = connected(daemon);
    let (queue, _) = client.work_queue(&one.made.sq);
    client.ring(queue.number());
    queue.publish(1);
    client.ring(queue.number());
    client.ring(queue.number());
}

fn has_requests_under_way(daemon: &Daemon) {
    let (client, mut one, _two, key) = connected(daemon);
    let lkey = local(&client, &one);
    for round in 0..8 {
        client.post(&mut one, &write(round, (0, lkey), (0, key), 4096));
    }
}

fn reads_under_way(daemon: &Daemon) {
    let (client, mut one, _two, key) = connected(daemon);
    let lkey = local(&client, &one);
    let mut read = write(1, (0, lkey), (0, key), 4096);
    read[0] = 6;
    client.post(&mut one, &read);
}

/// Eight additions to one word: the client ends between their effect and their answer.
fn atomics_under_way(daemon: &Daemon) {
    let (client, mut one, _two, key) = connected(daemon);
    let lkey = local(&client, &one);
    let mut add = write(1, (0, lkey), (64, key), 8);
    (add[0], add[24]) = (8, 1);
    for _ in 0..8 {
        client.post(&mut one, &add);
    }
}

/// The queue pair's own ring is a region, into which the card writes elements.
fn writes_over_its_rings(daemon: &Daemon) {
    let (client, mut one, two, _key) = connected(daemon);
    let (_, ring) = client.work_queue(&one.made.sq);
    let bytes = Bytes { place: Place::Arena(ring as u64), iova: 0, len: 512 };
    let rings = client.card().reg_mr(two.pd, bytes, Access::all()).unwrap();
    let lkey = local(&client, &one);
    for round in 0..8 {
        client.post(&mut one, &write(round, (0, lkey), (0, rings), 512));
    }
}

fn sends_to_nobody(daemon: &Daemon) {
    let (client, mut one, _two, _key) = connected(daemon);
    let lkey = local(&client, &one);
    let mut send = write(1, (0, lkey), (0, 0), 8);
    // A SEND, whose receiver has posted nothing.
    send[0] = 1;
    client.post(&mut one, &send);
}

fn leaves_completions_unread(daemon: &Daemon) {
    let (client, mut one, _two, key) = connected(daemon);
    let lkey = local(&client, &one);
    for round in 0..24 {
        let (queue, _) = client.work_queue(&one.made.sq);
        // Some entries wait on the card, since the ring of 16 is full.
        let has_room = || one.posted.wrapping_sub(queue.retired()) < one.made.sq.depth;
        until("there is room", has_room);
        client.post(&mut one, &write(round, (0, lkey), (0, key), 8));
    }
}

fn sleeps_armed(daemon: &Daemon) {
    let (client, mut one, _two, key) = connected(daemon);
    let lkey = local(&client, &one);
    one.completions.arm(false);
    EventConsumer::new(&client.arena).will_sleep(&client.arena, 1);
    client.post(&mut one, &write(1, (0, lkey), (0, key), 8));
}

fn destroys_and_does_not_read(daemon: &Daemon) {
    let (client, one, _two, _key) = connected(daemon);
    let command = encode(&Command::DestroyQp { qpn: one.made.qpn });
    client.asker.send(&encode(&ClientRequest::Command(&command)), &[]);
}

fn has_windows_and_handles(daemon: &Daemon) {
    let (client, one, ..) = connected(daemon);
    let mut card = client.card();
    card.alloc_mw(one.pd, remora_nic::MwType::Type1).unwrap();
    card.create_ah(one.pd, Path::new(client.address(), 1)).unwrap();
    card.create_budget(7).unwrap();
    card.alloc_xrcd().unwrap();
    card.create_srq(one.pd, RingInit { addr: 0, depth: 8, stride: 64 }).unwrap();
}

const STEPS: [Step; 17] = [
    connects_and_says_nothing,
    greets_and_does_not_read,
    lends_and_does_not_read,
    registers_and_does_not_read,
    makes_queues_and_does_not_read,
    writes_half_an_element,
    publishes_and_does_not_ring,
    rings_twice_and_ahead,
    has_requests_under_way,
    reads_under_way,
    atomics_under_way,
    writes_over_its_rings,
    sends_to_nobody,
    leaves_completions_unread,
    sleeps_armed,
    destroys_and_does_not_read,
    has_windows_and_handles,
];

fn all_steps() -> impl Iterator<Item = Step> {
    STEPS.into_iter().chain(meetings::STEPS)
}

#[test]
fn a_client_that_ends_at_any_step_leaves_nothing() {
    let daemon = Daemon::start();
    for step in all_steps() {
        step(&daemon);
        daemon.wait_until_empty();
    }
    // All of them at once, and a client that goes on beside them.
    let (client, mut one, _two, key) = connected(&daemon);
    let lkey = local(&client, &one);
    for round in 0..5 {
        std::thread::scope(|scope| {
            for step in all_steps() {
                let daemon = &daemon;
                scope.spawn(move || step(daemon));
            }
            client.post(&mut one, &write(round, (0, lkey), (0, key), 4096));
            let done = client.completion(&mut one);
            assert_eq!((done.wr_id, done.status), (round, Status::Success));
        });
    }
    drop((client, one));
    daemon.wait_until_empty();
}

#[test]
fn a_daemon_that_ends_at_any_step_ends() {
    for step in all_steps() {
        let daemon = Daemon::start();
        step(&daemon);
        drop(daemon);
    }
}

#[test]
fn parts_of_messages_are_refused() {
    let daemon = Daemon::start();
    let hello = greeting(&Hello { name: Some("whole".into()), ..Hello::default() });
    for len in 1..hello.len() {
        let asker = asker(&daemon);
        asker.send(&hello[..len], &[]);
        let (bytes, _) = asker.receive();
        assert!(matches!(decode(&bytes), Ok(Answer::Farewell(_))), "{len} bytes of a greeting");
    }
    let init = init(daemon.client().card().alloc_pd().unwrap(), 7);
    let command = encode(&Command::CreateQp { init });
    for len in 0..command.len() {
        let client = daemon.client();
        client.asker.send(&encode(&ClientRequest::Command(&command[..len])), &[]);
        assert!(client.asker.farewell().contains("cannot be read"), "{len} bytes of a command");
    }
    let long = [&command[..], &[0]].concat();
    let client = daemon.client();
    client.asker.send(&encode(&ClientRequest::Command(&long)), &[]);
    assert!(client.asker.farewell().contains("cannot be read"));
    drop(client);
    daemon.wait_until_empty();
}

/// What this process has open, and mappings of memory files.
fn held() -> [usize; 2] {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    [descriptors, maps.lines().filter(|line| line.contains("/memfd:")).count()]
}

/// Each step, in a process that runs nothing else: so its descriptors and mappings can be counted.
#[test]
#[ignore = "a program for another test"]
fn each_step_alone() {
    let daemon = Daemon::start();
    let run = |step: Step| {
        step(&daemon);
        daemon.wait_until_empty();
    };
    // The first time, a process makes what it keeps.
    all_steps().for_each(run);
    let before = held();
    for (number, step) in all_steps().enumerate() {
        run(step);
        until_ok("nothing more is held", || {
            let now = held();
            let is_so = now.iter().zip(before).all(|(now, before)| *now <= before);
            is_so.then_some(()).ok_or_else(|| format!("step {number}: {now:?} of {before:?}"))
        });
    }
}

#[test]
fn no_step_leaves_a_descriptor_or_a_mapping() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "daemon::tests::crashes::each_step_alone"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn ten_thousand_greetings_leave_nothing() {
    let daemon = Daemon::start();
    for round in 0..10_000 {
        match round % 10 {
            0 => _ = daemon.client().card().alloc_pd().unwrap(),
            1 => drop(daemon.client()),
            2..5 => greets_and_does_not_read(&daemon),
            5..8 => connects_and_says_nothing(&daemon),
            _ => drop(daemon.observer()),
        }
    }
    daemon.wait_until_empty();
}

/// What a client sends to one that has gone ends with an error; what it sends while the other one
/// goes ends.
#[test]
fn sends_to_clients_that_have_gone_end() {
    let daemon = Daemon::start();
    for (round, is_gone) in [true, false].into_iter().cycle().take(20).enumerate() {
        let (a, b) = (daemon.client(), daemon.client());
        let (mut qa, qb) = (a.queues(), b.queues());
        a.connect(&qa, &qb.made);
        b.connect(&qb, &qa.made);
        let (lkey, theirs) = (local(&a, &qa), local(&b, &qb));
        let (queue, ring) = b.work_queue(&qb.made.rq);
        b.arena.memory().write_at(ring, &write(1, (0, theirs), (0, 0), 64)).unwrap();
        queue.publish(1);
        b.ring(queue.number());
        drop((b, qb));
        let sessions = || daemon.observer().status()[0].sessions.len();
        until("the other is gone", || !is_gone || sessions() == 1);
        let mut send = write(round as u64, (0, lkey), (0, 0), 64);
        send[0] = 1;
        a.post(&mut qa, &send);
        let done = a.completion(&mut qa);
        assert_eq!(done.wr_id, round as u64);
        assert!(!is_gone || done.status != Status::Success, "nobody has received it");
        drop((a, qa));
        daemon.wait_until_empty();
    }
}

#[test]
fn of_two_that_take_a_session_over_one_has_it() {
    let daemon = Daemon::start();
    let hello = Hello { name: Some("one".into()), keep: Keep::Forever, ..Hello::default() };
    let first = Client::attach(&daemon, &hello).unwrap();
    let again = Hello { token: Some(first.welcome.token), ..hello };
    let claimants: Vec<Client> = std::thread::scope(|scope| {
        let claim = || Client::attach(&daemon, &again).unwrap();
        let claims: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    let mut epochs: Vec<u32> = claimants.iter().map(|client| client.welcome.epoch).collect();
    epochs.sort_unstable();
    assert_eq!(epochs, [2, 3, 4, 5]);
    for client in claimants {
        let mut card = client.card();
        if client.welcome.epoch == 5 {
            card.alloc_pd().unwrap();
        } else {
            assert!(client.asker.farewell().contains("taken the session over"));
        }
    }
    assert!(first.asker.farewell().contains("taken the session over"));
    assert_eq!(daemon.observer().refusal(&ClientRequest::Evict("one"), &[]), None);
    daemon.wait_until_empty();
}

/// The children of a process that has lost its session get in no more, and neither do those to
/// which it has passed its device.
#[test]
fn guests_of_the_former_holder_do_not_join_the_next() {
    let daemon = Daemon::start();
    let hello = Hello { name: Some("one".into()), keep: Keep::Forever, ..Hello::default() };
    let first = Client::attach(&daemon, &hello).unwrap();
    let joins = |of: &Client| {
        let Welcome { session, share: token, .. } = of.welcome;
        let join = Some(crate::message::Join { session, token });
        Client::attach(&daemon, &Hello { join, ..Hello::default() })
    };
    let guest = joins(&first).unwrap();
    let again = Hello { token: Some(first.welcome.token), ..hello };
    let next = Client::attach(&daemon, &again).unwrap();
    for former in [&first, &guest] {
        assert!(former.asker.farewell().contains("taken the session over"));
        assert!(joins(former).is_err(), "a token of the former holder's");
    }
    joins(&next).unwrap().card().alloc_pd().unwrap();
    assert_eq!(daemon.observer().refusal(&ClientRequest::Evict("one"), &[]), None);
    daemon.wait_until_empty();
}
