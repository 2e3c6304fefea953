//! How a cluster's groups are: what etcd has of their nodes, and what these say themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, stdout};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use remora_cluster::etcd::EtcdGroup;
use remora_cluster::{Address, Atlas, Configuration, EpochChange, NodeId, Owner};
use remora_command::{failure, output, stop};
use remora_store::front::slots::Range;
use serde_json::{Value, json};

use super::info::{COUNTERS, Moves, Told};
use super::moves::atlas;
use super::{Status, Watch};

/// How often `watch` looks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// A group at one moment.
#[derive(Debug)]
pub(super) struct Look {
    cluster: String,
    name: String,
    /// Its slots.
    slots: Vec<Range>,
    /// Those of them that are to go to another group.
    leaving: Vec<(Range, String)>,
    configuration: Option<Configuration>,
    /// How many members it is to have.
    size: Option<u8>,
    /// How it came there, the latest change last.
    changes: Vec<EpochChange>,
    /// Its members, and other nodes that hold a lease.
    nodes: BTreeMap<NodeId, Seen>,
}

/// A node, from outside.
#[derive(Debug)]
struct Seen {
    /// Where it is, if it holds a lease.
    address: Option<Address>,
    /// What it says, or why it does not.
    told: Result<Told, String>,
}

impl Status {
    pub(super) fn run(self) -> Result<()> {
        let cluster = self.group.cluster.find()?;
        let all = Look::all(&cluster, self.group.password.as_deref())?;
        all.iter().try_for_each(|look| {
            look.print(self.json)?;
            if self.counters && !self.json {
                println!("{}", look.counters());
            }
            Ok(())
        })
    }
}

impl Watch {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop::on_signals()?;
        let cluster = self.group.cluster.find()?;
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() < next {
                std::thread::sleep(LOOK);
                continue;
            }
            next = Instant::now() + Duration::from_secs(self.every);
            let look = Look::all(&cluster, self.group.password.as_deref());
            if !self.json && stdout().is_terminal() {
                // Clears the screen.
                print!("\x1b[2J\x1b[H");
            }
            match look {
                Ok(all) => all.iter().try_for_each(|look| look.print(self.json))?,
                // It may come back.
                Err(error) => eprintln!("remora: {}", failure::told(&error)),
            }
        }
        Ok(())
    }
}

/// How long ago a moment was, of Unix time in seconds. (Another machine's clock may be ahead.)
fn seconds_since(at_s: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    now.saturating_sub(at_s)
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}\n{}", self.headline(), self.table(), self.changes_in_words())
    }
}

impl Look {
    /// Asks etcd for a cluster's groups, then their nodes.
    ///
    /// # Errors
    /// etcd cannot be asked, or knows no such cluster.
    pub(super) fn all(cluster: &EtcdGroup, password: Option<&str>) -> Result<Vec<Look>> {
        let atlas = atlas(cluster)?;
        let (name, urls) = (&cluster.name, cluster.endpoints.join(","));
        ensure!(
            !atlas.groups.is_empty(),
            "etcd at {urls} knows no cluster {name}: start its nodes with `remora store serve \
             --cluster {name} --etcd {urls} --redis`"
        );
        Ok(atlas.groups.keys().map(|group| Look::at(name, group, &atlas, password)).collect())
    }

    fn at(cluster: &str, group: &str, atlas: &Atlas, password: Option<&str>) -> Look {
        let found = &atlas.groups[group];
        let members = found.configuration.iter().flat_map(|latest| latest.members.clone());
        let mut nodes: BTreeMap<_, _> = members.map(|node| (node, None)).collect();
        nodes.extend(found.nodes.iter().map(|(node, address)| (*node, Some(address.clone()))));
        let see = |(node, address): (NodeId, Option<Address>)| {
            let told = match address.as_ref().map(|address| address.redis) {
                None => Err("it holds no lease".to_owned()),
                Some(None) => Err("it serves no clients of Redis’".to_owned()),
                Some(Some(at)) => {
                    Told::ask(node, at, password).map_err(|error| failure::told(&error))
                }
            };
            (node, Seen { address, told })
        };
        let owned = |owner: &Owner| owner.group == group;
        let map = atlas.slots.clone().unwrap_or_default();
        let leaving = map.iter().filter(|(_, owner)| owned(owner));
        let leaving = leaving.filter_map(|(range, owner)| Some((range, owner.to.clone()?)));
        Look {
            cluster: cluster.to_owned(),
            name: group.to_owned(),
            slots: map.ranges(owned),
            leaving: leaving.collect(),
            configuration: found.configuration.clone(),
            size: found.size,
            changes: found.changes.clone(),
            nodes: nodes.into_iter().map(see).collect(),
        }
    }

    /// Whether this is the group of this name.
    pub(super) fn is_of(&self, group: &str) -> bool {
        self.name == group
    }

    /// The primary, if it serves, and for how long it has.
    pub(super) fn serving(&self) -> Option<(NodeId, u64)> {
        let primary = self.configuration.as_ref()?.primary;
        let told = self.told(primary)?;
        told.serving_s.map(|seconds| (primary, seconds))
    }

    fn told(&self, node: NodeId) -> Option<&Told> {
        self.nodes.get(&node)?.told.as_ref().ok()
    }

    /// What a node is for the group.
    fn part(&self, node: NodeId) -> &'static str {
        match &self.configuration {
            Some(latest) if latest.primary == node => "primary",
            Some(latest) if latest.members.contains(&node) => "backup",
            _ => "spare",
        }
    }

    /// How many bytes of the primary's log a node has not carried out yet.
    fn behind(&self, told: &Told) -> Option<u64> {
        let primary = self.configuration.as_ref()?.primary;
        Some(self.told(primary)?.log_bytes.saturating_sub(told.applied_bytes))
    }

    fn print(&self, as_json: bool) -> Result<()> {
        if as_json {
            return output::json_line(&self.to_json());
        }
        println!("{self}");
        Ok(())
    }

    fn headline(&self) -> String {
        let (name, cluster) = (&self.name, &self.cluster);
        let Some(Configuration { epoch, primary, members, .. }) = &self.configuration else {
            return format!("Group {name} of {cluster} waits for more nodes before it begins.");
        };
        let (count, wanted) = (members.len(), self.size.map_or(members.len(), usize::from));
        let size = match count == wanted {
            true => String::new(),
            false => format!("\nIt has {count} members, and is to have {wanted}."),
        };
        let serves = match self.serving() {
            Some((_, seconds)) => format!("and has served for {} s", output::grouped(seconds)),
            None if self.told(*primary).is_none() => {
                "and does not say whether it serves".to_owned()
            }
            None => "but does not serve at the moment".to_owned(),
        };
        format!(
            "Group {name} of {cluster} in epoch {epoch}: {primary} is the primary, \
             {serves}.{size}\n{}{}",
            self.slots_in_words(),
            self.troubles().into_iter().map(|advice| format!("\n{advice}")).collect::<String>()
        )
    }

    /// What somebody has to see to.
    fn troubles(&self) -> Vec<String> {
        let nodes = self.nodes.iter();
        let told: Vec<_> =
            nodes.filter_map(|(node, seen)| Some((node, seen.told.as_ref().ok()?))).collect();
        let full: Vec<_> = told
            .iter()
            .filter(|(_, told)| told.disk != "ok")
            .map(|(node, _)| node.to_string())
            .collect();
        let mut said = Vec::new();
        if told.iter().any(|(_, told)| told.majority != "ok") {
            said.push(
                "No majority confirms changes: they are refused. What is decided can be read."
                    .to_owned(),
            );
        }
        let mut memories = self.nodes.iter().filter_map(|(node, seen)| {
            Some((seen.address.as_ref()?.memory?, node)).filter(|_| self.part(*node) != "spare")
        });
        let least = memories.clone().min();
        if let Some((bytes, node)) = least.filter(|least| memories.any(|other| other.0 > least.0)) {
            said.push(format!(
                "The group takes {} at most: {node} was started with that --memory, and others \
                 with more.",
                output::bytes(bytes)
            ));
        }
        if !full.is_empty() {
            said.push(format!(
                "Disks take nothing: make room at {}, or start other nodes in their places.",
                full.join(" and ")
            ));
        }
        said
    }

    fn slots_in_words(&self) -> String {
        let count: u32 = self.slots.iter().map(|range| u32::from(range.count())).sum();
        let shown: Vec<_> = self.slots.iter().map(Range::to_string).collect();
        let leaving = self.leaving.iter().map(|(range, to)| format!(" {range} go to group {to}."));
        let leaving: String = leaving.chain(self.moves_in_words()).collect();
        match count {
            0 => "It has no slots.".to_owned(),
            _ => {
                let slots = output::counted(count.into(), "slot");
                format!("It has {slots}: {}.{leaving}", shown.join(", "))
            }
        }
    }

    /// How the moves stand, while there are any.
    fn moves_in_words(&self) -> Option<String> {
        let moves = self.moves().filter(|_| !self.leaving.is_empty())?;
        let (moved, in_transit) =
            (output::counted(moves.moved, "key"), output::grouped(moves.in_transit));
        let waits = match &*moves.state {
            "ok" => String::new(),
            reason => format!(" They wait: {}.", remora::printable(reason)),
        };
        Some(format!(
            " The primary has handed over {moved}, and {in_transit} are on the way.{waits}"
        ))
    }

    /// What the primary says of the group's moves.
    fn moves(&self) -> Option<&Moves> {
        self.told(self.configuration.as_ref()?.primary)?.moves.as_ref()
    }

    /// What each node has counted.
    fn counters(&self) -> comfy_table::Table {
        let headings = ["node"].into_iter().chain(COUNTERS).chain(["broken links"]);
        let mut table = output::table(headings);
        for (node, told) in self.nodes.keys().filter_map(|node| Some((node, self.told(*node)?))) {
            let counted = COUNTERS.iter().map(|name| told.counters[name]);
            let counted = counted.chain([told.broken_links]).map(output::grouped);
            table.add_row([node.to_string()].into_iter().chain(counted));
        }
        output::align_right(&mut table, 1..=COUNTERS.len() + 1);
        table
    }

    /// The last changes of epoch, the latest first.
    fn changes_in_words(&self) -> comfy_table::Table {
        let mut table = output::table(["epoch", "since", "primary", "because"]);
        for change in self.changes.iter().rev() {
            table.add_row([
                change.epoch.to_string(),
                format!("{} s ago", output::grouped(seconds_since(change.at_s))),
                change.primary.to_string(),
                change.cause.to_string(),
            ]);
        }
        output::align_right(&mut table, [0, 1]);
        table
    }

    fn table(&self) -> comfy_table::Table {
        let headings = ["node", "part", "state", "card", "Redis’ clients", "behind"];
        let mut table = output::table(headings);
        for (node, seen) in &self.nodes {
            let text = |at: Option<String>| at.unwrap_or_default();
            let state = match &seen.told {
                Ok(told) => told.state(),
                Err(_) if seen.address.is_none() => "lost: it holds no lease".to_owned(),
                Err(reason) => format!("unknown: {reason}"),
            };
            let behind = seen.told.as_ref().ok().and_then(|told| self.behind(told));
            table.add_row([
                node.to_string(),
                self.part(*node).to_owned(),
                remora::printable(&state).to_string(),
                text(
                    seen.address
                        .as_ref()
                        .and_then(|address| address.store)
                        .map(|at| at.to_string()),
                ),
                text(
                    seen.address
                        .as_ref()
                        .and_then(|address| address.redis)
                        .map(|at| at.to_string()),
                ),
                text(behind.map(output::bytes)),
            ]);
        }
        output::align_right(&mut table, [5]);
        table
    }

    fn to_json(&self) -> Value {
        let node = |(node, seen): (&NodeId, &Seen)| {
            let told = seen.told.as_ref().ok();
            json!({
                "node": node.to_string(),
                "part": self.part(*node),
                "has_lease": seen.address.is_some(),
                "card": seen.address.as_ref().and_then(|address| address.store),
                "nodes": seen.address.as_ref().map(|address| address.card),
                "memory": seen.address.as_ref().and_then(|address| address.memory),
                "redis": seen.address.as_ref().and_then(|address| address.redis),
                "state": told.map(|told| &told.standing),
                "epoch": told.map(|told| told.epoch),
                "log_bytes": told.map(|told| told.log_bytes),
                "applied_bytes": told.map(|told| told.applied_bytes),
                "behind_bytes": told.and_then(|told| self.behind(told)),
                "broken_links": told.map(|told| told.broken_links),
                "counters": told.map(|told| &told.counters),
                "last_refusal": told.map(|told| &told.refusal).filter(|said| *said != "none"),
                "etcd": told.map(|told| &told.service),
                "disk": told.map(|told| &told.disk),
                "majority": told.map(|told| &told.majority),
                "error": seen.told.as_ref().err(),
            })
        };
        let latest = self.configuration.as_ref();
        json!({
            "cluster": self.cluster,
            "group": self.name,
            "slots": self.slots,
            "leaving": self.leaving,
            "moves": self.moves().map(|moves| json!({
                "keys_moved": moves.moved,
                "keys_in_transit": moves.in_transit,
                "waits": Some(&moves.state).filter(|state| *state != "ok"),
            })),
            "epoch": latest.map(|latest| latest.epoch),
            "is_established": latest.map(Configuration::is_established),
            "size": self.size,
            "primary": latest.map(|latest| latest.primary.to_string()),
            "serving_s": self.serving().map(|(_, seconds)| seconds),
            "changes": self.changes,
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
        })
    }
}
