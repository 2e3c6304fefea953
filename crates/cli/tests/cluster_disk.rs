//! A group whose nodes keep their logs on disks: `remora store serve --cluster … --dir …`. What it
//! does where disks are damaged or full, where nobody has a lease, and where etcd forgets it.
#![cfg(feature = "cluster")]

#[path = "../../cluster/tests/etcd/member.rs"]
mod member;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use member::Etcd;
use rustix::process::Signal;
use support::nodes::{Process, answered, compare, members, redis};
use support::verbs::installed;
use support::{Folder, command, until};

const CLUSTER: &str = "disks";
/// How long a slow disk takes to sync, in microseconds: more than ten times as long as others.
const SLOW_US: u32 = 200_000;
/// How long one that hangs takes: longer than the test.
const HANG_US: u32 = 1_000_000_000;

/// A group of three, and etcd.
struct Trial {
    /// (They end before etcd does.)
    nodes: Vec<Option<Process>>,
    folders: Vec<PathBuf>,
    etcd: Etcd,
    written: u32,
    folder: Folder,
    /// In seconds.
    lease: &'static str,
}

impl Trial {
    fn start() -> Trial {
        Trial::start_with("1")
    }

    fn start_with(lease: &'static str) -> Trial {
        let folder = Folder::new();
        let folders: Vec<_> = (0..3).map(|node| folder.path(&format!("node-{node}"))).collect();
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let etcd = Etcd::start_alone();
        let nodes = vec![None, None, None];
        let mut trial = Trial { nodes, folders, etcd, written: 0, folder, lease };
        (0..3).for_each(|node| trial.resume(node));
        trial
    }

    /// The command that starts a node. It lives on where it may not make a file longer.
    fn command(&self, node: usize) -> Command {
        self.command_in(&self.folders[node])
    }

    fn command_in(&self, folder: &Path) -> Command {
        let mut command = Command::new("env");
        command.args(["--ignore-signal=XFSZ", env!("CARGO_BIN_EXE_remora"), "store", "serve"]);
        command.args(["--json", "--until-eof", "--memory", "64M", "--ring", "64K"]);
        command.args(["--redis", "127.0.0.1:0", "--cluster", CLUSTER, "--lease", self.lease]);
        command.args(["--etcd", &self.etcd.endpoints[0], "--fsync", "always", "--dir"]);
        command.arg(folder);
        command
    }

    fn resume(&mut self, node: usize) {
        self.nodes[node] = Some(Process::start(self.command(node)));
    }

    /// Starts a node whose disk is slow; what of it was slowed down is in this file.
    fn resume_slowly(&mut self, node: usize, told: &Path) {
        let quick = self.command(node);
        // The node is the process that is started, as it is without.
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "--seccomp-bpf", "-qqq", "-e", "trace=fsync,fdatasync", "-e"]);
        command.arg(format!("inject=fsync,fdatasync:delay_exit={SLOW_US}")).arg("-o").arg(told);
        command.arg(quick.get_program()).args(quick.get_args());
        self.nodes[node] = Some(Process::start(command));
    }

    /// From now on a node's disk does not answer, until what comes back is killed. `None` where no
    /// process may be held up by another one.
    fn hang(&self, node: usize) -> Option<Hang> {
        let pid = self.node(node).child.id().to_string();
        let mut command = Command::new("strace");
        command.args(["-f", "-qqq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e"]);
        command.arg(format!("inject=fsync,fdatasync:delay_enter={HANG_US}")).args(["-p", &pid]);
        let mut hang = Hang(command.stderr(Stdio::null()).spawn().unwrap());
        let status = format!("/proc/{pid}/status");
        let is_traced = || !fs::read_to_string(&status).unwrap().contains("TracerPid:\t0\n");
        let mut may = true;
        until("a node's disk is held up", || {
            may = hang.0.try_wait().unwrap().is_none();
            !may || is_traced()
        });
        may.then_some(hang)
    }

    /// Starts a node that begins the group again where etcd has lost it.
    fn restore(&mut self, node: usize) {
        let mut command = self.command(node);
        command.arg("--restore");
        self.nodes[node] = Some(Process::start(command));
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// Loses a node, whose place a new one takes. Which?
    fn replace(&mut self, node: usize) -> usize {
        let (lost, new) = (self.node(node).text("node").to_owned(), self.nodes.len());
        self.folders.push(self.folder.path(&format!("node-{new}")));
        fs::create_dir(&self.folders[new]).unwrap();
        self.nodes.push(None);
        self.resume(new);
        self.kill(node);
        let comes = self.node(new).text("node").to_owned();
        until("a new node has the place of the lost one", || {
            let members = self.members();
            members.len() == 3 && members.contains(&comes) && !members.contains(&lost)
        });
        new
    }

    fn node(&self, node: usize) -> &Process {
        self.nodes[node].as_ref().unwrap()
    }

    /// Asks each node until one of them answers this. Which?
    fn answered(&self, ask: &str, wanted: &[&str]) -> usize {
        answered(&self.nodes, ask, wanted)
    }

    /// Writes keys; who was the last to take one?
    fn write(&mut self, count: u32) -> usize {
        let mut by = 0;
        for number in self.written..self.written + count {
            by = self.answered(&format!("SET key{number} value{number}"), &["+OK"]);
        }
        self.written += count;
        by
    }

    /// All that was acknowledged is there.
    fn check(&self) {
        for number in 0..self.written {
            let value = format!("value{number}");
            let length = format!("${}", value.len());
            self.answered(&format!("GET key{number}"), &[&length, &value]);
        }
    }

    /// Waits until a node follows the primary, or is it, and has all on its disk.
    fn settle(&self, node: usize, primary: usize) {
        until("a node has what the primary has", || {
            let last = self.node(primary).info("cluster_last");
            let has = |name| self.node(node).info(name) == last;
            last.is_some() && has("log_durable") && has("cluster_applied")
        });
    }

    /// The segments of a node's log, in order.
    fn segments(&self, node: usize) -> Vec<PathBuf> {
        let all = fs::read_dir(&self.folders[node]).unwrap();
        let mut all: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
        all.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log-"));
        // The counter is the last ten digits.
        all.sort_by_key(|path| path.to_str().unwrap().rsplit('-').next().unwrap()[6..].to_owned());
        all
    }

    fn members(&self) -> Vec<String> {
        members(CLUSTER, &self.etcd.endpoints[0])
    }

    /// All nodes are killed, and etcd, too; all begin again with what they had.
    fn restart(&mut self) {
        (0..3).for_each(|node| self.kill(node));
        self.etcd.kill(0);
        self.etcd.mend();
        self.etcd.wait();
        (0..3).for_each(|node| self.resume(node));
    }

    /// Limits how long files of a node may get, in bytes.
    fn limit(&self, node: usize, bytes: &str) {
        let pid = self.node(node).child.id().to_string();
        let limit = format!("--fsize={bytes}:");
        let done = Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap();
        assert!(done.success());
    }
}

/// What holds a disk up.
struct Hang(Child);

impl Drop for Hang {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn can_run() -> bool {
    installed(&[("etcd", "etcd-server"), ("prlimit", "util-linux")])
}

#[test]
fn what_was_acknowledged_outlives_all_processes() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    trial.write(30);
    let members = trial.members();
    // More than the ring has, so that most of it is carried out again from the disk.
    for round in 0..12 {
        trial.answered(&format!("SET large {}", "x".repeat(12_000 + round)), &["+OK"]);
    }
    trial.restart();
    trial.check();
    trial.answered("STRLEN large", &[":12011"]);
    compare(&trial.nodes);
    assert_eq!(trial.members(), members, "they are the nodes that they were");
    let primary = trial.write(10);
    let other = (primary + 1) % 3;
    a_node_comes_back(&mut trial, primary, other);
    the_end_of_a_log_is_torn(&mut trial, other);
    a_log_is_damaged(&mut trial, other);
}

/// It is brought up from where its disk ends.
fn a_node_comes_back(trial: &mut Trial, primary: usize, node: usize) {
    trial.settle(node, primary);
    let number = trial.node(node).text("node").to_owned();
    trial.kill(node);
    trial.write(10);
    trial.resume(node);
    assert_eq!(trial.node(node).text("node"), number);
    assert!(trial.node(node).ready["records"].as_u64() > Some(40), "it has read its log");
    let primary = trial.write(1);
    trial.settle(node, primary);
    // What it has saved is what it begins with, and the log goes on.
    assert_eq!(redis(trial.node(node).front(), "SAVE"), ["+OK"]);
    assert_eq!(trial.node(node).info("rdb_last_bgsave_status").unwrap(), "ok");
    trial.kill(node);
    trial.write(5);
    trial.resume(node);
    let records = trial.node(node).ready["records"].as_u64().unwrap();
    assert!(records < 10, "{records} records come after the snapshot, and all before are in it");
    let primary = trial.write(1);
    trial.settle(node, primary);
    trial.check();
    compare(&trial.nodes);
}

/// Its last change, of which nothing says that it was on the disk, is cut, and comes again.
fn the_end_of_a_log_is_torn(trial: &mut Trial, node: usize) {
    trial.kill(node);
    let path = trial.segments(node).pop().unwrap();
    let bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    fs::write(&path, &bytes[..end - 3]).unwrap();
    trial.resume(node);
    let primary = trial.write(3);
    trial.settle(node, primary);
    trial.check();
    compare(&trial.nodes);
}

/// The node says which file it is, and does not start; the others serve. With an empty directory,
/// another node takes its place.
fn a_log_is_damaged(trial: &mut Trial, node: usize) {
    trial.kill(node);
    // One before the last, so that this is no torn end.
    let path = trial.segments(node).into_iter().rev().nth(1).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let refused = trial.command(node).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("is damaged"), "{told}");
    assert!(told.contains(path.to_str().unwrap()), "{told}");
    trial.write(3);
    trial.check();
    fs::remove_dir_all(&trial.folders[node]).unwrap();
    fs::create_dir(&trial.folders[node]).unwrap();
    trial.resume(node);
    let new = trial.node(node).text("node").to_owned();
    until("a new node is in its place", || trial.members().contains(&new));
    let primary = trial.write(1);
    trial.settle(node, primary);
    // Not even all processes' end takes the copy along.
    trial.restart();
    trial.check();
    compare(&trial.nodes);
}

#[test]
fn a_node_whose_disk_is_full_steps_aside() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    let full = trial.write(10);
    (0..3).for_each(|node| trial.settle(node, full));
    trial.limit(full, "100");
    // Two others have it on their disks; then one of them is the primary.
    trial.write(1);
    until("another node serves", || trial.write(1) != full);
    let status = trial.node(full).info("aof_last_write_status");
    assert_eq!(status.as_deref(), Some("err"));
    trial.write(10);
    trial.check();
    trial.limit(full, "unlimited");
    let primary = trial.write(1);
    trial.settle(full, primary);
    compare(&trial.nodes);
    no_majority_has_room(&mut trial, primary);
}

/// Nothing is acknowledged while two of three disks take nothing, and nothing is lost.
fn no_majority_has_room(trial: &mut Trial, primary: usize) {
    let full = [primary, (primary + 1) % 3];
    full.iter().for_each(|node| trial.limit(*node, "100"));
    let said = redis(trial.node(primary).front(), "SET unsure 1");
    assert_ne!(said, ["+OK"], "(a client without an answer is not told that it is kept)");
    until("changes are refused with the reason", || {
        let said = redis(trial.node(primary).front(), "SET unsure 2").join(" ");
        said.contains("cannot write the log")
            || said.starts_with("-MOVED")
            || said.starts_with("-CLUSTERDOWN")
    });
    full.iter().for_each(|node| trial.limit(*node, "unlimited"));
    trial.write(10);
    trial.check();
    compare(&trial.nodes);
}

/// The primary's disk is well, and no other. Changes are refused in words; nobody waits any more
/// for what is decided, or for what is no key's.
#[test]
fn where_the_backups_disks_are_full_the_primary_answers_what_is_decided() {
    if !can_run() {
        return;
    }
    // (A node that loses the lease now, on a busy machine, serves again when there is room.)
    let mut trial = Trial::start_with("8");
    let primary = trial.write(10);
    (0..3).for_each(|node| trial.settle(node, primary));
    let full = [(primary + 1) % 3, (primary + 2) % 3];
    full.iter().for_each(|node| trial.limit(*node, "100"));
    let ask = |what: &str| redis(trial.node(primary).front(), what).join(" ");
    let said = ask("SET unsure 1");
    assert!(said.starts_with("-MISCONF") && said.contains("no majority"), "{said}");
    let said = ask("SET refused 1");
    assert!(said.contains("can only be read") && said.contains("no majority"), "{said}");
    trial.check();
    assert_eq!(ask("PING"), "+PONG");
    assert!(ask("GET unsure").contains("no majority"), "nobody knows whether it stays");
    assert_eq!(ask("GET refused"), "$-1", "that one has not happened");
    let etcd = &trial.etcd.endpoints[0];
    until("the status has both disks", || {
        let ask = ["store", "cluster", "status", CLUSTER, "--etcd", etcd];
        let told = support::succeed(ask);
        let status = support::succeed([&ask[..], &["--json"]].concat());
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let takes_nothing = |node: &serde_json::Value| {
            let disk = node["disk"].as_str().unwrap_or_default();
            disk.contains("cannot write the log")
        };
        told.contains("No majority confirms")
            && told.contains("make room at")
            && status["nodes"].as_array().unwrap().iter().filter(|it| takes_nothing(it)).count()
                == 2
    });
    for node in full {
        assert_eq!(trial.node(node).info("aof_last_write_status").as_deref(), Some("err"));
        assert_ne!(trial.node(node).info("cluster_disk").as_deref(), Some("ok"));
    }
    full.iter().for_each(|node| trial.limit(*node, "unlimited"));
    trial.write(10);
    trial.check();
    compare(&trial.nodes);
}

/// A backup whose disk is slow is waited for by nobody while others have what is acknowledged, and
/// has all of it at last; it is waited for where there is no other.
#[test]
fn a_backup_with_a_slow_disk_holds_nobody_up() {
    if !can_run() || !installed(&[("strace", "strace")]) {
        return;
    }
    let mut trial = Trial::start();
    let told = trial.folder.path("slowed");
    let slow = (trial.write(10) + 1) % 3;
    trial.kill(slow);
    trial.resume_slowly(slow, &told);
    // More than the ring has.
    for round in 0..12 {
        trial.answered(&format!("SET large {}", "x".repeat(12_000 + round)), &["+OK"]);
    }
    let primary = trial.write(100);
    trial.settle(slow, primary);
    let slowed = fs::read_to_string(&told).unwrap();
    assert!(slowed.contains("(DELAYED)"), "its disk was as quick as others: {slowed}");
    trial.check();
    compare(&trial.nodes);
    let other = (0..3).find(|node| ![slow, primary].contains(node)).unwrap();
    trial.kill(other);
    let primary = trial.write(5);
    trial.settle(slow, primary);
    trial.check();
    compare(&trial.nodes);
}

/// Others have what the primary orders, so one of them takes over; and nobody waits for the disk of
/// the one before, not even at its end.
#[test]
fn a_primary_whose_disk_does_not_answer_steps_aside() {
    if !can_run() || !installed(&[("strace", "strace")]) {
        return;
    }
    let mut trial = Trial::start();
    let silent = trial.write(10);
    (0..3).for_each(|node| trial.settle(node, silent));
    let Some(hang) = trial.hang(silent) else { return };
    until("another node serves", || trial.write(1) != silent);
    until("the node says why", || {
        trial.node(silent).info("cluster_disk").is_some_and(|said| said.contains("not answer"))
    });
    trial.write(10);
    drop(hang);
    let primary = trial.write(1);
    trial.settle(silent, primary);
    trial.check();
    compare(&trial.nodes);
    let Some(hang) = trial.hang(primary) else { return };
    trial.write(5);
    trial.node(primary).signal(Signal::TERM);
    // (The thread that is held up goes with the one that holds it.)
    let status = format!("/proc/{}/status", trial.node(primary).child.id());
    let has_ended = || fs::read_to_string(&status).unwrap().contains("State:\tZ");
    until("it has ended", has_ended);
    drop(hang);
    trial.kill(primary);
    trial.write(5);
    trial.check();
}

/// The third node, which has not got it, does not serve without them, though it is there alone; one
/// of them is enough.
#[test]
fn what_two_nodes_have_outlives_them() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    let late = (trial.write(10) + 1) % 3;
    let stopped = trial.nodes[late].take().unwrap();
    stopped.signal(Signal::STOP);
    let primary = trial.write(10);
    let other = 3 - primary - late;
    trial.kill(primary);
    trial.kill(other);
    stopped.signal(Signal::CONT);
    until("the node that is left tries to serve", || {
        stopped.info("cluster_standing").as_deref() == Some("recovers")
    });
    for _ in 0..100 {
        for ask in ["SET alone 1", "GET key0", "GET key10"] {
            let answer = redis(stopped.front(), ask);
            assert!(answer[0].starts_with('-'), "without a majority, a node answers {answer:?}");
        }
        sleep(Duration::from_millis(20));
    }
    trial.nodes[late] = Some(stopped);
    trial.resume(other);
    trial.check();
    trial.write(5);
    trial.resume(primary);
    trial.write(5);
    trial.check();
    compare(&trial.nodes);
}

/// etcd loses all that it had. Nobody begins the group anew by mistake; from its directories it
/// begins again, with all that was acknowledged and the nodes that it had.
#[test]
fn a_group_begins_again_from_its_directories_when_etcd_has_lost_its_data() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    trial.write(30);
    let members = trial.members();
    (0..3).for_each(|node| trial.kill(node));
    trial.etcd.forget();
    trial.etcd.wait();
    let refused = trial.command(0).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("--restore"), "{told}");
    let folder = trial.folder.path("new");
    fs::create_dir(&folder).unwrap();
    let refused = trial.command_in(&folder).arg("--restore").output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("this one has no node"), "{told}");
    // Nodes that have nothing of it do not begin it, however many there are.
    trial.restore(0);
    let strangers: Vec<_> = (0..2)
        .map(|number| {
            let folder = trial.folder.path(&format!("stranger-{number}"));
            fs::create_dir(&folder).unwrap();
            Process::start(trial.command_in(&folder))
        })
        .collect();
    let etcd = &trial.etcd.endpoints[0];
    until("etcd knows all three", || {
        let told =
            support::succeed(["store", "cluster", "status", CLUSTER, "--etcd", etcd, "--json"]);
        let status: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert!(status["epoch"].is_null(), "{status}");
        status["nodes"].as_array().unwrap().len() == 3
    });
    drop(strangers);
    // (A node needs no word once etcd has the group again.)
    trial.resume(1);
    trial.restore(2);
    trial.check();
    trial.write(5);
    assert_eq!(trial.members(), members, "they are the nodes that they were");
    until("the map is there again", || {
        let slots = redis(trial.node(0).front(), "CLUSTER SLOTS").join(" ");
        slots.contains(":0 :16383")
    });
    trial.check();
    compare(&trial.nodes);
}

/// The first three nodes were lost, and replaced one after the other. They come back when etcd has
/// lost its data, as many as ever; what was acknowledged meanwhile is with those that took their
/// places, most of whom have to come.
#[test]
fn nodes_that_were_replaced_do_not_begin_the_group_again() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    trial.write(5);
    let new = [0, 1, 2].map(|node| trial.replace(node));
    trial.write(5);
    // (The members of the last epoch are in its snapshot, and in the log no more.)
    assert_eq!(redis(trial.node(new[0]).front(), "SAVE"), ["+OK"]);
    new.into_iter().for_each(|node| trial.kill(node));
    trial.etcd.forget();
    trial.etcd.wait();
    (0..3).for_each(|node| trial.restore(node));
    let waits = |node: &Process| {
        let says = node.info("cluster_service").unwrap_or_default();
        says.contains("of the group’s members in epoch") && says.contains("--restore=anyway")
    };
    until("they say whom they wait for", || (0..3).all(|node| waits(trial.node(node))));
    trial.restore(new[0]);
    until("it says whom it waits for", || waits(trial.node(new[0])));
    let asked = |node: usize| redis(trial.node(node).front(), "GET key0").join(" ");
    for node in [0, 1, 2, new[0]] {
        assert!(asked(node).starts_with('-'), "node {node} answers {}", asked(node));
    }
    trial.restore(new[1]);
    trial.check();
    trial.write(5);
    trial.check();
}

/// Somebody says that nobody else comes.
#[test]
fn a_group_begins_again_without_most_of_its_members_if_somebody_says_so() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    let primary = trial.write(5);
    (0..3).for_each(|node| trial.settle(node, primary));
    (0..3).for_each(|node| trial.kill(node));
    trial.etcd.forget();
    trial.etcd.wait();
    trial.restore(0);
    let told = || trial.node(0).info("cluster_service").unwrap_or_default();
    until("it says that it waits", || told().contains("1 of 3 are there: start 1 more of"));
    trial.kill(0);
    let mut command = trial.command(0);
    command.args(["--restore=anyway", "--nodes", "1"]);
    trial.nodes[0] = Some(Process::start(command));
    trial.check();
    trial.write(5);
}

/// Has a client of etcd act.
fn with_etcd<T>(
    etcd: &Etcd,
    act: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, etcd_client::Error>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(async {
        let mut client = etcd_client::Client::connect(&etcd.endpoints, None).await?;
        act(&mut client).await
    });
    done.unwrap()
}

/// A group's configuration is in etcd as it was before the last primary, as after the restore of a
/// backup. The nodes serve no more, with one another's logs or without, and say why; from their
/// directories the group begins again.
#[test]
fn a_group_that_is_older_in_etcd_than_its_nodes_says_so() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    trial.write(5);
    let key = format!("/remora/{CLUSTER}/");
    let below = || Some(etcd_client::GetOptions::new().with_prefix());
    let old = with_etcd(&trial.etcd, async |client| client.get(&*key, below()).await);
    let is_it = |pair: &&etcd_client::KeyValue| pair.key().ends_with(b"/configuration");
    let old = old.kvs().iter().find(is_it).expect("the group’s latest configuration");
    let primary = trial.write(1);
    trial.kill(primary);
    trial.write(5);
    trial.resume(primary);
    trial.check();
    // One that has heard only of the old entry would go on from there, and others say so.
    let epoch = |node: usize| trial.node(node).info("cluster_epoch");
    let has_heard =
        |node: usize| epoch(node).is_some_and(|epoch| epoch.parse::<u32>().unwrap() > 1);
    until("all hear of the next epoch", || (0..3).all(has_heard));
    with_etcd(&trial.etcd, async |client| client.put(old.key(), old.value(), None).await);
    let is_told = |node: &Process| {
        let says = node.info("cluster_service");
        says.is_some_and(|says| says.contains("older backup") && says.contains("--restore"))
    };
    let serves = |node: &Process| redis(node.front(), "SET late 1") == ["+OK"];
    until("all say it", || (0..3).all(|node| is_told(trial.node(node))));
    assert!(!(0..3).any(|node| serves(trial.node(node))));
    for node in 0..3 {
        trial.kill(node);
        trial.resume(node);
    }
    until("all say it again", || (0..3).all(|node| is_told(trial.node(node))));
    assert!(!(0..3).any(|node| serves(trial.node(node))));
    (0..3).for_each(|node| trial.kill(node));
    let all = etcd_client::DeleteOptions::new().with_prefix();
    with_etcd(&trial.etcd, async |client| client.delete(&*key, Some(all)).await);
    (0..3).for_each(|node| trial.restore(node));
    trial.check();
    trial.write(5);
    compare(&trial.nodes);
}

/// A primary that etcd does not hear loses its lease. It answers no key, and says what it lacks.
#[test]
fn a_primary_that_lacks_the_lease_answers_nothing_and_says_so() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start_with("4");
    let lacks =
        |node: &Process| node.info("cluster_standing").as_deref() == Some("lacks the lease");
    let primary = trial.write(5);
    trial.etcd.signal(Signal::STOP);
    until("the primary lacks the lease", || lacks(trial.node(primary)));
    for ask in ["GET key0", "SET late 1"] {
        let said = redis(trial.node(primary).front(), ask).join(" ");
        assert!(said.starts_with("-CLUSTERDOWN"), "{ask}: {said}");
    }
    assert_eq!(trial.node(primary).info("cluster_has_lease").as_deref(), Some("0"));
    assert_ne!(trial.node(primary).info("cluster_service").as_deref(), Some("ok"));
    trial.etcd.signal(Signal::CONT);
    trial.check();
    trial.write(5);
    compare(&trial.nodes);
}

/// A directory is one node's of one group.
#[test]
fn a_directory_of_another_store_is_refused() {
    if !can_run() {
        return;
    }
    let mut trial = Trial::start();
    let folder = Folder::new();
    let alone = |dir: &Path| {
        let mut command = command(["store", "serve", "--json", "--until-eof", "--dir"]);
        command.arg(dir).args(["--redis", "127.0.0.1:0"]);
        command
    };
    let store = Process::start(alone(&folder.path("")));
    assert_eq!(redis(store.front(), "SAVE"), ["+OK"]);
    drop(store);
    let refused = trial.command_in(&folder.path("")).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("no node of a group"), "{told}");
    trial.kill(0);
    let refused = alone(&trial.folders[0]).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("--cluster"), "{told}");
}
