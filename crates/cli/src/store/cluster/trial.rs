//! A cluster on loopback, with an etcd of its own: to try, and for `remora bench cluster`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use remora_cluster::etcd::EtcdGroup;
use remora_command::bound::bound;
use remora_command::folder::Folder;
use remora_command::stop::Interrupted;
use remora_command::{failure, output, stop};
use remora_store::front::slots::{Range, SLOTS};
use remora_store::way::door::PORT;
use serde::Deserialize;
use serde_json::json;

use super::super::PASSWORD_VARIABLE;
use super::Try;
use super::moves::{atlas, left, want};
use super::status::Look;
use crate::child::Helper;

/// The cluster's name.
const NAME: &str = "try";
/// How long etcd, and then the group, may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ports from one node's to the next one's: each has a second one for the other nodes.
const PORTS: u16 = 20;
/// How often is looked whether something has come about.
const LOOK: Duration = Duration::from_millis(50);

/// etcd, which ends with this value, or with this process.
#[derive(Debug)]
pub(crate) struct Etcd {
    members: Vec<Child>,
    folder: Folder,
    pub(crate) url: String,
    /// Where each member is.
    pub(crate) urls: Vec<String>,
}

/// A node, which ends with this value, or with this process.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) process: Helper,
    pub(crate) ready: Ready,
}

/// What a node prints when it is there.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    group: String,
    pub(crate) node: String,
    /// Where the card's clients reach it.
    pub(crate) store: Option<String>,
    /// Where Redis' clients reach it.
    pub(crate) redis: Vec<String>,
    memcached: Vec<String>,
}

/// How a group's nodes are started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    /// The cluster's name, and the group's.
    pub(crate) cluster: &'a str,
    pub(crate) group: &'a str,
    /// How many members it has.
    pub(crate) members: u8,
    /// Its lease in seconds, as `--lease` takes it.
    pub(crate) lease: &'a str,
    /// The store's memory, as `--memory` takes it.
    pub(crate) memory: &'a str,
    /// A folder in which each node has one of its own for its log, with `--fsync always`.
    pub(crate) folder: Option<&'a Path>,
    /// What the nodes have in their environment beside what this process has.
    pub(crate) variables: &'a [(&'a str, &'a OsStr)],
}

impl Try {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop::on_signals()?;
        if self.until_eof {
            stop::on_end_of_input(stop.clone())?;
        }
        let mut etcd = Etcd::start()?;
        etcd.wait(&stop)?;
        let (mut nodes, mut primaries) = (Vec::new(), Vec::new());
        let (memory, lease) = (self.memory.to_string(), self.lease.as_secs_f64().to_string());
        for group in ('a'..='z').take(self.groups.into()).map(String::from) {
            let terms = Terms {
                cluster: NAME,
                group: &group,
                members: self.nodes,
                lease: &lease,
                memory: &memory,
                folder: None,
                variables: &[],
            };
            nodes.extend(start_nodes(&etcd.url, terms, self.nodes)?);
            match wait_for_primary(&etcd.cluster(), &group, &stop)? {
                Some(primary) => primaries.push(primary),
                None => return Err(Interrupted.into()),
            }
        }
        if !self.hand_out(&etcd.cluster(), &stop)? {
            return Err(Interrupted.into());
        }
        self.announce(&etcd, &nodes, &primaries)?;
        while !stop.load(Ordering::Relaxed) {
            etcd.check()?;
            std::thread::sleep(LOOK);
        }
        // Of nodes that were killed meanwhile nothing more is to be said.
        drop(nodes);
        Ok(())
    }

    /// Gives each group as many of the slots; false if the user has had enough.
    fn hand_out(&self, cluster: &EtcdGroup, stop: &AtomicBool) -> Result<bool> {
        let begun = || Ok(atlas(cluster)?.slots.is_some());
        if !wait_until("the slots are with a group", stop, begun)? {
            return Ok(false);
        }
        let groups = usize::from(self.groups);
        let border = |index: usize| (usize::from(SLOTS) * index / groups) as u16;
        for (index, group) in ('a'..='z').map(String::from).take(groups).enumerate().skip(1) {
            let range = [Range { first: border(index), last: border(index + 1) - 1 }];
            want(cluster, |atlas| atlas.with_move(&range, &group))?;
            let have_come = || Ok(left(cluster, &range, &group)? == 0);
            if !wait_until("slots come to another group", stop, have_come)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn announce(&self, etcd: &Etcd, nodes: &[Node], primaries: &[String]) -> Result<()> {
        if self.json {
            let node = |node: &Node| {
                let Ready { group, node: name, store, redis, memcached } = &node.ready;
                json!({
                    "group": group, "node": name, "process": node.process.id(), "store": store,
                    "redis": redis[0], "memcached": memcached[0],
                    "is_primary": primaries.contains(name),
                })
            };
            return output::json_line(&json!({
                "cluster": NAME,
                "etcd": etcd.url,
                "folder": etcd.folder.path(),
                "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
            }));
        }
        let mut table = output::table([
            "group",
            "node",
            "process",
            "card",
            "Redis’ clients",
            "memcached’s",
            "",
        ]);
        for node in nodes {
            let part = if primaries.contains(&node.ready.node) { "primary" } else { "" };
            let card = node.ready.store.as_deref().unwrap_or("–");
            let process = node.process.id().to_string();
            let Ready { group, node, redis, memcached, .. } = &node.ready;
            table.add_row([group, node, &process, card, &redis[0], &memcached[0], part]);
        }
        let (url, folder) = (&etcd.url, etcd.folder.path().display());
        println!(
            "A cluster of {}, and etcd at {url} with its data in {folder}:",
            output::counted(nodes.len() as u64, "node")
        );
        println!("{table}");
        let first = nodes.iter().find(|node| primaries.contains(&node.ready.node));
        if let Some(node) = first {
            let (_, port) = node.ready.redis[0].rsplit_once(':').unwrap_or_default();
            println!("Try: redis-cli -c -p {port} set greeting hello");
            let card = node.ready.store.iter();
            card.for_each(|card| println!("     remora store get {card} greeting"));
            println!("     remora store cluster watch {NAME} --etcd {url}");
            if self.nodes > 1 {
                let process = node.process.id();
                println!("     kill -9 {process}        the primary: another node takes over");
            }
        }
        let (more, memory) = (format!("--cluster {NAME} --etcd {url}"), self.memory);
        println!(
            "     remora store serve {more} --memory {memory} --redis 0 --memcached 0        a \
             node in the place of one that is lost"
        );
        println!("Stop: Ctrl-C");
        Ok(())
    }
}

/// Waits until something is so; false if the user has had enough.
fn wait_until(
    what: &str,
    stop: &AtomicBool,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let start = Instant::now();
    while !is_so()? {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        ensure!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// A port that no other node of this process has had: they may share a card, and so an address.
fn free_port() -> u16 {
    static NODES: AtomicU16 = AtomicU16::new(0);
    let node = NODES.fetch_add(1, Ordering::Relaxed) % ((u16::MAX - PORT) / PORTS);
    PORT + node * PORTS
}

/// Starts so many nodes of a group, and waits until they are there.
///
/// # Errors
/// One of them does not start.
pub(crate) fn start_nodes(url: &str, terms: Terms<'_>, count: u8) -> Result<Vec<Node>> {
    let members = terms.members.to_string();
    let mut args = vec!["store", "serve", "--json", "--until-eof", "--memory", terms.memory];
    args.extend(["--redis", "127.0.0.1:0", "--memcached", "127.0.0.1:0"]);
    args.extend([
        "--cluster",
        terms.cluster,
        "--group",
        terms.group,
        "--etcd",
        url,
        "--nodes",
        &members,
    ]);
    args.extend(["--lease", terms.lease]);
    let start = |number| {
        let mut args: Vec<_> = args.iter().map(OsString::from).collect();
        if let Some(folder) = terms.folder {
            let own = folder.join(format!("node-{number}"));
            std::fs::create_dir(&own).context("cannot make a folder for a node's log")?;
            args.extend(["--fsync", "always", "--dir"].map(OsString::from));
            args.push(own.into());
        }
        args.extend([OsString::from("--port"), free_port().to_string().into()]);
        Helper::start_with(terms.variables, &args)
    };
    let started: Vec<_> = (0..count).map(start).collect::<Result<_>>()?;
    let ready = |mut process: Helper| {
        let line = process.line_within(PATIENCE)?;
        let ready: Ready = serde_json::from_str(&line).context("a node says what is no JSON")?;
        ensure!(!ready.redis.is_empty() && !ready.memcached.is_empty(), "a node without fronts");
        Ok(Node { process, ready })
    };
    started.into_iter().map(ready).collect()
}

/// Waits until a group's primary serves: which one. `None` if the user has had enough.
fn wait_for_primary(cluster: &EtcdGroup, group: &str, stop: &AtomicBool) -> Result<Option<String>> {
    // That of the nodes, which inherit it.
    let password = std::env::var(PASSWORD_VARIABLE).ok();
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let looks = Look::all(cluster, password.as_deref());
        let look = looks.as_ref().ok().and_then(|all| all.iter().find(|it| it.is_of(group)));
        if let Some((primary, _)) = look.and_then(Look::serving) {
            return Ok(Some(primary.to_string()));
        }
        if start.elapsed() > PATIENCE {
            let all: Vec<_> = looks?.iter().map(Look::to_string).collect();
            bail!("no node of group {group} serves after {PATIENCE:?}: {}", all.join("\n"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

impl Etcd {
    /// Starts Debian's etcd at an address of loopback that no other process has.
    ///
    /// # Errors
    /// It is not there, or does not start.
    pub(crate) fn start() -> Result<Etcd> {
        Etcd::start_members(1)
    }

    /// Starts so many members of Debian's etcd.
    ///
    /// # Errors
    /// It is not there, or does not start.
    pub(crate) fn start_members(count: u16) -> Result<Etcd> {
        let there = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        there.context("etcd cannot be started: install it (Debian: apt install etcd-server)")?;
        // A bench has several at a time.
        static STARTED: AtomicU16 = AtomicU16::new(0);
        let before = STARTED.fetch_add(count, Ordering::Relaxed);
        let folder = Folder::new(&format!("cluster-try-{before}"))?;
        let pid = std::process::id();
        let host = format!("127.{}.{}.{}", 64 + (pid >> 16) % 128, pid >> 8 & 255, pid & 255);
        let at = |port: u16, member: u16| format!("http://{host}:{}", port + 2 * (before + member));
        let all: Vec<_> =
            (0..count).map(|member| format!("e{member}={}", at(2380, member))).collect();
        let start = |member: u16| {
            let data = folder.path().join(format!("etcd-{member}"));
            start_member(member, [at(2379, member), at(2380, member)], &all.join(","), &data)
        };
        let members = (0..count).map(start).collect::<Result<Vec<_>>>()?;
        let urls: Vec<_> = (0..count).map(|member| at(2379, member)).collect();
        Ok(Etcd { members, folder, url: urls[0].clone(), urls })
    }

    fn cluster(&self) -> EtcdGroup {
        EtcdGroup::new(vec![self.url.clone()], NAME)
    }

    /// Waits until it answers, or the user has had enough.
    ///
    /// # Errors
    /// It has ended, or does not answer.
    pub(crate) fn wait(&mut self, stop: &AtomicBool) -> Result<()> {
        let (cluster, start) = (self.cluster(), Instant::now());
        while let Err(error) = atlas(&cluster) {
            self.check()?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let told = || failure::told(&error);
            ensure!(start.elapsed() < PATIENCE, "etcd does not begin: {}", told());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// # Errors
    /// It has ended.
    fn check(&mut self) -> Result<()> {
        for member in &mut self.members {
            if let Some(status) = member.try_wait().context("cannot look after etcd")? {
                bail!("etcd has ended ({status}); if it said why, that is above");
            }
        }
        Ok(())
    }
}

/// Starts a member of etcd, which ends with this process. Ctrl-C is not for it.
fn start_member(number: u16, [url, peer]: [String; 2], all: &str, data: &Path) -> Result<Child> {
    let mut command = Command::new("etcd");
    command.args(["--name", &format!("e{number}"), "--data-dir"]).arg(data);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", all]);
    command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
    // Primaries write their entries all the time: nobody asks for what was there before.
    command.args(["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "5m"]);
    command.args(["--logger", "zap", "--log-level", "fatal"]);
    let mut command = bound(&command)?;
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("cannot start etcd")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            // Both calls fail only if it has ended already.
            member.kill().ok();
            member.wait().ok();
        }
    }
}
