//! A node: one command a line, one answer a line, both with the command's number first.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use remora::Device;
use remora_cluster::etcd::{Etcd, EtcdGroup, EtcdOptions, Origin};
use remora_cluster::{
    Address, CardWays, EtcdMap, Group, GroupLog, GroupOptions, Mover, Node, NodeId, ShardKeeper,
    Slots,
};
use remora_store::front::served::Served;
use remora_store::front::server::{self, Server};
use remora_store::scan::Cursor;
use remora_store::service::Places;
use remora_store::store::{Change, Expiry, Options, Store, Value};
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::clock::now_ms;
use remora_store::way::door::DoorOptions;
use remora_store::way::region::Region;

pub(crate) const LEASE: Duration = Duration::from_millis(500);
/// Its name in the cluster.
const GROUP: &str = "a";
const PORT: u16 = 7490;
const LIMIT: u64 = 16 << 20;

/// The group, as etcd is to know it.
pub(crate) fn options(endpoints: Vec<String>) -> EtcdOptions {
    EtcdOptions {
        group: EtcdGroup::new(endpoints, &format!("trial/{GROUP}")),
        lease: LEASE,
        size: 3,
        ring_bytes: 1 << 16,
        origin: Origin::New,
    }
}

/// A node, and how clients reach it.
struct Member {
    fronts: Server,
    ways: CardWays,
    node: Node<Region>,
    _mover: Mover<Region>,
}

/// A node of this process's number.
fn start(endpoints: Vec<String>) -> Member {
    let device = Device::open().unwrap();
    let me = NodeId(u64::from(std::process::id()));
    let etcd = options(endpoints);
    let map = EtcdMap::new(&etcd.group).unwrap();
    let (etcd, terms) = Etcd::connect(&etcd, me).unwrap();
    let options = GroupOptions {
        me,
        port: PORT,
        ring_bytes: terms.ring_bytes,
        salt: terms.salt,
        token: terms.token,
        lease: terms.lease,
        drift_ppm: 500,
        patience: Duration::from_secs(2),
    };
    let group = Group::new(&device, options).unwrap();
    let own = Options::new(LIMIT, 7);
    let log = GroupLog(group.clone());
    let places = Places::new(&device, LIMIT, own.memory_len()).unwrap();
    let store = Arc::new(Store::new(places.region, log, own).unwrap());
    let spaces = TablespaceOptions::new("db0");
    let served = Served::new(store.clone(), LIMIT, spaces.clone());
    let fronts =
        server::Options { redis: vec![([127, 0, 0, 1], 0).into()], ..server::Options::default() };
    let slots = Slots::new(group.clone(), store.clone(), GROUP);
    let (keeper, stats) = (Arc::new(ShardKeeper::new(slots.clone())), fronts.stats.clone());
    let fronts = Server::start(&fronts, Arc::new(served), keeper).unwrap();
    let memory = (places.for_clients, places.for_chains);
    let ways = CardWays::start(&slots, memory, DoorOptions::default(), &stats).unwrap();
    let (redis, store_at) = (fronts.redis().first().copied(), Some(ways.address()));
    let etcd = etcd.announce(Address { redis, store: store_at, ..Address::new(group.address()) });
    let node = Node::start(store, vec![spaces], Box::new(etcd)).unwrap();
    let mover = Mover::start(slots, Box::new(map), None).unwrap();
    Member { fronts, ways, node, _mover: mover }
}

pub(crate) fn run(endpoints: Vec<String>) {
    let Member { fronts, ways, node, _mover } = &start(endpoints);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let answer = match words[1..] {
            ["put", key, value] => put(node, key, value),
            ["get", key] => get(node, key),
            ["digest"] => Ok(digest(node)),
            ["applied"] => Ok(node.group().status().applied.position.to_string()),
            ["members"] => members(node),
            ["tend"] => {
                node.tend(3);
                Ok("ok".to_owned())
            }
            ["redis"] => Ok(fronts.redis()[0].to_string()),
            ["store"] => Ok(ways.address().to_string()),
            ["status"] => Ok(format!("{:?}", node.group().status())),
            _ => panic!("an unknown command: {line}"),
        };
        let answer = answer.unwrap_or_else(|reason| format!("no: {reason}"));
        println!("{} {answer}", words[0]);
        std::io::stdout().flush().unwrap();
    }
}

fn put(node: &Node<Region>, key: &str, value: &str) -> Result<String, String> {
    let space = node.store().tablespace("db0").ok_or("there is no tablespace yet")?;
    let put =
        Change::Put { value: Value::Given(value.as_bytes()), flags: 0, expiry: Expiry::Default };
    let updated = node.store().update(space, key.as_bytes(), now_ms(), &mut |_, _| put);
    let version = updated.map_err(|error| error.to_string())?.version;
    node.wait(version).map_err(|error| error.to_string())?;
    Ok("ok".to_owned())
}

fn get(node: &Node<Region>, key: &str) -> Result<String, String> {
    let look = || {
        let mut value = Vec::new();
        let space = node.store().tablespace("db0")?;
        node.store().get(space, key.as_bytes(), now_ms(), &mut value).map(|_| value)
    };
    let value = node.group().read(look).map_err(|error| error.to_string())?;
    Ok(value.map_or("none".to_owned(), |value| String::from_utf8(value).unwrap()))
}

/// The group's members, once they hold all that was acknowledged.
fn members(node: &Node<Region>) -> Result<String, String> {
    node.group().check().map_err(|reason| reason.to_string())?;
    let configuration = node.group().status().configuration.ok_or("there is none")?;
    if !configuration.is_established() {
        return Err("it is not established".to_owned());
    }
    let mut members: Vec<_> = configuration.members.iter().map(|node| node.0).collect();
    members.sort_unstable();
    Ok(members.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
}

/// The sum of all that the store has, in any order, and how many items these are.
fn digest(node: &Node<Region>) -> String {
    let Some(space) = node.store().tablespace("db0") else { return "empty".to_owned() };
    let (mut cursor, mut sum, mut items) = (Cursor::START, 0u64, 0);
    loop {
        cursor = node.store().scan(space, cursor, now_ms(), 100, &mut |item| {
            let bytes = item.key.iter().chain(item.stored).copied();
            let hash =
                bytes.chain(item.version.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |h, b| {
                    (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
                });
            sum = sum.wrapping_add(hash);
            items += 1;
            std::ops::ControlFlow::Continue(())
        });
        if cursor == Cursor::END {
            return format!("{items} items, {sum:016x}");
        }
    }
}
