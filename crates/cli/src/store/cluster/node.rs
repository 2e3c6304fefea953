//! A node of a group: a store that follows the others, or that the others follow.

use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use remora::Device;
use remora_cluster::etcd::{Etcd, EtcdOptions, Origin, Terms};
use remora_cluster::{
    Address, CardWays, EtcdMap, Group, GroupLog, GroupOptions, KeepError, Keeping, Kept, Mover,
    Node, NodeId, NotServing, ShardKeeper, Slots, Status,
};
use remora_command::{output, random};
use remora_store::front::served::Served;
use remora_store::front::server::{self, Server};
use remora_store::service::{FIRST, KeepOptions, Places, ServiceOptions, are_as_asked};
use remora_store::store::{self, Store};
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::clock::now_ms;
use remora_store::way::region::Region;
use serde_json::json;

use super::super::serve::read_back;
use super::{NodeArgs, Restore, full_name};

/// How often the house is kept: what has expired goes, memory is tidied.
const HOUSE: Duration = Duration::from_millis(10);
/// Buckets that are looked at each time.
const HOUSE_BUCKETS: u32 = 4096;
/// The members are looked after once in so many times.
const TEND_EVERY: u32 = 25;
/// How long a node that is to end stays for others, while one is about to take a place.
pub(crate) const HAND_OVER: Duration = Duration::from_secs(30);
/// How often it looks whether it may end.
const LOOK: Duration = Duration::from_millis(100);
/// How long it waits for one that nobody has heard of yet.
const GRACE: Duration = Duration::from_secs(2);
/// How long it waits for etcd, or for members that etcd has not heard of: on a busy machine they
/// may only be slow.
const ABSENCE: Duration = Duration::from_secs(5);
/// By how many millionths clocks gain or lose at most.
const DRIFT_PPM: u32 = 500;
/// Nodes reach each other at the port that is so much higher than the one of their clients.
const NODES_PORT: u16 = 10;
/// Numbers of nodes are drawn of so many bits: readers of JSON take them for what they are.
const NUMBER_BITS: u32 = 53;

/// A node that serves. Its clients go first, and what waits for the group last.
struct Member {
    fronts: Server,
    /// Not on a card that other processes share: it does not run the store's kernels.
    ways: Option<CardWays>,
    node: Node<Region>,
    slots: Arc<Slots<Region>>,
    /// What the group's nodes have agreed on, whatever this one was told.
    terms: Terms,
    _mover: Mover<Region>,
}

/// Serves a node until `stop`, or until a client ends it.
///
/// # Errors
/// It cannot start, or it has ended by itself.
pub(in crate::store) fn serve(
    device: &Device,
    name: &str,
    args: &NodeArgs,
    options: &ServiceOptions,
    json: bool,
    stop: &AtomicBool,
) -> Result<()> {
    let member = Member::start(device, name, args, options)?;
    member.announce(name, args, json)?;
    member.run(args, stop)
}

impl Member {
    fn start(
        device: &Device,
        name: &str,
        args: &NodeArgs,
        options: &ServiceOptions,
    ) -> Result<Member> {
        let keep = options.keep.as_ref();
        let open = |keep: &KeepOptions| {
            let kept = Kept::open(&keep.directory, keep.fsync)?;
            Ok::<_, KeepError>(kept.telling(keep.progress.clone()))
        };
        let kept = keep.map(open).transpose()?;
        // Without a directory, it is another node in its next life.
        let me = match kept.as_ref().and_then(Kept::node) {
            Some(node) => node,
            None => NodeId(u64::from_ne_bytes(random::bytes()?) >> (u64::BITS - NUMBER_BITS)),
        };
        let lease = args.lease;
        let own = full_name(name, &args.group);
        let (group, size, ring_bytes) = (args.etcd.group(&own)?, args.nodes, args.ring);
        let map = EtcdMap::new(&group).context("cannot keep a map of the cluster")?;
        let origin = origin(kept.as_ref().and_then(Kept::salt), args.restore)?;
        let (etcd, terms) =
            Etcd::connect(&EtcdOptions { group, lease, size, ring_bytes, origin }, me)?;
        let group = Group::new(device, group_options(me, nodes_port(options.door.port)?, &terms))?;
        let own = store::Options::new(options.limit, options.seed);
        let places = Places::new(device, options.limit, own.memory_len())?;
        let store = Arc::new(Store::new(places.region, GroupLog(group.clone()), own)?);
        let keeping = kept.map(|kept| kept.read_back(&store)).transpose()?;
        let served = Served::new(store.clone(), options.limit, options.defaults.clone());
        let slots = Slots::new(group.clone(), store.clone(), &args.group);
        let keeper = Arc::new(ShardKeeper::new(slots.clone()));
        // memcached's clients choose a group by hashes of their own: their keys have no slots.
        let fronts = server::Options { is_shared: false, ..options.fronts.clone() };
        let stats = fronts.stats.clone();
        let fronts = Server::start(&fronts, Arc::new(served), keeper)?;
        let memory = (places.for_clients, places.for_chains);
        let ways = || CardWays::start(&slots, memory, options.door.clone(), &stats);
        let ways = (!device.is_attached()).then(ways).transpose()?;
        let card = group.address();
        let etcd = etcd.announce(Address {
            card,
            redis: reachable(fronts.redis(), card.ip(), "--redis"),
            store: ways.as_ref().map(CardWays::address),
            memcached: reachable(fronts.memcached(), card.ip(), "--memcached"),
            memory: Some(store.limit()),
            last: keeping.as_ref().and_then(Keeping::last),
            members: keeping.as_ref().map(Keeping::members).unwrap_or_default().to_vec(),
        });
        let spaces = spaces(options);
        let etcd = Box::new(etcd);
        let node = match keeping {
            Some(keeping) => Node::resume(store, keeping, spaces, etcd)?,
            None => Node::start(store, spaces, etcd)?,
        };
        // (What others of the group have is there later: it stays as it is.)
        are_as_asked(node.store(), &options.tablespaces)?;
        let mover = Mover::start(slots.clone(), Box::new(map), options.fronts.password.clone())?;
        Ok(Member { fronts, ways, node, slots, terms, _mover: mover })
    }

    fn announce(&self, name: &str, args: &NodeArgs, json: bool) -> Result<()> {
        let group = self.node.group();
        let (me, card) = (group.status().me, group.address());
        let (redis, memcached) = (self.fronts.redis(), self.fronts.memcached());
        let ways = self.ways.as_ref().map(CardWays::address);
        if json {
            return output::json_line(&json!({
                "cluster": name, "group": args.group, "node": me.to_string(),
                "card": card.to_string(), "store": ways.map(|at| at.to_string()),
                "redis": redis, "memcached": memcached,
                "records": self.node.recovery().map(|found| found.log.records),
                "lease_ms": self.terms.lease.as_millis() as u64,
                "ring_bytes": self.terms.ring_bytes,
            }));
        }
        let group = &args.group;
        println!("Node {me} of group {group} of the cluster {name}: its card is at {card}.");
        let Terms { lease, ring_bytes, .. } = self.terms;
        println!("The group has a lease of {lease:?} and a ring of {}.", output::bytes(ring_bytes));
        if let Some(at) = ways {
            println!("Clients over the card: {at}.");
        }
        redis.iter().for_each(|at| println!("Redis’ clients: TCP {at}."));
        memcached.iter().for_each(|at| println!("memcached’s clients: TCP {at}."));
        if let Some(found) = self.node.recovery() {
            println!("{}", read_back(found));
        }
        let etcd = args.etcd.written();
        println!("Try: remora store cluster status {name} {etcd}        Stop: Ctrl-C");
        Ok(())
    }

    /// Keeps the house until the node is to end.
    fn run(&self, args: &NodeArgs, stop: &AtomicBool) -> Result<()> {
        let mut turn = 0u32;
        while !stop.load(Ordering::Relaxed) && !self.fronts.is_stopping() {
            if let Err(NotServing::Failed(reason)) = self.node.group().check() {
                bail!(
                    "the node has ended: {reason}; start it again, with as much memory as the \
                     others have, and it gets what it lacks"
                );
            }
            self.node.store().sweep(now_ms(), HOUSE_BUCKETS);
            if turn.is_multiple_of(TEND_EVERY) {
                self.node.tend(self.size(args));
            }
            turn = turn.wrapping_add(1);
            std::thread::sleep(HOUSE);
        }
        self.wait_for_others(args)
    }

    /// How many members the group is to have.
    fn size(&self, args: &NodeArgs) -> usize {
        let atlas = self.slots.atlas();
        let wanted = atlas.groups.get(&args.group).and_then(|view| view.size);
        wanted.unwrap_or(args.nodes).into()
    }

    /// Without a directory, what this node holds goes with it. So where a majority would go, and
    /// another node is about to become a member, it stays until that one is. (A second signal ends
    /// it at once.) Where nobody comes, the user wants to end them all.
    fn wait_for_others(&self, args: &NodeArgs) -> Result<()> {
        if self.node.recovery().is_some() {
            return Ok(());
        }
        let (start, mut is_told, mut hopeless_since) = (Instant::now(), false, None);
        loop {
            match reason_to_stay(&self.node.group().status(), self.size(args)) {
                Reason::None => break,
                Reason::Comes => hopeless_since = None,
                Reason::Hope(patience) => {
                    let since = *hopeless_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > patience {
                        break;
                    }
                }
            }
            if !is_told {
                eprintln!(
                    "Waits until another node has what only this one and a minority have; a \
                     second signal ends it at once, and the group with it."
                );
                is_told = true;
            }
            if start.elapsed() > HAND_OVER {
                bail!(
                    "the node has ended, and no other one had what it held within {HAND_OVER:?}: \
                     the group may be lost"
                );
            }
            self.node.tend(self.size(args));
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// How a node takes part in a group that has agreed on these terms.
fn group_options(me: NodeId, port: u16, terms: &Terms) -> GroupOptions {
    GroupOptions {
        me,
        port,
        ring_bytes: terms.ring_bytes,
        salt: terms.salt,
        token: terms.token,
        lease: terms.lease,
        drift_ppm: DRIFT_PPM,
        patience: terms.lease,
    }
}

/// What a node has of its group whose directory is of a group with this salt, if it is of any.
fn origin(salt: Option<u64>, restores: Option<Restore>) -> Result<Origin> {
    Ok(match (salt, restores) {
        (Some(salt), Some(Restore::Whole)) => Origin::Restores(salt),
        (Some(salt), Some(Restore::Anyway)) => Origin::RestoresAnyway(salt),
        (Some(salt), None) => Origin::Directory(salt),
        (None, Some(_)) => bail!(
            "--restore begins a group again from its nodes’ directories, and this one has no \
             node: name one by --dir"
        ),
        (None, None) => Origin::New,
    })
}

/// Why a node that is to end stays.
enum Reason {
    /// The group goes on without it.
    None,
    /// Another one is about to have what it holds.
    Comes,
    /// Nobody is known to come; somebody may, for so long.
    Hope(Duration),
}

/// Why a node stays that is to end, of a group that is to have this size.
fn reason_to_stay(node: &Status, size: usize) -> Reason {
    let Status { me, addresses: there, .. } = node;
    let Some(latest) = &node.configuration else { return Reason::None };
    let members = &latest.members;
    let stay = members.iter().filter(|node| *node != me && there.contains_key(node)).count();
    let is_majority = |count: usize| count * 2 > members.len();
    let comes = there.keys().any(|node| !members.contains(node)) || !latest.is_established();
    if !members.contains(me) || is_majority(stay) {
        return Reason::None;
    }
    // (While etcd does not answer, nobody takes a place.)
    if node.service.is_some() || !is_majority(stay + 1) {
        return Reason::Hope(ABSENCE);
    }
    match comes || members.len() > size {
        true => Reason::Comes,
        false => Reason::Hope(GRACE),
    }
}

/// The port at which the nodes reach each other.
fn nodes_port(clients: u16) -> Result<u16> {
    let port = clients.checked_add(NODES_PORT);
    port.with_context(|| {
        format!("there is no port {NODES_PORT} above {clients}: choose a lower one")
    })
}

/// Where clients of other nodes are sent, if there are such fronts: one that listens at every
/// address is reached where the card is.
fn reachable(fronts: &[SocketAddr], card: IpAddr, option: &str) -> Option<SocketAddr> {
    let front = *fronts.first()?;
    if front.ip().is_unspecified() {
        return Some((card, front.port()).into());
    }
    if front.ip().is_loopback() && !card.is_loopback() {
        tracing::warn!(
            "clients that other nodes send to {front} reach it from this machine only: serve them \
             at an address of this machine’s, as in {option} {card}:{}",
            front.port()
        );
    }
    Some(front)
}

/// The tablespaces that the group is to have.
fn spaces(options: &ServiceOptions) -> Vec<TablespaceOptions> {
    let first = TablespaceOptions { name: FIRST.to_owned(), ..options.defaults.clone() };
    let is_named = options.tablespaces.iter().any(|space| space.name == FIRST);
    let first = iter::once(first).filter(|_| !is_named);
    first.chain(options.tablespaces.iter().cloned()).collect()
}
