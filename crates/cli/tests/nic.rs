//! `remora nic`: real processes share a card, are killed at any moment, and leave nothing behind.

mod support;

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use remora::prelude::*;
use serde_json::Value;
use support::{Folder, Killed, command, until};

/// A daemon; it ends with the test.
struct Daemon {
    child: Killed,
    socket: PathBuf,
    ready: Value,
    _folder: Folder,
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::with(&[])
    }

    /// A daemon with further options.
    fn with(options: &[&str]) -> Daemon {
        let folder = Folder::new();
        let socket = folder.path("nic.sock");
        let mut daemon = command(["nic", "--json", "--socket"]);
        daemon.arg(&socket).args(options);
        let mut child = Killed(daemon.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Daemon { child, socket, ready, _folder: folder }
    }

    /// The command with these arguments, on this daemon's card.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("REMORA_NIC", &self.socket);
        command
    }

    fn succeed(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {}: {errors}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    fn sessions(&self) -> Vec<Value> {
        let status = self.succeed(&["nic", "status", "--json"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        status["sessions"].as_array().unwrap().clone()
    }

    /// Waits until no session is left and the daemon's process has as many descriptors and
    /// mappings as `before`. (One more descriptor stays: the card asks the kernel about sockets of
    /// its machine by it.)
    fn wait_until_as(&self, before: (usize, usize)) {
        until("all sessions have ended", || self.sessions().is_empty());
        let is_as_before = |(descriptors, maps)| {
            (before.0..=before.0 + 1).contains(&descriptors) && maps == before.1
        };
        until("nothing is left", || is_as_before(self.counts()));
    }

    /// Open descriptors, and mapped arenas and lent memory.
    fn counts(&self) -> (usize, usize) {
        let process = Path::new("/proc").join(self.child.id().to_string());
        let descriptors = fs::read_dir(process.join("fd")).unwrap().count();
        let maps = fs::read_to_string(process.join("maps")).unwrap();
        (descriptors, maps.lines().filter(|line| line.contains("/memfd:")).count())
    }

    /// A node whose memory is on the card, and which serves at `port`.
    fn node(&self, port: u16) -> Child {
        let port = port.to_string();
        let args = ["node", "--json", "--port", &port, "--region", "data=1M,rw"];
        self.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// Waits until a node serves.
fn ready(node: &mut Child) {
    let mut line = String::new();
    BufReader::new(node.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("data"), "{line}");
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn programs_share_a_card_and_an_address() {
    let mut daemon = Daemon::start();
    let address = daemon.ready["address"].as_str().unwrap().to_owned();
    let before = daemon.counts();
    let mut one = daemon.node(1001);
    ready(&mut one);
    let mut other = daemon.node(1002);
    ready(&mut other);
    for port in [1001, 1002] {
        let listed = daemon.succeed(&["mem", "ls", &format!("{address}:{port}")]);
        assert!(listed.contains("data"), "{listed}");
    }
    // The daemon notices the ends of the two that listed, some time later.
    until("the nodes' sessions alone are left", || daemon.sessions().len() == 2);
    let sessions = daemon.sessions();
    assert!(sessions.iter().all(|session| session["attached"] == true));
    assert_eq!(sessions[0]["pid"], one.id());
    let table = daemon.succeed(&["nic", "status"]);
    assert!(table.contains("2 sessions") && table.contains("attached"), "{table}");

    let name = sessions[1]["name"].as_str().unwrap();
    daemon.succeed(&["nic", "evict", name]);
    assert_eq!(daemon.sessions().len(), 1);
    let refused = daemon.command(&["nic", "evict", name]).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no session"));
    end(other);
    end(one);
    daemon.wait_until_as(before);
    daemon.terminate();
    assert!(!daemon.socket.exists());
}

#[test]
fn clients_that_are_killed_at_any_moment_leave_nothing() {
    let daemon = Daemon::start();
    let before = daemon.counts();
    for round in 0..40 {
        let node = daemon.node(2000 + round);
        // From before the attachment to behind the last command of the start.
        thread::sleep(Duration::from_micros(u64::from(round) * 700));
        end(node);
    }
    daemon.wait_until_as(before);
}

/// What a daemon's card does not do for its programs is not lost without a word: a program that
/// asks for it has a card of its own, or is refused where a daemon is named.
#[test]
fn a_program_that_asks_for_a_bad_network_has_one() {
    let folder = Folder::new();
    let usual = |args: &[&str]| {
        let mut command = command(args);
        command.env_remove("REMORA_NIC").env("XDG_RUNTIME_DIR", folder.path(""));
        command
    };
    let mut child = usual(&["nic", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready = serde_json::from_str(&line).unwrap();
    let socket = folder.path("remora/nic.sock");
    let daemon = Daemon { child: Killed(child), socket, ready, _folder: Folder::new() };
    for (variable, sessions) in [("REMORA_IMPAIR", 0), ("REMORA_DIALECT", 0), ("NO_MATTER", 1)] {
        let value = if variable == "REMORA_IMPAIR" { "delay=1us" } else { "lossy" };
        let mut node = usual(&["node", "--json", "--port", "7471", "--region", "data=1M,rw"]);
        node.env(variable, value).stdout(Stdio::piped());
        let mut node = node.spawn().unwrap();
        self::ready(&mut node);
        assert_eq!(daemon.sessions().len(), sessions, "{variable}");
        node.kill().unwrap();
        node.wait().unwrap();
    }
    let refused = daemon.command(&["run", "--impair", "loss=1%", "--", "true"]).output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("remora nic impair"), "{errors}");
}

#[test]
fn a_daemons_card_is_impaired_and_works() {
    let daemon = Daemon::start();
    let wrong = daemon.command(&["nic", "impair", "loss=1"]).output().unwrap();
    let errors = String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && errors.contains("per cent"), "{errors}");
    let said = || daemon.succeed(&["nic", "status"]);
    assert!(!said().contains("impaired"), "{}", said());
    daemon.succeed(&["nic", "impair", "loss=1%,duplicate=1%,delay=10us,seed=7"]);
    assert!(said().contains("Packets are impaired, until: remora nic impair off"), "{}", said());
    let perf = ["perf", "write", "bw", "--size", "64K", "--iters", "100", "--json"];
    let result: Value = serde_json::from_str(&daemon.succeed(&perf)).unwrap();
    assert!(result["gbps"].as_f64().unwrap() > 0.0, "{result}");
    daemon.succeed(&["nic", "impair", "off"]);
    assert!(!said().contains("impaired"), "{}", said());
    let status = daemon.succeed(&["nic", "status", "--json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    let count = |name: &str| status["impaired"][name].as_u64().unwrap();
    assert!(count("impair_in_lost") + count("impair_out_lost") > 0, "{status}");
    assert!(count("impair_in_delayed") + count("impair_out_delayed") > 0, "{status}");
    assert!(daemon.succeed(&["nic", "status"]).contains("On purpose: impair_"));
}

#[test]
fn without_a_daemon_the_reason_is_told() {
    let folder = Folder::new();
    let socket = folder.path("nic.sock");
    for args in [vec!["nic", "status"], vec!["nic", "evict", "x"]] {
        let output = command(&args).env("REMORA_NIC", &socket).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(errors.contains("no daemon listens") && errors.contains("remora nic"), "{errors}");
        let output = command(&args).env("REMORA_NIC", "off").output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("--socket"));
    }
    let policy = folder.path("policy.toml");
    fs::write(&policy, "[others]\nattach = 7\n").unwrap();
    let output = command(["nic", "--policy"]).arg(&policy).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("policy.toml"), "{errors}");
}

#[test]
fn a_daemon_gives_virtual_machines_devices() {
    let folder = Folder::new();
    let (web, mail) = (folder.path("web.sock"), folder.path("mail.sock"));
    let paths = [&web, &mail].map(|path| path.to_str().unwrap());
    let mut daemon = Daemon::with(&["--machine", paths[0], "--machine", paths[1]]);
    assert_eq!(daemon.ready["machines"], serde_json::json!(paths));
    let mut qemus = paths.map(|path| UnixStream::connect(path).unwrap());
    for qemu in &mut qemus {
        let mut version = [1; 8];
        qemu.read_exact(&mut version).unwrap();
        assert_eq!(version, [0; 8]);
    }
    let socket = folder.path("other.sock");
    let second = command(["nic", "--machine", paths[1], "--socket"]).arg(socket).output().unwrap();
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && errors.contains("listens at"), "{errors}");
    daemon.terminate();
    assert!(!web.exists() && !mail.exists());
}

#[test]
fn a_killed_daemon_is_replaced_at_once() {
    let mut daemon = Daemon::start();
    let mut node = daemon.node(3001);
    ready(&mut node);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(daemon.socket.exists(), "a killed process removes nothing");
    let mut again = command(["nic", "--json", "--socket"]);
    let mut again = again.arg(&daemon.socket).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(again.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("address"), "{line}");
    assert!(daemon.sessions().is_empty());
    assert!(!node.wait().unwrap().success(), "a node without a card ends, and says so");
    end(again);
}

/// A service manager: keeps the descriptors that a service sends it, and starts it with them, and
/// with a socket that listens, if it has one.
struct Manager {
    socket: std::os::unix::net::UnixDatagram,
    path: PathBuf,
    kept: Vec<(String, OwnedFd)>,
    listener: Option<OwnedFd>,
}

impl Manager {
    fn new(folder: &Folder) -> Manager {
        let path = folder.path("notify");
        let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager { socket, path, kept: Vec::new(), listener: None }
    }

    /// Starts a daemon with what was kept.
    fn start(&mut self, nic: &Path) -> (Child, Value) {
        let mut child = self.daemon(nic).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        while !self.hear().starts_with("READY=1") {}
        (child, serde_json::from_str(&line).unwrap())
    }

    /// The command that starts it. (A shell opens what is kept again; what listens cannot be
    /// opened, and comes as its standard input.)
    fn daemon(&self, nic: &Path) -> Command {
        let (mut opens, mut names) = (String::new(), Vec::new());
        if self.listener.is_some() {
            opens += "3<&0 0</dev/null ";
            names.push("remora-nic.socket");
        }
        for (name, fd) in &self.kept {
            opens += &format!("{}<>/proc/$PPID/fd/{} ", names.len() + 3, fd.as_raw_fd());
            names.push(name);
        }
        let script = format!("exec {opens}; export LISTEN_PID=$$; exec \"$@\"");
        let daemon = command(["nic", "--json", "--socket"]);
        let mut shell = Command::new("bash");
        shell.args(["-c", &script, "bash"]).arg(daemon.get_program()).args(daemon.get_args());
        for (name, value) in daemon.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        shell.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        shell.arg(nic).env("NOTIFY_SOCKET", &self.path).stdout(Stdio::piped());
        match &self.listener {
            Some(listener) => shell.stdin(listener.try_clone().unwrap()),
            None => shell.stdin(Stdio::null()),
        };
        shell
    }

    /// The next message of the service's; a descriptor that comes with it is kept.
    fn hear(&mut self) -> String {
        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
        let mut bytes = [0; 1024];
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC);
        let len = got.expect("the service speaks").bytes;
        let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
        for part in control.drain() {
            if let (RecvAncillaryMessage::ScmRights(came), Some(name)) = (part, &name) {
                self.kept.extend(came.map(|fd| (name.clone(), fd)));
            }
        }
        text
    }
}

#[test]
fn a_kept_session_outlives_a_daemon_that_is_killed() {
    let folder = Folder::new();
    let socket = folder.path("nic.sock");
    let mut manager = Manager::new(&folder);
    let (mut first, ready) = manager.start(&socket);
    assert_eq!(ready["restored"], 0);
    let with = |args: &[&str]| {
        let mut command = command(args);
        command.env("REMORA_NIC", &socket).env("REMORA_KEEP", "memory:1h");
        command
    };
    let node = ["node", "--json", "--port", "4001", "--region", "data=1M,rw"];
    let node = with(&node).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut node = node.unwrap();
    self::ready(&mut node);
    let status = || -> Value {
        let output = with(&["nic", "status", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let before = status()["sessions"][0].clone();
    assert_eq!((&before["name"], &before["keep_seconds"]), (&"memory".into(), &3600.into()));
    let regions = before["regions"].as_u64().unwrap();
    assert!(regions > 0);
    // The record, and at least the memory of the region.
    while manager.kept.len() < 2 {
        manager.hear();
    }
    first.kill().unwrap();
    first.wait().unwrap();
    node.wait().unwrap();

    let passed = manager.kept.len();
    let (next, ready) = manager.start(&socket);
    assert_eq!(ready["restored"], 1);
    let after = status()["sessions"][0].clone();
    assert_eq!((&after["name"], &after["attached"]), (&"memory".into(), &false.into()));
    assert!(after["regions"].as_u64().unwrap() > 0 && after["queue_pairs"] == 0);
    assert!(after["ends_in_seconds"].as_u64().unwrap() <= 3600);
    assert!(with(&["nic", "evict", "memory"]).status().unwrap().success());
    let mut removed = 0;
    while removed < passed {
        removed += usize::from(manager.hear().starts_with("FDSTOREREMOVE=1"));
    }
    // Nor has the daemon anything of it any more, of what was passed to it, either.
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    let stored: Vec<u64> = manager.kept.iter().map(|(_, fd)| inode(fd)).collect();
    let descriptors = PathBuf::from(format!("/proc/{}/fd", next.id()));
    let is_stored = |file: io::Result<fs::DirEntry>| {
        fs::metadata(file.unwrap().path()).is_ok_and(|about| stored.contains(&about.ino()))
    };
    until("its memory is given back", || !fs::read_dir(&descriptors).unwrap().any(is_stored));
    end(next);
}

/// A socket of sequenced packets that listens, as systemd makes one.
fn listener(path: &Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    socket
}

#[test]
fn a_daemon_serves_at_a_socket_that_was_passed_to_it() {
    let folder = Folder::new();
    let socket = folder.path("nic.sock");
    let mut manager = Manager::new(&folder);
    manager.listener = Some(listener(&socket));
    let nowhere = folder.path("nowhere.sock");
    for _ in 0..2 {
        // Its client comes first, and waits: that is what starts a daemon.
        let perf = ["perf", "write", "bw", "--size", "4K", "--iters", "10", "--json"];
        let mut perf = command(perf);
        let perf = perf.env("REMORA_NIC", &socket).stdout(Stdio::piped()).spawn().unwrap();
        let (mut daemon, ready) = manager.start(&nowhere);
        assert_eq!(ready["socket"], Value::Null);
        assert!(perf.wait_with_output().unwrap().status.success());
        let pid = rustix::process::Pid::from_child(&daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(daemon.wait().unwrap().success());
        assert!(socket.exists() && !nowhere.exists(), "the socket is the service manager's");
    }
    // One that is of another kind.
    manager.listener = Some(UnixListener::bind(folder.path("stream.sock")).unwrap().into());
    let refused = manager.daemon(&nowhere).output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("sequenced packets"), "{errors}");
}

/// A client in this process, which writes to itself.
struct Client {
    device: Device,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Client {
    fn attach(socket: &Path) -> Client {
        let device = DeviceOptions::new().attach(socket).open().unwrap();
        let domain = device.alloc_pd().unwrap();
        let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
        qp.loop_back(&qp, Access::all()).unwrap();
        let memory = domain.alloc(4096, Access::all()).unwrap();
        Client { device, qp, memory }
    }

    /// Are bytes of this value written?
    fn moves(&self, value: u8) -> bool {
        let (from, to) = (self.memory.slice(..2000), self.memory.slice(2000..4000));
        self.memory.write_at(0, &[value; 2000]).unwrap();
        let written = self.qp.write(from, to.remote()).wait(support::PATIENCE);
        written.is_ok() && to.to_vec().unwrap() == [value; 2000]
    }
}

#[test]
fn a_daemon_without_descriptors_serves_those_that_it_has() {
    let folder = Folder::new();
    let socket = folder.path("nic.sock");
    let daemon = command(["nic", "--json", "--socket"]);
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -n 64; exec \"$@\"", "bash"]);
    shell.arg(daemon.get_program()).args(daemon.get_args()).arg(&socket).stdout(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let status = || {
        let output = command(["nic", "status", "--json"]).env("REMORA_NIC", &socket).output();
        output.unwrap().status.success()
    };
    assert!(status());
    let client = Client::attach(&socket);
    assert!(client.moves(1));
    // Connections that say nothing, more than the daemon has descriptors for.
    let connect = || remora::message::MessageSocket::connect(&socket);
    let mut flood = Vec::new();
    for round in 0..150 {
        flood.extend(connect().ok());
        assert!(client.moves(round), "with {} connections", flood.len());
    }
    assert!(flood.len() > 64, "{}", flood.len());
    // What needs no descriptor is made on.
    assert!(client.device.alloc_pd().is_ok() && client.moves(200));
    drop(flood);
    until("the daemon has descriptors again", status);
    end(child);
}

/// The kernels of a store and of a node are their processes' own, and cannot run on a shared card:
/// such a store is read over the card, and has to have another way in.
#[test]
fn what_needs_a_card_of_its_own_says_so() {
    let daemon = Daemon::start();
    let failed = |args: &[&str]| {
        let output = daemon.command(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let why = failed(&["store", "serve", "--memory", "64M"]);
    assert!(why.contains("serve --redis or --memcached"), "{why}");
    assert!(why.contains("daemon") && why.contains("REMORA_NIC=off"), "{why}");
    let mut node = daemon.node(18_530);
    ready(&mut node);
    let at = format!("{}:18530", daemon.ready["address"].as_str().unwrap());
    let why = failed(&["kernel", "load", &at, "--builtin", "get", "--grant", "data"]);
    assert!(why.contains("the node takes no kernels") && why.contains("REMORA_NIC=off"), "{why}");
    end(node);
}

/// The card's socket is the daemon's; what else there is to say of the card is said.
#[test]
fn a_daemons_card_is_described() {
    let daemon = Daemon::start();
    let info: Value = serde_json::from_str(&daemon.succeed(&["devinfo", "--json"])).unwrap();
    assert_eq!(info["address"], daemon.ready["address"]);
    assert!(info["max_qp"].is_number() && info["window_packets"].is_number(), "{info}");
    assert!(info["recv_buffer"].is_null() && info["socket"].is_string(), "{info}");
    let text = daemon.succeed(&["devinfo"]);
    assert!(text.contains("max_qp:") && text.contains("daemon"), "{text}");
}
