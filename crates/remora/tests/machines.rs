//! Virtual machines without QEMU: a test plays QEMU at the daemon's socket, and shows the device as
//! the folders of `/sys` do, to programs that attach as they would in a guest.

mod daemon;
#[path = "support/skips.rs"]
mod skips;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use daemon::Daemon;
use daemon::killed::Killed;
use daemon::program::{heard, read, written};
use daemon::until::until;
use remora::daemon::Policy;
use remora::device::OpenError;
use remora::kernel::builtin::{Builtin, Kind};
use remora::memory::{Buffer, memfd};
use remora::message::{
    Answer, ClientRequest, Hello, Join, KEEP_VARIABLE, Keep, Loan, Object, SOCKET_VARIABLE,
    SessionStatus, Ticket, decode, encode, greeting,
};
use remora::offload::chain::offload::{list, table::Value};
use remora::prelude::{
    Access, AsyncChainClient, Chain, ConnectionParams, Deployment, Device, DeviceOptions,
    MemoryRegion, Peer, QueuePairOptions,
};
use remora::shared::{MAILBOX, MailboxClient};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

const LONG: Duration = Duration::from_secs(20);
/// Where in their page the registers of the device are, as firmware may put them.
const REGISTERS: usize = 0x400;
/// A user that no system has.
const STRANGER: u32 = 61_186;
/// In the doorbell's register as long as nobody rings.
const SILENT: u32 = u32::MAX;

/// A virtual machine, as far as its device goes.
struct Machine {
    stream: Option<OwnedFd>,
    memory: OwnedFd,
    letters: OwnedFd,
    /// The device's folder.
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// What `folder` leads to.
    _registers: OwnedFd,
}

/// The next message of the daemon's to QEMU.
fn receive(stream: &OwnedFd) -> Option<(i64, Option<OwnedFd>)> {
    let mut bytes = [0; 8];
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut into = [std::io::IoSliceMut::new(&mut bytes)];
    let got = match rustix::net::recvmsg(stream, &mut into, &mut control, RecvFlags::empty()) {
        // The daemon has not read what was said to it.
        Err(rustix::io::Errno::CONNRESET) => return None,
        got => got.unwrap(),
    };
    let came = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut came) => came.next(),
        _ => None,
    });
    (got.bytes == bytes.len()).then(|| (i64::from_le_bytes(bytes), came))
}

fn connect(daemon: &Daemon) -> OwnedFd {
    let kind = SocketType::STREAM;
    let stream =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&stream, &SocketAddrUnix::new(daemon.machine()).unwrap()).unwrap();
    stream
}

impl Machine {
    fn boot(daemon: &Daemon) -> Machine {
        let stream = connect(daemon);
        let next = || receive(&stream).unwrap();
        assert_eq!(next().0, 0, "the version of the protocol");
        assert!(matches!(next(), (1, None)), "the machine’s own number");
        let (number, memory) = next();
        assert_eq!(number, -1);
        let [(0, Some(doorbell)), (0, Some(letters))] = [next(), next()] else {
            panic!("the daemon has two doorbells");
        };
        let memory = memory.unwrap();
        let registers_file = memfd::sealed("registers", 4096).unwrap();
        let folder = folder(&memory, &registers_file);
        let registers = Buffer::map(registers_file.as_fd(), 0, 4096).unwrap();
        let register = registers.word32(REGISTERS + 12).unwrap();
        // Before any program can ring.
        register.store(SILENT, Ordering::SeqCst);
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let events = [doorbell, letters.try_clone().unwrap()];
        let thread = std::thread::spawn(move || {
            let register = registers.word32(REGISTERS + 12).unwrap();
            while !stops.load(Ordering::Relaxed) {
                // Two writes may have become one: so each rings both.
                if register.swap(SILENT, Ordering::SeqCst) != SILENT {
                    events.iter().for_each(|event| {
                        rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
                    });
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let (stream, thread) = (Some(stream), Some(thread));
        Machine { stream, memory, letters, folder, stop, thread, _registers: registers_file }
    }

    fn attach(&self) -> Device {
        self.open().unwrap()
    }

    fn open(&self) -> Result<Device, OpenError> {
        DeviceOptions::new().attach(&self.folder).open()
    }

    /// The program of the test `name`, in the machine.
    fn program(&self, name: &str, keep: &str) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", name, "--nocapture"]);
        command.env(SOCKET_VARIABLE, &self.folder).env(KEEP_VARIABLE, keep);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        Running { child: Killed(child), input, lines: Box::new(lines) }
    }

    /// The mailbox, for a program that writes what it likes.
    fn letters(&self) -> Letters<'_> {
        let len = rustix::fs::fstat(&self.memory).unwrap().st_size as usize;
        let memory = Buffer::map(self.memory.as_fd(), (len - MAILBOX) as u64, MAILBOX).unwrap();
        Letters { mailbox: MailboxClient::open(memory).unwrap(), machine: self }
    }
}

/// A folder with the files of an ivshmem device.
fn folder(memory: &OwnedFd, registers: &OwnedFd) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let folder = std::env::temp_dir().join(format!("remora-ivshmem-{pid}-{number}"));
    fs::create_dir(&folder).unwrap();
    for (name, text) in [
        ("vendor", "0x1af4\n"),
        ("device", "0x1110\n"),
        ("resource", "0x00000000febf1400 0x00000000febf14ff 0x0000000000040200\n"),
        ("enable", "0\n"),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    for (name, file) in [("resource0", registers), ("resource2", memory)] {
        let target = format!("/proc/{pid}/fd/{}", file.as_raw_fd());
        std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
    }
    folder
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// A program in a machine, in a process of its own.
struct Running {
    child: Killed,
    input: ChildStdin,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Running {
    /// The rest of the program's next line that has `machine `, which may stand behind what the
    /// test's harness writes.
    fn line(&mut self) -> String {
        let rest = |line: String| line.split_once("machine ").map(|(_, rest)| rest.to_owned());
        self.lines.find_map(rest).expect("the program goes on")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Requests by the mailbox, without a library.
struct Letters<'a> {
    mailbox: MailboxClient,
    machine: &'a Machine,
}

impl Letters<'_> {
    fn greet(&mut self, hello: &Hello) -> Vec<u8> {
        self.mailbox.greet(&greeting(hello)).unwrap();
        self.answer()
    }

    fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.mailbox.send(request).unwrap();
        self.answer()
    }

    fn answer(&self) -> Vec<u8> {
        rustix::io::write(&self.machine.letters, &1u64.to_ne_bytes()).unwrap();
        let (until, mut bytes) = (Instant::now() + LONG, Vec::new());
        while !self.mailbox.receive(&mut bytes) {
            if let Some(reason) = self.mailbox.dismissal() {
                return encode(&Answer::Farewell(&reason));
            }
            assert!(Instant::now() < until, "the daemon does not answer");
            std::thread::yield_now();
        }
        bytes
    }

    fn refusal(&mut self, request: &ClientRequest<'_>) -> String {
        match decode(&self.ask(&encode(request))).unwrap() {
            Answer::Refused(reason) => reason.to_owned(),
            other => panic!("{request:?}: {other:?}"),
        }
    }
}

/// A chain that answers `seven` to 7, and its memory.
fn chain(device: &Device) -> (Chain, MemoryRegion) {
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let value = Value { addr: memory.addr() + 1024, len: 5 };
    memory.write_at(0, &list::nodes(memory.addr(), &[(7, value)])).unwrap();
    memory.write_at(1024, b"seven").unwrap();
    let chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()]).unwrap();
    (chain, memory)
}

/// Serves a list by a chain, until it is killed.
#[test]
#[ignore = "a program for other tests"]
fn serves_a_chain() {
    let device = DeviceOptions::new().open().unwrap();
    let (chain, memory) = chain(&device);
    let ticket = device.ticket().unwrap();
    println!("machine {} {} {}", written(chain.local().unwrap()), memory.addr(), ticket);
    chain.serve(read(&heard()).0, device.info().mtu).unwrap();
    println!("machine serves");
    std::thread::sleep(LONG * 10);
}

/// What a program in a machine serves, as its first line says.
struct Served {
    peer: Peer,
    addr: u64,
    ticket: Ticket,
}

impl Served {
    fn parse(line: &str) -> Served {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let [_, _, _, addr, ticket] = words[..] else { panic!("{line}") };
        Served {
            peer: read(&words[..3].join(" ")).0,
            addr: addr.parse().unwrap(),
            ticket: ticket.parse().unwrap(),
        }
    }
}

fn sessions(daemon: &Daemon) -> Vec<SessionStatus> {
    daemon.observer().status().unwrap().sessions
}

/// The only session.
fn session(daemon: &Daemon) -> SessionStatus {
    let mut sessions = sessions(daemon);
    assert_eq!(sessions.len(), 1);
    sessions.remove(0)
}

#[test]
fn a_program_in_a_machine_has_the_hosts_card() {
    let daemon = Daemon::start();
    let machine = Machine::boot(&daemon);
    assert_eq!(fs::read_to_string(machine.folder.join("enable")).unwrap(), "0\n");
    let device = machine.attach();
    assert_eq!(fs::read_to_string(machine.folder.join("enable")).unwrap(), "1");
    assert!(device.is_attached() && device.info().address.is_loopback());
    let status = session(&daemon);
    assert!(status.is_machine && status.attached && status.name.contains('/'), "{status:?}");
    assert_eq!(status.pid, std::process::id() as i32, "that of QEMU");

    // A peer on the host writes to it, and it reads from the peer and waits for that.
    let peer = DeviceOptions::new().embedded().open().unwrap();
    let (mine, theirs) = (device.alloc_pd().unwrap(), peer.alloc_pd().unwrap());
    let (local, remote) =
        (mine.alloc(8192, Access::all()).unwrap(), theirs.alloc(8192, Access::all()).unwrap());
    let one = mine.create_qp(&QueuePairOptions::new()).unwrap();
    let two = theirs.create_qp(&QueuePairOptions::new()).unwrap();
    let params = ConnectionParams::new(device.info().mtu);
    one.connect(two.local(), &params).unwrap();
    two.connect(one.local(), &params).unwrap();
    remote.write_at(0, b"the peer").unwrap();
    two.write(remote.slice(..8), local.slice(4096..).remote()).wait(LONG).unwrap();
    assert_eq!(local.slice(4096..4104).to_vec().unwrap(), b"the peer");
    one.fetch_add(remote.slice(4096..4104).remote(), 5).wait(LONG).unwrap();
    local.write_at(0, b"the guest").unwrap();
    one.write(local.slice(..9), remote.slice(100..).remote()).wait(LONG).unwrap();
    assert_eq!(remote.slice(100..109).to_vec().unwrap(), b"the guest");
    assert_eq!(remote.buffer().unwrap().load_u64(4096), Ok(5));

    // Card memory comes back, zeroed.
    let used = || session(&daemon).arena_bytes;
    let before = used();
    let again = mine.alloc(4096, Access::all()).unwrap();
    again.write_at(0, b"secret").unwrap();
    assert_eq!(used(), before + 4096);
    drop(again);
    until("it is given back", || used() == before);
    let again = mine.alloc(4096, Access::all()).unwrap();
    assert_eq!(again.slice(..6).to_vec().unwrap(), [0; 6]);
    drop((again, one, two, local, remote, mine, theirs, device));
    until("nothing stays", || sessions(&daemon).is_empty());
}

#[test]
fn a_chain_outlives_its_machine_and_another_machine_takes_it_over() {
    let daemon = Daemon::start();
    let mut machine = Machine::boot(&daemon);
    let mut program = machine.program("serves_a_chain", "list:10m");
    let served = Served::parse(&program.line());
    let host = DeviceOptions::new().embedded().open().unwrap();
    let mut client = AsyncChainClient::new(&host.alloc_pd().unwrap(), 64).unwrap();
    client.connect(served.peer, host.info().mtu).unwrap();
    writeln!(program.input, "{}", written(client.local())).unwrap();
    assert_eq!(program.line(), "serves");
    let mut asks = || {
        let message = list::message(7, served.addr);
        assert_eq!(client.call(&message).wait(LONG).unwrap(), b"seven");
    };
    asks();

    // The guest's panic: its program is no more, QEMU is, and nobody says anything.
    program.kill();
    asks();
    let session = || session(&daemon);
    assert!(session().attached, "QEMU goes on");
    // The machine is halted.
    machine.stream = None;
    until("the daemon notices that QEMU has ended", || !session().attached);
    assert!(session().ends_in_s.is_some_and(|seconds| seconds <= 600));
    asks();

    drop(machine);
    let machine = Machine::boot(&daemon);
    let refused = machine.open().unwrap_err().to_string();
    assert!(refused.contains("take it over"), "{refused}");
    let other = Ticket { token: [1; 16], ..served.ticket.clone() };
    let options = || DeviceOptions::new().attach(&machine.folder);
    let refused = options().take_over(other, Keep::Forever).open().unwrap_err().to_string();
    assert!(refused.contains("no session"), "{refused}");
    let device = options().take_over(served.ticket, Keep::Forever).open().unwrap();
    assert!(device.taken().iter().any(|object| matches!(object, Object::Qp(_))));
    let mut domains = device.taken().into_iter().filter_map(|object| match object {
        Object::Pd(pd) => device.adopt_pd(pd),
        _ => None,
    });
    let domain = domains.next().unwrap();
    asks();
    // It works beside what was there.
    let memory = domain.alloc(64, Access::all()).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    memory.write_at(0, b"new").unwrap();
    qp.write(memory.slice(..3), memory.slice(8..).remote()).wait(LONG).unwrap();
    assert_eq!(memory.slice(8..11).to_vec().unwrap(), b"new");
    asks();
    assert_eq!((session().epoch, session().keep), (2, Keep::Forever));
    daemon.observer().evict(&session().name).unwrap();
    until("the program is told", || device.alloc_pd().is_err());
}

#[test]
fn one_program_follows_the_other() {
    let daemon = Daemon::start();
    let machine = Machine::boot(&daemon);
    for _ in 0..20 {
        // One that ends, and one that is killed and says nothing.
        let device = machine.attach();
        let second = machine.open().unwrap_err().to_string();
        assert!(second.contains("another program"), "{second}");
        let (_chain, memory) = chain(&device);
        assert_eq!(memory.slice(1024..1029).to_vec().unwrap(), b"seven");
        drop(device);
        let mut letters = machine.letters();
        let hello = Hello::default();
        assert!(matches!(decode(&letters.greet(&hello)), Ok(Answer::Welcome(_))));
    }
    // The last one has ended, and with it all that it had.
    drop(machine);
    until("nothing stays", || sessions(&daemon).is_empty());
}

#[test]
fn a_guest_reaches_nothing_but_its_own() {
    let daemon = Daemon::start();
    let other = daemon.attach();
    let token = other.ticket().unwrap().token;
    let machine = Machine::boot(&daemon);
    let mut letters = machine.letters();
    for hello in [
        Hello { observer: true, ..Hello::default() },
        Hello { join: Some(Join { session: 1, token }), ..Hello::default() },
        // Not even with the token of another session of the same user.
        Hello { token: Some(token), ..Hello::default() },
    ] {
        let bytes = letters.greet(&hello);
        assert!(matches!(decode(&bytes), Ok(Answer::Farewell(_))), "{hello:?}");
    }
    let bytes = letters.ask(&encode(&ClientRequest::Status(0)));
    assert!(matches!(decode(&bytes), Ok(Answer::Farewell(_))), "it has no session");
    assert!(matches!(decode(&letters.greet(&Hello::default())), Ok(Answer::Welcome(_))));
    for request in [
        // The process that the daemon knows is QEMU.
        ClientRequest::Lend(Loan::Process),
        ClientRequest::Lend(Loan::Sealed),
        ClientRequest::Status(0),
        ClientRequest::Evict("1"),
        ClientRequest::Impair("loss=100%"),
        ClientRequest::Gates,
        ClientRequest::Pass { qpn: 0, key: 0 },
        ClientRequest::Counted { cq: 0, count: 1 },
    ] {
        let reason = letters.refusal(&request);
        assert!(reason.contains("virtual machine"), "{request:?}: {reason}");
    }
    let reason = letters.refusal(&ClientRequest::CompletionQueue(7));
    assert!(reason.contains("completion queue"), "the session goes on: {reason}");
    // What cannot be read ends it, and the daemon serves on.
    let bytes = letters.ask(&[0xff; 100]);
    assert!(matches!(decode(&bytes), Ok(Answer::Farewell(_))));
    assert!(matches!(decode(&letters.greet(&Hello::default())), Ok(Answer::Welcome(_))));
    assert!(other.alloc_pd().is_ok());
}

#[test]
fn a_guest_lends_no_memory_and_calls_built_in_kernels() {
    let daemon = Daemon::start();
    let machine = Machine::boot(&daemon);
    let device = machine.attach();
    let domain = device.alloc_pd().unwrap();
    let refused = domain.register(Buffer::new(4096).unwrap(), Access::all());
    assert!(refused.is_err(), "memory of the guest");
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let deployment = Deployment::new("get", [memory.grant_read()]);
    let kind = Kind::named("get").unwrap();
    device.deploy_kind(3, deployment, kind, &Builtin::new()).unwrap();
    assert_eq!(session(&daemon).kernels, 1);
}

#[test]
fn a_device_is_one_machines() {
    let daemon = Daemon::start();
    let mut machine = Machine::boot(&daemon);
    let second = connect(&daemon);
    assert!(receive(&second).is_none(), "the device is taken");
    let device = machine.attach();
    // One that says something is no QEMU.
    rustix::io::write(machine.stream.as_ref().unwrap(), b"hello").unwrap();
    until("the session has ended", || sessions(&daemon).is_empty());
    assert!(receive(machine.stream.as_ref().unwrap()).is_none());
    machine.stream = None;
    // As on a socket: the card's process has gone, for the program.
    drop(device);
    let next = Machine::boot(&daemon);
    drop(next.attach());
    until("nothing stays", || sessions(&daemon).is_empty());
}

/// A user's machine, once it has gone, keeps nobody from the device: only a session does.
#[test]
fn a_device_without_a_session_is_the_next_users() {
    if !rustix::process::geteuid().is_root() {
        return skips::lacks("only root can connect as another user");
    }
    let file = std::env::temp_dir().join(format!("remora-machines-{}.toml", std::process::id()));
    fs::write(&file, format!("[users.{STRANGER}]\nattach = true\n")).unwrap();
    let daemon = Daemon::with(Policy::read(&file).unwrap());
    fs::remove_file(&file).unwrap();
    let strangers = || {
        let connects = || {
            let uid = rustix::thread::Uid::from_raw(STRANGER);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            connect(&daemon)
        };
        std::thread::scope(|scope| scope.spawn(connects).join().unwrap())
    };
    let leaves = |stream: &OwnedFd| {
        rustix::io::write(stream, b"hello").unwrap();
        while receive(stream).is_some() {}
    };
    for _ in 0..2 {
        let first = strangers();
        assert!(receive(&first).is_some(), "whose turn it is");
        leaves(&first);
        let machine = Machine::boot(&daemon);
        drop(machine.attach());
        leaves(machine.stream.as_ref().unwrap());
    }
    let machine = Machine::boot(&daemon);
    let kept = DeviceOptions::new().attach(&machine.folder).keep("kept", Keep::Forever);
    drop(kept.open().unwrap());
    leaves(machine.stream.as_ref().unwrap());
    assert!(receive(&strangers()).is_none(), "a session of root's is in it");
}

#[test]
fn a_program_learns_that_the_daemon_has_ended() {
    let mut daemon = Daemon::start();
    let machine = Machine::boot(&daemon);
    let device = machine.attach();
    daemon.end();
    until("the program is told", || device.alloc_pd().is_err());
}

#[test]
fn what_is_no_device_is_refused() {
    let folder = std::env::temp_dir();
    let refused = DeviceOptions::new().attach(&folder).open();
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("1af4:1110"), "{error}");
    // A device of another server.
    let memory = memfd::sealed("other", 1 << 20).unwrap();
    let registers = memfd::sealed("registers", 4096).unwrap();
    let folder = crate::folder(&memory, &registers);
    let refused = DeviceOptions::new().attach(&folder).open().unwrap_err();
    fs::remove_dir_all(&folder).unwrap();
    assert!(refused.to_string().contains("no daemon"), "{refused}");
}
