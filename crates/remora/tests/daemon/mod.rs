//! A daemon in a thread of the test's process.
#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../support/killed.rs"]
pub(crate) mod killed;
#[path = "../support/peer.rs"]
pub(crate) mod peer;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod side;
#[path = "../support/until.rs"]
pub(crate) mod until;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use remora::daemon::{Observer, Policy, Server, ServerOptions};
use remora::event::Event;
use remora::prelude::*;

const MACHINE: &str = "web.sock";

/// A daemon, which ends with the test.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// Alone in a folder.
    pub(crate) socket: PathBuf,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub(crate) fn start() -> Daemon {
        Daemon::with(Policy::default())
    }

    pub(crate) fn with(policy: Policy) -> Daemon {
        Daemon::serving(ServerOptions { policy, ..ServerOptions::default() })
    }

    /// With options other than where it listens.
    pub(crate) fn serving(options: ServerOptions) -> Daemon {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("remora-daemon-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let socket = folder.join("nic.sock");
        let device = DeviceOptions::new().embedded().open().unwrap();
        let options = ServerOptions { socket: Some(socket.clone()), ..options };
        let mut server = Server::new(device, options).unwrap();
        server.serve_machine(folder.join(MACHINE)).unwrap();
        let stop = Arc::new(Event::new().unwrap());
        let told = stop.clone();
        let thread = Some(thread::spawn(move || server.run(&told).unwrap()));
        Daemon { socket, stop, thread }
    }

    /// The socket by which a virtual machine gets a device.
    pub(crate) fn machine(&self) -> PathBuf {
        self.socket.with_file_name(MACHINE)
    }

    pub(crate) fn attach(&self) -> Device {
        DeviceOptions::new().attach(&self.socket).open().unwrap()
    }

    pub(crate) fn observer(&self) -> Observer {
        Observer::connect(Some(&self.socket)).unwrap()
    }

    /// Ends it, and waits for its end.
    pub(crate) fn end(&mut self) {
        self.stop.notify().unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || thread::panicking());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
        std::fs::remove_dir_all(self.socket.parent().unwrap()).ok();
    }
}
