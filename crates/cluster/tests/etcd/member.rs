//! etcd's members, in a directory of their own, at a loopback address of their own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use remora_cluster::etcd::overview;
use rustix::process::{Pid, Signal, kill_process};

/// How long they may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three members of etcd. Dropping them ends them.
pub(crate) struct Etcd {
    members: Vec<Child>,
    directory: PathBuf,
    pub(crate) endpoints: Vec<String>,
}

impl Etcd {
    pub(crate) fn start() -> Etcd {
        let pid = std::process::id();
        let directory = std::env::temp_dir().join(format!("remora-etcd-{pid}"));
        std::fs::create_dir_all(&directory).unwrap();
        // The ports are the usual ones, at an address that no other process of this machine has.
        let host = format!("127.{}.{}.{}", 64 + (pid >> 16) % 128, pid >> 8 & 255, pid & 255);
        let client = |member: u16| format!("http://{host}:{}", 2379 + 2 * member);
        let peer = |member: u16| format!("http://{host}:{}", 2380 + 2 * member);
        let all: Vec<_> = (0..3).map(|member| format!("e{member}={}", peer(member))).collect();
        let start = |member: u16| {
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("e{member}"), "--data-dir"]);
            command.arg(directory.join(member.to_string()));
            command.args(["--listen-client-urls", &client(member)]);
            command.args(["--advertise-client-urls", &client(member)]);
            command.args(["--listen-peer-urls", &peer(member)]);
            command.args(["--initial-advertise-peer-urls", &peer(member)]);
            command.args(["--initial-cluster", &all.join(",")]);
            command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
            command.args(["--logger", "zap", "--log-level", "fatal"]);
            let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            quiet.spawn().expect("etcd, of Debian's package etcd-server, starts")
        };
        let members = (0..3).map(start).collect();
        let etcd = Etcd { members, directory, endpoints: (0..3).map(client).collect() };
        etcd.wait();
        etcd
    }

    /// Sends all members a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        for member in &self.members {
            kill_process(Pid::from_child(member), signal).unwrap();
        }
    }

    /// Waits until the members answer.
    fn wait(&self) {
        let (options, start) = (super::node::options(self.endpoints.clone()), Instant::now());
        while let Err(reason) = overview(&options.group) {
            assert!(start.elapsed() < PATIENCE, "{reason}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            // One that has ended by itself needs no end.
            let _ = member.kill();
            let _ = member.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
