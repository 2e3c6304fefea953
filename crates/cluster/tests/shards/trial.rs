//! Groups of nodes in this process, over cards of their own, with fronts for Redis' clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use remora::Device;
use remora::connection::token::Token;
use remora_cluster::{
    Address, Atlas, CardWays, Configuration, Group, GroupLog, GroupOptions, InProcess,
    InProcessMap, MapService, Mover, Node, NodeId, Owner, ShardKeeper, SlotMap, Slots,
};
use remora_store::front::served::Served;
use remora_store::front::server::{self, Server};
use remora_store::front::slots::{Range, Ticket};
use remora_store::service::Places;
use remora_store::store::{Options, Store};
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::door::DoorOptions;
use remora_store::way::region::Region;

use super::client::{Client, Reply};
#[path = "../../../remora/tests/support/until.rs"]
mod until;
pub(crate) use until::until_some as until;

const LEASE: Duration = Duration::from_secs(2);
const LIMIT: u64 = 32 << 20;
/// What groups are told apart by from those before them.
const SALT: u64 = 0x5a17;
const LATER_SALT: u64 = 0x5a18;

/// A node. What it does by itself ends first, as in a crash; then its clients go.
struct Member {
    _mover: Mover<Region>,
    fronts: Server,
    ways: CardWays,
    node: Node<Region>,
    is_blind: Arc<AtomicBool>,
}

/// The map, as a node sees it: not at all, while it is blind.
struct Sight {
    map: InProcessMap,
    is_blind: Arc<AtomicBool>,
}

impl Sight {
    fn open(&mut self) -> Result<&mut InProcessMap, String> {
        let is_blind = self.is_blind.load(Relaxed);
        if is_blind { Err("the map is away".to_owned()) } else { Ok(&mut self.map) }
    }
}

impl MapService for Sight {
    fn look(&mut self) -> Result<Atlas, String> {
        self.open()?.look()
    }

    fn replace(&mut self, revision: i64, next: &SlotMap) -> Result<bool, String> {
        self.open()?.replace(revision, next)
    }
}

pub(crate) type GroupStore = Store<Region, GroupLog>;

pub(crate) struct Trial {
    services: BTreeMap<String, InProcess>,
    map: InProcessMap,
    members: BTreeMap<(String, NodeId), Member>,
}

impl Trial {
    /// Groups of these names, with so many nodes each; the first one has all slots.
    pub(crate) fn new(names: &[&str], size: u64) -> Trial {
        Trial::with_blind(names, size, |_| false)
    }

    /// The same, where these nodes do not see the map.
    pub(crate) fn with_blind(names: &[&str], size: u64, is_blind: fn(NodeId) -> bool) -> Trial {
        let members = |index: usize| (1..=size).map(move |node| NodeId(index as u64 * 100 + node));
        let service = |(index, name): (usize, &&str)| {
            let members: Vec<_> = members(index).collect();
            let first = Configuration::first(members[0], members).unwrap();
            ((*name).to_owned(), InProcess::new(first))
        };
        let services: BTreeMap<_, _> = names.iter().enumerate().map(service).collect();
        let map = InProcessMap::new(services.clone());
        let mut trial = Trial { services, map, members: BTreeMap::new() };
        for (index, name) in names.iter().enumerate() {
            for node in members(index) {
                let is_blind = Arc::new(AtomicBool::new(is_blind(node)));
                let sight = Sight { map: trial.map.clone(), is_blind };
                let member = start(&trial.services[*name], sight, name, node, SALT);
                trial.members.insert(((*name).to_owned(), node), member);
            }
            // The first one claims the slots before others are there.
            trial.primary_front(name);
            until("the cluster has a map", || trial.map.clone().look().unwrap().slots);
        }
        trial
    }

    pub(crate) fn fronts(&self) -> Vec<SocketAddr> {
        self.members.values().map(|member| member.fronts.redis()[0]).collect()
    }

    pub(crate) fn fronts_of(&self, group: &str) -> Vec<SocketAddr> {
        let members = self.members.iter().filter(|((name, _), _)| name == group);
        members.map(|(_, member)| member.fronts.redis()[0]).collect()
    }

    /// Where clients over the card reach the nodes.
    pub(crate) fn doors(&self) -> Vec<SocketAddr> {
        self.members.values().map(|member| member.ways.address()).collect()
    }

    pub(crate) fn client(&self) -> Client {
        Client::with(self.fronts())
    }

    fn primary(&self, group: &str) -> (NodeId, &Member) {
        until(&format!("group {group} serves"), || {
            let mut nodes = self.members.iter().filter(|((name, _), _)| name == group);
            let serving = nodes.find(|(_, member)| member.node.group().check().is_ok())?;
            Some((serving.0.1, serving.1))
        })
    }

    pub(crate) fn primary_front(&self, group: &str) -> SocketAddr {
        self.primary(group).1.fronts.redis()[0]
    }

    /// A group's primary, and its store, as fronts and kernels have them.
    pub(crate) fn primary_store(&self, group: &str) -> (ShardKeeper<Region>, Arc<GroupStore>) {
        let node = &self.primary(group).1.node;
        let slots = Slots::new(node.group().clone(), node.store().clone(), group);
        (ShardKeeper::new(slots), node.store().clone())
    }

    /// What the fronts of one of a group's backups have of it.
    pub(crate) fn backup_keeper(&self, group: &str) -> ShardKeeper<Region> {
        let primary = self.primary(group).0;
        let is_backup =
            |((name, node), _): &(&(String, NodeId), &Member)| name == group && *node != primary;
        let node = &self.members.iter().find(is_backup).unwrap().1.node;
        ShardKeeper::new(Slots::new(node.group().clone(), node.store().clone(), group))
    }

    /// The service goes away, until the group's primary has lost its lease.
    pub(crate) fn lose_service(&self, group: &str) {
        let member = self.primary(group).1;
        self.services[group].set_away(true);
        until("the lease ends", || member.node.group().check().is_err().then_some(()));
    }

    /// Ends a group's primary, without a word to anybody.
    pub(crate) fn kill_primary(&mut self, group: &str) {
        let node = self.primary(group).0;
        self.members.remove(&(group.to_owned(), node));
    }

    /// Ends all nodes of a group.
    pub(crate) fn end(&mut self, group: &str) {
        self.members.retain(|(name, _), _| name != group);
    }

    /// A group that has ended begins anew, with one node and nothing of what it had.
    pub(crate) fn begin_anew(&mut self, group: &str) {
        let me = NodeId(1000);
        let service = InProcess::new(Configuration::first(me, vec![me]).unwrap());
        self.services.insert(group.to_owned(), service.clone());
        self.map.begin_anew(group, service);
        let sight = Sight { map: self.map.clone(), is_blind: Arc::default() };
        let member = start(&self.services[group], sight, group, me, LATER_SALT);
        self.members.insert((group.to_owned(), me), member);
    }

    /// A number for a session with a group.
    pub(crate) fn ticket(&self, group: &str) -> String {
        let founding = self.map.clone().look().unwrap().groups[group].founding.unwrap();
        Ticket { founding, number: 7 }.to_string()
    }

    /// Ends one of a group's backups.
    pub(crate) fn kill_backup(&mut self, group: &str) {
        let primary = self.primary(group).0;
        let is_backup = |(name, node): &&(String, NodeId)| name == group && *node != primary;
        let backup = self.members.keys().find(is_backup).unwrap().clone();
        self.members.remove(&backup);
    }

    pub(crate) fn move_slots(&self, ranges: &str, to: &str) {
        until("the map takes the move", || {
            let mut map = self.map.clone();
            let atlas = map.look().unwrap();
            let next = atlas.with_move(&[ranges.parse().unwrap()], to).unwrap();
            map.replace(atlas.revision, &next).unwrap().then_some(())
        });
    }

    /// Whether a group's nodes see the map.
    pub(crate) fn blind(&self, group: &str, is_blind: bool) {
        let members = self.members.iter().filter(|((name, _), _)| name == group);
        members.for_each(|(_, member)| member.is_blind.store(is_blind, Relaxed));
    }

    /// Has the map say that a group has all slots, without a move.
    pub(crate) fn say_owner(&self, group: &str) {
        self.say_owner_of(Range::ALL, group);
    }

    /// The same of some slots.
    pub(crate) fn say_owner_of(&self, slots: Range, group: &str) {
        let mut map = self.map.clone();
        let atlas = map.look().unwrap();
        let mut next = atlas.slots.unwrap_or_default();
        next.set(slots, Some(&Owner::new(group)));
        assert!(map.replace(atlas.revision, &next).unwrap());
    }

    pub(crate) fn is_moved(&self) -> bool {
        let slots = self.map.clone().look().unwrap().slots.unwrap();
        slots.iter().all(|(_, owner)| owner.to.is_none())
    }

    pub(crate) fn wait_until_moved(&self) {
        until("all slots are where they belong", || self.is_moved().then_some(()));
    }

    /// How many keys a group's primary has, as it sees it itself.
    pub(crate) fn count_of(&self, group: &str) -> u64 {
        let store = self.primary(group).1.node.store().clone();
        store.tablespace("db0").map_or(0, |space| store.count(space))
    }

    /// The keys of a group, as its primary says.
    pub(crate) fn keys_of(&self, group: &str) -> Vec<String> {
        until("a group shows its keys", || {
            let said = Client::new(self.primary_front(group)).direct(&["KEYS", "*"]).ok()?;
            let Reply::Array(keys) = said else { return None };
            let text = |key| match key {
                Reply::Text(text) => text,
                other => panic!("{other:?}"),
            };
            Some(keys.into_iter().map(text).collect())
        })
    }
}

fn start(service: &InProcess, map: Sight, name: &str, me: NodeId, salt: u64) -> Member {
    let device = Device::open().unwrap();
    let options = GroupOptions {
        me,
        port: 7490,
        ring_bytes: 1 << 20,
        salt,
        token: Token::new([3; 16]).unwrap(),
        lease: LEASE,
        drift_ppm: 500,
        patience: Duration::from_secs(10),
    };
    service.set_founding(options.founding());
    let group = Group::new(&device, options).unwrap();
    let own = Options::new(LIMIT, 7);
    let log = GroupLog(group.clone());
    let places = Places::new(&device, LIMIT, own.memory_len()).unwrap();
    let store = Arc::new(Store::new(places.region, log, own).unwrap());
    let space = TablespaceOptions::new("db0");
    let served = Served::new(store.clone(), LIMIT, space.clone());
    let slots = Slots::new(group.clone(), store.clone(), name);
    let keeper = Arc::new(ShardKeeper::new(slots.clone()));
    let redis = vec![([127, 0, 0, 1], 0).into()];
    let fronts = server::Options { redis, threads: 2, ..server::Options::default() };
    let stats = fronts.stats.clone();
    let fronts = Server::start(&fronts, Arc::new(served), keeper).unwrap();
    let memory = (places.for_clients, places.for_chains);
    let ways = CardWays::start(&slots, memory, DoorOptions::default(), &stats).unwrap();
    let (redis, store_at) = (Some(fronts.redis()[0]), Some(ways.address()));
    let address = Address { redis, store: store_at, ..Address::new(group.address()) };
    let coordinator = service.coordinator(me, address);
    let node = Node::start(store, vec![space], coordinator).unwrap();
    let is_blind = map.is_blind.clone();
    let mover = Mover::start(slots, Box::new(map), None).unwrap();
    Member { _mover: mover, fronts, ways, node, is_blind }
}
