//! A daemon in a process of its own, which can be killed: the test's program, started again.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use remora::daemon::{Observer, Server, ServerOptions};
use remora::event::Event;
use remora::prelude::*;

use super::killed::Killed;
use super::until::{until, until_ok};

/// Names the socket for a daemon in a process of its own.
const SOCKET: &str = "REMORA_TEST_SOCKET";

pub(crate) struct DaemonProcess {
    pub(crate) child: Killed,
    pub(crate) socket: PathBuf,
}

impl DaemonProcess {
    pub(crate) fn start(name: &str) -> DaemonProcess {
        let name = format!("remora-{name}-{}-process.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        DaemonProcess { child: started(&socket), socket }
    }

    /// Another daemon at the place of one that was killed.
    pub(crate) fn again(&mut self) {
        self.child = started(&self.socket);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn attach(&self) -> Device {
        DeviceOptions::new().attach(&self.socket).open().unwrap()
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        std::fs::remove_file(&self.socket).ok();
    }
}

fn started(socket: &PathBuf) -> Killed {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "daemon::process::serve", "--nocapture"]);
    command.env(SOCKET, socket).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let serves = lines.map(Result::unwrap).any(|line| line.contains("serves"));
    assert!(serves, "the daemon has not started");
    Killed(child)
}

/// A daemon, for tests that start it as a process: until its standard input ends.
#[test]
#[ignore = "a program for other tests"]
fn serve() {
    let socket = Some(PathBuf::from(std::env::var_os(SOCKET).unwrap()));
    let device = DeviceOptions::new().embedded().open().unwrap();
    let options = ServerOptions { socket, ..ServerOptions::default() };
    let mut server = Server::new(device, options).unwrap();
    let stop = Arc::new(Event::new().unwrap());
    let told = stop.clone();
    thread::spawn(move || {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        told.notify().unwrap();
    });
    println!("serves");
    server.run(&stop).unwrap();
}

/// What a process has open and mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) descriptors: usize,
    /// Mappings of memory files.
    pub(crate) mappings: usize,
}

impl Held {
    /// What the process `pid` holds: a number, or `self`.
    pub(crate) fn by(pid: &str) -> Held {
        let process = std::path::Path::new("/proc").join(pid);
        let descriptors = std::fs::read_dir(process.join("fd")).unwrap().count();
        let maps = std::fs::read_to_string(process.join("maps")).unwrap();
        let mappings = maps.lines().filter(|line| line.contains("/memfd:")).count();
        Held { descriptors, mappings }
    }

    /// Waits until the process holds no more than it did. (One more descriptor stays: a card asks
    /// the kernel about sockets of its machine by it.)
    pub(crate) fn wait_until_no_more(self, pid: &str) {
        until_ok("no more is held", || {
            let now = Held::by(pid);
            let is_so = now.descriptors <= self.descriptors + 1 && now.mappings <= self.mappings;
            is_so.then_some(()).ok_or_else(|| format!("{now:?} of {pid}; there were {self:?}"))
        });
    }
}

/// Waits until a daemon has only so many sessions.
pub(crate) fn wait_for_sessions(observer: &Observer, count: usize) {
    until("sessions have ended", || observer.status().unwrap().sessions.len() == count);
}
