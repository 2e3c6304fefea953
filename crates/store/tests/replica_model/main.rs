//! The protocol of a group, checked exhaustively (stateright): all orders in which three nodes may
//! hear, write and fail, within the bounds that each test states. The model drives the replicas
//! themselves; only time, links and the disk are the model's.

mod broken_rules;
mod directed;
mod disks;
mod fences;
mod properties;
mod region;
mod transactions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use broken_rules::{Rule, orders};
use region::Region;
use remora_store::log::{Fields, Operation, Position};
use remora_store::memory::Memory;
use remora_store::replica::{
    AppendError, Configuration, ConfigurationService, Entry, Event, Fate, Mark, Message, NoRequest,
    NodeId, Options, Output, Registry, Replica, Request, RequestId, Snapshot,
};
use stateright::{Checker, Expectation, Model, Property, UniformChooser};

const RING: u64 = 640;
/// For how long a lease holds. The model's clocks show the same, and leap by as much at a time:
/// there is no other time than that a lease has come to its end.
const LEASE_NS: u64 = 3;
const OPTIONS: Options = Options {
    ring_bytes: RING,
    salt: 5,
    patience_ns: 0,
    lease_ns: LEASE_NS,
    drift_ppm: 0,
    waits_for_disk: false,
    disk_patience_ns: 2 * LEASE_NS,
};

/// What is on its way over a link.
#[derive(Clone, Debug, PartialEq, Hash)]
enum Packet {
    Message(Message),
    Write(u64, Vec<u8>, Option<Mark>),
    Store(Snapshot, Vec<(u64, u8)>),
}

/// One direction of a connection, which belongs to an epoch.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Link {
    epoch: u32,
    packets: VecDeque<Packet>,
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct Node {
    replica: Replica,
    region: Region,
    /// What its store has carried out: positions and the writes there.
    store: Vec<(u64, u8)>,
    /// What the service has said and it has not heard.
    events: VecDeque<Event>,
    /// Something was written into its region that it has not looked at.
    is_dirty: bool,
    /// What its disk has, where it has one: all that was logged, at once, unless it hangs.
    disk: Option<Mark>,
    disk_hangs: bool,
}

impl Node {
    fn new(name: NodeId, options: Options) -> Node {
        Node {
            replica: Replica::new(name, options),
            region: Region::new(),
            store: vec![],
            events: VecDeque::new(),
            is_dirty: false,
            disk: options.waits_for_disk.then(Mark::default),
            disk_hangs: false,
        }
    }

    /// Lets the disk keep what was logged; whether that was news.
    fn keep(&mut self) -> bool {
        let last = self.replica.last();
        let Some(kept) = self.disk.as_mut().filter(|kept| !self.disk_hangs && **kept != last)
        else {
            return false;
        };
        *kept = last;
        let generation = self.replica.generation();
        self.replica.handle_kept(&self.region, last, generation);
        true
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct State {
    /// (Most of what happens changes one of them: the others are shared with the state before.)
    nodes: BTreeMap<NodeId, Arc<Node>>,
    links: BTreeMap<(NodeId, NodeId), Link>,
    registry: Registry,
    /// What all clocks show.
    now_ns: u64,
    /// The writes that were broadcast, by number: in which epoch.
    broadcast: Vec<u32>,
    /// The writes that clients were told of.
    acknowledged: BTreeSet<u8>,
    /// Writes whose primary may yet acknowledge them: who, and where.
    pending: Vec<(NodeId, u64, u8)>,
    expired: u8,
    renewed: u8,
    crashed: u8,
    cut: u8,
    is_prompt: bool,
    in_bursts: bool,
    without: Option<Rule>,
    /// Writes come in pairs, each a transaction.
    transacts: bool,
    /// Those of the one that is under way: of which node, and its first write.
    amid: Option<(NodeId, u8)>,
    /// The writes of those that have ended.
    pairs: Vec<(u8, u8)>,
    /// READs take for ever.
    holds_reads: bool,
    /// Cards acknowledge what comes, and so do not wait for nodes to look.
    cards_tell: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// The head of a link arrives.
    Arrive(NodeId, NodeId),
    /// A node looks at its region.
    Look(NodeId),
    /// A node hears what the service has said.
    Hear(NodeId),
    /// A client writes.
    Write(NodeId),
    /// A lease's time passes without a sign of the primary.
    Expire,
    /// A renewal that a node has sent at a time, perhaps long ago, reaches the service.
    Renew(NodeId, u64),
    /// A node is lost with its memory.
    Crash(NodeId),
    /// A link is lost, with all that is on it but for the first packets of one direction, and made
    /// anew.
    Cut(NodeId, NodeId, usize),
}

/// The bounds.
#[derive(Clone, Copy)]
struct Group {
    nodes: u64,
    writes: usize,
    /// All of them are made at the beginning, and on their way.
    begins_written: bool,
    /// After the crashes.
    expiries: u8,
    /// Renewals besides those that a primary asks for by itself.
    renewals: u8,
    crashes: u8,
    cuts: u8,
    /// Nodes look at their regions as soon as something is written there.
    is_prompt: bool,
    /// All that is on a link arrives at once, and so does all that the service has said to a node.
    in_bursts: bool,
    /// Writes come in pairs, each a transaction.
    transacts: bool,
    /// Cards acknowledge what comes.
    cards_tell: bool,
    options: Options,
    /// A rule that nobody keeps.
    without: Option<Rule>,
}

impl State {
    fn new(group: Group) -> State {
        let names: Vec<_> = (1..=group.nodes).map(NodeId).collect();
        let first = Configuration::first(names[0], names.clone()).unwrap();
        let mut state = State {
            nodes: names
                .iter()
                .map(|name| (*name, Arc::new(Node::new(*name, group.options))))
                .collect(),
            links: BTreeMap::new(),
            registry: Registry::new(Some(first)),
            now_ns: 0,
            broadcast: vec![],
            acknowledged: BTreeSet::new(),
            pending: vec![],
            expired: 0,
            renewed: 0,
            crashed: 0,
            cut: 0,
            is_prompt: group.is_prompt,
            in_bursts: group.in_bursts,
            without: group.without,
            transacts: group.transacts,
            amid: None,
            pairs: vec![],
            holds_reads: false,
            cards_tell: group.cards_tell,
        };
        for name in names {
            state.with(name, |node| node.replica.handle_time(0));
        }
        state.settle();
        state
    }

    /// Goes on up to where nothing more happens by itself.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut actions = vec![];
            self.own_actions(&mut actions);
            let Some(action) = actions.first() else { return };
            self.act(action);
        }
        panic!("the group does not come to rest");
    }

    /// What happens without clients and faults.
    fn own_actions(&self, actions: &mut Vec<Action>) {
        for ((from, to), link) in &self.links {
            if !link.packets.is_empty() {
                actions.push(Action::Arrive(*from, *to));
            }
        }
        for (name, node) in &self.nodes {
            if node.is_dirty {
                actions.push(Action::Look(*name));
            }
            if !node.events.is_empty() {
                actions.push(Action::Hear(*name));
            }
        }
    }

    fn hand_out_events(&mut self) {
        while let Some((name, event)) = self.registry.poll() {
            if let Some(node) = self.node(name) {
                node.events.push_back(event);
            }
        }
    }

    fn node(&mut self, name: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&name).map(Arc::make_mut)
    }

    /// Hands something to a node, and does what it wants then.
    fn with(&mut self, name: NodeId, act: impl FnOnce(&mut Node)) {
        let Some(node) = self.node(name) else { return };
        act(node);
        loop {
            let node = self.node(name).unwrap();
            while let Some((position, fields)) = node.replica.poll_apply(&node.region) {
                if fields.operation == Operation::Delete {
                    node.store.push((position.number(), fields.key[0]));
                }
            }
            match node.replica.poll_output() {
                Some(output) => self.carry_out(name, output),
                None if node.keep() => {}
                None => break,
            }
        }
        let replica = &self.nodes[&name].replica;
        self.pending.retain(|(node, at, write)| {
            if *node != name {
                return true;
            }
            match replica.fate(Position::from_number(*at)) {
                Fate::Pending => true,
                Fate::Committed => {
                    self.acknowledged.insert(*write);
                    false
                }
                Fate::Unknown => false,
            }
        });
    }

    fn send(&mut self, from: NodeId, to: NodeId, packet: Packet) {
        // A primary that was replaced has no part in its successor's connections.
        let epoch = self.nodes[&from].replica.epoch();
        if let Some(link) = self.links.get_mut(&(from, to))
            && link.epoch <= epoch
        {
            link.packets.push_back(packet);
        }
    }

    fn carry_out(&mut self, name: NodeId, output: Output) {
        match output {
            Output::Request(request) => {
                self.registry.submit(name, request);
                self.hand_out_events();
            }
            Output::Fence { epoch } => {
                // What it has sent itself may still arrive.
                let stays = self.without == Some(Rule::Fence);
                self.links.retain(|(_, to), link| stays || *to != name || link.epoch >= epoch);
                let node = self.node(name).unwrap();
                node.replica.handle_fenced(&node.region, epoch);
            }
            Output::Connect { to } if self.nodes.contains_key(&to) => self.connect(name, to),
            Output::Connect { .. } | Output::Truncated { .. } => {}
            Output::Disconnect { from } => {
                self.links.remove(&(name, from));
                self.links.remove(&(from, name));
            }
            Output::Send { to, message } => {
                let message = self.as_sent(message);
                self.send(name, to, Packet::Message(message));
            }
            Output::Write { to, at, len, until, .. } => {
                let bytes = self.nodes[&name].region.bytes(at, len);
                self.send(name, to, Packet::Write(at, bytes, until));
            }
            Output::Read { from, pieces } => {
                if self.holds_reads || !self.links.contains_key(&(name, from)) {
                    return;
                }
                for (at, len) in pieces {
                    let bytes = self.nodes[&from].region.bytes(at, len);
                    self.node(name).unwrap().region.write(at, &bytes);
                }
                let node = self.node(name).unwrap();
                node.replica.handle_read(&node.region, from);
            }
            Output::Snapshot { to } => {
                let node = &self.nodes[&name];
                let packet = Packet::Store(node.replica.snapshot(), node.store.clone());
                self.send(name, to, packet);
            }
        }
    }

    /// A node that knows of a later epoch is not connected to in an earlier one.
    fn connect(&mut self, from: NodeId, to: NodeId) {
        let epoch = self.nodes[&from].replica.epoch();
        if self.nodes[&to].replica.epoch() > epoch {
            return;
        }
        let link = Link { epoch, packets: VecDeque::new() };
        let had = self.links.insert((from, to), link.clone()).is_some();
        if self.links.insert((to, from), link).is_some() || had {
            self.with(to, |node| node.replica.handle_disconnected(&node.region, from));
        }
        self.node(from).unwrap().replica.handle_connected(to);
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Arrive(from, to) => {
                let waiting = self.links.get(&(from, to)).map_or(0, |link| link.packets.len());
                self.arrive(from, to, if self.in_bursts { waiting } else { 1 });
            }
            Action::Look(name) => self.with(name, |node| {
                node.is_dirty = false;
                node.replica.poll_memory(&node.region);
            }),
            Action::Hear(name) => {
                let waiting = self.nodes.get(&name).map_or(0, |node| node.events.len());
                for _ in 0..if self.in_bursts { waiting } else { 1 } {
                    let node = self.node(name);
                    if let Some(event) = node.and_then(|node| node.events.pop_front()) {
                        self.hear(name, event, self.now_ns);
                    }
                }
            }
            Action::Write(name) if self.transacts => self.write_half(name),
            Action::Write(name) => self.write(name),
            Action::Renew(name, sent_ns) => {
                self.renewed += 1;
                let epoch = self.nodes[&name].replica.epoch();
                self.registry.submit(name, Request::Renew { epoch, sent_ns });
                self.hand_out_events();
            }
            Action::Expire => self.expire(),
            Action::Crash(name) => {
                self.crashed += 1;
                self.nodes.remove(&name);
                self.lose_half(name);
                let peers: Vec<_> = self.nodes.keys().copied().collect();
                for peer in peers {
                    self.cut(name, peer);
                }
            }
            Action::Cut(one, other, arrived) => {
                self.cut += 1;
                self.arrive(one, other, arrived);
                self.cut(one, other);
            }
        }
    }

    /// So many packets of a link arrive.
    fn arrive(&mut self, from: NodeId, to: NodeId, count: usize) {
        let is_prompt = self.is_prompt;
        for _ in 0..count {
            let Some(link) = self.links.get_mut(&(from, to)) else { return };
            let (epoch, packet) = (link.epoch, link.packets.pop_front());
            let until = match packet {
                Some(Packet::Write(.., until)) => until.filter(|_| self.cards_tell),
                _ => None,
            };
            self.with(to, |node| match packet {
                Some(Packet::Message(message)) => {
                    node.replica.handle_message(&node.region, from, message);
                }
                Some(Packet::Write(at, bytes, _)) => {
                    node.region.write(at, &bytes);
                    node.is_dirty = !is_prompt;
                    if is_prompt {
                        node.replica.poll_memory(&node.region);
                    }
                }
                Some(Packet::Store(snapshot, store))
                    if node.replica.handle_snapshot(&node.region, from, &snapshot) =>
                {
                    node.store = store;
                }
                Some(Packet::Store(..)) | None => {}
            });
            if let Some(until) = until {
                self.acknowledge(from, to, epoch, until);
            }
        }
    }

    /// A card says that a node's ring has the log up to a mark, over a connection of this epoch.
    fn acknowledge(&mut self, name: NodeId, by: NodeId, epoch: u32, until: Mark) {
        if self.links.get(&(by, name)).is_some_and(|link| link.epoch == epoch) {
            self.with(name, |node| node.replica.handle_written(&node.region, by, until));
        }
    }

    fn hear(&mut self, name: NodeId, event: Event, now_ns: u64) {
        self.with(name, |node| node.replica.handle_event(&node.region, event, now_ns));
    }

    /// A node that has heard all that was said looks once more; a lease's time passes; all others
    /// look.
    fn expire(&mut self) {
        self.expired += 1;
        let primary = self.registry.latest().map(|latest| latest.primary);
        let (before_ns, now_ns) = (self.now_ns, self.now_ns + LEASE_NS);
        self.now_ns = now_ns;
        let others: Vec<_> =
            self.nodes.keys().copied().filter(|name| Some(*name) != primary).collect();
        for name in others {
            if self.nodes[&name].events.is_empty() {
                let latest = Event::Latest(self.registry.entry().cloned());
                self.hear(name, latest, before_ns);
            }
            self.with(name, |node| node.replica.handle_time(now_ns));
        }
    }

    fn cut(&mut self, one: NodeId, other: NodeId) {
        let had = self.links.remove(&(one, other)).is_some();
        if self.links.remove(&(other, one)).is_some() || had {
            for (name, peer) in [(one, other), (other, one)] {
                self.with(name, |node| node.replica.handle_disconnected(&node.region, peer));
            }
        }
    }

    fn write(&mut self, name: NodeId) {
        let write = self.broadcast.len() as u8;
        let mut done = None;
        self.with(name, |node| {
            let fields = Fields { key: &[write], ..Fields::of(Operation::Delete) };
            if let Ok(position) = node.replica.append(&node.region, &fields) {
                node.store.push((position.number(), write));
                done = Some((position.number(), node.replica.epoch()));
            }
        });
        if let Some((position, epoch)) = done {
            self.broadcast.push(epoch);
            self.pending.push((name, position, write));
        }
    }

    /// What a node has delivered: carried out, and known to be committed.
    fn delivered(node: &Node) -> impl Iterator<Item = (u64, u8)> + '_ {
        let committed = node.replica.committed().number();
        node.store.iter().copied().filter(move |(position, _)| *position <= committed)
    }

    /// Whether a node answers reads, as far as it knows itself.
    fn may_answer(&self, node: &Node) -> bool {
        let (replica, epoch) = (&node.replica, node.replica.epoch());
        let has_lease =
            self.without == Some(Rule::Lease) || replica.holds_lease(epoch, self.now_ns);
        has_lease && (replica.is_serving() || self.without == Some(Rule::Commit) && orders(replica))
    }

    /// The nodes that may answer reads, as far as they know themselves.
    fn answering(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().map(|node| &**node).filter(|node| self.may_answer(node))
    }

    fn pairs(&self) -> impl Iterator<Item = (&Node, &Node)> {
        let all = || self.nodes.values().map(|node| &**node);
        all().flat_map(move |one| all().map(move |other| (one, other)))
    }
}

impl Model for Group {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::new(*self);
        (0..if self.begins_written { self.writes } else { 0 }).for_each(|_| state.write(A));
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.own_actions(actions);
        for (name, node) in &state.nodes {
            let may_write = state.amid.is_none_or(|(node, _)| node == *name);
            if node.replica.is_serving() && may_write && state.broadcast.len() < self.writes {
                actions.push(Action::Write(*name));
            }
            if state.renewed < self.renewals && node.replica.primary() == Some(*name) {
                let sent: BTreeSet<_> =
                    [state.now_ns.saturating_sub(LEASE_NS), state.now_ns].into();
                actions.extend(sent.into_iter().map(|sent_ns| Action::Renew(*name, sent_ns)));
            }
            if state.crashed < self.crashes {
                actions.push(Action::Crash(*name));
            }
        }
        if state.expired < self.expiries && state.crashed == self.crashes {
            actions.push(Action::Expire);
        }
        for ((one, other), link) in state.links.iter().filter(|_| state.cut < self.cuts) {
            // (What arrives one by one may do so before.)
            let most = if self.in_bursts { link.packets.len() } else { 0 };
            let least = usize::from(one > other);
            actions.extend((least..=most).map(|arrived| Action::Cut(*one, *other, arrived)));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.act(&action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Group>> {
        properties::all()
    }
}

/// (Depth first, so that few of the states are there at a time.)
fn check(group: Group) -> usize {
    let checker = group.checker().spawn_dfs().join();
    if group.begins_written {
        // Nobody writes in a second epoch.
        let always = |property: &Property<Group>| property.expectation == Expectation::Always;
        let all = group.properties();
        all.iter().filter(|it| always(it)).for_each(|it| checker.assert_no_discovery(it.name));
    } else {
        checker.assert_properties();
    }
    checker.unique_state_count()
}

/// How many states of random orders are looked at.
const STATES: usize = 200_000;

const GROUP: Group = Group {
    nodes: 3,
    writes: 1,
    begins_written: false,
    expiries: 0,
    renewals: 0,
    crashes: 0,
    cuts: 0,
    is_prompt: false,
    in_bursts: false,
    transacts: false,
    cards_tell: false,
    options: OPTIONS,
    without: None,
};
const IN_BURSTS: Group = Group { is_prompt: true, in_bursts: true, ..GROUP };

const ONE_CHANGE: Group = Group { expiries: 1, ..IN_BURSTS };
const TWO_WRITES: Group = Group { writes: 2, ..ONE_CHANGE };
const BROKEN_LINK: Group = Group { cuts: 1, ..ONE_CHANGE };
const TWO_CHANGES: Group = Group { expiries: 2, begins_written: true, ..IN_BURSTS };
const BY_CARDS: Group = Group { cards_tell: true, is_prompt: false, ..ONE_CHANGE };

/// A primary loses its lease while a write is on its way, and goes on as if it had it.
#[test]
fn a_primary_that_is_replaced_loses_nothing() {
    assert!(check(Group { in_bursts: false, ..ONE_CHANGE }) > 1000);
}

/// A node that has lost its lease asks for it again, before it hears that it was replaced.
#[test]
fn a_lease_that_comes_back_does_not_bring_the_epoch_back() {
    let group = Group { writes: 0, expiries: 1, renewals: 1, is_prompt: true, ..GROUP };
    let checker = group.checker().spawn_dfs().join();
    assert!(checker.unique_state_count() > 1000);
    checker.assert_no_discovery("one node answers reads");
}

/// Orders by chance, the same each time, in which nothing has to come in bursts.
#[test]
fn some_orders_within_wider_bounds_lose_nothing() {
    let by_cards = Group { cards_tell: true, is_prompt: false, ..BROKEN_LINK };
    for group in [TWO_WRITES, BROKEN_LINK, TWO_CHANGES, by_cards, transactions::REPLACED] {
        let group = Group { in_bursts: false, begins_written: false, ..group };
        let checker = group.checker().target_state_count(STATES);
        checker.spawn_simulation(1, UniformChooser).join().assert_properties();
    }
}

/// The same with two writes.
#[test]
fn a_primary_that_is_replaced_between_writes_loses_nothing() {
    assert!(check(TWO_WRITES) > 1000);
}

/// What a card has acknowledged counts as held, whether its node has looked or not.
#[test]
fn what_cards_have_acknowledged_is_not_lost() {
    assert!(check(BY_CARDS) > 1000);
}

/// A link is lost with what is on it, and made anew.
#[test]
fn a_link_that_breaks_loses_nothing() {
    assert!(check(BROKEN_LINK) > 1000);
}

/// A node is lost with its memory: the primary, or a backup.
#[test]
fn a_node_that_is_lost_takes_nothing_along() {
    assert!(check(Group { writes: 2, crashes: 1, expiries: 1, ..GROUP }) > 100);
}

/// A second change comes at any step of the first.
#[test]
#[ignore = "takes minutes"]
fn a_change_of_primary_during_another_loses_nothing() {
    assert!(check(TWO_CHANGES) > 1000);
}

// What directed tests begin with.

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

fn group() -> State {
    State::new(GROUP)
}

impl State {
    fn serving(&self) -> NodeId {
        let mut all = self.nodes.iter().filter(|(_, node)| node.replica.is_serving());
        let serving = all.next().map(|(name, _)| *name);
        assert!(all.next().is_none(), "two nodes serve");
        serving.expect("a node serves")
    }

    fn stores(&self) -> Vec<&[(u64, u8)]> {
        self.nodes.values().map(|node| &node.store[..]).collect()
    }

    fn assert_equal_stores(&self) {
        let stores = self.stores();
        assert!(stores.iter().all(|store| *store == stores[0]), "{stores:?}");
    }

    /// A node without anything registers.
    fn come(&mut self, name: NodeId) {
        self.nodes.insert(name, Arc::new(Node::new(name, OPTIONS)));
        let now_ns = self.now_ns;
        self.with(name, |node| node.replica.handle_time(now_ns));
        self.settle();
    }
}
