//! What Redis' and memcached's clients get of a group: answers wait until a majority has what they
//! are about, and other nodes lead to the primary.

use std::sync::Arc;

use remora_store::front::keyspace::{Cluster, ClusterNode, Keeper};
use remora_store::log::Position;
use remora_store::replica::Standing;

use crate::group::Group;

/// A group, as the fronts' keeper.
#[derive(Clone, Debug)]
pub struct GroupKeeper(pub Arc<Group>);

/// What a node does, in a word for `INFO`.
fn word_of(standing: Standing) -> &'static str {
    match standing {
        Standing::Idle => "idle",
        Standing::Fencing => "fences",
        Standing::Backup(true) => "follows",
        Standing::Backup(false) => "waits",
        Standing::Recovering => "recovers",
        Standing::Serving => "serves",
    }
}

impl Keeper for GroupKeeper {
    fn is_awaited(&self) -> bool {
        true
    }

    /// The lease is looked at last: what was read before is then so for everybody.
    fn wait(&self, version: u64) -> Result<(), String> {
        self.0.wait(Position::from_number(version)).map_err(|doubt| doubt.to_string())?;
        self.0.check().map_err(|reason| reason.to_string())
    }

    fn save(&self, _background: bool) -> Result<(), String> {
        Err("the nodes of a cluster keep the store in their memory: nothing is on a disk"
            .to_owned())
    }

    fn saved_s(&self) -> u64 {
        0
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        let status = self.0.status();
        let epoch = status.configuration.map_or(0, |latest| latest.epoch);
        let mut entries = vec![
            ("cluster_node", status.me.to_string()),
            ("cluster_standing", word_of(status.standing).to_owned()),
            ("cluster_epoch", epoch.to_string()),
            ("cluster_has_lease", u8::from(status.has_lease).to_string()),
            ("cluster_last", status.last.position.to_string()),
            ("cluster_committed", status.committed.to_string()),
            ("cluster_applied", status.applied.position.to_string()),
            ("cluster_log_bytes", status.last.offset.to_string()),
            ("cluster_applied_bytes", status.applied.offset.to_string()),
            ("cluster_broken_links", status.broken.to_string()),
            ("cluster_service", status.service.unwrap_or_else(|| "ok".to_owned())),
        ];
        let serving = status.serving.map(|time| time.as_secs().to_string());
        entries.extend(serving.map(|seconds| ("cluster_serving_s", seconds)));
        entries
    }

    fn seen(&self) -> u64 {
        self.0.lock().replica.last().position.number()
    }

    fn is_elsewhere(&self) -> bool {
        self.0.check().is_err()
    }

    fn cluster(&self) -> Option<Cluster> {
        let status = self.0.status();
        let configuration = status.configuration?;
        let node = |node: &crate::NodeId| ClusterNode {
            id: node.0,
            address: status.addresses.get(node).and_then(|address| address.redis),
            is_me: *node == status.me,
            is_primary: *node == configuration.primary,
        };
        let nodes = configuration.members.iter().map(node).collect();
        Some(Cluster { epoch: configuration.epoch, nodes })
    }
}
