//! `CLUSTER`: on which nodes the keys are.
//!
//! A group of nodes has some of the 16,384 slots: its primary is their master, its backups are the
//! replicas. Moves of slots have subcommands of their own: see `transfer`.

use crate::front::keyspace::{Cluster, ClusterGroup, ClusterNode, Health};
use crate::front::redis::command::{Call, Done, Wrong};
use crate::front::redis::commands::transfer;
use crate::front::redis::routing;
use crate::front::slots::{Range, SLOTS, slot_of};

/// Keys that one step of a whole walk shows.
const STEP: usize = 1024;

const HELP: &[&str] = &[
    "COUNTKEYSINSLOT <slot>",
    "    Return the number of keys in <slot> on this node: it looks at all keys.",
    "GETKEYSINSLOT <slot> <count>",
    "    Return up to <count> keys in <slot> on this node.",
    "INFO",
    "    Return information about the cluster.",
    "KEYSLOT <key>",
    "    Return the slot of <key>.",
    "MYID",
    "    Return the node's id.",
    "NODES",
    "    Return the nodes in lines, each with its slots.",
    "SHARDS",
    "    Return the groups of nodes with their slots.",
    "SLOTS",
    "    Return ranges of slots with their nodes.",
];

/// `CLUSTER …`.
pub(crate) fn cluster(call: &mut Call<'_>) -> Done {
    let Some(cluster) = call.turn.server.keeper.cluster() else {
        return Err(Wrong::Is("ERR This instance has cluster support disabled"));
    };
    let sub = call.at(1).to_ascii_lowercase();
    match (sub.as_slice(), call.len()) {
        (b"help", 2) => return call.help(HELP),
        (b"keyslot", 3) => call.reply.integer(slot_of(call.at(2)).into()),
        (b"countkeysinslot", 3) => return routing::run_about_a_node(call, count_keys),
        (b"getkeysinslot", 4) => return routing::run_about_a_node(call, get_keys),
        (b"info", 2) => call.reply.verbatim(&info(&cluster)),
        (b"myid", 2) => {
            let mut nodes = cluster.groups.iter().flat_map(|group| &group.nodes);
            let me = nodes.find(|node| node.is_me);
            call.reply.bulk(id(me.map_or(0, |me| me.id)).as_bytes());
        }
        (b"slots", 2) => slots(call, &cluster),
        (b"shards", 2) => shards(call, &cluster),
        (b"nodes", 2) => call.reply.verbatim(&nodes(&cluster)),
        (b"take" | b"retake" | b"own", 5..) => return transfer::transfer(call),
        (b"import", 7..) => return transfer::import(call),
        (
            b"help" | b"keyslot" | b"countkeysinslot" | b"getkeysinslot" | b"info" | b"myid"
            | b"slots" | b"shards" | b"nodes" | b"take" | b"retake" | b"own" | b"import",
            _,
        ) => return call.arity(),
        _ => return call.no_subcommand(),
    }
    Ok(())
}

fn count_keys(call: &mut Call<'_>) -> Done {
    let keys = keys_in(call, usize::MAX)?;
    call.reply.integer(keys.len() as i64);
    Ok(())
}

fn get_keys(call: &mut Call<'_>) -> Done {
    let count = call.integer(3)?;
    let most = usize::try_from(count).map_err(|_| Wrong::Is("ERR Invalid number of keys"));
    let keys = keys_in(call, most?)?;
    call.reply.array(keys.len());
    keys.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

/// The keys of the slot that the request names, at most so many.
fn keys_in(call: &mut Call<'_>, most: usize) -> Result<Vec<Vec<u8>>, Wrong> {
    let slot = u16::try_from(call.integer(2)?).ok().filter(|slot| *slot < SLOTS);
    let slot = slot.ok_or(Wrong::Is("ERR Invalid slot"))?;
    let server = call.turn.server.clone();
    let (mut found, mut bytes, mut cursor) = (Vec::new(), 0, 0);
    let Some(space) = server.used_database(0) else { return Ok(found) };
    loop {
        cursor = server.keyspace.scan(space, cursor, STEP, call.turn.now, &mut |key, _| {
            if slot_of(key) == slot && found.len() < most {
                bytes += key.len() + 32;
                found.push(key.to_vec());
            }
            call.reply.has_room(bytes) && found.len() < most
        });
        if !call.reply.has_room(bytes) {
            return call.overflow().map(|()| found);
        }
        if cursor == 0 || found.len() >= most {
            return Ok(found);
        }
    }
}

/// A node's number, as long as Redis' clients expect one.
fn id(number: u64) -> String {
    format!("{number:040x}")
}

/// The nodes, the primary first.
fn ordered(group: &ClusterGroup) -> impl Iterator<Item = &ClusterNode> {
    let all = |is_primary| group.nodes.iter().filter(move |node| node.is_primary == is_primary);
    all(true).chain(all(false))
}

/// The nodes that clients can reach, the primary first.
fn reachable(group: &ClusterGroup) -> Vec<(&ClusterNode, String, u16)> {
    let place = |node: &'_ ClusterNode| node.address.map(|at| (at.ip().to_string(), at.port()));
    ordered(group).filter_map(|node| place(node).map(|(ip, port)| (node, ip, port))).collect()
}

fn has_primary(group: &ClusterGroup) -> bool {
    group.primary().is_some_and(|node| node.address.is_some())
}

fn count<'r>(ranges: impl Iterator<Item = &'r Range>) -> u32 {
    ranges.map(|range| u32::from(range.count())).sum()
}

fn info(cluster: &Cluster) -> String {
    let groups = &cluster.groups;
    let assigned = count(groups.iter().flat_map(|group| &group.slots));
    let served = groups.iter().filter(|group| has_primary(group));
    let ok = count(served.flat_map(|group| &group.slots));
    let state = if ok == SLOTS.into() { "ok" } else { "fail" };
    let nodes: usize = groups.iter().map(|group| group.nodes.len()).sum();
    let size = groups.iter().filter(|group| !group.slots.is_empty()).count();
    let epoch = groups.iter().map(|group| group.epoch).max().unwrap_or(0);
    let mine = cluster.mine().map_or(0, |group| group.epoch);
    format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{ok}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:{}\r\ncluster_known_nodes:{nodes}\r\n\
         cluster_size:{size}\r\ncluster_current_epoch:{epoch}\r\ncluster_my_epoch:{mine}\r\n",
        assigned - ok
    )
}

/// Clients that know nodes from here only (redis-py) must find those to which an `ASK` sends them:
/// a primary without slots stands behind the replicas of the first range, where it answers reads by
/// `MOVED`.
fn slots(call: &mut Call<'_>, cluster: &Cluster) {
    let served = || cluster.groups.iter().filter(|group| has_primary(group));
    let empty = served().filter(|group| group.slots.is_empty());
    let mut guests: Vec<_> =
        empty.filter_map(|group| reachable(group).into_iter().next()).collect();
    call.reply.array(served().map(|group| group.slots.len()).sum());
    for group in served() {
        let nodes = reachable(group);
        for range in &group.slots {
            let guests = std::mem::take(&mut guests);
            call.reply.array(2 + nodes.len() + guests.len());
            call.reply.integer(range.first.into());
            call.reply.integer(range.last.into());
            for (node, ip, port) in nodes.iter().chain(&guests) {
                call.reply.array(4);
                call.reply.bulk(ip.as_bytes());
                call.reply.integer((*port).into());
                call.reply.bulk(id(node.id).as_bytes());
                call.reply.array(0);
            }
        }
    }
}

fn shards(call: &mut Call<'_>, cluster: &Cluster) {
    call.reply.array(cluster.groups.len());
    for group in &cluster.groups {
        call.reply.map(2);
        call.reply.bulk(b"slots");
        call.reply.array(2 * group.slots.len());
        for range in &group.slots {
            call.reply.integer(range.first.into());
            call.reply.integer(range.last.into());
        }
        call.reply.bulk(b"nodes");
        call.reply.array(group.nodes.len());
        ordered(group).for_each(|node| shard_node(call, node));
    }
}

/// Nobody knows where a lost node is: Redis' clients take `?` for that.
fn shard_node(call: &mut Call<'_>, node: &ClusterNode) {
    let ip = node.address.map_or_else(String::new, |at| at.ip().to_string());
    let endpoint = if ip.is_empty() { "?" } else { &ip };
    let role = if node.is_primary { "master" } else { "replica" };
    let health = match node.health {
        Health::Online => "online",
        Health::Loading => "loading",
        Health::Lost => "fail",
    };
    let port = node.address.map_or(0, |at| at.port());
    let offset = node.offset.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    call.reply.map(7);
    text(call, "id", &id(node.id));
    number(call, "port", port.into());
    text(call, "ip", &ip);
    text(call, "endpoint", endpoint);
    text(call, "role", role);
    number(call, "replication-offset", offset);
    text(call, "health", health);
}

fn text(call: &mut Call<'_>, name: &str, value: &str) {
    call.reply.bulk(name.as_bytes());
    call.reply.bulk(value.as_bytes());
}

fn number(call: &mut Call<'_>, name: &str, value: i64) {
    call.reply.bulk(name.as_bytes());
    call.reply.integer(value);
}

fn nodes(cluster: &Cluster) -> String {
    cluster.groups.iter().map(nodes_of).collect()
}

fn nodes_of(group: &ClusterGroup) -> String {
    let primary = group.primary().map(|node| id(node.id));
    let held: String = group.slots.iter().map(|range| format!(" {range}")).collect();
    let epoch = group.epoch;
    let line = |(node, ip, port): &(&ClusterNode, String, u16)| {
        let me = if node.is_me { "myself," } else { "" };
        let (role, of, slots) = match &primary {
            Some(primary) if !node.is_primary => ("slave", primary.as_str(), ""),
            _ => ("master", "-", held.as_str()),
        };
        let id = id(node.id);
        format!("{id} {ip}:{port}@0 {me}{role} {of} 0 0 {epoch} connected{slots}\n")
    };
    reachable(group).iter().map(line).collect()
}
