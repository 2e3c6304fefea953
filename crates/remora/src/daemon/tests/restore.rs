//! What outlives a daemon in the store of a service manager, which here is a thread.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;

use remora_nic::RegMrError;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::hogs::policy_with;
use super::kernels::*;
use super::*;

/// A service manager: it keeps descriptors under names.
struct Manager {
    path: PathBuf,
    kept: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
    said: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    fn start(name: &str) -> Manager {
        let name = format!("remora-notify-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let socket = UnixDatagram::bind(&path).unwrap();
        let (kept, said) = (Arc::default(), Arc::default());
        let (keeps, says) = (Arc::clone(&kept), Arc::clone(&said));
        let thread = std::thread::spawn(move || while serve(&socket, &keeps, &says) {});
        Manager { path, kept, said, thread: Some(thread) }
    }

    fn store(&self) -> FdStore {
        FdStore::at(&OsString::from(&self.path)).unwrap()
    }

    /// Waits until all that was said so far is heard.
    fn settle(&self) {
        let mark = "MARK=1".to_owned();
        let count = || self.said.lock().unwrap().iter().filter(|said| **said == mark).count();
        let before = count();
        let sender = UnixDatagram::unbound().unwrap();
        sender.send_to(mark.as_bytes(), &self.path).unwrap();
        until("the manager has heard all", || count() > before);
    }

    fn names(&self) -> Vec<String> {
        self.settle();
        self.kept.lock().unwrap().keys().cloned().collect()
    }

    /// Without the card memory of users, which stays.
    fn of_sessions(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| !name.starts_with("remora.user.")).collect()
    }

    /// What the next process of the service gets.
    fn pass(&self) -> Vec<(String, OwnedFd)> {
        self.settle();
        let kept = self.kept.lock().unwrap();
        kept.iter().map(|(name, fd)| (name.clone(), fd.try_clone().unwrap())).collect()
    }

    /// The next daemon.
    fn daemon(&self) -> (Daemon, Restored) {
        Daemon::restored(Policy::default(), Some((self.store(), self.pass())))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        UnixDatagram::unbound().unwrap().send_to(b"END", &self.path).unwrap();
        self.thread.take().map(JoinHandle::join);
        std::fs::remove_file(&self.path).ok();
    }
}

/// Hears one message; returns false for the last one.
fn serve(
    socket: &UnixDatagram,
    kept: &Mutex<BTreeMap<String, OwnedFd>>,
    said: &Mutex<Vec<String>>,
) -> bool {
    let mut bytes = [0; 4096];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = part {
            descriptors.extend(came);
        }
    }
    let text = std::str::from_utf8(&bytes[..got.bytes]).unwrap();
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
    };
    match (value("FDSTORE"), value("FDSTOREREMOVE"), value("FDNAME")) {
        (Some(_), None, Some(name)) => {
            assert_eq!(descriptors.len(), 1);
            let (came, mut kept) = (descriptors.remove(0), kept.lock().unwrap());
            if !kept.values().any(|there| share_description(there, &came)) {
                kept.insert(name, came);
            }
        }
        (None, Some(_), Some(name)) => {
            assert!(kept.lock().unwrap().remove(&name).is_some(), "{name} is not there");
        }
        _ => {}
    }
    said.lock().unwrap().push(text.to_owned());
    text != "END"
}

/// Are these one open file description? Then a flag that is set by one is seen by the other.
/// systemd keeps the first of such descriptors only.
fn share_description(one: &OwnedFd, other: &OwnedFd) -> bool {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (flags, before) = (fcntl_getfl(one).unwrap(), fcntl_getfl(other).unwrap());
    fcntl_setfl(one, flags ^ OFlags::NONBLOCK).unwrap();
    let after = fcntl_getfl(other).unwrap();
    fcntl_setfl(one, flags).unwrap();
    before != after
}

fn kept(name: &str) -> Hello {
    Hello { name: Some(name.into()), keep: Keep::Forever, ..Hello::default() }
}

/// A peer reads by the key, and may no more.
fn only_read_by_the_old_key(client: &Client, pd: remora_nic::Pd, key: u32) {
    let (mut mine, theirs) = (client.queues(), client.queues());
    let dm = client.card().alloc_dm(64).unwrap();
    let to = Bytes { place: Place::Device(dm), iova: 0, len: 64 };
    let to = client.card().reg_mr(mine.pd, to, Access::all()).unwrap();
    let bound = client.card().create_qp(init(pd, theirs.cq)).unwrap();
    let peer = Queues { made: bound, completions: theirs.completions, ..theirs };
    client.connect(&mine, &peer.made);
    client.connect(&peer, &mine.made);
    let mut read = write(1, (0, to), (0x9000, key), 4);
    read[0] = 6;
    client.post(&mut mine, &read);
    assert_eq!(client.completion(&mut mine).status, Status::Success);
    assert_eq!(client.card().read_dm(dm, 4).unwrap(), b"lent");
    client.post(&mut mine, &write(2, (0, to), (0x9000, key), 4));
    assert_eq!(client.completion(&mut mine).status, Status::RemoteAccess);
}

/// Another daemon has what a session kept; the client takes it over.
fn takes_over(daemon: &Daemon, before: &Client, wanted: &[Object]) -> Client {
    let waits = daemon.observer().status()[0].sessions[0].clone();
    assert_eq!((waits.name.as_str(), waits.attached, waits.regions), ("store", false, 2));
    let wrong = Hello { token: Some([7; 16]), ..kept("store") };
    assert!(Client::attach(daemon, &wrong).is_err());
    let again = Hello { token: Some(before.welcome.token), ..kept("store") };
    let next = Client::attach(daemon, &again).unwrap();
    assert_eq!((next.welcome.session, next.welcome.epoch), (before.welcome.session, 2));
    for object in wanted {
        assert!(next.welcome.objects.contains(object), "{object:?}");
    }
    assert_eq!(next.welcome.objects.len(), wanted.len(), "{:?}", next.welcome.objects);
    next
}

#[test]
fn memory_and_keys_outlive_the_daemon() {
    let manager = Manager::start("memory");
    let (daemon, restored) = manager.daemon();
    assert_eq!(restored, Restored::default());
    let client = Client::attach(&daemon, &kept("store")).unwrap();
    let mut card = client.card();
    let unused = card.alloc_pd().unwrap();
    let pd = card.alloc_pd().unwrap();
    card.dealloc_pd(unused).unwrap();
    let at = card.alloc_dm(5000).unwrap();
    let other = card.alloc_dm(64).unwrap();
    let near = Bytes { place: Place::Device(at), iova: 0x1000, len: 5000 };
    let near = card.reg_mr(pd, near, Access::all()).unwrap();
    let gone = Bytes { place: Place::Device(other), iova: 0, len: 64 };
    let gone = card.reg_mr(pd, gone, Access::all()).unwrap();
    card.dereg_mr(gone).unwrap();
    card.free_dm(other).unwrap();
    let (file, memory) = sealed(8192);
    let number = client.lend(Loan::Sealed, &file);
    let place = Place::Lent { number, offset: 4096 };
    let bytes = Bytes { place, iova: 0x9000, len: 4096 };
    let lent = card.reg_mr(pd, bytes, Access::all()).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    card.rereg_mr(lent, crate::commands::Change { access: Some(rights), ..Default::default() })
        .unwrap();
    let (unlent, _) = sealed(4096);
    let unlent = client.lend(Loan::Sealed, &unlent);
    assert_eq!(client.asker.refusal(&ClientRequest::TakeBack(unlent), &[]), None);
    let queues = client.queues();
    card.write_dm(at + 4998, b"ok").unwrap();
    memory.write_at(4096, b"lent").unwrap();
    assert_eq!(manager.of_sessions().len(), 2, "{:?}", manager.of_sessions());
    // Another one, which nobody keeps.
    let brief = daemon.client();
    brief.card().alloc_pd().unwrap();
    drop(daemon);
    assert!(client.asker.farewell().contains("ended"));
    manager.settle();
    assert!(manager.said.lock().unwrap().iter().any(|said| said == "STOPPING=1"));

    let (daemon, restored) = manager.daemon();
    assert_eq!(restored, Restored { sessions: 1, regions: 2, lost: 0 });
    let [near, lent_of_it] = [near, lent].map(Object::Mr);
    let (domains, dm) = ([pd, queues.pd].map(Object::Pd), Object::Dm(at));
    let wanted = [&domains[..], &[dm, Object::Lent(number), near, lent_of_it]].concat();
    let next = takes_over(&daemon, &client, &wanted);
    assert!(next.card().query_qp(queues.made.qpn).is_none(), "queue pairs are gone");
    assert_eq!(next.card().read_dm(at + 4998, 2).unwrap(), b"ok");

    only_read_by_the_old_key(&next, pd, lent);

    // It ends, and the store has nothing of it any more.
    assert_eq!(daemon.observer().refusal(&ClientRequest::Evict("store"), &[]), None);
    assert!(next.asker.farewell().contains("evict"));
    assert_eq!(manager.of_sessions(), Vec::<String>::new());
    drop((next, brief));
    daemon.wait_until_empty();
}

/// A client that has not looked since its daemon was killed still has that one's arena mapped.
#[test]
fn a_client_of_a_daemon_that_is_gone_keeps_what_that_one_wrote() {
    let manager = Manager::start("mapped");
    let (daemon, _) = manager.daemon();
    let client = Client::attach(&daemon, &kept("store")).unwrap();
    let (mut mine, theirs) = (client.queues(), client.queues());
    client.connect(&mine, &theirs.made);
    client.connect(&theirs, &mine.made);
    let dm = client.card().alloc_dm(128).unwrap();
    let bytes = Bytes { place: Place::Device(dm), iova: 0, len: 128 };
    let keys = [mine.pd, theirs.pd].map(|pd| client.card().reg_mr(pd, bytes, Access::all()));
    let [from, to] = keys.map(Result::unwrap);
    client.post(&mut mine, &write(17, (0, from), (64, to), 64));
    until("it is done", || mine.completions.has_entry());
    drop(daemon);

    let (daemon, restored) = manager.daemon();
    assert_eq!(restored, Restored { sessions: 1, regions: 2, lost: 0 });
    let done = client.completion(&mut mine);
    assert_eq!((done.wr_id, done.status), (17, Status::Success));
    // What it writes is not in the way of the next client.
    let again = Hello { token: Some(client.welcome.token), ..kept("store") };
    let next = Client::attach(&daemon, &again).unwrap();
    let (at, mut there) = (next.arena.memory().len() - 5, [0; 5]);
    client.arena.memory().write_at(at, b"stray").unwrap();
    next.arena.memory().read_at(at, &mut there).unwrap();
    assert_eq!(there, [0; 5]);
    assert_eq!((client.arena.epoch(), next.arena.epoch()), (1, 2));
}

#[test]
fn card_memory_of_another_size_is_not_given_back() {
    let manager = Manager::start("sizes");
    let (daemon, _) = manager.daemon();
    let client = Client::attach(&daemon, &kept("store")).unwrap();
    let mut card = client.card();
    let pd = card.alloc_pd().unwrap();
    let at = card.alloc_dm(64).unwrap();
    let bytes = Bytes { place: Place::Device(at), iova: 0, len: 64 };
    card.reg_mr(pd, bytes, Access::all()).unwrap();
    drop(daemon);

    let policy = policy_with("card_memory = { near_bytes = 65536, far_bytes = 131072 }");
    let (daemon, restored) = Daemon::restored(policy, Some((manager.store(), manager.pass())));
    assert_eq!(restored, Restored { sessions: 1, regions: 0, lost: 0 });
    assert_eq!(manager.names(), ["remora.1.record"]);
    let again = Hello { token: Some(client.welcome.token), ..kept("store") };
    let next = Client::attach(&daemon, &again).unwrap();
    assert_eq!(next.welcome.objects, [Object::Pd(pd)]);
    let at = next.card().alloc_dm(64).unwrap();
    assert_eq!(next.card().read_dm(at, 64).unwrap(), [0; 64]);
}

#[test]
fn memory_that_is_not_lent_any_more_leaves_the_store() {
    let manager = Manager::start("orphans");
    let (daemon, _) = manager.daemon();
    let client = Client::attach(&daemon, &kept("store")).unwrap();
    let (file, _) = sealed(4096);
    let [kept_number, lost] = [(); 2].map(|()| client.lend(Loan::Sealed, &file));
    drop(daemon);
    manager.settle();
    let name = |number: u32| format!("remora.1.lent.{number}");
    // One file cannot be lent again, and of another there is no record.
    let pipe: OwnedFd = std::io::pipe().unwrap().0.into();
    for (number, file) in [(lost, pipe), (lost + 1, file)] {
        manager.kept.lock().unwrap().insert(name(number), file);
    }
    let (daemon, restored) = manager.daemon();
    assert_eq!((restored.sessions, restored.lost), (1, 0));
    let stored = [name(kept_number), "remora.1.record".to_owned()];
    assert_eq!(manager.of_sessions(), stored);
    let again = Hello { token: Some(client.welcome.token), ..kept("store") };
    let next = Client::attach(&daemon, &again).unwrap();
    assert_eq!(next.welcome.objects, [Object::Lent(kept_number)]);
    let (file, _) = sealed(4096);
    assert_ne!(next.lend(Loan::Sealed, &file), kept_number);
}

#[test]
fn a_session_outlives_many_daemons_and_changes_in_between() {
    let manager = Manager::start("many");
    let mut keys = Vec::new();
    let (mut pd, mut token) = (None, None);
    for round in 0..5 {
        let (daemon, restored) = manager.daemon();
        assert_eq!(
            (restored.sessions, restored.regions),
            (u32::from(round > 0), keys.len() as u32)
        );
        let client = Client::attach(&daemon, &Hello { token, ..kept("long") }).unwrap();
        token = Some(client.welcome.token);
        assert_eq!(client.welcome.epoch, round + 1);
        let mut card = client.card();
        let pd = *pd.get_or_insert_with(|| card.alloc_pd().unwrap());
        for _ in 0..3 {
            let at = card.alloc_dm(4096).unwrap();
            let bytes = Bytes { place: Place::Device(at), iova: 0, len: 4096 };
            keys.push(card.reg_mr(pd, bytes, Access::all()).unwrap());
        }
        card.dereg_mr(keys.remove(0)).unwrap();
        // What is registered in a ring goes with the ring.
        let queues = client.queues();
        let ring = RingPlace::of_addr(queues.made.sq.addr).offset;
        let ring = Bytes { place: Place::Arena(ring), iova: 0, len: 64 };
        card.reg_mr(queues.pd, ring, Access::all()).unwrap();
        card.dealloc_pd(queues.pd).unwrap_err();
    }
    // Until it is not kept any more.
    let (daemon, _) = manager.daemon();
    let hello = Hello { token, keep: Keep::No, name: Some("long".into()), ..Hello::default() };
    let last = Client::attach(&daemon, &hello).unwrap();
    assert_eq!(manager.of_sessions(), Vec::<String>::new());
    let bytes = Bytes { place: Place::Device(0), iova: 0, len: 1 };
    let refused = last.card().reg_mr(pd.unwrap(), bytes, Access::all());
    assert_eq!(refused, Err(RegMrError::Place));
    drop(last);
    daemon.wait_until_empty();
}

/// Has the kernel of op-code 17 answer, by a new connection.
fn echoes(server: &Device) {
    let device = DeviceOptions::new().embedded().open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let cq = device.create_cq(64).unwrap();
    let mine = domain.create_qp(&crate::QueuePairOptions::rc(&cq)).unwrap();
    let theirs = server.alloc_pd().unwrap();
    let theirs = theirs.create_qp(&crate::QueuePairOptions::new()).unwrap();
    let params = crate::ConnectionParams::new(device.info().mtu).kernels(true);
    mine.connect(theirs.local(), &params).unwrap();
    theirs.connect(mine.local(), &params).unwrap();
    let mut client = crate::kernel::KernelClient::new(&domain, &mine, &cq, 8, 1 << 16).unwrap();
    let mut out = Vec::new();
    client.call(17, b"hello", &mut out).unwrap();
    assert_eq!(out, b"hello");
}

#[test]
fn kernels_outlive_the_daemon() {
    use crate::kernel::Deployment;
    use crate::kernel::builtin::{Builtin, Kind};
    let manager = Manager::start("kernels");
    let (mut daemon, _) = manager.daemon();
    let open = |daemon: &Daemon| DeviceOptions::new().attach(&daemon.path);
    let mut device = open(&daemon).keep("store", Keep::Forever).open().unwrap();
    let (module, named) = (echo::echo(), |name: &str| Deployment::new(name, []));
    device.load_kernel(17, named("echo"), &module).unwrap();
    let get =
        |device: &Device, op| device.deploy_kind(op, named("get"), Kind::Get, &Builtin::new());
    get(&device, 18).unwrap();
    get(&device, 19).unwrap();
    device.undeploy(19).unwrap();
    assert!(get(&device, 18).is_err(), "the op-code is taken");
    for round in 0..2 {
        let ticket = device.ticket().unwrap();
        drop((device, daemon));
        let restored;
        (daemon, restored) = manager.daemon();
        assert_eq!(restored, Restored { sessions: 1, regions: 0, lost: 0 });
        device = open(&daemon).take_over(ticket, Keep::Forever).open().unwrap();
        let kernels = || device.kernels().into_iter().map(|kernel| (kernel.opcode, kernel.name));
        until("the module is compiled", || kernels().len() == 2);
        let names = [(17, "echo".to_owned()), (18, "get".to_owned())];
        assert!(kernels().eq(names), "round {round}: {:?}", device.kernels());
        echoes(&device);
    }
    device.undeploy(17).unwrap();
    assert_eq!(manager.of_sessions(), ["remora.1.kernel.18.0", "remora.1.record"]);
    // (The process may have another device of this name.)
    let name = device.ticket().unwrap().name;
    assert_eq!(daemon.observer().refusal(&ClientRequest::Evict(&name), &[]), None);
    assert_eq!(manager.of_sessions(), [""; 0]);
}

/// Each wrong one is left out, and the session is there all the same.
#[test]
fn kernels_that_cannot_run_again_are_forgotten() {
    let manager = Manager::start("wrong-kernels");
    let (daemon, _) = manager.daemon();
    let client = Client::attach(&daemon, &kept("store")).unwrap();
    for request in [builtin(1, "get"), in_place(builtin(1, "get")), builtin(2, "get")] {
        assert_eq!(client.kernel(request, &[]), KernelAnswer::Done);
    }
    drop(daemon);
    let mut left = manager.pass();
    let mut add = |name: &str, file: OwnedFd| {
        manager.kept.lock().unwrap().insert(name.into(), file.try_clone().unwrap());
        left.push((name.into(), file));
    };
    let file = |bytes: &[u8]| crate::memory::memfd::constant("kernel", bytes).unwrap();
    let of = |session: u32, request: KernelRequest| {
        crate::daemon::kernel_file::write(session, &request, b"no module").unwrap()
    };
    // A daemon was killed that had stored a kernel's successor.
    add("remora.1.kernel.2.1", of(1, in_place(builtin(2, "get"))));
    add("remora.1.kernel.3.0", of(1, in_place(builtin(3, "no such kernel"))));
    add("remora.1.kernel.4.0", file(b"nonsense"));
    add("remora.1.kernel.5.0", sealed(4096).0);
    add("remora.1.kernel.6.0", std::io::pipe().unwrap().0.into());
    add("remora.1.kernel.7.0", of(1, KernelRequest::Undeploy(1)));
    add("remora.1.kernel.8.0", of(2, in_place(builtin(8, "get"))));
    add("remora.1.kernel.9.0", of(1, in_place(builtin(1, "get"))));
    // What another daemon may read stays.
    add("remora.1.kernel.9.1", file(b"rkernel\n\xff\xff\xff\xffother"));
    let (daemon, restored) = Daemon::restored(Policy::default(), Some((manager.store(), left)));
    assert_eq!(restored, Restored { sessions: 1, regions: 0, lost: 0 });
    let rest = ["kernel.1.1", "kernel.2.1", "kernel.9.1", "record"];
    let rest = rest.map(|part| format!("remora.1.{part}"));
    until("the others are forgotten", || manager.of_sessions() == rest);
    let again = Hello { token: Some(client.welcome.token), ..kept("store") };
    let next = Client::attach(&daemon, &again).unwrap();
    let runs = [(1, "get".to_owned()), (2, "get".to_owned())];
    assert_eq!(next.kernels(), runs);
    // Its client may have it removed.
    assert_eq!(next.kernel(KernelRequest::Undeploy(9), &[]), KernelAnswer::Done);
    assert_eq!(next.kernel(KernelRequest::Undeploy(9), &[]), KernelAnswer::Unknown);
    until("it is forgotten", || !manager.of_sessions().contains(&rest[2]));
}

#[test]
fn a_kernel_that_waits_to_be_compiled_is_its_clients_already() {
    const COUNT: u64 = 40;
    let manager = Manager::start("waiting-kernels");
    let (daemon, _) = manager.daemon();
    let client = Client::attach(&daemon, &kept("store")).unwrap();
    let (module, _) = echo_file();
    for opcode in 0..COUNT {
        assert_eq!(client.kernel(loaded(opcode, false), &[module.as_fd()]), KernelAnswer::Done);
    }
    drop(daemon);
    let (daemon, _) = manager.daemon();
    // It does not ask for the session to be kept, so that the store forgets all of it.
    let again = Hello { token: Some(client.welcome.token), keep: Keep::No, ..kept("store") };
    let next = Client::attach(&daemon, &again).unwrap();
    assert_eq!(manager.of_sessions(), [""; 0]);
    let (ended, replaced) = (COUNT - 1, COUNT - 2);
    assert_eq!(next.kernel(KernelRequest::Undeploy(ended), &[]), KernelAnswer::Done);
    assert_eq!(next.kernel(KernelRequest::Undeploy(ended), &[]), KernelAnswer::Unknown);
    assert_eq!(next.kernel(builtin(replaced, "get"), &[]), KernelAnswer::Taken);
    assert_eq!(next.kernel(in_place(builtin(replaced, "get")), &[]), KernelAnswer::Done);
    until("the modules are compiled", || next.kernels().len() as u64 == COUNT - 1);
    let names = (0..replaced).map(|opcode| (opcode, "echo".to_owned()));
    assert!(next.kernels().into_iter().eq(names.chain([(replaced, "get".to_owned())])));
    drop((client, next));
    daemon.wait_until_empty();
}

#[test]
fn a_kernel_that_the_policy_has_no_room_for_stays_stored() {
    let manager = Manager::start("too-many-kernels");
    let (daemon, _) = manager.daemon();
    let client = Client::attach(&daemon, &kept("store")).unwrap();
    for opcode in [1, 2] {
        assert_eq!(client.kernel(builtin(opcode, "get"), &[]), KernelAnswer::Done);
    }
    drop((client, daemon));
    let stored = manager.of_sessions();
    for (policy, runs) in [(policy_with("kernels = 1"), 1), (Policy::default(), 2)] {
        let (daemon, _) = Daemon::restored(policy, Some((manager.store(), manager.pass())));
        assert_eq!(daemon.observer().status()[0].sessions[0].kernels, runs);
        assert_eq!(manager.of_sessions(), stored);
    }
}

#[test]
fn what_the_store_has_wrong_is_left_out() {
    let manager = Manager::start("wrong");
    let (daemon, _) = manager.daemon();
    for name in ["one", "two", "three"] {
        Client::attach(&daemon, &kept(name)).unwrap().card().alloc_pd().unwrap();
    }
    drop(daemon);
    let mut left = manager.pass();
    let record = |number: u32| {
        let name = format!("remora.{number}.record");
        left.iter().position(|(of, _)| *of == name).unwrap()
    };
    let [one, two, three] = [1, 2, 3].map(record);
    left[one].1 = std::io::pipe().unwrap().0.into();
    left[two].1 = left[three].1.try_clone().unwrap();
    left.push(("other.socket".into(), std::io::pipe().unwrap().0.into()));
    // What another version has left is forgotten.
    for name in ["remora.9.lent.7", "remora.3.arena"] {
        left.push((name.into(), std::io::pipe().unwrap().0.into()));
        let pipe = std::io::pipe().unwrap().0.into();
        manager.kept.lock().unwrap().insert(name.into(), pipe);
    }
    let (daemon, restored) = Daemon::restored(Policy::default(), Some((manager.store(), left)));
    assert_eq!(restored, Restored { sessions: 1, regions: 0, lost: 3 });
    assert_eq!(manager.names(), ["remora.3.record"]);
    assert_eq!(daemon.device.in_use().pds, 1);
    // New sessions get other numbers than those that were there.
    assert!(daemon.client().welcome.session > 9);
}

#[test]
fn the_card_memory_of_a_user_outlives_the_daemon() {
    let manager = Manager::start("card");
    let (daemon, _) = manager.daemon();
    let card = DmaClient::connect(Some(&daemon.path)).unwrap();
    let sizes = card.sizes();
    card.memory().write_at(4097, b"stays").unwrap();
    drop((card, daemon));
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(manager.names(), [format!("remora.user.{uid}")]);
    let (daemon, restored) = manager.daemon();
    assert_eq!(restored, Restored::default());
    let card = DmaClient::connect(Some(&daemon.path)).unwrap();
    let mut bytes = [0; 5];
    card.memory().read_at(4097, &mut bytes).unwrap();
    assert_eq!((&bytes, card.sizes()), (b"stays", sizes));
    // What no program has any more is given out again.
    card.alloc(crate::dma::MemoryKind::Near, sizes.near).unwrap();
    drop((card, daemon));
    // Memory of another length is that of another card.
    let mut left = manager.pass();
    left[0].1 = sealed(1 << 21).0;
    let (daemon, _) = Daemon::restored(Policy::default(), Some((manager.store(), left)));
    assert_eq!(manager.names(), [""; 0]);
    let card = DmaClient::connect(Some(&daemon.path)).unwrap();
    card.memory().read_at(4097, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 5]);
}
