//! A cluster of processes: `remora store serve --cluster`, with etcd's members.

use std::collections::BTreeMap;
use std::fs::{File, create_dir_all};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{sleep, spawn};
use std::time::Instant;

use remora::impair::IMPAIR_VARIABLE;
use remora_cluster::{Atlas, EtcdMap, MapService};
use remora_store::front::slots::Range;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::gate::Gate;
use super::member::Etcd;
use super::plan::{Group, Plan, Step, Way, Who};
use crate::support::{Folder, Killed, PATIENCE, address, command, until};

const GROUPS: [&str; 2] = ["a", "b"];
/// Nodes of a group.
const NODES: usize = 3;
/// Nodes that a schedule may have in all.
const NODES_MAX: usize = 12;

/// What a node has that its process does not take along.
struct Home {
    group: Group,
    number: usize,
    network: Network,
}

/// A node that was not killed.
struct Node {
    process: Process,
    home: Home,
    name: String,
    /// Where Redis' clients reach it, and other nodes.
    front: SocketAddr,
    card: SocketAddr,
    /// Where clients over the card do.
    store: SocketAddr,
    /// Its number among those that something is wrong with, if it is one of them.
    ailing: Option<usize>,
}

/// A node that has not said where it is.
struct Beginner {
    process: Process,
    home: Home,
}

/// A node's process. Dropping it kills it.
struct Process {
    child: Killed,
    /// Its lines, of which the first one says where it is.
    said: Receiver<String>,
}

/// What connects a node with others, and can be cut. Dropping it takes its file away.
struct Network {
    /// What happens to the packets of the node's card.
    impairments: PathBuf,
    etcd: Gate,
}

impl Network {
    fn new(impairments: PathBuf, members: &[String]) -> Network {
        let network = Network { impairments, etcd: Gate::to(members) };
        network.impair("off");
        network
    }

    /// Has this happen to the packets of the node's card.
    fn impair(&self, rules: &str) {
        // The card reads it again and again: it never sees a part of it.
        let next = self.impairments.with_extension("next");
        std::fs::write(&next, rules).unwrap();
        std::fs::rename(&next, &self.impairments).unwrap();
    }

    fn mend(&self) {
        self.impair("off");
        self.etcd.cut(false);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A node that is gone needs none.
        let _ = std::fs::remove_file(&self.impairments);
    }
}

impl Home {
    /// Where the node is, as often as it comes again. (No other test's node is there.)
    fn address(&self) -> Ipv4Addr {
        static ALL: LazyLock<[[u8; 4]; NODES_MAX]> = LazyLock::new(|| [(); _].map(|()| address()));
        ALL[self.number].into()
    }
}

impl Node {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process.child)
    }

    /// The lines of its answers.
    fn says(&self, commands: &[String]) -> std::io::Result<Vec<String>> {
        let mut stream = TcpStream::connect(self.front)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all((commands.join("\r\n") + "\r\nQUIT\r\n").as_bytes())?;
        BufReader::new(stream).lines().collect()
    }

    /// Up to where it has carried out the log, a digest of all that it has, and which of these keys
    /// it has. (A key whose slot is with the other group is not here.)
    fn contents(&self, names: &[String]) -> std::io::Result<Contents> {
        let first = ["INFO persistence", "DEBUG DIGEST", "READONLY"].map(str::to_owned);
        let gets = names.iter().map(|name| format!("GET {name}"));
        let said = self.says(&first.into_iter().chain(gets).collect::<Vec<_>>())?;
        let applied = said.iter().find_map(|line| line.strip_prefix("cluster_applied:"));
        let applied = applied.unwrap_or_default().to_owned();
        let is_copy = said.iter().position(|line| line == "+OK");
        let is_copy = is_copy.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let digest = said[is_copy - 1].clone();
        if !digest.starts_with('+') {
            return Err(std::io::Error::other(digest));
        }
        let mut answers = said.into_iter().skip(is_copy + 1);
        let mut held = BTreeMap::new();
        for name in names {
            let line = answers.next().unwrap_or_default();
            if line.starts_with('$') && line != "$-1" {
                held.insert(name.clone(), answers.next().unwrap_or_default());
            }
        }
        Ok((applied, digest, held))
    }
}

/// What a node has.
type Contents = (String, String, BTreeMap<String, String>);

impl Process {
    fn of(mut child: Killed) -> Process {
        let (says, said) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Nobody asks any more if it was killed.
                let _ = says.send(line);
            }
        });
        Process { child, said }
    }
}

pub(crate) struct Cluster<'e> {
    etcd: &'e mut Etcd,
    name: String,
    map: EtcdMap,
    /// As the service last said.
    atlas: Atlas,
    is_etcd_stopped: bool,
    nodes: Vec<Node>,
    /// They are nodes as soon as etcd answers them.
    beginners: Vec<Beginner>,
    /// The homes of those that were killed, where they have disks.
    gone: Vec<Home>,
    /// Where the nodes' directories are, if they have some.
    folder: Option<Folder>,
    /// How many nodes there have been.
    started: usize,
    /// The card of the clients that have one.
    clients: IpAddr,
    log: PathBuf,
}

impl<'e> Cluster<'e> {
    /// Two groups that serve; the first has all slots.
    pub(crate) fn start(plan: &Plan, etcd: &'e mut Etcd, clients: IpAddr) -> Cluster<'e> {
        let seed = plan.seed;
        let name = format!("s{seed}");
        let map = EtcdMap::new(&etcd.group(&name)).unwrap();
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("schedule-{seed}.log"));
        File::create(&log).unwrap();
        let mut cluster = Cluster {
            etcd,
            name,
            map,
            atlas: Atlas::default(),
            is_etcd_stopped: false,
            nodes: Vec::new(),
            beginners: Vec::new(),
            gone: Vec::new(),
            folder: plan.on_disks.then(Folder::new),
            started: 0,
            clients,
            log,
        };
        for group in 0..GROUPS.len() {
            // The one that begins first has the slots.
            (0..NODES).for_each(|_| cluster.start_node(group));
            cluster.wait_for_beginners();
            until("a group serves, and the cluster has a map", || {
                cluster.look();
                cluster.serving(group).is_some() && cluster.atlas.slots.is_some()
            });
        }
        cluster
    }

    /// Starts a node of a group that has not been there before.
    fn start_node(&mut self, group: Group) {
        let number = self.started;
        let impairments = self.log.with_extension(format!("{number}.network"));
        let network = Network::new(impairments, &self.etcd.endpoints);
        self.start_at(Home { group, number, network });
        self.started += 1;
    }

    fn start_at(&mut self, home: Home) {
        let process = self.start_process(&home);
        self.beginners.push(Beginner { process, home });
    }

    fn start_process(&self, home: &Home) -> Process {
        let (size, address) = (NODES.to_string(), home.address().to_string());
        let front = format!("{address}:6379");
        let at = ["store", "serve", "--json", "--until-eof", "--bind", &address, "--redis", &front];
        let etcd = home.network.etcd.urls.as_str();
        let which = ["--cluster", &self.name, "--group", GROUPS[home.group], "--etcd", etcd];
        let how = ["--nodes", &size, "--lease", "0.5", "--ring", "64K", "--memory", "16M"];
        let log = File::options().append(true).open(&self.log).unwrap();
        let mut command = command([&at[..], &which, &how].concat());
        if let Some(folder) = &self.folder {
            let directory = folder.path(&home.number.to_string());
            create_dir_all(&directory).unwrap();
            command.args(["--fsync", "always", "--dir"]).arg(directory);
        }
        let impairments = format!("@{}", home.network.impairments.display());
        // A card of its own, as only its own network is to be bad.
        command.env("REMORA_NIC", "off").env(IMPAIR_VARIABLE, impairments);
        command.env("REMORA_LOG", "info").stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::of(Killed(command.stderr(log).spawn().unwrap()))
    }

    /// Takes those for nodes that have said where they are. One that etcd has not answered has
    /// ended, and is started again.
    fn take_beginners(&mut self) {
        for Beginner { process, home } in std::mem::take(&mut self.beginners) {
            match process.said.try_recv() {
                Ok(line) => self.nodes.push(introduced(&line, process, home)),
                Err(TryRecvError::Empty) => self.beginners.push(Beginner { process, home }),
                Err(TryRecvError::Disconnected) => {
                    drop(process);
                    self.start_at(home);
                }
            }
        }
    }

    fn wait_for_beginners(&mut self) {
        until("nodes that were started say where they are", || {
            self.take_beginners();
            self.beginners.is_empty()
        });
    }

    pub(crate) fn stores(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.store).collect()
    }

    pub(crate) fn fronts(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.front).collect()
    }

    /// Asks the service how things are, where that does not wait for it to go on.
    fn look(&mut self) {
        if self.is_etcd_stopped {
            return;
        }
        if let Ok(atlas) = self.map.look() {
            self.atlas = atlas;
        }
    }

    /// The name of a group's primary, as far as anybody knows.
    fn primary(&self, group: Group) -> Option<String> {
        let configuration = self.atlas.groups.get(GROUPS[group])?.configuration.as_ref()?;
        Some(configuration.primary.to_string())
    }

    /// The group's primary, if it serves.
    fn serving(&self, group: Group) -> Option<&Node> {
        let primary = self.primary(group)?;
        let node = self.nodes.iter().find(|node| node.name == primary)?;
        let said = node.says(&["INFO persistence".to_owned()]).ok()?;
        said.iter().any(|line| line == "cluster_standing:serves").then_some(node)
    }

    /// Which of the nodes is meant, if there is one.
    fn find(&mut self, group: Group, who: Who) -> Option<usize> {
        self.look();
        let primary = self.primary(group);
        self.nodes.iter().position(|node| {
            let is_primary = Some(&node.name) == primary.as_ref();
            node.home.group == group
                && node.ailing.is_none()
                && is_primary == matches!(who, Who::Primary)
        })
    }

    /// Has everything happen at its time; which steps found nobody to happen to?
    pub(crate) fn live_through(&mut self, plan: &Plan) -> Vec<Step> {
        let (start, mut skipped) = (Instant::now(), Vec::new());
        for (at, step) in &plan.steps {
            sleep(at.saturating_sub(start.elapsed()));
            self.take_beginners();
            if !self.happen(*step) {
                skipped.push(*step);
            }
        }
        sleep(plan.lasts.saturating_sub(start.elapsed()));
        // Clients may wait for a group whose nodes have not found etcd.
        self.wait_for_beginners();
        skipped
    }

    /// Has a step happen; whether there was somebody for it.
    fn happen(&mut self, step: Step) -> bool {
        match step {
            Step::Kill(group, who) => {
                let found = self.find(group, who);
                found.into_iter().for_each(|index| self.kill(&[index]));
                return found.is_some();
            }
            Step::KillGroup(group) => return self.kill_all(|node| node.home.group == group),
            Step::KillAll => return self.kill_all(|_| true),
            Step::Return(group) => return self.bring_back(group),
            Step::Start(group) => {
                // Where none could be killed, there is no place for it.
                let nodes = self.nodes.iter().filter(|node| node.home.group == group).count();
                let more = self.beginners.iter().filter(|more| more.home.group == group).count();
                let is_missing = nodes + more < NODES;
                if is_missing {
                    self.start_node(group);
                }
                return is_missing;
            }
            Step::Stop(group, who, number) => {
                return self.ail(group, who, number, |node| {
                    kill_process(node.pid(), Signal::STOP).unwrap();
                });
            }
            Step::CutFromNodes(group, who, number) => {
                // Clients over the card reach it: it must show them nothing old.
                let rules = format!("peer={}; loss=100%", self.clients);
                return self.ail(group, who, number, |node| node.home.network.impair(&rules));
            }
            Step::CutFromEtcd(group, who, number) => {
                return self.ail(group, who, number, |node| node.home.network.etcd.cut(true));
            }
            Step::CutLink(group, way, number) => return self.cut_link(group, way, number),
            Step::Slow(group, number) => {
                return self.ail(group, Who::Backup, number, |node| {
                    node.home.network.impair("delay=2ms");
                });
            }
            Step::GoOn(number) => self.go_on(|ailing| ailing == number),
            Step::KillEtcd(member) => self.etcd.kill(member),
            Step::StartEtcd(member) => self.etcd.start_member(member),
            Step::StopEtcd => {
                self.is_etcd_stopped = true;
                self.etcd.signal(Signal::STOP);
            }
            Step::GoOnEtcd => {
                self.is_etcd_stopped = false;
                self.etcd.signal(Signal::CONT);
            }
            Step::Move(range, to) => self.move_slots(range, to),
        }
        true
    }

    /// Kills these nodes at once.
    fn kill(&mut self, which: &[usize]) {
        for index in which {
            kill_process(self.nodes[*index].pid(), Signal::KILL).unwrap();
        }
        for index in which.iter().rev() {
            let Node { process, home, .. } = self.nodes.remove(*index);
            drop(process);
            if self.folder.is_some() {
                home.network.mend();
                self.gone.push(home);
            }
        }
    }

    fn kill_all(&mut self, is_one: impl Fn(&Node) -> bool) -> bool {
        let all = self.nodes.iter().enumerate().filter(|(_, node)| is_one(node));
        let which: Vec<_> = all.map(|(index, _)| index).collect();
        self.kill(&which);
        !which.is_empty()
    }

    /// Those of a group that are gone begin again where they were, with what they had.
    fn bring_back(&mut self, group: Group) -> bool {
        let gone = std::mem::take(&mut self.gone);
        let (back, gone): (Vec<_>, _) = gone.into_iter().partition(|home| home.group == group);
        self.gone = gone;
        let were_gone = !back.is_empty();
        back.into_iter().for_each(|home| self.start_at(home));
        were_gone
    }

    /// Cuts a group's primary off from one of its backups.
    fn cut_link(&mut self, group: Group, way: Way, number: usize) -> bool {
        let Some(backup) = self.find(group, Who::Backup) else { return false };
        let peer = self.nodes[backup].card.ip();
        let way = match way {
            Way::ToBackup => "out,",
            Way::ToPrimary => "in,",
            Way::Both => "",
        };
        self.ail(group, Who::Primary, number, |node| {
            node.home.network.impair(&format!("{way}peer={peer},loss=100%"));
        })
    }

    /// Does something bad to a node, if there is one with which nothing is wrong yet.
    fn ail(&mut self, group: Group, who: Who, number: usize, harm: impl FnOnce(&Node)) -> bool {
        let found = self.find(group, who);
        if let Some(index) = found {
            self.nodes[index].ailing = Some(number);
            harm(&self.nodes[index]);
        }
        found.is_some()
    }

    fn go_on(&mut self, is_one: impl Fn(usize) -> bool) {
        for node in self.nodes.iter_mut().filter(|node| node.ailing.is_some_and(&is_one)) {
            node.ailing = None;
            node.home.network.mend();
            // (To one that does not stand still, the signal is nothing.)
            kill_process(node.pid(), Signal::CONT).unwrap();
        }
    }

    /// Says in the map that slots are to go to a group, if it can be said at the moment.
    fn move_slots(&mut self, range: Range, to: Group) {
        self.look();
        if self.is_etcd_stopped {
            return;
        }
        if let Ok(next) = self.atlas.with_move(&[range], GROUPS[to]) {
            // Another move may be under way, and etcd away: then the slots stay where they are.
            let _ = self.map.replace(self.atlas.revision, &next);
        }
    }

    /// Mends everything, and waits until the groups serve and no slot is on its way.
    pub(crate) fn settle(&mut self) {
        self.etcd.mend();
        self.is_etcd_stopped = false;
        self.go_on(|_| true);
        self.wait_for_beginners();
        until("both groups serve, and no slot is on its way", || {
            self.look();
            let slots = self.atlas.slots.iter().flat_map(|map| map.iter());
            let are_there = slots.filter(|(_, owner)| owner.to.is_some()).count() == 0;
            are_there && (0..GROUPS.len()).all(|group| self.serving(group).is_some())
        });
        for node in &mut self.nodes {
            let ended = node.process.child.try_wait().unwrap();
            assert!(ended.is_none(), "{} has ended: {ended:?}", node.name);
        }
    }

    /// All nodes of a group have the same, those that came for others, too, and each key is with
    /// one group.
    pub(crate) fn compare(&mut self, names: &[String]) {
        let mut all = BTreeMap::new();
        for (group, name) in GROUPS.iter().enumerate() {
            let mut found = Vec::new();
            until(&format!("the nodes of group {name} are alike"), || {
                self.look();
                found = self.contents_of(group, names);
                found.len() > 1 && found.windows(2).all(|pair| pair[0] == pair[1])
            });
            for key in found[0].2.keys() {
                let before = all.insert(key.clone(), name);
                assert_eq!(before, None, "{key} is with both groups");
            }
        }
        std::fs::remove_file(&self.log).unwrap();
    }

    /// What each node of a group has; nothing if not all of them are members, or say so, yet.
    fn contents_of(&self, group: Group, names: &[String]) -> Vec<Contents> {
        let view = self.atlas.groups.get(GROUPS[group]);
        let Some(latest) = view.and_then(|view| view.configuration.as_ref()) else {
            return Vec::new();
        };
        let is_member = |node: &&Node| latest.members.iter().any(|it| it.to_string() == node.name);
        let nodes: Vec<_> = self.nodes.iter().filter(|node| node.home.group == group).collect();
        let (all, nodes) = (nodes.len(), nodes.into_iter().filter(is_member).collect::<Vec<_>>());
        // One more than there are places is a spare, and has nothing.
        if !latest.is_established() || nodes.len() < all.min(NODES) {
            return Vec::new();
        }
        let contents = nodes.into_iter().map(|node| node.contents(names));
        contents.collect::<Result<_, _>>().unwrap_or_default()
    }
}

/// A node that has said who and where it is.
fn introduced(line: &str, process: Process, home: Home) -> Node {
    let ready: Value = serde_json::from_str(line).unwrap();
    let name = ready["node"].as_str().unwrap().to_owned();
    let at = |text: &Value| text.as_str().unwrap().parse().unwrap();
    let [front, card, store] = [&ready["redis"][0], &ready["card"], &ready["store"]].map(at);
    Node { process, home, name, front, card, store, ailing: None }
}
