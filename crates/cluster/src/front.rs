//! What Redis' and memcached's clients get of a group: answers wait until a majority has what they
//! are about, and other nodes lead to the primary.

use std::sync::Arc;

use remora_store::front::keyspace::{Cluster, ClusterNode, Keeper};
use remora_store::log::Position;

use crate::group::Group;

/// A group, as the fronts' keeper.
#[derive(Clone, Debug)]
pub struct GroupKeeper(pub Arc<Group>);

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
        vec![
            ("cluster_standing", format!("{:?}", status.standing)),
            ("cluster_has_lease", u8::from(status.has_lease).to_string()),
            ("cluster_last", status.last.position.to_string()),
            ("cluster_committed", status.committed.to_string()),
            ("cluster_applied", status.applied.position.to_string()),
            ("cluster_broken_links", status.broken.to_string()),
            ("cluster_service", status.service.unwrap_or_else(|| "ok".to_owned())),
        ]
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
