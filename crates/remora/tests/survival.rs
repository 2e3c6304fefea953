//! Programs apart from each other: kept sessions, whose chains go on answering when their program
//! is killed, and programs in namespaces of their own, which share a card by its socket only.

mod daemon;
#[path = "support/skips.rs"]
mod skips;

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use daemon::Daemon;
use daemon::program::{Program, heard, read, written};
use remora::memory::Buffer;
use remora::message::{
    Answer, ClientRequest, Hello, Keep, Loan, MessageSocket, Object, SOCKET_VARIABLE, decode,
    encode, greeting,
};
use remora::offload::chain::offload::{list, table::Value};
use remora::prelude::*;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};

const LONG: Duration = Duration::from_secs(20);

/// Serves a list by a chain, until it is killed.
#[test]
#[ignore = "a program for other tests"]
fn serve_a_chain() {
    let server = DeviceOptions::new().open().unwrap();
    let domain = server.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let value = Value { addr: memory.addr() + 1024, len: 5 };
    memory.write_at(0, &list::nodes(memory.addr(), &[(7, value)])).unwrap();
    memory.write_at(1024, b"seven").unwrap();
    let chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()]).unwrap();
    println!("says {} {}", memory.addr(), written(chain.local().unwrap()));
    chain.serve(read(&heard()).0, server.info().mtu).unwrap();
    println!("says serves");
    thread::sleep(LONG * 10);
}

/// The program of the test `name`, in user, network and mount namespaces of its own, in which the
/// daemon's folder is at another place.
fn apart(daemon: &Daemon, name: &str) -> Program {
    let mut command = Command::new("unshare");
    let mount = "mount --bind \"$1\" /mnt && shift && exec \"$@\"";
    command.args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c", mount, "sh"]);
    command.arg(daemon.socket.parent().unwrap()).arg(std::env::current_exe().unwrap());
    Program::within(command, name, Path::new("/mnt/nic.sock"), "")
}

#[test]
fn a_chain_answers_when_its_program_was_killed() {
    let daemon = Daemon::start();
    let mut program = Program::start("serve_a_chain", &daemon.socket, "list:10m");
    let line = program.says();
    let (at, peer) = line.split_once(' ').unwrap();
    let at = at.parse().unwrap();
    let device = DeviceOptions::new().embedded().open().unwrap();
    let mtu = device.info().mtu;
    let mut client = AsyncChainClient::new(&device.alloc_pd().unwrap(), 64).unwrap();
    client.connect(read(peer).0, mtu).unwrap();
    program.hears(&written(client.local()));
    assert_eq!(program.says(), "serves");
    assert_eq!(client.call(&list::message(7, at)).wait(LONG).unwrap(), b"seven");

    program.kill();
    for _ in 0..20 {
        assert_eq!(client.call(&list::message(7, at)).wait(LONG).unwrap(), b"seven");
    }
    let observer = daemon.observer();
    let sessions = || observer.status().unwrap().sessions;
    let until = Instant::now() + LONG;
    while sessions()[0].attached {
        assert!(Instant::now() < until, "the daemon does not notice that the program has ended");
        thread::yield_now();
    }
    assert_eq!(sessions()[0].name, "list");
    assert!(sessions()[0].ends_in_s.is_some_and(|seconds| seconds <= 600));
    observer.evict("list").unwrap();
    assert!(sessions().is_empty());
}

/// Calls a chain, of which its standard input tells, ten times.
#[test]
#[ignore = "a program for other tests"]
fn call_a_chain() {
    let device = DeviceOptions::new().open().unwrap();
    let mut client = AsyncChainClient::new(&device.alloc_pd().unwrap(), 64).unwrap();
    println!("says {}", written(client.local()));
    let line = heard();
    let (at, peer) = line.split_once(' ').unwrap();
    client.connect(read(peer).0, device.info().mtu).unwrap();
    heard();
    for _ in 0..10 {
        let answer = client.call(&list::message(7, at.parse().unwrap())).wait(LONG).unwrap();
        println!("says {}", String::from_utf8(answer).unwrap());
    }
    // The session lasts until the test has looked at it.
    heard();
}

/// Writes rising numbers to card memory, until it is refused; then says so.
#[test]
#[ignore = "a program for other tests"]
fn write_until_fenced() {
    let device = DeviceOptions::new().open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let kept = domain.alloc_device_memory(64, Access::all()).unwrap();
    let writer = domain.create_qp(&QueuePairOptions::new()).unwrap();
    writer.loop_back(&writer, Access::all()).unwrap();
    let there = Remote { addr: kept.addr(), rkey: kept.key(), len: 8 };
    for number in 1u64.. {
        if writer.write(&number.to_le_bytes(), there).wait(LONG).is_err() {
            break;
        }
        if number == 1 {
            println!("says {} {} {}", there.addr, there.rkey, device.ticket().unwrap());
        }
    }
    assert!(device.alloc_pd().is_err(), "a session that was taken over makes nothing");
    println!("says fenced");
    thread::sleep(LONG * 10);
}

#[test]
fn a_program_that_was_stopped_while_its_session_was_taken_over_is_fenced() {
    let daemon = Daemon::start();
    let mut program = Program::start("write_until_fenced", &daemon.socket, "numbers:10m");
    let line = program.says();
    let mut words = line.splitn(3, ' ');
    let addr: u64 = words.next().unwrap().parse().unwrap();
    let there = Remote { addr, rkey: words.next().unwrap().parse().unwrap(), len: 8 };
    program.signal(Signal::STOP);

    let taker = DeviceOptions::new()
        .attach(&daemon.socket)
        .take_over(words.next().unwrap().parse().unwrap(), Keep::Forever)
        .open()
        .unwrap();
    let domain = taker.taken().iter().find_map(|object| match object {
        Object::Pd(pd) => taker.adopt_pd(*pd),
        _ => None,
    });
    let domain = domain.unwrap();
    let holder = domain.create_qp(&QueuePairOptions::new()).unwrap();
    holder.loop_back(&holder, Access::all()).unwrap();
    program.signal(Signal::CONT);
    assert_eq!(program.says(), "fenced");
    // What it was posting when it was stopped has been carried out before it knew.
    holder.write(&0u64.to_le_bytes(), there).wait(LONG).unwrap();
    program.kill();
    let memory = domain.alloc(64, Access::all()).unwrap();
    holder.read(memory.slice(..8), there).wait(LONG).unwrap();
    assert_eq!(memory.slice(..8).to_vec().unwrap(), [0; 8], "a fenced program has written");
}

/// Has a session, and says by which descriptor.
#[test]
#[ignore = "a program for other tests"]
fn greet_a_daemon() {
    let path = std::env::var_os(SOCKET_VARIABLE).unwrap();
    let socket = MessageSocket::connect(path.as_ref()).unwrap();
    socket.send(&greeting(&Hello::default()), &[]).unwrap();
    assert!(socket.wait(None).unwrap() && socket.receive(&mut Vec::new()).unwrap().is_some());
    println!("says {}", socket.as_fd().as_raw_fd());
    thread::sleep(LONG * 10);
}

/// Its number may be that of another process, whose memory it is not to lend.
#[test]
fn a_connection_that_has_outlived_its_process_lends_no_memory() {
    let daemon = Daemon::start();
    let mut program = Program::start("greet_a_daemon", &daemon.socket, "off");
    let number = program.says().parse().unwrap();
    let process = pidfd_open(Pid::from_child(&program.child), PidfdFlags::empty()).unwrap();
    let taken = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).unwrap();
    let socket = MessageSocket::accepted(taken);
    let lends = || {
        socket.send(&encode(&ClientRequest::Lend(Loan::Process)), &[]).unwrap();
        assert!(socket.wait(Some(LONG)).unwrap());
        let mut answer = Vec::new();
        socket.receive(&mut answer).unwrap().unwrap();
        match decode(&answer).unwrap() {
            Answer::Lent(_) => Ok(()),
            Answer::Refused(reason) => Err(reason.to_owned()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(lends(), Ok(()));
    program.kill();
    assert!(lends().unwrap_err().contains("has ended"));
    drop(socket);
    let until = Instant::now() + LONG;
    while !daemon.observer().status().unwrap().sessions.is_empty() {
        assert!(Instant::now() < until, "the session does not end with its connection");
        thread::yield_now();
    }
}

/// What is open in a process, by its descriptors.
fn open_files(pid: &str) -> Vec<String> {
    let folder = std::fs::read_dir(Path::new("/proc").join(pid).join("fd")).unwrap();
    let links = folder.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let mut links: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    // (The folder itself is open while it is read.)
    links.retain(|link| !link.contains("/fd"));
    links.sort();
    links
}

/// Uses a card, and then becomes another program, which waits.
#[test]
#[ignore = "a program for other tests"]
fn become_another_program() {
    let before = open_files("self");
    let device = DeviceOptions::new().open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let own = domain.register(Buffer::new(4096).unwrap(), Access::all()).unwrap();
    let cq = device.create_cq(16).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    assert!(open_files("self").len() > before.len());
    println!("says {}", before.join(" | "));
    heard();
    let failed = Command::new("sh").args(["-c", "echo says another; read line"]).exec();
    drop((memory, own));
    panic!("no other program: {failed}");
}

/// Nothing of the session is in the program that takes the place of its own, and it ends at once.
#[test]
fn a_session_ends_when_its_process_runs_another_program() {
    let daemon = Daemon::start();
    let mut program = Program::start("become_another_program", &daemon.socket, "");
    let before = program.says();
    let sessions = || daemon.observer().status().unwrap().sessions;
    assert_eq!(sessions().len(), 1);
    program.hears("");
    assert_eq!(program.says(), "another");
    let open = open_files(&program.child.id().to_string());
    assert_eq!(open.join(" | "), before, "the other program has descriptors of the session");
    let until = Instant::now() + LONG;
    while !sessions().is_empty() {
        assert!(Instant::now() < until, "the session goes on: {:?}", sessions());
        thread::yield_now();
    }
    assert!(program.child.try_wait().unwrap().is_none(), "it was the session that ended");
}

#[test]
fn programs_without_a_network_share_a_card_by_its_socket() {
    if !(skips::has("unshare", "util-linux") && skips::has("mount", "mount")) {
        return;
    }
    let tried =
        ["--user", "--map-root-user", "--net", "--mount", "mount", "--bind", "/tmp", "/mnt"];
    let permitted = Command::new("unshare").args(tried).stderr(Stdio::null()).status();
    if !permitted.is_ok_and(|status| status.success()) {
        skips::lacks("this system permits no namespaces");
        return;
    }
    let daemon = Daemon::start();
    let mut server = apart(&daemon, "serve_a_chain");
    let mut client = apart(&daemon, "call_a_chain");
    let (served, calls) = (server.says(), client.says());
    client.hears(&served);
    server.hears(&calls);
    assert_eq!(server.says(), "serves");
    client.hears("");
    for _ in 0..10 {
        assert_eq!(client.says(), "seven");
    }
    let sessions = daemon.observer().status().unwrap().sessions;
    assert!(sessions.len() == 2 && sessions.iter().all(|session| session.attached));
}

#[test]
fn without_a_daemon_nothing_is_kept() {
    let kept = DeviceOptions::new().embedded().keep("x", remora::message::Keep::Forever).open();
    let error = kept.unwrap_err().to_string();
    assert!(error.contains("session x") && error.contains("remora nic"), "{error}");
}
