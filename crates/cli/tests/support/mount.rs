//! `remora dma mount` as a process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Folder, Killed, skips};

/// Can this process mount a file system, in a namespace of its own?
pub(crate) fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-Urm", "test", "-c", "/dev/fuse"]).output();
    let can = tried.is_ok_and(|tried| tried.status.success())
        && File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        skips::lacks("no file system can be mounted here");
    }
    can
}

/// `remora dma mount` at work in a namespace of its own, until it is dropped.
pub(crate) struct Mounted {
    child: Killed,
    /// The mount, as other processes find it: by the root of the namespace.
    pub(crate) dir: PathBuf,
    pub(crate) told: Value,
}

impl Mounted {
    pub(crate) fn start(folder: &Folder, options: &[&str], socket: Option<PathBuf>) -> Mounted {
        let dir = folder.path("mounted");
        fs::create_dir_all(&dir).unwrap();
        let remora = env!("CARGO_BIN_EXE_remora");
        let mut unshare = Command::new("unshare");
        unshare.args(["-Urm", remora, "dma", "mount", "--json"]).arg(&dir);
        unshare.args(options).stdin(Stdio::null()).stdout(Stdio::piped());
        unshare.env("REMORA_NIC", socket.unwrap_or_else(|| "off".into()));
        let mut child = Killed(unshare.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told = serde_json::from_str(&line).expect("the mount did not come about");
        let root = PathBuf::from(format!("/proc/{}/root", child.id()));
        let dir = root.join(dir.strip_prefix("/").unwrap());
        Mounted { child, dir, told }
    }

    pub(crate) fn open(&self, name: &str) -> File {
        File::options().read(true).write(true).open(self.dir.join(name)).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn stop(mut self) {
        self.signal(Signal::INT);
        assert!(self.child.wait().unwrap().success());
    }
}
