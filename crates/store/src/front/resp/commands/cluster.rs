//! `CLUSTER`: on which nodes the keys are.
//!
//! All 16,384 slots lie on one group of nodes: its primary is their master, its backups are the
//! replicas.

use crate::front::keyspace::{Cluster, ClusterNode};
use crate::front::resp::command::{Call, Done, Wrong};

/// How many slots there are.
const SLOTS: u16 = 16_384;

/// The slot of a key: of what stands between its first braces, if something does.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|byte| *byte == b'}')?;
        (len > 0).then(|| &rest[..len])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, by which Redis' clients choose slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

/// `CLUSTER KEYSLOT | INFO | MYID | SLOTS | SHARDS | NODES`.
pub(crate) fn cluster(call: &mut Call<'_>) -> Done {
    let Some(cluster) = call.turn.world.keeper.cluster() else {
        return Err(Wrong::Is("ERR This instance has cluster support disabled"));
    };
    if call.is(1, "keyslot") {
        if call.len() != 3 {
            return call.arity();
        }
        call.reply.integer(slot_of(call.at(2)).into());
        return Ok(());
    }
    if call.len() != 2 {
        return call.no_subcommand();
    }
    match call.at(1).to_ascii_lowercase().as_slice() {
        b"info" => call.reply.verbatim(&info(&cluster)),
        b"myid" => {
            let me = cluster.nodes.iter().find(|node| node.is_me);
            call.reply.bulk(id(me.map_or(0, |me| me.id)).as_bytes());
        }
        b"slots" => slots(call, &cluster),
        b"shards" => shards(call, &cluster),
        b"nodes" => call.reply.verbatim(&nodes(&cluster)),
        _ => return call.no_subcommand(),
    }
    Ok(())
}

/// A node's number, as long as Redis' clients expect one.
fn id(number: u64) -> String {
    format!("{number:040x}")
}

/// The nodes that clients can reach, the primary first.
fn reachable(cluster: &Cluster) -> Vec<(&ClusterNode, String, u16)> {
    let place = |node: &'_ ClusterNode| node.address.map(|at| (at.ip().to_string(), at.port()));
    let all = |is_primary| cluster.nodes.iter().filter(move |node| node.is_primary == is_primary);
    let ordered = all(true).chain(all(false));
    ordered.filter_map(|node| place(node).map(|(ip, port)| (node, ip, port))).collect()
}

fn has_primary(cluster: &Cluster) -> bool {
    cluster.nodes.iter().any(|node| node.is_primary && node.address.is_some())
}

fn info(cluster: &Cluster) -> String {
    let (state, slots) = if has_primary(cluster) { ("ok", SLOTS) } else { ("fail", 0) };
    let (nodes, epoch) = (cluster.nodes.len(), cluster.epoch);
    format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{slots}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:{}\r\ncluster_known_nodes:{nodes}\r\n\
         cluster_size:1\r\ncluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\n",
        SLOTS - slots
    )
}

fn slots(call: &mut Call<'_>, cluster: &Cluster) {
    let nodes = reachable(cluster);
    if !has_primary(cluster) {
        return call.reply.array(0);
    }
    call.reply.array(1);
    call.reply.array(2 + nodes.len());
    call.reply.integer(0);
    call.reply.integer((SLOTS - 1).into());
    for (node, ip, port) in nodes {
        call.reply.array(4);
        call.reply.bulk(ip.as_bytes());
        call.reply.integer(port.into());
        call.reply.bulk(id(node.id).as_bytes());
        call.reply.array(0);
    }
}

fn shards(call: &mut Call<'_>, cluster: &Cluster) {
    let nodes = reachable(cluster);
    call.reply.array(1);
    call.reply.map(2);
    call.reply.bulk(b"slots");
    call.reply.array(2);
    call.reply.integer(0);
    call.reply.integer((SLOTS - 1).into());
    call.reply.bulk(b"nodes");
    call.reply.array(nodes.len());
    for (node, ip, port) in nodes {
        let role: &[u8] = if node.is_primary { b"master" } else { b"replica" };
        let (id, ip) = (id(node.id), ip.as_bytes());
        call.reply.map(7);
        for (name, text) in [(&b"id"[..], id.as_bytes()), (b"ip", ip), (b"endpoint", ip)] {
            call.reply.bulk(name);
            call.reply.bulk(text);
        }
        call.reply.bulk(b"port");
        call.reply.integer(port.into());
        call.reply.bulk(b"role");
        call.reply.bulk(role);
        call.reply.bulk(b"replication-offset");
        call.reply.integer(0);
        call.reply.bulk(b"health");
        call.reply.bulk(b"online");
    }
}

fn nodes(cluster: &Cluster) -> String {
    let primary = cluster.nodes.iter().find(|node| node.is_primary).map(|node| id(node.id));
    let epoch = cluster.epoch;
    let line = |(node, ip, port): &(&ClusterNode, String, u16)| {
        let me = if node.is_me { "myself," } else { "" };
        let (role, of, slots) = match &primary {
            Some(primary) if !node.is_primary => ("slave", primary.as_str(), ""),
            _ => ("master", "-", " 0-16383"),
        };
        let id = id(node.id);
        format!("{id} {ip}:{port}@0 {me}{role} {of} 0 0 {epoch} connected{slots}\n")
    };
    reachable(cluster).iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum is the one of CRC-16/XMODEM's check; the slots are those of Redis' documentation.
    #[test]
    fn keys_have_the_slots_that_clients_expect() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo"), 12_182);
    }
}
