//! What is measured: groups of nodes, one node alone, Redis with a replica; all on loopback.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remora::Device;
use remora::fabric::FABRIC_VARIABLE;
use remora::message::SOCKET_VARIABLE;
use remora_cluster::etcd::{EtcdGroup, overview};
use remora_command::folder::Folder;
use rustix::fs::{FsWord, statfs};
use serde::Deserialize;

use super::super::daemon_process::Daemon;
use super::super::program::{Program, cpu_s, free_tcp_port, has_tcp_listener};
use super::by_card::ByCard;
use super::load::{Ask, Load, Work};
use crate::child::Helper;
use crate::store::cluster::trial::{Etcd, Node, Terms, start_nodes};

/// How long a group may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks for the primary.
const LOOK: Duration = Duration::from_millis(20);
/// A key that no measurement reads.
const NOBODYS: u64 = 999_999_999_999;
/// What `statfs` says of a file system in memory (statfs(2)).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// Memory of a store.
const MEMORY: &str = "256M";

/// The lease of the groups whose primary is killed, in seconds.
pub(super) const SHORT: &str = "0.5";
/// That of the others: clients, nodes and etcd want all cores at once, and no node is to lose a
/// lease by that.
const LONG: &str = "5";

/// The group that is measured.
fn terms(members: u8, lease: &str) -> Terms<'_> {
    let (cluster, group, memory) = ("bench", "a", MEMORY);
    Terms { cluster, group, members, lease, memory, folder: None, variables: &[] }
}

/// Something that takes Redis' commands, and whose processes end with this value.
pub(super) struct Bed {
    pub(super) front: SocketAddr,
    /// Where clients over the card reach it, unless it has none.
    card: Option<SocketAddr>,
    /// The processes that have the data: the one that serves, with its card, then the others.
    servers: Vec<u32>,
    /// How many of them are of the one that serves.
    serving: usize,
    _processes: Processes,
}

enum Processes {
    Group(#[expect(dead_code, reason = "it is there to be dropped")] Group),
    One(#[expect(dead_code, reason = "it is there to be dropped")] Helper),
    Redis(#[expect(dead_code, reason = "they are there to be dropped")] ([Program; 2], Folder)),
}

/// A group, with an etcd of its own.
pub(super) struct Group {
    pub(super) nodes: Vec<Node>,
    members: u8,
    lease: &'static str,
    etcd: Etcd,
    /// Where the nodes' logs are, if they have any.
    _folder: Option<Folder>,
    /// Whose card the nodes share, unless each has its own.
    daemon: Option<Daemon>,
}

impl Group {
    /// Starts a group with this lease, in seconds, and waits until it serves.
    pub(super) fn start(members: u8, lease: &'static str) -> Result<Group> {
        Group::start_in(None, None, members, lease)
    }

    fn start_in(
        folder: Option<Folder>,
        daemon: Option<Daemon>,
        members: u8,
        lease: &'static str,
    ) -> Result<Group> {
        let mut etcd = Etcd::start()?;
        etcd.wait(&AtomicBool::new(false))?;
        let socket = daemon.as_ref().map(Daemon::socket);
        let variables = socket.as_ref().map(|socket| {
            [(SOCKET_VARIABLE, socket.as_os_str()), (FABRIC_VARIABLE, OsStr::new("auto"))]
        });
        let terms = Terms {
            folder: folder.as_ref().map(Folder::path),
            variables: variables.as_ref().map_or(&[], |pairs| &pairs[..]),
            ..terms(members, lease)
        };
        let nodes = start_nodes(&etcd.url, terms, members)?;
        let group = Group { nodes, members, lease, etcd, _folder: folder, daemon };
        group.primary()?;
        Ok(group)
    }

    /// Starts a node more.
    pub(super) fn add_node(&mut self) -> Result<()> {
        self.nodes.extend(start_nodes(&self.etcd.url, terms(self.members, self.lease), 1)?);
        Ok(())
    }

    /// Whether its members are the nodes that are there: then the group can lose one.
    pub(super) fn is_whole(&self) -> Result<bool> {
        let terms = terms(self.members, self.lease);
        let name = format!("{}/{}", terms.cluster, terms.group);
        let seen = overview(&EtcdGroup::new(vec![self.etcd.url.clone()], &name))?;
        let Some(latest) = seen.configuration.filter(|latest| latest.is_established()) else {
            return Ok(false);
        };
        let members: BTreeSet<_> = latest.members.iter().map(ToString::to_string).collect();
        Ok(members == self.nodes.iter().map(|node| node.ready.node.clone()).collect())
    }

    /// Which of the nodes serves.
    pub(super) fn primary(&self) -> Result<usize> {
        let start = Instant::now();
        loop {
            for (index, node) in self.nodes.iter().enumerate() {
                let work = Work { keys: u64::MAX, value: 1 };
                let put = |mut load: Load| load.latency(Ask::Put, work, NOBODYS, 1);
                // A node that does not serve says so, and one that was killed is not there.
                if Load::connect(front(node)?, 1).and_then(put).is_ok() {
                    return Ok(index);
                }
            }
            ensure!(start.elapsed() < PATIENCE, "no node of the group serves after {PATIENCE:?}");
            std::thread::sleep(LOOK);
        }
    }
}

/// Where Redis' clients reach a node.
pub(super) fn front(node: &Node) -> Result<SocketAddr> {
    let first = node.ready.redis.first().context("a node without a front")?;
    first.parse().with_context(|| format!("a node’s front is at {first}"))
}

impl Bed {
    /// A group of so many nodes that share a card.
    pub(super) fn group(members: u8) -> Result<Bed> {
        let daemon = Daemon::start(None, "auto")?;
        Bed::of(Group::start_in(None, Some(daemon), members, LONG)?)
    }

    /// A group of so many nodes with a card each, which are connected by UDP.
    pub(super) fn group_apart(members: u8) -> Result<Bed> {
        Bed::of(Group::start(members, LONG)?)
    }

    /// A group of three that acknowledges what is on the disks of two.
    pub(super) fn group_on_disks() -> Result<Bed> {
        let folder = Folder::new("bench-logs")?;
        let path = folder.path();
        let system = statfs(path).with_context(|| format!("cannot look at {}", path.display()))?;
        ensure!(
            system.f_type != TMPFS_MAGIC,
            "{} is in memory, and to sync it costs nothing: set TMPDIR to a folder on a disk",
            path.display()
        );
        Bed::of(Group::start_in(Some(folder), None, 3, LONG)?)
    }

    fn of(group: Group) -> Result<Bed> {
        let primary = group.primary()?;
        let node = &group.nodes[primary];
        let (front, card) =
            (front(node)?, node.ready.store.as_deref().map(str::parse).transpose()?);
        let mut servers: Vec<_> = group.nodes.iter().map(|node| node.process.id()).collect();
        servers.swap(0, primary);
        servers.splice(1..1, group.daemon.as_ref().map(Daemon::id));
        let serving = 1 + usize::from(group.daemon.is_some());
        Ok(Bed { front, card, servers, serving, _processes: Processes::Group(group) })
    }

    /// A store that is no node of a group.
    pub(super) fn one() -> Result<Bed> {
        #[derive(Deserialize)]
        struct Ready {
            redis: Vec<SocketAddr>,
            store: SocketAddr,
        }
        let mut process = Helper::start([
            "store",
            "serve",
            "--json",
            "--until-eof",
            "--memory",
            MEMORY,
            "--redis",
            "127.0.0.1:0",
        ])?;
        let ready: Ready = serde_json::from_str(&process.line_within(PATIENCE)?)?;
        let front = *ready.redis.first().context("a store without a front")?;
        let (card, servers) = (Some(ready.store), vec![process.id()]);
        Ok(Bed { front, card, servers, serving: 1, _processes: Processes::One(process) })
    }

    /// `redis-server` with a replica that follows it.
    pub(super) fn redis() -> Result<Bed> {
        let (port, replica) = (free_tcp_port()?, free_tcp_port()?);
        // A replica keeps what it gets from the first one in a file.
        let folder = Folder::new("bench-redis")?;
        let start = |port: u16, more: &[&str]| {
            let mut command = Command::new("redis-server");
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
            command.args(["--appendonly", "no", "--loglevel", "warning"]);
            command.args(["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]);
            command.arg("--dir").arg(folder.path()).args(more);
            let mut program = Program::start_on_any(command)?;
            program.wait_until("listens", || has_tcp_listener(port))?;
            Ok::<_, anyhow::Error>(program)
        };
        let first = start(port, &[])?;
        let second = start(replica, &["--replicaof", "127.0.0.1", &port.to_string()])?;
        let front = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let servers = vec![first.id()?, second.id()?];
        let _processes = Processes::Redis(([first, second], folder));
        let bed = Bed { front, card: None, servers, serving: 1, _processes };
        let (start, work) = (Instant::now(), Work { keys: 1, value: 1 });
        // WAIT has an answer that is not 1 until the replica follows.
        while bed.load(1)?.latency(Ask::PutAndWait, work, 0, 1).is_err() {
            ensure!(start.elapsed() < PATIENCE, "Redis’ replica does not follow");
            std::thread::sleep(LOOK);
        }
        Ok(bed)
    }

    /// Connects so many clients.
    pub(super) fn load(&self, connections: usize) -> Result<Load> {
        Load::connect(self.front, connections)
    }

    /// Connects a client over this card, whose puts are kernels' calls.
    pub(super) fn by_card(&self, device: &Device) -> Result<ByCard> {
        ByCard::connect(device, self.card.context("a server without a card")?)
    }

    /// Thousands of requests a second of processor time: of the process that serves, with its card,
    /// and of all that have the data. The last one is by the clock, as `run` measures it.
    pub(super) fn rates(
        &self,
        requests: usize,
        run: impl FnOnce() -> Result<f64>,
    ) -> Result<[f64; 3]> {
        let spent = || self.servers.iter().map(|server| cpu_s(*server)).collect::<Result<Vec<_>>>();
        let before = spent()?;
        let wall = run()?;
        let spent: Vec<_> = spent()?.iter().zip(before).map(|(now, then)| now - then).collect();
        let of = |cpu: f64| requests as f64 / cpu.max(0.01) / 1e3;
        Ok([of(spent[..self.serving].iter().sum()), of(spent.iter().sum()), wall])
    }
}
