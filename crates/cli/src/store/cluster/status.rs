//! How a group's nodes are: what etcd has of them, and what they say themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, stdout};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use remora_cli::{failure, output, stop};
use remora_cluster::etcd::{EtcdGroup, overview};
use remora_cluster::{Address, Configuration, NodeId};
use serde_json::{Value, json};

use super::info::Told;
use super::{Status, Watch};

/// How often `watch` looks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// A group at one moment.
#[derive(Debug)]
pub(super) struct Look {
    name: String,
    configuration: Option<Configuration>,
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
        let group = self.group.etcd.group(&self.group.name)?;
        Look::at(&group, self.group.password.as_deref())?.print(self.json)
    }
}

impl Watch {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop::on_signals()?;
        let group = self.group.etcd.group(&self.group.name)?;
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() < next {
                std::thread::sleep(LOOK);
                continue;
            }
            next = Instant::now() + Duration::from_secs(self.every);
            let look = Look::at(&group, self.group.password.as_deref());
            if !self.json && stdout().is_terminal() {
                // Clears the screen.
                print!("\x1b[2J\x1b[H");
            }
            match look {
                Ok(look) => look.print(self.json)?,
                // It may come back.
                Err(error) => eprintln!("remora: {}", failure::told(&error)),
            }
        }
        Ok(())
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.headline(), self.table())
    }
}

impl Look {
    /// Asks etcd for the group, then its nodes.
    ///
    /// # Errors
    /// etcd cannot be asked, or knows no such group.
    pub(super) fn at(group: &EtcdGroup, password: Option<&str>) -> Result<Look> {
        let found = overview(group)?;
        let (name, urls) = (&group.name, group.endpoints.join(","));
        ensure!(
            found.configuration.is_some() || !found.nodes.is_empty(),
            "etcd at {urls} knows no group {name}: start its nodes with `remora store serve \
             --cluster {name} --etcd {urls} --redis`"
        );
        let members = found.configuration.iter().flat_map(|latest| latest.members.clone());
        let mut nodes: BTreeMap<_, _> = members.map(|node| (node, None)).collect();
        nodes.extend(found.nodes.iter().map(|(node, address)| (*node, Some(*address))));
        let see = |(node, address): (NodeId, Option<Address>)| {
            let told = match address.map(|address| address.redis) {
                None => Err("it holds no lease".to_owned()),
                Some(None) => Err("it serves no clients of Redis’".to_owned()),
                Some(Some(at)) => {
                    Told::ask(node, at, password).map_err(|error| failure::told(&error))
                }
            };
            (node, Seen { address, told })
        };
        let nodes = nodes.into_iter().map(see).collect();
        Ok(Look { name: group.name.clone(), configuration: found.configuration, nodes })
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
        let name = &self.name;
        let Some(Configuration { epoch, primary, .. }) = &self.configuration else {
            return format!("The group {name} waits for more nodes before it begins.");
        };
        match self.serving() {
            Some((_, seconds)) => format!(
                "The group {name} in epoch {epoch}: {primary} is the primary, and has served for \
                 {} s.",
                output::grouped(seconds)
            ),
            None => format!(
                "The group {name} in epoch {epoch}: {primary} is the primary, but does not serve \
                 at the moment."
            ),
        }
    }

    fn table(&self) -> comfy_table::Table {
        let headings = ["node", "part", "state", "card", "Redis’ clients", "behind"];
        let mut table = output::table(headings);
        for (node, seen) in &self.nodes {
            let text = |at: Option<String>| at.unwrap_or_default();
            let state = match &seen.told {
                Ok(told) if told.service == "ok" => told.standing.clone(),
                Ok(told) => format!("{}; of etcd: {}", told.standing, told.service),
                Err(_) if seen.address.is_none() => "lost: it holds no lease".to_owned(),
                Err(reason) => format!("unknown: {reason}"),
            };
            let behind = seen.told.as_ref().ok().and_then(|told| self.behind(told));
            table.add_row([
                node.to_string(),
                self.part(*node).to_owned(),
                remora::printable(&state).to_string(),
                text(seen.address.map(|address| address.card.to_string())),
                text(seen.address.and_then(|address| address.redis).map(|at| at.to_string())),
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
                "card": seen.address.map(|address| address.card),
                "redis": seen.address.and_then(|address| address.redis),
                "state": told.map(|told| &told.standing),
                "epoch": told.map(|told| told.epoch),
                "log_bytes": told.map(|told| told.log_bytes),
                "applied_bytes": told.map(|told| told.applied_bytes),
                "behind_bytes": told.and_then(|told| self.behind(told)),
                "broken_links": told.map(|told| told.broken_links),
                "etcd": told.map(|told| &told.service),
                "error": seen.told.as_ref().err(),
            })
        };
        let latest = self.configuration.as_ref();
        json!({
            "group": self.name,
            "epoch": latest.map(|latest| latest.epoch),
            "is_established": latest.map(Configuration::is_established),
            "primary": latest.map(|latest| latest.primary.to_string()),
            "serving_s": self.serving().map(|(_, seconds)| seconds),
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
        })
    }
}
