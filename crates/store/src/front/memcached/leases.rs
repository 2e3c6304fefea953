//! Leases of the meta commands: which keys are stale, and whether somebody has been told to fill
//! them anew.
//!
//! They belong to this server, not to the store: another way in does not see them, and a restart
//! forgets them. Then a stale value counts as a good one until it ends, and two clients may fill a
//! key at once, as without leases. A lease holds for one version of its key.

use std::collections::{BTreeMap, VecDeque};

use crate::front::keyspace::TablespaceId;

/// The most leases; the oldest goes first.
const MOST: usize = 65_536;

/// What holds for one version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// The key's version.
    pub(super) version: u64,
    /// Its value is known to be old.
    pub(super) is_stale: bool,
    /// Somebody has been told to fill it.
    pub(super) is_won: bool,
}

type Name = (u64, Vec<u8>);

fn name(ts: TablespaceId, key: &[u8]) -> Name {
    (u64::from(ts.0), key.to_vec())
}

/// All leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: BTreeMap<Name, Lease>,
    /// Their names, in the order in which the first lease of each was made.
    order: VecDeque<Name>,
}

impl Leases {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The lease of a key, if it holds for this version.
    pub(super) fn at(&self, ts: TablespaceId, key: &[u8], version: u64) -> Option<Lease> {
        self.held.get(&name(ts, key)).filter(|lease| lease.version == version).copied()
    }

    /// Makes or changes a lease. One of an older version makes way.
    pub(super) fn set(&mut self, ts: TablespaceId, key: &[u8], lease: Lease) {
        let name = name(ts, key);
        if self.held.insert(name.clone(), lease).is_none() {
            self.order.push_back(name);
        }
        while self.order.len() > MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.held.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_holds_for_one_version() {
        let (mut leases, ts) = (Leases::default(), TablespaceId(1));
        let lease = Lease { version: 7, is_stale: true, is_won: false };
        leases.set(ts, b"k", lease);
        assert_eq!(leases.at(ts, b"k", 7), Some(lease));
        assert_eq!(leases.at(ts, b"other", 7), None);
        assert_eq!(leases.at(ts, b"k", 8), None);
        let newer = Lease { version: 8, ..lease };
        leases.set(ts, b"k", newer);
        assert_eq!((leases.at(ts, b"k", 7), leases.at(ts, b"k", 8)), (None, Some(newer)));
        assert_eq!(leases.order.len(), 1, "a key has one place");
    }

    #[test]
    fn there_is_a_limit() {
        let (mut leases, ts) = (Leases::default(), TablespaceId(1));
        for number in 0..MOST as u64 + 10 {
            let lease = Lease { version: number, is_stale: false, is_won: true };
            leases.set(ts, &number.to_be_bytes(), lease);
        }
        assert!(leases.held.len() <= MOST && leases.order.len() <= MOST);
        assert_eq!(leases.at(ts, &0u64.to_be_bytes(), 0), None);
    }
}
