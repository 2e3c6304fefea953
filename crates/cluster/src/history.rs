//! The last changes of a group's epoch, for people: what the group's entry keeps of them.

use std::fmt;
#[cfg(any(feature = "etcd", test))]
use std::time::{SystemTime, UNIX_EPOCH};

use remora_store::replica::NodeId;
#[cfg(any(feature = "etcd", test))]
use remora_store::replica::{Configuration, Entry};
use serde::{Deserialize, Serialize};

/// How many changes are kept.
#[cfg(any(feature = "etcd", test))]
const KEPT: usize = 8;

/// A change of epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochChange {
    /// The epoch that began.
    pub epoch: u32,
    /// Its primary, which made the change.
    pub primary: NodeId,
    /// When, in seconds of Unix time by the primary's clock.
    pub at_s: u64,
    /// Why.
    pub cause: Cause,
}

/// Why an epoch began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The group had no epoch before.
    Founded,
    /// The primary before did not renew its lease in time.
    LeaseEnded(NodeId),
    /// The primary before gave its lease up.
    GaveUp(NodeId),
    /// The node gets a vote.
    Joins(NodeId),
    /// The node has no vote any more.
    Leaves(NodeId),
    /// The same primary begins again.
    Again,
}

impl Cause {
    /// Why a configuration comes behind the latest one.
    #[cfg(any(feature = "etcd", test))]
    fn of(latest: Option<&Entry>, next: &Configuration) -> Cause {
        let Some(Entry { configuration: before, is_free, .. }) = latest else {
            return Cause::Founded;
        };
        let beyond = |of: &Configuration, than: &Configuration| {
            of.members.iter().find(|node| !than.members.contains(node)).copied()
        };
        match (beyond(next, before), beyond(before, next)) {
            (Some(node), _) => Cause::Joins(node),
            (None, Some(node)) => Cause::Leaves(node),
            (None, None) if before.primary == next.primary => Cause::Again,
            (None, None) if *is_free => Cause::GaveUp(before.primary),
            (None, None) => Cause::LeaseEnded(before.primary),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Founded => write!(f, "the group begins"),
            Cause::LeaseEnded(node) => write!(f, "the lease of {node} has ended"),
            Cause::GaveUp(node) => write!(f, "{node} has given its lease up"),
            Cause::Joins(node) => write!(f, "{node} joins"),
            Cause::Leaves(node) => write!(f, "{node} leaves"),
            Cause::Again => write!(f, "the same primary begins again"),
        }
    }
}

/// The changes, the latest last, when this configuration comes behind the latest one.
#[cfg(any(feature = "etcd", test))]
pub(crate) fn with_change(
    changes: &[EpochChange],
    latest: Option<&Entry>,
    next: &Configuration,
) -> Vec<EpochChange> {
    let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (epoch, primary) = (next.epoch, next.primary);
    let own = EpochChange { epoch, primary, at_s, cause: Cause::of(latest, next) };
    let kept = &changes[changes.len().saturating_sub(KEPT - 1)..];
    kept.iter().cloned().chain([own]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_a_cause_and_the_last_ones_are_kept() {
        let nodes: Vec<_> = (1..4).map(NodeId).collect();
        let first = Configuration::first(nodes[0], nodes.clone()).unwrap();
        let entry = |configuration: &Configuration, is_free| Entry {
            configuration: configuration.clone(),
            revision: 1,
            is_free,
        };
        let other = first.under(nodes[1]).unwrap();
        let fourth = first.with(NodeId(4)).unwrap();
        let cause = |latest: Option<&Entry>, next| Cause::of(latest, next);
        assert_eq!(cause(None, &first), Cause::Founded);
        assert_eq!(cause(Some(&entry(&first, false)), &other), Cause::LeaseEnded(nodes[0]));
        assert_eq!(cause(Some(&entry(&first, true)), &other), Cause::GaveUp(nodes[0]));
        assert_eq!(cause(Some(&entry(&first, false)), &fourth), Cause::Joins(NodeId(4)));
        assert_eq!(cause(Some(&entry(&fourth, false)), &first), Cause::Leaves(NodeId(4)));
        let again = first.under(nodes[0]).unwrap();
        assert_eq!(cause(Some(&entry(&first, false)), &again), Cause::Again);

        let mut changes = with_change(&[], None, &first);
        let mut latest = first;
        for _ in 0..2 * KEPT {
            let next = latest.under(nodes[1]).unwrap();
            changes = with_change(&changes, Some(&entry(&latest, false)), &next);
            latest = next;
        }
        assert_eq!(changes.len(), KEPT);
        assert_eq!(changes.last().unwrap().epoch, latest.epoch);
    }
}
