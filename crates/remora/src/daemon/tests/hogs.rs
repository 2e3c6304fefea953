//! Clients that take of everything as much as they get: others have enough left.

use super::kernels::*;
use super::*;
use crate::daemon::admission::OBSERVERS;
use crate::daemon::lent::LOANS_MAX;
use crate::message::{DmaRequest, OpenXrcd, XrcdError};

/// A daemon whose own user may use so much.
fn daemon_with(rule: &str) -> Daemon {
    Daemon::with(policy_with(rule))
}

/// A policy by which the daemon's own user may use so much.
pub(super) fn policy_with(rule: &str) -> Policy {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let own = rustix::process::geteuid().as_raw();
    let name = format!("remora-hogs-{}-{number}.toml", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, format!("[users.{own}]\n{rule}")).unwrap();
    let policy = Policy::read(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    policy
}

/// Asks until the daemon refuses; returns how often it did not, and why it does.
fn ask_all(asker: &Asker, request: &ClientRequest<'_>, with: &[BorrowedFd<'_>]) -> (usize, String) {
    for asked in 0..100_000 {
        if let Some(reason) = asker.refusal(request, with) {
            return (asked, reason);
        }
    }
    panic!("{request:?}: without end");
}

/// Lends until the daemon refuses; returns how many pieces, and why it does.
fn lend_all(client: &Client, loan: Loan, file: &[BorrowedFd<'_>]) -> (usize, String) {
    ask_all(&client.asker, &ClientRequest::Lend(loan), file)
}

/// A program that uses the daemon's card memory.
fn with_card_memory(daemon: &Daemon) -> Asker {
    let asker = daemon.observer();
    assert_eq!(asker.refusal(&ClientRequest::Dma(DmaRequest::Open), &[]), None);
    asker
}

fn grant(loan: Loan) -> ClientRequest<'static> {
    ClientRequest::Dma(DmaRequest::Grant { loan, addr: 0, len: 4096, writable: true })
}

fn loans(daemon: &Daemon) -> u32 {
    let page = daemon.observer().status().remove(0);
    page.sessions[0].lent.iter().map(|(_, count)| count).sum()
}

#[test]
fn a_session_lends_no_more_than_its_quota() {
    let daemon = daemon_with("quotas.loans = 5");
    let (hog, (file, _)) = (daemon.client(), sealed(4096));
    let (lent, reason) = lend_all(&hog, Loan::Sealed, &[file.as_fd()]);
    assert_eq!((lent, loans(&daemon)), (5, 5));
    assert!(reason.contains("quota of 5 loans"), "{reason}");
    // By this one the card reaches all the rest of its memory.
    let (lent, reason) = lend_all(&hog, Loan::Process, &[]);
    assert!(lent == 1 && reason.contains("quota of 5 loans"), "{lent}: {reason}");
    drop(hog);
    daemon.wait_until_empty();
}

#[test]
fn the_sessions_of_a_user_lend_and_join_no_more_together_than_the_users_share() {
    let daemon = daemon_with("loans = 7\ngroups = 3\nquotas.loans = 5");
    let (one, two, (file, _)) = (daemon.client(), daemon.client(), sealed(4096));
    assert_eq!(lend_all(&one, Loan::Sealed, &[file.as_fd()]).0, 5);
    let (lent, reason) = lend_all(&two, Loan::Sealed, &[file.as_fd()]);
    assert!(lent == 2 && reason.contains("all 7 loans"), "{lent}: {reason}");
    let members = [&one, &two].map(|client| {
        let mut card = client.card();
        let (pd, cq) = (card.alloc_pd().unwrap(), card.create_cq(16).unwrap());
        card.create_qp(QpInit { transport: Transport::Ud, ..init(pd, cq) }).unwrap().qpn
    });
    let joins = |(client, qpn): (&Client, u32), n| {
        client.card().attach_mcast(qpn, IpAddr::from([239, 78, 0, n])).is_ok()
    };
    assert!(joins((&one, members[0]), 1) && joins((&one, members[0]), 2));
    assert!(joins((&two, members[1]), 3) && !joins((&two, members[1]), 4));
    assert!(joins((&two, members[1]), 2), "the user is in this group already");
    // What one session gives up, the other may have.
    drop(one);
    until("one session is left", || daemon.observer().status()[0].sessions.len() == 1);
    until("the other joins a group", || joins((&two, members[1]), 4));
    assert_eq!(lend_all(&two, Loan::Sealed, &[file.as_fd()]).0, 3);
    drop(two);
    daemon.wait_until_empty();
}

#[test]
fn the_sessions_of_a_user_have_no_more_kernels_together_than_the_users_share() {
    let daemon = daemon_with("kernels = 3");
    let (one, two) = (daemon.client(), daemon.client());
    let get = |client: &Client, opcode| client.kernel(builtin(opcode, "get"), &[]);
    assert_eq!([get(&one, 1), get(&one, 2), get(&two, 1)], [const { KernelAnswer::Done }; 3]);
    assert_eq!(get(&two, 2), KernelAnswer::Full(3));
    assert_eq!(one.kernel(KernelRequest::Undeploy(2), &[]), KernelAnswer::Done);
    assert_eq!(get(&two, 2), KernelAnswer::Done);
}

#[test]
fn modules_count_for_the_memory_that_a_session_may_have() {
    let (module, bytes) = echo_file();
    let daemon = daemon_with(&format!("quotas.memory_bytes = {}", 2 * bytes + 1));
    let client = daemon.client();
    let refused = |replace, opcode| {
        let request = ClientRequest::Kernel(loaded(opcode, replace));
        client.asker.refusal(&request, &[module.as_fd()])
    };
    assert_eq!([refused(false, 1), refused(false, 2)], [None, None]);
    let reason = refused(false, 3).unwrap();
    assert!(reason.contains("module"), "{reason}");
    assert_eq!(refused(true, 2), None, "it takes the place of another");
    assert_eq!(client.kernel(KernelRequest::Undeploy(1), &[]), KernelAnswer::Done);
    assert_eq!(refused(false, 3), None);
    // What has no session has no use of the compiler.
    let asked = ClientRequest::Kernel(loaded(4, false));
    assert!(daemon.observer().refusal(&asked, &[module.as_fd()]).is_some());
}

#[test]
fn the_sessions_of_a_user_have_no_more_bytes_together_than_the_users_share() {
    let daemon = daemon_with("memory_bytes = 20000");
    let (one, two, (file, _)) = (daemon.client(), daemon.client(), sealed(8192));
    one.lend(Loan::Sealed, &file);
    two.lend(Loan::Sealed, &file);
    let refused =
        |client: &Client| client.asker.refusal(&ClientRequest::Lend(Loan::Sealed), &[file.as_fd()]);
    for client in [&one, &two] {
        let reason = refused(client).unwrap();
        assert!(reason.contains("20000 bytes of the session’s user"), "{reason}");
    }
    let made = two.card().create_cq(16);
    assert!(matches!(made, Err(CreateError::NoMemory { .. })), "{made:?}");
    drop(one);
    until("another session lends", || refused(&two).is_none());
    drop(two);
    daemon.wait_until_empty();
}

/// A file that is lent is counted once.
#[test]
fn memory_that_may_grow_is_not_lent() {
    let daemon = daemon_with("memory_bytes = 20000");
    let client = daemon.client();
    let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let lend =
        || client.asker.refusal(&ClientRequest::Lend(Loan::Sealed), &[file.as_fd()]).unwrap();
    assert!(lend().contains("F_SEAL_GROW"));
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let reason = lend();
    assert!(reason.contains("20000 bytes"), "{reason}");
}

/// What a user's programs grant to the engine of the card's memory is as much memory as what the
/// sessions lend.
#[test]
fn grants_and_loans_of_a_user_are_bytes_of_one_share() {
    let daemon = daemon_with("memory_bytes = 20000");
    let (session, program) = (daemon.client(), with_card_memory(&daemon));
    let (file, _) = sealed(8192);
    let lends =
        |client: &Client| client.asker.refusal(&ClientRequest::Lend(Loan::Sealed), &[file.as_fd()]);
    assert_eq!(lends(&session), None);
    let (granted, reason) = ask_all(&program, &grant(Loan::Sealed), &[file.as_fd()]);
    assert!(granted == 2 && reason.contains("20000 bytes"), "{granted}: {reason}");
    // Of sessions that begin now, too.
    for client in [&session, &daemon.client()] {
        assert!(lends(client).unwrap().contains("20000 bytes"));
    }
    let revoke = ClientRequest::Dma(DmaRequest::Revoke(0));
    assert_eq!(program.refusal(&revoke, &[]), None);
    assert_eq!(ask_all(&program, &grant(Loan::Sealed), &[file.as_fd()]).0, 1);
    drop(program);
    until("what the program has granted is given back", || lends(&session).is_none());
    let other = with_card_memory(&daemon);
    assert_eq!(ask_all(&other, &grant(Loan::Sealed), &[file.as_fd()]).0, 0);
    drop((session, other));
    daemon.wait_until_empty();
}

/// Each is a mapping of the daemon's, and the system gives a process 65,530.
#[test]
fn all_loans_together_leave_the_daemon_mappings() {
    let daemon = daemon_with("loans = 100000\nquotas.loans = 100000");
    let (hog, (file, _)) = (daemon.client(), sealed(4096));
    let (lent, reason) = lend_all(&hog, Loan::Sealed, &[file.as_fd()]);
    assert_eq!(lent, LOANS_MAX);
    assert!(reason.contains("all sessions together"), "{reason}");
    daemon.client().card().alloc_pd().unwrap();
    drop(hog);
    let other = daemon.client();
    let lends =
        || other.asker.refusal(&ClientRequest::Lend(Loan::Sealed), &[file.as_fd()]).is_none();
    until("another session lends", lends);
    drop(other);
    daemon.wait_until_empty();
}

/// What is granted to a DMA engine is mapped, too.
#[test]
fn all_grants_together_leave_the_daemon_mappings() {
    let (file, _) = sealed(4096);
    let daemon = daemon_with("loans = 100000\nquotas.regions = 100000");
    let (granted, reason) =
        ask_all(&with_card_memory(&daemon), &grant(Loan::Sealed), &[file.as_fd()]);
    assert_eq!(granted, LOANS_MAX);
    assert!(reason.contains("all programs together"), "{reason}");
    daemon.client().card().alloc_pd().unwrap();
    let daemon = daemon_with("loans = 7\nquotas.regions = 5");
    let programs = [with_card_memory(&daemon), with_card_memory(&daemon)];
    let granted = [0, 1].map(|n| ask_all(&programs[n], &grant(Loan::Sealed), &[file.as_fd()]));
    assert_eq!((granted[0].0, granted[1].0), (5, 2), "{granted:?}");
    drop(programs);
    daemon.wait_until_empty();
}

/// The programs of a user have their pieces in one memory, with sessions and without.
#[test]
fn the_programs_of_a_user_have_no_more_pieces_together_than_the_users_share() {
    let daemon = daemon_with("pieces = 7\nquotas.others = 5");
    let alloc = ClientRequest::Dma(DmaRequest::Alloc { near: false, len: 64 });
    let (one, two) = (with_card_memory(&daemon), with_card_memory(&daemon));
    let (taken, reason) = ask_all(&one, &alloc, &[]);
    assert!(taken == 5 && reason.contains("client"), "{taken}: {reason}");
    let session = daemon.client();
    let piece = session.card().alloc_dm(64).unwrap();
    let (taken, reason) = ask_all(&two, &alloc, &[]);
    assert!(taken == 1 && reason.contains("user"), "{taken}: {reason}");
    let made = session.card().alloc_dm(64);
    assert!(matches!(made, Err(CreateError::NoMemory { .. })), "{made:?}");
    session.card().free_dm(piece).unwrap();
    assert_eq!(ask_all(&two, &alloc, &[]).0, 1);
    // What one program had comes back when it has gone.
    drop(one);
    until("the session has another piece", || session.card().alloc_dm(64).is_ok());
    drop((session, two));
    daemon.wait_until_empty();
}

#[test]
fn loans_leave_descriptors_to_others() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "daemon::tests::hogs::with_few_descriptors"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The processes of one user's sessions leave descriptors to other users.
fn guests_leave_descriptors(daemon: &Daemon) {
    let host = daemon.client();
    let Welcome { session, share: token, .. } = host.welcome;
    let join = Some(crate::message::Join { session, token });
    let hello = greeting(&Hello { join, ..Hello::default() });
    let mut guests = Vec::new();
    let reason = loop {
        let guest = Asker { socket: MessageSocket::connect(&daemon.path).unwrap() };
        guest.send(&hello, &[]);
        match decode::<Answer<'_>>(&guest.receive().0).unwrap() {
            Answer::Welcome(_) => guests.push(guest),
            Answer::Farewell(reason) => break reason.to_owned(),
            other => panic!("{other:?}"),
        }
    };
    assert!(guests.len() > 10 && reason.contains("descriptors"), "{}: {reason}", guests.len());
    daemon.client().card().alloc_pd().unwrap();
    drop((host, guests));
    daemon.wait_until_empty();
}

/// In a process of its own, whose limit of descriptors is low.
#[test]
#[ignore = "a program for another test"]
fn with_few_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).unwrap();
    guests_leave_descriptors(&daemon_with("sessions = 8"));
    let daemon = Daemon::start();
    let path = std::env::temp_dir().join(format!("remora-hogs-{}", std::process::id()));
    std::fs::write(&path, [0; 4096]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let ways: [(_, &[BorrowedFd<'_>]); 3] = [
        (Loan::File, &[file.as_fd()]),
        (Loan::ProcessFile, &[memory.as_fd()]),
        (Loan::Process, &[]),
    ];
    for (loan, with) in ways {
        let hog = daemon.client();
        let (lent, reason) = lend_all(&hog, loan, with);
        assert!(lent > 10 && reason.contains("descriptors"), "{loan:?}, {lent}: {reason}");
        daemon.client().card().alloc_pd().unwrap();
        if loan == Loan::File {
            no_card_memory_is_made(&daemon);
        }
        drop(hog);
        daemon.wait_until_empty();
    }
    what_else_keeps_descriptors(&daemon, file.as_fd());
    takeovers::without_descriptors_a_session_stays();
    takeovers::without_descriptors_a_former_session_stays();
}

/// A card's memory is a descriptor, and its engine's thread has some.
fn no_card_memory_is_made(daemon: &Daemon) {
    let reason = daemon.observer().refusal(&ClientRequest::Dma(DmaRequest::Open), &[]);
    assert!(reason.is_some_and(|reason| reason.contains("descriptors")));
}

/// Grants to a DMA engine, its channels, and XRC domains that files name.
fn what_else_keeps_descriptors(daemon: &Daemon, file: BorrowedFd<'_>) {
    let (to_host, stream, depth) = (false, None, 2);
    let channel = DmaRequest::Channel { to_host, stream, interrupt: true, depth };
    for (request, with) in [(grant(Loan::File), &[file][..]), (ClientRequest::Dma(channel), &[])] {
        // What the one before had is given back by and by.
        let (_hog, reason) = until_some("it gets some", || {
            let hog = daemon.observer();
            hog.refusal(&ClientRequest::Dma(DmaRequest::Open), &[]);
            let (asked, reason) = ask_all(&hog, &request, with);
            (asked > 10).then_some((hog, reason))
        });
        assert!(reason.contains("descriptors"), "{request:?}: {reason}");
        daemon.client().card().alloc_pd().unwrap();
    }
    let hog = daemon.client();
    let names_another = |_: &usize| {
        let file = rustix::fs::memfd_create("name", MemfdFlags::empty()).unwrap();
        let how = OpenXrcd { creates: true, exclusive: true };
        hog.asker.ask(&ClientRequest::OpenXrcd(how), &[file.as_fd()], |answer| match answer {
            Answer::Xrcd(Ok(_)) => true,
            Answer::Xrcd(Err(XrcdError::Full)) => false,
            other => panic!("{other:?}"),
        })
    };
    let mut named = 0;
    until("it names some", || {
        named += (0..1000).take_while(names_another).count();
        named > 10
    });
    assert!(named < 1000, "{named}");
    daemon.client().card().alloc_pd().unwrap();
    drop(hog);
    daemon.wait_until_empty();
}

/// They are told why at once, and neither their connections nor what they send is kept.
#[test]
fn strangers_hold_nothing() {
    let daemon = daemon_with("attach = false");
    for says in [false, true] {
        let stranger = Asker { socket: MessageSocket::connect(&daemon.path).unwrap() };
        if says {
            stranger.socket.ask(&greeting(&Hello::default()), &[]).unwrap();
        }
        let reason = stranger.farewell();
        assert!(reason.contains("may not attach"), "{reason}");
        assert!(stranger.receive().0.is_empty());
    }
}

#[test]
fn one_user_asks_by_so_many_connections() {
    let daemon = Daemon::start();
    let observers: Vec<Asker> = (0..OBSERVERS).map(|_| daemon.observer()).collect();
    let another = Asker { socket: MessageSocket::connect(&daemon.path).unwrap() };
    another.send(&greeting(&Hello { observer: true, ..Hello::default() }), &[]);
    let reason = another.farewell();
    assert!(reason.contains("connections"), "{reason}");
    daemon.client().card().alloc_pd().unwrap();
    drop(observers);
    daemon.wait_until_empty();
}

#[test]
fn a_session_joins_no_more_multicast_groups_than_its_share() {
    let daemon = Daemon::start();
    let hog = daemon.client();
    let mut card = hog.card();
    let (pd, cq) = (card.alloc_pd().unwrap(), card.create_cq(16).unwrap());
    let ud = QpInit { transport: Transport::Ud, ..init(pd, cq) };
    let qpn = card.create_qp(ud).unwrap().qpn;
    let group = |n: usize| IpAddr::from([239, 77, (n / 200) as u8, (n % 200) as u8]);
    let refused = (0..1024).find_map(|n| card.attach_mcast(qpn, group(n)).err().map(|e| (n, e)));
    let (joined, error) = refused.unwrap();
    assert_eq!(joined, 128, "{error}");
    // By its other name, too.
    card.detach_mcast(qpn, "ff0e::ffff:239.77.0.0".parse().unwrap()).unwrap();
    card.attach_mcast(qpn, group(0)).unwrap();
    card.detach_all(qpn);
    card.destroy_qp(qpn).unwrap();
    let qpn = card.create_qp(ud).unwrap().qpn;
    card.attach_mcast(qpn, group(1)).unwrap();
}

/// What a client was not given counts for no quota: it may not take memory by it.
#[test]
fn an_arena_takes_no_more_memory_than_its_parts() {
    let daemon = Daemon::start();
    let (honest, hog) = (daemon.client(), daemon.client());
    let queues = honest.queues();
    let memory = hog.arena.memory();
    let rest = memory.len() - (4 << 20);
    memory.write_at(rest, &vec![1; 4 << 20]).unwrap();
    assert!(hog.asker.farewell().contains("was not given"));
    until("one session is left", || daemon.observer().status()[0].sessions.len() == 1);
    // All that the other has given back does not take memory, either.
    let mut card = honest.card();
    card.destroy_qp(queues.made.qpn).unwrap();
    card.destroy_cq(queues.cq).unwrap();
    until("all is given back", || daemon.observer().status()[0].sessions[0].arena_bytes == 0);
    drop((hog, honest));
    daemon.wait_until_empty();
}
