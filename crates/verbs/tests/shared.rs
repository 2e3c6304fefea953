//! What processes share on the card of one daemon: programs in C, each of several processes.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use remora::daemon::{Observer, Policy, Server, ServerOptions};
use remora::event::Event;
use remora::nic::nic::InUse;
use remora::{Device, DeviceOptions};

/// A daemon in a thread of this process.
struct Daemon {
    device: Device,
    socket: PathBuf,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::of(DeviceOptions::new())
    }

    /// One with a card of its own that is made so.
    fn of(card: DeviceOptions) -> Daemon {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Programs may be reached by each way.
        let file = cm::links().join(format!("policy-{number}.toml"));
        let own = rustix::process::geteuid().as_raw();
        fs::write(&file, format!("[users.{own}]\nlend_process_memory = true\n")).unwrap();
        let policy = Policy::read(&file).unwrap();
        let socket = cm::links().join(format!("shared-{number}.sock"));
        let device = card.embedded().open().unwrap();
        let options = ServerOptions { socket: Some(socket.clone()), policy, loader: None };
        let mut server = Server::new(device.clone(), options).unwrap();
        let stop = Arc::new(Event::new().unwrap());
        let stops = stop.clone();
        let thread = thread::spawn(move || server.run(&stops).unwrap());
        Daemon { device, socket, stop, thread: Some(thread) }
    }

    /// Waits until nothing is left of any program.
    fn wait_until_empty(&self) {
        let observer = Observer::connect(Some(&self.socket)).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while self.device.in_use() != InUse::default()
            || !observer.status().unwrap().sessions.is_empty()
        {
            assert!(Instant::now() < until, "something is left: {:?}", self.device.in_use());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.notify().unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || thread::panicking());
    }
}

/// Runs a program on the card of a daemon, which has nothing of it behind its end.
fn shares(source: &str) {
    shares_by(source, &[]);
}

/// The same for a program that is told by which `ways` the card may reach its memory: as `usual`,
/// or as this says.
fn shares_by(source: &str, ways: &[&str]) {
    let Some(program) = cm::built(source, "rdma_cma.h") else { return };
    let daemon = Daemon::start();
    let command = [&[program.to_str().unwrap()], ways].concat().join(" ");
    let mut program = cm::Program::start_with(&command, |command| {
        command.env("REMORA_NIC", &daemon.socket);
        for ways in ways.iter().filter(|ways| **ways != "usual") {
            command.env("REMORA_MEMORY", ways);
        }
    });
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{ways:?}: {said}");
    for line in said.lines().filter_map(|line| line.strip_prefix("skipped: ")) {
        cm::skips::lacks(line);
    }
    daemon.wait_until_empty();
}

/// Runs a program on cards of its own, where processes share nothing, and are told so.
fn shares_nothing(source: &str) {
    let Some(program) = cm::built(source, "rdma_cma.h") else { return };
    let mut program = cm::Program::start_with(&format!("{} own", program.display()), |command| {
        command.env("REMORA_NIC", "off");
    });
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("remora nic"), "the error says what to do:\n{said}");
}

#[test]
fn a_device_and_its_objects_are_imported() {
    shares("shared/import");
}

#[test]
fn cards_in_processes_are_not_imported() {
    shares_nothing("shared/import");
}

#[test]
fn an_xrc_domain_is_one_for_two_processes() {
    shares("shared/xrc");
}

#[test]
fn a_forked_child_uses_its_parents_objects() {
    shares("shared/fork");
}

#[test]
fn a_forked_child_has_a_heap_of_its_own() {
    shares("shared/heap");
}

#[test]
fn a_forked_child_has_no_card_of_its_parents() {
    shares_nothing("shared/fork");
}

#[test]
fn memory_of_all_kinds_is_reached_by_each_way() {
    for ways in ["usual", "convert", "process_vm", "proc_mem", "convert,process_vm"] {
        shares_by("shared/memory", &[ways]);
    }
}

/// A client on a daemon's card that has been given an address is seen at that address.
#[test]
fn a_server_sees_the_address_that_the_daemon_of_its_client_was_given() {
    let Some(program) = cm::built("cm/source", "rdma_cma.h") else { return };
    let program = program.display();
    let [high, low] = std::process::id().to_be_bytes()[2..] else { panic!("two bytes") };
    let [own, server_own] = [93, 92].map(|last| format!("127.{}.{low}.{last}", 100 + high % 100));
    let daemon = Daemon::of(DeviceOptions::new().bind(&own));
    let (_alone, port) = (cm::alone(), cm::port());
    let mut server = cm::Program::start_with(&format!("{program} server {port}"), |command| {
        command.env("REMORA_ADDR", &server_own).env("REMORA_NIC", "off");
    });
    server.listens(port);
    let client = format!("{program} client {server_own} {port}");
    let mut client = cm::Program::start_with(&client, |command| {
        command.env("REMORA_NIC", &daemon.socket);
    });
    let (code, said) = client.end();
    assert_eq!((code, said), (Some(0), format!("client {own}\n")), "{}", server.said());
    let (code, said) = server.end();
    assert_eq!((code, said), (Some(0), format!("client {own}\nserver {server_own}\n")));
    daemon.wait_until_empty();
}
